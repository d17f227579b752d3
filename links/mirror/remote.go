package mirror

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// confirmAfter is how long a listing that would remove many Services is held: one that arrives at least so
// much later must lack as many.
const confirmAfter = 10 * time.Second

// freeRemovals is how many mirrors and memberships of a cluster a listing may remove without confirmation.
const freeRemovals = 3

var serviceKind = api.Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})

// A remoteCluster is the Services of one linked cluster, as one connection lists them. It is what an informer
// fills.
type remoteCluster struct {
	*api.Store[*remoteService]
	term *term
	name string

	connected    atomic.Bool // the connection is in use
	complete     atomic.Bool // a Service that is not in the store does not exist
	removalHeld  atomic.Bool // the last listing would have removed many Services, and was not confirmed
	hasUnmatched atomic.Bool // the last report has Services that ask for a mirror and are not selected
	heldSince    time.Time   // zero unless a removal is held; owned by Replace
	watcher      *api.Watcher
	relist       *time.Timer // nil unless a removal was held; owned by Replace
}

// service returns a Service of the cluster, and whether it exists.
func (r *remoteCluster) service(k api.Key) (*remoteService, existence) {
	complete := r.complete.Load() && r.IsWhole()
	svc, found := r.Get(k)
	switch {
	case found:
		return svc, present
	case complete:
		return nil, absent
	default:
		return nil, unknown
	}
}

// remoteServiceChanged enqueues what a Service bears on, if this is still the connection whose listing counts.
func (r *remoteCluster) remoteServiceChanged(k api.Key) {
	if r.term.remoteOf(r.name) != r {
		return
	}
	r.term.enqueueRemote(r.name, k)
	if svc, found := r.Get(k); found && asksForMirror(svc.Service) || r.hasUnmatched.Load() {
		r.term.enqueueLinkOf(r.name)
	}
}

// Replace stores a complete listing. A Service that it lacks counts as absent, unless that would remove more
// than half of the cluster's mirrors and memberships, and more than 3. Such a removal is held until every
// listing of the next confirmAfter, and one after that, lack as many.
func (r *remoteCluster) Replace(objects []any) {
	r.complete.Store(false)
	r.Store.Replace(objects)

	all, missing := r.term.countMissing(r.name, func(k api.Key) bool {
		_, found := r.Get(k)
		return found
	})
	many := policy.IsMassOf(missing, all, freeRemovals)
	if many && r.heldSince.IsZero() {
		r.heldSince = time.Now()
		r.term.log.Info("A listing of a linked cluster lacks most of the mirrored Services: nothing is removed "+
			"until another listing confirms it", "cluster", r.name, "mirrored", all, "missing", missing)
	}

	held := many && time.Since(r.heldSince) < confirmAfter
	r.removalHeld.Store(held)
	if held {
		r.stopTimer()
		r.relist = time.AfterFunc(confirmAfter, r.watcher.Relist)
	} else {
		r.heldSince = time.Time{}
		r.complete.Store(true)
	}

	r.term.setRemote(r)
}

func (r *remoteCluster) stopTimer() {
	if r.relist != nil {
		r.relist.Stop()
	}
}

// readCluster watches the Services of a cluster until ctx or the term ends. It lists anew confirmAfter a
// removal was held.
func (t *term) readCluster(ctx context.Context, name string, conn *api.Connection) {
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, t.log.V(1)))
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	if !watch.WaitClosed(ctx, t.ready) { // countMissing needs the existing mirrors
		return
	}

	r := &remoteCluster{term: t, name: name}
	r.Store = api.NewStore(newRemoteService, r.remoteServiceChanged)
	r.connected.Store(true)
	defer t.dropUnlinked()
	defer r.connected.Store(false)
	r.watcher = api.NewWatcher(conn, serviceKind, r)
	r.watcher.Run(ctx)
	r.stopTimer()
}

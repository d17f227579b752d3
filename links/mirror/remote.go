package mirror

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
)

var serviceKind = api.Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})

// A remoteCluster is the Services of one linked cluster, as one connection lists them. It is what an informer
// fills.
type remoteCluster struct {
	*api.Store[*remoteService]
	term *term
	name string

	connected    atomic.Bool // the connection is in use
	complete     atomic.Bool // a Service that is not in the store does not exist
	removalHeld  atomic.Bool // the first listing would remove Services, and that is not confirmed yet
	hasUnmatched atomic.Bool // the last report has Services that ask for a mirror and are not selected
	lost         chan loss   // is given what the first listing lacks
}

// A loss is how many mirrors and memberships of a cluster there are, and for how many there is a Service.
type loss struct{ had, has policy.Amount }

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

// Replace stores a complete listing. A Service that the first one lacks counts as absent once the guard of the cluster
// has nothing against it: what is written here outlives a replica, which may not know that there was more. From then
// on the guard has seen everything, and mirrors stay for what it holds (Store.Gives).
func (r *remoteCluster) Replace(objects []any) {
	r.Store.Replace(objects)

	if !r.complete.Load() && !r.removalHeld.Load() {
		all, missing := r.term.countMissing(r.name, func(k api.Key) bool {
			_, found := r.Get(k)
			return found
		})
		if missing > 0 {
			r.removalHeld.Store(true)
			r.lost <- loss{policy.Amount{Services: all}, policy.Amount{Services: all - missing}}
		} else {
			r.complete.Store(true)
		}
	}

	r.term.setRemote(r)
}

// confirmLoss waits for what the first listing lacks, and until that is confirmed, or ctx ends.
func (r *remoteCluster) confirmLoss(
	ctx context.Context, confirm func(ctx context.Context, cluster string, had, has policy.Amount) error,
) {
	select {
	case lost := <-r.lost:
		if confirm(ctx, r.name, lost.had, lost.has) == nil {
			r.complete.Store(true)
			r.removalHeld.Store(false)
			r.term.setRemote(r)
		}
	case <-ctx.Done():
	}
}

// readCluster watches the Services of a cluster until ctx or the term ends.
func (t *term) readCluster(ctx context.Context, name string, conn *api.Connection) {
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, t.log.V(1)))
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	if !watch.WaitClosed(ctx, t.ready) { // countMissing needs the existing mirrors
		return
	}

	r := &remoteCluster{term: t, name: name, lost: make(chan loss, 1)}
	r.Store = api.NewStore(newRemoteService, r.remoteServiceChanged)
	r.connected.Store(true)
	defer t.dropUnlinked()
	defer r.connected.Store(false)

	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { r.confirmLoss(ctx, t.registry.ConfirmLoss) })
	api.NewWatcher(conn, serviceKind, r).Run(ctx)
}

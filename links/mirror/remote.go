package mirror

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/records"
)

// confirmAfter is how long a listing that would remove much is doubted: one that comes at least so much later must lack as much.
const confirmAfter = 10 * time.Second

// What bounds telling a linked cluster what is skipped: it is only for people there.
const (
	eventTimeout = 5 * time.Second
	maxEvents    = 256 // that wait; what comes then is not told
)

// remote is the Services of one linked cluster, as one connection tells them. It is what an informer fills.
type remoteCluster struct {
	*records.Store[*remoteService]
	term *term
	name string
	core kubernetes.Interface

	connected   atomic.Bool // the connection is in use
	complete    atomic.Bool // what is not in the store does not exist
	removalHeld atomic.Bool // the last listing would have removed much, and was not confirmed
	heldSince   time.Time   // since when; of Replace
	relist      chan struct{}
	events      chan *corev1.Event // to be told there
}

// keepService keeps of a Service what a mirror could be made of.
func trimService(object any) (*corev1.Service, bool) {
	svc, ok := object.(*corev1.Service)
	if !ok || svc.DeletionTimestamp != nil {
		return nil, false
	}
	svc.ManagedFields, svc.OwnerReferences, svc.Finalizers, svc.Status = nil, nil, nil, corev1.ServiceStatus{}
	return svc, true
}

// Replace stores a complete listing. What it lacks counts as gone, unless that would be more than half of the cluster's mirrors and
// memberships, and more than 3: then only if all listings of the next confirmAfter, and one after that, lack as much.
func (r *remoteCluster) Replace(objects []any, version string) error {
	r.complete.Store(false)
	if err := r.Store.Replace(objects, version); err != nil {
		return err
	}
	all, gone := r.term.countMissing(r.name, func(k records.Key) bool {
		_, found := r.Get(k)
		return found
	})
	much := gone > 3 && 2*gone > all
	if much && r.heldSince.IsZero() {
		r.heldSince = time.Now()
		r.term.log.Info("A listing of a linked cluster lacks most of the Services that are mirrored: nothing is removed until another one says so too",
			"cluster", r.name, "mirrored", all, "missing", gone)
	}
	doubtful := much && time.Since(r.heldSince) < confirmAfter
	r.removalHeld.Store(doubtful)
	if doubtful {
		select {
		case r.relist <- struct{}{}:
		default: // it is asked for already
		}
	} else {
		r.heldSince = time.Time{}
		r.complete.Store(true)
	}
	r.term.setRemote(r)
	return nil
}

// attend reads the Services of a cluster until ctx or the term ends.
func (t *term) readCluster(ctx context.Context, name string, conn *cluster.Connection) {
	if !t.join() {
		return
	}
	defer t.wg.Done()
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, t.log.V(1)))
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	if !waitClosed(ctx, t.ready) { // the guard has to know what there is
		return
	}
	core, err := kubernetes.NewForConfigAndClient(conn.Config, conn.HTTPClient)
	if err != nil {
		t.log.Error(err, "Services cannot be read", "cluster", name)
		return
	}
	r := &remoteCluster{term: t, name: name, core: core, relist: make(chan struct{}, 1), events: make(chan *corev1.Event, maxEvents)}
	r.Store = records.NewStore(newRemoteService, func(k records.Key) {
		if t.isCurrent(r) {
			t.enqueueRemote(name, k)
		}
	})
	r.connected.Store(true)
	defer t.dropUnlinked()
	defer r.connected.Store(false)
	var telling sync.WaitGroup
	telling.Go(func() { r.createEvents(ctx) })
	defer telling.Wait() // ctx has ended then
	source := cluster.NewSource(serviceRequests(core), conn)
	for ctx.Err() == nil {
		listing, again := context.WithCancel(ctx)
		filled := make(chan struct{})
		go func() {
			defer close(filled)
			source.Fill(listing, &corev1.Service{}, r)
		}()
		select {
		case <-r.relist:
			sleepContext(ctx, confirmAfter)
		case <-ctx.Done():
		}
		again()
		<-filled
	}
}

// event has it told in a linked cluster, once, that one of its Services is not mirrored. It does not wait.
func (r *remoteCluster) recordSkipped(svc *corev1.Service, message string) {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, svc.UID, message) // it cannot fail
	now := metav1.Now()
	select {
	case r.events <- &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: svc.Namespace, Name: fmt.Sprintf("%s.%x", svc.Name, h.Sum64())},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID},
		Type:           corev1.EventTypeNormal, Reason: "ServiceMirroringSkipped", Message: message,
		FirstTimestamp: now, LastTimestamp: now, Count: 1, Source: corev1.EventSource{Component: productName},
	}:
	default:
	}
}

// tell creates Events until ctx ends.
func (r *remoteCluster) createEvents(ctx context.Context) {
	for {
		select {
		case e := <-r.events:
			request, cancel := context.WithTimeout(ctx, eventTimeout)
			_, err := r.core.CoreV1().Events(e.Namespace).Create(request, e, metav1.CreateOptions{})
			cancel()
			if err != nil && !apierrors.IsAlreadyExists(err) {
				r.term.log.V(1).Info("An Event cannot be written", "cluster", r.name, "service", e.Namespace+"/"+e.InvolvedObject.Name, "error", err.Error())
			}
		case <-ctx.Done():
			return
		}
	}
}

// wait returns true once c is closed, and false once ctx ends.
func waitClosed(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

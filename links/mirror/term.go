package mirror

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = time.Minute
	// statusDelay is how long results are collected before they are patched into a Link.
	statusDelay = 500 * time.Millisecond
)

// A queueKey is the name of an object of the local cluster, or of a Link whose status is to be updated.
type queueKey struct {
	isLink bool
	api.Key
}

// A term is one period in which the local cluster's Lease is ours, with everything that is read and written
// in it. It is created by Mirror.Run and dropped at its end; the next term reads everything again. So it
// has no state to hand over, and none that could be stale.
//
// # What starts when
//
//  1. run creates a controller with four workers. When that starts, startInformers watches Services,
//     Endpoints and Namespaces of the local cluster, followLinks begins, and currentTerm publishes the
//     term.
//  2. followLinks computes a linkSet at once, and again for each change of a Link or of a Lease of
//     Linkerd's service mirror. It starts what the set needs: watches of Leases, and one gateway for each
//     Link that has gatewayAddresses.
//  3. ready closes when Links, local Services and local Endpoints were listed, and Namespaces were listed
//     or refused. Before that nothing is enqueued and nothing is written; then everything is enqueued once.
//  4. Mirror.Engage finds the term in currentTerm and calls readCluster for its cluster, which waits for
//     ready: the guard against mass removal has to know the existing mirrors. From its first complete
//     listing on, the cluster is in remotes, and its Services are known.
//  5. reconcile watches the endpoints of a remote Service from the first plan that needs them.
//
// When the context of run ends, its workers and goroutines end with it. shutDown then takes the term out of
// currentTerm, makes acquire return false, and waits for wg. No request is sent after run has returned.
//
// # The order of events
//
// An event carries no data. The informer stores the new record first and enqueues the keys that it may bear
// on afterwards, so the reconcile that follows reads a state at least as new as the event. The queue merges
// equal keys, and never gives one key to two workers; between different keys there is no order. What we
// write comes back as an event like every other, and is then found equal. A patch or deletion is conditional
// on the resourceVersion that was planned from, and a creation on that there is no such object. If one fails
// for that, the event that made it fail is on its way; a retry after a second is only a second net.
//
// Four kinds of event enqueue: a local object (localServiceChanged), a Service of a linked cluster
// (enqueueRemote), the readiness of its endpoints (followEndpoints) and, for everything of one cluster or
// of all, listings, gateways and Links (enqueueCluster, enqueueAll). Results enqueue their Link with a
// delay.
//
// # Locks
//
// mu guards the maps below it. It is a leaf: no API server, queue, log, record store or budget is called
// under it. The one exception is watchEndpoints, which opens a federation.Watch under mu; the Store never
// calls back. budget, permissions and observedLeases have locks of their own, and call nothing under them.
// Each permission has another one, which is held while its access review is sent: the other workers wait
// for the same answer. The last three fields of a leaseWatch belong to followLinks alone.
type term struct {
	*Mirror

	// Set before anything is started, and not changed afterwards.
	ctx   context.Context // ends with the term
	queue workqueue.TypedRateLimitingInterface[queueKey]

	services       *api.Informer[*corev1.Service]
	endpoints      *api.Informer[*endpoints]
	namespaces     *api.Informer[struct{}]
	permissions    *permissions
	budget         *budget
	observedLeases observedLeases
	linkSet        watch.Value[*linkSet] // stored by followLinks
	ready          chan struct{}         // see above; closed once
	wg             sync.WaitGroup        // acquire adds to it

	mu                    sync.Mutex // guards the fields below
	ended                 bool
	localRefusal          string                    // why the local cluster cannot be listed; empty if it can
	remotes               map[string]*remoteCluster // by name; listed completely once
	remoteEndpoints       map[federation.Ref]*endpointWatch
	hostnames             map[federation.Ref]map[string]bool // names of Services; the Ref has a hostname as name
	gateways              map[string]*runningGateway         // by cluster
	leases                map[string]*leaseWatch             // by namespace
	results               map[api.Key][]serviceResult        // of the last plan for a name
	mutated               map[api.Key]mutatedService
	conditionsUnsupported map[string]bool // Links whose schema drops conditions, by UID
}

// An endpointWatch follows the endpoints of one remote Service.
type endpointWatch struct {
	cancel    context.CancelFunc
	readiness watch.Value[readiness]
}

type runningGateway struct {
	*gateway
	spec       string // equal for gateways with the same configuration
	cancel     context.CancelFunc
	probeEnded chan struct{} // closed after the last probe
}

// A leaseWatch watches the Leases of one namespace.
type leaseWatch struct {
	*api.Informer[leaseRecord]

	// Of confirmLease, which lists the Leases beside the watch.
	triedAt       time.Time
	lastTryFailed bool
	confirmedAt   time.Time // when a list succeeded last
}

// A mutatedService is one that the API server stores otherwise than requested.
type mutatedService struct{ requested, stored *corev1.Service }

func newTerm(m *Mirror) *term {
	t := &term{
		Mirror:                m,
		permissions:           &permissions{log: m.log, client: m.core},
		budget:                newBudget(m.options.MaxServices),
		ready:                 make(chan struct{}),
		remotes:               map[string]*remoteCluster{},
		remoteEndpoints:       map[federation.Ref]*endpointWatch{},
		hostnames:             map[federation.Ref]map[string]bool{},
		gateways:              map[string]*runningGateway{},
		leases:                map[string]*leaseWatch{},
		results:               map[api.Key][]serviceResult{},
		mutated:               map[api.Key]mutatedService{},
		conditionsUnsupported: map[string]bool{},
	}
	t.linkSet.Store(&linkSet{})
	services := api.Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})
	t.services = api.NewInformer(t.local, services, trimService, t.localServiceChanged)
	ours := api.Typed(corev1.SchemeGroupVersion, "endpoints", "Endpoints", &endpoints{})
	ours.Labels = clusterLabel
	t.endpoints = api.NewInformer(t.local, ours, func(object any) (*endpoints, bool) {
		e, ok := object.(*endpoints)
		if ok {
			e.ManagedFields = nil
		}
		return e, ok
	}, func(k api.Key) { t.enqueue(k) })
	namespaces := api.Typed(corev1.SchemeGroupVersion, "namespaces", "Namespace", &corev1.Namespace{})
	t.namespaces = api.NewInformer(t.local, namespaces,
		func(any) (struct{}, bool) { return struct{}{}, true },
		func(k api.Key) {
			t.enqueueAll(func(o api.Key) bool { return o.Namespace == k.Name })
		})
	return t
}

func (t *term) run(ctx context.Context) error {
	c, err := controller.NewTypedUnmanaged("mirror", controller.TypedOptions[queueKey]{
		Reconciler:              reconcile.TypedFunc[queueKey](t.reconcile),
		MaxConcurrentReconciles: 4,
		SkipNameValidation:      new(true),
		Logger:                  t.log,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[queueKey](
			minBackoff, maxBackoff),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer t.shutDown(cancel)
	err = c.Watch(source.TypedFunc[queueKey](
		func(_ context.Context, queue workqueue.TypedRateLimitingInterface[queueKey]) error {
			t.ctx, t.queue = logr.NewContext(ctx, t.log.V(1)), queue
			t.startInformers()
			t.spawn(t.followLinks)
			t.currentTerm.Store(t)
			return nil
		}))
	if err != nil {
		return err
	}
	t.log.Info("This replica mirrors Services")
	return c.Start(ctx)
}

func (t *term) shutDown(cancel context.CancelFunc) {
	cancel()
	t.currentTerm.Store(nil)
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.wg.Wait()
}

// acquire makes the end of the term wait until the caller calls t.wg.Done. It returns false if the term has
// ended.
func (t *term) acquire() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || t.ctx.Err() != nil {
		return false
	}
	t.wg.Add(1)
	return true
}

// spawn runs f in a goroutine that the term waits for. It returns false if the term has ended.
func (t *term) spawn(f func()) bool {
	joined := t.acquire()
	if joined {
		go func() {
			defer t.wg.Done()
			f()
		}()
	}
	return joined
}

// startInformers watches the local cluster, and closes ready once it is known.
func (t *term) startInformers() {
	t.spawn(func() { t.services.Run(t.ctx) })
	t.spawn(func() { t.endpoints.Run(t.ctx) })
	t.spawn(func() { t.namespaces.Run(t.ctx) })
	reportRefusal := func(kind string, s *api.Watcher) {
		t.spawn(func() {
			if waitClosed(t.ctx, s.Refused()) {
				t.setLocalRefusal("the API server refuses to list " + kind +
					": grant get, list and watch on services and endpoints")
			}
		})
	}
	t.spawn(func() {
		reportRefusal("services", t.services.Watcher)
		reportRefusal("endpoints", t.endpoints.Watcher)
		listed := waitClosed(t.ctx, t.links.Synced()) &&
			waitClosed(t.ctx, t.services.Synced()) &&
			waitClosed(t.ctx, t.endpoints.Synced())
		if !listed {
			return
		}
		select {
		case <-t.namespaces.Synced():
		case <-t.namespaces.Refused():
			t.log.Info("Namespaces cannot be listed: a missing one is found when a write into it fails")
		case <-t.ctx.Done():
			return
		}
		t.setLocalRefusal("")
		close(t.ready)
		t.enqueueAll(nil)
	})
}

// setLocalRefusal sets why the local cluster cannot be listed, and reports it in every Link.
func (t *term) setLocalRefusal(reason string) {
	t.mu.Lock()
	if isClosed(t.ready) {
		reason = "" // an earlier listing is enough
	}
	t.localRefusal = reason
	t.mu.Unlock()
	if reason != "" {
		t.log.Info("Nothing can be mirrored", "reason", reason)
	}
	now, _ := t.linkSet.Load()
	for _, l := range now.links {
		t.enqueueLink(l.Link)
	}
}

// setRemote replaces what is known of a cluster, after a complete listing.
func (t *term) setRemote(r *remoteCluster) {
	t.mu.Lock()
	t.remotes[r.name] = r
	t.mu.Unlock()
	t.enqueueCluster(r.name)
}

func (t *term) isCurrent(r *remoteCluster) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remotes[r.name] == r
}

// countMissing counts the mirrors and memberships of a linked cluster, and those whose remote Services are not
// found.
func (t *term) countMissing(linked string, found func(api.Key) bool) (all, missing int) {
	for _, k := range t.services.Keys() {
		svc, exists := t.services.Get(k)
		if !exists || !isMirror(svc) || svc.Labels[headlessLabel] != "" {
			continue
		}
		name := ""
		if svc.Labels[clusterLabel] == linked {
			name = strings.TrimSuffix(k.Name, "-"+linked)
		} else if base := strings.TrimSuffix(k.Name, federatedSuffix); membershipOf(svc).has(base, linked) {
			name = base
		}
		if name == "" {
			continue
		}
		all++
		if !found(api.Key{Namespace: k.Namespace, Name: name}) {
			missing++
		}
	}
	return all, missing
}

// enqueue does nothing before the term is ready: then everything is enqueued.
func (t *term) enqueue(keys ...api.Key) {
	if !isClosed(t.ready) {
		return
	}
	for _, k := range keys {
		t.queue.Add(queueKey{Key: k})
	}
}

func (t *term) enqueueLink(link api.Key) { t.queue.AddAfter(queueKey{true, link}, statusDelay) }

func (t *term) localServiceChanged(k api.Key) {
	now, found := t.services.Get(k)
	t.enqueue(t.budget.assign(k, chargedCluster(now))...)
	t.enqueue(k, federatedName(k))
	if found && now.Labels[headlessLabel] != "" {
		t.enqueue(api.Key{Namespace: k.Namespace, Name: now.Labels[headlessLabel]})
	}
}

// enqueueRemote enqueues what one Service of a linked cluster bears on.
func (t *term) enqueueRemote(home string, k api.Key) {
	t.enqueue(mirrorName(home, k), federatedName(k))
}

// enqueueOurs enqueues every existing Service that we may have written.
func (t *term) enqueueOurs() {
	for _, k := range t.services.Keys() {
		if svc, found := t.services.Get(k); found && isOurs(svc) {
			t.enqueue(k)
		}
	}
}

// enqueueCluster enqueues everything that a cluster bears on.
func (t *term) enqueueCluster(name string) {
	t.mu.Lock()
	r := t.remotes[name]
	t.mu.Unlock()
	if r != nil {
		for _, k := range r.Keys() {
			t.enqueueRemote(name, k)
		}
	}
	t.enqueueOurs()
	now, _ := t.linkSet.Load()
	for _, l := range now.links {
		if l.Cluster == name {
			t.enqueue(probeService(l))
			t.enqueueLink(l.Link)
		}
	}
}

// enqueueAll enqueues every name that something exists or may exist under, as far as concerned selects it;
// nil selects all.
func (t *term) enqueueAll(concerned func(api.Key) bool) {
	if !isClosed(t.ready) {
		return
	}
	add := func(keys ...api.Key) {
		for _, k := range keys {
			if concerned == nil || concerned(k) {
				t.enqueue(k)
			}
		}
	}
	for _, k := range t.services.Keys() {
		if svc, found := t.services.Get(k); found && isOurs(svc) {
			add(k)
		}
		add(federatedName(k))
	}
	t.mu.Lock()
	remotes := maps.Clone(t.remotes)
	planned := slices.Collect(maps.Keys(t.results))
	t.mu.Unlock()
	add(planned...)
	for name, r := range remotes {
		for _, k := range r.Keys() {
			add(mirrorName(name, k), federatedName(k))
		}
	}
	now, _ := t.linkSet.Load()
	for _, l := range now.links {
		add(probeService(l))
	}
}

// reserveSpace implements inputs.reserveSpace, and logs when a cluster has used its budget up.
func (t *term) reserveSpace(k api.Key, clusters []string) bool {
	wasExhausted := map[string]bool{}
	for _, name := range clusters {
		wasExhausted[name] = t.budget.exhausted(name)
	}
	reserved := t.budget.reserve(k, clusters)
	for _, name := range clusters {
		if !reserved && !wasExhausted[name] {
			t.log.Info("A linked cluster has as many Services here as it may: existing ones are kept up to date, "+
				"and no more are created",
				"cluster", name, "limit", t.options.MaxServices, "first", k.String())
		}
	}
	return reserved
}

// planInputs returns what plans are computed from now.
func (t *term) planInputs() *inputs {
	now, _ := t.linkSet.Load()
	t.mu.Lock()
	remotes, gateways := maps.Clone(t.remotes), maps.Clone(t.gateways)
	t.mu.Unlock()
	return &inputs{
		links:            now.links,
		linksComplete:    now.complete,
		linkNamespace:    t.links.Namespace(),
		everServed:       now.everServed,
		servedByLinkerd:  now.servedByLinkerd,
		skipLocal:        now.localSkipReason != "",
		headless:         t.options.Headless,
		createNamespaces: t.options.CreateNamespaces,
		excludedKeys:     t.options.Exclude,

		remote: func(cluster string, k api.Key) (*remoteService, existence) {
			if r := remotes[cluster]; r != nil {
				return r.service(k)
			}
			return nil, unknown
		},
		local: func(k api.Key) *corev1.Service {
			svc, _ := t.services.Get(k)
			return svc
		},
		namespaceExists: func(name string) bool {
			_, found := t.namespaces.Get(api.Key{Name: name})
			return found || !isClosed(t.namespaces.Synced())
		},
		readiness: t.readinessOf,
		gateway: func(cluster string) gatewayState {
			if g := gateways[cluster]; g != nil {
				return g.state()
			}
			return gatewayState{}
		},
		serviceWithHostname: t.serviceWithHostname,
		reserveSpace:        t.reserveSpace,
	}
}

package mirror

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
)

const (
	// workers is how many names are reconciled at once.
	workers = 4
	// statusDelay is how long results are collected before they are handed over.
	statusDelay = 500 * time.Millisecond
)

// A queueKey is the name of an object of the local cluster, or, with a cluster, of a Service there whose
// endpoints are followed.
type queueKey struct {
	cluster string // empty: the local one
	api.Key
}

func (k queueKey) ref() federation.Ref {
	return federation.Ref{Cluster: federation.Cluster(k.cluster), Service: federation.Service(k.Key)}
}

// A term is one period in which the local cluster's Lease is ours, with everything that is read and written
// in it. It is created by Mirror.Run and dropped at its end; the next term reads everything again. So it
// has no state to hand over, and none that could be stale.
//
// # What starts when
//
//  1. run starts two Loops. That of statuses reports what Links show, from the begin on: also why nothing is
//     written yet. That of names reads Services, Endpoints and Namespaces of the local cluster, and Links, for which
//     a linkFollower is the input. Services and Endpoints are waited for as long as the API server refuses
//     them, which each Link reports; Namespaces may be refused.
//  2. The linkFollower computes a linkSet at once, and again for each change of a Link or of a Lease of
//     Linkerd's service mirror. It starts what the set needs, and waits for it at the end: watches of
//     Leases, and one gateway for each Link that has gatewayAddresses.
//  3. beginWriting is called when all inputs were listed. It closes ready, and enqueues everything once. Before that
//     nothing is enqueued and nothing is written.
//  4. Mirror.Engage finds the term in currentTerm and calls readCluster for its cluster, which waits for
//     ready: the guard against mass removal has to know the existing mirrors. From its first complete
//     listing on, the cluster is in remotes, and its Services are known.
//  5. reconcile follows the endpoints of a remote Service from the first plan that needs them.
//
// When the context of run ends, the Loops end with all their goroutines: no request that writes is sent after
// run has returned. The goroutines of Engage, which the Registry owns, stop reading at that time; what
// they still enqueue is dropped.
//
// # The order of events
//
// An event carries no data. The informer stores the new record first and enqueues the keys that it may bear
// on afterwards, so the reconcile that follows reads a state at least as new as the event. Between
// different keys there is no order. What we write comes back as an event like every other, and is then found
// equal. An apply or deletion is conditional on the resourceVersion that was planned from, and a creation on
// that there is no such object. If one fails for that, the event that made it fail is on its way; a retry after
// a second is only a second net.
//
// Four kinds of event enqueue: a local object (localServiceChanged, endpointsChanged), a Service of a linked cluster
// (enqueueRemote), the readiness of its endpoints (reconcileEndpoints) and, for everything of one cluster or
// of all, listings, gateways and Links (enqueueCluster, enqueueOfLink, enqueueNames). Results enqueue their Link with a
// delay.
//
// # Locks
//
// mu guards the maps below it. It is a leaf but for the index of results, which has a lock of its own: no API server,
// queue, log, record store or budget is called under it. remoteEndpoints, budget, permissions and observedLeases have
// locks of their own. The last three call nothing under them; remoteEndpoints reads a Snapshot, under the locks of the
// Loop and of the Store. indexing is held while a record is read and indexed, and comes before the locks of records and
// of the index.
type term struct {
	*Mirror

	ctx      context.Context // ends with the term; set before anything is started
	names    *apply.Loop[queueKey]
	statuses *apply.Loop[api.Key] // of Links

	services        *api.Informer[*corev1.Service]
	endpoints       *api.Informer[*endpoints]
	namespaces      *api.Informer[struct{}]
	knownNamespaces map[string]bool // of namespaceChanged alone
	permissions     *apply.Permissions
	writesServices  *serviceWriter
	writesEndpoints *endpointsWriter
	budget          *budget
	paces           *paces
	remoteEndpoints remoteEndpoints
	indexing        sync.Mutex            // a record is read and indexed at once
	byCluster       index[string]         // objects of the local cluster, see indexClusters
	byParent        index[api.Key]        // mirrors of endpoints, by the headless mirror that lists them
	linkSet         watch.Value[*linkSet] // stored by a linkFollower
	ready           chan struct{}         // see above; closed once

	mu           sync.Mutex                // guards the fields below
	localRefusal string                    // why the local cluster cannot be listed; empty if it can
	remotes      map[string]*remoteCluster // by name; listed completely once
	gateways     map[string]*gateway       // by cluster
	deleted      map[api.Key]types.UID     // Services whose deletion was accepted, until the watch has them gone
	results      *resultIndex              // its indices are safe without mu
}

func newTerm(
	mirror *Mirror, engaged *api.Connection, permissions *apply.Permissions, failures *apply.Failures,
) *term {
	term := &term{
		Mirror:          mirror,
		permissions:     permissions,
		budget:          newBudget(mirror.options.MaxServices),
		paces:           newPaces(),
		ready:           make(chan struct{}),
		remotes:         map[string]*remoteCluster{},
		knownNamespaces: map[string]bool{},
		gateways:        map[string]*gateway{},
		deleted:         map[api.Key]types.UID{},
		results:         newResultIndex(),
	}
	term.linkSet.Store(&linkSet{})

	term.newWriters()
	term.statuses = apply.NewLoop(mirror.log, apply.Config[api.Key]{
		Reconcile: term.reportLink, Queue: "mirror-statuses", Delay: statusDelay,
	})
	term.names = apply.NewLoop(mirror.log, apply.Config[queueKey]{
		Reconcile: term.reconcile, Begin: term.beginWriting, Failed: term.logFailure,
		Failures: failures, Store: mirror.store, Queue: "mirror", Workers: workers,
	})
	term.remoteEndpoints.loop = term.names
	term.services = api.NewInformer(engaged, serviceKind, trimLocal, term.localServiceChanged)

	ours := api.Typed(corev1.SchemeGroupVersion, "endpoints", "Endpoints", &endpoints{})
	ours.Labels = clusterLabel
	term.endpoints = api.NewInformer(term.local, ours, trimEndpoints, term.endpointsChanged)
	namespaces := api.Typed(corev1.SchemeGroupVersion, "namespaces", "Namespace", &corev1.Namespace{})
	term.namespaces = api.NewInformer(term.local, namespaces,
		func(any) (struct{}, bool) { return struct{}{}, true },
		term.namespaceChanged)

	links := &linkFollower{term: term, synced: make(chan struct{}), watches: map[string]*leaseWatch{}}
	term.names.Read(links, apply.Permission{})
	term.names.Read(localInput{term.services, term, "services"}, apply.Permission{})
	term.names.Read(localInput{term.endpoints, term, "endpoints"}, apply.Permission{})
	term.names.ReadOptional(term.namespaces)
	return term
}

func (t *term) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer t.currentTerm.Store(nil)
	defer cancel()
	t.ctx = logr.NewContext(ctx, t.log.V(1))
	t.currentTerm.Store(t)
	t.log.Info("This replica mirrors Services")
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = t.statuses.Run(ctx) }) // it reads nothing, and so lacks no permission
	return t.names.Run(ctx)
}

// beginWriting enqueues everything, once all inputs were listed.
func (t *term) beginWriting() {
	if !t.namespaces.HasSynced() {
		t.log.Info("Namespaces cannot be listed: a missing one is found when a write into it fails")
	}
	for _, k := range slices.Concat(t.services.Keys(), t.endpoints.Keys()) {
		t.indexClusters(k) // which are linked was not known before
	}
	close(t.ready)
	t.setLocalRefusal("")
	t.enqueueNames("")
}

func (t *term) logFailure(k queueKey, err error, failures int) {
	logs.Warn(t.log, "Writing for Links failed, and is retried",
		"name", k.String(), "error", err.Error(), "failures", failures)
}

// setRemote replaces what is known of a cluster, after a complete listing.
func (t *term) setRemote(r *remoteCluster) {
	t.mu.Lock()
	t.remotes[r.name] = r
	t.mu.Unlock()
	t.enqueueCluster(r.name)
}

// remoteOf returns what is known of a cluster; nil if it was not listed completely.
func (t *term) remoteOf(cluster string) *remoteCluster {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remotes[cluster]
}

func (t *term) enqueue(keys ...api.Key) {
	for _, k := range keys {
		t.names.Enqueue(queueKey{Key: k})
	}
}

func (t *term) enqueueLink(link api.Key) { t.statuses.Enqueue(link) }

// enqueueRemote enqueues what one Service of a linked cluster bears on.
func (t *term) enqueueRemote(home string, k api.Key) {
	t.enqueue(mirrorName(home, k), federatedName(k))
}

// enqueueCluster enqueues everything that a cluster bears on.
func (t *term) enqueueCluster(name string) {
	if !watch.IsClosed(t.ready) {
		return
	}

	if r := t.remoteOf(name); r != nil {
		for _, k := range r.Keys() {
			t.enqueueRemote(name, k)
		}
	}

	t.enqueue(t.dependentsOf(name)...)
	now, _ := t.linkSet.Load()
	if l := now.linkOf(name); l != nil {
		t.enqueue(probeService(l))
		t.enqueueLink(l.Link)
	}
}

// enqueueLinkOf has the status of the Link of a cluster updated.
func (t *term) enqueueLinkOf(cluster string) {
	now, _ := t.linkSet.Load()
	if l := now.linkOf(cluster); l != nil {
		t.enqueueLink(l.Link)
	}
}

// enqueueOfLink enqueues everything that a Link bears on, whether it was added, has changed or was deleted.
func (t *term) enqueueOfLink(l *link) {
	t.enqueueCluster(l.Cluster)
	t.enqueue(probeService(l))
	t.enqueue(t.results.byLink.dependents(l.Link)...)
}

// enqueueNames enqueues every name in a namespace, or in all if that is empty, that something exists or may exist
// under.
func (t *term) enqueueNames(namespace string) {
	if !watch.IsClosed(t.ready) {
		return
	}
	add := func(keys ...api.Key) {
		for _, k := range keys {
			if namespace == "" || namespace == k.Namespace {
				t.enqueue(k)
			}
		}
	}

	for k, svc := range records(t.services.Store) {
		if isOurs(svc) {
			add(k)
		}
		if joinsFederated(svc) {
			add(federatedName(k))
		}
	}

	for k, e := range records(t.endpoints.Store) { // also what is left of a Service
		if isOurs(e) {
			add(k)
		}
	}

	t.mu.Lock()
	remotes := maps.Clone(t.remotes)
	planned := slices.Collect(maps.Keys(t.results.byName))
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

// reserveSpace counts a new Service for one of the clusters, and returns false if all of them have as many as they
// may. It logs when a cluster has used its budget up.
func (t *term) reserveSpace(key api.Key, clusters []string) bool {
	wasExhausted := map[string]bool{}
	for _, name := range clusters {
		wasExhausted[name] = t.budget.exhausted(name)
	}

	reserved := t.budget.reserve(key, clusters)
	for _, name := range clusters {
		if !reserved && !wasExhausted[name] {
			logs.Warn(t.log, "A linked cluster has as many Services here as it may: existing ones are kept up to "+
				"date, and no more are created",
				"cluster", name, "limit", t.options.MaxServices, "first", key.String())
		}
	}
	return reserved
}

// The following implement reader.

func (t *term) readRemote(cluster string, k api.Key) (*remoteService, existence) {
	r := t.remoteOf(cluster)
	if r == nil {
		return nil, unknown
	}
	svc, exists := r.service(k)
	if exists == absent && t.isGiven(queueKey{cluster, k}) {
		exists = unknown
	}
	return svc, exists
}

// isGiven reports whether clients are given a Service that its cluster does not have: one that was withdrawn and is
// held, or is about to be. Its names are enqueued when that ends.
func (t *term) isGiven(k queueKey) bool {
	if !t.store.Gives(k.ref()) {
		return false
	}
	t.remoteEndpoints.followIf(true, k)
	return t.store.Gives(k.ref()) // it may have ended before it was followed
}

func (t *term) readLocal(k api.Key) *corev1.Service {
	svc, _ := t.services.Get(k)
	return svc
}

func (t *term) namespaceExists(name string) bool {
	_, found := t.namespaces.Get(api.Key{Name: name})
	return found || !t.namespaces.HasSynced()
}

func (t *term) readiness(cluster string, k api.Key) readiness {
	return t.remoteEndpoints.readinessOf(cluster, k)
}

func (t *term) gateway(cluster string) gatewayState {
	if g := t.gatewayOf(cluster); g != nil {
		return g.state()
	}
	return gatewayState{resolving: true}
}

func (t *term) readEndpoints(k api.Key) *endpoints {
	e, _ := t.endpoints.Get(k)
	return e
}

func (t *term) gatewayOf(cluster string) *gateway {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gateways[cluster]
}

func (t *term) servicesWithHostname(cluster, namespace, hostname string) []string {
	return t.remoteEndpoints.servicesWithHostname(cluster, namespace, hostname)
}

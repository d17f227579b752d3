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

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
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
	return federation.Ref{
		Cluster: federation.Cluster(k.cluster), Service: federation.Service{Namespace: k.Namespace, Name: k.Name},
	}
}

// A term is one period in which the local cluster's Lease is ours, with everything that is read and written
// in it. It is created by Mirror.Run and dropped at its end; the next term reads everything again. So it
// has no state to hand over, and none that could be stale.
//
// # What starts when
//
//  1. run starts two Loops. That of statuses reports what Links show, from the begin on: also why nothing is
//     written yet. That of names reads Services, Endpoints and Namespaces of the local cluster, and Links, for which
//     followLinks is the input. Services and Endpoints are waited for as long as the API server refuses
//     them, which each Link reports; Namespaces may be refused.
//  2. followLinks computes a linkSet at once, and again for each change of a Link or of a Lease of
//     Linkerd's service mirror. It starts what the set needs, and waits for it at the end: watches of
//     Leases, and one gateway for each Link that has gatewayAddresses.
//  3. begin is called when all inputs were listed. It closes ready, and enqueues everything once. Before that
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
// Four kinds of event enqueue: a local object (localServiceChanged), a Service of a linked cluster
// (enqueueRemote), the readiness of its endpoints (reconcileEndpoints) and, for everything of one cluster or
// of all, listings, gateways and Links (enqueueCluster, enqueueOfLink, enqueueNames). Results enqueue their Link with a
// delay.
//
// # Locks
//
// mu guards the maps below it. It is a leaf: no API server, queue, log, record store or budget is called
// under it. remoteEndpoints, budget, permissions and observedLeases have locks of their own. The last three call
// nothing under them; remoteEndpoints reads a Snapshot, under the locks of the Loop and of the Store. Each
// permission has another one, which is held while its access review is sent: the other workers wait
// for the same answer. The last three fields of a leaseWatch belong to followLinks alone.
type term struct {
	*Mirror

	ctx      context.Context // ends with the term; set before anything is started
	names    *apply.Loop[queueKey]
	statuses *apply.Loop[api.Key] // of Links

	services        *api.Informer[*corev1.Service]
	endpoints       *api.Informer[*endpoints]
	namespaces      *api.Informer[struct{}]
	permissions     *permissions
	budget          *budget
	observedLeases  observedLeases
	remoteEndpoints remoteEndpoints
	index           localIndex
	linkSet         watch.Value[*linkSet] // stored by followLinks
	linksSynced     chan struct{}         // closed once a linkSet of all Links was stored
	ready           chan struct{}         // see above; closed once

	mu              sync.Mutex                // guards the fields below
	localRefusal    string                    // why the local cluster cannot be listed; empty if it can
	remotes         map[string]*remoteCluster // by name; listed completely once
	knownNamespaces map[string]bool
	gateways        map[string]*runningGateway // by cluster
	leases          map[string]*leaseWatch     // by namespace
	results         *resultIndex
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

func newTerm(m *Mirror, engaged *api.Connection) *term {
	t := &term{
		Mirror:          m,
		permissions:     &permissions{log: m.log, client: m.core},
		budget:          newBudget(m.options.MaxServices),
		linksSynced:     make(chan struct{}),
		ready:           make(chan struct{}),
		remotes:         map[string]*remoteCluster{},
		knownNamespaces: map[string]bool{},
		gateways:        map[string]*runningGateway{},
		leases:          map[string]*leaseWatch{},
		results:         newResultIndex(),
	}
	t.linkSet.Store((&linkSet{}).index())
	t.statuses = apply.NewLoop(m.log, apply.Config[api.Key]{
		Reconcile: t.reconcileStatus, Failed: t.logFailure, Queue: "mirror-statuses", Delay: statusDelay,
	})
	t.names = apply.NewLoop(m.log, apply.Config[queueKey]{
		Reconcile: t.reconcile, Begin: t.begin,
		Failed: func(k queueKey, err error, failures int) { t.logFailure(k.Key, err, failures) },
		Store:  m.store, Queue: "mirror", Workers: workers,
	})
	t.remoteEndpoints.loop = t.names
	services := api.Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})
	t.services = api.NewInformer(engaged, services, trimLocal, t.localServiceChanged)
	ours := api.Typed(corev1.SchemeGroupVersion, "endpoints", "Endpoints", &endpoints{})
	ours.Labels = clusterLabel
	t.endpoints = api.NewInformer(t.local, ours, func(object any) (*endpoints, bool) {
		whole, ok := object.(*endpoints)
		if !ok {
			return nil, false
		}
		e := new(*whole)
		e.ManagedFields = ownEntries(whole)
		return e, true
	}, func(k api.Key) { t.enqueue(k) })
	namespaces := api.Typed(corev1.SchemeGroupVersion, "namespaces", "Namespace", &corev1.Namespace{})
	t.namespaces = api.NewInformer(t.local, namespaces,
		func(any) (struct{}, bool) { return struct{}{}, true },
		t.namespaceChanged)
	t.names.Read(linksInput{t}, apply.Permission{})
	t.names.Read(localInput{t.services, t, "services"}, apply.Permission{})
	t.names.Read(localInput{t.endpoints, t, "endpoints"}, apply.Permission{})
	t.names.ReadOptional(t.namespaces)
	return t
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

// linksInput is Links as an input of the names.
type linksInput struct{ *term }

func (i linksInput) Run(ctx context.Context)  { i.followLinks(ctx) }
func (i linksInput) Synced() <-chan struct{}  { return i.linksSynced }
func (i linksInput) Refused() <-chan struct{} { return nil }

// A localInput is what must be read of the local cluster. While it is refused, each Link reports that.
type localInput struct {
	apply.Input
	term *term
	kind string
}

func (i localInput) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if watch.WaitClosed(ctx, i.Input.Refused()) {
			i.term.setLocalRefusal("the API server refuses to list " + i.kind +
				": grant get, list and watch on services and endpoints")
		}
	})
	i.Input.Run(ctx)
	wg.Wait()
}

// Refused never closes: the term waits.
func (i localInput) Refused() <-chan struct{} { return nil }

// begin enqueues everything, once all inputs were listed.
func (t *term) begin() {
	if !t.namespaces.HasSynced() {
		t.log.Info("Namespaces cannot be listed: a missing one is found when a write into it fails")
	}
	close(t.ready)
	t.setLocalRefusal("")
	t.enqueueNames(nil)
}

func (t *term) logFailure(k api.Key, err error, failures int) {
	t.log.Info("Writing for Links failed, and is retried",
		"name", k.String(), "error", err.Error(), "failures", failures)
}

// reconcileStatus hands over what the status of a Link is to report.
func (t *term) reconcileStatus(_ context.Context, k api.Key) error {
	t.reportLink(k)
	return nil
}

// setLocalRefusal sets why the local cluster cannot be listed, and reports it in every Link.
func (t *term) setLocalRefusal(reason string) {
	t.mu.Lock()
	if watch.IsClosed(t.ready) {
		reason = "" // an earlier listing is enough
	}
	t.localRefusal = reason
	t.mu.Unlock()
	if reason != "" {
		t.log.Info("Nothing can be mirrored", "reason", reason)
	}
	t.enqueueLinks()
}

// enqueueLinks has the status of every Link updated.
func (t *term) enqueueLinks() {
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
	for _, k := range t.index.ofCluster(linked) {
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

func (t *term) enqueue(keys ...api.Key) {
	for _, k := range keys {
		t.names.Enqueue(queueKey{Key: k})
	}
}

func (t *term) enqueueLink(link api.Key) { t.statuses.Enqueue(link) }

func (t *term) localServiceChanged(k api.Key) {
	svc := t.readLocal(k)
	old, now := t.index.update(k, svc)
	t.enqueue(t.budget.assign(k, chargedCluster(svc))...)
	t.enqueue(k)
	if old.joins || now.joins {
		t.enqueue(federatedName(k))
	}
	for _, parent := range []api.Key{old.parent, now.parent} {
		if parent != (api.Key{}) {
			t.enqueue(parent)
		}
	}
}

// namespaceChanged enqueues everything in a namespace that was created or deleted.
func (t *term) namespaceChanged(k api.Key) {
	_, found := t.namespaces.Get(k)
	t.mu.Lock()
	before := t.knownNamespaces[k.Name]
	if delete(t.knownNamespaces, k.Name); found {
		t.knownNamespaces[k.Name] = true
	}
	t.mu.Unlock()
	if before != found {
		t.enqueueNames(func(o api.Key) bool { return o.Namespace == k.Name })
	}
}

// enqueueRemote enqueues what one Service of a linked cluster bears on.
func (t *term) enqueueRemote(home string, k api.Key) {
	t.enqueue(mirrorName(home, k), federatedName(k))
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
	t.enqueue(t.index.ofCluster(name)...)
	t.enqueueLinkOf(name)
	now, _ := t.linkSet.Load()
	if l := now.linkOf(name); l != nil {
		t.enqueue(probeService(l))
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
	t.mu.Lock()
	planned := slices.Collect(maps.Keys(t.results.byLink[l.Link]))
	t.mu.Unlock()
	t.enqueue(planned...)
}

// enqueueNames enqueues every name that something exists or may exist under, as far as concerned selects it;
// nil selects all.
func (t *term) enqueueNames(concerned func(api.Key) bool) {
	if !watch.IsClosed(t.ready) {
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
		svc, found := t.services.Get(k)
		if found && isOurs(svc) {
			add(k)
		}
		if found && svc.Labels[federatedLabel] == "member" {
			add(federatedName(k))
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

// The following implement reader.

func (t *term) readRemote(cluster string, k api.Key) (*remoteService, existence) {
	t.mu.Lock()
	r := t.remotes[cluster]
	t.mu.Unlock()
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
	t.mu.Lock()
	g := t.gateways[cluster]
	t.mu.Unlock()
	if g == nil {
		return gatewayState{}
	}
	return g.state()
}

func (t *term) serviceWithHostname(cluster, namespace, hostname string) (string, bool) {
	return t.remoteEndpoints.serviceWithHostname(cluster, namespace, hostname)
}

func (t *term) settings() settings {
	return settings{
		linkNamespace: t.links.Namespace(), headless: t.options.Headless,
		createNamespaces: t.options.CreateNamespaces, excludedKeys: t.options.Exclude,
	}
}

package view

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// key names an object whose kind is clear from the context.
type key = api.Key

// objectRef names something to reconcile.
type objectRef struct {
	kind objectKind
	key
}

type objectKind uint8

const (
	kindNode objectKind = iota
	kindProfile
	kindReplicaSet
	kindJob
	kindServer
	kindPod
	kindExternal
	kindSlice
	kindService
	kindWindow // of a Service that has changed in it, and which ends now
	kindSettle // see Settle
	kindListed // see Listed; of the kind that is listed
)

// A Reconciler publishes what the objects of one cluster amount to, and keeps that up to date. It reads the
// stores of its [Input]s, which informers fill.
//
// Each kind depends on those before it, and what is derived is kept:
//
//	key that comes up        reads the records of           keeps
//	Node, ServiceProfile     itself                         nothing: published at once
//	Server                   itself                         appliedServers
//	Pod, ExternalWorkload    itself, its owner, Servers     workloads; awaited, if its owner is missing
//	ReplicaSet, Job          the Pods that await it         nothing
//	EndpointSlice            itself, workloads              translated, slicesOf
//	Service                  itself, translated             its IPs; the rest is published
//
// A key that changes what is kept goes on to what depends on it, found by an index: a Pod to the slices
// that name it (workloadState.slices), a Server to the workloads of its namespace that it selects or did, a
// slice to its Service. So the work follows the change: one Pod rebuilds the slices that name it, and one
// View is put together from pointers to its slices.
//
// The records of Services and EndpointSlices are taken from their stores, because nothing is in
// them that is not in what is published, or in translated. Those of EndpointSlices would be a
// fifth of what an endpoint takes.
//
// What it keeps true:
//
//   - What is published when the queue is empty follows from the records alone, whichever events brought
//     them (TestReconcilerFollows). So there is no code for events, for their order across kinds, or for a
//     second listing: each is a set of keys. Where an optional kind could not be listed, it also follows
//     from what was published before (see terms.go).
//   - An endpoint that names a workload is published only while the workload is known: never with a guessed
//     identity.
//   - A View that equals the published one is not published again, and a slice that did not change keeps
//     its pointer, from here to the clients' caches, where comparing two slices is comparing two pointers.
//
// The last one needs a way back. A slice that was translated again may be equal to its predecessor, as
// after a re-list or a Pod whose change is not visible to clients. The Store notices, keeps its old slice
// and drops ours; Set returns the View that it stored. publishService copies the slices of that View into
// translated. Without this, translated would hold a pointer that the Store does not have: each later Set of
// the Service would compare all endpoints of that slice again, and both copies would stay in memory.
//
// Stores have locks of their own. The rest has none: Begin owns it, and then Run, in one goroutine. Before
// Begin nothing is enqueued. Begin sets enqueues before it reads the stores, so a record that changes
// meanwhile is reconciled once more by Run, which finds nothing to do.
//
// What it costs: TestMemoryBudget bounds the heap for each endpoint with its Pod, records, workload and
// View together.
type Reconciler struct {
	cluster  federation.Cluster
	border   *border
	options  Options
	queue    workqueue.TypedDelayingInterface[objectRef] // set by Begin, before it sets enqueues
	enqueues atomic.Bool

	services    *api.Store[*serviceRecord]
	slices      *api.Store[[]*sliceRecord] // of EndpointSlices, or Endpoints
	pods        *api.Store[podRecord]
	externals   *api.Store[podRecord]
	replicaSets *api.Store[owner]
	jobs        *api.Store[owner]
	servers     *api.Store[*serverRecord]
	nodes       *api.Store[federation.Node]  // without the sixteenth; of the local cluster only, like profiles
	profiles    *api.Store[*profile.Profile] // nil for one that cannot be read
	inputs      []Input                      // with these stores; each may depend on those behind it

	oversized oversized // Services that have more endpoints than are published

	settling sync.Mutex            // held by Settle
	settled  watch.Value[struct{}] // superseded when Run has published all that was changed: see Settle

	// Owned by Begin, and then by Run.
	writer         Writer
	facts          factWriters
	unlisted       map[objectKind]bool                            // kinds that are not listed yet, see terms.go
	appliedServers api.ByNamespace[*serverRecord]                 // with which workloads were resolved
	workloads      map[objectKind]api.ByNamespace[*workloadState] // Pods and ExternalWorkloads
	translated     api.ByNamespace[*translatedSlice]              // by EndpointSlice
	slicesOf       api.ByNamespace[[]*translatedSlice]            // Service -> its EndpointSlices, sorted
	windows        map[key]*window                                // by Service that may not be quiet; nil in Begin
	forgotWindows  time.Time                                      // when those of quiet Services were dropped last
	due            []due                                          // Services to be published, the next one first
	reconciled     uint64                                         // keys, by Run
	awaited        map[objectRef]map[key]bool                     // unknown ReplicaSet or Job -> its Pods
	serviceIPs     map[key][]netip.Addr                           // by Service
	servicesByIP   map[netip.Addr][]key                           // the reverse, sorted
	replaced       map[netip.Addr][]*workloadState                // at an IP where others are published
}

// workloadState is a workload that is known, or named by a slice, or both.
type workloadState struct {
	workload *federation.Workload // nil: it is not known
	node     federation.Name      // where it runs
	slices   *sliceSet            // that name it
	ips      *workloadIPs         // that are published
}

// sliceSet is slices that name a workload; nil for none. It is immutable: what one
// slice alone names shares one set.
type sliceSet []*translatedSlice

// list returns the slices, which are not to be changed.
func (s *sliceSet) list() []*translatedSlice {
	if s == nil {
		return nil
	}
	return *s
}

func (s *sliceSet) withSlice(t *translatedSlice) *sliceSet {
	switch {
	case s == nil:
		return &t.alone
	case slices.Contains(*s, t):
		return s
	}
	return new(append(slices.Clone(*s), t))
}

func (s *sliceSet) withoutSlice(t *translatedSlice) *sliceSet {
	rest := slices.DeleteFunc(slices.Clone(s.list()), func(o *translatedSlice) bool { return o == t })
	switch len(rest) {
	case 0:
		return nil
	case 1:
		return &rest[0].alone
	}
	return new(sliceSet(rest))
}

// translatedSlice is an EndpointSlice, or Endpoints, as it was last translated. It is the same one as long
// as there is one of that key.
type translatedSlice struct {
	key
	service string
	slices  []resolvedSlice
	alone   sliceSet // itself
}

// A Writer is where a Reconciler publishes: a [federation.ClusterWriter], or what stands before one.
type Writer interface {
	View(svc federation.Service) *federation.View
	Set(svc federation.Service, v *federation.View) *federation.View
	Delete(svc federation.Service)
	MarkSynced()
}

// Options are what there is to read in a cluster.
type Options struct {
	// Local: it is the cluster that the process runs in. Only there clients are on nodes, and look up IPs.
	Local     bool
	Endpoints bool // read Endpoints, not EndpointSlices
	Probes    bool // read probes of Pods, for another reader of the same watch

	MaxEndpoints int // of one Service that are published; 0 for no limit
}

// QueueName returns the name by which metrics of work queues know the queue of a cluster.
func QueueName(cluster string) string { return "cluster/" + cluster }

// NewReconciler returns a Reconciler for one engagement with a cluster. Its stores may be filled at once;
// Begin is called when all required ones are synced.
func NewReconciler(log logr.Logger, cluster federation.Cluster, options Options) *Reconciler {
	reconciler := &Reconciler{
		border:         newBorder(log),
		cluster:        cluster,
		options:        options,
		serviceIPs:     map[key][]netip.Addr{},
		servicesByIP:   map[netip.Addr][]key{},
		replaced:       map[netip.Addr][]*workloadState{},
		appliedServers: api.ByNamespace[*serverRecord]{},
		workloads:      map[objectKind]api.ByNamespace[*workloadState]{kindPod: {}, kindExternal: {}},
		translated:     api.ByNamespace[*translatedSlice]{},
		slicesOf:       api.ByNamespace[[]*translatedSlice]{},
		awaited:        map[objectRef]map[key]bool{},
		unlisted:       map[objectKind]bool{},
	}

	reconciler.addKinds()
	return reconciler
}

// Begin publishes everything that the stores hold, Views by a Writer and facts in their Tables, and marks the cluster
// as synced. What was published and follows from kinds that could not be listed, although there may be objects, stays
// until Listed. It is called once; Run must follow.
func (r *Reconciler) Begin(writer Writer, facts *federation.Facts, unlisted ...Input) {
	name := QueueName(string(r.cluster))
	r.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[objectRef]{
		Name: name, Clock: api.QueueClock{},
	})
	r.writer = writer
	r.enqueues.Store(true)
	r.beginTerms(facts, unlisted)

	for _, kind := range slices.Backward(r.inputs) { // each may depend on those behind it
		for _, k := range kind.keys() {
			if kind.of == kindService {
				r.publishService(k)
			} else {
				r.reconcileObject(objectRef{kind.of, k})
			}
		}
	}

	r.windows = map[key]*window{}
	writer.MarkSynced()
	r.endTerms()
}

// Run reconciles what changes after Begin, until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	context.AfterFunc(ctx, r.queue.ShutDown) // which ends the loop
	for {
		ref, shutdown := r.queue.Get()
		if shutdown {
			return
		}
		r.reconcileObject(ref)
		r.queue.Done(ref)
		r.reconciled++
		r.publishDue()
	}
}

func (r *Reconciler) reconcileObject(ref objectRef) {
	switch ref.kind {
	case kindNode:
		r.reconcileNode(ref.key)
	case kindProfile:
		r.reconcileProfile(ref.key)
	case kindReplicaSet, kindJob:
		r.reconcileOwner(ref)
	case kindServer:
		r.reconcileServer(ref.key)
	case kindPod, kindExternal:
		r.reconcileWorkload(ref)
	case kindSlice:
		r.reconcileSlice(ref.key)
	case kindService:
		r.markChanged(ref.key, false)
	case kindWindow:
		r.reconcileWindow(ref.key)
	case kindSettle:
		r.publishChanged()
	case kindListed:
		r.reconcileListed(ref.Name)
	}
}

// Settle has everything published that follows from what informers have stored before the call, without
// waiting for the ends of windows, and returns once it is, or once ctx ends. It is called while Run
// runs.
func (r *Reconciler) Settle(ctx context.Context) error {
	r.settling.Lock() // the end of one would be taken for that of another
	defer r.settling.Unlock()
	_, settled := r.settled.Load()
	r.queue.Add(objectRef{kind: kindSettle}) // behind all keys of those records
	select {
	case <-settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// publishChanged publishes all Services that wait for the end of a window.
func (r *Reconciler) publishChanged() {
	for k, w := range r.windows {
		if w.changed {
			w.changed = false
			r.publishService(k)
		}
	}
	r.settled.Store(struct{}{})
}

func (r *Reconciler) reconcileNode(k key) {
	if node, found := r.nodes.Get(k); found {
		r.facts.nodes.Set(k.Name, node)
	} else {
		r.facts.nodes.Delete(k.Name)
	}
}

// reconcileProfile publishes a ServiceProfile. One that cannot be read is the one that it was before, if any.
func (r *Reconciler) reconcileProfile(k key) {
	name := federation.Service(k)
	p, found := r.profiles.Get(k)
	if found && p == nil {
		p, found = r.facts.published.Profiles.Get(r.cluster, name)
	}

	if found {
		r.facts.profiles.Set(name, p)
	} else {
		r.facts.profiles.Delete(name)
	}
}

// reconcileOwner reconciles the Pods that await an owner. Its deletion changes nothing: its Pods are about
// to be deleted, too, and keep their owner until then.
func (r *Reconciler) reconcileOwner(owner objectRef) {
	for k := range r.awaited[owner] {
		r.reconcileWorkload(objectRef{kindPod, k})
	}
}

// reconcileServer resolves the workloads again that a Server selects now, or did until now, and translates
// each slice that names them once.
func (r *Reconciler) reconcileServer(server key) {
	old := r.appliedServers.Get(server)
	now, found := r.servers.Get(server)
	if found {
		r.appliedServers.Put(server, now)
		r.facts.servers.Set(federation.Service(server), now.fact())
	} else {
		r.appliedServers.Remove(server)
		r.facts.servers.Delete(federation.Service(server))
	}

	affected := map[*translatedSlice]bool{}
	for kind, states := range r.workloads {
		for name, state := range states[server.Namespace] {
			if state.workload == nil {
				continue
			}
			ref := objectRef{kind, key{Namespace: server.Namespace, Name: name}}
			record, found := r.workloadRecords(kind).Get(ref.key)
			if !found {
				continue // its key is in the queue, or its kind is not listed
			}

			class := record.class.Value()
			if !old.appliesTo(kind, name, &class) && !now.appliesTo(kind, name, &class) {
				continue
			}
			for _, s := range r.updateWorkload(ref) {
				affected[s] = true
			}
			r.publishWorkloadIPs(ref, state)
		}
	}

	for s := range affected {
		r.reconcileSlice(s.key)
	}
}

// workloadRecords returns the store of a kind of workload.
func (r *Reconciler) workloadRecords(kind objectKind) *api.Store[podRecord] {
	if kind == kindExternal {
		return r.externals
	}
	return r.pods
}

func (r *Reconciler) reconcileWorkload(ref objectRef) {
	for _, s := range r.updateWorkload(ref) {
		r.reconcileSlice(s.key)
	}
	if w := r.workloads[ref.kind].Get(ref.key); w != nil {
		r.publishWorkloadIPs(ref, w)
	}
}

// updateWorkload resolves a workload again. If it changed, it returns the slices that name it.
func (r *Reconciler) updateWorkload(ref objectRef) []*translatedSlice {
	key, states := ref.key, r.workloads[ref.kind]
	record, found := r.workloadRecords(ref.kind).Get(key)
	state := states.Get(key)
	if state == nil {
		if !found {
			return nil
		}
		state = &workloadState{}
		states.Put(key, state)
	}

	if ref.kind == kindPod && state.workload != nil {
		r.stopAwaiting(key, state.workload)
	}

	if !found {
		if state.workload == nil {
			return nil
		}
		state.workload, state.node = nil, federation.Name{}
		r.publishExternal(ref, state)
		r.publishWorkloadIPs(ref, state)
		r.forgetUnused(ref, state)
		return state.slices.list()
	}

	next := r.resolveWorkload(ref, &record)
	same := state.workload != nil && *state.workload == next && state.node == record.node
	if !same {
		state.workload, state.node = &next, record.node
	}
	r.publishExternal(ref, state)
	if same {
		return nil
	}
	return state.slices.list()
}

// publishExternal publishes what a workload is, if it is an ExternalWorkload.
func (r *Reconciler) publishExternal(ref objectRef, w *workloadState) {
	switch name := federation.Service(ref.key); {
	case ref.kind != kindExternal:
	case w.workload == nil:
		r.facts.externals.Delete(name)
	default:
		r.facts.externals.Set(name, federation.External{Workload: w.workload, Node: w.node})
	}
}

// resolveWorkload returns what clients of an address learn about its workload: the record, with its owner
// and what Servers add.
func (r *Reconciler) resolveWorkload(ref objectRef, record *podRecord) federation.Workload {
	class := record.class.Value()

	kind, controller := federation.ExternalWorkload, class.owner
	if ref.kind == kindPod {
		kind, controller = federation.Pod, controllerOf(class.owner, func(o owner) (owner, bool) {
			direct, owners := o.refIn(ref.Namespace), r.replicaSets
			if direct.kind == kindJob {
				owners = r.jobs
			}
			up, known := owners.Get(direct.key)
			if !known {
				r.awaitOwner(ref.key, direct)
			}
			return up, known
		})
	}

	return federation.Cohort{
		Kind: kind, Namespace: ref.Namespace, OwnerKind: controller.kind, OwnerName: controller.name,
		Template: withServers(class.template, r.opaqueByServers(ref, &class)),
	}.Workload(ref.Name)
}

// opaqueByServers returns the ports that Servers make opaque at a workload of a class. Equal sets are
// equal.
func (r *Reconciler) opaqueByServers(ref objectRef, class *podClass) federation.Ports {
	var ports []federation.PortRange
	for _, s := range r.appliedServers[ref.Namespace] {
		if s.appliesTo(ref.kind, ref.Name, class) {
			ports = s.appendOpaque(ports, class)
		}
	}

	if len(ports) == 0 {
		return federation.Ports{}
	}
	slices.SortFunc(ports, func(a, b federation.PortRange) int { return cmp.Compare(a.First, b.First) })
	return federation.PortsOf(slices.Compact(ports)...)
}

// awaitOwner records that a Pod is to be resolved again once its owner is known.
func (r *Reconciler) awaitOwner(pod key, owner objectRef) {
	if r.awaited[owner] == nil {
		r.awaited[owner] = map[key]bool{}
	}
	r.awaited[owner][pod] = true
}

// stopAwaiting undoes awaitOwner. A Pod that awaits its owner was resolved with it:
// what owns that is not known.
func (r *Reconciler) stopAwaiting(pod key, resolved *federation.Workload) {
	c := resolved.Cohort.Value()
	direct := owner{c.OwnerKind, c.OwnerName}.refIn(pod.Namespace)
	delete(r.awaited[direct], pod)
	if len(r.awaited[direct]) == 0 {
		delete(r.awaited, direct)
	}
}

// forgetUnused drops the state of a workload that neither exists nor is named by a slice.
func (r *Reconciler) forgetUnused(ref objectRef, w *workloadState) {
	if w.workload == nil && w.slices == nil {
		r.workloads[ref.kind].Remove(ref.key)
	}
}

func (r *Reconciler) reconcileSlice(slice key) {
	record, found := r.slices.Take(slice)

	translated := r.translated.Get(slice)
	switch {
	case !found && translated == nil:
		return
	case !found:
		r.translated.Remove(slice)
		r.removeNamedBy(translated, translated.slices, nil)
		r.detachSlice(translated, translated.service, translated.slices)
		return
	case translated == nil:
		translated = &translatedSlice{key: slice}
		translated.alone = sliceSet{translated}
		r.translated.Put(slice, translated)
	}

	old, moving := *translated, false
	r.translate(translated, record)
	switch old.service {
	case "": // it is new
	case translated.service:
		moving = r.mayMove(old.slices, translated.slices)
	default:
		r.detachSlice(translated, old.service, old.slices)
	}

	service := key{Namespace: slice.Namespace, Name: translated.service}
	byName := func(a, b *translatedSlice) int { return strings.Compare(a.Name, b.Name) }
	if all := r.slicesOf.Get(service); !slices.Contains(all, translated) {
		i, _ := slices.BinarySearchFunc(all, translated, byName)
		r.slicesOf.Put(service, slices.Insert(all, i, translated))
	}
	r.markChanged(service, moving)
}

// translate resolves the workloads that a slice names, and records in their states that it does. The record
// is that of a slice that is new or has changed; nil for the one that was translated last.
func (r *Reconciler) translate(translated *translatedSlice, record []*sliceRecord) {
	lookUp := func(ref objectRef) (*federation.Workload, federation.Name) {
		states := r.workloads[ref.kind]
		w := states.Get(ref.key)
		if w == nil {
			w = &workloadState{}
			states.Put(ref.key, w)
		}

		w.slices = w.slices.withSlice(translated)
		if w.workload == nil {
			return nil, federation.Name{}
		}
		return w.workload, w.node
	}

	old := translated.slices
	if record == nil {
		translated.slices = make([]resolvedSlice, 0, len(old))
		for i := range old {
			translated.slices = append(translated.slices, old[i].resolveAgain(lookUp))
		}
		return
	}

	translated.service = record[0].service
	translated.slices = make([]resolvedSlice, 0, len(record))
	for i, s := range record {
		translated.slices = append(translated.slices, s.resolveSlice(lookUp, old, i))
	}
	r.removeNamedBy(translated, old, translated.slices)
}

// mayMove reports whether an address that old serves is not in next, although its workload is available: it
// may be on its way to another slice (see pace.go).
func (r *Reconciler) mayMove(old, next []resolvedSlice) bool {
	var kept map[netip.Addr]bool // made only if some address is not where it was
	for i, s := range old {
		for j, e := range s.Endpoints {
			same := endpointAt(next, i, j)
			inPlace := same != nil && same.Addr == e.Addr
			if !e.Ready || e.Workload == nil || inPlace || !r.isAvailable(e.Workload) {
				continue
			}
			if kept == nil {
				kept = addressesIn(next)
			}
			if !kept[e.Addr] {
				return true
			}
		}
	}

	return false
}

// endpointAt returns the endpoint at a place; nil if there is none.
func endpointAt(in []resolvedSlice, slice, endpoint int) *federation.Endpoint {
	if slice >= len(in) || endpoint >= len(in[slice].Endpoints) {
		return nil
	}
	return in[slice].Endpoints[endpoint]
}

func addressesIn(in []resolvedSlice) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, s := range in {
		for _, e := range s.Endpoints {
			all[e.Addr] = true
		}
	}
	return all
}

// isAvailable reports whether a workload is known to be ready and not terminating.
func (r *Reconciler) isAvailable(w *federation.Workload) bool {
	ref := refOf(w)
	p, found := r.workloadRecords(ref.kind).Get(ref.key)
	return found && p.class.Value().available
}

// removeNamedBy records that a slice no longer names the workloads that it named and that are not in next.
func (r *Reconciler) removeNamedBy(translated *translatedSlice, old, next []resolvedSlice) {
	named := sync.OnceValue(func() map[objectRef]bool { return workloadsIn(next) })
	remove := func(ref objectRef) {
		if w := r.workloads[ref.kind].Get(ref.key); w != nil && !named()[ref] {
			w.slices = w.slices.withoutSlice(translated)
			r.forgetUnused(ref, w)
		}
	}

	for i, s := range old {
		for j, e := range s.Endpoints {
			same := endpointAt(next, i, j)
			inPlace := same != nil && same.Workload == e.Workload
			if e.Workload != nil && !inPlace { // the names are not needed if all are where they were
				remove(refOf(e.Workload))
			}
		}
		for j := range s.leftOut {
			remove(s.leftOut[j].workloadRef())
		}
	}
}

// workloadsIn returns what slices name, whether it is known or not.
func workloadsIn(in []resolvedSlice) map[objectRef]bool {
	names := map[objectRef]bool{}
	for _, s := range in {
		for _, e := range s.Endpoints {
			if e.Workload != nil {
				names[refOf(e.Workload)] = true
			}
		}
		for i := range s.leftOut {
			names[s.leftOut[i].workloadRef()] = true
		}
	}
	return names
}

// detachSlice removes a slice from a Service, to which it gave what it was translated to.
func (r *Reconciler) detachSlice(t *translatedSlice, from string, old []resolvedSlice) {
	service := key{Namespace: t.Namespace, Name: from}
	rest := slices.DeleteFunc(r.slicesOf.Get(service), func(s *translatedSlice) bool { return s == t })
	r.slicesOf.Put(service, rest)
	if len(rest) == 0 {
		r.slicesOf.Remove(service)
	}
	r.markChanged(service, r.mayMove(old, nil))
}

// publishService publishes the View of a Service, and reports whether it differs from the one before. A
// Service that does not exist is withdrawn, and differs from nothing: if it comes back, it is a new one,
// which waits for no window.
func (r *Reconciler) publishService(key key) (differs bool) {
	name := federation.Service(key)
	record, found := r.services.Take(key)
	if !found {
		r.publishServiceIPs(key, nil)
		r.writer.Delete(name)
		r.oversized.set(key, 0)
		return false
	}

	before := r.writer.View(name)
	if record == nil { // it was taken before, and only slices have changed
		if before == nil {
			return false // the cluster was removed
		}
		record = &serviceRecord{View: *before, ips: r.serviceIPs[key]}
		record.Slices = nil
	}

	v := record.View
	whole := r.slicesWithin(key, &v)
	stored := r.writer.Set(name, &v)
	// After the View, so that a client that finds the Service by its IP finds the View as well.
	r.publishServiceIPs(key, record.ips)

	// The stored View shares equal slices with the one before; so must translated (see Reconciler). What is
	// translated is whole.
	shared := stored.Slices[:whole]
	for _, t := range r.slicesOf.Get(key) {
		for i := range min(len(t.slices), len(shared)) {
			t.slices[i].Slice = shared[i]
		}
		shared = shared[min(len(t.slices), len(shared)):]
	}
	return stored != before
}

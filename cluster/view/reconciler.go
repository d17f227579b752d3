package view

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
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
	kindWindow // of a Service, which ends now
)

// A Reconciler publishes what the objects of one cluster amount to, and keeps that up to date. It reads the
// stores of its [Kind]s, which informers fill.
//
// Each kind depends on those before it, and what is derived is kept:
//
//	key that comes up        reads the records of           keeps
//	Node, ServiceProfile     itself                         nothing: published at once
//	Server                   itself                         appliedServers
//	Pod, ExternalWorkload    itself, its owner, Servers     workloads; awaited, if its owner is missing
//	ReplicaSet, Job          the Pods that await it         nothing
//	EndpointSlice            itself, workloads              translated, slicesOf
//	Service                  itself, translated             published
//
// A key that changes what is kept goes on to what depends on it, found by an index: a Pod to the slices
// that name it (workloadState.slices), a Server to the workloads of its namespace that it selects or did, a
// slice to its Service. So the work follows the change: one Pod rebuilds the slices that name it, and one
// View is put together from pointers to its slices.
//
// What it keeps true:
//
//   - What is published when the queue is empty follows from the records alone, whichever events brought
//     them (TestReconcilerFollows). So there is no code for events, for their order across kinds, or for a
//     second listing: each is a set of keys.
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

	services    *api.Store[serviceRecord]
	slices      *api.Store[[]*sliceRecord] // EndpointSlices, or Endpoints
	pods        *api.Store[podRecord]
	externals   *api.Store[podRecord]
	replicaSets *api.Store[owner]
	jobs        *api.Store[owner]
	servers     *api.Store[*serverRecord]
	nodes       *api.Store[string]           // the zone
	profiles    *api.Store[*profile.Profile] // nil for one that cannot be read

	// Owned by Begin, and then by Run.
	writer         *federation.ClusterWriter
	appliedServers byNamespace[*serverRecord]                 // with which workloads were resolved
	workloads      map[objectKind]byNamespace[*workloadState] // Pods and ExternalWorkloads
	translated     map[key]*translatedSlice                   // by EndpointSlice
	slicesOf       map[key][]key                              // Service -> its EndpointSlices, sorted
	published      map[key]*federation.View                   // by Service, as the Store holds it
	windows        map[key]*window                            // by Service that is not quiet; nil in Begin
	awaited        map[objectRef]map[key]bool                 // owner that is not known -> the Pods that it owns
	ipsOf          map[objectRef][]netip.Addr                 // Service or workload -> its IPs
	ownersByIP     map[netip.Addr][]objectRef                 // the reverse, sorted
}

// workloadState is a workload that is known, or named by a slice, or both.
type workloadState struct {
	workload *federation.Workload // nil: it is not known
	record   podRecord            // from which the workload was made
	slices   []key                // that name it
	awaits   objectRef            // the owner that is not known; zero for none
}

// translatedSlice is an EndpointSlice, or Endpoints, as it was last translated.
type translatedSlice struct {
	service   key
	workloads []objectRef // that it names
	slices    []*federation.Slice
}

// Options are what there is to read in a cluster.
type Options struct {
	Local     bool // it is the cluster that the process runs in: only there clients are on nodes, and look up IPs
	Endpoints bool // read Endpoints, not EndpointSlices
}

// QueueName returns the name by which metrics of work queues know the queue of a cluster.
func QueueName(cluster string) string { return "cluster/" + cluster }

// NewReconciler returns a Reconciler for one engagement with a cluster. Its stores may be filled at once;
// Begin is called when all required ones are synced.
func NewReconciler(log logr.Logger, cluster federation.Cluster, options Options) *Reconciler {
	r := &Reconciler{
		border:         newBorder(log),
		cluster:        cluster,
		options:        options,
		ipsOf:          map[objectRef][]netip.Addr{},
		ownersByIP:     map[netip.Addr][]objectRef{},
		appliedServers: byNamespace[*serverRecord]{},
		workloads:      map[objectKind]byNamespace[*workloadState]{kindPod: {}, kindExternal: {}},
		translated:     map[key]*translatedSlice{},
		slicesOf:       map[key][]key{},
		published:      map[key]*federation.View{},
		awaited:        map[objectRef]map[key]bool{},
	}
	enqueue := func(kind objectKind) func(key) {
		return func(k key) {
			if r.enqueues.Load() {
				r.queue.Add(objectRef{kind, k})
			}
		}
	}
	r.services = api.NewStore(checked(r.border, "Service", r.reduceService), enqueue(kindService))
	if options.Endpoints {
		r.slices = api.NewStore(checked(r.border, "Endpoints", r.reduceEndpoints), enqueue(kindSlice))
	} else {
		r.slices = api.NewStore(checked(r.border, "EndpointSlice", r.reduceSlice), enqueue(kindSlice))
	}
	r.pods = api.NewStore(checked(r.border, "Pod", r.reducePod), enqueue(kindPod))
	r.externals = api.NewStore(checked(r.border, "ExternalWorkload", r.reduceExternal), enqueue(kindExternal))
	r.replicaSets = api.NewStore(checked(r.border, "ReplicaSet", reduceOwner), enqueue(kindReplicaSet))
	r.jobs = api.NewStore(checked(r.border, "Job", reduceOwner), enqueue(kindJob))
	r.servers = api.NewStore(checked(r.border, "Server", reduceServer), enqueue(kindServer))
	r.nodes = api.NewStore(checked(r.border, "Node", reduceNode), enqueue(kindNode))
	r.profiles = api.NewStore(checked(r.border, "ServiceProfile", reduceProfile), enqueue(kindProfile))
	return r
}

// Begin publishes everything that the stores hold and marks the cluster as synced. It is called once; Run
// must follow.
func (r *Reconciler) Begin(writer *federation.ClusterWriter) {
	name := QueueName(string(r.cluster))
	r.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[objectRef]{Name: name})
	r.writer = writer
	r.enqueues.Store(true)
	for _, k := range r.nodes.Keys() {
		r.reconcileNode(k)
	}
	for _, k := range r.profiles.Keys() {
		r.reconcileProfile(k)
	}
	for _, k := range r.servers.Keys() {
		r.reconcileServer(k)
	}
	for _, kind := range []objectKind{kindPod, kindExternal} {
		for _, k := range r.workloadRecords(kind).Keys() {
			r.reconcileWorkload(objectRef{kind, k})
		}
	}
	for _, k := range r.slices.Keys() {
		r.reconcileSlice(k)
	}
	for _, k := range r.services.Keys() {
		r.publishService(k)
	}
	r.windows = map[key]*window{}
	writer.MarkSynced()
}

// Run reconciles what changes after Begin, until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	defer r.queue.ShutDown()
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	for {
		ref, shutdown := r.queue.Get()
		if shutdown {
			return
		}
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
		}
		r.queue.Done(ref)
	}
}

func (r *Reconciler) reconcileNode(k key) {
	if zone, found := r.nodes.Get(k); found {
		r.writer.SetNode(k.Name, zone)
	} else {
		r.writer.DeleteNode(k.Name)
	}
}

func (r *Reconciler) reconcileProfile(k key) {
	name := federation.Service{Namespace: k.Namespace, Name: k.Name}
	switch p, found := r.profiles.Get(k); {
	case !found:
		r.writer.DeleteProfile(name)
	case p == nil:
		r.writer.KeepProfile(name)
	default:
		r.writer.SetProfile(name, p)
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
func (r *Reconciler) reconcileServer(k key) {
	old := r.appliedServers.get(k)
	now, found := r.servers.Get(k)
	if found {
		r.appliedServers.put(k, now)
	} else {
		r.appliedServers.remove(k)
	}
	affected := map[key]bool{}
	for kind, states := range r.workloads {
		for name, w := range states[k.Namespace] {
			if w.workload == nil {
				continue
			}
			class := w.record.class.Value()
			if !old.selects(kind, name, &class) && !now.selects(kind, name, &class) {
				continue
			}
			ref := objectRef{kind, key{Namespace: k.Namespace, Name: name}}
			for _, s := range r.updateWorkload(ref) {
				affected[s] = true
			}
			r.publishWorkloadIPs(ref)
		}
	}
	for s := range affected {
		r.reconcileSlice(s)
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
		r.reconcileSlice(s)
	}
	r.publishWorkloadIPs(ref)
}

// updateWorkload resolves a workload again. If it changed, it returns the slices that name it.
func (r *Reconciler) updateWorkload(ref objectRef) []key {
	k, states := ref.key, r.workloads[ref.kind]
	record, found := r.workloadRecords(ref.kind).Get(k)
	w := states.get(k)
	if w == nil {
		if !found {
			return nil
		}
		w = &workloadState{}
		states.put(k, w)
	}
	r.setAwaited(k, w, objectRef{})
	if !found {
		if w.workload == nil {
			return nil
		}
		w.workload, w.record = nil, podRecord{}
		r.forgetUnused(ref, w)
		return slices.Clone(w.slices)
	}
	next := r.resolveWorkload(ref, w, record)
	sameNode := w.record.node == record.node
	w.record = record
	if w.workload != nil && *w.workload == next && sameNode {
		return nil
	}
	w.workload = &next
	return slices.Clone(w.slices)
}

// resolveWorkload returns what clients of an address learn about its workload: the record, with its owner
// and what Servers add.
func (r *Reconciler) resolveWorkload(ref objectRef, w *workloadState, record podRecord) federation.Workload {
	class := record.class.Value()
	opaque := r.opaqueByServers(ref, &class)
	if ref.kind == kindExternal {
		return newExternalWorkload(ref.key, &class, opaque)
	}
	return newPodWorkload(ref.key, &class, opaque, func(o owner) (owner, bool) {
		direct, owners := objectRef{kindReplicaSet, key{Namespace: ref.Namespace, Name: o.name}}, r.replicaSets
		if o.kind == ownerJob {
			direct.kind, owners = kindJob, r.jobs
		}
		owner, known := owners.Get(direct.key)
		if !known {
			r.setAwaited(ref.key, w, direct)
		}
		return owner, known
	})
}

// opaqueByServers returns the ports that Servers make opaque at a workload of a class. Equal sets are
// equal.
func (r *Reconciler) opaqueByServers(ref objectRef, class *podClass) federation.Ports {
	var ports []federation.PortRange
	for _, s := range r.appliedServers[ref.Namespace] {
		if s.selects(ref.kind, ref.Name, class) {
			ports = s.appendOpaque(ports, class)
		}
	}
	if len(ports) == 0 {
		return federation.Ports{}
	}
	slices.SortFunc(ports, func(a, b federation.PortRange) int { return cmp.Compare(a.First, b.First) })
	return federation.PortsOf(slices.Compact(ports)...)
}

// setAwaited records for which owner, that is not known yet, Pod k is to be resolved again; the zero
// objectRef for none.
func (r *Reconciler) setAwaited(k key, w *workloadState, owner objectRef) {
	if waiting := r.awaited[w.awaits]; waiting != nil {
		delete(waiting, k)
		if len(waiting) == 0 {
			delete(r.awaited, w.awaits)
		}
	}
	w.awaits = owner
	if owner == (objectRef{}) {
		return
	}
	if r.awaited[owner] == nil {
		r.awaited[owner] = map[key]bool{}
	}
	r.awaited[owner][k] = true
}

// forgetUnused drops the state of a workload that neither exists nor is named by a slice.
func (r *Reconciler) forgetUnused(ref objectRef, w *workloadState) {
	if w.workload == nil && len(w.slices) == 0 {
		r.workloads[ref.kind].remove(ref.key)
	}
}

func (r *Reconciler) reconcileSlice(k key) {
	record, found := r.slices.Get(k)
	old := r.translated[k]
	if !found {
		if old != nil {
			moving := r.mayMove(old, nil)
			delete(r.translated, k)
			r.removeNamedBy(k, old.workloads)
			r.detachSlice(k, old.service, moving)
		}
		return
	}
	next := r.translate(k, record)
	r.translated[k] = next
	var moving bool
	if old != nil {
		r.removeNamedBy(k, without(old.workloads, next.workloads))
		if old.service != next.service {
			r.detachSlice(k, old.service, r.mayMove(old, nil))
		} else {
			moving = r.mayMove(old, next)
		}
	}
	if i, known := slices.BinarySearchFunc(r.slicesOf[next.service], k, compareKeys); !known {
		r.slicesOf[next.service] = slices.Insert(r.slicesOf[next.service], i, k)
	}
	r.markChanged(next.service, moving)
}

// translate resolves the workloads that a slice names, and records in their states that it does.
func (r *Reconciler) translate(k key, record []*sliceRecord) *translatedSlice {
	t := &translatedSlice{service: key{Namespace: k.Namespace, Name: record[0].service}}
	lookUp := func(ref objectRef) (*federation.Workload, string) {
		t.workloads = append(t.workloads, ref)
		states := r.workloads[ref.kind]
		w := states.get(ref.key)
		if w == nil {
			w = &workloadState{}
			states.put(ref.key, w)
		}
		if !slices.Contains(w.slices, k) {
			w.slices = append(w.slices, k)
		}
		return w.workload, w.record.node
	}
	for _, s := range record {
		t.slices = append(t.slices, resolveSlice(s, lookUp))
	}
	return t
}

// mayMove reports whether an address that old serves is not in next, which may be nil, although its
// workload is available: it may be on its way to another slice (see pace.go).
func (r *Reconciler) mayMove(old, next *translatedSlice) bool {
	if next == nil {
		next = &translatedSlice{}
	}
	var kept map[netip.Addr]bool // made only if some address is not where it was
	for i, s := range old.slices {
		for j, e := range s.Endpoints {
			if !e.Ready || e.Workload == nil || next.addressAt(i, j) == e.Addr || !r.isAvailable(e.Workload) {
				continue
			}
			if kept == nil {
				kept = next.addresses()
			}
			if !kept[e.Addr] {
				return true
			}
		}
	}
	return false
}

// addressAt returns the address of an endpoint; the zero Addr if there is none.
func (t *translatedSlice) addressAt(slice, endpoint int) netip.Addr {
	if slice >= len(t.slices) || endpoint >= len(t.slices[slice].Endpoints) {
		return netip.Addr{}
	}
	return t.slices[slice].Endpoints[endpoint].Addr
}

func (t *translatedSlice) addresses() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, s := range t.slices {
		for _, e := range s.Endpoints {
			all[e.Addr] = true
		}
	}
	return all
}

// isAvailable reports whether a workload is known to be ready and not terminating.
func (r *Reconciler) isAvailable(w *federation.Workload) bool {
	kind := kindPod
	if w.Kind == federation.ExternalWorkload {
		kind = kindExternal
	}
	p, found := r.workloadRecords(kind).Get(key{Namespace: w.Namespace, Name: w.Name})
	return found && p.class.Value().available
}

// removeNamedBy records that slice k no longer names some workloads.
func (r *Reconciler) removeNamedBy(k key, workloads []objectRef) {
	for _, ref := range workloads {
		if w := r.workloads[ref.kind].get(ref.key); w != nil {
			w.slices = slices.DeleteFunc(w.slices, func(s key) bool { return s == k })
			r.forgetUnused(ref, w)
		}
	}
}

// detachSlice removes slice k from a Service. moving is set if an address of it may be on its way to
// another slice.
func (r *Reconciler) detachSlice(k, service key, moving bool) {
	r.slicesOf[service] = slices.DeleteFunc(r.slicesOf[service], func(s key) bool { return s == k })
	if len(r.slicesOf[service]) == 0 {
		delete(r.slicesOf, service)
	}
	r.markChanged(service, moving)
}

// publishService publishes the View of a Service, and reports whether it differs from the one before. A
// Service that does not exist is withdrawn, and differs from nothing: if it comes back, it is a new one,
// which waits for no window.
func (r *Reconciler) publishService(k key) (differs bool) {
	name := federation.Service{Namespace: k.Namespace, Name: k.Name}
	svc, found := r.services.Get(k)
	if !found {
		r.setIPs(objectRef{kindService, k}, nil)
		r.writer.Delete(name)
		delete(r.published, k)
		return false
	}
	v := svc.View
	for _, s := range r.slicesOf[k] {
		v.Slices = append(v.Slices, r.translated[s].slices...)
	}
	stored := r.writer.Set(name, &v)
	// After the View, so that a client that finds the Service by its IP finds the View as well.
	r.setIPs(objectRef{kindService, k}, svc.ips)
	// The stored View shares equal slices with the one before; so must translated (see Reconciler).
	shared := stored.Slices
	for _, s := range r.slicesOf[k] {
		n := copy(r.translated[s].slices, shared)
		shared = shared[n:]
	}
	differs = stored != r.published[k]
	r.published[k] = stored
	return differs
}

// byNamespace holds values by key, those of one namespace together.
type byNamespace[V any] map[string]map[string]V

func (m byNamespace[V]) get(k key) V { return m[k.Namespace][k.Name] }

func (m byNamespace[V]) put(k key, v V) {
	if m[k.Namespace] == nil {
		m[k.Namespace] = map[string]V{}
	}
	m[k.Namespace][k.Name] = v
}

func (m byNamespace[V]) remove(k key) {
	delete(m[k.Namespace], k.Name)
	if len(m[k.Namespace]) == 0 {
		delete(m, k.Namespace)
	}
}

func compareKeys(a, b key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// without returns the elements of a that are not in b.
func without(a, b []objectRef) []objectRef {
	in := make(map[objectRef]bool, len(b))
	for _, ref := range b {
		in[ref] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(ref objectRef) bool { return in[ref] })
}

package view

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"

	"github.com/fingerpost/fingerpost/cluster/linkerd/serviceprofile"
	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
)

// key names an object; the kind is known from where it stands.
type key = records.Key

func intern(s string) string { return records.Intern(s) }

// item names something to reconcile.
type item struct {
	what what
	key
}

type what uint8

const (
	aNode what = iota
	aProfile
	aReplicaSet
	aJob
	aServer
	aPod
	anExternal
	aSlice
	aService
	aView // of a Service: what is published about it
)

// A Reconciler says what one cluster claims, and goes on saying it as its objects change. It reads the stores of its [Kind]s,
// which are filled by others.
type Reconciler struct {
	cluster federation.Cluster
	border  *border
	options Options
	queue   workqueue.TypedDelayingInterface[item] // set by Begin, before it sets running
	running atomic.Bool                            // changes are enqueued; before, Begin finds them all

	services    *records.Store[service]
	slices      *records.Store[[]*slice] // EndpointSlices, or Endpoints
	pods        *records.Store[pod]
	externals   *records.Store[pod]
	replicaSets *records.Store[owner]
	jobs        *records.Store[owner]
	servers     *records.Store[*server]
	nodes       *records.Store[string]           // the zone
	profiles    *records.Store[*profile.Profile] // nil for one that cannot be read

	// Owned by Begin, and then by Run.
	claims    *federation.Claims
	applied   byNamespace[*server]                 // with which Pods were looked up
	workloads map[what]byNamespace[*workloadState] // Pods and ExternalWorkloads
	built     map[key]*sliceState
	members   map[key][]key            // Service -> its slices, sorted
	views     map[key]*federation.View // what is published
	paces     map[key]*pace            // of Services that are not quiet; nil until Begin has published everything
	missed    map[item]map[key]bool    // owner that was looked up in vain -> the Pods that it owns
	places    map[item][]netip.Addr    // Service or Pod -> where it can be asked for by IP
	occupants map[netip.Addr][]item    // the reverse, sorted
}

// workloadState is a workload that is known, or named by a slice, or both.
type workloadState struct {
	workload *federation.Workload // nil: it is not known
	pod      pod                  // of which the workload was made
	slices   []key                // that name it
	awaits   item                 // the owner that it missed; zero for none
}

// sliceState is a slice as it was last translated.
type sliceState struct {
	service key
	who     []item
	slices  []*federation.Slice
}

// Options say what there is to read in a cluster.
type Options struct {
	Local     bool // it is the cluster that the process runs in: only there clients ask by IP, and are on nodes
	Endpoints bool // Endpoints are read, and no EndpointSlices
}

// QueueName returns how the metrics of work queues name the one of changes in a cluster.
func QueueName(cluster string) string { return "cluster/" + cluster }

// NewReconciler returns a Reconciler for one engagement with a cluster. Its stores may be filled at once; Begin is called when they
// are complete.
func NewReconciler(log logr.Logger, cluster federation.Cluster, options Options) *Reconciler {
	r := &Reconciler{
		border:    newBorder(log),
		cluster:   cluster,
		options:   options,
		places:    map[item][]netip.Addr{},
		occupants: map[netip.Addr][]item{},
		applied:   byNamespace[*server]{},
		workloads: map[what]byNamespace[*workloadState]{aPod: {}, anExternal: {}},
		built:     map[key]*sliceState{},
		members:   map[key][]key{},
		views:     map[key]*federation.View{},
		missed:    map[item]map[key]bool{},
	}
	enqueue := func(w what) func(key) {
		return func(k key) {
			if r.running.Load() {
				r.queue.Add(item{w, k})
			}
		}
	}
	r.services = records.NewStore(checked(r.border, "Service", r.keepService), enqueue(aService))
	if options.Endpoints {
		r.slices = records.NewStore(checked(r.border, "Endpoints", r.keepEndpoints), enqueue(aSlice))
	} else {
		r.slices = records.NewStore(checked(r.border, "EndpointSlice", r.keepSlice), enqueue(aSlice))
	}
	r.pods = records.NewStore(checked(r.border, "Pod", r.keepPod), enqueue(aPod))
	r.externals = records.NewStore(checked(r.border, "ExternalWorkload", r.keepExternal), enqueue(anExternal))
	r.replicaSets = records.NewStore(checked(r.border, "ReplicaSet", keepOwner), enqueue(aReplicaSet))
	r.jobs = records.NewStore(checked(r.border, "Job", keepOwner), enqueue(aJob))
	r.servers = records.NewStore(checked(r.border, "Server", keepServer), enqueue(aServer))
	r.nodes = records.NewStore(checked(r.border, "Node", keepNode), enqueue(aNode))
	r.profiles = records.NewStore(checked(r.border, "ServiceProfile", keepProfile), enqueue(aProfile))
	return r
}

// service is what is kept of a Service.
type service struct {
	federation.View
	ips []netip.Addr // at which it can be asked for; of the local cluster only
}

func (r *Reconciler) keepService(object any, left *remarks) (service, bool) {
	svc, ok := object.(*corev1.Service)
	if !ok {
		return service{}, false
	}
	kept := service{View: translateService(r.cluster, svc, left)}
	if r.options.Local {
		kept.ips = clusterIPs(svc)
	}
	return kept, true
}

func (r *Reconciler) keepSlice(object any, left *remarks) ([]*slice, bool) {
	kept, ok := keepSlice(object, left)
	return r.trusted(kept), ok
}

func (r *Reconciler) keepEndpoints(object any, left *remarks) ([]*slice, bool) {
	kept, ok := keepEndpoints(object, left)
	return r.trusted(kept), ok
}

// trusted drops the marks of gateways from the slices of a linked cluster. They count for the cluster's own clients: others would be sent,
// under whatever authority the cluster likes, to any gateway that it names, and trust it.
func (r *Reconciler) trusted(kept []*slice) []*slice {
	for _, s := range kept {
		for i := range s.endpoints {
			if !r.options.Local {
				s.endpoints[i].Mirror = nil
			}
		}
	}
	return kept
}

func (r *Reconciler) keepPod(object any, left *remarks) (pod, bool) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return pod{}, false
	}
	kept, ok := podOf(p, left)
	if r.options.Local {
		kept.residence = residenceOf(p)
	}
	return kept, ok
}

func (r *Reconciler) keepExternal(object any, left *remarks) (pod, bool) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return pod{}, false
	}
	kept, err := translateExternal(u, left)
	if err != nil {
		left.cut("all of it: " + err.Error())
		return pod{}, false
	}
	if !r.options.Local {
		kept.residence = nil
	}
	return kept, true
}

func keepServer(object any, left *remarks) (*server, bool) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	s, err := translateServer(u, left)
	if err != nil {
		left.cut("all of it: " + err.Error())
	}
	return s, s != nil
}

func keepProfile(object any, left *remarks) (*profile.Profile, bool) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	p, parts, err := serviceprofile.Parse(u)
	if err != nil {
		left.cut("all of it, so that what it said before goes on, or the default: " + err.Error())
	}
	for _, part := range parts {
		left.cut(part)
	}
	return p, true
}

func keepOwner(object any, left *remarks) (owner, bool) {
	m, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return owner{}, false
	}
	return ownerOf(m.OwnerReferences, left), true
}

func keepNode(object any, left *remarks) (string, bool) {
	m, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return "", false
	}
	return left.label("label "+corev1.LabelTopologyZone, m.Labels[corev1.LabelTopologyZone]), true
}

// Begin says everything that the stores hold and completes the claims. It is called once; Run must follow.
func (r *Reconciler) Begin(claims *federation.Claims) {
	r.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[item]{Name: QueueName(string(r.cluster))})
	r.claims = claims
	r.running.Store(true)
	for _, k := range r.nodes.Keys() {
		r.reconcileNode(k)
	}
	for _, k := range r.profiles.Keys() {
		r.reconcileProfile(k)
	}
	for _, k := range r.servers.Keys() {
		r.reconcileServer(k)
	}
	for _, kind := range []what{aPod, anExternal} {
		for _, k := range r.records(kind).Keys() {
			r.reconcileWorkload(item{kind, k})
		}
	}
	for _, k := range r.slices.Keys() {
		r.reconcileSlice(k)
	}
	for _, k := range r.services.Keys() {
		r.publish(k)
	}
	r.paces = map[key]*pace{}
	claims.Complete()
}

// Run follows the changes since Begin until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	defer r.queue.ShutDown()
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	for {
		it, shutdown := r.queue.Get()
		if shutdown {
			return
		}
		switch it.what {
		case aNode:
			r.reconcileNode(it.key)
		case aProfile:
			r.reconcileProfile(it.key)
		case aReplicaSet, aJob:
			r.reconcileOwner(it)
		case aServer:
			r.reconcileServer(it.key)
		case aPod, anExternal:
			r.reconcileWorkload(it)
		case aSlice:
			r.reconcileSlice(it.key)
		case aService:
			r.change(it.key, false)
		case aView:
			r.reconcileView(it.key)
		}
		r.queue.Done(it)
	}
}

func (r *Reconciler) reconcileNode(k key) {
	if zone, found := r.nodes.Get(k); found {
		r.claims.SetNode(k.Name, zone)
	} else {
		r.claims.DeleteNode(k.Name)
	}
}

func (r *Reconciler) reconcileProfile(k key) {
	name := federation.Service{Namespace: k.Namespace, Name: k.Name}
	switch p, found := r.profiles.Get(k); {
	case !found:
		r.claims.DeleteProfile(name)
	case p == nil:
		r.claims.KeepProfile(name)
	default:
		r.claims.SetProfile(name, p)
	}
}

// reconcileOwner sees to the Pods that missed their owner. One that is deleted changes nothing: its Pods are about to follow, and
// are still its own.
func (r *Reconciler) reconcileOwner(it item) {
	for k := range r.missed[it] {
		r.reconcileWorkload(item{aPod, k})
	}
}

// reconcileServer sees to the workloads that a Server selects now, or did until now, and once to each slice that names them.
func (r *Reconciler) reconcileServer(k key) {
	old := r.applied.get(k)
	now, found := r.servers.Get(k)
	if found {
		r.applied.put(k, now)
	} else {
		r.applied.drop(k)
	}
	concerned := map[key]bool{}
	for kind, states := range r.workloads {
		for name, w := range states[k.Namespace] {
			if w.workload == nil {
				continue
			}
			if o := w.pod.origin.Value(); old.selects(kind, name, &o) || now.selects(kind, name, &o) {
				it := item{kind, key{Namespace: k.Namespace, Name: name}}
				for _, s := range r.renew(it) {
					concerned[s] = true
				}
				r.placeWorkload(it)
			}
		}
	}
	for s := range concerned {
		r.reconcileSlice(s)
	}
}

// records returns the store of a kind of workload.
func (r *Reconciler) records(kind what) *records.Store[pod] {
	if kind == anExternal {
		return r.externals
	}
	return r.pods
}

func (r *Reconciler) reconcileWorkload(it item) {
	for _, s := range r.renew(it) {
		r.reconcileSlice(s)
	}
	r.placeWorkload(it)
}

// renew looks a workload up again, and returns the slices that name it if it is not what it was.
func (r *Reconciler) renew(it item) []key {
	k, states := it.key, r.workloads[it.what]
	p, found := r.records(it.what).Get(k)
	w := states.get(k)
	if w == nil {
		if !found {
			return nil
		}
		w = &workloadState{}
		states.put(k, w)
	}
	r.await(k, w, item{})
	if !found {
		if w.workload == nil {
			return nil
		}
		w.workload, w.pod = nil, pod{}
		r.release(it, w)
	} else {
		next := r.lookUp(it, w, p)
		node := w.pod.node
		w.pod = p
		if w.workload != nil && *w.workload == next && node == p.node {
			return nil
		}
		w.workload = &next
	}
	return slices.Clone(w.slices)
}

// lookUp returns who a workload is to the clients of an address.
func (r *Reconciler) lookUp(it item, w *workloadState, p pod) federation.Workload {
	from := p.origin.Value()
	opaque := r.opened(it, &from)
	if it.what == anExternal {
		return externalWorkload(it.key, &from, opaque)
	}
	return workload(it.key, &from, opaque, func(o owner) (owner, bool) {
		up, from := item{aReplicaSet, key{Namespace: it.Namespace, Name: o.name}}, r.replicaSets
		if o.kind == jobKind {
			up.what, from = aJob, r.jobs
		}
		owner, known := from.Get(up.key)
		if !known {
			r.await(it.key, w, up)
		}
		return owner, known
	})
}

// opened returns the ports that Servers make opaque at a workload of an origin. Equal sets are equal.
func (r *Reconciler) opened(it item, o *origin) federation.Ports {
	var ports []federation.PortRange
	for _, s := range r.applied[it.Namespace] {
		if s.selects(it.what, it.Name, o) {
			ports = s.opens(ports, o)
		}
	}
	if len(ports) == 0 {
		return federation.Ports{}
	}
	slices.SortFunc(ports, func(a, b federation.PortRange) int { return cmp.Compare(a.First, b.First) })
	return federation.PortsOf(slices.Compact(ports)...)
}

// await makes Pod k wait for an owner that is not known yet; the zero item for none.
func (r *Reconciler) await(k key, w *workloadState, it item) {
	if waiting := r.missed[w.awaits]; waiting != nil {
		delete(waiting, k)
		if len(waiting) == 0 {
			delete(r.missed, w.awaits)
		}
	}
	w.awaits = it
	if it == (item{}) {
		return
	}
	if r.missed[it] == nil {
		r.missed[it] = map[key]bool{}
	}
	r.missed[it][k] = true
}

// release drops the state of a workload that neither exists nor is named.
func (r *Reconciler) release(it item, w *workloadState) {
	if w.workload == nil && len(w.slices) == 0 {
		r.workloads[it.what].drop(it.key)
	}
}

func (r *Reconciler) reconcileSlice(k key) {
	record, found := r.slices.Get(k)
	old := r.built[k]
	if !found {
		if old != nil {
			moving := r.moving(old, nil)
			delete(r.built, k)
			r.unname(k, old.who)
			r.leave(k, old.service, moving)
		}
		return
	}
	next := &sliceState{service: key{Namespace: k.Namespace, Name: record[0].service}}
	for _, s := range record {
		next.slices = append(next.slices, translateSlice(s, func(it item) (*federation.Workload, string) {
			next.who = append(next.who, it)
			w := r.workloads[it.what].get(it.key)
			if w == nil {
				w = &workloadState{}
				r.workloads[it.what].put(it.key, w)
			}
			if !slices.Contains(w.slices, k) {
				w.slices = append(w.slices, k)
			}
			return w.workload, w.pod.node
		}))
	}
	r.built[k] = next
	var moving bool
	if old != nil {
		r.unname(k, without(old.who, next.who))
		if old.service != next.service {
			r.leave(k, old.service, r.moving(old, nil))
		} else {
			moving = r.moving(old, next)
		}
	}
	if i, member := slices.BinarySearchFunc(r.members[next.service], k, compareKeys); !member {
		r.members[next.service] = slices.Insert(r.members[next.service], i, k)
	}
	r.change(next.service, moving)
}

// moving reports whether an address that old serves is not in next, which may be nil, although its workload is ready and not terminating.
func (r *Reconciler) moving(old, next *sliceState) bool {
	if next == nil {
		next = &sliceState{}
	}
	at := func(slice, i int) (addr netip.Addr) {
		if slice < len(next.slices) && i < len(next.slices[slice].Endpoints) {
			addr = next.slices[slice].Endpoints[i].Addr
		}
		return addr
	}
	var stays map[netip.Addr]bool // made for those that are not where they were
	for i, s := range old.slices {
		for j, e := range s.Endpoints {
			if !e.Ready || e.Workload == nil || at(i, j) == e.Addr || !r.settled(e.Workload) {
				continue
			}
			if stays == nil {
				stays = next.addresses()
			}
			if !stays[e.Addr] {
				return true
			}
		}
	}
	return false
}

func (s *sliceState) addresses() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, part := range s.slices {
		for _, e := range part.Endpoints {
			all[e.Addr] = true
		}
	}
	return all
}

// settled reports whether a workload is known to be ready and not terminating.
func (r *Reconciler) settled(w *federation.Workload) bool {
	from := r.pods
	if w.Kind == federation.ExternalWorkload {
		from = r.externals
	}
	p, found := from.Get(key{Namespace: w.Namespace, Name: w.Name})
	return found && p.origin.Value().settled
}

// unname drops slice k from the workloads that it no longer names.
func (r *Reconciler) unname(k key, who []item) {
	for _, it := range who {
		if w := r.workloads[it.what].get(it.key); w != nil {
			w.slices = slices.DeleteFunc(w.slices, func(s key) bool { return s == k })
			r.release(it, w)
		}
	}
}

// leave drops slice k from a Service. moving is set if an address may be on its way to another one.
func (r *Reconciler) leave(k, service key, moving bool) {
	r.members[service] = slices.DeleteFunc(r.members[service], func(s key) bool { return s == k })
	if len(r.members[service]) == 0 {
		delete(r.members, service)
	}
	r.change(service, moving)
}

// publish publishes what is known of a Service, and reports whether it differs from what was published before. A Service that does not
// exist is withdrawn, which begins no window: it may come back as a new one.
func (r *Reconciler) publish(k key) (differs bool) {
	name := federation.Service{Namespace: k.Namespace, Name: k.Name}
	svc, found := r.services.Get(k)
	if !found {
		r.place(item{aService, k}, nil)
		r.claims.Delete(name)
		delete(r.views, k)
		return false
	}
	v := svc.View
	for _, s := range r.members[k] {
		v.Slices = append(v.Slices, r.built[s].slices...)
	}
	// What is stored shares its slices with the claim before it, where they are equal: so do we.
	stored := r.claims.Set(name, &v)
	r.place(item{aService, k}, svc.ips) // not before the View: who finds the Service by its IP must find what is published about it
	shared := stored.Slices
	for _, s := range r.members[k] {
		n := copy(r.built[s].slices, shared)
		shared = shared[n:]
	}
	differs = stored != r.views[k]
	r.views[k] = stored
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

func (m byNamespace[V]) drop(k key) {
	delete(m[k.Namespace], k.Name)
	if len(m[k.Namespace]) == 0 {
		delete(m, k.Namespace)
	}
}

func compareKeys(a, b key) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// without returns the items of a that are not in b.
func without(a, b []item) []item {
	in := make(map[item]bool, len(b))
	for _, it := range b {
		in[it] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(it item) bool { return in[it] })
}

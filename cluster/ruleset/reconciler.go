package ruleset

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/ruleobject"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// An object names one that is to be reconciled.
type object struct {
	kind rules.Kind
	api.Key
}

// Clusters is what follows from other clusters. Each function returns a channel, too, which closes when there is
// something else.
type Clusters struct {
	TrustDomains func() ([]string, <-chan struct{})               // those whose ServiceAccounts count
	Membership   func() (*federation.Membership, <-chan struct{}) // which of them are linked
}

// otherClusters stands in the queue for them.
var otherClusters = object{}

// A Reconciler keeps the Levels of one cluster true to its objects, over one engagement with it. Its stores are filled
// by informers; the rest belongs to Begin, and then to the one goroutine of Run.
//
// A key in its queue leads to the object as it is now. What it changes is noted in sets of what is to be computed again
// (dirty), and all of it is computed once the queue is empty. So a hundred Servers that are applied at once are one
// change of their namespace or a few, and a change that comes alone is published at once.
//
// What it keeps true: when the queue is empty, what is published follows from the stores alone, whichever events have
// filled them (TestReconcilerFollows). And each Table has a term (package facts): nothing of it is withdrawn before all
// kinds that feed it are listed, or known to be absent.
//
// What it costs: a change of a namespace's Server is a pass over the policies of the namespace, one of a route a pass
// over the routes of its parents. A namespace with 10,000 of them that changes all the time gets a share of this
// process: after a pass that takes long nothing is computed for three times as long (pace).
type Reconciler struct {
	log     logr.Logger
	cluster federation.Cluster
	options *rules.Options
	levels  *rules.Levels

	clusters Clusters

	inputs   []input
	interned interner
	queue    workqueue.TypedInterface[object] // set by Begin, before it sets enqueues
	enqueues atomic.Bool

	tables   tables
	unlisted map[rules.Kind]bool // kinds of which it is not known yet which objects there are

	values     map[rules.Reference]any // what was read of each object, but for workloads
	namespaces map[string]*namespace
	mesh       map[rules.Reference]*rules.MeshTLSAuthentication
	networks   map[rules.Reference]*rules.NetworkAuthentication

	attached map[rules.Reference][]rules.Attachment // what is decided about routes, by the parent that they name

	// By what is named: which objects do so.
	routesOf   references // parent -> routes
	sendersTo  references // Service -> routes of which it is a backend
	policiesOf references // authentication -> AuthorizationPolicies that require it

	dirty dirt
}

// A namespace is the objects in it that decide about its Servers, and its EgressNetworks.
type namespace struct {
	servers        byName[rules.Server]
	authorizations byName[rules.ServerAuthorization]
	policies       byName[rules.AuthorizationPolicy]
	limits         byName[rules.RateLimit]
	egress         byName[rules.EgressNetwork]
}

type byName[V any] map[string]*V

func (n *namespace) isEmpty() bool {
	return len(n.servers)+len(n.authorizations)+len(n.policies)+len(n.limits)+len(n.egress) == 0
}

// references are sets of objects by what they name.
type references map[rules.Reference]map[rules.Reference]bool

func (r references) add(named, by rules.Reference) {
	if r[named] == nil {
		r[named] = map[rules.Reference]bool{}
	}
	r[named][by] = true
}

func (r references) remove(named, by rules.Reference) {
	delete(r[named], by)
	if len(r[named]) == 0 {
		delete(r, named)
	}
}

// dirt is what is to be computed again.
type dirt struct {
	parents  map[rules.Reference]bool // what is decided about the routes that name them
	servers  map[string]bool          // of namespaces
	targets  map[rules.Reference]bool
	egress   map[string]bool // of namespaces
	statuses map[rules.Reference]bool
}

func newDirt() dirt {
	return dirt{
		parents: map[rules.Reference]bool{}, servers: map[string]bool{}, targets: map[rules.Reference]bool{},
		egress: map[string]bool{}, statuses: map[rules.Reference]bool{},
	}
}

// NewReconciler returns a Reconciler for one engagement with a cluster. Its stores may be filled at once.
func NewReconciler(
	log logr.Logger, cluster federation.Cluster, levels *rules.Levels, options *rules.Options, others Clusters,
) *Reconciler {
	r := &Reconciler{
		log: log, cluster: cluster, options: options, levels: levels, clusters: others,
		unlisted: map[rules.Kind]bool{}, values: map[rules.Reference]any{}, namespaces: map[string]*namespace{},
		mesh:     map[rules.Reference]*rules.MeshTLSAuthentication{},
		networks: map[rules.Reference]*rules.NetworkAuthentication{},
		attached: map[rules.Reference][]rules.Attachment{},
		routesOf: references{}, sendersTo: references{}, policiesOf: references{}, dirty: newDirt(),
	}
	r.addKinds()
	return r
}

// Inputs returns what the Reconciler reads.
func (r *Reconciler) Inputs() (all []view.Input) {
	for _, i := range r.inputs {
		all = append(all, i.Input)
	}
	return all
}

// Exists reports whether there is an object, readable or not, if its kind is read and listed. Any goroutine may ask.
func (r *Reconciler) Exists(of rules.Reference) (exists, known bool) {
	at := slices.IndexFunc(r.inputs, func(i input) bool { return i.of == of.Kind })
	if at < 0 || !watch.IsClosed(r.inputs[at].store.Synced()) {
		return false, false
	}
	_, exists = r.inputs[at].store.Get(api.Key{Namespace: of.Namespace, Name: of.Name})
	return exists, true
}

// Begin publishes what follows from what the stores hold. What was published before and follows from kinds that are not
// listed yet stays until Listed. It is called once; Run must follow.
func (r *Reconciler) Begin(unlisted ...view.Input) {
	name := "rules/" + string(r.cluster)
	r.queue = workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[object]{Name: name, Clock: api.QueueClock{}})
	r.enqueues.Store(true)

	r.beginTerms()
	for _, k := range unlisted {
		r.unlisted[r.kindOf(k)] = true
	}
	r.publishUnlisted()

	for _, i := range r.inputs {
		for _, k := range i.store.Keys() {
			r.apply(object{i.of, k})
		}
	}
	r.publish()
}

// Listed ends what Begin has kept for a kind, which is listed by now, or known to be absent.
func (r *Reconciler) Listed(k view.Input) { r.queue.Add(object{kind: r.kindOf(k)}) }

func (r *Reconciler) kindOf(k view.Input) rules.Kind {
	at := slices.IndexFunc(r.inputs, func(i input) bool { return i.Resource == k.Resource })
	return r.inputs[at].of
}

func (r *Reconciler) inputOf(kind rules.Kind) input {
	at := slices.IndexFunc(r.inputs, func(i input) bool { return i.of == kind })
	return r.inputs[at]
}

// Run publishes what changes after Begin, until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	context.AfterFunc(ctx, r.queue.ShutDown) // which ends the loop
	var follower sync.WaitGroup
	follower.Go(func() { r.followClusters(ctx) })
	defer follower.Wait()

	for {
		next, shutdown := r.queue.Get()
		if shutdown {
			return
		}

		r.take(next)
		r.queue.Done(next)

		if r.queue.Len() == 0 {
			began := time.Now()
			r.publish()
			pace(ctx, time.Since(began))
		}
	}
}

// followClusters enqueues the other clusters when they change.
func (r *Reconciler) followClusters(ctx context.Context) {
	for {
		_, domains := r.clusters.TrustDomains()
		_, linked := r.clusters.Membership()
		r.queue.Add(otherClusters)
		select {
		case <-domains:
		case <-linked:
		case <-ctx.Done():
			return
		}
	}
}

// take takes one item of the queue: an object, a kind that is listed, or the other clusters.
func (r *Reconciler) take(next object) {
	switch {
	case next == otherClusters:
		for namespace := range r.namespaces {
			r.dirty.servers[namespace] = true
		}
		for backend, senders := range r.sendersTo {
			if service, is := r.values[backend].(*ruleobject.Service); is && service.StandsForOthers() {
				maps.Copy(r.dirty.statuses, senders)
			}
		}
	case next.Name == "":
		delete(r.unlisted, next.kind)
		r.publishUnlisted()
	default:
		r.apply(next)
	}
}

// pace waits after a pass that took long, so that passes take a quarter of a core at most.
func pace(ctx context.Context, took time.Duration) {
	const short, longest = 2 * time.Millisecond, 250 * time.Millisecond
	if took < short {
		return
	}
	timer := time.NewTimer(min(3*took, longest))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// apply takes an object as it is now, and notes what depends on it.
func (r *Reconciler) apply(o object) {
	found, exists := r.inputOf(o.kind).store.Get(o.Key)
	reference := rules.Reference{Kind: o.kind, Namespace: o.Namespace, Name: o.Name}
	r.setFindings(reference, found)

	if o.kind == rules.KindPod || o.kind == rules.KindExternalWorkload {
		workload, _ := found.value.(*rules.Workload)
		r.setWorkload(o, workload)
		return
	}

	old, known := r.values[reference]
	switch readable := exists && found.value != nil; {
	case !readable && !known, readable && known && reflect.DeepEqual(old, found.value):
		return
	case readable:
		r.values[reference] = found.value
		r.change(reference, old, found.value)
	default:
		delete(r.values, reference)
		r.change(reference, old, nil)
	}
}

func (r *Reconciler) setWorkload(o object, workload *rules.Workload) {
	name := rules.WorkloadRef{External: o.kind == rules.KindExternalWorkload, Namespace: o.Namespace, Name: o.Name}
	if workload != nil {
		r.tables.workloads.Set(name, workload)
	} else {
		r.tables.workloads.Delete(name)
	}
}

// change notes what depends on an object that was old, and is now; either may be nil.
func (r *Reconciler) change(of rules.Reference, old, now any) {
	objects := r.namespaces[of.Namespace]
	if objects == nil {
		objects = &namespace{
			byName[rules.Server]{},
			byName[rules.ServerAuthorization]{},
			byName[rules.AuthorizationPolicy]{},
			byName[rules.RateLimit]{},
			byName[rules.EgressNetwork]{},
		}
		r.namespaces[of.Namespace] = objects
	}

	switch of.Kind {
	case rules.KindService:
		r.changeService(of, old, now)
	case rules.KindServer:
		put(objects.servers, of.Name, now)
		r.dirty.servers[of.Namespace] = true
		r.dirty.parents[of] = true
		if old == nil || now == nil {
			r.dirtyLimits(objects)
		}
	case rules.KindServerAuthorization:
		put(objects.authorizations, of.Name, now)
		r.dirty.servers[of.Namespace] = true
	case rules.KindAuthorizationPolicy:
		put(objects.policies, of.Name, now)
		r.dirty.servers[of.Namespace] = true
		r.indexPolicy(of, old, now)
	case rules.KindRateLimit:
		put(objects.limits, of.Name, now)
		r.dirty.servers[of.Namespace] = true
		r.dirty.statuses[of] = true
		r.dirtyLimits(objects)
	case rules.KindEgressNetwork:
		put(objects.egress, of.Name, now)
		r.dirty.egress[of.Namespace] = true
		r.dirty.parents[of], r.dirty.targets[of], r.dirty.statuses[of] = true, true, true
	case rules.KindMeshTLSAuthentication:
		put(r.mesh, of, now)
		r.changeAuthentication(of)
	case rules.KindNetworkAuthentication:
		put(r.networks, of, now)
		r.changeAuthentication(of)
	default:
		r.changeRoute(of, old, now)
	}

	if objects.isEmpty() {
		delete(r.namespaces, of.Namespace)
	}
}

// put sets a key of a map to a value of any type, or removes it.
func put[K comparable, V any](in map[K]*V, key K, value any) {
	if v, is := value.(*V); is && v != nil {
		in[key] = v
	} else {
		delete(in, key)
	}
}

// dirtyLimits has the status of all rate limits of a namespace computed again.
func (r *Reconciler) dirtyLimits(n *namespace) {
	for _, limit := range n.limits {
		r.dirty.statuses[limit.Reference] = true
	}
}

// changeService notes what depends on a Service: on whether it exists, and on what it stands for, if that has changed.
func (r *Reconciler) changeService(of rules.Reference, old, now any) {
	r.dirty.targets[of], r.dirty.parents[of] = true, true
	before, existed := old.(*ruleobject.Service)
	after, exists := now.(*ruleobject.Service)
	if existed && exists && before.StandsForSame(after) {
		return
	}

	maps.Copy(r.dirty.statuses, r.sendersTo[of])
	if existed && exists {
		return
	}
	for sender := range r.sendersTo[of] {
		for _, parent := range r.route(sender).Parents {
			r.dirty.targets[parent.Reference] = true
		}
	}
}

func (r *Reconciler) route(of rules.Reference) *rules.Route {
	route, _ := r.values[of].(*rules.Route)
	return route
}

// indexPolicy keeps which authentications a policy requires.
func (r *Reconciler) indexPolicy(of rules.Reference, old, now any) {
	if p, is := old.(*rules.AuthorizationPolicy); is {
		r.policiesOf.remove(p.Identities, of)
		r.policiesOf.remove(p.Networks, of)
	}
	if p, is := now.(*rules.AuthorizationPolicy); is {
		r.policiesOf.add(p.Identities, of)
		r.policiesOf.add(p.Networks, of)
	}
}

func (r *Reconciler) changeAuthentication(of rules.Reference) {
	for policy := range r.policiesOf[of] {
		r.dirty.servers[policy.Namespace] = true
	}
}

// changeRoute notes what depends on a route: its parents, and those that it had.
func (r *Reconciler) changeRoute(of rules.Reference, old, now any) {
	r.dirty.statuses[of] = true
	if route, is := old.(*rules.Route); is {
		r.dirtyParents(route)
		r.indexRoute(route, r.routesOf.remove, r.sendersTo.remove)
	}
	if route, is := now.(*rules.Route); is {
		r.dirtyParents(route)
		r.indexRoute(route, r.routesOf.add, r.sendersTo.add)
	}
}

func (r *Reconciler) dirtyParents(route *rules.Route) {
	for _, parent := range route.Parents {
		r.dirty.parents[parent.Reference] = true
		if parent.Kind == rules.KindServer {
			r.dirty.servers[parent.Namespace] = true
		} else {
			r.dirty.targets[parent.Reference] = true
		}
	}
}

func (r *Reconciler) indexRoute(route *rules.Route, parents, backends func(named, by rules.Reference)) {
	for _, parent := range route.Parents {
		parents(parent.Reference, route.Reference)
	}
	for i := range route.Rules {
		for _, b := range route.Rules[i].Backends {
			if b.Kind == rules.KindService {
				backends(b.Reference, route.Reference)
			}
		}
	}
}

// publish computes what is to be computed again, and publishes it.
func (r *Reconciler) publish() {
	all := r.dirty
	for parent := range all.parents {
		r.attach(parent)
	}

	r.dirty = newDirt() // which has what cannot be published yet
	for n := range all.servers {
		r.publishServers(n)
	}
	for target := range all.targets {
		r.publishTarget(target)
	}

	for n := range all.egress {
		r.publishEgress(n)
	}
	for of := range all.statuses {
		r.publishStatus(of)
	}
	r.endTerms()
}

// attach decides about the routes that name a parent. The status of those about which it decides otherwise than before
// is to be computed again.
func (r *Reconciler) attach(parent rules.Reference) {
	old := r.attached[parent]
	now := rules.Attach(r.parent(parent), r.sortedRoutes(parent))

	if len(now) > 0 {
		r.attached[parent] = now
	} else {
		delete(r.attached, parent)
	}

	// What is the same has the same route, too, so that only those of which something has changed are computed.
	before := make(map[rules.Attachment]bool, len(old))
	for _, a := range old {
		before[a] = true
	}
	for _, a := range now {
		if !before[a] {
			r.dirty.statuses[a.Route.Reference] = true
		}
	}
}

// parent returns what there is of an object that routes name.
func (r *Reconciler) parent(of rules.Reference) rules.ParentObject {
	parent := rules.ParentObject{Reference: of}
	switch value := r.values[of].(type) {
	case *ruleobject.Service:
		parent.Exists, parent.HasIP = true, value.HasIP
	case *rules.EgressNetwork:
		parent.Exists, parent.IsAccepted = true, r.options.AcceptsEgress(value)
	case *rules.Server:
		parent.Exists = true
	}
	return parent
}

// sortedRoutes returns the routes that name a parent, the oldest first.
func (r *Reconciler) sortedRoutes(parent rules.Reference) []*rules.Route {
	all := make([]*rules.Route, 0, len(r.routesOf[parent]))
	for route := range r.routesOf[parent] {
		all = append(all, r.route(route))
	}
	slices.SortFunc(all, func(a, b *rules.Route) int { return rules.CompareAge(&a.Meta, &b.Meta) })
	return all
}

func values[V any](all byName[V]) []*V { return slices.Collect(maps.Values(all)) }

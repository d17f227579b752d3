package endpointslice

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	endpointsliceutil "k8s.io/endpointslice/util"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// How the slices that exist become those that hold what is wanted, in pure functions. What is wanted is groups of
// endpoints that may share slices; a slice belongs to the group that has its traits and its ports.
//
//   - Each endpoint that is wanted is in one slice of its group afterwards, and no other endpoint is in any. A second
//     plan has nothing to do (TestPlan).
//   - An endpoint that is still wanted stays in its slice. So clients that watch get what has changed, and nothing
//     moves.
//   - One endpoint that changes is one slice that is written (TestPlanOfOneChange). New endpoints fill the slices that
//     are written anyway, and then one that is not, if all of them fit into it; only the rest makes new slices.
//   - A slice whose endpoints are all gone takes new ones of its group. One that its group does not need becomes a new
//     one of another group, if it can: that is one request.
//   - Readers are never left without ready endpoints while a plan is carried out, unless they are before or afterwards:
//     what brings some is written before what only takes away (TestPlanKeepsPortsServed).
//   - Slices of a former Service of the same name are deleted, and never become those of this one.
//
// Nothing is remembered from one plan to the next, and slices are never merged to save some: they would be written
// for that alone. What it costs is hashes of all endpoints, on both sides (BenchmarkPlan).

// maxEndpoints is how many endpoints a slice has at most, as with Kubernetes' own controller.
const maxEndpoints = 100

// A group is endpoints that may share slices.
type group struct {
	traits
	ports     []discoveryv1.EndpointPort
	meta      metav1.ObjectMeta // of each slice
	endpoints []discoveryv1.Endpoint
}

// traits are what endpoints must have in common to share slices, besides their ports.
type traits struct {
	family   discoveryv1.AddressType
	source   string // the cluster that has the endpoints; empty for ExternalWorkloads
	identity string // TLS identity of the endpoints; empty for none, or if clients look it up
}

// grouping holds groups by traits and ports.
type grouping map[groupKey]*group

type groupKey struct {
	traits
	ports endpointsliceutil.PortMapKey
}

func newGroupKey(t traits, ports []discoveryv1.EndpointPort) groupKey {
	return groupKey{t, endpointsliceutil.NewPortMapKey(slices.Clone(ports))} // which sorts them by a hash
}

// compareKeys orders groups.
func (k groupKey) compareKeys(o groupKey) int {
	return cmp.Or(cmp.Compare(k.family, o.family), strings.Compare(k.source, o.source),
		strings.Compare(k.identity, o.identity), cmp.Compare(k.ports, o.ports))
}

// groupFor returns the group for endpoints with these traits and ports.
func (g grouping) groupFor(t traits, ports []discoveryv1.EndpointPort) *group {
	k := newGroupKey(t, ports)
	if g[k] == nil {
		g[k] = &group{traits: t, ports: ports}
	}
	return g[k]
}

func (g grouping) sorted() (all []*group) {
	for _, k := range slices.SortedFunc(maps.Keys(g), groupKey.compareKeys) {
		all = append(all, g[k])
	}
	return all
}

// A slicePlan is what is to be done to the slices of a Service, in the order of its fields. The slices from which it
// was made are not changed.
type slicePlan struct {
	extend  []*discoveryv1.EndpointSlice // updates that bring ready endpoints which a slice did not have
	create  []*discoveryv1.EndpointSlice
	update  []*discoveryv1.EndpointSlice // all others
	remove  []*discoveryv1.EndpointSlice
	leftOut int // endpoints that would take more slices than allowed
}

// limit removes creations beyond the number of slices that is allowed. Slices that exist stay, and are kept
// up to date. have is how many exist.
func (p *slicePlan) limit(have, most int) {
	room := max(0, most-(have-len(p.remove)))
	if len(p.create) <= room {
		return
	}
	slices.SortStableFunc(p.create, fullestFirst)
	for _, es := range p.create[room:] {
		p.leftOut += len(es.Endpoints)
	}
	p.create = p.create[:room]
}

// traitsOf returns the traits of the endpoints of a slice.
func traitsOf(es *discoveryv1.EndpointSlice) traits {
	return traits{es.AddressType, es.Labels[SourceLabel], es.Annotations[linkerd.RemoteGatewayIdentityAnnotation]}
}

// planFor returns how to get from the slices that exist to those that hold the groups. Endpoints that are
// still wanted stay where they are, others go where the fewest slices change, and a slice that is no longer
// needed becomes a new one.
func planFor(svc *serviceRecord, groups []*group, have []*discoveryv1.EndpointSlice) slicePlan {
	var plan slicePlan
	left := map[groupKey][]*discoveryv1.EndpointSlice{}
	for _, es := range have {
		if !svc.owns(es) { // it was created for a former Service of this name
			plan.remove = append(plan.remove, es)
			continue
		}
		k := newGroupKey(traitsOf(es), es.Ports)
		left[k] = append(left[k], es)
	}

	for _, g := range groups {
		k := newGroupKey(g.traits, g.ports)
		plan.fill(g, left[k])
		delete(left, k)
	}

	for _, unwanted := range left {
		plan.remove = append(plan.remove, unwanted...)
	}
	slices.SortFunc(plan.remove, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	plan.reuse(svc)
	return plan
}

// fill distributes a group over the slices that hold some of it, and over new ones.
func (p *slicePlan) fill(group *group, have []*discoveryv1.EndpointSlice) {
	wanted, order := endpointsliceutil.EndpointSet{}, make(map[*discoveryv1.Endpoint]int, len(group.endpoints))
	for i := range group.endpoints {
		e := &group.endpoints[i]
		wanted.Insert(e)
		order[e] = i
	}

	var updated, same []*discoveryv1.EndpointSlice
	old := map[*discoveryv1.EndpointSlice]*discoveryv1.EndpointSlice{}
	for _, es := range have {
		next, changed := group.retain(es, wanted)
		old[next] = es
		if changed {
			updated = append(updated, next)
		} else {
			same = append(same, next)
		}
	}

	rest := wanted.UnsortedList()
	slices.SortFunc(rest, func(a, b *discoveryv1.Endpoint) int { return cmp.Compare(order[a], order[b]) })
	slices.SortStableFunc(updated, fullestFirst)
	for _, es := range updated {
		rest = pour(rest, es)
	}

	for len(rest) > 0 {
		if len(rest) < maxEndpoints { // one slice that did not change, if all fit
			slices.SortStableFunc(same, fullestFirst)
			fits := func(es *discoveryv1.EndpointSlice) bool { return len(es.Endpoints)+len(rest) <= maxEndpoints }
			if i := slices.IndexFunc(same, fits); i >= 0 {
				rest = pour(rest, same[i])
				updated = append(updated, same[i])
				break
			}
		}

		es := group.newSlice()
		rest = pour(rest, es)
		p.create = append(p.create, es)
	}

	for _, next := range updated {
		switch {
		case len(next.Endpoints) == 0:
			p.remove = append(p.remove, old[next])
		case bringsReady(old[next], next):
			p.extend = append(p.extend, next)
		default:
			p.update = append(p.update, next)
		}
	}
}

// bringsReady reports whether the next state of a slice has a ready endpoint that it has not now.
func bringsReady(es, next *discoveryv1.EndpointSlice) bool {
	have, will := addresses{}, addresses{}
	insertAddresses(have, es.Endpoints, readyEndpoint)
	insertAddresses(will, next.Endpoints, readyEndpoint)
	return !have.IsSuperset(will)
}

// retain returns the next state of a slice for the group, with those of its endpoints that are wanted, and whether
// it differs. It takes them out of wanted.
func (g *group) retain(
	es *discoveryv1.EndpointSlice, wanted endpointsliceutil.EndpointSet,
) (next *discoveryv1.EndpointSlice, changed bool) {
	next = succeed(g.newSlice(), es)
	changed = !maps.Equal(next.Labels, es.Labels) || !maps.Equal(next.Annotations, es.Annotations)

	for i := range es.Endpoints {
		old := es.Endpoints[i].DeepCopy() // looking it up sorts its addresses
		now := wanted.Get(old)
		if now == nil {
			changed = true
			continue
		}
		wanted.Delete(now)
		next.Endpoints = append(next.Endpoints, *now)
		changed = changed || !endpointsliceutil.EndpointsEqualBeyondHash(now, old)
	}

	return next, changed
}

// pour moves endpoints into a slice until it is full, and returns the rest.
func pour(endpoints []*discoveryv1.Endpoint, into *discoveryv1.EndpointSlice) (rest []*discoveryv1.Endpoint) {
	n := min(len(endpoints), max(0, maxEndpoints-len(into.Endpoints)))
	for _, e := range endpoints[:n] {
		into.Endpoints = append(into.Endpoints, *e)
	}
	return endpoints[n:]
}

func fullestFirst(a, b *discoveryv1.EndpointSlice) int {
	return cmp.Compare(len(b.Endpoints), len(a.Endpoints))
}

// newSlice returns a new slice for the group, without endpoints.
func (g *group) newSlice() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: *g.meta.DeepCopy(), AddressType: g.family, Ports: g.ports}
}

// reuse turns the creation of a slice and the deletion of a similar one into an update. Its former group has what it
// needs by then: a group with a slice to spare creates none.
func (p *slicePlan) reuse(svc *serviceRecord) {
	p.create = slices.DeleteFunc(p.create, func(es *discoveryv1.EndpointSlice) bool {
		i := slices.IndexFunc(p.remove, func(old *discoveryv1.EndpointSlice) bool {
			sameSource := old.Labels[SourceLabel] == es.Labels[SourceLabel]
			return old.AddressType == es.AddressType && sameSource && svc.owns(old)
		})
		if i < 0 {
			return false
		}
		p.update = append(p.update, succeed(es, p.remove[i]))
		p.remove = slices.Delete(p.remove, i, i+1)
		return true
	})
}

// succeed makes es the next state of old, of the same owner. Details of the owner reference are no reason to write
// it again: Linkerd's destination controller sets more fields.
func succeed(es, old *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	es.OwnerReferences = old.OwnerReferences
	es.GenerateName, es.Name, es.UID = old.GenerateName, old.Name, old.UID
	es.ResourceVersion, es.Generation = old.ResourceVersion, old.Generation
	return es
}

// touches reports whether anything that exists is written or deleted.
func (p *slicePlan) touches() bool { return len(p.extend)+len(p.update)+len(p.remove) > 0 }

func (p *slicePlan) empty() bool { return len(p.create) == 0 && !p.touches() }

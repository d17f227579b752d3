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

// of returns the group for endpoints with these traits and ports.
func (g grouping) of(t traits, ports []discoveryv1.EndpointPort) *group {
	k := groupKey{t, endpointsliceutil.NewPortMapKey(ports)} // which sorts them
	if g[k] == nil {
		g[k] = &group{traits: t, ports: ports}
	}
	return g[k]
}

func (g grouping) sorted() []*group {
	return slices.SortedFunc(maps.Values(g), func(a, b *group) int {
		byPorts := cmp.Compare(endpointsliceutil.NewPortMapKey(a.ports), endpointsliceutil.NewPortMapKey(b.ports))
		return cmp.Or(cmp.Compare(a.family, b.family), strings.Compare(a.source, b.source),
			strings.Compare(a.identity, b.identity), byPorts)
	})
}

// A plan is what is to be done to the slices of a Service. The slices from which it was made are not
// changed.
type plan struct {
	create, update, remove []*discoveryv1.EndpointSlice
	leftOut                int // endpoints that would take more slices than allowed
}

// limit removes creations beyond the number of slices that is allowed. Slices that exist stay, and are kept
// up to date. have is how many exist.
func (p *plan) limit(have, most int) {
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
func planFor(svc *serviceRecord, groups []*group, have []*discoveryv1.EndpointSlice) plan {
	var p plan
	left := map[groupKey][]*discoveryv1.EndpointSlice{}
	for _, es := range have {
		if !svc.owns(es) { // it was created for a former Service of this name
			p.remove = append(p.remove, es)
			continue
		}
		k := groupKey{traitsOf(es), endpointsliceutil.NewPortMapKey(slices.Clone(es.Ports))}
		left[k] = append(left[k], es)
	}
	for _, g := range groups {
		k := groupKey{g.traits, endpointsliceutil.NewPortMapKey(g.ports)}
		p.fill(g, left[k])
		delete(left, k)
	}
	for _, unwanted := range left {
		p.remove = append(p.remove, unwanted...)
	}
	slices.SortFunc(p.remove, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	p.reuse(svc)
	return p
}

// fill distributes a group over the slices that hold some of it, and over new ones.
func (p *plan) fill(g *group, have []*discoveryv1.EndpointSlice) {
	wanted := endpointsliceutil.EndpointSet{}
	for i := range g.endpoints {
		wanted.Insert(&g.endpoints[i])
	}
	order := make(map[*discoveryv1.Endpoint]int, len(g.endpoints))
	for i := range g.endpoints {
		order[&g.endpoints[i]] = i
	}
	var updated, same []*discoveryv1.EndpointSlice
	for _, es := range have {
		next := g.successor(es)
		changed := !maps.Equal(next.Labels, es.Labels) || !maps.Equal(next.Annotations, es.Annotations)
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
		switch {
		case len(next.Endpoints) == 0:
			p.remove = append(p.remove, es)
		case changed:
			updated = append(updated, next)
		default:
			same = append(same, next)
		}
	}
	rest := wanted.UnsortedList()
	slices.SortFunc(rest, func(a, b *discoveryv1.Endpoint) int { return cmp.Compare(order[a], order[b]) })
	pour := func(into *discoveryv1.EndpointSlice) {
		n := min(len(rest), max(0, maxEndpoints-len(into.Endpoints)))
		for _, e := range rest[:n] {
			into.Endpoints = append(into.Endpoints, *e)
		}
		rest = rest[n:]
	}
	slices.SortStableFunc(updated, fullestFirst)
	for _, es := range updated {
		pour(es)
	}
	for len(rest) > 0 {
		var into *discoveryv1.EndpointSlice
		if len(rest) < maxEndpoints { // one slice that did not change, if all fit
			slices.SortStableFunc(same, fullestFirst)
			fits := func(es *discoveryv1.EndpointSlice) bool { return len(es.Endpoints)+len(rest) <= maxEndpoints }
			if i := slices.IndexFunc(same, fits); i >= 0 {
				into = same[i]
				same = slices.Delete(same, i, i+1)
				updated = append(updated, into)
			}
		}
		if into == nil {
			into = g.newSlice()
			p.create = append(p.create, into)
		}
		pour(into)
	}
	p.update = append(p.update, updated...)
}

func fullestFirst(a, b *discoveryv1.EndpointSlice) int {
	return cmp.Compare(len(b.Endpoints), len(a.Endpoints))
}

// newSlice returns a new slice for the group, without endpoints.
func (g *group) newSlice() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: *g.meta.DeepCopy(), AddressType: g.family, Ports: g.ports}
}

// successor returns the next state of a slice for the group, without endpoints.
func (g *group) successor(old *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	return succeed(g.newSlice(), old)
}

// reuse turns the creation of a slice and the deletion of a similar one into an update.
func (p *plan) reuse(svc *serviceRecord) {
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

func (p *plan) empty() bool { return len(p.create)+len(p.update)+len(p.remove) == 0 }

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

// maxEndpoints is how many endpoints a slice has at most, as those of Kubernetes' own controller.
const maxEndpoints = 100

// A group is endpoints that may share slices.
type group struct {
	traits
	ports     []discoveryv1.EndpointPort
	meta      metav1.ObjectMeta // of each slice
	endpoints []discoveryv1.Endpoint
}

// traits is what endpoints must have in common to share slices, besides their ports.
type traits struct {
	family   discoveryv1.AddressType
	source   string // the cluster that holds the endpoints; empty if that is no matter
	identity string // that the endpoints prove to clients; empty for none, or if that is no matter
}

// grouping is groups by traits and ports.
type grouping map[groupKey]*group

type groupKey struct {
	traits
	ports endpointsliceutil.PortMapKey
}

// of returns the group for endpoints like these.
func (g grouping) of(t traits, ports []discoveryv1.EndpointPort) *group {
	k := groupKey{t, endpointsliceutil.NewPortMapKey(ports)} // which sorts them
	if g[k] == nil {
		g[k] = &group{traits: t, ports: ports}
	}
	return g[k]
}

func (g grouping) sorted() []*group {
	return slices.SortedFunc(maps.Values(g), func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.family, b.family), strings.Compare(a.source, b.source), strings.Compare(a.identity, b.identity),
			strings.Compare(string(endpointsliceutil.NewPortMapKey(a.ports)), string(endpointsliceutil.NewPortMapKey(b.ports))))
	})
}

// A plan is what has to be done to the slices of a Service. No slice that was given to make it is changed.
type plan struct {
	create, update, remove []*discoveryv1.EndpointSlice
	excess                 int // endpoints that would take more slices than there may be
}

// limit takes from a plan what would make more slices than there may be; what there is stays, and is kept up to date. have is how many slices
// there are.
func (p *plan) limit(have, most int) {
	room := max(0, most-(have-len(p.remove)))
	if len(p.create) <= room {
		return
	}
	slices.SortStableFunc(p.create, fullestFirst)
	for _, es := range p.create[room:] {
		p.excess += len(es.Endpoints)
	}
	p.create = p.create[:room]
}

// traitsOf reads a slice back.
func traitsOf(es *discoveryv1.EndpointSlice) traits {
	return traits{es.AddressType, es.Labels[SourceLabel], es.Annotations[linkerd.RemoteGatewayIdentityAnnotation]}
}

// planFor returns how to get from the slices that there are to those that hold the groups. Endpoints that are still wanted stay where they are,
// others go where the least has to be written, and a slice that is not needed any more gives its name to a new one.
func planFor(svc *service, groups []*group, have []*discoveryv1.EndpointSlice) plan {
	var p plan
	left := map[groupKey][]*discoveryv1.EndpointSlice{}
	for _, es := range have {
		if !svc.owns(es) { // it was made for another, which had this name before
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

// fill distributes a group over the slices that it has, and over new ones.
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
		next := g.sliceLike(es)
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
		if len(rest) < maxEndpoints { // one that is not touched yet, if all fit
			slices.SortStableFunc(same, fullestFirst)
			if i := slices.IndexFunc(same, func(es *discoveryv1.EndpointSlice) bool { return len(es.Endpoints)+len(rest) <= maxEndpoints }); i >= 0 {
				into = same[i]
				same = slices.Delete(same, i, i+1)
				updated = append(updated, into)
			}
		}
		if into == nil {
			into = g.sliceLike(nil)
			p.create = append(p.create, into)
		}
		pour(into)
	}
	p.update = append(p.update, updated...)
}

func fullestFirst(a, b *discoveryv1.EndpointSlice) int {
	return cmp.Compare(len(b.Endpoints), len(a.Endpoints))
}

// sliceLike returns a slice for the group without endpoints: the successor of old, or a new one if that is nil.
func (g *group) sliceLike(old *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{ObjectMeta: *g.meta.DeepCopy(), AddressType: g.family, Ports: g.ports}
	if old != nil {
		succeed(es, old)
	}
	return es
}

// reuse turns a new slice and one that goes into an update, where they are alike enough.
func (p *plan) reuse(svc *service) {
	p.create = slices.DeleteFunc(p.create, func(es *discoveryv1.EndpointSlice) bool {
		i := slices.IndexFunc(p.remove, func(old *discoveryv1.EndpointSlice) bool {
			return old.AddressType == es.AddressType && old.Labels[SourceLabel] == es.Labels[SourceLabel] && svc.owns(old)
		})
		if i < 0 {
			return false
		}
		p.update = append(p.update, succeed(es, p.remove[i]))
		p.remove = slices.Delete(p.remove, i, i+1)
		return true
	})
}

// succeed makes es the next state of old, of the same owner. Who wrote it first is no reason to write it again, nor is how the owner is said:
// Linkerd's destination says more.
func succeed(es, old *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	if first, found := old.Labels[writerLabel]; found {
		es.Labels[writerLabel] = first
	}
	es.OwnerReferences = old.OwnerReferences
	es.GenerateName, es.Name, es.UID, es.ResourceVersion, es.Generation = old.GenerateName, old.Name, old.UID, old.ResourceVersion, old.Generation
	return es
}

// empty reports whether there is nothing to do.
func (p *plan) empty() bool { return len(p.create)+len(p.update)+len(p.remove) == 0 }

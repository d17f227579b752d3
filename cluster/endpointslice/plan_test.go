package endpointslice

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var someService = &serviceRecord{
	key: key{Namespace: "ns", Name: "web"}, uid: "uid",
	families: []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4}, labels: map[string]string{"team": "shop"},
}

// drawGroups draws what a Service should have: up to three groups, of up to 260 endpoints.
func drawGroups(t *rapid.T) []*group {
	all := grouping{}
	ready := rapid.IntRange(0, 3).Draw(t, "ready") // of three endpoints
	for g := range rapid.IntRange(0, 3).Draw(t, "groups") {
		number, family := int32(8080+g/2), []discoveryv1.AddressType{"IPv4", "IPv6"}[g%2]
		source := rapid.SampledFrom([]string{"", "east"}).Draw(t, "source")
		first, n := rapid.IntRange(0, 100).Draw(t, "first"), rapid.IntRange(1, 260).Draw(t, "n")
		into := all.groupFor(traits{family: family, source: source}, []discoveryv1.EndpointPort{{
			Name: new("http"), Port: &number, Protocol: new(corev1.ProtocolTCP),
		}})
		into.meta = someService.meta("test", true)
		into.meta.Labels["round"] = rapid.SampledFrom([]string{"a", "a", "b"}).Draw(t, "label")
		if source != "" {
			into.meta.Labels[SourceLabel] = source
		}
		for i := first; i < first+n; i++ {
			into.endpoints = append(into.endpoints, discoveryv1.Endpoint{
				Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", g, i/250, i%250)},
				Conditions: discoveryv1.EndpointConditions{Ready: new(i%3 < ready)},
			})
		}
	}
	return all.sorted()
}

// apply does what is planned, as an API server would.
func (p *slicePlan) apply(have map[string]*discoveryv1.EndpointSlice, next *int) {
	p.carryOut(have, next, func() {})
}

// carryOut does it, and calls after each request.
func (p *slicePlan) carryOut(have map[string]*discoveryv1.EndpointSlice, next *int, after func()) {
	update := func(all []*discoveryv1.EndpointSlice) {
		for _, es := range all {
			have[es.Name] = es.DeepCopy()
			after()
		}
	}
	update(p.extend)
	for _, es := range p.create {
		*next++
		made := es.DeepCopy()
		made.Name, made.UID = fmt.Sprintf("%s%d", es.GenerateName, *next), types.UID(fmt.Sprint(*next))
		have[made.Name] = made
		after()
	}
	update(p.update)
	for _, es := range p.remove {
		delete(have, es.Name)
		after()
	}
}

func byName(have map[string]*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.SortedFunc(maps.Values(have), func(a, b *discoveryv1.EndpointSlice) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// endpointsOf returns every endpoint with the port that leads to it.
func endpointsOf(have map[string]*discoveryv1.EndpointSlice) map[string]bool {
	all := map[string]bool{}
	for _, es := range have {
		for _, e := range es.Endpoints {
			all[fmt.Sprint(es.AddressType, es.Labels, *es.Ports[0].Port, e.Addresses, *e.Conditions.Ready)] = true
		}
	}
	return all
}

// Whatever there was, after a plan there is what was wanted and nothing else; another plan has nothing to
// do; what was given is not touched; and of what stays as it is nothing moves.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, next := map[string]*discoveryv1.EndpointSlice{}, 0
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			if rapid.Bool().Draw(t, "tampered") && len(have) > 0 {
				for _, name := range slices.Sorted(maps.Keys(have))[:1] {
					have[name].Endpoints = have[name].Endpoints[:len(have[name].Endpoints)/2]
				}
			}
			wanted := drawGroups(t)
			given := byName(have)
			var copies []*discoveryv1.EndpointSlice
			for _, es := range given {
				copies = append(copies, es.DeepCopy())
			}
			p := planFor(someService, wanted, given)
			if d := cmp.Diff(copies, given); d != "" {
				t.Fatalf("a slice that was given was changed:\n%s", d)
			}
			if len(p.create) > 0 && len(p.remove) > 0 {
				for _, c := range p.create {
					for _, r := range p.remove {
						if c.AddressType == r.AddressType && c.Labels[SourceLabel] == r.Labels[SourceLabel] {
							t.Fatalf("%s is deleted, and another like it created", r.Name)
						}
					}
				}
			}
			for _, es := range slices.Concat(p.extend, p.update) {
				old := have[es.Name]
				sameLabels := maps.Equal(old.Labels, es.Labels)
				if sameLabels && cmp.Equal(old.Endpoints, es.Endpoints) && cmp.Equal(old.Ports, es.Ports) {
					t.Fatalf("%s is written and does not change", es.Name)
				}
			}
			p.apply(have, &next)
			want := map[string]bool{}
			for _, g := range wanted {
				for _, e := range g.endpoints {
					want[fmt.Sprint(g.family, g.meta.Labels, *g.ports[0].Port, e.Addresses, *e.Conditions.Ready)] = true
				}
			}
			if d := cmp.Diff(want, endpointsOf(have)); d != "" {
				t.Fatalf("what there is afterwards is not what was wanted:\n%s", d)
			}
			for name, es := range have {
				if n := len(es.Endpoints); n == 0 || n > maxEndpoints {
					t.Fatalf("%s holds %d endpoints", name, n)
				}
			}
			if again := planFor(someService, wanted, slices.Collect(maps.Values(have))); !again.empty() {
				t.Fatalf("a second plan has %d to create, %d to update and %d to delete",
					len(again.create), len(again.extend)+len(again.update), len(again.remove))
			}
		}
	})
}

// readers returns which ports have a ready endpoint.
func readers(have map[string]*discoveryv1.EndpointSlice) map[string]bool {
	all := map[string]bool{}
	for _, es := range have {
		if slices.ContainsFunc(es.Endpoints, func(e discoveryv1.Endpoint) bool { return *e.Conditions.Ready }) {
			all[fmt.Sprint(es.AddressType, es.Labels[SourceLabel], *es.Ports[0].Port)] = true
		}
	}
	return all
}

// While a plan is carried out readers of slices find a ready endpoint of each port that has one before and
// afterwards, even if none of them stays.
func TestPlanKeepsPortsServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, next := map[string]*discoveryv1.EndpointSlice{}, 0
		for range rapid.IntRange(2, 4).Draw(t, "rounds") {
			p, before := planFor(someService, drawGroups(t), byName(have)), readers(have)
			var during []map[string]bool
			p.carryOut(have, &next, func() { during = append(during, readers(have)) })
			for port := range readers(have) {
				for i, now := range during {
					if before[port] && !now[port] {
						t.Fatalf("%s has nothing after request %d of %d", port, i+1, len(during))
					}
				}
			}
		}
	})
}

// A plan that is limited never makes more slices than there may be, or are; nothing that is there goes for
// it, and what is there is as if there were no limit.
func TestPlanIsLimited(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, next, most := map[string]*discoveryv1.EndpointSlice{}, 0, rapid.IntRange(1, 8).Draw(t, "most")
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			wanted := drawGroups(t)
			given := byName(have)
			before, total := len(given), 0
			for _, g := range wanted {
				total += len(g.endpoints)
			}
			free, p := planFor(someService, wanted, given), planFor(someService, wanted, given)
			p.limit(len(given), most)
			d := cmp.Diff(free.extend, p.extend) + cmp.Diff(free.update, p.update) + cmp.Diff(free.remove, p.remove)
			if d != "" {
				t.Fatalf("what is there fares otherwise under a limit:\n%s", d)
			}
			p.apply(have, &next)
			if len(have) > max(most, before) {
				t.Fatalf("%d slices; there were %d, and may be %d", len(have), before, most)
			}
			held := 0
			for _, es := range have {
				held += len(es.Endpoints)
			}
			if held+p.leftOut != total {
				t.Fatalf("%d of %d endpoints are held, and %d are counted as left out", held, total, p.leftOut)
			}
		}
	})
}

// planned returns a group of 1000 endpoints, and its slices.
func planned() (g *group, have map[string]*discoveryv1.EndpointSlice, next int) {
	g = &group{
		traits: traits{family: discoveryv1.AddressTypeIPv4},
		ports: []discoveryv1.EndpointPort{{
			Name: new("http"), Port: new(int32(80)), Protocol: new(corev1.ProtocolTCP),
		}},
		meta: someService.meta("test", true),
	}
	for i := range 1000 {
		g.endpoints = append(g.endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	have = map[string]*discoveryv1.EndpointSlice{}
	first := planFor(someService, []*group{g}, nil)
	first.apply(have, &next)
	return g, have, next
}

// One endpoint that changes is one slice that is written.
func TestPlanOfOneChange(t *testing.T) {
	g, have, next := planned()
	if len(have) != 10 {
		t.Fatalf("%d slices, want 10", len(have))
	}
	for what, change := range map[string]func(){
		"not ready": func() { g.endpoints[500].Conditions.Ready = new(false) },
		"gone":      func() { g.endpoints = slices.Delete(g.endpoints, 100, 101) },
		"new": func() {
			g.endpoints = append(g.endpoints, discoveryv1.Endpoint{
				Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		},
	} {
		change()
		p := planFor(someService, []*group{g}, slices.Collect(maps.Values(have)))
		p.apply(have, &next)
		if n := len(p.extend) + len(p.create) + len(p.update) + len(p.remove); n != 1 {
			t.Errorf("one endpoint is %s: %d writes", what, n)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	g, have, _ := planned()
	given := slices.Collect(maps.Values(have))
	b.ReportAllocs()
	for b.Loop() {
		g.endpoints[500].Conditions.Ready = new(!*g.endpoints[500].Conditions.Ready)
		if p := planFor(someService, []*group{g}, given); len(p.extend)+len(p.update) > 1 {
			b.Fatal("more than one write")
		}
	}
}

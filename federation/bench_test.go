package federation

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
)

// bigView returns a View of n ready Pods on 200 nodes in three zones, 100 a Slice.
func bigView(n int, localOnly bool) *View {
	v := &View{Ports: []ServicePort{{Number: 80, Name: "http", Target: 8080}}, LocalOnly: localOnly}
	for i := range n {
		if i%100 == 0 {
			v.Slices = append(v.Slices, &Slice{
				Name:  fmt.Sprintf("slice-%05d", i),
				Ports: []Port{{Number: 8080, Name: "http"}},
			})
		}
		s := v.Slices[len(v.Slices)-1]
		s.Endpoints = append(s.Endpoints, &Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(i%250 + 1)}), Ready: true,
			Node: NameOf(fmt.Sprintf("node-%d", i*7%200)), Zone: NameOf(fmt.Sprintf("zone-%d", i%3)),
			Workload: podOf(fmt.Sprintf("pod-%d", i), Template{}),
		})
	}
	return v
}

// without7 returns v with endpoint 7 not ready; all that stays is shared.
func (v *View) without7() *View {
	n, first, e := *v, *v.Slices[0], *v.Slices[0].Endpoints[7]
	n.Slices, first.Endpoints = slices.Clone(n.Slices), slices.Clone(first.Endpoints)
	e.Ready, first.Endpoints[7], n.Slices[0] = false, &e, &first
	return &n
}

// withFirst returns v as if read anew, with one endpoint more at the front: nothing of the first Slice
// is shared.
func (v *View) withFirst() *View {
	n := *v
	n.Slices = slices.Clone(n.Slices)
	n.Slices[0] = &Slice{
		Name:      v.Slices[0].Name,
		Ports:     v.Slices[0].Ports,
		Endpoints: []*Endpoint{{Addr: netip.MustParseAddr("10.9.9.9"), Ready: true}},
	}
	for _, e := range v.Slices[0].Endpoints {
		e := *e
		n.Slices[0].Endpoints = append(n.Slices[0].Endpoints, &e)
	}
	return &n
}

// follower returns a step in which one endpoint of a Service comes or goes: from the claim to what is
// to be sent, for clients in one zone, or on each of so many nodes under a Local policy.
func follower(endpoints, nodes int) (step func()) {
	full := bigView(endpoints, nodes > 0)
	return between(nodes, full, full.without7())
}

// between returns a step between Views, for clients in one zone or on each of so many nodes.
func between(nodes int, views ...*View) (step func()) {
	store, svc := NewStore(), Service{"ns", "a"}
	store.AddCluster("c", Expectation{})
	writer := store.NewWriter("c")
	watch := store.Watch(Ref{"c", svc})
	places := []Place{{Zone: "zone-1"}}
	for i := range nodes {
		places = append(places[:i], Place{Node: fmt.Sprintf("node-%d", i), Zone: "zone-1"})
	}
	var selection *Selection
	sets := make([]*Set, len(places))
	i := 0
	step = func() {
		writer.Set(svc, views[i%len(views)])
		i++
		snapshot, _ := watch.Load()
		selection = Select(snapshot, Query{Port: 80, IPv6: true}, selection)
		for i, place := range places {
			next := selection.At(place, sets[i])
			Diff(sets[i], next)
			sets[i] = next
		}
	}
	step()
	return step
}

// BenchmarkChange is the work of the domain for one change of one endpoint.
func BenchmarkChange(b *testing.B) {
	for _, endpoints := range []int{100, 1_000, 10_000} {
		for _, nodes := range []int{0, 1, 200} {
			b.Run(fmt.Sprintf("endpoints=%d/localNodes=%d", endpoints, nodes), func(b *testing.B) {
				step := follower(endpoints, nodes)
				b.ReportAllocs()
				for b.Loop() {
					step()
				}
			})
		}
	}
}

// BenchmarkInsertion is the work of the domain for one endpoint that comes to the front of a slice of
// 100, or goes from there.
func BenchmarkInsertion(b *testing.B) {
	for _, endpoints := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			full := bigView(endpoints, false)
			step := between(0, full, full.withFirst())
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}

// TestChangeBudget: what a change costs is in proportion to the change. Of the whole Service only
// pointers are copied, and under a Local policy only those of the node.
func TestChangeBudget(t *testing.T) {
	for _, c := range []struct{ endpoints, nodes, allocs, bytes int }{
		{100, 0, 40, 8 << 10},
		{10_000, 0, 40, 120 << 10},
		{10_000, 1, 40, 40 << 10},
		{10_000, 200, 260, 48 << 10}, // a Set a node
	} {
		step := follower(c.endpoints, c.nodes)
		const rounds = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range rounds {
			step()
		}
		runtime.ReadMemStats(&after)
		allocs, bytes := int(after.Mallocs-before.Mallocs)/rounds, int(after.TotalAlloc-before.TotalAlloc)/rounds
		t.Logf("%d endpoints, %d nodes: %d allocations, %d bytes", c.endpoints, c.nodes, allocs, bytes)
		if allocs > c.allocs || bytes > c.bytes {
			t.Errorf("%d endpoints, %d nodes: a change costs %d allocations and %d bytes; the budget is %d and %d",
				c.endpoints, c.nodes, allocs, bytes, c.allocs, c.bytes)
		}
	}
}

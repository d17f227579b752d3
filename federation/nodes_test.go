package federation

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/policy/policytest"
)

// Whatever nodes come and go, and whichever writer does not write them again: each sixteenth is that of the second
// model, and one node moves at most one other over each border.
func TestNodeSixteenths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := NewStore()
		s.AddCluster("local", Expectation{Local: true})
		w := s.Nodes.NewWriter("local")
		before := map[string]Node{}
		check := func(changes int) {
			now := map[string]Node{}
			var names []string
			for name, node := range s.Nodes.All("local") {
				now[name] = node
				names = append(names, name)
			}
			moved := 0
			for name, node := range now {
				if want := policytest.SixteenthOf(name, names); int(node.Sixteenth) != want {
					t.Fatalf("of %d nodes %s is in sixteenth %d, want %d", len(names), name, node.Sixteenth, want)
				}
				if old, known := before[name]; known && old.Sixteenth != node.Sixteenth {
					moved++
				}
			}
			if len(now) >= policy.Buckets && len(before) >= policy.Buckets && moved > changes*(policy.Buckets-1) {
				t.Fatalf("%d changes of %d nodes move %d others", changes, len(before), moved)
			}
			before = now
		}
		name := rapid.Custom(
			func(t *rapid.T) string { return fmt.Sprintf("node-%d", rapid.IntRange(0, 60).Draw(t, "n")) },
		)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				w.Set(name.Draw(t, "name"), Node{Zone: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")})
				check(1)
			},
			"set many": func(*rapid.T) {
				for n := range 40 {
					w.Set(fmt.Sprintf("node-%d", n), Node{Zone: "a"})
				}
				check(40)
			},
			"delete": func(t *rapid.T) {
				w.Delete(name.Draw(t, "name"))
				check(1)
			},
			"write anew": func(t *rapid.T) {
				w = s.Nodes.NewWriter("local")
				for _, n := range rapid.SliceOf(name).Draw(t, "written") {
					w.Set(n, Node{Zone: "c"})
				}
				w.MarkSynced()
				check(61)
			},
		})
	})
}

// Clients on 64 nodes, as many on each, divide their requests by the weights to within three points, whatever the nodes
// are called and however few endpoints there are. Without nodes, by names alone, they are up to four times as far away.
func TestSharesOverNodes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for _, naming := range []struct {
		name string
		of   func(n int) string
	}{
		{"numbers", func(n int) string { return fmt.Sprintf("node-%d", n) }},
		{"addresses", func(n int) string {
			return fmt.Sprintf("ip-10-%d-%d-%d.internal", n%3, r.IntN(256), r.IntN(256))
		}},
		{"pools", func(n int) string { return fmt.Sprintf("gke-pool-%d-%08x-%04x", n%4, 77, r.IntN(1<<16)) }},
	} {
		for _, weights := range [][]int{{80, 20}, {90, 10}, {99, 1}, {50, 30, 20}} {
			s := NewStore()
			s.AddCluster("local", Expectation{Local: true})
			w := s.Nodes.NewWriter("local")
			var byName []uint8
			for n := range 64 {
				name := naming.of(n)
				w.Set(name, Node{})
				byName = append(byName, policy.BucketOf(name))
			}
			var byRank []uint8
			for _, node := range s.Nodes.All("local") {
				byRank = append(byRank, node.Sixteenth)
			}

			worst, worstByName := 0., 0.
			for _, ready := range []int{1, 2, 3, 5, 10, 20, 50} {
				for _, others := range []int{1, 2, 4, 9, 50} {
					members := []policy.Member{{Cluster: "a", Ready: ready, All: ready}}
					of := policy.Service{Weights: []policy.Weight{{Cluster: "a", Weight: uint32(weights[0])}}}
					for i, weight := range weights[1:] {
						name := string(rune('b' + i))
						members = append(members, policy.Member{Cluster: name, Ready: others, All: others})
						of.Weights = append(of.Weights, policy.Weight{Cluster: name, Weight: uint32(weight)})
					}
					shares := policy.Shares(&of, members)
					worst = max(worst, apart(shares, weights, byRank))
					worstByName = max(worstByName, apart(shares, weights, byName))
				}
			}
			t.Logf(
				"%s, %v: at most %.2f points away, and %.2f by names alone",
				naming.name,
				weights,
				worst,
				worstByName,
			)
			if worst > 3 {
				t.Errorf("%s, %v: the traffic is up to %.2f points away", naming.name, weights, worst)
			}
		}
	}
}

// apart returns how far the requests of clients, each in a sixteenth, are from the weights, in points.
func apart(shares []policy.Share, weights []int, clients []uint8) (worst float64) {
	given := make([]float64, len(shares))
	for _, sixteenth := range clients {
		all := 0
		for i := range shares {
			all += shares[i].Given(sixteenth)
		}
		for i := range shares {
			given[i] += float64(shares[i].Given(sixteenth)) / float64(all) / float64(len(clients))
		}
	}
	for i, weight := range weights {
		worst = max(worst, math.Abs(100*given[i]-float64(weight)))
	}
	return worst
}

// An isolated node costs what a change of the borders costs, however many nodes there are.
func BenchmarkSetNode(b *testing.B) {
	for _, nodes := range []int{100, 5_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			s := NewStore()
			s.AddCluster("local", Expectation{Local: true})
			w := s.Nodes.NewWriter("local")
			names := make([]string, nodes)
			for n := range names {
				names[n] = fmt.Sprintf("node-%d", n)
				w.Set(names[n], Node{})
			}
			slices.Sort(names)
			b.ReportAllocs()
			for n := range b.N {
				w.Delete(names[n%nodes])
				w.Set(names[n%nodes], Node{})
			}
		})
	}
}

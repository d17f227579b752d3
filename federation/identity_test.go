package federation

import (
	"testing"
)

// A cluster that claims the address of another's meshed Pod does not take its identity off, whatever it
// is called and however long the other has been out of contact; and the Service's own cluster is always
// ranked first.
func TestIdentityCounts(t *testing.T) {
	pod := func(controlPlane string, skip ...PortRange) *View {
		v := oneEndpoint(1, 1)
		v.Slices[0].Endpoints[0].Workload = podOf("p", Template{
			ServiceAccount: "sa",
			ControlPlane:   controlPlane,
			Skip:           PortsOf(skip...),
		})
		return v
	}
	for name, c := range map[string]struct {
		home, attacker, zurich *View
		state                  ClusterState // of zurich
		winner                 Cluster
		why                    string
	}{
		"a bare address":            {nil, oneEndpoint(1, 1), pod("linkerd"), Live, "zurich", "it has an identity"},
		"a Pod outside of the mesh": {nil, pod(""), pod("linkerd"), Live, "zurich", "it has an identity"},
		"a Pod of another mesh":     {nil, pod("mine"), pod("linkerd"), Live, "zurich", "it has an identity"},
		"a port that skips": {
			nil, pod("linkerd", PortRange{8080, 8080}), pod("linkerd"), Live, "zurich", "it has an identity",
		},
		"while zurich is away": {nil, pod(""), pod("linkerd"), Stale, "zurich", "it has an identity"},
		"both have one": {
			nil, pod("linkerd"), pod("linkerd"), Live, "attacker", "it is the first in order",
		},
		"both have one, one is away": {
			nil, pod("linkerd"), pod("linkerd"), Stale, "attacker", "its cluster is in contact",
		},
		"an address of this cluster": {pod(""), pod("linkerd"), nil, Live, "local", "it is of this cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			store := NewStore()
			for cluster, v := range map[Cluster]*View{"local": c.home, "attacker": c.attacker, "zurich": c.zurich} {
				store.AddCluster(cluster, Expectation{TrustDomain: "cluster.local"})
				k := store.NewWriter(cluster)
				if v != nil {
					k.Set(plain, v)
				}
				if cluster == "local" {
					k.Set(fed, &View{
						Ports: []ServicePort{{Number: 80, Name: "http", Target: 8080}},
						Composition: &Composition{Union: true, Members: []MemberRef{
							{Ref{"local", plain}, true}, {Ref{"attacker", plain}, false}, {Ref{"zurich", plain}, false},
						}},
					})
				}
				k.MarkSynced()
			}
			store.MarkClustersListed()
			store.SetState("zurich", c.state)
			watch := store.Watch(Ref{"local", fed})
			defer watch.Close()
			snapshot, _ := watch.Load()
			query := Query{Port: 80, ControlPlane: "linkerd"}
			for e := range Select(snapshot, query, nil).At(Place{}, nil).All() {
				if e.Origin().Cluster != c.winner {
					t.Errorf("the claim of %s counts, want %s", e.Origin().Cluster, c.winner)
				}
			}
			for _, v := range Explain(snapshot, query, Place{}) {
				if v.Reason == Duplicate && v.For != c.why {
					t.Errorf("it counts because %s, want: %s", v.For, c.why)
				}
			}
		})
	}
}

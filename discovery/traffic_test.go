package discovery

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// What is shown of each cluster is what a client gets, and why.
func TestTraffic(t *testing.T) {
	web := federation.Service{Namespace: "ns", Name: "web"}
	all := federation.Service{Namespace: "ns", Name: "web-federated"}
	ports := []federation.ServicePort{{Number: 80, Name: "http", Target: 8080}}
	for name, c := range map[string]struct {
		service  *policy.Service
		clusters map[federation.Cluster]policy.ForCluster
		stale    federation.Cluster
		dead     []federation.Cluster
		want     []string
	}{
		"no policy": {want: []string{
			"1 east 2/2 - 0% 33.33% 2 no policy", "1 local 2/2 - 0% 33.33% 2 no policy",
			"1 west 2/2 - 0% 33.33% 2 no policy",
		}},
		"tiers": {
			service: &policy.Service{Prefer: []policy.Tier{{Local: true}, {Clusters: []string{"east"}}}, Capacity: 4},
			want: []string{
				"1 local 2/2 - 0% 70% 2 preferred", "2 east 2/2 - 0% 30% 0 tiers before it cannot carry all",
				"3 west 2/2 - 0% 0% 0 lower tier",
			},
		},
		"all others dead": {
			service: &policy.Service{Prefer: []policy.Tier{{Local: true}, {Clusters: []string{"east"}}}},
			dead:    []federation.Cluster{"local", "east"},
			want: []string{
				"1 local 0/2 - 0% 0% 0 nothing ready", "2 east 0/2 - 0% 0% 0 nothing ready",
				"3 west 2/2 - 0% 100% 2 not preferred, nothing else is ready",
			},
		},
		"weights": {
			service: &policy.Service{
				Weights: []policy.Weight{{Cluster: "east", Weight: 3}, {Cluster: "local", Weight: 1}},
			},
			want: []string{
				"1 east 2/2 3 0% 75% 2 preferred", "1 local 2/2 1 0% 25% 0 preferred", "1 west 2/2 0 0% 0% 0 weight 0",
			},
		},
		"drained": {
			clusters: map[federation.Cluster]policy.ForCluster{"west": {Drained: 100}, "east": {Drained: 50}},
			want: []string{
				"1 east 2/2 - 50% 33.33% 1 draining", "1 local 2/2 - 0% 66.67% 2 preferred",
				"2 west 2/2 - 100% 0% 0 drained",
			},
		},
		"stale": {
			service: &policy.Service{WhenStale: policy.Last}, stale: "east",
			want: []string{
				"1 local 2/2 - 0% 50% 2 preferred", "1 west 2/2 - 0% 50% 2 preferred",
				"2 east 2/2 - 0% 0% 0 stale, last",
			},
		},
	} {
		store := federation.NewStore()
		store.MarkClustersListed()
		v := &federation.View{Ports: ports, Composition: &federation.Composition{Union: true}, Policy: c.service}
		for _, cluster := range []federation.Cluster{"local", "east", "west"} {
			store.AddCluster(cluster, federation.Expectation{})
			targets := []federation.Port{{Number: 8080, Name: "http", Protocol: federation.TCP}}
			slice := &federation.Slice{Name: "s", Ports: targets}
			for i := range 2 {
				slice.Endpoints = append(slice.Endpoints, &federation.Endpoint{
					Addr: netip.AddrFrom4([4]byte{10, cluster[0], 0, byte(i)}), Ready: true,
				})
				for _, dead := range c.dead {
					slice.Endpoints[i].Ready = slice.Endpoints[i].Ready && dead != cluster
				}
			}
			w := store.NewWriter(cluster)
			w.Set(web, &federation.View{Ports: ports, Slices: []*federation.Slice{slice}})
			w.MarkSynced()
			store.SetPolicy(cluster, c.clusters[cluster])
			ref := federation.Ref{Cluster: cluster, Service: web}
			v.Composition.Members = append(v.Composition.Members, federation.MemberRef{Ref: ref})
		}
		if c.stale != "" {
			store.SetState(c.stale, federation.Stale)
		}
		store.NewWriter("local").Set(all, v)
		watch := store.Watch(federation.Ref{Cluster: "local", Service: all})
		snapshot, _ := watch.Load()
		watch.Close()
		x := federation.Select(snapshot, federation.Query{Port: 80}, nil)
		var got []string
		for _, s := range trafficOf(x.Answer(federation.Place{}, nil), x.Divided()) {
			weight := "-"
			if s.Weight != nil {
				weight = fmt.Sprint(*s.Weight)
			}
			got = append(got, fmt.Sprintf("%d %s %d/%d %s %d%% %v%% %d %s", s.Tier, s.Cluster, s.Ready, s.All, weight,
				s.Drain, s.Share, s.Given, s.Why))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

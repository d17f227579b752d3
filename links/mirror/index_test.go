package mirror

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// However Services come and go, the index has what a walk over all of them finds, and nothing is left of those that
// are gone.
func TestLocalIndex(t *testing.T) {
	compare := func(a, b api.Key) int { return strings.Compare(a.String(), b.String()) }
	rapid.Check(t, func(t *rapid.T) {
		var x localIndex
		all := map[api.Key]*corev1.Service{}
		for range rapid.IntRange(1, 30).Draw(t, "changes") {
			k := api.Key{Namespace: "shop", Name: rapid.SampledFrom(names).Draw(t, "name")}
			delete(all, k)
			var now *corev1.Service
			if drawn := drawLocal(t, k.Name); len(drawn) > 0 {
				now = drawn[0]
				if rapid.Bool().Draw(t, "endpoint") && now.Labels[clusterLabel] != "" {
					now.Labels[headlessLabel] = "db-east"
				}
				all[k] = now
			}
			x.update(k, now)
		}
		for _, cluster := range []string{"east", "west"} {
			var want []api.Key
			for k, svc := range all {
				_, owned := ownersOf(svc)[cluster]
				if isOurs(svc) && (owned || svc.Labels[clusterLabel] == cluster ||
					membershipOf(svc).has("web", cluster)) {
					want = append(want, k)
				}
			}
			got := x.ofCluster(cluster)
			slices.SortFunc(got, compare)
			slices.SortFunc(want, compare)
			if !slices.Equal(got, want) {
				t.Fatalf("of %s: %v, want %v", cluster, got, want)
			}
		}
		var want []api.Key
		for k, svc := range all {
			if svc.Labels[headlessLabel] == "db-east" {
				want = append(want, k)
			}
		}
		got := x.ofParent(api.Key{Namespace: "shop", Name: "db-east"})
		slices.SortFunc(got, compare)
		slices.SortFunc(want, compare)
		if !slices.Equal(got, want) {
			t.Fatalf("endpoints of db-east: %v, want %v", got, want)
		}
		for k := range all {
			x.update(k, nil)
		}
		if len(x.entries)+len(x.byCluster)+len(x.byParent) > 0 {
			t.Fatalf("what is left: %v, %v, %v", x.entries, x.byCluster, x.byParent)
		}
	})
}

package mirror

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A Service depends on each cluster that it is a mirror of, has a member in or was written for, and on no other.
func TestClustersOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, svc := range drawLocal(t, rapid.SampledFrom(names).Draw(t, "name")) {
			for _, cluster := range []string{"east", "west", ""} {
				_, owned := ownersOf(svc)[cluster]
				want := isOurs(svc) && cluster != "" && (owned || svc.Labels[clusterLabel] == cluster ||
					membershipOf(svc).has("web", cluster))
				if got := slices.Contains(clustersOf(svc), cluster); got != want {
					t.Fatalf("%v depends on %q: %t, want %t", svc, cluster, got, want)
				}
			}
		}
	})
}

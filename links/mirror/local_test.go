package mirror

import (
	"testing"

	"pgregory.net/rapid"
)

// A Service exists for each cluster that it is a mirror of, has a member in or was written for, and for no other.
func TestExistsFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, svc := range drawLocal(t, rapid.SampledFrom(names).Draw(t, "name")) {
			for _, cluster := range []string{"east", "west", ""} {
				_, owned := ownersOf(svc)[cluster]
				want := isOurs(svc) && cluster != "" && (owned || svc.Labels[clusterLabel] == cluster ||
					membershipOf(svc).has("web", cluster))
				if got := existsFor(svc, cluster); got != want {
					t.Fatalf("%v exists for %q: %t, want %t", svc, cluster, got, want)
				}
			}
		}
	})
}

package apply

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Each source has one owner at most, wherever it is computed: the oldest that lists it and lives. It does not lose the
// source to one that comes later, and when it is gone the next one has it.
func TestOwnerOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000, 0)
		sources := []string{"east", "west"}
		var claims []claim
		for i := range rapid.IntRange(0, 6).Draw(t, "installations") {
			claims = append(claims, claim{
				installation: fmt.Sprint(i),
				created:      time.Unix(int64(rapid.IntRange(0, 3).Draw(t, "created")), 0),
				until:        now.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "until")) * time.Second),
				sources:      sources[:rapid.IntRange(0, 2).Draw(t, "sources")],
			})
		}
		for _, source := range sources {
			owner := ownerOf(source, claims, now)
			if got := ownerOf(source, rapid.Permutation(claims).Draw(t, "order"), now); got != owner {
				t.Fatalf("%s has the owners %s and %s", source, owner, got)
			}
			eligible := slices.DeleteFunc(slices.Clone(claims), func(c claim) bool {
				return !c.until.After(now) || !slices.Contains(c.sources, source)
			})
			if len(eligible) == 0 {
				if owner != "" {
					t.Fatalf("%s is owned by %s, which lists it not, or is gone", source, owner)
				}
				continue
			}
			i := slices.IndexFunc(eligible, func(c claim) bool { return c.installation == owner })
			if i < 0 {
				t.Fatalf("%s is owned by %q", source, owner)
			}
			for _, c := range eligible {
				if c.created.Before(eligible[i].created) {
					t.Fatalf("%s is owned by %s, and %s is older", source, owner, c.installation)
				}
			}
			later := claim{installation: "0 later", created: now, until: now.Add(time.Hour), sources: sources}
			if got := ownerOf(source, append(claims, later), now); got != owner {
				t.Fatalf("%s takes %s from %s", got, source, owner)
			}
			rest := slices.Delete(slices.Clone(eligible), i, i+1)
			if got := ownerOf(source, rest, now); (got == "") != (len(rest) == 0) {
				t.Fatalf("%d installations are left for %s, and %q owns it", len(rest), source, got)
			}
		}
	})
}

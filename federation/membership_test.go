package federation

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What has changed between two Memberships is each cluster whose LinkState has, named or not, once.
func TestMembershipChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []Cluster{"east", "west", "north"}
		draw := func(what string) *Membership {
			if rapid.Bool().Draw(t, what+" is nil") {
				return nil
			}
			state := rapid.Map(rapid.IntRange(0, 2), func(n int) LinkState { return LinkState(n) })
			states := rapid.MapOf(rapid.SampledFrom(names), state).Draw(t, what)
			return NewMembership(states, state.Draw(t, what+" others"), rapid.Bool().Draw(t, what+" is complete"))
		}
		before, now := draw("before"), draw("now")

		changed := slices.Sorted(now.Changed(before))
		seen := map[Cluster]bool{}
		for _, c := range changed {
			if seen[c] || now.Of(c) == before.Of(c) {
				t.Fatalf("%q is yielded twice, or has not changed: %q", c, changed)
			}
			seen[c] = true
		}
		for _, c := range append(names, "unnamed", "") {
			isNamed := before.isNamed(c) || now.isNamed(c)
			if now.Of(c) != before.Of(c) && !seen[c] && (isNamed || !seen[""]) {
				t.Fatalf("%q has changed from %d to %d: %q", c, before.Of(c), now.Of(c), changed)
			}
		}
		if same := now.Equal(before); same && len(changed) > 0 {
			t.Fatalf("equal, and %q has changed", changed)
		}
		if now.Equal(before) != before.Equal(now) {
			t.Fatal("Equal is no equivalence")
		}
	})
}

// A process that knows nothing deletes nothing.
func TestNothingIsKnown(t *testing.T) {
	var m *Membership
	if m.Of("east") != StateUndecided || m.IsComplete() {
		t.Error("the nil Membership knows something")
	}
	if got := slices.Collect(m.Changed(nil)); len(got) > 0 {
		t.Errorf("it has changed: %q", got)
	}
	all := NewMembership(map[Cluster]LinkState{"east": StateLinked}, StateUnlinked, true)
	if got := maps.Collect(func(yield func(Cluster, LinkState) bool) {
		for c := range all.Changed(nil) {
			yield(c, all.Of(c))
		}
	}); !maps.Equal(got, map[Cluster]LinkState{"east": StateLinked, "": StateUnlinked}) {
		t.Errorf("changed: %v", got)
	}
}

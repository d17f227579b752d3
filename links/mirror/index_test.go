package mirror

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// An index has what a walk over all Services finds, and nothing else.
func TestIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x index[string]
		all := map[api.Key][]string{}
		for range rapid.IntRange(1, 30).Draw(t, "changes") {
			k := api.Key{Namespace: "shop", Name: rapid.SampledFrom(names).Draw(t, "name")}
			values := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "values")
			x.put(k, values...)
			all[k] = values
		}
		for _, v := range []string{"a", "b", "c"} {
			var want []api.Key
			for k, values := range all {
				if slices.Contains(values, v) {
					want = append(want, k)
				}
			}
			got := x.dependents(v)
			byName := func(a, b api.Key) int { return cmp.Compare(a.Name, b.Name) }
			slices.SortFunc(want, byName)
			slices.SortFunc(got, byName)
			if !slices.Equal(got, want) {
				t.Fatalf("%v depend on %s, want %v", got, v, want)
			}
		}
		for k := range all {
			x.put(k)
		}
		if len(x.services)+len(x.values) != 0 {
			t.Fatalf("%d values and %d Services are left", len(x.services), len(x.values))
		}
	})
}

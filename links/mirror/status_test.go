package mirror

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// One result's change costs what its own Link has: as many allocations beside 200 other Links as beside none.
func TestResultIndexCost(t *testing.T) {
	mirrored := func(link, i int, reason string) (name api.Key, results []serviceResult) {
		remote := api.Key{Namespace: "shop", Name: fmt.Sprint("s", i)}
		return api.Key{Namespace: "shop", Name: fmt.Sprint("s", i, "-", link)},
			[]serviceResult{{link: api.Key{Name: fmt.Sprint(link)}, remote: remote, reason: reason}}
	}
	const services = 25
	cost := func(links int) float64 {
		x := newResultIndex()
		for link := range links {
			for i := range services {
				x.replaceResults(mirrored(link, i, reasonMirrored))
			}
		}
		reasons := [...]string{reasonError, reasonMirrored}
		changes := 0
		return testing.AllocsPerRun(100, func() {
			name, results := mirrored(0, 7, reasons[changes%2])
			changes++
			if len(x.replaceResults(name, results)) != 1 || len(x.resultsOf(api.Key{Name: "0"})) != services {
				t.Fatal("the change is not in the index")
			}
		})
	}
	if alone, among := cost(1), cost(200); among > alone+1 {
		t.Errorf("a change costs %v allocations beside 199 other Links, and %v without", among, alone)
	}
}

// The index has for each Link the results of the last plans, whatever was set in between.
func TestResultIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, model := newResultIndex(), map[api.Key][]serviceResult{}
		key := rapid.Custom(func(t *rapid.T) api.Key {
			return api.Key{Name: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")}
		})
		result := rapid.Custom(func(t *rapid.T) serviceResult {
			return serviceResult{
				link:      key.Draw(t, "link"),
				remote:    key.Draw(t, "remote"),
				federated: rapid.Bool().Draw(t, "federated"),
			}
		})
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			name := key.Draw(t, "planned")
			model[name] = rapid.SliceOfN(result, 0, 3).Draw(t, "results")
			x.replaceResults(name, model[name])
		}
		counts := map[serviceResult]int{}
		for _, results := range model {
			for _, r := range results {
				counts[r]++
			}
		}
		for _, link := range []string{"a", "b", "c"} {
			for _, r := range x.resultsOf(api.Key{Name: link}) {
				if counts[r]--; r.link.Name != link {
					t.Fatalf("Link %s has %+v", link, r)
				}
			}
		}
		for r, n := range counts {
			if n != 0 {
				t.Fatalf("%+v is missing %d times", r, n)
			}
		}
	})
}

package mirror

import (
	"fmt"
	"slices"
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

// What the status has of a headless Service follows from its mirror and those of its endpoints.
func TestWithEndpoints(t *testing.T) {
	db := api.Key{Namespace: "shop", Name: "db"}
	whole := serviceResult{remote: db, mirrored: true, reason: reasonMirrored, message: "a port is left out"}
	failed := serviceResult{remote: db, reason: reasonMissingNamespace, message: "there is no namespace"}
	joined := serviceResult{remote: db, federated: true, mirrored: true, reason: reasonMirrored}
	good := serviceResult{remote: db, endpoint: "db-0", mirrored: true, reason: reasonMirrored}
	taken := serviceResult{remote: db, endpoint: "db-1", reason: reasonError, message: "taken"}
	long := serviceResult{
		remote: db, endpoint: "db-2", reason: reasonInvalidService, message: "too long", overBudget: true,
	}
	refused := func(of serviceResult, message string) serviceResult {
		of.endpoint, of.message = "", message
		return of
	}
	for name, c := range map[string]struct{ results, want []serviceResult }{
		"nothing":          {nil, nil},
		"all are mirrored": {[]serviceResult{whole, good}, []serviceResult{whole}},
		"one is not": {
			[]serviceResult{whole, good, taken},
			[]serviceResult{refused(taken, "taken; so its endpoint db-1 is not mirrored")},
		},
		"two are not": {
			[]serviceResult{whole, long, taken},
			[]serviceResult{refused(long, "too long; so its endpoint db-2 is not mirrored, and 1 more are not")},
		},
		"the Service is not":  {[]serviceResult{failed, taken}, []serviceResult{failed}},
		"a federated Service": {[]serviceResult{joined, taken}, []serviceResult{joined}},
		"it is not known yet": {[]serviceResult{good, taken}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := withEndpoints(c.results); !slices.Equal(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

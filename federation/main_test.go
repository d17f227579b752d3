package federation

import (
	"flag"
	"testing"
	"unique"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Defaults of the property tests; a flag on the command line wins.
	for name, value := range map[string]string{
		"rapid.checks":     "5000",
		"rapid.steps":      "60",
		"rapid.nofailfile": "true",
	} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	if flag.Parse(); testing.Short() {
		if err := flag.Set("rapid.checks", "250"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// podOf returns a Pod.
func podOf(name string, t Template) *Workload {
	return new(Cohort{Namespace: "ns", Template: unique.Make(t)}.Workload(name))
}

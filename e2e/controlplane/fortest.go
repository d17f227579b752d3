package controlplane

import (
	"slices"
	"testing"
)

// ForTest starts a cluster that lasts as long as the test or benchmark, which
// fails if it does not start. The components' logs are artifacts of the test:
// `go test -artifacts` keeps them.
func ForTest(tb testing.TB, options Options) *Cluster {
	tb.Helper()
	return AllForTest(tb, options)[0]
}

// AllForTest starts several clusters at once, as ForTest does.
func AllForTest(tb testing.TB, options ...Options) []*Cluster {
	tb.Helper()
	options = slices.Clone(options)
	for i := range options {
		if options[i].Logs == "" {
			options[i].Logs = tb.ArtifactDir()
		}
	}
	clusters, err := StartAll(tb.Context(), options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		for _, cluster := range clusters {
			if err := cluster.Stop(); err != nil {
				tb.Error(err)
			}
		}
	})
	return clusters
}

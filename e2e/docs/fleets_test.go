package docs

import (
	"testing"
)

// Five clusters are a fleet, by a file and two commands. One of them is reached at an address of its own.
func TestFleets(t *testing.T) {
	inBothWorlds(t, []string{"east", "west", "north", "edge", "spare"}, func(w *world) {
		w.withMulticluster()
		proxy, err := w.clusters["west"].NewProxy()
		w.must(err)
		w.replace["https://west.example:6443"] = proxy.URL()
		w.play(fleets, map[string]func(){
			"A fleet is a file": func() {
				w.printed("5 clusters, 0 with failures, 1 with warnings")
				w.eventually("fingerpost check --fleet fleet.yaml", "5 clusters, 0 with failures, 0 with warnings")
			},
		})
	})
}

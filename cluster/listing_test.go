package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/federation"
)

const endpointSlices = "endpointslices.discovery.k8s.io"

func podText(i int) string {
	return fmt.Sprintf(
		`{apiVersion: v1, kind: Pod, metadata: {name: web-%04d, namespace: ns}, status: {phase: Running}}`, i)
}

// An API server that does not stream lists is read by pages, and then watched like others.
func TestPages(t *testing.T) {
	inWorld(t, func(w *world) {
		east := w.network.Server("east")
		east.Stream(false)
		east.ApplyYAML(service, slice)
		for i := range 1234 {
			east.ApplyYAML(podText(i))
		}
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		w.wait(time.Second)
		w.wantsState(federation.Live)
		w.wants(1)
		w.wantsPods(1234)
		if n := east.Requests("list", "pods"); n != 3 {
			t.Errorf("%d requests for 1,234 Pods, want 3 pages", n)
		}
		east.ApplyYAML(moreEndpoints, podText(1234))
		w.wait(time.Second)
		w.wants(2)
		w.wantsPods(1235)
	})
}

func (w *world) wantsPods(n int) {
	w.t.Helper()
	kinds, _ := w.registry.Inspect("east")
	for _, k := range kinds {
		if k.Kind == "pods" && k.Objects != n {
			w.t.Errorf("%d Pods, want %d", k.Objects, n)
		}
	}
}

// A watch that is silent, without even a bookmark, is not trusted: everything is listed anew.
func TestSilentWatch(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, _ string) {
		east.SilenceWatches(endpointSlices, true)
		east.ApplyYAML(moreEndpoints)
		w.wait(time.Second)
		w.wants(1)
		w.wait(4 * time.Minute)
		w.wants(2)
		w.wantsState(federation.Live)
	})
}

// An API server that was restored from a backup accepts a watch from a version that it has not reached, and
// is silent.
func TestRestoredFromBackup(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, _ string) {
		restore := east.Backup()
		for range 10 {
			east.ApplyYAML(moreEndpoints)
		}
		w.wait(time.Second)
		w.wants(2)
		restore()
		w.wait(4 * time.Minute)
		w.wants(1)
		w.wantsState(federation.Live)
		if w.status().Restored.IsZero() {
			t.Error("the Status does not report it")
		}
		east.ApplyYAML(moreEndpoints)
		w.wait(time.Second)
		w.wants(2)
	})
}

// Past its budget a cluster keeps what was accepted, updated; what is new is refused, reported, and
// accepted once there is room.
func TestOverBudget(t *testing.T) {
	inWorldOf(t, api.Limits{Endpoints: 10}, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(service, slice)
		for i := range 10 {
			east.ApplyYAML(podText(i))
		}
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		w.wait(10 * time.Second)
		w.wantsPods(10)
		if s := w.status(); s.OverBudget != "" {
			t.Errorf("ten Pods are over the budget: %s", s.OverBudget)
		}
		for i := 10; i < 30; i++ {
			east.ApplyYAML(podText(i))
		}
		east.ApplyYAML(moreEndpoints)
		w.wait(10 * time.Second)
		w.wantsPods(10)
		w.wantsState(federation.Live)
		w.wants(2) // other kinds, and what was accepted, go on
		if s := w.status(); !strings.Contains(s.OverBudget, "Pod") {
			t.Errorf("status %q", s.OverBudget)
		}
		for i := range 25 {
			east.Delete("Pod", "ns", fmt.Sprintf("web-%04d", i))
		}
		w.wait(3 * time.Minute)
		w.wantsPods(5)
		if s := w.status(); s.OverBudget != "" {
			t.Errorf("five Pods are over the budget: %s", s.OverBudget)
		}
	})
}

// A cluster that lists more than twice of what may be held of it is not read to the end: one that was never synced
// is not used, one in use keeps what was accepted. Both are reported, tried again at growing pauses, and
// recover.
func TestFarOverBudget(t *testing.T) {
	const budget, far = 10, 21
	pods := func(east *apitest.Server, n int) {
		for i := range n {
			east.ApplyYAML(podText(i))
		}
	}
	few := func(east *apitest.Server) {
		for i := 5; i < far; i++ {
			east.Delete("Pod", "ns", fmt.Sprintf("web-%04d", i))
		}
	}
	// The pauses have grown to their longest, 5 minutes, or by chance half of that. Each listing begins with a watch.
	wantsListings := func(w *world, east *apitest.Server) {
		w.t.Helper()
		before := east.Requests("watch", "pods")
		w.wait(20 * time.Minute)
		if n := east.Requests("watch", "pods") - before; n < 3 || n > 9 {
			w.t.Errorf("asked %d times within 20 minutes", n)
		}
	}
	reported := func(w *world) {
		w.t.Helper()
		s := w.status()
		if api.ReasonFor(s.Contact) != api.OverBudget || !strings.HasSuffix(s.Contact.Error(), s.OverBudget) {
			w.t.Errorf("contact %q, over budget %q", s.Contact, s.OverBudget)
		}
		if !strings.Contains(s.OverBudget, "lists of kind Pod") ||
			!strings.Contains(s.OverBudget, "-cluster-max-endpoints") {
			w.t.Errorf("over budget: %q", s.OverBudget)
		}
	}
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("never synced, stream %t", stream), func(t *testing.T) {
			inWorldOf(t, api.Limits{Endpoints: budget}, func(w *world) {
				east := w.network.Server("east")
				east.Stream(stream)
				east.ApplyYAML(service, slice)
				pods(east, far)
				w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
				w.wait(time.Second)
				w.wantsState(federation.Connecting)
				reported(w)
				w.wait(10 * time.Minute)
				reported(w)
				wantsListings(w, east)
				few(east)
				w.wait(5 * time.Minute)
				w.wantsState(federation.Live)
				w.wants(1)
				if s := w.status(); s.OverBudget != "" {
					t.Errorf("five Pods are over the budget: %s", s.OverBudget)
				}
			})
		})
		t.Run(fmt.Sprintf("in use, stream %t", stream), func(t *testing.T) {
			inWorldOf(t, api.Limits{Endpoints: budget}, func(w *world) {
				east := w.network.Server("east")
				east.Stream(stream)
				east.ApplyYAML(service, slice)
				pods(east, 5)
				w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
				w.wait(time.Second)
				w.wantsState(federation.Live)
				pods(east, far)
				w.wait(10 * time.Second)
				w.wantsState(federation.Live)
				east.SilenceWatches("pods", true) // has it listed anew
				w.wait(4 * time.Minute)
				east.SilenceWatches("pods", false)
				reported(w)
				w.wantsPods(budget)
				w.wants(1)
				w.wait(10 * time.Minute)
				reported(w)
				w.wantsState(federation.Stale)
				w.wantsPods(budget)
				wantsListings(w, east)
				w.wantsState(federation.Stale)
				few(east)
				w.wait(5*time.Minute + 10*time.Second)
				w.wantsState(federation.Live)
				w.wantsPods(5)
				if s := w.status(); s.OverBudget != "" {
					t.Errorf("five Pods are over the budget: %s", s.OverBudget)
				}
			})
		})
	}
}

// What of a cluster is listed and not taken may be as much again as what may be held of it. Of slices their endpoints
// count, and beside those as many slices without any as Services may have.
func TestLargestListing(t *testing.T) {
	of := func(slices, endpoints int) (texts []string) {
		for i := range slices {
			first := i*endpoints + 1
			texts = append(texts, sliceOf(fmt.Sprintf("web-%02d", i), "10.2", first, first+endpoints-1))
		}
		return texts
	}
	for name, c := range map[string]struct {
		slices []string
		live   bool
		over   string
		has    int
	}{
		"as much as may be held": {of(5, 2), true, "", 10},
		"twice as much":          {of(4, 5), true, "new objects of kind EndpointSlice", 10},
		"more":                   {of(3, 7), false, "lists of kind EndpointSlice", 0},
		"in one slice":           {of(1, 21), false, "lists of kind EndpointSlice", 0},
		"without endpoints":      {of(60, 0), true, "", 0},
		"without an end":         {of(61, 0), false, "lists of kind EndpointSlice", 0},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, stream %t", name, stream), func(t *testing.T) {
				inWorldOf(t, api.Limits{Endpoints: 10, Services: 10}, func(w *world) {
					east := w.network.Server("east")
					east.Stream(stream)
					east.ApplyYAML(append(c.slices, service)...)
					w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
					w.wait(10 * time.Second)
					w.wants(c.has)
					s := w.status()
					if (s.State == federation.Live) != c.live || !strings.Contains(s.OverBudget, c.over) ||
						(s.OverBudget == "") != (c.over == "") {
						t.Errorf("%s, over budget: %q", s.State, s.OverBudget)
					}
				})
			})
		}
	}
}

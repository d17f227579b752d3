package live

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

var cycles = flag.Int("cycles", 50, "how often TestLinkCycles links and unlinks clusters")

// Clusters are linked and unlinked again and again under one open stream, some with a token that is rotated,
// some while they are cut off. The stream always holds what is linked, and in the end the server takes up no
// more than after the first few cycles.
func TestLinkCycles(t *testing.T) {
	const warmup = 5
	w := newWorld(t, "cycles", 3)
	west, north := w.Remotes[0], w.Remotes[1]
	for _, name := range []string{"nowhere", "elsewhere"} { // who deletes most Links at once may have made a mistake
		w.do(w.Local.Apply(t.Context(), fmt.Appendf(nil, `apiVersion: %s/v1alpha3
kind: Link
metadata: {name: %[2]s, namespace: %[3]s}
spec: {targetClusterName: %[2]s, targetClusterDomain: cluster.local, clusterCredentialsSecret: absent}
`, links.Group, name, w.Namespace)))
	}
	w.serve("-enable-pprof")
	s := w.watch(mesh.Federated)
	alone := map[*mesh.Site]int{w.Local: 2, west: 0, north: 0}
	union := map[*mesh.Site]int{w.Local: 2, west: 2, north: 2}
	w.holds(s, 3*time.Second, "the local cluster alone", alone)

	var before fingerpost.Footprint
	var began time.Time
	for i := range warmup + *cycles {
		if i == warmup {
			before, began = w.settled(), time.Now()
		}
		w.do(w.Link(t.Context(), west))
		w.do(w.Link(t.Context(), north))
		w.holds(s, 3*time.Second, fmt.Sprintf("cycle %d: linked", i), union)
		mark := w.mark(s)
		if i%5 == 4 {
			w.rotate(west)
		}
		cut := i%7 == 6
		if cut {
			if i%2 == 0 {
				w.do(west.Proxy.Silence())
			} else {
				west.Proxy.Refuse()
			}
			w.knows(west, 4*time.Second, "the partition is noticed",
				func(c fingerpost.Cluster) bool { return c.Contact != "" })
		}
		if n := w.mark(s); n != mark {
			t.Errorf("cycle %d: nothing was to be sent:\n%s", i, s.Transcript(mark))
		}
		w.do(w.Unlink(t.Context(), west, north))
		w.holds(s, 3*time.Second, fmt.Sprintf("cycle %d: unlinked", i), alone)
		if added, removed := w.since(s, mark); len(added) != 0 || len(removed) != 4 {
			t.Errorf("cycle %d: clusters that leave take their own addresses and no others:\n%s", i, s.Transcript(mark))
		}
		if cut {
			w.do(west.Proxy.Pass())
		}
	}
	took := time.Since(began)

	// Not at once: a timer of HTTP/2 holds a connection for 10 s, and client-go remembers Events for 6
	// minutes, 16 KiB a cycle at most.
	allowed := fingerpost.Footprint{
		Goroutines: before.Goroutines + 5,
		Heap:       before.Heap + before.Heap*15/100 + 1<<20 + *cycles*16<<10,
	}
	var after fingerpost.Footprint
	w.within(15*time.Second, "what was taken up is given back", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) (err error) {
			after, err = w.Server.Footprint(ctx)
			if err == nil && (after.Goroutines > allowed.Goroutines || after.Heap > allowed.Heap) {
				err = fmt.Errorf("before: %+v, after %d cycles: %+v, allowed: %+v", before, *cycles, after, allowed)
			}
			return err
		})
	})
	t.Logf("%d cycles in %s: %d -> %d goroutines, %.1f -> %.1f MiB of heap", *cycles, took.Round(time.Millisecond),
		before.Goroutines, after.Goroutines, float64(before.Heap)/(1<<20), float64(after.Heap)/(1<<20))
}

// rotate gives a site a token that is refused, and then a new one, and waits each time until the server has tried it.
func (w *world) rotate(site *mesh.Site) {
	w.t.Helper()
	stranger := &controlplane.Identity{Namespace: site.Identity.Namespace, Name: site.Identity.Name, Token: "unknown"}
	w.do(w.Credentials(w.t.Context(), site, site.Kubeconfig(stranger, site.Proxy.URL())))
	w.knows(site, 2*time.Second, "a token is refused", func(c fingerpost.Cluster) bool { return c.Credentials != "" })
	_, err := w.Rotate(w.t.Context(), site)
	w.do(err)
	w.knows(site, 2*time.Second, "a token is rotated", func(c fingerpost.Cluster) bool { return c.Credentials == "" })
}

// knows waits until the server knows something of a cluster.
func (w *world) knows(site *mesh.Site, claimed time.Duration, what string, right func(fingerpost.Cluster) bool) {
	w.t.Helper()
	w.within(claimed, what, func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			c, err := w.Server.Cluster(ctx, site.Name)
			if err == nil && !right(c) {
				err = fmt.Errorf("%s is known as %+v", site.Name, c)
			}
			return err
		})
	})
}

// settled returns what the server takes up once it has come to rest: the least of what is seen within a
// while, because what has just ended may still be on its way out.
func (w *world) settled() fingerpost.Footprint {
	w.t.Helper()
	least, err := w.Server.Footprint(w.t.Context())
	w.do(err)
	for range 20 {
		now, err := w.Server.Footprint(w.t.Context())
		w.do(err)
		least = fingerpost.Footprint{Goroutines: min(least.Goroutines, now.Goroutines), Heap: min(least.Heap, now.Heap)}
	}
	return least
}

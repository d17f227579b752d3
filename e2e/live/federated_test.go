package live

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// The life of a federated stream over three clusters and a fourth: one first Add with the union, one delta
// for a change, a cluster that is linked later joins, unlinking withdraws a cluster's own addresses only, and
// an address that two clusters claim stays until the last claim goes.
func TestFederatedStream(t *testing.T) {
	w := newWorld(t, "federated", 4)
	west, north, south := w.Remotes[0], w.Remotes[1], w.Remotes[2]
	w.serve()
	w.link(west, north)

	s := w.watch(mesh.Federated)
	w.holds(s, 3*time.Second, "the union", map[*mesh.Site]int{w.Local: 2, west: 2, north: 2})
	if events, _ := s.Events(); len(events) != 1 || events[0].Message.Type != proxy.Add {
		t.Fatalf("the first answer must be one Add:\n%s", s.Transcript(0))
	}

	mark := w.mark(s)
	w.do(west.Scale(t.Context(), w.Namespace, mesh.Service, 3))
	w.holds(s, 3*time.Second, "a third Pod in west", map[*mesh.Site]int{w.Local: 2, west: 3, north: 2})
	if added, removed := w.since(s, mark); len(added) != 1 || len(removed) != 0 {
		t.Errorf("one Pod more must be one address more:\n%s", s.Transcript(mark))
	}

	mark = w.mark(s)
	w.link(south)
	w.holds(s, 3*time.Second, "south joins", map[*mesh.Site]int{w.Local: 2, west: 3, north: 2, south: 2})
	if added, removed := w.since(s, mark); len(added) != 2 || len(removed) != 0 {
		t.Errorf("a cluster that joins adds its addresses:\n%s", s.Transcript(mark))
	}

	mark = w.mark(s)
	w.do(w.Unlink(t.Context(), south))
	w.holds(s, 3*time.Second, "south leaves", map[*mesh.Site]int{w.Local: 2, west: 3, north: 2, south: 0})
	if added, removed := w.since(s, mark); len(added) != 0 || len(removed) != 2 {
		t.Errorf("a cluster that leaves takes its own addresses only:\n%s", s.Transcript(mark))
	}

	shared := netip.MustParseAddrPort("192.0.2.77:8080")
	w.claim(west, shared)
	w.claim(north, shared)
	w.within(3*time.Second, "an address of two clusters", func(ctx context.Context) error {
		return s.Until(ctx, "shared", func(s *mesh.Watch) bool { return s.Has(shared) })
	})
	mark = w.mark(s)
	w.do(w.Unlink(t.Context(), west))
	w.holds(s, 3*time.Second, "west leaves", map[*mesh.Site]int{w.Local: 2, west: 0, north: 2})
	if _, removed := w.since(s, mark); slices.Contains(removed, shared) || !s.Has(shared) {
		t.Errorf("north still claims %s:\n%s", shared, s.Transcript(mark))
	}
	_, err := north.Kubectl(t.Context(), "-n", w.Namespace, "delete", "endpointslice", "shared")
	w.do(err)
	w.within(3*time.Second, "the last claim goes", func(ctx context.Context) error {
		return s.Until(ctx, "no endpoint claims it", func(s *mesh.Watch) bool { return !s.Has(shared) })
	})
}

// A drop-in works with what `linkerd multicluster link-gen` prints for Linkerd's destination: a labelled
// Secret in the controller namespace, and no Link.
func TestLabelledSecret(t *testing.T) {
	w := newWorld(t, "labelled", 2)
	west := w.Remotes[0]
	w.serve()
	s := w.watch(mesh.Federated)
	w.holds(s, 3*time.Second, "the local cluster alone", map[*mesh.Site]int{w.Local: 2, west: 0})
	w.do(w.Local.Apply(t.Context(), labelledSecret(west, "linkerd")))
	w.state(west, "Live", 5*time.Second)
	w.holds(s, 3*time.Second, "west joins", map[*mesh.Site]int{w.Local: 2, west: 2})
	_, err := w.Local.Kubectl(t.Context(), "-n", "linkerd", "delete", "secret", "cluster-credentials-"+west.Name)
	w.do(err)
	w.holds(s, 3*time.Second, "west leaves", map[*mesh.Site]int{w.Local: 2, west: 0})
}

// holds waits until a stream holds so many addresses of each site.
func (w *world) holds(s *mesh.Watch, claimed time.Duration, what string, want map[*mesh.Site]int) {
	w.t.Helper()
	w.within(claimed, what, func(ctx context.Context) error {
		return s.Until(ctx, what, func(s *mesh.Watch) bool {
			held := s.Held()
			for site, n := range want {
				if mesh.HoldsOf(held, site) != n {
					return false
				}
			}
			return true
		})
	})
}

// mark returns how many events a stream has seen.
func (w *world) mark(s *mesh.Watch) int {
	events, _ := s.Events()
	return len(events)
}

// since returns the addresses that were added and removed since a mark. One that was added again counts once:
// where watches are slow, an EndpointSlice may arrive a moment before the last of its Pod.
func (w *world) since(s *mesh.Watch, mark int) (added, removed []netip.AddrPort) {
	events, _ := s.Events()
	for _, e := range events[mark:] {
		if e.Message == nil {
			continue
		}
		for _, a := range e.Message.Added {
			if !slices.Contains(added, a.Addr) {
				added = append(added, a.Addr)
			}
		}
		removed = append(removed, e.Message.Removed...)
	}
	return added, removed
}

// claim lets a site publish that an address belongs to its Service.
func (w *world) claim(site *mesh.Site, addr netip.AddrPort) {
	w.t.Helper()
	w.do(site.Apply(w.t.Context(), []byte(fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: shared
  namespace: %s
  labels: {kubernetes.io/service-name: web, endpointslice.kubernetes.io/managed-by: test}
addressType: IPv4
ports: [{name: http, port: %d}]
endpoints: [{addresses: [%s]}]
`, w.Namespace, addr.Port(), addr.Addr()))))
}

// Endpoints instead of EndpointSlices: the same addresses, and the same changes.
func TestEndpointsMode(t *testing.T) {
	w := newShops(t, "endpoints", 2)
	west := w.Remotes[0]
	w.do(w.Install(t.Context(), mesh.Linkerd, "mesh: {endpointSlices: false}", "endpointSlices: false"))
	w.serve()
	w.link(west)
	s := w.watch(mesh.Federated)
	w.holds(s, time.Second, "the union", map[*mesh.Site]int{w.Local: 2, west: 2})
	w.do(west.Scale(t.Context(), w.Namespace, mesh.Service, 1))
	w.holds(s, 5*time.Second, "one Pod less in west", map[*mesh.Site]int{w.Local: 2, west: 1})
}

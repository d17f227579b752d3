package cluster

import (
	"fmt"
	"net/netip"

	"github.com/fingerpost/fingerpost/federation"
)

// Do Pods of two clusters have the same addresses? Clients that were given an endpoint of the linked cluster then reach
// a Pod of their own cluster, and nothing else shows that. The Pod networks of a cluster are nowhere to be read for
// certain, but addresses are known of both: one at which a Pod runs here, and which a cluster publishes as another Pod,
// is enough. Where both number their Pods from the same network the Pods of their DNS servers are such a pair.
//
// Overlap does no harm where nothing is sent to addresses of Pods in the other cluster: mirrors through a gateway have
// those of the gateway. It is looked for where a Service here has members there, together with the identity of the
// cluster. That costs one look-up an endpoint, about 80 ns (BenchmarkOverlap), each selfInterval.

// reportOverlap publishes an address that Pods of both clusters have, the first one in order, if there are any, and one
// that is outside of the networks of the clusters.
func (r *selfReader) reportOverlap() {
	overlap, outside := "", ""
	if !r.local {
		overlap = r.registry.overlap(federation.Cluster(r.name))
		outside = r.registry.outside(federation.Cluster(r.name))
	}
	r.registry.changeStatus(r.supervisor, func(s *Status) { s.Overlap, s.Outside = overlap, outside })
}

// outside describes endpoints of a linked cluster that are outside of the networks of the clusters; empty for none. It
// is looked for where overlap is, as nothing is sent to the others.
func (r *Registry) outside(linked federation.Cluster) string {
	local, _ := r.localAndDrained()
	if r.options.Inside == nil || local == "" || !r.isMember(local, linked) {
		return ""
	}

	var first netip.Addr
	all := map[netip.Addr]bool{}

	for _, view := range r.store.Views(linked).All() {
		for _, slice := range view.Slices {
			for _, e := range slice.Endpoints {
				if r.options.Inside(e.Addr) {
					continue
				}
				if !first.IsValid() || e.Addr.Less(first) {
					first = e.Addr
				}
				all[e.Addr] = true
			}
		}
	}

	switch more := len(all) - 1; {
	case more < 0:
		return ""
	case more > 0:
		return fmt.Sprintf("%s and %d more", first, more)
	}
	return first.String()
}

// overlap describes the first address that Pods of the local cluster and of a linked one have; empty for none.
func (r *Registry) overlap(linked federation.Cluster) string {
	local, _ := r.localAndDrained()
	if local == "" || !r.isMember(local, linked) {
		return ""
	}

	var first *federation.Endpoint
	for _, view := range r.store.Views(linked).All() {
		for _, slice := range view.Slices {
			for _, e := range slice.Endpoints {
				isFirst := first == nil || e.Addr.Less(first.Addr)
				if isFirst && r.otherPod(local, e) != nil {
					first = e
				}
			}
		}
	}

	if first == nil {
		return ""
	}
	here, there := r.otherPod(local, first), first.Workload
	if here == nil {
		return "" // it has gone meanwhile
	}
	return fmt.Sprintf("%s is %s/%s here and %s/%s there",
		first.Addr, here.Namespace(), here.Name, there.Namespace(), there.Name)
}

// isMember reports whether a Service of the local cluster has a member in another one.
func (r *Registry) isMember(local, linked federation.Cluster) bool {
	for _, view := range r.store.Views(local).All() {
		if view.Composition == nil {
			continue
		}
		for _, member := range view.Composition.Members {
			if member.Cluster == linked {
				return true
			}
		}
	}
	return false
}

// otherPod returns a Pod of the local cluster whose own address an endpoint of another Pod has; nil for none. A node's
// address is that of many.
func (r *Registry) otherPod(local federation.Cluster, endpoint *federation.Endpoint) *federation.Workload {
	if !isPod(endpoint.Workload) || endpoint.Copied {
		return nil
	}
	address, found := r.store.Addresses.Get(local, endpoint.Addr)
	if !found {
		return nil
	}

	var other *federation.Workload
	for _, resident := range address.Residents {
		switch {
		case resident.Port != 0 || !isPod(resident.Workload):
		case isNamedAs(resident.Workload, endpoint.Workload):
			return nil
		default:
			other = resident.Workload
		}
	}
	return other
}

func isPod(w *federation.Workload) bool { return w != nil && w.Kind() == federation.Pod }

func isNamedAs(a, b *federation.Workload) bool {
	return a.Name == b.Name && a.Namespace() == b.Namespace()
}

package cluster

import (
	"fmt"
	"net/netip"
	"testing"
	"unique"

	"github.com/fingerpost/fingerpost/federation"
)

// BenchmarkOverlap looks for addresses of 50,000 Pods of a linked cluster among 10,000 of the local one. Those that are
// of both have Pods of the same names, which do not count.
func BenchmarkOverlap(b *testing.B) {
	const linkedPods, localPods, each = 50_000, 10_000, 50
	f := newFleet(b)
	f.apply(b, Spec{Name: "west"})
	cohort := unique.Make(federation.Cohort{Namespace: "shop", Template: unique.Make(federation.Template{})})
	pod := func(i int) *federation.Workload {
		return &federation.Workload{Name: fmt.Sprint("web-", i), Cohort: cohort}
	}
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }

	addresses := f.store.Addresses.NewWriter("local")
	for i := range localPods {
		residents := []federation.Resident{{Workload: pod(i), Running: true}}
		addresses.Set(addr(i), &federation.Address{Residents: residents})
	}
	w := f.store.NewWriter("west")
	for i := 0; i < linkedPods; i += each {
		slice := &federation.Slice{Name: "s"}
		for j := i; j < i+each; j++ {
			endpoint := &federation.Endpoint{Addr: addr(j), Ready: true, Workload: pod(j)}
			slice.Endpoints = append(slice.Endpoints, endpoint)
		}
		service := shopService("s%d", i)
		w.Set(service, &federation.View{Slices: []*federation.Slice{slice}})
		ref := federation.Ref{Cluster: "west", Service: service}
		f.members[shopService("all%d", i)] = []federation.MemberRef{{Ref: ref}}
	}
	w.MarkSynced()
	f.federate()

	b.ReportAllocs()
	for b.Loop() {
		if text := f.overlap("west"); text != "" {
			b.Fatal(text)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/linkedPods, "ns/endpoint")
}

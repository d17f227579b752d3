package cluster

import (
	"fmt"
	"net/netip"
	"testing"
	"unique"

	"github.com/fingerpost/fingerpost/federation"
)

// Of the endpoints of a linked cluster that has members here, those are found that are outside of all networks.
func TestOutside(t *testing.T) {
	f := newFleet(t)
	f.apply(t, Spec{Name: "west"})
	slice := &federation.Slice{Name: "s"}
	for _, addr := range []string{"10.0.0.1", "192.0.2.9", "192.0.2.7", "192.0.2.7"} {
		slice.Endpoints = append(slice.Endpoints, &federation.Endpoint{Addr: netip.MustParseAddr(addr)})
	}
	writer := f.store.NewWriter("west")
	writer.Set(shopService("web"), &federation.View{Slices: []*federation.Slice{slice}})
	writer.MarkSynced()

	wants := func(what, want string) {
		t.Helper()
		if got := f.outside("west"); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	f.options.Inside = netip.MustParsePrefix("10.0.0.0/8").Contains
	wants("no member", "")
	ref := federation.Ref{Cluster: "west", Service: shopService("web")}
	f.members[shopService("all")] = []federation.MemberRef{{Ref: ref}}
	f.federate()
	wants("members", "192.0.2.7 and 1 more")
	f.options.Inside = netip.MustParsePrefix("0.0.0.0/0").Contains
	wants("all inside", "")
	f.options.Inside = nil
	wants("without policy", "")
}

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

package federation

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// A View with what is held has every endpoint that is ready in it or was, each once and with the ports that it has or
// had, and what was written besides.
func TestWithHeld(t *testing.T) {
	draw := func(t *rapid.T, label string) *View {
		v, used := &View{Ports: []ServicePort{{Number: 80}}}, map[int]bool{}
		for i := range rapid.IntRange(0, 3).Draw(t, label+" slices") {
			s := &Slice{Name: fmt.Sprint("s", i)}
			if number := rapid.Uint16Range(0, 2).Draw(t, "port"); number > 0 {
				s.Ports = []Port{{Number: number}}
			}
			for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
				n := rapid.IntRange(1, 9).Draw(t, "address")
				if !used[n] {
					used[n] = true
					addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})
					s.Endpoints = append(s.Endpoints, &Endpoint{Addr: addr, Ready: rapid.Bool().Draw(t, "ready")})
				}
			}
			v.Slices = append(v.Slices, s)
		}
		return v
	}
	states := func(v *View) map[netip.Addr]bool {
		ready := map[netip.Addr]bool{}
		for _, s := range v.Slices {
			for _, e := range s.Endpoints {
				ready[e.Addr] = e.Ready
			}
		}
		return ready
	}
	portsOf := func(v *View) map[netip.Addr]string {
		ports := map[netip.Addr]string{}
		for _, s := range v.Slices {
			for _, e := range s.Endpoints {
				ports[e.Addr] = fmt.Sprint(s.Ports)
			}
		}
		return ports
	}
	rapid.Check(t, func(t *rapid.T) {
		before, now := draw(t, "before"), draw(t, "now")
		portsBefore, portsNow, ports := portsOf(before), portsOf(now), map[netip.Addr]string{}
		was, is := states(before), states(now)
		with, missing := now.withHeld(before)
		got, want, lost := states(with), map[netip.Addr]bool{}, 0
		for addr, ready := range is {
			want[addr], ports[addr] = ready || was[addr], portsNow[addr]
		}
		for addr, ready := range was {
			if ready && !is[addr] {
				want[addr], ports[addr] = true, portsBefore[addr]
				lost++
			}
		}
		if given := portsOf(with); !maps.Equal(given, ports) {
			t.Fatalf("ports %v, want %v", given, ports)
		}
		ready, notReady := with.Count()
		if missing != lost || len(got) != len(want) || ready+notReady != len(want) || !with.Valid() {
			t.Fatalf("%d are missing of %v, want %d of %v", missing, got, lost, want)
		}
		for addr, ready := range want {
			if got[addr] != ready {
				t.Fatalf("%s: ready %t, want %t", addr, got[addr], ready)
			}
		}
		if missing == 0 && with != now {
			t.Fatal("there is nothing to hold, and another View")
		}
		if gone, n := (*View)(nil).withHeld(before); gone != before || n != before.readyCount() {
			t.Fatal("of a Service that is gone not everything is held")
		}
	})
}

// Holds end with the cluster, and leave nothing behind.
func TestHoldsEnd(t *testing.T) {
	s, web := NewStore(), Service{"ns", "web"}
	endpoint := &Endpoint{Addr: netip.MustParseAddr("10.0.0.1"), Ready: true}
	v := &View{Slices: []*Slice{{Name: "s", Endpoints: []*Endpoint{endpoint}}}}
	until := time.Unix(1, 0)
	held := func() (n int) {
		w := s.Watch(Ref{"east", web})
		defer w.Close()
		snapshot, _ := w.Load()
		return snapshot.Members[0].Held
	}
	for name, end := range map[string]func(*ClusterWriter){
		"released": func(*ClusterWriter) { s.EndHolds("east", time.Time{}) },
		"over":     func(*ClusterWriter) { s.EndHolds("east", until) },
		"back":     func(w *ClusterWriter) { w.Set(web, v) },
		"unlinked": func(*ClusterWriter) { s.RemoveCluster("east") },
	} {
		s.AddCluster("east", Expectation{})
		w := s.NewWriter("east")
		w.Hold(web, until) // of nothing
		w.Set(web, v)
		w.MarkSynced()
		w.Hold(web, time.Unix(0, 0))
		w.Delete(web)
		if n := held(); n != 1 || s.Holds("east")[web].Endpoints != 1 || s.holds != 1 {
			t.Fatalf("%s: %d endpoints are held, %v in all", name, n, s.Holds("east"))
		}
		if next := s.EndHolds("east", until); !next.Equal(time.Unix(0, 0).Add(policy.MaxTime)) ||
			s.ConfirmHolds("east", until) != 1 {
			t.Fatalf("%s: what is not confirmed ends at %v", name, next)
		}
		if next := s.EndHolds("east", until.Add(-1)); !next.Equal(until) || s.ConfirmHolds("east", time.Time{}) != 0 {
			t.Fatalf("%s: it ends at %v", name, next)
		}
		end(w)
		if n := held(); n != 0 || s.Holds("east") != nil || s.holds != 0 {
			t.Fatalf("%s: %d endpoints are held in the end, %d Services", name, n, s.holds)
		}
		w.Hold(web, until)
		s.RemoveCluster("east")
		w.Remember(web, until, false) // fenced
		w.HoldRemembered(until)
		s.ConfirmHolds("east", until)
		s.EndHolds("east", until)
		if s.holds != 0 {
			t.Fatalf("%s: %d Services are held of a cluster that is not linked", name, s.holds)
		}
	}
}

// A Service that is remembered when it is deleted stays without endpoints, until its time, until it is back, or
// with what is held of it.
func TestRemember(t *testing.T) {
	s, web, until := NewStore(), Service{"ns", "web"}, time.Unix(1, 0)
	endpoint := &Endpoint{Addr: netip.MustParseAddr("10.0.0.1"), Ready: true}
	v := &View{Slices: []*Slice{{Name: "s", Endpoints: []*Endpoint{endpoint}}}}
	s.AddCluster("east", Expectation{})
	w := s.NewWriter("east")
	ref := Ref{"east", web}
	reader := s.Watch(ref)
	defer reader.Close()
	wants := func(given bool, endpoints int) {
		t.Helper()
		snapshot, _ := reader.Load()
		m := snapshot.Members[0]
		if s.Gives(ref) != given || (m.View != nil) != given || m.View.readyCount() != endpoints {
			t.Fatalf("given: %t, %+v", s.Gives(ref), m)
		}
	}
	w.Remember(web, until, true) // nothing
	wants(false, 0)
	w.Set(web, v)
	w.MarkSynced()
	w.Remember(web, until, true)
	wants(true, 1)
	w.Delete(web)
	wants(true, 0)
	s.EndHolds("east", until)
	wants(false, 0)

	w.Set(web, v)
	w.Remember(web, until, true)
	w.Delete(web)
	w.Set(web, v)
	if wants(true, 1); s.holds != 0 || s.kept.Load() != 0 {
		t.Fatal("it is kept though it is back")
	}

	w.Remember(web, until, true)
	w.Delete(web)
	w.HoldRemembered(time.Unix(0, 0))
	wants(true, 1)
	s.EndHolds("east", until)
	wants(true, 1) // it is not confirmed any more
	s.ConfirmHolds("east", time.Time{})
	wants(false, 0)
}

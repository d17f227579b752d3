package federation

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever a cluster writes and its holds go through: what is written and held is counted as it is, never exceeds the
// limit where what is written does not, and what a hold has never grows.
func TestAccount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, now := NewStore(), time.Unix(1000, 0)
		s.AddCluster("east", Expectation{})
		w := s.NewWriter("east")
		w.MarkSynced()
		limit := Size{
			Services:  rapid.IntRange(0, 4).Draw(t, "services"),
			Endpoints: rapid.IntRange(0, 12).Draw(t, "endpoints"),
			Bytes:     rapid.Int64Range(0, 4000).Draw(t, "bytes"),
		}
		s.SetLimit("east", limit)
		fixed := map[*View]int{} // endpoints of what is held, by what it was when it began
		service := func() Service { return Service{"ns", fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "service"))} }
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Second)
			svc, mass := service(), rapid.Bool().Draw(t, "mass")
			before := func(deleted bool) {
				if mass {
					w.Hold(svc, now)
				} else {
					w.Remember(svc, now.Add(5*time.Second), deleted)
				}
			}
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1, 2:
				next := drawWritten(t)
				before(false)
				w.Set(svc, next)
			case 3:
				before(true)
				w.Delete(svc)
			case 4:
				w.HoldRemembered(now)
			case 5:
				s.ConfirmHolds("east", now.Add(7*time.Second))
			case 6:
				s.EndHolds("east", now)
			case 7:
				published, _ := s.Published("east", Published{})
				w = s.NewWriter("east")
				w.Write(published)
				w.MarkSynced()
			}
			checkAccount(t, s, limit, fixed)
		}
		s.RemoveCluster("east")
		if s.kept.Load() != 0 || s.holds != 0 {
			t.Fatalf("%d holds are left of a cluster that is not linked", s.kept.Load())
		}
	})
}

func drawWritten(t *rapid.T) *View {
	v := &View{Ports: []ServicePort{{Number: 80}}}
	for i := range rapid.IntRange(0, 3).Draw(t, "slices") {
		s := &Slice{Name: fmt.Sprint("s", i)}
		for _, n := range rapid.SliceOfN(rapid.ByteRange(1, 9), 0, 4).Draw(t, "addresses") { // some of them twice
			e := &Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, n}), Ready: rapid.Bool().Draw(t, "ready")}
			if rapid.Bool().Draw(t, "named") {
				e.Workload = &Workload{Name: fmt.Sprint("pod-", n)}
			}
			s.Endpoints = append(s.Endpoints, e)
		}
		v.Slices = append(v.Slices, s)
	}
	return v
}

func checkAccount(t *rapid.T, s *Store, limit Size, fixed map[*View]int) {
	written, unconfirmedEndpoints := Size{}, 0
	for _, v := range s.Views("east").All() {
		written = written.plus(v.sizeBeside(nil), 1)
	}
	held, given, kept := Size{}, 0, 0
	for h := range s.cluster("east").holds.all {
		held = held.plus(h.size, 1)
		if kept++; h.view != nil {
			given++
		}
		if h.stage == unconfirmed {
			unconfirmedEndpoints += h.lacks
		}
		n := h.before.readyCount()
		if most, found := fixed[h.before]; found && n != most {
			t.Fatalf("%v: the hold of %d endpoints has %d", h.service, most, n)
		}
		fixed[h.before] = n
		if h.lacks > n || h.size.Endpoints < h.lacks {
			t.Fatalf("%v: of %d endpoints %d are held, and %d counted", h.service, n, h.lacks, h.size.Endpoints)
		}
		if now := s.View(Ref{"east", h.service}); now != nil && h.before.sizeBeside(now) != h.size {
			t.Fatalf("%v: the size is %v", h.service, h.size)
		}
	}
	a := s.Account("east")
	if a.Written != written || a.Held != held || a.Unconfirmed.Endpoints != unconfirmedEndpoints {
		t.Fatalf("account %+v, want %v written and %v held", a, written, held)
	}
	if int(s.kept.Load()) != kept || s.holds != given {
		t.Fatalf("%d holds are counted, and %d that give something, of %d and %d", s.kept.Load(), s.holds, kept, given)
	}
	excess := written.beyond(limit)
	if sum := written.plus(held, 1).beyond(limit); excess == (Size{}) && sum != (Size{}) {
		t.Fatalf("%v is written and %v held, which is %v past %v", written, held, sum, limit)
	}
}

// Past the limit the holds go that began first, and those that would make no room stay.
func TestOldestHoldsEnd(t *testing.T) {
	s := NewStore()
	s.AddCluster("east", Expectation{})
	w := s.NewWriter("east")
	w.MarkSynced()
	s.SetLimit("east", Size{Endpoints: 10})
	view := func(network byte, n int) *View {
		slice := &Slice{Name: "s"}
		for i := range n {
			addr := netip.AddrFrom4([4]byte{10, network, 0, byte(i)})
			slice.Endpoints = append(slice.Endpoints, &Endpoint{Addr: addr, Ready: true})
		}
		return &View{Slices: []*Slice{slice}}
	}
	services := []Service{{"ns", "a"}, {"ns", "b"}, {"ns", "c"}}
	for i, svc := range services {
		w.Set(svc, view(byte(i), 3))
	}
	for _, svc := range services {
		w.Hold(svc, time.Unix(1, 0))
		w.Delete(svc)
	}
	for i, c := range []struct {
		writes, held int
		oldest       string
	}{{1, 9, "a"}, {2, 6, "b"}, {6, 3, "c"}, {12, 0, ""}} {
		w.Set(Service{"ns", "d"}, view(9, c.writes))
		a := s.Account("east")
		if a.Held.Endpoints != c.held || a.Unconfirmed.Endpoints != c.held || a.LetGo != 9-c.held {
			t.Errorf("%d: %+v, want %d held", i, a, c.held)
		}
		if s.Holds("east")[Service{"ns", c.oldest}].Endpoints == 0 && c.oldest != "" {
			t.Errorf("%d: %s is not held: %v", i, c.oldest, s.Holds("east"))
		}
	}
}

package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// fleet is a Registry without connections: some linked clusters with Services, and a local one that federates them.
type fleet struct {
	*Registry
	members map[federation.Service][]federation.MemberRef
}

func newFleet(tb testing.TB) *fleet {
	tb.Helper()
	f := &fleet{
		Registry: NewRegistry(logr.Discard(), federation.NewStore(), Options{}),
		members:  map[federation.Service][]federation.MemberRef{},
	}
	f.apply(tb, Spec{Name: "local", Local: true})
	return f
}

func (f *fleet) apply(tb testing.TB, spec Spec) {
	tb.Helper()
	if err := f.Apply(spec); err != nil {
		tb.Fatal(err)
	}
}

// federate publishes the Services of the local cluster.
func (f *fleet) federate() {
	w := f.store.NewWriter("local")
	for svc, members := range f.members {
		w.Set(svc, &federation.View{Composition: &federation.Composition{Union: true, Members: members}})
	}
	w.MarkSynced()
}

func shopService(format string, args ...any) federation.Service {
	return federation.Service{Namespace: "shop", Name: fmt.Sprintf(format, args...)}
}

// viewOf is a View with one endpoint.
func viewOf(ready bool, addr ...byte) *federation.View {
	endpoint := &federation.Endpoint{Addr: netip.AddrFrom4([4]byte(addr)), Ready: ready}
	return &federation.View{Slices: []*federation.Slice{{Name: "s", Endpoints: []*federation.Endpoint{endpoint}}}}
}

var everything = policy.Link{Drain: policy.Drain{From: time.Unix(0, 0)}}

// Who needs a cluster that is drained, or what is held of it, is what one would find by looking at each cluster alone.
func TestNeeding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store := federation.NewStore()
		f := &fleet{NewRegistry(logr.Discard(), store, Options{}), map[federation.Service][]federation.MemberRef{}}
		if f.Apply(Spec{Name: "local", Local: true}) != nil {
			t.Fatal("the local cluster is not taken")
		}
		drained, ready := map[string]bool{}, map[federation.Ref]bool{}
		held := map[federation.Ref]bool{}
		clusters := []string{"c0", "c1", "c2", "c3"}
		for i, name := range clusters {
			spec := Spec{Name: name, Traffic: policy.Link{WithdrawalGuard: policy.WithdrawalGuard{Hold: time.Hour}}}
			if drained[name] = rapid.Bool().Draw(t, "drained"); drained[name] {
				spec.Traffic.Drain = everything.Drain
			}
			if f.Apply(spec) != nil {
				t.Fatal("a cluster is not taken")
			}
			w := store.NewWriter(federation.Cluster(name))
			for j := range 3 {
				ref := federation.Ref{Cluster: federation.Cluster(name), Service: shopService("s%d", j)}
				switch rapid.SampledFrom([]string{"ready", "not ready", "absent", "held"}).Draw(t, "service") {
				case "ready":
					ready[ref] = true
					w.Set(ref.Service, viewOf(true, 10, byte(i), 0, byte(j)))
				case "not ready":
					w.Set(ref.Service, viewOf(false, 10, byte(i), 0, byte(j)))
				case "held":
					held[ref] = true
					w.Set(ref.Service, viewOf(true, 10, byte(i), 0, byte(j)))
					w.Hold(ref.Service, time.Now())
					w.Delete(ref.Service)
				}
			}
			w.MarkSynced()
			store.ConfirmHolds(federation.Cluster(name), time.Now().Add(time.Hour))
		}
		for j := range 4 {
			members := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) federation.MemberRef {
				return federation.MemberRef{Ref: federation.Ref{
					Cluster: federation.Cluster(rapid.SampledFrom(clusters).Draw(t, "cluster")),
					Service: shopService("s%d", rapid.IntRange(0, 2).Draw(t, "of")),
				}}
			}), 1, 6, rapid.ID).Draw(t, "members")
			f.members[shopService("all%d", j)] = members
		}
		f.federate()

		f.updateAllTraffic(time.Now())
		statuses, _ := f.Statuses()
		for _, name := range clusters {
			var wantDrained, wantHeld []string
			for svc, members := range f.members {
				needs, needsHeld, others, anyOther := false, false, false, false
				for _, m := range members {
					switch {
					case string(m.Cluster) == name:
						needs, needsHeld = needs || ready[m.Ref], needsHeld || held[m.Ref]
					default:
						others = others || ready[m.Ref] && !drained[string(m.Cluster)]
						anyOther = anyOther || ready[m.Ref]
					}
				}
				if drained[name] && needs && !others {
					wantDrained = append(wantDrained, "shop/"+svc.Name)
				}
				if needsHeld && !anyOther {
					wantHeld = append(wantHeld, "shop/"+svc.Name)
				}
			}
			slices.Sort(wantDrained)
			slices.Sort(wantHeld)
			got := statuses[name].Traffic
			if got.Drain.Needed != len(wantDrained) ||
				!slices.Equal(got.Drain.NeededBy, wantDrained[:min(len(wantDrained), maxNamed)]) {
				t.Fatalf("%s is needed by %v, want %v", name, got.Drain, wantDrained)
			}
			gotHeld := 0
			if w := got.Withdrawn; w != nil {
				gotHeld = len(w.Services) + w.More
			}
			if gotHeld != len(wantHeld) {
				t.Fatalf("what is held of %s is needed by %d, want %v", name, gotHeld, wantHeld)
			}
		}
	})
}

// An equal Spec costs nothing: nothing is looked for, and no status is published.
func TestEqualSpec(t *testing.T) {
	f := newFleet(t)
	f.apply(t, Spec{Name: "east", Traffic: everything})
	f.updateAllTraffic(time.Now())
	_, changed := f.Statuses()
	<-f.trafficChanged.Rung()
	f.apply(t, Spec{Name: "east", Traffic: everything})
	select {
	case <-changed:
		t.Error("a status is published")
	case <-f.trafficChanged.Rung():
		t.Error("traffic is looked at")
	default:
	}
}

// BenchmarkNeeding is a pass over what is in force for 200 clusters, of which 1,000 federated Services have a member
// each, while some are drained. There is one for each change of a drain, and each 5 s.
func BenchmarkNeeding(b *testing.B) {
	const clusters, services = 200, 1000
	for _, drained := range []int{1, 20, 100} {
		b.Run(fmt.Sprintf("drained=%d", drained), func(b *testing.B) {
			f := newFleet(b)
			for i := range clusters {
				spec := Spec{Name: fmt.Sprint("c", i)}
				if i < drained {
					spec.Traffic = everything
				}
				f.apply(b, spec)
				w := f.store.NewWriter(federation.Cluster(spec.Name))
				for j := range services {
					ref := federation.Ref{Cluster: federation.Cluster(spec.Name), Service: shopService("s%d", j)}
					w.Set(ref.Service, viewOf(true, 10, byte(i), byte(j>>8), byte(j)))
					all := shopService("all%d", j)
					f.members[all] = append(f.members[all], federation.MemberRef{Ref: ref})
				}
				w.MarkSynced()
			}
			f.federate()
			for b.Loop() {
				f.updateAllTraffic(time.Now())
			}
		})
	}
}

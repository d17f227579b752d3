package cluster

import (
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// What the writer of an engagement withdraws that was replaced has no effect: nothing is counted, held, or decided.
func TestGuardOfReplacedWriter(t *testing.T) {
	store, web := federation.NewStore(), federation.Service{Namespace: "ns", Name: "web"}
	store.AddCluster("east", federation.Expectation{})
	g := newGuard(logr.Discard(), store, "east", func() {})
	g.ask(policy.WithdrawalGuard{Percent: 50, Hold: time.Hour}, "")
	full := &federation.View{Slices: []*federation.Slice{{Name: "s"}}}
	for i := range byte(100) {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, i})
		full.Slices[0].Endpoints = append(full.Slices[0].Endpoints, &federation.Endpoint{Addr: addr, Ready: true})
	}
	begin := func() *guardedWriter {
		w := g.newWriter(store.NewWriter("east"), func(*guardedWriter) {}) // MarkSynced decides
		w.Set(web, full)
		w.MarkSynced()
		return w
	}
	replaced := begin()
	newest := begin()
	replaced.Set(web, &federation.View{})
	replaced.Delete(web)
	hasAll := g.decides.Has() == policy.Amount{Endpoints: 100, Services: 1}
	if !hasAll || g.decides.Confirming() || len(store.Holds("east")) != 0 {
		t.Errorf("it has %+v, confirming: %t, held: %v", g.decides.Has(), g.decides.Confirming(), store.Holds("east"))
	}
	newest.Delete(web)
	replaced.decide()
	if held := store.Holds("east")[web]; held.Endpoints != 100 || !held.Until.IsZero() || !g.decides.Confirming() {
		t.Errorf("another has decided: held %+v, confirming: %t", held, g.decides.Confirming())
	}
	newest.decide()
	if held := store.Holds("east")[web]; held.Endpoints != 100 || held.Until.IsZero() || g.decides.Confirming() {
		t.Errorf("it is not decided: held %+v, confirming: %t", held, g.decides.Confirming())
	}
}

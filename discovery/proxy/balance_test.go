package proxy_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// A Balancer spreads requests evenly over addresses that answer equally fast, sends fewer to one that is slow, and
// knows when it holds none.
func TestBalancer(t *testing.T) {
	var held []proxy.Address
	for i := range 5 {
		held = append(held, proxy.Address{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)})
	}
	for _, slow := range []bool{false, true} {
		b, now := proxy.NewBalancer(1), time.Unix(0, 0)
		counts := map[netip.AddrPort]int{}
		for range 10_000 {
			to, sent := b.Send(held, now)
			if !sent {
				t.Fatal("no request was sent")
			}
			counts[to]++
			took := 5 * time.Millisecond
			if slow && to == held[0].Addr {
				took = 50 * time.Millisecond
			}
			b.Done(to, now, now.Add(took))
			now = now.Add(took)
		}
		for i, a := range held {
			least, most := 1900, 2100
			if slow {
				least, most = 2200, 2800
			}
			if slow && i == 0 {
				least, most = 1, 200
			}
			if n := counts[a.Addr]; n < least || n > most {
				t.Errorf("slow %t: %s got %d of 10,000 requests, want %d to %d", slow, a.Addr, n, least, most)
			}
		}
	}
	if to, sent := proxy.NewBalancer(1).Send(nil, time.Unix(0, 0)); sent {
		t.Errorf("a request was sent to %s, which is not held", to)
	}
}

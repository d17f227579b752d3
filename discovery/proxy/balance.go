package proxy

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"time"
)

// A Balancer is how linkerd2-proxy spreads requests over what it holds. Of two addresses that it draws at random the
// one with the lower load gets the request: the round-trip time, as a moving average that rises at once and decays
// over ten seconds, times the requests that are pending and this one. Weights play no part in it. It is not safe for
// concurrent use.
type Balancer struct {
	random *rand.Rand
	loads  map[netip.AddrPort]*load
}

// The settings of linkerd2-proxy.
const (
	defaultRTT = 30 * time.Millisecond // of an address without a response
	rttDecay   = 10 * time.Second
)

// load is that of one address.
type load struct {
	rtt     float64 // in nanoseconds
	at      time.Time
	pending int
}

// NewBalancer returns a Balancer without a load, whose draws follow from a seed.
func NewBalancer(seed uint64) *Balancer {
	return &Balancer{random: rand.New(rand.NewPCG(seed, 0)), loads: map[netip.AddrPort]*load{}}
}

// Send returns to which of the addresses that are held a request goes; false if none is held. The response is
// reported to Done.
func (b *Balancer) Send(held []Address, now time.Time) (to netip.AddrPort, sent bool) {
	if len(held) == 0 {
		return to, false
	}

	i := b.random.IntN(len(held))
	to = held[i].Addr
	if len(held) > 1 {
		j := b.random.IntN(len(held) - 1)
		if j >= i {
			j++
		}
		if b.load(held[j].Addr).cost(now) < b.load(to).cost(now) {
			to = held[j].Addr
		}
	}

	b.load(to).pending++
	return to, true
}

// Done counts the response to a request that Send has sent, at the time sent.
func (b *Balancer) Done(to netip.AddrPort, sent, now time.Time) {
	l := b.load(to)
	l.pending--
	l.addRTT(now.Sub(sent), now)
}

func (b *Balancer) load(of netip.AddrPort) *load {
	if b.loads[of] == nil {
		b.loads[of] = &load{rtt: float64(defaultRTT)}
	}
	return b.loads[of]
}

// cost is the load that another request would add to.
func (l *load) cost(now time.Time) float64 {
	l.addRTT(0, now)
	return l.rtt * float64(l.pending+1)
}

func (l *load) addRTT(rtt time.Duration, now time.Time) {
	if took := float64(rtt); took > l.rtt {
		l.rtt = took
	} else if !l.at.IsZero() {
		decay := math.Exp(-float64(now.Sub(l.at)) / float64(rttDecay))
		l.rtt = l.rtt*decay + took*(1-decay)
	}
	l.at = now
}

package federation

import (
	"iter"
	"net/netip"
)

// A Nearness is how far an endpoint is from the client, by their zones.
type Nearness uint8

// The degrees of nearness.
const (
	UnknownZone   Nearness = iota // the zone of one of the two is not known
	SameZone                      // both are in one zone
	DifferentZone                 // they are in two
)

// Weight is the weight of an endpoint that nothing makes heavier or lighter.
const Weight = 10_000

// A Choice is an Entry as one client is to use it. What depends on the client is here, takes part in
// equality, and so in Diff: no protocol adds any of it.
type Choice struct {
	*Entry            // shared by the clients of all places
	Weight   uint32   // its share of the client's requests, beside the weights of the others
	Nearness Nearness // to the client
}

// lens is what turns an Entry into the Choice of the clients that a Set is for. It stands once in a
// Set, and not once an address, so that the Sets of all zones share one slice of entries.
type lens struct {
	zone        string // the clients'
	zoneWeights bool
}

func (l lens) choice(e *Entry) Choice {
	choice := Choice{Entry: e, Weight: Weight}
	switch {
	case e.Endpoint.Zone == (Name{}) || l.zone == "":
	case e.Endpoint.Zone.String() != l.zone:
		choice.Nearness = DifferentZone
	default:
		choice.Nearness = SameZone
		if l.zoneWeights {
			choice.Weight *= 10
		}
	}
	return choice
}

// A Set is what a client should hold: addresses, each with the best claim to it. It is immutable.
type Set struct {
	entries []*Entry // sorted by address: of several claims to one the first counts
	size    int      // how many addresses they are
	lens    lens
}

// Empty reports whether there are no addresses.
func (s *Set) Empty() bool { return s.Len() == 0 }

// Len returns the number of addresses.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return s.size
}

// All yields the choices, sorted by address.
func (s *Set) All() iter.Seq[Choice] {
	return func(yield func(Choice) bool) {
		if s == nil {
			return
		}
		for i, e := range s.entries {
			if (i == 0 || s.entries[i-1].Addr != e.Addr) && !yield(s.lens.choice(e)) {
				return
			}
		}
	}
}

// Diff returns what turns old into current, sorted by address: the choices to add or to replace, and the
// addresses to remove. A nil Set is an empty one.
func Diff(old, current *Set) (add []Choice, remove []netip.AddrPort) { return DiffAt(old, current, 0) }

// DiffAt is Diff for a client of a port, which is the port of every entry that is for any: see [Entry.At].
func DiffAt(old, current *Set, port uint16) (add []Choice, remove []netip.AddrPort) {
	if old == nil {
		old = &Set{}
	}
	if current == nil {
		current = &Set{}
	}

	before, now := old.entries, current.entries
	sameLens := old.lens == current.lens

	for len(before) > 0 && len(now) > 0 {
		if same := common(before, now); sameLens && same > 0 { // as most of two Sets is
			addr := before[same-1].Addr
			before, now = after(before[same:], addr), after(now[same:], addr)
			continue
		}

		was, is := before[0], now[0]
		order := was.At(port).Compare(is.At(port))
		switch {
		case order < 0:
			remove = append(remove, was.At(port))
		case order > 0 || !was.sameAt(port, is) ||
			!sameLens && !old.lens.choice(was).sameUse(current.lens.choice(is)):
			add = append(add, current.lens.choice(is))
		}

		if order <= 0 {
			before = after(before, was.Addr)
		}
		if order >= 0 {
			now = after(now, is.Addr)
		}
	}

	for ; len(before) > 0; before = after(before, before[0].Addr) {
		remove = append(remove, before[0].At(port))
	}
	for ; len(now) > 0; now = after(now, now[0].Addr) {
		add = append(add, current.lens.choice(now[0]))
	}
	return add, remove
}

// sameUse reports whether a client is to use both in the same way.
func (c Choice) sameUse(o Choice) bool { return c.Weight == o.Weight && c.Nearness == o.Nearness }

// common returns how many entries a and b begin with in common.
func common(a, b []*Entry) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// after returns the entries that follow those for addr.
func after(entries []*Entry, addr netip.AddrPort) []*Entry {
	for len(entries) > 0 && entries[0].Addr == addr {
		entries = entries[1:]
	}
	return entries
}

// sameAt reports whether a client of a port cannot distinguish e from o: of a workload's sets of ports
// it gets what they have of the address's own. For no port it reports whether no client of any can.
func (e *Entry) sameAt(port uint16, o *Entry) bool {
	return e == o || e.At(port) == o.At(port) && e.Endpoint.equalAt(e.At(port).Port(), o.Endpoint) &&
		e.origin.equal(o.origin)
}

// equal leaves out what decides between claims only.
func (o *Origin) equal(p *Origin) bool {
	return o == p || o.Ref == p.Ref && o.TrustDomain == p.TrustDomain
}

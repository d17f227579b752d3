package federation

import (
	"iter"
	"net/netip"
)

// A Set is what a client should hold: addresses, each with the best claim to it. It is immutable.
type Set struct {
	entries []*Entry // sorted by address: of several claims to one the first counts
	size    int      // how many addresses they are
}

// Empty reports whether there are no addresses.
func (s *Set) Empty() bool { return s == nil || len(s.entries) == 0 }

// Len returns the number of addresses.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return s.size
}

// All yields the entries, sorted by address.
func (s *Set) All() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		if s == nil {
			return
		}
		for i, e := range s.entries {
			if (i == 0 || s.entries[i-1].Addr != e.Addr) && !yield(e) {
				return
			}
		}
	}
}

// Diff returns what turns old into new, sorted by address: the entries to add or to replace, and the addresses to remove.
// A nil Set is an empty one.
func Diff(old, new *Set) (add []*Entry, remove []netip.AddrPort) { return DiffAt(old, new, 0) }

// DiffAt is Diff for a client of a port, which is the port of every entry that is for any: see [Entry.At].
func DiffAt(old, new *Set, port uint16) (add []*Entry, remove []netip.AddrPort) {
	var o, n []*Entry
	if old != nil {
		o = old.entries
	}
	if new != nil {
		n = new.entries
	}
	for len(o) > 0 && len(n) > 0 {
		if same := common(o, n); same > 0 { // as most of two Sets is
			addr := o[same-1].Addr
			o, n = after(o[same:], addr), after(n[same:], addr)
			continue
		}
		was, is := o[0], n[0]
		c := was.At(port).Compare(is.At(port))
		switch {
		case c < 0:
			remove = append(remove, was.At(port))
		case c > 0 || !was.equalAt(port, is):
			add = append(add, is)
		}
		if c <= 0 {
			o = after(o, was.Addr)
		}
		if c >= 0 {
			n = after(n, is.Addr)
		}
	}
	for ; len(o) > 0; o = after(o, o[0].Addr) {
		remove = append(remove, o[0].At(port))
	}
	for ; len(n) > 0; n = after(n, n[0].Addr) {
		add = append(add, n[0])
	}
	return add, remove
}

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

// equalAt reports whether a client of a port cannot tell e from o: of a workload's sets of ports it is told what they say of the
// address's own. For no port it reports whether no client of any can.
func (e *Entry) equalAt(port uint16, o *Entry) bool {
	return e == o || e.At(port) == o.At(port) && e.Endpoint.equalAt(e.At(port).Port(), o.Endpoint) && e.origin.equal(o.origin)
}

// equal leaves out what decides between claims only.
func (o *Origin) equal(p *Origin) bool {
	return o == p || o.Ref == p.Ref && o.TrustDomain == p.TrustDomain
}

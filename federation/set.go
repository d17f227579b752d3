package federation

import (
	"iter"
	"net/netip"
	"slices"
)

// A Set is what a client should hold: addresses, each with the best claim to it. It is immutable.
type Set struct {
	entries []*Entry // sorted by address, one for each
}

// Len returns the number of addresses.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.entries)
}

// All yields the entries, sorted by address.
func (s *Set) All() iter.Seq[*Entry] {
	if s == nil {
		return func(func(*Entry) bool) {}
	}
	return slices.Values(s.entries)
}

// Diff returns what turns old into new, sorted by address: the entries to add or to replace, and the addresses to remove.
// A nil Set is an empty one.
func Diff(old, new *Set) (add []*Entry, remove []netip.AddrPort) {
	var o, n []*Entry
	if old != nil {
		o = old.entries
	}
	if new != nil {
		n = new.entries
	}
	for len(o) > 0 && len(n) > 0 {
		switch c := o[0].Addr.Compare(n[0].Addr); {
		case o[0] == n[0]:
			o, n = o[1:], n[1:]
		case c < 0:
			remove, o = append(remove, o[0].Addr), o[1:]
		case c > 0:
			add, n = append(add, n[0]), n[1:]
		default:
			if !o[0].equal(n[0]) {
				add = append(add, n[0])
			}
			o, n = o[1:], n[1:]
		}
	}
	for _, e := range o {
		remove = append(remove, e.Addr)
	}
	return append(add, n...), remove
}

// equal reports whether a client cannot tell e from o.
func (e *Entry) equal(o *Entry) bool {
	return e == o || e.Addr == o.Addr && e.Endpoint.equal(o.Endpoint) && e.block.origin.equal(o.block.origin)
}

// equal leaves out what decides between claims only.
func (o *Origin) equal(p *Origin) bool {
	return o == p || o.Ref == p.Ref && o.TrustDomain == p.TrustDomain
}

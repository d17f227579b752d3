package federation

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// A Query is what a client asks of a Service.
type Query struct {
	Port     uint16
	Hostname string // of one instance; empty for all
	IPv6     bool   // whether workloads are reached over IPv6, which is then preferred
}

// A Selection is a Snapshot reduced to the addresses that answer a Query, before anything is known of the client's place.
// Several claims to one address are all in it. It is immutable.
type Selection struct {
	query   Query
	entries []*Entry // sorted by Entry.compare
	blocks  map[blockKey]*block

	localOnly map[*Origin]bool // members of which a client sees its own node only
	hinted    map[*Origin]bool // members of which every address has zone hints
	zoned     bool             // an address has a zone
	dual      bool             // workloads are claimed in both families

	byNode func() (rest []*Entry, byNode map[string][]*Entry) // entries split by localOnly, computed once
}

// An Entry is one claim to an address.
type Entry struct {
	Addr     netip.AddrPort
	Endpoint *Endpoint

	block *block
	index int // in the Slice
}

// Origin returns what the Composition says about the address.
func (e *Entry) Origin() *Origin { return e.block.origin }

// block holds the entries that one Slice contributes. Its key is everything they depend on, besides the Query.
type block struct {
	blockKey
	entries       []Entry // sorted by Entry.compare
	hinted, zoned int     // how many entries have hints, a zone
	v4, v6        int     // how many entries of workloads are of a family
}

type blockKey struct {
	slice  *Slice
	origin *Origin
	port   uint16
}

// Select applies q to s. prev may be any earlier Selection of the same Query, or nil: what did not change since is taken over
// from it, so that the work is in proportion to the change. The result does not depend on prev.
func Select(s *Snapshot, q Query, prev *Selection) *Selection {
	if prev == nil || prev.query != q {
		prev = &Selection{}
	}
	x := &Selection{
		query:     q,
		blocks:    make(map[blockKey]*block, len(prev.blocks)),
		localOnly: map[*Origin]bool{},
		hinted:    map[*Origin]bool{},
	}
	var added, removed []*Entry
	var v4, v6 int
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		name, declared := m.View.PortName(q.Port)
		if !declared && s.View.Composition != nil {
			continue // only a Service that stands for itself serves a port it does not declare
		}
		var hinted, total int
		for _, slice := range m.View.Slices {
			port := q.Port
			if declared {
				if port = slice.port(name); port == 0 {
					continue
				}
			}
			key := blockKey{slice, m.Origin, port}
			b := prev.blocks[key]
			if b == nil {
				b = newBlock(key, q)
				added = b.appendTo(added)
			}
			x.blocks[key] = b
			hinted, total = hinted+b.hinted, total+len(b.entries)
			v4, v6 = v4+b.v4, v6+b.v6
			x.zoned = x.zoned || b.zoned > 0
		}
		if m.Origin.Filtered && m.View.LocalOnly {
			x.localOnly[m.Origin] = true
		} else if m.Origin.Filtered && hinted == total && total > 0 {
			x.hinted[m.Origin] = true
		}
	}
	for key, b := range prev.blocks {
		if x.blocks[key] == nil {
			removed = b.appendTo(removed)
		}
	}
	slices.SortFunc(added, (*Entry).compare)
	slices.SortFunc(removed, (*Entry).compare)
	x.entries = splice(prev.entries, removed, added)
	x.dual = v4 > 0 && v6 > 0
	x.byNode = sync.OnceValues(x.splitByNode)
	return x
}

// port returns the target port by its name, or 0.
func (s *Slice) port(name string) uint16 {
	for _, p := range s.Ports {
		if p.Name == name {
			return p.Number
		}
	}
	return 0
}

func newBlock(key blockKey, q Query) *block {
	b := &block{blockKey: key}
	for i, e := range key.slice.Endpoints {
		if !e.Ready || q.Hostname != "" && e.Hostname != q.Hostname || e.Workload != nil && e.Addr.Is6() && !q.IPv6 {
			continue
		}
		b.entries = append(b.entries, Entry{Addr: netip.AddrPortFrom(e.Addr, key.port), Endpoint: e, block: b, index: i})
		if len(e.Hints) > 0 {
			b.hinted++
		}
		if e.Zone != "" {
			b.zoned++
		}
		if e.Workload != nil && e.Addr.Is4() {
			b.v4++
		} else if e.Workload != nil {
			b.v6++
		}
	}
	return b
}

func (b *block) appendTo(to []*Entry) []*Entry {
	for i := range b.entries {
		to = append(to, &b.entries[i])
	}
	return to
}

// compare is a total order over the entries of a Selection: by address, and where several claim one, the best claim first.
func (e *Entry) compare(o *Entry) int {
	if c := e.Addr.Compare(o.Addr); c != 0 || e == o {
		return c
	}
	eo, oo := e.block.origin, o.block.origin
	return cmp.Or(
		compareBools(eo.Stale, oo.Stale),
		compareBools(!eo.Home, !oo.Home),
		strings.Compare(string(eo.Cluster), string(oo.Cluster)),
		strings.Compare(eo.Namespace, oo.Namespace),
		strings.Compare(eo.Name, oo.Name),
		compareBools(!eo.Filtered, !oo.Filtered),
		e.Endpoint.Workload.compare(o.Endpoint.Workload),
		strings.Compare(e.block.slice.Name, o.block.slice.Name),
		cmp.Compare(e.index, o.index),
	)
}

func (w *Workload) compare(o *Workload) int {
	if w == nil || o == nil {
		return compareBools(w == nil, o == nil)
	}
	return cmp.Or(cmp.Compare(w.Kind, o.Kind), strings.Compare(w.Namespace, o.Namespace), strings.Compare(w.Name, o.Name))
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// splice returns base without removed and with added, all sorted. It copies base in runs between the few changes.
func splice(base, removed, added []*Entry) []*Entry {
	if len(removed) == 0 && len(added) == 0 {
		return base
	}
	out := make([]*Entry, 0, len(base)-len(removed)+len(added))
	for len(removed) > 0 || len(added) > 0 {
		remove := len(added) == 0 || len(removed) > 0 && removed[0].compare(added[0]) <= 0
		next := added
		if remove {
			next = removed
		}
		i, _ := slices.BinarySearchFunc(base, next[0], (*Entry).compare)
		out, base = append(out, base[:i]...), base[i:]
		if remove {
			base, removed = base[1:], removed[1:]
		} else {
			out, added = append(out, added[0]), added[1:]
		}
	}
	return append(out, base...)
}

// A Locality is as much of a client's place as an answer depends on.
type Locality struct{ Node, Zone string }

// Locality reduces a client's place to what the Selection depends on, so that clients with equal answers share them.
func (x *Selection) Locality(node, zone string) Locality {
	var l Locality
	if len(x.localOnly) > 0 {
		l.Node = node
	}
	if x.zoned || len(x.hinted) > 0 {
		l.Zone = zone
	}
	return l
}

// Near returns the addresses for a client at l: locality first, then address family, then one claim for each address. prev may
// be any earlier Set, or nil; if the result is equal to it, it is prev.
func (x *Selection) Near(l Locality, prev *Set) *Set {
	entries := x.entries
	if len(x.localOnly) > 0 {
		rest, byNode := x.byNode()
		entries = merge(rest, byNode[l.Node])
	}
	if here := x.hintedFor(l.Zone, entries); len(here) > 0 {
		entries = filter(entries, func(e *Entry) bool { return !here[e.block.origin] || slices.Contains(e.Endpoint.Hints, l.Zone) })
	}
	if x.dual {
		v6 := map[family]bool{}
		for _, e := range entries {
			if e.Endpoint.Workload != nil && e.Addr.Addr().Is6() {
				v6[e.family()] = true
			}
		}
		entries = filter(entries, func(e *Entry) bool {
			return e.Endpoint.Workload == nil || e.Addr.Addr().Is6() || !v6[e.family()]
		})
	}
	set := &Set{entries: slices.CompactFunc(slices.Clone(entries), func(a, b *Entry) bool { return a.Addr == b.Addr })}
	if prev != nil && slices.EqualFunc(prev.entries, set.entries, (*Entry).equal) {
		return prev
	}
	return set
}

// hintedFor returns the members for which the zone hints leave somebody in the zone; for others the hints do not count.
func (x *Selection) hintedFor(zone string, entries []*Entry) map[*Origin]bool {
	if len(x.hinted) == 0 || zone == "" {
		return nil
	}
	here := map[*Origin]bool{}
	for _, e := range entries {
		if o := e.block.origin; x.hinted[o] && !here[o] && slices.Contains(e.Endpoint.Hints, zone) {
			here[o] = true
		}
	}
	return here
}

// family names a workload in one cluster, whatever address family it is reached by.
type family struct {
	cluster         Cluster
	kind            WorkloadKind
	namespace, name string
}

func (e *Entry) family() family {
	w := e.Endpoint.Workload
	return family{e.block.origin.Cluster, w.Kind, w.Namespace, w.Name}
}

func (x *Selection) splitByNode() (rest []*Entry, byNode map[string][]*Entry) {
	byNode = map[string][]*Entry{}
	for _, e := range x.entries {
		switch {
		case !x.localOnly[e.block.origin]:
			rest = append(rest, e)
		case e.Endpoint.Node != "":
			byNode[e.Endpoint.Node] = append(byNode[e.Endpoint.Node], e)
		}
	}
	return rest, byNode
}

func filter(entries []*Entry, keep func(*Entry) bool) []*Entry {
	var out []*Entry
	for _, e := range entries {
		if keep(e) {
			out = append(out, e)
		}
	}
	return out
}

// merge returns the entries of a and b, which have none in common, in order.
func merge(a, b []*Entry) []*Entry {
	if len(a) == 0 {
		return b
	}
	return splice(a, nil, b)
}

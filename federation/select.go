package federation

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
)

// From a Snapshot to the addresses of a client.
//
// Select does what is the same for all clients that ask the same, and Answer what depends on where one of them is:
//
//	Snapshot --a member, a Slice--> blocks --a node--> parts --claims, shares, hints, best--> Set
//
// A block is what one Slice contributes: an Entry for each endpoint that answers the Query. It depends on its key and
// on the Slice, which is immutable, so that it is taken over from the Selection before as long as both are the same. A
// block that is made anew takes over the Entries of endpoints that are the same by pointer, and in the same order.
// Entries of one Slice are ordered by labels, numbers so far apart that others fit between two that stay.
//
// A part is the Entries that the same clients see, in order: one part for all of them, and one for each node on which
// something of a member with internalTrafficPolicy: Local runs. Blocks that are made anew report which Entries are
// gained and lost, and these are spliced into the parts that they concern. So a change costs what it changes, and the
// pointers of those parts.
//
// The order of Entries is total, and depends on nothing that changes from one Selection to the next. What does change,
// whether a cluster is Stale, counts only when a Set is made: of the claims to one address, which stand next to each
// other, one counts (claim.go). So a cluster that becomes Stale makes no Entry anew, and an address stays
// until the last claim to it is lost, without an index of addresses or a count of references. A Set shares the Entries
// of its part, and copies the pointers only where another claim than the first counts.
//
// All of it is pure: what is taken over from an earlier Selection is equal to what would be made without it.

// A Query is what a client asks of a Service.
type Query struct {
	Port     uint16 // 0: any that the Service does not declare; see [Snapshot.Declared]
	Hostname string // of one instance; empty for all
	IPv6     bool   // whether workloads are reached over IPv6, which is then preferred

	ControlPlane string // namespace of the mesh's control plane: a Pod of another one has no identity
	ZoneWeights  bool   // endpoints in the client's zone weigh ten times
}

// A Selection is a Snapshot reduced to the addresses that answer a Query, before anything is known of
// the client's place. Several claims to one address are all in it. It is immutable.
type Selection struct {
	snapshot *Snapshot
	query    Query
	protocol Transport // of the port
	blocks   map[blockKey]*block
	parts    map[part][]*Entry // sorted by Entry.compare

	local  bool             // of some members a client sees its own node only
	hinted map[*Origin]bool // members of which every address has zone hints
	stale  map[*Origin]bool // members whose clusters are
	zoned  bool             // an address has a zone
	v4, v6 bool             // workloads are claimed over IPv4, over IPv6

	divided   bool // a policy is in force
	divisions divisions

	counts    sync.Once
	conflicts map[Ref]int // guarded by counts; see Conflicts
}

// divisions are by the node of clients. A client may name any node, so all on which nothing of a Local member runs
// have one.
type divisions struct {
	mu     sync.Mutex // guards all below
	byNode map[string]*Division
	local  map[string]bool // nodes on which something of a Local member runs
}

// part is what a client must be to see an entry: on the node if local, and anything otherwise.
type part struct {
	local bool
	node  string
}

// An Entry is one claim to an address.
type Entry struct {
	Addr     netip.AddrPort // without a port where it is the one that is asked for
	Endpoint *Endpoint

	origin *Origin
	slice  string
	label  int64 // rises with the place in the slice
}

// At returns the address for a client of a port. An entry that is for any port has none of its own, so
// that all clients of a Service that ask for ports which it does not declare, of which there are many,
// share its entries.
func (e *Entry) At(port uint16) netip.AddrPort {
	if e.Addr.Port() != 0 {
		return e.Addr
	}
	return netip.AddrPortFrom(e.Addr.Addr(), port)
}

// Origin returns where the address comes from.
func (e *Entry) Origin() *Origin { return e.origin }

// block holds the entries that one Slice contributes.
type block struct {
	slice   *Slice
	entries []*Entry // in the order of the Slice
	hinted  int      // how many entries have hints
	waiting int      // endpoints that may be ready soon
	zoned   bool     // an entry has a zone
	v4, v6  bool     // an entry of a workload is of that family
}

// blockKey is everything that a block depends on, besides the Query and the content of the Slice.
type blockKey struct {
	origin *Origin
	slice  string
	port   uint16
	local  bool // internalTrafficPolicy counts, and is Local
}

// Select applies q to s. prev may be any earlier Selection of the same Query, or nil: what did not
// change since is taken over from it, so that the work is in proportion to the change. The result does
// not depend on prev.
func Select(s *Snapshot, q Query, prev *Selection) *Selection { return selectWith(s, q, prev, nil) }

// selectWith is Select that records what it leaves out.
func selectWith(snapshot *Snapshot, query Query, prev *Selection, trace *trace) *Selection {
	if prev == nil || prev.query != query {
		prev = &Selection{}
	}

	selection := &Selection{
		snapshot: snapshot,
		query:    query,
		protocol: snapshot.Transport(query.Port),
		blocks:   make(map[blockKey]*block, len(prev.blocks)),
		hinted:   map[*Origin]bool{},
		stale:    map[*Origin]bool{},
		divided:  snapshot.divides(query),
	}
	changes := changes{}

	for _, m := range snapshot.Members {
		if m.Stale {
			selection.stale[m.Origin] = true
		}
		if why := selection.leavesOut(m); why != Kept {
			trace.add(Verdict{Reason: why, Member: m})
			continue
		}
		selection.addMember(m, prev, changes, trace)
	}

	for key, b := range prev.blocks {
		if selection.blocks[key] == nil {
			changes.lose(key.local, b.entries...)
		}
	}
	selection.parts = changes.apply(prev.parts)
	return selection
}

// leavesOut returns why a member has no address that answers; Kept if it may have some.
func (x *Selection) leavesOut(member *Member) Reason {
	switch v := member.View; {
	case v == nil && !member.Known:
		return NeverSynced
	case v == nil && !member.Linked:
		return NotLinked
	case v == nil:
		return NoService
	case v.ExternalName:
		return Alias // whatever slices name it
	}

	if _, declared := member.View.PortOf(x.query.Port, x.protocol); !declared && x.snapshot.View.Composition != nil {
		return Undeclared // only a Service that stands for itself serves a port it does not declare
	}
	return Kept
}

// addMember adds what the slices of a member contribute.
func (x *Selection) addMember(member *Member, prev *Selection, changes changes, trace *trace) {
	declares, declared := member.View.PortOf(x.query.Port, x.protocol)
	local := member.Origin.Filtered && member.View.LocalOnly || x.snapshot.LocalOnly()
	x.local = x.local || local
	hinted, total := 0, 0

	trace.emptyMember(member)
	for _, slice := range member.View.Slices {
		port, leads := x.query.Port, len(slice.Ports) > 0
		if declared {
			port = slice.target(declares)
			leads = port != 0
		}
		if !leads {
			trace.noTarget(member, slice)
			continue
		}

		key := blockKey{member.Origin, slice.Name, port, local}
		block := prev.blocks[key]
		if block == nil || block.slice != slice {
			block = newBlock(key, slice, x.query, block, changes)
		}

		x.blocks[key] = block
		trace.block(member, port, block)
		hinted += block.hinted
		total += len(block.entries)
		x.zoned = x.zoned || block.zoned
		x.v4 = x.v4 || block.v4
		x.v6 = x.v6 || block.v6
	}

	if member.Origin.Filtered && !local && hinted == total && total > 0 {
		x.hinted[member.Origin] = true
	}
}

// target returns the number of the Service's port p at the endpoints, or 0.
func (s *Slice) target(p ServicePort) uint16 {
	if i := s.Target(p); i >= 0 {
		return s.Ports[i].Number
	}
	return 0
}

// Target returns which of the slice's Ports is the Service's port p: of its protocol, the one with its name, or where
// none has it (yet, after p was given another name) one with its number at the endpoints. It returns -1
// for none.
func (s *Slice) Target(p ServicePort) int {
	number := -1
	for i, own := range s.Ports {
		if own.Protocol != p.Protocol {
			continue
		}
		if own.Name == p.Name {
			return i
		}
		if own.Number == p.Target {
			number = i
		}
	}

	return number
}

// newBlock takes over from old, which may be nil, the entries of endpoints that are the same and in the
// same order.
func newBlock(key blockKey, slice *Slice, query Query, old *block, changes changes) *block {
	block := &block{slice: slice}
	if query.Hostname == "" { // else few
		block.entries = make([]*Entry, 0, len(slice.Endpoints))
	}

	var before []*Entry
	if old != nil {
		before = old.entries
	}
	places := cursor[*Endpoint, *Entry]{list: before, key: func(e *Entry) *Endpoint { return e.Endpoint }}
	passed, label := 0, noLabel // of before; of the last that was taken over
	var added []*Entry          // since then
	room := int64(1)            // that each of them needs

	for _, endpoint := range slice.Endpoints {
		if query.leavesOut(endpoint) != Kept {
			if query.waitsFor(endpoint) {
				block.waiting++
			}
			continue
		}

		at := places.find(endpoint)
		if at >= passed && (label == noLabel || before[at].label-label > room*int64(len(added))) {
			changes.lose(key.local, before[passed:at]...)
			number(added, label, before[at].label)
			passed, label, added, room = at+1, before[at].label, nil, 1
			block.entries = append(block.entries, before[at])
		} else {
			if at >= passed {
				room = labelRoom // it gets another label for want of room: let that last
			}
			addr := netip.AddrPortFrom(endpoint.Addr, key.port)
			entry := &Entry{Addr: addr, Endpoint: endpoint, origin: key.origin, slice: key.slice}
			block.entries, added = append(block.entries, entry), append(added, entry)
			changes.gain(key.local, entry)
		}

		block.noteEndpoint(endpoint)
	}

	number(added, label, noLabel)
	changes.lose(key.local, before[passed:]...)
	return block
}

func (b *block) noteEndpoint(e *Endpoint) {
	if len(e.Hints()) > 0 {
		b.hinted++
	}
	if e.Zone != (Name{}) {
		b.zoned = true
	}

	switch {
	case e.Workload == nil:
	case e.Addr.Is4():
		b.v4 = true
	default:
		b.v6 = true
	}
}

// Labels are far apart, so that others fit between two that stay.
const (
	noLabel   = int64(math.MinInt64)
	labelGap  = 1 << 32
	labelRoom = 1 << 20
)

// number labels entries between two others, either of which may be none.
func number(entries []*Entry, first, last int64) {
	gap, n := int64(labelGap), int64(len(entries))
	switch {
	case first == noLabel && last == noLabel:
		first = 0
	case first == noLabel:
		first = last - (n+1)*gap
	case last != noLabel:
		gap = min(gap, (last-first)/(n+1))
	}
	for i, e := range entries {
		e.label = first + int64(i+1)*gap
	}
}

// leavesOut returns why an endpoint does not answer the Query, wherever the client is; Kept if it does.
func (q *Query) leavesOut(e *Endpoint) Reason {
	if !e.Ready {
		return NotReady
	}
	return q.isNotFor(e)
}

// isNotFor returns why an endpoint would not answer the Query even if it is ready.
func (q *Query) isNotFor(e *Endpoint) Reason {
	switch {
	case q.Hostname != "" && e.Hostname() != q.Hostname:
		return OtherHostname
	case e.Workload != nil && e.Addr.Is6() && !q.IPv6:
		return IPv6Off
	default:
		return Kept
	}
}

// waitsFor reports whether an endpoint would answer the Query if it were ready, and may be so soon.
func (q *Query) waitsFor(e *Endpoint) bool {
	return !e.Ready && !e.Terminating && q.isNotFor(e) == Kept
}

// changes collects, for each part, the entries that it gains and loses.
type changes map[part]*change

type change struct{ gained, lost []*Entry }

func (c changes) gain(local bool, e *Entry) {
	if of := c.changeOf(local, e); of != nil {
		of.gained = append(of.gained, e)
	}
}

func (c changes) lose(local bool, entries ...*Entry) {
	for _, e := range entries {
		if of := c.changeOf(local, e); of != nil {
			of.lost = append(of.lost, e)
		}
	}
}

// changeOf returns the change of the part that e is in; nil for none.
func (c changes) changeOf(local bool, e *Entry) *change {
	p, some := e.part(local)
	if !some {
		return nil
	}
	if c[p] == nil {
		c[p] = &change{}
	}
	return c[p]
}

// part returns the part that e is in. What runs on no node of the clients' cluster is local to no client.
func (e *Entry) part(local bool) (p part, some bool) {
	if !local {
		return part{}, true
	}
	if !e.origin.Home || !e.isPod() {
		return part{}, false
	}
	return part{true, e.Endpoint.Node.String()}, true
}

func (e *Entry) isPod() bool { return e.Endpoint.Workload != nil && e.Endpoint.Workload.Kind() == Pod }

func (c changes) apply(parts map[part][]*Entry) map[part][]*Entry {
	if len(c) == 0 {
		return parts
	}

	next := make(map[part][]*Entry, len(parts))
	maps.Copy(next, parts)
	for p, change := range c {
		slices.SortFunc(change.gained, (*Entry).compareClaims)
		slices.SortFunc(change.lost, (*Entry).compareClaims)
		if next[p] = splice(next[p], change.lost, change.gained); len(next[p]) == 0 {
			delete(next, p)
		}
	}
	return next
}

// splice returns base without removed and with added, all sorted. It copies base in runs between the
// few changes.
func splice(base, removed, added []*Entry) []*Entry {
	if len(removed) == 0 && len(added) == 0 {
		return base
	}

	out := make([]*Entry, 0, len(base)-len(removed)+len(added))
	for len(removed) > 0 || len(added) > 0 {
		remove := len(added) == 0 || len(removed) > 0 && removed[0].compareClaims(added[0]) <= 0
		next := added
		if remove {
			next = removed
		}

		i, _ := slices.BinarySearchFunc(base, next[0], (*Entry).compareClaims)
		out, base = append(out, base[:i]...), base[i:]
		if remove {
			base, removed = base[1:], removed[1:]
		} else {
			out, added = append(out, added[0]), added[1:]
		}
	}

	return append(out, base...)
}

// merged returns the entries of two lists in one, all sorted.
func merged(a, b []*Entry) []*Entry {
	if len(a) < len(b) {
		a, b = b, a
	}
	return splice(a, nil, b)
}

// A Place is where a client runs; empty fields are not known. Where traffic is divided, Sixteenth decides how many
// endpoints of each cluster the client gets, and Bucket which ones; the Division depends on neither.
type Place struct {
	Node, Zone string
	Bucket     uint8 // see policy.BucketOf
	Sixteenth  uint8 // of all clients
}

// Reduce drops from a client's place what no answer from the Selection depends on, so that clients with
// equal answers share them.
func (x *Selection) Reduce(place Place) Place {
	if !x.local {
		place.Node = ""
	}
	if !x.zoned && len(x.hinted) == 0 {
		place.Zone = ""
	}
	if !x.divided {
		place.Bucket, place.Sixteenth = 0, 0
		return place
	}

	d := x.divisionAt(place.Node)
	if !d.divided {
		place.Bucket = 0
	}
	place.Sixteenth = d.first(place.Sixteenth)
	return place
}

// At returns the Set for clients at a place: those that stay for the place first, then one claim for each
// address. prev may be any earlier Set, or nil; if the result is equal to it, it is prev.
func (x *Selection) At(p Place, prev *Set) *Set {
	set := x.newSet(p, x.near(p, nil))
	if add, remove := Diff(prev, set); prev != nil && len(add)+len(remove) == 0 {
		return prev
	}
	return set
}

// newSet returns the Set of some claims for clients at a place. It copies them only if it is another claim
// than the first in order that counts for an address.
func (x *Selection) newSet(p Place, entries []*Entry) *Set {
	set := &Set{entries: entries, lens: lens{p.Zone, x.query.ZoneWeights}}
	for i, next := 0, 0; i < len(entries); i = next {
		var best int
		best, next = x.best(entries, i)
		if best != i {
			if &set.entries[0] == &entries[0] {
				set.entries = slices.Clone(entries)
			}
			copy(set.entries[i+1:], entries[i:best])
			set.entries[i] = entries[best]
		}
		set.size++
	}

	return set
}

// claims returns every claim that clients on a node can have.
func (x *Selection) claims(node string) []*Entry {
	return merged(x.parts[part{}], x.parts[part{true, node}])
}

// near returns every claim that is left for clients at a place. leaveOut, if it is not nil, gets what is left
// out, and why.
func (x *Selection) near(p Place, leaveOut func(*Entry, Reason)) []*Entry {
	entries := x.claims(p.Node)
	if x.divided {
		entries = x.given(p, entries, leaveOut)
	}
	entries = leaving(entries, x.hintedFor(p, entries), OtherZone, leaveOut)
	return leaving(entries, x.overIPv6(entries), OverIPv6, leaveOut)
}

// leaving returns the entries that are kept; nil keeps all.
func leaving(entries []*Entry, keep func(*Entry) bool, why Reason, leaveOut func(*Entry, Reason)) []*Entry {
	if keep == nil {
		return entries
	}
	left := make([]*Entry, 0, len(entries))
	for _, e := range entries {
		if keep(e) {
			left = append(left, e)
		} else if leaveOut != nil {
			leaveOut(e, why)
		}
	}
	return left
}

// hintedFor keeps, of members for whose addresses the zone hints leave some to the client's zone, only
// those; for others the hints do not count. nil keeps all.
func (x *Selection) hintedFor(place Place, entries []*Entry) func(*Entry) bool {
	if len(x.hinted) == 0 || place.Zone == "" {
		return nil
	}
	here := map[*Origin]bool{}
	for _, e := range entries {
		if o := e.origin; x.hinted[o] && !here[o] && slices.Contains(e.Endpoint.Hints(), place.Zone) {
			here[o] = true
		}
	}

	if len(here) == 0 {
		return nil
	}
	return func(e *Entry) bool { return !here[e.origin] || slices.Contains(e.Endpoint.Hints(), place.Zone) }
}

// overIPv6 keeps the IPv6 addresses only of workloads that have both families. nil keeps all.
func (x *Selection) overIPv6(entries []*Entry) func(*Entry) bool {
	if !x.dual() {
		return nil
	}
	v6 := map[family]bool{}
	for _, e := range entries {
		if e.Endpoint.Workload != nil && e.Addr.Addr().Is6() {
			v6[e.family()] = true
		}
	}
	return func(e *Entry) bool { return e.Endpoint.Workload == nil || e.Addr.Addr().Is6() || !v6[e.family()] }
}

// dual reports whether workloads are claimed in both families.
func (x *Selection) dual() bool { return x.v4 && x.v6 }

// family names a workload in one cluster, whatever address family it is reached by.
type family struct {
	cluster         Cluster
	kind            WorkloadKind
	namespace, name string
}

func (e *Entry) family() family {
	w := e.Endpoint.Workload
	return family{e.origin.Cluster, w.Kind(), w.Namespace(), w.Name}
}

package federation

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Which of several claims to an address counts, for streams and for slices: an address is never given to two
// clusters, and never twice to one.
//
//	of each cluster the claim in the best condition --rank--> the one that counts
//
// Within a cluster one address is one Pod's: where two claim it, one has gone, and its endpoint hangs in Terminating,
// or a slice is behind. So of a cluster's claims only those in the best condition stand: ready before not ready, not
// terminating before terminating, serving before not serving. Who has a name or an identity does not matter before
// that: traffic would be encrypted for a Pod that does not answer there any more.
//
// Between clusters conditions do not decide who has the address, but that it can be used: a claim that is ready
// comes first. Then the Service's own cluster does, which knows best who is at an address of its network. Of others
// one that names an identity is next, whatever the state of its cluster: else any cluster could take the encryption
// off other clusters' Pods by claiming their addresses. A copy is no claim of its own: a cluster that states that
// it has an endpoint from another one does not know who is there, and is like any other cluster, be it the
// Service's own (docs/decisions/0013-a-copy-that-is-marked-is-no-claim-of-its-own.md).
//
// Claims are sorted so that those of a cluster stand together, the best condition first. So one walk finds the one
// that counts, however many there are. Nothing in that order changes from one Selection to the next; what does, which
// cluster is Stale, is in the rank.
//
// Example: Pods old and new of east have 10.1.0.1, old is terminating; the Service's cluster has a bare copy of it
// and west a bare claim. East stands for new. The copy ranks notHome|unproven|copied, new notHome, west's
// notHome|unproven: new counts.

// What makes a condition worse, the worst last.
const (
	unserving = 1 << iota
	terminates
	unready
)

// wear is lower the better the condition of an endpoint is.
func (e *Endpoint) wear() (wear int) {
	if !e.Serving {
		wear |= unserving
	}
	if e.Terminating {
		wear |= terminates
	}
	if !e.Ready {
		wear |= unready
	}
	return wear
}

// What makes a claim worse, the worst last.
const (
	unfiltered = 1 << iota
	fromStale
	copied
	unproven
	notHome
	notReady
)

// rank is lower the better a claim is; of equal ones the first in order counts.
func (x *Selection) rank(entry *Entry) (rank int) {
	if !entry.Endpoint.Ready {
		rank |= notReady
	}
	if !entry.origin.Home || entry.Endpoint.Copied {
		rank |= notHome
	}
	if !x.query.proven(entry) {
		rank |= unproven
	}

	if entry.Endpoint.Copied {
		rank |= copied
	}
	if x.stale[entry.origin] {
		rank |= fromStale
	}
	if !entry.origin.Filtered {
		rank |= unfiltered
	}
	return rank
}

// compareClaims is a total order over the entries of a Selection: by address, and of several claims to one those of a
// cluster together, the Service's own first, in the order of their conditions. It depends on nothing that changes
// from one Selection to the next.
func (e *Entry) compareClaims(other *Entry) int {
	if c := e.Addr.Compare(other.Addr); c != 0 || e == other {
		return c
	}
	if c := compareFalseFirst(!e.origin.Home, !other.origin.Home); c != 0 {
		return c
	}

	return cmp.Or(
		strings.Compare(string(e.origin.Cluster), string(other.origin.Cluster)),
		cmp.Compare(e.Endpoint.wear(), other.Endpoint.wear()),
		compareFalseFirst(!e.origin.Filtered, !other.origin.Filtered),
		strings.Compare(e.origin.Namespace, other.origin.Namespace),
		strings.Compare(e.origin.Name, other.origin.Name),
		e.Endpoint.Workload.compareWorkloads(other.Endpoint.Workload),
		strings.Compare(e.slice, other.slice),
		cmp.Compare(e.label, other.label),
	)
}

func compareFalseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// compareWorkloads puts workloads in order, and behind them whatever is none.
func (w *Workload) compareWorkloads(other *Workload) int {
	switch {
	case w == other:
		return 0
	case w == nil:
		return 1
	case other == nil:
		return -1
	}

	return cmp.Or(
		cmp.Compare(w.Kind(), other.Kind()),
		strings.Compare(w.Namespace(), other.Namespace()),
		strings.Compare(w.Name, other.Name),
	)
}

// best returns which of the claims to an address counts, of which the first is at i, and where those to
// the next address begin.
func (x *Selection) best(entries []*Entry, i int) (best, next int) {
	best = i
	ofCluster := entries[i] // the first, which is in the best condition
	for next = i + 1; next < len(entries) && entries[next].Addr == entries[i].Addr; next++ {
		e := entries[next]
		if e.origin.Cluster != ofCluster.origin.Cluster {
			ofCluster = e
		}
		if e.Endpoint.wear() == ofCluster.Endpoint.wear() && x.rank(e) < x.rank(entries[best]) {
			best = next
		}
	}
	return best, next
}

// A Claim is that of an Endpoint of a member to its address, at a port.
type Claim struct {
	Member *Member
	Slice  *Slice
	Index  int // of the Endpoint in the Slice
	Port   uint16
}

// Endpoint returns the endpoint that claims the address.
func (c Claim) Endpoint() *Endpoint { return c.Slice.Endpoints[c.Index] }

// entry returns the claim as an Entry at a port, which is not for a Selection.
func (c Claim) entry(port uint16) *Entry {
	e := c.Endpoint()
	return &Entry{
		Addr: netip.AddrPortFrom(e.Addr, port), Endpoint: e,
		origin: c.Member.Origin, slice: c.Slice.Name, label: int64(c.Index),
	}
}

// Winners returns of some claims of its members, ready or not, those that count for their addresses: one for each
// address, the one that a Selection has, if it is ready. It does not write to claims.
func (s *Snapshot) Winners(q Query, claims []Claim) []Claim {
	selection := Selection{query: q, stale: map[*Origin]bool{}}
	entries, of := make([]*Entry, 0, len(claims)), make(map[*Entry]Claim, len(claims))
	for _, c := range claims {
		selection.stale[c.Member.Origin] = c.Member.Stale
		e := c.entry(c.Port)
		entries = append(entries, e)
		of[e] = c
	}

	slices.SortFunc(entries, (*Entry).compareClaims)
	var winners []Claim
	for i, next := 0, 0; i < len(entries); i = next {
		var best int
		best, next = selection.best(entries, i)
		winners = append(winners, of[entries[best]])
	}
	return winners
}

// Conflicts returns, for each member, how many of its claims to an address do not count because another
// cluster publishes something else of the address, wherever the client is. Clusters that publish the
// same of an address do not contradict each other, and neither does who copies. The result is not to be written to.
func (x *Selection) Conflicts() map[Ref]int {
	x.counts.Do(func() { x.conflicts = x.countConflicts() })
	return x.conflicts
}

func (x *Selection) countConflicts() map[Ref]int {
	entries := slices.Concat(slices.Collect(maps.Values(x.parts))...)
	slices.SortFunc(entries, (*Entry).compareClaims)
	conflicts := map[Ref]int{}

	for i, next := 0, 0; i < len(entries); i = next {
		var best int
		best, next = x.best(entries, i)
		winner := entries[best]
		for _, e := range entries[i:next] {
			other := e.origin.Cluster != winner.origin.Cluster && !e.Endpoint.Copied
			if other && !e.Endpoint.equalAt(e.Addr.Port(), winner.Endpoint) {
				conflicts[e.origin.Ref]++
			}
		}
	}
	return conflicts
}

// proven reports whether a client learns of an identity that the server must have. Ports that a Pod's
// proxy skips do not count where a Service does not declare the port: such ports share their entries.
func (q *Query) proven(e *Entry) bool {
	switch w := e.Endpoint.Workload; {
	case w == nil:
		m := e.Endpoint.Mirror()
		return m != nil && m.Identity != ""
	case w.Kind() == ExternalWorkload:
		t := w.Template()
		return t.Identity != "" && t.ServerName != "" && e.origin.Trusts(w)
	default:
		return w.Identity(q.ControlPlane, e.origin.TrustDomain) != "" &&
			!w.Template().Skip.Contains(e.Addr.Port())
	}
}

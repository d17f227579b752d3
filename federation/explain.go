package federation

import (
	"net/netip"
	"slices"
)

// A Reason is why a client does not get an address that a cluster publishes. The zero Reason, Kept, means that
// it does.
type Reason uint8

// The reasons, in the order in which they are looked at.
const (
	Kept Reason = iota

	// About all addresses of a member.
	NeverSynced // its cluster was never synced
	NotLinked   // its cluster is not linked
	NoService   // its cluster has no such Service
	Alias       // the Service is an ExternalName, which has no addresses
	Undeclared  // the Service does not declare the port, and a part of another Service must
	NoEndpoints // it has none

	// About a Slice.
	NoTarget // it has no port of the name, or else of the number, that the Service's port has

	// About an Endpoint.
	NotReady
	OtherHostname    // it is not the instance that was asked for
	IPv6Off          // it is a workload's IPv6 address, and those are not used
	NoNode           // the Service is for clients on the same node, and this runs on none
	OtherNode        // the Service is for clients on the same node, and this runs on another
	LowerTier        // others, which the Service prefers, can carry the traffic
	Drained          // its cluster is drained
	StaleAfterOthers // its cluster is Stale, and others are not
	OverShare        // of its cluster others are enough for its share of the traffic
	OtherZone        // it has zone hints, others are hinted for the client's zone
	OverIPv6         // the same workload is reached over IPv6
	Duplicate        // another claim to the same address counts
)

// String returns the reason in a few words.
func (r Reason) String() string {
	return [...]string{
		"included", "cluster not synced yet", "cluster not linked", "no such Service", "ExternalName",
		"port not declared", "no endpoints", "port not in slice", "not ready", "other hostname", "IPv6 off",
		"not a Pod, Service is Local", "other node, Service is Local",
		"lower tier", "drained", "stale, last", "over its share", "topology hints: other zone",
		"reached over IPv6", "duplicate",
	}[r]
}

// A Verdict is what becomes of one claim: of an Endpoint, or of all of a Slice or a member for one Reason.
type Verdict struct {
	Reason   Reason
	Member   *Member
	Slice    *Slice    // nil: all of the member
	Endpoint *Endpoint // nil: all of the Slice

	Held   bool           // the cluster has withdrawn the Endpoint
	Addr   netip.AddrPort // of the Endpoint
	Entry  *Entry         // nil if the Endpoint does not answer the Query, wherever the client is
	Winner *Entry         // of a Duplicate: the claim that counts
	For    string         // of a Duplicate: why that one does
}

// Explain returns what becomes of every address of a Snapshot's members for a Query of a client at a place: an
// address is in the Set that Select and At make of the Snapshot exactly if a Verdict on it is Kept. It costs as much
// as a Select without an earlier result.
func Explain(snapshot *Snapshot, query Query, place Place) []Verdict {
	trace := &trace{query: query, written: map[*Member]map[netip.Addr]bool{}}
	selection := selectWith(snapshot, query, nil, trace)
	lost, in := map[*Entry]Reason{}, map[*Entry]bool{}
	left := selection.near(place, func(e *Entry, why Reason) { lost[e] = why })
	for _, e := range left {
		in[e] = true
	}

	for i := range trace.verdicts {
		verdict := &trace.verdicts[i]
		if verdict.Entry == nil {
			continue
		}

		among := left
		switch _, somewhere := verdict.Entry.part(true); {
		case in[verdict.Entry]:
		case lost[verdict.Entry] == Duplicate:
			among = selection.claims(place.Node) // the claim that counts may be left out as well, for another reason
		case lost[verdict.Entry] != Kept:
			verdict.Reason = lost[verdict.Entry]
			continue
		case somewhere, verdict.Entry.isPod(): // in a part that was not looked at, or in another cluster
			verdict.Reason = OtherNode
			continue
		default:
			verdict.Reason = NoNode
			continue
		}

		if winner := selection.winner(among, verdict.Entry); winner != verdict.Entry {
			verdict.Reason, verdict.Winner, verdict.For = Duplicate, winner, selection.preference(winner, verdict.Entry)
		}
	}
	return trace.verdicts
}

// preference returns why one claim to an address counts before another.
func (x *Selection) preference(winner, loser *Entry) string {
	sameCluster := winner.origin.Cluster == loser.origin.Cluster

	worn := winner.Endpoint.wear() ^ loser.Endpoint.wear()
	switch differ := x.rank(winner) ^ x.rank(loser); {
	case sameCluster && worn&terminates != 0:
		return "the other is terminating"
	case sameCluster && worn&unserving != 0:
		return "the other does not serve"
	case differ&notHome != 0:
		return "it is of this cluster"
	case differ&unproven != 0:
		return "it has an identity"
	case differ&copied != 0:
		return "the other is a copy"
	case differ&fromStale != 0:
		return "its cluster is in contact"
	default:
		return "it is the first in order"
	}
}

// A trace records what selectWith leaves out of members and slices. A nil trace records nothing.
type trace struct {
	query    Query
	verdicts []Verdict                       // in the order of members, Slices and Endpoints
	written  map[*Member]map[netip.Addr]bool // that are ready, of Members of which some are Held
}

func (t *trace) add(v Verdict) {
	if t != nil {
		t.verdicts = append(t.verdicts, v)
	}
}

// emptyMember records that a member has no endpoints. Slices of Services without Pods have no ports either, which is of
// no interest then.
func (t *trace) emptyMember(member *Member) {
	filled := func(s *Slice) bool { return len(s.Endpoints) > 0 }
	if t != nil && !slices.ContainsFunc(member.View.Slices, filled) {
		t.add(Verdict{Reason: NoEndpoints, Member: member})
	}
}

// noTarget records that a Slice with endpoints does not have the port.
func (t *trace) noTarget(member *Member, slice *Slice) {
	if len(slice.Endpoints) > 0 {
		t.add(Verdict{Reason: NoTarget, Member: member, Slice: slice})
	}
}

func (t *trace) block(member *Member, port uint16, block *block) {
	if t == nil {
		return
	}
	entries := block.entries
	if member.Held > 0 && t.written[member] == nil {
		t.written[member] = member.Written.readyAddresses()
	}

	for _, e := range block.slice.Endpoints {
		v := Verdict{
			Reason: t.query.leavesOut(e), Addr: netip.AddrPortFrom(e.Addr, port),
			Member: member, Slice: block.slice, Endpoint: e,
			Held: member.Held > 0 && e.Ready && !t.written[member][e.Addr],
		}
		if v.Reason == Kept {
			v.Entry, entries = entries[0], entries[1:]
		}
		t.verdicts = append(t.verdicts, v)
	}
}

package federation

import (
	"math/bits"
	"net/netip"
	"slices"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// Where a policy is in force, each cluster has a share of a Service's traffic, and clients are given as many of its
// endpoints as the share is worth (policy.Shares). This comes before zone hints and address families, which then
// choose among what was given; of several claims to an address the best one is given, or none. What a client cannot
// have wherever it stands does not count: of a member with internalTrafficPolicy: Local it is what runs on the
// client's node that is ready or not. Hostnames are not divided: a client that asks for an instance gets it.
//
// All of it is in a division, computed when the first client needs it, once for a Selection, or for a node where a
// member is Local. Clients get the entries of whole clusters, which all share, and of each divided cluster the few that
// score highest in their bucket: how many depends on the sixteenth. Without a policy there is no division, and
// nothing is computed.

// division is what clients at the places that see the same claims get of each cluster.
type division struct {
	portions []*portion // in the order of the members
	of       map[*Origin]*portion
	whole    bool     // everything is given
	divided  bool     // clients get different endpoints
	borders  uint16   // bit n: the clients of sixteenth n get more than those before
	fixed    []*Entry // of the clusters of which all is given
}

// portion is what there is of one cluster, and its share.
type portion struct {
	ClusterShare
	whole   bool     // all of it is given
	entries []*Entry // those that count, by address
}

// divides reports whether a policy is in force for the answers to a Query.
func (s *Snapshot) divides(q Query) bool {
	if !s.Federated() || q.Hostname != "" {
		return false
	}
	return s.View.Policy != nil || slices.ContainsFunc(s.Members, func(m *Member) bool {
		part := m.Part()
		return part.IsForced()
	})
}

// Divided reports whether a policy divides the traffic of the Service between clusters.
func (s *Snapshot) Divided() bool { return s.divides(Query{}) }

// Part returns what decides about the share of a member's cluster, without its endpoints.
func (m *Member) Part() policy.Member {
	c := policy.Member{Cluster: string(m.Origin.Cluster), Home: m.Origin.Home, Near: m.Near, Stale: m.Stale}
	if m.Policy != nil {
		c.Policy = *m.Policy
	}
	return c
}

// elsewhere stands for the nodes on which nothing of a Local member runs; no node has such a name.
const elsewhere = "/"

// divisionAt returns the division for clients on a node.
func (x *Selection) divisionAt(node string) *division {
	all := &x.divisions
	all.mu.Lock()
	defer all.mu.Unlock()

	if all.byNode == nil {
		all.byNode, all.local = map[string]*division{}, x.localNodes()
	}
	if !all.local[node] {
		node = elsewhere
	}
	if all.byNode[node] == nil {
		all.byNode[node] = x.newDivision(node)
	}
	return all.byNode[node]
}

// localNodes returns the nodes on which something of a Local member runs, ready or not.
func (x *Selection) localNodes() map[string]bool {
	nodes := map[string]bool{}
	for key, b := range x.blocks {
		if !key.local {
			continue
		}
		for _, e := range b.slice.Endpoints {
			entry := Entry{Endpoint: e, origin: key.origin}
			if at, somewhere := entry.part(true); somewhere {
				nodes[at.node] = true
			}
		}
	}

	return nodes
}

func (x *Selection) newDivision(node string) *division {
	division := &division{of: map[*Origin]*portion{}, whole: true}
	byCluster := map[Cluster]*portion{}
	for _, m := range x.snapshot.Members {
		c := byCluster[m.Origin.Cluster]
		if c == nil {
			c = &portion{ClusterShare: ClusterShare{Member: m.Part()}}
			division.portions = append(division.portions, c)
			byCluster[m.Origin.Cluster] = c
		}
		division.of[m.Origin] = c
	}

	families := x.addReady(division, node)
	x.addWaiting(division, node, families)
	division.addShares(x.snapshot.View)
	return division
}

// addShares sets the share of each cluster under the policy of a Service, whose View may be nil.
func (d *division) addShares(v *View) {
	var of *policy.Service
	if v != nil {
		of = v.Policy
	}
	members := make([]policy.Member, len(d.portions))
	for i, c := range d.portions {
		members[i] = c.Member
	}

	for i, share := range policy.Shares(of, members) {
		c := d.portions[i]
		c.Share, c.whole = share, share.Given(0) == c.Ready
		d.whole = d.whole && c.whole
		d.divided = d.divided || share.Divided(c.Ready)
		d.borders |= 1 << share.From()
		if c.whole {
			d.fixed = merged(d.fixed, c.entries)
		}
	}
}

// first returns the first sixteenth whose clients get as many endpoints of each cluster as those of another one.
func (d *division) first(sixteenth uint8) uint8 {
	before := d.borders & (1<<(sixteenth+1) - 1)
	return uint8(bits.Len16(before|1)) - 1
}

// addReady adds to each cluster what is ready of it, and returns the workloads that are among this, where some have
// both families.
func (x *Selection) addReady(division *division, node string) map[family]bool {
	entries := x.claims(node)
	overIPv6, families := x.overIPv6(entries), map[family]bool{}

	for i, next := 0, 0; i < len(entries); i = next {
		var best int
		best, next = x.best(entries, i)
		entry := entries[best]
		if overIPv6 != nil {
			if !overIPv6(entry) {
				continue
			}
			if entry.Endpoint.Workload != nil {
				families[entry.family()] = true
			}
		}

		c := division.of[entry.origin]
		c.entries = append(c.entries, entry)
	}

	for _, c := range division.portions {
		c.Ready, c.All = len(c.entries), len(c.entries)
	}
	return families
}

// addWaiting adds to each cluster what may be ready soon: of a workload that has both families one address.
func (x *Selection) addWaiting(division *division, node string, families map[family]bool) {
	for key, b := range x.blocks {
		portion := division.of[key.origin]
		if !x.dual() && !key.local {
			portion.All += b.waiting
			continue
		}

		for _, e := range b.slice.Endpoints {
			entry := Entry{Endpoint: e, origin: key.origin}
			at, somewhere := entry.part(key.local)
			if !x.query.waitsFor(e) || !somewhere || key.local && at.node != node {
				continue
			}

			if x.dual() && e.Workload != nil {
				if families[entry.family()] {
					continue
				}
				families[entry.family()] = true
			}
			portion.All++
		}
	}
}

// given returns those of all claims that clients at a place get by the shares of clusters. leaveOut, if it is not
// nil, gets the others.
func (x *Selection) given(p Place, entries []*Entry, leaveOut func(*Entry, Reason)) []*Entry {
	division := x.divisionAt(p.Node)
	if division.whole {
		return entries
	}

	given := division.fixed
	for _, c := range division.portions {
		if n := c.Given(p.Sixteenth); n > 0 && !c.whole {
			given = merged(given, c.choose(n, p.Bucket))
		}
	}
	if leaveOut != nil {
		x.explainGiven(division, entries, given, leaveOut)
	}
	return given
}

// explainGiven calls leaveOut for those of all claims that are not given.
func (x *Selection) explainGiven(d *division, entries, given []*Entry, leaveOut func(*Entry, Reason)) {
	in, counts := map[*Entry]bool{}, map[*Entry]*portion{}
	for _, e := range given {
		in[e] = true
	}
	for _, c := range d.portions {
		for _, e := range c.entries {
			counts[e] = c
		}
	}

	for _, e := range entries {
		c := counts[e]
		switch {
		case in[e]:
		case c != nil:
			leaveOut(e, c.Reason())
		case x.winner(entries, e) == e:
			leaveOut(e, OverIPv6)
		default:
			leaveOut(e, Duplicate)
		}
	}
}

// winner returns the claim that counts for the address of e.
func (x *Selection) winner(entries []*Entry, e *Entry) *Entry {
	i, _ := slices.BinarySearchFunc(entries, e.Addr, func(o *Entry, addr netip.AddrPort) int {
		return o.Addr.Compare(addr)
	})
	best, _ := x.best(entries, i)
	return entries[best]
}

// choose returns count of the cluster's entries for the clients of a bucket.
func (c *portion) choose(count int, bucket uint8) []*Entry {
	if count >= len(c.entries) {
		return c.entries
	}
	scores := make([]uint64, len(c.entries))
	for i, e := range c.entries {
		scores[i] = policy.Score(e.Endpoint.Addr, bucket)
	}

	lowest := nth(slices.Clone(scores), count)
	ties := count
	for _, s := range scores {
		if s > lowest {
			ties--
		}
	}

	chosen := make([]*Entry, 0, count)
	for i, e := range c.entries {
		if scores[i] < lowest || scores[i] == lowest && ties == 0 {
			continue
		}
		if scores[i] == lowest {
			ties--
		}
		chosen = append(chosen, e)
	}
	return chosen
}

// nth returns which of some numbers has a rank, 1 being that of the highest, in time that grows with how many there
// are. It puts them in another order.
func nth(of []uint64, rank int) uint64 {
	for {
		pivot, left, right := of[len(of)/2], 0, len(of)-1
		for left <= right {
			for of[left] > pivot {
				left++
			}
			for of[right] < pivot {
				right--
			}
			if left <= right {
				of[left], of[right] = of[right], of[left]
				left, right = left+1, right-1
			}
		}

		switch { // of[:right+1] >= pivot, of[left:] <= pivot, and what is between is the pivot
		case rank <= right+1:
			of = of[:right+1]
		case rank > left:
			of, rank = of[left:], rank-left
		default:
			return pivot
		}
	}
}

// A ClusterShare is what decides about one cluster's part in the traffic of a Service, and what follows.
type ClusterShare struct {
	policy.Member
	policy.Share
}

// Reason returns why clients do not get an endpoint of the cluster that is ready.
func (s *ClusterShare) Reason() Reason {
	switch {
	case s.Serves():
		return OverShare
	case s.Class == policy.DrainedOut:
		return Drained
	case s.Class != policy.Regular:
		return StaleAfterOthers
	case s.LeftOut || s.Load == 0:
		return LowerTier
	default:
		return OverShare
	}
}

// Shares returns the share of each cluster for clients at a place, in the order of the members. It is all of
// what is ready where no policy is in force.
func (x *Selection) Shares(p Place) []ClusterShare {
	d := x.divisionAt(p.Node)
	all := make([]ClusterShare, len(d.portions))
	for i, c := range d.portions {
		all[i] = c.ClusterShare
	}
	return all
}

// Divided reports whether a policy is in force for the answers.
func (x *Selection) Divided() bool { return x.divided }

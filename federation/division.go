package federation

import (
	"net/netip"
	"slices"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// How the traffic of a Service is divided between clusters: for streams, for slices, and for every other reader.
//
//	claims --one cluster has an address--> what is ready of each cluster, and may be soon --> shares
//
// Of several claims to an address one counts (claim.go), so that no address is of two clusters. How many endpoints each
// cluster has decides about its tier and its part (policy.Shares). A Division has both, and all that is ready of each
// cluster; nothing of it depends on a client's bucket. How it is presented is up to the reader. Linkerd's proxies
// spread requests evenly, so a stream gives as many endpoints as the part is worth, and a fraction of one to some
// sixteenths of the clients (share.go). Readers of slices are in no bucket: slices round it.
//
// What is counted differs, and has to. A stream is about one port, and a workload that has both families is one
// endpoint of it. A slice is about addresses, at whatever ports, of one family, whose readers do not see the other's.
//
// Example: a Service prefers west before all others. Three Pods of west have IPv4 only, three of east have both
// families. In a stream over both each cluster has three endpoints, and west carries everything. In slices of IPv4 it
// does as well. In those of IPv6 west has nothing, so east serves. By the stream's shares they would be empty.

// A Division is what there is of a Service in each cluster, and the cluster's share of the traffic. It is immutable.
type Division struct {
	Portions []*Portion // one a cluster, in the order of the members

	of map[*Origin]*Portion

	// What clients in buckets are given; see addBuckets.
	whole   bool     // everything is given
	divided bool     // clients get different endpoints
	borders uint16   // bit n: the clients of sixteenth n get more than those before
	fixed   []*Entry // of the clusters of which all is given
}

// A Portion is what there is of one cluster, and its share: Tier is its priority, and Share its part.
type Portion struct {
	ClusterShare
	Entries []*Entry // that are ready and count, by address

	whole bool // all of it is given to clients in buckets
}

// Part returns what decides about the share of a member's cluster, without its endpoints.
func (m *Member) Part() policy.Member {
	c := policy.Member{Cluster: string(m.Origin.Cluster), Home: m.Origin.Home, Near: m.Near, Stale: m.Stale}
	if m.Policy != nil {
		c.Policy = *m.Policy
	}
	return c
}

// newDivision returns a Division in which no cluster has anything yet.
func (s *Snapshot) newDivision() *Division {
	division := &Division{of: map[*Origin]*Portion{}}
	byCluster := map[Cluster]*Portion{}
	for _, m := range s.Members {
		c := byCluster[m.Origin.Cluster]
		if c == nil {
			c = &Portion{ClusterShare: ClusterShare{Member: m.Part()}}
			division.Portions = append(division.Portions, c)
			byCluster[m.Origin.Cluster] = c
		}
		division.of[m.Origin] = c
	}

	return division
}

// add adds an entry that is ready, and the one that counts for its address, to its cluster.
func (d *Division) add(e *Entry) {
	c := d.of[e.origin]
	c.Entries = append(c.Entries, e)
	c.Ready++
	c.All++
}

// Divide divides addresses, at whatever ports, between clusters. The claims are those that may count, of members of the
// Snapshot; which claims to an address count at its ports is decided before, see Winners. The cluster of the first
// claim that is ready has the address. A claim that is not ready, and not terminating, may be ready soon, even if
// another cluster has the address. Divide does not write to claims.
func (s *Snapshot) Divide(claims []Claim) *Division {
	division := s.newDivision()
	owners := map[netip.Addr]*Portion{}
	for _, c := range claims {
		e := c.Endpoint()
		if e.Ready && owners[e.Addr] == nil {
			owners[e.Addr] = division.of[c.Member.Origin]
			division.add(c.entry(0))
		}
	}

	for _, c := range division.Portions {
		slices.SortFunc(c.Entries, (*Entry).compareClaims)
	}
	division.countWaiting(claims, owners)
	division.addShares(s.View)
	return division
}

// countWaiting counts the addresses of each cluster that may be ready soon, each once, besides those that it has.
func (d *Division) countWaiting(claims []Claim, owners map[netip.Addr]*Portion) {
	type wait struct {
		of   *Portion
		addr netip.Addr
	}
	counted := map[wait]bool{}

	for _, c := range claims {
		e := c.Endpoint()
		one := wait{d.of[c.Member.Origin], e.Addr}
		if e.Ready || e.Terminating || owners[e.Addr] == one.of || counted[one] {
			continue
		}
		counted[one] = true
		one.of.All++
	}
}

// addShares sets the share of each cluster under the policy of a Service, whose View may be nil.
func (d *Division) addShares(v *View) {
	var of *policy.Service
	if v != nil {
		of = v.Policy
	}

	members := make([]policy.Member, len(d.Portions))
	for i, c := range d.Portions {
		members[i] = c.Member
	}

	for i, share := range policy.Shares(of, members) {
		d.Portions[i].Share = share
	}
}

// Shares returns the share of each cluster, in the order of the members.
func (d *Division) Shares() []ClusterShare {
	all := make([]ClusterShare, len(d.Portions))
	for i, c := range d.Portions {
		all[i] = c.ClusterShare
	}
	return all
}

// Choose returns count of the cluster's entries, at most all, for the clients of a bucket. The result is not to be
// written to.
func (c *Portion) Choose(count int, bucket uint8) []*Entry {
	switch {
	case count == 0:
		return nil
	case count >= len(c.Entries):
		return c.Entries
	}
	scores := make([]uint64, len(c.Entries))
	for i, e := range c.Entries {
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
	for i, e := range c.Entries {
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

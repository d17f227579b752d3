package policy

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"maps"
	"math/big"
	"net/netip"
	"slices"
)

// Shares.
//
// A share is the part of a Service's traffic that one cluster gets. It follows from what the clusters publish now,
// and from nothing else: there is no clock and no memory in it, so that every replica computes the same, in whatever
// order it has learned of things. It is smooth: one endpoint more or less changes shares by a little, so that nothing
// flaps and no hysteresis is needed. It is exact: fractions are fractions, on every machine. They are made on the
// heap, except where one cluster gets everything, as a preferred one does that is well.
//
// Tiers come first. Those of the Service's policy are followed by clusters that are drained completely, then Stale
// ones that are to be last, then Stale ones that are to be dropped; and all clusters that the policy does not name
// come behind all that it does. A tier takes as much as it is healthy for of what those before have left over. It is
// healthy as long as about two thirds of it are ready (overprovisioning), since those can carry all of it. If all
// together are not healthy enough for everything, each takes more in proportion. Drained, dropped and unnamed
// clusters get something only if nothing before them is ready: they are not a reserve for partial failures, but what
// serves before nothing does. So a policy empties no Service.
//
// Linkerd's proxies spread requests evenly over the addresses that they hold. So a share becomes a number of
// endpoints: as many of each cluster as the proportions allow. A fraction of an endpoint is an endpoint for that
// fraction of the clients: they fall into Buckets, which also choose different endpoints. The choice among a
// cluster's endpoints is by rendezvous: those with the highest Score, so that one that comes or goes changes one.

// Buckets is how many groups of clients there are.
const Buckets = 16

// One is the whole traffic, in which Share.Share is a part.
const One = 1 << 16

// overprovisioning is 1.4, which is what Envoy has, in tenths.
const overprovisioning = 14

// A Member is the part of one cluster in a Service, as far as its share depends on it.
type Member struct {
	Cluster string
	Home    bool // it is the cluster whose Service it is
	Near    bool // it is of that one's region
	Stale   bool
	Policy  Cluster
	Ready   int // endpoints
	All     int // those, and the ones that are not ready and not terminating
}

// A Class is why a member is in another tier than the policy of the Service names for it.
type Class uint8

// The classes, in the order of their tiers.
const (
	Regular    Class = iota
	DrainedOut       // nothing of the cluster's traffic is left to it
	StaleLast        // the cluster is Stale, and comes last then
	StaleOut         // the cluster is Stale, and counts only if there is nothing else
)

// A Share is what a member gets, and why.
type Share struct {
	Class    Class
	LeftOut  bool   // the Service's policy has tiers, and the cluster is in none
	Tier     int    // from 1 on, of those that the Service's members are in
	Load     uint32 // of the tier, in parts of One
	Weight   uint32 // in its tier, as given
	Weighted bool   // a weight is given for the cluster, or 0 counts since others of its tier have one
	Drain    uint8  // percent that are taken away
	Share    uint32 // in parts of One: all together are One, or 0

	units int  // parts of an endpoint that a client gets on average, each 1/unit of one, rounded down
	some  bool // it gets anything
}

// unit is the fineness of what decides how many endpoints the clients of a bucket get.
const unit = 2 * Buckets

// Given returns how many endpoints of the member the clients of a bucket get.
func (s *Share) Given(bucket uint8) int { return (s.units + 2*int(bucket) + 1) / unit }

// Rounded returns how many endpoints clients get that all get the same.
func (s *Share) Rounded() int {
	if !s.some {
		return 0
	}
	return max(1, (s.units+unit/2)/unit)
}

// Serves reports whether the member has any share.
func (s *Share) Serves() bool { return s.some }

// Divided reports whether different buckets get different endpoints of the member, which has so many ready.
func (s *Share) Divided(ready int) bool { return s.units > 0 && s.units < unit*ready }

// IsForced reports whether what is in force for the member's cluster changes shares, whatever the Service asks for.
func (m *Member) IsForced() bool { return m.Policy.Drained > 0 || m.class(nil) != Regular }

// class returns the class of a member of a Service, whose policy may be nil.
func (m *Member) class(s *Service) Class {
	when := m.Policy.WhenStale
	if s != nil && s.WhenStale != Unset {
		when = s.WhenStale
	}
	switch {
	case m.Stale && when == Drop:
		return StaleOut
	case m.Stale && when == Last:
		return StaleLast
	case m.Policy.Drained >= 100:
		return DrainedOut
	default:
		return Regular
	}
}

// percentLeft returns how many percent of a member's endpoints and weight count. In the tier of those that have none
// left, all count.
func (m *Member) percentLeft() int {
	if m.Policy.Drained >= 100 {
		return 100
	}
	return 100 - int(m.Policy.Drained)
}

// preferred returns the tier that the policy has for a member, from 0 on; -1 for none. A name comes before local,
// that before region, and that before *.
func (s *Service) preferred(m *Member) int {
	if s == nil || len(s.Prefer) == 0 {
		return 0
	}
	best, rank := -1, 0
	for i, t := range s.Prefer {
		_, named := slices.BinarySearch(t.Clusters, m.Cluster)
		for r, is := range []bool{t.Others, t.Region && m.Near, t.Local && m.Home, named} {
			if is && r >= rank {
				best, rank = i, r+1
			}
		}
	}
	return best
}

// weight returns the weight that the policy has for a cluster, and whether it has one.
func (s *Service) weight(cluster string) (uint32, bool) {
	if s == nil {
		return 0, false
	}
	i, found := slices.BinarySearchFunc(s.Weights, cluster, func(w Weight, name string) int {
		return cmp.Compare(w.Cluster, name)
	})
	if !found {
		return 0, false
	}
	return s.Weights[i].Weight, true
}

// tier is the members that serve together.
type tier struct {
	members  []int
	reserve  bool // it serves only if nothing before it does
	load     *big.Rat
	weighted bool // the policy has a weight for one of them
}

// Shares returns the share of each member under the policy of a Service, which may be nil. Each cluster is one
// member. The order of the members makes no difference.
func Shares(s *Service, members []Member) []Share {
	shares, tiers := make([]Share, len(members)), s.tiers(members)
	loads(s, members, tiers)
	parts := make([]*big.Rat, len(members)) // nil is 0
	for n, t := range tiers {
		for _, i := range t.members {
			m := &members[i]
			weight, _ := s.weight(m.Cluster)
			shares[i] = Share{
				Class: m.class(s), LeftOut: s.preferred(m) < 0, Tier: n + 1, Load: inParts(t.load),
				Weight: weight, Weighted: t.weighted, Drain: m.Policy.Drained,
			}
		}
		t.divide(s, members, parts)
	}
	assign(members, parts, shares)
	return shares
}

// tiers returns the tiers that have members, the best first.
func (s *Service) tiers(members []Member) (all []*tier) {
	preferred := 1
	if s != nil {
		preferred = max(1, len(s.Prefer))
	}
	by := map[int]*tier{}
	for i := range members {
		m := &members[i]
		place, class := s.preferred(m), m.class(s)
		switch {
		case place < 0:
			place = preferred + int(StaleOut) + int(class)
		case class != Regular:
			place = preferred + int(class) - 1
		}
		if by[place] == nil {
			by[place] = &tier{reserve: s.preferred(m) < 0 || class == DrainedOut || class == StaleOut}
		}
		by[place].members = append(by[place].members, i)
		_, weighted := s.weight(m.Cluster)
		by[place].weighted = by[place].weighted || weighted
	}
	for _, place := range slices.Sorted(maps.Keys(by)) {
		all = append(all, by[place])
	}
	return all
}

// Numbers that are often needed. They are not to be written to.
var nothing, everything = new(big.Rat), big.NewRat(1, 1)

// loads sets the load of each tier: together they are 1, or all are 0.
func loads(s *Service, members []Member, tiers []*tier) {
	sum := nothing
	for _, t := range tiers {
		t.load = nothing
		if t.reserve && sum.Sign() > 0 || sum == everything {
			continue
		}
		var ready, total int64 // in percent
		for _, i := range t.members {
			ready += int64(members[i].Ready * members[i].percentLeft())
			total += int64(members[i].All) * 100
		}
		if s != nil {
			total = max(total, int64(s.Capacity)*100)
		}
		if ready == 0 {
			continue
		}
		health, most := ready*overprovisioning, max(total, ready)*10
		if sum == nothing && health >= most {
			t.load, sum = everything, everything
			continue
		}
		t.load = big.NewRat(health, most)
		if rest := new(big.Rat).Sub(everything, sum); t.load.Cmp(rest) > 0 {
			t.load = rest
		}
		sum = new(big.Rat).Add(sum, t.load)
	}
	if sum.Sign() > 0 && sum.Cmp(everything) < 0 {
		for _, t := range tiers {
			t.load = new(big.Rat).Quo(t.load, sum)
		}
	}
}

// divide sets the parts of the tier's members that have endpoints. Those of weight 0 get something only if no other
// of the tier has any.
func (t *tier) divide(s *Service, members []Member, parts []*big.Rat) {
	if t.load.Sign() == 0 {
		return
	}
	weights, total := make([]int64, len(t.members)), int64(0)
	for _, weighted := range []bool{true, false} {
		if total > 0 {
			break
		}
		for n, i := range t.members {
			m := &members[i]
			if m.Ready == 0 {
				continue
			}
			weights[n] = int64(m.Ready)
			if weighted {
				w, _ := s.weight(m.Cluster)
				weights[n] = int64(w)
			}
			weights[n] *= int64(m.percentLeft())
			total += weights[n]
		}
	}
	for n, i := range t.members {
		switch weights[n] {
		case 0:
		case total:
			parts[i] = t.load
		default:
			part := big.NewRat(weights[n], total)
			parts[i] = part.Mul(part, t.load)
		}
	}
}

// assign sets what members get for their parts: as many endpoints as there can be in these proportions. What
// limits that is given completely, so that the largest part has an endpoint at least.
func assign(members []Member, parts []*big.Rat, shares []Share) {
	if i := slices.Index(parts, everything); i >= 0 {
		shares[i].Share, shares[i].units, shares[i].some = One, unit*members[i].Ready, true
		return
	}
	order := make([]int, len(members))
	var scale *big.Rat
	for i, part := range parts {
		order[i] = i
		if part == nil {
			continue
		}
		of := new(big.Rat).SetInt64(int64(members[i].Ready))
		if of.Quo(of, part); scale == nil || of.Cmp(scale) < 0 {
			scale = of
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(members[a].Cluster, members[b].Cluster) })
	sum, before := new(big.Rat), uint32(0)
	for _, i := range order {
		if parts[i] == nil {
			continue
		}
		sum.Add(sum, parts[i])
		now := inParts(sum)
		shares[i].Share, before = now-before, now
		x := new(big.Rat).Mul(parts[i], scale)
		n := new(big.Int).Mul(x.Num(), big.NewInt(unit))
		shares[i].units, shares[i].some = int(n.Quo(n, x.Denom()).Int64()), true
	}
}

// inParts returns a number up to 1 in parts of One, rounded.
func inParts(x *big.Rat) uint32 {
	switch x {
	case nothing:
		return 0
	case everything:
		return One
	}
	n := new(big.Int).Mul(x.Num(), big.NewInt(2*One))
	n.Add(n, x.Denom())
	return uint32(n.Quo(n, new(big.Int).Lsh(x.Denom(), 1)).Uint64())
}

// BucketOf returns the bucket of clients on a node, or of a Pod, by its name.
func BucketOf(name string) uint8 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return uint8(mixed(h.Sum64()) % Buckets)
}

// Score returns a number by which the clients of a bucket choose among addresses: the higher ones first. It is the
// same on every machine and in every version.
func Score(addr netip.Addr, bucket uint8) uint64 {
	b := addr.As16()
	h := mixed(uint64(bucket) + 1)
	h = mixed(h ^ binary.BigEndian.Uint64(b[:8]))
	return mixed(h ^ binary.BigEndian.Uint64(b[8:]))
}

// mixed spreads a number over all 64 bits (the finalizer of SplitMix64).
func mixed(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

package policy

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"sort"
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
// endpoints: as many of each cluster as the proportions allow (the essay at assign). A fraction of an endpoint is an
// endpoint for that fraction of the clients: for the last sixteenths of them. The choice among a cluster's endpoints is
// by rendezvous: those with the highest Score for the bucket of the client, so that one that comes or goes changes one.

// Buckets is how many groups of clients there are, those of names (BucketOf) as well as sixteenths of all of them.
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
	Policy  ForCluster
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
	Gets     uint32 // what clients give it, in parts of One, if each sixteenth has as many: as near as numbers allow

	total   int // of the endpoints that 16 clients get, one of each sixteenth
	rounded int // the endpoints that clients get who all get the same
}

// Given returns how many endpoints of the member the clients of a sixteenth get.
func (s *Share) Given(sixteenth uint8) int { return in(s.total, int(sixteenth)) }

// From returns the first sixteenth whose clients get one endpoint of the member more than those before; 0 if all get
// as many.
func (s *Share) From() uint8 { return uint8((Buckets - s.total%Buckets) % Buckets) }

// Rounded returns how many endpoints clients get that all get the same.
func (s *Share) Rounded() int { return s.rounded }

// Serves reports whether the member has any share.
func (s *Share) Serves() bool { return s.rounded > 0 }

// Divided reports whether clients get different endpoints of the member, which has so many ready.
func (s *Share) Divided(ready int) bool { return s.total > 0 && s.total < Buckets*ready }

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
func Shares(service *Service, members []Member) []Share {
	shares, tiers := make([]Share, len(members)), service.tiers(members)
	loads(service, members, tiers)
	parts := make([]*big.Rat, len(members)) // nil is 0

	for n, t := range tiers {
		for _, i := range t.members {
			m := &members[i]
			weight, _ := service.weight(m.Cluster)
			shares[i] = Share{
				Class: m.class(service), LeftOut: service.preferred(m) < 0, Tier: n + 1, Load: inParts(t.load),
				Weight: weight, Weighted: t.weighted, Drain: m.Policy.Drained,
			}
		}
		t.divide(service, members, parts)
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
	for index := range members {
		member := &members[index]
		place, class := s.preferred(member), member.class(s)
		switch {
		case place < 0:
			place = preferred + int(StaleOut) + int(class)
		case class != Regular:
			place = preferred + int(class) - 1
		}

		if by[place] == nil {
			by[place] = &tier{reserve: s.preferred(member) < 0 || class == DrainedOut || class == StaleOut}
		}
		by[place].members = append(by[place].members, index)
		_, weighted := s.weight(member.Cluster)
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
func loads(service *Service, members []Member, tiers []*tier) {
	sum := nothing
	for _, tier := range tiers {
		tier.load = nothing
		if tier.reserve && sum.Sign() > 0 || sum == everything {
			continue
		}

		var ready, total int64 // in percent
		for _, i := range tier.members {
			ready += int64(members[i].Ready * members[i].percentLeft())
			total += int64(members[i].All) * 100
		}

		if service != nil {
			total = max(total, int64(service.Capacity)*100)
		}
		if ready == 0 {
			continue
		}

		health, most := ready*overprovisioning, max(total, ready)*10
		if sum == nothing && health >= most {
			tier.load, sum = everything, everything
			continue
		}
		tier.load = big.NewRat(health, most)
		if rest := new(big.Rat).Sub(everything, sum); tier.load.Cmp(rest) > 0 {
			tier.load = rest
		}
		sum = new(big.Rat).Add(sum, tier.load)
	}

	if sum.Sign() > 0 && sum.Cmp(everything) < 0 {
		for _, t := range tiers {
			t.load = new(big.Rat).Quo(t.load, sum)
		}
	}
}

// divide sets the parts of the tier's members that have endpoints. Those of weight 0 get something only if no other
// of the tier has any.
func (t *tier) divide(service *Service, members []Member, parts []*big.Rat) {
	if t.load.Sign() == 0 {
		return
	}

	weights, total := make([]int64, len(t.members)), int64(0)
	for _, weighted := range []bool{true, false} {
		if total > 0 {
			break
		}

		for at, i := range t.members {
			m := &members[i]
			if m.Ready == 0 {
				continue
			}

			weights[at] = int64(m.Ready)
			if weighted {
				w, _ := service.weight(m.Cluster)
				weights[at] = int64(w)
			}
			weights[at] *= int64(m.percentLeft())
			total += weights[at]
		}
	}

	for at, i := range t.members {
		switch weights[at] {
		case 0:
		case total:
			parts[i] = t.load
		default:
			part := big.NewRat(weights[at], total)
			parts[i] = part.Mul(part, t.load)
		}
	}
}

// From parts to endpoints.
//
// There can be as many endpoints as the member allows that is the smallest for its part: all of its own are given, and
// of each other one x = part * scale, where scale is its number over its part. x is seldom a whole number: some
// sixteenths get one endpoint more than others. A client gives a member k of the k+n endpoints that it holds, and
// k/(k+n) is concave in k. So if the mean of k is x, the mean of what clients give is less than the part. What has to
// be right is the latter: of each member so many sixteenths get one more that the mean of what they give it is as near
// to its part as it can be.
//
// Example: three endpoints of east with 80 %, and of west with 20 %. x of west is 0.75. If 12 of 16 clients hold one,
// they give west 12/16 of a quarter, 18.75 %. It is 20.3 % with 13, which is nearer.
//
// What is right for one member depends on what is given of the others. So each one is set in turn, by name, beginning
// with x, until nothing changes; maxRounds are enough in practice, and bound the cost. It stays between the whole
// numbers around x and one more, so that one endpoint that comes or goes changes little, and the largest part has an
// endpoint everywhere. Two members are as near as half a sixteenth allows, at most 1.6 points beside one endpoint,
// 0.4 beside three.
//
// All numbers are integers, shares in parts of fineOne, so that all machines compute the same. What differs by less
// than nearlyEqual is a tie, and the smaller number counts.

const (
	maxRounds   = 4
	fineOne     = 1 << 32 // everything
	nearlyEqual = 4 * Buckets
)

// assign sets what members get for their parts.
func assign(members []Member, parts []*big.Rat, shares []Share) {
	if i := slices.Index(parts, everything); i >= 0 {
		shares[i].Share, shares[i].Gets = One, One
		shares[i].total, shares[i].rounded = Buckets*members[i].Ready, members[i].Ready
		return
	}

	order := make([]int, 0, len(members))
	for i, part := range parts {
		if part != nil {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(members[a].Cluster, members[b].Cluster) })

	assignment := newAssignment(members, parts, order)
	for range maxRounds {
		if !assignment.improve() {
			break
		}
	}

	sum, before := new(big.Rat), uint32(0)
	for n, i := range order {
		sum.Add(sum, parts[i])
		now := inParts(sum)
		shares[i].Share, before = now-before, now
		shares[i].total, shares[i].rounded = assignment.of[n].total, assignment.of[n].rounded
		shares[i].Gets = uint32(assignment.given(assignment.of[n].total, n) / (Buckets * fineOne / One))
	}
}

// An assignment is how many endpoints of each member that has a part the clients get.
type assignment struct {
	of  []assigned
	all [Buckets]int // of all members, in each sixteenth
}

// assigned is what is assigned to one member: total is what 16 clients get together, one of each sixteenth.
type assigned struct {
	total, rounded int
	least, most    int   // bounds of total: equal if all is given
	wanted         int64 // the part, of fineOne, times Buckets
}

// newAssignment returns the assignment in proportion to the parts, in an order of the members that have one.
func newAssignment(members []Member, parts []*big.Rat, order []int) *assignment {
	var scale *big.Rat
	for _, i := range order {
		of := new(big.Rat).SetInt64(int64(members[i].Ready))
		of.Quo(of, parts[i])
		if scale == nil || of.Cmp(scale) < 0 {
			scale = of
		}
	}

	assignment := &assignment{of: make([]assigned, len(order))}
	for n, i := range order {
		x := new(big.Rat).Mul(parts[i], scale)
		ready, whole := members[i].Ready, int(floor(x, 1))
		m := assigned{
			total: int(floor(x, 2*Buckets)+1) / 2, rounded: max(1, int(floor(x, 2)+1)/2),
			least: Buckets * whole, most: Buckets * min(whole+2, ready),
			wanted: floor(parts[i], fineOne) * Buckets,
		}
		assignment.of[n] = m
		assignment.add(m.total, 1)
	}

	return assignment
}

// floor returns x times a number, rounded down.
func floor(x *big.Rat, times int64) int64 {
	n := new(big.Int).Mul(x.Num(), big.NewInt(times))
	return n.Quo(n, x.Denom()).Int64()
}

// in returns how many of a total the clients of a sixteenth get.
func in(total, sixteenth int) int { return (total + sixteenth) / Buckets }

// add adds a total to all that clients get, or with -1 takes it away.
func (a *assignment) add(total, sign int) {
	for b := range a.all {
		a.all[b] += sign * in(total, b)
	}
}

// improve sets each member in turn, and reports whether one has changed.
func (a *assignment) improve() (changed bool) {
	for n := range a.of {
		member := &a.of[n]
		if member.least == member.most {
			continue
		}

		nearest := a.nearest(n)
		if nearest == member.total {
			continue
		}
		a.add(member.total, -1)
		a.add(nearest, 1)
		member.total, changed = nearest, true
	}
	return changed
}

// nearest returns the total of a member by which clients give it as nearly as possible what it should get, beside
// what they get of the others. More endpoints never mean less, so half of the candidates go with each look.
func (a *assignment) nearest(n int) int {
	m := &a.of[n]
	above := m.least + sort.Search(m.most-m.least, func(more int) bool { return a.given(m.least+more, n) >= m.wanted })
	if above == m.least {
		return above
	}
	over, under := a.given(above, n)-m.wanted, m.wanted-a.given(above-1, n)
	if under <= over+nearlyEqual {
		return above - 1
	}
	return above
}

// given returns what clients give a member, one of each sixteenth together, in parts of fineOne, if its total is
// another one.
func (a *assignment) given(total, n int) (sum int64) {
	for b, all := range a.all {
		k := in(total, b)
		all += k - in(a.of[n].total, b)
		if all > 0 {
			sum += int64(k) * fineOne / int64(all)
		}
	}
	return sum
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
func BucketOf(name string) uint8 { return uint8(Hash(name) % Buckets) }

// Hash returns a number for a name: the same on every machine and in every version.
func Hash(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return mixed(h.Sum64())
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

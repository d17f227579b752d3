// Package policytest divides a Service's traffic between clusters a second time, for tests: slowly, from the text of
// annotations, in fractions, and without a line of package policy. Its callers compare.
package policytest

import (
	"hash/fnv"
	"math"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A Policy is what the annotations of a Service set about where its traffic goes. What they leave out is zero.
type Policy struct {
	Prefer   [][]string // tiers of names, the best first
	Capacity int
	Weights  map[string]int
}

// A Part is what a member of a union has for a question.
type Part struct {
	Cluster   string
	Region    string
	Ready     int // endpoints
	All       int // those, and the ones that are not ready and not terminating
	Drain     int // the percentage that is left of it
	Stale     bool
	WhenStale string // keep, last or drop
}

// ParsePolicy reads annotations; one that cannot be read is as good as none, and so is an empty one.
func ParsePolicy(annotations map[string]string) Policy {
	const prefix = "federation.fingerpost.io/"
	p := Policy{
		Prefer:  parsePrefer(annotations[prefix+"prefer"]),
		Weights: parseWeights(annotations[prefix+"weights"]),
	}
	if n, err := strconv.Atoi(annotations[prefix+"capacity"]); err == nil && n > 0 {
		p.Capacity = n
	}
	return p
}

func parsePrefer(text string) (tiers [][]string) {
	seen := map[string]bool{}
	for tier := range strings.SplitSeq(text, ">") {
		var names []string
		for name := range strings.SplitSeq(tier, ",") {
			name = strings.TrimSpace(name)
			if name == "" || seen[name] {
				return nil
			}
			seen[name] = true
			names = append(names, name)
		}
		tiers = append(tiers, names)
	}

	return tiers
}

func parseWeights(text string) map[string]int {
	weights, sum := map[string]int{}, 0
	for item := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(item), "=")
		n, err := strconv.Atoi(number)
		_, twice := weights[name]
		if err != nil || n < 0 || twice {
			return nil
		}
		weights[name] = n
		sum += n
	}

	if sum == 0 {
		return nil
	}
	return weights
}

// Shares returns the share of each part, in the order of parts: their sum is 1, or 0 if none has anything ready.
// home is the local cluster, and region where it is.
func (p Policy) Shares(home, region string, parts []Part) []*big.Rat {
	shares := make([]*big.Rat, len(parts))
	for i := range shares {
		shares[i] = new(big.Rat)
	}

	left := big.NewRat(1, 1)
	for _, tier := range p.tiers(home, region, parts) {
		if tier.reserve && sum(shares).Sign() > 0 {
			continue
		}

		load := p.health(tier.parts, parts)
		if load.Cmp(left) > 0 {
			load.Set(left)
		}

		left.Sub(left, load)
		weights := p.weights(tier.parts, parts)
		if all := sum(weights); all.Sign() > 0 {
			for k, i := range tier.parts {
				shares[i].Mul(load, new(big.Rat).Quo(weights[k], all))
			}
		}
	}

	if all := sum(shares); all.Sign() > 0 {
		for _, share := range shares {
			share.Quo(share, all)
		}
	}
	return shares
}

// A tier is parts that serve together: if it is a reserve, only if nothing before it has anything ready.
type tier struct {
	parts   []int
	reserve bool
}

// tiers returns the parts of each tier, the best first: those of prefer, and behind them those that are drained, those
// that are Stale under last, and under drop. Those that prefer leaves out come behind all of these, in the same order.
func (p Policy) tiers(home, region string, parts []Part) []tier {
	prefer := p.Prefer
	if prefer == nil {
		prefer = [][]string{{"*"}}
	}
	named := len(prefer)
	tiers := make([]tier, named+3+4)
	for _, reserve := range []int{named, named + 2, named + 3, named + 4, named + 5, named + 6} {
		tiers[reserve].reserve = true
	}

	for index, part := range parts {
		at := -1
		// What names a part the most exactly decides.
		for _, match := range []struct {
			name string
			is   bool
		}{
			{part.Cluster, true},
			{"local", part.Cluster == home},
			{"region", part.Cluster == home || region != "" && part.Region == region},
			{"*", true},
		} {
			if at < 0 && match.is {
				at = slices.IndexFunc(prefer, func(names []string) bool { return slices.Contains(names, match.name) })
			}
		}

		class := 0
		switch {
		case part.Stale && part.WhenStale == "drop":
			class = 3
		case part.Stale && part.WhenStale == "last":
			class = 2
		case part.Drain == 0:
			class = 1
		}

		switch {
		case at < 0:
			at = named + 3 + class
		case class > 0:
			at = named + class - 1
		}
		tiers[at].parts = append(tiers[at].parts, index)
	}
	return tiers
}

// left is the percentage of a part that counts. Where one that is drained completely serves all the same, all does.
func (part Part) left() int {
	if part.Drain == 0 {
		return 100
	}
	return part.Drain
}

// health is how much of everything a tier can carry, at most 1.
func (p Policy) health(tier []int, parts []Part) *big.Rat {
	ready, all := new(big.Rat), p.Capacity
	named := 0
	for _, i := range tier {
		ready.Add(ready, big.NewRat(int64(parts[i].Ready*parts[i].left()), 100))
		named += parts[i].All
	}
	if all = max(all, named); all == 0 {
		return ready
	}

	health := ready.Mul(ready, big.NewRat(14, 10*int64(all)))
	if health.Cmp(big.NewRat(1, 1)) > 0 {
		health.SetInt64(1)
	}
	return health
}

// weights are those of the parts of a tier, among one another: what has nothing ready has none.
func (p Policy) weights(tier []int, parts []Part) []*big.Rat {
	of := func(weight func(Part) int) []*big.Rat {
		all := make([]*big.Rat, len(tier))
		for k, i := range tier {
			all[k] = new(big.Rat)
			if parts[i].Ready > 0 {
				all[k].SetFrac64(int64(weight(parts[i])*parts[i].left()), 100)
			}
		}
		return all
	}
	if named := of(func(part Part) int { return p.Weights[part.Cluster] }); sum(named).Sign() > 0 {
		return named
	}

	return of(func(part Part) int { return part.Ready })
}

// Given returns how many endpoints of each part the clients of each sixteenth are given: of the part that allows
// the fewest in these proportions all, and of each other so many that the mean of what the clients give it is
// nearest to its share. The parts are set in the order of their names, four times, each from the whole number below
// its proportion to two more.
func Given(shares []*big.Rat, parts []Part) (sixteenths [16][]int) {
	exact := proportional(shares, parts)
	in := func(total, sixteenth int) int { return (total + sixteenth) / 16 }
	totals := make([]int, len(parts)) // over all sixteenths
	byName := make([]int, len(parts))
	for i := range parts {
		byName[i], totals[i] = i, rounded(new(big.Rat).Mul(exact[i], big.NewRat(16, 1)))
	}
	slices.SortFunc(byName, func(i, j int) int { return strings.Compare(parts[i].Cluster, parts[j].Cluster) })

	// apart is how far 16 clients are from the share of a part, together.
	apart := func(i int) float64 {
		share, _ := shares[i].Float64()
		sum := -16 * share
		for sixteenth := range 16 {
			all := 0
			for _, total := range totals {
				all += in(total, sixteenth)
			}
			if all > 0 {
				sum += float64(in(totals[i], sixteenth)) / float64(all)
			}
		}
		return math.Abs(sum)
	}

	for range 4 {
		for _, i := range byName {
			whole := int(new(big.Int).Quo(exact[i].Num(), exact[i].Denom()).Int64())
			best, nearest := 0, math.Inf(1)
			for total := 16 * whole; total <= 16*min(whole+2, parts[i].Ready) && shares[i].Sign() > 0; total++ {
				totals[i] = total
				if a := apart(i); a < nearest-1.5e-8 {
					best, nearest = total, a
				}
			}
			totals[i] = best
		}
	}

	for sixteenth := range sixteenths {
		for _, total := range totals {
			sixteenths[sixteenth] = append(sixteenths[sixteenth], in(total, sixteenth))
		}
	}
	return sixteenths
}

// Rounded returns how many endpoints of each part clients are given that all are given the same: at least one of what
// has a share.
func Rounded(shares []*big.Rat, parts []Part) []int {
	all := make([]int, len(parts))
	for i, x := range proportional(shares, parts) {
		all[i] = rounded(x)
		if shares[i].Sign() > 0 {
			all[i] = max(1, all[i])
		}
	}
	return all
}

// proportional returns as many endpoints of each part as there can be in the proportions of shares, with fractions.
func proportional(shares []*big.Rat, parts []Part) []*big.Rat {
	var scale *big.Rat
	for i, share := range shares {
		if share.Sign() == 0 {
			continue
		}
		if s := new(big.Rat).Quo(big.NewRat(int64(parts[i].Ready), 1), share); scale == nil || s.Cmp(scale) < 0 {
			scale = s
		}
	}

	all := make([]*big.Rat, len(parts))
	for i, share := range shares {
		all[i] = new(big.Rat)
		if share.Sign() > 0 {
			all[i].Mul(share, scale)
		}
	}
	return all
}

// rounded returns the nearest whole number, halves up.
func rounded(x *big.Rat) int {
	half := new(big.Rat).Add(x, big.NewRat(1, 2))
	return int(new(big.Int).Quo(half.Num(), half.Denom()).Int64())
}

// BucketOf is in which of 16 groups clients on a node are: by the hash of its name. Clients on no node are in the
// first.
func BucketOf(node string) int {
	if node == "" {
		return 0
	}
	return int(hash(node) % 16)
}

// hash is FNV-1a, mixed.
func hash(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return mix(h.Sum64())
}

// SixteenthOf is in which sixteenth of all clients those on a node are: by its rank among all nodes, in the order of
// the same hashes. Those on a node that is not among them are in the one of the number of their bucket.
func SixteenthOf(node string, nodes []string) int {
	known, before := false, 0
	for _, n := range nodes {
		switch {
		case n == node:
			known = true
		case hash(n) < hash(node):
			before++
		}
	}

	if !known {
		return BucketOf(node)
	}
	return 16 * before / len(nodes)
}

// Score decides which addresses of a cluster the clients of a bucket are given: the bucket, from 1 on, and the halves
// of the 16 bytes are mixed one after the other.
func Score(addr netip.Addr, bucket int) uint64 {
	bytes, h := addr.As16(), mix(uint64(bucket+1))
	for half := range 2 {
		number := uint64(0)
		for _, b := range bytes[8*half : 8*half+8] {
			number = number<<8 | uint64(b)
		}
		h = mix(h ^ number)
	}
	return h
}

// mix is the end of SplitMix64.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

func sum(all []*big.Rat) *big.Rat {
	total := new(big.Rat)
	for _, x := range all {
		total.Add(total, x)
	}
	return total
}

package policy

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func drawService(t *rapid.T) *Service {
	prefer := []string{
		"", "", "local > *", "local > east > *", "local", "east,west > local", "region > *", "* > local", "lokal > *",
		"north > region,local", "local > west", "region,east",
	}
	weights := []string{"", "", "", "east=80,west=20", "east=100", "local=1,east=2,west=0", "north=10000,west=1"}
	annotations := map[string]string{}
	set := func(key, value string) {
		if value != "" {
			annotations[key] = value
		}
	}
	set(PreferKey, rapid.SampledFrom(prefer).Draw(t, "prefer"))
	set(WeightsKey, rapid.SampledFrom(weights).Draw(t, "weights"))
	set(CapacityKey, rapid.SampledFrom([]string{"", "", "1", "6", "1000"}).Draw(t, "capacity"))
	set(WhenStaleKey, rapid.SampledFrom([]string{"", "", "keep", "last", "drop"}).Draw(t, "when stale"))
	s, problems := ServiceOf(annotations)
	if problems != nil {
		t.Fatal(problems)
	}
	return &s
}

func drawMembers(t *rapid.T) (members []Member) {
	most := rapid.SampledFrom([]int{1, 3, 12, 1000}).Draw(t, "most")
	for _, name := range []string{"local", "east", "west", "north"} {
		if rapid.Float64().Draw(t, name) < .2 {
			continue
		}
		m := Member{
			Cluster: name, Home: name == "local", Near: rapid.Bool().Draw(t, "near"),
			Stale: rapid.Float64().Draw(t, "stale") < .2, Ready: rapid.IntRange(0, most).Draw(t, "ready"),
			Policy: ForCluster{
				WhenStale: rapid.SampledFrom([]WhenStale{Unset, Keep, Last, Drop}).Draw(t, "when"),
				Drained:   rapid.SampledFrom([]uint8{0, 0, 0, 5, 50, 95, 100}).Draw(t, "drained"),
			},
		}
		m.All = m.Ready + rapid.SampledFrom([]int{0, 0, 1, most}).Draw(t, "waiting")
		members = append(members, m)
	}
	return members
}

// slow is the share of each member by another way: as numbers with a fraction, tier by tier.
func slow(s *Service, members []Member) []float64 {
	shares := make([]float64, len(members))
	left := func(m Member) float64 {
		if m.Policy.Drained == 100 {
			return 1
		}
		return 1 - float64(m.Policy.Drained)/100
	}
	prefer := s.Prefer
	if prefer == nil {
		prefer = []Tier{{Others: true}}
	}
	tierOf := func(m Member) int {
		for i, t := range prefer {
			if slices.Contains(t.Clusters, m.Cluster) {
				return i
			}
		}
		for i, t := range prefer {
			if t.Local && m.Home {
				return i
			}
		}
		for i, t := range prefer {
			if t.Region && m.Near {
				return i
			}
		}
		return slices.IndexFunc(prefer, func(t Tier) bool { return t.Others })
	}
	fate := func(m Member) string {
		when := s.WhenStale
		if when == Unset {
			when = m.Policy.WhenStale
		}
		switch {
		case m.Stale && when == Drop:
			return "drop"
		case m.Stale && when == Last:
			return "last"
		case m.Policy.Drained == 100:
			return "drained"
		}
		return ""
	}
	var order [][]int // indices of members
	add := func(is func(Member) bool) {
		var tier []int
		for i, m := range members {
			if is(m) {
				tier = append(tier, i)
			}
		}
		order = append(order, tier)
	}
	reserve := map[int]bool{}
	for k := range prefer {
		add(func(m Member) bool { return tierOf(m) == k && fate(m) == "" })
	}
	for _, f := range []string{"drained", "last", "drop"} {
		reserve[len(order)] = f != "last"
		add(func(m Member) bool { return tierOf(m) >= 0 && fate(m) == f })
	}
	for _, f := range []string{"", "drained", "last", "drop"} {
		reserve[len(order)] = true
		add(func(m Member) bool { return tierOf(m) < 0 && fate(m) == f })
	}
	var used float64
	for k, tier := range order {
		var ready, all float64
		for _, i := range tier {
			ready += float64(members[i].Ready) * left(members[i])
			all += float64(members[i].All)
		}
		if ready == 0 || reserve[k] && used > 0 {
			continue
		}
		load := min(1, 1.4*ready/max(all, float64(s.Capacity)), 1-used)
		used += load
		weights := make([]float64, len(tier))
		var total float64
		named := false
		for _, w := range s.Weights {
			for n, i := range tier {
				if members[i].Cluster == w.Cluster {
					named = true
					if members[i].Ready > 0 {
						weights[n] = float64(w.Weight) * left(members[i])
						total += weights[n]
					}
				}
			}
		}
		if !named || total == 0 {
			for n, i := range tier {
				weights[n] = float64(members[i].Ready) * left(members[i])
				total += weights[n]
			}
		}
		for n, i := range tier {
			shares[i] = load * weights[n] / total
		}
	}
	for i := range shares {
		if used > 0 {
			shares[i] /= used
		}
	}
	return shares
}

// The shares are those of the slow model, and sum up to One if anything is ready; what is given is near their
// proportion, and never nothing. Package policytest computes the numbers themselves a second time.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, members := drawService(t), drawMembers(t)
		shares, want := Shares(s, members), slow(s, members)
		var sum uint32
		anyReady, scale := false, math.Inf(1)
		for i, m := range members {
			sum += shares[i].Share
			anyReady = anyReady || m.Ready > 0
			if got := float64(shares[i].Share) / One; math.Abs(got-want[i]) > 2./One {
				t.Fatalf("%s has %f, want %f\n%+v\n%+v\n%+v", m.Cluster, got, want[i], s, members, shares)
			}
			if want[i] > 0 {
				scale = min(scale, float64(m.Ready)/want[i])
			}
		}
		if anyReady != (sum == One) || !anyReady && sum != 0 {
			t.Fatalf("conservation: the sum is %d", sum)
		}
		var total int
		for i, m := range members {
			for b := range uint8(Buckets) {
				given := shares[i].Given(b)
				total += given
				least, most := 0, 0
				if want[i] > 0 {
					least, most = int(want[i]*scale-1e-6), min(m.Ready, int(want[i]*scale+1e-6)+2)
				}
				if given < least || given > most {
					t.Fatalf("%s: bucket %d gets %d, want %d to %d", m.Cluster, b, given, least, most)
				}
				if !shares[i].Divided(m.Ready) && given != shares[i].Given(0) {
					t.Fatalf("%s is not divided, and bucket %d gets %d", m.Cluster, b, given)
				}
			}
			if rounded := shares[i].Rounded(); rounded > m.Ready || (rounded > 0) != (want[i] > 0) {
				t.Fatalf("%s: rounded to %d of %d at %f", m.Cluster, rounded, m.Ready, want[i])
			}
		}
		if anyReady {
			largest := slices.MaxFunc(shares, func(a, b Share) int { return cmp.Compare(a.Share, b.Share) })
			for b := range uint8(Buckets) {
				if largest.Given(b) == 0 {
					t.Fatalf("never empty: bucket %d gets nothing of the largest share", b)
				}
			}
		} else if total > 0 {
			t.Fatal("something is given, and nothing ready")
		}
	})
}

// Purity: the order in which clusters are named makes no difference.
func TestSharesDoNotDependOnTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, members := drawService(t), drawMembers(t)
		before := Shares(s, members)
		order := rapid.Permutation(indices(len(members))).Draw(t, "order")
		moved := make([]Member, len(members))
		for i, to := range order {
			moved[to] = members[i]
		}
		after := Shares(s, moved)
		for i, to := range order {
			if !reflect.DeepEqual(before[i], after[to]) {
				t.Fatalf("%s has %+v, and in another order %+v", members[i].Cluster, before[i], after[to])
			}
		}
	})
}

func indices(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// Identity: without a policy everything is given.
func TestSharesWithoutPolicy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := drawMembers(t)
		for i := range members {
			members[i].Policy = ForCluster{}
		}
		for _, s := range []*Service{nil, {}} {
			if !s.None() || slices.ContainsFunc(members, func(m Member) bool { return m.IsForced() }) {
				t.Fatal("there is a policy")
			}
			for i, x := range Shares(s, members) {
				if m := members[i]; x.Divided(m.Ready) || x.Given(0) != m.Ready || x.Given(Buckets-1) != m.Ready ||
					x.Rounded() != m.Ready {
					t.Fatalf("of %d endpoints %d are given", m.Ready, x.Given(0))
				}
			}
		}
	})
}

// Monotone: one more ready endpoint never lowers what its tier takes. Continuity: one of n that are ready changes no
// share by more than 3/n. Churn: of the k others that a client holds, it lets go no more than 1 + 2k/n, and one for
// each other cluster whose fraction of an endpoint was rounded to another side.
func TestOneEndpointMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, members := drawService(t), drawMembers(t)
		if len(members) == 0 {
			t.Skip("no members")
		}
		i := rapid.IntRange(0, len(members)-1).Draw(t, "member")
		more := slices.Clone(members)
		created := more[i].Ready == more[i].All || rapid.Bool().Draw(t, "created")
		if more[i].Ready++; created {
			more[i].All++
		}
		n := more[i].Ready
		before, after := Shares(s, members), Shares(s, more)
		draining := before[i].Drain > 0 && before[i].Drain < 100 // of what is created, less is ready then than there is
		if before[i].Load > after[i].Load+1 && (!created || !draining) {
			t.Fatalf("monotone: the load of tier %d falls from %d to %d", before[i].Tier, before[i].Load, after[i].Load)
		}
		for j := range members {
			change := math.Abs(float64(before[j].Share)-float64(after[j].Share)) / One
			if change > 3/float64(n)+2./One {
				t.Fatalf("continuity: one of %d changes the share of %s by %f\n%+v\n%+v\n%+v", n, members[j].Cluster,
					change, s, members, more)
			}
		}
		if slices.ContainsFunc(more, func(m Member) bool { return m.Ready > 50 }) {
			return // choosing among many is slow
		}
		for b := range uint8(Buckets) {
			few, many := holdings(members, before, b), holdings(more, after, b)
			churns(t, few, many, n, len(members))
			churns(t, many, few, n, len(members))
		}
	})
}

// holdings are the addresses that a client holds: the last one of a member is the newest.
func holdings(members []Member, shares []Share, bucket uint8) map[string]bool {
	held := map[string]bool{}
	for i, m := range members {
		var all []netip.Addr
		for n := range m.Ready {
			all = append(all, netip.AddrFrom4([4]byte{10, m.Cluster[0], byte(n >> 8), byte(n)}))
		}
		slices.SortFunc(all, func(a, b netip.Addr) int { return cmp.Compare(Score(b, bucket), Score(a, bucket)) })
		for _, a := range all[:shares[i].Given(bucket)] {
			held[a.String()] = true
		}
	}
	return held
}

func churns(t *rapid.T, from, to map[string]bool, n, members int) {
	gone := 0
	for a := range from {
		if !to[a] {
			gone++
		}
	}
	if most := 1 + 2*float64(len(from))/float64(n) + float64(members); float64(gone) > most {
		t.Fatalf("churn: of %v a client lets %d go, at most %f, for %v", from, gone, most, to)
	}
}

// The contract's examples, by number.
func TestSharesOfCases(t *testing.T) {
	local := func(ready, all int) Member { return Member{Cluster: "local", Home: true, Ready: ready, All: all} }
	linked := func(name string, ready int) Member { return Member{Cluster: name, Ready: ready, All: ready} }
	for _, c := range []struct {
		annotations string
		members     []Member
		want        string // of each member: given in the first bucket, and in the last, and for slices
	}{
		{"prefer=local > *", []Member{local(3, 3), linked("west", 3)}, "3-3/3 0-0/0"},
		{"prefer=local > *", []Member{local(2, 3), linked("west", 3)}, "2-2/2 0-1/1"},
		{"prefer=local > *", []Member{local(0, 3), linked("west", 3)}, "0-0/0 3-3/3"},
		{"prefer=local > *", []Member{local(0, 0), linked("west", 3)}, "0-0/0 3-3/3"},
		{"prefer=local > *;capacity=6", []Member{local(3, 3), linked("west", 3)}, "3-3/3 1-2/1"},
		{"prefer=local > *", []Member{local(3, 4), linked("west", 3)}, "3-3/3 0-0/0"},
		{"prefer=local > west > *", []Member{local(0, 3), linked("west", 0), linked("north", 2)}, "0-0/0 0-0/0 2-2/2"},
		{"prefer=local > west", []Member{local(0, 3), linked("west", 0), linked("north", 2)}, "0-0/0 0-0/0 2-2/2"},
		{"prefer=local > west", []Member{local(1, 30), linked("west", 0), linked("north", 2)}, "1-1/1 0-0/0 0-0/0"},
		{"weights=east=80,west=20", []Member{linked("east", 10), linked("west", 10)}, "10-10/10 2-3/3"},
		{"weights=east=80,west=20", []Member{linked("east", 10), linked("west", 0)}, "10-10/10 0-0/0"},
		{"weights=east=100", []Member{linked("east", 10), linked("west", 10)}, "10-10/10 0-0/0"},
		{"weights=east=100", []Member{linked("east", 0), linked("west", 10)}, "0-0/0 10-10/10"},
		{"prefer=lokal > *", []Member{local(1, 1), linked("west", 3)}, "1-1/1 3-3/3"},
	} {
		got := ""
		for _, x := range Shares(serviceOf(t, c.annotations), c.members) {
			got += fmt.Sprintf(" %d-%d/%d", x.Given(0), x.Given(Buckets-1), x.Rounded())
		}
		if got != " "+c.want {
			t.Errorf("%s of %+v: %s, want %s", c.annotations, c.members, got, c.want)
		}
	}
}

// Three of 16 buckets get one of west (G03), eight get three (G10).
func TestBucketsOfCases(t *testing.T) {
	count := func(annotations string, members []Member) (all []int) {
		share := Shares(serviceOf(t, annotations), members)[1]
		for b := range uint8(Buckets) {
			all = append(all, share.Given(b))
		}
		return all
	}
	spill := count("prefer=local > *", []Member{
		{Cluster: "local", Home: true, Ready: 2, All: 3}, {Cluster: "west", Ready: 3, All: 3},
	})
	weighted := count("weights=east=80,west=20", []Member{
		{Cluster: "east", Ready: 10, All: 10}, {Cluster: "west", Ready: 10, All: 10},
	})
	capacity := count("prefer=local > *;capacity=6", []Member{
		{Cluster: "local", Home: true, Ready: 3, All: 3}, {Cluster: "west", Ready: 3, All: 3},
	})
	for name, c := range map[string]struct {
		got        []int
		less, more int
		buckets    int // that get more
	}{
		"G03": {spill, 0, 1, 3}, "G10": {weighted, 2, 3, 8}, "G06": {capacity, 1, 2, 5},
	} {
		for b, n := range c.got {
			want := c.less
			if b >= Buckets-c.buckets {
				want = c.more
			}
			if n != want {
				t.Errorf("%s: bucket %d gets %d, want %d", name, b, n, want)
			}
		}
	}
}

// Clients that spread evenly over what they are given, as many in each bucket, divide their requests by the weights, to
// within 1.5 points, however few endpoints there are. So does Gets.
func TestMeanShares(t *testing.T) {
	for _, weights := range [][]int{{80, 20}, {90, 10}, {99, 1}, {70, 30}, {50, 30, 20}} {
		numbers := []int{1, 2, 3, 4, 5, 7, 10, 16, 25, 33, 50}
		if len(weights) == 2 {
			numbers = indices(51)[1:]
		}
		worst := 0.
		everyChoice(numbers, len(weights), func(ready []int) {
			shares := weighted(t, weights, ready)
			for i, got := range means(shares) {
				worst = max(worst, math.Abs(100*got-float64(weights[i])))
				if gets := float64(shares[i].Gets) / One; math.Abs(gets-got) > 2./One {
					t.Fatalf("%v of %v: clients give member %d %f, and Gets is %f", weights, ready, i, got, gets)
				}
			}
		})
		if t.Logf("%v: at most %.2f points away", weights, worst); worst > 1.5 {
			t.Errorf("%v: the traffic is up to %.2f points away", weights, worst)
		}
	}
}

// everyChoice calls f with each choice of so many of the numbers.
func everyChoice(numbers []int, many int, f func(choice []int)) {
	if many == 0 {
		f(nil)
		return
	}
	for _, n := range numbers {
		everyChoice(numbers, many-1, func(choice []int) { f(append(slices.Clone(choice), n)) })
	}
}

// weighted returns the shares of members that have weights, and so many endpoints ready.
func weighted(t *testing.T, weights, ready []int) []Share {
	t.Helper()
	var text []string
	var members []Member
	for i, w := range weights {
		name := string(rune('a' + i))
		text = append(text, fmt.Sprintf("%s=%d", name, w))
		members = append(members, Member{Cluster: name, Ready: ready[i], All: ready[i]})
	}
	return Shares(serviceOf(t, "weights="+strings.Join(text, ",")), members)
}

// means returns the part of its requests that the mean client gives each member, one client a bucket.
func means(shares []Share) []float64 {
	all := make([]float64, len(shares))
	for b := range uint8(Buckets) {
		sum := 0
		for i := range shares {
			sum += shares[i].Given(b)
		}
		for i := range shares {
			all[i] += float64(shares[i].Given(b)) / float64(sum) / Buckets
		}
	}
	return all
}

// Names fall into all buckets about equally often, and each bucket prefers other addresses.
func TestBuckets(t *testing.T) {
	var of [Buckets]int
	for i := range 1600 {
		of[BucketOf(fmt.Sprintf("node-%d", i))]++
	}
	for b, n := range of {
		if n < 60 || n > 140 {
			t.Errorf("%d of 1600 names are in bucket %d", n, b)
		}
	}
	if BucketOf("") >= Buckets || BucketOf("node-1") != 5 ||
		Score(netip.MustParseAddr("10.0.0.1"), 3) != 13997375796583058884 {
		t.Errorf("another version computed other buckets: %d and %d", BucketOf("node-1"),
			Score(netip.MustParseAddr("10.0.0.1"), 3))
	}
	first := map[string]bool{}
	for b := range uint8(Buckets) {
		best, score := "", uint64(0)
		for n := range 100 {
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})
			if s := Score(a, b); s >= score {
				best, score = a.String(), s
			}
		}
		first[best] = true
	}
	if len(first) < 10 {
		t.Errorf("16 buckets prefer only %d of 100 addresses", len(first))
	}
}

// serviceOf reads annotations such as "prefer=local;capacity=6".
func serviceOf(t *testing.T, text string) *Service {
	t.Helper()
	annotations := map[string]string{}
	for item := range strings.SplitSeq(text, ";") {
		key, value, _ := strings.Cut(item, "=")
		annotations[Prefix+key] = value
	}
	s, problems := ServiceOf(annotations)
	if problems != nil {
		t.Fatal(problems)
	}
	return &s
}

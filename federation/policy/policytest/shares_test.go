package policytest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// spread renders how many clients of 16 are given what.
func spread(p Policy, parts []Part) string {
	counts := map[string]int{}
	shares := p.Shares("local", "", parts)
	for _, given := range Given(shares, parts) {
		line := ""
		for i, n := range given {
			if n > 0 {
				line += fmt.Sprintf(" %s=%d", parts[i].Cluster, n)
			}
		}
		counts[line]++
	}
	var all []string
	for line, n := range counts {
		all = append(all, fmt.Sprintf("%d:%s", n, line))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// The figures of the contract cases.
func TestSharesOfCases(t *testing.T) {
	part := func(cluster string, ready, all int) Part {
		return Part{Cluster: cluster, Ready: ready, All: all, Drain: 100}
	}
	drained := func(p Part, percent int) Part { p.Drain = percent; return p }
	stale := func(p Part, when string) Part { p.Stale, p.WhenStale = true, when; return p }
	for _, c := range []struct {
		id, prefer, weights, capacity string
		parts                         []Part
		want                          string
	}{
		{"U01", "", "", "", []Part{part("local", 3, 3), part("west", 2, 3)}, "16: local=3 west=2"},
		{"U02", "local > *", "", "", []Part{part("local", 3, 3), part("west", 3, 3)}, "16: local=3"},
		{"U03", "local > *", "", "", []Part{part("local", 2, 3), part("west", 3, 3)}, "13: local=2, 3: local=2 west=1"},
		{"U04", "local > *", "", "", []Part{part("local", 0, 3), part("west", 3, 3)}, "16: west=3"},
		{"U05", "local > *", "", "", []Part{part("local", 0, 0), part("west", 3, 3)}, "16: west=3"},
		{
			"U06", "local > *", "", "6",
			[]Part{part("local", 3, 3), part("west", 3, 3)},
			"11: local=3 west=1, 5: local=3 west=2",
		},
		{"U07", "local > *", "", "", []Part{part("local", 3, 4), part("west", 3, 3)}, "16: local=3"},
		{
			"U08", "local > west > *", "", "",
			[]Part{part("local", 0, 3), part("west", 0, 0), part("north", 2, 2)},
			"16: north=2",
		},
		{
			"U09", "local > west", "", "",
			[]Part{part("local", 0, 3), part("west", 0, 0), part("north", 2, 2)},
			"16: north=2",
		},
		{
			"U10", "", "east=80,west=20", "",
			[]Part{part("east", 10, 10), part("west", 10, 10)},
			"8: east=10 west=2, 8: east=10 west=3",
		},
		{"U11", "", "east=80,west=20", "", []Part{part("east", 10, 10), part("west", 0, 10)}, "16: east=10"},
		{"U14", "", "east=100", "", []Part{part("east", 10, 10), part("west", 10, 10)}, "16: east=10"},
		{"U15", "", "", "", []Part{part("east", 2, 2), stale(part("west", 2, 2), "last")}, "16: east=2"},
		{"U16", "", "", "", []Part{part("east", 0, 2), stale(part("west", 2, 2), "drop")}, "16: west=2"},
		{"U18", "", "", "", []Part{part("east", 2, 2), stale(part("west", 2, 2), "keep")}, "16: east=2 west=2"},
		{"U19", "", "", "", []Part{part("east", 2, 2), drained(part("west", 2, 2), 0)}, "16: east=2"},
		{"U20", "", "", "", []Part{drained(part("west", 2, 2), 0)}, "16: west=2"},
		{
			"U21", "", "", "",
			[]Part{part("local", 10, 10), drained(part("west", 10, 10), 55)},
			"8: local=10 west=5, 8: local=10 west=6",
		},
		{"U34", "lokal > *", "", "", []Part{part("local", 3, 3), part("west", 3, 3)}, "16: local=3 west=3"},
		{"U35", "", "east=-1", "", []Part{part("east", 3, 3), part("west", 3, 3)}, "16: east=3 west=3"},
	} {
		annotations := map[string]string{}
		for name, value := range map[string]string{"prefer": c.prefer, "weights": c.weights, "capacity": c.capacity} {
			if value != "" {
				annotations["federation.fingerpost.io/"+name] = value
			}
		}
		if got := spread(ParsePolicy(annotations), c.parts); got != c.want {
			t.Errorf("%s: %s, want %s", c.id, got, c.want)
		}
	}
}

// Whatever is set: the shares sum to 1 and each client is given something if anything is ready, and never more of a
// member than is ready there.
func TestSharesAddUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for range 20_000 {
		p := ParsePolicy(map[string]string{
			"federation.fingerpost.io/prefer":   pick(r, []string{"*", "local > *", "east", "west, east > local"}),
			"federation.fingerpost.io/capacity": pick(r, []string{"", "5", "40"}),
			"federation.fingerpost.io/weights":  pick(r, []string{"", "east=80,west=20", "north=1"}),
		})
		var parts []Part
		ready := 0
		for _, cluster := range []string{"local", "east", "west", "north"}[:1+r.IntN(4)] {
			part := Part{
				Cluster: cluster, Ready: r.IntN(12), Drain: 5 * r.IntN(21), Stale: r.IntN(2) == 0,
				WhenStale: pick(r, []string{"keep", "last", "drop"}),
			}
			part.All = part.Ready + r.IntN(6)
			ready += part.Ready
			parts = append(parts, part)
		}
		shares := p.Shares("local", "", parts)
		if total := sum(shares).RatString(); total != "1" && ready > 0 || total != "0" && ready == 0 {
			t.Fatalf("%+v %+v: %d are ready, and the shares sum to %s", p, parts, ready, total)
		}
		for bucket, given := range Given(shares, parts) {
			all := 0
			for i, n := range given {
				if n > parts[i].Ready {
					t.Fatalf("%+v %+v: bucket %d is given %d of %s", p, parts, bucket, n, parts[i].Cluster)
				}
				all += n
			}
			if (all > 0) != (ready > 0) {
				t.Fatalf("%+v %+v: bucket %d is given %d of %d", p, parts, bucket, all, ready)
			}
		}
	}
}

// The server's computation and this one agree, for random annotations and parts.
func TestSharesAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 0))
	names := []string{"local", "east", "west", "north", "south"}
	const prefix = "federation.fingerpost.io/"
	whenStale := map[string]policy.WhenStale{"keep": policy.Keep, "last": policy.Last, "drop": policy.Drop}
	tiersUsed := 0
	for range 10_000 {
		annotations := map[string]string{}
		if r.IntN(4) > 0 {
			words := append([]string{"region", "*", "nosuch"}, names...)
			r.Shuffle(len(words), func(i, j int) { words[i], words[j] = words[j], words[i] })
			text := words[0]
			for _, word := range words[1 : 1+r.IntN(len(words)-1)] {
				text += pick(r, []string{" > ", ",", ">", " , "}) + word
			}
			annotations[prefix+"prefer"] = text
		}
		if r.IntN(3) == 0 {
			annotations[prefix+"capacity"] = fmt.Sprint(r.IntN(30))
		}
		if r.IntN(3) == 0 {
			annotations[prefix+"weights"] = fmt.Sprintf("east=%d, west=%d,local=%d", r.IntN(100), r.IntN(3), r.IntN(10))
		}
		region := pick(r, []string{"", "eu", "eu"})
		var parts []Part
		var members []policy.Member
		for _, name := range names[r.IntN(2) : 2+r.IntN(len(names)-1)] {
			p := Part{
				Cluster: name, Region: pick(r, []string{"", "eu", "us"}), Ready: r.IntN(8) * r.IntN(5), Drain: 100,
				Stale: r.IntN(3) == 0, WhenStale: pick(r, []string{"keep", "last", "drop"}),
			}
			if name == "local" {
				p.Region, p.Stale = region, false
			}
			if r.IntN(3) == 0 {
				p.Drain = 5 * r.IntN(21)
			}
			p.All = p.Ready + r.IntN(10)*r.IntN(2)
			parts = append(parts, p)
			members = append(members, policy.Member{
				Cluster: name, Home: name == "local", Near: name == "local" || region != "" && p.Region == region,
				Stale: p.Stale, Ready: p.Ready, All: p.All,
				Policy: policy.ForCluster{Drained: uint8(100 - p.Drain), WhenStale: whenStale[p.WhenStale]},
			})
		}
		of, _ := policy.ServiceOf(annotations)
		theirs := policy.Shares(&of, members)
		ours := ParsePolicy(annotations)
		shares := ours.Shares("local", region, parts)
		for i := range parts {
			share, _ := shares[i].Float64()
			if got := float64(theirs[i].Share) / policy.One; math.Abs(got-share) > 1.0/policy.One {
				t.Fatalf("%v %+v: the share of %s is %v, want %v", annotations, parts, parts[i].Cluster, got, share)
			}
			tiersUsed = max(tiersUsed, theirs[i].Tier)
		}
		for bucket, given := range Given(shares, parts) {
			for i, want := range given {
				if got := theirs[i].Given(uint8(bucket)); got != want {
					t.Fatalf("%v %+v: bucket %d is given %d of %s, want %d", annotations, parts, bucket, got,
						parts[i].Cluster, want)
				}
			}
		}
		for i, want := range Rounded(shares, parts) {
			if got := theirs[i].Rounded(); got != want {
				t.Fatalf("%v %+v: all are given %d of %s, want %d", annotations, parts, got, parts[i].Cluster, want)
			}
		}
	}
	if tiersUsed < 4 {
		t.Errorf("no Service had more than %d tiers", tiersUsed)
	}
}

// So do the groups of clients, and which addresses they are given.
func TestChoicesAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	for range 1000 {
		node := fmt.Sprintf("ip-10-0-%d-%d.internal", r.IntN(256), r.IntN(256))
		if got, want := policy.BucketOf(node), BucketOf(node); int(got) != want {
			t.Fatalf("%s is in bucket %d, want %d", node, got, want)
		}
		var bytes [16]byte
		for i := range bytes {
			bytes[i] = byte(r.IntN(256))
		}
		bucket := r.IntN(16)
		for _, addr := range []netip.Addr{netip.AddrFrom16(bytes), netip.AddrFrom4([4]byte(bytes[:4]))} {
			if got, want := policy.Score(addr, uint8(bucket)), Score(addr, bucket); got != want {
				t.Fatalf("bucket %d, %s: %d, want %d", bucket, addr, got, want)
			}
		}
	}
}

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

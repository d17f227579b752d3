package rules

import (
	"errors"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

func TestParseNetwork(t *testing.T) {
	for _, c := range []struct {
		id, cidr string
		except   string // separated by blanks
		want     error
	}{
		{"PW13", "10.0.0.0/8", "10.0.0.0/8", ErrCovers},
		{"PW13", "10.0.0.0/8", "192.168.0.0/16", ErrOutside},
		{"PW13", "10.0.0.0/33", "", ErrAddress},
		{"PW14", "10.0.0.1", "", nil},
		{"PW14", "10.0.0.0/8", "10.1.0.0/16", nil},
		{"wider", "10.0.0.0/8", "0.0.0.0/0", ErrCovers},
		{"other family", "10.0.0.0/8", "fd00::/8", ErrOutside},
		{"zone", "fe80::1%eth0", "", ErrAddress},
		{"empty", "", "", ErrAddress},
		{"exception is no network", "10.0.0.0/8", "x", ErrAddress},
	} {
		if _, err := ParseNetwork(c.cidr, strings.Fields(c.except)); !errors.Is(err, c.want) {
			t.Errorf("%s: ParseNetwork(%q, %q) = %v, want %v", c.id, c.cidr, c.except, err, c.want)
		}
	}
}

func TestNetworkSize(t *testing.T) {
	for _, c := range []struct{ cidr, except, want string }{
		{"0.0.0.0/0", "", "4294967296"},
		{"10.0.0.0/30", "", "4"},
		{"10.0.0.0/31", "", "2"},
		{"::/0", "", "340282366920938463463374607431768211456"},
		{"::/0", "::1", "340282366920938463463374607431768211455"},
		{"::/0", "::/1 8000::/1", "0"},
		{"fd00::/64", "fd00::/65 fd00::/66 fd00::1", "9223372036854775808"},
	} {
		n, err := ParseNetwork(c.cidr, strings.Fields(c.except))
		if err != nil || n.Size().String() != c.want {
			t.Errorf("%s except %q has %v addresses (%v), want %s", c.cidr, c.except, n.Size(), err, c.want)
		}
	}
}

// A Network contains what a model finds that asks every exception about every address.
func TestNetworkModel(t *testing.T) {
	random := rand.New(rand.NewPCG(39, 1))
	for range 2000 {
		first := netip.MustParseAddr([]string{"10.0.0.0", "2001:db8::ffff:ffff:ffff:ff00"}[random.IntN(2)])
		block := netip.PrefixFrom(first, first.BitLen()-8)
		var all []netip.Addr
		for addr := first; block.Contains(addr); addr = addr.Next() {
			all = append(all, addr)
		}

		var texts []string
		var except []netip.Prefix
		for range random.IntN(6) {
			p := netip.PrefixFrom(all[random.IntN(len(all))], first.BitLen()-random.IntN(8)).Masked()
			texts, except = append(texts, p.String()), append(except, p)
		}
		n, err := ParseNetwork(block.String(), texts)
		if err != nil {
			t.Fatal(err)
		}

		var count int64
		for _, addr := range all {
			want := true
			for _, p := range except {
				want = want && !p.Contains(addr)
			}
			if want {
				count++
			}
			if n.Contains(addr) != want {
				t.Fatalf("%v except %v contains %v: %t, want %t", block, texts, addr, !want, want)
			}
		}
		if n.Size().Cmp(big.NewInt(count)) != 0 {
			t.Fatalf("%v except %v has %v addresses, want %d", block, texts, n.Size(), count)
		}
	}
}

func FuzzParseNetwork(f *testing.F) {
	f.Add("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3")
	f.Add("::/0", "::ffff:0:0/96", "::ffff:10.0.0.1")
	f.Fuzz(func(t *testing.T, cidr, except, address string) {
		n, err := ParseNetwork(cidr, strings.Fields(except))
		if err != nil && len(err.Error()) > 1024 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}

		addr, invalid := netip.ParseAddr(address)
		if invalid == nil && n.Contains(addr) && n.Size().Sign() <= 0 {
			t.Errorf("%q except %q contains %v, and has no addresses", cidr, except, addr)
		}
	})
}

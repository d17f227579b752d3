package main

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"go.uber.org/goleak"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// play performs rounds of a script on nothing but the model, and returns the deeds.
func play(t *testing.T, seed uint64, rounds int) (deeds []string, verbs map[verb]int) {
	t.Helper()
	w, verbs := newWorld(seed, 6, 10, 50, 2), map[verb]int{}
	w.compared(time.Time{})
	for range rounds {
		before := make([]map[netip.AddrPort]bool, w.apps)
		for app := range before {
			before[app] = w.expected(app)
		}
		for d := range w.changes() {
			deeds = append(deeds, d.String())
			verbs[d.verb]++
		}
		// What is exempt from the law and yet is expected came back in the round that took it away: a stream that
		// knows of neither would seem right.
		for app := range before {
			for a := range w.expected(app) {
				if _, firm := w.law.firm[app][a]; before[app][a] && !firm {
					t.Errorf("seed %d, round %d: %s of %s went and came back", seed, w.round, a, appName(app))
				}
			}
		}
		w.compared(time.Time{})
		if !w.settles() {
			continue
		}
		for d := range w.settle() {
			deeds = append(deeds, d.String())
			verbs[d.verb]++
		}
		w.compared(time.Time{})
		for app := range w.apps {
			if n := len(w.expected(app)); n != 6*perMember {
				t.Errorf("seed %d, round %d: %s is settled with %d addresses", seed, w.round, appName(app), n)
			}
			if !w.law.lives[app] {
				t.Errorf("seed %d, round %d: %s is settled and may be empty", seed, w.round, appName(app))
			}
		}
	}
	return deeds, verbs
}

// The same seed makes the same script, another one another; all that can happen happens.
func TestScript(t *testing.T) {
	t.Parallel()
	first, verbs := play(t, 1, 200)
	again, _ := play(t, 1, 200)
	other, _ := play(t, 2, 200)
	if !slices.Equal(first, again) {
		t.Error("the same seed made another script")
	}
	if slices.Equal(first, other) {
		t.Error("another seed made the same script")
	}
	for _, v := range []verb{
		scale, grow, shrink, flip, remove, create, exclude, include, retire, revive, unlink, link, cut, heal, slow,
		fast, hangUp, rotate, mislay, restart, kill, come, stall,
	} {
		if verbs[v] == 0 {
			t.Errorf("in 200 rounds there was no %s", v)
		}
	}
}

func addrs(texts ...string) map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	for _, text := range texts {
		all[netip.MustParseAddrPort(text)] = true
	}
	return all
}

func TestLaw(t *testing.T) {
	t.Parallel()
	const a, b, c = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
	began := time.Unix(0, 0)
	l := law{firm: make([]map[netip.AddrPort]time.Time, 1), lives: make([]bool, 1)}
	l.compared([]map[netip.AddrPort]bool{addrs(a, b)}, began)
	l.compared([]map[netip.AddrPort]bool{addrs(a, b, c)}, began.Add(time.Minute))
	l.alive([]bool{true})
	l.may(netip.MustParseAddrPort(b))
	for _, test := range []struct {
		held  map[netip.AddrPort]bool
		young time.Time
		lacks string
		empty bool
	}{
		{held: addrs(a, b, c), lacks: "[]"},
		{held: addrs(a, c), lacks: "[]"}, // what a deed bears on
		{held: addrs(a), lacks: "[10.0.0.3:80]"},
		{held: addrs(a), young: began.Add(time.Second), lacks: "[]"}, // a killed replica
		{held: addrs(c), young: began.Add(time.Second), lacks: "[10.0.0.1:80]"},
		{held: addrs("10.0.0.9:80"), young: began, lacks: "[]"},
	} {
		lacks, empty := l.broken(0, test.held, test.young)
		if fmt.Sprint(lacks) != test.lacks || empty != test.empty {
			t.Errorf("%v, young %s: lacks %v, empty %t, want %s, %t", test.held, test.young, lacks, empty, test.lacks,
				test.empty)
		}
	}
	for _, addr := range []string{a, c} {
		l.may(netip.MustParseAddrPort(addr))
	}
	if lacks, empty := l.broken(0, addrs(), time.Time{}); len(lacks) > 0 || !empty {
		t.Errorf("all was replaced: lacks %v, empty %t; want it to be empty", lacks, empty)
	}
}

// A cluster withdraws what it lost while it was away when it is back.
func TestAway(t *testing.T) {
	t.Parallel()
	w := newWorld(1, 6, 10, 50, 2)
	i := slices.IndexFunc(w.sites, func(s *site) bool { return s.index >= realSites && s.members[0] != nil })
	s := w.sites[i]
	gone := s.addr(s.members[0].endpoints[perMember-1].number)
	w.compared(time.Time{})
	w.do(deed{verb: cut, site: i})
	w.do(deed{verb: scale, site: i, app: 0, n: perMember - 1})
	if !w.expected(0)[gone] {
		t.Error("a cluster that is away has withdrawn an address")
	}
	w.compared(time.Time{})
	without := w.expected(0)
	delete(without, gone)
	if lacks, _ := w.law.broken(0, without, time.Time{}); len(lacks) != 1 {
		t.Errorf("away: lacks %v, want %s", lacks, gone)
	}
	w.do(deed{verb: heal, site: i})
	if lacks, _ := w.law.broken(0, without, time.Time{}); w.expected(0)[gone] || len(lacks) > 0 {
		t.Errorf("back: expected %t, lacks %v", w.expected(0)[gone], lacks)
	}
}

func lineOf(heaps ...float64) line {
	l := line{name: "replica", began: time.Unix(0, 0)}
	for i, h := range heaps {
		s := sample{at: time.Unix(int64(60*i), 0)}
		s.values = [...]float64{h * (1 << 20), 3000, 600, 1800}
		l.samples = append(l.samples, s)
	}
	return l
}

func TestReport(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		line  line
		risen bool
	}{
		{"noise", lineOf(20, 24, 30, 30.2, 29.9, 30.1, 30, 29.8, 30.2, 30), false},
		{"a cache that fills at first", lineOf(10, 20, 30, 30, 30, 30, 30), false},
		{"one sample that is far off", lineOf(30, 30, 30, 30, 30, 30, 30, 30, 90), false},
		{"a leak", lineOf(28, 29, 30, 31, 32, 33, 34, 35), true},
		{"a leak beside a sample that is far off", lineOf(28, 29, 30, 31, 10, 33, 34, 35), true},
		{"too few", lineOf(10, 20, 30, 40), false},
	} {
		rows, risen, measured := report([]line{test.line})
		if (len(risen) > 0) != test.risen {
			t.Errorf("%s: risen %v, want %t\n%s", test.name, risen, test.risen, strings.Join(rows, "\n"))
		}
		if few := measured == 0; few != (test.name == "too few") {
			t.Errorf("%s: %d lines are measured", test.name, measured)
		}
	}
	if up := rise(lineOf(1, 2, 3).samples, 0); math.Abs(up-2<<20) > 1 {
		t.Errorf("a rise of %f", up)
	}
}

func TestSeries(t *testing.T) {
	t.Parallel()
	if n := series("# HELP a b\na{b=\"#\"} 1\n\n# TYPE c gauge\nc 2\n"); n != 2 {
		t.Errorf("%d series, want 2", n)
	}
}

// What a stream holds follows its messages, and outlasts its end.
func TestStream(t *testing.T) {
	t.Parallel()
	checked := 0
	s := &stream{client: &client{replica: &replica{}}, held: map[netip.AddrPort]bool{}}
	at := func(text string) proxy.Address {
		return proxy.Address{Addr: netip.MustParseAddrPort(text), WeightedAddr: &pb.WeightedAddr{}}
	}
	const a, b = "10.0.0.1:80", "10.0.0.2:80"
	for i, test := range []struct {
		message proxy.Message
		want    map[netip.AddrPort]bool
	}{
		{proxy.Message{Type: proxy.Add, Reset: true, Added: []proxy.Address{at(a)}}, addrs(a)},
		{proxy.Message{Type: proxy.Heartbeat}, addrs(a)},
		{proxy.Message{Type: proxy.Add, Added: []proxy.Address{at(b)}}, addrs(a, b)},
		{proxy.Message{Type: proxy.Remove, Removed: []netip.AddrPort{at(a).Addr}}, addrs(b)},
		{proxy.Message{Type: proxy.Add, Reset: true, Added: []proxy.Address{at(a)}}, addrs(a)},
		{proxy.Message{Type: proxy.NoEndpoints}, addrs()},
	} {
		s.observe(proxy.Event{Message: &test.message}, func(*stream) { checked++ })
		if d := s.differs(test.want, false); d != "" {
			t.Errorf("message %d: %s", i, d)
		}
	}
	if checked != 5 {
		t.Errorf("it was checked %d times, want 5", checked)
	}
	if d := s.differs(addrs(a), false); d == "" {
		t.Error("it lacks an address, and does not differ")
	}
}

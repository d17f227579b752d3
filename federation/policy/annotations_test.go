package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

func TestServiceOf(t *testing.T) {
	for value, want := range map[string]Service{
		"prefer=local > *":           {Prefer: []Tier{{Local: true}, {Others: true}}},
		"prefer= west , east>region": {Prefer: []Tier{{Clusters: []string{"east", "west"}}, {Region: true}}},
		"prefer=local,east":          {Prefer: []Tier{{Clusters: []string{"east"}, Local: true}}},
		"capacity=10":                {Capacity: 10},
		"weights=west=20, east=80":   {Weights: []Weight{{"east", 80}, {"west", 20}}},
		"weights=east=1,west=0":      {Weights: []Weight{{"east", 1}, {"west", 0}}},
		"when-stale=drop":            {WhenStale: Drop},
		"when-stale=keep":            {WhenStale: Keep},
		"other=1":                    {},
	} {
		key, text, _ := strings.Cut(value, "=")
		got, problems := ServiceOf(map[string]string{Prefix + key: text})
		if !got.Equal(&want) || problems != nil {
			t.Errorf("%s: %+v %v, want %+v", value, got, problems, want)
		}
	}
}

func TestLinkOf(t *testing.T) {
	for value, want := range map[string]Link{
		"when-stale=last":                          {WhenStale: Last},
		"drain=true":                               {Drain: Drain{From: time.Unix(0, 0).UTC()}},
		"drain=2026-01-31T12:00:00Z/5m":            {Drain: Drain{From: noon, Over: 5 * time.Minute}},
		"drain=2026-01-31T13:00:00+01:00/1h30m/up": {Drain: Drain{noon, 90 * time.Minute, true}},
		"withdrawal-guard=50%/10m":                 {WithdrawalGuard: WithdrawalGuard{false, 50, 10 * time.Minute}},
		"withdrawal-guard=off":                     {WithdrawalGuard: WithdrawalGuard{Off: true}},
		"max-endpoints=100":                        {MaxEndpoints: Limit{true, 100}},
		"max-services=0":                           {MaxServices: Limit{true, 0}},
		"region=eu-west-1":                         {Region: "eu-west-1"},
	} {
		key, text, _ := strings.Cut(value, "=")
		if got, problems := LinkOf(map[string]string{Prefix + key: text}); got != want || problems != nil {
			t.Errorf("%s: %+v %v, want %+v", value, got, problems, want)
		}
	}
}

// A value that cannot be read changes nothing, and is reported with the annotation and the value.
func TestUnreadableValues(t *testing.T) {
	long := strings.Repeat("a", maxName+1)
	many := func(n int, text string) string {
		return strings.TrimSuffix(strings.Repeat(text, n), text[len(text)-1:])
	}
	var names []string
	for i := range maxNames + 1 {
		names = append(names, fmt.Sprint("c", i))
	}
	bad := map[string][]string{
		PreferKey: {
			"", ">", "local >", "local > > *", "east,east", "* > *", "local > east > local", "east west", "é", long,
			strings.Join(names[:maxTiers+1], ">"), strings.Join(names, ","), many(maxValue, "a,"),
		},
		CapacityKey: {"", "0", "-1", "1.5", "ten", "100000001", "99999999999999999999", "+1", "1e3"},
		WeightsKey: {
			"", "east", "east=", "=1", "east=-1", "east=1,east=2", "east=10001", "east=0", "east=1;west=2", long + "=1",
			"east=1,", strings.Join(names, "=1,") + "=1",
		},
		WhenStaleKey: {"", "Keep", "never", "unset"},
		DrainKey: {
			"", "soon", "false", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z/", "2026-01-31/5m", "/5m",
			"2026-01-31T12:00:00Z/-5m", "2026-01-31T12:00:00Z/5m/down", "2026-01-31T12:00:00Z/200h",
			"0001-01-01T00:00:00Z/1m", "9999-01-01T00:00:00Z/1m",
		},
		WithdrawalGuardKey: {"", "many", "50%", "50/10m", "0%/10m", "101%/10m", "50%/0s", "50%/-1m", "50%/forever"},
		MaxEndpointsKey:    {"", "-1", "all", "100000001"},
		MaxServicesKey:     {"", "-1", "1k"},
		RegionKey:          {"", "eu west", strings.Repeat("a", 64), "\xff"},
		IdentitiesKey:      {"", "Accept", "true"},
	}
	link := Link{Last, Drain{From: noon}, WithdrawalGuard{Off: true}, Limit{true, 1}, Limit{true, 2}, "eu", true}
	for key, values := range bad {
		for _, value := range values {
			annotations := map[string]string{key: value}
			s, problems := ServiceOf(annotations)
			l, more := LinkOf(annotations)
			if slices.Contains(ServiceKeys, key) {
				check(t, key, value, problems)
				if !s.None() {
					t.Errorf("%s: %q gives %+v", key, value, s)
				}
			}
			if slices.Contains(LinkKeys, key) {
				check(t, key, value, more)
				kept := l.Keeping(link, more)
				grants := key == IdentitiesKey // what grants rights is not kept
				if l != (Link{}) || (kept == Link{}) != grants {
					t.Errorf("%s: %q gives %+v and keeps %+v", key, value, l, kept)
				}
			}
		}
	}
	if got := slices.Sorted(maps.Keys(bad)); len(got) != len(ServiceKeys)+len(LinkKeys)-1 {
		t.Errorf("only %v are tested", got)
	}
}

func check(t *testing.T, key, value string, problems []Problem) {
	t.Helper()
	if len(problems) != 1 || problems[0].Key != key || problems[0].Value != value || problems[0].Want == "" {
		t.Errorf("%s: %q has the problems %v", key, value, problems)
	} else if text := problems[0].String(); !strings.Contains(text, key) || len(text) > 1000 {
		t.Errorf("%s: %q is described as %s", key, value, text)
	}
}

// A Drain falls, or rises, in 20 equal steps from its time on, and returns when the next one is.
func TestDrainAt(t *testing.T) {
	for _, c := range []struct {
		drain   Drain
		after   time.Duration // noon
		percent uint8
		next    time.Duration // after noon; 0: never
	}{
		{Drain{}, 0, 0, 0},
		{Drain{From: atOnce}, 0, 100, 0},
		{Drain{From: noon}, -time.Second, 0, 0},
		{Drain{From: noon}, 0, 100, 0},
		{Drain{From: noon.Add(time.Minute), Over: time.Minute}, 0, 0, time.Minute},
		{Drain{From: noon, Over: time.Minute}, 0, 0, 3 * time.Second},
		{Drain{From: noon, Over: time.Minute}, 3*time.Second - 1, 0, 3 * time.Second},
		{Drain{From: noon, Over: time.Minute}, 3 * time.Second, 5, 6 * time.Second},
		{Drain{From: noon, Over: time.Minute}, time.Minute - 1, 95, time.Minute},
		{Drain{From: noon, Over: time.Minute}, time.Minute, 100, 0},
		{Drain{noon, time.Minute, true}, -1, 100, 0},
		{Drain{noon, time.Minute, true}, 3 * time.Second, 95, 6 * time.Second},
		{Drain{noon, time.Minute, true}, time.Hour, 0, 0},
	} {
		percent, next := c.drain.At(noon.Add(c.after))
		want := time.Time{}
		if c.next != 0 {
			want = noon.Add(c.next)
		}
		if c.after < 0 {
			want = noon
		}
		if percent != c.percent || !next.Equal(want) {
			t.Errorf("%v after %s: %d until %s, want %d until %s", c.drain, c.after, percent, next, c.percent, want)
		}
	}
}

// A clock that follows the times that At returns comes through every step, however long the drain takes.
func TestDrainSteps(t *testing.T) {
	for _, over := range []time.Duration{0, 1, 19, 20, 21, time.Second, 7 * time.Minute, MaxTime} {
		d, now, last := Drain{From: noon, Over: over}, noon, uint8(0)
		for n := 0; ; n++ {
			percent, next := d.At(now)
			if percent < last || percent%5 != 0 || over >= steps && percent > last+5 || n > steps {
				t.Fatalf("over %s: %d after %d", over, percent, last)
			}
			if last = percent; next.IsZero() {
				break
			}
			if !next.After(now) {
				t.Fatalf("over %s: the step after %s is at %s", over, now, next)
			}
			now = next
		}
		if last != 100 || now.After(noon.Add(over)) {
			t.Fatalf("over %s: %d%% at %s", over, last, now)
		}
	}
}

// No annotation makes the parsers fail, and what they read is what its own text gives again.
func FuzzAnnotations(f *testing.F) {
	for _, value := range []string{
		"local > east,west > *", "east=80,west=20", "10", "drop", "true", "2026-01-31T12:00:00Z/5m/up", "50%/10m",
	} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		annotations := map[string]string{}
		for _, key := range slices.Concat(ServiceKeys, LinkKeys) {
			annotations[key] = value
		}
		s, problems := ServiceOf(annotations)
		l, more := LinkOf(annotations)
		for _, p := range slices.Concat(problems, more) {
			if text := p.String(); !utf8.ValidString(text) || len(text) > 1000 {
				t.Fatalf("a Problem is described as %q", text)
			}
		}
		if len(s.Prefer) > maxTiers || len(s.Names()) > 2*maxNames || s.Capacity > maxCount {
			t.Fatalf("%+v is out of bounds", s)
		}
		for _, w := range s.Weights {
			if w.Weight > MaxWeight {
				t.Fatalf("%+v is out of bounds", w)
			}
		}
		if again, ok := ParseDrain(l.Drain.String()); l.Drain != (Drain{}) && (!ok || again != l.Drain) {
			t.Fatalf("%q is read as %v, and that as %v", value, l.Drain, again)
		}
		percent, next := l.Drain.At(noon)
		if percent > 100 || percent%5 != 0 || !next.IsZero() && !next.After(noon) {
			t.Fatalf("%v: %d until %s", l.Drain, percent, next)
		}
	})
}

// A policy is described as it was written.
func TestServiceString(t *testing.T) {
	for want, annotations := range map[string]map[string]string{
		"none": {},
		"prefer east,local > region > *; capacity 3; weights east=80,west=20; when-stale drop": {
			PreferKey: "local,east>region > *", CapacityKey: "3", WeightsKey: "west=20,east=80", WhenStaleKey: "drop",
		},
	} {
		s, problems := ServiceOf(annotations)
		if got := s.String(); got != want || len(problems) > 0 {
			t.Errorf("%v is %q with problems %v, want %q", annotations, got, problems, want)
		}
	}
}

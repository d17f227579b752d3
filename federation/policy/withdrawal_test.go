package policy

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWithdraws(t *testing.T) {
	for _, c := range []struct {
		guard          WithdrawalGuard
		had, has, free int
		want           bool
	}{
		{WithdrawalGuard{}, 100, 20, FreeEndpoints, true},
		{WithdrawalGuard{}, 100, 50, FreeEndpoints, false}, // half
		{WithdrawalGuard{}, 100, 49, FreeEndpoints, true},
		{WithdrawalGuard{}, 15, 5, FreeEndpoints, false}, // few
		{WithdrawalGuard{}, 20, 0, FreeEndpoints, false},
		{WithdrawalGuard{}, 21, 0, FreeEndpoints, true},
		{WithdrawalGuard{}, 4, 0, FreeServices, true},
		{WithdrawalGuard{}, 3, 0, FreeServices, false},
		{WithdrawalGuard{}, 0, 100, FreeEndpoints, false},
		{WithdrawalGuard{Percent: 90}, 100, 20, FreeEndpoints, false},
		{WithdrawalGuard{Percent: 100}, 100, 1, FreeEndpoints, false},
		{WithdrawalGuard{Percent: 100}, 100, 0, FreeEndpoints, true},
		{WithdrawalGuard{Percent: 30}, 100, 69, FreeEndpoints, true},
		{WithdrawalGuard{Off: true}, 100, 0, FreeEndpoints, false},
	} {
		if got := c.guard.Withdraws(c.had, c.has, c.free); got != c.want {
			t.Errorf("%+v: from %d to %d: %t", c.guard, c.had, c.has, got)
		}
	}
}

// The peak is the highest value within the window, or one that was exceeded a second before it, and remembers little.
func TestPeak(t *testing.T) {
	type change struct {
		at    time.Time
		value int
	}
	rapid.Check(t, func(t *rapid.T) {
		var p Peak
		now := time.Unix(1e9, 0)
		all := []change{{now.Add(-time.Hour), 0}}
		for range rapid.IntRange(1, 200).Draw(t, "changes") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 200, 900, 3000, 59_000, 61_000}).Draw(t, "ms")) *
				time.Millisecond)
			value := rapid.IntRange(0, 50).Draw(t, "value")
			p.Set(now, value)
			all = append(all, change{now, value})
			highest := func(since time.Time) (most int) {
				for i, c := range all {
					if i == len(all)-1 || !all[i+1].at.Before(since) {
						most = max(most, c.value)
					}
				}
				return most
			}
			least, most := highest(now.Add(-Window)), highest(now.Add(-Window-time.Second))
			if got := p.Max(now); got < least || got > most {
				t.Fatalf("%d, want %d to %d", got, least, most)
			}
			if len(p.past) > 62 {
				t.Fatalf("%d values", len(p.past))
			}
		}
		if p.Reset(); p.Max(now) != all[len(all)-1].value {
			t.Fatal("a peak after Reset")
		}
	})
}

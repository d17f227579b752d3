package apply

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// The laws of a Pace, for keys that ask whenever they are woken, and change their mind at random:
//
//   - In no time are more keys written for a cause than its bucket holds and gains.
//   - A key that goes on asking is written by the time that all before it take.
//   - Once no key asks, none waits.
func TestPaceLaws(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		burst := rapid.IntRange(1, 5).Draw(rt, "burst")
		perSecond := rapid.SampledFrom([]float64{0.5, 1, 4}).Draw(rt, "a second")
		synctest.Test(t, func(*testing.T) {
			p := NewPace[int](perSecond, burst)
			began := time.Now()
			next, written := map[int]time.Time{}, map[string]int{} // when keys ask again; by cause
			causeOf := func(k int) string { return fmt.Sprint("cluster ", k%2) }
			ask := func(k int) {
				err := p.Take(causeOf(k), k)
				retry, isRetry := errors.AsType[*Retry](err)
				switch {
				case err == nil:
					written[causeOf(k)]++
					delete(next, k)
				case !isRetry || retry.After <= 0:
					rt.Fatalf("Take returns %v", err)
				default:
					next[k] = time.Now().Add(retry.After)
				}
			}
			check := func() {
				for cause, n := range written {
					if limit := float64(burst) + perSecond*time.Since(began).Seconds(); float64(n) > limit+0.001 {
						rt.Fatalf("%d writes for %s after %s", n, cause, time.Since(began))
					}
				}
			}
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				k := rapid.IntRange(0, 20).Draw(rt, "key")
				if rapid.IntRange(0, 4).Draw(rt, "drops") == 0 {
					p.Drop(k)
					delete(next, k)
				} else {
					ask(k)
				}
				pause := time.Duration(rapid.IntRange(0, 800).Draw(rt, "ms")) * time.Millisecond
				time.Sleep(pause) //nolint:forbidigo // virtual time
				for k, at := range next {
					if !time.Now().Before(at) {
						ask(k)
					}
				}
				check()
			}
			limit := time.Duration(float64(len(next)+burst+1)/perSecond*float64(time.Second)) + 2*longestWait
			for deadline := time.Now().Add(limit); len(next) > 0; check() {
				if time.Now().After(deadline) {
					rt.Fatalf("%d keys wait after %s", len(next), limit)
				}
				time.Sleep(50 * time.Millisecond) //nolint:forbidigo // virtual time
				for k, at := range next {
					if !time.Now().Before(at) {
						ask(k)
					}
				}
			}
			if p.Waiting("cluster 0")+p.Waiting("cluster 1")+len(p.causeOf) != 0 {
				rt.Fatalf("%d keys wait, and none asks", len(p.causeOf))
			}
		})
	})
}

// A key that is written for another cause than the one it waits for leaves its line; lines that are as good as new are
// forgotten.
func TestPaceCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPace[string](1, 1)
		for i, c := range []struct {
			cause, key string
			waits      time.Duration
		}{
			{"east", "a", 0},
			{"east", "b", time.Second},
			{"east", "c", 2 * time.Second},
			{"west", "c", 0},
			{"east", "d", 2 * time.Second},
		} {
			retry, _ := errors.AsType[*Retry](p.Take(c.cause, c.key))
			if waits := retry != nil; waits != (c.waits > 0) || waits && retry.After != c.waits {
				t.Errorf("%d: %s for %s: %v, want %s", i, c.key, c.cause, retry, c.waits)
			}
		}
		if n := p.Waiting("east"); n != 2 {
			t.Errorf("%d keys wait", n)
		}
		for i := range 5 * minSweep {
			_ = p.Take(fmt.Sprint(i), fmt.Sprint(i))
			time.Sleep(time.Millisecond) //nolint:forbidigo // virtual time
		}
		if n := len(p.lines); n > 2*minSweep {
			t.Errorf("%d lines", n)
		}
	})
}

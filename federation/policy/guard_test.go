package policy

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// However removals are divided, those of one source and minute are confirmed from the one on that makes them more
// than half of what the source held, and another source's count for nothing.
func TestGuardAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		held := rapid.IntRange(0, 100).Draw(t, "held")
		var g Guard
		now, removed := time.Unix(0, 0), 0
		for range rapid.IntRange(1, 30).Draw(t, "removals") {
			n := rapid.IntRange(1, 10).Draw(t, "removed")
			removed += n
			exceeds := g.Exceeds(now, "east", n, func() int { return held })
			if want := removed > Free && 2*removed > held; exceeds != want {
				t.Fatalf("%d of %d: exceeds is %t, want %t", removed, held, exceeds, want)
			}
			if g.Exceeds(now, "west", 1, func() int { return 1000 }) {
				t.Fatal("one of a thousand is a mass removal")
			}
			now = now.Add(time.Second)
		}
		now = now.Add(2 * period)
		if held > 2 && g.Exceeds(now, "east", 1, func() int { return held }) {
			t.Fatal("removals of an earlier minute count")
		}
	})
}

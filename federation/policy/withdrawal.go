package policy

import (
	"cmp"
	"time"
)

// What a linked cluster may withdraw within Window without confirmation, so that small clusters are not slowed down.
const (
	FreeEndpoints = 20
	FreeServices  = 3
)

// Window is how long withdrawals of a linked cluster add up.
const Window = time.Minute

// mostWithdrawn is the percentage of what a cluster has that it may withdraw if its Link has none of its own.
const mostWithdrawn = 50

// Withdraws reports whether going from had to has is a withdrawal to be confirmed first: more than free, and more
// than the guard's percentage.
func (g WithdrawalGuard) Withdraws(had, has, free int) bool {
	lost, percent := had-has, int(cmp.Or(g.Percent, mostWithdrawn))
	return !g.Off && lost > free && (100*lost > percent*had || has == 0)
}

// A Peak is the highest value that a number has had within Window. It counts what a cluster has lost on balance: a
// rollout that replaces every endpoint withdraws nothing. The zero Peak is of a number that has always been 0.
//
// It remembers the values that were exceeded by none since, one a second at most, which are at most 61. A Peak is not
// safe for concurrent use.
type Peak struct {
	now  int
	past []pastValue // the highest first, which is the oldest
}

// pastValue is what the number was until some time; or the highest that it was until then since it was first
// exceeded by none.
type pastValue struct {
	value        int
	since, until time.Time
}

// Set sets the number.
func (p *Peak) Set(now time.Time, value int) {
	if value == p.now {
		return
	}
	p.keep(now)
	p.now = value
	n := len(p.past)
	for n > 0 && p.past[n-1].value <= value {
		n--
	}
	p.past = p.past[:n]
}

// keep makes the number a past one, unless one of the same second was as high.
func (p *Peak) keep(now time.Time) {
	if n := len(p.past); n > 0 {
		last := &p.past[n-1]
		if now.Sub(last.since) < time.Second && last.value >= p.now {
			last.until = now
			return
		}
	}
	p.past = append(p.past, pastValue{p.now, now, now})
}

// Max returns the highest value within Window.
func (p *Peak) Max(now time.Time) int {
	for len(p.past) > 0 && now.Sub(p.past[0].until) > Window {
		p.past = p.past[1:]
	}
	if len(p.past) > 0 {
		return max(p.past[0].value, p.now)
	}
	return p.now
}

// Reset makes the number the highest value.
func (p *Peak) Reset() { p.past = nil }

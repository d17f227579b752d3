// Package policy holds decisions about what clusters publish, as pure functions: what is done is decided here, and
// when, by the caller.
package policy

import "time"

// Free is how many endpoints may be removed without confirmation, so that small Services are not slowed down.
const Free = 4

// period is how long a Guard adds removals up.
const period = time.Minute

// IsMass reports whether removing so many of those that are held is a mass removal: more than half, and more than
// Free.
func IsMass(removed, held int) bool { return IsMassOf(removed, held, Free) }

// IsMassOf is IsMass for other things than endpoints, of which free may be removed without confirmation.
func IsMassOf(removed, held, free int) bool { return removed > free && 2*removed > held }

// A Guard notices mass removals that come bit by bit. A watch that went wrong, or a cluster that was restored from an
// old backup, can make most of what a cluster has disappear at once; acting on that would empty its Services
// everywhere. So what removes more than half of what one cluster has, in one Service or within a minute in all, is to
// be confirmed first by reading again.
//
// Removals count whether or not they were confirmed. A Guard is not safe for concurrent use.
type Guard struct {
	sources map[string]*removals // by cluster
}

// removals are those of one cluster since began.
type removals struct {
	began   time.Time
	held    int // when it began
	removed int
}

// Exceeds counts a removal from a source cluster, and reports whether it is to be confirmed. held returns how much
// that cluster has in all; it is called once in a period.
func (g *Guard) Exceeds(now time.Time, source string, removed int, held func() int) bool {
	r := g.sources[source]
	if r == nil || now.Sub(r.began) > period {
		if g.sources == nil {
			g.sources = map[string]*removals{}
		}
		r = &removals{began: now, held: held()}
		g.sources[source] = r
	}
	r.removed += removed
	return IsMass(r.removed, r.held)
}

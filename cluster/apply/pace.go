package apply

import (
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// ErrPaced is why a key waits for its turn.
var ErrPaced = errors.New("it is written in its turn: as much was written for the same reason within a short time")

// A Pace bounds how often one cause, such as a linked cluster, has something written: each has a token bucket.
//
// Keys that find the bucket empty wait in line. Take returns a [Retry] to each until there is a token for it and for
// all before it. So a key that waits is reconciled again for its turn, and does what is wanted by then: of many changes
// of one key the last one counts. What is wanted in the end is written, because a key is in the queue of its Loop as
// long as it is in line.
//
//	a Pace of 1 a second with a burst of 2, keys that are enqueued at 0 s:
//
//	a, b   written at 0 s
//	c      in line, written at 1 s
//	d      in line behind c; at 0.5 s it is as it should be: Drop
//	e      asks at 0.6 s, and is written at 2 s
//
// A Pace may be used by several workers. It costs a few words for each cause, and for each key in line, past which a
// Take has to walk.
type Pace[K comparable] struct {
	limit rate.Limit
	burst int

	mu      sync.Mutex
	lines   map[string]*line[K] // by cause
	causeOf map[K]string        // of keys in line
	sweepAt int                 // lines that are as good as new are dropped once there are so many
}

// A line is the keys that wait for one cause.
type line[K comparable] struct {
	bucket *rate.Limiter
	keys   []K // the first one is the next
}

const (
	// longestWait is until a key in line asks again, at most: others before it may have given their turns back.
	longestWait = 10 * time.Second
	minSweep    = 1000
)

// NewPace returns a Pace of so many writes a second for each cause, and burst of them at once, which is at least 1.
func NewPace[K comparable](perSecond float64, burst int) *Pace[K] {
	return &Pace[K]{
		limit: rate.Limit(perSecond), burst: burst, lines: map[string]*line[K]{}, causeOf: map[K]string{},
		sweepAt: minSweep,
	}
}

// Take returns nil if a key may be written now for a cause, once, or else a [Retry] for its turn.
func (p *Pace[K]) Take(cause string, key K) error {
	p.mu.Lock()
	defer p.mu.Unlock()

	if before, waits := p.causeOf[key]; waits && before != cause {
		p.drop(key)
	}
	now := time.Now()
	line := p.lineOf(cause, now)
	place := slices.Index(line.keys, key)
	if place < 0 {
		place = len(line.keys)
	}

	missing := float64(place+1) - line.bucket.TokensAt(now)
	if missing <= 0 && line.bucket.AllowN(now, 1) {
		p.drop(key)
		return nil
	}
	if place == len(line.keys) {
		line.keys, p.causeOf[key] = append(line.keys, key), cause
	}
	wait := time.Duration(missing / float64(p.limit) * float64(time.Second))
	return &Retry{After: min(max(wait, time.Millisecond), longestWait), Err: ErrPaced}
}

// Drop takes a key out of the line, if it is in one: it need not be written any more.
func (p *Pace[K]) Drop(k K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(k)
}

// DropFunc takes the keys that match out of their lines. It looks at all of them.
func (p *Pace[K]) DropFunc(match func(K) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.causeOf {
		if match(k) {
			p.drop(k)
		}
	}
}

// InLine reports whether a key waits for its turn.
func (p *Pace[K]) InLine(k K) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, waits := p.causeOf[k]
	return waits
}

// Waiting returns how many keys are in line for a cause.
func (p *Pace[K]) Waiting(cause string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lines[cause]; l != nil {
		return len(l.keys)
	}
	return 0
}

// The caller of the following holds mu.

func (p *Pace[K]) drop(k K) {
	cause, waits := p.causeOf[k]
	if !waits {
		return
	}
	l := p.lines[cause]
	l.keys = slices.DeleteFunc(l.keys, func(other K) bool { return other == k })
	delete(p.causeOf, k)
}

// lineOf returns the line of a cause. One without keys and with a full bucket is as good as new.
func (p *Pace[K]) lineOf(cause string, now time.Time) *line[K] {
	if len(p.lines) >= p.sweepAt {
		for name, l := range p.lines {
			if len(l.keys) == 0 && l.bucket.TokensAt(now) >= float64(p.burst) {
				delete(p.lines, name)
			}
		}
		p.sweepAt = max(minSweep, 2*len(p.lines))
	}

	l := p.lines[cause]
	if l == nil {
		l = &line[K]{bucket: rate.NewLimiter(p.limit, p.burst)}
		p.lines[cause] = l
	}
	return l
}

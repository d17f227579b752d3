package view

import "time"

// A change of a Service is published in its own time, so that an isolated one waits for nothing and many cost little.
//
// The first change of a quiet Service, one that was not changed since its last window began, is published as soon as its key comes up in the
// queue, behind the changes that are in the queue already. So is a new Service. A publication begins a window, and what changes in it is
// published at its end, which begins the next one. A window in which nothing changes is the last: the Service is quiet again. Windows grow
// while changes come more often than each busy, up to widest: sustained churn costs four publications a second, however many changes it is.
// When they come less often, windows shrink again.
//
// A controller that moves an address from one EndpointSlice to another writes two objects. An address that leaves its slice while its
// workload is ready and not terminating may be on its way, so its Service is not published before a shortest window has passed. Everything
// else goes at once: an address whose Pod is gone, terminating or not ready, or that never had one.
const (
	window = 50 * time.Millisecond // the shortest
	widest = 250 * time.Millisecond
	busy   = 100 * time.Millisecond
)

// pace is when a Service is published that is not quiet. The queue holds an item for each, which comes up when the window ends, or earlier.
type pace struct {
	began, ends time.Time
	changes     int // since began
}

// change notes that a Service is not what was published. moving is set if an address may be on its way to another slice.
func (r *Reconciler) change(k key, moving bool) {
	if r.paces == nil {
		return // Begin publishes everything
	}
	now := time.Now()
	p, restless := r.paces[k]
	if !restless {
		p = &pace{began: now, ends: now}
		r.paces[k] = p
	}
	p.changes++
	if later := now.Add(window); moving && p.ends.Before(later) {
		p.ends = earlier(later, p.began.Add(widest+window)) // moves without end must not hold back everything else
	}
	if !restless {
		r.queue.AddAfter(item{aView, k}, p.ends.Sub(now))
	}
}

// reconcileView publishes a Service whose window has ended, if it was changed.
func (r *Reconciler) reconcileView(k key) {
	now, p := time.Now(), r.paces[k]
	switch {
	case p == nil:
		return
	case now.Before(p.ends): // it was extended
	case p.changes == 0 || !r.publish(k):
		delete(r.paces, k)
		return
	default:
		*p = pace{began: now, ends: now.Add(p.next())}
	}
	r.queue.AddAfter(item{aView, k}, p.ends.Sub(now))
}

// next returns how long the window after this one is.
func (p *pace) next() time.Duration {
	length := p.ends.Sub(p.began)
	if time.Duration(p.changes)*busy < length {
		length = length * 2 / 3
	} else {
		length = length * 3 / 2
	}
	return min(max(window, length), widest)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

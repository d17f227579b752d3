package view

import "time"

// A change of a Service is published in its own time, so that an isolated one waits for nothing and many cost little.
//
// The first change of a quiet Service, one that was neither changed nor published for a window, is published as soon as its key comes up in
// the queue, behind the changes that are in the queue already. So is a new Service. A publication opens a window, and what changes in it is
// published at its end. Each window that follows another is longer, up to widest: sustained churn costs four publications a second, however
// many changes it is. A quiet Service starts again with the shortest.
//
// A controller that moves an address from one EndpointSlice to another writes two objects. An address that leaves its slice while its
// workload is ready and not terminating may be on its way, so its Service is not published before a whole window has passed. Everything else
// goes at once: an address whose Pod is gone, terminating or not ready, or that never had one.
const (
	window = 50 * time.Millisecond
	widest = 250 * time.Millisecond
)

// pace is when a Service is published that is not quiet. There is one item in the queue for each, which comes up when the window ends, or
// earlier.
type pace struct {
	began, ends time.Time // the window
	last        time.Time // when the Service was last changed or published
	changed     bool      // since it was published
}

// change notes that a Service is not what was published. moving is set if an address may be on its way to another slice.
func (r *Reconciler) change(k key, moving bool) {
	if r.paces == nil {
		return // Begin publishes everything
	}
	now := time.Now()
	p := r.paces[k]
	quiet := p == nil || now.Sub(p.last) >= window
	if quiet {
		p = &pace{began: now, ends: now}
		r.paces[k] = p
	}
	p.last, p.changed = now, true
	if whole := now.Add(window); moving && p.ends.Before(whole) {
		p.ends = earlier(whole, p.began.Add(widest)) // moves without end must not hold back everything else
	}
	if quiet {
		r.queue.AddAfter(item{aView, k}, p.ends.Sub(now))
	}
}

// reconcileView publishes a Service whose window has ended, if it was changed.
func (r *Reconciler) reconcileView(k key) {
	now, p := time.Now(), r.paces[k]
	switch {
	case p == nil:
		return
	case now.Before(p.ends): // another window has begun, or this one was extended
	case !p.changed || !r.publish(k):
		delete(r.paces, k)
		return
	default:
		length := min(max(window, p.ends.Sub(p.began)*3/2), widest)
		*p = pace{began: now, ends: now.Add(length), last: now}
	}
	r.queue.AddAfter(item{aView, k}, p.ends.Sub(now))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

package view

import "time"

// When a changed Service is published.
//
// An isolated change waits for nothing, and many changes cost little. A Service is quiet if no window of it
// is open. Its first change is published as soon as its key comes up in the queue, after the keys that are
// in the queue already. Each publication opens a window. What changes in it is published when it ends,
// which opens the next one. A window in which nothing changes is the last: the Service is quiet again.
//
//	change     x         x   x
//	published  x                  x                              (quiet again)
//	window     |----- 50 ms ------|--------- 100 ms -------------|
//
// The window of a Service that was quiet takes minWindow, and each that follows it takes maxWindow. So:
//
//   - Changes that are further apart than minWindow are published at once, each by itself.
//   - Any other change is published within maxWindow: no client is further behind.
//   - Sustained churn costs ten publications a second, however many changes it is.
//
// maxWindow is a compromise: a publication costs a message to each stream, and a client that is behind sends
// requests to addresses that are gone. A new Service is published at once.
//
// A controller that moves an address from one EndpointSlice to another writes two objects. An address that
// leaves its slice while its workload is available (ready, not terminating) may be on its way, so its
// Service is not published before minWindow has passed since. Everything else goes at once: an address
// whose Pod is gone, terminating or not ready, or that never had one. Moves without end hold back a
// publication for at most maxWindow and minWindow.
//
// A window is an item in the delaying queue, at most one for each Service. One that comes up early, because
// its end was moved, is added again.
const (
	minWindow = 50 * time.Millisecond
	maxWindow = 100 * time.Millisecond
)

// window is the open window of a Service.
type window struct {
	began, ends time.Time
	changed     bool // since began
}

// markChanged records that a Service may differ from what was published. moving is set if an address may be
// on its way to another slice.
func (r *Reconciler) markChanged(key key, moving bool) {
	if r.windows == nil {
		return // Begin publishes everything
	}
	now := time.Now()
	current, open := r.windows[key]
	if !open {
		current = &window{began: now, ends: now}
		r.windows[key] = current
	}

	current.changed = true
	if later := now.Add(minWindow); moving && current.ends.Before(later) {
		if last := current.began.Add(maxWindow + minWindow); last.Before(later) {
			later = last
		}
		current.ends = later
	}
	if !open {
		r.queue.AddAfter(objectRef{kindWindow, key}, current.ends.Sub(now))
	}
}

// reconcileWindow publishes a Service whose window has ended, if it was changed.
func (r *Reconciler) reconcileWindow(key key) {
	now, current := time.Now(), r.windows[key]
	switch {
	case now.Before(current.ends): // its end was moved
	case !current.changed || !r.publishService(key):
		delete(r.windows, key)
		return
	default:
		length := min(max(minWindow, 2*current.ends.Sub(current.began)), maxWindow)
		*current = window{began: now, ends: now.Add(length)}
	}
	r.queue.AddAfter(objectRef{kindWindow, key}, current.ends.Sub(now))
}

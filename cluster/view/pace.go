package view

import (
	"maps"
	"time"
)

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
// A change that waits for the end of a window is an item in the delaying queue, at most one for each Service. One that
// comes up early, because the end was moved, is added again. A window in which nothing changes is no item, and wakes
// nothing when it ends. So a change after a while of rest has the queue once, and ends there.
const (
	minWindow = 50 * time.Millisecond
	maxWindow = 100 * time.Millisecond
)

// window is the last window of a Service. It is open until it ends, and while something in it is not published.
type window struct {
	began, ends time.Time
	changed     bool // since began
}

func (w *window) isOpen(now time.Time) bool { return w.changed || now.Before(w.ends) }

// due is a Service that was quiet and has changed.
type due struct {
	service key
	after   uint64 // keys that Run has reconciled: those that were in the queue when it changed
}

// markChanged records that a Service may differ from what was published. moving is set if an address may be
// on its way to another slice.
func (r *Reconciler) markChanged(key key, moving bool) {
	if r.windows == nil {
		return // Begin publishes everything
	}
	now := time.Now()
	current, found := r.windows[key]
	if !found || !current.isOpen(now) {
		r.forgetWindows(now)
		current = &window{began: now, ends: now}
		r.windows[key] = current
	}

	wasChanged := current.changed
	current.changed = true
	if later := now.Add(minWindow); moving && current.ends.Before(later) {
		if last := current.began.Add(maxWindow + minWindow); last.Before(later) {
			later = last
		}
		current.ends = later
	}

	switch {
	case wasChanged:
	case now.Before(current.ends):
		r.queue.AddAfter(objectRef{kindWindow, key}, current.ends.Sub(now))
	default:
		r.due = append(r.due, due{key, r.reconciled + uint64(r.queue.Len()) + 1}) // and the one that comes up now
	}
}

// publishDue publishes the Services whose time has come.
func (r *Reconciler) publishDue() {
	for len(r.due) > 0 && r.due[0].after <= r.reconciled {
		next := r.due[0].service
		r.due = r.due[1:]
		r.reconcileWindow(next)
	}
}

// reconcileWindow publishes a Service that was changed, if its window has ended.
func (r *Reconciler) reconcileWindow(key key) {
	now, current := time.Now(), r.windows[key]
	switch {
	case current == nil || !current.changed: // Settle has published it
	case now.Before(current.ends): // its end was moved
		r.queue.AddAfter(objectRef{kindWindow, key}, current.ends.Sub(now))
	case r.publishService(key):
		length := min(max(minWindow, 2*current.ends.Sub(current.began)), maxWindow)
		*current = window{began: now, ends: now.Add(length)}
	default:
		delete(r.windows, key)
	}
}

// forgetWindows drops the windows that are over, now and then: those that it looks at are open, or of Services that
// have changed since it did so last.
func (r *Reconciler) forgetWindows(now time.Time) {
	if now.Sub(r.forgotWindows) < maxWindow {
		return
	}
	r.forgotWindows = now
	maps.DeleteFunc(r.windows, func(_ key, w *window) bool { return !w.isOpen(now) })
}

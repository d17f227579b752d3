package discovery

import (
	"time"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// alarm wakes a stream when something is due, or when it is rung. It may ring too early: the stream looks at the time. One timer for
// all that is due, set rarely, costs a stream less than a select with a timer for each.
type alarm struct {
	level watch.Value[struct{}] // superseded when the alarm rings
	timer *time.Timer           // owned by the stream's goroutine, like due
	due   time.Time
}

// rung returns a channel that closes when the alarm rings next. It is asked for before anything that may be due is looked at.
func (a *alarm) rung() <-chan struct{} {
	_, superseded := a.level.Load()
	return superseded
}

func (a *alarm) ring() { a.level.Store(struct{}{}) }

// by lets the alarm ring at t or before. The zero time asks for nothing.
func (a *alarm) by(now, t time.Time) {
	switch set := a.due.After(now); {
	case t.IsZero() || set && !t.Before(a.due):
		return
	case a.timer == nil:
		a.timer = time.AfterFunc(t.Sub(now), a.ring)
	default:
		a.timer.Reset(t.Sub(now))
	}
	a.due = t
}

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

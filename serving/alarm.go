package serving

import (
	"time"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// alarm is a Bell that rings by itself when something is due. It may ring too early: the stream looks
// at the time. One timer for all that is due, set rarely, costs a stream less than a select with a
// timer for each.
type alarm struct {
	*watch.Bell
	timer *time.Timer // owned by the stream's goroutine, like due
	due   time.Time
}

// by lets the alarm ring at t or before. The zero time asks for nothing. now is when the stream looked at the time, and
// may be long ago: it has waited for its turn, or for its client, since.
func (a *alarm) by(now, t time.Time) {
	switch set := a.due.After(now); {
	case t.IsZero() || set && !t.Before(a.due):
		return
	case a.timer == nil:
		a.timer = time.AfterFunc(time.Until(t), a.Ring)
	default:
		a.timer.Reset(time.Until(t))
	}
	a.due = t
}

func (a *alarm) stopTimer() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

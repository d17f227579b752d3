package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// What fails again and again is reported, those that fail for longest by name, until it is written or the term ends.
// What fails for a moment is not.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &Target{failing: watch.NewBell()}
		var fails sync.Map // errors, by key
		const all = maxWorded + 10
		loop := NewLoop(logr.Discard(), Config[int]{
			Reconcile: func(_ context.Context, k int) error {
				if err, fails := fails.Load(k); fails {
					return err.(error)
				}
				return nil
			},
			Failures: target.Failures("things"),
		})
		reported := func() cluster.Failing {
			if w := target.writing(); len(w.Failing) > 0 {
				return w.Failing[0]
			}
			return cluster.Failing{}
		}
		end := inLoop(t, loop)

		fails.Store(1, errors.New("no"))
		loop.Enqueue(1)
		pass(time.Second)
		fails.Delete(1)
		pass(time.Minute)
		if got := reported(); got.Count != 0 {
			t.Errorf("it has failed for a second: %+v", got)
		}

		fails.Store(7, errors.New("never"))
		loop.Enqueue(7)
		began := time.Now()
		pass(3 * time.Second)
		got := reported()
		if got.Count != 1 || got.Objects[0] != "7" || got.Error != "never" || got.Reason != api.Unreachable ||
			got.What != "things" || got.Since.Sub(began) > 2*time.Second {
			t.Errorf("%+v", got)
		}

		for k := range all {
			fails.Store(k, fmt.Errorf("no %d", k))
			loop.Enqueue(k)
		}
		pass(3 * time.Second)
		got = reported()
		if got.Count != all || len(got.Objects) != shownFailing || got.Objects[0] != "7" ||
			got.Since.Sub(began) > 2*time.Second {
			t.Errorf("%+v", got)
		}
		kept := 0
		for _, f := range loop.config.Failures.all {
			if f.cause.Text != "" {
				kept++
			}
		}
		if kept != maxWorded {
			t.Errorf("the words of %d are kept, want %d", kept, maxWorded)
		}

		another := target.Failures("things")
		another.note("another", errors.New("later"), ReportedAfter)
		w := target.writing()
		if got := w.Failing[0]; len(w.Failing) != 1 || got.Count != all+1 || got.Error != "no 7" {
			t.Errorf("of two Loops: %+v", w.Failing)
		}
		another.drop()

		fails.Clear()
		pass(2 * time.Minute)
		if got := reported(); got.Count != 0 || loop.config.Failures.worded != 0 {
			t.Errorf("all are written: %+v, and the words of %d are kept", got, loop.config.Failures.worded)
		}

		fails.Store(1, errors.New("no"))
		loop.Enqueue(1)
		pass(time.Minute)
		before := reported().Count
		if err := end(); err != nil || before != 1 || len(target.failures) != 0 {
			t.Errorf("%d were reported in the term, %d lists are left: %v", before, len(target.failures), err)
		}
	})
}

package api

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// Changes of a linked cluster are read at a pace, whichever watches bring them, and after a burst; those of the local
// cluster at once.
func TestEventPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, err := NewConnection(&rest.Config{Host: "https://east.test"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		const watches, each = 4, 10_000
		read := func(ctx context.Context) time.Duration {
			began := time.Now()
			var wg sync.WaitGroup
			for range watches {
				wg.Go(func() {
					for range each {
						conn.Pace(ctx)
					}
				})
			}
			wg.Wait()
			return time.Since(began)
		}
		if took := read(t.Context()); took != 0 || conn.Paced() != 0 {
			t.Errorf("without a budget it takes %s, and %d waited", took, conn.Paced())
		}
		conn.Budget = NewBudget(Limits{})
		const more = watches*each - eventBurst
		want := more * time.Second / maxEventRate
		if took := read(t.Context()); (took-want).Abs() > want/10 || conn.Paced() < more/2 {
			t.Errorf("it takes %s, want %s, and %d waited", took, want, conn.Paced())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if took := read(ctx); took != 0 {
			t.Errorf("after its end it takes %s", took)
		}
	})
}

package serving

import (
	"sync"
	"testing"
	"testing/synctest"
)

// All who ask for a message while it is made get that one, kept or not. Who asks later gets it if it is kept.
func TestMadeOnce(t *testing.T) {
	for _, refers := range []int{0, 10} {
		synctest.Test(t, func(t *testing.T) {
			cache, asked, encoded := NewCache(1<<20), make(chan struct{}), 0
			encode := func() (*Frame, int) {
				<-asked
				encoded++
				return NewFrame(Beat, []byte("message"), 0, 0), refers
			}

			var wg sync.WaitGroup
			frames := make([]*Frame, 10)
			for i := range frames {
				wg.Go(func() { frames[i] = cache.Get("key", encode) })
			}
			synctest.Wait() // one makes it, the others wait
			other := cache.Get("other", func() (*Frame, int) { return NewFrame(Beat, nil, 0, 0), 0 })
			close(asked)
			wg.Wait()
			for i, f := range frames {
				if f != frames[0] || f == other {
					t.Errorf("stream %d has a message of its own", i)
				}
			}

			later := cache.Get("key", encode)
			if isKept := later == frames[0]; isKept != (refers > 0) {
				t.Errorf("it is kept: %t", isKept)
			}
			if want := 2 - min(refers, 1); encoded != want {
				t.Errorf("it was encoded %d times, want %d", encoded, want)
			}
			if len(cache.made) != 0 {
				t.Errorf("%d messages count as being made", len(cache.made))
			}
		})
	}
}

// A stream that fails while it makes a message takes no other one along: the next makes it.
func TestMakerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache, asked, tries := NewCache(1<<20), make(chan struct{}), 0
		var wg sync.WaitGroup
		frames := make([]*Frame, 3)
		for i := range frames {
			wg.Go(func() {
				defer func() { _ = recover() }()
				frames[i] = cache.Get("key", func() (*Frame, int) {
					<-asked
					if tries++; tries == 1 {
						panic("it cannot be encoded")
					}
					return NewFrame(Beat, nil, 0, 0), 1
				})
			})
		}
		synctest.Wait()
		close(asked)
		wg.Wait()

		sent := map[*Frame]int{}
		for _, f := range frames {
			sent[f]++
		}
		if sent[nil] != 1 || len(sent) != 2 || tries != 2 {
			t.Errorf("%d streams have none, and the others %d: %d tries", sent[nil], len(sent)-1, tries)
		}
	})
}

// keeps reports whether the message of a key is kept.
func (c *Cache) keeps(key any) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept.Contains(key)
}

package watch_test

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/fingerpost/fingerpost/federation/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A reader that waits on every value it loads ends with the last one, whatever it skips, and never sees
// one go back.
func TestValueEndsWithTheLast(t *testing.T) {
	const last = 10_000
	var v watch.Value[int]
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for before := -1; ; {
				now, superseded := v.Load()
				if now <= before && before != -1 {
					t.Errorf("woken on %d, found %d", before, now)
					return
				}
				if before = now; now == last {
					return
				}
				<-superseded
			}
		})
	}
	for i := 1; i <= last; i++ {
		v.Store(i)
	}
	wg.Wait()
}

// Who swaps wakes the waiters when it likes: they can load what is newer before.
func TestSwap(t *testing.T) {
	var v watch.Value[int]
	v.Swap(1).Wake() // without a waiter
	_, superseded := v.Load()
	old := v.Swap(2)
	select {
	case <-superseded:
		t.Error("Swap wakes")
	default:
	}
	if now, _ := v.Load(); now != 2 {
		t.Errorf("loaded %d", now)
	}
	old.Wake()
	<-superseded
}

func TestTable(t *testing.T) {
	var table watch.Table[string, int]
	w := table.Watch("a")
	if _, ok, _ := w.Load(); ok {
		t.Error("a key has a value before it is set")
	}
	_, _, superseded := w.Load()
	table.Swap("b", 1).Wake()
	select {
	case <-superseded:
		t.Error("another key's value wakes a watcher")
	default:
	}
	table.Swap("a", 1).Wake()
	<-superseded
	if v, ok, _ := w.Load(); v != 1 || !ok {
		t.Errorf("loaded %d, %v", v, ok)
	}
	if v, ok := table.Get("a"); v != 1 || !ok {
		t.Errorf("got %d, %v", v, ok)
	}
	_, _, superseded = w.Load()
	table.Remove("a").Wake()
	<-superseded
	table.Swap("a", 2).Wake() // the record of a watched key outlives its value
	if v, ok, _ := w.Load(); v != 2 || !ok {
		t.Errorf("loaded %d, %v after the value came back", v, ok)
	}
	second := table.Watch("a")
	if w.Close() || !second.Close() || second.Close() {
		t.Error("Close does not distinguish the last watcher from the others")
	}
	table.Remove("a").Wake()
	table.Remove("b").Wake()
	if n := table.Len(); n != 0 {
		t.Errorf("%d records are left", n)
	}
}

// All yields each key that stays once, whatever happens to others meanwhile.
func TestAll(t *testing.T) {
	var table watch.Table[int, int]
	for i := range 2000 {
		table.Swap(i, i).Wake()
	}
	table.Watch(-1) // a key without a value
	seen := map[int]int{}
	for k, v := range table.All() {
		if v != k {
			t.Errorf("%d has %d", k, v)
		}
		seen[k]++
		table.Remove(1000 + k%1000).Wake()
		table.Swap(2000+k, 2000+k).Wake()
	}
	for k := range 1000 {
		if seen[k] != 1 {
			t.Errorf("%d was yielded %d times", k, seen[k])
		}
	}
}

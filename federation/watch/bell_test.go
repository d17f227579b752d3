package watch

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// wasRung reports whether a Bell was rung since it was asked last.
func (b *Bell) wasRung() bool {
	select {
	case <-b.Rung():
		return true
	default:
		return false
	}
}

// A Bell rings if, and only if, something changes that it was added to more often than removed from.
// What was removed everywhere is referred to by nothing.
func TestBells(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values, bells := make([]Value[int], 3), []*Bell{NewBell(), NewBell(), NewBell()}
		var table Table[int, int]
		type pair struct{ value, bell int }
		added, watches := map[pair][]func(){}, map[pair]*Watch[int, int]{} // added is what removes a Bell
		draw := func() pair {
			return pair{
				rapid.IntRange(0, len(values)-1).Draw(t, "value"),
				rapid.IntRange(0, len(bells)-1).Draw(t, "bell"),
			}
		}
		check := func(what string, rings func(bell int) bool) {
			for i, b := range bells {
				if rung := b.wasRung(); rung != rings(i) {
					t.Fatalf("%s: bell %d was rung: %t", what, i, rung)
				}
			}
		}
		remove := func(p pair) {
			if n := len(added[p]); n > 0 {
				added[p][0]()
				added[p] = added[p][1:]
			}
		}
		unwatch := func(p pair) {
			if w := watches[p]; w != nil {
				w.Close()
				delete(watches, p)
			}
		}
		watched := func(key int) func(bell int) bool {
			return func(bell int) bool { return watches[pair{key, bell}] != nil }
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) {
				p := draw()
				added[p] = append(added[p], values[p.value].Add(bells[p.bell]))
			},
			"remove": func(*rapid.T) { remove(draw()) },
			"store": func(*rapid.T) {
				v := draw().value
				values[v].Store(1)
				check("a value", func(bell int) bool { return len(added[pair{v, bell}]) > 0 })
			},
			"watch": func(*rapid.T) {
				p := draw()
				unwatch(p)
				watches[p] = table.Watch(p.value)
				watches[p].Add(bells[p.bell])
			},
			"close": func(*rapid.T) { unwatch(draw()) },
			"set": func(*rapid.T) {
				k := draw().value
				table.Swap(k, 1).Wake()
				check("a key", watched(k))
			},
			"delete": func(*rapid.T) {
				k := draw().value
				_, exists := table.Get(k)
				table.Remove(k).Wake()
				check("a key", func(bell int) bool { return exists && watched(k)(bell) })
			},
			"": func(*rapid.T) { check("nothing", func(int) bool { return false }) },
		})
		for v := range values {
			for b := range bells {
				p := pair{v, b}
				for len(added[p]) > 0 {
					remove(p)
				}
				unwatch(p)
			}
			if all := values[v].bells.Load(); all != nil && all.each.Len() > 0 {
				t.Fatalf("value %d keeps %d bells", v, all.each.Len())
			}
			table.Remove(v).Wake()
		}
		if n := table.Len(); n != 0 {
			t.Fatalf("%d records are left", n)
		}
	})
}

// A waiter with one Bell on many Values ends with the last of each, whatever it skips, while other
// Bells come and go. If a ring were lost, nothing in the bubble could go on.
func TestNoRingIsLost(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			const last = 200
			values := make([]Value[int], 20)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					bell := NewBell()
					for i := range values {
						defer values[i].Add(bell)()
					}
					for !ended(values, last) {
						<-bell.Rung()
					}
				})
			}
			for i := range values {
				wg.Go(func() {
					for n := 1; n <= last; n++ {
						remove := values[(i+n)%len(values)].Add(NewBell())
						values[i].Store(n)
						remove()
					}
				})
			}
			wg.Wait()
			for i := range values {
				if n := values[i].bells.Load().each.Len(); n != 0 {
					t.Errorf("value %d keeps %d bells", i, n)
				}
			}
		})
	}
}

func ended(values []Value[int], last int) bool {
	for i := range values {
		if n, _ := values[i].Load(); n != last {
			return false
		}
	}
	return true
}

// Bells ring in the order in which they were added, whatever was removed in between.
func TestBellsRingInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var v Value[int]
		var want, rung []int
		removed := map[int]func(){}
		for i, stays := range rapid.SliceOfN(rapid.Bool(), 1, 50).Draw(t, "stays") {
			remove := v.Add(&Bell{rung: make(chan struct{}, 1), note: func() { rung = append(rung, i) }})
			if stays {
				want = append(want, i)
			} else {
				removed[i] = remove
			}
		}
		for _, remove := range removed {
			remove()
		}
		v.Store(1)
		if !slices.Equal(rung, want) {
			t.Fatalf("rung: %v; added: %v", rung, want)
		}
	})
}

// A Value that no Bell was added to costs what one without bells would: a pointer, and no allocation.
func TestBellsCostNothingUnused(t *testing.T) {
	var v Value[int]
	if n := testing.AllocsPerRun(100, func() { v.Store(1) }); n > 2 { // the value, and its channel
		t.Errorf("a Store allocates %.0f objects", n)
	}
	if v.bells.Load() != nil {
		t.Error("it has bells")
	}
}

// A KeyedBell keeps each key that was rung, once, until it is taken.
func TestKeyedBell(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values, keyed := make([]Value[int], 4), NewKeyedBell[int]()
		for i := range values {
			values[i].Add(keyed.Bell(i))
		}
		rung := map[int]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				i := rapid.IntRange(0, len(values)-1).Draw(t, "value")
				values[i].Store(1)
				rung[i] = true
			},
			"take": func(t *rapid.T) {
				select {
				case <-keyed.Rung():
				default:
					if len(rung) > 0 {
						t.Fatalf("%v were rung, and the waiter is not woken", rung)
					}
				}
				taken := map[int]bool{}
				for _, k := range keyed.Take() {
					taken[k] = true
				}
				if !maps.Equal(taken, rung) {
					t.Fatalf("%v were taken, and %v were rung", taken, rung)
				}
				clear(rung)
			},
		})
	})
}

// TestUnwatchedCostsNothing: a key without watchers has its value, and nothing else.
func TestUnwatchedCostsNothing(t *testing.T) {
	var table Table[int, int]
	table.Swap(1, 0).Wake()
	if n := testing.AllocsPerRun(100, func() { table.Swap(1, 1).Wake() }); n > 0 {
		t.Errorf("a Set allocates %.0f objects", n)
	}
	table.Watch(1).Close()
	if len(table.watched) > 0 {
		t.Error("it is watched")
	}
}

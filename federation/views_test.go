package federation

import (
	"fmt"
	"maps"
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Views are a map, whatever was put in and taken out before, and the ones before stay what they were.
func TestViewsAreAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var views, before *Views
		model := map[Service]*View{}
		var was map[Service]*View
		few := rapid.IntRange(1, 40).Draw(t, "Services")
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				svc, v := numbered(rapid.IntRange(0, few).Draw(t, "service")), &View{}
				views, model[svc] = views.With(svc, v), v
			},
			"set many": func(t *rapid.T) {
				for i := range rapid.IntRange(0, few).Draw(t, "n") {
					v := &View{}
					views, model[numbered(i)] = views.With(numbered(i), v), v
				}
			},
			"delete": func(t *rapid.T) {
				svc := numbered(rapid.IntRange(0, few).Draw(t, "service"))
				views = views.With(svc, nil)
				delete(model, svc)
			},
			"delete many": func(t *rapid.T) {
				for i := range rapid.IntRange(0, few).Draw(t, "n") {
					views = views.With(numbered(i), nil)
					delete(model, numbered(i))
				}
			},
			"keep": func(*rapid.T) { before, was = views, maps.Clone(model) },
			"": func(t *rapid.T) {
				for views, model := range map[*Views]map[Service]*View{views: model, before: was} {
					if all := maps.Collect(views.All()); !maps.Equal(all, model) || views.Len() != len(model) {
						t.Fatalf("there are %d Services, %d by their length, of %d", len(all), views.Len(), len(model))
					}
					for i := range few {
						if views.Get(numbered(i)) != model[numbered(i)] {
							t.Fatalf("%v is %p, want %p", numbered(i), views.Get(numbered(i)), model[numbered(i)])
						}
					}
				}
			},
		})
		for svc := range model {
			views = views.With(svc, nil)
		}
		if views.Len() != 0 || views != nil && views.root != nil {
			t.Fatalf("empty: %v is left", *views.root)
		}
	})
}

// Who reads all Views of a cluster takes no lock, and finds what was there at one moment: of Services
// that are written one after the other, round by round, never a later one ahead of an earlier one.
func TestViewsAreOfOneMoment(t *testing.T) {
	const rounds, services, readers = 200, 100, 4
	store := NewStore()
	store.AddCluster("c", Expectation{})
	k := store.NewWriter("c")
	write := func(round int) {
		for i := range services {
			k.Set(numbered(i), &View{Malformed: fmt.Sprintf("%03d", round)})
		}
	}
	write(0)
	done := make(chan struct{})
	var reading sync.WaitGroup
	for range readers {
		reading.Go(func() {
			for last := ""; ; {
				views := store.Views("c")
				if n := len(maps.Collect(views.All())); n != services || views.Len() != services {
					t.Errorf("%d Services, want %d", n, services)
					return
				}
				for i := range services {
					now := views.Get(numbered(i)).Malformed
					if i == 0 && now < last || i > 0 && now > last {
						t.Errorf("service %d is of round %s after %s", i, now, last)
						return
					}
					last = now
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for round := range rounds {
		write(round)
	}
	close(done)
	reading.Wait()

	store.mu.Lock() // a reader that took it would wait for ever
	defer store.mu.Unlock()
	for range store.All() {
		if store.View(Ref{"c", numbered(0)}) == nil || store.State("c") != Connecting ||
			store.Views("another").Len() != 0 {
			t.Error("the Views are not what was written")
		}
	}
}

// What a Set costs hardly depends on how many Services the cluster has.
func TestSetBudget(t *testing.T) {
	for _, services := range []int{100, 2_000, 20_000} {
		store := NewStore()
		store.AddCluster("c", Expectation{})
		k := store.NewWriter("c")
		fill(k, 1, services)
		views := []*View{oneEndpoint(1, 1), oneEndpoint(1, 2)}
		const rounds = 1_000
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range rounds {
			k.Set(numbered(i%services), views[i/services%2])
		}
		runtime.ReadMemStats(&after)
		if bytes := (after.TotalAlloc - before.TotalAlloc) / rounds; bytes > 2<<10 {
			t.Errorf("of a cluster with %d Services a Set allocates %d bytes", services, bytes)
		}
		if n := store.Views("c").Len(); n != services {
			t.Errorf("%d Services are there, want %d", n, services)
		}
		for i := range services { // so many that the trie is deep
			if store.View(Ref{"c", numbered(i)}) == nil {
				t.Fatalf("%v is not found", numbered(i))
			}
			k.Delete(numbered(i))
		}
		if views := store.Views("c"); views.Len() != 0 || views.root != nil {
			t.Errorf("%d Services are left", views.Len())
		}
	}
}

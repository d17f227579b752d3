package federation

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// An endpoint that comes to a slice, or goes, wherever in it that is, leaves the others and their
// entries what they are.
func TestInsertionsShare(t *testing.T) {
	store, svc := NewStore(), Service{"ns", "a"}
	store.AddCluster("c", Expectation{})
	writer, watch := store.NewWriter("c"), store.Watch(Ref{"c", svc})
	defer watch.Close()
	var selection *Selection
	entries := func(v *View) map[*Entry]bool {
		writer.Set(svc, clone(v))
		snapshot, _ := watch.Load()
		selection = Select(snapshot, Query{Port: 80}, selection)
		all := map[*Entry]bool{}
		for c := range selection.At(Place{}, nil).All() {
			all[c.Entry] = true
		}
		return all
	}
	view := bigView(100, false)
	before, made := entries(view), 0
	step := func(what string, at, add, remove int) {
		t.Helper()
		s := view.Slices[0]
		for i := range add {
			made++
			s.Endpoints = slices.Insert(s.Endpoints, at+i,
				&Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(made)}), Ready: true})
		}
		s.Endpoints = slices.Delete(s.Endpoints, at+add, at+add+remove)
		after := entries(view)
		shared, endpoints := 0, map[*Endpoint]bool{}
		for e := range before {
			endpoints[e.Endpoint] = true
		}
		for e := range after {
			if before[e] {
				shared++
			} else if endpoints[e.Endpoint] {
				t.Errorf("%s: %s has another entry for the same endpoint", what, e.Addr)
			}
		}
		if want := len(before) - remove; shared != want || len(after) != want+add {
			t.Errorf("%s: %d entries, of which %d are shared; want %d and %d", what, len(after), shared, want+add, want)
		}
		before = after
	}
	step("one comes first", 0, 1, 0)
	step("the first goes", 0, 0, 1)
	step("20 come first", 0, 20, 0)
	step("one comes", 50, 1, 0)
	step("one goes", 50, 0, 1)
	step("20 go", 10, 0, 20)
	step("20 are replaced", 30, 20, 20)
	step("one comes last", 100, 1, 0)
	for range 20 {
		step("one comes second", 1, 1, 0)
	}
}

// Labels rise with the place in the slice, whatever comes and goes, so that entries stand in the order
// of the slice; and few are given anew.
func TestLabels(t *testing.T) {
	key, query := blockKey{origin: &Origin{}, slice: "s", port: 80}, Query{Port: 80}
	check := func(t rapid.TB, b *block) {
		for i, e := range b.entries {
			if e.Endpoint != b.slice.Endpoints[i] || i > 0 && e.label <= b.entries[i-1].label {
				t.Fatalf("entry %d is of another endpoint, or its label is not higher", i)
			}
		}
		if len(b.entries) != len(b.slice.Endpoints) {
			t.Fatalf("%d entries for %d endpoints", len(b.entries), len(b.slice.Endpoints))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		// Few addresses: entries of the same one are distinguished by their labels.
		endpoint := func() *Endpoint {
			return &Endpoint{
				Addr:  netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 3).Draw(t, "addr"))}),
				Ready: true,
			}
		}
		var b *block
		var parts map[part][]*Entry
		var endpoints []*Endpoint
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			at := rapid.IntRange(0, len(endpoints)).Draw(t, "at")
			switch {
			case at < len(endpoints) && rapid.Bool().Draw(t, "removes"):
				endpoints = slices.Delete(slices.Clone(endpoints), at, rapid.IntRange(at, len(endpoints)).Draw(t, "to"))
			case at < len(endpoints) && rapid.Float64().Draw(t, "moves") < .2:
				e := endpoints[at]
				endpoints = slices.Delete(slices.Clone(endpoints), at, at+1)
				endpoints = slices.Insert(endpoints, rapid.IntRange(0, len(endpoints)).Draw(t, "to"), e)
			default:
				endpoints = slices.Clone(endpoints)
				for range rapid.IntRange(1, 8).Draw(t, "n") {
					endpoints = slices.Insert(endpoints, at, endpoint())
				}
			}
			changes := changes{}
			b = newBlock(key, &Slice{Name: "s", Endpoints: endpoints}, query, b, changes)
			check(t, b)
			parts = changes.apply(parts)
			want := slices.SortedFunc(slices.Values(b.entries), (*Entry).compareClaims)
			if !slices.Equal(parts[part{}], want) {
				t.Fatal("what is left of all changes is not what the block holds")
			}
		}
	})
	given := 0
	b := newBlock(key, bigView(2, false).Slices[0], query, nil, changes{})
	for range 1000 {
		endpoints := slices.Insert(slices.Clone(b.slice.Endpoints), 1,
			&Endpoint{Addr: netip.MustParseAddr("10.0.0.1"), Ready: true})
		old := map[*Entry]bool{}
		for _, e := range b.entries {
			old[e] = true
		}
		b = newBlock(key, &Slice{Name: "s", Endpoints: endpoints}, query, b, changes{})
		check(t, b)
		for _, e := range b.entries {
			if !old[e] {
				given++
			}
		}
	}
	if given > 25_000 {
		t.Errorf("%d labels were given for 1000 endpoints at the same place", given)
	}
}

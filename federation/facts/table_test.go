package facts

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// model is what a Table has to hold, the slow way: each writer's view of its term is kept apart.
type model struct {
	linked map[Cluster]bool
	synced map[Cluster]bool
	values map[Cluster]map[string]int
	newest map[Cluster]*modelWriter
}

type modelWriter struct {
	cluster Cluster
	written map[string]bool // nil once synced
	*Writer[string, int]
}

func (m *model) isFenced(w *modelWriter) bool { return m.newest[w.cluster] != w }

func (m *model) byKey(k string) (text string) {
	for _, c := range slices.Sorted(maps.Keys(m.values)) {
		if v, found := m.values[c][k]; found {
			text += fmt.Sprint(c, "=", v, " ")
		}
	}
	return text
}

// Whatever clusters are linked and unlinked, and whichever of their writers write: a Table holds what the newest writer
// of each has written, and of those before what it has not written yet, until it is synced. A reader is woken if
// something has changed, and only then; and what is copied is copied again only then.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := NewTable("numbers", Options[string, int]{})
		m := &model{
			map[Cluster]bool{}, map[Cluster]bool{}, map[Cluster]map[string]int{}, map[Cluster]*modelWriter{},
		}
		clusters, keys := []Cluster{"a", "b", "c"}, []string{"x", "y"}
		cluster := rapid.SampledFrom(clusters)
		key := rapid.SampledFrom(keys)
		named := table.In("a") // which outlives its cluster
		var writers []*modelWriter
		writer := func() *modelWriter {
			if len(writers) == 0 {
				t.Skip("no writer")
			}
			return writers[len(writers)-1-rapid.IntRange(0, min(2, len(writers)-1)).Draw(t, "writer")]
		}

		copies := map[Cluster]Copy{}
		bells := map[string]*watch.Bell{}
		for _, k := range keys {
			bells[k], bells["a/"+k] = watch.NewBell(), watch.NewBell()
			all, one := table.Watch(k), named.Watch(k)
			defer all.Close()
			defer one.Close()
			all.Add(bells[k])
			one.Add(bells["a/"+k])
		}

		before := map[string]string{"a/x": "0 false", "a/y": "0 false"}
		t.Repeat(map[string]func(*rapid.T){
			"link": func(t *rapid.T) {
				c := cluster.Draw(t, "cluster")
				table.Link(c)
				m.linked[c] = true
			},
			"unlink": func(t *rapid.T) {
				c := cluster.Draw(t, "cluster")
				for _, waiting := range table.Unlink(c) {
					waiting.Wake()
				}
				delete(m.linked, c)
				delete(m.synced, c)
				delete(m.values, c)
				delete(m.newest, c)
			},
			"write anew": func(t *rapid.T) {
				c := cluster.Draw(t, "cluster")
				w := &modelWriter{c, map[string]bool{}, table.NewWriter(c)}
				writers = append(writers, w)
				if m.linked[c] {
					m.newest[c] = w
				}
			},
			"set": func(t *rapid.T) {
				w, k, v := writer(), key.Draw(t, "key"), rapid.IntRange(0, 2).Draw(t, "value")
				w.Set(k, v)
				if m.isFenced(w) {
					return
				}
				if m.values[w.cluster] == nil {
					m.values[w.cluster] = map[string]int{}
				}
				m.values[w.cluster][k] = v
				if w.written != nil {
					w.written[k] = true
				}
			},
			"delete": func(t *rapid.T) {
				w, k := writer(), key.Draw(t, "key")
				w.Delete(k)
				if !m.isFenced(w) {
					delete(m.values[w.cluster], k)
				}
			},
			"sync": func(*rapid.T) {
				w := writer()
				w.MarkSynced()
				if m.isFenced(w) {
					return
				}
				m.synced[w.cluster] = true
				maps.DeleteFunc(m.values[w.cluster], func(k string, _ int) bool {
					return w.written != nil && !w.written[k]
				})
				w.written = nil
			},
			"restore": func(t *rapid.T) {
				c, all := cluster.Draw(t, "cluster"), map[string]int{key.Draw(t, "key"): 7}
				table.Restore(c, all)
				if m.linked[c] {
					m.newest[c], m.values[c], m.synced[c] = nil, maps.Clone(all), true
				}
			},
			"": func(t *rapid.T) {
				for _, c := range clusters {
					if got := maps.Collect(table.All(c)); !maps.Equal(got, m.values[c]) {
						t.Fatalf("%s has %v, want %v", c, got, m.values[c])
					}
				}
				if synced, _ := named.Synced(); synced != m.synced["a"] {
					t.Fatalf("a is synced: %t", synced)
				}

				for _, k := range keys {
					got := ""
					for c, v := range table.ByKey(k) {
						got += fmt.Sprint(c, "=", v, " ")
					}
					one, found := named.Get(k)
					texts := map[string]string{k: m.byKey(k), "a/" + k: fmt.Sprint(one, found)}
					if got != texts[k] {
						t.Fatalf("%s is %q, want %q", k, got, texts[k])
					}
					for name, text := range texts {
						if rung := wasRung(bells[name]); rung != (before[name] != text) {
							t.Fatalf("%s was %q and is %q: its watchers are woken: %t", name, before[name], text, rung)
						}
						before[name] = text
					}
				}

				for _, c := range clusters {
					next := table.Copy(c, copies[c])
					all, _ := next.All.(map[string]int)
					if !maps.Equal(all, m.values[c]) {
						t.Fatalf("the copy of %s is %v, want %v", c, all, m.values[c])
					}
					copies[c] = next
				}
			},
		})
	})
}

func wasRung(b *watch.Bell) bool {
	select {
	case <-b.Rung():
		return true
	default:
		return false
	}
}

// An equal value stays as it is, by the measure of the Table.
func TestEqual(t *testing.T) {
	table := NewTable("pointers", Options[string, *int]{Equal: func(a, b *int) bool { return *a == *b }})
	table.Link("a")
	w := table.NewWriter("a")
	first := new(1)
	w.Set("x", first)
	watched := table.In("a").Watch("x")
	defer watched.Close()
	_, _, superseded := watched.Load()
	w.Set("x", new(1))
	if v, _ := table.Get("a", "x"); v != first || watch.IsClosed(superseded) {
		t.Error("an equal value takes the place of the one before, or wakes a reader")
	}
	w.Set("x", new(2))
	if v, _ := w.Get("x"); *v != 2 || !watch.IsClosed(superseded) {
		t.Error("another value does not")
	}
	if v, found := table.NewWriter("a").Get("x"); found {
		t.Errorf("a new writer has set %d", *v)
	}
}

// A cluster that is linked and unlinked under ever other names leaves nothing, unless a reader has its Part.
func TestUnlinkedClustersLeaveNothing(t *testing.T) {
	table := NewTable("numbers", Options[int, int]{})
	for i := range 100 {
		c := Cluster(fmt.Sprint(i))
		table.Link(c)
		table.NewWriter(c).Set(1, i)
		table.Unlink(c)
	}
	if n := len(*table.parts.Load()); n != 0 {
		t.Errorf("%d parts are left", n)
	}
}

// What is written of a key that is not watched costs its value, and no allocation once it has one.
func TestSetAllocates(t *testing.T) {
	table, n := NewTable("numbers", Options[int, int]{}), 0
	table.Link("a")
	w := table.NewWriter("a")
	w.Set(1, 0)
	set := func() {
		n++
		w.Set(1, n)
	}
	if allocs := testing.AllocsPerRun(100, set); allocs > 0 {
		t.Errorf("%.0f allocations", allocs)
	}
}

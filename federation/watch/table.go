package watch

import (
	"iter"
	"sync"
)

// A Table is a level per key. A key without a value and a watcher costs nothing, and one without a watcher no
// more than its value. The zero Table is empty. All methods may be called from any goroutine.
type Table[K comparable, V any] struct {
	mu      sync.Mutex
	values  map[K]V
	watched map[K]*record[V]
}

// record is what a key has while it is watched. It is guarded by Table.mu, except for level, which watchers
// load without it.
type record[V any] struct {
	watchers int
	level    Value[entry[V]]
}

type entry[V any] struct {
	value V
	ok    bool
}

// Swap makes v the value of k. The caller wakes the watchers of the old one, as with [Value.Swap].
func (t *Table[K, V]) Swap(k K, v V) Superseded {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.values == nil {
		t.values = map[K]V{}
	}
	t.values[k] = v
	return t.supersede(k, entry[V]{v, true})
}

// Remove leaves k without a value. If it had one, the caller wakes its watchers.
func (t *Table[K, V]) Remove(k K) Superseded {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, found := t.values[k]; !found {
		return Superseded{}
	}
	delete(t.values, k)
	return t.supersede(k, entry[V]{})
}

// Touch supersedes the level of k without a change of its value, for a key that stands for something else. The caller
// wakes its watchers.
func (t *Table[K, V]) Touch(k K) Superseded {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, found := t.values[k]
	return t.supersede(k, entry[V]{v, found})
}

// supersede needs t.mu.
func (t *Table[K, V]) supersede(k K, e entry[V]) Superseded {
	if r, found := t.watched[k]; found {
		return r.level.Swap(e)
	}
	return Superseded{}
}

// A Reader is a Table for those who do not write it.
type Reader[K comparable, V any] interface {
	Get(k K) (V, bool)
	Watch(k K) *Watch[K, V]
}

// Get returns the value of k, if it has one.
func (t *Table[K, V]) Get(k K) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, found := t.values[k]
	return v, found
}

// All yields every key that has a value, with its value. It locks the Table for some hundred keys at a time, and
// not while it yields: of a key that changes meanwhile it yields the old value, the new one, or none if it was
// deleted or is new.
func (t *Table[K, V]) All() iter.Seq2[K, V] {
	const batch = 256
	return func(yield func(K, V) bool) {
		keys, values := make([]K, 0, batch), make([]V, 0, batch)
		flush := func() bool {
			t.mu.Unlock()
			defer t.mu.Lock()
			for i, k := range keys {
				if !yield(k, values[i]) {
					return false
				}
			}
			keys, values = keys[:0], values[:0]
			return true
		}

		t.mu.Lock()
		defer t.mu.Unlock()

		for k, v := range t.values { // a map may change between two steps of its iteration
			keys, values = append(keys, k), append(values, v)
			if len(keys) == batch && !flush() {
				return
			}
		}
		flush()
	}
}

// Watch opens a watch on a key, which may have no value yet. The caller closes it.
func (t *Table[K, V]) Watch(key K) *Watch[K, V] {
	t.mu.Lock()
	defer t.mu.Unlock()

	watched, found := t.watched[key]
	if !found {
		watched = &record[V]{}
		if v, ok := t.values[key]; ok {
			watched.level.Store(entry[V]{v, true})
		}
		if t.watched == nil {
			t.watched = map[K]*record[V]{}
		}
		t.watched[key] = watched
	}

	watched.watchers++
	return &Watch[K, V]{table: t, key: key, record: watched}
}

// Len returns the number of keys that have a value or a watcher, for tests.
func (t *Table[K, V]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.values)
	for k := range t.watched {
		if _, found := t.values[k]; !found {
			n++
		}
	}
	return n
}

// A Watch keeps one key's record in its Table. It belongs to one goroutine.
type Watch[K comparable, V any] struct {
	table  *Table[K, V]
	key    K
	record *record[V]
	remove func() // undoes Add; nil if it was not called
}

// Load returns the key's newest value, whether it has one, and a channel that closes once that has changed.
func (w *Watch[K, V]) Load() (V, bool, <-chan struct{}) {
	e, superseded := w.record.level.Load()
	return e.value, e.ok, superseded
}

// Add rings b whenever the key's value changes, until Close. It is called once at most.
func (w *Watch[K, V]) Add(b *Bell) { w.remove = w.record.level.Add(b) }

// Close ends the watch and reports whether it was the key's last. A second Close does nothing.
func (w *Watch[K, V]) Close() (last bool) {
	if w.record == nil {
		return false
	}
	if w.remove != nil {
		w.remove()
	}
	w.table.mu.Lock()
	defer w.table.mu.Unlock()

	w.record.watchers--
	if last = w.record.watchers == 0; last {
		delete(w.table.watched, w.key)
	}
	w.record = nil
	return last
}

package watch

import "sync"

// A Table is a level per key. A key has a record while it has a value or a watcher, and costs nothing
// otherwise. The zero Table is empty. All methods may be called from any goroutine.
type Table[K comparable, V any] struct {
	mu      sync.Mutex
	records map[K]*record[V]
}

// record is guarded by Table.mu, except for level, which watchers load without it.
type record[V any] struct {
	set      bool
	watchers int
	level    Value[entry[V]]
}

type entry[V any] struct {
	value V
	ok    bool
}

// Set makes v the value of k and wakes its watchers.
func (t *Table[K, V]) Set(k K, v V) { t.Swap(k, v).Wake() }

// Swap is Set that leaves the waking to the caller, as that of a Value does.
func (t *Table[K, V]) Swap(k K, v V) Superseded {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.record(k)
	r.set = true
	return r.level.Swap(entry[V]{v, true})
}

// Delete leaves k without a value and wakes its watchers, if it had one.
func (t *Table[K, V]) Delete(k K) { t.Remove(k).Wake() }

// Remove is Delete that leaves the waking to the caller.
func (t *Table[K, V]) Remove(k K) Superseded {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, found := t.records[k]
	if !found || !r.set {
		return Superseded{}
	}
	r.set = false
	superseded := r.level.Swap(entry[V]{})
	t.release(k, r)
	return superseded
}

// A Reader is a Table for those who do not write it.
type Reader[K comparable, V any] interface {
	Get(k K) (V, bool)
	Watch(k K) *Watch[K, V]
	Len() int
}

// Get returns the value of k, if it has one.
func (t *Table[K, V]) Get(k K) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r, found := t.records[k]; found {
		e, _ := r.level.Load()
		return e.value, e.ok
	}
	var none V
	return none, false
}

// Watch opens a watch on k, which may have no value yet. The caller closes it.
func (t *Table[K, V]) Watch(k K) *Watch[K, V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.record(k)
	r.watchers++
	return &Watch[K, V]{table: t, key: k, record: r}
}

// Len returns the number of records, for tests and metrics.
func (t *Table[K, V]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.records)
}

// record and release need t.mu.
func (t *Table[K, V]) record(k K) *record[V] {
	r, found := t.records[k]
	if !found {
		r = &record[V]{}
		if t.records == nil {
			t.records = map[K]*record[V]{}
		}
		t.records[k] = r
	}
	return r
}

func (t *Table[K, V]) release(k K, r *record[V]) {
	if !r.set && r.watchers == 0 {
		delete(t.records, k)
	}
}

// A Watch keeps one key's record in its Table. It belongs to one goroutine.
type Watch[K comparable, V any] struct {
	table  *Table[K, V]
	key    K
	record *record[V]
	bell   *Bell // that is rung; nil for none
}

// Load returns the key's newest value, whether it has one, and a channel that closes once that has changed.
func (w *Watch[K, V]) Load() (V, bool, <-chan struct{}) {
	e, superseded := w.record.level.Load()
	return e.value, e.ok, superseded
}

// Add has a Bell rung whenever the key's value changes, until Close. It is called once at most.
func (w *Watch[K, V]) Add(b *Bell) {
	w.bell = b
	w.record.level.Add(b)
}

// Close ends the watch and reports whether it was the key's last. A second Close does nothing.
func (w *Watch[K, V]) Close() (last bool) {
	if w.record == nil {
		return false
	}
	if w.bell != nil {
		w.record.level.Remove(w.bell)
	}
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	w.record.watchers--
	last = w.record.watchers == 0
	w.table.release(w.key, w.record)
	w.record = nil
	return last
}

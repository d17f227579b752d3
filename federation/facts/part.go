package facts

import (
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// A Part is what one cluster writes of one kind, for its readers. It is a [watch.Reader].
//
// mu serialises what its writers do. Those who wait are woken after it is released.
type Part[K, V comparable] struct {
	table   *Table[K, V]
	cluster Cluster
	isNamed atomic.Bool // a reader has it, so that it outlives its cluster

	values  watch.Table[K, V]
	version atomic.Uint64 // of the last change, stored after it: who sees the number sees the change
	synced  watch.Value[Completeness]

	mu         sync.Mutex
	linked     bool
	writer     *Writer[K, V]  // the newest; nil: none
	arranger   Arranger[K, V] // nil: none
	superseded []watch.Superseded
}

// Get returns the value of a key, if it has one.
func (p *Part[K, V]) Get(k K) (V, bool) { return p.values.Get(k) }

// Watch opens a watch on a key, which may have no value yet. The caller closes it.
func (p *Part[K, V]) Watch(k K) *watch.Watch[K, V] { return p.values.Watch(k) }

// All yields every key that has a value. A writer waits for a moment at a time: of a key that changes meanwhile it
// yields the old value, the new one, or none.
func (p *Part[K, V]) All() iter.Seq2[K, V] { return p.values.All() }

// Synced reports whether everything was written once since the cluster is linked, and returns a channel that closes
// when that has changed. Before, a key without a value is not known to have none.
func (p *Part[K, V]) Synced() (bool, <-chan struct{}) {
	now, changed := p.synced.Load()
	return now != Incomplete, changed
}

// Completeness returns whether everything was written once, and by whom.
func (p *Part[K, V]) Completeness() Completeness {
	now, _ := p.synced.Load()
	return now
}

// A Completeness is whether everything was written once since a cluster is linked.
type Completeness uint8

// Degrees of Completeness, in order.
const (
	Incomplete Completeness = iota
	Restored                // as a checkpoint had it, and by no writer since
	Complete
)

// AddToSynced rings a bell when Synced or Completeness has changed, until remove is called.
func (p *Part[K, V]) AddToSynced(bell *watch.Bell) (remove func()) { return p.synced.Add(bell) }

// begin lets a Writer take the place of the one before, if the cluster is linked.
func (p *Part[K, V]) begin(writer *Writer[K, V]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.linked {
		return
	}

	writer.part, writer.unwritten = p, map[K]struct{}{}
	for k := range p.values.All() {
		writer.unwritten[k] = struct{}{}
	}
	p.writer = writer
	if p.arranger == nil && p.table.options.Arrange != nil {
		p.arranger = p.table.options.Arrange()
	}
}

// unlink removes everything, and returns whom that wakes.
func (p *Part[K, V]) unlink() []watch.Superseded {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.linked, p.writer, p.arranger = false, nil, nil
	for k := range p.values.All() {
		p.remove(k)
	}

	p.supersede(p.synced.Swap(Incomplete))
	superseded := p.superseded
	p.superseded = nil
	return superseded
}

// unlock releases mu and wakes those who wait on what was before.
func (p *Part[K, V]) unlock() {
	superseded := p.superseded
	p.superseded = nil
	p.mu.Unlock()
	for _, waiting := range superseded {
		waiting.Wake()
	}
}

// set and all below need mu. set sets the value of a key, as it is written.
func (p *Part[K, V]) set(k K, v V) {
	old, known := p.values.Get(k)
	if p.arranger != nil {
		v = p.arranger.Place(k, v)
	}
	if !known || !p.table.options.Equal(old, v) {
		p.swap(k, v)
	}
	if !known {
		p.rearrange()
	}
}

// remove removes a key.
func (p *Part[K, V]) remove(k K) {
	_, known := p.values.Get(k)
	if !known {
		return
	}

	p.changed(k, p.values.Remove(k))
	if p.arranger != nil {
		p.arranger.Remove(k)
		p.rearrange()
	}
}

func (p *Part[K, V]) rearrange() {
	if p.arranger != nil {
		p.arranger.Rearrange(p.values.Get, p.swap)
	}
}

func (p *Part[K, V]) swap(k K, v V) { p.changed(k, p.values.Swap(k, v)) }

func (p *Part[K, V]) changed(k K, old watch.Superseded) {
	p.version.Store(p.table.versions.Add(1))
	p.supersede(old)
	p.supersede(p.table.keys.Touch(k))
}

func (p *Part[K, V]) supersede(old watch.Superseded) {
	if old != (watch.Superseded{}) {
		p.superseded = append(p.superseded, old)
	}
}

// A Writer writes the facts of one kind of one cluster. Its owner may write the same again at any time, writes
// everything that changes, and calls MarkSynced when it has written everything once. It is fenced, and changes nothing
// any more, by the next NewWriter and by Unlink.
type Writer[K, V comparable] struct {
	part      *Part[K, V]    // nil: it is fenced
	unwritten map[K]struct{} // guarded by part.mu, which is of the writers before, and not of this one; nil once synced
}

// Set sets the value of a key.
func (w *Writer[K, V]) Set(k K, v V) {
	w.write(func(p *Part[K, V]) {
		delete(w.unwritten, k)
		p.set(k, v)
	})
}

// Delete removes a key.
func (w *Writer[K, V]) Delete(k K) {
	w.write(func(p *Part[K, V]) {
		delete(w.unwritten, k)
		p.remove(k)
	})
}

// Get returns what this Writer has set.
func (w *Writer[K, V]) Get(k K) (v V, found bool) {
	w.write(func(p *Part[K, V]) {
		if _, unwritten := w.unwritten[k]; !unwritten {
			v, found = p.values.Get(k)
		}
	})
	return v, found
}

// Unwritten returns the keys that MarkSynced will remove, in no order.
func (w *Writer[K, V]) Unwritten() (keys []K) {
	w.write(func(*Part[K, V]) { keys = slices.Collect(maps.Keys(w.unwritten)) })
	return keys
}

// MarkSynced reports that everything was written once since NewWriter: what was not is removed.
func (w *Writer[K, V]) MarkSynced() { w.markSynced(Complete) }

func (w *Writer[K, V]) markSynced(as Completeness) {
	w.write(func(p *Part[K, V]) {
		for k := range w.unwritten {
			p.remove(k)
		}
		w.unwritten = nil
		before, _ := p.synced.Load()
		if before == Incomplete {
			p.version.Store(p.table.versions.Add(1)) // of the Copy
		}
		if before < as {
			p.supersede(p.synced.Swap(as))
		}
	})
}

// write runs f under the lock unless the writer is fenced.
func (w *Writer[K, V]) write(f func(*Part[K, V])) {
	if w.part == nil {
		return
	}
	w.part.mu.Lock()
	defer w.part.unlock()
	if w.part.writer == w {
		f(w.part)
	}
}

package facts

import (
	"cmp"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// Cluster is the name of a cluster, the same all over the fleet.
type Cluster string

// A Table holds the facts of one kind: a value for each key that a cluster has written. Readers take no lock that a
// writer holds for longer than a moment. It costs what its values take, and for each cluster some hundred bytes.
type Table[K, V comparable] struct {
	name    string
	options Options[K, V]

	mu       sync.Mutex                    // serialises changes of parts
	parts    atomic.Pointer[[]*Part[K, V]] // by the name of the cluster; replaced, never written to
	keys     watch.Table[K, struct{}]      // those that are watched over all clusters
	versions atomic.Uint64                 // so many changes of all parts so far
}

// Options are what a Table may have.
type Options[K, V comparable] struct {
	// Equal reports whether two values mean the same, so that the old one stays; nil: those that are ==.
	Equal func(a, b V) bool
	// Derived is whether the facts follow from objects that are not among what is published: checkpoints do not have
	// them.
	Derived bool
	// Arrange returns the Arranger of one cluster; nil for none.
	Arrange func() Arranger[K, V]
}

// An Arranger is for values that depend on which other keys a cluster has. It is asked by one goroutine at a time.
type Arranger[K, V comparable] interface {
	// Place returns a value as it is held. Its key may be new.
	Place(k K, v V) V
	// Remove forgets a key.
	Remove(k K)
	// Rearrange sets the values of others that are not the same, now that a key is new, or gone.
	Rearrange(get func(K) (V, bool), set func(K, V))
}

// NewTable returns an empty Table, and of no cluster. The name is that by which checkpoints know it.
func NewTable[K, V comparable](name string, options Options[K, V]) *Table[K, V] {
	if options.Equal == nil {
		options.Equal = func(a, b V) bool { return a == b }
	}
	t := &Table[K, V]{name: name, options: options}
	t.parts.Store(new([]*Part[K, V]))
	return t
}

// IsDerived reports whether checkpoints do not have the Table.
func (t *Table[K, V]) IsDerived() bool { return t.options.Derived }

// Name returns the name of the Table.
func (t *Table[K, V]) Name() string { return t.name }

// In returns what a cluster writes. It may be linked later, and again after it was unlinked.
func (t *Table[K, V]) In(c Cluster) *Part[K, V] {
	if p := t.part(c); p != nil && p.isNamed.Load() {
		return p
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.addPart(c)
	p.isNamed.Store(true)
	return p
}

// Get returns what a cluster has written of a key.
func (t *Table[K, V]) Get(c Cluster, k K) (v V, found bool) {
	if p := t.part(c); p != nil {
		return p.Get(k)
	}
	return v, false
}

// All yields everything that a cluster has written, as [Part.All] does.
func (t *Table[K, V]) All(c Cluster) iter.Seq2[K, V] {
	if p := t.part(c); p != nil {
		return p.All()
	}
	return func(func(K, V) bool) {}
}

// ByKey yields the value of a key in each cluster that has one, in the order of their names.
func (t *Table[K, V]) ByKey(k K) iter.Seq2[Cluster, V] {
	return func(yield func(Cluster, V) bool) {
		for _, p := range *t.parts.Load() {
			if v, found := p.Get(k); found && !yield(p.cluster, v) {
				return
			}
		}
	}
}

// Watch opens a watch on what ByKey yields of a key: it is superseded when that has changed. The caller closes it.
func (t *Table[K, V]) Watch(k K) *watch.Watch[K, struct{}] { return t.keys.Watch(k) }

// NewWriter returns the writer of a cluster from now on, and fences the one before it. What that one has written stays
// until the new one's MarkSynced. The writer of a cluster that is not linked is fenced from the beginning.
func (t *Table[K, V]) NewWriter(c Cluster) *Writer[K, V] {
	w := &Writer[K, V]{}
	if p := t.part(c); p != nil {
		p.begin(w)
	}
	return w
}

// Link makes a cluster one that is linked, if it is not.
func (t *Table[K, V]) Link(c Cluster) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.addPart(c)

	p.mu.Lock()
	defer p.mu.Unlock()
	p.linked = true
}

// Unlink removes everything that a cluster has written, and fences its writer. The caller wakes those who wait.
func (t *Table[K, V]) Unlink(c Cluster) []watch.Superseded {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.part(c)
	if p == nil {
		return nil
	}

	superseded := p.unlink()
	if !p.isNamed.Load() {
		rest := slices.DeleteFunc(slices.Clone(*t.parts.Load()), func(o *Part[K, V]) bool { return o == p })
		t.parts.Store(&rest)
	}
	return superseded
}

func (t *Table[K, V]) part(c Cluster) *Part[K, V] {
	parts := *t.parts.Load()
	if at, found := slices.BinarySearchFunc(parts, c, (*Part[K, V]).compare); found {
		return parts[at]
	}
	return nil
}

// addPart returns the part of a cluster, which may be new. It needs t.mu.
func (t *Table[K, V]) addPart(c Cluster) *Part[K, V] {
	parts := *t.parts.Load()
	at, found := slices.BinarySearchFunc(parts, c, (*Part[K, V]).compare)
	if found {
		return parts[at]
	}

	p := &Part[K, V]{table: t, cluster: c}
	next := slices.Insert(slices.Clone(parts), at, p)
	t.parts.Store(&next)
	return p
}

func (p *Part[K, V]) compare(c Cluster) int { return cmp.Compare(p.cluster, c) }

// Package records keeps what is needed of Kubernetes objects, and not the objects: a client-go Reflector fills a [Store] with small
// records, each made of an object as it arrives.
package records

import (
	"fmt"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// A Key names an object of a known kind.
type Key struct{ Namespace, Name string }

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// A Store holds the records of one kind of object. A Reflector is its only writer; anybody may read it.
type Store[R any] struct {
	keep    func(object any) (R, bool)
	changed func(Key)
	synced  chan struct{} // closed by the first Replace

	mu    sync.RWMutex
	byKey map[Key]R
}

var _ cache.TransformingStore = &Store[int]{}

// NewStore returns an empty Store. keep reduces an object to its record, or returns false if nothing is to be kept of it. changed is
// told the keys of what has changed, or may have, after the change can be read, and with no lock held.
func NewStore[R any](keep func(object any) (R, bool), changed func(Key)) *Store[R] {
	return &Store[R]{keep: keep, changed: changed, synced: make(chan struct{}), byKey: map[Key]R{}}
}

// Synced returns a channel that is closed once the Store holds a complete listing.
func (s *Store[R]) Synced() <-chan struct{} { return s.synced }

// Get returns a record.
func (s *Store[R]) Get(k Key) (R, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, found := s.byKey[k]
	return r, found
}

// Keys returns the keys of all records, in no order.
func (s *Store[R]) Keys() []Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	keys := make([]Key, 0, len(s.byKey))
	for k := range s.byKey {
		keys = append(keys, k)
	}
	return keys
}

// Len returns the number of records.
func (s *Store[R]) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byKey)
}

// kept is what an object was reduced to on its way into the store.
type kept[R any] struct {
	key    Key
	record R
	ok     bool
}

// Transformer lets the Reflector reduce each object as it is streamed, so that the first listing never stands in memory whole.
func (s *Store[R]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		if k, done := object.(kept[R]); done {
			return k, nil
		}
		m, err := meta.Accessor(object)
		if err != nil {
			return nil, fmt.Errorf("object without metadata: %w", err)
		}
		k := kept[R]{key: Key{Intern(m.GetNamespace()), m.GetName()}}
		k.record, k.ok = s.keep(object)
		return k, nil
	}
}

// Add stores an object that is new.
func (s *Store[R]) Add(object any) error { return s.put(object) }

// Update stores an object that has changed.
func (s *Store[R]) Update(object any) error { return s.put(object) }

func (s *Store[R]) put(object any) error {
	t, err := s.Transformer()(object)
	if err != nil {
		return err
	}
	k := t.(kept[R])
	s.mu.Lock()
	if k.ok {
		s.byKey[k.key] = k.record
	} else {
		delete(s.byKey, k.key)
	}
	s.mu.Unlock()
	s.changed(k.key)
	return nil
}

// Delete drops an object.
func (s *Store[R]) Delete(object any) error {
	m, err := meta.Accessor(object)
	if err != nil {
		return fmt.Errorf("object without metadata: %w", err)
	}
	k := Key{m.GetNamespace(), m.GetName()}
	s.mu.Lock()
	delete(s.byKey, k)
	s.mu.Unlock()
	s.changed(k)
	return nil
}

// Replace stores a complete listing.
func (s *Store[R]) Replace(objects []any, _ string) error {
	next := make(map[Key]R, len(objects))
	for _, o := range objects {
		t, err := s.Transformer()(o)
		if err != nil {
			return err
		}
		if k := t.(kept[R]); k.ok {
			next[k.key] = k.record
		}
	}
	s.mu.Lock()
	old := s.byKey
	s.byKey = next
	s.mu.Unlock()
	for k := range old {
		if _, still := next[k]; !still {
			s.changed(k)
		}
	}
	for k := range next {
		s.changed(k)
	}
	select {
	case <-s.synced:
	default:
		close(s.synced)
	}
	return nil
}

// Resync has nothing to do: nothing here is lost that a second look would find.
func (s *Store[R]) Resync() error { return nil }

// Intern returns one copy of equal strings, for those that many objects repeat.
func Intern(s string) string { return unique.Make(s).Value() }

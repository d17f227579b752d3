// Package records keeps what is needed of Kubernetes objects, and not the objects: a [Store] holds small records, each made of an object
// as it arrives.
package records

import (
	"fmt"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
)

// A Target is what an informer fills. It is a [Store], or wraps one.
type Target interface {
	Gather() Listing
	Replace(objects []any, version string) error // by all objects of a Listing
	Update(object any) error                     // one that is new or has changed
	Delete(object any) error
}

// A Listing gathers all objects there are, each reduced as it arrives, before they replace what a Target holds.
type Listing interface {
	Update(object any) error
	Delete(object any) error // one that was deleted while the others were listed
	Objects() []any
}

// A Key names an object of a known kind.
type Key struct{ Namespace, Name string }

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// A Store holds the records of one kind of object. An informer is its only writer; anybody may read it.
type Store[R any] struct {
	keep    func(object any) (R, bool)
	changed func(Key)
	synced  chan struct{} // closed by the first Replace

	mu    sync.RWMutex
	byKey map[Key]R
}

var _ Target = &Store[int]{}

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

func keyOf(object any) (Key, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return Key{}, fmt.Errorf("object without metadata: %w", err)
	}
	return Key{Intern(m.GetNamespace()), m.GetName()}, nil
}

// reduce returns what is to be kept of an object, which may have been reduced before.
func (s *Store[R]) reduce(object any) (*kept[R], error) {
	if k, done := object.(*kept[R]); done {
		return k, nil
	}
	key, err := keyOf(object)
	if err != nil {
		return nil, err
	}
	k := &kept[R]{key: key}
	k.record, k.ok = s.keep(object)
	return k, nil
}

// listing is a Listing for a Store.
type listing[R any] struct {
	store   *Store[R]
	objects map[Key]*kept[R]
}

// Gather returns an empty Listing, whose objects Replace takes.
func (s *Store[R]) Gather() Listing { return &listing[R]{s, map[Key]*kept[R]{}} }

func (l *listing[R]) Update(object any) error {
	k, err := l.store.reduce(object)
	if err == nil {
		l.objects[k.key] = k
	}
	return err
}

func (l *listing[R]) Delete(object any) error {
	key, err := keyOf(object)
	if err == nil {
		delete(l.objects, key)
	}
	return err
}

func (l *listing[R]) Objects() []any {
	all := make([]any, 0, len(l.objects))
	for _, k := range l.objects {
		all = append(all, k)
	}
	return all
}

// Update stores an object that is new or has changed.
func (s *Store[R]) Update(object any) error {
	k, err := s.reduce(object)
	if err != nil {
		return err
	}
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
	k, err := keyOf(object)
	if err != nil {
		return err
	}
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
		k, err := s.reduce(o)
		if err != nil {
			return err
		}
		if k.ok {
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

// Intern returns one copy of equal strings, for those that many objects repeat.
func Intern(s string) string { return unique.Make(s).Value() }

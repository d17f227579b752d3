package api

import (
	"fmt"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
)

// A Target is what an informer fills. It is a [Store], or wraps one. It must not change the objects that it
// is given, because other Targets are given the same ones, nor block.
type Target interface {
	UseBudget(b *Budget, kind string, maxUnits int) // nil: no limits
	MayFit() bool                                   // something was refused that may fit now
	Synced() <-chan struct{}                        // closed once it holds a complete listing
	NewListing() Listing
	CheckListing(objects int, bytes int64) error // an error ends a listing that brought so much
	Replace(objects []any, version string) error // by all objects of a Listing
	Update(object any) error                     // one that is new or has changed
	Delete(object any) error
}

// A Listing gathers all objects there are, each reduced as it arrives, before Replace stores them at once.
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

// A Store holds the records of one kind of object. Its informer is the only writer; any goroutine may read
// it.
type Store[R any] struct {
	newRecord func(object any) (R, bool)
	changed   func(Key)
	synced    chan struct{} // closed by the first Replace

	unstored *listing[R] // the last that was not stored; of the informer, like share
	share    *share      // nil: there are no limits

	mu     sync.RWMutex
	byKey  map[Key]R
	usages map[Key]usage // where there are limits
}

var _ Target = &Store[int]{}

// NewStore returns an empty Store. newRecord reduces an object to its record without changing it, or returns
// false if nothing is to be kept of it. changed is called with the key of each object that has changed, or
// may have: after the change can be read, and with no lock of the Store held. It must not block.
func NewStore[R any](newRecord func(object any) (R, bool), changed func(Key)) *Store[R] {
	return &Store[R]{newRecord: newRecord, changed: changed, synced: make(chan struct{}), byKey: map[Key]R{}}
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

// reduced is an object on its way into the Store.
type reduced[R any] struct {
	key    Key
	record R
	ok     bool
	size   usage
}

func keyOf(object any) (Key, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return Key{}, fmt.Errorf("object without metadata: %w", err)
	}
	return Key{Intern(m.GetNamespace()), m.GetName()}, nil
}

// reduce reduces an object, unless that was done before.
func (s *Store[R]) reduce(object any) (*reduced[R], error) {
	if k, done := object.(*reduced[R]); done {
		return k, nil
	}
	key, err := keyOf(object)
	if err != nil {
		return nil, err
	}
	k := &reduced[R]{key: key}
	k.record, k.ok = s.newRecord(object)
	if k.ok && s.share != nil {
		k.size = usageOf(object, k.record)
	}
	return k, nil
}

// UseBudget makes records count in a Budget from now on: at most maxUnits units of a kind. nil ends that.
func (s *Store[R]) UseBudget(b *Budget, kind string, maxUnits int) {
	if s.share != nil {
		s.share.reserve(-s.share.bytes, true)
		s.share.setRefused(s.share, false)
	}
	s.share, s.unstored, s.usages = nil, nil, nil
	if b == nil {
		return
	}
	s.share, s.usages = &share{Budget: b, kind: kind, maxUnits: int64(maxUnits)}, map[Key]usage{}
	for k, r := range s.byKey { // from an informer before
		now := usageOf(nil, r)
		s.usages[k] = now
		s.share.charge(usage{}, now, true)
	}
}

// MayFit reports whether something was refused that may fit now.
func (s *Store[R]) MayFit() bool { return s.share != nil && s.share.mayFit() }

// listing is a Listing for a Store.
type listing[R any] struct {
	store   *Store[R]
	objects map[Key]*reduced[R]
	before  share // what was used when it began
}

// NewListing returns an empty Listing, whose objects Replace takes. Objects that the Store holds already
// take precedence over new ones in the Budget.
func (s *Store[R]) NewListing() Listing {
	s.abandon()
	l := &listing[R]{store: s, objects: map[Key]*reduced[R]{}}
	if s.share != nil {
		l.before = *s.share
		s.share.refusedCount = 0
		s.unstored = l
	}
	return l
}

// abandon returns to the Budget what a listing used that was not stored.
func (s *Store[R]) abandon() {
	if s.unstored != nil {
		s.share.reserve(s.unstored.before.bytes-s.share.bytes, true)
		s.share.units, s.share.bytes = s.unstored.before.units, s.unstored.before.bytes
		s.unstored = nil
	}
}

// CheckListing returns an [*ExcessError] if a listing that has brought so many objects, and so many bytes
// as they were sent, must not be read further. What was gathered of it is dropped.
func (s *Store[R]) CheckListing(objects int, bytes int64) error {
	if s.share == nil {
		return nil
	}
	err := s.share.checkListing(objects, bytes)
	if err != nil {
		s.abandon()
	}
	return err
}

func (l *listing[R]) Update(object any) error {
	k, err := l.store.reduce(object)
	if err != nil {
		return err
	}
	if !k.ok {
		return l.Delete(object)
	}
	s := l.store
	if s.share != nil {
		before, known := s.usages[k.key]
		if twice, found := l.objects[k.key]; found {
			before, known = twice.size, true
		}
		if !s.share.charge(before, k.size, known) {
			if old, found := s.Get(k.key); found && l.objects[k.key] == nil {
				l.objects[k.key] = &reduced[R]{k.key, old, true, before}
			}
			return nil
		}
	}
	l.objects[k.key] = k
	return nil
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
	if s.share != nil {
		before, known := s.usages[k.key]
		if !s.share.charge(before, k.size, known) {
			return nil
		}
		s.usages[k.key] = k.size
		if !k.ok {
			delete(s.usages, k.key)
		}
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
	if s.share != nil {
		s.share.charge(s.usages[k], usage{}, true)
		delete(s.usages, k)
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
	var all usage
	sizes := map[Key]usage{}
	for _, o := range objects {
		k, err := s.reduce(o)
		if err != nil {
			return err
		}
		if k.ok {
			next[k.key] = k.record
			if s.share != nil {
				sizes[k.key] = k.size
				all.units, all.bytes = all.units+k.size.units, all.bytes+k.size.bytes
			}
		}
	}
	if s.share != nil { // each was charged as it was gathered, and what is gone not given back yet
		s.share.reserve(all.bytes-s.share.bytes, true)
		s.share.units, s.share.bytes, s.usages, s.unstored = all.units, all.bytes, sizes, nil
		s.share.setRefused(s.share, s.share.refusedCount > 0)
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

// Intern returns one copy of equal strings. It is for strings that are kept for each endpoint, and repeat:
// elsewhere it saves nothing that can be measured.
func Intern(s string) string { return unique.Make(s).Value() }

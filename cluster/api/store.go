package api

import (
	"cmp"
	"container/heap"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// A Sink is what an informer fills. It is a [Store], or wraps one. It must not change the objects that it
// is given, because other Sinks are given the same ones, nor block.
type Sink interface {
	UseBudget(b *Budget, kind Kind) // nil: no limits
	budgetShare() *share            // of that Budget
	Synced() <-chan struct{}        // closed once it holds a complete listing
	NewListing() Listing
	Replace(objects []any) // by all objects of a Listing
	Update(object any)     // one that is new or has changed
	Delete(object any)
}

// A Listing gathers all objects there are, each reduced as it arrives, before Replace stores them at once.
type Listing interface {
	Update(object any)
	Delete(object any) // one that was deleted while the others were listed
	Objects() []any
}

// A Key names an object of a known kind.
type Key struct{ Namespace, Name string }

// String returns namespace/name, or the name alone without a namespace.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Compare orders keys by namespace and then by name, as [cmp.Compare] does.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

// A Store holds the records of one kind of object. Its informer is the only writer; any goroutine may read
// it.
type Store[R any] struct {
	newRecord func(object any) (R, bool)
	changed   func(Key)
	synced    chan struct{} // closed by the first Replace

	share   *share      // nil: there are no limits; of the informer
	partial atomic.Bool // a Budget has left objects out

	mu    sync.RWMutex
	byKey ByNamespace[*stored[R]]
}

// stored is a record in a Store. It is by pointer, because maps have room for about twice what is in them.
type stored[R any] struct {
	record R
	size   usage // where there are limits
}

// ByNamespace holds values by key, those of one namespace together: that takes less memory than a map by Key
// does, of which each entry repeats the namespace.
type ByNamespace[V any] map[string]map[string]V

// Get returns the value of a key; the zero value for none.
func (m ByNamespace[V]) Get(k Key) V { return m[k.Namespace][k.Name] }

// Put sets the value of a key.
func (m ByNamespace[V]) Put(k Key, v V) {
	if m[k.Namespace] == nil {
		m[k.Namespace] = map[string]V{}
	}
	m[k.Namespace][k.Name] = v
}

// Remove removes a key.
func (m ByNamespace[V]) Remove(k Key) {
	delete(m[k.Namespace], k.Name)
	if len(m[k.Namespace]) == 0 {
		delete(m, k.Namespace)
	}
}

// Len returns the number of keys.
func (m ByNamespace[V]) Len() (n int) {
	for _, values := range m {
		n += len(values)
	}
	return n
}

// All yields all keys with their values, in no order.
func (m ByNamespace[V]) All() iter.Seq2[Key, V] {
	return func(yield func(Key, V) bool) {
		for namespace, values := range m {
			for name, v := range values {
				if !yield(Key{namespace, name}, v) {
					return
				}
			}
		}
	}
}

var _ Sink = &Store[int]{}

// NewStore returns an empty Store. newRecord reduces an object to its record without changing it, or returns
// false if nothing is to be kept of it. changed is called with the key of each object that has changed, or
// may have: after the change can be read, and with no lock of the Store held. It must not block.
func NewStore[R any](newRecord func(object any) (R, bool), changed func(Key)) *Store[R] {
	return &Store[R]{
		newRecord: newRecord, changed: changed, synced: make(chan struct{}), byKey: ByNamespace[*stored[R]]{},
	}
}

// Synced returns a channel that is closed once the Store holds a complete listing.
func (s *Store[R]) Synced() <-chan struct{} { return s.synced }

// Get returns the record of a key, and whether there is one.
func (s *Store[R]) Get(k Key) (R, bool) {
	r, found := s.get(k)
	return r.record, found
}

func (s *Store[R]) get(k Key) (stored[R], bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if r := s.byKey.Get(k); r != nil {
		return *r, true
	}
	return stored[R]{}, false
}

// Take returns a record and no longer keeps it: what it returns for the key from then on, until
// the object changes, is a zero R. It is for records that are large and have one reader, which
// then has all that was in them.
func (s *Store[R]) Take(k Key) (record R, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.byKey.Get(k)
	if r == nil {
		return record, false
	}
	record, r.record = r.record, record
	return record, true
}

// put stores a record, or removes that of the key if it is nil.
func (s *Store[R]) put(k Key, r *stored[R]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r == nil {
		s.byKey.Remove(k)
	} else {
		s.byKey.Put(k, r)
	}
}

// Keys returns the keys of all records, in no order.
func (s *Store[R]) Keys() []Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	keys := make([]Key, 0, s.byKey.Len())
	for k := range s.byKey.All() {
		keys = append(keys, k)
	}
	return keys
}

// Len returns the number of records.
func (s *Store[R]) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byKey.Len()
}

// reduced is an object on its way into the Store.
type reduced[R any] struct {
	key    Key
	record R
	ok     bool
	size   usage
}

// keyOf returns the key of an object; that of none for one without metadata, which no Watcher passes on.
func keyOf(object any) Key {
	m, err := meta.Accessor(object)
	if err != nil {
		return Key{}
	}
	return Key{Intern(m.GetNamespace()), m.GetName()}
}

// reduce reduces an object, unless that was done before.
func (s *Store[R]) reduce(object any) *reduced[R] {
	if k, done := object.(*reduced[R]); done {
		return k
	}

	k := &reduced[R]{key: keyOf(object)}
	k.record, k.ok = s.newRecord(object)
	if k.ok && s.share != nil {
		k.size = usageOf(s.share.kind, k.key, object, k.record)
	}
	return k
}

// IsWhole reports whether no Budget has left an object out, as far as was reported by changed:
// what is not in the store does not exist. Who looks for an object asks this first. It stays as
// it is when the informer ends.
func (s *Store[R]) IsWhole() bool { return !s.partial.Load() }

// UseBudget makes records, which are those of a kind, count in a Budget from now on. nil ends that.
func (s *Store[R]) UseBudget(b *Budget, kind Kind) {
	if s.share != nil {
		s.share.use(totals{})
		s.share.setRefused(false)
	}
	s.share = nil
	if b == nil {
		return
	}

	s.share = &share{Budget: b, kind: kind}
	var used totals
	for _, r := range s.byKey.All() { // of an earlier Run; its informer is the only writer
		used.add(r.size)
	}
	s.share.use(used)
}

func (s *Store[R]) budgetShare() *share { return s.share }

// listing is a Listing for a Store.
type listing[R any] struct {
	store   *Store[R]
	objects map[Key]*reduced[R]

	refused *Key       // the first by name of those that it has refused; nil for none
	taken   latestKeys // the new ones that it has taken; only once something was refused
}

// latestKeys is a heap of keys, of which the last by name is first.
type latestKeys []Key

func (h latestKeys) Len() int           { return len(h) }
func (h latestKeys) Less(i, j int) bool { return h[i].Compare(h[j]) > 0 }
func (h latestKeys) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *latestKeys) Push(k any) { *h = append(*h, k.(Key)) }

// Pop implements [heap.Interface].
func (h *latestKeys) Pop() any {
	last := len(*h) - 1
	k := (*h)[last]
	*h = (*h)[:last]
	return k
}

// NewListing returns an empty Listing, whose objects Replace takes. Objects that the Store holds already
// take precedence over new ones in the Budget.
func (s *Store[R]) NewListing() Listing {
	s.share.beginListing()
	return &listing[R]{store: s, objects: map[Key]*reduced[R]{}}
}

func (l *listing[R]) Update(object any) {
	entry := l.store.reduce(object)
	if !entry.ok {
		delete(l.objects, entry.key)
		return
	}

	if share := l.store.share; share != nil {
		share.listed += int64(entry.size.units)
		if !l.admit(entry) {
			return
		}
	}
	l.objects[entry.key] = entry
}

// admit charges an object, and reports whether there is room for it. One that was accepted before, and that
// has outgrown the Budget, stays as it was.
func (l *listing[R]) admit(entry *reduced[R]) bool {
	store := l.store
	old, known := store.get(entry.key)
	twice, again := l.objects[entry.key]
	switch {
	case again:
		old.size = twice.size
	case !known:
		return l.admitNew(entry)
	}

	if store.share.charge(old.size, entry.size, true) {
		return true
	}
	store.share.recordRefusal(entry.key, entry.size, true)
	if !again {
		l.objects[entry.key] = &reduced[R]{entry.key, old.record, true, old.size}
	}
	return false
}

// admitNew makes room for a new object at the cost of new ones that come after it by name. All
// that was taken comes before all that was refused: the last of taken, once it is given up, is
// the first of what was refused.
func (l *listing[R]) admitNew(entry *reduced[R]) bool {
	share := l.store.share
	beyond := l.refused != nil && l.refused.Compare(entry.key) < 0
	if !beyond && share.charge(usage{}, entry.size, false) {
		if l.refused != nil {
			heap.Push(&l.taken, entry.key)
		}
		return true
	}

	if l.refused == nil {
		for key := range l.objects {
			if _, known := l.store.get(key); !known {
				l.taken = append(l.taken, key)
			}
		}
		heap.Init(&l.taken)
	}

	for !beyond && len(l.taken) > 0 && entry.key.Compare(l.taken[0]) < 0 {
		last := heap.Pop(&l.taken).(Key)
		if o, still := l.objects[last]; still { // it was not deleted meanwhile
			delete(l.objects, last)
			share.charge(o.size, usage{}, true)
			share.recordRefusal(last, o.size, false)
			l.refused = &last
		}

		if share.charge(usage{}, entry.size, false) {
			heap.Push(&l.taken, entry.key)
			return true
		}
	}

	share.recordRefusal(entry.key, entry.size, false)
	if l.refused == nil || entry.key.Compare(*l.refused) < 0 {
		l.refused = &entry.key
	}
	return false
}

func (l *listing[R]) Delete(object any) { delete(l.objects, keyOf(object)) }

func (l *listing[R]) Objects() []any {
	all := make([]any, 0, len(l.objects))
	for _, k := range l.objects {
		all = append(all, k)
	}
	return all
}

// Update stores an object that is new or has changed.
func (s *Store[R]) Update(object any) {
	entry := s.reduce(object)
	if s.share != nil {
		old, known := s.get(entry.key)
		isNew := entry.ok && !known
		if isNew && s.share.refusedCount > 0 || !s.share.charge(old.size, entry.size, known) {
			s.share.recordRefusal(entry.key, entry.size, known)
			if s.share.isPartial() {
				s.partial.Store(true)
			}
			return
		}
	}

	if entry.ok {
		s.put(entry.key, &stored[R]{entry.record, entry.size})
	} else {
		s.put(entry.key, nil)
	}
	s.changed(entry.key)
}

// Delete drops an object.
func (s *Store[R]) Delete(object any) {
	k := keyOf(object)
	if s.share != nil {
		old, known := s.get(k)
		s.share.charge(old.size, usage{}, true)
		s.share.gone = s.share.gone || !known && s.share.refusedCount > 0
	}
	s.put(k, nil)
	s.changed(k)
}

// Replace stores a complete listing.
func (s *Store[R]) Replace(objects []any) {
	next := ByNamespace[*stored[R]]{}
	var used totals

	for _, o := range objects {
		k := s.reduce(o)
		if !k.ok {
			continue
		}
		next.Put(k.key, &stored[R]{k.record, k.size})
		used.add(k.size)
	}

	s.share.storeListing(used)
	partial := s.share.isPartial()
	if partial {
		s.partial.Store(true)
	}
	s.mu.Lock()
	old := s.byKey
	s.byKey = next
	s.mu.Unlock()

	for k := range old.All() {
		if next.Get(k) == nil {
			s.changed(k)
		}
	}

	for k := range next.All() {
		s.changed(k)
	}
	s.partial.Store(partial)
	if !watch.IsClosed(s.synced) {
		close(s.synced)
	}
}

// Intern returns one copy of equal strings. It is for strings that are kept for each endpoint, and repeat:
// elsewhere it saves nothing that can be measured.
func Intern(s string) string { return unique.Make(s).Value() }

package watch

import (
	"container/list"
	"maps"
	"slices"
	"sync"
)

// A Bell wakes one waiter when any of the Values that it was added to is superseded. The waiter adds it
// to each Value before it loads that, loads and works, and then waits on Rung: a Value that is
// superseded after it was loaded rings the Bell. Several rings before the waiter looks count as one,
// and a ring may be one too many: it means "look again".
type Bell struct {
	rung chan struct{}
	note func() // of a KeyedBell's; nil otherwise
}

// NewBell returns a Bell that has not been rung.
func NewBell() *Bell { return &Bell{rung: make(chan struct{}, 1)} }

// Ring rings the Bell. It never blocks.
func (b *Bell) Ring() {
	if b.note != nil {
		b.note()
	}
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

// Rung returns the channel that the waiter receives from.
func (b *Bell) Rung() <-chan struct{} { return b.rung }

// A KeyedBell is for a waiter of very many Values, to whom looking at all of them at each ring is too much: it
// keeps which of its Bells were rung. Each has a key.
type KeyedBell[K comparable] struct {
	bell *Bell

	mu   sync.Mutex // a leaf: it is taken while a Value rings
	rung map[K]struct{}
}

// NewKeyedBell returns a KeyedBell that has not been rung.
func NewKeyedBell[K comparable]() *KeyedBell[K] {
	return &KeyedBell[K]{bell: NewBell(), rung: map[K]struct{}{}}
}

// Bell returns a Bell that rings b, with a key.
func (b *KeyedBell[K]) Bell(k K) *Bell {
	return &Bell{rung: b.bell.rung, note: func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.rung[k] = struct{}{}
	}}
}

// Rung returns the channel that the waiter receives from. Then it calls Take.
func (b *KeyedBell[K]) Rung() <-chan struct{} { return b.bell.rung }

// Take returns the keys of the Bells that were rung since it was last called, in no order; there may be none.
func (b *KeyedBell[K]) Take() []K {
	b.mu.Lock()
	defer b.mu.Unlock()
	keys := slices.Collect(maps.Keys(b.rung))
	clear(b.rung)
	return keys
}

// bells are those that a Value rings, in the order in which they were added: the streams of one connection
// are mostly opened together, and what they then send together leaves in fewer writes.
type bells struct {
	mu   sync.Mutex
	each list.List
}

func (s *bells) add(b *Bell) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	added := s.each.PushBack(b)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.each.Remove(added)
	}
}

func (s *bells) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.each.Front(); e != nil; e = e.Next() {
		e.Value.(*Bell).Ring()
	}
}

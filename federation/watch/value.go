package watch

import "sync/atomic"

// A Value is a level: the newest T, and a channel that closes when it is superseded. The zero Value
// holds the zero T. Any number of goroutines may load and store, without a lock; what is stored last
// wins.
type Value[T any] struct {
	cell  atomic.Pointer[cell[T]]
	bells atomic.Pointer[bells] // nil until the first is added
}

type cell[T any] struct {
	value      T
	superseded chan struct{}
}

// Load returns the newest value and a channel that closes once a newer one can be loaded.
func (v *Value[T]) Load() (T, <-chan struct{}) {
	c := v.current()
	return c.value, c.superseded
}

// Store makes t the newest value, and only then wakes the readers of the old one: each of them then
// finds t or newer.
func (v *Value[T]) Store(t T) { v.Swap(t).Wake() }

// Swap is Store for a caller that holds a lock: it leaves the waking, which costs as much as there are
// waiters, until the lock is released. Wake is called once.
func (v *Value[T]) Swap(t T) Superseded {
	old := v.cell.Swap(&cell[T]{value: t, superseded: make(chan struct{})})
	s := Superseded{bells: v.bells.Load()} // one that is added from now on finds t
	if old != nil {
		s.waiting = old.superseded
	}
	return s
}

// Add rings b whenever the value is superseded, until remove is called.
func (v *Value[T]) Add(b *Bell) (remove func()) {
	if v.bells.Load() == nil {
		v.bells.CompareAndSwap(nil, &bells{})
	}
	return v.bells.Load().add(b)
}

// Superseded is a value that is no longer the newest, with its waiters.
type Superseded struct {
	waiting chan struct{}
	bells   *bells
}

// Wake wakes them. The zero Superseded has none.
func (s Superseded) Wake() {
	if s.waiting != nil {
		close(s.waiting)
	}
	if s.bells != nil {
		s.bells.ring()
	}
}

func (v *Value[T]) current() *cell[T] {
	for {
		if c := v.cell.Load(); c != nil {
			return c
		}
		v.cell.CompareAndSwap(nil, &cell[T]{superseded: make(chan struct{})})
	}
}

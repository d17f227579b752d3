package watch

import "sync/atomic"

// A Value is a level: the newest T, and a channel that closes when it is superseded. The zero Value holds the zero T.
// Any number of goroutines may load and store, without a lock; what is stored last wins.
type Value[T any] struct {
	cell atomic.Pointer[cell[T]]
}

type cell[T any] struct {
	value      T
	superseded chan struct{}
}

// Load returns the newest value and a channel that closes once a newer one can be loaded.
func (v *Value[T]) Load() (T, <-chan struct{}) {
	c := v.load()
	return c.value, c.superseded
}

// Store makes t the newest value, and only then wakes those who wait on the old one: whoever wakes finds t or newer.
func (v *Value[T]) Store(t T) { v.Swap(t).Wake() }

// Swap is Store for a caller that holds a lock: it leaves the waking, which costs as much as there are waiters, until
// the lock is released. Wake is called once.
func (v *Value[T]) Swap(t T) Superseded {
	old := v.cell.Swap(&cell[T]{value: t, superseded: make(chan struct{})})
	if old == nil {
		return Superseded{}
	}
	return Superseded{old.superseded}
}

// Superseded is a value that is the newest no more, with those who wait on it.
type Superseded struct{ waiting chan struct{} }

// Wake wakes them. The zero Superseded has none.
func (s Superseded) Wake() {
	if s.waiting != nil {
		close(s.waiting)
	}
}

func (v *Value[T]) load() *cell[T] {
	for {
		if c := v.cell.Load(); c != nil {
			return c
		}
		v.cell.CompareAndSwap(nil, &cell[T]{superseded: make(chan struct{})})
	}
}

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
func (v *Value[T]) Store(t T) {
	if old := v.cell.Swap(&cell[T]{value: t, superseded: make(chan struct{})}); old != nil {
		close(old.superseded)
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

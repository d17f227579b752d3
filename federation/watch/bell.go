package watch

import "sync"

// A Bell wakes one waiter when any of the Values that it was added to is superseded. The waiter adds it
// to each Value before it loads that, loads and works, and then waits on Rung: a Value that is
// superseded after it was loaded rings the Bell. Several rings before the waiter looks count as one,
// and a ring may be one too many: it means "look again".
type Bell struct{ rung chan struct{} }

// NewBell returns a Bell that has not been rung.
func NewBell() *Bell { return &Bell{make(chan struct{}, 1)} }

// Ring rings the Bell. It never blocks.
func (b *Bell) Ring() {
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

// Rung returns the channel that the waiter receives from.
func (b *Bell) Rung() <-chan struct{} { return b.rung }

// bells are those that a Value rings.
type bells struct {
	mu   sync.Mutex
	each map[*Bell]int // how often it was added
}

func (s *bells) add(b *Bell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.each == nil {
		s.each = map[*Bell]int{}
	}
	s.each[b]++
}

func (s *bells) remove(b *Bell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.each[b]--; s.each[b] <= 0 {
		delete(s.each, b)
	}
	if len(s.each) == 0 {
		s.each = nil
	}
}

func (s *bells) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for b := range s.each {
		b.Ring()
	}
}

package serving

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// streams holds every open stream: operators ask why a client has what it has.
type streams struct {
	mu   sync.Mutex
	last uint64
	byID map[uint64]*Stream
	none chan struct{} // closed when the last stream is; nil until all are to end
}

// add gives a stream its ID.
func (s *streams) add(st *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	st.about.ID = s.last
	if s.byID == nil {
		s.byID = map[uint64]*Stream{}
	}
	s.byID[st.about.ID] = st
}

func (s *streams) remove(st *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, st.about.ID)
	s.closeIfNone()
}

// wakeAll wakes every stream, and returns a channel that is closed when none is open any more. Any number of callers
// may wait for that.
func (s *streams) wakeAll() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.none == nil {
		s.none = make(chan struct{})
	}
	none := s.none

	for _, st := range s.byID {
		st.alarm.Ring()
	}
	s.closeIfNone()
	return none
}

// closeIfNone needs s.mu.
func (s *streams) closeIfNone() {
	if s.none != nil && len(s.byID) == 0 {
		close(s.none)
		s.none = nil
	}
}

func (s *streams) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

// Streams returns every open stream, the oldest first.
func (s *Server) Streams() []*Stream {
	s.streams.mu.Lock()
	all := slices.Collect(maps.Values(s.streams.byID))
	s.streams.mu.Unlock()

	slices.SortFunc(all, func(a, b *Stream) int { return cmp.Compare(a.about.ID, b.about.ID) })
	return all
}

// Stream returns an open stream.
func (s *Server) Stream(id uint64) (*Stream, bool) {
	s.streams.mu.Lock()
	defer s.streams.mu.Unlock()
	st, found := s.streams.byID[id]
	return st, found
}

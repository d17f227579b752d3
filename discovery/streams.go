package discovery

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// streams holds the state of every open stream: operators ask why a proxy has what it has.
type streams struct {
	mu   sync.Mutex
	last uint64
	byID map[uint64]*streamState
	none chan struct{} // closed when the last stream is; nil until all are to end
}

// streamState is what is known of an open stream. Its goroutine writes it, any may read it.
type streamState struct {
	id           uint64
	method, path string
	peer         string
	client       Client
	opened       time.Time
	alarm        alarm

	sending atomic.Int64 // when the message under way was begun, in Unix ns; 0 for none

	mu       sync.Mutex // guards all below, which the stream's goroutine reads without
	messages uint64
	kind     Kind // of the last message, like all that follows
	adds     int
	removes  int
	at       time.Time
}

func (s *streams) add(opened time.Time, method, path, peer string, client Client) *streamState {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.last++
	st := &streamState{
		id: s.last, method: method, path: path, peer: peer, client: client,
		opened: opened, alarm: alarm{Bell: watch.NewBell()},
	}
	if s.byID == nil {
		s.byID = map[uint64]*streamState{}
	}
	s.byID[st.id] = st
	return st
}

func (s *streams) remove(st *streamState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, st.id)
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

// oldestFirst returns every open stream.
func (s *streams) oldestFirst() []*streamState {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.byID))
	s.mu.Unlock()

	slices.SortFunc(all, func(a, b *streamState) int { return cmp.Compare(a.id, b.id) })
	return all
}

func (s *streams) get(id uint64) (*streamState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, found := s.byID[id]
	return st, found
}

func (s *streams) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

func (st *streamState) sent(f *Frame) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.sending.Store(0)
	st.messages++
	st.kind, st.adds, st.removes, st.at = f.kind, f.adds, f.removes, time.Now()
}

// A StreamStatus is one open stream, and what was sent to it: not what would be sent now.
type StreamStatus struct {
	ID        uint64    `json:"id"`
	Method    string    `json:"method"` // Get or GetProfile
	Authority string    `json:"authority"`
	Namespace string    `json:"ns,omitempty"`
	Node      string    `json:"node,omitempty"`
	Pod       string    `json:"pod,omitempty"`
	Peer      string    `json:"peer"`
	Opened    time.Time `json:"opened"`
	Messages  uint64    `json:"messages"`
	Last      *LastSent `json:"last,omitempty"` // nil if nothing was sent yet
	Addresses int       `json:"addresses"`      // that the client holds

	Sending *time.Time `json:"sending,omitempty"` // since when the client takes no message; nil if it has taken all
	Behind  *Lag       `json:"behind,omitempty"`  // what it has not been sent yet; nil if it has been sent all

	Holds []netip.AddrPort `json:"holds,omitempty"` // these; only where they were asked for

	queries []Query
}

// Queries returns what the stream has Feeds of.
func (s StreamStatus) Queries() []Query { return s.queries }

// LastSent is the last message of a stream.
type LastSent struct {
	What    string    `json:"what"` // add, remove, no_endpoints, heartbeat or profile
	Adds    int       `json:"adds,omitempty"`
	Removes int       `json:"removes,omitempty"`
	At      time.Time `json:"at"` // when it was handed to the transport
}

// Lag is how a stream's next message would change what the client holds.
type Lag struct {
	Adds    int `json:"adds"` // also of addresses that are to be used otherwise
	Removes int `json:"removes"`
}

// Streams returns every open stream, the oldest first.
func (e *Engine) Streams() []StreamStatus {
	all, of := e.streams.oldestFirst(), e.feeds.byStream()
	statuses := make([]StreamStatus, len(all))
	for i, st := range all {
		statuses[i] = st.status(of[st])
	}
	return statuses
}

// Stream returns one open stream with the addresses that its client holds.
func (e *Engine) Stream(id uint64) (StreamStatus, bool) {
	st, found := e.streams.get(id)
	if !found {
		return StreamStatus{}, false
	}
	return st.statusWithHolds(e.feeds.ofStream(st)), true
}

// status returns the status of a stream with some of its Feeds.
func (st *streamState) status(of []*Feed) StreamStatus {
	status := st.sentStatus()
	var lag Lag
	for _, f := range of {
		status.queries = append(status.queries, f.query)
		status.Addresses += f.held().Len()
		f.behind(&lag)
	}
	if lag != (Lag{}) {
		status.Behind = &lag
	}
	return status
}

func (st *streamState) statusWithHolds(of []*Feed) StreamStatus {
	status := st.status(of)
	for _, f := range of {
		for c := range f.held().All() {
			status.Holds = append(status.Holds, c.At(f.query.Port))
		}
	}
	return status
}

// sentStatus returns the status of a stream without its Feeds.
func (st *streamState) sentStatus() StreamStatus {
	st.mu.Lock()
	defer st.mu.Unlock()

	status := StreamStatus{
		ID: st.id, Method: st.method, Authority: st.path, Peer: st.peer, Opened: st.opened,
		Namespace: st.client.Namespace, Node: st.client.Node, Pod: st.client.Pod, Messages: st.messages,
	}
	if since := st.sending.Load(); since != 0 {
		at := time.Unix(0, since)
		status.Sending = &at
	}
	if st.messages > 0 {
		status.Last = &LastSent{What: string(st.kind), Adds: st.adds, Removes: st.removes, At: st.at}
	}
	return status
}

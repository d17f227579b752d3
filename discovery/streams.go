package discovery

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fingerpost/fingerpost/federation"
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
	query        *Query // nil for a stream without one
	opened       time.Time
	alarm        alarm

	subscription atomic.Pointer[Subscription]      // nil until it is open, and for a stream without a Query
	selection    atomic.Pointer[selection]         // of the subscription; nil until the Service is known
	answer       atomic.Pointer[federation.Answer] // that was sent, all of it; nil for none
	version      atomic.Uint64                     // of the newest Snapshot of which there is nothing to send
	sending      atomic.Int64                      // when the message under way was begun, in Unix ns; 0 for none

	mu       sync.Mutex // guards all below, which the stream's goroutine reads without
	messages uint64
	kind     Kind // of the last message, like all that follows
	adds     int
	removes  int
	at       time.Time
}

func (s *streams) add(
	opened time.Time, method, path, peer string, client Client, query *Query,
) *streamState {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	st := &streamState{
		id: s.last, method: method, path: path, peer: peer, client: client, query: query,
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

// states returns every open stream, in no order.
func (s *streams) states() []*streamState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.byID))
}

// oldestFirst returns every open stream.
func (s *streams) oldestFirst() []*streamState {
	all := s.states()
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

// holds returns the addresses that the client holds.
func (st *streamState) holds() *federation.Set {
	if a := st.answer.Load(); a != nil {
		return a.Set
	}
	return nil
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

	query *Query
}

// Query returns what the stream subscribes to; nil for nothing.
func (s StreamStatus) Query() *Query { return s.query }

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
	all := e.streams.oldestFirst()
	statuses := make([]StreamStatus, len(all))
	for i, st := range all {
		statuses[i] = e.status(st)
	}
	return statuses
}

// Stream returns one open stream with the addresses that its client holds.
func (e *Engine) Stream(id uint64) (StreamStatus, bool) {
	st, found := e.streams.get(id)
	if !found {
		return StreamStatus{}, false
	}
	return e.statusWithHolds(st), true
}

// streamsOf returns the open streams of a client, the oldest first, with the addresses that it holds.
func (e *Engine) streamsOf(namespace, pod string) (all []StreamStatus) {
	for _, st := range e.streams.oldestFirst() {
		if st.client.Pod == pod && st.client.Namespace == namespace {
			all = append(all, e.statusWithHolds(st))
		}
	}
	return all
}

func (e *Engine) statusWithHolds(st *streamState) StreamStatus {
	status := e.status(st)
	for c := range st.holds().All() {
		status.Holds = append(status.Holds, c.At(st.query.Port))
	}
	return status
}

func (e *Engine) status(st *streamState) StreamStatus {
	status := st.status()
	status.Behind = e.behind(st)
	return status
}

// behind returns what a stream was not sent yet; nil for nothing, and for a stream without a Query.
func (e *Engine) behind(st *streamState) *Lag {
	subscription, selection := st.subscription.Load(), st.selection.Load()
	if subscription == nil || selection == nil {
		return nil
	}
	snapshot, _ := subscription.watch.Load()
	if snapshot.Version <= st.version.Load() {
		return nil
	}
	snapshot, made := selection.advance(snapshot)
	place := st.client.place(e.store.Nodes().Get(st.client.Node))
	next := made.Answer(made.Reduce(place), st.answer.Load())
	add, remove := federation.DiffAt(st.holds(), next.Set, st.query.Port)
	if len(add)+len(remove) == 0 || snapshot.Version <= st.version.Load() {
		return nil
	}
	return &Lag{Adds: len(add), Removes: len(remove)}
}

func (st *streamState) status() StreamStatus {
	st.mu.Lock()
	defer st.mu.Unlock()
	status := StreamStatus{
		ID: st.id, Method: st.method, Authority: st.path, Peer: st.peer, Opened: st.opened,
		Namespace: st.client.Namespace, Node: st.client.Node, Pod: st.client.Pod,
		Messages: st.messages, Addresses: st.holds().Len(), query: st.query,
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

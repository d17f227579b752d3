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
)

// streams knows every open stream, for people who ask why a proxy sees what it sees.
type streams struct {
	mu   sync.Mutex
	last uint64
	byID map[uint64]*stream
	none chan struct{} // closed when the last stream is; nil until all are to end
}

// stream is what can be told of an open stream. It is written by the stream's goroutine.
type stream struct {
	id     uint64
	path   string
	who    client
	peer   string
	opened time.Time
	asked  *authority // nil for a stream of GetProfile
	alarm  alarm

	asks    atomic.Pointer[question]         // nil until the Service is known, too
	holds   atomic.Pointer[federation.Set]   // what was sent, all of it
	version atomic.Uint64                    // of the Snapshot that it follows from
	watch   atomic.Pointer[federation.Watch] // of what it asks for; nil until it is open, and for a stream of GetProfile
	sending atomic.Int64                     // since when a message is under way, in ns since 1970; 0 for none

	mu       sync.Mutex // guards all below
	messages uint64
	what     what
	adds     int
	removes  int
	at       time.Time
	about    subject // of a stream of GetProfile
}

func (s *streams) open(path string, who client, peer string, asked *authority) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	st := &stream{id: s.last, path: path, who: who, peer: peer, opened: time.Now(), asked: asked}
	if s.byID == nil {
		s.byID = map[uint64]*stream{}
	}
	s.byID[st.id] = st
	return st
}

func (s *streams) close(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, st.id)
	s.ended()
}

// end makes every stream look again at everything, and returns a channel that is closed when none is open any more.
func (s *streams) end() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	none := make(chan struct{})
	s.none = none
	for _, st := range s.byID {
		st.alarm.ring()
	}
	s.ended()
	return none
}

// ended needs s.mu.
func (s *streams) ended() {
	if s.none != nil && len(s.byID) == 0 {
		close(s.none)
		s.none = nil
	}
}

// all returns every open stream, in no order.
func (s *streams) all() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.byID))
}

func (s *streams) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

func (st *stream) sent(f *frame) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.sending.Store(0)
	st.messages++
	st.what, st.adds, st.removes, st.at = f.what, f.adds, f.removes, time.Now()
}

func (st *stream) answered(about subject) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.about = about
}

func (st *stream) subject() subject {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.about
}

// StreamStatus is one open stream, and what was sent to it: not what would be sent now.
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

	Sending *time.Time `json:"sending,omitempty"` // since when the client has not taken a message; nil if it has taken all
	Behind  *Lag       `json:"behind,omitempty"`  // what it has not been sent yet; nil if it has been sent all

	Holds []netip.AddrPort `json:"holds,omitempty"` // these; only where they were asked for

	service federation.Service
}

// Service returns the Service that a stream of Get is about; for a stream of GetProfile none.
func (s StreamStatus) Service() federation.Service { return s.service }

// LastSent is the last message of a stream.
type LastSent struct {
	What    string    `json:"what"` // add, remove, no_endpoints, heartbeat or profile
	Adds    int       `json:"adds,omitempty"`
	Removes int       `json:"removes,omitempty"`
	At      time.Time `json:"at"` // when it was handed to the transport
}

// Lag is how a stream's next message would change what the client holds.
type Lag struct {
	Adds    int `json:"adds"` // also of addresses of which something else is said
	Removes int `json:"removes"`
}

// Streams returns every open stream, the oldest first.
func (s *Server) Streams() []StreamStatus {
	all := s.streams.all()
	statuses := make([]StreamStatus, 0, len(all))
	for _, st := range all {
		statuses = append(statuses, s.status(st))
	}
	slices.SortFunc(statuses, func(a, b StreamStatus) int { return cmp.Compare(a.ID, b.ID) })
	return statuses
}

// Stream returns one open stream with the addresses that its client holds.
func (s *Server) Stream(id uint64) (StreamStatus, bool) {
	s.streams.mu.Lock()
	st, found := s.streams.byID[id]
	s.streams.mu.Unlock()
	if !found {
		return StreamStatus{}, false
	}
	status := s.status(st)
	for e := range st.holds.Load().All() {
		status.Holds = append(status.Holds, e.At(st.asked.port))
	}
	return status, true
}

func (s *Server) status(st *stream) StreamStatus {
	status := st.status()
	if st.asked != nil {
		status.service, status.Behind = st.asked.service, s.behind(st)
	}
	return status
}

// behind returns what a stream of Get was not sent yet.
func (s *Server) behind(st *stream) *Lag {
	watch, asks := st.watch.Load(), st.asks.Load()
	if watch == nil || asks == nil {
		return nil
	}
	snapshot, _ := watch.Load()
	if snapshot.Version <= st.version.Load() {
		return nil
	}
	snapshot, selection := asks.at(snapshot)
	zone, _ := s.store.Nodes().Get(st.who.Node)
	holds := st.holds.Load()
	add, remove := federation.DiffAt(holds, selection.Near(selection.Locality(st.who.Node, zone), holds), st.asked.port)
	if len(add)+len(remove) == 0 || snapshot.Version <= st.version.Load() {
		return nil
	}
	return &Lag{Adds: len(add), Removes: len(remove)}
}

func (st *stream) status() StreamStatus {
	st.mu.Lock()
	defer st.mu.Unlock()
	status := StreamStatus{
		ID: st.id, Method: "Get", Authority: st.path, Namespace: st.who.Namespace, Node: st.who.Node, Pod: st.who.Pod, Peer: st.peer, Opened: st.opened,
		Messages: st.messages, Addresses: st.holds.Load().Len(),
	}
	if st.asked == nil {
		status.Method = "GetProfile"
	}
	if since := st.sending.Load(); since != 0 {
		at := time.Unix(0, since)
		status.Sending = &at
	}
	if st.messages > 0 {
		status.Last = &LastSent{What: string(st.what), Adds: st.adds, Removes: st.removes, At: st.at}
	}
	return status
}

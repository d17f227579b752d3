package discovery

import (
	"net/netip"
	"time"

	"github.com/fingerpost/fingerpost/serving"
)

// A StreamStatus is one open stream, and what was sent to it: not what would be sent now.
type StreamStatus struct {
	ID        uint64    `json:"id"`
	Method    string    `json:"method"`
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
	What    string    `json:"what"` // the type
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
	all, of := e.server.Streams(), e.feeds.byStream()
	statuses := make([]StreamStatus, len(all))
	for i, s := range all {
		statuses[i] = statusOf(s, of[s])
	}
	return statuses
}

// Stream returns one open stream with the addresses that its client holds.
func (e *Engine) Stream(id uint64) (StreamStatus, bool) {
	s, found := e.server.Stream(id)
	if !found {
		return StreamStatus{}, false
	}
	return statusWithHolds(s, e.feeds.ofStream(s)), true
}

// statusOf returns the status of a stream with some of its Feeds.
func statusOf(s *serving.Stream, of []*Feed) StreamStatus {
	status := transportStatus(s)
	var lag Lag
	for _, f := range of {
		status.queries = append(status.queries, f.query)
		status.Addresses += f.has().Len()
		f.behind(&lag)
	}
	if lag != (Lag{}) {
		status.Behind = &lag
	}
	return status
}

func statusWithHolds(s *serving.Stream, of []*Feed) StreamStatus {
	status := statusOf(s, of)
	for _, f := range of {
		for c := range f.has().All() {
			status.Holds = append(status.Holds, c.At(f.query.Port))
		}
	}
	return status
}

// transportStatus returns the status of a stream without its Feeds.
func transportStatus(s *serving.Stream) StreamStatus {
	about, sent := s.About(), s.Sent()
	status := StreamStatus{
		ID: about.ID, Method: about.Method, Authority: about.Path, Peer: about.Peer, Opened: about.Opened,
		Namespace: about.Client.Namespace, Node: about.Client.Node, Pod: about.Client.Pod, Messages: sent.Messages,
	}
	if !sent.Sending.IsZero() {
		status.Sending = &sent.Sending
	}
	if sent.Messages > 0 {
		status.Last = &LastSent{What: string(sent.Type), Adds: sent.Adds, Removes: sent.Removes, At: sent.At}
	}
	return status
}

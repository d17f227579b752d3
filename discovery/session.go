package discovery

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/peer"
)

const (
	// A proxy gives up on a stream that was silent for 3 s at first, and for 5 min later.
	firstHeartbeat = 2 * time.Second
	idleHeartbeat  = 4 * time.Minute // more or less by a tenth
)

// sink is where messages go.
type sink interface {
	SendMsg(message any) error
	Context() context.Context
}

// session is what the streams of Get and GetProfile have in common. It belongs to the stream's goroutine.
type session struct {
	server     *Server
	sink       sink
	connection *connection // nil if there is none that is known
	who        client
	state      *stream

	beat time.Time // when a heartbeat is due; zero for never
	end  time.Time // when the stream ends by itself; zero for never

	drains bool // end is within the server's drain
}

// newSession opens a session. asked is nil for a stream of GetProfile.
func newSession(s *Server, path string, who client, to sink, asked *authority) session {
	n := session{server: s, sink: to, connection: connectionOf(to.Context()), who: who, state: s.streams.open(path, who, peerOf(to.Context()), asked)}
	if age := s.config.MaxStreamAge; age > 0 {
		n.end = n.state.opened.Add(jitter(age))
		if c := n.connection; c != nil {
			if last := c.lastEnd(age); last.After(n.state.opened) && last.Before(n.end) {
				n.end = last
			}
		}
	}
	return n
}

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// over reports whether the client should go elsewhere, and else lets the stream look again when it should.
func (s *session) over(now time.Time) bool {
	if d := s.server.draining.Load(); d != nil && !s.drains {
		s.drains = true
		if end := d.end(); s.end.IsZero() || end.Before(s.end) {
			s.end = end
		}
	}
	if !s.end.IsZero() && !now.Before(s.end) {
		return true
	}
	s.state.alarm.by(now, s.end)
	return false
}

// room reports whether a first answer may be made now: what was sent before must have left, as much as there are bounds on it. If not,
// the stream looks again when it should.
func (s *session) room(now time.Time) bool {
	if s.connection == nil || s.connection.room(&s.state.alarm) {
		return true
	}
	s.state.alarm.by(now, now.Add(pressureStall))
	return false
}

// send sends frames, one after the other.
func (s *session) send(frames ...*frame) error { return s.deliver(frames, s.launch(frames)) }

// launch counts frames as in flight, and returns what to hand to gRPC.
func (s *session) launch(frames []*frame) []any {
	if s.connection != nil {
		return s.connection.launch(frames)
	}
	messages := make([]any, len(frames))
	for i, f := range frames {
		messages[i] = f
	}
	return messages
}

// deliver sends frames that were launched.
func (s *session) deliver(frames []*frame, messages []any) error {
	for i, f := range frames {
		if err := s.sendOne(f, messages[i]); err != nil {
			if s.connection != nil {
				s.connection.abandon(messages[i+1:])
			}
			return err
		}
	}
	return nil
}

func (s *session) sendOne(f *frame, message any) error {
	now := time.Now()
	s.state.sending.Store(now.UnixNano())
	if s.connection != nil {
		s.connection.sending(now)
		defer s.connection.sent(now)
	}
	if err := s.sink.SendMsg(message); err != nil {
		return err
	}
	s.state.sent(f)
	s.server.metrics.sent(f)
	return nil
}

func (s *session) close() {
	if s.connection != nil {
		s.connection.forget(&s.state.alarm)
	}
	s.state.alarm.stop()
	s.server.streams.close(s.state)
}

// jitter returns d, more or less by a tenth.
func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

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
	server *Server
	sink   sink
	who    client
	state  *stream

	beat time.Time // when a heartbeat is due; zero for never
	end  time.Time // when the stream ends by itself; zero for never
}

// newSession opens a session. asked is nil for a stream of GetProfile.
func newSession(s *Server, path string, who client, to sink, asked *authority) session {
	n := session{server: s, sink: to, who: who, state: s.streams.open(path, who, peerOf(to.Context()), asked)}
	if age := s.config.MaxStreamAge; age > 0 {
		n.end = n.state.opened.Add(jitter(age))
		if c := connectionOf(to.Context()); c != nil {
			if last := c.end(age); last.After(n.state.opened) && last.Before(n.end) {
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
	if s.server.draining.Load() || !s.end.IsZero() && !now.Before(s.end) {
		return true
	}
	s.state.alarm.by(now, s.end)
	return false
}

func (s *session) send(f *frame) error {
	s.state.sending.Store(time.Now().UnixNano())
	if err := s.sink.SendMsg(f); err != nil {
		return err
	}
	s.state.sent(f)
	s.server.metrics.sent(f)
	return nil
}

func (s *session) close() {
	s.state.alarm.stop()
	s.server.streams.close(s.state)
}

// jitter returns d, more or less by a tenth.
func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

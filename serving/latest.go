package serving

import (
	"bytes"
	"time"
)

// A Latest is how a protocol sends a level: its newest message, whole, when that differs from the one that the client
// has, and once more as a heartbeat. States in between may be skipped.
//
// A level is everything that its message depends on, in a comparable value. So a stream whose level is the same as
// before does nothing, and streams with equal levels share the bytes.
type Latest[T comparable] struct {
	// Load returns the newest level, and whether there is one. If not, the client keeps what it has. sent is the
	// message that it has; nil for none. An error ends the stream. The stream's Bell is on everything that Load reads.
	Load func(now time.Time, sent *Frame) (level T, known bool, err error)
	// Encode returns the message of a level, and how many bytes the level refers to, if the Cache is to keep the
	// message for other streams; 0 if not. A level without a message has a refusal (NewRefusal).
	Encode func(level T) (f *Frame, refers int)
	// Sent is called with each level whose message was sent; nil for nothing.
	Sent func(level T)
	Idle time.Duration // after which the message is sent again, give or take a tenth
}

// newest is a stream of a Latest.
type newest[T comparable] struct {
	latest Latest[T]
	stream *Stream
	level  T      // that was encoded last
	sent   *Frame // nil for nothing
}

// Serve is the whole life of a stream. It returns nil when the stream should end with OK.
func (l Latest[T]) Serve(s *Stream) error {
	s.SetHeartbeat(Heartbeat{Idle: l.Idle})
	n := newest[T]{latest: l, stream: s}
	return s.Run(n.step)
}

// step sends the message of the newest level, if the client does not have it.
func (n *newest[T]) step(now time.Time) error {
	if n.sent == nil && !n.stream.Room(now) {
		return nil
	}

	level, known, err := n.latest.Load(now, n.sent)
	if err != nil || !known {
		return err
	}

	if n.sent != nil {
		n.stream.ResumeHeartbeat(now, n.sent)
	}
	if n.sent != nil && level == n.level {
		return nil
	}

	n.level = level
	f := n.stream.server.cache.Get(level, func() (*Frame, int) { return n.latest.Encode(level) })
	if f.refusal != nil {
		return n.refuse(f.refusal)
	}
	if n.sent != nil && bytes.Equal(f.Bytes(), n.sent.Bytes()) {
		return nil
	}
	return n.send(f)
}

// refuse ends a stream whose client has nothing.
func (n *newest[T]) refuse(err error) error {
	if n.sent == nil {
		return err
	}
	return nil
}

// send sends the message of the level.
func (n *newest[T]) send(f *Frame) error {
	if err := n.stream.Send(f); err != nil {
		return err
	}
	n.sent, n.stream.heartbeat.Frame = f, f
	if n.latest.Sent != nil {
		n.latest.Sent(n.level)
	}
	return nil
}

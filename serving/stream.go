package serving

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// A Sink is where the messages of a stream go: the server's end of a gRPC stream. On a server with the Options of the
// Server a message is what its codec encodes; without them it is a *Frame.
type Sink interface {
	SendMsg(message any) error
	Context() context.Context
}

// A Client is the Pod that opened a stream, as far as it is known.
type Client struct {
	Namespace string `json:"ns,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Node      string `json:"node,omitempty"`
}

// About is who opened a stream, when, and for what.
type About struct {
	ID           uint64 // ascending
	Method, Path string // what the client asked for, for people
	Client       Client
	Peer         string
	Opened       time.Time
}

// A Stream is one open stream of any protocol, as transport: it is listed in Streams, ends when it is old or the server
// drains, and counts what it has in flight. What is sent on it is the protocol's business. It belongs to the goroutine
// that serves it; what is documented as for any, any may call.
type Stream struct {
	server     *Server
	about      About
	sink       Sink
	connection *connection // nil if it is not known
	alarm      alarm

	messages []encoded // that were launched: Frames, and flights of those that count; the array is used again

	heartbeat Heartbeat
	beat      time.Time // when the heartbeat is due
	answered  bool      // something else was sent

	end    time.Time // when the stream ends by itself; zero for never
	drains bool      // end is within the server's drain

	sending atomic.Int64 // when the message under way was begun, in Unix ns; 0 for none
	mu      sync.Mutex   // guards all below, which the stream's goroutine reads without
	sent    Sent
}

// Open opens a stream, which ends with the context of its sink. The caller closes it.
func (s *Server) Open(sink Sink, method, path string, client Client) *Stream {
	ctx := sink.Context()
	st := &Stream{
		server: s, sink: sink, connection: connectionOf(ctx), alarm: alarm{Bell: watch.NewBell()},
		about: About{Method: method, Path: path, Client: client, Peer: peerOf(ctx), Opened: openedAt(ctx)},
	}
	s.streams.add(st)

	age := s.config.MaxStreamAge
	if age <= 0 {
		return st
	}

	st.end = st.about.Opened.Add(jitter(age))
	if c := st.connection; c != nil {
		if last := c.lastEnd(age); last.After(st.about.Opened) && last.Before(st.end) {
			st.end = last
		}
	}
	return st
}

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// Close closes the stream.
func (s *Stream) Close() {
	if s.connection != nil {
		s.connection.forget(&s.alarm)
	}
	s.alarm.stopTimer()
	s.server.streams.remove(s)
}

// About returns who opened the stream, and for what. It is for any.
func (s *Stream) About() About { return s.about }

// Bell is what has Run call its step. It is added to all that the stream's messages depend on.
func (s *Stream) Bell() *watch.Bell { return s.alarm.Bell }

// wait returns when the Bell has rung, or something is due. It returns an error if the stream has ended.
func (s *Stream) wait() error {
	ctx := s.sink.Context()
	select {
	case <-s.alarm.Rung():
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// WakeBy makes Run call its step at t at the latest; the zero time changes nothing.
func (s *Stream) WakeBy(now, t time.Time) { s.alarm.by(now, t) }

// Run is the whole life of a stream: step sends what the client does not have yet, and Run waits for the Bell and calls
// it again. It returns nil when the stream should end with OK.
func (s *Stream) Run(step func(now time.Time) error) error {
	for {
		now := time.Now()
		if s.over(now) {
			return nil
		}

		if err := step(now); err != nil {
			return err
		}
		if err := s.beatIfDue(now); err != nil {
			return err
		}
		if err := s.wait(); err != nil {
			return err
		}
	}
}

// over reports whether the stream should end with OK, because it is old or the server drains: its client opens another
// one at another replica. If not, the stream is woken when over should be called again.
func (s *Stream) over(now time.Time) bool {
	if d := s.server.draining.Load(); d != nil && !s.drains {
		s.drains = true
		if end := d.endTime(); s.end.IsZero() || end.Before(s.end) {
			s.end = end
		}
	}

	if !s.end.IsZero() && !now.Before(s.end) {
		return true
	}
	s.WakeBy(now, s.end)
	return false
}

// Room reports whether there is room for a first answer within the bounds on bytes in flight. If not, the stream is
// woken when Room should be called again.
func (s *Stream) Room(now time.Time) bool {
	if s.connection == nil || s.connection.room(&s.alarm) {
		return true
	}
	s.WakeBy(now, now.Add(roomPause))
	return false
}

// Send sends frames, one after the other. It blocks while the client's windows are full.
func (s *Stream) Send(frames ...*Frame) error {
	s.Launch(frames)
	return s.Deliver(frames)
}

// Launch is the first half of Send, which counts frames as in flight; Deliver, which follows, is the other one. A first
// answer is launched before its Turn ends: the next one finds it counted.
func (s *Stream) Launch(frames []*Frame) {
	s.messages = s.messages[:0]
	for _, f := range frames {
		s.messages = append(s.messages, f)
	}
	if s.connection != nil {
		s.connection.launch(s.messages)
	}
}

// Deliver sends frames that were launched.
func (s *Stream) Deliver(frames []*Frame) error {
	if len(frames) == 0 {
		return nil
	}
	if err := s.sendAll(frames); err != nil {
		return err
	}
	s.answered = true
	s.delayBeat()
	return nil
}

// sendAll sends frames that were launched.
func (s *Stream) sendAll(frames []*Frame) error {
	defer clear(s.messages) // an idle stream holds on to none
	for i, f := range frames {
		if err := s.sendOne(f, s.messages[i]); err != nil {
			if s.connection != nil {
				s.connection.abandon(s.messages[i+1:])
			}
			return err
		}
	}
	return nil
}

// sendOne sends what a frame has become.
func (s *Stream) sendOne(frame *Frame, message encoded) error {
	now := time.Now()
	s.sending.Store(now.UnixNano())
	if s.connection != nil {
		s.connection.sending(now)
		defer s.connection.sent(now)
	}
	if err := s.sink.SendMsg(message); err != nil {
		return err
	}
	s.noteSent(frame)
	s.server.metrics.countSent(frame)
	return nil
}

// A Heartbeat is what a client is sent while there is nothing else to send, so that it does not give the stream up.
type Heartbeat struct {
	Frame *Frame        // nil for none
	First time.Duration // how long nothing was sent, before the first message that is no heartbeat
	Idle  time.Duration // and after it, give or take a tenth
}

// leastBeat is how long a stream is sent no heartbeat at first, although it may have had to wait to be admitted: what
// is at hand is sent before.
const leastBeat = 40 * time.Millisecond

// SetHeartbeat has a heartbeat sent by Run when it is due. Nothing was sent on the stream yet.
func (s *Stream) SetHeartbeat(h Heartbeat) {
	s.heartbeat = h
	s.beat = s.about.Opened.Add(h.First)
	if soon := time.Now().Add(leastBeat); s.beat.Before(soon) {
		s.beat = soon
	}
}

// PauseHeartbeat has no heartbeat sent until the next message is, or ResumeHeartbeat is called.
func (s *Stream) PauseHeartbeat() { s.heartbeat.Frame = nil }

// ResumeHeartbeat has a message that was sent be the heartbeat again, if none is.
func (s *Stream) ResumeHeartbeat(now time.Time, f *Frame) {
	if s.heartbeat.Frame == nil {
		s.heartbeat.Frame, s.beat = f, now.Add(jitter(s.heartbeat.Idle))
	}
}

// beatIfDue sends a heartbeat if one is due.
func (s *Stream) beatIfDue(now time.Time) error {
	if s.heartbeat.Frame == nil {
		return nil
	}
	if !now.Before(s.beat) {
		if err := s.sendHeartbeat(now); err != nil {
			return err
		}
	}
	s.WakeBy(now, s.beat)
	return nil
}

// beatEarly sends, before a stream waits for its turn, the heartbeat that is due in the first half of that wait. While
// it waits it sends nothing, and the client may have had no message for some time already.
func (s *Stream) beatEarly() error {
	now, half := time.Now(), s.server.config.Admission.Patience/2
	if s.heartbeat.Frame == nil || now.Add(half).Before(s.beat) {
		return nil
	}
	return s.sendHeartbeat(now)
}

// sendHeartbeat sends a heartbeat, and sets when the next one is due.
func (s *Stream) sendHeartbeat(now time.Time) error {
	frames := []*Frame{s.heartbeat.Frame}
	s.Launch(frames)
	if err := s.sendAll(frames); err != nil {
		return err
	}

	s.beat = now.Add(s.heartbeat.First)
	if s.answered {
		s.delayBeat()
	}
	return nil
}

// delayBeat has the next heartbeat sent after the pause of a stream that has been answered. The pause begins when the
// last message was sent, which may be long after the stream has looked at the time.
func (s *Stream) delayBeat() { s.beat = s.sent.At.Add(jitter(s.heartbeat.Idle)) }

// A Turn is when the first answers of one message are made. It ends with Release, whatever happens meanwhile.
type Turn struct {
	stream   *Stream
	now      time.Time
	large    bool   // it is one for large answers
	released func() // gives it back; nil if it was not needed yet
}

// Turn returns a Turn that waits for nothing until something is to be made in it.
func (s *Stream) Turn(now time.Time) Turn { return Turn{stream: s, now: now} }

// Take waits until a first answer may be made, of a size in addresses or what takes as long, and charges the connection
// for it. It reports false if there is no room within the bounds on bytes in flight: the stream is woken when it should
// try again.
func (t *Turn) Take(size int) (taken bool, err error) {
	stream := t.stream
	if !stream.Room(t.now) {
		return false, nil
	}

	if large := size >= largeAnswer; t.released == nil || large && !t.large {
		done, err := stream.server.admission.turn(stream.sink.Context(), stream.connection, large, stream.beatEarly)
		if err != nil {
			return false, err
		}
		t.add(done, large)
	}

	if !stream.Room(t.now) { // any more
		return false, nil
	}
	stream.connection.pay(size)
	return true, nil
}

// add adds a turn that was waited for. One for a small answer is kept beside one for a large one.
func (t *Turn) add(done func(), large bool) {
	before := t.released
	t.large, t.released = large, done
	if before != nil {
		t.released = func() { done(); before() }
	}
}

// Release ends the turn.
func (t *Turn) Release() {
	if t.released != nil {
		t.released()
	}
}

// Sent is what was sent on a stream so far.
type Sent struct {
	Messages uint64

	Type          MessageType // of the last message, like all that follows
	Adds, Removes int
	At            time.Time // when it was handed to the transport

	Sending time.Time // when the message under way was begun; zero for none
}

// Sent returns what was sent so far. It is for any.
func (s *Stream) Sent() Sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	if since := s.sending.Load(); since != 0 {
		sent.Sending = time.Unix(0, since)
	}
	return sent
}

func (s *Stream) noteSent(f *Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending.Store(0)
	s.sent = Sent{Messages: s.sent.Messages + 1, Type: f.messageType, Adds: f.adds, Removes: f.removes, At: time.Now()}
}

// jitter returns a duration that differs from d by up to a tenth, so that what many streams do does not
// happen at once.
func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

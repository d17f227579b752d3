package discovery

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// A Sink is where the messages of a stream go: the server's end of a gRPC stream.
type Sink interface {
	SendMsg(message any) error
	Context() context.Context
}

// A Client is the Pod that opened a stream, as far as it is known. Its Node bears on what it is sent, and if that is
// not known, which Pod it is.
type Client struct {
	Namespace string `json:"ns,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Node      string `json:"node,omitempty"`
}

// bucket returns the bucket that the client is in where traffic is divided.
func (c Client) bucket() uint8 {
	switch {
	case c.Node != "":
		return policy.BucketOf(c.Node)
	case c.Pod != "":
		return policy.BucketOf(c.Namespace + "/" + c.Pod)
	default:
		return 0
	}
}

// A Stream is one open stream of any protocol: it is listed in Streams, ends when it is old or the
// server drains, and counts what it has in flight. It belongs to the goroutine that serves it.
type Stream struct {
	engine     *Engine
	sink       Sink
	connection *connection // nil if it is not known
	state      *streamState

	messages []any // of the update under way; its array is used again

	beat   time.Time // when a heartbeat is due; zero for never
	end    time.Time // when the stream ends by itself; zero for never
	drains bool      // end is within the server's drain
}

// Open opens a stream. method and path are what the client asked for, for people; query is the Query
// that it subscribes to, nil for none. The caller closes it.
func (e *Engine) Open(sink Sink, method, path string, client Client, query *Query) *Stream {
	s := &Stream{
		engine: e, sink: sink, connection: connectionOf(sink.Context()),
		state: e.streams.open(method, path, peerOf(sink.Context()), client, query),
	}
	age := e.config.MaxStreamAge
	if age <= 0 {
		return s
	}
	s.end = s.state.opened.Add(Jitter(age))
	if c := s.connection; c != nil {
		if last := c.lastEnd(age); last.After(s.state.opened) && last.Before(s.end) {
			s.end = last
		}
	}
	return s
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
		s.connection.forget(&s.state.alarm)
	}
	s.state.alarm.stop()
	s.engine.streams.close(s.state)
}

// Bell is what wakes the stream from Wait. It is added to all that the stream's messages depend on.
func (s *Stream) Bell() *watch.Bell { return s.state.alarm.Bell }

// Wait returns when the Bell has rung, or something is due. It returns an error if ctx ends.
func (s *Stream) Wait(ctx context.Context) error {
	select {
	case <-s.state.alarm.Rung():
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// WakeBy makes Wait return at t at the latest; the zero time changes nothing.
func (s *Stream) WakeBy(now, t time.Time) { s.state.alarm.by(now, t) }

// Over reports whether the stream should end with OK, because it is old or the server drains: its client opens another
// one at another replica. If not, the stream is woken when Over should be called again.
func (s *Stream) Over(now time.Time) bool {
	if d := s.engine.draining.Load(); d != nil && !s.drains {
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

// newServiceGrace is how long a client waits for a Service that does not exist: as a rule, a watch delivers one within
// 2 ms of its creation, and clients ask for it that early.
const newServiceGrace = 20 * time.Millisecond

// AwaitsService reports whether the client has asked so recently for a Service that does not exist that it may be about
// to. If so, the stream is woken when AwaitsService should be called again.
func (s *Stream) AwaitsService(now time.Time) bool {
	until := s.state.opened.Add(newServiceGrace)
	if !now.Before(until) {
		return false
	}
	s.WakeBy(now, until)
	return true
}

// Room reports whether there is room for a first answer within the bounds on bytes in flight. If not, the stream is
// woken when Room should be called again.
func (s *Stream) Room(now time.Time) bool {
	if s.connection == nil || s.connection.room(&s.state.alarm) {
		return true
	}
	s.WakeBy(now, now.Add(roomPause))
	return false
}

// Send sends frames, one after the other. It blocks while the client's windows are full.
func (s *Stream) Send(frames ...*Frame) error { return s.deliver(frames, s.launch(frames)) }

// launch counts frames as in flight, and returns what to hand to gRPC.
func (s *Stream) launch(frames []*Frame) []any {
	s.messages = s.messages[:0]
	for _, f := range frames {
		s.messages = append(s.messages, f)
	}
	if s.connection != nil {
		s.connection.launch(s.messages)
	}
	return s.messages
}

// deliver sends frames that were launched.
func (s *Stream) deliver(frames []*Frame, messages []any) error {
	defer clear(messages) // an idle stream holds on to none
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

func (s *Stream) sendOne(f *Frame, message any) error {
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
	s.engine.metrics.countSent(f)
	return nil
}

// A Protocol is how Serve sends the Answers of a Query.
type Protocol struct {
	Encoder Encoder
	// Reject returns the error that ends the stream, if an Answer is one for the client; first is
	// whether it was sent nothing yet. An Answer that is Rejected and no error is not sent: the client
	// keeps what it holds.
	Reject func(a *federation.Answer, first bool) error
	// Heartbeat is sent when nothing else was for FirstBeat, before the first answer, and for IdleBeat
	// after it; nil for none.
	Heartbeat           *Frame
	FirstBeat, IdleBeat time.Duration
}

// Serve is the whole life of a stream of one Query: load the newest Answer, send the update from the
// one that was sent last, wait for the Bell. It returns nil when the stream should end with OK.
func (s *Stream) Serve(ctx context.Context, q Query, client Client, p Protocol) error {
	subscription := s.engine.Subscribe(q, client, s.Bell())
	defer subscription.Close()
	s.state.subscription.Store(subscription)
	s.beat = s.state.opened.Add(p.FirstBeat)
	var last *federation.Answer
	for {
		now := time.Now()
		if s.Over(now) {
			return nil
		}
		next, err := s.update(ctx, subscription, last, now, &p)
		if err != nil {
			return err
		}
		if last = next; p.Heartbeat != nil {
			if !now.Before(s.beat) {
				if err := s.Send(p.Heartbeat); err != nil {
					return err
				}
				s.setBeat(now, last != nil, &p)
			}
			s.WakeBy(now, s.beat)
		}
		if err := s.Wait(ctx); err != nil {
			return err
		}
	}
}

// setBeat has the next heartbeat sent after a pause.
func (s *Stream) setBeat(now time.Time, answered bool, p *Protocol) {
	if s.beat = now.Add(p.FirstBeat); answered {
		s.beat = now.Add(Jitter(p.IdleBeat))
	}
}

// update sends what the client does not have yet, and returns the Answer that it has then.
func (s *Stream) update(
	ctx context.Context, subscription *Subscription, last *federation.Answer, now time.Time, p *Protocol,
) (*federation.Answer, error) {
	answer, frames, messages, err := s.prepare(ctx, subscription, last, now, p)
	if err != nil || answer == nil {
		return last, err
	}
	if last == nil {
		s.engine.metrics.firstAnswer.Observe(time.Since(s.state.opened).Seconds())
	}
	if len(frames) > 0 {
		if err := s.deliver(frames, messages); err != nil {
			return last, err
		}
		s.setBeat(now, true, p)
	}
	if last != nil && answer.State == federation.Unknown { // no news of the Service: to the client it is as it was
		held := *answer
		held.State = last.State
		answer = &held
	}
	s.state.answer.Store(answer)
	s.state.version.Store(answer.Version)
	return answer, nil
}

// prepare returns the newest Answer with the frames that bring the client to it, and as messages that are
// counted as in flight. The Answer is nil if there is none to send.
func (s *Stream) prepare(
	ctx context.Context, subscription *Subscription, last *federation.Answer, now time.Time, p *Protocol,
) (answer *federation.Answer, frames []*Frame, messages []any, err error) {
	answer, release, err := s.load(ctx, subscription, p.Encoder, last == nil, now)
	defer release() // whatever an Encoder does; the next first answer finds in flight what this one sends
	if err != nil || answer == nil {
		return nil, nil, nil, err
	}
	err = p.Reject(answer, last == nil)
	if err != nil || answer.State == federation.Rejected {
		s.state.version.Store(answer.Version)
		return nil, nil, nil, err
	}
	frames = subscription.Update(p.Encoder, last, answer)
	return answer, frames, s.launch(frames), nil
}

// load is Subscription.Load for a stream: a first answer waits for room, and for its turn, which
// release ends. It is nil while there is none.
func (s *Stream) load(
	ctx context.Context, subscription *Subscription, e Encoder, first bool, now time.Time,
) (
	answer *federation.Answer, release func(), err error,
) {
	release = func() {}
	snapshot, _ := subscription.watch.Load()
	if due := subscription.waitUntil(snapshot); due.After(now) {
		s.WakeBy(now, due)
		return nil, release, nil
	}
	served := snapshot.View != nil && snapshot.Rejection() == federation.NotRejected
	if first && served { // else it is an error, which needs neither
		size := subscription.size(snapshot, e)
		s.state.selection.Store(subscription.selection)
		if !s.Room(now) {
			return nil, release, nil
		}
		if release, err = s.engine.admission.turn(ctx, s.connection, size >= largeAnswer); err != nil {
			return nil, func() {}, err
		}
		if !s.Room(now) { // any more
			return nil, release, nil
		}
		s.connection.pay(size)
	}
	answer, due := subscription.Load(now)
	s.state.selection.Store(subscription.selection)
	s.WakeBy(now, due)
	return answer, release, nil
}

// Jitter returns a duration that differs from d by up to a tenth, so that what many streams do does not
// happen at once.
func Jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

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

// A Sink is where the messages of a stream go: the server's end of a gRPC stream. On a server with the Options of the
// Engine a message is what its codec encodes; without them it is a *Frame.
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

// place returns what answers depend on, for a client on a node. Of one that is not known the name alone decides.
func (c Client) place(node federation.Node, known bool) federation.Place {
	bucket := c.bucket()
	if !known {
		node.Sixteenth = bucket
	}
	return federation.Place{Node: c.Node, Zone: node.Zone, Bucket: bucket, Sixteenth: node.Sixteenth}
}

// A Stream is one open stream of any protocol: it is listed in Streams, ends when it is old or the
// server drains, and counts what it has in flight. It belongs to the goroutine that serves it.
type Stream struct {
	engine     *Engine
	sink       Sink
	connection *connection // nil if it is not known
	state      *streamState

	messages []any // that were launched: Frames, and flights of those that count; the array is used again

	end    time.Time // when the stream ends by itself; zero for never
	drains bool      // end is within the server's drain
}

// Open opens a stream, which ends with the context of its sink. method and path are what the client asked for, for
// people; query is the Query that Serve answers, nil for a stream without one. The caller closes it.
func (e *Engine) Open(sink Sink, method, path string, client Client, query *Query) *Stream {
	s := &Stream{
		engine: e, sink: sink, connection: connectionOf(sink.Context()),
		state: e.streams.add(openedAt(sink.Context()), method, path, peerOf(sink.Context()), client, query),
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
	s.state.alarm.stopTimer()
	s.engine.streams.remove(s.state)
}

// Bell is what wakes the stream from Wait. It is added to all that the stream's messages depend on.
func (s *Stream) Bell() *watch.Bell { return s.state.alarm.Bell }

// Wait returns when the Bell has rung, or something is due. It returns an error if the stream has ended.
func (s *Stream) Wait() error {
	ctx := s.sink.Context()
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

// AwaitsService reports whether a Service that does not exist may be about to, because the client has asked for it
// within newServiceGrace. If so, the stream is woken when AwaitsService should be called again.
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
func (s *Stream) Send(frames ...*Frame) error {
	s.launch(frames)
	return s.deliver(frames)
}

// launch counts frames as in flight; deliver, which follows, sends them.
func (s *Stream) launch(frames []*Frame) {
	s.messages = s.messages[:0]
	for _, f := range frames {
		s.messages = append(s.messages, f)
	}
	if s.connection != nil {
		s.connection.launch(s.messages)
	}
}

// deliver sends frames that were launched.
func (s *Stream) deliver(frames []*Frame) error {
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
	// Reject returns the error that ends the stream, if the client gets one for an Answer; first is whether
	// it was sent nothing yet. An Answer that is Rejected is not sent where Reject returns no error: the
	// client keeps what it holds.
	Reject func(a *federation.Answer, first bool) error
	// Heartbeat is sent when nothing else was for FirstBeat, before the first answer, and for IdleBeat
	// after it; nil for none.
	Heartbeat           *Frame
	FirstBeat, IdleBeat time.Duration
}

// serving is a Stream while it sends the Answers of a Query. The one that the client has is state.answer.
type serving struct {
	*Stream
	protocol     Protocol
	subscription *Subscription
	beat         time.Time // when a heartbeat is due
}

// Serve is the whole life of a stream that was opened with a Query: load the newest Answer, send the update
// from the one that was sent last, wait for the Bell. It returns nil when the stream should end with OK.
func (s *Stream) Serve(p Protocol) error {
	subscription := s.engine.Subscribe(*s.state.query, s.state.client, s.Bell())
	v := serving{Stream: s, protocol: p, subscription: subscription}
	defer v.subscription.Close()
	s.state.subscription.Store(v.subscription)
	v.beat = s.state.opened.Add(p.FirstBeat)
	if soon := time.Now().Add(2 * newServiceGrace); v.beat.Before(soon) {
		v.beat = soon // a stream that had to wait to be admitted may have its answer before
	}
	for {
		now := time.Now()
		if s.Over(now) {
			return nil
		}
		if err := v.update(now); err != nil {
			return err
		}
		if err := v.heartbeat(now); err != nil {
			return err
		}
		if err := s.Wait(); err != nil {
			return err
		}
	}
}

// heartbeat sends a heartbeat if one is due.
func (v *serving) heartbeat(now time.Time) error {
	if v.protocol.Heartbeat == nil {
		return nil
	}
	if !now.Before(v.beat) {
		if err := v.sendHeartbeat(now); err != nil {
			return err
		}
	}
	v.WakeBy(now, v.beat)
	return nil
}

// beatEarly sends, before a stream waits for its turn, the heartbeat that is due in the first half of that wait. While
// it waits it sends nothing, and the client may have had no message for some time already.
func (v *serving) beatEarly() error {
	now, half := time.Now(), v.engine.config.Admission.Patience/2
	if v.protocol.Heartbeat == nil || now.Add(half).Before(v.beat) {
		return nil
	}
	return v.sendHeartbeat(now)
}

// sendHeartbeat sends a heartbeat, and sets when the next one is due.
func (v *serving) sendHeartbeat(now time.Time) error {
	if err := v.Send(v.protocol.Heartbeat); err != nil {
		return err
	}
	v.beat = now.Add(v.protocol.FirstBeat)
	if v.state.answer.Load() != nil {
		v.delayBeat()
	}
	return nil
}

// delayBeat has the next heartbeat sent after the pause of a stream that has been answered. The pause begins when the
// last message was sent, which may be long after the stream has looked at the time.
func (v *serving) delayBeat() { v.beat = v.state.at.Add(Jitter(v.protocol.IdleBeat)) }

// update sends what the client does not have yet.
func (v *serving) update(now time.Time) error {
	last := v.state.answer.Load()
	answer, frames, err := v.prepare(now)
	if err != nil || answer == nil {
		return err
	}
	if last == nil {
		v.engine.metrics.firstAnswer.Observe(time.Since(v.state.opened).Seconds())
	}
	if len(frames) > 0 {
		if err := v.deliver(frames); err != nil {
			return err
		}
		v.delayBeat()
	}
	if last != nil && answer.State == federation.Unknown { // no news of the Service: to the client it is as it was
		held := *answer
		held.State = last.State
		answer = &held
	}
	v.state.answer.Store(answer)
	v.state.version.Store(answer.Version)
	return nil
}

// prepare returns the newest Answer with the frames that bring the client to it, which it has launched. The Answer is
// nil if there is none to send.
func (v *serving) prepare(now time.Time) (answer *federation.Answer, frames []*Frame, err error) {
	last := v.state.answer.Load()
	answer, release, err := v.loadAnswer(now)
	defer release() // whatever an Encoder does; the next first answer finds in flight what this one sends
	if err != nil || answer == nil {
		return nil, nil, err
	}
	err = v.protocol.Reject(answer, last == nil)
	if err != nil || answer.State == federation.Rejected {
		v.state.version.Store(answer.Version)
		return nil, nil, err
	}
	frames = v.subscription.Update(v.protocol.Encoder, last, answer)
	v.launch(frames)
	return answer, frames, nil
}

// loadAnswer is Subscription.Load for a stream: a first answer waits for room, and for its turn, which
// release ends. It is nil while there is none.
func (v *serving) loadAnswer(now time.Time) (answer *federation.Answer, release func(), err error) {
	release = func() {}
	snapshot, _ := v.subscription.watch.Load()
	if due := v.subscription.waitUntil(snapshot); due.After(now) {
		v.WakeBy(now, due)
		return nil, release, nil
	}
	served := snapshot.View != nil && snapshot.Rejection() == federation.NotRejected
	if v.state.answer.Load() == nil && served { // else it is an error, which needs neither
		size := v.subscription.size(snapshot, v.protocol.Encoder)
		v.state.selection.Store(v.subscription.selection)
		if !v.Room(now) {
			return nil, release, nil
		}
		done, err := v.engine.admission.turn(v.sink.Context(), v.connection, size >= largeAnswer, v.beatEarly)
		if err != nil {
			return nil, release, err
		}
		release = done
		if !v.Room(now) { // any more
			return nil, release, nil
		}
		v.connection.pay(size)
	}
	answer, due := v.subscription.Load(now)
	v.state.selection.Store(v.subscription.selection)
	v.WakeBy(now, due)
	return answer, release, nil
}

// Jitter returns a duration that differs from d by up to a tenth, so that what many streams do does not
// happen at once.
func Jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

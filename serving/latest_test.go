package serving

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// gated is a stream's end whose client reads a message for each receive, and keeps what it has read.
type gated struct {
	ctx  context.Context
	gate chan struct{}

	mu   sync.Mutex
	read []*Frame
}

func (s *gated) Context() context.Context { return s.ctx }

func (s *gated) SendMsg(message any) error {
	select {
	case <-s.gate:
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = append(s.read, message.(*Frame))
	return nil
}

// texts returns what was read since it was last called.
func (s *gated) texts() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.read {
		all = append(all, string(f.bytes))
	}
	s.read = nil
	return all
}

// letters is a protocol of one level: a text, which is sent in small letters. The empty one is not known, and one that
// ends with a dot ends the stream.
type letters struct {
	*Server
	level   watch.Value[string]
	encoded atomic.Int64
	sent    atomic.Int64
}

func newLetters() *letters { return &letters{Server: newToy(0, DefaultConfig()).Server} }

func (p *letters) serve(sink Sink) error {
	stream := p.Open(sink, "Watch", "letters", Client{})
	defer stream.Close()
	defer p.level.Add(stream.Bell())()
	return Latest[string]{
		Load: func(_ time.Time, sent *Frame) (level string, known bool, err error) {
			level, _ = p.level.Load()
			if level == "." {
				return "", false, status.Errorf(codes.NotFound, "it is over, a message was sent: %t", sent != nil)
			}
			return level, level != "", nil
		},
		Encode: func(level string) (*Frame, int) {
			p.encoded.Add(1)
			return NewFrame(typeAnswer, []byte(strings.ToLower(level)), 0, 0), len(level)
		},
		Sent: func(string) { p.sent.Add(1) },
		Idle: 10 * time.Second,
	}.Serve(stream)
}

// A level is sent when it is known, and again when its message differs. It is encoded once for all streams. A client
// that reads late skips what is not newest. What was sent last is the heartbeat.
func TestLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newLetters()
		ctx, cancel := context.WithCancel(t.Context())
		fast, slow := &gated{ctx: ctx, gate: make(chan struct{})}, &gated{ctx: ctx, gate: make(chan struct{})}
		close(fast.gate)
		ended := make(chan error, 2)
		for _, sink := range []*gated{fast, slow} {
			go func() { ended <- p.serve(sink) }()
		}
		encoded, sent := int64(0), int64(0)
		store := func(level string, encodes bool, want ...string) {
			t.Helper()
			p.level.Store(level)
			synctest.Wait()
			if got := fast.texts(); !slices.Equal(got, want) {
				t.Errorf("%q: %q was sent, want %q", level, got, want)
			}
			sent += int64(len(want))
			if encodes {
				encoded++
			}
			if n := p.encoded.Load(); n != encoded {
				t.Errorf("%q: messages were encoded %d times, want %d", level, n, encoded)
			}
			if n := p.sent.Load(); n != sent {
				t.Errorf("%q: %d levels are reported as sent, want %d", level, n, sent)
			}
		}

		elapse(time.Minute)
		store("", false) // no heartbeat before there is a message
		store("a", true, "a")
		store("a", false)
		store("A", true) // another level, whose message is the same
		store("", false)
		store("A", false)
		store("b", true, "b")
		store("a", false, "a")
		store("c", true, "c")

		slow.gate <- struct{}{} // of what was newest when it began
		slow.gate <- struct{}{}
		synctest.Wait()
		if got := slow.texts(); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("a slow client was sent %q", got)
		}
		if fast.texts() != nil {
			t.Error("a client was sent what it has")
		}
		elapse(11 * time.Second)
		if got := fast.texts(); !slices.Equal(got, []string{"c"}) {
			t.Errorf("the heartbeat is %q", got)
		}

		p.level.Store(".")
		cancel()
		for range 2 {
			if err := <-ended; status.Code(err) != codes.NotFound && status.Code(err) != codes.Canceled {
				t.Error(err)
			}
		}
	})
}

// A stream whose level is an error ends with it.
func TestLatestEnds(t *testing.T) {
	p := newLetters()
	p.level.Store(".")
	err := p.serve(openSink{t.Context()})
	if want := "it is over, a message was sent: false"; status.Code(err) != codes.NotFound ||
		status.Convert(err).Message() != want {
		t.Error(err)
	}
}

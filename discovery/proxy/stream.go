package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Limits of linkerd2-proxy as it is deployed.
const (
	InitialTimeout = 3 * time.Second // to the first message
	IdleTimeout    = 5 * time.Minute // between messages
	MaxMessage     = 4 << 20         // bytes
)

// A Request is what a proxy asks for.
type Request struct {
	Scheme    string // "k8s" unless said
	Authority string
	Token     string // context token
	Reconnect bool   // come back when the stream ends, unless the server says that it makes no sense
}

// An Event is what a stream has seen: a message, or its end.
type Event struct {
	At      time.Time
	Message *Message
	End     *status.Status // OK, or why
}

// A Stream is one lookup of a proxy.
type Stream struct {
	client  pb.DestinationClient
	request Request
	observe func(Event)
	cancel  context.CancelFunc
	done    chan struct{}

	mu         sync.Mutex // guards all below
	fold       Fold
	heartbeats int
	violations []error
	gate       chan struct{} // not nil: reading waits until it is closed
}

// Open starts a lookup, which ends with ctx or Close. observe is called for each Event in turn, from one goroutine; it may be nil.
func Open(ctx context.Context, conn grpc.ClientConnInterface, request Request, observe func(Event)) *Stream {
	if observe == nil {
		observe = func(Event) {}
	}
	s := &Stream{client: pb.NewDestinationClient(conn), request: request, observe: observe, done: make(chan struct{})}
	ctx, s.cancel = context.WithCancel(ctx)
	go s.run(ctx)
	return s
}

// Close ends the lookup and waits for it.
func (s *Stream) Close() {
	s.Resume()
	s.cancel()
	<-s.done
}

// Done returns a channel that is closed once the lookup has ended.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Holds returns what the proxy holds now, sorted.
func (s *Stream) Holds() []Address {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fold.Addresses()
}

// Has reports whether the proxy holds an address.
func (s *Stream) Has(a netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, held := s.fold.addresses[a]
	return held
}

// Len returns how many addresses the proxy holds.
func (s *Stream) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.fold.addresses)
}

// Heartbeats returns how many heartbeats were received.
func (s *Stream) Heartbeats() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heartbeats
}

// Violations returns what the server did wrong; nil if nothing.
func (s *Stream) Violations() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.violations...)
}

// Stall stops reading: the transport fills up and the server has to wait.
func (s *Stream) Stall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate == nil {
		s.gate = make(chan struct{})
	}
}

// Resume goes on reading.
func (s *Stream) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		close(s.gate)
		s.gate = nil
	}
}

func (s *Stream) run(ctx context.Context) {
	defer close(s.done)
	for backoff := 100 * time.Millisecond; ; backoff = min(2*backoff, 10*time.Second) {
		end, fed := s.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		s.observe(Event{At: time.Now(), End: end})
		if !s.request.Reconnect || end.Code() == codes.InvalidArgument || end.Code() == codes.FailedPrecondition {
			return
		}
		if fed {
			backoff = 100 * time.Millisecond
		}
		timer := time.NewTimer(backoff/2 + rand.N(backoff))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// attempt runs one stream and returns how it ended, and whether it said anything.
func (s *Stream) attempt(ctx context.Context) (end *status.Status, fed bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	scheme := s.request.Scheme
	if scheme == "" {
		scheme = "k8s"
	}
	stream, err := s.client.Get(ctx, &pb.GetDestination{Scheme: scheme, Path: s.request.Authority, ContextToken: s.request.Token}, grpc.MaxCallRecvMsgSize(MaxMessage))
	if err != nil {
		return status.Convert(err), false
	}
	s.mu.Lock()
	s.fold.Reconnect()
	s.mu.Unlock()
	limit := time.AfterFunc(InitialTimeout, func() { s.violate(fmt.Errorf("no message within %s of the request", InitialTimeout)) })
	defer func() { limit.Stop() }()
	for {
		if gate := s.stalled(); gate != nil {
			limit.Stop() // it is we who do not read
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
		update, err := stream.Recv()
		limit.Stop()
		if err != nil {
			end := status.Convert(err)
			if errors.Is(err, io.EOF) {
				end = status.New(codes.OK, "")
			}
			if end.Code() == codes.ResourceExhausted && fed {
				s.violate(fmt.Errorf("a message that cannot be received: %s", end.Message()))
			}
			return end, fed
		}
		fed = true
		limit = time.AfterFunc(IdleTimeout, func() { s.violate(fmt.Errorf("no message for %s", IdleTimeout)) })
		s.mu.Lock()
		message, violation := s.fold.Apply(update)
		message.Bytes = proto.Size(update)
		if message.Kind == Heartbeat {
			s.heartbeats++
		}
		s.mu.Unlock()
		if violation != nil {
			s.violate(violation)
		}
		s.observe(Event{At: time.Now(), Message: &message})
	}
}

func (s *Stream) stalled() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gate
}

func (s *Stream) violate(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violations = append(s.violations, fmt.Errorf("%s: %w", s.request.Authority, err))
}

// Request returns what the lookup asks for.
func (s *Stream) Request() Request { return s.request }

package streamtest

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// A Frame is an encoded message: a *discovery.Frame.
type Frame interface{ Bytes() []byte }

// framesOnly is a server's end of a Get stream that sends frames only.
type framesOnly struct{ ctx context.Context }

func (e framesOnly) Context() context.Context     { return e.ctx }
func (e framesOnly) SetHeader(metadata.MD) error  { return nil }
func (e framesOnly) SendHeader(metadata.MD) error { return nil }
func (e framesOnly) SetTrailer(metadata.MD)       {}
func (e framesOnly) RecvMsg(any) error            { return nil }
func (e framesOnly) Send(*pb.Update) error        { panic("frames only") }

// A Sink is the server's end of a stream whose client reads when it is let, and keeps what it gets.
type Sink struct {
	framesOnly
	Gate chan struct{} // the client reads a message for each receive; all if it is closed

	mu       sync.Mutex
	fold     proxy.Fold
	frames   []Frame
	problems []error
}

// NewSink returns a Sink whose client does not read yet.
func NewSink(ctx context.Context) *Sink {
	return &Sink{framesOnly: framesOnly{ctx}, Gate: make(chan struct{})}
}

// NewOpenSink returns a Sink whose client reads.
func NewOpenSink(ctx context.Context) *Sink {
	s := NewSink(ctx)
	close(s.Gate)
	return s
}

// SendMsg returns once the client has read the message.
func (s *Sink) SendMsg(message any) error {
	select {
	case <-s.Gate:
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()

	f := message.(Frame)
	var u pb.Update
	if err := proto.Unmarshal(f.Bytes(), &u); err != nil {
		return err
	}
	if _, err := s.fold.Apply(&u); err != nil {
		s.problems = append(s.problems, err)
	}
	s.frames = append(s.frames, f)
	return nil
}

// Holds returns the addresses that the client has.
func (s *Sink) Holds() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []netip.AddrPort
	for _, a := range s.fold.Addresses() {
		all = append(all, a.Addr)
	}
	return all
}

// Sent returns the messages that the client has read.
func (s *Sink) Sent() []Frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.frames)
}

// Problems returns what a proxy would not have understood.
func (s *Sink) Problems() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}

// A Counter is the sink of any number of streams, whose clients read at once.
type Counter struct {
	framesOnly
	mu      sync.Mutex
	arrived sync.Cond
	frames  int
	bytes   int
}

// NewCounter returns a Counter of nothing.
func NewCounter(ctx context.Context) *Counter {
	c := &Counter{framesOnly: framesOnly{ctx}}
	c.arrived.L = &c.mu
	return c
}

// SendMsg counts a message.
func (c *Counter) SendMsg(message any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames++
	c.bytes += len(message.(Frame).Bytes())
	c.arrived.Broadcast()
	return nil
}

// Wait returns once so many messages have arrived in all.
func (c *Counter) Wait(frames int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.frames < frames {
		c.arrived.Wait()
	}
}

// Count returns how many messages have arrived, and their bytes.
func (c *Counter) Count() (frames, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.frames, c.bytes
}

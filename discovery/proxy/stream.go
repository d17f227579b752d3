package proxy

import (
	"context"
	"net/netip"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A Stream is one lookup of addresses.
type Stream struct {
	lookup
	fold     Fold // guarded by mu, as all below
	messages int
}

// Open starts a lookup of addresses, which ends with ctx or Close. observe is called for each Event in turn,
// from one goroutine; it may be nil.
func Open(ctx context.Context, conn grpc.ClientConnInterface, request Request, observe func(Event)) *Stream {
	opened := &Stream{}

	client := pb.NewDestinationClient(conn)
	opened.start(ctx, request, observe, func(ctx context.Context) (receiver, error) {
		stream, err := client.Get(ctx, request.destination(), grpc.MaxCallRecvMsgSize(MaxMessage))
		if err != nil {
			return nil, err
		}
		opened.mu.Lock()
		opened.fold.Reconnect()
		opened.mu.Unlock()

		return func() (Event, error, error) {
			update, err := stream.Recv()
			if err != nil {
				return Event{}, nil, err
			}
			opened.mu.Lock()
			defer opened.mu.Unlock()
			opened.messages++
			message, violation := opened.fold.Apply(update)
			message.Bytes = proto.Size(update)
			return Event{Message: &message}, violation, nil
		}, nil
	})

	return opened
}

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

// Messages returns how many messages were taken in. The last one may not have been observed yet.
func (s *Stream) Messages() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages
}

// Len returns how many addresses the proxy holds.
func (s *Stream) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.fold.addresses)
}

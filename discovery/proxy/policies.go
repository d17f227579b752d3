package proxy

import (
	"context"
	"fmt"

	inboundpb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outboundpb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
)

// A Policy is one message of the Policy API as a proxy understands it. It replaces the one before it.
type Policy struct {
	Inbound  *inboundpb.Server          // of a port
	Outbound *outboundpb.OutboundPolicy // of a target
	Repeated bool                       // it is equal to the one before it on the same stream
	Bytes    int                        // encoded
}

// A PolicyStream is one lookup of a policy.
type PolicyStream struct {
	lookup
	newest *Policy // guarded by mu
}

// Newest returns the policy that the proxy goes by; nil before the first. It outlasts the stream that it came from.
func (s *PolicyStream) Newest() *Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

// OpenInbound starts a lookup of the policy of a port, which ends with ctx or Close. A proxy comes back whenever it
// ends, but for the two codes that end every lookup. observe is called for each Event in turn, from one goroutine; it
// may be nil.
func OpenInbound(
	ctx context.Context, conn grpc.ClientConnInterface, asked *inboundpb.PortSpec, reconnect bool, observe func(Event),
) *PolicyStream {
	client := inboundpb.NewInboundServerPoliciesClient(conn)
	about := fmt.Sprintf("%s:%d", asked.GetWorkload(), asked.GetPort())

	return openPolicy(ctx, about, reconnect, nil, observe, func(ctx context.Context) (receivePolicy, error) {
		stream, err := client.WatchPort(ctx, asked, grpc.MaxCallRecvMsgSize(MaxMessage))
		return func() (*Policy, error, error) {
			message, err := stream.Recv()
			if err != nil {
				return nil, nil, err
			}
			p, violation := InboundPolicyOf(message)
			return p, violation, nil
		}, err
	})
}

// OpenOutbound starts a lookup of the policy of a target likewise. Two more codes end it for good: the proxy then has
// no policy, and goes by a profile or by the address itself.
func OpenOutbound(
	ctx context.Context, conn grpc.ClientConnInterface, asked *outboundpb.TrafficSpec, reconnect bool,
	observe func(Event),
) *PolicyStream {
	client := outboundpb.NewOutboundPoliciesClient(conn)
	about := asked.GetAuthority()
	if asked.GetAddr() != nil {
		addr, _ := addrOf(asked.GetAddr()) // the zero address if it is none
		about = addr.String()
	}

	ends := []codes.Code{codes.NotFound, codes.Unimplemented}
	return openPolicy(ctx, about, reconnect, ends, observe, func(ctx context.Context) (receivePolicy, error) {
		stream, err := client.Watch(ctx, asked, grpc.MaxCallRecvMsgSize(MaxMessage))
		return func() (*Policy, error, error) {
			message, err := stream.Recv()
			if err != nil {
				return nil, nil, err
			}
			p, violation := OutboundPolicyOf(message)
			return p, violation, nil
		}, err
	})
}

// InboundPolicyOf reads the policy of a port. It returns an error if a server must not send it: a proxy refuses it,
// dies of it, or fails each request by it.
func InboundPolicyOf(message *inboundpb.Server) (*Policy, error) {
	_, err := policy.DecodeInbound(message)
	return &Policy{Inbound: message, Bytes: proto.Size(message)}, err
}

// OutboundPolicyOf reads the policy of a target likewise.
func OutboundPolicyOf(message *outboundpb.OutboundPolicy) (*Policy, error) {
	_, err := policy.DecodeOutbound(message)
	return &Policy{Outbound: message, Bytes: proto.Size(message)}, err
}

// receivePolicy waits for the next message of a stream. A violation is what the server must not have sent.
type receivePolicy func() (p *Policy, violation, err error)

func openPolicy(
	ctx context.Context, about string, reconnect bool, permanent []codes.Code, observe func(Event),
	open func(ctx context.Context) (receivePolicy, error),
) *PolicyStream {
	opened := &PolicyStream{}
	opened.permanent = permanent

	request := Request{Authority: about, Reconnect: reconnect}
	opened.start(ctx, request, observe, func(ctx context.Context) (receiver, error) {
		receive, err := open(ctx)
		if err != nil {
			return nil, err
		}

		var last *Policy
		return func() (Event, error, error) {
			p, violation, err := receive()
			if err != nil {
				return Event{}, nil, err
			}
			p.Repeated = last != nil && proto.Equal(p.Inbound, last.Inbound) && proto.Equal(p.Outbound, last.Outbound)
			last = p
			opened.mu.Lock()
			defer opened.mu.Unlock()

			opened.newest = p
			return Event{Policy: p}, violation, nil
		}, nil
	})

	return opened
}

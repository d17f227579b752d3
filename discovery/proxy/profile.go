package proxy

import (
	"context"
	"fmt"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// quiet is how long a stream must have been silent for an unchanged profile to count as a heartbeat: no other
// message of this kind changes nothing. One that comes sooner is a waste.
const quiet = time.Minute

// A Profile is one DestinationProfile as a proxy understands it. It replaces the one before it.
type Profile struct {
	*pb.DestinationProfile
	Address   *Address // the endpoint, if the target is one
	Repeated  bool     // it is equal to the one before it on the same stream
	Heartbeat bool     // it is, and came after a long silence
	Bytes     int      // encoded
}

// A ProfileStream is one lookup of a profile.
type ProfileStream struct {
	lookup
	newest *Profile // guarded by mu, like all below
}

// OpenProfile starts a lookup of a profile, which ends with ctx or Close. observe is called for each Event in
// turn, from one goroutine; it may be nil.
func OpenProfile(ctx context.Context, conn grpc.ClientConnInterface, request Request,
	observe func(Event),
) *ProfileStream {
	opened := &ProfileStream{}

	client := pb.NewDestinationClient(conn)
	opened.start(ctx, request, observe, func(ctx context.Context) (receiver, error) {
		stream, err := client.GetProfile(ctx, request.destination(), grpc.MaxCallRecvMsgSize(MaxMessage))
		if err != nil {
			return nil, err
		}

		var last *Profile
		var at time.Time

		return func() (Event, error, error) {
			message, err := stream.Recv()
			if err != nil {
				return Event{}, nil, err
			}
			p, violation := profileOf(message)
			p.Repeated = last != nil && proto.Equal(message, last.DestinationProfile)
			p.Heartbeat = p.Repeated && time.Since(at) >= quiet
			last, at = p, time.Now()
			opened.mu.Lock()
			defer opened.mu.Unlock()

			opened.newest = p
			return Event{Profile: p}, violation, nil
		}, nil
	})

	return opened
}

// Newest returns the profile that the proxy goes by; nil before the first. It outlasts the stream that it came from.
func (s *ProfileStream) Newest() *Profile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

// profileOf reads a message. It returns an error if a server must not send it.
func profileOf(message *pb.DestinationProfile) (*Profile, error) {
	p := &Profile{DestinationProfile: message, Bytes: proto.Size(message)}
	w := message.GetEndpoint()
	if w == nil {
		return p, nil
	}
	a, err := addressOf(w, nil)
	if err != nil {
		err = fmt.Errorf("endpoint %s of a profile: %w", a.Addr, err)
	}
	p.Address = &a
	return p, err
}

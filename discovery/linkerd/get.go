package linkerd

import (
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/discovery/proxyapi"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// firstHeartbeat is after how long a stream without an answer has a heartbeat: a proxy gives up on one that was silent
// for 3 s at first.
const firstHeartbeat = 2 * time.Second

// Get streams the addresses of a Service. See docs/protocol.md for what it sends when.
func (s *Server) Get(request *pb.GetDestination, sink pb.Destination_GetServer) error {
	asked, err := parseAuthority(request.GetPath(), s.config.ClusterDomain)
	if err != nil {
		return err
	}

	client, err := s.clientOf(request)
	if err != nil {
		return err
	}
	stream := s.Serving().Open(sink, "Get", request.GetPath(), client)
	defer stream.Close()
	stream.SetHeartbeat(serving.Heartbeat{Frame: heartbeatFrame, First: firstHeartbeat, Idle: proxyapi.IdleHeartbeat})
	return s.Serve(stream, asked, discovery.Protocol{
		Encoder: encoder{config: &s.config, port: asked.Port}, Reject: reject,
	})
}

// reject returns why a Service cannot be served. What was served once goes on, whatever becomes of it,
// except as an ExternalName.
func reject(answer *federation.Answer, first bool) error {
	snapshot := answer.Snapshot
	switch answer.Rejection {
	case federation.ExternalName:
		return status.Errorf(codes.InvalidArgument, "Service %s/%s is of type ExternalName, which has no addresses",
			snapshot.Namespace, snapshot.Name)
	case federation.Malformed:
		if first {
			return status.Error(codes.FailedPrecondition, snapshot.View.Malformed)
		}
	case federation.Unlinked:
		if first {
			return status.Errorf(codes.NotFound, "Remote cluster not found: %s", snapshot.Members[0].Origin.Cluster)
		}
	case federation.NotRejected:
		if first && answer.State == federation.Absent && snapshot.View == nil {
			return status.Errorf(codes.NotFound, "Service %s/%s not found", snapshot.Namespace, snapshot.Name)
		}
	}

	return nil
}

// Update returns the frames that bring a client from one Answer to another: Adds, then Removes, each
// within the limit of a message, and then NoEndpoints where there is no address and the client does not
// know yet whether the Service exists.
func (e encoder) Update(from, to *federation.Answer) (frames []*serving.Frame, leftOut int) {
	first := from == nil
	if first {
		from = &federation.Answer{}
	}

	frames, leftOut = e.encode(from.Set, to.Set)
	switch {
	case to.State == federation.Empty && (first || from.State == federation.Absent):
		frames = append(frames, emptyFrame)
	case to.State == federation.Absent && from.State != federation.Absent:
		frames = append(frames, absentFrame)
	case first && len(frames) == 0: // no address could be encoded
		frames = append(frames, emptyFrame)
	}
	return frames, leftOut
}

// encode returns the frames that turn one Set into another. Addresses that cannot be encoded are left
// out, and counted.
func (e encoder) encode(from, to *federation.Set) (frames []*serving.Frame, leftOut int) {
	add, remove := federation.DiffAt(from, to, e.port)
	frames, leftOut = e.adds(add)
	return append(frames, removes(remove)...), leftOut
}

// Explain returns what Get sends to a client for an authority, and why. An authority that Get refuses
// is refused.
func (s *Server) Explain(authority string, client serving.Client) (*discovery.Explanation, error) {
	asked, err := parseAuthority(authority, s.config.ClusterDomain)
	if err != nil {
		return nil, err
	}
	x := s.Engine.Explain(asked, client, func(a *federation.Answer) string {
		if err := reject(a, true); err != nil {
			return status.Code(err).String() + ": " + status.Convert(err).Message()
		}
		return ""
	})
	x.Authority = authority
	return x, nil
}

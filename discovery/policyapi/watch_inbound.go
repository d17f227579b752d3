package policyapi

import (
	"context"
	"fmt"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery/proxyapi"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/serving"
)

func (s *Server) encodeInbound(level rules.InboundLevel, asked question) (f *serving.Frame, refers int) {
	answer := s.options.InboundOf(level)
	return s.newFrame(EncodeInbound(answer), answer.Reference, asked)
}

// inboundLevel returns what a message to the proxy of a server depends on. namespace is nil where there are no Servers.
func (s *Server) inboundLevel(
	workload *rules.Workload, namespace *rules.NamespaceServers, port uint16,
) rules.InboundLevel {
	var servers []*rules.ServerRules
	if namespace != nil {
		servers = namespace.All
	}
	return s.options.InboundLevel(workload, servers, port)
}

// An inboundStream is one WatchPort stream. It belongs to the stream's goroutine.
type inboundStream struct {
	*serving.Stream
	server   *Server
	asked    rules.WorkloadRef
	port     uint16
	workload watch.Lookup[rules.WorkloadRef, *rules.Workload]
	servers  watch.Lookup[string, *rules.NamespaceServers]
}

// GetPort returns the policy of a port as it is now.
func (s *Server) GetPort(ctx context.Context, spec *pb.PortSpec) (*pb.Server, error) {
	asked, port, err := parseSpec(spec)
	if err != nil {
		return nil, err
	}
	if err := s.await(ctx); err != nil {
		return nil, err
	}

	message, of, err := s.inbound(asked, port)
	if err != nil {
		return nil, err
	}
	return message, s.check(message, of, question{workload: asked, port: port})
}

// inbound returns the policy of a port as it is now, and what it is about.
func (s *Server) inbound(asked rules.WorkloadRef, port uint16) (*pb.Server, rules.Reference, error) {
	workload, found := s.levels.Workloads.Get(asked)
	if !found {
		return nil, rules.Reference{}, notFound(asked)
	}
	servers, _ := s.levels.Servers.Get(asked.Namespace)
	answer := s.options.InboundOf(s.inboundLevel(workload, servers, port))
	return EncodeInbound(answer), answer.Reference, nil
}

// WatchPort streams the policy of a port. It ends with OK when the workload is gone.
func (s *Server) WatchPort(spec *pb.PortSpec, sink pb.InboundServerPolicies_WatchPortServer) error {
	asked, port, err := parseSpec(spec)
	if err != nil {
		return err
	}

	path := fmt.Sprintf("%s/%s:%d", asked.Namespace, asked.Name, port)
	client := serving.Client{Namespace: asked.Namespace, Pod: asked.Name}
	stream := s.on.Open(sink, "WatchPort", path, client)
	defer stream.Close()

	remove := s.addUntilComplete(stream.Bell())
	defer remove()
	l := &inboundStream{
		Stream: stream, server: s, asked: asked, port: port,
		workload: watch.NewLookup(s.levels.Workloads, stream.Bell()),
		servers:  watch.NewLookup(s.levels.Servers, stream.Bell()),
	}
	defer l.workload.Close()
	defer l.servers.Close()
	return ended(serving.Latest[rules.InboundLevel]{
		Load: l.load, Encode: l.encode, Idle: proxyapi.IdleHeartbeat,
	}.Serve(stream))
}

func (l *inboundStream) load(now time.Time, sent *serving.Frame) (level rules.InboundLevel, known bool, err error) {
	if is, err := l.server.isListed(l.Stream, now); !is {
		return level, false, err
	}

	workload := l.workload.Of(l.asked)
	switch {
	case workload != nil:
	case sent == nil:
		return level, false, notFound(l.asked)
	default:
		return level, false, errEnded
	}
	return l.server.inboundLevel(workload, l.servers.Of(l.asked.Namespace), l.port), true, nil
}

func (l *inboundStream) encode(level rules.InboundLevel) (f *serving.Frame, refers int) {
	return l.server.encodeInbound(level, question{workload: l.asked, port: l.port})
}

func parseSpec(spec *pb.PortSpec) (asked rules.WorkloadRef, port uint16, err error) {
	asked, err = parseWorkload(spec.GetWorkload())
	if err != nil {
		return asked, 0, err
	}
	port, err = parsePort(spec.GetPort())
	return asked, port, err
}

func notFound(asked rules.WorkloadRef) error {
	kind := "Pod"
	if asked.External {
		kind = "ExternalWorkload"
	}
	return status.Errorf(codes.NotFound, "%s %s/%s is not known, or not meshed", kind, asked.Namespace, asked.Name)
}

package policyapi

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery/proxyapi"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/serving"
)

// What a stream that asks for an address does when that comes to stand for something else:
//
//	Service web      -> Service web       a message, if the answer differs
//	Service web      -> Service api       the stream ends with OK, and the client asks again within 100 ms
//	Service web      -> nothing           silence: a client that gets NotFound now would never ask again
//	nothing          -> Service web       a message, if the answer differs from the last one
//
// The fallback for addresses outside of the cluster, and each EgressNetwork, are such things, too. A name is the thing
// itself: its stream never ends by this.

// An outboundLevel is everything that a message to a client depends on.
type outboundLevel struct {
	of       rules.Reference // zero: the fallback
	target   *rules.Target   // nil: of is a Service that does not exist
	query    rules.OutboundQuery
	original netip.AddrPort // of what leads there
}

// encodeOutbound keeps no message about a name without a Service, nor about an address that none has: clients may ask
// for any number of them.
func (s *Server) encodeOutbound(level outboundLevel, asked question) (f *serving.Frame, refers int) {
	f, refers = s.newFrame(s.outboundMessage(level), level.of, asked)
	if level.target == nil || level.original.IsValid() {
		return f, 0
	}
	return f, refers
}

func (s *Server) outboundMessage(level outboundLevel) *pb.OutboundPolicy {
	if level.isFallback() {
		return EncodeOutbound(rules.Fallback(), level.original)
	}
	return EncodeOutbound(s.options.Outbound(level.known(), level.query), level.original)
}

func (l outboundLevel) isFallback() bool { return l.of == rules.Reference{} }

// known returns what is known of the target. Of a Service that does not exist it is the name.
func (l outboundLevel) known() *rules.Target {
	if l.target == nil {
		return &rules.Target{Reference: l.of}
	}
	return l.target
}

// An outboundReader finds the level of what a client asks for. It belongs to one goroutine.
type outboundReader struct {
	server      *Server
	asked       target
	client      string // its namespace
	address     watch.Lookup[netip.Addr, *federation.Address]
	sharing     []watch.Lookup[rules.Reference, *rules.Target] // of the Services at the address
	target      watch.Lookup[rules.Reference, *rules.Target]   // of a Service that is named, or of an EgressNetwork
	own, global watch.Lookup[string, *rules.NamespaceEgress]
	imports     *federation.Watch // of the target, if it stands for others and they count; nil: it does not
	bell        *watch.Bell
}

func (s *Server) newOutboundReader(asked target, client string, bell *watch.Bell) *outboundReader {
	return &outboundReader{
		server: s, asked: asked, client: client,
		address: watch.NewLookup(s.levels.Addresses, bell), target: watch.NewLookup(s.levels.Targets, bell),
		own: watch.NewLookup(s.levels.Egress, bell), global: watch.NewLookup(s.levels.Egress, bell),
		bell: bell,
	}
}

func (r *outboundReader) close() {
	r.address.Close()
	r.share(nil)
	r.target.Close()
	r.own.Close()
	r.global.Close()
	r.closeImports()
}

func (r *outboundReader) closeImports() {
	if r.imports != nil {
		r.imports.Close()
		r.imports = nil
	}
}

// errUnknown is what a call gets about an address of something that is about to be read.
var errUnknown = status.Error(codes.Unavailable, "what the address stands for was not read yet")

// level returns the level of what the client asks for. The error is NotFound if that is nothing, and errUnknown if it
// is not known yet.
func (r *outboundReader) level() (level outboundLevel, err error) {
	ip := r.asked.address.Addr()
	if !ip.IsValid() {
		return r.levelOf(r.asked.service, r.target.Of(r.asked.service)), nil
	}

	if a := r.address.Of(ip); a != nil && len(a.Services) > 0 {
		service := rules.Oldest(r.share(a.Services))
		if service == nil {
			return level, errUnknown
		}
		return r.levelOf(service.Reference, service), nil
	}
	if r.server.options.InCluster(ip) {
		return level, noTarget(r.asked)
	}

	own, global := r.egress(&r.own, r.client), r.egress(&r.global, r.server.options.EgressNamespace)
	if e := r.server.options.Egress(ip, own, global); e != nil {
		target := r.target.Of(e.Reference)
		if target == nil {
			return level, errUnknown
		}
		level = r.levelOf(e.Reference, target)
	}
	level.original = r.asked.address
	return level, nil
}

// share returns what there is of the Services at an address; nil where one was not read yet. Which of them the address
// stands for follows from all of them, so that all are watched.
func (r *outboundReader) share(services []federation.Service) (targets []*rules.Target) {
	for i, s := range services {
		if i == len(r.sharing) {
			r.sharing = append(r.sharing, watch.NewLookup(r.server.levels.Targets, r.bell))
		}
		of := rules.Reference{Kind: rules.KindService, Namespace: s.Namespace, Name: s.Name}
		targets = append(targets, r.sharing[i].Of(of))
	}
	for i := len(services); i < len(r.sharing); i++ {
		r.sharing[i].Close()
	}
	return targets
}

func (r *outboundReader) egress(
	of *watch.Lookup[string, *rules.NamespaceEgress], namespace string,
) []*rules.EgressNetwork {
	if all := of.Of(namespace); all != nil {
		return all.All
	}
	return nil
}

// levelOf returns the level of a Service or an EgressNetwork. Clients of all namespaces share it unless some of them
// get routes of their own.
func (r *outboundReader) levelOf(of rules.Reference, target *rules.Target) outboundLevel {
	level := outboundLevel{of: of, target: target}
	level.query = rules.OutboundQuery{Port: r.asked.port, ByAddress: r.asked.address.IsValid()}
	if level.target != nil && level.target.HasConsumers(r.client) {
		level.query.Client = r.client
	}
	level.query.Imported = r.imported(level.target)
	return level
}

// imported returns what the Services declare about the port that a target stands for; nothing if they do not count.
func (r *outboundReader) imported(target *rules.Target) (port federation.ImportedPort) {
	if target == nil || !target.NeedsImported(r.asked.port) {
		r.closeImports()
		return port
	}

	service := federation.Service{Namespace: target.Namespace, Name: target.Name}
	if r.imports == nil || r.imports.Ref().Service != service {
		r.closeImports()
		levels := &r.server.levels
		r.imports = levels.Store.Watch(federation.Ref{Cluster: levels.Cluster, Service: service})
		r.imports.AddToDeclaration(r.bell)
	}
	if declared, _ := r.imports.Declaration(); declared != nil {
		port, _ = declared.ImportedPort(r.asked.port)
	}
	return port
}

// Get returns the policy of a target as it is now.
func (s *Server) Get(ctx context.Context, spec *pb.TrafficSpec) (*pb.OutboundPolicy, error) {
	workload, asked, err := s.parseTraffic(spec)
	if err != nil {
		return nil, err
	}
	if err := s.await(ctx); err != nil {
		return nil, err
	}

	message, of, err := s.outbound(asked, workload.Namespace)
	if err != nil {
		return nil, err
	}
	return message, s.check(message, of, question{asked: asked, client: workload.Namespace})
}

// outbound returns the policy of a target for clients in a namespace as it is now, and what it is about.
func (s *Server) outbound(asked target, client string) (*pb.OutboundPolicy, rules.Reference, error) {
	reader := s.newOutboundReader(asked, client, watch.NewBell())
	defer reader.close()
	level, err := reader.level()
	if err != nil {
		return nil, rules.Reference{}, err
	}
	return s.outboundMessage(level), level.of, nil
}

// Watch streams the policy of a target.
func (s *Server) Watch(spec *pb.TrafficSpec, sink pb.OutboundPolicies_WatchServer) error {
	workload, asked, err := s.parseTraffic(spec)
	if err != nil {
		return err
	}

	client := serving.Client{Namespace: workload.Namespace, Pod: workload.Name}
	stream := s.on.Open(sink, "Watch", asked.String(), client)
	defer stream.Close()
	remove := s.addUntilComplete(stream.Bell())
	defer remove()
	l := &outboundStream{Stream: stream, outboundReader: s.newOutboundReader(asked, client.Namespace, stream.Bell())}
	defer l.close()
	return ended(serving.Latest[outboundLevel]{
		Load: l.load, Encode: l.encode, Idle: proxyapi.IdleHeartbeat,
	}.Serve(stream))
}

// An outboundStream is one Watch stream. It belongs to the stream's goroutine.
type outboundStream struct {
	*serving.Stream
	*outboundReader
	stands rules.Reference // what it is about, once something was sent
}

func (l *outboundStream) load(now time.Time, sent *serving.Frame) (level outboundLevel, known bool, err error) {
	if is, err := l.server.isListed(l.Stream, now); !is {
		return level, false, err
	}

	level, why := l.level()
	isNothing := why != nil && !errors.Is(why, errUnknown)
	if isNothing && sent != nil {
		l.PauseHeartbeat()
	}

	switch {
	case isNothing && sent == nil:
		return level, false, why
	case why != nil:
		return level, false, nil //nolint:nilerr // the client keeps what it has
	case sent != nil && level.of != l.stands:
		return level, false, errEnded
	}
	l.stands = level.of
	return level, true, nil
}

func (l *outboundStream) encode(level outboundLevel) (f *serving.Frame, refers int) {
	return l.server.encodeOutbound(level, question{asked: l.asked, client: l.client})
}

func (s *Server) parseTraffic(spec *pb.TrafficSpec) (workload rules.WorkloadRef, asked target, err error) {
	workload, err = parseWorkload(spec.GetSourceWorkload())
	if err != nil {
		return workload, asked, err
	}
	asked, err = parseTarget(spec, s.options.ClusterDomain)
	return workload, asked, err
}

func (t target) String() string {
	if t.address.IsValid() {
		return t.address.String()
	}
	return fmt.Sprintf("%s.%s:%d", t.service.Name, t.service.Namespace, t.port)
}

func noTarget(asked target) error {
	return status.Errorf(codes.NotFound, "%s is no Service, and not outside of the cluster", asked)
}

package discovery

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	metapb "github.com/linkerd/linkerd2-proxy-api/go/meta"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// lookup is one GetProfile stream. It belongs to the stream's goroutine. Everything that it answers is known here: it never waits for
// another cluster, because a proxy holds back all traffic to an IP until it has heard of it.
type lookup struct {
	session
	asked target

	home            *federation.Watch // of no Service: it tells whether the cluster has been heard
	service         serviceWatch
	address         tableWatch[netip.Addr, *federation.Address]
	primary, backup profileWatch

	last  *frame  // what the client was sent, and is sent again as a heartbeat; nil for nothing
	about subject // of the newest answer
}

// waits are what an answer depends on; nil for what it does not.
type waits struct{ service, address, primary, backup <-chan struct{} }

func newLookup(s *Server, path string, asked target, who client, to sink) *lookup {
	l := &lookup{session: newSession(s, path, who, to, nil), asked: asked}
	l.home = s.store.Watch(federation.Ref{Cluster: s.config.Cluster})
	l.service.store, l.service.cluster = s.store, s.config.Cluster
	l.address.table = s.store.Addresses()
	l.primary = profileWatch{audiences: s.audiences, tableWatch: tableWatch[federation.Service, *profile.Profile]{table: s.store.Profiles()}}
	l.backup = l.primary
	return l
}

func (l *lookup) close() {
	l.home.Close()
	l.service.close()
	l.address.close()
	l.primary.close()
	l.backup.close()
	l.session.close()
}

// run is the whole life of the stream, and the same loop as that of Get.
func (l *lookup) run(ctx context.Context) error {
	for {
		rung, now := l.state.alarm.rung(), time.Now()
		if l.over(now) {
			return nil
		}
		var f *frame
		var on waits
		if l.last != nil || l.room(now) {
			var err error
			if f, on, err = l.answer(); err != nil {
				return err
			}
		}
		if on.primary == nil {
			l.primary.close()
		}
		if on.backup == nil {
			l.backup.close()
		}
		l.state.answered(l.about)
		if f == nil {
			f = l.last
		}
		if f != nil && (l.last == nil || !bytes.Equal(f.bytes, l.last.bytes) || !now.Before(l.beat)) {
			if err := l.send(f); err != nil {
				return err
			}
			if l.about.workload && (l.last == nil || !bytes.Equal(f.bytes, l.last.bytes)) {
				l.server.metrics.workloads.Inc()
			}
			l.last, l.beat = f, now.Add(jitter(idleHeartbeat))
		}
		l.state.alarm.by(now, l.beat)
		select {
		case <-on.service:
		case <-on.address:
		case <-on.primary:
		case <-on.backup:
		case <-rung:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// answer returns the newest profile, or nil as long as there is nothing to say, and what it depends on.
func (l *lookup) answer() (*frame, waits, error) {
	var on waits
	home, heard := l.home.Load()
	if len(home.Unknown()) > 0 {
		on.service = heard
		return nil, on, nil
	}
	var a *federation.Address
	asked := l.asked
	if asked.ip.IsValid() {
		if a, on.address = l.address.at(asked.ip); a != nil && len(a.Services) > 1 {
			return l.refuse(on, codes.FailedPrecondition, "%s is the cluster IP of %d Services: %v", asked.ip, len(a.Services), a.Services)
		} else if a == nil || len(a.Services) == 0 {
			return l.resident(a, on)
		}
		asked.service = a.Services[0]
	}
	name, service := asked.service, l.service.at(asked.service)
	if asked.hostname != "" {
		return l.instance(service, on)
	}
	var declared *federation.Declaration
	declared, on.service = service.Declaration()
	switch {
	case declared == nil && l.last == nil:
		return l.notFound(on, name)
	case declared == nil:
		l.about = subject{}
		declared = &federation.Declaration{Ports: []federation.ServicePort{{Number: asked.port}}} // it was there: the default is what remains
		if len(l.last.bytes) == 0 {
			return nil, on, nil
		}
	default:
		l.about = subject{service: name}
	}
	if !declared.Declares(asked.port) {
		return undeclaredFrame, on, nil
	}
	if declared.ExternalName {
		return nil, on, status.Errorf(codes.InvalidArgument, "Service %s/%s is of type ExternalName, which has no profile", name.Namespace, name.Name)
	}
	key := profileKey{service: name, port: asked.port, opaque: l.server.config.opaqueIn(declared.Opaque, asked.port)}
	object := federation.Service{Namespace: name.Namespace, Name: l.server.fullName(name)}
	if key.profile, on.backup = l.backup.at(object); key.profile != nil {
		key.namespace = object.Namespace
	}
	if l.who.Namespace != "" && l.who.Namespace != name.Namespace {
		object.Namespace = l.who.Namespace
		var primary *profile.Profile
		if primary, on.primary = l.primary.at(object); primary != nil {
			key.profile, key.namespace = primary, object.Namespace
		}
	}
	return l.server.profileFrame(key), on, nil
}

// refuse ends a stream that was told nothing. What was told once stays as it is.
func (l *lookup) refuse(on waits, code codes.Code, format string, args ...any) (*frame, waits, error) {
	if l.last != nil {
		return nil, on, nil
	}
	return nil, on, status.Errorf(code, format, args...)
}

func (l *lookup) notFound(on waits, name federation.Service) (*frame, waits, error) {
	return l.refuse(on, codes.NotFound, "Service %s/%s not found", name.Namespace, name.Name)
}

// instance answers for the endpoint of a Service that has the hostname which is asked for.
func (l *lookup) instance(service *federation.Watch, on waits) (*frame, waits, error) {
	var snapshot *federation.Snapshot
	snapshot, on.service = service.Load()
	if snapshot.View == nil {
		return l.notFound(on, snapshot.Service)
	}
	e := instance(snapshot.View, l.asked.hostname)
	if e == nil {
		return l.refuse(on, codes.NotFound, "Service %s/%s has no endpoint with the hostname %s",
			snapshot.Namespace, snapshot.Name, l.asked.hostname)
	}
	var a *federation.Address
	if a, on.address = l.address.at(e.Addr); pending(a, e.Workload) {
		return l.workload(e.Addr, federation.Resident{}), on, nil
	}
	return l.workload(e.Addr, federation.Resident{Workload: e.Workload}), on, nil
}

// resident answers for an IP that is no Service's.
func (l *lookup) resident(a *federation.Address, on waits) (*frame, waits, error) {
	who := residents(a, l.asked.port)
	if len(who) > 1 {
		return l.refuse(on, codes.FailedPrecondition, "%s:%d is claimed by %d workloads, among them %s/%s and %s/%s",
			l.asked.ip, l.asked.port, len(who), who[0].Namespace, who[0].Name, who[1].Namespace, who[1].Name)
	}
	if len(who) == 0 || !who[0].Running {
		return l.workload(l.asked.ip, federation.Resident{}), on, nil
	}
	return l.workload(l.asked.ip, who[0]), on, nil
}

// residents returns who answers at a port of an address: a Pod whose own the IP is, else one that the port leads to, else an
// ExternalWorkload, and several only if they have equal rights.
func residents(a *federation.Address, port uint16) (who []federation.Resident) {
	if a == nil {
		return nil
	}
	right := func(r federation.Resident) int {
		switch {
		case r.Kind == federation.ExternalWorkload:
			return 2
		case r.Port != 0:
			return 1
		default:
			return 0
		}
	}
	for _, r := range a.Residents {
		switch {
		case r.Port != 0 && r.Port != port || len(who) > 0 && right(r) > right(who[0]):
		case len(who) > 0 && right(r) < right(who[0]):
			who = []federation.Resident{r}
		default:
			who = append(who, r)
		}
	}
	return who
}

// pending reports whether a workload is a Pod that does not run yet.
func pending(a *federation.Address, w *federation.Workload) bool {
	return a != nil && w != nil && slices.ContainsFunc(a.Residents, func(r federation.Resident) bool {
		return !r.Running && r.Kind == w.Kind && r.Namespace == w.Namespace && r.Name == w.Name
	})
}

// workload returns the profile of a workload at an IP; of the zero Resident if nobody is known.
func (l *lookup) workload(ip netip.Addr, w federation.Resident) *frame {
	l.about = subject{workload: true}
	addr := netip.AddrPortFrom(ip, l.asked.port)
	out := &pb.DestinationProfile{Endpoint: &pb.WeightedAddr{Addr: tcpAddress(addr), Weight: weight}}
	appendProfile(out, nil, addr.Port())
	config := &l.server.config
	if w.Workload == nil {
		out.OpaqueProtocol = config.opaqueIn(federation.Ports{}, addr.Port())
	} else {
		encoder{config: config, port: addr.Port()}.workload(out.GetEndpoint(), addr, config.TrustDomain, w.Workload)
		if hint := out.GetEndpoint().GetProtocolHint(); hint != nil && w.Kind == federation.Pod && w.Port != 0 {
			hint.OpaqueTransport = nil // the node leads to that port of the Pod only, and not to its proxy's
		}
		out.Endpoint.MetricLabels["namespace"] = w.Namespace
		out.Endpoint.MetricLabels["zone"] = ""
		out.OpaqueProtocol = config.opaque(w.Template.Value(), addr.Port())
	}
	f, valid := l.server.frames.profile(out)
	if !valid && w.Workload != nil {
		return l.workload(ip, federation.Resident{})
	}
	return f
}

// instance returns the first endpoint with a hostname, ready or not: over IPv4 if it can be, whatever the slices are called.
func instance(v *federation.View, hostname string) (found *federation.Endpoint) {
	for _, s := range v.Slices {
		for _, e := range s.Endpoints {
			if e.Hostname == hostname && (found == nil || e.Addr.Is4() && found.Addr.Is6()) {
				found = e
			}
		}
	}
	return found
}

// fullName returns the name by which a Service is asked for.
func (s *Server) fullName(name federation.Service) string {
	return name.Name + "." + name.Namespace + ".svc." + s.config.ClusterDomain
}

// undeclaredFrame is what a client gets for a port that its Service does not declare: it falls back to the policy.
var undeclaredFrame = constant(toProfile, &pb.DestinationProfile{})

// profileKey is everything that the profile of a Service depends on: streams with equal keys get the same bytes.
type profileKey struct {
	service   federation.Service
	port      uint16
	opaque    bool
	profile   *profile.Profile
	namespace string // of the ServiceProfile
}

// profileFrame returns the encoded profile of a Service.
func (s *Server) profileFrame(key profileKey) *frame {
	if f, known := s.frames.find(key); known {
		return f
	}
	name := s.fullName(key.service)
	out := &pb.DestinationProfile{
		FullyQualifiedName: name,
		OpaqueProtocol:     key.opaque,
		ParentRef:          reference("core", "Service", key.service.Namespace, key.service.Name, key.port),
	}
	if key.profile != nil {
		out.ProfileRef = reference("linkerd.io", "ServiceProfile", key.namespace, name, 0)
	}
	appendProfile(out, key.profile, key.port)
	f, valid := s.frames.profile(out)
	if !valid && key.profile != nil {
		key.profile, key.namespace = nil, ""
		return s.profileFrame(key)
	}
	s.frames.keep(key, kept{256 + 2*int64(f.bytes.Len()), f}) // the key holds on to what was parsed, about as much again
	return f
}

func reference(group, kind, namespace, name string, port uint16) *metapb.Metadata {
	return &metapb.Metadata{Kind: &metapb.Metadata_Resource{
		Resource: &metapb.Resource{Group: group, Kind: kind, Namespace: namespace, Name: name, Port: uint32(port)},
	}}
}

// tableWatch follows one key of a Table, the one that was asked for last.
type tableWatch[K comparable, V any] struct {
	table watch.Reader[K, V]
	key   K
	watch *watch.Watch[K, V]
}

func (w *tableWatch[K, V]) at(k K) (V, <-chan struct{}) {
	if w.watch == nil || w.key != k {
		w.close()
		w.key, w.watch = k, w.table.Watch(k)
	}
	v, _, superseded := w.watch.Load()
	return v, superseded
}

func (w *tableWatch[K, V]) close() {
	if w.watch != nil {
		w.watch.Close()
		w.watch = nil
	}
}

// profileWatch follows one ServiceProfile, likewise, as one of its audience.
type profileWatch struct {
	tableWatch[federation.Service, *profile.Profile]
	audiences *audiences
	seen      *profile.Profile
}

func (w *profileWatch) at(name federation.Service) (*profile.Profile, <-chan struct{}) {
	if w.watch == nil || w.key != name {
		w.close()
		w.audiences.join(name)
		w.seen = nil
	}
	p, superseded := w.tableWatch.at(name)
	if p != w.seen {
		w.seen = p
		w.audiences.see(name)
	}
	return p, superseded
}

func (w *profileWatch) close() {
	if w.watch != nil {
		w.audiences.leave(w.key)
		w.tableWatch.close()
	}
}

// serviceWatch follows one Service, likewise.
type serviceWatch struct {
	store   *federation.Store
	cluster federation.Cluster
	name    federation.Service
	watch   *federation.Watch
}

func (w *serviceWatch) at(name federation.Service) *federation.Watch {
	if w.watch == nil || w.name != name {
		w.close()
		w.name, w.watch = name, w.store.Watch(federation.Ref{Cluster: w.cluster, Service: name})
	}
	return w.watch
}

func (w *serviceWatch) close() {
	if w.watch != nil {
		w.watch.Close()
	}
}

package linkerd

import (
	"net/netip"
	"slices"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	metapb "github.com/linkerd/linkerd2-proxy-api/go/meta"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/discovery/proxyapi"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/serving"
)

// profileStream is one GetProfile stream. It belongs to the stream's goroutine. Everything that it
// sends is known here: it never waits for another cluster, because a proxy holds back all traffic to an
// IP until it has an answer.
type profileStream struct {
	*serving.Stream
	server *Server
	client serving.Client
	asked  profileTarget

	home            *federation.Watch // of no Service: it shows whether the local cluster was synced
	service         serviceWatch
	address         watch.Lookup[netip.Addr, *federation.Address]
	primary, backup profileWatch

	sent    *serving.Frame // to the client; nil for nothing
	subject subject        // of the newest answer
}

// profileLevel is everything that a message depends on. The zero one is the message for a port that its Service does
// not declare: the client falls back to the policy.
type profileLevel struct {
	of profileKey // of a Service

	at  netip.AddrPort // where a workload is; zero for a Service
	who federation.Resident
}

// GetProfile streams what is known of a Service, or of the workload at an IP. See docs/protocol.md.
func (s *Server) GetProfile(request *pb.GetDestination, sink pb.Destination_GetProfileServer) error {
	asked, err := parseTarget(request.GetPath(), s.config.ClusterDomain)
	if err != nil {
		return err
	}

	client, err := s.clientOf(request)
	if err != nil {
		return err
	}
	l := s.newProfileStream(request.GetPath(), asked, client, sink)
	defer l.close()
	return serving.Latest[profileLevel]{
		Load: l.load, Encode: s.encodeProfile, Sent: s.countProfile, Idle: proxyapi.IdleHeartbeat,
	}.Serve(l.Stream)
}

func (s *Server) newProfileStream(
	path string, asked profileTarget, client serving.Client, sink serving.Sink,
) *profileStream {
	stream := s.Serving().Open(sink, "GetProfile", path, client)
	l := &profileStream{Stream: stream, server: s, client: client, asked: asked}
	store, bell := s.Store(), l.Bell()
	l.home = store.Watch(federation.Ref{Cluster: s.config.Cluster})
	l.home.Add(bell)
	l.service = serviceWatch{store: store, cluster: s.config.Cluster, bell: bell}
	l.address = watch.NewLookup(store.Addresses.In(s.config.Cluster), bell)
	profiles := watch.NewLookup(store.Profiles.In(s.config.Cluster), bell)
	l.primary = profileWatch{followers: s.followers, Lookup: profiles}
	l.backup = l.primary
	return l
}

func (l *profileStream) close() {
	l.setSubject(subject{})
	l.home.Close()
	l.service.close()
	l.address.Close()
	l.primary.close()
	l.backup.close()
	l.Close()
}

// countProfile counts a profile that was sent.
func (s *Server) countProfile(level profileLevel) {
	if level.at.IsValid() {
		s.workloads.Inc()
	}
}

// load returns the newest level, if there is one to send. What it depends on is watched from then on, and
// ServiceProfiles that it does not depend on are not any more.
func (l *profileStream) load(now time.Time, sent *serving.Frame) (level profileLevel, known bool, err error) {
	l.sent = sent
	level, known, err = l.find(now)
	if level.of == (profileKey{}) {
		l.primary.close()
		l.backup.close()
		return level, known, err
	}
	l.addProfile(&level.of)
	return level, known, err
}

// find is load, still without ServiceProfiles.
func (l *profileStream) find(now time.Time) (level profileLevel, known bool, err error) {
	if home, _ := l.home.Load(); len(home.Unknown()) > 0 {
		return level, false, nil
	}

	name := l.asked.Service
	if l.asked.ip.IsValid() {
		a := l.address.Of(l.asked.ip)
		switch {
		case a == nil || len(a.Services) == 0:
			return l.resident(a)
		case len(a.Services) > 1:
			return level, false, l.rejectFirst(codes.FailedPrecondition, "%s is the cluster IP of %d Services: %v",
				l.asked.ip, len(a.Services), a.Services)
		}
		name = a.Services[0]
	}

	if l.asked.Hostname != "" {
		return l.instance(now, name)
	}
	return l.findService(now, name)
}

// findService is find for a Service.
func (l *profileStream) findService(now time.Time, name federation.Service) (
	level profileLevel, known bool, err error,
) {
	port, declared := l.asked.Port, l.service.declaration(name)
	switch {
	case declared == nil && l.sent == nil:
		return level, false, l.notFound(now, name)
	case declared == nil:
		l.setSubject(subject{})
		if len(l.sent.Bytes()) == 0 {
			return level, false, nil
		}
		// It was there: the default is what remains.
		declared = &federation.Declaration{Ports: []federation.ServicePort{{Number: port}}}
	default:
		l.setSubject(subject{service: name})
	}

	if !declared.Declares(port) {
		return profileLevel{}, true, nil
	}
	if declared.ExternalName {
		return level, false, status.Errorf(codes.InvalidArgument,
			"Service %s/%s is of type ExternalName, which has no profile", name.Namespace, name.Name)
	}
	level.of = profileKey{service: name, port: port, opaque: l.server.config.opaqueIn(declared.Opaque, port)}
	return level, true, nil
}

// addProfile adds the ServiceProfile of the client's namespace, or else of the Service's, if there is one.
func (l *profileStream) addProfile(key *profileKey) {
	object := federation.Service{Namespace: key.service.Namespace, Name: l.server.fullName(key.service)}
	if p := l.backup.valueOf(object); p != nil {
		key.profile, key.namespace = p, object.Namespace
	}
	if l.client.Namespace == "" || l.client.Namespace == object.Namespace {
		l.primary.close()
		return
	}
	object.Namespace = l.client.Namespace
	if p := l.primary.valueOf(object); p != nil {
		key.profile, key.namespace = p, object.Namespace
	}
}

// setSubject notes what the newest answer is about. That rarely differs from the one before, and all streams
// share what counts it.
func (l *profileStream) setSubject(s subject) {
	if l.subject != s {
		l.server.followers.moveStream(l.subject, s)
		l.subject = s
	}
}

// rejectFirst returns the error that ends a stream on which nothing was sent. What was sent once stays as it is.
func (l *profileStream) rejectFirst(code codes.Code, format string, args ...any) error {
	if l.sent != nil {
		return nil
	}
	return status.Errorf(code, format, args...)
}

// notFound ends a stream whose Service does not exist, unless it may be about to.
func (l *profileStream) notFound(now time.Time, name federation.Service) error {
	if discovery.AwaitsService(l.Stream, now) {
		return nil
	}
	return l.rejectFirst(codes.NotFound, "Service %s/%s not found", name.Namespace, name.Name)
}

// instance returns the level of the endpoint of a Service that has the hostname which is asked for.
func (l *profileStream) instance(now time.Time, name federation.Service) (level profileLevel, known bool, err error) {
	snapshot := l.service.snapshot(name)
	if snapshot.View == nil {
		return level, false, l.notFound(now, snapshot.Service)
	}
	e := instance(snapshot.View, l.asked.Hostname)
	if e == nil {
		return level, false, l.rejectFirst(codes.NotFound, "Service %s/%s has no endpoint with the hostname %s",
			snapshot.Namespace, snapshot.Name, l.asked.Hostname)
	}

	who := federation.Resident{Workload: e.Workload}
	if pending(l.address.Of(e.Addr), e.Workload) {
		who = federation.Resident{}
	}
	return l.workload(e.Addr, who), true, nil
}

// resident returns the level of an IP that is no Service's.
func (l *profileStream) resident(a *federation.Address) (level profileLevel, known bool, err error) {
	who := residents(a, l.asked.Port)
	if len(who) > 1 {
		return level, false, l.rejectFirst(codes.FailedPrecondition,
			"%s:%d is claimed by %d workloads, among them %s/%s and %s/%s", l.asked.ip, l.asked.Port, len(who),
			who[0].Namespace(), who[0].Name, who[1].Namespace(), who[1].Name)
	}

	if len(who) == 0 || !who[0].Running {
		return l.workload(l.asked.ip, federation.Resident{}), true, nil
	}
	return l.workload(l.asked.ip, who[0]), true, nil
}

// workload returns the level of a workload at an IP; of the zero Resident if none is known.
func (l *profileStream) workload(ip netip.Addr, who federation.Resident) profileLevel {
	l.setSubject(subject{workload: true})
	return profileLevel{at: netip.AddrPortFrom(ip, l.asked.Port), who: who}
}

// residents returns who answers at a port of an address: a Pod whose own the IP is, else one that the
// port leads to, else an ExternalWorkload, and several only if they have equal rights.
func residents(address *federation.Address, port uint16) (who []federation.Resident) {
	if address == nil {
		return nil
	}

	right := func(r federation.Resident) int {
		switch {
		case r.Kind() == federation.ExternalWorkload:
			return 2
		case r.Port != 0:
			return 1
		default:
			return 0
		}
	}

	for _, r := range address.Residents {
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
		return !r.Running && r.Kind() == w.Kind() && r.Namespace() == w.Namespace() && r.Name == w.Name
	})
}

// encodeProfile returns the message of a level. That of a Service is kept for others, with what its ServiceProfile was
// parsed to, which is about as large again.
func (s *Server) encodeProfile(level profileLevel) (f *serving.Frame, refers int) {
	if level.at.IsValid() {
		return s.workloadFrame(level.at, level.who), 0
	}
	if level == (profileLevel{}) {
		return undeclaredFrame, 0
	}
	f, valid := s.serviceFrame(level.of)
	if !valid {
		return f, 0
	}
	return f, len(f.Bytes())
}

// workloadFrame returns the profile of a workload.
func (s *Server) workloadFrame(at netip.AddrPort, resident federation.Resident) *serving.Frame {
	endpoint := &pb.WeightedAddr{Addr: proxyapi.Address(at), Weight: federation.Weight}
	out := &pb.DestinationProfile{Endpoint: endpoint}
	appendProfile(out, nil, at.Port())

	if resident.Workload == nil {
		out.OpaqueProtocol = s.config.opaqueIn(federation.Ports{}, at.Port())
	} else {
		s.config.addWorkload(endpoint, at.Port(), s.config.TrustDomain, resident.Workload)
		if hint := endpoint.GetProtocolHint(); hint != nil && resident.Kind() == federation.Pod && resident.Port != 0 {
			hint.OpaqueTransport = nil // the node leads to that port of the Pod only, and not to its proxy's
		}
		endpoint.MetricLabels["namespace"] = resident.Namespace()
		endpoint.MetricLabels["zone"] = ""
		out.OpaqueProtocol = s.config.opaque(resident.Template(), at.Port())
	}

	f, valid := s.profile(out)
	if !valid && resident.Workload != nil {
		return s.workloadFrame(at, federation.Resident{})
	}
	return f
}

// instance returns the first endpoint with a hostname, ready or not: over IPv4 if it can be, whatever
// the slices are called.
func instance(v *federation.View, hostname string) (found *federation.Endpoint) {
	for _, s := range v.Slices {
		for _, e := range s.Endpoints {
			if e.Hostname() == hostname && (found == nil || e.Addr.Is4() && found.Addr.Is6()) {
				found = e
			}
		}
	}
	return found
}

// ProfileOf returns which ServiceProfile clients in a namespace have for a Service; the zero Service if there is none.
func (s *Server) ProfileOf(name federation.Service, client string) (object federation.Service, p *profile.Profile) {
	profiles := s.Store().Profiles.In(s.config.Cluster)
	for _, namespace := range []string{client, name.Namespace} {
		object := federation.Service{Namespace: namespace, Name: s.fullName(name)}
		if p, found := profiles.Get(object); found {
			return object, p
		}
	}
	return federation.Service{}, nil
}

// fullName returns the name by which a Service is asked for.
func (s *Server) fullName(name federation.Service) string {
	return name.Name + "." + name.Namespace + ".svc." + s.config.ClusterDomain
}

// profileKey is everything that the profile of a Service depends on: streams with equal keys get the
// same bytes.
type profileKey struct {
	service   federation.Service
	port      uint16
	opaque    bool
	profile   *profile.Profile
	namespace string // of the ServiceProfile
}

// serviceFrame returns the profile of a Service, without the ServiceProfile if it is not valid with it.
func (s *Server) serviceFrame(key profileKey) (f *serving.Frame, valid bool) {
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

	f, valid = s.profile(out)
	if !valid && key.profile != nil {
		key.profile, key.namespace = nil, ""
		f, _ = s.serviceFrame(key)
	}
	return f, valid
}

// profile encodes a profile, which stays empty if it is not valid: if a text in it is no UTF-8, or it
// is larger than a message may be.
func (s *Server) profile(m *pb.DestinationProfile) (f *serving.Frame, valid bool) {
	b, err := marshal(m)
	if err != nil || len(b) > serving.MaxFrame {
		s.LeaveOut()
		return undeclaredFrame, false
	}
	return serving.NewFrame(typeProfile, b, 0, 0), true
}

func reference(group, kind, namespace, name string, port uint16) *metapb.Metadata {
	return &metapb.Metadata{Kind: &metapb.Metadata_Resource{
		Resource: &metapb.Resource{Group: group, Kind: kind, Namespace: namespace, Name: name, Port: uint32(port)},
	}}
}

// profileWatch watches one ServiceProfile, the one that was asked for last, and is counted as one of its followers.
type profileWatch struct {
	watch.Lookup[federation.Service, *profile.Profile]
	followers *profileFollowers
	seen      *profile.Profile
}

func (w *profileWatch) valueOf(name federation.Service) *profile.Profile {
	if !w.Watches(name) {
		w.close()
		w.followers.follow(name)
		w.seen = nil
	}
	p := w.Of(name)
	if p != w.seen {
		w.seen = p
		w.followers.noteUpdate(name)
	}
	return p
}

func (w *profileWatch) close() {
	if name, watches := w.Key(); watches {
		w.followers.unfollow(name)
		w.Close()
	}
}

// serviceWatch watches one Service, the one that was asked for last: its Declaration, or all of it.
type serviceWatch struct {
	store   *federation.Store
	cluster federation.Cluster
	bell    *watch.Bell
	name    federation.Service
	watch   *federation.Watch
}

// declaration does not ring the bell when only endpoints change.
func (w *serviceWatch) declaration(name federation.Service) *federation.Declaration {
	w.follow(name, (*federation.Watch).AddToDeclaration)
	d, _ := w.watch.Declaration()
	return d
}

func (w *serviceWatch) snapshot(name federation.Service) *federation.Snapshot {
	w.follow(name, (*federation.Watch).Add)
	s, _ := w.watch.Load()
	return s
}

func (w *serviceWatch) follow(name federation.Service, add func(*federation.Watch, *watch.Bell)) {
	if w.watch != nil && w.name == name {
		return
	}
	w.close()
	w.name, w.watch = name, w.store.Watch(federation.Ref{Cluster: w.cluster, Service: name})
	add(w.watch, w.bell)
}

func (w *serviceWatch) close() {
	if w.watch != nil {
		w.watch.Close()
	}
}

package linkerd

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	metapb "github.com/linkerd/linkerd2-proxy-api/go/meta"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery"
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
	address         tableWatch[netip.Addr, *federation.Address]
	primary, backup profileWatch

	last    *serving.Frame // what the client was sent, and is sent again as a heartbeat; nil for nothing
	subject subject        // of the newest answer
	beat    time.Time      // when a heartbeat is due; zero for never
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
	return l.Run(l.step)
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
	l.address = tableWatch[netip.Addr, *federation.Address]{table: store.Addresses(), bell: bell}
	profiles := tableWatch[federation.Service, *profile.Profile]{table: store.Profiles(), bell: bell}
	l.primary = profileWatch{followers: s.followers, tableWatch: profiles}
	l.backup = l.primary
	return l
}

func (l *profileStream) close() {
	l.setSubject(subject{})
	l.home.Close()
	l.service.close()
	l.address.close()
	l.primary.close()
	l.backup.close()
	l.Close()
}

// step makes the newest answer, and sends it if it differs from the one before.
func (l *profileStream) step(now time.Time) error {
	next := l.last
	if next != nil || l.Room(now) {
		newest, err := l.answer(now)
		if err != nil {
			return err
		}
		next = cmp.Or(newest, next)
	}

	if next != nil {
		if err := l.update(next, now); err != nil {
			return err
		}
	}
	l.WakeBy(now, l.beat)
	return nil
}

// update sends a profile if the client does not have it, or a heartbeat is due.
func (l *profileStream) update(next *serving.Frame, now time.Time) error {
	differs := l.last == nil || !bytes.Equal(next.Bytes(), l.last.Bytes())
	if !differs && now.Before(l.beat) {
		return nil
	}
	if err := l.Send(next); err != nil {
		return err
	}
	if differs && l.subject.workload {
		l.server.workloads.Inc()
	}
	l.last = next
	l.beat = time.Now().Add(serving.Jitter(idleHeartbeat)) // Send may have waited for the client
	return nil
}

// answer returns the newest profile, or nil as long as there is nothing to send. What it depends on is
// watched from then on, and ServiceProfiles that it does not depend on are not any more.
func (l *profileStream) answer(now time.Time) (*serving.Frame, error) {
	key, f, err := l.findKey(now)
	if key == (profileKey{}) {
		l.primary.close()
		l.backup.close()
		return f, err
	}
	l.addProfile(&key)
	return l.server.profileFrame(key), nil
}

// findKey returns the key of the profile of a Service, still without a ServiceProfile; or no key, and what there is to
// send instead, if anything, or the error that ends the stream.
func (l *profileStream) findKey(now time.Time) (key profileKey, f *serving.Frame, err error) {
	if home, _ := l.home.Load(); len(home.Unknown()) > 0 {
		return key, nil, nil
	}
	name := l.asked.Service
	if l.asked.ip.IsValid() {
		a := l.address.valueOf(l.asked.ip)
		switch {
		case a == nil || len(a.Services) == 0:
			f, err = l.resident(a)
			return key, f, err
		case len(a.Services) > 1:
			return key, nil, l.rejectFirst(codes.FailedPrecondition, "%s is the cluster IP of %d Services: %v",
				l.asked.ip, len(a.Services), a.Services)
		}
		name = a.Services[0]
	}
	if l.asked.Hostname != "" {
		f, err = l.instance(now, name)
		return key, f, err
	}
	return l.findService(now, name)
}

// findService is findKey for a Service.
func (l *profileStream) findService(now time.Time, name federation.Service) (
	key profileKey, f *serving.Frame, err error,
) {
	port, declared := l.asked.Port, l.service.declaration(name)
	switch {
	case declared == nil && l.last == nil:
		return key, nil, l.notFound(now, name)
	case declared == nil:
		l.setSubject(subject{})
		if len(l.last.Bytes()) == 0 {
			return key, nil, nil
		}
		// It was there: the default is what remains.
		declared = &federation.Declaration{Ports: []federation.ServicePort{{Number: port}}}
	default:
		l.setSubject(subject{service: name})
	}
	if !declared.Declares(port) {
		return key, undeclaredFrame, nil
	}
	if declared.ExternalName {
		return key, nil, status.Errorf(codes.InvalidArgument,
			"Service %s/%s is of type ExternalName, which has no profile", name.Namespace, name.Name)
	}
	return profileKey{service: name, port: port, opaque: l.server.config.opaqueIn(declared.Opaque, port)}, nil, nil
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
	if l.last != nil {
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

// instance returns the profile of the endpoint of a Service that has the hostname which is asked for.
func (l *profileStream) instance(now time.Time, name federation.Service) (*serving.Frame, error) {
	snapshot := l.service.snapshot(name)
	if snapshot.View == nil {
		return nil, l.notFound(now, snapshot.Service)
	}
	e := instance(snapshot.View, l.asked.Hostname)
	if e == nil {
		return nil, l.rejectFirst(codes.NotFound, "Service %s/%s has no endpoint with the hostname %s",
			snapshot.Namespace, snapshot.Name, l.asked.Hostname)
	}
	who := federation.Resident{Workload: e.Workload}
	if pending(l.address.valueOf(e.Addr), e.Workload) {
		who = federation.Resident{}
	}
	return l.workloadFrame(e.Addr, who), nil
}

// resident returns the profile of an IP that is no Service's.
func (l *profileStream) resident(a *federation.Address) (*serving.Frame, error) {
	who := residents(a, l.asked.Port)
	if len(who) > 1 {
		return nil, l.rejectFirst(codes.FailedPrecondition,
			"%s:%d is claimed by %d workloads, among them %s/%s and %s/%s", l.asked.ip, l.asked.Port, len(who),
			who[0].Namespace(), who[0].Name, who[1].Namespace(), who[1].Name)
	}
	if len(who) == 0 || !who[0].Running {
		return l.workloadFrame(l.asked.ip, federation.Resident{}), nil
	}
	return l.workloadFrame(l.asked.ip, who[0]), nil
}

// residents returns who answers at a port of an address: a Pod whose own the IP is, else one that the
// port leads to, else an ExternalWorkload, and several only if they have equal rights.
func residents(a *federation.Address, port uint16) (who []federation.Resident) {
	if a == nil {
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
		return !r.Running && r.Kind() == w.Kind() && r.Namespace() == w.Namespace() && r.Name == w.Name
	})
}

// workloadFrame returns the profile of a workload at an IP; of the zero Resident if none is known.
func (l *profileStream) workloadFrame(ip netip.Addr, w federation.Resident) *serving.Frame {
	l.setSubject(subject{workload: true})
	config, port := &l.server.config, l.asked.Port
	endpoint := &pb.WeightedAddr{Addr: tcpAddress(netip.AddrPortFrom(ip, port)), Weight: federation.Weight}
	out := &pb.DestinationProfile{Endpoint: endpoint}
	appendProfile(out, nil, port)
	if w.Workload == nil {
		out.OpaqueProtocol = config.opaqueIn(federation.Ports{}, port)
	} else {
		config.addWorkload(endpoint, port, config.TrustDomain, w.Workload)
		if hint := endpoint.GetProtocolHint(); hint != nil && w.Kind() == federation.Pod && w.Port != 0 {
			hint.OpaqueTransport = nil // the node leads to that port of the Pod only, and not to its proxy's
		}
		endpoint.MetricLabels["namespace"] = w.Namespace()
		endpoint.MetricLabels["zone"] = ""
		out.OpaqueProtocol = config.opaque(w.Template(), port)
	}
	f, valid := l.server.profile(out)
	if !valid && w.Workload != nil {
		return l.workloadFrame(ip, federation.Resident{})
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

// profileFrame returns the encoded profile of a Service.
func (s *Server) profileFrame(key profileKey) *serving.Frame {
	if f, known := s.Serving().Cache().Find(key); known {
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
	f, valid := s.profile(out)
	if !valid && key.profile != nil {
		key.profile, key.namespace = nil, ""
		return s.profileFrame(key)
	}
	s.Serving().Cache().Keep(key, f, len(f.Bytes())) // the key holds on to what was parsed, about as much again
	return f
}

// profile encodes a profile, which stays empty if it is not valid: if a text in it is no UTF-8, or it
// is larger than a message may be.
func (s *Server) profile(m *pb.DestinationProfile) (f *serving.Frame, valid bool) {
	b, err := marshal(m)
	if err != nil || len(b) > serving.MaxFrame {
		s.LeaveOut()
		return undeclaredFrame, false
	}
	return serving.NewFrame(kindProfile, b, 0, 0), true
}

func reference(group, kind, namespace, name string, port uint16) *metapb.Metadata {
	return &metapb.Metadata{Kind: &metapb.Metadata_Resource{
		Resource: &metapb.Resource{Group: group, Kind: kind, Namespace: namespace, Name: name, Port: uint32(port)},
	}}
}

// tableWatch watches one key of a Table, the one that was asked for last.
type tableWatch[K comparable, V any] struct {
	table watch.Reader[K, V]
	bell  *watch.Bell
	key   K
	watch *watch.Watch[K, V]
}

func (w *tableWatch[K, V]) valueOf(k K) V {
	if w.watch == nil || w.key != k {
		w.close()
		w.key, w.watch = k, w.table.Watch(k)
		w.watch.Add(w.bell)
	}
	v, _, _ := w.watch.Load()
	return v
}

func (w *tableWatch[K, V]) close() {
	if w.watch != nil {
		w.watch.Close()
		w.watch = nil
	}
}

// profileWatch watches one ServiceProfile, likewise, and is counted as one of its followers.
type profileWatch struct {
	tableWatch[federation.Service, *profile.Profile]
	followers *profileFollowers
	seen      *profile.Profile
}

func (w *profileWatch) valueOf(name federation.Service) *profile.Profile {
	if w.watch == nil || w.key != name {
		w.close()
		w.followers.follow(name)
		w.seen = nil
	}
	p := w.tableWatch.valueOf(name)
	if p != w.seen {
		w.seen = p
		w.followers.noteUpdate(name)
	}
	return p
}

func (w *profileWatch) close() {
	if w.watch != nil {
		w.followers.unfollow(w.key)
		w.tableWatch.close()
	}
}

// serviceWatch watches one Service, likewise: its Declaration, or all of it.
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

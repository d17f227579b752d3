package policyapi_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	inbound "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/serving"
)

// A world is a Server, and what the local cluster writes.
type world struct {
	t         *testing.T
	server    *policyapi.Server
	serving   *serving.Server
	store     *federation.Store
	workloads *facts.Writer[rules.WorkloadRef, *rules.Workload]
	servers   *facts.Writer[string, *rules.NamespaceServers]
	targets   *facts.Writer[rules.Reference, *rules.Target]
	egress    *facts.Writer[string, *rules.NamespaceEgress]
	addresses *facts.Writer[netip.Addr, *federation.Address]
	findings  *facts.Writer[rules.Reference, *rules.ObjectFindings]
	wg        sync.WaitGroup
}

const local federation.Cluster = "local"

func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := federation.NewStore()
		levels := rules.NewLevels(store)
		store.AddCluster(local, federation.Expectation{Local: true})
		config := serving.DefaultConfig()
		config.MaxStreamAge = 0
		w := &world{
			t: t, serving: serving.NewServer(logr.Discard(), config), store: store,
			workloads: levels.Workloads.NewWriter(local), servers: levels.Servers.NewWriter(local),
			targets: levels.Targets.NewWriter(local), egress: levels.Egress.NewWriter(local),
			addresses: store.Addresses.NewWriter(local), findings: levels.Findings.NewWriter(local),
		}
		options := options()
		options.ClusterNetworks = []rules.Network{network("10.0.0.0/8")}
		options.EgressNamespace = "linkerd-egress"
		w.server = policyapi.NewServer(logr.Discard(), w.serving, levels.In(store, local), options)
		test(w)
		w.wg.Wait()
	})
}

func network(cidr string) rules.Network {
	n, err := rules.ParseNetwork(cidr, nil)
	if err != nil {
		panic(err)
	}
	return n
}

func (w *world) list() {
	w.workloads.MarkSynced()
	w.servers.MarkSynced()
	w.targets.MarkSynced()
	w.egress.MarkSynced()
	w.addresses.MarkSynced()
}

// A stream is a client's end of one. Every message passes the model of what a proxy refuses.
type stream struct {
	grpc.ServerStream
	t      *testing.T
	ctx    context.Context
	cancel context.CancelFunc
	decode func([]byte) (string, error)

	mu       sync.Mutex // guards what follows
	messages []string
	frame    *serving.Frame // the last one
	ended    bool
	err      error
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) SendMsg(message any) error {
	text, err := s.decode(message.(*serving.Frame).Bytes())
	if err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages, s.frame = append(s.messages, text), message.(*serving.Frame)
	return nil
}

// elapse lets time pass in a bubble.
func elapse(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
	synctest.Wait()
}

// take returns the messages since it was called last.
func (s *stream) take() (messages []string) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	messages, s.messages = s.messages, nil
	return messages
}

func (w *world) open(decode func([]byte) (string, error), serve func(*stream) error) *stream {
	ctx, cancel := context.WithCancel(w.t.Context())
	s := &stream{t: w.t, ctx: ctx, cancel: cancel, decode: decode}
	w.wg.Go(func() {
		err := serve(s)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err, s.ended = err, true
	})
	synctest.Wait()
	return s
}

func (w *world) watchPort(workload string, port uint32) *stream {
	return w.open(func(b []byte) (string, error) {
		message := new(inbound.Server)
		if err := proto.Unmarshal(b, message); err != nil {
			return "", err
		}
		_, err := policy.DecodeInbound(message)
		return message.GetLabels()["kind"] + " " + message.GetLabels()["name"], err
	}, func(s *stream) error {
		return w.server.WatchPort(&inbound.PortSpec{Workload: workload, Port: port}, inboundSink{s})
	})
}

type inboundSink struct{ *stream }

func (s inboundSink) Send(*inbound.Server) error { panic("not used") }

type outboundSink struct{ *stream }

func (s outboundSink) Send(*outbound.OutboundPolicy) error { panic("not used") }

func (w *world) watch(spec *outbound.TrafficSpec) *stream {
	spec.SourceWorkload = "shop:client"
	return w.open(func(b []byte) (string, error) {
		message := new(outbound.OutboundPolicy)
		if err := proto.Unmarshal(b, message); err != nil {
			return "", err
		}
		_, err := policy.DecodeOutbound(message)
		text := message.GetMetadata().GetDefault()
		if r := message.GetMetadata().GetResource(); r != nil {
			text = fmt.Sprintf("%s:%d", r.GetName(), r.GetPort())
		}
		switch protocol := message.GetProtocol(); {
		case protocol.GetOpaque() != nil:
			text += " " + protocol.GetOpaque().GetRoutes()[0].GetMetadata().GetDefault()
		case protocol.GetHttp1() != nil:
			text += " http1"
		case protocol.GetHttp2() != nil:
			text += " http2"
		}
		return text, err
	}, func(s *stream) error { return w.server.Watch(spec, outboundSink{s}) })
}

func to(address string) *outbound.TrafficSpec {
	at := netip.MustParseAddrPort(address)
	b := at.Addr().As4()
	ip := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	return &outbound.TrafficSpec{Target: &outbound.TrafficSpec_Addr{Addr: &netpb.TcpAddress{
		Ip: &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: ip}}, Port: uint32(at.Port()),
	}}}
}

func sentBy(workload, authority string) *outbound.TrafficSpec {
	spec := named(authority)
	spec.SourceWorkload = workload
	return spec
}

func named(authority string) *outbound.TrafficSpec {
	return &outbound.TrafficSpec{Target: &outbound.TrafficSpec_Authority{Authority: authority}}
}

func (w *world) wants(id string, s *stream, want ...string) {
	w.t.Helper()
	if got := s.take(); fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("%s: messages %q, want %q", id, got, want)
	}
}

func (w *world) wantsEnd(id string, s *stream, code codes.Code) {
	w.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended || status.Code(s.err) != code {
		w.t.Errorf("%s: ended %t, %v; want %v", id, s.ended, s.err, code)
	}
	if s.ended && code == codes.OK && s.err != nil {
		w.t.Errorf("%s: %v", id, s.err)
	}
}

// setServers makes these the Servers of shop.
func (w *world) setServers(all ...*rules.Server) {
	objects := &rules.NamespaceObjects{Servers: all}
	w.servers.Set("shop", options().Of(objects))
}

func (w *world) setPod(name string) {
	w.workloads.Set(rules.WorkloadRef{Namespace: "shop", Name: name}, &rules.Workload{
		Namespace: "shop", Labels: map[string]string{"app": name},
	})
}

func serverOf(port uint16) *rules.Server {
	return &rules.Server{
		Meta: rules.Meta{Reference: rules.Reference{Kind: rules.KindServer, Namespace: "shop", Name: "v"}},
		Pods: &rules.LabelSelector{}, Port: rules.PortRef{Number: port},
	}
}

func TestWatchPort(t *testing.T) {
	inWorld(t, func(w *world) {
		early := w.watchPort("shop:p", 8080)
		w.wants("before everything is listed", early)
		w.setPod("p")
		w.list()
		w.wants("PN01", early, "default all-unauthenticated")

		w.setServers(serverOf(8080))
		w.wants("PN30", early, "server v")
		late := w.watchPort(`{"ns":"shop","pod":"p"}`+"\n", 8080)
		w.wants("PN04, a late stream", late, "server v")
		w.setServers(serverOf(9090))
		w.wants("PN31", early, "default all-unauthenticated")
		w.setPod("p")
		w.wants("PN26", early)
		elapse(5 * time.Minute)
		w.wants("PP16", early, "default all-unauthenticated")

		w.workloads.Delete(rules.WorkloadRef{Namespace: "shop", Name: "p"})
		w.wantsEnd("4.9", early, codes.OK)
		w.wantsEnd("4.9", late, codes.OK)
		w.wantsEnd("PN08", w.watchPort("shop:nobody", 80), codes.NotFound)
		for _, workload := range []string{
			"p", "shop:", ":p", `{"ns":"shop"}`, "{", "", `{"ns":"shop","pod":"p"}x`, `{"ns":"shop","pod":1}`,
		} {
			w.wantsEnd("PN06 "+workload, w.watchPort(workload, 80), codes.InvalidArgument)
		}
		w.wantsEnd("port 0", w.watchPort("shop:p", 0), codes.InvalidArgument)

		w.workloads.Set(rules.WorkloadRef{External: true, Namespace: "shop", Name: "w"}, &rules.Workload{
			External: true, Namespace: "shop",
		})
		w.wantsEnd("PN05", w.watchPort(`{"ns":"shop","pod":"p","external_workload":"w"}`, 80), codes.NotFound)
		for _, workload := range []string{
			`{"ns":"shop","external_workload":"w","pod":"p"}`, `{"x":["pod"],"external_workload":"w","pod":"p","ns":"shop"}`,
		} {
			external := w.watchPort(workload, 80)
			w.wants("PN05 "+workload, external, "default all-unauthenticated")
			external.cancel()
		}
	})
}

// A call waits until everything was listed, for 10 s at most (PP02).
func TestUnlisted(t *testing.T) {
	inWorld(t, func(w *world) {
		stream := w.watchPort("shop:p", 80)
		elapse(9 * time.Second)
		w.wants("PP02", stream)
		elapse(2 * time.Second)
		w.wantsEnd("PP02", stream, codes.Unavailable)

		began := time.Now()
		_, err := w.server.Get(w.t.Context(), &outbound.TrafficSpec{
			SourceWorkload: "shop:c", Target: named("web.shop.svc.cluster.local").GetTarget(),
		})
		if status.Code(err) != codes.Unavailable || time.Since(began) != 10*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		if _, err := w.server.GetPort(ctx, &inbound.PortSpec{Workload: "shop:p", Port: 80}); status.Code(err) !=
			codes.DeadlineExceeded {
			t.Error(err)
		}
	})
}

var serviceIP = netip.MustParseAddr("10.96.0.10")

// setService has a Service with these ports at serviceIP.
func (w *world) setService(name string, ports ...uint16) {
	reference := rules.Reference{Kind: rules.KindService, Namespace: "shop", Name: name}
	target := &rules.Target{Reference: reference, Exists: true}
	for _, port := range ports {
		target.Ports = append(target.Ports, rules.ServicePort{NamedPort: rules.NamedPort{Number: port}})
	}
	w.targets.Set(reference, target)
	w.addresses.Set(serviceIP, &federation.Address{
		Services: []federation.Service{{Namespace: "shop", Name: name}},
	})
}

func (w *world) setEgress(name string, cidrs ...string) {
	e := &rules.EgressNetwork{Meta: rules.Meta{Reference: rules.Reference{
		Kind: rules.KindEgressNetwork, Namespace: "shop", Name: name,
	}}}
	for _, cidr := range cidrs {
		e.Networks = append(e.Networks, network(cidr))
	}
	w.targets.Set(e.Reference, &rules.Target{Reference: e.Reference})
	w.egress.Set("shop", &rules.NamespaceEgress{All: []*rules.EgressNetwork{e}})
}

func TestWatch(t *testing.T) {
	inWorld(t, func(w *world) {
		w.setService("web", 8080)
		w.list()
		stream := w.watch(to("10.96.0.10:8080"))
		w.wants("PO01", stream, "web:8080")
		undeclared := w.watch(to("10.96.0.10:7777"))
		w.wants("PO05", undeclared, "web:7777 undefined-port")
		w.setService("web", 8080, 7777)
		w.wants("PO06", undeclared, "web:7777")
		w.wants("PO06 at another port", stream)

		w.addresses.Delete(serviceIP)
		elapse(20 * time.Minute)
		w.wants("PO07", stream)
		w.wantsEnd("PO07", w.watch(to("10.96.0.10:8080")), codes.NotFound)
		w.setService("web", 8080, 7777)
		elapse(5 * time.Minute)
		w.wants("it is there again", stream, "web:8080")
		w.addresses.Delete(serviceIP)
		w.setService("api", 8080)
		w.wantsEnd("PO08", stream, codes.OK)
		w.wantsEnd("PO08", undeclared, codes.OK)

		w.wantsEnd("PO03", w.watch(to("10.8.255.255:80")), codes.NotFound)
		fallback := w.watch(to("198.51.100.7:443"))
		w.wants("7.4", fallback, "egress-fallback")
		w.setEgress("out", "203.0.113.0/24")
		w.wants("PO10", fallback)
		w.setEgress("out", "198.51.100.0/24")
		w.wantsEnd("PO09", fallback, codes.OK)
		egress := w.watch(to("198.51.100.7:443"))
		w.wants("PO09", egress, "out:443")
		w.egress.Delete("shop")
		w.wantsEnd("PO09", egress, codes.OK)
	})
}

// Which Service an address stands for follows from all that have it, in whatever order they are read.
func TestWatchSharedAddress(t *testing.T) {
	inWorld(t, func(w *world) {
		w.addresses.Set(serviceIP, &federation.Address{Services: []federation.Service{
			{Namespace: "shop", Name: "heir"}, {Namespace: "shop", Name: "web"},
		}})
		read := func(name string, year int) {
			reference := rules.Reference{Kind: rules.KindService, Namespace: "shop", Name: name}
			w.targets.Set(reference, &rules.Target{
				Reference: reference, Exists: true, Created: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC),
				Ports: []rules.ServicePort{{NamedPort: rules.NamedPort{Number: 80}}},
			})
		}
		w.list()

		early := w.watch(to("10.96.0.10:80"))
		w.wants("nothing is read", early)
		read("heir", 2026)
		w.wants("one is read", early, "heir:80")
		read("web", 2025)
		w.wantsEnd("the older one is read", early, codes.OK)
		late := w.watch(to("10.96.0.10:80"))
		w.wants("PO24", late, "web:80")
		w.targets.Delete(web)
		w.wantsEnd("PO08", late, codes.OK)
	})
}

// An EgressNetwork of which nothing else is read, yet or any more, has no answer: it may deny everything.
func TestWatchUnreadEgress(t *testing.T) {
	inWorld(t, func(w *world) {
		unread := rules.Reference{Kind: rules.KindEgressNetwork, Namespace: "shop", Name: "far"}
		w.setEgress("far", "198.51.100.0/24")
		w.targets.Delete(unread)
		w.list()

		stream := w.watch(to("198.51.100.7:443"))
		w.wants("it is not read", stream)
		w.setEgress("far", "198.51.100.0/24")
		w.wants("it is read", stream, "far:443")
		w.targets.Delete(unread)
		w.wants("it is about to go", stream)
		w.egress.Delete("shop")
		w.wantsEnd("it is gone", stream, codes.OK)
	})
}

// A Service that stands for others has the protocol that they declare, unless it declares one itself.
func TestImportedProtocol(t *testing.T) {
	inWorld(t, func(w *world) {
		web := federation.Service{Namespace: "shop", Name: "web"}
		target := &rules.Target{
			Reference: rules.Reference{Kind: rules.KindService, Namespace: "shop", Name: "web"}, Exists: true,
			Ports: []rules.ServicePort{{NamedPort: rules.NamedPort{Number: 80}}}, Imports: true,
		}
		composition := &federation.Composition{Union: true}
		remote := map[federation.Cluster]*federation.ClusterWriter{}
		for _, c := range []federation.Cluster{"east", "west"} {
			ref := federation.Ref{Cluster: c, Service: web}
			composition.Members = append(composition.Members, federation.MemberRef{Ref: ref})
			w.store.AddCluster(c, federation.Expectation{})
			remote[c] = w.store.NewWriter(c)
		}
		w.store.NewWriter(local).Set(web, &federation.View{Composition: composition})
		w.targets.Set(target.Reference, target)
		w.list()
		stream := w.watch(named("web.shop.svc.cluster.local:80"))

		const http1, http2, detect, opaque = "web:80 http1", "web:80 http2", "web:80", "web:80 opaq"
		declares := func(c federation.Cluster, app string, opaque ...federation.PortRange) {
			view := &federation.View{Ports: []federation.ServicePort{{Number: 80, App: app}}}
			if len(opaque) > 0 {
				view.Opaque = federation.PortsOf(opaque...)
			}
			remote[c].Set(web, view)
		}
		w.wants("no member declares anything", stream, detect)
		declares("east", "kubernetes.io/h2c")
		w.wants("PM07: h2c and nothing", stream, http2)
		declares("west", "kubernetes.io/h2c")
		w.wants("PM07: h2c and h2c", stream)
		declares("west", "http")
		w.wants("PM07: h2c and http", stream, detect)
		declares("west", "")
		w.wants("PM05", stream, http2)
		w.store.SetState("east", federation.Stale)
		w.wants("PM09: out of contact", stream)

		own := *target
		own.Ports = []rules.ServicePort{{NamedPort: rules.NamedPort{Number: 80}, AppProtocol: "http"}}
		w.targets.Set(target.Reference, &own)
		w.wants("PM06", stream, http1)
		w.targets.Set(target.Reference, target)
		w.wants("PM06: no more", stream, http2)
		w.store.RemoveCluster("east")
		w.wants("PM09: unlinked", stream, detect)
		declares("west", "", federation.PortRange{First: 80, Last: 90})
		w.wants("PM08", stream, opaque)
		stream.cancel()
	})
}

func TestWatchNames(t *testing.T) {
	inWorld(t, func(w *world) {
		w.setService("web", 8080)
		w.list()
		for authority, want := range map[string]string{
			"web.shop.svc.cluster.local:8080": "web:8080", "web.shop.svc.cluster.local.:8080": "web:8080",
			"web.shop.svc:8080": "web:8080", "web.shop.svc.cluster.local": "web:80",
			"ghost.shop.svc.cluster.local:80": "ghost:80",
		} {
			stream := w.watch(named(authority))
			w.wants("PO13, PO14, PO17 "+authority, stream, want)
			stream.cancel()
		}
		for authority, want := range map[string]codes.Code{
			"web.shop.svc.other.domain:8080": codes.NotFound, "web.shop.example:80": codes.NotFound,
			"web.shop.svc.cluster.local.cluster.local": codes.NotFound,
			":80": codes.InvalidArgument, "a b": codes.InvalidArgument, "": codes.InvalidArgument,
			"web.shop.svc:70000": codes.InvalidArgument, "a!b.shop.svc:80": codes.NotFound, "[::1]:80": codes.NotFound,
			strings.Repeat("a", 64) + ".shop.svc": codes.NotFound, "%ff.shop.svc": codes.InvalidArgument,
		} {
			w.wantsEnd("PO15, PO16 "+authority, w.watch(named(authority)), want)
		}
		w.wantsEnd("PO11", w.watch(&outbound.TrafficSpec{}), codes.InvalidArgument)
		w.wantsEnd("PO11", w.watch(&outbound.TrafficSpec{Target: &outbound.TrafficSpec_Addr{}}), codes.InvalidArgument)

		stream := w.watch(named("web.shop.svc.cluster.local:8080"))
		w.wants("PO01", stream, "web:8080")
		w.targets.Delete(web)
		w.wants("D38: a Service that goes is one without annotations", stream)
		stream.cancel()
	})
}

// hugeRoute returns a route to Service web by so many paths of 4 KB.
func hugeRoute(matches int) *rules.Route {
	rule := rules.Rule{}
	for i := range matches {
		rule.Matches = append(rule.Matches, rules.Match{Path: rules.PathMatch{
			Type: rules.PathExact, Text: fmt.Sprintf("/%04d%s", i, strings.Repeat("a", 4091)),
		}})
	}
	return &rules.Route{
		Meta: rules.Meta{Reference: rules.Reference{
			Kind: rules.KindHTTPRoute, Namespace: "shop", Name: "huge",
		}},
		Parents: []rules.Parent{{Reference: web}}, Rules: []rules.Rule{rule},
	}
}

// A message that clients could not decode is refused, with the reason. Who has one keeps it, and who asks again is not
// encoded for. Others are answered as before, and so are all once the object is smaller.
func TestTooLarge(t *testing.T) {
	inWorld(t, func(w *world) {
		w.setService("web", 8080)
		w.setService("api", 8080)
		w.list()
		early := w.watch(named("web.shop.svc:8080"))
		w.wants("TL", early, "web:8080")

		setRoute := func(route *rules.Route) {
			parent := rules.ParentObject{Reference: web, Exists: true, HasIP: true}
			w.targets.Set(web, &rules.Target{
				Reference: web, Exists: true, Ports: []rules.ServicePort{{NamedPort: rules.NamedPort{Number: 8080}}},
				Attached: rules.Attach(parent, []*rules.Route{route}), Found: map[rules.Reference]bool{web: true},
			})
		}
		setRoute(hugeRoute(1200))
		w.wants("TL: kept", early)
		for range 3 {
			w.wantsEnd("TL: refused", w.watch(named("web.shop.svc:8080")), codes.ResourceExhausted)
		}

		_, err := w.server.Get(t.Context(), sentBy("shop:client", "web.shop.svc:8080"))
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(fmt.Sprint(err), "Service shop/web") {
			t.Errorf("a call ends with %v", err)
		}
		x, err := w.server.ExplainOutbound("web.shop:8080", "shop")
		if err != nil || len(x.Findings) == 0 || !strings.Contains(x.Findings[0].Lines[0], "no client gets it") {
			t.Errorf("an explanation has %+v, %v", x.Findings, err)
		}
		if all := w.server.TooLarge(); len(all) != 1 || all[0].Of != web || all[0].Bytes <= serving.MaxFrame {
			t.Errorf("too large are %+v", all)
		}
		if got := w.serving.Cache().Bytes(); got > 2*serving.MaxFrame {
			t.Errorf("%d bytes are kept", got)
		}
		another := w.watch(named("api.shop.svc:8080"))
		w.wants("TL: another", another, "api:8080")

		setRoute(hugeRoute(3))
		w.wants("TL: smaller", early, "web:8080")
		again := w.watch(named("web.shop.svc:8080"))
		w.wants("TL: smaller", again, "web:8080")
		elapse(11 * time.Second)
		if all := w.server.TooLarge(); len(all) > 0 {
			t.Errorf("too large are %+v, after it was mended", all)
		}
		for _, s := range []*stream{early, another, again} {
			s.cancel()
		}
	})
}

// Another level of the same bytes is not sent, and what is kept does not grow by it.
func TestSameBytes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.setService("web", 8080)
		w.list()
		var streams []*stream
		for range 100 {
			streams = append(streams, w.watch(to("10.96.0.10:8080")))
		}
		size := w.serving.Cache().Bytes()
		w.setService("web", 8080, 9090) // another level, of the same bytes
		for _, stream := range streams {
			w.wants("once", stream, "web:8080")
		}
		if got := w.serving.Cache().Bytes(); got > 3*size {
			t.Errorf("the cache grew from %d to %d bytes", size, got)
		}
		for _, stream := range streams {
			stream.cancel()
		}
	})
}

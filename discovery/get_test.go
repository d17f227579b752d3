package discovery

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
)

var web = federation.Service{Namespace: "ns", Name: "web"}

const path = "web.ns.svc.cluster.local:80"

// sliceOf returns a slice with n bare addresses from 10.<salt>.0.0 on.
func sliceOf(name string, salt, n int) *federation.Slice {
	s := &federation.Slice{Name: name, Ports: []federation.Port{{Number: 8080, Name: "http"}}}
	for i := range n {
		s.Endpoints = append(s.Endpoints, &federation.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(salt), byte(i >> 8), byte(i)}), Ready: true})
	}
	return s
}

func viewOf(slices ...*federation.Slice) *federation.View {
	return &federation.View{Ports: []federation.ServicePort{{Number: 80, Name: "http"}}, Slices: slices}
}

// local returns a Store in which the local cluster has been heard, and its voice.
func local(views map[federation.Service]*federation.View) (*federation.Store, *federation.Claims) {
	store := federation.NewStore()
	store.Listed()
	store.Expect("local", federation.Expectation{TrustDomain: "cluster.local", Since: time.Now(), Local: true})
	claims := store.Claim("local")
	for svc, v := range views {
		claims.Set(svc, v)
	}
	claims.Complete()
	return store, claims
}

// sinkStream is the server's end of a stream whose client reads when it is let.
type sinkStream struct {
	ctx  context.Context
	gate chan struct{} // closed: the client reads

	mu       sync.Mutex
	fold     proxy.Fold
	frames   []*frame
	problems []error
}

func newSink(ctx context.Context) *sinkStream {
	return &sinkStream{ctx: ctx, gate: make(chan struct{})}
}

func (s *sinkStream) Context() context.Context     { return s.ctx }
func (s *sinkStream) SetHeader(metadata.MD) error  { return nil }
func (s *sinkStream) SendHeader(metadata.MD) error { return nil }
func (s *sinkStream) SetTrailer(metadata.MD)       {}
func (s *sinkStream) RecvMsg(any) error            { return nil }
func (s *sinkStream) Send(*pb.Update) error        { panic("frames only") }
func (s *sinkStream) SendMsg(message any) error {
	select {
	case <-s.gate:
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := message.(*frame)
	var u pb.Update
	if err := proto.Unmarshal(f.bytes, &u); err != nil {
		return err
	}
	if _, err := s.fold.Apply(&u); err != nil {
		s.problems = append(s.problems, err)
	}
	s.frames = append(s.frames, f)
	return nil
}

func (s *sinkStream) holds() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []netip.AddrPort
	for _, a := range s.fold.Addresses() {
		all = append(all, a.Addr)
	}
	return all
}

func (s *sinkStream) sent() []*frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.frames)
}

// Streams of equal Targets get the very same bytes; a client whose place makes no difference shares them.
func TestFramesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, claims := local(map[federation.Service]*federation.View{web: viewOf(sliceOf("a", 1, 3))})
		claims.SetNode("n1", "z1")
		server := NewServer(logr.Discard(), store, Defaults())
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		sinks := map[string]*sinkStream{}
		for i, token := range []string{"", `{"nodeName":"n1"}`, `{"nodeName":"n2"}`} {
			s := newSink(ctx)
			close(s.gate)
			sinks[fmt.Sprint(i)] = s
			wg.Go(func() { _ = server.Get(&pb.GetDestination{Path: path, ContextToken: token}, s) })
		}
		synctest.Wait()
		claims.Set(web, viewOf(sliceOf("a", 1, 4)))
		synctest.Wait()
		first := sinks["0"].sent()
		if len(first) != 2 {
			t.Fatalf("%d messages", len(first))
		}
		for name, s := range sinks {
			for i, f := range s.sent() {
				if &f.bytes[0] != &first[i].bytes[0] {
					t.Errorf("stream %s got message %d encoded anew", name, i)
				}
			}
		}
		cancel()
		wg.Wait()
	})
}

// A large Service is told in messages that a proxy can decode, and the bytes that are kept have a bound.
func TestLargeServicesAreChunked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20_000
		large := sliceOf("a", 1, n)
		for _, e := range large.Endpoints {
			e.Mirror = &federation.Mirror{Identity: strings.Repeat("gateway.", 16) + "linkerd", Name: strings.Repeat("web.", 16) + "svc"}
		}
		store, _ := local(map[federation.Service]*federation.View{web: viewOf(large)})
		config := Defaults()
		config.FrameBytes = 1 << 20
		server := NewServer(logr.Discard(), store, config)
		ctx, cancel := context.WithCancel(t.Context())
		s := newSink(ctx)
		close(s.gate)
		var wg sync.WaitGroup
		wg.Go(func() { _ = server.Get(&pb.GetDestination{Path: path}, s) })
		synctest.Wait()
		frames := s.sent()
		total := 0
		for _, f := range frames {
			total += f.bytes.Len()
			if f.bytes.Len() > proxy.MaxMessage {
				t.Errorf("a message of %d bytes", f.bytes.Len())
			}
		}
		if got := len(s.holds()); got != n || len(frames) < 2 {
			t.Errorf("%d addresses in %d messages, %d bytes", got, len(frames), total)
		}
		cancel()
		wg.Wait()
	})
}

// What is encoded by hand decodes to what the message says, and nothing is encoded twice.
func TestEncodingIsProtobuf(t *testing.T) {
	config := Defaults()
	store, _ := local(map[federation.Service]*federation.View{web: viewOf(sliceOf("a", 1, 2))})
	watch := store.Watch(federation.Ref{Cluster: "local", Service: web})
	defer watch.Close()
	snapshot, _ := watch.Load()
	set := federation.Select(snapshot, federation.Query{Port: 80}, nil).Near(federation.Locality{}, nil)
	e := encoder{config: &config, port: 80}
	frames, _ := e.encode(nil, set)
	if len(frames) != 1 {
		t.Fatalf("%d frames", len(frames))
	}
	var got pb.Update
	if err := proto.Unmarshal(frames[0].bytes, &got); err != nil {
		t.Fatal(err)
	}
	want := &pb.WeightedAddrSet{MetricLabels: map[string]string{"service": "web", "namespace": "ns"}}
	for entry := range set.All() {
		want.Addrs = append(want.Addrs, e.weightedAddr(entry))
	}
	if !proto.Equal(&got, &pb.Update{Update: &pb.Update_Add{Add: want}}) {
		t.Errorf("got %v\nwant %v", &got, want)
	}
}

// Labels that all addresses of a message have in common stand on the message, others on the address.
func TestSetLabels(t *testing.T) {
	other := federation.Service{Namespace: "ns", Name: "web-2"}
	fed := federation.Service{Namespace: "ns", Name: "fed"}
	store, _ := local(map[federation.Service]*federation.View{
		web: viewOf(sliceOf("a", 1, 1)), other: viewOf(sliceOf("b", 2, 1)),
		fed: {Ports: []federation.ServicePort{{Number: 80, Name: "http"}}, Composition: &federation.Composition{Union: true, Members: []federation.Term{
			{Ref: federation.Ref{Cluster: "local", Service: web}}, {Ref: federation.Ref{Cluster: "local", Service: other}},
		}}},
	})
	watch := store.Watch(federation.Ref{Cluster: "local", Service: fed})
	defer watch.Close()
	snapshot, _ := watch.Load()
	config := Defaults()
	set := federation.Select(snapshot, federation.Query{Port: 80}, nil).Near(federation.Locality{}, nil)
	var u pb.Update
	frames, _ := encoder{config: &config, port: 80}.encode(nil, set)
	if err := proto.Unmarshal(frames[0].bytes, &u); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"namespace": "ns"}; !maps.Equal(u.GetAdd().GetMetricLabels(), want) {
		t.Errorf("the message has labels %v, want %v", u.GetAdd().GetMetricLabels(), want)
	}
	for i, want := range []string{"web", "web-2"} {
		if got := u.GetAdd().GetAddrs()[i].GetMetricLabels()["service"]; got != want {
			t.Errorf("address %d is of service %q, want %q", i, got, want)
		}
	}
}

// The bytes that are kept have a bound: what falls out is encoded again, and clients notice nothing.
func TestFrameCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		views := map[federation.Service]*federation.View{}
		for i := range 50 {
			views[federation.Service{Namespace: "ns", Name: fmt.Sprintf("s%d", i)}] = viewOf(sliceOf("a", i, 100))
		}
		store, _ := local(views)
		config := Defaults()
		config.FrameBytes = 20_000
		server := NewServer(logr.Discard(), store, config)
		for range 3 {
			for svc := range views {
				ctx, cancel := context.WithCancel(t.Context())
				s := newSink(ctx)
				close(s.gate)
				var wg sync.WaitGroup
				wg.Go(func() { _ = server.Get(&pb.GetDestination{Path: svc.Name + ".ns.svc.cluster.local:80"}, s) })
				synctest.Wait()
				if n := len(s.holds()); n != 100 {
					t.Fatalf("%s: %d addresses", svc.Name, n)
				}
				cancel()
				wg.Wait()
			}
		}
		if n := server.feeds.cache.size(); n > config.FrameBytes {
			t.Errorf("%d bytes of frames are kept, the bound is %d", n, config.FrameBytes)
		}
		if n := server.feeds.len(); n > 0 {
			t.Errorf("%d questions are kept that no stream asks", n)
		}
	})
}

// Profiles are kept like other messages: within the same bound, however often a ServiceProfile changes.
func TestProfilesAreBounded(t *testing.T) {
	store, _ := local(nil)
	config := Defaults()
	config.FrameBytes = 20_000
	server := NewServer(logr.Discard(), store, config)
	version := func(n int) profileKey {
		return profileKey{service: web, port: 80, profile: &profile.Profile{Routes: []profile.Route{{
			Name: strconv.Itoa(n), Condition: &profile.Request{Path: strings.Repeat("long", 250)},
		}}}}
	}
	for n := range 1000 {
		key := version(n)
		if f := server.profileFrame(key); server.profileFrame(key) != f {
			t.Fatalf("version %d was encoded twice", n)
		}
	}
	if n := server.frames.size(); n == 0 || n > config.FrameBytes {
		t.Errorf("%d bytes of profiles are kept, the bound is %d", n, config.FrameBytes)
	}
}

func FuzzAuthority(f *testing.F) {
	for _, s := range []string{
		path, "", ":", "a.b.svc.cluster.local", "h.a.b.svc.cluster.local:1", "[::1]:80", "10.0.0.1", "a.b.svc.cluster.local:99999", ".b.svc.cluster.local",
		"a.b.svc.cluster.local.:80", "A.B.svc.cluster.local:80", "a.b.svc.cluster.local:+80", "a.b.svc.cluster.local:080", "a..svc.cluster.local", "[fe80::1%25eth0]:80",
		"a.b.pod.cluster.local:80", "h.i.a.b.svc.cluster.local:80", "a.b.svc.cluster.local:80:80", "ä.b.svc.cluster.local:80", "a.b.svc.cluster.local:\x00",
	} {
		f.Add(s, "cluster.local")
	}
	f.Fuzz(func(t *testing.T, path, domain string) {
		a, err := parseAuthority(path, domain)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%q is refused with %v", path, err)
			}
			return
		}
		if a.port == 0 || a.service.Name == "" || a.service.Namespace == "" {
			t.Errorf("%q is taken as %+v", path, a)
		}
		host := a.service.Name + "." + a.service.Namespace + ".svc." + domain
		if a.hostname != "" {
			host = a.hostname + "." + host
		}
		if path != host && path[:min(len(host)+1, len(path))] != host+":" && path[:1] != "[" {
			t.Errorf("%q is taken as %q", path, host)
		}
	})
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", "ns:a", "ns:a:b", `{"ns":"a","nodeName":"b","pod":"c"}` + "\n", "{", "null", "[]", `{"ns":1}`, `{"ns":"a"}{"ns":"b"}`, `{"ns":"a","ns":"b"}`, "\xff", `"ns:a"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if c, err := parseToken(token); err != nil && c != (client{}) {
			t.Errorf("%q says nothing that can be read, and %+v", token, c)
		}
	})
}

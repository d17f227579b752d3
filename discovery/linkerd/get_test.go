package linkerd

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/serving"
)

// Streams of equal Queries get the very same bytes; a client whose place makes no difference shares them.
func TestFramesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, writer := streamtest.Local(map[federation.Service]*federation.View{
			streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("a", 1, 3)),
		})
		store.Nodes.NewWriter("local").Set("n1", federation.Node{Zone: "z1"})
		server := NewServer(logr.Discard(), transport(), store, Defaults())
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		sinks := map[string]*streamtest.Sink{}
		for i, token := range []string{"", `{"nodeName":"n1"}`, `{"nodeName":"n2"}`} {
			s := streamtest.NewOpenSink(ctx)
			sinks[fmt.Sprint(i)] = s
			wg.Go(func() { _ = server.Get(&pb.GetDestination{Path: streamtest.Path, ContextToken: token}, s) })
		}
		synctest.Wait()
		writer.Set(streamtest.Web, streamtest.ViewOf(streamtest.SliceOf("a", 1, 4)))
		synctest.Wait()
		first := sinks["0"].Sent()
		if len(first) != 2 {
			t.Fatalf("%d messages", len(first))
		}
		for name, s := range sinks {
			for i, f := range s.Sent() {
				if &f.Bytes()[0] != &first[i].Bytes()[0] {
					t.Errorf("stream %s got message %d encoded anew", name, i)
				}
			}
		}
		cancel()
		wg.Wait()
	})
}

// A large Service is sent in messages that a proxy can decode, and the bytes that are kept have a bound.
func TestLargeServicesAreChunked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20_000
		large := streamtest.SliceOf("a", 1, n)
		for _, e := range large.Endpoints {
			e.Detail = &federation.Detail{Mirror: &federation.Mirror{
				Identity: strings.Repeat("gateway.", 16) + "linkerd",
				Name:     strings.Repeat("web.", 16) + "svc",
			}}
		}
		store, _ := streamtest.Local(map[federation.Service]*federation.View{streamtest.Web: streamtest.ViewOf(large)})
		server := NewServer(logr.Discard(), keeping(1<<20), store, Defaults())
		ctx, cancel := context.WithCancel(t.Context())
		s := streamtest.NewOpenSink(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = server.Get(&pb.GetDestination{Path: streamtest.Path}, s) })
		synctest.Wait()
		frames := s.Sent()
		total := 0
		for _, f := range frames {
			total += len(f.Bytes())
			if len(f.Bytes()) > proxy.MaxMessage {
				t.Errorf("a message of %d bytes", len(f.Bytes()))
			}
		}
		if got := len(s.Holds()); got != n || len(frames) < 2 {
			t.Errorf("%d addresses in %d messages, %d bytes", got, len(frames), total)
		}
		cancel()
		wg.Wait()
	})
}

// What is encoded by hand decodes to the message, and nothing is encoded twice.
func TestEncodingIsProtobuf(t *testing.T) {
	config := Defaults()
	store, _ := streamtest.Local(map[federation.Service]*federation.View{
		streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("a", 1, 2)),
	})
	watch := store.Watch(federation.Ref{Cluster: "local", Service: streamtest.Web})
	defer watch.Close()
	snapshot, _ := watch.Load()
	set := federation.Select(snapshot, federation.Query{Port: 80}, nil).At(federation.Place{}, nil)
	e := encoder{config: &config, port: 80}
	frames, _ := e.encode(nil, set)
	if len(frames) != 1 {
		t.Fatalf("%d frames", len(frames))
	}
	var got pb.Update
	if err := proto.Unmarshal(frames[0].Bytes(), &got); err != nil {
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
	store, _ := streamtest.Local(map[federation.Service]*federation.View{
		streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("a", 1, 1)),
		other:          streamtest.ViewOf(streamtest.SliceOf("b", 2, 1)),
		fed: {
			Ports: []federation.ServicePort{{Number: 80, Name: "http"}},
			Composition: &federation.Composition{Union: true, Members: []federation.MemberRef{
				{Ref: federation.Ref{Cluster: "local", Service: streamtest.Web}},
				{Ref: federation.Ref{Cluster: "local", Service: other}},
			}},
		},
	})
	watch := store.Watch(federation.Ref{Cluster: "local", Service: fed})
	defer watch.Close()
	snapshot, _ := watch.Load()
	config := Defaults()
	set := federation.Select(snapshot, federation.Query{Port: 80}, nil).At(federation.Place{}, nil)
	var u pb.Update
	frames, _ := encoder{config: &config, port: 80}.encode(nil, set)
	if err := proto.Unmarshal(frames[0].Bytes(), &u); err != nil {
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
			views[federation.Service{
				Namespace: "ns",
				Name:      fmt.Sprintf("s%d", i),
			}] = streamtest.ViewOf(streamtest.SliceOf("a", i, 100))
		}
		store, _ := streamtest.Local(views)
		const limit = 20_000
		server := NewServer(logr.Discard(), keeping(limit), store, Defaults())
		for range 3 {
			for svc := range views {
				ctx, cancel := context.WithCancel(t.Context())
				s := streamtest.NewOpenSink(ctx)
				var wg sync.WaitGroup
				wg.Go(func() { _ = server.Get(&pb.GetDestination{Path: svc.Name + ".ns.svc.cluster.local:80"}, s) })
				synctest.Wait()
				if n := len(s.Holds()); n != 100 {
					t.Fatalf("%s: %d addresses", svc.Name, n)
				}
				cancel()
				wg.Wait()
			}
		}
		if n := metric(t, server, "fingerpost_frame_cache_bytes"); n > limit {
			t.Errorf("%d bytes of frames are kept, the bound is %d", n, limit)
		}
		if n := metric(t, server, "fingerpost_queries"); n > 0 {
			t.Errorf("%d questions are kept that no stream asks", n)
		}
	})
}

// Profiles are kept like other messages: within the same bound, however often a ServiceProfile changes.
func TestProfilesAreBounded(t *testing.T) {
	store, _ := streamtest.Local(nil)
	const limit = 20_000
	server := NewServer(logr.Discard(), keeping(limit), store, Defaults())
	version := func(n int) profileKey {
		return profileKey{service: streamtest.Web, port: 80, profile: &profile.Profile{Routes: []profile.Route{{
			Name: strconv.Itoa(n), Condition: &profile.Request{Path: strings.Repeat("long", 250)},
		}}}}
	}
	profileFrame := func(level profileLevel) *serving.Frame {
		return server.Serving().Cache().Get(level, func() (*serving.Frame, int) { return server.encodeProfile(level) })
	}
	for n := range 1000 {
		level := profileLevel{of: version(n)}
		if f := profileFrame(level); profileFrame(level) != f {
			t.Fatalf("version %d was encoded twice", n)
		}
	}
	if n := metric(t, server, "fingerpost_frame_cache_bytes"); n == 0 || n > limit {
		t.Errorf("%d bytes of profiles are kept, the bound is %d", n, limit)
	}
}

func FuzzAuthority(f *testing.F) {
	for _, s := range []string{
		streamtest.Path, "", ":", "a.b.svc.cluster.local", "h.a.b.svc.cluster.local:1", "[::1]:80", "10.0.0.1",
		"a.b.svc.cluster.local:99999", ".b.svc.cluster.local",
		"a.b.svc.cluster.local.:80", "A.B.svc.cluster.local:80", "a.b.svc.cluster.local:+80",
		"a.b.svc.cluster.local:080", "a..svc.cluster.local", "[fe80::1%25eth0]:80",
		"a.b.pod.cluster.local:80", "h.i.a.b.svc.cluster.local:80", "a.b.svc.cluster.local:80:80",
		"ä.b.svc.cluster.local:80", "a.b.svc.cluster.local:\x00",
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
		if a.Port == 0 || a.Name == "" || a.Namespace == "" {
			t.Errorf("%q is taken as %+v", path, a)
		}
		host := a.Name + "." + a.Namespace + ".svc." + domain
		if a.Hostname != "" {
			host = a.Hostname + "." + host
		}
		if path != host && path[:min(len(host)+1, len(path))] != host+":" && path[:1] != "[" {
			t.Errorf("%q is taken as %q", path, host)
		}
	})
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{
		"", "ns:a", "ns:a:b", `{"ns":"a","nodeName":"b","pod":"c"}` + "\n", "{", "null", "[]", `{"ns":1}`,
		`{"ns":"a"}{"ns":"b"}`, `{"ns":"a","ns":"b"}`, "\xff", `"ns:a"`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if c, err := parseToken(token); err != nil && c != (serving.Client{}) {
			t.Errorf("%q cannot be read, and is %+v", token, c)
		}
	})
}

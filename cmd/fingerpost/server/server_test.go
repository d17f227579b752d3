package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/serving"
)

// startGRPC starts the gRPC server on a free port and returns a connection to it, its metrics, and how to
// stop it.
func startGRPC(t *testing.T, prepare func(*grpc.Server)) (*grpc.ClientConn, *prometheus.Registry, func() error) {
	t.Helper()
	addr, metrics, stop := startGRPCWith(t, nil, prepare)
	return dial(t, addr, grpc.WithTransportCredentials(insecure.NewCredentials())), metrics, stop
}

func dial(t *testing.T, addr string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(
		"passthrough:///"+addr,
		append(options, grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func startGRPCWith(
	t *testing.T,
	certificate *Certificate,
	prepare func(*grpc.Server),
) (addr string, metrics *prometheus.Registry, stop func() error) {
	t.Helper()
	ready := &Readiness{}
	ready.setReady(true)
	return startGRPCReady(t, certificate, ready, prepare)
}

func startGRPCReady(
	t *testing.T,
	certificate *Certificate,
	ready *Readiness,
	prepare func(*grpc.Server),
) (addr string, metrics *prometheus.Registry, stop func() error) {
	t.Helper()
	store := federation.NewStore()
	store.MarkClustersListed()
	store.AddCluster("local", federation.Expectation{Since: time.Now(), Local: true})
	writer := store.NewWriter("local")
	writer.Set(federation.Service{Namespace: "ns", Name: "web"}, &federation.View{})
	writer.MarkSynced()
	metrics = prometheus.NewRegistry()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = listener.Addr().String()
	listener.Close()
	on := serving.NewServer(logr.Discard(), serving.DefaultConfig())
	g := NewGRPC(logr.Discard(), GRPCOptions{
		Name: "gRPC", Flag: "-addr", Addr: addr, Certificate: certificate, On: on,
		Register: func(r grpc.ServiceRegistrar) {
			pb.RegisterDestinationServer(r, linkerd.NewServer(logr.Discard(), on, store, linkerd.Defaults()))
		},
		Ready: ready, Metrics: NewGRPCMetrics(metrics),
	})
	if prepare != nil {
		prepare(g.server)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- g.Start(ctx) }()
	return addr, metrics, func() error { cancel(); return <-stopped }
}

func TestGRPCServer(t *testing.T) {
	conn, _, stop := startGRPC(t, nil)
	health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v %v", health, err)
	}
	reflection, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := &reflectionpb.ServerReflectionRequest_ListServices{}
	if err := reflection.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: list}); err != nil {
		t.Fatal(err)
	}
	services, err := reflection.Recv()
	if err != nil || !strings.Contains(services.String(), "io.linkerd.proxy.destination.Destination") {
		t.Errorf("reflection: %v %v", services, err)
	}
	if err := reflection.CloseSend(); err != nil {
		t.Fatal(err)
	}

	profile, err := pb.NewDestinationClient(conn).GetProfile(t.Context(), &pb.GetDestination{Path: "10.0.0.1:80"})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := profile.Recv(); err != nil || p.GetEndpoint().GetAddr().GetPort() != 80 {
		t.Errorf("GetProfile: %v %v", p, err)
	}
	get, err := pb.NewDestinationClient(conn).Get(t.Context(), &pb.GetDestination{Path: "web.ns.svc.cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	if u, err := get.Recv(); err != nil || !u.GetNoEndpoints().GetExists() {
		t.Errorf("Get: %v %v", u, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := get.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("a stream ended with %v when the server stopped, want OK", err)
	}
}

// Streams that do not end by themselves do not delay the stop: a health check that watches, a stream without
// a request, a reflection stream.
func TestStopEndsForeignStreams(t *testing.T) {
	conn, _, stop := startGRPC(t, nil)
	watched, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watched.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true},
		"/io.linkerd.proxy.destination.Destination/Get"); err != nil {
		t.Fatal(err)
	}
	if _, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context()); err != nil {
		t.Fatal(err)
	}
	get, err := pb.NewDestinationClient(conn).Get(t.Context(), &pb.GetDestination{Path: "web.ns.svc.cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get.Recv(); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if m, err := watched.Recv(); err != nil || m.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the health check that watches gets %v %v", m, err)
	}
	if _, err := get.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("a stream ended with %v", err)
	}
	select {
	case err := <-stopped:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute): //nolint:forbidigo // a test that fails
		t.Error("the server does not stop")
	}
}

// gRPC health reports what /ready reports, of the server and of its service, and follows it. /ready names what is
// missing.
func TestHealthIsReadiness(t *testing.T) {
	var links, cluster fedwatch.Value[bool]
	ready := &Readiness{}
	ready.Add(Reached("Links", &links), Reached("local cluster", &cluster))
	addr, _, stop := startGRPCReady(t, nil, ready, nil)
	conn := dial(t, addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	var watches []healthpb.Health_WatchClient
	for _, service := range []string{"", "io.linkerd.proxy.destination.Destination"} {
		w, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		watches = append(watches, w)
	}
	expect := func(want healthpb.HealthCheckResponse_ServingStatus, code int, body string) {
		t.Helper()
		for _, w := range watches {
			if m, err := w.Recv(); err != nil || m.GetStatus() != want {
				t.Errorf("health is %v %v, want %v", m, err, want)
			}
		}
		if have, text := ask(ready.Report, false, "/ready"); have != code || text != body {
			t.Errorf("/ready is %d %q, want %d %q", have, text, code, body)
		}
	}
	expect(healthpb.HealthCheckResponse_NOT_SERVING, 500,
		"not ready\nwaiting for: Links\nwaiting for: local cluster\n")

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := ready.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	links.Store(true)
	if _, text := ask(ready.Report, false, "/ready"); text != "not ready\nwaiting for: local cluster\n" {
		t.Errorf("/ready without the local cluster is %q", text)
	}
	cluster.Store(true)
	expect(healthpb.HealthCheckResponse_SERVING, 200, "ok\n")
	cluster.Store(false)
	if !ready.Ready() {
		t.Error("a replica that was ready is no longer")
	}

	cluster.Store(true)
	cancel()
	wg.Wait()
	expect(healthpb.HealthCheckResponse_NOT_SERVING, 500, "not ready\n")
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// What has patience is waited for that long once nothing without is missing, and no longer.
func TestConditionsHavePatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reached fedwatch.Value[bool]
		ready, began := &Readiness{}, time.Now()
		ready.Add(Reached("Links", &reached), Condition{
			Name: "clusters",
			Load: func() (time.Duration, []<-chan struct{}) { return 3 * time.Second, nil },
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := ready.Start(ctx); err != nil {
				t.Error(err)
			}
		})
		time.AfterFunc(time.Minute, func() { reached.Store(true) })

		_, changed := ready.Load()
		<-changed
		if took := time.Since(began); !ready.Ready() || took != time.Minute+3*time.Second {
			t.Errorf("ready %t after %s", ready.Ready(), took)
		}
		cancel()
		wg.Wait()
	})
}

// Streams are counted as they begin and end, and messages of streams by no interceptor.
func TestStreamsAreCounted(t *testing.T) {
	conn, metrics, stop := startGRPC(t, nil)
	get, err := pb.NewDestinationClient(conn).Get(t.Context(), &pb.GetDestination{Path: "web.ns.svc.cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get.Recv(); err != nil {
		t.Fatal(err)
	}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	started := 0.
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "grpc_server_msg_") {
			t.Errorf("%s is there", f.GetName())
		}
		if f.GetName() == "grpc_server_started_total" {
			for _, m := range f.GetMetric() {
				started += m.GetCounter().GetValue()
			}
		}
	}
	if started != 1 {
		t.Errorf("%v streams were started", started)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A panic ends its stream and is counted; other streams go on.
func TestPanicsAreCaught(t *testing.T) {
	conn, metrics, stop := startGRPC(t, func(s *grpc.Server) {
		s.RegisterService(
			&grpc.ServiceDesc{ServiceName: "test.Panics", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
				StreamName: "Panic", ServerStreams: true, Handler: func(any,
					grpc.ServerStream,
				) error {
					panic("planted")
				},
			}}},
			struct{}{},
		)
	})
	get, err := pb.NewDestinationClient(conn).Get(t.Context(), &pb.GetDestination{Path: "web.ns.svc.cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get.Recv(); err != nil {
		t.Fatal(err)
	}
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/test.Panics/Panic")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&pb.Update{}); status.Code(err) != codes.Internal {
		t.Errorf("a stream that panicked ended with %v", err)
	}
	if err := testutil.GatherAndCompare(metrics, strings.NewReader(`
# HELP fingerpost_panics_total Panics that ended a stream. Each is a bug: the log has the stack.
# TYPE fingerpost_panics_total counter
fingerpost_panics_total 1
`), "fingerpost_panics_total"); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := get.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the other stream ended with %v", err)
	}
}

// ask asks an admin server.
func ask(ready func() (bool, []string), withPprof bool, path string) (int, string) {
	w := httptest.NewRecorder()
	metrics := prometheus.NewRegistry()
	AdminHandler(metrics, metrics, ready, withPprof).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// Metrics of all gatherers are served, with a label once its value is known.
func TestMetricsOfOthers(t *testing.T) {
	other := prometheus.NewRegistry()
	other.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "other"}))
	metrics, installation := NewMetrics("v1.2.3"), ""
	labelled := Labelled(prometheus.Gatherers{metrics, other}, "installation", func() string { return installation })
	handler := AdminHandler(metrics, labelled, never, false)
	served := func(series ...string) {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		for _, s := range series {
			if !strings.Contains(w.Body.String(), "\n"+s) {
				t.Errorf("%q is not served", s)
			}
		}
	}
	served("other 0\n", "go_goroutines ", `fingerpost_build_info{goversion="`+runtime.Version()+`",version="v1.2.3"} 1`)
	installation = "east/linkerd/6f2e0c1a"
	for range 2 { // labels are shared from one time to the next
		served(`other{installation="east/linkerd/6f2e0c1a"} 0`, `fingerpost_build_info{goversion="`+runtime.Version()+
			`",installation="east/linkerd/6f2e0c1a",version="v1.2.3"} 1`)
	}
}

// There is nothing else on the admin server.
func TestAdmin(t *testing.T) {
	ready := func() (bool, []string) { return true, nil }
	for path, want := range map[string]int{"/": 404, "/live": 200, "/shutdown": 404, "/ready": 200} {
		if code, body := ask(ready, true, path); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, body, want)
		}
	}
}

// A request that has begun is answered although the process stops.
func TestHTTPServerDrains(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	server := &HTTP{
		Log:         logr.Discard(),
		Name:        "test",
		Addr:        addr,
		DrainWindow: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if ctx.Err() == nil {
				close(begun)
				<-ctx.Done()
			}
			io.WriteString(w, "answer")
		}),
	}
	stopped := make(chan error, 1)
	go func() { stopped <- server.Start(ctx) }()
	go func() { <-begun; cancel() }()
	var code int
	var body string
	for { // until it listens
		if code, body, err = cmdtest.Request(t, "http://"+addr, "", nil); err == nil ||
			!errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
	}
	if err != nil || code != http.StatusOK || body != "answer" {
		t.Errorf("%d %q %v", code, body, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

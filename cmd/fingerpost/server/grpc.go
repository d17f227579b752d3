// Package server has what listens in a process: gRPC and HTTP servers and their TLS, with readiness and the
// log.
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/serving"
)

// endGrace is how long clients have to receive the ends of their streams.
const endGrace = 500 * time.Millisecond

// A ListenFunc opens a listener; nil opens one of the operating system.
type ListenFunc func(ctx context.Context, network, address string) (net.Listener, error)

func (f ListenFunc) listen(ctx context.Context, address string) (net.Listener, error) {
	if f == nil {
		f = (&net.ListenConfig{}).Listen
	}
	return f(ctx, "tcp", address)
}

// GRPC is a gRPC server as a part of the process.
type GRPC struct {
	GRPCOptions
	log     logr.Logger
	server  *grpc.Server
	listens fedwatch.Value[bool]
}

// GRPCOptions are what a gRPC server is made of.
type GRPCOptions struct {
	Name        string // for the log, and what /ready waits for
	Flag        string // that has the address, such as -addr
	Addr        string
	Listen      ListenFunc
	Certificate *Certificate                // nil: it serves plaintext
	Idle        time.Duration               // after which a connection without a call is closed; 0: it is not
	Buffers     int                         // bytes of each buffer of a connection; 0 for those that suit streams
	On          *serving.Server             // has its streams
	Register    func(grpc.ServiceRegistrar) // what it serves
	Ready       *Readiness
	Metrics     *GRPCMetrics
}

// GRPCMetrics are those of all gRPC servers of a process.
type GRPCMetrics struct {
	counts *grpcprom.ServerMetrics
	panics prometheus.Counter
}

// NewGRPCMetrics registers them.
func NewGRPCMetrics(with *prometheus.Registry) *GRPCMetrics {
	// Unary calls take milliseconds, streams live for minutes.
	buckets := grpcprom.WithHistogramBuckets([]float64{.1, 1, 300, 3600})
	m := &GRPCMetrics{
		counts: grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(buckets)),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fingerpost_panics_total", Help: "Panics that ended a stream. Each is a bug: the log has the stack.",
		}),
	}
	with.MustRegister(withoutMessageMetrics{m.counts}, m.panics)
	return m
}

// NewGRPC returns a server, of gRPC health and reflection besides.
func NewGRPC(log logr.Logger, options GRPCOptions) *GRPC {
	counts := options.Metrics.counts
	recovered := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
		options.Metrics.panics.Inc()
		stack := string(debug.Stack())
		log.Error(fmt.Errorf("%v", p), "BUG: a stream has panicked; the others go on", "stack", stack)
		return status.Error(codes.Internal, "internal error; the server's log has more")
	})

	age := options.On.Config().MaxStreamAge
	server := grpc.NewServer(append(options.On.Options(),
		grpc.WriteBufferSize(cmp.Or(options.Buffers, 64<<10)),
		grpc.ReadBufferSize(cmp.Or(options.Buffers, 32<<10)),
		grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(20*time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: options.Idle,
			MaxConnectionAge:  age, MaxConnectionAgeGrace: serving.ConnectionGrace(age),
			Time: time.Minute, Timeout: 20 * time.Second,
		}),
		grpc.ChainUnaryInterceptor(counts.UnaryServerInterceptor(), recovery.UnaryServerInterceptor(recovered)),
		grpc.ChainStreamInterceptor(countStreams(counts), recovery.StreamServerInterceptor(recovered)),
	)...)

	options.Register(server)

	reported := health.NewServer()
	services := append(slices.Collect(maps.Keys(server.GetServiceInfo())), "") // the last is for all of them
	options.Ready.follow(func(ready bool) { setHealth(reported, services, ready) })
	healthpb.RegisterHealthServer(server, reported)
	reflection.Register(server)
	counts.InitializeMetrics(server)

	return &GRPC{GRPCOptions: options, log: log, server: server}
}

func setHealth(of *health.Server, services []string, ready bool) {
	is := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		is = healthpb.HealthCheckResponse_SERVING
	}
	for _, service := range services {
		of.SetServingStatus(service, is)
	}
}

// Listens returns the Condition that the server listens, or has listened.
func (g *GRPC) Listens() Condition { return Reached(g.Name, &g.listens) }

// Start serves until ctx ends, and then drains: each stream ends with OK at a random point of the drain
// window.
func (g *GRPC) Start(ctx context.Context) error {
	listener, err := g.Listen.listen(ctx, g.Addr)
	if err != nil {
		return fmt.Errorf("%s: %w", g.Flag, err)
	}

	secure := g.Certificate != nil
	g.log.Info("gRPC server listens", "serves", g.Name, "addr", listener.Addr().String(), "tls", secure)
	listener = g.On.Listen(listener)
	if secure {
		listener = &tlsListener{listener, g.Certificate.ServerConfig(tls.VersionTLS12, "h2")}
	}

	g.listens.Store(true)
	stopped := make(chan error, 1)
	go func() { stopped <- g.server.Serve(listener) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}

	g.Ready.setReady(false)
	var graceful sync.WaitGroup
	graceful.Go(g.server.GracefulStop) // sends GOAWAY, and returns when every stream has ended
	defer graceful.Wait()
	window := g.On.Config().DrainWindow
	timer := time.NewTimer(window)
	defer timer.Stop()

	select {
	case <-g.On.Drain(window * 9 / 10):
	case <-timer.C:
	}
	// Streams that are not ours, such as a health check that watches, end here, and so do those whose client
	// does not read.
	stop := time.AfterFunc(endGrace, g.server.Stop)
	defer stop.Stop()
	return <-stopped
}

// countStreams counts streams that start and end, but not their messages: fingerpost_messages_total counts
// those at a hundredth of the cost, which is a look-up of labels for each message.
func countStreams(counts *grpcprom.ServerMetrics) grpc.StreamServerInterceptor {
	count := counts.StreamServerInterceptor()
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return count(srv, stream, info, func(srv any, _ grpc.ServerStream) error { return handler(srv, stream) })
	}
}

// withoutMessageMetrics drops the metrics of messages, in which only unary calls would be counted.
type withoutMessageMetrics struct{ prometheus.Collector }

// Collect sends all metrics but those, which it knows by their descriptions.
func (c withoutMessageMetrics) Collect(to chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric)
	go func() {
		c.Collector.Collect(all)
		close(all)
	}()
	for m := range all {
		if !strings.Contains(m.Desc().String(), `"grpc_server_msg_`) {
			to <- m
		}
	}
}

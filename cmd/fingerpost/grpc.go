package main

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery"
)

// drainTimeout is how long streams may take to end when the process is told to stop.
const drainTimeout = 10 * time.Second

// grpcServer is the gRPC server as a part of the process.
type grpcServer struct {
	log       logr.Logger
	addr      string
	tls       tlsFiles
	server    *grpc.Server
	discovery *discovery.Server
	health    *health.Server
	metrics   prometheus.Registerer
	serving   atomic.Bool
}

func newGRPC(log logr.Logger, addr string, files tlsFiles, d *discovery.Server, age time.Duration, metrics *prometheus.Registry) *grpcServer {
	counts := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramBuckets([]float64{.1, 1, 300, 3600})))
	panics := prometheus.NewCounter(prometheus.CounterOpts{Name: "fingerpost_panics_total", Help: "Panics that ended a stream. Each is a bug: the log has the stack."})
	metrics.MustRegister(counts, panics)
	recovered := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
		panics.Inc()
		log.Error(fmt.Errorf("%v", p), "BUG: a stream has panicked; the others go on", "stack", string(debug.Stack()))
		return status.Error(codes.Internal, "internal error; the server's log has more")
	})
	g := &grpcServer{log: log, addr: addr, tls: files, discovery: d, health: health.NewServer(), metrics: metrics}
	g.server = grpc.NewServer(append(d.Options(),
		grpc.WriteBufferSize(64<<10),
		grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(20*time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: age, MaxConnectionAgeGrace: discovery.ConnectionGrace(age), Time: time.Minute, Timeout: 20 * time.Second,
		}),
		grpc.ChainUnaryInterceptor(counts.UnaryServerInterceptor(), recovery.UnaryServerInterceptor(recovered)),
		grpc.ChainStreamInterceptor(counts.StreamServerInterceptor(), recovery.StreamServerInterceptor(recovered)),
	)...)
	pb.RegisterDestinationServer(g.server, d)
	healthpb.RegisterHealthServer(g.server, g.health)
	reflection.Register(g.server)
	counts.InitializeMetrics(g.server)
	return g
}

// Start serves until ctx ends, and then lets every stream end with OK.
func (g *grpcServer) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", g.addr)
	if err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if listener, err = g.tls.listen(ctx, &wg, g.log, g.metrics, listener); err != nil {
		return err
	}
	g.log.Info("gRPC server listens", "addr", listener.Addr().String(), "tls", g.tls.cert != "")
	g.serving.Store(true)
	stopped := make(chan error, 1)
	go func() { stopped <- g.server.Serve(listener) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	g.health.Shutdown()
	g.discovery.Drain()
	timer := time.AfterFunc(drainTimeout, g.server.Stop)
	defer timer.Stop()
	g.server.GracefulStop()
	return <-stopped
}

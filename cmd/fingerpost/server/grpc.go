// Package server has what listens in a process: gRPC, HTTP and TLS, with readiness and the log.
package server

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery"
)

// lastWords is how long clients are given to take the ends of their streams.
const endGrace = 500 * time.Millisecond

// grpcServer is the gRPC server as a part of the process.
type GRPC struct {
	log       logr.Logger
	addr      string
	tls       TLSFiles
	server    *grpc.Server
	discovery *discovery.Server
	ready     *Readiness
	window    time.Duration // in which streams end
	metrics   prometheus.Registerer
}

func NewGRPC(log logr.Logger, addr string, files TLSFiles, d *discovery.Server, ready *Readiness, config discovery.Config, metrics *prometheus.Registry) *GRPC {
	counts := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramBuckets([]float64{.1, 1, 300, 3600})))
	panics := prometheus.NewCounter(prometheus.CounterOpts{Name: "fingerpost_panics_total", Help: "Panics that ended a stream. Each is a bug: the log has the stack."})
	metrics.MustRegister(withoutMessageMetrics{counts}, panics)
	recovered := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
		panics.Inc()
		log.Error(fmt.Errorf("%v", p), "BUG: a stream has panicked; the others go on", "stack", string(debug.Stack()))
		return status.Error(codes.Internal, "internal error; the server's log has more")
	})
	g := &GRPC{log: log, addr: addr, tls: files, discovery: d, ready: ready, window: config.DrainWindow, metrics: metrics}
	age := config.MaxStreamAge
	g.server = grpc.NewServer(append(d.Options(),
		grpc.WriteBufferSize(64<<10),
		grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(20*time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: age, MaxConnectionAgeGrace: discovery.ConnectionGrace(age), Time: time.Minute, Timeout: 20 * time.Second,
		}),
		grpc.ChainUnaryInterceptor(counts.UnaryServerInterceptor(), recovery.UnaryServerInterceptor(recovered)),
		grpc.ChainStreamInterceptor(countStreams(counts), recovery.StreamServerInterceptor(recovered)),
	)...)
	pb.RegisterDestinationServer(g.server, d)
	healthpb.RegisterHealthServer(g.server, g.ready.health)
	reflection.Register(g.server)
	counts.InitializeMetrics(g.server)
	return g
}

// Start serves until ctx ends, and then lets every stream end with OK.
func (g *GRPC) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", g.addr)
	if err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if listener, err = g.tls.wrap(ctx, &wg, g.log, g.metrics, listener); err != nil {
		return err
	}
	g.log.Info("gRPC server listens", "addr", listener.Addr().String(), "tls", g.tls.Certificate != "")
	g.ready.serving.Store(true)
	stopped := make(chan error, 1)
	go func() { stopped <- g.server.Serve(listener) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	g.ready.setReady(false)
	var ended sync.WaitGroup
	ended.Go(g.server.GracefulStop) // asks clients to leave, and ends when they have
	defer ended.Wait()
	timer := time.NewTimer(g.window)
	defer timer.Stop()
	select {
	case <-g.discovery.Drain(g.window * 9 / 10):
	case <-timer.C:
	}
	// What is not ours to end, such as a health check that watches, and what its client does not take, is not waited for.
	stop := time.AfterFunc(endGrace, g.server.Stop)
	defer stop.Stop()
	return <-stopped
}

// countStreams counts streams that begin and end, and leaves their messages alone: fingerpost_messages_total counts those, for a hundredth
// of what a look-up of labels for each costs.
func countStreams(counts *grpcprom.ServerMetrics) grpc.StreamServerInterceptor {
	count := counts.StreamServerInterceptor()
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return count(srv, stream, info, func(srv any, _ grpc.ServerStream) error { return handler(srv, stream) })
	}
}

// withoutMessages leaves out the metrics of messages, which would be of calls that are no streams only.
type withoutMessageMetrics struct{ prometheus.Collector }

// Collect leaves them out by what they are described as.
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

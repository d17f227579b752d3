package server

import (
	"context"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fingerpost/fingerpost/cluster"
	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
)

// readiness is whether this replica serves. It is one thing: /ready, the metric and gRPC's health, for the whole server and for the
// Destination service, report it, and follow it as it changes. Once ready a replica stays so, until it is told to stop.
type Readiness struct {
	cluster     string                                              // ours
	statuses    func() (map[string]cluster.Status, <-chan struct{}) // of clusters
	LinksListed fedwatch.Value[bool]                                // Links were listed
	serving     fedwatch.Value[bool]                                // gRPC is served

	ready  fedwatch.Value[bool]
	health *health.Server
}

func NewReadiness(ours string, statuses func() (map[string]cluster.Status, <-chan struct{})) *Readiness {
	r := &Readiness{cluster: ours, statuses: statuses, health: health.NewServer()}
	r.setReady(false)
	return r
}

func (r *Readiness) setReady(ready bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthpb.HealthCheckResponse_SERVING
	}
	r.ready.Store(ready)
	for _, service := range []string{"", pb.Destination_ServiceDesc.ServiceName} {
		r.health.SetServingStatus(service, status)
	}
}

// now reports whether the replica is ready.
func (r *Readiness) Ready() bool {
	ready, _ := r.ready.Load()
	return ready
}

// Start follows what readiness depends on until ctx ends, and then takes it back.
func (r *Readiness) Start(ctx context.Context) error {
	defer r.setReady(false)
	for {
		statuses, clusters := r.statuses()
		listed, lists := r.LinksListed.Load()
		serving, serves := r.serving.Load()
		if listed && serving && statuses[r.cluster].Synced {
			r.setReady(true)
			<-ctx.Done()
			return nil
		}
		select {
		case <-clusters:
		case <-lists:
		case <-serves:
		case <-ctx.Done():
			return nil
		}
	}
}

// metric reports the same as /ready.
func (r *Readiness) Metric() prometheus.Collector {
	opts := prometheus.GaugeOpts{Name: "fingerpost_ready", Help: "1 once this replica is ready to serve, as /ready says."}
	return prometheus.NewGaugeFunc(opts, func() float64 {
		if r.Ready() {
			return 1
		}
		return 0
	})
}

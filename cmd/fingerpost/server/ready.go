package server

import (
	"context"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fingerpost/fingerpost/cluster"
	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
)

// Readiness is whether this replica serves. /ready, the metric fingerpost_ready and gRPC's health (of the
// whole server and of the Destination service) report the same value. A replica becomes ready once: when
// Links were listed, gRPC is served and the local cluster is synced. It stays ready until it stops, whatever
// becomes of clusters. Where the local cluster cannot be reached, what was restored of it takes the place of
// both listings.
//
// Before, it waits until each linked cluster was tried, for linkedPatience at most: clients of the replicas that a
// new one replaces have the endpoints of a cluster that is away, and this one gets them from those replicas within
// about a second. So a cluster that fails delays readiness, but not by more than that.
type Readiness struct {
	localCluster string
	statuses     func() (map[string]cluster.Status, <-chan struct{}) // of clusters
	LinksListed  fedwatch.Value[bool]
	serving      fedwatch.Value[bool] // gRPC is served

	ready  fedwatch.Value[bool]
	health *health.Server
}

const linkedPatience = 3 * time.Second

// NewReadiness returns the Readiness of a replica, not ready yet.
func NewReadiness(localCluster string, statuses func() (map[string]cluster.Status, <-chan struct{})) *Readiness {
	r := &Readiness{localCluster: localCluster, statuses: statuses, health: health.NewServer()}
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

// Ready reports whether the replica is ready.
func (r *Readiness) Ready() bool {
	ready, _ := r.Load()
	return ready
}

// Load returns whether the replica is ready, and a channel that closes when that changes.
func (r *Readiness) Load() (ready bool, changed <-chan struct{}) { return r.ready.Load() }

// Start watches what readiness depends on until ctx ends, when the replica is no longer ready.
func (r *Readiness) Start(ctx context.Context) error {
	defer r.setReady(false)
	var patience <-chan time.Time // from when nothing else is waited for
	for waited := false; ; {
		listed, listedChanged := r.LinksListed.Load()
		serving, servingChanged := r.serving.Load()
		statuses, statusesChanged := r.statuses() // after listed: the clusters of these Links are among them
		local := statuses[r.localCluster]
		restored := !local.Checkpoint.IsZero() && local.Contact != nil
		if serving && (listed && local.Synced || restored) {
			if waited || allTried(statuses) {
				r.setReady(true)
				<-ctx.Done()
				return nil
			}
			if patience == nil {
				timer := time.NewTimer(linkedPatience)
				defer timer.Stop()
				patience = timer.C
			}
		}
		select {
		case <-statusesChanged:
		case <-listedChanged:
		case <-servingChanged:
		case <-patience:
			waited = true
		case <-ctx.Done():
			return nil
		}
	}
}

func allTried(statuses map[string]cluster.Status) bool {
	for _, s := range statuses {
		if !s.Tried() {
			return false
		}
	}
	return true
}

// Metric returns the metric fingerpost_ready.
func (r *Readiness) Metric() prometheus.Collector {
	opts := prometheus.GaugeOpts{
		Name: "fingerpost_ready",
		Help: "1 once this replica is ready to serve, as /ready reports.",
	}
	return prometheus.NewGaugeFunc(opts, func() float64 {
		if r.Ready() {
			return 1
		}
		return 0
	})
}

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
// about a second. So a cluster that fails delays readiness, but not by more than that, unless one of those replicas
// has not answered yet, or has no time: then it waits for as long as first answers do.
type Readiness struct {
	localCluster string
	grace        time.Duration                                       // of first answers
	statuses     func() (map[string]cluster.Status, <-chan struct{}) // of clusters
	LinksListed  fedwatch.Value[bool]
	serving      fedwatch.Value[bool] // gRPC is served

	ready  fedwatch.Value[bool]
	health *health.Server
}

const linkedPatience = 3 * time.Second

// NewReadiness returns the Readiness of a replica, not ready yet.
func NewReadiness(
	localCluster string, grace time.Duration, statuses func() (map[string]cluster.Status, <-chan struct{}),
) *Readiness {
	r := &Readiness{localCluster: localCluster, grace: grace, statuses: statuses, health: health.NewServer()}
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
	var waiting time.Time // since when nothing else is waited for
	limit := time.NewTimer(0)
	defer limit.Stop()

	for {
		listed, listedChanged := r.LinksListed.Load()
		serving, servingChanged := r.serving.Load()

		statuses, statusesChanged := r.statuses() // after listed: the clusters of these Links are among them
		local := statuses[r.localCluster]

		restored := !local.Checkpoint.IsZero() && local.Contact != nil
		if serving && (listed && local.Synced || restored) {
			if waiting.IsZero() {
				waiting = time.Now()
			}
			left := time.Until(waiting.Add(r.patienceFor(statuses)))
			if left <= 0 {
				r.setReady(true)
				<-ctx.Done()
				return nil
			}
			limit.Reset(left)
		}

		select {
		case <-statusesChanged:
		case <-listedChanged:
		case <-servingChanged:
		case <-limit.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// patienceFor returns for how long clusters are waited for that are as statuses have them.
func (r *Readiness) patienceFor(statuses map[string]cluster.Status) (patience time.Duration) {
	for _, s := range statuses {
		switch {
		case s.Tried():
		case s.AskingPeers:
			return max(linkedPatience, r.grace)
		default:
			patience = linkedPatience
		}
	}
	return patience
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

package mirror

import (
	"cmp"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
)

// metrics are those of Linkerd's service mirror, and what is written.
type metrics struct {
	enabled, alive, latency *prometheus.GaugeVec
	latencies               *prometheus.HistogramVec
	probes                  *prometheus.CounterVec
	writes                  *prometheus.CounterVec
	services                *prometheus.GaugeVec
}

func newMetrics() *metrics {
	target := []string{"target_cluster_name"}
	return &metrics{
		enabled: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gateway_enabled", Help: "1 if the gateway of a linked cluster is probed."}, target),
		alive: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "gateway_alive", Help: "1 if the gateway of a linked cluster answers probes, 0 if it has failed as often as its Link allows.",
		}, target),
		latency: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gateway_latency", Help: "How long the last probe of a gateway that succeeded took, in ms."}, target),
		latencies: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gateway_probe_latency_ms", Help: "How long probes of a gateway that succeeded took, in ms.",
			Buckets: []float64{1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 100, 200, 300, 400, 500, 1000, 2000, 3000, 4000, 5000, 10000, 20000, 30000, 40000, 50000},
		}, target),
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_probes", Help: "Probes of a gateway."}, append(target, "probe_successful")),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fingerpost_mirror_writes_total", Help: "Requests to write for Links into the local cluster: resource, verb, and the reason if one failed, or was not made because we may not.",
		}, []string{"resource", "verb", "reason"}),
		services: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fingerpost_mirror_services", Help: "Services of a linked cluster that are asked for, by what became of them.",
		}, []string{"cluster", "federated", "reason"}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.enabled, m.alive, m.latency, m.latencies, m.probes, m.writes, m.services}
}

func (m *metrics) setAlive(name string, alive bool) {
	m.enabled.WithLabelValues(name).Set(1)
	value := 0.0
	if alive {
		value = 1
	}
	m.alive.WithLabelValues(name).Set(value)
}

func (m *metrics) observeProbe(name string, success bool, took time.Duration) {
	m.probes.WithLabelValues(name, strconv.FormatBool(success)).Inc()
	if success {
		ms := float64(took.Milliseconds())
		m.latency.WithLabelValues(name).Set(ms)
		m.latencies.WithLabelValues(name).Observe(ms)
	}
}

// written counts a write, or one that was not tried because we may not. An error without a reason of an API server's is Unknown.
func (m *metrics) countWrite(resource, verb string, err error) {
	reason := ""
	if err != nil {
		reason = cmp.Or(string(cluster.ReasonOf(err)), "Unknown")
		if errors.As(err, new(errNoPermission)) {
			reason = string(metav1.StatusReasonForbidden)
		}
	}
	m.writes.WithLabelValues(resource, verb, reason).Inc()
}

// forget drops the series of a gateway that is not probed any more.
func (m *metrics) deleteGateway(name string) {
	labels := prometheus.Labels{"target_cluster_name": name}
	m.enabled.DeletePartialMatch(labels)
	m.alive.DeletePartialMatch(labels)
	m.latency.DeletePartialMatch(labels)
	m.latencies.DeletePartialMatch(labels)
	m.probes.DeletePartialMatch(labels)
}

// count tells how many Services of a cluster became what.
func (m *metrics) setServices(name string, verdicts []serviceResult) {
	m.services.DeletePartialMatch(prometheus.Labels{"cluster": name})
	for _, v := range verdicts {
		reason := v.reason
		if v.overBudget {
			reason = reasonTooMany
		}
		m.services.WithLabelValues(name, strconv.FormatBool(v.federated), reason).Inc()
	}
}

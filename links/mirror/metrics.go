package mirror

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
)

// metrics are those of Linkerd's service mirror, and some of our own.
type metrics struct {
	enabled, alive, latency *prometheus.GaugeVec
	latencies               *prometheus.HistogramVec
	probes                  *prometheus.CounterVec
	writes                  *prometheus.CounterVec
	services                *prometheus.GaugeVec
	addresses, unresolved   *prometheus.GaugeVec
	waiting                 *prometheus.GaugeVec

	outcomes map[string]map[serviceOutcome]int // with a series, by cluster; of the one that reports statuses
}

// A serviceOutcome is the labels of a series of Services, besides the cluster.
type serviceOutcome struct{ federated, reason string }

const targetLabel = "target_cluster_name"

func newMetrics() *metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}

	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	metrics := &metrics{
		outcomes: map[string]map[serviceOutcome]int{},
		enabled:  gauge("gateway_enabled", "1 if the gateway of a linked cluster is probed.", targetLabel),
		alive: gauge("gateway_alive",
			"1 if the gateway of a linked cluster answers probes, 0 if it has failed as often as its Link allows.",
			targetLabel),
		latency: gauge("gateway_latency",
			"How long the last successful probe of a gateway took, in ms.", targetLabel),
		latencies: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gateway_probe_latency_ms",
			Help: "How long successful probes of a gateway took, in ms.",
			Buckets: []float64{
				1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 100, 200, 300, 400, 500,
				1000, 2000, 3000, 4000, 5000, 10000, 20000, 30000, 40000, 50000,
			},
		}, []string{targetLabel}),
		probes: counter("gateway_probes", "Probes of a gateway.", targetLabel, "probe_successful"),
		writes: counter("fingerpost_mirror_writes_total",
			"Writes for Links into the local cluster, by resource, verb and reason. The reason is empty if the "+
				"write succeeded; a write without permission is counted as Forbidden, although it is not sent.",
			"resource", "verb", "reason"),
		services: gauge("fingerpost_mirror_services",
			"Services of a linked cluster that its Link selects, by the outcome.",
			"target_cluster", "federated", "reason"),
		waiting: gauge("fingerpost_mirror_waiting",
			"Services that wait to be created or deleted, because their cluster has had many written at once.",
			"target_cluster"),
		addresses: gauge("fingerpost_mirror_gateway_addresses",
			"Addresses of the gateway of a linked cluster, to which its mirrors lead.", "target_cluster"),
		unresolved: gauge("fingerpost_mirror_gateway_unresolved",
			"Host names of the gateway of a linked cluster that cannot be resolved; their last addresses are kept.",
			"target_cluster"),
	}

	for _, write := range writes {
		verb, resource, _ := strings.Cut(write, " ")
		for _, reason := range countedReasons {
			metrics.writes.WithLabelValues(resource, verb, reason)
		}
	}
	return metrics
}

// writes are what is done in the local cluster.
var writes = []string{
	"create services", "patch services", "delete services", "create endpoints", "patch endpoints", "delete endpoints",
	"create namespaces",
}

// countedReasons are those that are counted from 0 on, so that increase() finds the first one.
var countedReasons = []string{
	"", string(metav1.StatusReasonForbidden), string(metav1.StatusReasonInvalid), unknownReason,
}

const unknownReason = "Unknown"

// vectors returns what is exported.
func (m *metrics) vectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.enabled, m.alive, m.latency, m.latencies, m.probes, m.writes, m.services, m.addresses, m.unresolved,
		m.waiting,
	}
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

// countWrite counts a write that was sent, or that was not for lack of permission. The reason of an error
// that is no API server's is Unknown.
func (m *metrics) countWrite(resource, verb string, err error) {
	reason := ""
	if err != nil {
		reason = cmp.Or(string(api.StatusReason(err)), unknownReason)
		if apply.IsMissingPermissions(err) {
			reason = string(metav1.StatusReasonForbidden)
		}
	}
	m.writes.WithLabelValues(resource, verb, reason).Inc()
}

// deleteGateway deletes the series of a gateway that is not probed any more.
func (m *metrics) deleteGateway(name string) {
	labels := prometheus.Labels{targetLabel: name}
	m.enabled.DeletePartialMatch(labels)
	m.alive.DeletePartialMatch(labels)
	m.latency.DeletePartialMatch(labels)
	m.latencies.DeletePartialMatch(labels)
	m.probes.DeletePartialMatch(labels)
}

// setServices counts the Services of a cluster by their results.
func (m *metrics) setServices(name string, results []serviceResult) {
	counts := map[serviceOutcome]int{}
	for _, r := range results {
		outcome := serviceOutcome{strconv.FormatBool(r.federated), r.reason}
		if r.overBudget {
			outcome.reason = reasonTooMany
		}
		counts[outcome]++
	}

	for outcome := range m.outcomes[name] {
		if counts[outcome] == 0 {
			m.services.DeleteLabelValues(name, outcome.federated, outcome.reason)
		}
	}
	for outcome, n := range counts {
		m.services.WithLabelValues(name, outcome.federated, outcome.reason).Set(float64(n))
	}
	m.outcomes[name] = counts
}

// setGateway counts where the gateway of a Link leads, if it has one.
func (m *metrics) setGateway(l *link, g gatewayState) {
	if len(l.Gateway.Addresses) == 0 || l.skipReason != "" {
		m.addresses.DeleteLabelValues(l.Cluster)
		m.unresolved.DeleteLabelValues(l.Cluster)
		return
	}
	m.addresses.WithLabelValues(l.Cluster).Set(float64(len(g.addresses)))
	m.unresolved.WithLabelValues(l.Cluster).Set(float64(g.unresolved))
}

// keepServices deletes the counts of clusters without a Link.
func (m *metrics) keepServices(now *linkSet) {
	for name := range m.outcomes {
		if now.linkOf(name) == nil {
			m.setServices(name, nil)
			delete(m.outcomes, name)
			m.addresses.DeleteLabelValues(name)
			m.unresolved.DeleteLabelValues(name)
			m.waiting.DeleteLabelValues(name)
		}
	}
}

// forgetServices deletes the counts of all clusters.
func (m *metrics) forgetServices() {
	clear(m.outcomes)
	m.services.Reset()
	m.addresses.Reset()
	m.unresolved.Reset()
	m.waiting.Reset()
}

package cluster

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"
	_ "sigs.k8s.io/controller-runtime/pkg/controller" // its import registers the metrics of named work queues
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/fingerpost/fingerpost/cluster/view"
)

// clusterMetrics count requests to one cluster and the lag of its changes, under the names of Linkerd's
// destination. Each supervisor has its own, so that an unlinked cluster leaves no series behind.
type clusterMetrics struct {
	cluster  string
	detailed bool // all of these are exported; otherwise those that dashboards and alerts show

	requests, failures *prometheus.CounterVec
	latency            *prometheus.HistogramVec
	inFlight           *prometheus.GaugeVec
	lags               map[string]*prometheus.HistogramVec // by resource
}

// lagNames are the names by which Linkerd's destination knows the resources whose lag is measured. Without
// Options.DetailedMetrics those of endpoints are measured alone.
var lagNames = map[string]string{
	"endpoints":                             "endpoints",
	"endpointslices.discovery.k8s.io":       "endpointslices",
	"externalworkloads.workload.linkerd.io": "externalworkload",
	"pods":                                  "pods",
	"servers.policy.linkerd.io":             "servers",
	"serviceprofiles.linkerd.io":            "serviceprofiles",
	"services":                              "services",
}

func newClusterMetrics(cluster string, detailed bool) *clusterMetrics {
	result := &clusterMetrics{
		cluster: cluster, detailed: detailed,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_client_requests_total", Help: "Requests to the API server of a cluster that it has answered.",
		}, []string{"client", "code", "method"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_client_errors_total", Help: "Requests to the API server of a cluster that were not answered.",
		}, []string{"client", "method"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "http_client_request_latency_seconds",
			Help:    "Time until the API server of a cluster began to answer a request.",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"client", "code", "method"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "http_client_in_flight_requests",
			Help: "Requests to the API server of a cluster that it has not begun to answer.",
		}, []string{"client"}),
		lags: map[string]*prometheus.HistogramVec{},
	}

	for resource, name := range lagNames {
		if !detailed && !strings.HasPrefix(name, "endpoint") {
			continue
		}
		result.lags[resource] = prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name + "_informer_lag_seconds",
			Help: "Time from a change to its arrival here: from when it was made, by the API server's clock " +
				"and in whole seconds, to now by the replica's. A change that is no newer than one that has arrived " +
				"before is not counted.",
			Buckets: []float64{.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000},
		}, []string{"cluster"})
	}
	return result
}

// vectors returns those that are exported.
func (m *clusterMetrics) vectors() []prometheus.Collector {
	all := []prometheus.Collector{m.requests, m.failures}
	if m.detailed {
		all = append(all, m.latency, m.inFlight)
	}
	for _, lag := range m.lags {
		all = append(all, lag)
	}
	return all
}

// lag returns what observes the lag of a resource; nil if that is not measured. The histogram begins with the first
// change.
func (m *clusterMetrics) lag(resource string) prometheus.Observer {
	if lag, measured := m.lags[resource]; measured {
		return prometheus.ObserverFunc(func(seconds float64) { lag.WithLabelValues(m.cluster).Observe(seconds) })
	}
	return nil
}

// instrument returns the config with every request counted.
func (m *clusterMetrics) instrument(config *rest.Config) *rest.Config {
	client := prometheus.Labels{"client": m.cluster}
	requests, failures := m.requests.MustCurryWith(client), m.failures.MustCurryWith(client)
	latency := m.latency.MustCurryWith(client)

	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		counting := promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			began, method := time.Now(), strings.ToLower(r.Method)
			response, err := next.RoundTrip(r)
			if err != nil {
				failures.WithLabelValues(method).Inc()
				return response, err
			}
			code := codeLabel(response.StatusCode)
			requests.WithLabelValues(code, method).Inc()
			latency.WithLabelValues(code, method).Observe(time.Since(began).Seconds())
			return response, nil
		})
		return promhttp.InstrumentRoundTripperInFlight(m.inFlight.With(client), counting)
	})

	return config
}

// codeLabel returns the label of a status. Those that HTTP does not know share one: an API server may answer with any.
func codeLabel(status int) string {
	if http.StatusText(status) == "" {
		return "other"
	}
	return strconv.Itoa(status)
}

// Instrument returns a config for the API server of a cluster whose requests count as the cluster's. It is
// for connections that do not belong to an engagement.
func (r *Registry) Instrument(cluster string, config *rest.Config) *rest.Config {
	if s := r.supervisor(cluster); s != nil {
		return s.metrics.instrument(config)
	}
	return config
}

// QueueMetrics gathers the metrics of work queues, workqueue_*, those of the clusters and those of
// controllers. controller-runtime keeps it in a registry of its own, among much that we export under other
// names.
func (r *Registry) QueueMetrics() prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := metrics.Registry.Gather()
		statuses, _ := r.Statuses()
		gone := func(m *dto.Metric) bool {
			for _, l := range m.GetLabel() {
				cluster, of := strings.CutPrefix(l.GetValue(), view.QueueName(""))
				if of && l.GetName() == "name" {
					_, known := statuses[cluster]
					return !known
				}
			}
			return false
		}

		other := func(f *dto.MetricFamily) bool {
			return !strings.HasPrefix(f.GetName(), "workqueue_") ||
				f.GetType() == dto.MetricType_HISTOGRAM && !r.options.DetailedMetrics
		}
		families = slices.DeleteFunc(families, other)
		for _, f := range families {
			f.Metric = slices.DeleteFunc(f.GetMetric(), gone)
		}
		return families, err
	})
}

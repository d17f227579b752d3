package slices

import "github.com/prometheus/client_golang/prometheus"

// metrics counts what is written. Who writes is told by the Registry.
type metrics struct {
	writes, failures *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fingerpost_slice_writes_total",
			Help: "Writes of EndpointSlices, by the cluster that they went to, who manages the slice, and create, update or delete.",
		}, []string{"cluster", "managed_by", "verb"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fingerpost_slice_write_failures_total",
			Help: "Services whose slices could not be written, and are tried again.",
		}, []string{"cluster"}),
	}
}

// forget drops the series of a cluster that is not written to any more.
func (m *metrics) forget(cluster string) {
	m.writes.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
	m.failures.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
}

// Collectors returns the Writer's metrics, to be registered.
func (w *Writer) Collectors() []prometheus.Collector {
	return []prometheus.Collector{w.metrics.writes, w.metrics.failures}
}

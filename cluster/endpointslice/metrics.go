package endpointslice

import "github.com/prometheus/client_golang/prometheus"

// targetLabel is the label with the name of the cluster that is written into.
const targetLabel = "target_cluster"

// writerMetrics counts writes, failures and endpoints that are left out. The Registry reports which replica
// writes.
type writerMetrics struct {
	writes, failures *prometheus.CounterVec
	leftOut, private *prometheus.GaugeVec
}

func newWriterMetrics() *writerMetrics {
	return &writerMetrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fingerpost_slice_writes_total",
			Help: "Writes of EndpointSlices, by cluster that is written into, managed-by label of the slice, " +
				"and create, update or delete.",
		}, []string{targetLabel, "managed_by", "verb"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fingerpost_slice_write_failures_total",
			Help: "Services whose slices could not be written, and are retried.",
		}, []string{targetLabel}),
		leftOut: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fingerpost_slice_endpoints_left_out",
			Help: "Endpoints of a source cluster that are in no slice, " +
				"because they would take more slices than -max-slices-per-source allows.",
		}, []string{targetLabel, "source"}),
		private: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fingerpost_slice_members_not_exported",
			Help: "Members of Services of a linked cluster that it is not shown, because their clusters do not " +
				"export them.",
		}, []string{targetLabel}),
	}
}

// beginAtZero makes the counters of a cluster that is written into begin at 0.
func (m *writerMetrics) beginAtZero(cluster, managedBy string) {
	for _, verb := range []string{"create", "update", "delete"} {
		m.writes.WithLabelValues(cluster, managedBy, verb)
	}
	m.failures.WithLabelValues(cluster)
}

// deleteSeries deletes the series of a cluster that is no longer written into.
func (m *writerMetrics) deleteSeries(cluster string) {
	m.writes.DeletePartialMatch(prometheus.Labels{targetLabel: cluster})
	m.failures.DeletePartialMatch(prometheus.Labels{targetLabel: cluster})
	m.leftOut.DeletePartialMatch(prometheus.Labels{targetLabel: cluster})
	m.private.DeletePartialMatch(prometheus.Labels{targetLabel: cluster})
}

// Collectors returns the Writer's metrics, to be registered.
func (w *Writer) Collectors() []prometheus.Collector {
	return []prometheus.Collector{w.metrics.writes, w.metrics.failures, w.metrics.leftOut, w.metrics.private}
}

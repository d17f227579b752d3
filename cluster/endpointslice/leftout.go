package endpointslice

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// applied implements content. It reports the endpoints that are in no slice of the cluster: the sums of each source
// cluster that has slices there, when they change.
func (f *federatedSlices) applied(service key, now map[string]int) {
	if now == nil {
		f.setPrivate(service, 0)
	}

	for source, sum := range f.sumLeftOut(service, now) {
		f.writer.metrics.leftOut.WithLabelValues(f.Name, source).Set(float64(sum.Excess))
		if f.Local {
			f.writer.registry.ReportLeftOut(source, sum)
		}
		if n := now[source]; n != 0 {
			logs.Warn(f.Log, "Endpoints are in no slice: they would take more slices than "+
				"-max-slices-per-source allows",
				"service", service.String(), "source", source, "endpoints", n)
		}
	}
}

// sumLeftOut records how many endpoints are left out of a Service's slices, and returns the sums that have changed.
func (f *federatedSlices) sumLeftOut(service key, now map[string]int) map[string]cluster.LeftOut {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := map[string]cluster.LeftOut{}
	for source := range now {
		if f.leftOut[source] == nil {
			f.leftOut[source] = map[key]int{}
			changed[source] = cluster.LeftOut{}
		}
	}

	for source, byService := range f.leftOut {
		if byService[service] != now[source] {
			changed[source] = cluster.LeftOut{}
			delete(byService, service)
			if now[source] != 0 {
				byService[service] = now[source]
			}
		}
	}

	for source := range changed {
		sum := cluster.LeftOut{Known: true}
		for _, n := range f.leftOut[source] {
			sum.Excess += n
		}
		changed[source] = sum
	}
	return changed
}

// forgetLeftOut takes back what was reported, once nothing runs any more.
func (f *federatedSlices) forgetLeftOut() {
	f.writer.metrics.private.DeleteLabelValues(f.Name)
	for source := range f.leftOut {
		f.writer.metrics.leftOut.DeletePartialMatch(prometheus.Labels{targetLabel: f.Name, "source": source})
		if f.Local {
			f.writer.registry.ReportLeftOut(source, cluster.LeftOut{})
		}
	}
}

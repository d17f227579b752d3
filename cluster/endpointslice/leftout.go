package endpointslice

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/cluster"
)

// applied implements content. It reports the endpoints that are in no slice of the cluster: the sums of each source
// cluster that has slices there, when they change.
func (f *federatedSlices) applied(k key, now map[string]int) {
	if now == nil {
		f.setPrivate(k, 0)
	}

	for source, sum := range f.sumLeftOut(k, now) {
		f.writer.metrics.leftOut.WithLabelValues(f.Name, source).Set(float64(sum.Excess))
		if f.Local {
			f.writer.registry.ReportLeftOut(source, sum)
		}
		if n := now[source]; n != 0 {
			f.Log.Info("Endpoints are in no slice: they would take more slices than -max-slices-per-source allows",
				"service", k.String(), "source", source, "endpoints", n)
		}
	}
}

// sumLeftOut records how many endpoints are left out of a Service's slices, and returns the sums that have changed.
func (f *federatedSlices) sumLeftOut(k key, now map[string]int) map[string]cluster.LeftOut {
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
		if byService[k] != now[source] {
			changed[source] = cluster.LeftOut{}
			delete(byService, k)
			if now[source] != 0 {
				byService[k] = now[source]
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

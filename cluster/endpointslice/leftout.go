package endpointslice

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apply"
)

// leftOut counts the endpoints that are in no slice of a cluster, and reports the sums of each source cluster that
// has slices there.
type leftOut struct {
	*apply.Target
	writer *Writer

	mu       sync.Mutex
	bySource map[string]map[key]int // by Service
}

// note records how many endpoints are left out of a Service's slices, by source cluster of these, and reports the
// sums that changed.
func (l *leftOut) note(k key, now map[string]int) {
	for source, sum := range l.update(k, now) {
		l.writer.metrics.leftOut.WithLabelValues(l.Name, source).Set(float64(sum.Excess))
		if l.Local {
			l.writer.registry.ReportLeftOut(source, sum)
		}
		if n := now[source]; n != 0 {
			l.Log.Info("Endpoints are in no slice: they would take more slices than -max-slices-per-source allows",
				"service", k.String(), "source", source, "endpoints", n)
		}
	}
}

// update returns the sums that have changed.
func (l *leftOut) update(k key, now map[string]int) map[string]cluster.LeftOut {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := map[string]cluster.LeftOut{}
	for source := range now {
		if l.bySource[source] == nil {
			l.bySource[source] = map[key]int{}
			changed[source] = cluster.LeftOut{}
		}
	}
	for source, byService := range l.bySource {
		if byService[k] != now[source] {
			changed[source] = cluster.LeftOut{}
			if delete(byService, k); now[source] != 0 {
				byService[k] = now[source]
			}
		}
	}
	for source := range changed {
		sum := cluster.LeftOut{Known: true}
		for _, n := range l.bySource[source] {
			sum.Excess += n
		}
		changed[source] = sum
	}
	return changed
}

// forget takes back what was reported.
func (l *leftOut) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for source := range l.bySource {
		l.writer.metrics.leftOut.DeletePartialMatch(prometheus.Labels{targetLabel: l.Name, "source": source})
		if l.Local {
			l.writer.registry.ReportLeftOut(source, cluster.LeftOut{})
		}
	}
}

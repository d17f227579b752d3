package links

import (
	"cmp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// LinkStatus is one Link with the conditions that this replica computed for it.
type LinkStatus struct {
	Namespace  string             `json:"namespace"`
	Name       string             `json:"name"`
	Cluster    string             `json:"cluster"`
	Conditions []metav1.Condition `json:"conditions"`

	// The Link cannot hold conditions: its schema drops them, or we lack the permission to patch its status.
	// Only the replica that writes them finds that out.
	ConditionsUnsupported bool `json:"conditionsUnsupported,omitempty"`
}

// Links returns every Link, sorted by namespace and name.
func (r *Reconciler) Links() []LinkStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []LinkStatus{}
	for _, l := range r.seenLinks {
		s := LinkStatus{Namespace: l.key.Namespace, Name: l.key.Name, Cluster: l.clusterName}
		if p := r.reports[l.uid]; p != nil {
			s.Conditions = p.conditions
			s.ConditionsUnsupported = p.attempt != nil && p.attempt.support != supportsAll
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b LinkStatus) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return all
}

// Collectors returns the Reconciler's metrics.
func (r *Reconciler) Collectors() []prometheus.Collector { return []prometheus.Collector{r.metrics} }

// conditionMetrics exports the conditions of Links, also of those that cannot hold conditions, and counts writes.
type conditionMetrics struct {
	reconciler *Reconciler
	writes     *prometheus.CounterVec
}

func newConditionMetrics(r *Reconciler) *conditionMetrics {
	return &conditionMetrics{r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fingerpost_link_status_writes_total",
		Help: "Writes of the status of Links, by the reason of their failure; empty for those that succeeded.",
	}, []string{"reason"})}
}

// countWrite counts a write. The reason of an error that is no API server's is Unknown.
func (m *conditionMetrics) countWrite(err error) {
	reason := ""
	if err != nil {
		reason = cmp.Or(string(api.StatusReason(err)), "Unknown")
	}
	m.writes.WithLabelValues(reason).Inc()
}

var (
	descReadable = prometheus.NewDesc("fingerpost_links_readable",
		"1 if Links can be listed; 0 if only labelled Secrets link clusters.", nil, nil)
	descCondition = prometheus.NewDesc("fingerpost_link_condition",
		"Conditions of Links: 1 if the condition is True, 0 if it is False, -1 if it is Unknown.",
		[]string{"namespace", "link", "cluster", "type"}, nil)
)

var conditionValues = map[metav1.ConditionStatus]float64{
	metav1.ConditionTrue: 1, metav1.ConditionFalse: 0, metav1.ConditionUnknown: -1,
}

// Describe implements [prometheus.Collector].
func (m *conditionMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- descReadable
	to <- descCondition
	m.writes.Describe(to)
}

// Collect implements [prometheus.Collector].
func (m *conditionMetrics) Collect(to chan<- prometheus.Metric) {
	readable := 0.0
	if isClosed(m.reconciler.links.Synced()) && m.reconciler.links.Health().Refused == "" {
		readable = 1
	}
	to <- prometheus.MustNewConstMetric(descReadable, prometheus.GaugeValue, readable)
	m.writes.Collect(to)
	for _, l := range m.reconciler.Links() {
		for _, c := range l.Conditions {
			to <- prometheus.MustNewConstMetric(descCondition, prometheus.GaugeValue, conditionValues[c.Status],
				l.Namespace, l.Name, l.Cluster, c.Type)
		}
	}
}

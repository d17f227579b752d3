package links

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LinkStatus is one Link with the conditions that this replica computed for it.
type LinkStatus struct {
	Namespace  string             `json:"namespace"`
	Name       string             `json:"name"`
	Cluster    string             `json:"cluster"`
	Conditions []metav1.Condition `json:"conditions"`

	// The Link cannot hold conditions: its schema drops them, or we lack the permission to patch its status.
	ConditionsUnsupported bool `json:"conditionsUnsupported,omitempty"`
}

// Links returns every Link, sorted by namespace and name.
func (r *Reconciler) Links() []LinkStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []LinkStatus{}
	for _, l := range r.seenLinks {
		s := LinkStatus{Namespace: l.key.Namespace, Name: l.key.Name, Cluster: l.clusterName}
		if last := r.lastReports[l.uid]; last != nil {
			s.Conditions, s.ConditionsUnsupported = last.conditions, last.unsupported
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

// metrics exports the conditions of Links, also of those that cannot hold conditions.
type metrics struct {
	reconciler *Reconciler
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
func (m metrics) Describe(to chan<- *prometheus.Desc) {
	to <- descReadable
	to <- descCondition
}

// Collect implements [prometheus.Collector].
func (m metrics) Collect(to chan<- prometheus.Metric) {
	readable := 0.0
	if isClosed(m.reconciler.links.Synced()) && m.reconciler.links.Health().Refused == "" {
		readable = 1
	}
	to <- prometheus.MustNewConstMetric(descReadable, prometheus.GaugeValue, readable)
	for _, l := range m.reconciler.Links() {
		for _, c := range l.Conditions {
			to <- prometheus.MustNewConstMetric(descCondition, prometheus.GaugeValue, conditionValues[c.Status],
				l.Namespace, l.Name, l.Cluster, c.Type)
		}
	}
}

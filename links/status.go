package links

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LinkStatus is one Link and what is concluded about it, wherever else that can be read.
type LinkStatus struct {
	Namespace             string             `json:"namespace"`
	Name                  string             `json:"name"`
	Cluster               string             `json:"cluster"`
	Conditions            []metav1.Condition `json:"conditions"`
	ConditionsUnsupported bool               `json:"mute,omitempty"` // the conditions cannot be written into the Link
}

// Links returns every Link, sorted.
func (r *Reconciler) Links() []LinkStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []LinkStatus{}
	for _, l := range r.seenLinks {
		s := LinkStatus{Namespace: l.key.Namespace, Name: l.key.Name, Cluster: l.clusterName}
		if v := r.lastReports[l.uid]; v != nil {
			s.Conditions, s.ConditionsUnsupported = v.conditions, v.unsupported
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b LinkStatus) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	return all
}

// Collectors returns the Reconciler's metrics, to be registered.
func (r *Reconciler) Collectors() []prometheus.Collector { return []prometheus.Collector{r.metrics} }

// metrics tells the conditions of Links, also where they cannot be written.
type metrics struct {
	reconciler *Reconciler
}

var (
	descReadable = prometheus.NewDesc("fingerpost_links_readable",
		"1 if Links can be read; 0 if clusters are linked by labelled Secrets only.", nil, nil)
	descCondition = prometheus.NewDesc("fingerpost_link_condition",
		"Conditions of Links: 1 if the condition is True, 0 if it is False, -1 if it is Unknown.", []string{"namespace", "link", "cluster", "type"}, nil)
)

// Describe is part of [prometheus.Collector].
func (m metrics) Describe(to chan<- *prometheus.Desc) {
	to <- descReadable
	to <- descCondition
}

// Collect is part of [prometheus.Collector].
func (m metrics) Collect(to chan<- prometheus.Metric) {
	readable := 0.0
	if isClosed(m.reconciler.links.Synced()) && m.reconciler.linkSource.Health().Refused == "" {
		readable = 1
	}
	to <- prometheus.MustNewConstMetric(descReadable, prometheus.GaugeValue, readable)
	for _, l := range m.reconciler.Links() {
		for _, c := range l.Conditions {
			value := map[metav1.ConditionStatus]float64{metav1.ConditionTrue: 1, metav1.ConditionFalse: 0, metav1.ConditionUnknown: -1}[c.Status]
			to <- prometheus.MustNewConstMetric(descCondition, prometheus.GaugeValue, value, l.Namespace, l.Name, l.Cluster, c.Type)
		}
	}
}

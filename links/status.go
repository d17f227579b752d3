package links

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/problem"
)

// LinkStatus is one Link with the conditions that this replica computed for it. A Link that was deleted while this
// replica did not run is not known: it has no namespace, and the name of its cluster.
type LinkStatus struct {
	Namespace  string             `json:"namespace"`
	Name       string             `json:"name"`
	Cluster    string             `json:"cluster"`
	Conditions []metav1.Condition `json:"conditions"`

	// Own are the Problems of the Link itself that its Conditions report; see [LinkStatus.Problems].
	Own []problem.Problem `json:"-"`

	// What only the replica that writes the status finds out: fields of it that the schema of Links lacks, as
	// conditions or mirrorServices.conditions.localRef; why no status can be written, empty if one can; and whether
	// the Link has no conditions, for one of these reasons.
	UndeclaredFields      []string `json:"undeclaredFields,omitempty"`
	StatusRefused         string   `json:"statusRefused,omitempty"`
	ConditionsUnsupported bool     `json:"conditionsUnsupported,omitempty"`

	Deleted time.Time     `json:"deleted,omitzero"` // when it was; its cluster stays linked for a grace
	Held    string        `json:"held,omitempty"`   // why that is so
	Mirror  *MirrorReport `json:"mirror,omitempty"` // of the replica that mirrors Services only
}

// String returns which Link it is, for people.
func (s LinkStatus) String() string {
	if s.Namespace == "" {
		return "of cluster " + s.Cluster
	}
	return s.Namespace + "/" + s.Name
}

// A MirrorReport is what the replica that mirrors Services reports of one Link.
type MirrorReport struct {
	Condition metav1.Condition `json:"condition"`

	// At most ten Services each: those that are not mirrored, and why; and those that are exported, and that no
	// selector of the Link matches.
	NotMirrored []string `json:"notMirrored,omitempty"`
	Unmatched   []string `json:"unmatched,omitempty"`
}

// Missing describes the Services that a Link selects and that are not mirrored, or else those that may be meant to be;
// empty for none, and for no report.
func (m *MirrorReport) Missing() string {
	switch {
	case m == nil:
		return ""
	case len(m.NotMirrored) > 0:
		return strings.Join(m.NotMirrored, "\n")
	case len(m.Unmatched) > 0:
		return "no selector of the Link matches the label of " + strings.Join(m.Unmatched, ", ") +
			": correct the label, or give the Link a selector that matches it"
	default:
		return ""
	}
}

// Links returns every Link, sorted by namespace and name.
func (r *Reconciler) Links() []LinkStatus {
	r.mu.Lock()
	defer r.mu.Unlock()

	all := []LinkStatus{}
	for _, link := range r.seenLinks {
		status := LinkStatus{Namespace: link.key.Namespace, Name: link.key.Name, Cluster: link.clusterName}
		if p := r.reports[link.uid]; p != nil {
			status.Conditions, status.Own = p.conditions, p.own
			if w := r.statusWriter; w != nil {
				status.UndeclaredFields, status.StatusRefused = w.Report(link.key, link.shown())
				status.ConditionsUnsupported = status.StatusRefused != "" ||
					slices.Contains(status.UndeclaredFields, "conditions")
			}
			status.Mirror = p.mirror.exported()
		}

		if d, found := r.deleted[link.key]; found {
			status.Deleted, status.Held = d.at, d.reason
		}
		all = append(all, status)
	}

	for k, d := range r.deleted {
		if r.seenLinks[k] == nil {
			all = append(all, LinkStatus{Name: k.Name, Cluster: k.Name, Deleted: d.at, Held: d.reason})
		}
	}
	slices.SortFunc(all, func(a, b LinkStatus) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return all
}

// undeclaredFields returns the fields of the status of Links that their schema lacks, as far as this replica has
// found out.
func (r *Reconciler) undeclaredFields() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.statusWriter == nil {
		return nil
	}
	return r.statusWriter.Undeclared(linkerd.Links)
}

// Refused returns why Links cannot be listed, such as NotFound without a CRD; empty if they can.
func (r *Reconciler) Refused() string { return string(r.links.Health().Refused) }

// Collectors returns the Reconciler's metrics.
func (r *Reconciler) Collectors() []prometheus.Collector { return []prometheus.Collector{r.metrics} }

// conditionMetrics exports the conditions of Links, also of those that cannot hold conditions, and counts writes.
type conditionMetrics struct {
	reconciler *Reconciler
	writes     *prometheus.CounterVec
}

func newConditionMetrics(r *Reconciler) *conditionMetrics {
	m := &conditionMetrics{r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fingerpost_link_status_writes_total",
		Help: "Writes of the status of Links, by the reason of their failure; empty for those that succeeded.",
	}, []string{"reason"})}
	m.writes.WithLabelValues("")
	return m
}

var (
	descReadable = prometheus.NewDesc("fingerpost_links_readable",
		"1 if Links can be listed; 0 if only labelled Secrets link clusters.", nil, nil)
	descUndeclared = prometheus.NewDesc("fingerpost_link_status_undeclared_field",
		"1 for each field of the status of Links that their schema lacks, so that it is left out; of the replica that "+
			"writes them.", []string{"field"}, nil)
	descHeld = prometheus.NewDesc("fingerpost_links_held",
		"Links that were deleted and whose clusters stay linked for a grace: with the CRD, or most of them at once.",
		nil, nil)
	descCondition = prometheus.NewDesc("fingerpost_link_condition",
		"Conditions of Links: 1 if the condition is True, 0 if it is False, -1 if it is Unknown.",
		[]string{"namespace", "link", "target_cluster", "type"}, nil)
)

var conditionValues = map[metav1.ConditionStatus]float64{
	metav1.ConditionTrue: 1, metav1.ConditionFalse: 0, metav1.ConditionUnknown: -1,
}

// Describe implements [prometheus.Collector].
func (m *conditionMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- descReadable
	to <- descHeld
	to <- descCondition
	to <- descUndeclared
	m.writes.Describe(to)
}

// Collect implements [prometheus.Collector].
func (m *conditionMetrics) Collect(to chan<- prometheus.Metric) {
	readable := 0.0
	if m.reconciler.links.HasSynced() && m.reconciler.links.Health().Refused == "" {
		readable = 1
	}
	to <- prometheus.MustNewConstMetric(descReadable, prometheus.GaugeValue, readable)
	m.writes.Collect(to)
	for _, field := range m.reconciler.undeclaredFields() {
		to <- prometheus.MustNewConstMetric(descUndeclared, prometheus.GaugeValue, 1, field)
	}

	all, held := m.reconciler.Links(), 0
	for _, l := range all {
		if l.Held != "" {
			held++
		}
	}

	to <- prometheus.MustNewConstMetric(descHeld, prometheus.GaugeValue, float64(held))
	for _, l := range all {
		for _, c := range l.Conditions {
			to <- prometheus.MustNewConstMetric(descCondition, prometheus.GaugeValue, conditionValues[c.Status],
				l.Namespace, l.Name, l.Cluster, c.Type)
		}
	}
}

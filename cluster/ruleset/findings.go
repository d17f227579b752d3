package ruleset

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// maxExamples is how many objects are named that cannot be used completely.
const maxExamples = 3

// Unusable returns how many objects cannot be used, or not completely, and names the first of them with the reason.
// Pods are left out: each one of a template would be another object, and is one line in its explanation.
func (r *Reconciler) Unusable() (count int, examples string) {
	type example struct {
		name     string
		findings *rules.ObjectFindings
	}
	var first []example

	for of, found := range r.levels.Findings.All(r.cluster) {
		if of.Kind == rules.KindPod || !found.Unusable() {
			continue
		}
		count++
		first = append(first, example{of.String(), found})
		slices.SortFunc(first, func(a, b example) int { return strings.Compare(a.name, b.name) })
		first = first[:min(len(first), maxExamples)]
	}

	var texts []string
	for _, e := range first {
		line, _, _ := strings.Cut(e.findings.Problem(), "\n")
		texts = append(texts, e.name+" ("+line+")")
	}
	return count, strings.Join(texts, ", ")
}

// A Collector has the metrics of what is wrong with objects of policy, as it is when they are read.
type Collector struct{ levels rules.LevelsReader }

// NewCollector returns a Collector.
func NewCollector(levels rules.LevelsReader) *Collector { return &Collector{levels} }

var (
	descUnreadable = prometheus.NewDesc("fingerpost_unreadable_objects",
		"Objects of policy that cannot be read, by kind: they have no effect.", []string{"kind"}, nil)
	descUnconverted = prometheus.NewDesc("fingerpost_unconverted",
		"Parts of objects of policy that do not convert, by the kind of the object and the part; no series for none.",
		[]string{"kind", "part"}, nil)
)

// Describe makes it a [prometheus.Collector].
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	to <- descUnreadable
	to <- descUnconverted
}

// Collect counts. Labels are kinds and parts, of which there are few.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	type part struct{ kind, part string }
	unreadable, unconverted := map[string]int{}, map[part]int{}
	for kind := rules.KindServer; kind <= rules.KindTCPRoute; kind++ {
		unreadable[kind.Qualified()] = 0 // so that increases are seen from the first one on
	}

	for of, found := range c.levels.Findings.All() {
		kind := of.Kind.Qualified()
		if found.Unreadable != "" {
			unreadable[kind]++
		}
		for _, f := range found.Findings {
			if f.Unconverted {
				unconverted[part{kind, f.Part}]++
			}
		}
	}

	for kind, n := range unreadable {
		to <- prometheus.MustNewConstMetric(descUnreadable, prometheus.GaugeValue, float64(n), kind)
	}
	for of, n := range unconverted {
		to <- prometheus.MustNewConstMetric(descUnconverted, prometheus.GaugeValue, float64(n), of.kind, of.part)
	}
}

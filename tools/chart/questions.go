package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// A question is a metric that a dashboard or an alert asks for, and a label of it that it selects, groups or names by.
type question struct{ where, metric, label string }

// questions returns what the dashboards and alerts of a chart ask for.
func questions(dir string) ([]question, error) {
	all := map[question]bool{}
	ask := func(where, query string, shown []string) error {
		expr, err := parse(query)
		if err == nil {
			err = follow(expr, shown, func(metric string, labels []string) {
				if metric == "ALERTS" {
					return // of Prometheus itself
				}
				for _, l := range append(labels, "") { // none: that there is the metric
					all[question{where, metric, l}] = true
				}
			})
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", where, query, err)
		}
		return nil
	}
	paths, err := filepath.Glob(filepath.Join(dir, "dashboards", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if err := askDashboard(path, ask); err != nil {
			return nil, err
		}
	}
	if err := askAlerts(filepath.Join(dir, "files", "alerts.yaml"), ask); err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b question) int {
		return strings.Compare(a.where+" "+a.metric+" "+a.label, b.where+" "+b.metric+" "+b.label)
	}), nil
}

// questionLines returns the questions one a line: metric, label or nothing, and where it is asked, with tabs between.
func questionLines(dir string) (string, error) {
	all, err := questions(dir)
	var b strings.Builder
	for _, q := range all {
		fmt.Fprintf(&b, "%s\t%s\t%s\n", q.metric, q.label, q.where)
	}
	return b.String(), err
}

// A dashboard has the fields of one of Grafana's that hold queries.
type dashboard struct {
	UID        string
	Panels     []panel
	Templating struct {
		List []struct {
			Name  string
			Query any // that of a data source is its type
		}
	}
}

type panel struct {
	ID      int
	Type    string
	Title   string
	Panels  []panel // of a row that is collapsed
	GridPos struct{ X, Y, W, H int }
	Targets []struct{ Expr, LegendFormat, RefID string }
}

// all returns the panels, those in collapsed rows included.
func (d *dashboard) all() (all []panel) {
	for _, p := range d.Panels {
		all = append(append(all, p), p.Panels...)
	}
	return all
}

func readDashboard(path string) (d dashboard, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		return d, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

var (
	promQL      = parser.NewParser(parser.Options{})
	legend      = regexp.MustCompile(`{{ *([a-z_]+) *}}`)
	annotation  = regexp.MustCompile(`\$labels\.([a-z_]+)`)
	labelValues = regexp.MustCompile(`^label_values\((.*), ([a-z_]+)\)$`)
)

// parse reads a query as Grafana would send it.
func parse(query string) (parser.Expr, error) {
	return promQL.ParseExpr(strings.ReplaceAll(query, "$__rate_interval", "5m"))
}

func askDashboard(path string, ask func(where, query string, shown []string) error) error {
	d, err := readDashboard(path)
	if err != nil {
		return err
	}
	for _, p := range d.all() {
		for _, t := range p.Targets {
			if err := ask(filepath.Base(path)+": "+p.Title, t.Expr, names(legend, t.LegendFormat)); err != nil {
				return err
			}
		}
	}
	for _, v := range d.Templating.List {
		query, ok := v.Query.(map[string]any)
		if !ok {
			continue
		}
		text, _ := query["query"].(string)
		match := labelValues.FindStringSubmatch(text)
		if match == nil {
			return fmt.Errorf("%s: variable %s asks for no values of a label", path, v.Name)
		}
		if err := ask(filepath.Base(path)+": $"+v.Name, match[1], match[2:]); err != nil {
			return err
		}
	}
	return nil
}

func askAlerts(path string, ask func(where, query string, shown []string) error) error {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, &rules)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if err := ask(r.Alert, r.Expr, names(annotation, r.Annotations["summary"])); err != nil {
				return err
			}
		}
	}
	return nil
}

// names returns what the pattern's group matches in text.
func names(pattern *regexp.Regexp, text string) (all []string) {
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	return all
}

// follow finds every metric below a node, with the labels of it that matter: those by which it is selected,
// and those that what is above it needs. A label that is needed and aggregated away is an error.
func follow(node parser.Node, needed []string, found func(metric string, labels []string)) error {
	switch n := node.(type) {
	case *parser.AggregateExpr:
		for _, l := range needed {
			if slices.Contains(n.Grouping, l) == n.Without && n.Op != parser.TOPK && n.Op != parser.BOTTOMK {
				return fmt.Errorf("label %s is aggregated away", l)
			}
		}
		if !n.Without {
			needed = append(slices.Clone(needed), n.Grouping...)
		}
	case *parser.BinaryExpr:
		if n.VectorMatching != nil && n.VectorMatching.On {
			matching := n.VectorMatching.MatchingLabels
			needed = append(slices.Clone(needed), matching...)
			if n.Op == parser.LAND || n.Op == parser.LUNLESS { // the right side gives no labels to the result
				if err := follow(n.LHS, needed, found); err != nil {
					return err
				}
				return follow(n.RHS, matching, found)
			}
		}
	case *parser.VectorSelector:
		for _, m := range n.LabelMatchers {
			if m.Name != "__name__" {
				needed = append(slices.Clone(needed), m.Name)
			}
		}
		found(n.Name, needed)
	}
	for child := range parser.ChildrenIter(node) {
		if err := follow(child, needed, found); err != nil {
			return err
		}
	}
	return nil
}

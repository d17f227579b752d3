package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// Every query of a dashboard and of an alert can be read, and shows labels that it has. That there are such
// metrics is for e2e/live to see, which has a server.
func TestQuestions(t *testing.T) {
	all, err := questions(server)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []question{
		{"clusters.json: State", "fingerpost_cluster_state", "state"},
		{"clusters.json: $cluster", "fingerpost_cluster_state", "target_cluster"},
		{"server.json: First answers", "fingerpost_first_answer_seconds_bucket", "le"},
		{"FingerpostForbidden", "fingerpost_api_errors_total", "reason"},
	} {
		if !slices.Contains(all, want) {
			t.Errorf("%v is not asked", want)
		}
	}
	if len(all) < 150 {
		t.Errorf("%d questions were found", len(all))
	}
}

func TestFollow(t *testing.T) {
	for query, want := range map[string]struct {
		shown []string
		asked string
	}{
		`up`:                                 {nil, "up:"},
		`sum by (a) (rate(x{b="1"}[5m]))`:    {[]string{"a"}, "x:a a b"},
		`sum by (a) (x)`:                     {[]string{"b"}, "label b is aggregated away"},
		`sum without (b) (x)`:                {[]string{"b"}, "label b is aggregated away"},
		`topk(3, sum by (a) (x))`:            {[]string{"a"}, "x:a a"},
		`x / on (a) group_left (b) y{c="1"}`: {nil, "x:a y:a c"},
		`x unless on (a) max by (a) (y)`:     {[]string{"b"}, "x:a b y:a a"},
		`time() - min(x)`:                    {nil, "x:"},
		`sum(x`:                              {nil, "1:6: parse error: unclosed left parenthesis"},
	} {
		var asked []string
		expr, err := promQL.ParseExpr(query)
		if err == nil {
			err = follow(expr, want.shown, func(metric string, labels []string) {
				slices.Sort(labels)
				asked = append(asked, metric+":"+strings.Join(labels, " "))
			})
		}
		have := strings.Join(asked, " ")
		if err != nil {
			have = err.Error()
		}
		if have != want.asked {
			t.Errorf("%s: %q, want %q", query, have, want.asked)
		}
	}
}

// Dashboards are ones that Grafana takes, and that show what people look for in them.
func TestDashboards(t *testing.T) {
	var decoded any
	read(t, filepath.Join("testdata", "schema", "dashboard.yaml"), &decoded)
	schema := compile(t, decoded)
	paths, err := filepath.Glob(server + "/dashboards/*.json")
	if err != nil || len(paths) != 2 {
		t.Fatalf("dashboards: %v %v", paths, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var all any
			read(t, path, &all)
			if err := schema.Validate(all); err != nil {
				t.Fatal(err)
			}
			d, err := readDashboard(path)
			if err != nil {
				t.Fatal(err)
			}
			if want := "fingerpost-" + strings.TrimSuffix(filepath.Base(path), ".json"); d.UID != want {
				t.Errorf("uid %q, want %q", d.UID, want)
			}
			layout(t, d.all())
			variables(t, path, d)
			for _, p := range d.all() {
				for i, target := range p.Targets {
					if want := string(rune('A' + i)); target.RefID != want {
						t.Errorf("%s: query %s, want %s", p.Title, target.RefID, want)
					}
					if err := selects(target.Expr); err != nil {
						t.Errorf("%s: %s: %v", p.Title, target.Expr, err)
					}
				}
			}
		})
	}
}

// layout looks for panels of the same id, and for some that overlap or stand out of the grid.
func layout(t *testing.T, panels []panel) {
	t.Helper()
	for i, p := range panels {
		a := p.GridPos
		if a.X+a.W > 24 {
			t.Errorf("panel %s is too far right", p.Title)
		}
		for _, other := range panels[:i] {
			b := other.GridPos
			if p.ID == other.ID {
				t.Errorf("panels %s and %s have id %d", other.Title, p.Title, p.ID)
			}
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %s and %s overlap", other.Title, p.Title)
			}
		}
	}
}

// variables compares those that there are with those that something asks for.
func variables(t *testing.T, path string, d dashboard) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, v := range d.Templating.List {
		have[v.Name] = true
	}
	asked := map[string]bool{}
	for _, name := range names(regexp.MustCompile(`\$\{?([a-z]+)`), string(text)) { // none of Grafana's own, $__…
		asked[name] = true
	}
	if diff := cmp.Diff(have, asked); diff != "" {
		t.Errorf("variables that are not used (-), or that there are not (+):\n%s", diff)
	}
}

// selects returns the series that a query selects and should not.
func selects(query string) error {
	expr, err := parse(query)
	if err != nil {
		return err
	}
	if strings.Count(query, "rate(") != strings.Count(query, "[$__rate_interval]") {
		return errors.New("a rate over a time that does not follow the interval of scrapes")
	}
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		// The webhook does not know its installation.
		ours := selector.Name == "fingerpost_profile_reviews_total"
		for _, m := range selector.LabelMatchers {
			if strings.Contains(m.Value, "$") && m.Type != labels.MatchRegexp {
				err = errors.Join(err, fmt.Errorf("%s takes one value, and more may be chosen", m))
			}
			ours = ours || m.Name == "installation" && m.Value == "$installation" ||
				m.Name == "server" && m.Value == "webhook"
		}
		if !ours {
			err = errors.Join(err, fmt.Errorf("%s may be that of anybody", selector.Name))
		}
		if strings.HasSuffix(selector.Name, "_total") && !slices.ContainsFunc(path, isRange) {
			err = errors.Join(err, fmt.Errorf("%s grows for ever", selector.Name))
		}
		return nil
	})
	return err
}

// Every panel has data in an installation that is well, but for those in rows that are collapsed: they are about what
// may not be in use.
func TestPanelsShowData(t *testing.T) {
	type query struct {
		Expr    string           `yaml:"expr"`
		At      string           `yaml:"eval_time"`
		Samples []map[string]any `yaml:"exp_samples"`
	}
	var healthy struct {
		Interval string `yaml:"evaluation_interval"`
		Tests    []struct {
			Name     string  `yaml:"name"`
			Interval string  `yaml:"interval"`
			Series   []any   `yaml:"input_series"`
			Queries  []query `yaml:"promql_expr_test"`
		} `yaml:"tests"`
	}
	read(t, server+"/tests/healthy.yaml", &healthy)
	paths, err := filepath.Glob(server + "/dashboards/*.json")
	if err != nil {
		t.Fatal(err)
	}
	healthy.Tests[0].Queries = nil
	for _, path := range paths {
		d, err := readDashboard(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range d.Panels {
			var all []string
			for _, target := range p.Targets {
				expr := regexp.MustCompile(`"\$[a-z]+"`).ReplaceAllString(target.Expr, `".*"`)
				expr = strings.ReplaceAll(expr, "$__rate_interval", "5m")
				all = append(all, "("+expr+")")
			}
			if all == nil {
				continue // a row
			}
			healthy.Tests[0].Queries = append(healthy.Tests[0].Queries, query{
				"count(" + strings.Join(all, " or ") + ") > bool 0", "2h",
				[]map[string]any{{"labels": "{}", "value": 1}},
			})
		}
	}
	if n := len(healthy.Tests[0].Queries); n < 35 {
		t.Errorf("%d queries", n)
	}
	text, err := yaml.Marshal(healthy)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", file)
}

func isRange(node parser.Node) bool {
	_, ok := node.(*parser.MatrixSelector)
	return ok
}

// Grafana's sidecar finds dashboards by the label of their ConfigMaps.
func TestDashboardsAreRendered(t *testing.T) {
	manifests, _, err := release{
		name:      "fingerpost",
		namespace: "fingerpost",
		set:       "{dashboards: {enabled: true, annotations: {grafana_folder: Mesh}}}",
	}.render(server)
	if err != nil {
		t.Fatal(err)
	}
	var rendered []string
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.Contains(document, "\nkind: ConfigMap\n") &&
			strings.Contains(document, "grafana_dashboard: \"1\"") &&
			strings.Contains(document, `"uid": "fingerpost-`) {
			_, name, _ := strings.Cut(document, "\n  name: ")
			name, _, _ = strings.Cut(name, "\n")
			rendered = append(rendered, name)
		}
	}
	if diff := cmp.Diff([]string{"fingerpost-clusters", "fingerpost-server"}, rendered); diff != "" {
		t.Errorf("ConfigMaps of dashboards (-want +got):\n%s", diff)
	}
}

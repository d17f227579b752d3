package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every query of a dashboard and of an alert can be read, and shows labels that it has. That there are such metrics is for e2e/live to
// see, which has a server.
func TestQuestions(t *testing.T) {
	all, err := questions(server)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []question{
		{"clusters.json: State", "fingerpost_cluster_state", "state"},
		{"clusters.json: $cluster", "fingerpost_cluster_state", "cluster"},
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

// Grafana finds dashboards by their uid and panels by their id, and people by what is said about them.
func TestDashboards(t *testing.T) {
	paths, err := filepath.Glob(server + "/dashboards/*.json")
	if err != nil || len(paths) != 2 {
		t.Fatalf("dashboards: %v %v", paths, err)
	}
	for _, path := range paths {
		d, err := readDashboard(path)
		if err != nil {
			t.Fatal(err)
		}
		if want := "fingerpost-" + strings.TrimSuffix(filepath.Base(path), ".json"); d.UID != want {
			t.Errorf("%s: uid %q, want %q", path, d.UID, want)
		}
		ids := map[int]bool{}
		for _, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels have id %d", path, p.ID)
			}
			ids[p.ID] = true
			if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
				t.Errorf("%s: panel %s says nothing", path, p.Title)
			}
		}
	}
	manifests, _, err := release{name: "fingerpost", namespace: "fingerpost", set: "{dashboards: {enabled: true, annotations: {grafana_folder: Mesh}}}"}.render(server)
	if err != nil {
		t.Fatal(err)
	}
	var rendered []string
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.Contains(document, "\nkind: ConfigMap\n") && strings.Contains(document, "grafana_dashboard: \"1\"") && strings.Contains(document, `"uid": "fingerpost-`) {
			_, name, _ := strings.Cut(document, "\n  name: ")
			name, _, _ = strings.Cut(name, "\n")
			rendered = append(rendered, name)
		}
	}
	if diff := cmp.Diff([]string{"fingerpost-clusters", "fingerpost-server"}, rendered); diff != "" {
		t.Errorf("ConfigMaps of dashboards (-want +got):\n%s", diff)
	}
}

package app_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/tools/txtar"
)

// serveDefaults are the flags that the chart's default values lead to.
const serveDefaults = "-external-workload-slices=true -federated-slices=true -mirror-services=on"

// exported returns what a replica exports: values by series, as Prometheus names them.
func (s *scenario) exported(name string) map[string]float64 {
	s.t.Helper()
	return s.samples(s.mustRun(name))
}

func (s *scenario) samples(r *replica) map[string]float64 {
	s.t.Helper()
	families, err := r.Exported.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	var page bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&page, f); err != nil {
			s.t.Fatal(err)
		}
	}
	values := map[string]float64{}
	for line := range strings.Lines(page.String()) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if values[line[:at]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			s.t.Fatal(err)
		}
	}
	return values
}

// inScenario runs a scenario with one replica, a.
func inScenario(t *testing.T, test func(s *scenario)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newScenario(t, &txtar.Archive{})
		s.flags = strings.Fields(serveDefaults)
		defer s.end()
		s.start("a")
		elapse(settle)
		test(s)
	})
}

// A linked cluster in which nothing happens costs few series.
func TestSeriesOfIdleCluster(t *testing.T) {
	const most = 60
	inScenario(t, func(s *scenario) {
		var counts []int
		for _, name := range []string{"east", "north", "west"} {
			s.do("link", []string{name})
			elapse(15 * time.Minute)
			counts = append(counts, len(s.exported("a")))
		}
		if each := counts[2] - counts[1]; each > most || each < 20 || counts[1]-counts[0] != each {
			t.Errorf("series with one, two and three linked clusters: %v, want at most %d for each", counts, most)
		}
	})
}

// Names, types and help are as promtool check metrics wants them, but for names that are Linkerd's.
func TestMetricNames(t *testing.T) {
	linkerds := regexp.MustCompile(`^(endpoints|profile|workload)_updates$|^gateway_(probes|probe_latency_ms)$|^workqueue_`)
	inScenario(t, func(s *scenario) {
		s.stop("a")
		s.flags = append(s.flags, "-detailed-metrics")
		s.start("b")
		s.do("apply", []string{"east", "federated/east.yaml"})
		s.do("apply", []string{"local", "federated/west.yaml", "federated/bb-federated.yaml"})
		s.do("link", []string{"east"})
		elapse(time.Minute)
		problems, err := testutil.GatherAndLint(s.mustRun("b").Exported)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if !linkerds.MatchString(p.Metric) {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	})
}

// healthy is a test for promtool: nothing fires for a day in two installations that are well. It is written from what
// replicas export, which this test compares with it.
const healthy = "../../../charts/fingerpost/tests/healthy.yaml"

func TestHealthyInstallation(t *testing.T) {
	asked := map[string]bool{}
	for _, path := range []string{"files/alerts.yaml", "dashboards/clusters.json", "dashboards/server.json"} {
		text, err := os.ReadFile("../../../charts/fingerpost/" + path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`[a-z_]+`).FindAllString(string(text), -1) {
			asked[name] = true
		}
	}
	page := "# Written by TestHealthyInstallation with -update: what two replicas export after 15 minutes and after 30.\n" +
		"rule_files: [../files/alerts.yaml]\nevaluation_interval: 1m\ntests:\n" +
		"- name: nothing fires for a day in two installations that are well, with the default name of a cluster\n" +
		"  interval: 1m\n  input_series:\n"
	inScenario(t, func(s *scenario) {
		s.do("apply", []string{"east", "federated/east.yaml"})
		s.do("apply", []string{"local", "federated/west.yaml", "federated/bb-federated.yaml"})
		s.do("annotate", []string{"local", "Service", "ns/bb-federated", "prefer=local,*"}) // as without it
		s.do("link", []string{"east"})
		elapse(time.Minute)
		s.start("b") // a holds all Leases
		s.do("get", []string{"stream", "bb-federated.ns.svc.mycluster.local:8080"})
		elapse(15 * time.Minute)
		before := map[string]map[string]float64{"a": s.exported("a"), "b": s.exported("b")}
		elapse(15 * time.Minute)
		now := float64(time.Now().Unix())
		var lines []string
		for _, replica := range []string{"a", "b"} {
			values := s.exported(replica)
			for _, series := range slices.Sorted(maps.Keys(values)) {
				name, labels, found := strings.Cut(series, "{")
				if !found || !asked[name] || strings.HasPrefix(name, "grpc_") { // there are many of grpc_
					continue
				}
				value, rate := values[series], (values[series]-before[replica][series])/15
				if strings.HasSuffix(name, "_timestamp_seconds") {
					value -= now // promtool begins in 1970
				}
				for _, installation := range []string{"1", "2"} {
					other := strings.NewReplacer(
						runtime.Version(), "go", "local/linkerd/local", "local/linkerd/"+installation).Replace(labels)
					lines = append(lines, fmt.Sprintf("  - {series: '%s{pod=%q,%s', values: %g%+gx1440}\n",
						name, replica, other, value, rate))
				}
			}
		}
		page += strings.Join(lines, "") + "  promql_expr_test:\n" +
			"  - {expr: 'count_over_time(ALERTS{alertstate=\"firing\"}[24h])', eval_time: 24h, exp_samples: []}\n" +
			"  - {expr: count(fingerpost_ready == 1), eval_time: 24h, exp_samples: [{labels: '{}', value: 4}]}\n"
		s.do("close", []string{"stream"})
		elapse(settle)
	})
	if *update {
		if err := os.WriteFile(healthy, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(healthy)
	if err != nil {
		t.Fatal(err)
	}
	series := func(page string) (all []string) { // without values: not all of them are the same each time
		for line := range strings.Lines(page) {
			name, _, _ := strings.Cut(line, ", values:")
			all = append(all, name)
		}
		return all
	}
	if diff := cmp.Diff(series(string(want)), series(page)); diff != "" {
		t.Errorf("the series of a healthy replica, run with -update (-want +got):\n%s", diff)
	}
}

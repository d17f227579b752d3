package app_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

var record = flag.String("record", "", "a directory: scenarios that expect alerts write a unit test of promtool there")

// scrapeInterval is Prometheus' own default, halved, as many set it.
const scrapeInterval = 30 * time.Second

// A recorder scrapes all replicas of a scenario in virtual time, as Prometheus would. Of that and of the alerts that
// the scenario expects it makes a unit test of promtool, which has the chart's alerts beside it.
type recorder struct {
	s        *scenario
	began    time.Time
	expected strings.Builder

	mu      sync.Mutex
	scrapes int
	series  map[string][]string // by name and labels: the values of all scrapes, as promtool reads them
}

// newRecorder starts a recorder, which ends with stop.
func newRecorder(s *scenario) (r *recorder, stop func()) {
	r = &recorder{s: s, began: time.Now(), series: map[string][]string{}}
	ticker, end, ended := time.NewTicker(scrapeInterval), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			r.scrape()
			select {
			case <-ticker.C:
			case <-end:
				return
			}
		}
	}()
	return r, func() {
		ticker.Stop()
		close(end)
		<-ended
	}
}

func (r *recorder) scrape() {
	r.s.mu.Lock()
	replicas := slices.Clone(r.s.replicas)
	r.s.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, replica := range replicas {
		for series, value := range r.s.samples(replica) {
			name, labels, found := strings.Cut(series, "{")
			if !found || strings.HasPrefix(name, "grpc_") { // there are many of grpc_
				continue
			}
			series = fmt.Sprintf("%s{pod=%q,%s", name, replica.name, labels)
			values := r.series[series]
			for len(values) < r.scrapes {
				values = append(values, "_")
			}
			r.series[series] = append(values, strconv.FormatFloat(value, 'f', -1, 64))
		}
	}
	r.scrapes++
	for series, values := range r.series {
		switch last := values[len(values)-1]; {
		case len(values) == r.scrapes:
		case last == "_" || last == "stale":
			r.series[series] = append(values, "_")
		default:
			r.series[series] = append(values, "stale")
		}
	}
}

// expect adds what fires now, and nothing else.
func (r *recorder) expect(alerts []string) {
	var samples []string
	for _, name := range alerts {
		samples = append(samples, fmt.Sprintf(`{labels: '{alertname=%q}', value: 1}`, name))
	}
	at := time.Since(r.began).Truncate(scrapeInterval)
	fmt.Fprintf(&r.expected, "  - {expr: 'group by (alertname) (ALERTS{alertstate=\"firing\"})', eval_time: %s, "+
		"exp_samples: [%s]}\n", at, strings.Join(samples, ", "))
}

// write writes the unit test.
func (r *recorder) write(dir, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var page strings.Builder
	fmt.Fprintf(&page, "rule_files: [alerts.yaml]\nevaluation_interval: %s\ntests:\n- name: %s\n  interval: %s\n"+
		"  start_timestamp: %d\n  input_series:\n", scrapeInterval, name, scrapeInterval, r.began.Unix())
	for _, series := range slices.Sorted(maps.Keys(r.series)) {
		fmt.Fprintf(&page, "  - {series: '%s', values: %s}\n", strings.ReplaceAll(series, "'", "''"),
			strings.Join(r.series[series], " "))
	}
	page.WriteString("  promql_expr_test:\n" + r.expected.String())
	return os.WriteFile(filepath.Join(dir, filepath.Base(name)+".yaml"), []byte(page.String()), 0o600)
}

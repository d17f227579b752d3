package cluster_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
)

// samples returns the samples of a metric, of the cluster or of everything.
func samples(t *testing.T, from prometheus.Gatherer, name, label, value string) (all []*dto.Metric) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetName() == label && l.GetValue() == value {
					all = append(all, m)
				}
			}
		}
	}
	return all
}

func (w *world) metrics() *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(w.registry)
	return r
}

func detailed(o *cluster.Options) { o.DetailedMetrics = true }

// What is asked of API servers is counted by cluster, as it was answered or not, and goes with the cluster.
func TestRequestsAreCounted(t *testing.T) {
	linkedWith(t, detailed, func(w *world, east *apitest.Server, _ string) {
		counted := func(name string) (n float64) {
			for _, m := range samples(t, w.metrics(), name, "client", "east") {
				n += m.GetCounter().GetValue()
			}
			return n
		}
		requests := counted("http_client_requests_total")
		if requests == 0 || counted("http_client_errors_total") != 0 {
			t.Errorf("after the sync %v requests were answered, %v were not", requests,
				counted("http_client_errors_total"))
		}
		var timed uint64
		for _, m := range samples(t, w.metrics(), "http_client_request_latency_seconds", "client", "east") {
			timed += m.GetHistogram().GetSampleCount()
		}
		if float64(timed) != requests {
			t.Errorf("%d requests were timed, %v counted", timed, requests)
		}
		east.Cut(apitest.Refuse)
		w.wait(30 * time.Second)
		if n := counted("http_client_errors_total"); n < 10 {
			t.Errorf("after 30 s of refused connections %v errors", n)
		}
		for _, m := range samples(t, w.metrics(), "http_client_in_flight_requests", "client", "east") {
			if n := m.GetGauge().GetValue(); n < 0 || n > 20 {
				t.Errorf("%v requests in flight", n)
			}
		}
		w.registry.Remove("east")
		w.wait(time.Second)
		families, err := w.metrics().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if name := f.GetName(); strings.HasPrefix(name, "http_client_") ||
				strings.HasSuffix(name, "_informer_lag_seconds") {
				t.Errorf("%s is left of a cluster that was removed", name)
			}
		}
	})
}

// What no dashboard shows is exported on request only.
func TestMetricsWithoutDetails(t *testing.T) {
	linked(t, func(w *world, _ *apitest.Server, _ string) {
		families, err := w.metrics().Gather()
		if err != nil {
			t.Fatal(err)
		}
		held := false
		for _, f := range families {
			held = held || f.GetName() == "fingerpost_objects"
			if name := f.GetName(); strings.HasSuffix(name, "_cache_size") || name == "pods_informer_lag_seconds" {
				t.Errorf("%s is exported without DetailedMetrics", name)
			}
		}
		if !held {
			t.Error("fingerpost_objects is not exported")
		}
	})
}

// Metrics of a cluster report its endpoints by state, its clock, how long probes take, and that it was unlinked.
func TestClusterMetrics(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, _ string) {
		value := func(name string) (values []float64) {
			for _, m := range samples(t, w.metrics(), name, "target_cluster", "east") {
				values = append(values, m.GetGauge().GetValue())
			}
			return values
		}
		unlinked := func(want string) {
			t.Helper()
			err := testutil.GatherAndCompare(w.metrics(), strings.NewReader(
				"# HELP fingerpost_unlinked_clusters_total Clusters that were unlinked.\n"+
					"# TYPE fingerpost_unlinked_clusters_total counter\nfingerpost_unlinked_clusters_total "+want+"\n"),
				"fingerpost_unlinked_clusters_total")
			if err != nil {
				t.Error(err)
			}
		}
		unlinked("0")
		w.wait(10 * time.Second)
		if n := value("fingerpost_cluster_endpoints"); !slices.Equal(n, []float64{0, 1}) {
			t.Errorf("%v endpoints, not ready and ready", n)
		}
		east.ApplyYAML(strings.ReplaceAll(slice, "[10.0.0.1]", "[10.0.0.1], conditions: {ready: false}"))
		east.Skew(time.Minute)
		w.wait(10 * time.Second)
		if n := value("fingerpost_cluster_endpoints"); !slices.Equal(n, []float64{1, 0}) {
			t.Errorf("%v endpoints, not ready and ready", n)
		}
		if n := value("fingerpost_cluster_clock_skew_seconds"); len(n) != 1 || n[0] < 59 || n[0] > 61 {
			t.Errorf("its clock is %v s ahead, want a minute", n)
		}
		contact := value("fingerpost_cluster_last_contact_timestamp_seconds")
		if ago := float64(time.Now().Unix()) - contact[0]; ago < 0 || ago > 6 {
			t.Errorf("last contact %v s ago", ago)
		}
		w.registry.Remove("east")
		unlinked("1")
		if n := value("fingerpost_cluster_endpoints"); len(n) != 0 {
			t.Errorf("%v is left of a cluster that was removed", n)
		}
	})
}

// The lag of a change is how long ago it was made when it arrives, and nothing but changes has one.
func TestLag(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, _ string) {
		lag := func() (n uint64, sum float64) {
			for _, m := range samples(t, w.metrics(), "endpointslices_informer_lag_seconds", "cluster", "east") {
				n, sum = n+m.GetHistogram().GetSampleCount(), sum+m.GetHistogram().GetSampleSum()
			}
			return n, sum
		}
		if n, _ := lag(); n != 0 {
			t.Errorf("%d lags of objects that were there before", n)
		}
		changed := func() string {
			return strings.Replace(slice, "metadata: {",
				"metadata: {managedFields: [{operation: Update, time: '"+time.Now().UTC().Format(time.RFC3339)+
					"'}], ", 1)
		}
		w.wait(10 * time.Second)
		east.ApplyYAML(changed())
		w.wait(10 * time.Second)
		n, prompt := lag()
		if n != 1 || prompt > 1 {
			t.Errorf("%d lags, %v s in all, of one change", n, prompt)
		}
		east.ApplyYAML(slice) // it carries no time
		w.wait(10 * time.Second)
		if n, _ := lag(); n != 1 {
			t.Errorf("%d lags with one of a change without a time", n)
		}
		east.Cut(apitest.Silence)
		w.wait(time.Second)
		east.ApplyYAML(changed())
		w.wait(time.Minute)
		east.Cut(apitest.None)
		w.wait(10 * time.Second)
		if n, sum := lag(); n != 2 || sum-prompt < 60 || sum-prompt > 70 {
			t.Errorf("%d lags, %v s of one that arrived a minute late", n-1, sum-prompt)
		}
	})
}

// The work queue of a cluster has metrics under client-go's names while the cluster is linked.
func TestQueues(t *testing.T) {
	linkedWith(t, detailed, func(w *world, east *apitest.Server, _ string) {
		of := func(name string) *dto.Metric {
			t.Helper()
			all := samples(t, w.registry.QueueMetrics(), name, "name", "cluster/east")
			if len(all) != 1 {
				t.Fatalf("%d samples of %s", len(all), name)
			}
			return all[0]
		}
		before := of("workqueue_adds_total").GetCounter().GetValue()
		east.ApplyYAML(strings.ReplaceAll(slice, "10.0.0.1", "10.0.0.2"))
		w.wait(time.Second)
		// The slice: its Service was quiet, and is published in the same pass.
		if n := of("workqueue_adds_total").GetCounter().GetValue() - before; n != 1 {
			t.Errorf("%v things were queued", n)
		}
		if n := of("workqueue_depth").GetGauge().GetValue(); n != 0 {
			t.Errorf("%v things wait", n)
		}
		if of("workqueue_work_duration_seconds").GetHistogram().GetSampleCount() == 0 {
			t.Error("no work was timed")
		}
		w.registry.Remove("east")
		w.wait(time.Second)
		if left := samples(t, w.registry.QueueMetrics(), "workqueue_depth", "name", "cluster/east"); len(left) > 0 {
			t.Errorf("%v is left of a cluster that was removed", left)
		}
	})
}

// A connection that is no engagement's counts as its cluster's, if there is one.
func TestCounted(t *testing.T) {
	inWorld(t, func(w *world) {
		east := w.network.Server("east")
		w.apply(cluster.Spec{Name: "east"})
		conn, err := api.NewConnection(w.registry.Instrument("east", w.access("east", east.Token()).Config),
			w.network.Dial)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.Probe(w.t.Context()); err != nil {
			t.Fatal(err)
		}
		if all := samples(t, w.metrics(), "http_client_requests_total", "client", "east"); len(all) != 1 ||
			all[0].GetCounter().GetValue() != 1 {
			t.Errorf("%v, want one request", all)
		}
	})
}

// An API server that answers with any number makes few series, and none is lost.
func TestOddCodesAreCounted(t *testing.T) {
	inWorld(t, func(w *world) {
		w.apply(cluster.Spec{Name: "east"})
		code := 0
		odd := promhttp.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: code, Body: http.NoBody}, nil
		})
		transport := w.registry.Instrument("east", &rest.Config{}).WrapTransport(odd)
		for code = 100; code < 1000; code++ {
			response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
		}
		var all float64
		series := samples(t, w.metrics(), "http_client_requests_total", "client", "east")
		for _, m := range series {
			all += m.GetCounter().GetValue()
		}
		if len(series) > 70 || all != 900 {
			t.Errorf("%d series count %v requests", len(series), all)
		}
	})
}

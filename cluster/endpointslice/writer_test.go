package endpointslice

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/federation"
)

// fleet is a Writer in the cluster home, which links others, on API servers in memory and virtual time.
type fleet struct {
	t        *testing.T
	network  *apitest.Network
	home     *apitest.Server
	store    *federation.Store
	registry *cluster.Registry
	way      way           // of the replica to home
	linked   chan struct{} // closed when it is known which clusters are
	beside   atomic.Int32  // runs under the Lease, too
	ctx      context.Context
	wg       sync.WaitGroup
	metrics  *writerMetrics
	tight    atomic.Bool // the namespace tight is full
}

func inFleet(t *testing.T, test func(*fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, network: apitest.NewNetwork(), linked: make(chan struct{})}
		defer f.network.Close()
		f.home = f.network.Server("home")
		var cancel context.CancelFunc
		f.ctx, cancel = context.WithCancel(t.Context())
		f.store, f.registry = f.replica("replica")
		f.link("home")
		f.pass(3 * time.Second)
		test(f)
		cancel()
		f.wg.Wait()
	})
}

// replica runs a Writer until the test ends.
func (f *fleet) replica(name string) (*federation.Store, *cluster.Registry) {
	log := logr.Discard()
	if testing.Verbose() {
		log = testr.New(f.t).WithName(name)
	}
	store := federation.NewStore()
	registry := cluster.NewRegistry(log, store, cluster.Options{
		ProbeInterval: 5 * time.Second,
		Thresholds:    federation.Thresholds{Suspect: 10 * time.Second, Stale: 150 * time.Second},
		Dial:          f.network.Dial,
	})
	w := NewWriter(store, registry, Options{
		Namespace: "linkerd", Installation: "home", Federated: true, Linked: f.linked, MaxSlices: 3,
	})
	campaign := apply.NewCampaign(log, registry, apply.Options{
		Namespace: "linkerd", Local: "home", Replica: name, Timing: testTiming,
	})
	w.AddTo(campaign)
	campaign.Add(FederatedLease, apply.Task{
		Name: "what runs beside", Wanted: func(s cluster.Spec) bool { return s.Local },
		Run: func(term context.Context, _ *apply.Target) error {
			f.beside.Add(1)
			<-term.Done()
			f.beside.Add(-1)
			return nil
		},
	})
	if f.metrics == nil {
		f.metrics = w.metrics // of the first
	}
	registry.Engage(w.Engage)
	registry.Engage(campaign.Engage)
	f.wg.Go(func() {
		if err := registry.Start(f.ctx); err != nil {
			f.t.Error(err)
		}
	})
	return store, registry
}

// access returns credentials for a cluster, with a token of their own.
func (f *fleet) access(name string) *rest.Config {
	f.t.Helper()
	s := f.network.Server(name)
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(s.Kubeconfig(s.Token())))
	f.must(err)
	return config
}

func (f *fleet) link(name string) {
	f.t.Helper()
	config := f.access(name)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return quota{next, &f.tight} })
	if name == "home" {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &traveller{&f.way, next} })
	}
	f.must(f.registry.Apply(cluster.Spec{
		Name: name, Local: name == "home", Access: []cluster.Access{{Source: "test", Config: config}},
	}))
}

// quota lets nothing be created in the namespace full, nor in the namespace tight once that is.
type quota struct {
	next  http.RoundTripper
	tight *atomic.Bool
}

func (q quota) RoundTrip(r *http.Request) (*http.Response, error) {
	in := func(namespace string) bool { return strings.Contains(r.URL.Path, "/namespaces/"+namespace+"/") }
	if r.Method == http.MethodPost && (in("full") || q.tight.Load() && in("tight")) {
		return &http.Response{
			StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
			Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure",
"reason":"Forbidden","code":403,"message":"exceeded quota"}`)),
		}, nil
	}
	return q.next.RoundTrip(r)
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) pass(d time.Duration) {
	pass(d)
	synctest.Wait()
}

// apply applies objects to a cluster.
func (f *fleet) apply(in string, texts ...string) {
	f.t.Helper()
	for _, text := range texts {
		var o unstructured.Unstructured
		f.must(yaml.Unmarshal([]byte(text), &o.Object))
		f.network.Server(in).Apply(&o)
	}
}

// holds makes a Service of a cluster have n endpoints.
func (f *fleet) holds(in, namespace, name string, n int) {
	f.t.Helper()
	var endpoints []string
	for i := range n {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [10.1.0.%d]}", i+1))
	}
	f.apply(in,
		fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s},
  spec: {ports: [{name: http, port: 80, protocol: TCP}]}}`, name, namespace),
		someSlice(name, 1, namespace, 8080, strings.Join(endpoints, ", ")))
}

// someSlice returns the nth EndpointSlice of a Service.
func someSlice(service string, n int, namespace string, port int, endpoints string) string {
	return fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
  metadata: {name: %[1]s-%[2]d, namespace: %[3]s, labels: {kubernetes.io/service-name: %[1]s}}, addressType: IPv4,
  ports: [{name: http, port: %[4]d, protocol: TCP}], endpoints: [%[5]s]}`, service, n, namespace, port, endpoints)
}

// union makes home have a federated Service that asks for slices.
func (f *fleet) union(namespace, name, members string) {
	f.t.Helper()
	f.apply("home", fmt.Sprintf(`{apiVersion: v1, kind: Service,
  metadata: {name: %s, namespace: %s, annotations: {%s: enabled, %s: "%s"}},
  spec: {ports: [{name: http, port: 80, protocol: TCP}]}}`,
		name, namespace, OptIn, "federation.fingerpost.io/members", members))
}

// written returns how many endpoints the slices of a Service of home hold that we have written.
func (f *fleet) written(namespace, name string) (n int) {
	for _, es := range f.home.List("endpointslices.discovery.k8s.io") {
		l := es.GetLabels()
		if es.GetNamespace() == namespace && l["kubernetes.io/service-name"] == name && l[SourceLabel] != "" {
			endpoints, _, _ := unstructured.NestedSlice(es.Object, "endpoints")
			n += len(endpoints)
		}
	}
	return n
}

func (f *fleet) writing() cluster.WritingState {
	statuses, _ := f.registry.Statuses()
	return statuses["home"].Writing.State
}

// holder returns the holder of the Lease in home.
func (f *fleet) holder() string {
	lease := f.home.Get("leases.coordination.k8s.io", "linkerd", FederatedLease)
	holder, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
	return holder
}

func (f *fleet) wants(namespace, name string, n int) {
	f.t.Helper()
	if got := f.written(namespace, name); got != n {
		f.t.Errorf("%s/%s has %d endpoints, want %d", namespace, name, got, n)
	}
}

// Where a right is taken away no slices are written, and what else runs under the Lease goes on; when it is back, with
// new credentials, all is written.
func TestRightIsTakenAway(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.store.MarkClustersListed()
		close(f.linked)
		if f.writing() != cluster.Holding || f.beside.Load() != 1 {
			t.Fatalf("%s, and %d beside", f.writing(), f.beside.Load())
		}
		f.home.Deny("create", sliceResource.String(), true)
		f.holds("home", "ns", "web", 3)
		f.union("ns", "all", "web")
		f.pass(2 * time.Second)
		if f.writing() != cluster.ReadOnly || f.beside.Load() != 1 {
			t.Errorf("%s, and %d beside", f.writing(), f.beside.Load())
		}
		f.home.Deny("create", sliceResource.String(), false)
		f.link("home") // with a new token
		f.pass(5 * time.Second)
		if f.writing() != cluster.Holding || f.beside.Load() != 1 {
			t.Errorf("%s, and %d beside", f.writing(), f.beside.Load())
		}
		f.wants("ns", "all", 3)
	})
}

// What a quota or a webhook refuses is the affair of one Service.
func TestQuotaIsExceeded(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.store.MarkClustersListed()
		close(f.linked)
		f.holds("home", "full", "web", 3)
		f.union("full", "all", "web")
		f.pass(2 * time.Second)
		f.holds("home", "ns", "web", 3)
		f.union("ns", "all", "web")
		f.pass(2 * time.Second)
		if f.writing() != cluster.Holding {
			t.Errorf("%s", f.writing())
		}
		f.wants("ns", "all", 3)
		f.wants("full", "all", 0)
	})
}

// What is refused for one slice, as a new one by a quota, keeps nothing else of the Service from being
// written: neither what another cluster holds, nor what the same one has lost.
func TestOneRefusalStopsNoOther(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.link("west")
		f.store.MarkClustersListed()
		close(f.linked)
		f.holds("east", "tight", "web", 4)
		f.holds("west", "tight", "web", 3)
		f.union("tight", "all", "web@east,web@west")
		f.pass(2 * time.Second)
		f.wants("tight", "all", 7)
		f.tight.Store(true)
		f.apply("east", someSlice("web", 2, "tight", 9090, "{addresses: [10.1.1.1]}")) // takes a slice of its own
		f.holds("east", "tight", "web", 3)
		f.holds("west", "tight", "web", 2)
		f.pass(2 * time.Second)
		f.wants("tight", "all", 5)
		f.tight.Store(false)
		f.pass(time.Minute)
		f.wants("tight", "all", 6)
	})
}

// A cluster that does not confirm that its endpoints are gone keeps those of no other cluster from being
// written, in the same Service.
func TestOneClusterDoesNotConfirm(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.link("west")
		f.store.MarkClustersListed()
		close(f.linked)
		f.holds("east", "ns", "web", 10)
		f.holds("west", "ns", "web", 3)
		f.union("ns", "all", "web@east,web@west")
		f.pass(2 * time.Second)
		f.wants("ns", "all", 13)
		f.holds("east", "ns", "web", 0)
		synctest.Wait() // the watch has shown it
		f.network.Server("east").Cut(apitest.Silence)
		f.holds("west", "ns", "web", 2)
		f.pass(time.Minute)
		f.wants("ns", "all", 12)
		f.network.Server("east").Cut(apitest.None)
		f.pass(5 * time.Minute)
		f.wants("ns", "all", 2)
	})
}

// A cluster does not decide how many objects there are here. What is left out is counted.
func TestSlicesOfASourceAreLimited(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.link("west")
		f.store.MarkClustersListed()
		close(f.linked)
		f.holds("west", "ns", "web", 3)
		f.holds("east", "ns", "web", 2)
		for i := 2; i <= 10; i++ { // a slice for each port
			addresses := fmt.Sprintf("{addresses: [10.1.1.%d]}, {addresses: [127.0.0.1]}", i)
			f.apply("east", someSlice("web", i, "ns", 9000+i, addresses))
		}
		f.union("ns", "all", "web@east,web@west")
		f.pass(2 * time.Second)
		f.wants("ns", "all", 3+4) // the one of two, and two of one
		leftOut := func(source string, want float64) {
			t.Helper()
			if got := testutil.ToFloat64(f.metrics.leftOut.WithLabelValues("home", source)); got != want {
				t.Errorf("%v endpoints of %s are left out, want %v", got, source, want)
			}
		}
		leftOut("east", 7)
		leftOut("west", 0)
		reported := func(source string, want cluster.LeftOut) {
			t.Helper()
			statuses, _ := f.registry.Statuses()
			if got := statuses[source].LeftOut; got != want {
				t.Errorf("of %s is reported %+v, want %+v", source, got, want)
			}
		}
		reported("east", cluster.LeftOut{Known: true, Excess: 7})
		reported("west", cluster.LeftOut{Known: true})
		f.holds("east", "ns", "web", 3) // what is there is kept up to date
		f.pass(2 * time.Second)
		f.wants("ns", "all", 3+5)
		for i := 2; i <= 10; i++ {
			f.network.Server("east").Delete("EndpointSlice", "ns", fmt.Sprintf("web-%d", i))
		}
		f.pass(time.Minute)
		f.wants("ns", "all", 3+3)
		leftOut("east", 0)
		reported("east", cluster.LeftOut{Known: true})
	})
}

// A cluster that does not confirm that endpoints are gone keeps no other Service from being written.
func TestClusterDoesNotConfirm(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.store.MarkClustersListed()
		close(f.linked)
		const services = 3 * workers
		name := func(i int) string { return fmt.Sprintf("web-%d", i) }
		for i := range services {
			f.holds("east", "ns", name(i), 10)
			f.union("ns", name(i), name(i)+"@east")
		}
		f.pass(10 * time.Second)
		f.wants("ns", name(0), 10)
		for i := range services {
			f.holds("east", "ns", name(i), 0)
		}
		synctest.Wait() // the watch has shown it
		east := f.network.Server("east")
		east.Cut(apitest.Silence)
		f.pass(time.Second)
		f.holds("home", "ns", "web", 3)
		f.union("ns", "all", "web")
		f.pass(time.Second)
		f.wants("ns", "all", 3)
		f.pass(time.Minute)
		for i := range services {
			f.wants("ns", name(i), 10)
		}
		east.Cut(apitest.None)
		f.pass(5 * time.Minute)
		for i := range services {
			f.wants("ns", name(i), 0)
		}
	})
}

// A cluster that is not linked as far as we can read may be linked by what we cannot read: its slices stay
// until that is known.
func TestLinksCannotBeRead(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.store.MarkClustersListed()
		f.holds("home", "ns", "web", 3)
		f.holds("east", "ns", "web", 2)
		f.union("ns", "all", "web,web@east")
		f.pass(5 * time.Second)
		f.wants("ns", "all", 5)
		f.registry.Remove("east")
		f.pass(time.Minute)
		f.wants("ns", "all", 5)
		close(f.linked)
		f.pass(time.Second)
		f.wants("ns", "all", 3)
	})
}

// A way to an API server can be cut for what is to change something: that is sent when the way is healed,
// whatever has become of who sent it.
type way struct {
	mu   sync.Mutex
	cut  bool
	late []func() (*http.Response, error)
}

type traveller struct {
	way  *way
	next http.RoundTripper
}

func (h *traveller) RoundTrip(r *http.Request) (*http.Response, error) {
	late, err := h.way.keep(r, h.next)
	if err != nil {
		return nil, err
	}
	if !late {
		return h.next.RoundTrip(r)
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// keep reports whether a request does not pass, and keeps what is to change slices until the way is healed.
func (w *way) keep(r *http.Request, next http.RoundTripper) (cut bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.cut || r.Method == http.MethodGet {
		return false, nil
	}
	if !strings.Contains(r.URL.Path, "/endpointslices") {
		return true, nil
	}
	late := r.Clone(context.WithoutCancel(r.Context()))
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return true, err
		}
		late.Body = io.NopCloser(bytes.NewReader(body))
	}
	w.late = append(w.late, func() (*http.Response, error) { return next.RoundTrip(late) })
	return true, nil
}

func (w *way) shut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
}

// waiting returns how many requests wait.
func (w *way) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.late)
}

// heal delivers what waited, and returns how many requests succeeded.
func (w *way) heal(t *testing.T) (succeeded int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
	for _, send := range w.late {
		response, err := send()
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode < 300 {
			succeeded++
		}
		if err := response.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return succeeded
}

// A request that was sent before the fence and waited in the network is done when another holds the Lease,
// which repairs it within a second. After the fence nothing is sent.
func TestLateRequest(t *testing.T) {
	inFleet(t, func(f *fleet) {
		close(f.linked)
		f.holds("home", "ns", "web", 3)
		f.union("ns", "all", "web")
		f.pass(2 * time.Second)
		f.wants("ns", "all", 3)
		before := f.holder()

		// Changes while nothing of the holder's passes: to an object that is there, and new ones.
		f.way.shut()
		f.holds("home", "ns", "web", 1)
		f.union("ns", "more", "web")
		f.holds("home", "ns", "other", 2)
		f.union("ns", "others", "other")
		f.pass(time.Second)
		if f.way.waiting() < 3 {
			t.Fatalf("%d requests wait in the network", f.way.waiting())
		}
		_, second := f.replica("other")
		f.must(second.Apply(cluster.Spec{
			Name: "home", Local: true, Access: []cluster.Access{{Source: "test", Config: f.access("home")}},
		}))
		f.pass(4 * time.Second) // past the fence
		waiting := f.way.waiting()
		f.holds("home", "ns", "other", 4)
		f.pass(6 * time.Second)
		if n := f.way.waiting(); n != waiting {
			t.Errorf("%d requests were sent after the fence", n-waiting)
		}
		if now := f.holder(); now == before {
			t.Fatal("no other replica has taken the Lease")
		}
		want := func(when string) {
			t.Helper()
			for name, n := range map[string]int{"all": 1, "more": 1, "others": 4} {
				if got := f.written("ns", name); got != n {
					t.Errorf("%s: ns/%s has %d endpoints, want %d", when, name, got, n)
				}
			}
		}
		want("before they arrive")
		if f.way.heal(t) == 0 {
			t.Fatal("none of the late requests has done anything")
		}
		if f.written("ns", "others") == 4 {
			t.Error("the late requests have changed nothing")
		}
		f.pass(time.Second)
		want("a second after they arrived")
	})
}

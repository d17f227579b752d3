package endpointslice

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
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
	external bool          // slices of ExternalWorkloads are written, too
	beside   atomic.Int32  // runs under the Lease, too
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// allLinked is Links all of which are known, and those that do not link a cluster, once it is closed.
type allLinked chan struct{}

func (l allLinked) Membership() (*federation.Membership, <-chan struct{}) {
	if watch.IsClosed(l) {
		return federation.NewMembership(nil, federation.StateUnlinked, true), nil
	}
	return nil, l
}

func inFleet(t *testing.T, test func(*fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, network: apitest.NewNetwork(), linked: make(chan struct{})}
		defer f.network.Close()
		f.home = f.network.Server("home")
		f.apply("home", "{apiVersion: v1, kind: Namespace, metadata: {name: linkerd}}")
		f.start()
		f.pass(3 * time.Second)
		test(f)
		f.stop()
	})
}

// start starts a replica that knows nothing.
func (f *fleet) start() {
	f.ctx, f.cancel = context.WithCancel(f.t.Context())
	f.store, f.registry = f.replica("replica")
	f.link("home")
}

func (f *fleet) stop() {
	f.cancel()
	f.wg.Wait()
}

// replica runs a Writer until the test ends.
func (f *fleet) replica(name string) (*federation.Store, *cluster.Registry) {
	return f.replicaOf(f.ctx, name, "linkerd", "home")
}

// replicaOf runs a Writer of another installation, until ctx ends: with a control plane in a namespace of a cluster.
func (f *fleet) replicaOf(
	ctx context.Context, name, namespace, local string,
) (*federation.Store, *cluster.Registry) {
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
		Namespace: namespace, Federated: true, External: f.external, Links: allLinked(f.linked), MaxSlices: 3,
		Events: &events.FakeRecorder{},
	})
	campaign := apply.NewCampaign(log, registry, apply.Options{
		Namespace: namespace, Local: local, Replica: name, Timing: testTiming,
	})
	w.AddTo(campaign)
	campaign.Add(apply.OwnLease, apply.Task{
		Name: "what runs beside", Wanted: func(s cluster.Spec) bool { return s.Local },
		Run: func(term context.Context, _ *apply.Target) error {
			f.beside.Add(1)
			<-term.Done()
			f.beside.Add(-1)
			return nil
		},
	})
	registry.Engage(w.Engage)
	registry.Engage(campaign.Engage)
	f.wg.Go(func() {
		if err := registry.Start(ctx); err != nil {
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
	if name == "home" {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &traveller{&f.way, next} })
	}
	f.must(f.registry.Apply(cluster.Spec{
		Name: name, Local: name == "home", Access: []cluster.Access{{Source: "test", Config: config}},
	}))
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
	f.network.Server(in).ApplyYAML(texts...)
}

// holds makes a Service of a cluster have n endpoints.
func (f *fleet) holds(in, name string, n int) {
	f.t.Helper()
	f.holdsFrom(in, name, 1, n)
}

func (f *fleet) holdsFrom(in, name string, first, last int) {
	f.t.Helper()
	var endpoints []string
	for i := first; i <= last; i++ {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [10.1.0.%d]}", i))
	}
	f.apply(in,
		fmt.Sprintf(`{apiVersion: v1, kind: Service,
  metadata: {name: %s, namespace: ns, labels: {mirror.linkerd.io/exported: remote-discovery}},
  spec: {ports: [{name: http, port: 80, protocol: TCP}]}}`, name),
		fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
  metadata: {name: %[1]s-1, namespace: ns, labels: {kubernetes.io/service-name: %[1]s}}, addressType: IPv4,
  ports: [{name: http, port: 8080, protocol: TCP}], endpoints: [%[2]s]}`, name, strings.Join(endpoints, ", ")))
}

// union makes home have a federated Service that asks for slices.
func (f *fleet) union(name, members string) {
	f.t.Helper()
	f.apply("home", fmt.Sprintf(`{apiVersion: v1, kind: Service,
  metadata: {name: %s, namespace: ns, annotations: {%s: enabled, %s: "%s"}},
  spec: {ports: [{name: http, port: 80, protocol: TCP}]}}`,
		name, view.OptIn, "federation.fingerpost.io/members", members))
}

// written returns how many endpoints the slices of a Service of home hold that we have written.
func (f *fleet) written(name string) (n int) {
	for _, es := range f.home.List("endpointslices.discovery.k8s.io") {
		l := es.GetLabels()
		isOurs := l[SourceLabel] != "" || l[discoveryv1.LabelManagedBy] == externalManagedBy
		if l["kubernetes.io/service-name"] == name && isOurs {
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

// installation returns the one whose control plane is in a namespace of home.
func (f *fleet) installation(namespace string) string {
	return string(f.home.Get("namespaces", "", namespace).GetUID())
}

// holder returns the holder of the Lease in home.
func (f *fleet) holder() string {
	lease := f.home.Get("leases.coordination.k8s.io", "linkerd", apply.LeaseName(f.installation("linkerd")))
	holder, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
	return holder
}

func (f *fleet) wants(name string, n int) {
	f.t.Helper()
	if got := f.written(name); got != n {
		f.t.Errorf("ns/%s has %d endpoints, want %d", name, got, n)
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
		f.holds("home", "web", 3)
		f.union("all", "web")
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
		f.wants("all", 3)
	})
}

// A cluster that does not confirm that endpoints are gone keeps no other Service from being written. What goes before
// it is most of what the cluster has is not confirmed.
func TestClusterDoesNotConfirm(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.store.MarkClustersListed()
		close(f.linked)
		const services = 3 * workers
		name := func(i int) string { return fmt.Sprintf("web-%d", i) }
		for i := range services {
			f.holds("east", name(i), 10)
			f.union(name(i), name(i)+"@east")
		}
		f.pass(10 * time.Second)
		f.wants(name(0), 10)
		east := f.network.Server("east")
		denyLists(east, sliceResource.String(), true)
		for i := range services {
			f.holds("east", name(i), 0)
		}
		f.pass(time.Second)
		east.Cut(apitest.Silence)
		f.pass(time.Second)
		f.holds("home", "web", 3)
		f.union("all", "web")
		f.pass(time.Second)
		f.wants("all", 3)
		f.pass(time.Minute)
		left := 0
		for i := range services {
			left += f.written(name(i))
		}
		if left != 10*services/2 {
			t.Errorf("%d endpoints are left, want half of them", left)
		}
		east.Cut(apitest.None)
		denyLists(east, sliceResource.String(), false)
		f.pass(5 * time.Minute)
		for i := range services {
			f.wants(name(i), 0)
		}
	})
}

// Where a policy moves the traffic of a Service from one cluster to another, even to one that was just linked, the
// slices of the new one are written before those of the old one are deleted: readers are never left without endpoints.
func TestTrafficMoves(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.store.MarkClustersListed()
		close(f.linked)
		f.holds("east", "web", 3)
		f.holds("west", "web", 4)
		prefer := func(cluster string, endpoints int) {
			t.Helper()
			f.apply("home", fmt.Sprintf(`{apiVersion: v1, kind: Service,
  metadata: {name: all, namespace: ns, annotations: {%s: enabled,
    federation.fingerpost.io/members: "web@east,web@west", federation.fingerpost.io/prefer: %s}},
  spec: {ports: [{name: http, port: 80, protocol: TCP}]}}`, view.OptIn, cluster))
			f.pass(5 * time.Second)
			f.wants("all", endpoints)
		}
		prefer("west", 3) // which is not linked yet
		left := map[string]bool{}
		f.home.Follow(sliceResource.String(), func(o *unstructured.Unstructured, deleted bool) {
			if left[o.GetName()] = true; !deleted {
				return
			}
			if delete(left, o.GetName()); len(left) == 0 {
				t.Error("no slice is left")
			}
		})
		f.link("west")
		f.pass(5 * time.Second)
		f.wants("all", 1) // east has the others as well, and its claim counts
		prefer("east", 3)
		prefer("west", 1)
	})
}

// Where all endpoints of a Service are replaced, and the new ones are in another slice than those that were ready, that
// is written before the slice of the old ones is deleted.
func TestEndpointsAreReplaced(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.store.MarkClustersListed()
		close(f.linked)
		f.holds("east", "web", 1)
		at := func(endpoint string) string {
			return `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
  metadata: {name: web-2, namespace: ns, labels: {kubernetes.io/service-name: web}}, addressType: IPv4,
  ports: [{name: http, port: 8081, protocol: TCP}], endpoints: [` + endpoint + `]}`
		}
		f.apply("east", at(`{addresses: [10.1.0.2], conditions: {ready: false}}`))
		f.union("all", "web@east")
		f.pass(5 * time.Second)
		f.wants("all", 2)

		ready := map[string]bool{} // by slice
		f.home.Follow(sliceResource.String(), func(o *unstructured.Unstructured, deleted bool) {
			endpoints, _, _ := unstructured.NestedSlice(o.Object, "endpoints")
			ready[o.GetName()] = !deleted && slices.ContainsFunc(endpoints, func(e any) bool {
				is, _, _ := unstructured.NestedBool(e.(map[string]any), "conditions", "ready")
				return is
			})
			if !slices.Contains(slices.Collect(maps.Values(ready)), true) {
				t.Errorf("nothing is ready after %s was written", o.GetName())
			}
		})
		f.apply("east", at(`{addresses: [10.1.0.3]}`))
		f.network.Server("east").Delete("EndpointSlice", "ns", "web-1")
		f.pass(5 * time.Second)
		f.wants("all", 1)
	})
}

// While what a policy moves the traffic to cannot be written, as because of a quota, readers keep what they have of the
// other cluster, as far as that still has it.
func TestTrafficCannotMove(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.link("west")
		f.store.MarkClustersListed()
		close(f.linked)
		policy := func(annotation string, endpoints int) {
			t.Helper()
			f.apply("home", fmt.Sprintf(`{apiVersion: v1, kind: Service,
  metadata: {name: all, namespace: ns, annotations: {%s: enabled,
    federation.fingerpost.io/members: "web@east,web@west", federation.fingerpost.io/%s}},
  spec: {ports: [{name: http, port: 80, protocol: TCP}]}}`, view.OptIn, annotation))
			f.pass(5 * time.Second)
			f.wants("all", endpoints)
		}
		f.holds("east", "web", 4)
		f.holdsFrom("west", "web", 5, 8)
		policy("prefer: east", 4)
		f.home.Reject("create", sliceResource.String(), "ns", "exceeded quota")
		policy("prefer: west", 4)
		policy("weights: west=100", 4)
		f.holds("east", "web", 3) // one is gone there
		f.pass(2 * time.Minute)
		f.wants("all", 3)
		f.home.Reject("create", sliceResource.String(), "ns", "")
		f.pass(2 * time.Minute)
		f.wants("all", 4)
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
		f.holds("home", "web", 3)
		f.union("all", "web")
		f.pass(2 * time.Second)
		f.wants("all", 3)
		before := f.holder()

		// Changes while nothing of the holder's passes: to an object that is there, and new ones.
		f.way.shut()
		f.holds("home", "web", 1)
		f.union("more", "web")
		f.holds("home", "other", 2)
		f.union("others", "other")
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
		f.holds("home", "other", 4)
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
				if got := f.written(name); got != n {
					t.Errorf("%s: ns/%s has %d endpoints, want %d", when, name, got, n)
				}
			}
		}
		want("before they arrive")
		if f.way.heal(t) == 0 {
			t.Fatal("none of the late requests has done anything")
		}
		if f.written("others") == 4 {
			t.Error("the late requests have changed nothing")
		}
		f.pass(time.Second)
		want("a second after they arrived")
	})
}

// sources returns how many endpoints of a Service of home each installation has written, by source cluster.
func (f *fleet) sources(name string) string {
	counts := map[string]int{}
	names := map[string]string{}
	for _, ns := range f.home.List("namespaces") {
		names[string(ns.GetUID())] = ns.GetName()
	}
	names[string(f.network.Server("hub").Get("namespaces", "", "linkerd").GetUID())] = "hub"
	for _, es := range f.home.List("endpointslices.discovery.k8s.io") {
		l := es.GetLabels()
		if l["kubernetes.io/service-name"] == name && l[SourceLabel] != "" {
			endpoints, _, _ := unstructured.NestedSlice(es.Object, "endpoints")
			counts[l[SourceLabel]+" by "+names[l[installationLabel]]] += len(endpoints)
		}
	}
	return fmt.Sprint(counts)
}

// A source that two installations know is written by the older one, for as long as it lives; then the other takes it
// over, without removing an endpoint. What only one of them knows that one writes, be it in the cluster or elsewhere.
func TestTwoInstallations(t *testing.T) {
	inFleet(t, func(f *fleet) {
		close(f.linked)
		hub := f.network.Server("hub")
		f.apply("hub", "{apiVersion: v1, kind: Namespace, metadata: {name: linkerd}}")
		expect := func(when, want string) {
			t.Helper()
			if got := f.sources("all"); got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		f.store.MarkClustersListed()
		f.holds("home", "web", 3)
		f.holdsFrom("east", "web", 11, 12)
		f.union("all", "web,web@east")
		f.pass(2 * time.Second)
		expect("one installation", "map[home by linkerd:3]")

		// The hub links home, where it is to write slices, and east, which home does not know.
		ctx, uninstall := context.WithCancel(f.ctx)
		defer uninstall()
		store, registry := f.replicaOf(ctx, "hub-1", "linkerd", "hub")
		store.MarkClustersListed()
		for _, name := range []string{"hub", "home", "east"} {
			f.must(registry.Apply(cluster.Spec{
				Name: name, Local: name == "hub", Slices: name == "home",
				Access: []cluster.Access{{Source: "test", Config: f.access(name)}},
			}))
		}
		f.pass(10 * time.Second)
		expect("a hub", "map[east by hub:2 home by linkerd:3]")
		writes := func() int {
			return f.home.Requests("create", sliceResource.String()) + f.home.Requests("update", sliceResource.String())
		}
		before := writes()
		f.pass(time.Minute)
		if n := writes() - before; n != 0 {
			t.Errorf("%d writes in a minute without changes", n)
		}
		expect("a minute later", "map[east by hub:2 home by linkerd:3]")

		// Home links east, too: its Lease is older.
		f.link("east")
		f.pass(5 * time.Second)
		expect("both link east", "map[east by linkerd:2 home by linkerd:3]")
		f.holdsFrom("east", "web", 11, 14)
		f.pass(5 * time.Second)
		expect("both link east, which has changed", "map[east by linkerd:4 home by linkerd:3]")
		f.registry.Remove("east")
		f.pass(15 * time.Second)
		expect("home unlinks east", "map[east by hub:4 home by linkerd:3]")

		// The hub is gone without a word: what it wrote stays, until home links east.
		hub.Cut(apitest.Silence)
		uninstall()
		f.pass(time.Minute)
		expect("the hub is gone", "map[east by hub:4 home by linkerd:3]")
		f.link("east")
		f.holdsFrom("east", "web", 11, 13)
		f.pass(15 * time.Second)
		expect("home takes over", "map[east by linkerd:3 home by linkerd:3]")
	})
}

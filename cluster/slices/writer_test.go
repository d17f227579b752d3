package slices

import (
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/federation"
)

// fleet is a Writer in the cluster home, which links others, on API servers in memory and virtual time.
type fleet struct {
	t        *testing.T
	network  *apitest.Network
	home     *apitest.Server
	store    *federation.Store
	registry *cluster.Registry
	linked   chan struct{} // closed when it is known who is
	beside   atomic.Int32  // runs under the Lease, too
}

func inFleet(t *testing.T, test func(*fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, network: apitest.NewNetwork(), store: federation.NewStore(), linked: make(chan struct{})}
		defer f.network.Close()
		f.home = f.network.Server("home")
		log := logr.Discard()
		if testing.Verbose() {
			log = testr.New(t)
		}
		f.registry = cluster.NewRegistry(log, f.store, cluster.Options{
			ProbeInterval: 5 * time.Second, Patience: federation.Patience{Suspect: 10 * time.Second, Stale: 150 * time.Second}, Dial: f.network.Dial,
		})
		w := NewWriter(log, f.store, f.registry, func(term context.Context) error {
			f.beside.Add(1)
			<-term.Done()
			f.beside.Add(-1)
			return nil
		}, Options{Namespace: "linkerd", Installation: "home", Replica: "replica", Timing: testTiming, Federated: true, Linked: f.linked})
		f.registry.Attend(w.Attend)
		f.link("home")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := f.registry.Start(ctx, nil); err != nil {
				t.Error(err)
			}
		})
		f.pass(3 * time.Second)
		test(f)
		cancel()
		wg.Wait()
	})
}

func (f *fleet) link(name string) {
	f.t.Helper()
	s := f.network.Server(name)
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(s.Kubeconfig(s.Token())))
	f.must(err)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return quota{next} })
	f.must(f.registry.Apply(cluster.Spec{Name: name, Local: name == "home", Access: []cluster.Access{{Source: "test", Config: config}}}))
}

// quota lets nothing be created in the namespace full.
type quota struct{ next http.RoundTripper }

func (q quota) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/namespaces/full/") {
		return &http.Response{
			StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
			Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"exceeded quota"}`)),
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
		fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s}, spec: {ports: [{name: http, port: 80, protocol: TCP}]}}`, name, namespace),
		fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s-1, namespace: %[2]s, labels: {kubernetes.io/service-name: %[1]s}},
  addressType: IPv4, ports: [{name: http, port: 8080, protocol: TCP}], endpoints: [%[3]s]}`, name, namespace, strings.Join(endpoints, ", ")))
}

// union makes home have a federated Service that asks for slices.
func (f *fleet) union(namespace, name, members string) {
	f.t.Helper()
	f.apply("home", fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s, annotations: {%s: enabled, %s: "%s"}}, spec: {ports: [{name: http, port: 80, protocol: TCP}]}}`,
		name, namespace, OptIn, "federation.fingerpost.io/members", members))
}

// written returns how many endpoints the slices of a Service of home hold that we have written.
func (f *fleet) written(namespace, name string) (n int) {
	for _, es := range f.home.List("endpointslices.discovery.k8s.io") {
		if l := es.GetLabels(); es.GetNamespace() == namespace && l["kubernetes.io/service-name"] == name && l[SourceLabel] != "" {
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

func (f *fleet) wants(namespace, name string, n int) {
	f.t.Helper()
	if got := f.written(namespace, name); got != n {
		f.t.Errorf("%s/%s has %d endpoints, want %d", namespace, name, got, n)
	}
}

// Where a right is taken away the Lease is given up, whatever else runs under it, and when it is back, with new credentials, all is written.
func TestRightIsTakenAway(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.store.Listed()
		close(f.linked)
		if f.writing() != cluster.Holding || f.beside.Load() != 1 {
			t.Fatalf("%s, and %d beside", f.writing(), f.beside.Load())
		}
		f.home.Deny("create", sliceResource.String(), true)
		f.holds("home", "ns", "web", 3)
		f.union("ns", "all", "web")
		f.pass(2 * time.Second)
		if f.writing() != cluster.ReadOnly || f.beside.Load() != 0 {
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
		f.store.Listed()
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

// A cluster that does not confirm that endpoints are gone keeps no other Service from being written.
func TestClusterDoesNotConfirm(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.store.Listed()
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
		synctest.Wait() // we have been told
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

// A cluster that is not linked as far as we can read may be linked by what we cannot read: its slices stay until that is known.
func TestLinksCannotBeRead(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.link("east")
		f.store.Listed()
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

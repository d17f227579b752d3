package cluster_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/federation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a Registry with API servers in memory, in a bubble of virtual time.
type world struct {
	t        *testing.T
	network  *apitest.Network
	store    *federation.Store
	registry *cluster.Registry
}

func inWorld(t *testing.T, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, network: apitest.NewNetwork(), store: federation.NewStore()}
		w.store.Listed()
		log := logr.Discard()
		if testing.Verbose() {
			log = testr.New(t)
		}
		w.registry = cluster.NewRegistry(log, w.store, cluster.Options{
			ProbeInterval: 5 * time.Second,
			Patience:      federation.Patience{Suspect: 10 * time.Second, Stale: 150 * time.Second},
			Dial:          w.network.Dial,
		})
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error)
		go func() { stopped <- w.registry.Start(ctx, nil) }()
		test(w)
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		w.network.Close()
	})
}

// access returns credentials for a cluster, with a token of their own.
func (w *world) access(name, token string) cluster.Access {
	w.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(w.network.Server(name).Kubeconfig(token)))
	if err != nil {
		w.t.Fatal(err)
	}
	return cluster.Access{Source: "Secret of " + token, Config: config}
}

func (w *world) apply(spec cluster.Spec) {
	w.t.Helper()
	if err := w.registry.Apply(spec); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status(name string) cluster.Status {
	statuses, _ := w.registry.Statuses()
	return statuses[name]
}

// wait lets time pass until everything has settled.
func (w *world) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func objects(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	var o unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return &o
}

func (w *world) addresses(name string) int {
	watch := w.store.Watch(federation.Ref{Cluster: federation.Cluster(name), Service: federation.Service{Namespace: "ns", Name: "web"}})
	defer watch.Close()
	snapshot, _ := watch.Load()
	return federation.Select(snapshot, federation.Query{Port: 80, IPv6: true}, nil).Near(federation.Locality{}, nil).Len()
}

const (
	service = `{apiVersion: v1, kind: Service, metadata: {name: web, namespace: ns}, spec: {ports: [{port: 80, name: http}]}}`
	slice   = `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}},
  addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.0.0.1]}]}`
)

func TestApplyAndRemove(t *testing.T) {
	inWorld(t, func(w *world) {
		east := w.network.Server("east")
		east.Apply(objects(t, service), objects(t, slice))
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		w.wait(time.Second)
		if s := w.status("east"); s.State != cluster.Live || !s.Synced {
			t.Fatalf("status %+v", s)
		}
		if n := w.addresses("east"); n != 1 {
			t.Fatalf("%d addresses", n)
		}
		w.registry.Remove("east")
		w.wait(time.Second)
		if n := w.addresses("east"); n != 0 {
			t.Fatalf("%d addresses after the cluster was removed", n)
		}
	})
}

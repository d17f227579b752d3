// Thousands of handshakes with API servers in memory: without key exchanges that resist quantum computers.
//go:debug tlsmlkem=0
//go:debug tlssecpmlkem=0

package app

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/endpointslice"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const objects = `apiVersion: v1
kind: Namespace
metadata: {name: linkerd}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.1.0.1], conditions: {ready: true}}]
---
apiVersion: multicluster.linkerd.io/v1alpha3
kind: Link
metadata: {name: west, namespace: shop}
spec: {targetClusterName: west, clusterCredentialsSecret: absent}
`

// A replica is built without flags and runs in a test, beside an API server in memory: it becomes ready,
// serves what the cluster publishes, writes the conditions of a Link although it writes neither slices nor
// mirrors, and stops.
func TestReplica(t *testing.T) {
	network := apitest.NewNetwork()
	defer network.Close()
	east := network.Server("east")
	east.ApplyYAML(strings.Split(objects, "---\n")...)
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(east.Kubeconfig(east.Token())))
	if err != nil {
		t.Fatal(err)
	}
	config.Dial = network.Dial
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, err := New(ctx, logr.Discard(), Options{
		Replica: "a", Config: config, Dial: network.Dial, Addr: "127.0.0.1:0", ClusterName: "east", ReadSlices: true,
		ProbeInterval: time.Second, Thresholds: federation.Thresholds{Suspect: 10 * time.Second, Stale: time.Minute},
		Lease:     lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond},
		Writer:    endpointslice.Options{},
		Serving:   serving.DefaultConfig(),
		Discovery: linkerd.Defaults(),
	})
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- a.Run(ctx) }()
	for ready, changed := a.Ready.Load(); !ready; ready, changed = a.Ready.Load() {
		select {
		case <-changed:
		case err := <-stopped:
			t.Fatalf("it stopped before it was ready: %v", err)
		}
	}
	got, err := a.Discovery.Explain("web.shop.svc.cluster.local:80", serving.Client{})
	if err != nil || len(got.Claims) != 1 || got.Claims[0].Addr != "10.1.0.1:80" || !got.Claims[0].Kept {
		t.Errorf("it serves %+v, %v", got, err)
	}
	awaitConditions(t, config)
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// awaitConditions waits until the Link has conditions.
func awaitConditions(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	links := schema.GroupVersionResource{Group: "multicluster.linkerd.io", Version: "v1alpha3", Resource: "links"}
	w, err := client.Resource(links).Namespace("shop").Watch(ctx, metav1.ListOptions{SendInitialEvents: new(true)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if u, is := e.Object.(*unstructured.Unstructured); is {
			if list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions"); len(list) > 0 {
				return
			}
		}
	}
	t.Error("the Link has no conditions")
}

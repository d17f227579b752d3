package app

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/serving"
)

// objectsOfPolicy are of each kind that has a status, and what they refer to.
var objectsOfPolicy = []string{
	`{apiVersion: v1, kind: Namespace, metadata: {name: linkerd}}`,
	`{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop},
	  spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 80}]}}`,
	`{apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: web, namespace: shop},
	  spec: {port: 80, podSelector: {}}}`,
	`{apiVersion: policy.linkerd.io/v1beta3, kind: HTTPRoute, metadata: {name: inbound, namespace: shop},
	  spec: {parentRefs: [{group: policy.linkerd.io, kind: Server, name: web}]}}`,
	`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: outbound, namespace: shop},
	  spec: {parentRefs: [{group: "", kind: Service, name: web, port: 80}],
	    rules: [{filters: [{type: RequestMirror, requestMirror: {}}], backendRefs: [{name: gone, port: 80}]}]}}`,
	`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: gateway, namespace: shop},
	  spec: {parentRefs: [{name: web}]}}`,
	`{apiVersion: policy.linkerd.io/v1alpha1, kind: HTTPLocalRateLimitPolicy,
	  metadata: {name: first, namespace: shop, creationTimestamp: "2026-01-01T00:00:00Z"},
	  spec: {targetRef: {group: policy.linkerd.io, kind: Server, name: web}, total: {requestsPerSecond: 10}}}`,
	`{apiVersion: policy.linkerd.io/v1alpha1, kind: HTTPLocalRateLimitPolicy,
	  metadata: {name: second, namespace: shop, creationTimestamp: "2026-01-02T00:00:00Z"},
	  spec: {targetRef: {group: policy.linkerd.io, kind: Server, name: web}, total: {requestsPerSecond: 10}}}`,
	`{apiVersion: policy.linkerd.io/v1alpha1, kind: EgressNetwork, metadata: {name: inside, namespace: shop},
	  spec: {trafficPolicy: Allow, networks: [{cidr: 10.1.0.0/16}]}}`,
	`{apiVersion: policy.linkerd.io/v1alpha1, kind: EgressNetwork, metadata: {name: outside, namespace: shop},
	  spec: {trafficPolicy: Allow}}`,
}

// A replica that serves policy writes the status of all kinds that have one, under the Lease of Linkerd's policy
// controller, and opens no second watch for it. The answers of PT18 and PT19 are among them.
func TestStatusOfPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		east := network.Server("east")
		kinds := []string{
			"httproutes.policy.linkerd.io", "httproutes.gateway.networking.k8s.io",
			"httplocalratelimitpolicies.policy.linkerd.io", "egressnetworks.policy.linkerd.io",
		}
		for i, version := range []string{"v1beta3", "v1", "v1alpha1", "v1alpha1"} {
			east.Serve(kinds[i], version)
		}
		east.ApplyYAML(objectsOfPolicy...)
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(east.Kubeconfig(east.Token())))
		if err != nil {
			t.Fatal(err)
		}
		timing := lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond}
		inside, err := rules.ParseNetwork("10.0.0.0/8", nil)
		if err != nil {
			t.Fatal(err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		a, err := New(ctx, logr.Discard(), Options{
			Replica: "a", Config: config, Dial: network.Dial, ClusterName: "east", ReadSlices: true,
			Listen: func(context.Context, string, string) (net.Listener, error) {
				return bufconn.Listen(1 << 10), nil
			},
			ProbeInterval: time.Second, Lease: timing, Serving: serving.DefaultConfig(), Discovery: linkerd.Defaults(),
			Thresholds: federation.Thresholds{Suspect: 10 * time.Second, Stale: time.Minute},
			Policy: PolicyOptions{
				Addr: "policy:8090", Status: true, Rules: rules.Options{ClusterNetworks: []rules.Network{inside}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		stopped := make(chan error, 1)
		go func() { stopped <- a.Run(ctx) }()
		<-time.NewTimer(20 * time.Second).C
		synctest.Wait()

		got := map[string]string{}
		for _, kind := range kinds {
			for _, o := range east.List(kind) {
				got[o.GetName()] = reasonsIn(o)
			}
			if n := east.Watches()[kind]; n != 1 {
				t.Errorf("%d watches of %s", n, kind)
			}
		}
		if diff := cmp.Diff(map[string]string{
			"inbound": "Accepted", "outbound": "Accepted BackendNotFound UnsupportedValue", "gateway": "",
			"first": "Accepted", "second": "RateLimitReasonAlreadyExists",
			"inside": "EgressReasonNetworkOverlap", "outside": "Accepted",
		}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		statuses, _ := a.Registry.Statuses()
		if w := statuses["east"].Writing; !slices.Contains(w.Leases, "policy-controller-write") {
			t.Errorf("writing: %+v", w)
		}
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

// reasonsIn returns those of all conditions in a status.
func reasonsIn(o *unstructured.Unstructured) (reasons string) {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	parents, _, _ := unstructured.NestedSlice(o.Object, "status", "parents")
	for _, p := range parents {
		of, _, _ := unstructured.NestedSlice(p.(map[string]any), "conditions")
		conditions = append(conditions, of...)
	}
	for i, c := range conditions {
		if i > 0 {
			reasons += " "
		}
		reasons += fmt.Sprint(c.(map[string]any)["reason"])
	}
	return reasons
}

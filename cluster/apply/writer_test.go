package apply_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/federation"
)

// pass lets virtual time pass, and what is due then happen.
func pass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

// A writer in about a hundred lines, listings, keeps what it writes up to date, in a cluster that others change as
// well. What they wrote it does not touch.
func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		server := network.Server("local")
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(server.Kubeconfig(server.Token())))
		if err != nil {
			t.Fatal(err)
		}
		store := federation.NewStore()
		store.MarkClustersListed()
		registry := cluster.NewRegistry(logr.Discard(), store, cluster.Options{
			ProbeInterval: 5 * time.Second, Dial: network.Dial,
		})
		campaign := apply.NewCampaign(logr.Discard(), registry, apply.Options{
			Namespace: "linkerd", Local: "local", Replica: "r",
			Timing: lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond},
		})
		campaign.Add(apply.OwnLease, listingsTask(store))
		registry.Engage(campaign.Engage)
		spec := cluster.Spec{Name: "local", Local: true, Access: []cluster.Access{{Source: "test", Config: config}}}
		if err := registry.Apply(spec); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- registry.Start(ctx) }()

		service := func(labels string) {
			server.ApplyYAML("{apiVersion: v1, kind: Service, " +
				"metadata: {name: web, namespace: ns, labels: {" + labels + "}}," +
				" spec: {ports: [{port: 80}]}}")
		}
		configMap := func(metadata, addresses string) {
			server.ApplyYAML("{apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: ns" + metadata + "}," +
				" data: {addresses: " + addresses + "}}")
		}
		slice := func(endpoints string) {
			server.ApplyYAML(
				"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, ports: [{port: 80}]," +
					" metadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}}," +
					" endpoints: [" + endpoints + "]}",
			)
		}
		expect := func(when, want string) {
			t.Helper()
			pass(5 * time.Second)
			got := "none"
			if o := server.Get("configmaps", "ns", "web"); o != nil {
				got, _, _ = unstructured.NestedString(o.Object, "data", "addresses")
			}
			if got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		pass(time.Minute)
		statuses, _ := registry.Statuses()
		w := statuses["local"].Writing
		if w.State != cluster.ReadOnly || !strings.Contains(w.Problem, "there is no namespace linkerd") {
			t.Errorf("without its namespace: %+v", w)
		}
		server.ApplyYAML("{apiVersion: v1, kind: Namespace, metadata: {name: linkerd}}")
		pass(10 * time.Second)
		if statuses, _ := registry.Statuses(); statuses["local"].Writing.State != cluster.Holding {
			t.Errorf("with its namespace: %+v", statuses["local"].Writing)
		}
		service("")
		slice("{addresses: [10.1.0.1]}")
		expect("a Service that is not listed", "none")
		service("listed: here")
		expect("one that is", "10.1.0.1")
		slice("{addresses: [10.1.0.2]}, {addresses: [10.1.0.3]}")
		expect("other endpoints", "10.1.0.2 10.1.0.3")
		configMap(", labels: {app.kubernetes.io/managed-by: listings, theirs: here}", "changed")
		expect("after another has changed it", "10.1.0.2 10.1.0.3")
		if labels := server.Get("configmaps", "ns", "web").GetLabels(); labels["theirs"] != "here" {
			t.Errorf("of the labels are left %v", labels)
		}
		server.Deny("patch", "configmaps", true)
		slice("{addresses: [10.1.0.4]}")
		expect("without permission", "10.1.0.2 10.1.0.3")
		if statuses, _ := registry.Statuses(); statuses["local"].Writing.State != cluster.ReadOnly {
			t.Errorf("without permission: %+v", statuses["local"].Writing)
		}
		server.Deny("patch", "configmaps", false)
		pass(10 * time.Minute)
		expect("with permission again", "10.1.0.4")
		service("")
		expect("no longer listed", "none")
		configMap("", "theirs")
		service("listed: here")
		expect("another one's of the same name", "theirs")
		service("")
		expect("no longer listed beside it", "theirs")
		service("listed: here")
		expect("listed beside it again", "theirs")
		server.Delete("ConfigMap", "ns", "web")
		pass(2 * time.Minute)
		expect("once that is gone", "10.1.0.4")
		server.ApplyYAML(
			"{apiVersion: v1, kind: Service, metadata: {name: web, namespace: ns, labels: {listed: here}," +
				" annotations: {federation.fingerpost.io/members: \"web,web@east\"}}, spec: {ports: [{port: 80}]}}",
		)
		slice("{addresses: [10.1.0.5]}")
		expect("with a member that is no Service", "10.1.0.5")
		server.Delete("Service", "ns", "web")
		expect("without the Service", "none")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

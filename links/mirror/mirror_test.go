package mirror_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/links/mirror"
)

// fleet is the cluster home, which links others, with everything that runs in a process, API servers in memory and
// virtual time.
type fleet struct {
	t       *testing.T
	network *apitest.Network
	home    *apitest.Server
	mirror  *mirror.Mirror
	end     func() // of the term; nil without one
}

// inFleet runs a test in which home links east and west, in that order. No term runs yet.
func inFleet(t *testing.T, options mirror.Options, test func(*fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, network: apitest.NewNetwork()}
		defer f.network.Close()
		f.home = f.network.Server("home")
		f.home.Apply(f.object(`{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`))
		log := logr.Discard()
		if testing.Verbose() {
			log = testr.New(t)
		}
		store := federation.NewStore()
		registry := cluster.NewRegistry(log, store, cluster.Options{
			ProbeInterval: 5 * time.Second,
			Thresholds:    federation.Thresholds{Suspect: 10 * time.Second, Stale: 150 * time.Second},
			Dial:          f.network.Dial,
		})
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(f.home.Kubeconfig(f.home.Token())))
		f.must(err)
		f.must(registry.Apply(cluster.Spec{Name: "home", Local: true, Access: []cluster.Access{{Source: "test", Config: config}}}))
		conn, err := api.NewConnection(config, f.network.Dial)
		f.must(err)
		defer conn.Close()
		reconciler, err := links.NewReconciler(log, conn, registry, nil, store.MarkClustersListed, links.Options{
			ClusterName: "home", ControllerNamespace: "linkerd",
		})
		f.must(err)
		f.mirror, err = mirror.New(log, store, reconciler, conn, options)
		f.must(err)
		registry.Engage(f.mirror.Engage)
		f.link("east", 1)
		f.link("west", 2)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := registry.Start(ctx); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := reconciler.Start(ctx); err != nil {
				t.Error(err)
			}
		})
		f.pass(time.Second)
		test(f)
		f.stop()
		cancel()
		wg.Wait()
	})
}

func (f *fleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// run starts a term, and waits until it is idle.
func (f *fleet) run() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	stopped := make(chan error)
	go func() { stopped <- f.mirror.Run(ctx) }()
	f.end = func() {
		cancel()
		if err := <-stopped; err != nil {
			f.t.Error(err)
		}
	}
	f.pass(3 * time.Second)
}

func (f *fleet) stop() {
	if f.end != nil {
		f.end()
		f.end = nil
	}
}

func (f *fleet) pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}

func (f *fleet) object(text string) *unstructured.Unstructured {
	f.t.Helper()
	var o unstructured.Unstructured
	f.must(yaml.Unmarshal([]byte(text), &o.Object))
	return &o
}

func (f *fleet) link(name string, day int) {
	s := f.network.Server(name)
	f.home.Apply(
		f.object(fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {name: %s, namespace: mc}, type: mirror.linkerd.io/remote-kubeconfig, data: {kubeconfig: %s}}`,
			name, base64.StdEncoding.EncodeToString([]byte(s.Kubeconfig(s.Token()))))),
		f.object(fmt.Sprintf(`
apiVersion: multicluster.linkerd.io/v1alpha3
kind: Link
metadata: {name: %[1]s, namespace: mc, creationTimestamp: "1999-01-0%[2]dT00:00:00Z"}
spec:
  targetClusterName: %[1]s
  targetClusterDomain: %[1]s.local
  clusterCredentialsSecret: %[1]s
  gatewayAddress: 192.0.2.%[2]d
  gatewayIdentity: gateway.%[1]s
  selector: {matchLabels: {mirror.linkerd.io/exported: "true"}}
  remoteDiscoverySelector: {matchLabels: {mirror.linkerd.io/exported: remote-discovery}}
  federatedServiceSelector: {matchLabels: {mirror.linkerd.io/federated: member}}
`, name, day)))
}

const (
	exported = "mirror.linkerd.io/exported: \"true\""
	direct   = "mirror.linkerd.io/exported: remote-discovery"
	joins    = "mirror.linkerd.io/federated: member"
)

// apply puts a Service with one endpoint into a cluster.
func (f *fleet) apply(in, name, marks string, port int) {
	f.network.Server(in).Apply(
		f.object(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: shop, labels: {%s}}, spec: {ports: [{name: http, port: %d, protocol: TCP}]}}`, name, marks, port)),
		f.object(fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}},
  addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.0.0.1]}]}`, name)),
	)
}

// mirrors returns the mirrors and federated Services in home, each with its ports and members.
func (f *fleet) mirrors() string {
	var all []string
	for _, o := range f.home.List("services") {
		if o.GetLabels()["mirror.linkerd.io/mirrored-service"] != "true" {
			continue
		}
		ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
		text := o.GetName()
		for _, p := range ports {
			text += fmt.Sprintf(":%v", p.(map[string]any)["port"])
		}
		if members := o.GetAnnotations()["multicluster.linkerd.io/remote-discovery"]; members != "" {
			text += "=" + members
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func (f *fleet) wants(mirrors string) {
	f.t.Helper()
	if got := f.mirrors(); got != mirrors {
		f.t.Errorf("mirrors %q, want %q", got, mirrors)
	}
}

// leads returns the subsets of the Endpoints of a mirror.
func (f *fleet) leads(name string) string {
	o := f.home.Get("endpoints", "shop", name)
	if o == nil {
		return "nowhere"
	}
	subsets, _, _ := unstructured.NestedSlice(o.Object, "subsets")
	return fmt.Sprint(subsets...)
}

// writes counts the writes that the local cluster received.
func (f *fleet) writes() (n int) {
	for _, resource := range []string{"services", "endpoints", "links.multicluster.linkerd.io", "namespaces"} {
		for _, verb := range []string{"create", "update", "patch", "delete"} {
			n += f.home.Requests(verb, resource)
		}
	}
	return n
}

// status returns a list of a Link's status: name, local name, reason.
func (f *fleet) status(link, list string) string {
	o := f.home.Get("links.multicluster.linkerd.io", "mc", link)
	items, _, _ := unstructured.NestedSlice(o.Object, "status", list)
	var all []string
	for _, item := range items {
		u := item.(map[string]any)
		remote, _, _ := unstructured.NestedString(u, "remoteRef", "name")
		local, found, _ := unstructured.NestedString(u, "localRef", "name")
		if _, has := u["localRef"]; has != found {
			f.t.Errorf("a localRef without a name: %v", u)
		}
		conditions, _, _ := unstructured.NestedSlice(u, "conditions")
		c := conditions[0].(map[string]any)
		all = append(all, fmt.Sprintf("%s->%s %s %s", remote, local, c["status"], c["reason"]))
	}
	return strings.Join(all, ", ")
}

func (f *fleet) condition(link, kind string) string {
	o := f.home.Get("links.multicluster.linkerd.io", "mc", link)
	items, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, item := range items {
		if c := item.(map[string]any); c["type"] == kind {
			return fmt.Sprintf("%s %s: %s", c["status"], c["reason"], c["message"])
		}
	}
	return ""
}

func (f *fleet) mirroring(link, want string) {
	f.t.Helper()
	if got := f.condition(link, "Mirroring"); !strings.HasPrefix(got, want) {
		f.t.Errorf("Mirroring of %s is %q, want %q", link, got, want)
	}
}

// Mirrors are created, changed and deleted. Equal objects are not written, neither in this term nor in the next.
func TestLife(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.apply("east", "web", exported, 80)
		f.apply("east", "api", direct, 90)
		f.apply("east", "hidden", "app: x", 80)
		f.apply("west", "web", joins, 80)
		f.apply("home", "web", joins, 80)
		f.apply("home", "mine-east", "app: x", 80)
		f.apply("east", "mine", direct, 80)
		f.pass(time.Second)
		f.wants("")
		if n := f.home.Requests("list", "namespaces") + f.home.Requests("watch", "namespaces"); n != 0 {
			t.Errorf("%d requests about namespaces without a term", n)
		}
		f.run()
		const all = "api-east:90 web-east:80 web-federated:80=web@west"
		f.wants(all)
		if got, want := f.leads("web-east"), "map[addresses:[map[ip:192.0.2.1]] ports:[map[name:http port:4143 protocol:TCP]]]"; got != want {
			t.Errorf("web-east leads to %s, want %s", got, want)
		}
		if got := f.leads("api-east"); got != "nowhere" {
			t.Errorf("api-east leads to %s", got)
		}
		for link, want := range map[string][2]string{
			"east": {"api->api-east True Mirrored, mine-> False Error, web->web-east True Mirrored", ""},
			"west": {"", "web->web-federated True Mirrored"},
		} {
			if m, fed := f.status(link, "mirrorServices"), f.status(link, "federatedServices"); m != want[0] || fed != want[1] {
				t.Errorf("status of %s: %q and %q, want %q", link, m, fed, want)
			}
			f.mirroring(link, "True Mirroring: ")
			if got := f.condition(link, "Connected"); !strings.HasPrefix(got, "True") {
				t.Errorf("%s is Connected: %q", link, got)
			}
		}

		before := f.writes()
		f.stop()
		f.run()
		f.pass(time.Hour)
		if n := f.writes() - before; n != 0 {
			t.Errorf("%d writes although everything was as it should be", n)
		}

		f.apply("east", "web", exported, 81)
		f.pass(time.Second)
		f.wants("api-east:90 web-east:81 web-federated:80=web@west")
		f.network.Server("east").Delete("EndpointSlice", "shop", "web-1")
		f.pass(time.Second)
		if got := f.leads("web-east"); got != "" {
			t.Errorf("no endpoint is ready, and web-east leads to %s", got)
		}

		f.stop() // changes between two terms are found by the second
		f.apply("east", "web", "app: x", 81)
		f.apply("east", "api", exported, 90)
		f.network.Server("west").Delete("Service", "shop", "web")
		f.apply("home", "web", "app: x", 80)
		f.pass(time.Second)
		f.run()
		f.wants("api-east:90")
		if got := f.leads("api-east"); got == "nowhere" {
			t.Error("api-east leads nowhere after it was given a gateway")
		}
		f.apply("east", "api", direct, 90)
		f.pass(time.Second)
		if got := f.leads("api-east"); got != "nowhere" {
			t.Errorf("api-east leads to %s after it was taken from the gateway", got)
		}
		f.network.Server("east").Delete("Service", "shop", "api")
		f.network.Server("east").Delete("Service", "shop", "mine")
		f.pass(3 * time.Second)
		f.wants("")
		if m, fed := f.status("east", "mirrorServices"), f.status("west", "federatedServices"); m != "" || fed != "" {
			t.Errorf("the last entries stay in the status: %q, %q", m, fed)
		}
		if o := f.home.Get("services", "shop", "mine-east"); o == nil || o.GetLabels()["app"] != "x" || len(o.GetAnnotations()) != 0 {
			t.Errorf("a Service that is not ours was changed: %v", o)
		}
	})
}

// A cluster that is out of contact keeps its mirrors and memberships, also in a term that starts meanwhile. Its
// changes take effect when contact is back. Other clusters are not affected.
func TestCutOff(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.apply("east", "web", exported+", "+joins, 80)
		f.apply("east", "old", exported, 80)
		f.apply("west", "web", joins, 80)
		f.run()
		f.wants("old-east:80 web-east:80 web-federated:80=web@east,web@west")
		east := f.network.Server("east")
		east.Cut(apitest.Refuse)
		east.Delete("Service", "shop", "old")
		f.pass(10 * time.Minute)
		f.wants("old-east:80 web-east:80 web-federated:80=web@east,web@west")
		f.stop()
		f.network.Server("west").Delete("Service", "shop", "web")
		f.run()
		f.wants("old-east:80 web-east:80 web-federated:80=web@east")
		f.apply("west", "web", joins, 80)
		f.pass(time.Minute)
		f.wants("old-east:80 web-east:80 web-federated:80=web@east,web@west")
		if got := f.leads("web-east"); !strings.Contains(got, "192.0.2.1") {
			t.Errorf("web-east leads to %s", got)
		}
		f.mirroring("east", "Unknown Waiting")
		east.Cut(apitest.None)
		f.pass(time.Minute)
		f.wants("web-east:80 web-federated:80=web@east,web@west")
		f.mirroring("east", "True Mirroring")
	})
}

// The mirrors and memberships of a Link are deleted with it, also if no term was running at that time.
func TestUnlink(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		for _, in := range []string{"east", "west"} {
			f.apply(in, "web", exported+", "+joins, 80)
		}
		f.run()
		f.wants("web-east:80 web-federated:80=web@east,web@west web-west:80")
		f.home.Delete("Link", "mc", "east")
		f.pass(3 * time.Second)
		f.wants("web-federated:80=web@west web-west:80")
		f.stop()
		f.home.Delete("Link", "mc", "west")
		f.pass(3 * time.Second)
		f.run()
		f.wants("")
		f.link("west", 1)
		f.pass(3 * time.Second)
		f.wants("web-federated:80=web@west web-west:80")
	})
}

// As long as the local cluster cannot be listed, nothing is created or deleted.
func TestLocalUnknown(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.apply("east", "web", exported, 80)
		f.run()
		f.stop()
		f.home.Forbid("services", true)
		f.network.Server("east").Delete("Service", "shop", "web")
		f.run()
		f.pass(time.Minute)
		f.wants("web-east:80")
		f.mirroring("east", "False Forbidden: the API server refuses to list services")
		f.home.Forbid("services", false)
		f.pass(time.Minute)
		f.wants("")
		f.mirroring("east", "True Mirroring")
	})
}

// A listing that lacks most of the mirrored Services takes effect only if another one confirms it.
func TestRemovalIsHeld(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		east := f.network.Server("east")
		names := []string{"a", "b", "c", "d", "e"}
		for _, name := range names {
			f.apply("east", name, direct, 80)
		}
		f.run()
		f.stop()
		const all = "a-east:80 b-east:80 c-east:80 d-east:80 e-east:80"
		f.wants(all)
		for _, name := range names[:4] {
			east.Delete("Service", "shop", name)
		}
		f.run()
		f.wants(all)
		f.mirroring("east", "Unknown RemovalHeld")
		f.apply("east", "a", direct, 80) // it is back before the second listing
		f.pass(time.Second)
		f.wants(all)
		f.pass(time.Minute)
		f.wants("a-east:80 e-east:80")
		f.mirroring("east", "True Mirroring")
		east.Delete("Service", "shop", "a") // the watch delivers it
		east.Delete("Service", "shop", "e")
		f.pass(time.Second)
		f.wants("")
	})
}

// A missing permission is reported, reviewed at most once a minute, and the write follows when it is granted.
func TestForbidden(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		for i := range 20 {
			f.apply("east", fmt.Sprintf("s%d", i), direct, 80)
		}
		f.home.Deny("create", "services", true)
		f.run()
		f.wants("")
		f.mirroring("east", "False Forbidden: missing permission: create services in namespace shop")
		if got := f.status("east", "mirrorServices"); strings.Count(got, "False Error") != 20 {
			t.Errorf("status %s", got)
		}
		f.pass(10 * time.Minute)
		if n, reviews := f.home.Requests("create", "services"), f.home.Requests("create", "selfsubjectaccessreviews.authorization.k8s.io"); n != 0 || reviews > 14 {
			t.Errorf("%d attempts and %d reviews in 10 minutes", n, reviews)
		}
		f.home.Deny("create", "services", false)
		f.pass(time.Minute + 2*time.Second)
		if got := strings.Count(f.mirrors(), "-east"); got != 20 {
			t.Errorf("%d of 20 mirrors", got)
		}
		f.mirroring("east", "True Mirroring")

		f.home.Deny("delete", "services", true) // taken away while we run
		f.network.Server("east").Delete("Service", "shop", "s0")
		f.pass(10 * time.Minute)
		if n := f.home.Requests("delete", "services"); n > 1 {
			t.Errorf("%d attempts to delete", n)
		}
	})
}

// A Link is left to Linkerd's service mirror while that holds its Lease, and taken over when the Lease has been
// free for its duration.
func TestLeftToLinkerd(t *testing.T) {
	inFleet(t, mirror.Options{Namespace: "mc"}, func(f *fleet) {
		renew := func(name, holder string, i int) {
			f.home.Apply(f.object(fmt.Sprintf(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: %s, namespace: mc},
  spec: {holderIdentity: %q, leaseDurationSeconds: 30, renewTime: "2026-01-01T00:00:%02d.000000Z"}}`, name, holder, i)))
		}
		renew("service-mirror-write-east", "linkerd-abc", 0)
		renew("local-service-mirror-write", "linkerd-abc", 0)
		f.apply("east", "web", exported+", "+joins, 80)
		f.apply("west", "web", exported+", "+joins, 80)
		f.apply("home", "web", joins, 80)
		f.run()
		f.wants("web-federated:80=web@west web-west:80")
		f.mirroring(
			"east",
			"False LeftToLinkerd: Lease mc/service-mirror-write-east of Linkerd's service mirror is held by linkerd-abc",
		)
		if got := f.home.Get("services", "shop", "web-federated").GetAnnotations()["multicluster.linkerd.io/local-discovery"]; got != "" {
			t.Errorf("the local member is %q while the local mirror holds its Lease", got)
		}
		if got := f.status("east", "mirrorServices"); got != "" {
			t.Errorf("status of a Link that is left to Linkerd: %s", got)
		}
		for i := range 20 {
			renew("service-mirror-write-east", "linkerd-abc", i+1)
			f.pass(10 * time.Second)
		}
		f.wants("web-federated:80=web@west web-west:80")
		renew("service-mirror-write-east", "", 30)
		f.pass(25 * time.Second)
		f.wants("web-federated:80=web@west web-west:80")
		f.pass(10 * time.Second)
		f.wants("web-east:80 web-federated:80=web@east,web@west web-west:80")
		f.mirroring("east", "True Mirroring")
		if got := f.home.Get("services", "shop", "web-federated").GetAnnotations()["multicluster.linkerd.io/local-discovery"]; got != "web" {
			t.Errorf("the local member is %q after the Lease of the local mirror has expired", got)
		}
		renew("service-mirror-write-east", "linkerd-def", 31) // it is back
		f.pass(time.Second)
		f.mirroring("east", "False LeftToLinkerd")
		f.network.Server("east").Delete("Service", "shop", "web")
		f.pass(10 * time.Second)
		f.wants("web-east:80 web-federated:80=web@east,web@west web-west:80")
	})
	inFleet(t, mirror.Options{Namespace: "mc"}, func(f *fleet) {
		f.home.Forbid("leases.coordination.k8s.io", true)
		f.apply("east", "web", exported, 80)
		f.run()
		f.pass(time.Hour)
		f.wants("")
		f.mirroring("east", "False LeftToLinkerd: whether Linkerd's service mirror runs is unknown")
		f.home.Forbid("leases.coordination.k8s.io", false)
		f.pass(time.Minute)
		f.wants("web-east:80")
	})
}

// What Linkerd's service mirror has written for Links that are not read here stays as it is, byte for byte, whether
// its Leases are live or not. A Link of ours to a cluster that it serves for a Link of its own is left to it.
func TestMirrorsOfLinksThatAreNotRead(t *testing.T) {
	for name, live := range map[string]bool{"at work": true, "gone": false} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, mirror.Options{}, func(f *fleet) {
				second := 0
				renew := func() {
					for _, cluster := range []string{"north", "east"} {
						if second++; live || cluster == "east" {
							f.home.Apply(f.object(fmt.Sprintf(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: service-mirror-write-%s, namespace: linkerd-multicluster},
  spec: {holderIdentity: linkerd-abc, leaseDurationSeconds: 30, renewTime: "2026-01-01T00:%02d:%02d.000000Z"}}`, cluster, second/60, second%60)))
						}
					}
				}
				renew()
				for i := range 20 {
					f.home.Apply(
						f.object(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: web%[1]d-north, namespace: shop, labels: {mirror.linkerd.io/mirrored-service: "true", mirror.linkerd.io/cluster-name: north}},
  spec: {clusterIP: 10.96.0.%[1]d, ports: [{name: https, port: 443, protocol: TCP}, {name: http, port: 80, protocol: TCP}]}}`, i+1)),
						f.object(fmt.Sprintf(`{apiVersion: v1, kind: Endpoints, metadata: {name: web%[1]d-north, namespace: shop, labels: {mirror.linkerd.io/mirrored-service: "true", mirror.linkerd.io/cluster-name: north}}}`, i+1)))
				}
				f.home.Apply(
					f.object(`{apiVersion: v1, kind: Service, metadata: {name: api-federated, namespace: shop, labels: {mirror.linkerd.io/mirrored-service: "true"}, annotations: {multicluster.linkerd.io/remote-discovery: "api@north,api@south"}},
  spec: {clusterIP: 10.96.1.1, ports: [{name: https, port: 443, protocol: TCP}, {name: http, port: 80, protocol: TCP}]}}`),
					f.object(`{apiVersion: v1, kind: Service, metadata: {name: old-east, namespace: shop, labels: {mirror.linkerd.io/mirrored-service: "true", mirror.linkerd.io/cluster-name: east}},
  spec: {clusterIP: 10.96.1.2, ports: [{name: http, port: 80, protocol: TCP}]}}`))
				f.apply("east", "web", exported, 80)
				before := f.mirrors()
				f.run()
				for range 10 {
					renew()
					f.pass(10 * time.Second)
				}
				f.wants(before)
				f.stop()
				f.run()
				f.wants(before)
				n := 0
				for _, resource := range []string{"services", "endpoints"} {
					for _, verb := range []string{"create", "update", "patch", "delete"} {
						n += f.home.Requests(verb, resource)
					}
				}
				if n != 0 {
					t.Errorf("%d writes", n)
				}
				f.mirroring(
					"east",
					"False LeftToLinkerd: Lease linkerd-multicluster/service-mirror-write-east of Linkerd's service mirror is held by linkerd-abc",
				)
			})
		})
	}
}

// A Lease does not count as expired because the watch delivers nothing, whether the API server refuses it or is
// silent.
func TestLeaseThatIsNotConfirmed(t *testing.T) {
	for name, deafen := range map[string]func(*fleet, bool){
		"refused": func(f *fleet, deaf bool) { f.home.Forbid("leases.coordination.k8s.io", deaf) },
		"silent": func(f *fleet, deaf bool) {
			f.home.Cut(map[bool]apitest.Cut{true: apitest.Silence, false: apitest.None}[deaf])
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, mirror.Options{Namespace: "mc"}, func(f *fleet) {
				var second int
				renew := func() {
					second++
					f.home.Apply(f.object(fmt.Sprintf(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: service-mirror-write-east, namespace: mc},
  spec: {holderIdentity: linkerd-abc, leaseDurationSeconds: 30, renewTime: "2026-01-01T00:%02d:%02d.000000Z"}}`, second/60, second%60)))
				}
				renew()
				f.apply("east", "web", direct, 80)
				f.apply("west", "web", direct, 80)
				f.run()
				f.wants("web-west:80")
				deafen(f, true)
				for range 12 {
					renew()
					f.pass(10 * time.Second)
					f.wants("web-west:80")
				}
				if name == "refused" {
					f.mirroring(
						"east",
						"False LeftToLinkerd: whether Linkerd's service mirror runs is unknown: grant list and watch",
					)
					f.mirroring(
						"west",
						"False LeftToLinkerd: whether Linkerd's service mirror runs is unknown: grant list and watch",
					)
				}
				deafen(f, false)
				for range 6 {
					renew()
					f.pass(10 * time.Second)
					f.wants("web-west:80")
				}
				f.mirroring(
					"east",
					"False LeftToLinkerd: Lease mc/service-mirror-write-east of Linkerd's service mirror is held by linkerd-abc",
				)
				f.mirroring("west", "True Mirroring")
				f.pass(65 * time.Second) // it is not renewed any more
				f.wants("web-east:80 web-west:80")
			})
		})
	}
}

// A Service whose namespace is missing is reported in its Link and by one Event in its cluster, and mirrored when
// the namespace is created.
func TestMissingNamespace(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.home.Delete("Namespace", "", "shop")
		f.apply("east", "web", exported, 80)
		f.run()
		f.wants("")
		if got, want := f.status("east", "mirrorServices"), "web-> False MissingNamespace"; got != want {
			t.Errorf("status %q, want %q", got, want)
		}
		f.stop()
		f.run()
		events := slices.DeleteFunc(
			f.network.Server("east").List("events"),
			func(o *unstructured.Unstructured) bool { return o.Object["reason"] != "ServiceMirroringSkipped" },
		)
		if len(events) != 1 || events[0].Object["type"] != "Normal" {
			t.Errorf("Events in the linked cluster: %v", events)
		}
		f.home.Apply(f.object(`{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`))
		f.pass(3 * time.Second)
		f.wants("web-east:80")
	})
	inFleet(t, mirror.Options{CreateNamespaces: true}, func(f *fleet) {
		f.home.Delete("Namespace", "", "shop")
		f.apply("east", "web", exported, 80)
		f.run()
		f.wants("web-east:80")
		if got := f.home.Get("namespaces", "", "shop").GetLabels()["mirror.linkerd.io/cluster-name"]; got != "east" {
			t.Errorf("the namespace has the cluster name %q", got)
		}
	})
}

// A cluster that hangs while an Event is created in it delays no other.
func TestMissingNamespaceOfOneThatHangs(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		for i := range 8 { // more than there are workers
			f.apply("east", fmt.Sprintf("s%d", i), direct, 80)
		}
		f.run()
		f.network.Server("east").Cut(apitest.Silence)
		f.home.Delete("Namespace", "", "shop")
		f.pass(time.Second)
		f.wants("")
		f.home.Apply(f.object(`{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`))
		f.apply("west", "web", direct, 80)
		f.pass(time.Second)
		f.wants("s0-east:80 s1-east:80 s2-east:80 s3-east:80 s4-east:80 s5-east:80 s6-east:80 s7-east:80 web-west:80")
		f.network.Server("east").Cut(apitest.None)
	})
}

// Changes of a mirror by others are undone. A user's Service that takes its name is left as it is.
func TestMeddling(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.apply("east", "web", exported, 80)
		f.run()
		o := f.home.Get("services", "shop", "web-east")
		o.SetLabels(map[string]string{
			"mirror.linkerd.io/mirrored-service": "true", "mirror.linkerd.io/cluster-name": "east",
			"odd": "1",
		})
		f.home.Apply(o)
		f.pass(time.Second)
		if got := f.home.Get("services", "shop", "web-east").GetLabels()["odd"]; got != "" {
			t.Error("the label of another writer stays")
		}
		f.home.Delete("Service", "shop", "web-east")
		f.home.Delete("Endpoints", "shop", "web-east")
		f.pass(3 * time.Second)
		f.wants("web-east:80")
		if got := f.leads("web-east"); !strings.Contains(got, "192.0.2.1") {
			t.Errorf("it leads to %s", got)
		}
		f.stop()
		f.home.Delete("Service", "shop", "web-east")
		f.apply("home", "web-east", "app: x", 99)
		f.run()
		f.wants("")
		if got, want := f.status("east", "mirrorServices"), "web-> False Error"; got != want {
			t.Errorf("status %q, want %q", got, want)
		}
		f.home.Delete("Service", "shop", "web-east")
		f.pass(3 * time.Second)
		f.wants("web-east:80")
	})
}

// A Service that is kept by its finalizers delays only its own mirror, which is retried with back-off.
func TestNameHeldByFinalizer(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.home.Apply(f.object(`{apiVersion: v1, kind: Service, metadata: {name: web-east, namespace: shop, deletionTimestamp: "2000-01-01T00:00:00Z", finalizers: [example.com/held]},
  spec: {ports: [{port: 80}]}}`))
		f.apply("east", "web", direct, 80)
		f.apply("east", "api", direct, 80)
		f.run()
		if got, want := f.status("east", "mirrorServices"), "api->api-east True Mirrored, web-> False Error"; got != want {
			t.Errorf("status %q, want %q", got, want)
		}
		f.pass(10 * time.Minute)
		f.wants("api-east:80")
		if n := f.home.Requests("create", "services"); n > 25 {
			t.Errorf("%d attempts to create Services", n)
		}
		f.home.Delete("Service", "shop", "web-east")
		f.pass(time.Second)
		f.wants("api-east:80 web-east:80")
	})
}

// A webhook that changes Services, or a schema that drops conditions, causes no repeated writes.
func TestNoContest(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.home.Prune("links.multicluster.linkerd.io")
		f.home.Mutate("services", func(o *unstructured.Unstructured) {
			annotations := o.GetAnnotations()
			annotations["config.linkerd.io/opaque-ports"] = "25,3306"
			o.SetAnnotations(annotations)
		})
		f.apply("east", "web", direct, 80)
		f.run()
		f.wants("web-east:80")
		before := f.writes()
		f.pass(10 * time.Second)
		if n := f.writes() - before; n != 0 {
			t.Errorf("%d writes in 10 s in which nothing has happened", n)
		}
		f.apply("east", "web", direct, 81)
		f.pass(time.Second)
		f.wants("web-east:81")
		if got, want := f.status("east", "mirrorServices"), "web->web-east True Mirrored"; got != want {
			t.Errorf("status %q, want %q", got, want)
		}
	})
}

// The number of Services here for one linked cluster is limited. Existing ones are kept up to date, and others
// replace those that are deleted.
func TestServicesOfALinkAreLimited(t *testing.T) {
	inFleet(t, mirror.Options{MaxServices: 3}, func(f *fleet) {
		for i := range 10 {
			f.apply("east", fmt.Sprintf("s%d", i), direct, 80)
		}
		f.apply("east", "web", joins, 80)
		f.apply("west", "web", exported, 80)
		f.run()
		east := func() (n int) {
			for m := range strings.FieldsSeq(f.mirrors()) {
				if strings.Contains(m, "east") {
					n++
				}
			}
			return n
		}
		if n := east(); n != 3 {
			t.Errorf("%d Services for east: %s", n, f.mirrors())
		}
		if !strings.Contains(f.mirrors(), "web-west:80") {
			t.Errorf("west is not mirrored: %s", f.mirrors())
		}
		f.mirroring(
			"east",
			"False TooManyServices: 3 Services exist here for the cluster, as many as -max-mirrors-per-link allows: they are kept up to date, and 8 more",
		)
		f.mirroring("west", "True Mirroring")
		for i := range 10 { // existing mirrors are kept up to date
			f.apply("east", fmt.Sprintf("s%d", i), direct, 81)
		}
		f.pass(3 * time.Second)
		if got := f.mirrors(); east() != 3 || strings.Contains(strings.ReplaceAll(got, "web-west:80", ""), "-east:80") {
			t.Errorf("mirrors %s", got)
		}
		f.stop()
		f.run() // the next term counts the existing ones
		if n := east(); n != 3 {
			t.Errorf("%d Services for east: %s", n, f.mirrors())
		}
		for i := range 8 {
			f.network.Server("east").Delete("Service", "shop", fmt.Sprintf("s%d", i))
			f.pass(time.Second)
		}
		f.pass(3 * time.Second)
		f.wants("s8-east:81 s9-east:81 web-federated:80=web@east web-west:80")
		f.mirroring("east", "True Mirroring")
	})
}

// A gateway that fails its probes makes its own mirrors not ready, and no others. The Service over which it is
// probed is created and deleted with the Link.
func TestGatewayThatFails(t *testing.T) {
	options := mirror.Options{Probe: true, Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		return nil, fmt.Errorf("dial %s: connection refused", address)
	}}
	inFleet(t, options, func(f *fleet) {
		o := f.home.Get("links.multicluster.linkerd.io", "mc", "east")
		f.must(unstructured.SetNestedStringMap(o.Object, map[string]string{"path": "/ready", "port": "4191", "period": "10s", "failureThreshold": "2"}, "spec", "probeSpec"))
		f.home.Apply(o)
		f.apply("east", "web", exported, 80)
		f.apply("west", "web", exported, 80)
		f.run()
		const ready, dead = "map[addresses:[map[ip:192.0.2.%d]] ports:[map[name:http port:4143 protocol:TCP]]]", "map[notReadyAddresses:[map[ip:192.0.2.1]] ports:[map[name:http port:4143 protocol:TCP]]]"
		if got, want := f.leads("web-east"), fmt.Sprintf(ready, 1); got != want {
			t.Errorf("before a probe web-east leads to %s, want %s", got, want)
		}
		probe := f.home.Get("endpoints", "mc", "probe-east")
		if probe == nil || probe.GetAnnotations()["mirror.linkerd.io/remote-gateway-identity"] != "gateway.east" || f.home.Get("services", "mc", "probe-east") == nil {
			t.Errorf("the Endpoints for the probe are %v", probe)
		}
		f.pass(22 * time.Second)
		if got := f.leads("web-east"); got != dead {
			t.Errorf("after two failures web-east leads to %s, want %s", got, dead)
		}
		if got, want := f.leads("web-west"), fmt.Sprintf(ready, 2); got != want {
			t.Errorf("web-west leads to %s, want %s", got, want)
		}
		o = f.home.Get("links.multicluster.linkerd.io", "mc", "east")
		f.must(unstructured.SetNestedField(o.Object, "extra", "spec", "selector", "matchLabels", "never"))
		f.home.Apply(o) // the selector does not concern the gateway
		f.pass(time.Second)
		f.wants("web-west:80")
		o = f.home.Get("links.multicluster.linkerd.io", "mc", "east")
		unstructured.RemoveNestedField(o.Object, "spec", "selector", "matchLabels", "never")
		f.home.Apply(o)
		f.pass(time.Second)
		if got := f.leads("web-east"); got != dead {
			t.Errorf("it leads to %s after the selector has changed to and fro, want %s", got, dead)
		}
		f.home.Delete("Link", "mc", "east")
		f.pass(3 * time.Second)
		if f.home.Get("services", "mc", "probe-east") != nil || f.home.Get("endpoints", "mc", "probe-east") != nil {
			t.Error("the Service for the probe outlives the Link")
		}
	})
}

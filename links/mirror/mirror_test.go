package mirror_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/apply"
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
	conn    *api.Connection // to home
	mirror  *mirror.Mirror
	links   *links.Reconciler
	end     func() // of the term; nil without one
	closers []func()
}

// inFleet runs a test in which home links east and west, in that order. No term runs yet.
func inFleet(t *testing.T, options mirror.Options, test func(*fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, network: apitest.NewNetwork()}
		defer f.network.Close()
		f.home = f.network.Server("home")
		f.home.ApplyYAML(`{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`)
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
		f.must(registry.Apply(cluster.Spec{
			Name:   "home",
			Local:  true,
			Access: []cluster.Access{{Source: "test", Config: config}},
		}))
		conn, err := api.NewConnection(config, f.network.Dial)
		f.must(err)
		defer conn.Close()
		f.conn = conn
		reconciler, err := links.NewReconciler(log, conn, registry, nil, store.MarkClustersListed, links.Options{
			ClusterName: "home", ControllerNamespace: "linkerd", Mirrors: true,
		})
		f.must(err)
		f.links = reconciler
		f.mirror, err = mirror.New(log, store, registry, reconciler, conn, options)
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
		atFirst := f.writeSeries()
		test(f)
		f.stop()
		for series := range f.writeSeries() {
			if !atFirst[series] {
				t.Errorf("%q is not counted from 0 on: increase() does not find the first one", series)
			}
		}
		for _, closer := range f.closers {
			closer()
		}
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

// writeSeries returns the writes that are counted, and those that fail for a reason that is counted from 0 on.
func (f *fleet) writeSeries() map[string]bool {
	f.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(f.mirror.Collectors()...)
	families, err := registry.Gather()
	f.must(err)
	all := map[string]bool{}
	for _, family := range families {
		for _, series := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range series.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			counted := slices.Contains([]string{"", "Forbidden", "Invalid", "Unknown"}, labels["reason"])
			if family.GetName() == "fingerpost_mirror_writes_total" && counted {
				all[strings.TrimSpace(labels["verb"]+" "+labels["resource"]+" "+labels["reason"])] = true
			}
		}
	}
	return all
}

// run starts a term, and waits until it is idle.
func (f *fleet) run() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	stopped := make(chan error)
	permissions := apply.NewPermissions(logr.Discard(), f.client())
	go func() { stopped <- f.mirror.Run(ctx, f.conn, permissions, nil) }()
	go func() { stopped <- f.links.WriteStatus(ctx, permissions, nil) }()
	f.end = func() {
		cancel()
		for range 2 {
			if err := <-stopped; err != nil {
				f.t.Error(err)
			}
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

func (f *fleet) link(name string, day int) {
	s := f.network.Server(name)
	f.home.ApplyYAML(
		fmt.Sprintf(
			`{apiVersion: v1, kind: Secret, metadata: {name: %s, namespace: mc}, type: mirror.linkerd.io/remote-kubeconfig, data: {kubeconfig: %s}}`,
			name, base64.StdEncoding.EncodeToString([]byte(s.Kubeconfig(s.Token())))),
		fmt.Sprintf(`
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
`, name, day))
}

const (
	exported = "mirror.linkerd.io/exported: \"true\""
	direct   = "mirror.linkerd.io/exported: remote-discovery"
	joins    = "mirror.linkerd.io/federated: member"
)

// apply puts a Service with one endpoint into a cluster.
func (f *fleet) apply(in, name, marks string, port int) {
	f.network.Server(in).ApplyYAML(
		fmt.Sprintf(
			`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: shop, labels: {%s}}, spec: {ports: [{name: http, port: %d, protocol: TCP}]}}`, name, marks, port),
		fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}},
  addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.0.0.1]}]}`, name),
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

// status returns a list of a Link's status: name, local name, reason.
func (f *fleet) status(link, list string) string {
	o := f.home.Get("links.multicluster.linkerd.io", "mc", link)
	items, _, _ := unstructured.NestedSlice(o.Object, "status", list)
	var all []string
	for _, item := range items {
		u := item.(map[string]any)
		remote, _, _ := unstructured.NestedString(u, "remoteRef", "name")
		conditions, _, _ := unstructured.NestedSlice(u, "conditions")
		c := conditions[0].(map[string]any)
		local, found, _ := unstructured.NestedString(c, "localRef", "name")
		if _, has := c["localRef"]; has != found {
			f.t.Errorf("a localRef without a name: %v", u)
		}
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

// A missing permission is reported, reviewed a few times a minute at most, and the write follows when it is granted.
func TestForbidden(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		for i := range 20 {
			f.apply("east", fmt.Sprintf("s%d", i), direct, 80)
		}
		f.home.Deny("create", "services", true)
		f.run()
		f.wants("")
		f.mirroring("east", "False Forbidden: permissions are missing: grant create on services in namespace shop")
		if got := f.status("east", "mirrorServices"); strings.Count(got, "False Error") != 20 {
			t.Errorf("status %s", got)
		}
		f.pass(10 * time.Minute)
		if n, reviews := f.home.Requests("create", "services"),
			f.home.Requests("create", "selfsubjectaccessreviews.authorization.k8s.io"); n != 0 || reviews > 30 {
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

// Workers that need one permission wait for one review of it, and hold no lock meanwhile: time stands still, and this
// test does not end, while one waits for a lock.
func TestSlowReviews(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		for i := range 20 {
			f.apply("east", fmt.Sprintf("s%d", i), direct, 80)
		}
		f.home.Delay("", time.Second)
		f.run()
		f.pass(time.Minute)
		if got := strings.Count(f.mirrors(), "-east"); got != 20 {
			t.Errorf("%d of 20 mirrors", got)
		}
		if n := f.home.Requests("create", "selfsubjectaccessreviews.authorization.k8s.io"); n > 8 {
			t.Errorf("%d reviews", n)
		}
	})
}

// As long as Leases cannot be read, every Link is left to Linkerd's service mirror.
func TestLeasesForbidden(t *testing.T) {
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
							f.home.ApplyYAML(fmt.Sprintf(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: service-mirror-write-%s, namespace: linkerd-multicluster},
  spec: {holderIdentity: linkerd-abc, leaseDurationSeconds: 30, renewTime: "2026-01-01T00:%02d:%02d.000000Z"}}`, cluster, second/60, second%60))
						}
					}
				}
				renew()
				for i := range 20 {
					f.home.ApplyYAML(
						fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: web%[1]d-north, namespace: shop, labels: {mirror.linkerd.io/mirrored-service: "true", mirror.linkerd.io/cluster-name: north}},
  spec: {clusterIP: 10.96.0.%[1]d, ports: [{name: https, port: 443, protocol: TCP}, {name: http, port: 80, protocol: TCP}]}}`, i+1),
						fmt.Sprintf(
							`{apiVersion: v1, kind: Endpoints, metadata: {name: web%[1]d-north, namespace: shop, labels: {mirror.linkerd.io/mirrored-service: "true", mirror.linkerd.io/cluster-name: north}}}`, i+1))
				}
				f.home.ApplyYAML(
					`{apiVersion: v1, kind: Service, metadata: {name: api-federated, namespace: shop, labels: {mirror.linkerd.io/mirrored-service: "true"}, annotations: {multicluster.linkerd.io/remote-discovery: "api@north,api@south"}},
  spec: {clusterIP: 10.96.1.1, ports: [{name: https, port: 443, protocol: TCP}, {name: http, port: 80, protocol: TCP}]}}`,
					`{apiVersion: v1, kind: Service, metadata: {name: old-east, namespace: shop, labels: {mirror.linkerd.io/mirrored-service: "true", mirror.linkerd.io/cluster-name: east}},
  spec: {clusterIP: 10.96.1.2, ports: [{name: http, port: 80, protocol: TCP}]}}`)
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
				if n := f.mirrorWrites(); n != 0 {
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
					f.home.ApplyYAML(fmt.Sprintf(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: service-mirror-write-east, namespace: mc},
  spec: {holderIdentity: linkerd-abc, leaseDurationSeconds: 30, renewTime: "2026-01-01T00:%02d:%02d.000000Z"}}`, second/60, second%60))
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

// A Service that is kept by its finalizers delays only its own mirror, which is retried with back-off.
func TestNameHeldByFinalizer(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.home.ApplyYAML(`{apiVersion: v1, kind: Service, metadata: {name: web-east, namespace: shop, deletionTimestamp: "2000-01-01T00:00:00Z", finalizers: [example.com/held]},
  spec: {ports: [{port: 80}]}}`)
		f.apply("east", "web", direct, 80)
		f.apply("east", "api", direct, 80)
		f.run()
		if got, want := f.status("east", "mirrorServices"),
			"api->api-east True Mirrored, web-> False Error"; got != want {
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

// What others make of the fields that we apply, or add to a mirror, causes no repeated writes: a webhook that
// sets another value each time, a controller that adds its annotation whenever it is missing, a schema that
// drops conditions.
func TestNoContest(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.home.Undeclare("conditions")
		n := 0
		for _, resource := range []string{"services", "endpoints"} {
			f.home.Mutate(resource, func(o *unstructured.Unstructured) {
				n++
				annotations := o.GetAnnotations()
				annotations["mirror.linkerd.io/remote-svc-fq-name"] = fmt.Sprint("changed-", n)
				if annotations["example.com/own"] == "" {
					annotations["example.com/own"] = "1"
				}
				o.SetAnnotations(annotations)
			})
		}
		f.apply("east", "web", exported, 80)
		f.run()
		f.wants("web-east:80")
		before := f.mirrorWrites()
		f.pass(10 * time.Minute)
		if n := f.mirrorWrites() - before; n != 0 {
			t.Errorf("%d writes in 10 minutes in which nothing has happened", n)
		}
		f.apply("east", "web", exported, 81)
		f.pass(time.Second)
		f.wants("web-east:81")
		first := f.mirrorWrites()
		f.apply("east", "web", exported, 82)
		f.pass(10 * time.Minute)
		f.wants("web-east:82")
		if n := f.mirrorWrites() - first; n != 1 {
			t.Errorf("%d writes for a change of a port", n)
		}
		if got := f.home.Get("services", "shop", "web-east").GetAnnotations()["example.com/own"]; got != "1" {
			t.Errorf("the annotation of another controller is %q", got)
		}
		if got, want := f.status("east", "mirrorServices"), "web->web-east True Mirrored"; got != want {
			t.Errorf("status %q, want %q", got, want)
		}
	})
}

// A controller that puts back what is its own, whenever it is gone, is not contested.
func TestAnotherController(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.apply("east", "web", exported, 80)
		f.run()
		client := f.client()
		own := func() {
			if f.home.Get("services", "shop", "web-east").GetAnnotations()["example.com/own"] != "" {
				return
			}
			_, err := client.CoreV1().Services("shop").Patch(f.t.Context(), "web-east", types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"example.com/own":"1"}}}`),
				metav1.PatchOptions{FieldManager: "other"})
			f.must(err)
		}
		own()
		f.apply("east", "web", exported, 89)
		f.pass(time.Minute) // the Service is taken over from its creation
		before := f.mirrorWrites()
		for port := range 5 {
			f.apply("east", "web", exported, 90+port)
			f.pass(time.Second)
			own()
			f.pass(time.Minute)
		}
		f.wants("web-east:94")
		if n := f.mirrorWrites() - before; n != 5 {
			t.Errorf("%d writes for 5 changes", n)
		}
		// A field of ours that another one changes is ours again.
		_, err := client.CoreV1().Services("shop").Patch(f.t.Context(), "web-east", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"mirror.linkerd.io/cluster-name":"west"}}}`),
			metav1.PatchOptions{FieldManager: "other"})
		f.must(err)
		f.pass(time.Second)
		if got := f.home.Get("services", "shop",
			"web-east").GetLabels()["mirror.linkerd.io/cluster-name"]; got != "east" {
			t.Errorf("the label is %q", got)
		}
	})
}

// What Linkerd's service mirror has written becomes ours, so that a label that the remote Service has no longer
// goes. What a user has added stays.
func TestTakeOver(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		client := f.client().CoreV1().Services("shop")
		_, err := client.Create(f.t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web-east", Labels: map[string]string{
				"mirror.linkerd.io/mirrored-service": "true", "mirror.linkerd.io/cluster-name": "east", "stale": "1",
			}},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{
				Name:     "old",
				Port:     79,
				Protocol: corev1.ProtocolTCP,
			}}},
		}, metav1.CreateOptions{FieldManager: "controller"})
		f.must(err)
		_, err = client.Patch(f.t.Context(), "web-east", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"federation.fingerpost.io/endpoint-slices":"enabled"}}}`),
			metav1.PatchOptions{FieldManager: "kubectl"})
		f.must(err)
		f.apply("east", "web", exported+", team: a", 80)
		f.run()
		wants := func(team string) {
			t.Helper()
			o := f.home.Get("services", "shop", "web-east")
			if o.GetLabels()["stale"] != "" || o.GetLabels()["team"] != team {
				t.Errorf("labels %v", o.GetLabels())
			}
			if o.GetAnnotations()["federation.fingerpost.io/endpoint-slices"] != "enabled" {
				t.Errorf("annotations %v", o.GetAnnotations())
			}
		}
		f.wants("web-east:80")
		wants("a")
		f.apply("east", "web", exported, 80)
		f.pass(time.Second)
		wants("")
	})
}

// A local member with more in its annotations than is kept, and a mirror with more ports, are written as any other is,
// and once.
func TestLargeServices(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		member := func(note string) {
			f.home.ApplyYAML(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, labels: {%s},
  annotations: {example.com/large: %s, example.com/note: %q}}, spec: {ports: [{port: 80}]}}`,
				joins, strings.Repeat("x", 100<<10), note))
		}
		wants := func(note string, ports int) {
			t.Helper()
			annotations := f.home.Get("services", "shop", "web-federated").GetAnnotations()
			if got := annotations["example.com/note"]; got != note || len(annotations["example.com/large"]) != 100<<10 {
				t.Errorf("the note is %q, want %q, and the large annotation has %d bytes", got, note,
					len(annotations["example.com/large"]))
			}
			o := f.home.Get("services", "shop", "web-east")
			if all, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports"); len(all) != ports {
				t.Errorf("the mirror has %d ports, want %d", len(all), ports)
			}
		}
		web := func(ports int) {
			var all []string
			for i := range ports {
				all = append(all, fmt.Sprintf("{name: p%[1]d, port: %[1]d, protocol: TCP}", i+1))
			}
			f.network.Server("east").ApplyYAML(fmt.Sprintf(
				`{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, labels: {%s}}, spec: {ports: [%s]}}`,
				direct, strings.Join(all, ", ")))
		}
		writes := func(want int) {
			t.Helper()
			before := f.mirrorWrites()
			f.pass(10 * time.Minute)
			if n := f.mirrorWrites() - before; n != want {
				t.Errorf("%d writes, want %d", n, want)
			}
		}
		member("1")
		web(600)
		f.run()
		wants("1", 600)
		writes(0)

		member("2")
		web(700)
		f.pass(time.Minute)
		wants("2", 700)
		writes(0)

		// What others add stays, what they take is taken back, and what the member has no longer goes.
		_, err := f.client().CoreV1().Services("shop").Patch(f.t.Context(), "web-federated", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"example.com/own":"1","example.com/note":"taken"}}}`),
			metav1.PatchOptions{FieldManager: "other"})
		f.must(err)
		f.pass(time.Minute)
		wants("2", 700)
		f.apply("home", "web", joins, 80)
		f.pass(time.Minute)
		annotations := f.home.Get("services", "shop", "web-federated").GetAnnotations()
		if annotations["example.com/own"] != "1" || annotations["example.com/large"] != "" {
			t.Errorf("annotations %.300v", annotations)
		}
		writes(0)
	})
}

// mirrorWrites counts the writes of Services and Endpoints that the local cluster received.
func (f *fleet) mirrorWrites() (n int) {
	for _, resource := range []string{"services", "endpoints"} {
		for _, verb := range []string{"create", "update", "patch", "delete"} {
			n += f.home.Requests(verb, resource)
		}
	}
	return n
}

// client returns a client of another program.
func (f *fleet) client() kubernetes.Interface {
	f.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(f.home.Kubeconfig(f.home.Token())))
	f.must(err)
	conn, err := api.NewConnection(config, f.network.Dial)
	f.must(err)
	f.closers = append(f.closers, conn.Close)
	client, err := kubernetes.NewForConfigAndClient(conn.Config, conn.HTTPClient)
	f.must(err)
	return client
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
			"False TooManyServices: the cluster has 3 Services here, as many as -max-mirrors-per-link allows: "+
				"what exists is kept up to date, and 8 more",
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
			f.pass(4 * time.Second) // slower than deletions are paced, however many of the eight have a mirror
		}
		f.pass(3 * time.Second)
		f.wants("s8-east:81 s9-east:81 web-federated:80=web@east web-west:80")
		f.mirroring("east", "True Mirroring")
	})
}

// A headless mirror lists the mirrors of its endpoints: also one that was deleted and is created again, none that its
// endpoints have no hostname for any more, and none that another Service of the cluster has taken over.
func TestHeadlessMirrors(t *testing.T) {
	inFleet(t, mirror.Options{Headless: true}, func(f *fleet) {
		allocated := 0
		f.home.Mutate("services", func(o *unstructured.Unstructured) {
			if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip == "" {
				allocated++
				f.must(unstructured.SetNestedField(o.Object, fmt.Sprint("10.96.0.", allocated), "spec", "clusterIP"))
			}
		})
		headless := func(name string, hostnames ...string) {
			var endpoints []string
			for i, hostname := range hostnames {
				endpoints = append(endpoints, fmt.Sprintf(`{addresses: [10.0.0.%d], hostname: %s}`, i+1, hostname))
			}
			f.network.Server("east").ApplyYAML(
				fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: shop, labels: {%s}}, spec: {clusterIP: None, ports: [{name: http, port: 80, protocol: TCP}]}}`, name, exported),
				fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}},
  addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [%[2]s]}`, name, strings.Join(endpoints, ", ")),
			)
			f.pass(5 * time.Second)
		}
		ip := func(name string) string {
			ip, _, _ := unstructured.NestedString(f.home.Get("services", "shop", name).Object, "spec", "clusterIP")
			return ip
		}
		lists := func(name string, hostnames ...string) {
			t.Helper()
			var got, want []string
			subsets, _, _ := unstructured.NestedSlice(f.home.Get("endpoints", "shop", name).Object, "subsets")
			for _, s := range subsets {
				for _, a := range s.(map[string]any)["addresses"].([]any) {
					got = append(got, fmt.Sprint(a.(map[string]any)["hostname"], "=", a.(map[string]any)["ip"]))
				}
			}
			for _, hostname := range hostnames {
				want = append(want, hostname+"="+ip(hostname+"-east"))
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("%s lists %q, want %q", name, got, want)
			}
		}
		headless("db", "db-0", "db-1")
		f.run()
		f.wants("db-0-east:80 db-1-east:80 db-east:80")
		lists("db-east", "db-0", "db-1")

		old := ip("db-0-east")
		f.home.Delete("Service", "shop", "db-0-east")
		f.pass(5 * time.Second)
		if now := ip("db-0-east"); now == old {
			t.Errorf("the mirror of db-0 has the address %s again", now)
		}
		lists("db-east", "db-0", "db-1")

		headless("db", "db-0", "db-2")
		f.wants("db-0-east:80 db-2-east:80 db-east:80")
		lists("db-east", "db-0", "db-2")

		headless("aa", "db-0")
		lists("aa-east", "db-0")
		lists("db-east", "db-2")

		f.network.Server("east").Delete("Service", "shop", "aa")
		f.pass(5 * time.Second)
		lists("db-east", "db-0", "db-2")

		f.network.Server("east").Delete("Service", "shop", "db")
		f.pass(5 * time.Second)
		f.wants("")
	})
}

// A local Service that leaves a federated one is its member no longer, whether it lost its label or was deleted.
func TestLocalMemberLeaves(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.apply("east", "web", joins, 80)
		member := func() string {
			federated := f.home.Get("services", "shop", "web-federated")
			return federated.GetAnnotations()["multicluster.linkerd.io/local-discovery"]
		}
		f.run()
		for name, leave := range map[string]func(){
			"unlabelled": func() { f.apply("home", "web", "app: web", 80) },
			"deleted":    func() { f.home.Delete("Service", "shop", "web") },
		} {
			f.apply("home", "web", joins, 80)
			f.pass(3 * time.Second)
			if got := member(); got != "web" {
				t.Errorf("the local member is %q", got)
			}
			leave()
			f.pass(3 * time.Second)
			if got := member(); got != "" {
				t.Errorf("%s, the local member is %q", name, got)
			}
		}
		f.apply("home", "alone", joins, 80)
		f.pass(3 * time.Second)
		f.wants("alone-federated:80 web-federated:80=web@east")
		f.home.Delete("Service", "shop", "alone")
		f.pass(3 * time.Second)
		f.wants("web-federated:80=web@east")
	})
}

// Endpoints go with their Service, whichever request is the last one of a term: of one that the API server carried out
// no response may have arrived. Nothing is left for Kubernetes, which sees no more of a Service that is gone already.
func TestEndpointsEndWithTheirService(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		endpoints := func() (all string) {
			for _, o := range f.home.List("endpoints") {
				all += o.GetName() + " "
			}
			return strings.TrimSpace(all)
		}
		// loseResponses loses all responses from when an object of a kind is deleted until the term has ended.
		loseResponses := func(kind string, remove func()) {
			f.home.Follow(kind, func(_ *unstructured.Unstructured, deleted bool) {
				if deleted {
					f.home.Cut(apitest.Silence)
				}
			})
			remove()
			f.pass(time.Second)
			f.stop()
			f.home.Cut(apitest.None)
			f.home.Follow(kind, nil)
		}
		unlink := func() {
			f.home.Delete("Link", "mc", "east")
			f.home.Delete("Secret", "mc", "east")
		}

		for name, remove := range map[string]func(){
			"deleted": func() { f.network.Server("east").Delete("Service", "shop", "web") }, "unlinked": unlink,
		} {
			for _, kind := range []string{"services", "endpoints"} {
				f.link("east", 1)
				f.apply("east", "web", exported, 80)
				f.run()
				if got := endpoints(); got != "web-east" {
					t.Fatalf("%s: there are %q", name, got)
				}
				loseResponses(kind, remove)
				f.run()
				f.pass(3 * time.Second)
				f.wants("")
				if got := endpoints(); got != "" {
					t.Errorf("%s, and no response about %s: %q are left", name, kind, got)
				}
				f.stop()
			}
		}
	})
}

// Endpoints whose Service is gone, and that are not wanted, are deleted when that is known, as when a request to create
// them was late.
func TestEndpointsWithoutService(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		leave := func(name, cluster string) {
			f.home.ApplyYAML(fmt.Sprintf(`{apiVersion: v1, kind: Endpoints, metadata: {name: %s, namespace: shop, `+
				`labels: {mirror.linkerd.io/mirrored-service: "true", mirror.linkerd.io/cluster-name: %s}}}`, name, cluster))
		}
		exist := func(want string) {
			t.Helper()
			var all []string
			for _, o := range f.home.List("endpoints") {
				all = append(all, o.GetName())
			}
			if got := strings.Join(all, " "); got != want {
				t.Errorf("Endpoints %q, want %q", got, want)
			}
		}
		leave("web-east", "east")
		leave("web-north", "north")
		f.network.Server("east").Fail("services", 503, 0)
		f.run()
		exist("web-east web-north")
		f.network.Server("east").Fail("services", 0, 0)
		f.pass(time.Minute)
		exist("web-north")
		leave("api-east", "east")
		f.pass(3 * time.Second)
		exist("web-north")
	})
}

// A Namespace that a mirror needs is created where that is asked for.
func TestCreateNamespaces(t *testing.T) {
	inFleet(t, mirror.Options{CreateNamespaces: true}, func(f *fleet) {
		f.home.Delete("Namespace", "", "shop")
		f.apply("east", "web", direct, 80)
		f.run()
		f.wants("web-east:80")
		n := f.home.Requests("create", "namespaces")
		if n < 1 || n > 3 { // the name may come up again before the watch shows the Namespace
			t.Errorf("%d requests to create it", n)
		}
		f.apply("east", "api", direct, 80)
		f.pass(3 * time.Second)
		f.wants("api-east:80 web-east:80")
		if again := f.home.Requests("create", "namespaces") - n; again != 0 {
			t.Errorf("%d requests to create it again", again)
		}
	})
}

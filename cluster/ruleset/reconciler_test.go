package ruleset

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// A fixture is a Reconciler whose stores a test fills.
type fixture struct {
	*Reconciler
	accepted   []string // trust domains
	membership *federation.Membership
	t          interface {
		Helper()
		Fatal(...any)
	}
}

func newFixture(t interface {
	Helper()
	Fatal(...any)
}, unlisted ...rules.Kind,
) *fixture {
	store := federation.NewStore()
	return newFixtureOf(t, rules.NewLevels(store), store, unlisted...)
}

func newFixtureOf(t interface {
	Helper()
	Fatal(...any)
}, levels *rules.Levels, store *federation.Store, unlisted ...rules.Kind,
) *fixture {
	store.AddCluster("local", federation.Expectation{Local: true})
	options := &rules.Options{
		Identity:      rules.IdentityDomain{ControlPlane: "linkerd", Domain: "cluster.local"},
		ClusterDomain: "cluster.local", OpaquePorts: rules.ListOf(federation.Ports{}),
		DefaultPolicy: rules.AllUnauthenticated,
	}
	f := &fixture{t: t}
	f.Reconciler = NewReconciler(logr.Discard(), "local", levels, options, Clusters{
		TrustDomains: func() ([]string, <-chan struct{}) { return f.accepted, nil },
		Membership:   func() (*federation.Membership, <-chan struct{}) { return f.membership, nil },
	})
	var inputs []view.Input
	for _, kind := range unlisted {
		inputs = append(inputs, f.inputOf(kind).Input)
	}
	f.Begin(inputs...)
	return f
}

func (f *fixture) end() { f.queue.ShutDown() }

// settle has everything published that follows from the stores.
func (f *fixture) settle() {
	for f.queue.Len() > 0 {
		o, _ := f.queue.Get()
		f.take(o)
		f.queue.Done(o)
	}
	f.publish()
}

// put has the stores hold objects, in YAML.
func (f *fixture) put(text string) {
	f.t.Helper()
	for one := range strings.SplitSeq(text, "---\n") {
		kind, object := f.parse(one)
		f.inputOf(kind).Store.Update(object)
	}
}

func (f *fixture) remove(text string) {
	f.t.Helper()
	kind, object := f.parse(text)
	f.inputOf(kind).Store.Delete(object)
}

func (f *fixture) parse(text string) (rules.Kind, any) {
	f.t.Helper()
	var u unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		f.t.Fatal(text, err)
	}

	group, _, isIn := strings.Cut(u.GetAPIVersion(), "/")
	if !isIn {
		group = ""
	}
	into := map[string]any{"Pod": &corev1.Pod{}, "Service": &corev1.Service{}}[u.GetKind()]
	if into == nil {
		into = &u
	} else if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into); err != nil {
		f.t.Fatal(text, err)
	}
	for _, i := range f.inputs {
		if i.of.Group() == group && i.of.String() == u.GetKind() {
			return i.of, into
		}
	}
	f.t.Fatal("no such kind", text)
	return 0, nil
}

// published are all Tables, in a form that tests compare.
type published struct {
	Workloads map[rules.WorkloadRef]*rules.Workload
	Servers   map[string]*rules.NamespaceServers
	Targets   map[rules.Reference]*rules.Target
	Egress    map[string]*rules.NamespaceEgress
	Findings  map[rules.Reference]*rules.ObjectFindings
	Statuses  map[rules.Reference]*rules.WantedStatus
}

func (f *fixture) published() published {
	l := f.levels
	return published{
		collect(l.Workloads), collect(l.Servers), collect(l.Targets), collect(l.Egress), collect(l.Findings),
		collect(l.Statuses),
	}
}

func collect[K, V comparable](t *facts.Table[K, V]) map[K]V { return maps.Collect(t.All("local")) }

var comparing = []cmp.Option{
	cmp.AllowUnexported(rules.PortList{}, rules.Network{}, federation.Ports{}),
	cmpopts.EquateComparable(), cmpopts.EquateEmpty(),
	cmpopts.IgnoreUnexported(rules.Network{}),
}

// words from which objects are drawn: few, so that they meet.
var (
	namespaces = []string{"shop", "till"}
	names      = []string{"a", "b"}
)

// drawObject returns an object in YAML.
func drawObject(t *rapid.T) string {
	one := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	namespace, name := one("namespace", namespaces...), one("name", names...)
	other, otherNamespace := one("other", names...), one("other namespace", namespaces...)
	head := func(version, kind string) string {
		return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata:\n  namespace: %s\n  name: %s\n  creationTimestamp: %q\n",
			version, kind, namespace, name, one("age", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"))
	}
	policy := func(version, kind, spec string) string {
		return head("policy.linkerd.io/"+version, kind) + "spec: " + spec
	}

	parent := one("parent",
		`{group: policy.linkerd.io, kind: Server, name: `+other+`}`,
		`{group: core, kind: Service, name: `+other+`, port: 80}`,
		`{group: core, kind: Service, name: `+other+`, namespace: `+otherNamespace+`}`,
		`{group: policy.linkerd.io, kind: EgressNetwork, name: `+other+`, port: 443}`)
	rule := `{backendRefs: [{name: ` + one("backend", names...) + `, namespace: ` + otherNamespace + `, port: 80}]}`

	switch one("kind", "Pod", "ExternalWorkload", "Service", "Server", "ServerAuthorization", "AuthorizationPolicy",
		"MeshTLSAuthentication", "NetworkAuthentication", "HTTPLocalRateLimitPolicy", "EgressNetwork", "HTTPRoute",
		"HTTPRoute of policy", "GRPCRoute", "TCPRoute", "TLSRoute") {
	case "Pod":
		return head("v1", "Pod") + "  labels: {app: " + other + "}\nspec: {containers: [{name: c, ports: " +
			"[{name: http, containerPort: 8080}]}]}"
	case "ExternalWorkload":
		return head("workload.linkerd.io/v1beta1", "ExternalWorkload") + "spec: {ports: " +
			one("ports", `[{name: http, port: 80}]`, `5`) + "}"
	case "Service":
		labels := one("labels", "", "multicluster.linkerd.io/remote-discovery: east, "+
			"multicluster.linkerd.io/remote-service: web", "mirror.linkerd.io/mirrored-service: 'true', "+
			"mirror.linkerd.io/cluster-name: west")
		members := one("members", "", ", multicluster.linkerd.io/remote-discovery: 'a@west,b@east'",
			", multicluster.linkerd.io/remote-discovery: ''")
		return head("v1", "Service") + "  labels: {" + labels + "}\n  annotations: {timeout.linkerd.io/request: " +
			one("timeout", "1s", "x") + members + "}\nspec: {clusterIP: " +
			one("ip", "10.0.0.1", "None") + ", ports: [{port: 80}]}"
	case "Server":
		return policy("v1beta3", "Server", one("server",
			`{podSelector: {}, port: http, accessPolicy: deny}`, `{podSelector: {matchLabels: {app: a}}, port: 80}`,
			`{port: 80}`))
	case "ServerAuthorization":
		return policy("v1beta1", "ServerAuthorization", `{server: `+one("server", `{name: `+other+`}`,
			`{selector: {}}`)+`, client: {unauthenticated: true}}`)
	case "AuthorizationPolicy":
		return policy("v1alpha1", "AuthorizationPolicy", `{targetRef: `+one("target",
			`{group: policy.linkerd.io, kind: Server, name: `+other+`}`, `{kind: Namespace, name: `+namespace+`}`,
			`{group: gateway.networking.k8s.io, kind: HTTPRoute, name: `+other+`}`)+
			`, requiredAuthenticationRefs: `+one("required", `[]`, `[{kind: ServiceAccount, name: till}]`,
			`[{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: a, namespace: `+otherNamespace+`}]`,
			`[{group: policy.linkerd.io, kind: NetworkAuthentication, name: b}]`)+`}`)
	case "MeshTLSAuthentication":
		return policy("v1alpha1", "MeshTLSAuthentication", `{identities: [`+one("identity", `"*"`, "a.b")+`]}`)
	case "NetworkAuthentication":
		return policy("v1alpha1", "NetworkAuthentication", `{networks: [{cidr: `+one("cidr", "10.0.0.0/8", "x")+`}]}`)
	case "HTTPLocalRateLimitPolicy":
		return policy("v1alpha1", "HTTPLocalRateLimitPolicy",
			`{targetRef: {group: policy.linkerd.io, kind: Server, name: `+other+`}, total: {requestsPerSecond: 5}}`)
	case "EgressNetwork":
		return policy("v1alpha1", "EgressNetwork", `{trafficPolicy: `+one("traffic", "Allow", "Deny")+`}`)
	case "HTTPRoute of policy":
		return policy("v1beta3", "HTTPRoute", `{parentRefs: [`+parent+`], rules: [`+rule+`]}`)
	default:
		kind := one("route", "HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute")
		version := map[string]string{"TCPRoute": "v1alpha2", "TLSRoute": "v1alpha2"}[kind]
		if version == "" {
			version = "v1"
		}
		return head("gateway.networking.k8s.io/"+version, kind) + `spec: {parentRefs: [` + parent + `], rules: [` +
			rule + `]}`
	}
}

// What is published follows from the objects that there are, whichever events have led there; and when all of them are
// gone nothing is kept.
func TestReconcilerFollows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var unlisted []rules.Kind
		if rapid.Bool().Draw(t, "late") {
			unlisted = []rules.Kind{rules.KindServer, rules.KindGRPCRoute}
		}
		f := newFixture(t, unlisted...)
		defer f.end()
		there := map[rules.Reference]string{}

		for range rapid.IntRange(1, 30).Draw(t, "events") {
			object := drawObject(t)
			kind, o := f.parse(object)
			meta := o.(metav1.Object)
			id := rules.Reference{Kind: kind, Namespace: meta.GetNamespace(), Name: meta.GetName()}
			if _, is := there[id]; is && rapid.IntRange(0, 2).Draw(t, "deletes") == 0 {
				f.remove(object)
				delete(there, id)
			} else {
				f.put(object)
				there[id] = object
			}
			if rapid.Bool().Draw(t, "settles") {
				f.settle()
			}
			if rapid.IntRange(0, 9).Draw(t, "accepts") == 0 {
				f.accepted = rapid.SliceOfN(rapid.SampledFrom([]string{"east", "west"}), 0, 2).Draw(t, "accepted")
				f.queue.Add(otherClusters)
			}
			if rapid.IntRange(0, 9).Draw(t, "links") == 0 {
				states := map[federation.Cluster]federation.LinkState{}
				for _, c := range []federation.Cluster{"east", "west"} {
					states[c] = federation.LinkState(rapid.IntRange(0, 2).Draw(t, "state of "+string(c)))
				}
				f.membership = federation.NewMembership(states, federation.StateUnlinked, true)
				f.queue.Add(otherClusters)
			}
		}
		for _, kind := range unlisted {
			f.Listed(f.inputOf(kind).Input)
		}
		f.settle()

		fresh := newFixture(t)
		defer fresh.end()
		fresh.accepted, fresh.membership = f.accepted, f.membership
		for _, object := range there {
			fresh.put(object)
		}
		fresh.settle()
		if diff := cmp.Diff(fresh.published(), f.published(), comparing...); diff != "" {
			t.Fatalf("it differs from what follows from the same objects (-fresh +after events):\n%s", diff)
		}

		for _, object := range there {
			f.remove(object)
		}
		f.settle()
		left := len(f.values) + len(f.namespaces) + len(f.mesh) + len(f.networks) + len(f.attached) + len(f.routesOf) +
			len(f.sendersTo) + len(f.policiesOf)
		if diff := cmp.Diff(published{}, f.published(), comparing...); diff != "" || left > 0 {
			t.Fatalf("of objects that are gone %d things are kept:\n%s", left, diff)
		}
	})
}

// A change of one Server leaves what follows for others as it is, by pointer. Where nothing differs all is left.
func TestServersKeep(t *testing.T) {
	const server = `
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: $NAME, namespace: shop}
spec: {podSelector: {matchLabels: {app: $NAME}}, port: 80, accessPolicy: $ACCESS}
`
	of := func(name, access string) string {
		return strings.NewReplacer("$NAME", name, "$ACCESS", access).Replace(server)
	}
	f := newFixture(t)
	defer f.end()
	servers := func() []*rules.ServerRules {
		f.settle()
		all, _ := f.tables.servers.Get("shop")
		return all.All
	}

	f.put(of("a", "deny") + "---" + of("b", "deny"))
	before := servers()
	f.put(of("a", "all-authenticated"))
	after := servers()
	if before[0] == after[0] || before[1] != after[1] {
		t.Errorf("a change of a: a was kept: %t, b was kept: %t", before[0] == after[0], before[1] == after[1])
	}

	all, _ := f.tables.servers.Get("shop")
	f.dirty.servers["shop"] = true
	servers()
	if same, _ := f.tables.servers.Get("shop"); same != all {
		t.Error("nothing has changed, and what is published is another")
	}
}

// What cannot be used is counted as it is now, with the first objects by name, and in metrics by kind and part.
func TestUnusable(t *testing.T) {
	f := newFixture(t)
	defer f.end()
	f.settle()
	if n, text := f.Unusable(); n != 0 || text != "" {
		t.Errorf("of nothing %d cannot be used: %s", n, text)
	}

	const server = "apiVersion: policy.linkerd.io/v1beta3\nkind: Server\nmetadata: {namespace: shop, name: %s}\nspec: {port: 80}"
	for _, name := range []string{"d", "b", "a", "c"} {
		f.put(fmt.Sprintf(server, name))
	}
	f.put("apiVersion: v1\nkind: Service\nmetadata: {namespace: shop, name: web, " +
		"annotations: {timeout.linkerd.io/request: x}}\nspec: {ports: [{port: 80}]}")
	f.settle()

	n, text := f.Unusable()
	if n != 5 || strings.Count(text, "Server shop/") != 3 || !strings.HasPrefix(text, "Server shop/a (") {
		t.Errorf("%d objects cannot be used: %s", n, text)
	}
	collector := NewCollector(f.levels.In(federation.NewStore(), "local"))
	metrics, err := testutil.CollectAndFormat(collector, expfmt.TypeTextPlain,
		"fingerpost_unreadable_objects", "fingerpost_unconverted")
	for _, line := range []string{
		`fingerpost_unreadable_objects{kind="Server"} 4`,
		`fingerpost_unreadable_objects{kind="HTTPRoute.policy.linkerd.io"} 0`,
		`fingerpost_unconverted{kind="Service",part="annotation"} 1`,
	} {
		if err != nil || !strings.Contains(string(metrics), line) {
			t.Errorf("%v: no line %s in\n%s", err, line, metrics)
		}
	}
}

// A webhook warns of what is missing: only of what is known to be.
func TestExists(t *testing.T) {
	f := newFixture(t)
	defer f.end()
	server := rules.Reference{Kind: rules.KindServer, Namespace: "shop", Name: "a"}
	asks := func(what string, of rules.Reference, exists, known bool) {
		t.Helper()
		if is, isKnown := f.Exists(of); is != exists || isKnown != known {
			t.Errorf("%s: exists %t, known %t", what, is, isKnown)
		}
	}

	asks("before it is listed", server, false, false)
	store := f.inputOf(rules.KindServer).Store
	store.Replace(nil)
	asks("without it", server, false, true)
	f.put("apiVersion: policy.linkerd.io/v1beta3\nkind: Server\nmetadata: {namespace: shop, name: a}\nspec: 5")
	asks("one that cannot be read", server, true, true)
	asks("a kind that is not read", rules.Reference{Kind: rules.KindServiceAccount, Name: "a"}, false, false)
}

package apitest

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server and returns access to it.
func serve(t *testing.T) (*Server, *rest.Config) {
	t.Helper()
	n := NewNetwork()
	s := n.Server("local")
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(s.Kubeconfig(s.Token())))
	if err != nil {
		t.Fatal(err)
	}
	config.Dial, config.QPS = n.Dial, -1
	t.Cleanup(n.Close)
	return s, config
}

// must returns a value of a call that must not fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var linksV1alpha3 = schema.GroupVersionResource{
	Group:    "multicluster.linkerd.io",
	Version:  "v1alpha3",
	Resource: "links",
}

func link(status map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "multicluster.linkerd.io/v1alpha3", "kind": "Link",
		"metadata": map[string]any{"namespace": "default", "name": "west"},
	}}
	if status != nil {
		u.Object["status"] = status
	}
	return u
}

func condition(kind, status string) any { return map[string]any{"type": kind, "status": status} }

// conditionsOf returns the status of each condition.
func conditionsOf(u *unstructured.Unstructured) map[string]string {
	all := map[string]string{}
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range list {
		kind, _, _ := unstructured.NestedString(c.(map[string]any), "type")
		all[kind], _, _ = unstructured.NestedString(c.(map[string]any), "status")
	}
	return all
}

// Conditions of a Link are merged by type, lists of Services are one value, and what a manager no longer
// applies vanishes, unless another one owns it.
func TestApplyLinkStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		s.Apply(link(nil))
		client := must(dynamic.NewForConfig(config)).Resource(linksV1alpha3).Namespace("default")
		ours, theirs := metav1.ApplyOptions{FieldManager: "ours", Force: true},
			metav1.ApplyOptions{FieldManager: "theirs"}
		apply := func(options metav1.ApplyOptions, status map[string]any) (*unstructured.Unstructured, error) {
			return client.Apply(t.Context(), "west", link(status), options, "status")
		}
		services := func(names ...any) []any {
			var all []any
			for _, n := range names {
				all = append(all, map[string]any{
					"remoteRef": map[string]any{
						"group": "core",
						"kind":  "Service",
						"name":  n,
					}, // of which two are defaults
				})
			}
			return all
		}
		must(apply(theirs, map[string]any{"conditions": []any{condition("Theirs", "True")}}))
		first := must(apply(ours, map[string]any{
			"conditions":     []any{condition("Synced", "True"), condition("Writable", "True")},
			"mirrorServices": services("a", "b"),
		}))
		if diff := cmp.Diff(map[string]string{"Theirs": "True", "Synced": "True", "Writable": "True"},
			conditionsOf(first)); diff != "" {
			t.Error(diff)
		}
		again := must(apply(ours, map[string]any{
			"conditions":     []any{condition("Synced", "True"), condition("Writable", "True")},
			"mirrorServices": services("a", "b"),
		}))
		if again.GetResourceVersion() != first.GetResourceVersion() {
			t.Errorf("an apply that changes nothing has version %s after %s", again.GetResourceVersion(),
				first.GetResourceVersion())
		}
		_, err := apply(theirs, map[string]any{"conditions": []any{condition("Synced", "False")}})
		if !apierrors.IsConflict(err) {
			t.Errorf("a conflict that is not forced: %v", err)
		}
		second := must(apply(ours, map[string]any{
			"conditions": []any{condition("Synced", "False")}, "mirrorServices": services("b"),
		}))
		if diff := cmp.Diff(map[string]string{"Theirs": "True", "Synced": "False"}, conditionsOf(second)); diff != "" {
			t.Error(diff)
		}
		list, _, _ := unstructured.NestedSlice(second.Object, "status", "mirrorServices")
		if diff := cmp.Diff(services("b"), list); diff != "" {
			t.Error(diff)
		}
		stale := link(map[string]any{"conditions": []any{condition("Synced", "True")}})
		stale.SetResourceVersion(first.GetResourceVersion())
		if _, err := client.Apply(t.Context(), "west", stale, ours, "status"); !apierrors.IsConflict(err) {
			t.Errorf("an apply for an older version: %v", err)
		}
		s.Delete("Link", "default", "west")
		if _, err := apply(ours, map[string]any{}); !apierrors.IsNotFound(err) {
			t.Errorf("the status of a Link that does not exist: %v", err)
		}
	})
}

// A merge patch takes fields from those who applied them, and a schema without conditions rejects them.
func TestApplyBesideMergePatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		s.Apply(link(nil))
		client := must(dynamic.NewForConfig(config)).Resource(linksV1alpha3).Namespace("default")
		ours := metav1.ApplyOptions{FieldManager: "ours"}
		wanted := link(map[string]any{"conditions": []any{condition("Synced", "True")}})
		must(client.Apply(t.Context(), "west", wanted, ours, "status"))
		must(client.Patch(t.Context(), "west", types.MergePatchType,
			[]byte(`{"status": {"conditions": [{"type": "Synced", "status": "False"}]}}`),
			metav1.PatchOptions{FieldManager: "kubectl"}, "status"))
		if _, err := client.Apply(t.Context(), "west", wanted, ours, "status"); !apierrors.IsConflict(err) {
			t.Errorf("a field that kubectl has taken: %v", err)
		}
		ours.Force = true
		back := must(client.Apply(t.Context(), "west", wanted, ours, "status"))
		if diff := cmp.Diff(map[string]string{"Synced": "True"}, conditionsOf(back)); diff != "" {
			t.Error(diff)
		}
		s.Undeclare("conditions")
		if _, err := client.Apply(t.Context(), "west", wanted, ours, "status"); !apierrors.IsInternalError(err) {
			t.Errorf("conditions that the schema does not have: %v", err)
		}
	})
}

// Services and Endpoints are created and merged: what others own stays, without force it is a conflict.
func TestApplyServiceAndEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		client := must(kubernetes.NewForConfig(config))
		services, ours := client.CoreV1().Services("default"), metav1.ApplyOptions{FieldManager: "ours"}
		web := func(ports ...int32) *applycorev1.ServiceApplyConfiguration {
			spec := applycorev1.ServiceSpec()
			for _, port := range ports {
				spec.WithPorts(applycorev1.ServicePort().WithPort(port).WithProtocol(corev1.ProtocolTCP))
			}
			return applycorev1.Service("web", "default").WithLabels(map[string]string{"app": "web"}).WithSpec(spec)
		}
		must(services.Apply(t.Context(), web(80, 81), ours))
		must(services.Patch(t.Context(), "web", types.MergePatchType,
			[]byte(`{"metadata": {"labels": {"team": "shop"}}}`), metav1.PatchOptions{FieldManager: "kubectl"}))
		changed := must(services.Apply(t.Context(), web(81), ours))
		if diff := cmp.Diff(map[string]string{"app": "web", "team": "shop"}, changed.Labels); diff != "" {
			t.Error(diff)
		}
		if len(changed.Spec.Ports) != 1 || changed.Spec.Ports[0].Port != 81 {
			t.Errorf("ports %v, not 81 alone", changed.Spec.Ports)
		}
		again := must(services.Apply(t.Context(), web(81), ours))
		if again.ResourceVersion != changed.ResourceVersion {
			t.Errorf("an apply that changes nothing has version %s after %s", again.ResourceVersion,
				changed.ResourceVersion)
		}
		theirs := metav1.ApplyOptions{FieldManager: "theirs"}
		taken := web(81).WithLabels(map[string]string{"app": "other"})
		if _, err := services.Apply(t.Context(), taken, theirs); !apierrors.IsConflict(err) {
			t.Errorf("a conflict that is not forced: %v", err)
		}
		theirs.Force = true
		must(services.Apply(t.Context(), taken, theirs))

		endpoints := applycorev1.Endpoints("web", "default").WithSubsets(applycorev1.EndpointSubset().
			WithAddresses(applycorev1.EndpointAddress().WithIP("10.0.0.1")))
		_, err := client.CoreV1().Endpoints("default").Apply(t.Context(), endpoints, ours)
		if err != nil {
			t.Fatal(err)
		}
		if s.Get("endpoints", "default", "web") == nil || s.Get("services", "default", "web").GetUID() == "" {
			t.Error("an object was not created")
		}
	})
}

// The generation of an object counts the changes of its spec and labels, and no others.
func TestGeneration(t *testing.T) {
	n := NewNetwork()
	defer n.Close()
	s := n.Server("c")
	text := func(labels, spec, status string) {
		s.ApplyYAML("apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: ns, labels: {" + labels + "}}\n" +
			"spec: {" + spec + "}\nstatus: {" + status + "}\n")
	}
	for i, step := range []struct {
		labels, spec, status string
		want                 int64
	}{
		{"", "", "", 1},
		{"", "", "phase: Running", 1},
		{"a: b", "", "phase: Running", 2},
		{"a: b", "nodeName: n", "", 3},
		{"a: b", "nodeName: n", "", 3},
	} {
		text(step.labels, step.spec, step.status)
		if got := s.Get("pods", "ns", "a").GetGeneration(); got != step.want {
			t.Errorf("step %d: generation %d, want %d", i, got, step.want)
		}
	}
}

// Endpoints have a slice for each address family, without those of a former state.
func TestMirrorEndpoints(t *testing.T) {
	n := NewNetwork()
	defer n.Close()
	s := n.Server("c")
	s.MirrorEndpoints()
	const meta = "{apiVersion: v1, kind: Endpoints, metadata: {name: web, namespace: ns, labels: {a: b}}, "
	for _, step := range []struct{ subsets, want string }{
		{
			"[{addresses: [{ip: 10.0.0.1}], notReadyAddresses: [{ip: 'fd00::1'}], ports: [{port: 80}]}]",
			"IPv4 10.0.0.1 true b, IPv6 fd00::1 false b",
		},
		{"[{addresses: [{ip: 'fd00::1'}], ports: [{port: 80}]}]", "IPv6 fd00::1 true b"},
		{"[]", ""},
	} {
		s.ApplyYAML(meta + "subsets: " + step.subsets + "}")
		var got []string
		for _, slice := range s.List("endpointslices.discovery.k8s.io") {
			endpoints, _, _ := unstructured.NestedSlice(slice.Object, "endpoints")
			for _, e := range endpoints {
				e := e.(map[string]any)
				got = append(got, fmt.Sprint(slice.Object["addressType"], " ", e["addresses"].([]any)[0], " ",
					e["conditions"].(map[string]any)["ready"], " ", slice.GetLabels()["a"]))
			}
		}
		if got := strings.Join(got, ", "); got != step.want {
			t.Errorf("%s: %q, want %q", step.subsets, got, step.want)
		}
	}
}

// What is in a Namespace is deleted with it, and nothing can be created or applied there before it is applied again.
func TestDeletedNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		const text = "{apiVersion: v1, kind: Namespace, metadata: {name: ns}}"
		s.ApplyYAML(text, "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: ns}}")
		services := must(kubernetes.NewForConfig(config)).CoreV1().Services("ns")
		web := applycorev1.Service("web", "ns")
		options := metav1.ApplyOptions{FieldManager: "test", Force: true}
		if s.Delete("Namespace", "", "ns"); s.Get("services", "ns", "web") != nil {
			t.Error("the Service is still there")
		}
		if _, err := services.Apply(t.Context(), web, options); !apierrors.IsNotFound(err) {
			t.Errorf("it is applied: %v", err)
		}
		created := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		if _, err := services.Create(t.Context(), created, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("it is created: %v", err)
		}
		s.ApplyYAML(text)
		if _, err := services.Apply(t.Context(), web, options); err != nil {
			t.Error(err)
		}
	})
}

// A kind that two groups have is found by its group.
func TestKindsOfGroups(t *testing.T) {
	network := NewNetwork()
	defer network.Close()
	server := network.Server("a")
	for _, group := range []string{"policy.linkerd.io/v1beta3", "gateway.networking.k8s.io/v1"} {
		server.ApplyYAML("{apiVersion: " + group + ", kind: HTTPRoute, metadata: {name: r, namespace: ns}}")
	}
	server.ApplyYAML(
		"{apiVersion: policy.linkerd.io/v1alpha1, kind: AuthorizationPolicy, metadata: {name: a, namespace: ns}}")
	if server.Get("authorizationpolicies.policy.linkerd.io", "ns", "a") == nil {
		t.Error("the plural of a policy is not understood")
	}

	const kind = "HTTPRoute.policy.linkerd.io"
	if !server.Delete(kind, "ns", "r") || server.Delete(kind, "ns", "r") {
		t.Error("the route of one group was not deleted once")
	}
	if server.Find("HTTPRoute", "ns", "r") == nil {
		t.Error("the route of the other group is gone")
	}
}

package inject

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const anchors = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

// chartValues returns those of the chart, with assignments such as proxy.await=false over them; the value is YAML.
func chartValues(tb rapid.TB, assignments ...string) (*Values, error) {
	tb.Helper()
	text, err := os.ReadFile("testdata/values.yaml")
	if err != nil {
		tb.Fatal(err)
	}
	var all map[string]any
	if err := yaml.Unmarshal(text, &all); err != nil {
		tb.Fatal(err)
	}

	for _, assignment := range assignments {
		path, value, _ := strings.Cut(assignment, "=")
		keys, in := strings.Split(path, "."), all
		for _, key := range keys[:len(keys)-1] {
			below, is := in[key].(map[string]any)
			if !is {
				below = map[string]any{}
				in[key] = below
			}
			in = below
		}
		var v any
		if err := yaml.Unmarshal([]byte(value), &v); err != nil {
			tb.Fatal(err)
		}
		in[keys[len(keys)-1]] = v
	}

	if text, err = yaml.Marshal(all); err != nil {
		tb.Fatal(err)
	}
	return ParseValues(text)
}

// given is a situation: a Pod p of Namespace shop that is annotated linkerd.io/inject: enabled, and what differs.
type given struct {
	values      []string // assignments
	namespace   string   // annotations as the content of a YAML flow map, with short names; empty for inject: enabled
	annotations string   // of the Pod, likewise
	labels      string
	spec        string // YAML; empty for one container app with port 8080
	owner       Owner
	system      string // namespace of the control plane; empty for linkerd
	services    Services
}

const plainSpec = "containers: [{name: app, image: app:1, ports: [{containerPort: 8080, name: http}]}]"

// texts reads the content of a YAML flow map. A key without a prefix is one of config.linkerd.io.
func texts(tb rapid.TB, of string) map[string]string {
	tb.Helper()
	var all map[string]string
	if err := yaml.Unmarshal([]byte("{"+of+"}"), &all); err != nil {
		tb.Fatalf("%s: %v", of, err)
	}
	for key, value := range all {
		full := key
		switch {
		case key == "inject":
			full = InjectAnnotation
		case !strings.Contains(key, "/"):
			full = configPrefix + key
		}
		delete(all, key)
		all[full] = value
	}
	return all
}

func (g given) injector(tb rapid.TB) *Injector {
	tb.Helper()
	values, err := chartValues(tb, g.values...)
	if err != nil {
		tb.Fatal(err)
	}
	namespace := g.system
	if namespace == "" {
		namespace = "linkerd"
	}
	i, err := New(values, Options{Namespace: namespace, Anchors: anchors, CreatedBy: "fingerpost/proxy-injector v1", Services: g.services})
	if err != nil {
		tb.Fatal(err)
	}
	return i
}

// pod returns the Pod.
func (g given) pod(tb rapid.TB) *corev1.Pod {
	tb.Helper()
	pod := &corev1.Pod{}
	spec := g.spec
	if spec == "" {
		spec = plainSpec
	}
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		tb.Fatalf("%s: %v", spec, err)
	}
	pod.Name, pod.Namespace = "p", "shop"
	if g.annotations != "" {
		pod.Annotations = texts(tb, g.annotations)
	}
	if g.labels != "" {
		if err := yaml.Unmarshal([]byte("{"+g.labels+"}"), &pod.Labels); err != nil {
			tb.Fatal(err)
		}
	}
	return pod
}

func (g given) namespaceAnnotations(tb rapid.TB) map[string]string {
	tb.Helper()
	if g.namespace == "" {
		return map[string]string{InjectAnnotation: "enabled"}
	}
	return texts(tb, g.namespace)
}

// result is what becomes of the Pod.
type result struct {
	Outcome

	tb  rapid.TB
	pod *corev1.Pod // with the patch applied
}

// inject injects the Pod, and applies the patch with a library that knows nothing of this package.
func (g given) inject(tb rapid.TB) *result {
	tb.Helper()
	pod := g.pod(tb)
	outcome := g.injector(tb).Inject(&Workload{
		Namespace: pod.Namespace, NamespaceAnnotations: g.namespaceAnnotations(tb), Owner: g.owner,
		Meta: &pod.ObjectMeta, Spec: &pod.Spec,
	})
	return &result{Outcome: outcome, tb: tb, pod: apply(tb, pod, outcome.Patch)}
}

func (g given) mustInject(tb rapid.TB) *result {
	tb.Helper()
	r := g.inject(tb)
	if !r.Injected {
		tb.Fatalf("not injected: %q", r.Reasons)
	}
	return r
}

func apply[T any](tb rapid.TB, object *T, operations []Operation) *T {
	tb.Helper()
	document, err := json.Marshal(object)
	if err != nil {
		tb.Fatal(err)
	}
	text, err := json.Marshal(operations)
	if err != nil {
		tb.Fatal(err)
	}
	if len(operations) == 0 {
		text = []byte("[]")
	}
	decoded, err := jsonpatch.DecodePatch(text)
	if err != nil {
		tb.Fatal(err)
	}
	if document, err = decoded.Apply(document); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}

	patched := new(T)
	if err := json.Unmarshal(document, patched); err != nil {
		tb.Fatal(err)
	}
	return patched
}

// container returns one by name, wherever it stands; nil if there is none.
func (r *result) container(name string) *corev1.Container {
	for _, list := range [][]corev1.Container{r.pod.Spec.InitContainers, r.pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func (r *result) proxy() *corev1.Container { return r.container("linkerd-proxy") }

const missing = "<absent>"

// env returns a variable of the proxy, without its prefix.
func (r *result) env(name string) string {
	for _, v := range r.proxy().Env {
		if v.Name == name || v.Name == "LINKERD2_PROXY_"+name {
			if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil {
				return "field " + v.ValueFrom.FieldRef.FieldPath
			}
			return v.Value
		}
	}
	return missing
}

// wantEnv compares variables of the proxy.
func (r *result) wantEnv(want map[string]string) {
	for name, value := range want {
		if got := r.env(name); got != value {
			r.tb.Errorf("%s is %q, want %q", name, got, value)
		}
	}
}

// initArg returns what follows a flag of linkerd-init.
func (r *result) initArg(flag string) string {
	args := r.container("linkerd-init").Args
	at := slices.Index(args, flag)
	if at < 0 || at+1 == len(args) {
		return missing
	}
	return args[at+1]
}

func namesOf(list []corev1.Container) (names []string) {
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}

// wantReasons expects that the Pod is not injected, and why.
func (r *result) wantReasons(want ...Reason) {
	if r.Injected || !slices.Equal(r.Reasons, want) {
		r.tb.Errorf("injected %v, reasons %q, want %q", r.Injected, r.Reasons, want)
	}
}

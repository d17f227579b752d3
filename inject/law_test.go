package inject

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	kubejson "sigs.k8s.io/json"
)

// drawPod draws a Pod of up to five containers, with annotations that mean something, good and bad.
func drawPod(t *rapid.T) *corev1.Pod {
	port := rapid.Int32Range(1, 12000)
	containers := rapid.Custom(func(t *rapid.T) corev1.Container {
		c := corev1.Container{
			Name:  rapid.SampledFrom([]string{"a", "b", "c", "proxy", "linkerd"}).Draw(t, "name"),
			Image: rapid.SampledFrom([]string{"x:1", "cr.l5d.io/linkerd/other:1"}).Draw(t, "image"),
		}
		for _, p := range rapid.SliceOfN(port, 0, 4).Draw(t, "ports") {
			c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: p, Name: rapid.SampledFrom([]string{"", "http"}).Draw(t, "port")})
		}
		if rapid.Bool().Draw(t, "probed") {
			c.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Port: intstr.FromInt32(port.Draw(t, "probe")),
			}}}
		}
		if rapid.Bool().Draw(t, "mounted") {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "sa", MountPath: accountPath}}
		}
		if rapid.Bool().Draw(t, "capable") {
			c.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL", "NET_RAW"}}}
		}
		return c
	})

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop"}}
	pod.Spec.Containers = rapid.SliceOfN(containers, 1, 3).Draw(t, "containers")
	pod.Spec.InitContainers = rapid.SliceOfN(containers, 0, 2).Draw(t, "init containers")
	pod.Spec.HostNetwork = rapid.IntRange(0, 9).Draw(t, "network") == 0
	if rapid.Bool().Draw(t, "volumes") {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	}
	pod.Annotations = drawAnnotations(t)
	pod.Labels = rapid.MapOfN(rapid.SampledFrom([]string{"app", "app.kubernetes.io/name"}),
		rapid.Just("x"), 0, 2).Draw(t, "labels")
	return pod
}

func drawAnnotations(t *rapid.T) map[string]string {
	keys := append(Annotations(), attributePrefix+"team", "x/y")
	value := rapid.OneOf(
		rapid.SampledFrom([]string{
			"", enabled, disabled, ingress, "true", "false", "1", "8080,http,1-3", "10s", "100m", "off", "deny",
			`[{"name":"A","value":"1"}]`, "Always", "0.5", `a"<>&\`,
		}),
		rapid.String(),
	)
	return rapid.MapOfN(rapid.SampledFrom(keys), value, 0, 6).Draw(t, "annotations")
}

func drawInjector(t *rapid.T) *Injector {
	yes := func(name string) string {
		if rapid.Bool().Draw(t, name) {
			return "true"
		}
		return "false"
	}
	g := given{values: []string{
		"proxy.nativeSidecar=" + yes("native"), "proxy.await=" + yes("await"), "cniEnabled=" + yes("cni"),
		"identity.serviceAccountTokenProjection=" + yes("projection"), "disableIPv6=" + yes("ipv6"),
		"proxy.opaquePorts=" + rapid.SampledFrom([]string{"''", "25,3306", "4143,4191", "1-9999"}).Draw(t, "opaque"),
	}}
	if rapid.Bool().Draw(t, "traced") {
		g.values = append(g.values, traced...)
	}
	return g.injector(t)
}

// Two injections are as good as one, nothing but additions is made of a Pod, and what it had stays as it was.
func TestLaws(t *testing.T) {
	injected := 0
	rapid.Check(t, func(t *rapid.T) {
		i, pod, namespace := drawInjector(t), drawPod(t), drawAnnotations(t)
		if rapid.Bool().Draw(t, "asked for") {
			namespace[InjectAnnotation] = enabled
		}
		owner := Owner{rapid.SampledFrom([]string{"", "Deployment", "Rollout"}).Draw(t, "kind"), "o"}
		inject := func(pod *corev1.Pod) Outcome {
			return i.Inject(&Workload{
				Namespace: "shop", NamespaceAnnotations: namespace, Owner: owner, Meta: &pod.ObjectMeta, Spec: &pod.Spec,
			})
		}

		before := pod.DeepCopy()
		o := inject(pod)
		if diff := cmp.Diff(before, pod); diff != "" {
			t.Fatalf("the Pod that is read has changed: %s", diff)
		}
		if o.Injected == (len(o.Reasons) > 0) || !o.Injected && len(o.Patch) > 2 || len(o.Warnings) > maxWarnings {
			t.Fatalf("injected %v, reasons %q, %d operations", o.Injected, o.Reasons, len(o.Patch))
		}
		for _, operation := range o.Patch {
			if operation.Op != "add" {
				t.Fatalf("operation %v", operation)
			}
		}

		once := apply(t, pod, o.Patch)
		again := inject(once)
		if diff := cmp.Diff(once, apply(t, once, again.Patch)); again.Injected || diff != "" {
			t.Fatalf("injected again: %v %s", again.Injected, diff)
		}
		if diff := cmp.Diff(pod, without(once, pod), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("what the Pod had is not as it was: %s", diff)
		}
		if o.Injected {
			injected++
		}
	})
	if injected == 0 {
		t.Error("no Pod was injected")
	}
}

// without returns an injected Pod without what was added to another one: containers and volumes by their names.
func without(injected, to *corev1.Pod) *corev1.Pod {
	pod := injected.DeepCopy()
	keep := func(list []corev1.Container) (kept []corev1.Container) {
		for _, c := range list {
			if !strings.HasPrefix(c.Name, "linkerd-") {
				kept = append(kept, c)
			}
		}
		return kept
	}
	pod.Spec.Containers, pod.Spec.InitContainers = keep(pod.Spec.Containers), keep(pod.Spec.InitContainers)

	pod.Spec.Volumes = nil
	for _, v := range injected.Spec.Volumes {
		if !strings.HasPrefix(v.Name, "linkerd-") {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v)
		}
	}
	for key := range injected.Annotations {
		if _, had := to.Annotations[key]; !had {
			delete(pod.Annotations, key)
		}
	}
	for key := range injected.Labels {
		if _, had := to.Labels[key]; !had {
			delete(pod.Labels, key)
		}
	}
	return pod
}

// The values of the chart are those that are built in.
func TestDefaults(t *testing.T) {
	values, err := chartValues(t, "identityTrustDomain=''")
	if err != nil {
		t.Fatal(err)
	}
	values.NetworkValidator.SecurityContext = nil // the same, written out
	if diff := cmp.Diff(Defaults("edge-1"), values); diff != "" {
		t.Error(diff)
	}
}

// Values are used as a whole or not at all.
func TestParseValues(t *testing.T) {
	for _, assignment := range []string{
		"clusterNetworks='10.0.0.0/8,x'", "clusterNetworks=[a]", "proxy.ports.admin=0", "proxy.resources.cpu.limit=x",
		"proxy.logHTTPHeaders=x", "proxy.defaultInboundPolicy=x", "proxyInit.closeWaitTimeoutSecs=1", "linkerdVersion=''",
		"clusterDomain=''", "proxy.image.name=''", "proxy=7", "proxy.inbound={server: {http2: {a: {b: c}}}}",
	} {
		if _, err := chartValues(t, assignment); err == nil {
			t.Errorf("%s: accepted", assignment)
		}
	}
	if _, err := ParseValues([]byte("linkerdVersion: a\nx: " + strings.Repeat("y", maxValues))); err == nil {
		t.Error("values beyond the bound are accepted")
	}
	if _, err := chartValues(t, "proxy.surprise={a: [b]}", "proxy.resources.cpu.limit=2", "linkerdVersion=2.14"); err != nil {
		t.Errorf("a number, or a key that is not known: %v", err)
	}
}

func decodePod(b []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, kubejson.UnmarshalCaseSensitivePreserveInts(b, pod)
}

// FuzzPod: whatever a Pod is, the patch can be applied to it, and the Pod is not injected again.
func FuzzPod(f *testing.F) {
	i := given{values: traced}.injector(f)
	add := func(pod *corev1.Pod) {
		b, err := json.Marshal(pod)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	add(given{}.pod(f))
	add(given{annotations: unreadable, spec: mysql, labels: "a: b"}.pod(f))
	f.Add([]byte(`{"metadata":{"annotations":{"config.linkerd.io/opaque-ports":"-,1-,~1"}},"spec":{"containers":[]}}`))
	f.Add([]byte(`{"spec":{"containers":[{"ports":[{"containerPort":-1}]},null],"initContainers":[{}]}}`))

	f.Fuzz(func(t *testing.T, b []byte) {
		pod, err := decodePod(b)
		if err != nil {
			return
		}
		w := &Workload{
			Namespace: "shop", NamespaceAnnotations: map[string]string{InjectAnnotation: enabled},
			Owner: Owner{"Job", pod.Name}, Meta: &pod.ObjectMeta, Spec: &pod.Spec,
		}
		o := i.Inject(w)
		patched := apply(t, pod, o.Patch)
		w.Meta, w.Spec = &patched.ObjectMeta, &patched.Spec
		if again := i.Inject(w); again.Injected || len(again.Patch) > 0 {
			t.Errorf("again: %v, %q", again.Injected, paths(again.Patch))
		}
	})
}

// usualPod is a Pod as a Deployment makes it.
func usualPod(tb rapid.TB) []byte {
	tb.Helper()
	pod := given{
		labels: "app: cart, pod-template-hash: 5d4f8c7b9", annotations: "proxy-cpu-request: 100m, prometheus.io/scrape: 'true'",
		spec: `
containers:
- name: app
  image: example.org/cart:1
  env: [{name: A, value: "1"}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  ports: [{containerPort: 8080, name: http}, {containerPort: 9090, name: metrics}]
  readinessProbe: {httpGet: {path: /ready, port: http}}
  volumeMounts: [{name: kube-api-access, readOnly: true, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]
volumes: [{name: kube-api-access, emptyDir: {}}]
`,
	}.pod(tb)
	b, err := json.Marshal(pod)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// injectBytes is all that is done for a Pod: it is decoded, injected, and its patch encoded.
func injectBytes(tb rapid.TB, i *Injector, object []byte) {
	pod, err := decodePod(object)
	if err != nil {
		tb.Fatal(err)
	}
	o := i.Inject(&Workload{
		Namespace: "shop", NamespaceAnnotations: map[string]string{InjectAnnotation: enabled},
		Owner: Owner{"Deployment", "cart"}, Meta: &pod.ObjectMeta, Spec: &pod.Spec,
	})
	if _, err := json.Marshal(o.Patch); err != nil || !o.Injected {
		tb.Fatalf("injected %v, %v", o.Injected, err)
	}
}

func BenchmarkInject(b *testing.B) {
	i, object := given{}.injector(b), usualPod(b)
	b.ReportAllocs()
	for b.Loop() {
		injectBytes(b, i, object)
	}
}

// A Pod takes no more allocations than an answer within a millisecond has room for.
func TestAllocations(t *testing.T) {
	const most = 2000
	i, object := given{}.injector(t), usualPod(t)
	if n := testing.AllocsPerRun(10, func() { injectBytes(t, i, object) }); n > most {
		t.Errorf("%g allocations, more than %d", n, most)
	}
}

// A Pod of many containers is injected like others, in a time in proportion to them.
func TestManyContainers(t *testing.T) {
	pod := given{}.pod(t)
	for range 1000 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 3306}, {ContainerPort: 1}},
		})
	}
	o := given{}.injector(t).Inject(&Workload{
		NamespaceAnnotations: map[string]string{InjectAnnotation: enabled}, Meta: &pod.ObjectMeta, Spec: &pod.Spec,
	})
	r := &result{Outcome: o, tb: t, pod: apply(t, pod, o.Patch)}
	r.wantEnv(map[string]string{"INBOUND_PORTS": "1,3306,8080", "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION": "3306"})
}

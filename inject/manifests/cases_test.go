package manifests

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/inject"
)

// TestCases are the contract cases of manifests.
func TestCases(t *testing.T) {
	t.Run("IJ164", testManual)
	t.Run("IJ173", testUninjectManual)
	t.Run("IJ174", testUninjectAll)
	t.Run("IJ175", testUninjectKeepsSettings)
	t.Run("IJ176", testUninjectPrefix)
	t.Run("IJ177", testUninjectNothing)
	t.Run("IJ178", testComments)
	t.Run("IJ179", testUnknownFields)
	t.Run("IJ180", testLaws)
}

// newInjection returns an Injection with values over those of the chart (YAML); manual is whether it adds the proxy.
func newInjection(tb rapid.TB, manual bool, values string, settings map[string]string) *Injection {
	tb.Helper()
	with := inject.Defaults("edge-1")
	if err := yaml.Unmarshal([]byte(values), with); err != nil {
		tb.Fatal(err)
	}
	var injector *inject.Injector
	if manual {
		var err error
		injector, err = inject.New(with, inject.Options{Namespace: "linkerd", Anchors: "anchors", CreatedBy: "test"})
		if err != nil {
			tb.Fatal(err)
		}
	}
	injection, err := NewInjection(with, injector, false, settings)
	if err != nil {
		tb.Fatal(err)
	}
	return injection
}

// change changes a manifest of one document.
func change(tb rapid.TB, text string, by func(*Document) ([]Report, error)) (string, []Report) {
	tb.Helper()
	document, err := NewReader(strings.NewReader(text)).Read()
	if err != nil {
		tb.Fatalf("%v\n%s", err, text)
	}
	reports, err := by(document)
	if err != nil {
		tb.Fatalf("%v\n%s", err, text)
	}
	written, err := document.YAML()
	if err != nil {
		tb.Fatalf("%v\n%s", err, text)
	}
	return string(written), reports
}

// valueOf returns what a manifest means.
func valueOf(tb rapid.TB, text string) (value any) {
	tb.Helper()
	if json.Unmarshal([]byte(text), &value) == nil {
		return value
	}
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		tb.Fatalf("%v\n%s", err, text)
	}
	return value
}

func wantEqual(tb rapid.TB, what, want, got string) {
	tb.Helper()
	if diff := cmp.Diff(valueOf(tb, want), valueOf(tb, got)); diff != "" {
		tb.Fatalf("%s (-want +got) %s", what, diff)
	}
}

// A makes is a kind that makes Pods.
type makes struct {
	kind, version string
	path          []string // of the template
}

var makers = []makes{
	{"Pod", "v1", nil},
	{"ReplicationController", "v1", []string{"spec", "template"}},
	{"Deployment", "apps/v1", []string{"spec", "template"}},
	{"ReplicaSet", "apps/v1", []string{"spec", "template"}},
	{"StatefulSet", "apps/v1", []string{"spec", "template"}},
	{"DaemonSet", "apps/v1", []string{"spec", "template"}},
	{"Job", "batch/v1", []string{"spec", "template"}},
	{"CronJob", "batch/v1", []string{"spec", "jobTemplate", "spec", "template"}},
}

// object returns one whose template is that (YAML); a Pod is the template itself.
func (m makes) object(tb rapid.TB, template string) string {
	tb.Helper()
	of, _ := valueOf(tb, template).(map[string]any)
	for _, key := range slices.Backward(m.path) {
		of = map[string]any{key: of}
	}
	metadata, _ := of["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["name"] = "x"
	of["kind"], of["apiVersion"], of["metadata"] = m.kind, m.version, metadata
	text, err := yaml.Marshal(of)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// template returns what stands at the path.
func (m makes) template(tb testing.TB, text string) (found corev1.PodTemplateSpec) {
	tb.Helper()
	of, _ := valueOf(tb, text).(map[string]any)
	for _, key := range m.path {
		of, _ = of[key].(map[string]any)
	}
	encoded, err := json.Marshal(of)
	if err == nil {
		err = json.Unmarshal(encoded, &found)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return found
}

const plain = "spec: {containers: [{name: app, image: app:1, ports: [{containerPort: 8080}]}]}"

func testManual(t *testing.T) {
	for _, m := range makers {
		got, reports := change(t, m.object(t, plain), newInjection(t, true, "", nil).Inject)
		template := m.template(t, got)

		var names []string
		for _, c := range template.Spec.InitContainers {
			names = append(names, c.Name)
		}
		for _, v := range template.Spec.Volumes {
			names = append(names, v.Name)
		}
		want := []string{
			"linkerd-init", "linkerd-proxy",
			"linkerd-proxy-init-xtables-lock", "linkerd-identity-end-entity", "linkerd-identity-token",
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%s: %s", m.kind, diff)
		}
		if env := template.Spec.InitContainers[1].Env; len(env) < 50 || env[0].Name != "_pod_name" {
			t.Errorf("%s: %d variables", m.kind, len(env))
		}

		labels := map[string]string{"linkerd.io/control-plane-ns": "linkerd"}
		if m.kind != "Pod" {
			labels["linkerd.io/proxy-"+strings.ToLower(m.kind)] = "x"
		}
		annotations := map[string]string{
			"linkerd.io/inject": "enabled", "linkerd.io/created-by": "test", "linkerd.io/proxy-version": "edge-1",
			"linkerd.io/trust-root-sha256": fmt.Sprintf("%x", sha256.Sum256([]byte("anchors"))),
		}
		if diff := cmp.Diff(labels, template.Labels) + cmp.Diff(annotations, template.Annotations); diff != "" {
			t.Errorf("%s: %s", m.kind, diff)
		}
		if want := (Report{strings.ToLower(m.kind), "x", Injected, nil}); !cmp.Equal([]Report{want}, reports) {
			t.Errorf("reported %v", reports)
		}
	}
}

func testUninjectManual(t *testing.T) {
	for _, m := range makers {
		object := m.object(t, plain)
		injected, _ := change(t, object, newInjection(t, true, "", nil).Inject)
		got, reports := change(t, injected, Uninject)
		wantEqual(t, m.kind, object, got)
		if len(reports) != 1 || reports[0].Result != Uninjected {
			t.Errorf("reported %v", reports)
		}
	}
}

func testUninjectAll(t *testing.T) {
	const values = "{cniEnabled: true, proxy: {tracing: {enabled: true, collector: {endpoint: 'a:1', " +
		"meshIdentity: {serviceAccountName: a, namespace: b}}}}}"
	object := makers[2].object(t, "metadata: {annotations: {config.linkerd.io/enable-debug-sidecar: 'true'}}\n"+plain)
	injected, _ := change(t, object, newInjection(t, true, values, nil).Inject)
	for _, name := range []string{"linkerd-network-validator", "linkerd-debug", "linkerd-podinfo"} {
		if !strings.Contains(injected, "name: "+name+"\n") {
			t.Fatalf("%s is not there:\n%s", name, injected)
		}
	}
	got, _ := change(t, injected, Uninject)
	wantEqual(t, "uninjected", object, got)
}

func testUninjectKeepsSettings(t *testing.T) {
	object := makers[2].object(t, "metadata: {annotations: {linkerd.io/inject: disabled, config.linkerd.io/x: z, "+
		"linkerd.io/created-by: z}, labels: {linkerd.io/a: b}}\n"+plain)
	got, _ := change(t, object, Uninject)
	wantEqual(t, "uninjected", makers[2].object(t,
		"metadata: {annotations: {linkerd.io/inject: disabled, config.linkerd.io/x: z}}\n"+plain), got)
}

func testUninjectPrefix(t *testing.T) {
	object := makers[2].object(t, "metadata: {annotations: {linkerd.iox/y: a, linkerd.io/y: a}, "+
		"labels: {linkerd.io: a}}\n"+plain)
	got, _ := change(t, object, Uninject)
	wantEqual(t, "uninjected", makers[2].object(t,
		"metadata: {annotations: {linkerd.iox/y: a}, labels: {linkerd.io: a}}\n"+plain), got)
}

func testUninjectNothing(t *testing.T) {
	const object = "# a Pod\napiVersion:   v1\nkind: Pod # one\nmetadata: {labels: {}, name:   p}\nspec: {volumes: []}\n"
	got, reports := change(t, object, Uninject)
	if got != object || len(reports) != 1 || reports[0].String() != `pod "p" skipped` {
		t.Errorf("%v\n%s", reports, got)
	}
}

func testComments(t *testing.T) {
	const object = `# Who sells.
spec:
  # as many as there are zones
  replicas: 3 # for now
  template:
    spec:
      containers:
      # the shop
      - image: "shop:1" # pinned
        name: shop
        args: [--on, "yes"]
    metadata:
      annotations:
        # for the scraper
        prometheus.io/scrape: "true"
kind: Deployment
metadata:
  name: shop
apiVersion: apps/v1
`
	want := strings.Replace(object, "scrape: \"true\"\n", "scrape: \"true\"\n        linkerd.io/inject: enabled\n", 1)
	got, _ := change(t, object, newInjection(t, false, "", nil).Inject)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got) %s", diff)
	}
}

func testUnknownFields(t *testing.T) {
	const future = "spec: {future: {yes: [on, 1e3, 0o7, ~]}, containers: [{name: app, image: a, new: {a: 1.50}}]}\n" +
		"metadata: {new: 7}\nfuture: 1"
	object := makers[2].object(t, future)
	injected, _ := change(t, object, newInjection(t, true, "", nil).Inject)
	for _, field := range []string{"future: 1\n", "new: 7\n", "a: 1.5\n"} {
		if !strings.Contains(injected, field) {
			t.Errorf("%q is not there:\n%s", field, injected)
		}
	}
	got, _ := change(t, injected, Uninject)
	wantEqual(t, "uninjected", object, got)
}

func testLaws(t *testing.T) { rapid.Check(t, checkLaws) }

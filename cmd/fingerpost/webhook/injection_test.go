package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/admission"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/podowner"
	"github.com/fingerpost/fingerpost/inject"
)

// testInjectionCases are the contract cases of section IJ that are about requests, owners, Events and metrics.
func testInjectionCases(t *testing.T) {
	t.Helper()
	t.Run("IJ01", func(t *testing.T) { inCluster(t, testInjectedVersions) })
	t.Run("IJ02", func(t *testing.T) { inCluster(t, testUnreadableRequests) })
	t.Run("IJ04", func(t *testing.T) { inCluster(t, testEmptyRequest) })
	t.Run("IJ08", func(t *testing.T) { inCluster(t, testNewNamespace) })
	t.Run("IJ09", func(t *testing.T) { inCluster(t, testUnknownNamespace) })
	t.Run("IJ11", func(t *testing.T) { inCluster(t, testBeforeListing) })
	t.Run("IJ13", func(t *testing.T) { inCluster(t, testNoEcho) })
	t.Run("IJ14", func(t *testing.T) { inCluster(t, testGeneratedName) })
	t.Run("IJ16", testWarm)
	t.Run("IJ32", func(t *testing.T) { inCluster(t, testEvents) })
	t.Run("IJ33", func(t *testing.T) { inCluster(t, testManyEvents) })
	t.Run("IJ40", func(t *testing.T) { inCluster(t, testDeployment) })
	t.Run("IJ42", func(t *testing.T) { inCluster(t, testCronJob) })
	t.Run("IJ43", func(t *testing.T) { inCluster(t, testRollout) })
	t.Run("IJ44", func(t *testing.T) { inCluster(t, testTwoOwners) })
	t.Run("IJ150", func(t *testing.T) { inCluster(t, testSkipMetrics) })
	t.Run("IJ152", func(t *testing.T) { inCluster(t, testOwnerMetrics) })
}

// mesh is a cluster with the webhook beside it.
type mesh struct {
	*admission.Server

	t         *testing.T
	api       *apitest.Server
	injection *Injection
	events    []string
}

const meshObjects = `apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {linkerd.io/inject: enabled}}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: d-1, namespace: shop, ownerReferences:
  [{apiVersion: apps/v1, kind: Deployment, name: d, uid: u-d, controller: true}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: r, namespace: shop, ownerReferences:
  [{apiVersion: argoproj.io/v1alpha1, kind: Rollout, name: r0, uid: u, controller: true}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: c-1, namespace: shop, ownerReferences:
  [{apiVersion: batch/v1, kind: CronJob, name: c, uid: u, controller: true}]}
`

// open starts the webhook, and returns what stops it.
func open(t *testing.T) (m *mesh, stop func()) {
	t.Helper()
	network := apitest.NewNetwork()
	m = &mesh{t: t, api: network.Server("east"), injection: NewInjection()}
	m.api.ApplyYAML(strings.Split(meshObjects, "---\n")...)
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(m.api.Kubeconfig(m.api.Token())))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := api.NewConnection(config, network.Dial)
	if err != nil {
		t.Fatal(err)
	}
	owners, err := podowner.NewReader(conn, m.injection.ForgetNamespace)
	if err != nil {
		t.Fatal(err)
	}
	injector, err := inject.New(inject.Defaults("edge-1"), inject.Options{
		Namespace: "linkerd", Anchors: "anchors", CreatedBy: "test",
	})
	if err != nil {
		t.Fatal(err)
	}

	m.injection.InjectionOptions = InjectionOptions{
		Injector: func() *inject.Injector { return injector }, Age: func() time.Duration { return 0 }, Owners: owners,
		Event: func(about *corev1.ObjectReference, reason, note string) {
			m.events = append(m.events, fmt.Sprintf("%s/%s %s %s: %s", about.Kind, about.Name, about.UID, reason, note))
		},
	}
	m.Server = admission.NewServer(logr.Discard(), 1, map[string][]admission.Review{"/": {m.injection.Review()}})

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = owners.Run(ctx)
	}()
	return m, func() {
		cancel()
		<-ended
		conn.Close()
		network.Close()
	}
}

// inCluster runs a test in virtual time.
func inCluster(t *testing.T, test func(m *mesh)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, stop := open(t)
		defer stop()
		test(m)
	})
}

const shopPod = `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: shop},
  spec: {containers: [{name: app, ports: [{containerPort: 8080}]}]}}`

// podOf is that Pod with other metadata, and owners.
func podOf(metadata, owners string) string {
	return strings.Replace(shopPod, "name: p, ", metadata+", ownerReferences: ["+owners+"], ", 1)
}

func ownedBy(apiVersion, kind, name string) string {
	return podOf("name: p", fmt.Sprintf("{apiVersion: %s, kind: %s, name: %s, uid: u, controller: true}",
		apiVersion, kind, name))
}

// request is a review of an object in YAML.
func (m *mesh) request(version, kind, namespace, object string) []byte {
	m.t.Helper()
	b, err := yaml.YAMLToJSON([]byte(object))
	if err != nil {
		m.t.Fatal(err)
	}
	return fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/%s","kind":"AdmissionReview","request":{"uid":"u1",`+
		`"kind":{"group":"","version":"v1","kind":%q},"namespace":%q,"operation":"CREATE","object":%s}}`,
		version, kind, namespace, b)
}

// answer returns the answer to a request, which must be allowed.
func (m *mesh) answer(body []byte) *admissionv1.AdmissionReview {
	m.t.Helper()
	to := post(m.Server, body)
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(to.Body.Bytes(), &answer); err != nil || to.Code != http.StatusOK ||
		answer.Response == nil || !answer.Response.Allowed {
		m.t.Fatalf("%s: %d %s: %v", body, to.Code, to.Body, err)
	}
	return &answer
}

// added returns what is added to an object, by paths.
func (m *mesh) added(kind, namespace, object string) map[string]any {
	m.t.Helper()
	all := map[string]any{}
	response := m.answer(m.request("v1", kind, namespace, object)).Response
	if len(response.Patch) == 0 {
		return all
	}
	var operations []struct {
		Path  string
		Value any
	}
	if err := json.Unmarshal(response.Patch, &operations); err != nil {
		m.t.Fatal(err)
	}
	for _, o := range operations {
		all[o.Path] = o.Value
	}
	return all
}

const proxyPath = "/spec/initContainers/1" // of the proxy

func (m *mesh) wantInjected(namespace, object string) {
	m.t.Helper()
	if all := m.added("Pod", namespace, object); all[proxyPath] == nil {
		m.t.Errorf("%s: not injected: %v", object, all)
	}
}

func testInjectedVersions(m *mesh) {
	for _, version := range []string{"v1", "v1beta1"} {
		answer := m.answer(m.request(version, "Pod", "shop", shopPod))
		if answer.APIVersion != "admission.k8s.io/"+version || answer.Kind != "AdmissionReview" ||
			answer.Response.UID != "u1" || *answer.Response.PatchType != admissionv1.PatchTypeJSONPatch {
			m.t.Errorf("%s: %v", version, answer)
		}
	}
	body, err := yaml.JSONToYAML(m.request("v1", "Pod", "shop", shopPod))
	if err != nil {
		m.t.Fatal(err)
	}
	if answer := m.answer(body); answer.Response.UID != "u1" || len(answer.Response.Patch) == 0 {
		m.t.Errorf("YAML: %v", answer)
	}
}

func testUnreadableRequests(m *mesh) {
	for _, body := range []string{`{"request":{}}`, "garbage", "{", "a: [", strings.Repeat("- a\n", 20_000)} {
		if to := post(m.Server, []byte(body)); to.Code != http.StatusBadRequest {
			m.t.Errorf("%.40s: %d %s", body, to.Code, to.Body)
		}
	}
	large := bytes.Repeat([]byte(" "), admission.MaxBody+1)
	if to := post(m.Server, large); to.Code != http.StatusRequestEntityTooLarge {
		m.t.Errorf("too large: %d %s", to.Code, to.Body)
	}
}

func testEmptyRequest(m *mesh) {
	if to := post(m.Server, nil); to.Code != http.StatusOK || to.Body.Len() > 0 {
		m.t.Errorf("%d %s", to.Code, to.Body)
	}
}

func testNewNamespace(m *mesh) {
	m.wantInjected("shop", shopPod)
	m.api.SilenceWatches("namespaces", true) // the Namespace does not arrive
	m.api.ApplyYAML("{apiVersion: v1, kind: Namespace, metadata: {name: new, annotations: {linkerd.io/inject: enabled}}}")
	before := m.api.Requests("get", "namespaces")
	m.wantInjected("new", shopPod)
	if n := m.api.Requests("get", "namespaces") - before; n != 1 {
		m.t.Errorf("%d direct requests", n)
	}
}

func testUnknownNamespace(m *mesh) {
	m.wantInjected("shop", shopPod)
	body := m.request("v1", "Pod", "gone", shopPod)
	if to := post(m.Server, body); to.Code != http.StatusInternalServerError {
		m.t.Errorf("not found: %d %s", to.Code, to.Body)
	}
	m.api.Delay("namespaces", time.Hour)
	began := time.Now()
	if to := post(m.Server, body); to.Code != http.StatusInternalServerError {
		m.t.Errorf("no answer: %d %s", to.Code, to.Body)
	}
	if took := time.Since(began); took > time.Second {
		m.t.Errorf("it took %s", took)
	}
}

func testBeforeListing(m *mesh) {
	m.api.Delay("replicasets.apps", 3*time.Second)
	began := time.Now()
	m.wantInjected("shop", shopPod)
	if took := time.Since(began); took < 3*time.Second {
		m.t.Errorf("answered after %s, before the listing", took)
	}
	m.api.Delay("replicasets.apps", 0)
}

func testNoEcho(m *mesh) {
	to := post(m.Server, m.request("v1", "Pod", "shop", shopPod))
	if strings.Contains(to.Body.String(), `"request"`) {
		m.t.Errorf("%s", to.Body)
	}
}

func testGeneratedName(m *mesh) {
	m.wantInjected("shop", podOf("generateName: d-1-",
		"{apiVersion: apps/v1, kind: ReplicaSet, name: d-1, uid: u, controller: true}"))
	want := []string{"Deployment/d u-d Injected: Pod d-1- gets a proxy"}
	if diff := cmp.Diff(want, m.events); diff != "" {
		m.t.Error(diff)
	}
}

// A thousand Pods take no request and, together, the time that one may take a thousand times.
func testWarm(t *testing.T) {
	m, stop := open(t)
	defer stop()
	m.wantInjected("shop", shopPod)
	var requests atomic.Int64
	m.api.Audit(func(string, string, string) { requests.Add(1) })
	body := m.request("v1", "Pod", "shop", ownedBy("apps/v1", "ReplicaSet", "d-1"))

	const pods, each, slack = 1000, time.Millisecond, 5
	began := time.Now()
	for range pods {
		to := httptest.NewRecorder()
		m.ServeHTTP(to, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body)))
		if to.Code != http.StatusOK {
			t.Fatalf("%d %s", to.Code, to.Body)
		}
	}
	took := time.Since(began)
	t.Logf("%s a Pod", took/pods)
	if took > pods*each*slack || requests.Load() > 0 {
		t.Errorf("%s a Pod, %d requests", took/pods, requests.Load())
	}
}

func testEvents(m *mesh) {
	const owner = "{apiVersion: apps/v1, kind: ReplicaSet, name: d-1, uid: u, controller: true}"
	m.wantInjected("shop", podOf("name: p", owner))
	m.added("Pod", "shop", podOf("name: q, annotations: {linkerd.io/inject: disabled}", owner))
	m.wantInjected("shop", shopPod)
	want := []string{
		"Deployment/d u-d Injected: Pod p gets a proxy",
		"Deployment/d u-d InjectionSkipped: Pod q gets no proxy: linkerd.io/inject is disabled",
	}
	if diff := cmp.Diff(want, m.events); diff != "" {
		m.t.Error(diff)
	}
}

func testManyEvents(m *mesh) {
	m.wantInjected("shop", shopPod)
	began := time.Now()
	for range 1000 {
		m.wantInjected("shop", ownedBy("apps/v1", "ReplicaSet", "d-1"))
	}
	if took := time.Since(began); took > 0 {
		m.t.Errorf("answers have waited for %s", took)
	}
	if n := len(m.events); n != 5 {
		m.t.Errorf("%d Events at once, want 5", n)
	}
	if n := testutil.ToFloat64(m.injection.droppedEvents); n != 995 {
		m.t.Errorf("%g are counted as left out, want 995", n)
	}
}

// wantLabel expects the one label of an owner.
func (m *mesh) wantLabel(object, kind, name string) {
	m.t.Helper()
	const prefix = "/metadata/labels/linkerd.io~1"
	got := map[string]any{}
	for path, value := range m.added("Pod", "shop", object) {
		if label, is := strings.CutPrefix(path, prefix); is {
			got[label] = value
		}
	}
	want := map[string]any{"control-plane-ns": "linkerd", "workload-ns": "shop", "proxy-" + kind: name}
	if diff := cmp.Diff(want, got); diff != "" {
		m.t.Error(diff)
	}
}

func testDeployment(m *mesh) {
	m.wantLabel(ownedBy("apps/v1", "ReplicaSet", "d-1"), "deployment", "d")

	// One that has not arrived yet is requested; one that there is not stands for itself.
	m.api.SilenceWatches("replicasets.apps", true)
	m.api.ApplyYAML("{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: e-1, namespace: shop, ownerReferences: " +
		"[{apiVersion: apps/v1, kind: Deployment, name: e, uid: u, controller: true}]}}")
	m.wantLabel(ownedBy("apps/v1", "ReplicaSet", "e-1"), "deployment", "e")
	m.wantLabel(ownedBy("apps/v1", "ReplicaSet", "gone"), "replicaset", "gone")

	m.api.Delay("replicasets.apps", time.Hour)
	began := time.Now()
	m.wantLabel(ownedBy("apps/v1", "ReplicaSet", "late"), "replicaset", "late")
	if took := time.Since(began); took > 500*time.Millisecond {
		m.t.Errorf("it took %s", took)
	}
}

func testCronJob(m *mesh) { m.wantLabel(ownedBy("batch/v1", "Job", "c-1"), "cronjob", "c") }

func testRollout(m *mesh) { m.wantLabel(ownedBy("apps/v1", "ReplicaSet", "r"), "replicaset", "r") }

func testTwoOwners(m *mesh) {
	m.wantLabel(podOf("name: p", "{apiVersion: v1, kind: ConfigMap, name: x, uid: u}, "+
		"{apiVersion: apps/v1, kind: StatefulSet, name: s, uid: u, controller: true}"), "statefulset", "s")
}

// wantResponses expects series of responses, each once: owner_kind, namespace, skip, skip_reason, annotation_at.
func (m *mesh) wantResponses(series ...[5]string) {
	m.t.Helper()
	if n := testutil.CollectAndCount(m.injection.responses); n != len(series) {
		m.t.Errorf("%d series, want %d", n, len(series))
	}
	for _, labels := range series {
		if n := testutil.ToFloat64(m.injection.responses.WithLabelValues(labels[:]...)); n != 1 {
			m.t.Errorf("%q is %g", labels, n)
		}
	}
}

func testSkipMetrics(m *mesh) {
	m.added("Pod", "shop", shopPod)
	m.added("Pod", "shop", strings.Replace(shopPod, "spec: {", "spec: {hostNetwork: true, ", 1))
	m.added("Pod", "plain", strings.Replace(shopPod, "8080", "3306", 1))
	m.added("Service", "shop", "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{port: 80}]}}")
	m.wantResponses(
		[5]string{"", "shop", "false", "", "namespace"},
		[5]string{"", "shop", "true", "host_network_enabled", "namespace"},
		[5]string{"", "plain", "false", "injection_enable_annotation_absent", ""},
		[5]string{"", "shop", "false", "", ""},
	)

	// Series end with their Namespace.
	m.api.Delete("Namespace", "", "plain")
	synctest.Wait()
	if n := testutil.CollectAndCount(m.injection.responses); n != 3 {
		m.t.Errorf("%d series, want 3", n)
	}
}

func testOwnerMetrics(m *mesh) {
	m.added("Pod", "shop", ownedBy("apps/v1", "ReplicaSet", "d-1"))
	m.added("Pod", "plain", podOf("name: p, annotations: {linkerd.io/inject: enabled}", ""))
	m.added("Pod", "plain", shopPod)
	m.added("Pod", "plain", ownedBy("example.org/v1", "Surprise", "s"))
	m.wantResponses(
		[5]string{"deployment", "shop", "false", "", "namespace"},
		[5]string{"", "plain", "false", "", "workload"},
		[5]string{"", "plain", "true", "injection_enable_annotation_absent", ""},
		[5]string{"other", "plain", "true", "injection_enable_annotation_absent", ""},
	)
}

// What is neither a Pod nor a Service is allowed as it is, and an object that cannot be read is for the failurePolicy.
func TestOtherObjects(t *testing.T) {
	inCluster(t, func(m *mesh) {
		if all := m.added("ConfigMap", "shop", "{metadata: {name: x}}"); len(all) > 0 {
			t.Errorf("added %v", all)
		}
		to := post(m.Server, m.request("v1", "Pod", "shop", "{spec: 7}"))
		if to.Code != http.StatusInternalServerError {
			t.Errorf("%d %s", to.Code, to.Body)
		}
		deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
		body := bytes.Replace(m.request("v1", "Pod", "shop", "{spec: 7}"), []byte("7"), []byte(deep), 1)
		if to := post(m.Server, body); to.Code == http.StatusOK {
			t.Errorf("nested lists: %d %s", to.Code, to.Body)
		}
	})
}

// A Pod of a thousand containers, init containers and volumes is injected as any other: what is added grows by
// the list of its ports alone.
func TestPodOfThousands(t *testing.T) {
	const each = 1000
	inCluster(t, func(m *mesh) {
		var containers, inits, volumes strings.Builder
		for i := range each {
			fmt.Fprintf(&containers, "{name: c%d, image: app, ports: [{containerPort: %d}]}, ", i, 10_000+i)
			fmt.Fprintf(&inits, "{name: i%d, image: app}, ", i)
			fmt.Fprintf(&volumes, "{name: v%d, emptyDir: {}}, ", i)
		}
		pod := strings.Replace(shopPod, "spec: {", fmt.Sprintf("spec: {initContainers: [%s], volumes: [%s], ",
			inits.String(), volumes.String()), 1)
		pod = strings.Replace(pod, "containers: [", "containers: ["+containers.String(), 1)
		small := len(m.answer(m.request("v1", "Pod", "shop", shopPod)).Response.Patch)
		large := len(m.answer(m.request("v1", "Pod", "shop", pod)).Response.Patch)
		if large < small || large > small+each*len("10000,") {
			t.Errorf("a patch of %d bytes, and one of %d for a small Pod", large, small)
		}
	})
}

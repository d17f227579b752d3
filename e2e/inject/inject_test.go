// Package inject tests on a real control plane that API servers take what the webhook adds to Pods.
package inject

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/check"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/inject"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCases are the contract cases of injection that need an API server.
func TestCases(t *testing.T) {
	t.Run("IJ192", testRealAPIServer)
}

// world is a cluster whose API server sends Pods to a webhook of this process, as Linkerd's chart has it.
type world struct {
	*testing.T
	*controlplane.Cluster

	client      kubernetes.Interface
	listener    net.Listener
	certificate []byte // PEM
}

const valuesText = "linkerdVersion: edge-1\nidentity: {serviceAccountTokenProjection: true}\n" +
	"proxy: {nativeSidecar: true, await: true, opaquePorts: '3306'}\n"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, Cluster: controlplane.ForTest(t, controlplane.Options{Name: "inject"})}
	var err error
	config := w.AdminConfig()
	config.QPS = -1
	w.client, err = kubernetes.NewForConfig(config)
	w.do(err)
	w.listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	w.do(err)
	w.do(w.Apply(t.Context(), []byte(`
{apiVersion: v1, kind: Namespace, metadata: {name: shop, annotations: {linkerd.io/inject: enabled}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: apart, labels: {config.linkerd.io/admission-webhooks: disabled}}}
`)))
	return w
}

func (w *world) do(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// write writes a certificate for the webhook, and the files that it reads.
func (w *world) write() (dir string) {
	w.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.do(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	w.do(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	w.do(err)

	dir = w.TempDir()
	w.certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, content := range map[string][]byte{
		"tls.crt": w.certificate, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		"values": []byte(valuesText),
	} {
		w.do(os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return dir
}

// serve runs the webhook, until stop.
func (w *world) serve() (stop func()) {
	w.Helper()
	dir := w.write()
	file := func(name string) string { return filepath.Join(dir, name) }
	injector, err := app.NewInjector(logr.Discard(), app.InjectorOptions{
		Version: "test", Config: w.AdminConfig(), Namespace: "linkerd",
		Listen: func(context.Context, string, string) (net.Listener, error) { return w.listener, nil },
		Webhooks: app.WebhookOptions{
			Addrs: []string{"webhook:0"}, Flag: "-tls-dir",
			TLS: []app.WebhookFiles{{Server: "webhook", TLSFiles: server.TLSFiles{
				Certificate: file("tls.crt"), Key: file("tls.key"),
			}}},
			Inject: app.InjectionFiles{Values: file("values"), Anchors: file("tls.crt")},
		},
	})
	w.do(err)

	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- injector.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	}
}

// register has API servers send Pods to the webhook.
func (w *world) register(failurePolicy string) {
	w.Helper()
	w.do(w.Apply(w.Context(), fmt.Appendf(nil, `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: linkerd-proxy-injector-webhook-config}
webhooks:
- name: linkerd-proxy-injector.linkerd.io
  admissionReviewVersions: [v1, v1beta1]
  sideEffects: None
  timeoutSeconds: 10
  failurePolicy: %s
  clientConfig: {url: "https://%s/", caBundle: %s}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods, services], scope: Namespaced}]
  namespaceSelector:
    matchExpressions:
    - {key: config.linkerd.io/admission-webhooks, operator: NotIn, values: [disabled]}
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, cert-manager]}
  objectSelector:
    matchExpressions:
    - {key: linkerd.io/control-plane-component, operator: DoesNotExist}
    - {key: linkerd.io/cni-resource, operator: DoesNotExist}
`, failurePolicy, w.listener.Addr(), base64.StdEncoding.EncodeToString(w.certificate))))
}

func newPod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Image: "app:1", Ports: []corev1.ContainerPort{{ContainerPort: 8080, Name: "http"}, {ContainerPort: 3306}},
		}}},
	}
}

// create creates a Pod, with a dry run or in earnest.
func (w *world) create(pod *corev1.Pod, dryRun ...string) (*corev1.Pod, error) {
	return w.client.CoreV1().Pods(pod.Namespace).Create(w.Context(), pod, metav1.CreateOptions{DryRun: dryRun})
}

// eventually tries until a minute has passed.
func (w *world) eventually(what string, try func() error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.Fatalf("%s: %v", what, err)
		}
	}
}

func testRealAPIServer(t *testing.T) {
	w := newWorld(t)
	stop := w.serve()
	_, err := w.create(newPod("shop", "old"))
	w.do(err)
	w.register("Fail")
	w.eventually("a Pod is taken", func() error {
		pod, err := w.create(newPod("shop", "first"), metav1.DryRunAll)
		if err == nil && len(pod.Spec.InitContainers) == 0 {
			err = errors.New("it has no proxy yet")
		}
		return err
	})

	stored, err := w.create(newPod("shop", "p"))
	w.do(err)
	want := w.model()
	if diff := cmp.Diff(want, comparablePod(w, stored)); diff != "" {
		t.Errorf("the Pod that is stored differs from the model's: (-want +got) %s", diff)
	}

	w.owners()
	asks := newPod("apart", "asks")
	asks.Annotations = map[string]string{inject.InjectAnnotation: "enabled"}
	_, err = w.create(asks)
	w.do(err)
	left := "warning fingerpost-mesh: all Pods that ask for a proxy have one: 2 Pods without a proxy, of 2 owners:; " +
		"Pod apart/asks: 1 Pod: the webhook leaves out its Namespace (config.linkerd.io/admission-webhooks notin (disabled),"
	w.checks(left)

	stop()
	w.away()
	w.checks("error fingerpost-mesh: a Pod that asks for a proxy gets one: a Pod in namespace default that is not kept gets none",
		left)
}

// checks: the health report has these lines about the mesh, as prefixes.
func (w *world) checks(want ...string) {
	w.Helper()
	var got []string
	for _, line := range check.Once(w.Context(), w.AdminConfig(), "linkerd", nil) {
		if strings.Contains(line, " fingerpost-mesh: ") {
			got = append(got, line)
		}
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		w.Errorf("the report has %q, want %q", got, want)
	}
}

// model returns the Pod that is to be stored: as an API server sends it to webhooks, with the operations of the function,
// and with the defaults that the API server adds.
func (w *world) model() map[string]any {
	w.Helper()
	sent, err := w.create(newPod("apart", "p"), metav1.DryRunAll)
	w.do(err)
	values, err := inject.ParseValues([]byte(valuesText))
	w.do(err)
	injector, err := inject.New(values, inject.Options{
		Namespace: "linkerd", Anchors: string(w.certificate), CreatedBy: "fingerpost/proxy-injector test",
	})
	w.do(err)
	outcome := injector.Inject(&inject.Workload{
		Namespace: "shop", NamespaceAnnotations: map[string]string{inject.InjectAnnotation: "enabled"},
		Meta: &sent.ObjectMeta, Spec: &sent.Spec,
	})
	if !outcome.Injected {
		w.Fatalf("the model injects nothing: %q", outcome.Reasons)
	}

	operations, err := json.Marshal(outcome.Patch)
	w.do(err)
	patch, err := jsonpatch.DecodePatch(operations)
	w.do(err)
	object, err := json.Marshal(sent)
	w.do(err)
	object, err = patch.Apply(object)
	w.do(err)
	patched := &corev1.Pod{}
	w.do(json.Unmarshal(object, patched))
	patched.UID, patched.ResourceVersion, patched.CreationTimestamp = "", "", metav1.Time{}
	patched, err = w.create(patched, metav1.DryRunAll)
	w.do(err)
	return comparablePod(w, patched)
}

var tokenVolume = regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`)

// comparablePod returns what the author of a Pod, the webhook and defaults decide of it.
func comparablePod(w *world, pod *corev1.Pod) map[string]any {
	w.Helper()
	encoded, err := json.Marshal(map[string]any{"labels": pod.Labels, "annotations": pod.Annotations, "spec": pod.Spec})
	w.do(err)
	var object map[string]any
	w.do(json.Unmarshal(tokenVolume.ReplaceAll(encoded, []byte("kube-api-access-x")), &object))
	return object
}

// owners: Pods that controllers make have the label of who is above them.
func (w *world) owners() {
	w.Helper()
	const template = `template: {metadata: {labels: {app: a}}, spec: {restartPolicy: %s, containers: [{name: app, image: "app:1"}]}}`
	always, never := fmt.Sprintf(template, "Always"), fmt.Sprintf(template, "Never")
	w.do(w.Apply(w.Context(), fmt.Appendf(nil, `
{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: shop}, spec: {selector: {matchLabels: {app: a}}, %s}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: j, namespace: shop}, spec: {%s}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: c, namespace: shop},
  spec: {schedule: "0 0 1 1 *", jobTemplate: {spec: {%s}}}}
`, always, never, never)))
	_, err := w.Kubectl(w.Context(), "-n", "shop", "create", "job", "c-1", "--from=cronjob/c")
	w.do(err)

	for _, label := range []string{"proxy-deployment=d", "proxy-job=j", "proxy-cronjob=c"} {
		w.eventually(label, func() error {
			pods, err := w.client.CoreV1().Pods("shop").List(w.Context(), metav1.ListOptions{
				LabelSelector: "linkerd.io/" + label + ",linkerd.io/workload-ns=shop",
			})
			if err == nil && len(pods.Items) == 0 {
				err = errors.New("there is no such Pod")
			}
			return err
		})
	}
}

// away: without the webhook its failurePolicy decides.
func (w *world) away() {
	w.Helper()
	if _, err := w.create(newPod("shop", "refused"), metav1.DryRunAll); err == nil ||
		!strings.Contains(err.Error(), "linkerd-proxy-injector.linkerd.io") {
		w.Errorf("with failurePolicy Fail: %v", err)
	}
	w.register("Ignore")
	w.eventually("failurePolicy Ignore", func() error {
		pod, err := w.create(newPod("shop", "plain"), metav1.DryRunAll)
		if err == nil && len(pod.Spec.InitContainers)+len(pod.Annotations) > 0 {
			err = fmt.Errorf("it has %v", pod.Annotations)
		}
		return err
	})
}

package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// What the chart installs is enough for a proxy, in both layouts: a Pod is injected by the webhook that the chart has
// registered, and its proxy has a certificate and its first answers soon. The certificate is renewed in time. Then each
// replica is killed, and starts again: the proxy is served all the while.
func TestMeshRuns(t *testing.T) {
	const lifetime = time.Minute
	pair := claim(t)
	for i, layout := range []string{"three", "one"} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			set := fmt.Sprintf("{controlPlane: {enabled: true, layout: %s, identity: {issuer: {issuanceLifetime: %s}}},"+
				" crds: {links: true}}", layout, lifetime)
			m := runMesh(t, pair[i], "mesh-runs-"+layout, set, 2)
			if want := map[string]int{"three": 6, "one": 2}[layout]; len(m.parts) != want {
				t.Fatalf("%d Pods, want %d", len(m.parts), want)
			}
			held := m.hold("web")
			for _, p := range m.parts {
				p.stop()
				p.start(p.ports)
				m.ready(p)
			}
			m.renews(held, 3*lifetime)
			held.End()
			m.check(held)
		})
	}
}

// hold makes a Pod that is injected, and returns what its proxy has open.
func (m *meshed) hold(name string) *mesh.Hold {
	m.Helper()
	shop := m.namespace + "-shop"
	m.do(m.Apply(m.Context(), fmt.Appendf(nil, `
{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s, annotations: {linkerd.io/inject: enabled}}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: %[1]s}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: %[1]s},
  spec: {selector: {app: web}, ports: [{port: 8080}]}}
`, shop)))
	pod := m.injected(shop, name)
	token, err := m.TokenFor(m.Context(), &controlplane.Identity{Namespace: shop, Name: "web"}, "identity.l5d.io")
	m.do(err)
	file := filepath.Join(m.TempDir(), "token")
	m.do(os.WriteFile(file, []byte(token), 0o600))

	ctx, cancel := context.WithTimeout(m.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	proxy := m.proxy(pod)
	leaf, err := proxy.Certify(ctx, file)
	m.do(err)
	held, err := proxy.Hold(ctx, leaf, file, "web."+shop+".svc.cluster.local:8080", 8080)
	m.Cleanup(held.End)
	m.do(err)
	took, claimed := time.Since(began), 2*time.Second
	m.Logf("a proxy is served after %s (claimed: %s)", took.Round(time.Millisecond), claimed)
	if took > 5*claimed {
		m.Errorf("a proxy is served after %s", took)
	}
	return held
}

// injected makes a Pod, once API servers know the webhook, and returns what is stored.
func (m *meshed) injected(namespace, name string) *corev1.Pod {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), time.Minute)
	defer cancel()
	m.do(mesh.Eventually(ctx, func(context.Context) error {
		if containerOf(m.would(namespace, name)) == nil {
			return errors.New("no proxy is added to a Pod")
		}
		return nil
	}))
	return m.create(namespace, name)
}

// would returns what would be stored of a Pod.
func (m *meshed) would(namespace, name string) *corev1.Pod {
	m.Helper()
	return m.create(namespace, name, metav1.DryRunAll)
}

func (m *meshed) create(namespace, name string, dryRun ...string) *corev1.Pod {
	m.Helper()
	client, err := kubernetes.NewForConfig(m.AdminConfig())
	m.do(err)
	stored, err := client.CoreV1().Pods(namespace).Create(m.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{ServiceAccountName: "web", Containers: []corev1.Container{
			{Name: "web", Image: "web", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}},
		}},
	}, metav1.CreateOptions{DryRun: dryRun})
	m.do(err)
	return stored
}

// containerOf returns the container of a Pod's proxy, if it has one.
func containerOf(pod *corev1.Pod) *corev1.Container {
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range all {
			if all[i].Name == "linkerd-proxy" {
				return &all[i]
			}
		}
	}
	return nil
}

// proxy returns the proxy of a Pod, with the environment of its container.
func (m *meshed) proxy(pod *corev1.Pod) *mesh.Proxy {
	m.Helper()
	container := containerOf(pod)
	if container == nil {
		m.Fatalf("the Pod has no proxy: %v", pod.Spec)
	}
	proxy, err := mesh.NewProxy(container.Env, map[string]string{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
		"spec.serviceAccountName": pod.Spec.ServiceAccountName, "spec.nodeName": pod.Spec.NodeName,
		"status.podIP": "10.244.0.9", "status.podIPs": "10.244.0.9",
	}, m.hosts)
	m.do(err)
	return proxy
}

// renews waits until a proxy has renewed its certificate.
func (m *meshed) renews(held *mesh.Hold, timeout time.Duration) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), timeout)
	defer cancel()
	m.do(mesh.Eventually(ctx, func(context.Context) error {
		if held.Kept()["renewal"].Answers == 0 {
			return errors.New("the certificate is not renewed")
		}
		return nil
	}))
}

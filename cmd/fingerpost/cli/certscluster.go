package cli

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/identity/ca"
)

const (
	podPage = 500 // Pods of a page of a list

	// bundleDelay is how long after a ConfigMap has changed a kubelet may start containers with what it was before.
	bundleDelay = time.Minute
)

// Marks of programs that write the objects of a mesh's certificates.
const (
	certManagerAnnotation = "cert-manager.io/certificate-name" // on Secrets: the Certificate that they are of
	trustManagerLabel     = "trust.cert-manager.io/bundle"     // on ConfigMaps: the Bundle that they are of
)

// meshCerts are the anchors and the issuer of a mesh, as its cluster has them.
type meshCerts struct {
	bundle      []*x509.Certificate
	bundleSince time.Time // when it was changed; zero if that is not known
	bundleOf    string    // the Bundle of trust-manager that writes it; empty for none

	issuer      []*x509.Certificate // and then those above it
	issuerSince time.Time
	issuerOf    string // the Certificate of cert-manager that writes it; empty for none

	scheme      string
	fromValues  bool // Linkerd's chart writes the bundle, too
	trustDomain string
	leafLife    time.Duration
}

// readMeshCerts reads the anchors and the issuer of the mesh whose control plane is in a namespace. Of the Secret it
// keeps no key.
func readMeshCerts(ctx context.Context, client kubernetes.Interface, namespace string) (*meshCerts, error) {
	mesh := &meshCerts{}
	if err := mesh.readConfig(ctx, client, namespace); err != nil {
		return nil, err
	}
	if err := mesh.readBundle(ctx, client, namespace); err != nil {
		return nil, err
	}
	return mesh, mesh.readIssuer(ctx, client, namespace)
}

// readConfig reads what the mesh was installed with. A mesh without it has the defaults of Linkerd's chart.
func (m *meshCerts) readConfig(ctx context.Context, client kubernetes.Interface, namespace string) error {
	values := ""
	found, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, linkerd.ConfigName, metav1.GetOptions{})
	switch {
	case err == nil:
		values = found.Data[linkerd.ConfigValuesKey]
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("how the mesh was installed: %w", err)
	}

	config, err := linkerd.ParseConfig(values)
	if err != nil {
		return err
	}
	issuance, err := linkerd.ParseIssuance(values)
	m.fromValues, m.trustDomain = config.Anchors != "", config.TrustDomain
	m.scheme, m.leafLife = issuance.Scheme, issuance.LeafLife
	return err
}

func (m *meshCerts) readBundle(ctx context.Context, client kubernetes.Interface, namespace string) error {
	found, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, linkerd.AnchorsName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the trust anchors: %w", err)
	}
	m.bundleSince, m.bundleOf = changedAt(&found.ObjectMeta), found.Labels[trustManagerLabel]
	if m.bundle, err = ca.ParsePEM([]byte(found.Data[linkerd.AnchorsKey])); err != nil {
		err = fmt.Errorf("%s in the ConfigMap %s/%s: %w", linkerd.AnchorsKey, namespace, linkerd.AnchorsName, err)
	}
	return err
}

// readIssuer reads the issuer, under the names that its Secret has.
func (m *meshCerts) readIssuer(ctx context.Context, client kubernetes.Interface, namespace string) error {
	found, err := client.CoreV1().Secrets(namespace).Get(ctx, linkerd.IssuerName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the issuer: %w", err)
	}
	m.issuerSince, m.issuerOf = changedAt(&found.ObjectMeta), found.Annotations[certManagerAnnotation]

	key, _ := linkerd.IssuerKeys(m.scheme)
	if len(found.Data[key]) == 0 { // the values are not those of this control plane
		for _, scheme := range []string{linkerd.IssuerScheme, linkerd.KubernetesScheme} {
			if other, _ := linkerd.IssuerKeys(scheme); len(found.Data[other]) > 0 {
				m.scheme, key = scheme, other
			}
		}
	}
	if m.issuer, err = ca.ParsePEM(found.Data[key]); err != nil {
		err = fmt.Errorf("%s in the Secret %s/%s: %w", key, namespace, linkerd.IssuerName, err)
	}
	return err
}

// changedAt returns when the content of a ConfigMap or Secret was changed, as the API server has recorded it: the last
// write of any field of its data. An API server without that record has at least the time of its creation.
func changedAt(meta *metav1.ObjectMeta) time.Time {
	last := meta.CreationTimestamp.Time
	for _, entry := range meta.ManagedFields {
		var fields map[string]json.RawMessage
		if entry.FieldsV1 == nil || entry.Time == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, writes := fields["f:data"]; writes && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	return last
}

// A proxyPod is a Pod whose proxy does not trust an anchor.
type proxyPod struct{ namespace, name string }

// proxiesBehind returns the Pods of a mesh whose proxies have started without an anchor.
func (m *meshCerts) proxiesBehind(
	ctx context.Context, client kubernetes.Interface, namespace string, anchor *x509.Certificate,
) (behind []proxyPod, total int, err error) {
	options := metav1.ListOptions{LabelSelector: linkerd.ControlPlaneLabel + "=" + namespace, Limit: podPage}
	for {
		list, err := client.CoreV1().Pods("").List(ctx, options)
		if err != nil {
			return nil, 0, fmt.Errorf("which proxies have the new anchor? list Pods: %w", err)
		}

		for i := range list.Items {
			pod := &list.Items[i]
			proxy := proxyOfPod(pod)
			if proxy == nil || hasEnded(pod) {
				continue
			}
			total++
			if !m.trusts(pod, proxy, anchor) {
				behind = append(behind, proxyPod{pod.Namespace, pod.Name})
			}
		}

		if options.Continue = list.Continue; options.Continue == "" {
			return behind, total, nil
		}
	}
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// proxyOfPod returns the container of a proxy, which may be one that begins before others; nil if there is none.
func proxyOfPod(pod *corev1.Pod) *corev1.Container {
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			if containers[i].Name == linkerd.ProxyContainer {
				return &containers[i]
			}
		}
	}
	return nil
}

// AnchorsOfProxy returns the anchors that the proxy of a Pod trusts (PEM), as an injector has written them there. A
// proxy of the control plane reads them from elsewhere.
func AnchorsOfProxy(pod *corev1.Pod) (bundle string, is bool) {
	proxy := proxyOfPod(pod)
	if proxy == nil {
		return "", false
	}
	return anchorsIn(proxy)
}

func anchorsIn(proxy *corev1.Container) (bundle string, is bool) {
	for _, variable := range proxy.Env {
		if variable.Name == linkerd.AnchorsVariable && variable.ValueFrom == nil {
			return variable.Value, true
		}
	}
	return "", false
}

// trusts reports whether a proxy trusts an anchor. Those of most proxies are in the Pod, where an injector has written
// them. Those of the control plane are read from the ConfigMap when the container starts.
func (m *meshCerts) trusts(pod *corev1.Pod, proxy *corev1.Container, anchor *x509.Certificate) bool {
	if text, is := anchorsIn(proxy); is {
		bundle, _ := ca.ParsePEM([]byte(text)) // a proxy does not start with what cannot be read
		return slices.ContainsFunc(bundle, anchor.Equal)
	}

	started := startOf(pod)
	return started.IsZero() || !m.bundleSince.IsZero() && started.After(m.bundleSince.Add(bundleDelay))
}

// startOf returns when the proxy of a Pod has started; zero if it has not.
func startOf(pod *corev1.Pod) time.Time {
	for _, statuses := range [][]corev1.ContainerStatus{
		pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses,
	} {
		for _, status := range statuses {
			if status.Name == linkerd.ProxyContainer && status.State.Running != nil {
				return status.State.Running.StartedAt.Time
			}
		}
	}
	return time.Time{}
}

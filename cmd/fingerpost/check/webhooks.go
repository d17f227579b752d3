package check

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/inject"
)

const (
	maxConfigurations = 200 // of webhooks, that are looked at
	maxSlices         = 100 // EndpointSlices of a webhook's Service that are

	// webhookSoon is how long before its end the certificate of a webhook should be replaced, or a third of its life.
	webhookSoon = 30 * 24 * time.Hour
)

// A meshWebhook is one webhook of a mesh, as it is registered.
type meshWebhook struct {
	name    string
	since   time.Time // when its configuration was made
	policy  *admissionv1.FailurePolicyType
	client  admissionv1.WebhookClientConfig
	rules   []admissionv1.RuleWithOperations
	asked   *metav1.LabelSelector // Namespaces it is asked about
	objects *metav1.LabelSelector // likewise
	mutates bool
}

// injects reports whether it is that which adds proxies to Pods.
func (w *meshWebhook) injects() bool {
	for _, rule := range w.rules {
		for _, resource := range rule.Resources {
			if w.mutates && (resource == "pods" || resource == "*") {
				return true
			}
		}
	}
	return false
}

// isOf reports whether it is served by the control plane in a namespace. One without a Service has Linkerd's name.
func (w *meshWebhook) isOf(namespace string) bool {
	if w.client.Service == nil {
		return strings.HasSuffix(w.name, ".linkerd.io")
	}
	return w.client.Service.Namespace == namespace
}

// text describes what follows from how it is registered.
func (w *meshWebhook) text() string {
	text := "failurePolicy " + string(*w.policy)
	if selector := metav1.FormatLabelSelector(w.asked); w.asked != nil && selector != "<none>" {
		text += ", for namespaces with " + selector
	}
	return text
}

// readWebhooks returns the webhooks of the mesh. An API server without the kinds has none.
func (e *environment) readWebhooks(ctx context.Context) (all []meshWebhook, err error) {
	add := func(w meshWebhook) {
		if w.policy == nil {
			w.policy = new(admissionv1.Fail)
		}
		if w.isOf(e.namespace) {
			all = append(all, w)
		}
	}
	options := metav1.ListOptions{Limit: maxConfigurations}

	mutating, err := e.client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, options)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	for i := 0; err == nil && i < len(mutating.Items); i++ {
		since := mutating.Items[i].CreationTimestamp.Time
		for _, w := range mutating.Items[i].Webhooks {
			add(meshWebhook{
				w.Name, since, w.FailurePolicy, w.ClientConfig, w.Rules, w.NamespaceSelector, w.ObjectSelector, true,
			})
		}
	}

	validating, err := e.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, options)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}

	for i := 0; err == nil && i < len(validating.Items); i++ {
		since := validating.Items[i].CreationTimestamp.Time
		for _, w := range validating.Items[i].Webhooks {
			add(meshWebhook{
				w.Name, since, w.FailurePolicy, w.ClientConfig, w.Rules, w.NamespaceSelector, w.ObjectSelector, false,
			})
		}
	}
	return all, nil
}

// checkWebhook returns a check of one webhook: that its Service has ready endpoints, and that API servers trust the
// certificate in its Secret. What may not be read is left out.
func (e *environment) checkWebhook(hook meshWebhook) func(context.Context) error {
	return func(ctx context.Context) error {
		service := hook.client.Service
		if service == nil {
			return detail(hook.text() + ", at a URL, which is not asked from here")
		}

		if err := e.checkEndpoints(ctx, service); err != nil {
			return fmt.Errorf("%w; %s", err, hook.withoutIt())
		}

		ends, err := e.checkBundle(ctx, &hook)
		switch {
		case isWarning(err):
			return err
		case err != nil:
			return fmt.Errorf("%w; %s", err, hook.withoutIt())
		case ends.IsZero():
			return detail(hook.text() + "; you may not read its certificate")
		}
		return detail(hook.text() + "; its certificate ends at " + ends.UTC().Format(time.RFC3339))
	}
}

// withoutIt returns what follows while API servers cannot ask it.
func (w *meshWebhook) withoutIt() string {
	switch {
	case *w.policy == admissionv1.Fail:
		return "until then API servers refuse what it is to be asked about (failurePolicy Fail)"
	case w.injects():
		return "until then Pods get no proxy (failurePolicy Ignore)"
	}
	return "until then objects are not checked (failurePolicy Ignore)"
}

// checkEndpoints returns an error if a Service is missing, or has no ready endpoint.
func (e *environment) checkEndpoints(ctx context.Context, service *admissionv1.ServiceReference) error {
	name := service.Namespace + "/" + service.Name
	_, err := e.client.CoreV1().Services(service.Namespace).Get(ctx, service.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return permanentErrorf("there is no Service %s: upgrade the release that has it, or remove the webhook", name)
	case err != nil && !apierrors.IsForbidden(err):
		return err
	}

	list, err := e.client.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service.Name, Limit: maxSlices,
	})
	if apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return err
	}

	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				return nil
			}
		}
	}
	return fmt.Errorf("the Service %s has no ready endpoint: see the Pods that it selects", name)
}

// checkBundle returns when the certificate of a webhook ends, which is in the Secret that Linkerd's charts and ours
// name after its Service; zero if that may not be read. The error is why API servers do not trust it.
func (e *environment) checkBundle(ctx context.Context, w *meshWebhook) (ends time.Time, err error) {
	service := w.client.Service
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(w.client.CABundle) {
		return ends, errors.New("its caBundle has no certificate, so that API servers trust none")
	}

	name := service.Name + "-k8s-tls"
	secret, err := e.client.CoreV1().Secrets(service.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return ends, nil
	case err != nil:
		return ends, err
	}

	host := service.Name + "." + service.Namespace + ".svc"
	ends, err = leafEnds(secret.Data[corev1.TLSCertKey], authorities, host, time.Now())
	if isWarning(err) {
		err = permanent{warningf("%w: renew the Secret %s/%s", err, service.Namespace, name)}
	} else if err != nil {
		err = fmt.Errorf("%w: renew the Secret %s/%s", err, service.Namespace, name)
	}
	return ends, err
}

// leafEnds returns when the certificate of a server of a name ends, which is the first one of a chain (PEM). The error
// is why clients do not trust it, or will not for long.
func leafEnds(chain []byte, authorities *x509.CertPool, host string, now time.Time) (ends time.Time, err error) {
	block, _ := pem.Decode(chain)
	if block == nil {
		return ends, errors.New("there is no certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return ends, fmt.Errorf("its certificate cannot be read: %w", err)
	}

	between := x509.NewCertPool()
	between.AppendCertsFromPEM(chain)
	_, err = leaf.Verify(x509.VerifyOptions{
		DNSName: host, Roots: authorities, Intermediates: between, CurrentTime: now,
	})
	ends = leaf.NotAfter

	at := ends.UTC().Format(time.RFC3339)
	switch soon := min(webhookSoon, ends.Sub(leaf.NotBefore)/3); {
	case ends.Before(now):
		return ends, fmt.Errorf("its certificate has ended at %s", at)
	case err != nil:
		return ends, fmt.Errorf("its caBundle does not lead to its certificate: %w", err)
	case ends.Sub(now) < soon:
		return ends, warningf("its certificate ends at %s, within %s", at, daysText(ends.Sub(now)))
	}
	return ends, nil
}

// daysText returns a time in days, or in hours if it is less than two days.
func daysText(d time.Duration) string {
	if d < 48*time.Hour {
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// trialNamespace is where it is tried whether Pods get a proxy. Every cluster has it.
const trialNamespace = metav1.NamespaceDefault

// checkInjection sends a Pod that asks for a proxy, to be thrown away (a dry run): the API server asks the webhook as
// it does in earnest, over TLS, with its caBundle.
func (e *environment) checkInjection(ctx context.Context, w *meshWebhook) error {
	if namespace, err := e.client.CoreV1().Namespaces().Get(ctx, trialNamespace, metav1.GetOptions{}); err == nil {
		_, reason := inject.Decide(namespace.Annotations[inject.InjectAnnotation], "enabled")
		if reason != "" || !matches(w.asked, namespace.Labels) {
			return skipped{"the webhook leaves out namespace " + trialNamespace + ", in which it would be tried"}
		}
	}

	trial := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "fingerpost-check-", Annotations: map[string]string{inject.InjectAnnotation: "enabled"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "check", Image: "fingerpost.invalid/check"}}},
	}
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

	got, err := e.client.CoreV1().Pods(trialNamespace).Create(ctx, trial, options)

	switch {
	case apierrors.IsForbidden(err):
		return skipped{"the Pod is not tried: " + err.Error()}
	case apierrors.IsNotFound(err):
		return errSkipped
	case err != nil:
		return fmt.Errorf("a Pod in namespace %s that is not kept: %w", trialNamespace, err)
	case got.Labels[linkerd.ControlPlaneLabel] == "":
		return fmt.Errorf("a Pod in namespace %s that is not kept gets none: the API server does not reach the "+
			"webhook, or does not trust its certificate, or the webhook does not have its values: see its log",
			trialNamespace)
	}
	return detail("tried in namespace " + trialNamespace + ", by a Pod that is not kept")
}

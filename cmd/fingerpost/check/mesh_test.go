package check

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/identity/identitytest"
	"github.com/fingerpost/fingerpost/inject"
)

const (
	hooksPath     = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
	podsPath      = "/api/v1/pods"
	withoutPath   = podsPath + "?!linkerd.io/control-plane-ns,!linkerd.io/control-plane-component"
	injectedPath  = podsPath + "?linkerd.io/control-plane-ns=linkerd"
	hookSlices    = "/apis/discovery.k8s.io/v1/namespaces/linkerd/endpointslices"
	hookSecret    = "/api/v1/namespaces/linkerd/secrets/linkerd-proxy-injector-k8s-tls"
	trialPath     = "/api/v1/namespaces/default/pods"
	anchorsMap    = configMaps + "linkerd-identity-trust-roots"
	injectorName  = "linkerd-proxy-injector"
	injectorCheck = "mesh/the webhook linkerd-proxy-injector.linkerd.io is served: "
)

func typed(kind, version string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: version}
}

// metadataOf is a list of metadata, as API servers answer.
func metadataOf(all ...metav1.ObjectMeta) metav1.PartialObjectMetadataList {
	list := metav1.PartialObjectMetadataList{TypeMeta: typed("PartialObjectMetadataList", "meta.k8s.io/v1")}
	for _, meta := range all {
		list.Items = append(list.Items, metav1.PartialObjectMetadata{
			TypeMeta: typed("PartialObjectMetadata", "meta.k8s.io/v1"), ObjectMeta: meta,
		})
	}
	return list
}

// webhookAuthority returns an authority, and the certificate of the webhook's Service that it has issued for a time.
func webhookAuthority(t *testing.T, life time.Duration) (bundle, leaf []byte) {
	t.Helper()
	authority := identitytest.NewCA(t, "hooks", identitytest.P256(t), nil)
	of := identitytest.NewCA(t, injectorName, identitytest.P256(t), authority, identitytest.NoCA,
		identitytest.Begins(time.Now().Add(-1000*time.Hour)), identitytest.Ends(time.Now().Add(life)),
		func(c *x509.Certificate) { c.DNSNames = []string{injectorName + ".linkerd.svc"} })
	return authority.PEM(), of.PEM()
}

// installed is a mesh in which nothing is wrong: a webhook, a Namespace that asks for proxies, and two Pods with them.
func installed(t *testing.T) *clusterAPI {
	t.Helper()
	a := prepared(t, 2000*time.Hour)
	bundle, leaf := webhookAuthority(t, 2000*time.Hour)
	a.objects[hooksPath] = admissionv1.MutatingWebhookConfigurationList{
		TypeMeta: typed("MutatingWebhookConfigurationList", "admissionregistration.k8s.io/v1"),
		Items: []admissionv1.MutatingWebhookConfiguration{{
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0))},
			Webhooks: []admissionv1.MutatingWebhook{{
				Name: injectorName + ".linkerd.io", FailurePolicy: new(admissionv1.Ignore),
				ClientConfig: admissionv1.WebhookClientConfig{
					Service: &admissionv1.ServiceReference{Namespace: "linkerd", Name: injectorName}, CABundle: bundle,
				},
				Rules: []admissionv1.RuleWithOperations{
					{Rule: admissionv1.Rule{Resources: []string{"pods", "services"}}},
				},
				NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
					Key: "config.linkerd.io/admission-webhooks", Operator: "NotIn", Values: []string{"disabled"},
				}}},
			}},
		}},
	}
	a.objects["/api/v1/namespaces/linkerd/services/"+injectorName] = corev1.Service{TypeMeta: typed("Service", "v1")}
	a.objects[hookSlices] = discoveryv1.EndpointSliceList{
		TypeMeta: typed("EndpointSliceList", "discovery.k8s.io/v1"),
		Items:    []discoveryv1.EndpointSlice{{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}},
	}
	a.objects[hookSecret] = corev1.Secret{
		TypeMeta: typed("Secret", "v1"), Data: map[string][]byte{corev1.TLSCertKey: leaf},
	}
	a.objects[trialPath] = corev1.Pod{
		TypeMeta:   typed("Pod", "v1"),
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"linkerd.io/control-plane-ns": "linkerd"}},
	}
	a.objects[configMaps+"linkerd-config"] = corev1.ConfigMap{
		TypeMeta: typed("ConfigMap", "v1"),
		Data:     map[string]string{"values": "linkerdVersion: edge-2\nidentity: {externalCA: true}\n"},
	}

	asks := map[string]string{inject.InjectAnnotation: "enabled"}
	a.objects["/api/v1/namespaces"] = metadataOf(
		metav1.ObjectMeta{Name: "shop", Annotations: asks}, metav1.ObjectMeta{Name: "plain"},
		metav1.ObjectMeta{
			Name: "off", Annotations: asks,
			Labels: map[string]string{"config.linkerd.io/admission-webhooks": "disabled"},
		})
	a.objects[withoutPath] = metadataOf(metav1.ObjectMeta{Namespace: "plain", Name: "p"})

	anchors := a.objects[anchorsMap].(corev1.ConfigMap).Data["ca-bundle.crt"]
	injected := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{
			inject.VersionAnnotation: "edge-2", inject.AnchorsAnnotation: "sum",
		}}
	}
	a.objects[injectedPath] = metadataOf(injected("a"), injected("b"))
	a.objects["/api/v1/namespaces/shop/pods/a"] = proxied(anchors)
	return a
}

// proxied is a Pod whose proxy trusts anchors.
func proxied(anchors string) corev1.Pod {
	return corev1.Pod{TypeMeta: typed("Pod", "v1"), Spec: corev1.PodSpec{InitContainers: []corev1.Container{{
		Name: "linkerd-proxy", Env: []corev1.EnvVar{{Name: "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", Value: anchors}},
	}}}}
}

// ofWeb is a Pod of the Deployment web.
func ofWeb(i int, created time.Time) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "shop", Name: fmt.Sprint("web-5f-", i), CreationTimestamp: metav1.NewTime(created),
		Labels:          map[string]string{"pod-template-hash": "5f"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-5f", Controller: new(true)}},
	}
}

// What is wrong with a mesh after its installation is reported, in one check, and nothing where nothing is.
func TestMesh(t *testing.T) {
	const missing = "warning mesh/all Pods that ask for a proxy have one: "
	const proxies = "mesh/proxies have the version and the anchors that new ones get: "
	before, after := time.Unix(1e9-60, 0), time.Unix(1e9+60, 0)

	for name, c := range map[string]struct {
		change func(t *testing.T, a *clusterAPI)
		want   string // of the only line: parts of it, between dots; empty for none
	}{
		"nothing is wrong": {func(*testing.T, *clusterAPI) {}, ""},
		"an issuer that ends soon": {func(t *testing.T, a *clusterAPI) {
			t.Helper()
			other := prepared(t, 100*time.Hour)
			a.objects[issuerPath], a.objects[anchorsMap] = other.objects[issuerPath], other.objects[anchorsMap]
			a.objects[injectedPath] = metadataOf()
		}, "warning mesh/the trust anchors and the issuer of the mesh last: …it ends soon"},
		"a webhook without endpoints": {func(_ *testing.T, a *clusterAPI) {
			a.objects[hookSlices] = discoveryv1.EndpointSliceList{
				TypeMeta: typed("EndpointSliceList", "discovery.k8s.io/v1"),
			}
		}, "error " + injectorCheck + "the Service linkerd/linkerd-proxy-injector has no ready endpoint: …Pods get no proxy"},
		"a caBundle of before": {func(t *testing.T, a *clusterAPI) {
			t.Helper()
			bundle, _ := webhookAuthority(t, time.Hour)
			list := a.objects[hooksPath].(admissionv1.MutatingWebhookConfigurationList)
			list.Items[0].Webhooks[0].ClientConfig.CABundle = bundle
			list.Items[0].Webhooks[0].FailurePolicy = new(admissionv1.Fail)
		}, "error " + injectorCheck + "its caBundle does not lead to …failurePolicy Fail"},
		"a webhook's certificate that ends": {func(t *testing.T, a *clusterAPI) {
			t.Helper()
			bundle, leaf := webhookAuthority(t, 5*24*time.Hour+time.Minute)
			list := a.objects[hooksPath].(admissionv1.MutatingWebhookConfigurationList)
			list.Items[0].Webhooks[0].ClientConfig.CABundle = bundle
			a.objects[hookSecret].(corev1.Secret).Data[corev1.TLSCertKey] = leaf
		}, "warning " + injectorCheck + "its certificate ends at …within 5 days: renew the Secret"},
		"a Secret that may not be read": {func(_ *testing.T, a *clusterAPI) {
			a.codes[hookSecret] = http.StatusForbidden
		}, ""},
		"an API server that does not reach the webhook": {func(_ *testing.T, a *clusterAPI) {
			a.objects[trialPath] = corev1.Pod{TypeMeta: typed("Pod", "v1")}
		}, "error mesh/a Pod that asks for a proxy gets one: a Pod in namespace default that is not kept gets none"},
		"Pods of before the webhook": {func(_ *testing.T, a *clusterAPI) {
			a.objects[withoutPath] = metadataOf(ofWeb(1, before), ofWeb(2, before), ofWeb(3, after),
				metav1.ObjectMeta{Namespace: "off", Name: "p", CreationTimestamp: metav1.NewTime(after)})
		}, missing + "4 Pods without a proxy, of 3 owners:; " +
			"Deployment shop/web: 2 Pods: created before the webhook was registered…; " +
			"Pod off/p: 1 Pod: the webhook leaves out its Namespace…; " +
			"Deployment shop/web: 1 Pod: created while the webhook did not answer"},
		"no webhook": {func(_ *testing.T, a *clusterAPI) {
			delete(a.objects, hooksPath)
			a.objects[withoutPath] = metadataOf(ofWeb(1, before))
		}, missing + "1 Pod without …: no webhook that adds proxies is registered"},
		"Pods that cannot have one": {func(_ *testing.T, a *clusterAPI) {
			a.objects[withoutPath] = metadataOf(ofWeb(1, after))
			a.objects["/api/v1/namespaces/shop/pods/web-5f-1"] = corev1.Pod{
				TypeMeta: typed("Pod", "v1"), Spec: corev1.PodSpec{HostNetwork: true},
			}
		}, ""},
		"proxies of another version": {func(_ *testing.T, a *clusterAPI) {
			list := a.objects[injectedPath].(metav1.PartialObjectMetadataList)
			list.Items[1].Annotations[inject.VersionAnnotation] = "edge-1"
		}, "warning " + proxies + "2 Pods with proxies: 1 of edge-1, 1 of edge-2; 1 is not of edge-2"},
		"proxies of another authority": {func(t *testing.T, a *clusterAPI) {
			t.Helper()
			bundle, _ := webhookAuthority(t, time.Hour)
			a.objects["/api/v1/namespaces/shop/pods/a"] = proxied(string(bundle))
		}, "error " + proxies + "…2 Pods, such as shop/a, trust none of the mesh's anchors"},
		"proxies without a new anchor": {func(t *testing.T, a *clusterAPI) {
			t.Helper()
			bundle, _ := webhookAuthority(t, time.Hour)
			a.objects[anchorsMap].(corev1.ConfigMap).Data["ca-bundle.crt"] += string(bundle)
		}, "2 Pods, such as shop/a, do not trust all of the mesh's anchors yet"},
	} {
		t.Run(name, func(t *testing.T) {
			a := installed(t)
			c.change(t, a)
			server := httptest.NewServer(a)
			defer server.Close()

			w := &checkWorld{api: a, args: []string{"--timeout", "5s"}}
			var lines []string
			for _, line := range w.lines(t, cmdtest.WriteKubeconfig(t, server.URL)) {
				if strings.Contains(line, " mesh/") {
					lines = append(lines, line)
				}
			}
			got := strings.Join(lines, "\n")

			rest := got
			for part := range strings.SplitSeq(c.want, "…") {
				_, after, found := strings.Cut(rest, part)
				if !found {
					t.Errorf("it reports %q, want %q", got, c.want)
					return
				}
				rest = after
			}
			if (got == "") != (c.want == "") {
				t.Errorf("it reports %q, want %q", got, c.want)
			}
		})
	}
}

// A report of very many Pods is bounded, and has all of them in its counts.
func TestManyOwners(t *testing.T) {
	var all []*leftOut
	for i := range 3 * maxNamed {
		of := podOwner{"Job", "shop", fmt.Sprintf("j%02d", i), "restart it"}
		all = append(all, &leftOut{podOwner: of, count: i + 1})
	}
	sortLeftOut(all)
	text := leftOutReport(all, 2, true).Error()
	if lines := strings.Split(text, "\n"); len(lines) != 1+maxNamed+3 ||
		!strings.HasPrefix(lines[0], "465 Pods without a proxy, of 30 owners") ||
		!strings.Contains(lines[1], "j29: 30 Pods") ||
		lines[maxNamed+1] != "and 20 more" || !strings.Contains(text, "more than 20,000 Pods") {
		t.Errorf("it is %q", text)
	}
}

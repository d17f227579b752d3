package policy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	listen "github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/e2e/charts"
)

// The webhook, registered as the chart does: what it denies, and what it warns of. Without an answer the API server
// does as its failurePolicy has it. A change of a status is not reviewed.
func TestWebhook(t *testing.T) {
	t.Parallel()
	const namespace = "webhook"
	shared.apply(t, namespace, shop)
	certificate, key := selfSigned(t)
	dir := t.TempDir()
	files := listen.TLSFiles{Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	do(t, os.WriteFile(files.Certificate, certificate, 0o600))
	do(t, os.WriteFile(files.Key, key, 0o600))

	r := shared.serve(t, "webhook-0", func(o *app.Options) {
		o.Webhooks = app.WebhookOptions{
			Addrs: []string{"webhook"}, TLS: []app.WebhookFiles{{Server: "webhook", TLSFiles: files}},
			Flag: "-webhook-tls-dir", Profiles: true, Policy: true,
		}
	})
	configuration := shared.webhook(t, namespace, r.webhook, certificate)
	do(t, shared.Apply(t.Context(), charts.Manifest(configuration)))
	author := shared.newAuthor(t, namespace)
	eventually(t, 5*time.Second, "the API server asks the webhook", func(ctx context.Context) error {
		_, err := author.create(ctx, denied)
		return refuses(err, "10.0.0.0/33")
	})

	for _, c := range []struct{ object, denied, warning string }{
		{denied, "10.0.0.0/33", ""},
		{twoIdentities, "more than one", ""},
		{gatewayRoute, "", ""},
		{mirrors, "", "RequestMirror"},
		{ofNoServer, "", "Server gone does not exist at present"},
		{strings.NewReplacer("v1beta3", "v1beta1", ", accessPolicy: all-unauthenticated", "").Replace(server), "", ""},
	} {
		warnings, err := author.create(t.Context(), c.object)
		switch {
		case c.denied != "":
			if err := refuses(err, c.denied); err != nil {
				t.Errorf("%s: %v", c.object, err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.object, err)
		case c.warning == "" && len(warnings) > 0, !strings.Contains(strings.Join(warnings, "; "), c.warning):
			t.Errorf("%s: there are warnings %q, want %q", c.object, warnings, c.warning)
		}
	}

	do(t, r.stop())
	warned, err := author.create(t.Context(), strings.Replace(denied, "name: denied", "name: ignored", 1))
	if err != nil {
		t.Errorf("with Ignore, without an answer: %v (%q)", err, warned)
	}
	setFailurePolicy(t, configuration, "Fail")
	do(t, shared.Apply(t.Context(), charts.Manifest(configuration)))
	eventually(t, 5*time.Second, "with Fail, without an answer", func(ctx context.Context) error {
		_, err := author.create(ctx, strings.Replace(denied, "name: denied", "name: failed", 1))
		if err == nil {
			return shared.Delete(ctx, namespace, "networkauthentications.policy.linkerd.io/failed")
		}
		return refuses(err, "failed calling webhook")
	})

	status := []byte(`{"status": {"parents": []}}`)
	_, err = shared.dynamic.Resource(gatewayRoutes).Namespace(namespace).Patch(t.Context(), "gateway",
		types.MergePatchType, status, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Errorf("a change of a status is reviewed: %v", err)
	}
}

const (
	denied = `apiVersion: policy.linkerd.io/v1alpha1
kind: NetworkAuthentication
metadata: {name: denied, namespace: $NS}
spec: {networks: [{cidr: 10.0.0.0/33}]}
`
	twoIdentities = `apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: two, namespace: $NS}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: http}
  requiredAuthenticationRefs:
  - {group: policy.linkerd.io, kind: MeshTLSAuthentication, name: a}
  - {kind: ServiceAccount, name: b}
`
	ofNoServer = `apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: gone, namespace: $NS}
spec: {targetRef: {group: policy.linkerd.io, kind: Server, name: gone}, requiredAuthenticationRefs: []}
`
	mirrors = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: mirrors, namespace: $NS}
spec:
  parentRefs: [{group: "", kind: Service, name: web, port: 8080}]
  rules:
  - filters: [{type: RequestMirror, requestMirror: {backendRef: {name: api, port: 80}}}]
`
)

func refuses(err error, want string) error {
	if err == nil || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("%v, want an error with %q", err, want) //nolint:errorlint // the error may be none
	}
	return nil
}

// webhook returns the configuration of the chart in the place of Linkerd's. A test has no network in which a Service
// leads to a Pod, so it leads to an address; and it is for one namespace.
func (s *site) webhook(t *testing.T, namespace, addr string, certificate []byte) *unstructured.Unstructured {
	t.Helper()
	trust := map[string]any{"caBundle": string(certificate)}
	set, err := yaml.Marshal(map[string]any{"policy": map[string]any{
		"enabled": true, "webhook": map[string]any{"enabled": true, "tls": trust},
	}})
	do(t, err)
	objects, err := charts.Render(t.Context(), charts.Server, "linkerd", string(set),
		"-values", "../../charts/fingerpost/values-drop-in.yaml")
	do(t, err)

	at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetName() == "linkerd-policy-validator-webhook-config"
	})
	if at < 0 {
		t.Fatal("the chart has no configuration of the webhook")
	}
	o := objects[at]
	hook := hookOf(t, o)
	client := hook["clientConfig"].(map[string]any)
	delete(client, "service")
	client["url"] = "https://" + addr + "/"
	selector := hook["namespaceSelector"].(map[string]any)
	selector["matchLabels"] = map[string]any{"kubernetes.io/metadata.name": namespace}
	return o
}

func hookOf(t *testing.T, configuration *unstructured.Unstructured) map[string]any {
	t.Helper()
	hooks := configuration.Object["webhooks"].([]any)
	if len(hooks) != 1 {
		t.Fatalf("there are %d webhooks", len(hooks))
	}
	return hooks[0].(map[string]any)
}

func setFailurePolicy(t *testing.T, configuration *unstructured.Unstructured, to string) {
	t.Helper()
	hookOf(t, configuration)["failurePolicy"] = to
}

// An author creates objects, and gets warnings.
type author struct {
	t         *testing.T
	site      *site
	namespace string
	client    dynamic.Interface

	mu       sync.Mutex
	warnings []string
}

func (s *site) newAuthor(t *testing.T, namespace string) *author {
	t.Helper()
	a := &author{t: t, site: s, namespace: namespace}
	config := s.AdminConfig()
	config.WarningHandler = a
	var err error
	a.client, err = dynamic.NewForConfig(config)
	do(t, err)
	return a
}

// HandleWarningHeader keeps a warning of the API server.
func (a *author) HandleWarningHeader(_ int, _, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warnings = append(a.warnings, text)
}

// create creates an object, and returns the warnings about it.
func (a *author) create(ctx context.Context, manifest string) (warnings []string, err error) {
	a.t.Helper()
	objects, err := charts.Objects([]byte(strings.ReplaceAll(manifest, "$NS", a.namespace)))
	do(a.t, err)
	o := objects[0]
	plural := map[string]string{
		"HTTPRoute": "httproutes", "NetworkAuthentication": "networkauthentications",
		"AuthorizationPolicy": "authorizationpolicies", "Server": "servers",
	}[o.GetKind()]

	a.mu.Lock()
	a.warnings = nil
	a.mu.Unlock()
	_, err = a.client.Resource(o.GroupVersionKind().GroupVersion().WithResource(plural)).Namespace(a.namespace).
		Create(ctx, o, metav1.CreateOptions{})
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.warnings, err
}

// selfSigned returns a certificate for this machine that is its own authority, and its key, in PEM.
func selfSigned(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	do(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	do(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	do(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

package cli

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/ca"
	"github.com/fingerpost/fingerpost/identity/identitytest"
)

// What the mesh of these tests has: leaves of an hour, and Pods that take half an hour to be started again.
const (
	testLeaf    = time.Hour
	testSkew    = 10 * time.Second
	testProxies = 6
	testKubelet = time.Minute // until a mounted object is written into a Pod
)

// A testMesh is a cluster with a control plane and proxies, all of which behave as the real ones do: the control plane
// takes what is mounted, a proxy has the anchors of its start and renews its leaf when 70 % of it are over.
type testMesh struct {
	t         *testing.T
	server    *apitest.Server
	client    kubernetes.Interface
	authority *identity.Authority
	proxies   []*testProxy
	refused   int // calls of Certify, and handshakes between proxies
	mounted   time.Time
}

type testProxy struct {
	name    string
	key     crypto.Signer
	inline  bool // an injector has written its anchors into the Pod
	anchors *x509.CertPool
	leaf    *identity.Leaf
}

type anybody struct{}

func (anybody) Review(_ context.Context, token, _ string) (identity.Review, error) {
	return identity.Review{Authenticated: true, User: "system:serviceaccount:shop:" + token}, nil
}

var testDomain = identity.Domain{Namespace: "linkerd", TrustDomain: "shop.example"}

// newTestMesh returns a mesh with what `certs new` prints.
func newTestMesh(t *testing.T, network *apitest.Network, scheme string) *testMesh {
	t.Helper()
	m := &testMesh{t: t, server: network.Server("east")}
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(m.server.Kubeconfig(m.server.Token())))
	if err != nil {
		t.Fatal(err)
	}
	config.Dial = network.Dial
	if m.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	m.server.ApplyYAML(fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: linkerd-config, namespace: linkerd}
data:
  values: |
    identityTrustDomain: shop.example
    identity: {externalCA: true, issuer: {scheme: %s, issuanceLifetime: %s, clockSkewAllowance: %s}}
`, scheme, testLeaf, testSkew))

	made, err := certs(t, "new", "--trust-domain", testDomain.TrustDomain, "--scheme", scheme,
		"--anchor-cert", filepath.Join(t.TempDir(), "old.crt"), "--anchor-key", filepath.Join(t.TempDir(), "old.key"))
	if err != nil {
		t.Fatal(err)
	}
	m.apply(made)

	m.authority = identity.NewAuthority(identity.Options{
		Domain: testDomain, Terms: identity.Terms{Lifetime: testLeaf, Skew: testSkew}, Reviewer: anybody{},
	})
	m.mount()
	for i := range testProxies {
		p := &testProxy{name: fmt.Sprintf("p%d", i), key: identitytest.P256(t), inline: i > 0}
		m.proxies = append(m.proxies, p)
		m.start(p)
	}
	return m
}

// certs runs the command, and returns what it prints to stdout.
func certs(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := certsCommand("test")
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(t.Output())
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// apply applies what is printed. As an API server does, it records when fields of data were written.
func (m *testMesh) apply(manifests string) {
	m.t.Helper()
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			m.t.Fatal(err)
		}
		now := metav1.Now()
		object.SetManagedFields([]metav1.ManagedFieldsEntry{{
			Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:data":{}}`),
		}})
		m.server.Apply(object)
	}
	m.mounted = time.Now().Add(testKubelet)
}

// bundle is what the ConfigMap has.
func (m *testMesh) bundle() string {
	found := m.server.Get("configmaps", "linkerd", linkerd.AnchorsName)
	text, _, _ := unstructured.NestedString(found.Object, "data", linkerd.AnchorsKey)
	return text
}

// mount has the control plane take its issuer, if what is mounted can be one.
func (m *testMesh) mount() {
	m.t.Helper()
	secret, err := m.client.CoreV1().Secrets("linkerd").Get(m.t.Context(), linkerd.IssuerName, metav1.GetOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	scheme := linkerd.IssuerScheme
	if string(secret.Type) == linkerd.KubernetesScheme {
		scheme = linkerd.KubernetesScheme
	}

	certificate, key := linkerd.IssuerKeys(scheme)
	source := identity.Source{
		Certificate: secret.Data[certificate], Key: secret.Data[key], Anchors: []byte(m.bundle()),
	}
	issuer, err := identity.NewIssuer(source, testDomain, time.Now())
	if err != nil {
		m.t.Errorf("%s: an issuer that was printed is not taken: %v", time.Now().Format(time.TimeOnly), err)
		return
	}
	m.authority.Use(issuer)
}

// start starts the Pod of a proxy again.
func (m *testMesh) start(p *testProxy) {
	m.t.Helper()
	p.anchors, p.leaf = x509.NewCertPool(), nil
	p.anchors.AppendCertsFromPEM([]byte(m.bundle()))
	variable := fmt.Sprintf("{name: %s, valueFrom: {configMapKeyRef: {name: %s, key: %s}}}",
		linkerd.AnchorsVariable, linkerd.AnchorsName, linkerd.AnchorsKey)
	if p.inline {
		variable = fmt.Sprintf("{name: %s, value: %q}", linkerd.AnchorsVariable, m.bundle())
	}

	m.server.ApplyYAML(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: shop, labels: {linkerd.io/control-plane-ns: linkerd}}
spec:
  containers:
  - {name: app}
  - {name: linkerd-proxy, env: [%s]}
status:
  phase: Running
  containerStatuses: [{name: linkerd-proxy, state: {running: {startedAt: %s}}}]
`, p.name, variable, time.Now().UTC().Format(time.RFC3339)))
}

// minute lets a minute pass: leaves are renewed, and all proxies call each other.
func (m *testMesh) minute() {
	m.t.Helper()
	<-time.NewTimer(time.Minute).C // of a bubble
	now := time.Now()
	if !m.mounted.IsZero() && !now.Before(m.mounted) {
		m.mounted = time.Time{}
		m.mount()
	}

	for _, p := range m.proxies {
		if p.leaf == nil || now.After(p.leaf.Certificate.NotBefore.Add((testLeaf+2*testSkew)*7/10)) {
			m.renew(p)
		}
	}
	for _, client := range m.proxies {
		for _, server := range m.proxies {
			if !client.accepts(server, now) {
				m.refused++
			}
		}
	}
}

// renew gets a leaf for a proxy, which takes it if it leads to one of its anchors.
func (m *testMesh) renew(p *testProxy) {
	name := testDomain.Name("shop", p.name)
	leaf, refusal := m.authority.Certify(m.t.Context(), identity.Request{
		Identity: name, Token: []byte(p.name), Signing: identitytest.Signing(m.t, p.key, name),
	})
	if refusal != nil {
		m.refused++
		return
	}
	before := p.leaf
	p.leaf = leaf
	if !p.accepts(p, time.Now()) {
		p.leaf = before
		m.refused++
	}
}

func (p *testProxy) accepts(other *testProxy, now time.Time) bool {
	if other.leaf == nil {
		return false
	}
	above := x509.NewCertPool()
	for _, der := range other.leaf.Chain {
		if c, err := x509.ParseCertificate(der); err == nil {
			above.AddCert(c)
		}
	}
	_, err := other.leaf.Certificate.Verify(x509.VerifyOptions{
		Roots: p.anchors, Intermediates: above, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err == nil
}

// rotateMesh runs `certs rotate` every ten minutes until it is done, applies what it prints, and starts a Pod again
// each time that it asks for that. It returns what was printed, and the notes of the last run.
func (m *testMesh) rotateMesh(force bool) (steps []string, notes string) {
	m.t.Helper()
	dir := m.t.TempDir()
	next := 0 // proxy to be started again

	for range 60 {
		r := certRotator{certMaker: certMaker{
			version: "test", output: yamlOutput, domain: identity.Domain{Namespace: "linkerd"},
			files:      anchorFiles{filepath.Join(dir, "new.crt"), filepath.Join(dir, "new.key")},
			anchorLife: anchorLife, issuerLife: issuerLife,
		}, force: force, remove: m.others(dir)}
		var out, to bytes.Buffer
		err := r.rotate(m.t.Context(), m.client, &out, &to)
		notes = to.String()

		switch {
		case err != nil && ExitCode(err) != ExitNo:
			m.t.Fatal(err)
		case err != nil && out.Len() > 0:
			m.t.Fatalf("while something is to be waited for it prints %s", out.String())
		case err != nil && strings.Contains(notes, "do not trust"):
			m.start(m.proxies[next%testProxies])
			next++
		case out.Len() > 0:
			m.apply(out.String())
			steps = append(steps, kindOf(m.t, out.String()))
		case err == nil:
			return steps, notes
		}
		for range 10 {
			m.minute()
		}
	}
	m.t.Fatalf("it does not come to an end: %s", notes)
	return nil, ""
}

// others returns the fingerprints of all anchors but the new one, once there is one.
func (m *testMesh) others(dir string) (all []string) {
	content, err := readCertFile(filepath.Join(dir, "new.crt"))
	if err != nil {
		return nil
	}
	bundle, err := ca.ParsePEM([]byte(m.bundle()))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, c := range bundle {
		if !bytes.Equal(ca.EncodePEM(c), content) {
			all = append(all, ca.Fingerprint(c)[:12])
		}
	}
	return all
}

func kindOf(t *testing.T, document string) string {
	t.Helper()
	var object struct{ Kind string }
	if err := yaml.Unmarshal([]byte(document), &object); err != nil {
		t.Fatal(err)
	}
	return object.Kind
}

// An anchor takes over from another one in three steps, while proxies renew their leaves and call each other: no call
// is refused. Who does not wait sees some refused, so the mesh of this test notices.
func TestRotationRefusesNothing(t *testing.T) {
	for _, scheme := range []string{linkerd.IssuerScheme, linkerd.KubernetesScheme} {
		synctest.Test(t, func(t *testing.T) {
			network := apitest.NewNetwork()
			defer network.Close()
			m := newTestMesh(t, network, scheme)
			m.minute()
			began := time.Now()
			steps, notes := m.rotateMesh(false)

			if got := strings.Join(steps, " "); got != "ConfigMap Secret ConfigMap" {
				t.Errorf("%s: it prints %s", scheme, got)
			}
			if m.refused > 0 {
				t.Errorf("%s: %d calls were refused", scheme, m.refused)
			}
			if took := time.Since(began); took < testLeaf {
				t.Errorf("%s: it took %s: leaves of the old issuer were in use", scheme, took)
			}
			if !strings.HasPrefix(notes, "Done: ") {
				t.Errorf("%s: at the end: %s", scheme, notes)
			}

			for _, p := range m.proxies { // trusts the new anchor alone
				m.start(p)
			}
			for range 70 {
				m.minute()
			}
			if m.refused > 0 {
				t.Errorf("%s: %d calls were refused afterwards", scheme, m.refused)
			}
		})
	}

	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		m := newTestMesh(t, network, linkerd.IssuerScheme)
		m.minute()
		m.rotateMesh(true)
		for range 70 {
			m.minute()
		}
		if m.refused == 0 {
			t.Error("with --force nothing is refused: this test would not notice")
		}
	})
}

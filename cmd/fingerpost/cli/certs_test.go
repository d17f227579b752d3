package cli

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/ca"
	"github.com/fingerpost/fingerpost/identity/identitytest"
)

// inTemp has a test run where `certs` may write files.
func inTemp(t *testing.T) { t.Helper(); t.Chdir(t.TempDir()) }

// printed are the objects that a command has printed.
func printed(t *testing.T, text string) (secret corev1.Secret, bundle corev1.ConfigMap) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		into := any(&secret)
		if kindOf(t, document) == "ConfigMap" {
			into = &bundle
		}
		if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
			t.Fatal(err)
		}
	}
	return secret, bundle
}

// takes reports whether a control plane takes an issuer under a bundle.
func takes(t *testing.T, certificate, key []byte, bundle string) {
	t.Helper()
	source := identity.Source{Certificate: certificate, Key: key, Anchors: []byte(bundle)}
	if _, err := identity.NewIssuer(source, testDomain, time.Now()); err != nil {
		t.Error(err)
	}
}

// `certs new` prints the objects of Linkerd's chart, which a control plane takes. The key of the anchor is in a file
// for its owner alone, and nowhere else.
func TestCertsNew(t *testing.T) {
	for scheme, keys := range map[string][]string{
		linkerd.IssuerScheme:     {"crt.pem", "key.pem"},
		linkerd.KubernetesScheme: {"tls.crt", "tls.key", "ca.crt"},
	} {
		inTemp(t)
		out, err := certs(t, "new", "--trust-domain", "shop.example", "--scheme", scheme)
		if err != nil {
			t.Fatal(err)
		}
		secret, bundle := printed(t, out)

		labels := map[string]string{
			"linkerd.io/control-plane-component": "identity", "linkerd.io/control-plane-ns": "linkerd",
		}
		if secret.Name != "linkerd-identity-issuer" || secret.Namespace != "linkerd" || len(secret.Data) != len(keys) ||
			!cmp.Equal(secret.Labels, labels) || secret.Annotations["linkerd.io/created-by"] != "fingerpost/cli test" {
			t.Errorf("%s: %+v", scheme, secret.ObjectMeta)
		}
		if want := corev1.SecretType(scheme); scheme == linkerd.KubernetesScheme && secret.Type != want {
			t.Errorf("%s: type %s", scheme, secret.Type)
		}
		if bundle.Name != "linkerd-identity-trust-roots" || !cmp.Equal(bundle.Labels, labels) || len(bundle.Data) != 1 {
			t.Errorf("%s: %+v", scheme, bundle)
		}
		takes(t, secret.Data[keys[0]], secret.Data[keys[1]], bundle.Data["ca-bundle.crt"])

		for name, mode := range map[string]os.FileMode{"anchor.key": 0o600, "anchor.crt": 0o644} {
			if info, err := os.Stat(name); err != nil || info.Mode() != mode {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		written, err := os.ReadFile("anchor.crt")
		if err != nil || string(written) != bundle.Data["ca-bundle.crt"] {
			t.Errorf("the anchor in the file is not that of the ConfigMap: %v", err)
		}
		key, err := os.ReadFile("anchor.key")
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range secret.Data {
			if bytes.Contains(value, key) {
				t.Errorf("%s: the Secret has the key of the anchor", scheme)
			}
		}
	}
}

// No file is overwritten, and what is made of an anchor that cannot be kept is not printed.
func TestCertsNewOverwritesNothing(t *testing.T) {
	for _, there := range []string{"anchor.crt", "anchor.key"} {
		inTemp(t)
		if err := os.WriteFile(there, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := certs(t, "new")
		if err == nil || out != "" {
			t.Errorf("over %s it prints %q", there, out)
		}
		files, err := filepath.Glob("*")
		if err != nil || len(files) != 1 {
			t.Errorf("over %s it leaves %v, %v", there, files, err)
		}
		if content, err := os.ReadFile(there); err != nil || string(content) != "mine" {
			t.Errorf("%s: %q %v", there, content, err)
		}
	}
}

// As values of Linkerd's chart they are what its objects are made of.
func TestCertsValues(t *testing.T) {
	inTemp(t)
	out, err := certs(t, "new", "--trust-domain", "shop.example", "-o", "values")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		IdentityTrustAnchorsPEM string
		IdentityTrustDomain     string
		Identity                struct {
			Issuer struct {
				Scheme string
				TLS    struct{ CrtPEM, KeyPEM string }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(out), &values); err != nil {
		t.Fatal(err)
	}
	issuer := values.Identity.Issuer
	takes(t, []byte(issuer.TLS.CrtPEM), []byte(issuer.TLS.KeyPEM), values.IdentityTrustAnchorsPEM)
	if values.IdentityTrustDomain != "shop.example" || issuer.Scheme != linkerd.IssuerScheme {
		t.Errorf("%+v", values)
	}
}

// `certs issuer` makes the next issuer, and the first one of another cluster, under the same anchor.
func TestCertsIssuer(t *testing.T) {
	inTemp(t)
	first, err := certs(t, "new", "--trust-domain", "shop.example")
	if err != nil {
		t.Fatal(err)
	}
	_, bundle := printed(t, first)

	next, err := certs(t, "issuer", "--trust-domain", "shop.example", "--lifetime-issuer", "48h")
	if err != nil {
		t.Fatal(err)
	}
	secret, none := printed(t, next)
	takes(t, secret.Data["crt.pem"], secret.Data["key.pem"], bundle.Data["ca-bundle.crt"])
	made, err := ca.ParsePEM(secret.Data["crt.pem"])
	if err != nil || time.Until(made[0].NotAfter) > 48*time.Hour || none.Name != "" {
		t.Errorf("%v until %v, with %q", err, made[0].NotAfter, none.Name)
	}

	other, err := certs(t, "issuer", "--trust-domain", "shop.example", "--trust-roots", "-o", "values")
	if err != nil || !strings.Contains(other, "identityTrustAnchorsPEM") {
		t.Errorf("for another cluster: %s %v", other, err)
	}

	foreign := identitytest.NewCA(t, "root", identitytest.P256(t), nil)
	if err := os.WriteFile("foreign.key", foreign.KeyPEM(t), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--anchor-key", "foreign.key"},
		{"--anchor-key", "none.key"},
		{"--anchor-cert", "none.crt"},
		{"--anchor-cert", "anchor.key"},
		{"--anchor-key", "/dev/zero"},
	} {
		if out, err := certs(t, append([]string{"issuer"}, args...)...); err == nil || out != "" {
			t.Errorf("%v: %q", args, out)
		}
	}
}

// What no certificate can be made of is a usage error.
func TestCertsUsage(t *testing.T) {
	inTemp(t)
	for _, args := range [][]string{
		{"new", "--lifetime-anchor", "59m"},
		{"new", "--lifetime-issuer", "-1h"},
		{"new", "-L", "a.b"},
		{"new", "--trust-domain", "A"},
		{"new", "-o", "values", "--scheme", "kubernetes.io/tls"},
		{"rotate"},
		{"rotate", "--anchor-cert", "a", "--trust-domain", "-"},
	} {
		if out, err := certs(t, args...); ExitCode(err) != ExitUsage || out != "" {
			t.Errorf("%v: %v, %q", args, err, out)
		}
	}
	if files, err := filepath.Glob("*"); err != nil || len(files) > 0 {
		t.Errorf("it leaves %v", files)
	}
}

// rotateOnce runs `certs rotate` once, with a new anchor that was made before.
func (m *testMesh) rotateOnce(anchor *ca.Authority, output string) (out, notes string, err error) {
	m.t.Helper()
	dir := m.t.TempDir()
	files := anchorFiles{filepath.Join(dir, "new.crt"), filepath.Join(dir, "new.key")}
	if err := files.write(anchor); err != nil {
		m.t.Fatal(err)
	}
	r := certRotator{certMaker: certMaker{
		version: "test", output: output, domain: identity.Domain{Namespace: "linkerd"}, files: files,
		anchorLife: anchorLife, issuerLife: issuerLife,
	}}
	var o, n bytes.Buffer
	err = r.rotate(m.t.Context(), m.client, &o, &n)
	return o.String(), n.String(), err
}

// What cert-manager and trust-manager write is left to them: the step is described, and nothing is printed for kubectl.
// What Linkerd's chart writes, too, is printed with that warning, or as values.
func TestOtherWritersOfCerts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		m := newTestMesh(t, network, linkerd.IssuerScheme)
		anchor, err := ca.NewAnchor(testDomain, anchorLife, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		bundle := m.bundle()

		change := func(kind, name, field, key, value string) {
			object := m.server.Get(kind, "linkerd", name).DeepCopy()
			metadata, is := object.Object["metadata"].(map[string]any)
			if !is {
				t.Fatal("no metadata")
			}
			metadata[field] = map[string]any{key: value}
			m.server.Apply(object)
		}

		change("configmaps", linkerd.AnchorsName, "labels", trustManagerLabel, "roots")
		out, _, err := m.rotateOnce(anchor, yamlOutput)
		if ExitCode(err) != ExitNo || out != "" || !strings.Contains(err.Error(), `trust-manager writes the anchors`) ||
			!strings.Contains(err.Error(), ca.Fingerprint(anchor.Certificate)[:8]) {
			t.Errorf("trust-manager: %q %v", out, err)
		}

		m.server.ApplyYAML(`
apiVersion: v1
kind: ConfigMap
metadata: {name: linkerd-identity-trust-roots, namespace: linkerd}
data: {ca-bundle.crt: ` + quoted(bundle+string(anchor.PEM())) + `}`)
		<-time.NewTimer(2 * bundleDelay).C // of a bubble
		for _, p := range m.proxies {
			m.start(p)
		}
		change("secrets", linkerd.IssuerName, "annotations", certManagerAnnotation, "linkerd-identity-issuer")
		out, _, err = m.rotateOnce(anchor, yamlOutput)
		if ExitCode(err) != ExitNo || out != "" || !strings.Contains(err.Error(), "cert-manager writes the issuer") {
			t.Errorf("cert-manager: %q %v", out, err)
		}

		m.server.ApplyYAML(`
apiVersion: v1
kind: ConfigMap
metadata: {name: linkerd-config, namespace: linkerd}
data: {values: "identityTrustAnchorsPEM: x"}`, `
apiVersion: v1
kind: ConfigMap
metadata: {name: linkerd-identity-trust-roots, namespace: linkerd}
data: {ca-bundle.crt: `+quoted(bundle)+`}`)
		_, notes, err := m.rotateOnce(anchor, yamlOutput)
		if err != nil || !strings.Contains(notes, "Linkerd's chart writes this ConfigMap, too") {
			t.Errorf("as an object: %s %v", notes, err)
		}
		out, notes, err = m.rotateOnce(anchor, valuesOutput)
		if err != nil || !strings.HasPrefix(out, "identityTrustAnchorsPEM: ") || strings.Contains(notes, "too") {
			t.Errorf("as values: %s %s %v", out, notes, err)
		}
	})
}

func quoted(text string) string { return `"` + strings.ReplaceAll(text, "\n", `\n`) + `"` }

// What cannot be read is an error, and nothing is printed.
func TestCertsOfNoMesh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		m := newTestMesh(t, network, linkerd.IssuerScheme)
		anchor, err := ca.NewAnchor(testDomain, anchorLife, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"configmaps", "secrets"} {
			m.server.Forbid(kind, true)
			if out, _, err := m.rotateOnce(anchor, yamlOutput); err == nil || ExitCode(err) != ExitFailed || out != "" {
				t.Errorf("without %s: %q %v", kind, out, err)
			}
			m.server.Forbid(kind, false)
		}
		m.server.Delete("ConfigMap", "linkerd", linkerd.AnchorsName)
		if out, _, err := m.rotateOnce(anchor, yamlOutput); err == nil || out != "" {
			t.Errorf("without a bundle: %q", out)
		}
	})
}

// Certificates are shown with the worst first, and what is wrong with them.
func TestCertsShow(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	anchor := func(left time.Duration) *ca.Authority {
		made, err := ca.NewAnchor(testDomain, 4000*day, now.Add(left-4000*day))
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	issuer := func(by *ca.Authority, left time.Duration) []*x509.Certificate {
		made, err := by.NewIssuer(testDomain, 365*day, now.Add(left-365*day))
		if err != nil {
			t.Fatal(err)
		}
		return []*x509.Certificate{made.Certificate}
	}
	long, other := anchor(399*day), anchor(300*day)

	for name, c := range map[string]struct {
		mesh meshCerts
		want []string // "kind: problem", in order
	}{
		"all is well": {
			meshCerts{bundle: []*x509.Certificate{long.Certificate}, issuer: issuer(long, 364*day)},
			[]string{"issuer: ", "anchor: "},
		},
		"the issuer ends soon": {
			meshCerts{bundle: []*x509.Certificate{long.Certificate}, issuer: issuer(long, 29*day)},
			[]string{"issuer: it ends soon", "anchor: "},
		},
		"the issuer has ended": {
			meshCerts{bundle: []*x509.Certificate{long.Certificate}, issuer: issuer(anchor(-day), -2*day)},
			[]string{"issuer: it has ended", "anchor: "},
		},
		"an anchor ends soon": {
			meshCerts{
				bundle: []*x509.Certificate{long.Certificate, anchor(59 * day).Certificate},
				issuer: issuer(long, 40*day),
			},
			[]string{"anchor: it ends soon", "issuer: ", "anchor: "},
		},
		"another anchor": {
			meshCerts{bundle: []*x509.Certificate{long.Certificate}, issuer: issuer(other, 299*day)},
			[]string{"issuer: it does not verify against the anchors", "anchor: "},
		},
	} {
		page := c.mesh.page(now)
		var got []string
		for _, entry := range page.Certificates {
			problem, _, _ := strings.Cut(entry.Problem, ": ")
			got = append(got, entry.Kind+": "+problem)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if failed := page.failed() != nil; failed != (c.want[0] != "issuer: ") {
			t.Errorf("%s: failed %v", name, failed)
		}
		var table bytes.Buffer
		if err := page.table(now).printTo(&table); err != nil || strings.Contains(table.String(), "BY") {
			t.Errorf("%s: %s %v", name, table.String(), err)
		}
	}
}

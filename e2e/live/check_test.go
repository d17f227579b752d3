package live

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// A report is what 'linkerd check' reads of an extension.
type report struct {
	Success    bool
	Categories []struct {
		CategoryName string
		Checks       []struct{ Description, Hint, Error, Result string }
	}
}

// line returns "result description: error" of all checks that contain text in either; or of all that did not
// succeed if it is empty.
func (r report) lines(text string) (lines []string) {
	for _, category := range r.Categories {
		for _, c := range category.Checks {
			line := fmt.Sprintf("%s %s/%s: %s", c.Result, category.CategoryName, c.Description, c.Error)
			if text == "" && c.Result != "success" && !isOfOthers(line) || text != "" && strings.Contains(line, text) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// admin writes a kubeconfig with all rights in a cluster.
func admin(t *testing.T, c *controlplane.Cluster) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, c.Kubeconfig(c.Admin(), ""), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// skewed writes a kubeconfig with all rights in a cluster, over a way on which its clock is away by what is stored.
func skewed(t *testing.T, c *controlplane.Cluster, away *atomic.Int64) string {
	t.Helper()
	transport, err := rest.TransportFor(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport,
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set("Date", time.Now().Add(time.Duration(away.Load())).UTC().Format(http.TimeFormat))
			return nil
		},
	})
	t.Cleanup(server.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters[c.Name()] = &clientcmdapi.Cluster{
		Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{
			Type:  "CERTIFICATE",
			Bytes: server.Certificate().Raw,
		}),
	}
	config.Contexts[c.Name()] = &clientcmdapi.Context{Cluster: c.Name()}
	config.CurrentContext = c.Name()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// isOfOthers reports whether a line is about Leases of other tests, which have installations in the same clusters.
func isOfOthers(line string) bool {
	return strings.Contains(line, "every Lease of an installation counts")
}

// checked runs a check as 'linkerd check' does, with what it hands on.
func checked(t *testing.T, kubeconfig string, args ...string) report {
	t.Helper()
	extension := filepath.Join(t.TempDir(), "linkerd-fingerpost")
	if err := os.Symlink(binary, extension); err != nil {
		t.Fatal(err)
	}
	args = append([]string{
		"check", "--as-group=[]", "--kubeconfig=" + kubeconfig, "--linkerd-namespace=linkerd",
		"--verbose=false", "--proxy=false", "--wait=0s", "--timeout=2s", "--output=json",
	}, args...)
	out, err := exec.CommandContext(t.Context(), extension, args...).Output()
	var r report
	if jerr := json.Unmarshal(out, &r); jerr != nil {
		t.Fatalf("%v %v\n%s", jerr, err, out)
	}
	var exit *exec.ExitError
	if failed := errors.As(err, &exit) && exit.ExitCode() == 1; failed == r.Success || err != nil && !failed {
		t.Errorf("success is %t, and the end %v", r.Success, err)
	}
	return r
}

// lease is one of those by which writers are elected.
func lease(name, holder string, renewed time.Time) string {
	return fmt.Sprintf(`apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: %s, namespace: linkerd}
spec: {holderIdentity: %q, leaseDurationSeconds: 30, renewTime: %q}
---
`, name, holder, renewed.UTC().Format("2006-01-02T15:04:05.000000Z"))
}

// linkerdConfig is what Linkerd publishes of itself: the namespace of its control plane, and its trust domain.
const linkerdConfig = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: linkerd-config, namespace: %s}\ndata: {values: 'identityTrustDomain: %s'}\n"

// What is right passes; each planted fault is found, where it is, and named.
func TestCheck(t *testing.T) {
	w := newWorld(t, "check", 4)
	west, north, south := w.Remotes[0], w.Remotes[1], w.Remotes[2]
	w.serve("-external-workload-slices=false", "-federated-slices=false") // or it would take the Leases
	w.link(west, north, south)
	held := lease("linkerd-destination-endpoint-write", "a", time.Now().Add(time.Hour))
	for _, c := range w.Sites() {
		w.do(c.Apply(t.Context(), []byte(held)))
	}
	w.do(west.Apply(t.Context(), fmt.Appendf(nil, linkerdConfig, mesh.Linkerd, "cluster.local")))
	var away atomic.Int64
	kubeconfig := skewed(t, w.Local.Cluster, &away)
	run := func() report { return checked(t, kubeconfig, "--debug-addr="+w.Server.Debug) }
	w.within(10*time.Second, "all is right", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(context.Context) error {
			if r := run(); !r.Success || len(r.lines("")) > 0 {
				return fmt.Errorf("success is %t:\n%s", r.Success, strings.Join(r.lines(""), "\n"))
			}
			return nil
		})
	})

	// Eight faults at once: they must not hide each other. A replica reads the trust domain of a cluster
	// again with a new token.
	w.do(west.Apply(t.Context(), fmt.Appendf(nil, linkerdConfig, mesh.Linkerd, "elsewhere.example")))
	_, err := w.Rotate(t.Context(), west)
	w.do(err)
	w.within(5*time.Second, "the trust domain is read again", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(context.Context) error {
			if r := run(); r.Success {
				return errors.New("it succeeds")
			}
			return nil
		})
	})
	away.Store(int64(10 * time.Minute))
	expired := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, time.Now().Add(-3*time.Hour).Unix()))
	identity := *south.Identity
	identity.Token = "e30." + expired + ".c2ln"
	w.do(w.Credentials(t.Context(), south, south.Kubeconfig(&identity, south.Proxy.URL())))
	w.do(west.Deny(t.Context(), west.Identity, "watch", "endpointslices.discovery.k8s.io"))
	t.Cleanup(func() {
		if err := west.Allow(context.WithoutCancel(t.Context()), west.Identity, "watch",
			"endpointslices.discovery.k8s.io"); err != nil {
			t.Error(err)
		}
	})
	_, err = w.Rotate(t.Context(), west) // with the next token, a replica finds the missing right
	w.do(err)
	w.do(north.Proxy.Silence())
	w.do(w.Local.Apply(t.Context(), fmt.Appendf(nil, `apiVersion: %[1]s/v1alpha3
kind: Link
metadata: {name: west-again, namespace: check}
spec: {targetClusterName: west, targetClusterDomain: cluster.local, clusterCredentialsSecret: cluster-credentials-west}
---
apiVersion: v1
kind: Service
metadata: {name: web-west, namespace: check, labels: {multicluster.linkerd.io/remote-discovery: west}}
spec: {ports: [{port: 80}]}
`, links.Group)))
	w.do(w.Local.Apply(t.Context(), []byte(lease("linkerd-destination-endpoint-write", "gone",
		time.Now().Add(-time.Hour)))))
	w.state(north, "Stale", 15*time.Second)
	faults := []struct{ name, want, part string }{
		{
			"expired token", "error fingerpost-clusters/the newest credentials of south work",
			"refuses the credentials (401)",
		},
		{
			"missing right", "error fingerpost-clusters/the newest credentials of west work",
			"refuses to watch endpointslices.discovery.k8s.io",
		},
		{
			"wrong trust domain", "error fingerpost-clusters/west has the expected identity",
			"end in elsewhere.example, and clients get cluster.local",
		},
		{
			"clock skew", "warning fingerpost-kubernetes/its clock agrees with this one",
			"away from this one: synchronise both clocks",
		},
		{
			"duplicate cluster name", "error fingerpost-links/all conditions of Link check/west-again are True",
			"Conflict: Link check/west links west already",
		},
		{"half-made mirror", "error fingerpost-services/no mirrored or federated Service", "check/web-west"},
		{
			"no lease holder",
			"warning fingerpost-writers/the Lease linkerd-destination-endpoint-write in this cluster has a holder",
			"gone held it until",
		},
		{"stale cluster", "error fingerpost-clusters/north is in contact", "it is Stale, last contact"},
	}
	w.within(10*time.Second, "all faults are named", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(context.Context) (err error) {
			r := run()
			for _, fault := range faults {
				if lines := r.lines(fault.want); len(lines) != 1 || !strings.Contains(lines[0], fault.part) {
					err = errors.Join(err, fmt.Errorf("%s: no line has %s … %s", fault.name, fault.want, fault.part))
				}
			}
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, strings.Join(r.lines(""), "\n"))
			}
			return err
		})
	})
	out, err := w.run("check", "--kubeconfig", kubeconfig, "--debug-addr", w.Server.Debug, "--wait", "0s",
		"--timeout", "2s", "-o", "short")
	if err == nil || !strings.Contains(out, "× north is in contact\n    it is Stale") ||
		!strings.HasSuffix(out, "Status check results are ×\n") || strings.Contains(out, "√") {
		t.Errorf("-o short: %v\n%s", err, out)
	}
	w.do(north.Proxy.Pass())
}

// The definition of Links that is not there, or old, is found before anything is installed, and that the cluster lacks
// the kinds of Linkerd and of the Gateway API, and certificates of a mesh.
func TestCheckPre(t *testing.T) {
	bare := controlplane.ForTest(t, controlplane.Options{Name: "bare", Light: true})
	kubeconfig := admin(t, bare)
	namespace := []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: linkerd}\n")
	if err := bare.Apply(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	const line = "warning fingerpost-kubernetes/Links are served at version v1alpha3"
	if r := checked(t, kubeconfig, "--pre"); !r.Success ||
		len(r.lines(line+": there is no CRD of Links")) != 1 || len(r.lines("")) != 4 {
		t.Errorf("without a CRD: %v", r)
	}
	old := strings.Replace(string(links.CRD), "name: v1alpha3\n    served: true",
		"name: v1alpha3\n    served: false", 1)
	if old == string(links.CRD) {
		t.Fatal("the CRD has another form")
	}
	if err := bare.Apply(t.Context(), []byte(old)); err != nil {
		t.Fatal(err)
	}
	if r := checked(t, kubeconfig, "--pre"); !r.Success ||
		len(r.lines(line+": they are served at v1alpha2, v1alpha1 only")) != 1 {
		t.Errorf("with an old CRD: %v", r)
	}
	if err := bare.Apply(t.Context(), links.CRD); err != nil {
		t.Fatal(err)
	}
	if r := checked(t, kubeconfig, "--pre"); !r.Success || len(r.lines("")) != 3 ||
		len(r.lines("warning fingerpost-install/the kinds of Linkerd are defined: not served: ")) != 1 {
		t.Errorf("with the CRD: %v", r)
	}
	if err := bare.Apply(t.Context(), charts.Definitions("linkerd.io")); err != nil {
		t.Fatal(err)
	}
	if r := checked(t, kubeconfig, "--pre"); !r.Success || len(r.lines("")) != 2 ||
		len(r.lines("warning fingerpost-install/the kinds of the Gateway API are defined: not served: ")) != 1 ||
		len(r.lines("warning fingerpost-install/the mesh has a trust anchor and an issuer: ")) != 1 {
		t.Errorf("with the kinds of Linkerd: %v", r)
	}
	id, err := bare.CreateIdentity(t.Context(), "nobody", "nobody", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kubeconfig, bare.Kubeconfig(id, ""), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := checked(t, kubeconfig, "--pre"); r.Success ||
		len(r.lines(
			"error fingerpost-install/you may create deployments.apps: create deployments.apps is not allowed")) != 1 {
		t.Errorf("without rights: %v", r)
	}
}

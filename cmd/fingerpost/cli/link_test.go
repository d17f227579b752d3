package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

// What is printed can be applied as it is, or a warning explains why it cannot be used.
func TestLinkGen(t *testing.T) {
	var api http.ServeMux
	api.HandleFunc(
		"/api/v1/namespaces/linkerd-multicluster/secrets/token",
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(corev1.Secret{
				TypeMeta: metav1.TypeMeta{
					Kind:       "Secret",
					APIVersion: "v1",
				}, Type: corev1.SecretTypeServiceAccountToken,
				Data: map[string][]byte{corev1.ServiceAccountTokenKey: []byte("t")},
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "linkerd-multicluster",
					Name:      "token",
					Annotations: map[string]string{
						corev1.ServiceAccountNameKey: "linkerd-service-mirror-remote-access-default",
					},
				},
			})
		},
	)
	server := httptest.NewTLSServer(&api)
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, cmdtest.Kubeconfig(t, server, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	const loopback = "A server in a Pod rejects the kubeconfig of west: cluster.server is rejected: " +
		"127.0.0.1 is this process's own host"
	const nowhere = "the gateway (--gateway=false for none)"
	for name, c := range map[string]struct {
		args    []string
		secrets int
		want    string // "" for no warning and no error
	}{
		"loopback":        {nil, 1, loopback},
		"another address": {[]string{"--api-server-address", "https://west.example:6443"}, 1, ""},
		"a service mirror": {[]string{
			"--api-server-address", "https://west.example:6443",
			"--service-mirror",
		}, 2, ""},
		"of the same namespace": {[]string{
			"--api-server-address", "https://west.example:6443",
			"--service-mirror", "--link-namespace", "linkerd",
		}, 1, ""},
		"a gateway":             {[]string{"--gateway"}, 0, nowhere},
		"a gateway's name":      {[]string{"--gateway-name", "gw"}, 0, nowhere},
		"a gateway's namespace": {[]string{"--gateway-namespace", "gw"}, 0, nowhere},
		"a gateway's addresses": {[]string{"--gateway-addresses", "192.0.2.1"}, 0, nowhere},
		"no gateway, though named": {[]string{
			"--gateway=false", "--gateway-name", "gw", "--api-server-address",
			"https://west.example",
		}, 1, ""},
	} {
		args := append(
			[]string{
				"link",
				"gen",
				"west",
				"--kubeconfig",
				kubeconfig,
				"--token-secret",
				"token",
				"--trust-domain",
				"w",
				"--cluster-domain",
				"w",
			},
			c.args...)
		out, err := fingerpost(t, args...)
		if err != nil {
			out += err.Error()
		}
		if n := strings.Count(out, "kind: Secret"); n != c.secrets || !strings.Contains(out, c.want) ||
			(err != nil) != (c.secrets == 0) ||
			c.want == "" && strings.Contains(out, "refused") {
			t.Errorf("%s: %d Secrets, %v\n%s", name, n, err, out)
		}
	}
}

// No token is created for a Link that cannot be printed.
func TestLinkGenWithoutGateway(t *testing.T) {
	created := false
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		created = created || strings.HasSuffix(r.URL.Path, "/token")
		http.NotFound(w, r)
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, cmdtest.Kubeconfig(t, server, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	link := []string{"link", "gen", "west", "--kubeconfig", kubeconfig, "--trust-domain", "w", "--cluster-domain", "w"}
	for gateway, want := range map[string]bool{"--gateway": false, "--gateway=false": true} {
		created = false
		if out, err := fingerpost(t, append(link, gateway)...); err == nil || created != want {
			t.Errorf("%s: a token was requested: %t, want %t: %v\n%s", gateway, created, want, err, out)
		}
	}
}

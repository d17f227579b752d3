package cli

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

// What is printed can be applied as it is, or a warning explains why it cannot be used.
func TestLinkGen(t *testing.T) {
	var api http.ServeMux
	api.HandleFunc(
		"/api/v1/namespaces/fingerpost/secrets/token",
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(corev1.Secret{
				TypeMeta: metav1.TypeMeta{
					Kind:       "Secret",
					APIVersion: "v1",
				}, Type: corev1.SecretTypeServiceAccountToken,
				Data: map[string][]byte{corev1.ServiceAccountTokenKey: []byte("t")},
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "fingerpost",
					Name:      "token",
					Annotations: map[string]string{
						corev1.ServiceAccountNameKey: "fingerpost-link",
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
		"Linkerd's destination": {[]string{
			"--api-server-address", "https://west.example:6443",
			"--labelled-secret",
		}, 2, ""},
		"Linkerd's charts": {[]string{
			"--api-server-address", "https://west.example:6443", "--preset", "linkerd",
			"--service-account-namespace", "fingerpost", "--service-account-name", "fingerpost-link",
		}, 2, ""},
		"of the same namespace": {[]string{
			"--api-server-address", "https://west.example:6443",
			"--labelled-secret", "--link-namespace", "linkerd",
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

// What the gateway's annotations set of its probe is in the Link, and what is wrong in them is reported.
func TestLinkGenProbe(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		want        []string
	}{
		"all": {
			map[string]string{"period": "5", "timeout": "10s", "failure-threshold": "6"},
			[]string{`failureThreshold: "6"`, "period: 5s", "timeout: 10s", "path: /ready", `port: "4191"`},
		},
		"seconds":             {map[string]string{"timeout": "7"}, []string{"period: 3s", "timeout: 7s"}},
		"none":                {nil, []string{"probeSpec:\n    path: /ready\n    period: 3s\n    port: \"4191\"\n"}},
		"no number":           {map[string]string{"failure-threshold": "six"}, []string{`spec.probeSpec.failureThreshold "six" is not a number`}},
		"no duration":         {map[string]string{"timeout": "soon"}, []string{`spec.probeSpec.timeout "soon" is not a duration`}},
		"a period of nothing": {map[string]string{"period": "0"}, []string{`spec.probeSpec.period "0s" is not a duration`, "shop/gateway"}},
	} {
		t.Run(name, func(t *testing.T) {
			gateway := corev1.Service{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: "gateway", Annotations: map[string]string{
						"mirror.linkerd.io/gateway-identity": "gateway.example",
						"mirror.linkerd.io/probe-path":       "/ready",
					},
				},
				Spec: corev1.ServiceSpec{
					Ports: []corev1.ServicePort{{Name: "mc-gateway", Port: 4143}, {Name: "mc-probe", Port: 4191}},
				},
			}
			for key, value := range c.annotations {
				gateway.Annotations["mirror.linkerd.io/probe-"+key] = value
			}
			kubeconfig := linkableCluster(t, gateway, func(k *clientcmdapi.Config) {})
			out, err := fingerpost(t, linkGen(kubeconfig, "--gateway-addresses", "192.0.2.1")...)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("there is no %q in\n%s", want, out)
				}
			}
			if len(c.annotations) != 1 && strings.Contains(out, "problem") {
				t.Errorf("a problem is reported:\n%s", out)
			}
		})
	}
}

// What the user's kubeconfig has and the printed one has not is reported, if it decides who connects, or how.
func TestLinkGenLeavesOut(t *testing.T) {
	forward := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		from, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		go func() { defer to.Close(); _, _ = io.Copy(to, from) }()
		defer from.Close()
		_, _ = io.Copy(from, to)
	}))
	defer forward.Close()
	const nothing = "leaves out"
	for name, c := range map[string]struct {
		change     func(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo)
		want, args string
	}{
		"nothing": {func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {}, "", ""},
		"a proxy": {
			func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.ProxyURL = forward.URL },
			"The kubeconfig of west leaves out cluster.proxy-url: Fingerpost connects to API servers directly. " +
				"If https://127.0.0.1:", "",
		},
		"a proxy, and another address": {
			func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.ProxyURL = forward.URL },
			"If https://west.example cannot be reached without the proxy", "--api-server-address=https://west.example",
		},
		"impersonation": {
			func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.Impersonate = "admin" },
			"leaves out your user.as: in it is the token of ServiceAccount fingerpost/fingerpost-link", "",
		},
		"a password": {
			func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
				u.Token, u.Username, u.Password = "", "a", "b"
			},
			"leaves out your user.username: ", "",
		},
		"a program": {
			func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
				u.Token, u.Impersonate = "", "admin"
				u.Exec = &clientcmdapi.ExecConfig{
					APIVersion: "client.authentication.k8s.io/v1", Command: "echo", InteractiveMode: "Never",
					Args: []string{`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t"}}`},
				}
			},
			"leaves out your user.as, user.exec: ", "",
		},
		"another name in the certificate is kept": {
			func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.TLSServerName = "example.com" }, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := linkableCluster(t, corev1.Service{}, func(k *clientcmdapi.Config) {
				context := k.Contexts[k.CurrentContext]
				c.change(k.Clusters[context.Cluster], k.AuthInfos[context.AuthInfo])
			})
			out, err := fingerpost(t, linkGen(kubeconfig, "--gateway=false", c.args)...)
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" && strings.Contains(out, nothing) || !strings.Contains(out, c.want) {
				t.Errorf("want %q in\n%s", c.want, out)
			}
		})
	}
}

func linkGen(kubeconfig string, args ...string) []string {
	all := []string{
		"link", "gen", "west", "--kubeconfig", kubeconfig, "--token-secret", "token", "--trust-domain", "w",
		"--cluster-domain", "w", "--gateway-namespace", "shop", "--gateway-name", "gateway",
	}
	return append(all, slices.DeleteFunc(args, func(arg string) bool { return arg == "" })...)
}

// linkableCluster serves what link gen reads of a cluster, and returns the path of a kubeconfig that leads to it.
func linkableCluster(t *testing.T, gateway corev1.Service, change func(*clientcmdapi.Config)) string {
	t.Helper()
	token := corev1.Secret{
		TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}, Type: corev1.SecretTypeServiceAccountToken,
		ObjectMeta: metav1.ObjectMeta{Namespace: "fingerpost", Name: "token", Annotations: map[string]string{
			corev1.ServiceAccountNameKey: "fingerpost-link",
		}},
		Data: map[string][]byte{corev1.ServiceAccountTokenKey: []byte("t")},
	}
	var api http.ServeMux
	for path, object := range map[string]any{
		"/api/v1/namespaces/fingerpost/secrets/token": token,
		"/api/v1/namespaces/shop/services/gateway":    gateway,
	} {
		api.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(object)
		})
	}
	server := httptest.NewTLSServer(&api)
	t.Cleanup(server.Close)
	config, err := clientcmd.Load(cmdtest.Kubeconfig(t, server, server.URL))
	if err != nil {
		t.Fatal(err)
	}
	change(config)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

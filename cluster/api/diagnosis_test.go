package api

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Each step is tried in its turn, and the first one that fails names its cause in the words of the other side, with
// what to do. Those behind it are not tried.
func TestDiagnose(t *testing.T) {
	token := jwtOf(t, map[string]any{
		"iss": "https://issuer.example", "aud": "vault", "exp": 4102444800,
		"sub": "system:serviceaccount:linkerd:reader",
	})
	for name, c := range map[string]struct {
		answers func(http.ResponseWriter, *http.Request)
		config  func(*rest.Config)
		last    string   // the last step, and its reason
		wants   []string // in the steps
	}{
		"healthy": {
			answers: answer(200), last: "may create leases in linkerd ok",
			wants: []string{
				"TCP connected to 127.0.0.1", "TLS TLS 1.3 with O=Acme Co, issued by O=Acme Co, for example.com",
				"HTTP an API server of v1.36.0", "credentials accepted as reader: a token of " +
					"system:serviceaccount:linkerd:reader for audience vault, issued by https://issuer.example, " +
					"valid until 2100-01-01T00:00:00Z",
				"list pods answered", "list servers.policy.linkerd.io the API server does not serve it",
				"may create leases in linkerd not granted: the cluster is read-only",
			},
		},
		"large object": {
			answers: func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/pods") {
					answer(200)(w, r)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"items": ["`+strings.Repeat("x", 2*maxBody)+`"]}`)
			},
			last: "may create leases in linkerd ok", wants: []string{"list pods answered"},
		},
		"refused kind": {
			answers: func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/pods") {
					http.Error(w, "{}", http.StatusForbidden)
					return
				}
				answer(200)(w, r)
			},
			last:  "may create leases in linkerd ok",
			wants: []string{"list pods refused (403): grant get, list and watch"},
		},
		"credentials": {
			answers: answer(401), last: "credentials Unauthorized",
			wants: []string{"refuses the credentials (401): a token of system:serviceaccount:linkerd:reader for audience vault"},
		},
		"load balancer": {
			answers: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Server", "awselb/2.0")
				w.WriteHeader(http.StatusBadGateway)
			},
			last:  "HTTP NotReady",
			wants: []string{`"awselb/2.0", in front of the API server, answers 502`},
		},
		"redirect": {
			answers: func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "https://sso.corp.example/login?next=x", http.StatusFound)
			},
			last: "HTTP Malformed", wants: []string{"redirects (302) to sso.corp.example: redirects are not followed"},
		},
		"page of HTML": {
			answers: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>welcome")) },
			last:    "HTTP Malformed", wants: []string{`answers 200 with "text/html; charset=utf-8"`, "it is no API server"},
		},
		"another authority": {
			answers: answer(200), last: "TLS Untrusted",
			config: func(c *rest.Config) { c.CAData = selfSigned(t) },
			wants: []string{
				"O=Acme Co has issued the certificate (sha256",
				"trusted is CN=other (sha256 ",
			},
		},
		"another name": {
			answers: answer(200), last: "TLS Untrusted",
			config: func(c *rest.Config) { c.ServerName = "west.example" },
			wants:  []string{"certificate is valid for example.com, *.example.com, not west.example"},
		},
		"no TLS": {
			answers: answer(200), last: "TLS Unreachable",
			config: func(c *rest.Config) {
				plain := httptest.NewServer(http.NotFoundHandler())
				t.Cleanup(plain.Close)
				c.Host = strings.Replace(plain.URL, "http://", "https://", 1)
			},
			wants: []string{"first record does not look like a TLS handshake"},
		},
		"nothing listens": {
			answers: answer(200), last: "TCP Unreachable",
			config: func(c *rest.Config) { c.Host = "https://127.0.0.1:1" }, wants: []string{"connection refused"},
		},
		"no such name": {
			answers: answer(200), last: "DNS Unreachable",
			config: func(c *rest.Config) { c.Host = "https://west.invalid:6443" }, wants: []string{"west.invalid"},
		},
		"no address": {
			answers: answer(200), last: "address Malformed",
			config: func(c *rest.Config) { c.Host = "https://[::1" }, wants: []string{"::1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(c.answers))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			defer server.Close()

			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			config := &rest.Config{
				Host: server.URL, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: ca},
			}
			if c.config != nil {
				c.config(config)
			}
			steps := Diagnose(t.Context(), config, nil, Questions{
				Required: []Kind{Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{})},
				Optional: []Kind{Newest(schema.GroupResource{Group: "policy.linkerd.io", Resource: "servers"},
					[]string{"v1beta3", "v1beta1"}, "Server")},
				Rights: []authorizationv1.ResourceAttributes{
					{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: "linkerd"},
				},
			})

			var texts []string
			for i, step := range steps {
				texts = append(texts, step.Name+" "+step.Text)
				isLast := i == len(steps)-1
				if !step.OK && !isLast && !strings.HasPrefix(step.Name, "list ") {
					t.Errorf("%s fails, and others were tried after it", step.Name)
				}
			}
			all := strings.Join(texts, "\n")
			last := steps[len(steps)-1]
			result := string(last.Reason)
			if last.OK {
				result = "ok"
			}
			if got := last.Name + " " + result; got != c.last {
				t.Errorf("the last step is %q, want %q:\n%s", got, c.last, all)
			}
			for _, want := range c.wants {
				if !strings.Contains(all, want) {
					t.Errorf("the steps lack %q:\n%s", want, all)
				}
			}
			if strings.Contains(all, token) {
				t.Errorf("the token is shown:\n%s", all)
			}
		})
	}
}

// What neither answers nor refuses is distinguished by the step at which it is silent.
func TestDiagnoseSilence(t *testing.T) {
	for step, dial := range map[string]DialFunc{
		"TCP": func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() },
		"TLS": func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			t.Cleanup(func() { far.Close() })
			go func() { _, _ = io.Copy(io.Discard, far) }()
			return near, nil
		},
	} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), ProbeTimeout/30, context.DeadlineExceeded)
		steps := Diagnose(ctx, &rest.Config{Host: "https://127.0.0.1"}, dial, Questions{})
		cancel()
		last := steps[len(steps)-1]
		if last.Name != step || last.OK || !strings.Contains(last.Text, "packets are dropped on the way") {
			t.Errorf("silence at %s is %+v", step, steps)
		}
	}
}

// answer answers as an API server does, whose reviews grant nothing; with another code than 200 to everything but its
// version.
func answer(code int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/version":
			_, _ = w.Write([]byte(`{"gitVersion": "v1.36.0"}`))
		case code != http.StatusOK:
			w.WriteHeader(code)
			_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "code": 401, "reason": "Unauthorized"}`))
		case strings.Contains(r.URL.Path, "/selfsubjectreviews"):
			_, _ = w.Write([]byte(`{"status": {"userInfo": {"username": "reader"}}}`))
		case strings.Contains(r.URL.Path, "/servers"):
			http.NotFound(w, r)
		default:
			_, _ = w.Write([]byte(`{}`))
		}
	}
}

func jwtOf(t *testing.T, claims map[string]any) string {
	t.Helper()
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return "e30." + base64.RawURLEncoding.EncodeToString(payload) + ".c2VjcmV0"
}

// selfSigned returns the certificate of an authority that has signed nothing else.
func selfSigned(t *testing.T) []byte {
	t.Helper()
	certificate, _ := newAuthority(t)
	return certificate
}

// newAuthority returns the certificate of an authority, and its key.
func newAuthority(t *testing.T) (certificate, key []byte) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "other"}, IsCA: true}
	der, err := x509.CreateCertificate(nil, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// A diagnosis leaves no connection open.
func TestDiagnoseLeavesNothing(t *testing.T) {
	opened, closed := make(chan struct{}, 100), make(chan struct{}, 100)
	server := httptest.NewUnstartedServer(http.HandlerFunc(answer(200)))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state { //nolint:exhaustive // the others are in between
		case http.StateNew:
			opened <- struct{}{}
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	server.StartTLS()
	defer server.Close()

	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	config := &rest.Config{Host: server.URL, BearerToken: "abc", TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
	pods := Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{})
	for _, step := range Diagnose(t.Context(), config, nil, Questions{Required: []Kind{pods}}) {
		if !step.OK {
			t.Errorf("%s: %s", step.Name, step.Text)
		}
	}
	for range len(opened) {
		select {
		case <-closed:
		case <-t.Context().Done():
			t.Fatal("connections stay open")
		}
	}
}

// A server that cannot be trusted gets no client certificate.
func TestDiagnoseKeepsCertificate(t *testing.T) {
	certificate, key := newAuthority(t)
	for name, trusted := range map[string]bool{"trusted": true, "not trusted": false} {
		got := make(chan int, 100)
		server := httptest.NewUnstartedServer(http.HandlerFunc(answer(200)))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.TLS = &tls.Config{
			ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12,
			VerifyConnection: func(state tls.ConnectionState) error {
				got <- len(state.PeerCertificates)
				return nil
			},
		}
		server.StartTLS()
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		if !trusted {
			ca = selfSigned(t)
		}
		Diagnose(t.Context(), &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{
			CAData: ca, CertData: certificate, KeyData: key,
		}}, nil, Questions{})
		server.Close()

		certificates := 0
		for range len(got) {
			certificates += <-got
		}
		if has := certificates > 0; has != trusted {
			t.Errorf("a server that is %s gets %d certificates", name, certificates)
		}
	}
}

// A probe names the step at which nothing came, and what answered instead of the API server: each message is one that
// stays the same, and names the cause.
func TestProbeNamesTheCause(t *testing.T) {
	released := make(chan struct{})
	silent := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-released:
		}
	}
	for name, c := range map[string]struct {
		answers func(http.ResponseWriter, *http.Request)
		config  func(*rest.Config)
		dial    DialFunc
		reason  Reason
		want    string
	}{
		"TCP": {
			dial: func(context.Context, string, string) (net.Conn, error) { <-released; return nil, io.EOF },
			want: "no TCP connection within ", reason: Unreachable,
		},
		"TLS": {
			dial: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, far); far.Close() }()
				return near, nil
			},
			want: ", although TCP connects", reason: Unreachable,
		},
		"response": {answers: silent, want: ", although TCP and TLS work", reason: Unreachable},
		"authority": {
			config: func(c *rest.Config) { c.CAData = selfSigned(t) }, reason: Untrusted,
			want: ", and is not trusted; trusted is CN=other (sha256 ",
		},
		"name": {
			config: func(c *rest.Config) { c.ServerName = "west.example" }, reason: Untrusted,
			want: "certificate is valid for example.com, *.example.com, not west.example; trusted is O=Acme Co (sha256 ",
		},
		"load balancer": {
			answers: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Server", "awselb/2.0")
				w.WriteHeader(http.StatusServiceUnavailable)
			},
			want: `"awselb/2.0", in front of the API server, answers 503: it does not reach the API server`, reason: NotReady,
		},
		"API server": {
			answers: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
			want:    "the API server is not ready (500)", reason: NotReady,
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(c.answers))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			defer server.Close()
			defer server.CloseClientConnections()

			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
			if c.config != nil {
				c.config(config)
			}
			conn, err := NewConnection(config, c.dial)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()

			ctx, cancel := context.WithTimeout(t.Context(), ProbeTimeout/10)
			defer cancel()
			err = conn.Probe(ctx)
			if err == nil || !strings.Contains(err.Error(), c.want) || ReasonFor(err) != c.reason {
				t.Errorf("%s: %v, want %s: %q", ReasonFor(err), err, c.reason, c.want)
			}
		})
	}
	close(released)
}

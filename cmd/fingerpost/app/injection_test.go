package app_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
)

// injector is a process that injects, in virtual time, with an API server and listeners in memory.
type injector struct {
	t          *testing.T
	dir        string
	certainly  []byte // trust anchors
	hook, page *bufconn.Listener
}

const injectorValues = "{linkerdVersion: edge-1, identity: {serviceAccountTokenProjection: true}}"

// inProcess runs a test beside the process, whose files are written before it starts.
func inProcess(t *testing.T, files map[string]string, test func(p *injector)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		east := network.Server("east")
		east.ApplyYAML("{apiVersion: v1, kind: Namespace, metadata: {name: shop, annotations: {linkerd.io/inject: enabled}}}")
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(east.Kubeconfig(east.Token())))
		if err != nil {
			t.Fatal(err)
		}

		p := &injector{t: t, dir: dir, hook: bufconn.Listen(1 << 16), page: bufconn.Listen(1 << 16)}
		p.certainly, _ = cmdtest.Certificate(t, "root", 1)
		p.writeCertificate(1)
		p.write("anchors", string(p.certainly))
		for name, content := range files {
			p.write(name, content)
		}

		process, err := app.NewInjector(logr.Discard(), app.InjectorOptions{
			Version: "v1", Config: config, Dial: network.Dial, AdminAddr: "page", Namespace: "linkerd",
			Listen: func(_ context.Context, _, address string) (net.Listener, error) {
				if address == "hook" {
					return p.hook, nil
				}
				return p.page, nil
			},
			Webhooks: app.WebhookOptions{
				Addrs: []string{"hook"}, Flag: "-tls-dir",
				TLS: []app.WebhookFiles{{
					Server:   "webhook",
					TLSFiles: server.TLSFiles{Certificate: p.path("tls.crt"), Key: p.path("tls.key")},
				}},
				Inject: app.InjectionFiles{Values: p.path("values"), Anchors: p.path("anchors")},
			},
		})
		if err != nil {
			t.Fatal(err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- process.Run(ctx) }()
		test(p)
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

func (p *injector) path(name string) string { return filepath.Join(p.dir, name) }

func (p *injector) write(name, content string) {
	p.t.Helper()
	if err := os.WriteFile(p.path(name), []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *injector) writeCertificate(serial int64) {
	p.t.Helper()
	certificate, key := cmdtest.Certificate(p.t, "linkerd-proxy-injector.linkerd.svc", serial)
	p.write("tls.crt", string(certificate))
	p.write("tls.key", string(key))
}

// pass lets virtual time pass in which files are read again.
func (p *injector) pass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

// request sends a request over a connection of its own, and returns the answer, and the serial of the certificate.
func request(t *testing.T, listener *bufconn.Listener, url, body string) (code int, text string, serial int64) {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a test
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		},
	}
	defer transport.CloseIdleConnections()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.TLS != nil {
		serial = answer.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	return answer.StatusCode, string(b), serial
}

// review asks about a Pod, and returns the code of the answer and the certificate.
func (p *injector) review() (code int, serial int64) {
	p.t.Helper()
	const body = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"version":"v1",` +
		`"kind":"Pod"},"namespace":"shop","operation":"CREATE","object":{"spec":{"containers":[{"name":"app"}]}}}}`
	code, text, serial := request(p.t, p.hook, "https://hook/", body)
	if code == http.StatusOK && !strings.Contains(text, `"patch"`) {
		p.t.Errorf("the Pod gets nothing: %s", text)
	}
	return code, serial
}

func (p *injector) wantReview(code int) {
	p.t.Helper()
	if got, _ := p.review(); got != code {
		p.t.Errorf("HTTP %d, want %d", got, code)
	}
}

// age returns the metric of the files' age, in seconds.
func (p *injector) age() (seconds float64) {
	p.t.Helper()
	_, text, _ := request(p.t, p.page, "http://page/metrics", "")
	_, value, found := strings.Cut(text, "\nfingerpost_inject_values_age_seconds ")
	if _, err := fmt.Sscan(value, &seconds); !found || err != nil {
		p.t.Fatalf("no age: %v", err)
	}
	return seconds
}

// IJ06: without values the process answers 500 and is not ready; both change when they are there.
func testWithoutValues(t *testing.T) {
	inProcess(t, nil, func(p *injector) {
		p.pass(2 * time.Second)
		p.wantReview(http.StatusInternalServerError)
		code, text, _ := request(p.t, p.page, "http://page/ready", "")
		if code == http.StatusOK || !strings.Contains(text, "values of injection") ||
			!strings.Contains(text, "no such file") {
			t.Errorf("%d %s", code, text)
		}

		p.write("values", injectorValues)
		p.pass(2 * time.Second)
		p.wantReview(http.StatusOK)
		if code, text, _ := request(p.t, p.page, "http://page/ready", ""); code != http.StatusOK {
			t.Errorf("%d %s", code, text)
		}
	})
}

// IJ07: values that cannot be used leave the last ones in force, and their age shows it.
func testBadValues(t *testing.T) {
	inProcess(t, map[string]string{"values": injectorValues}, func(p *injector) {
		p.pass(2 * time.Second)
		p.wantReview(http.StatusOK)
		if age := p.age(); age > 1 {
			t.Errorf("values that are in force are %g s old", age)
		}

		p.write("values", "garbage: [")
		p.pass(time.Minute)
		p.wantReview(http.StatusOK)
		if age := p.age(); age < 58 || age > 62 {
			t.Errorf("the age is %g s, a minute after the files", age)
		}

		p.write("values", strings.Replace(injectorValues, "edge-1", "edge-2", 1))
		p.pass(2 * time.Second)
		if age := p.age(); age > 1 {
			t.Errorf("new values are %g s old", age)
		}
		if code, _ := p.review(); code != http.StatusOK {
			t.Errorf("HTTP %d", code)
		}
	})
}

// IJ10: values of which one network cannot be read are none.
func testBadNetworks(t *testing.T) {
	values := strings.Replace(injectorValues, "{", "{clusterNetworks: '10.0.0.0/8,x', ", 1)
	inProcess(t, map[string]string{"values": values}, func(p *injector) {
		p.pass(2 * time.Second)
		p.wantReview(http.StatusInternalServerError)
	})
}

// IJ12: a certificate that is replaced is presented from the next handshake on.
func testNewCertificate(t *testing.T) {
	inProcess(t, map[string]string{"values": injectorValues}, func(p *injector) {
		p.pass(2 * time.Second)
		if _, serial := p.review(); serial != 1 {
			t.Errorf("certificate %d", serial)
		}
		p.writeCertificate(2)
		p.pass(2 * time.Second)
		if _, serial := p.review(); serial != 2 {
			t.Errorf("certificate %d, want the new one", serial)
		}
	})
}

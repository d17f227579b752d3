package app_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	pbdst "github.com/linkerd/linkerd2-proxy-api/go/destination"
	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/identitytest"
	"github.com/fingerpost/fingerpost/serving"
)

// certifiers are processes that issue certificates, in virtual time, with an API server and listeners in memory.
type certifiers struct {
	t              *testing.T
	dir            string
	network        *apitest.Network
	api            *apitest.Server
	domain         identity.Domain
	anchor, issuer *identitytest.CA

	mu  sync.Mutex
	log bytes.Buffer
}

// A certifier is one of them.
type certifier struct {
	*certifiers
	calls, page *bufconn.Listener
}

const nameOfSA = "sa.ns.serviceaccount.identity.linkerd.cluster.local"

// inMesh plays a case of them.
func inMesh(t *testing.T, play func(c *certifiers)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		network := apitest.NewNetwork()
		defer network.Close()
		c := &certifiers{
			t: t, dir: dir, network: network, api: network.Server("east"),
			domain: identity.Domain{Namespace: "linkerd", TrustDomain: "cluster.local"},
		}
		c.anchor = identitytest.NewCA(t, "root", identitytest.P256(t), nil)
		c.issuer = identitytest.NewCA(t, "issuer", identitytest.P256(t), c.anchor)
		c.write("crt.pem", c.issuer.PEM())
		c.write("key.pem", c.issuer.KeyPEM(t))
		c.write("anchors", c.anchor.PEM())
		play(c)
	})
}

func (c *certifiers) path(name string) string { return filepath.Join(c.dir, name) }

func (c *certifiers) write(name string, content []byte) {
	c.t.Helper()
	if err := os.WriteFile(c.path(name), content, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c *certifiers) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		fmt.Fprintln(&c.log, prefix, args)
	}, funcr.Options{Verbosity: 10})
}

func (c *certifiers) logged() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.String()
}

// options are those of the files of the mesh.
func (c *certifiers) options(secure bool) app.IdentityOptions {
	return app.IdentityOptions{
		Addr: "calls", Issuer: server.IssuerFilesIn(c.dir, "linkerd.io/tls", c.path("anchors")), Events: true,
		Terms: identity.Terms{Lifetime: 24 * time.Hour, Skew: 10 * time.Second}, TLS: secure,
	}
}

// start starts a process, and returns it when it has had time to be ready.
func (c *certifiers) start(secure bool) (p *certifier, stop func()) {
	c.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(c.api.Kubeconfig(c.api.Token())))
	if err != nil {
		c.t.Fatal(err)
	}
	config.QPS = -1
	p = &certifier{certifiers: c, calls: bufconn.Listen(1 << 16), page: bufconn.Listen(1 << 16)}
	process, err := app.NewAuthority(c.logger(), app.AuthorityOptions{
		Version: "v1", Config: config, Dial: c.network.Dial, AdminAddr: "page", Pprof: true, Domain: c.domain,
		Serving: serving.DefaultConfig(), Identity: c.options(secure),
		Listen: func(_ context.Context, _, address string) (net.Listener, error) {
			if address == "calls" {
				return p.calls, nil
			}
			return p.page, nil
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(c.t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- process.Run(ctx) }()
	pass(2 * time.Second)
	return p, func() {
		c.t.Helper()
		cancel()
		if err := <-stopped; err != nil {
			c.t.Error(err)
		}
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

// get returns what the admin server has at a path.
func (p *certifier) get(path string) (code int, text string) {
	p.t.Helper()
	code, text, _ = request(p.t, p.page, "http://page"+path, "")
	return code, text
}

// dial opens a connection to the authority, over TLS with settings unless they are nil.
func (p *certifier) dial(secure *tls.Config) *grpc.ClientConn {
	p.t.Helper()
	conn, err := grpc.NewClient("passthrough:///calls", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			raw, err := p.calls.DialContext(ctx)
			if err != nil || secure == nil {
				return raw, err
			}
			conn := tls.Client(raw, secure)
			return conn, conn.HandshakeContext(ctx)
		}))
	if err != nil {
		p.t.Fatal(err)
	}
	return conn
}

// certify asks for a certificate of a ServiceAccount, and returns it; nil: there was an error.
func (p *certifier) certify(conn *grpc.ClientConn, account, token string) (*x509.Certificate, error) {
	p.t.Helper()
	name := p.domain.Name("ns", account)
	answer, err := pb.NewIdentityClient(conn).Certify(p.t.Context(), &pb.CertifyRequest{
		Identity: name, Token: []byte(token),
		CertificateSigningRequest: identitytest.Signing(p.t, identitytest.P256(p.t), name),
	})
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(answer.GetLeafCertificate())
	if err != nil {
		p.t.Fatal(err)
	}
	above := x509.NewCertPool()
	above.AddCert(p.issuer.Certificate)
	_, err = leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: p.anchor.Pool(), Intermediates: above})
	return leaf, err
}

// mustCertify certifies ServiceAccount sa in ns.
func (p *certifier) mustCertify(conn *grpc.ClientConn) *x509.Certificate {
	p.t.Helper()
	leaf, err := p.certify(conn, "sa", p.api.AccountToken("ns", "sa", "pod", identity.Audience))
	if err != nil {
		p.t.Fatal(err)
	}
	return leaf
}

// wantsReady checks /ready.
func (p *certifier) wantsReady(want int, reason string) {
	p.t.Helper()
	if code, text := p.get("/ready"); code != want || !strings.Contains(text, reason) {
		p.t.Errorf("/ready is %d %q, want %d and %q", code, text, want, reason)
	}
}

// events returns the Events of a reason, as reason, kind and name of the object, and note.
func (c *certifiers) events(reason string) (all []string) {
	for _, e := range c.api.List("events.events.k8s.io") {
		if o := e.Object; o["reason"] == reason {
			about, _ := o["regarding"].(map[string]any)
			all = append(all, fmt.Sprintf("%s/%s/%s: %s", about["kind"], about["namespace"], about["name"], o["note"]))
		}
	}
	return all
}

// TestIdentityCases are the contract cases of a process that issues certificates.
func TestIdentityCases(t *testing.T) {
	t.Run("IC63", testNothingLeaks)
	t.Run("IC72", testOwnTLS)
	t.Run("IC73", testOwnName)
	t.Run("IC74", testLeafEvent)
	t.Run("IC75", testManyLeaves)
	t.Run("IC76", testEventsForbidden)
	t.Run("IC78", testReplicasIssue)
}

// IC63: neither the log at its most detailed, nor a page, nor a profile has a key or a token.
func testNothingLeaks(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		p, stop := c.start(false)
		defer stop()
		conn := p.dial(nil)
		defer conn.Close()
		token := c.api.AccountToken("ns", "sa", "pod", identity.Audience)
		if _, err := p.certify(conn, "sa", token); err != nil {
			c.t.Fatal(err)
		}
		if _, err := p.certify(conn, "other", token); status.Code(err) != codes.FailedPrecondition {
			c.t.Fatalf("the token of another account: %v", err)
		}

		var texts strings.Builder
		texts.WriteString(c.logged())
		if !strings.Contains(texts.String(), "Certificate was issued") {
			c.t.Errorf("the log is not at its most detailed:\n%s", &texts)
		}
		for _, path := range []string{"/metrics", "/ready", "/live", "/debug/pprof/cmdline"} {
			_, text := p.get(path)
			texts.WriteString(text)
		}
		for _, profile := range pprof.Profiles() {
			if err := profile.WriteTo(&texts, 2); err != nil {
				c.t.Fatal(err)
			}
		}

		key := string(c.issuer.KeyPEM(c.t))
		for what, secret := range map[string]string{
			"the token": token, "the key": strings.Split(key, "\n")[1],
			"its number": fmt.Sprintf("%v", identitytest.Secret(c.issuer)),
		} {
			if strings.Contains(texts.String(), secret) {
				c.t.Errorf("%s is in the log, on a page or in a profile", what)
			}
		}
	})
}

// IC72: a client without a certificate, which names no protocol, is served over TLS.
func testOwnTLS(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		p, stop := c.start(true)
		defer stop()
		p.wantsReady(http.StatusOK, "")
		conn := p.dial(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: c.anchor.Pool(), ServerName: c.domain.Authority(),
		})
		defer conn.Close()
		p.mustCertify(conn)
	})
}

// IC73: the certificate has the authority's own name and no other, and nothing but its API is served.
func testOwnName(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		p, stop := c.start(true)
		defer stop()
		var presented []string
		conn := p.dial(&tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: c.anchor.Pool(), ServerName: c.domain.Authority(),
			VerifyConnection: func(state tls.ConnectionState) error {
				presented = state.PeerCertificates[0].DNSNames
				return nil
			},
		})
		defer conn.Close()
		get, err := pbdst.NewDestinationClient(conn).Get(c.t.Context(),
			&pbdst.GetDestination{Path: "web.ns.svc.cluster.local:80"})
		if err == nil {
			_, err = get.Recv()
		}
		if status.Code(err) != codes.Unimplemented {
			c.t.Errorf("Destination is answered with %v", err)
		}
		const want = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local"
		if len(presented) != 1 || presented[0] != want {
			c.t.Errorf("the certificate is of %q, want %s", presented, want)
		}
	})
}

// IC74: the account has an Event with the identity, the end and the SHA-256 of its certificate.
func testLeafEvent(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		p, stop := c.start(false)
		defer stop()
		conn := p.dial(nil)
		defer conn.Close()
		leaf := p.mustCertify(conn)
		pass(time.Second)

		want := fmt.Sprintf("ServiceAccount/ns/sa: Certificate issued for %s until %s, SHA-256 %x", nameOfSA,
			leaf.NotAfter.UTC().Format(time.RFC3339), sha256.Sum256(leaf.Raw))
		if got := c.events("IssuedLeafCertificate"); len(got) != 1 || got[0] != want {
			c.t.Errorf("Events %q, want %s", got, want)
		}
		const about = "Deployment/linkerd/linkerd-identity: "
		if got := c.events("IssuerUpdated"); len(got) != 1 || !strings.HasPrefix(got[0], about) {
			c.t.Errorf("Events of the issuer: %q", got)
		}
	})
}

// IC75: of 1,000 certificates in ten seconds at most 60 have an Event, the others are counted, and no call waits.
func testManyLeaves(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		p, stop := c.start(false)
		defer stop()
		conn := p.dial(nil)
		defer conn.Close()
		for n := range 1000 {
			account := fmt.Sprintf("sa-%d", n)
			began := time.Now()
			token := c.api.AccountToken("ns", account, "pod", identity.Audience)
			if _, err := p.certify(conn, account, token); err != nil {
				c.t.Fatal(err)
			}
			if took := time.Since(began); took > 0 {
				c.t.Fatalf("call %d has waited for %s", n, took)
			}
			pass(10 * time.Millisecond)
		}

		events := len(c.events("IssuedLeafCertificate"))
		if events < 50 || events > 60 {
			c.t.Errorf("%d Events, want one at each fifth of a second", events)
		}
		want := fmt.Sprintf("fingerpost_certify_events_dropped_total %d\n", 1000-events)
		if _, text := p.get("/metrics"); !strings.Contains(text, want) {
			c.t.Errorf("the metrics have no %s", want)
		}
	})
}

// IC76: certificates are issued where Events may not be written, and the log has that.
func testEventsForbidden(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		c.api.Forbid("events.events.k8s.io", true)
		p, stop := c.start(false)
		defer stop()
		conn := p.dial(nil)
		defer conn.Close()
		p.mustCertify(conn)
		pass(time.Second)
		if log := c.logged(); !strings.Contains(log, "Server rejected event") {
			c.t.Errorf("the log has no refused Event:\n%s", log)
		}
	})
}

// IC78: what two replicas issue verifies, and has serial numbers of its own.
func testReplicasIssue(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		serials := map[string]bool{}
		for range 2 {
			p, stop := c.start(false)
			conn := p.dial(nil)
			for range 20 {
				serials[p.mustCertify(conn).SerialNumber.String()] = true
			}
			conn.Close()
			stop()
		}
		if len(serials) != 40 {
			c.t.Errorf("%d serial numbers of 40 certificates", len(serials))
		}
	})
}

// Without the right to have tokens reviewed the process is not ready, and it is once that is granted.
func TestRightToReviewTokens(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		c.api.Forbid("tokenreviews.authentication.k8s.io", true)
		p, stop := c.start(false)
		defer stop()
		p.wantsReady(http.StatusInternalServerError, "grant create on tokenreviews.authentication.k8s.io")
		conn := p.dial(nil)
		defer conn.Close()
		token := c.api.AccountToken("ns", "sa", "pod", identity.Audience)
		if _, err := p.certify(conn, "sa", token); status.Code(err) != codes.Unavailable {
			c.t.Errorf("a call without the right: %v", err)
		}

		c.api.Forbid("tokenreviews.authentication.k8s.io", false)
		pass(11 * time.Second)
		p.wantsReady(http.StatusOK, "")
		c.api.Forbid("tokenreviews.authentication.k8s.io", true)
		if _, err := p.certify(conn, "sa", token); status.Code(err) != codes.Unavailable {
			c.t.Errorf("a call once the right was taken away: %v", err)
		}
		pass(time.Second)
		p.wantsReady(http.StatusInternalServerError, "right to review tokens")
	})
}

// A process that cannot be built leaves nothing running.
func TestAuthorityWithoutAddress(t *testing.T) {
	before := goleak.IgnoreCurrent()
	_, err := app.NewAuthority(logr.Discard(), app.AuthorityOptions{Config: &rest.Config{Host: "127.0.0.1:1"}})
	if err == nil || !strings.Contains(err.Error(), "no address") {
		t.Errorf("built without an address: %v", err)
	}
	goleak.VerifyNone(t, before)
}

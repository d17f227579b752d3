package app_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/enroll"
	"github.com/fingerpost/fingerpost/identity/identitytest"
)

// An enrollment is a certificate that another process gets from an authority.
type enrollment struct {
	*server.Certificate
	c  *certifiers
	to atomic.Pointer[certifier] // nil: none answers
}

// enroll starts to get a certificate for the account linkerd-destination.
func (c *certifiers) enroll(from *certifier) (e *enrollment, stop func()) {
	c.t.Helper()
	e = &enrollment{c: c}
	e.to.Store(from)
	client := &enroll.Client{
		Addr: "authority:8080", Domain: c.domain,
		Token: func() (string, error) {
			return c.api.AccountToken("linkerd", "linkerd-destination", "pod", identity.Audience), nil
		},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if to := e.to.Load(); to != nil {
				return to.calls.DialContext(ctx)
			}
			return nil, net.ErrClosed
		},
	}
	e.Certificate = server.IssuedCertificate(c.logger(), server.Issued{
		Server: "mesh", From: client.Addr, Anchors: c.path("anchors"), Clients: tls.VerifyClientCertIfGiven,
		Obtain: client.Obtain,
	})

	ctx, cancel := context.WithCancel(c.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = e.Start(ctx) })
	pass(2 * time.Second)
	return e, func() {
		cancel()
		running.Wait()
	}
}

// now returns the certificate that is presented.
func (e *enrollment) now() *tls.Certificate {
	e.c.t.Helper()
	config, err := e.ClientConfig("")
	if err != nil {
		e.c.t.Fatal(err)
	}
	return &config.Certificates[0]
}

// missing returns what the process waits for.
func (e *enrollment) missing() string {
	condition := e.Conditions()[0]
	if patience, _ := condition.Load(); patience == 0 {
		return ""
	}
	return strings.Join(condition.Missing(), ", ")
}

// A process gets a certificate for its own account, presents it with the chain, and another one when 70 % of its life
// is over. While the authority is away the one before stays, until it ends: then the process is not ready.
func TestEnrollment(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		p, stop := c.start(true)
		defer stop()
		e, end := c.enroll(p)
		defer end()
		if missing := e.missing(); missing != "" {
			c.t.Fatalf("there is no certificate: %s", missing)
		}
		first := e.now()
		const want = "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local"
		if names := first.Leaf.DNSNames; len(names) != 1 || names[0] != want || len(first.Certificate) != 2 {
			c.t.Errorf("%d certificates of %q, want a chain of two of %s", len(first.Certificate), names, want)
		}

		pass(16 * time.Hour)
		if e.now().Leaf != first.Leaf {
			c.t.Error("it was replaced before 70 % of 24 hours")
		}
		pass(time.Hour)
		second := e.now()
		if second.Leaf == first.Leaf {
			c.t.Error("it was not replaced after 70 % of 24 hours")
		}

		e.to.Store(nil)
		pass(23 * time.Hour)
		if missing := e.missing(); missing != "" || e.now().Leaf != second.Leaf {
			c.t.Errorf("while the authority is away: %s", missing)
		}
		if problem := e.Unreadable()["authority:8080"]; !strings.Contains(problem, "the authority at authority:8080") {
			c.t.Errorf("the problem is %q", problem)
		}
		pass(2 * time.Hour)
		if missing := e.missing(); !strings.HasPrefix(missing, "it has ended at ") {
			c.t.Errorf("with a certificate that has ended it is missing: %q", missing)
		}

		e.to.Store(p)
		pass(31 * time.Second)
		if missing := e.missing(); missing != "" {
			c.t.Errorf("with the authority back: %s", missing)
		}
	})
}

// A rotation of anchors and issuer: a certificate under an anchor that is gone is replaced at once.
func TestEnrollmentUnderNewAnchor(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		p, stop := c.start(true)
		defer stop()
		e, end := c.enroll(p)
		defer end()
		first := e.now()

		anchor := identitytest.NewCA(c.t, "new root", identitytest.P256(c.t), nil)
		c.write("anchors", append(c.anchor.PEM(), anchor.PEM()...))
		pass(2 * time.Second)
		if e.now().Leaf != first.Leaf {
			c.t.Error("it was replaced although it verifies")
		}
		issuer := identitytest.NewCA(c.t, "new issuer", identitytest.P256(c.t), anchor)
		c.write("crt.pem", issuer.PEM())
		c.write("key.pem", issuer.KeyPEM(c.t))
		pass(5 * time.Second)
		c.write("anchors", anchor.PEM())
		pass(5 * time.Second)

		second := e.now().Leaf
		if second == first.Leaf || second.Issuer.CommonName != "new issuer" {
			c.t.Errorf("the certificate is of %s", second.Issuer.CommonName)
		}
		p.wantsReady(http.StatusOK, "")
	})
}

// What keeps a process from a certificate is named.
func TestEnrollmentFails(t *testing.T) {
	inMesh(t, func(c *certifiers) {
		p, stop := c.start(true)
		defer stop()
		other := identitytest.NewCA(c.t, "other", identitytest.P256(c.t), nil)
		for _, test := range []struct {
			name, want string
			client     enroll.Client
			anchor     *identitytest.CA
		}{
			{"a token that is none", "no JWT", enroll.Client{Domain: c.domain, Token: text("x")}, c.anchor},
			{"claims that are none", "no claims", enroll.Client{Domain: c.domain, Token: text("e30.!.x")}, c.anchor},
			{"the token of a user", "not that of a ServiceAccount", enroll.Client{
				Domain: c.domain, Token: text("e30.eyJzdWIiOiJhbGljZSJ9.x"), // alice
			}, c.anchor},
			{"a token that is not known", "an error about the token", enroll.Client{
				Domain: c.domain, Token: text("e30.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6bnM6c2EifQ.x"), // ns:sa
			}, c.anchor},
			{"other anchors", "certificate signed by unknown authority", enroll.Client{
				Domain: c.domain, Token: text(c.api.AccountToken("ns", "sa", "pod", identity.Audience)),
			}, other},
		} {
			test.client.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return p.calls.DialContext(ctx)
			}
			_, err := test.client.Obtain(c.t.Context(), test.anchor.Pool())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				c.t.Errorf("%s: %v, want %s", test.name, err, test.want)
			}
		}
	})
}

func text(of string) func() (string, error) { return func() (string, error) { return of, nil } }

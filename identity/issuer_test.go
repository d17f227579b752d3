package identity_test

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/identitytest"
)

// What would sign no leaf that a proxy accepts is no issuer, and the reason names the step. None has the key in it.
func TestNewIssuer(t *testing.T) {
	anchor := identitytest.NewCA(t, "root", identitytest.P256(t), nil)
	good := identitytest.NewCA(t, "issuer", identitytest.P256(t), anchor)
	short := identitytest.NewCA(t, "above", identitytest.P256(t), anchor,
		func(c *x509.Certificate) { c.MaxPathLenZero = true })
	below := identitytest.NewCA(t, "issuer", identitytest.P256(t), short)
	source := good.Source(t, anchor)
	keyText := string(source.Key[40:60])

	issuer := func(changes ...identitytest.Change) identity.Source {
		return identitytest.NewCA(t, "issuer", identitytest.P256(t), anchor, changes...).Source(t, anchor)
	}
	of := func(key crypto.Signer) identity.Source {
		return identitytest.NewCA(t, "issuer", key, anchor).Source(t, anchor)
	}
	servers := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	minute := time.Minute

	for name, test := range map[string]struct {
		source     identity.Source
		step, text string // of the error; none: it is an issuer
	}{
		"good":                {source, "", ""},
		"P-224":               {of(identitytest.Curve(t, elliptic.P224())), "", ""},
		"is an anchor":        {identity.Source{source.Certificate, source.Key, good.PEM()}, "", ""},
		"key of another":      {identity.Source{source.Certificate, anchor.KeyPEM(t), source.Anchors}, readIssuer, "match"},
		"no key":              {identity.Source{source.Certificate, nil, source.Anchors}, readIssuer, "key"},
		"garbage":             {identity.Source{[]byte("?"), source.Key, source.Anchors}, readIssuer, "certificate"},
		"no CA":               {issuer(func(c *x509.Certificate) { c.IsCA = false }), readIssuer, "no authority"},
		"may not sign":        {issuer(func(c *x509.Certificate) { c.KeyUsage = 0 }), readIssuer, "may not sign"},
		"no anchors":          {identity.Source{source.Certificate, source.Key, []byte("#")}, "ReadAnchors", "no cert"},
		"under another":       {identity.Source{source.Certificate, source.Key, below.PEM()}, verifyIssuer, "unknown"},
		"expired":             {issuer(identitytest.Ends(time.Now().Add(-minute))), verifyIssuer, "expired"},
		"not yet valid":       {issuer(identitytest.Begins(time.Now().Add(minute))), verifyIssuer, "not yet valid"},
		"without one between": {below.Source(t, anchor), verifyIssuer, "unknown authority"},
		"for servers alone":   {issuer(func(c *x509.Certificate) { c.ExtKeyUsage = servers }), tryIssuer, "usage"},
		"for other names":     {issuer(identitytest.Permits("td.example")), tryIssuer, "permitted"},
		"path is too long":    {below.Source(t, anchor, short), tryIssuer, "too many intermediates"},
	} {
		_, err := identity.NewIssuer(test.source, domain, time.Now())
		step := ""
		if reason, is := errors.AsType[*identity.SourceError](err); is {
			step = reason.Step
		}
		as := err == nil || strings.Contains(err.Error(), test.text)
		if step != test.step || (err != nil) != (step != "") || !as {
			t.Errorf("%s: step %q, %v; want step %q, %q", name, step, err, test.step, test.text)
		}
		if err != nil && strings.Contains(err.Error(), keyText) {
			t.Errorf("%s: the reason has the key in it: %v", name, err)
		}
	}
}

const readIssuer, verifyIssuer, tryIssuer = "ReadIssuer", "VerifyIssuer", "TryIssuer"

// Blocks that are no certificates are counted, so that they can be reported.
func TestSkippedAnchors(t *testing.T) {
	ca := identitytest.NewCA(t, "root", identitytest.P256(t), nil)
	source := ca.Source(t, ca)
	bad := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	source.Anchors = append(append([]byte("comment\n"), ca.KeyPEM(t)...), append(source.Anchors, bad...)...)
	issuer, err := identity.NewIssuer(source, domain, time.Now())
	if err != nil || issuer.Skipped() != 2 {
		t.Fatalf("%v, want 2 skipped blocks", err)
	}
}

// An issuer that ends is reported a few times, the later the more often.
func TestWarnings(t *testing.T) {
	const day = 24 * time.Hour
	anchor := identitytest.NewCA(t, "root", identitytest.P256(t), nil, identitytest.Ends(time.Now().AddDate(20, 0, 0)))
	for _, test := range []struct{ life, left, want time.Duration }{
		{730 * day, 61 * day, 0},
		{730 * day, 59 * day, 1},
		{730 * day, 47 * time.Hour, 2},
		{730 * day, 23 * time.Hour, 3},
		{90 * day, 31 * day, 0},
		{90 * day, 29 * day, 1},
		{90 * day, 14 * day, 2},
		{90 * day, 1 * day, 4},
		{day, 9 * time.Hour, 0},
		{day, 7 * time.Hour, 1},
		{day, 3 * time.Hour, 2},
		{day, 0, 2},
	} {
		begins, ends := time.Now().Add(-time.Minute), time.Now().Add(test.life-time.Minute)
		ca := identitytest.NewCA(t, "issuer", identitytest.P256(t), anchor,
			identitytest.Begins(begins), identitytest.Ends(ends))
		issuer, err := identity.NewIssuer(ca.Source(t, anchor), domain, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if got := issuer.Warnings(issuer.End().Add(-test.left)); got != int(test.want) {
			t.Errorf("%v of %v left: %d warnings, want %d", test.left, test.life, got, test.want)
		}
	}
}

// asks answers a review, or blocks.
type asks func(context.Context) (identity.Review, error)

func (f asks) Review(ctx context.Context, _, _ string) (identity.Review, error) { return f(ctx) }

func newAuthority(tb testing.TB, reviewer identity.Reviewer) *identity.Authority {
	tb.Helper()
	anchor := identitytest.NewCA(tb, "root", identitytest.P256(tb), nil)
	issuer, err := identity.NewIssuer(
		identitytest.NewCA(tb, "issuer", identitytest.P256(tb), anchor).Source(tb, anchor), domain, time.Now())
	if err != nil {
		tb.Fatal(err)
	}
	authority := identity.NewAuthority(identity.Options{
		Domain: domain, Terms: identity.Terms{Lifetime: 24 * time.Hour, Skew: 20 * time.Second}, Reviewer: reviewer,
	})
	authority.Use(issuer)
	return authority
}

var known = asks(func(context.Context) (identity.Review, error) {
	return identity.Review{Authenticated: true, User: "system:serviceaccount:ns:sa", UID: "1"}, nil
})

func newRequest(tb testing.TB) identity.Request {
	tb.Helper()
	return identity.Request{
		Identity: name, Token: []byte("token"), Signing: identitytest.Signing(tb, identitytest.P256(tb), name),
	}
}

// A caller that finds all turns taken waits for as long as it can, and then gets the reason.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		authority := newAuthority(t, asks(func(ctx context.Context) (identity.Review, error) {
			select {
			case <-free:
				return known(ctx)
			case <-ctx.Done():
				return identity.Review{}, ctx.Err()
			}
		}))
		request := newRequest(t)
		long, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		served := make(chan *identity.Refusal, identity.MaxReviews)
		for range identity.MaxReviews {
			go func() {
				_, refusal := authority.Certify(long, request)
				served <- refusal
			}()
		}
		synctest.Wait()

		began := time.Now()
		_, refusal := authority.Certify(t.Context(), request)
		if refusal == nil || refusal.Check != identity.CheckTurn || refusal.Cause != identity.Unavailable ||
			time.Since(began) != 10*time.Second {
			t.Errorf("%+v after %v, want no turn within 10 s", refusal, time.Since(began))
		}
		close(free)
		for range identity.MaxReviews {
			if refusal := <-served; refusal != nil {
				t.Error(refusal)
			}
		}
		if leaf, refusal := authority.Certify(t.Context(), request); refusal != nil || leaf.Account.UID != "1" {
			t.Errorf("once turns are free: %v", refusal)
		}
	})
}

// An authority without an issuer, or whose issuer ends while a token is reviewed, answers that it is not available.
func TestWithoutIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := identity.NewAuthority(identity.Options{Domain: domain, Reviewer: known})
		request := newRequest(t)
		if _, refusal := authority.Certify(t.Context(), request); refusal == nil ||
			refusal.Check != identity.CheckIssuer || refusal.Cause != identity.Unavailable {
			t.Errorf("%+v", refusal)
		}

		authority = newAuthority(t, asks(func(ctx context.Context) (identity.Review, error) {
			<-time.NewTimer(9 * time.Second).C
			return known(ctx)
		}))
		pause := time.Until(authority.Issuer().End()) - 5*time.Second
		<-time.NewTimer(pause).C
		if _, refusal := authority.Certify(t.Context(), request); refusal == nil ||
			refusal.Check != identity.CheckChain || refusal.Cause != identity.Unavailable {
			t.Errorf("an issuer that ends meanwhile: %+v", refusal)
		}
		began := time.Now()
		if _, refusal := authority.Certify(t.Context(), request); refusal == nil ||
			refusal.Check != identity.CheckChain || time.Since(began) != 0 {
			t.Errorf("an issuer that has ended: %+v after %v, want no review", refusal, time.Since(began))
		}
	})
}

// Parts that are no DNS names make no domain.
func TestDomain(t *testing.T) {
	for _, bad := range []identity.Domain{
		{"", "cluster.local"},
		{"a.b", "cluster.local"},
		{"linkerd", ""},
		{"linkerd", "a..b"},
		{"linkerd", "A"},
		{"linkerd", "-a"},
		{strings.Repeat("a", 64), "cluster.local"},
		{"linkerd", strings.Repeat("a.", 127) + "a"},
	} {
		if bad.Validate() == nil {
			t.Errorf("%+v makes a domain", bad)
		}
	}
	if err := domain.Validate(); err != nil {
		t.Error(err)
	}
}

// What a call costs without its review. Allocations are gated, as they do not depend on the machine.
func TestBudget(t *testing.T) {
	authority, request := newAuthority(t, known), newRequest(t)
	const budget = 600
	n := testing.AllocsPerRun(20, func() {
		if _, refusal := authority.Certify(t.Context(), request); refusal != nil {
			t.Fatal(refusal)
		}
	})
	if n > budget {
		t.Errorf("%v allocations for a leaf, the budget is %d", n, budget)
	}
}

func BenchmarkCertify(b *testing.B) {
	authority, request := newAuthority(b, known), newRequest(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, refusal := authority.Certify(b.Context(), request); refusal != nil {
			b.Fatal(refusal)
		}
	}
}

package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/identitytest"
)

var (
	domain = identity.Domain{Namespace: "linkerd", TrustDomain: "shop.example"}
	start  = time.Date(2030, 2, 28, 12, 0, 0, 0, time.UTC)
)

const day = 24 * time.Hour

func newAnchor(t *testing.T, life time.Duration) *Authority {
	t.Helper()
	anchor, err := NewAnchor(domain, life, start)
	if err != nil {
		t.Fatal(err)
	}
	return anchor
}

func newIssuer(t *testing.T, anchor *Authority) *Authority {
	t.Helper()
	issuer, err := anchor.NewIssuer(domain, 365*day, start)
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

// An anchor and an issuer are what Linkerd's pages ask for: ECDSA P-256, path lengths of 1 and 0, and their names.
func TestAuthorities(t *testing.T) {
	anchor := newAnchor(t, 3650*day)
	issuer := newIssuer(t, anchor)

	for name, c := range map[string]struct {
		authority *Authority
		subject   string
		path      int
		ends      time.Time
	}{
		"anchor": {anchor, "CN=root.linkerd.shop.example", 1, start.Add(3650 * day)},
		"issuer": {issuer, "CN=identity.linkerd.shop.example", 0, start.Add(365 * day)},
	} {
		made := c.authority.Certificate
		key, is := made.PublicKey.(*ecdsa.PublicKey)
		switch {
		case !is || key.Curve != elliptic.P256() || made.SignatureAlgorithm != x509.ECDSAWithSHA256:
			t.Errorf("%s: %T, signed with %v", name, made.PublicKey, made.SignatureAlgorithm)
		case made.Subject.String() != c.subject:
			t.Errorf("%s: %s", name, made.Subject)
		case !made.IsCA || made.MaxPathLen != c.path || made.MaxPathLenZero != (c.path == 0):
			t.Errorf("%s: CA %v, path length %d", name, made.IsCA, made.MaxPathLen)
		case made.KeyUsage != x509.KeyUsageCertSign|x509.KeyUsageCRLSign:
			t.Errorf("%s: usage %b", name, made.KeyUsage)
		case !made.NotBefore.Before(start) || !made.NotAfter.Equal(c.ends):
			t.Errorf("%s: from %s to %s", name, made.NotBefore, made.NotAfter)
		case made.SerialNumber.Sign() <= 0 || made.SerialNumber.BitLen() > 128:
			t.Errorf("%s: serial number %v", name, made.SerialNumber)
		}
	}
	if anchor.Certificate.SerialNumber.Cmp(newAnchor(t, day).Certificate.SerialNumber) == 0 {
		t.Error("two anchors have one serial number")
	}
}

// What is made is taken by the control plane, and leaves verify against the anchor alone, after it was written as PEM
// and read again.
func TestIssuerIsTaken(t *testing.T) {
	anchor := newAnchor(t, 3650*day)
	key, err := anchor.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	read, err := Load(anchor.PEM(), key)
	if err != nil {
		t.Fatal(err)
	}
	issuer := newIssuer(t, read)
	if key, err = issuer.KeyPEM(); err != nil {
		t.Fatal(err)
	}

	taken, err := identity.NewIssuer(
		identity.Source{Certificate: issuer.PEM(), Key: key, Anchors: anchor.PEM()}, domain, start)
	if err != nil {
		t.Fatal(err)
	}
	subject := identity.Subject{Name: domain.Name("ns", "sa"), Key: identitytest.P256(t).Public()}
	leaf, err := taken.Sign(subject, identity.Terms{Lifetime: day}, start)
	if err != nil {
		t.Fatal(err)
	}
	chain := []*x509.Certificate{leaf.Certificate, issuer.Certificate}
	if err := Verify(chain, []*x509.Certificate{anchor.Certificate}, start); err != nil {
		t.Error(err)
	}
	if Leads(chain, newAnchor(t, 3650*day).Certificate, start) {
		t.Error("it verifies against another anchor of the same name")
	}

	other := &Authority{issuer.Certificate, issuer.key}
	if _, err := other.NewIssuer(domain, day, start); err == nil || !strings.Contains(err.Error(), "leaves only") {
		t.Errorf("an issuer certifies an issuer: %v", err)
	}
}

// An issuer does not outlast its anchor, and none is made for too short a time.
func TestLives(t *testing.T) {
	short := newAnchor(t, 30*day)
	if got := newIssuer(t, short).Certificate.NotAfter; !got.Equal(start.Add(30 * day)) {
		t.Errorf("under an anchor of 30 days an issuer ends at %s", got)
	}

	if _, err := short.NewIssuer(domain, day, start.Add(30*day-time.Minute)); err == nil {
		t.Error("an anchor that ends within a minute certifies an issuer")
	}
	if _, err := short.NewIssuer(domain, day, start.Add(-day)); err == nil {
		t.Error("an anchor that has not begun certifies an issuer")
	}
	if _, err := short.NewIssuer(domain, MinLife-1, start); err == nil {
		t.Error("an issuer of less than the least life is made")
	}
	if _, err := NewAnchor(domain, MinLife-1, start); err == nil {
		t.Error("an anchor of less than the least life is made")
	}
	if _, err := NewAnchor(identity.Domain{Namespace: "a.b", TrustDomain: "c"}, day, start); err == nil {
		t.Error("an anchor of no domain is made")
	}

	leaf := identitytest.NewCA(t, "leaf", identitytest.P256(t), nil, identitytest.NoCA)
	if _, err := (&Authority{leaf.Certificate, leaf.Key}).NewIssuer(domain, day, start); err == nil {
		t.Error("what is no authority certifies an issuer")
	}
	elsewhere := identitytest.NewCA(t, "root", identitytest.P256(t), nil,
		identitytest.Permits("other.example"), identitytest.Begins(start), identitytest.Ends(start.Add(9*day)))
	if _, err := (&Authority{elsewhere.Certificate, elsewhere.Key}).NewIssuer(domain, day, start); err == nil {
		t.Error("an anchor for names of another domain gets an issuer whose leaves do not verify")
	}
}

// Keys of all usual forms are read. An error has nothing of a key.
func TestLoad(t *testing.T) {
	anchor := newAnchor(t, day)
	private, is := anchor.key.(*ecdsa.PrivateKey)
	if !is {
		t.Fatal("no ECDSA key")
	}
	sec1, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := anchor.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, headers map[string]string) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Headers: headers, Bytes: sec1})
	}

	for _, key := range [][]byte{pkcs8, block("EC PRIVATE KEY", nil)} {
		if read, err := Load(anchor.PEM(), key); err != nil || !read.Certificate.Equal(anchor.Certificate) {
			t.Errorf("%v %v", read, err)
		}
	}
	for want, key := range map[string][]byte{
		"decrypt it first": block("ENCRYPTED PRIVATE KEY", nil),
		"is encrypted":     block("EC PRIVATE KEY", map[string]string{"Proc-Type": "4,ENCRYPTED"}),
		"does not match":   identitytest.NewCA(t, "other", identitytest.P256(t), nil).KeyPEM(t),
		"find any PEM":     []byte("secret words"),
		"more than":        bytes.Repeat([]byte("x"), maxPEM+1),
	} {
		_, err := Load(anchor.PEM(), key)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret words") {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// A bundle is read as a whole or not at all, and within bounds.
func TestParsePEM(t *testing.T) {
	a, b := newAnchor(t, day), newAnchor(t, day)
	key, err := a.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	bundle := bytes.Join([][]byte{[]byte("# a comment\n"), a.PEM(), key, b.PEM(), a.PEM()}, nil)
	all, err := ParsePEM(bundle)
	if err != nil || len(all) != 2 || !all[0].Equal(a.Certificate) || !all[1].Equal(b.Certificate) {
		t.Errorf("%d certificates, %v", len(all), err)
	}

	var many []byte
	for range maxCertificates + 1 {
		many = append(many, newAnchor(t, day).PEM()...)
	}
	broken := append(a.PEM(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})...)
	for name, bundle := range map[string][]byte{
		"nothing": nil, "a key": key, "one that is broken": broken, "too many": many,
		"too long": bytes.Repeat([]byte("\n"), maxPEM+1),
	} {
		if all, err := ParsePEM(bundle); err == nil {
			t.Errorf("%s: %d certificates", name, len(all))
		}
	}
}

// Package identitytest makes authorities and signing requests, for tests.
package identitytest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/identity"
)

// A CA is the certificate of an authority, with its key.
type CA struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// A Change makes a certificate another one than the usual.
type Change func(*x509.Certificate)

// Ends has a certificate end at a time.
func Ends(at time.Time) Change { return func(c *x509.Certificate) { c.NotAfter = at } }

// Begins has a certificate begin at a time.
func Begins(at time.Time) Change { return func(c *x509.Certificate) { c.NotBefore = at } }

// NoCA has a certificate be that of no authority.
func NoCA(c *x509.Certificate) { c.IsCA = false }

// Permits has a certificate be good for names of a domain alone.
func Permits(domain string) Change {
	return func(c *x509.Certificate) { c.PermittedDNSDomains = []string{domain} }
}

// NewCA returns an authority that is certified by another one; by itself, if that is nil. It may certify authorities
// and leaves from an hour ago until a year from now, unless a Change has it otherwise.
func NewCA(tb testing.TB, name string, key crypto.Signer, above *CA, changes ...Change) *CA {
	tb.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(tb), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
	}
	for _, change := range changes {
		change(template)
	}

	ca := &CA{Key: key}
	if above == nil {
		above = &CA{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, above.Certificate, key.Public(), above.Key)
	if err == nil {
		ca.Certificate, err = x509.ParseCertificate(der)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return ca
}

func serial(tb testing.TB) *big.Int {
	tb.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// PEM returns the certificate.
func (c *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate.Raw})
}

// KeyPEM returns the key, as PKCS #8.
func (c *CA) KeyPEM(tb testing.TB) []byte {
	tb.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Pool returns the authority as the only anchor.
func (c *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.Certificate)
	return pool
}

// Source returns what an issuer is made of: its certificate, with those above it in its file, and its anchors.
func (c *CA) Source(tb testing.TB, anchor *CA, above ...*CA) identity.Source {
	tb.Helper()
	file := c.PEM()
	for _, ca := range above {
		file = append(file, ca.PEM()...)
	}
	return identity.Source{Certificate: file, Key: c.KeyPEM(tb), Anchors: anchor.PEM()}
}

// P256 returns a new key, of the kind that proxies have.
func P256(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	return Curve(tb, elliptic.P256())
}

// Curve returns a new key of a curve.
func Curve(tb testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// RSA returns a new key of 2,048 bits.
func RSA(tb testing.TB) *rsa.PrivateKey {
	tb.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// Ed25519 returns a new key.
func Ed25519(tb testing.TB) ed25519.PrivateKey {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// Signing returns a signing request in DER, as a proxy makes it for an identity, unless a change has it otherwise.
func Signing(tb testing.TB, key crypto.Signer, name string, changes ...func(*x509.CertificateRequest)) []byte {
	tb.Helper()
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}}
	for _, change := range changes {
		change(template)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

// Flip returns bytes with one bit changed near their end, where a signature is.
func Flip(of []byte) []byte {
	changed := bytes.Clone(of)
	changed[len(changed)-3] ^= 1
	return changed
}

// Secret returns the number that the key of an authority of ECDSA is.
func Secret(of *CA) []byte {
	key, _ := of.Key.(*ecdsa.PrivateKey)
	secret, _ := key.Bytes() // it fails for unknown curves alone
	return secret
}

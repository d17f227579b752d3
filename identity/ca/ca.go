// Package ca makes the authorities of a mesh, which issue no leaves: its trust anchor, and issuers under it. It also
// finds out what is next while one anchor takes over from another.
//
// All keys are of ECDSA P-256. An anchor has a path length of 1, and an issuer one of 0: neither can certify an
// authority that is not meant. Names of subjects are those that the installation pages of Linkerd ask for.
//
// Of this module the package imports identity alone. It opens no files and prints nothing.
package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/identity"
)

const (
	// MinLife is the shortest life of an authority: within less it cannot be replaced.
	MinLife = time.Hour

	early = 5 * time.Minute // by which an authority begins before it is made: clocks differ

	maxPEM          = 64 << 10 // bytes of a bundle, or of a file
	maxCertificates = 32       // in it
)

// An Authority is a certificate that certifies others, with its key.
type Authority struct {
	Certificate *x509.Certificate
	key         crypto.Signer
}

// NewAnchor makes a trust anchor that lasts so long from now on. The error is that of a life below [MinLife], or of a
// domain that is none.
func NewAnchor(domain identity.Domain, life time.Duration, now time.Time) (*Authority, error) {
	if err := domain.Validate(); err != nil {
		return nil, err
	}
	template, err := newTemplate("root."+domain.Namespace+"."+domain.TrustDomain, life, now)
	if err != nil {
		return nil, err
	}
	template.MaxPathLen = 1

	key, err := identity.NewKey()
	if err != nil {
		return nil, err
	}
	return certify(template, key, &Authority{template, key})
}

// NewIssuer makes an issuer that lasts so long from now on, and as long as the anchor at most. The error is that of
// NewAnchor, or why the anchor cannot certify an issuer now.
func (a *Authority) NewIssuer(domain identity.Domain, life time.Duration, now time.Time) (*Authority, error) {
	if err := errors.Join(domain.Validate(), a.certifies(now)); err != nil {
		return nil, err
	}
	template, err := newTemplate("identity."+domain.Namespace+"."+domain.TrustDomain, life, now)
	if err != nil {
		return nil, err
	}

	template.MaxPathLenZero = true
	if a.Certificate.NotBefore.After(template.NotBefore) {
		template.NotBefore = a.Certificate.NotBefore
	}
	if a.Certificate.NotAfter.Before(template.NotAfter) {
		template.NotAfter = a.Certificate.NotAfter
	}

	key, err := identity.NewKey()
	if err != nil {
		return nil, err
	}
	issuer, err := certify(template, key, a)
	if err != nil {
		return nil, err
	}
	return issuer, a.try(issuer, domain, now)
}

// certifies reports why an anchor cannot certify issuers.
func (a *Authority) certifies(now time.Time) error {
	switch c := a.Certificate; {
	case !c.BasicConstraintsValid || !c.IsCA || c.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("the anchor is no authority: its certificate may not sign others")
	case c.MaxPathLenZero && c.MaxPathLen == 0:
		return errors.New("the anchor may certify leaves only: its path length is 0")
	case now.Before(c.NotBefore):
		return fmt.Errorf("the anchor begins at %s", c.NotBefore.UTC().Format(time.RFC3339))
	case now.Add(MinLife).After(c.NotAfter):
		return fmt.Errorf("the anchor ends at %s: no issuer outlasts it", c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// try has the issuer sign a leaf, as the control plane will: there may be constraints in an anchor of another program.
func (a *Authority) try(issuer *Authority, domain identity.Domain, now time.Time) error {
	key, err := issuer.KeyPEM()
	if err != nil {
		return err
	}
	source := identity.Source{Certificate: issuer.PEM(), Key: key, Anchors: a.PEM()}
	_, err = identity.NewIssuer(source, domain, now)
	return err
}

// newTemplate returns what all authorities have in common. Times of certificates are whole seconds.
func newTemplate(name string, life time.Duration, now time.Time) (*x509.Certificate, error) {
	if life < MinLife {
		return nil, fmt.Errorf("a life of %s is too short: it is %s at least", life, MinLife)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}

	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-early), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
	}, nil
}

// certify signs a template for a key.
func certify(template *x509.Certificate, key *ecdsa.PrivateKey, by *Authority) (*Authority, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, by.Certificate, &key.PublicKey, by.key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &Authority{certificate, key}, err
}

// Load reads an authority from PEM: its certificate is the first one. The error has nothing of the key.
func Load(certificate, key []byte) (*Authority, error) {
	switch {
	case len(certificate) > maxPEM || len(key) > maxPEM:
		return nil, fmt.Errorf("a certificate or a key has more than %d bytes", maxPEM)
	case isEncrypted(key):
		return nil, errors.New("the key is encrypted: decrypt it first, such as with 'openssl pkey' or " +
			"'step crypto change-pass --no-password'")
	}

	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	signer, signs := pair.PrivateKey.(crypto.Signer)
	if !signs {
		return nil, errors.New("the key cannot sign")
	}
	return &Authority{pair.Leaf, signer}, nil
}

// isEncrypted reports whether a key needs a password, of PKCS #8 or of the form before it.
func isEncrypted(key []byte) bool {
	for block, rest := pem.Decode(key); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED") {
			return true
		}
	}
	return false
}

// PEM returns the certificate.
func (a *Authority) PEM() []byte { return EncodePEM(a.Certificate) }

// KeyPEM returns the private key, as PKCS #8.
func (a *Authority) KeyPEM() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// EncodePEM returns certificates as a bundle.
func EncodePEM(all ...*x509.Certificate) (bundle []byte) {
	for _, c := range all {
		bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return bundle
}

// ParsePEM returns the certificates of a bundle, or of a file of an issuer, in their order and each once. Blocks of
// other types are left out. It returns all of them or an error: 64 KiB and 32 certificates at most, and one at least.
func ParsePEM(bundle []byte) (all []*x509.Certificate, err error) {
	if len(bundle) > maxPEM {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(bundle), maxPEM)
	}

	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}

		certificate, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return nil, fmt.Errorf("certificate %d: %w", len(all)+1, err)
		case contains(all, certificate):
			continue
		case len(all) == maxCertificates:
			return nil, fmt.Errorf("it has more than %d certificates", maxCertificates)
		}
		all = append(all, certificate)
	}

	if len(all) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	return all, nil
}

// Fingerprint returns the SHA-256 of a certificate as 64 hexadecimal digits.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

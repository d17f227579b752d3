package identity

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"time"
)

// A Leaf is a certificate of a workload.
type Leaf struct {
	Certificate *x509.Certificate
	Chain       [][]byte // in DER: the issuer first, then what is above it, without anchors
	Account     Account  // that it was issued for; the zero value for none
}

// A Subject is what a leaf is issued for.
type Subject struct {
	Name       string // its only DNS name
	CommonName string // equal to Name, or empty
	Key        any    // public
}

// Terms are what all leaves have in common.
type Terms struct {
	Lifetime time.Duration // of a leaf
	Skew     time.Duration // by which a clock may differ: a leaf begins as much earlier and ends as much later
}

// Sign returns a leaf for a Subject, once it has verified it. It begins at now less the skew, and ends with its
// lifetime and the skew, or with the chain above it if that is earlier. Times of certificates are whole seconds.
func (i *Issuer) Sign(subject Subject, terms Terms, now time.Time) (*Leaf, error) {
	chains, err := i.chainsAt(now)
	if err != nil {
		return nil, err
	}
	end := now.Add(terms.Lifetime + terms.Skew)
	if last := endOf(chains); last.Before(end) {
		end = last
	}

	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{CommonName: subject.CommonName},
		DNSNames:     []string{subject.Name},
		NotBefore:    now.Add(-terms.Skew), NotAfter: end,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},

		BasicConstraintsValid: true, // it is no authority
	}, i.certificate, subject.Key, i.key)
	if err != nil {
		return nil, err
	}

	leaf := &Leaf{Chain: i.answered}
	if leaf.Certificate, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return leaf, i.verifyLeaf(leaf.Certificate, subject.Name, now)
}

// verifyLeaf reports a leaf that a proxy would not accept from a server, or from a client.
func (i *Issuer) verifyLeaf(leaf *x509.Certificate, name string, now time.Time) error {
	for _, usage := range leaf.ExtKeyUsage {
		_, err := leaf.Verify(x509.VerifyOptions{
			DNSName: name, Roots: i.roots, Intermediates: i.above, CurrentTime: now,
			KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// newSerial returns 128 random bits as a positive number. No two of 2^64 are equal, as far as chance goes (the birthday
// bound), so that replicas share no counter.
func newSerial() *big.Int {
	bits := make([]byte, 16)
	for {
		_, _ = rand.Read(bits) // it never fails
		if serial := new(big.Int).SetBytes(bits); serial.Sign() > 0 {
			return serial
		}
	}
}

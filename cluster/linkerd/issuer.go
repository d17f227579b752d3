package linkerd

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// An Issuer is the certificate that a mesh signs identities with. The zero value is one that is not known.
type Issuer struct {
	Anchor              // what is kept of the certificate
	NotBefore time.Time `json:"notBefore"`

	// Under are the fingerprints of those of its own mesh's anchors that it leads to, sorted. None means that it
	// leads to none of them, so that it is not the issuer in use.
	Under []string `json:"under,omitempty"`
}

// Equal reports whether two are the same.
func (i Issuer) Equal(o Issuer) bool {
	return i.Anchor == o.Anchor && i.NotBefore.Equal(o.NotBefore) && slices.Equal(i.Under, o.Under)
}

// ParseIssuer returns the first certificate of a PEM file, which leads to anchors of a bundle by way of the others.
// The bounds are those of [ParseAnchors]. When certificates end does not matter here.
func ParseIssuer(file, bundle string) (Issuer, error) {
	chain, err := parseCertificates(file)
	if err != nil {
		return Issuer{}, fmt.Errorf("the issuer: %w", err)
	}
	anchors, err := parseCertificates(bundle)
	if err != nil {
		return Issuer{}, err
	}

	issuer := Issuer{Anchor: newAnchor(chain[0]), NotBefore: chain[0].NotBefore.UTC()}
	for _, anchor := range anchors {
		if leadsTo(chain, anchor) {
			issuer.Under = append(issuer.Under, newAnchor(anchor).Fingerprint)
		}
	}
	slices.Sort(issuer.Under)
	issuer.Under = slices.Compact(issuer.Under)
	return issuer, nil
}

// leadsTo reports whether a certificate is certified by an anchor, at some time.
func leadsTo(chain []*x509.Certificate, anchor *x509.Certificate) bool {
	roots, above := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(anchor)
	begin := anchor.NotBefore // the last of all: a chain that holds at some time does so when its last part begins
	for _, c := range chain {
		above.AddCert(c)
		if c.NotBefore.After(begin) {
			begin = c.NotBefore
		}
	}

	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: above, CurrentTime: begin, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err == nil
}

// parseCertificates returns the certificates of PEM: all of them, within the bounds of trust anchors, or an error.
func parseCertificates(text string) (all []*x509.Certificate, err error) {
	if len(text) > maxAnchorsPEM {
		return nil, fmt.Errorf("the trust anchors have %d bytes, more than %d", len(text), maxAnchorsPEM)
	}

	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}

		if len(all) == maxAnchors {
			return nil, fmt.Errorf("there are more than %d trust anchors", maxAnchors)
		}

		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("trust anchor %d: %w", len(all)+1, err)
		}
		all = append(all, certificate)
	}

	if len(all) == 0 {
		return nil, errors.New("there is no certificate among the trust anchors")
	}
	return all, nil
}

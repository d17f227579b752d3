package linkerd

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// AnchorsName is the name of the ConfigMap with the trust anchors that proxies load, in the namespace of the control
// plane, under the key [AnchorsKey]. Linkerd's chart writes it from the values in [ConfigName], unless
// identity.externalCA leaves that to others, such as trust-manager.
const (
	AnchorsName = "linkerd-identity-trust-roots"
	AnchorsKey  = "ca-bundle.crt"
)

// Bounds of trust anchors. A mesh has one, and two while one takes over from another.
const (
	maxAnchorsPEM    = 64 << 10 // bytes
	maxAnchors       = 32
	maxAnchorSubject = 100 // bytes that are kept
)

// An Anchor is a certificate that proxies of a mesh trust to sign identities.
type Anchor struct {
	Fingerprint string    `json:"fingerprint"` // SHA-256 of the certificate, as hexadecimal digits
	Subject     string    `json:"subject,omitempty"`
	NotAfter    time.Time `json:"notAfter"`
}

// String describes an Anchor for people, on one line.
func (a Anchor) String() string {
	return fmt.Sprintf("%s (sha256 %.8s, until %s)",
		cmp.Or(a.Subject, "a certificate without a subject"), a.Fingerprint, a.NotAfter.UTC().Format(time.RFC3339))
}

// ParseAnchors returns the certificates of a PEM bundle, sorted by fingerprint, each once. It has all of them or an
// error: of a bundle that is not understood completely it is not known what proxies trust.
func ParseAnchors(bundle string) ([]Anchor, error) {
	if len(bundle) > maxAnchorsPEM {
		return nil, fmt.Errorf("the trust anchors have %d bytes, more than %d", len(bundle), maxAnchorsPEM)
	}

	var anchors []Anchor
	for block, rest := pem.Decode([]byte(bundle)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}

		if len(anchors) == maxAnchors {
			return nil, fmt.Errorf("there are more than %d trust anchors", maxAnchors)
		}

		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("trust anchor %d: %w", len(anchors)+1, err)
		}
		anchors = append(anchors, newAnchor(certificate))
	}

	if len(anchors) == 0 {
		return nil, errors.New("there is no certificate among the trust anchors")
	}

	slices.SortFunc(anchors, func(a, b Anchor) int { return strings.Compare(a.Fingerprint, b.Fingerprint) })
	return slices.Compact(anchors), nil
}

func newAnchor(certificate *x509.Certificate) Anchor {
	hash := sha256.Sum256(certificate.Raw)
	subject := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, certificate.Subject.String())

	if len(subject) > maxAnchorSubject {
		subject = strings.ToValidUTF8(subject[:maxAnchorSubject], "") + "…"
	}
	return Anchor{Fingerprint: hex.EncodeToString(hash[:]), Subject: subject, NotAfter: certificate.NotAfter.UTC()}
}

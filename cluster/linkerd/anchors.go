package linkerd

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
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
	certificates, err := parseCertificates(bundle)
	if err != nil {
		return nil, err
	}
	var anchors []Anchor
	for _, certificate := range certificates {
		anchors = append(anchors, newAnchor(certificate))
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

package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// An Issuer signs leaves: a certificate of an authority with its key, the chain above it, and the anchors that all of
// it verifies against. It is immutable. Its key leaves it in no way: no method returns it, and nothing prints it.
type Issuer struct {
	certificate *x509.Certificate
	key         crypto.Signer
	roots       *x509.CertPool
	above       *x509.CertPool        // the issuer, and what else is in its file
	chains      [][]*x509.Certificate // that lead from the issuer to an anchor, as found when it was read
	answered    [][]byte              // what callers get besides a leaf, in DER
	skipped     int
}

// A Source is what an Issuer is made of, as PEM.
type Source struct {
	Certificate []byte // the issuer's, and then those above it
	Key         []byte
	Anchors     []byte
}

// A SourceError is why a Source makes no Issuer.
type SourceError struct {
	Step string // what was tried with it, as the action of an Event: ReadAnchors, ReadIssuer, VerifyIssuer or TryIssuer
	Err  error
}

// Error returns the reason.
func (e *SourceError) Error() string { return e.Err.Error() }

// Unwrap returns what has led to it.
func (e *SourceError) Unwrap() error { return e.Err }

// NewIssuer makes an Issuer of a Source, if that can sign for a domain now: the key is that of the first certificate,
// this is an authority's, and verifies against the anchors. Then it is tried: an Issuer whose leaves would not verify,
// because of a constraint somewhere above it, is none. The error is a SourceError, without anything of the key.
func NewIssuer(source Source, domain Domain, now time.Time) (*Issuer, error) {
	roots, anchors, skipped, err := readAnchors(source.Anchors)
	if err != nil {
		return nil, &SourceError{"ReadAnchors", err}
	}
	issuer, rest, err := readIssuer(source)
	if err != nil {
		return nil, &SourceError{"ReadIssuer", err}
	}

	issuer.roots, issuer.skipped = roots, skipped
	issuer.addChain(rest, anchors)
	if issuer.chains, err = issuer.verify(now); err != nil {
		return nil, &SourceError{"VerifyIssuer", fmt.Errorf("the issuer does not verify against the anchors: %w", err)}
	}
	if err := issuer.try(domain, now); err != nil {
		return nil, &SourceError{"TryIssuer", fmt.Errorf("a leaf of the issuer does not verify: %w", err)}
	}
	return issuer, nil
}

// addChain adds what stands after the issuer in its file. Callers have the anchors.
func (i *Issuer) addChain(rest, anchors []*x509.Certificate) {
	i.above = x509.NewCertPool()
	i.above.AddCert(i.certificate)
	i.answered = [][]byte{i.certificate.Raw}

	for _, c := range rest {
		i.above.AddCert(c)
		if !slices.ContainsFunc(anchors, c.Equal) {
			i.answered = append(i.answered, c.Raw)
		}
	}
}

// readAnchors reads a bundle. What is no certificate in it is left out and counted.
func readAnchors(bundle []byte) (roots *x509.CertPool, anchors []*x509.Certificate, skipped int, err error) {
	roots = x509.NewCertPool()
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		anchor, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			skipped++
			continue
		}
		roots.AddCert(anchor)
		anchors = append(anchors, anchor)
	}

	if len(anchors) == 0 {
		return nil, nil, skipped, errors.New("the bundle of anchors has no certificate")
	}
	return roots, anchors, skipped, nil
}

// readIssuer reads the issuer and its key, and returns what stands after it.
func readIssuer(source Source) (issuer *Issuer, rest []*x509.Certificate, err error) {
	pair, err := tls.X509KeyPair(source.Certificate, source.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate and key of the issuer: %w", err)
	}

	key, signs := pair.PrivateKey.(crypto.Signer)
	switch pair.PrivateKey.(type) {
	case *ecdsa.PrivateKey, *rsa.PrivateKey, ed25519.PrivateKey:
	default:
		signs = false
	}

	switch own := pair.Leaf; {
	case !signs:
		return nil, nil, errors.New("the key of the issuer is neither ECDSA, RSA nor Ed25519")
	case !own.BasicConstraintsValid || !own.IsCA:
		return nil, nil, errors.New("the issuer is no authority: its certificate is not a CA's")
	case own.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, nil, errors.New("the issuer may not sign certificates: its certificate lacks that usage")
	}

	for _, der := range pair.Certificate[1:] {
		above, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, nil, fmt.Errorf("a certificate after the issuer's: %w", err)
		}
		rest = append(rest, above)
	}
	return &Issuer{certificate: pair.Leaf, key: key}, rest, nil
}

// verify returns the chains that lead from the issuer to an anchor at a time.
func (i *Issuer) verify(at time.Time) ([][]*x509.Certificate, error) {
	return i.certificate.Verify(x509.VerifyOptions{
		Roots: i.roots, Intermediates: i.above, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
}

// try signs a leaf for no workload, with a key that is thrown away.
func (i *Issuer) try(domain Domain, now time.Time) error {
	key, err := NewKey()
	if err != nil {
		return err
	}
	_, err = i.Sign(Subject{Name: domain.Name("none", "none"), Key: &key.PublicKey}, Terms{Lifetime: time.Hour}, now)
	return err
}

// End returns when the Issuer can sign no longer: the earliest end in its chain, and in the one that lasts longest if
// there are several.
func (i *Issuer) End() time.Time { return endOf(i.chains) }

// endOf returns the last moment at which one of the chains holds, as far as ends go.
func endOf(chains [][]*x509.Certificate) (last time.Time) {
	for _, chain := range chains {
		first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if end := first.NotAfter; end.After(last) {
			last = end
		}
	}
	return last
}

// Warnings returns how many times it was to be reported by now that the Issuer ends: 60 days before, if it lasts for
// more than a year, and otherwise when a third of its life is left, and a sixth; then two days before, and one. A life
// of three days or less is too short for the last two.
func (i *Issuer) Warnings(now time.Time) int {
	const day = 24 * time.Hour
	life := i.End().Sub(i.certificate.NotBefore)
	steps := []time.Duration{life / 3, life / 6}
	if life > 365*day {
		steps = []time.Duration{60 * day}
	}

	first, left, due := steps[0], i.End().Sub(now), 0
	for _, step := range append(steps, 2*day, day) {
		if step <= first && left <= step {
			due++
		}
	}
	return due
}

// Serial returns the serial number of the issuer's certificate, in decimal digits.
func (i *Issuer) Serial() string { return i.certificate.SerialNumber.String() }

// Name returns the subject of the issuer's certificate, for people.
func (i *Issuer) Name() string { return i.certificate.Subject.String() }

// Skipped returns how many blocks of the bundle of anchors are no certificates.
func (i *Issuer) Skipped() int { return i.skipped }

// Check returns why the issuer's chain does not verify at a time; nil if it does.
func (i *Issuer) Check(at time.Time) error {
	_, err := i.chainsAt(at)
	return err
}

// chainsAt returns the chains that hold at a time. Signatures do not change: as a rule only the ends are looked at.
func (i *Issuer) chainsAt(at time.Time) ([][]*x509.Certificate, error) {
	holds := func(c *x509.Certificate) bool { return !at.Before(c.NotBefore) && !at.After(c.NotAfter) }
	var current [][]*x509.Certificate
	for _, chain := range i.chains {
		if !slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return !holds(c) }) {
			current = append(current, chain)
		}
	}
	if len(current) > 0 {
		return current, nil
	}
	return i.verify(at) // there may be a chain that did not hold yet when the issuer was read
}

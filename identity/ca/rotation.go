package ca

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Rotation is a trust anchor that takes over from others, as far as it has come in a cluster. There is no record of
// it: what is next follows from what is there.
//
// No leaf may be checked by a proxy that does not know the anchor above it. So what is trusted grows before it is used,
// and shrinks after its last use:
//
//	bundle    issuer under   next
//	old       old            add the new anchor
//	old, new  old            wait until every proxy has started with the new anchor, then replace the issuer
//	old, new  new            wait until every leaf of the old issuer has ended, then remove the old anchor
//	new       new            none: done
//
// A proxy reads its anchors when it starts, and asks for a leaf when 70 % of the one before have passed. Pods are
// therefore started again for the first wait, and nothing is to be done for the second.
type Rotation struct {
	Bundle []*x509.Certificate // that proxies trust which start now
	Issuer []*x509.Certificate // the issuer in use, and then those above it in its file
	New    *x509.Certificate   // the anchor that takes over

	Behind      int       // how many proxies have started without the new anchor
	IssuerSince time.Time // when the issuer was replaced; zero if that is not known
	LeafLife    time.Duration
}

// A Step is what is next in a Rotation.
type Step string

// The steps, in their order.
const (
	AddAnchor     Step = "AddAnchor"
	AwaitProxies  Step = "AwaitProxies"
	ReplaceIssuer Step = "ReplaceIssuer"
	AwaitLeaves   Step = "AwaitLeaves"
	RemoveAnchors Step = "RemoveAnchors"
	Done          Step = "Done"
)

// settle is how long after a Secret has changed its issuer may not be in use yet: a kubelet takes up to a minute or two
// to write a Secret into a Pod.
const settle = 5 * time.Minute

// Next returns what is next at a time.
func (r *Rotation) Next(now time.Time) Step {
	others := len(r.Others()) > 0

	switch {
	case !contains(r.Bundle, r.New):
		return AddAnchor
	case !r.isIssuerNew(now) && r.Behind > 0:
		return AwaitProxies
	case !r.isIssuerNew(now):
		return ReplaceIssuer
	case others && (r.IssuerSince.IsZero() || now.Before(r.LeavesEnd())):
		return AwaitLeaves
	case others:
		return RemoveAnchors
	}
	return Done
}

// Others returns all anchors in the bundle but the new one. They need not all go: clusters that are linked may have
// other anchors, each of which is in all bundles.
func (r *Rotation) Others() (others []*x509.Certificate) {
	for _, anchor := range r.Bundle {
		if !anchor.Equal(r.New) {
			others = append(others, anchor)
		}
	}
	return others
}

// isIssuerNew reports whether the issuer in use leads to the new anchor.
func (r *Rotation) isIssuerNew(now time.Time) bool { return Leads(r.Issuer, r.New, now) }

// LeavesEnd returns when the last leaf of the issuer before the one in use has ended; zero if it is not known when that
// was replaced.
func (r *Rotation) LeavesEnd() time.Time {
	if r.IssuerSince.IsZero() {
		return time.Time{}
	}
	return r.IssuerSince.Add(settle + r.LeafLife)
}

// Grown returns the bundle with the new anchor.
func (r *Rotation) Grown() []*x509.Certificate {
	if contains(r.Bundle, r.New) {
		return r.Bundle
	}
	return append(slices.Clone(r.Bundle), r.New)
}

// minPrefix is how many digits of a fingerprint name an anchor, at least.
const minPrefix = 8

// Shrunk returns the bundle without the anchors whose fingerprints begin with the given digits, 8 at least. The error
// is that of digits which name none of the others, or more than one.
func (r *Rotation) Shrunk(prefixes []string) ([]*x509.Certificate, error) {
	left := slices.Clone(r.Bundle)

	for _, prefix := range prefixes {
		if len(prefix) < minPrefix {
			return nil, fmt.Errorf("%q is too short for a fingerprint: give %d digits at least", prefix, minPrefix)
		}

		named := func(c *x509.Certificate) bool {
			return !c.Equal(r.New) && strings.HasPrefix(Fingerprint(c), strings.ToLower(prefix))
		}
		shrunk := slices.DeleteFunc(slices.Clone(left), named)
		if len(shrunk) != len(left)-1 {
			return nil, fmt.Errorf("%q names none of the other anchors in the bundle, or several", prefix)
		}
		left = shrunk
	}

	return left, nil
}

// Leads reports whether the first of certificates verifies against an anchor, by way of the others.
func Leads(chain []*x509.Certificate, anchor *x509.Certificate, now time.Time) bool {
	return Verify(chain, []*x509.Certificate{anchor}, now) == nil
}

// Verify returns why the first of certificates does not verify against any of the anchors, by way of the others.
func Verify(chain, anchors []*x509.Certificate, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("there is no certificate")
	}
	roots, above := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range anchors {
		roots.AddCert(c)
	}
	for _, c := range chain[1:] {
		above.AddCert(c)
	}

	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: above, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err
}

func contains(all []*x509.Certificate, c *x509.Certificate) bool {
	return slices.ContainsFunc(all, c.Equal)
}

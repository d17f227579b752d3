package identity_test

import (
	"crypto/x509"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/identitytest"
)

// TestCases are the contract cases that are laws.
func TestCases(t *testing.T) { t.Run("IC47", testLifeOfLeaf) }

var domain = identity.Domain{Namespace: "linkerd", TrustDomain: "cluster.local"}

const name = "sa.ns.serviceaccount.identity.linkerd.cluster.local"

// IC47: whatever the clock, the lifetime and the ends above it are, a leaf verifies at each moment of its life at which
// its chain does, and ends with the chain at the latest.
func testLifeOfLeaf(t *testing.T) {
	key := identitytest.P256(t)
	origin := time.Date(2030, 2, 28, 23, 0, 0, 0, time.UTC)
	rapid.Check(t, func(r *rapid.T) {
		moment := func(label string, most time.Duration) time.Time {
			return origin.Add(time.Duration(rapid.IntRange(0, int(most/time.Second)).Draw(r, label)) * time.Second)
		}
		begins := identitytest.Begins(origin)
		ends := func(label string) identitytest.Change { return identitytest.Ends(moment(label, 100*time.Hour)) }

		root := identitytest.NewCA(t, "root", key, nil, begins, ends("end of the anchor"))
		later := identitytest.Begins(moment("begin of the other anchor", 100*time.Hour))
		other := identitytest.NewCA(t, "root", key, nil, later, ends("end of the other anchor"))
		above := identitytest.NewCA(t, "above", key, root, begins, ends("end above the issuer"))
		issuer := identitytest.NewCA(t, "issuer", key, above, begins, ends("end of the issuer"))

		source := issuer.Source(t, root, above)
		anchors := root.Pool()
		two := rapid.Bool().Draw(r, "two anchors")
		if two {
			source.Anchors = append(source.Anchors, other.PEM()...)
			anchors.AddCert(other.Certificate)
		}

		now := moment("now", 100*time.Hour)
		terms := identity.Terms{
			Lifetime: time.Duration(rapid.IntRange(1, 200*3600).Draw(r, "lifetime")) * time.Second,
			Skew:     time.Duration(rapid.IntRange(0, 3600).Draw(r, "skew")) * time.Second,
		}

		pool := x509.NewCertPool()
		pool.AddCert(above.Certificate)
		pool.AddCert(issuer.Certificate)
		verifies := func(c *x509.Certificate, at time.Time, usage x509.ExtKeyUsage) bool {
			_, err := c.Verify(x509.VerifyOptions{
				Roots: anchors, Intermediates: pool, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage},
			})
			return err == nil
		}
		holds := func(at time.Time) bool { return verifies(issuer.Certificate, at, x509.ExtKeyUsageAny) }

		made, err := identity.NewIssuer(source, domain, now)
		if (err == nil) != holds(now) {
			r.Fatalf("the chain holds: %v; the issuer: %v", holds(now), err)
		}
		if err != nil {
			return
		}

		signed := moment("signed", 100*time.Hour)
		leaf, err := made.Sign(identity.Subject{Name: name, Key: key.Public()}, terms, signed)
		if (err == nil) != holds(signed) || (made.Check(signed) == nil) != holds(signed) {
			r.Fatalf("the chain holds: %v; the leaf: %v; %v", holds(signed), err, made.Check(signed))
		}
		if err != nil {
			return
		}

		from, to := leaf.Certificate.NotBefore, leaf.Certificate.NotAfter
		if !from.Equal(signed.Add(-terms.Skew)) || to.After(signed.Add(terms.Lifetime+terms.Skew)) {
			r.Fatalf("signed at %v, from %v to %v", signed, from, to)
		}
		// Of two chains one may begin to hold after the issuer was read: its end is not waited for.
		cut := to.Before(signed.Add(terms.Lifetime + terms.Skew))
		if cut && (!holds(to) || !two && holds(to.Add(time.Second))) {
			r.Fatalf("cut to %v, where the chain does not end", to)
		}
		before, after := from.Add(-time.Second), to.Add(time.Second)
		for _, at := range []time.Time{from, signed, to, before, after, moment("at", 200*time.Hour)} {
			lives := !at.Before(from) && !at.After(to)
			for _, usage := range leaf.Certificate.ExtKeyUsage {
				if is := verifies(leaf.Certificate, at, usage); is != (lives && holds(at)) {
					r.Fatalf("at %v, of %v to %v: verifies %v, the chain %v", at, from, to, is, holds(at))
				}
			}
		}
	})
}

package ca

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

type certificates = []*x509.Certificate

// What is next follows from what a cluster has, in the order of the table of Rotation.
func TestNext(t *testing.T) {
	old, fresh, west := newAnchor(t, 100*day), newAnchor(t, 100*day), newAnchor(t, 100*day)
	under := func(a *Authority) certificates { return certificates{newIssuer(t, a).Certificate} }
	bundle := func(all ...*Authority) (bundle certificates) {
		for _, a := range all {
			bundle = append(bundle, a.Certificate)
		}
		return bundle
	}

	for name, c := range map[string]struct {
		rotation Rotation
		want     Step
	}{
		"before":           {Rotation{Bundle: bundle(old), Issuer: under(old)}, AddAnchor},
		"before, with all": {Rotation{Bundle: bundle(old), Issuer: under(old), Behind: 3}, AddAnchor},
		"a proxy is behind": {
			Rotation{Bundle: bundle(old, fresh), Issuer: under(old), Behind: 1}, AwaitProxies,
		},
		"no proxy is behind": {Rotation{Bundle: bundle(old, fresh), Issuer: under(old)}, ReplaceIssuer},
		"no issuer":          {Rotation{Bundle: bundle(old, fresh)}, ReplaceIssuer},
		"leaves of the old issuer": {
			Rotation{
				Bundle: bundle(old, fresh), Issuer: under(fresh), IssuerSince: start.Add(-day), LeafLife: day,
			},
			AwaitLeaves,
		},
		"no leaf of the old issuer": {
			Rotation{
				Bundle: bundle(old, fresh), Issuer: under(fresh), IssuerSince: start.Add(-day - settle), LeafLife: day,
			},
			RemoveAnchors,
		},
		"the anchor of a linked cluster": {
			Rotation{Bundle: bundle(fresh, west), Issuer: under(fresh), IssuerSince: start.Add(-9 * day)},
			RemoveAnchors,
		},
		"an issuer of unknown age": {Rotation{Bundle: bundle(old, fresh), Issuer: under(fresh)}, AwaitLeaves},
		"done":                     {Rotation{Bundle: bundle(fresh), Issuer: under(fresh), IssuerSince: start}, Done},
		"a bundle that lost the new one": {
			Rotation{Bundle: bundle(old), Issuer: under(fresh), IssuerSince: start}, AddAnchor,
		},
	} {
		c.rotation.New = fresh.Certificate
		if got := c.rotation.Next(start); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A bundle grows by the new anchor, once, and shrinks by what is named, which is never the new one.
func TestBundles(t *testing.T) {
	old, fresh, west := newAnchor(t, day).Certificate, newAnchor(t, day).Certificate, newAnchor(t, day).Certificate
	r := Rotation{Bundle: certificates{old, west}, New: fresh}
	if got := r.Grown(); len(got) != 3 || !got[2].Equal(fresh) || len(r.Bundle) != 2 {
		t.Errorf("it grows to %d", len(got))
	}
	r.Bundle = r.Grown()
	if got := r.Grown(); len(got) != 3 {
		t.Errorf("it grows again, to %d", len(got))
	}

	for _, name := range []string{Fingerprint(old), Fingerprint(old)[:8], strings.ToUpper(Fingerprint(old)[:12])} {
		got, err := r.Shrunk([]string{name})
		if err != nil || len(got) != 2 || !got[0].Equal(west) || !got[1].Equal(fresh) || len(r.Bundle) != 3 {
			t.Errorf("without %s: %d, %v", name, len(got), err)
		}
	}
	if got, err := r.Shrunk([]string{Fingerprint(west), Fingerprint(old)}); err != nil || len(got) != 1 {
		t.Errorf("without both: %d, %v", len(got), err)
	}
	for _, name := range []string{"", Fingerprint(old)[:7], Fingerprint(fresh), "0000000000000000"} {
		if got, err := r.Shrunk([]string{name}); err == nil {
			t.Errorf("without %q: %d", name, len(got))
		}
	}
	if got := (&Rotation{}).LeavesEnd(); !got.Equal(time.Time{}) {
		t.Errorf("leaves of an issuer of unknown age end at %s", got)
	}
}

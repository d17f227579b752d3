package linkerd

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
)

var anchorEnd = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// anchorPEM returns a certificate of a name, the same for each serial number, and its fingerprint.
func anchorPEM(tb testing.TB, name string, serial int64) (certificate, fingerprint string) {
	tb.Helper()
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotAfter: anchorEnd, IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	hash := sha256.Sum256(der)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), hex.EncodeToString(hash[:])
}

// A bundle is a set: its order, repeated certificates and what is no certificate make no difference.
func TestParseAnchors(t *testing.T) {
	a, fingerprintA := anchorPEM(t, "root.a", 1)
	b, fingerprintB := anchorPEM(t, "root.b", 2)
	other := string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: []byte("list")}))

	want := []Anchor{{fingerprintA, "CN=root.a", anchorEnd}, {fingerprintB, "CN=root.b", anchorEnd}}
	slices.SortFunc(want, func(a, b Anchor) int { return strings.Compare(a.Fingerprint, b.Fingerprint) })
	for name, bundle := range map[string]string{
		"in one order":  a + b,
		"in the other":  b + a,
		"repeated":      a + b + a + a,
		"with comments": "# root.a\n" + a + other + "\n# root.b\r\n" + b + "# end",
	} {
		if got, err := ParseAnchors(bundle); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v (%v), want %v", name, got, err, want)
		}
	}

	text := want[0].String()
	if !strings.Contains(text, " (sha256 "+want[0].Fingerprint[:8]+", until 2030-01-02T03:04:05Z)") {
		t.Errorf("an anchor is described as %q", text)
	}
}

// Of a bundle that is not understood completely nothing is known.
func TestParseAnchorsRefuses(t *testing.T) {
	good, _ := anchorPEM(t, "root", 1)
	bad := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("none")}))
	for name, bundle := range map[string]string{
		"nothing":          "",
		"no PEM":           "root",
		"one of two":       good + bad,
		"too many":         strings.Repeat(good, maxAnchors+1),
		"too long":         good + strings.Repeat("\n", maxAnchorsPEM),
		"no certificate":   string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("key")})),
		"cut in the midst": good[:len(good)/2],
	} {
		if got, err := ParseAnchors(bundle); err == nil || got != nil {
			t.Errorf("%s: %v (%v), want an error", name, got, err)
		}
	}
	if got, err := ParseAnchors(strings.Repeat(good, maxAnchors)); err != nil || len(got) != 1 {
		t.Errorf("as many as there may be: %v (%v)", got, err)
	}
}

// A subject is part of a line that people read, whatever a certificate has as its own.
func TestAnchorSubject(t *testing.T) {
	for name, want := range map[string]string{
		"":                       "a certificate without a subject (",
		"root\nx \x1b[31m":       "CN=root\uFFFDx \uFFFD[31m (",
		strings.Repeat("é", 200): "CN=" + strings.Repeat("é", 48) + "… (",
	} {
		bundle, _ := anchorPEM(t, name, 1)
		got, err := ParseAnchors(bundle)
		if err != nil || len(got) != 1 || !strings.HasPrefix(got[0].String(), want) {
			t.Errorf("%q: %v (%v), want %q", name, got, err, want)
		}
	}
}

func FuzzAnchors(f *testing.F) {
	a, _ := anchorPEM(f, "root.a", 1)
	b, _ := anchorPEM(f, "root.b", 2)
	f.Add(a)
	f.Add(b + "x\n" + a)
	f.Add("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
	f.Fuzz(func(t *testing.T, bundle string) {
		anchors, err := ParseAnchors(bundle)
		isTooLong := len(bundle) > maxAnchorsPEM && err == nil
		if (err == nil) != (len(anchors) > 0) || len(anchors) > maxAnchors || isTooLong {
			t.Fatalf("%d anchors of %d bytes, %v", len(anchors), len(bundle), err)
		}
		for i, anchor := range anchors {
			if i > 0 && anchors[i-1].Fingerprint >= anchor.Fingerprint {
				t.Errorf("%s does not come before %s", anchors[i-1], anchor)
			}
			unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
			if text := anchor.String(); len(text) > maxAnchorSubject+100 || strings.ContainsFunc(text, unprintable) {
				t.Errorf("%q", text)
			}
		}
	})
}

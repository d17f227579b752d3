package linkerd

import (
	"strings"
	"testing"
	"time"
)

// How a mesh issues leaves has defaults, as a whole and one by one. What cannot be read as a duration is the default.
func TestParseIssuance(t *testing.T) {
	const usual = 24*time.Hour + 20*time.Second
	for name, c := range map[string]struct {
		values string
		want   Issuance
	}{
		"nothing":     {"", Issuance{IssuerScheme, usual}},
		"a scheme":    {"identity: {issuer: {scheme: kubernetes.io/tls}}", Issuance{KubernetesScheme, usual}},
		"no identity": {"identity: null", Issuance{IssuerScheme, usual}},
		"times": {
			"identity: {issuer: {issuanceLifetime: 1h, clockSkewAllowance: 0s}}", Issuance{IssuerScheme, time.Hour},
		},
		"garbage": {
			"identity: {issuer: {issuanceLifetime: soon, clockSkewAllowance: -1s}}", Issuance{IssuerScheme, usual},
		},
	} {
		if got, err := ParseIssuance(c.values); err != nil || got != c.want {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, c.want)
		}
	}
	for _, values := range []string{"[", "identity: 1", strings.Repeat(" ", maxConfigValues+1)} {
		if got, err := ParseIssuance(values); err == nil || got != (Issuance{}) {
			t.Errorf("%.20q: %+v (%v), want an error", values, got, err)
		}
	}
}

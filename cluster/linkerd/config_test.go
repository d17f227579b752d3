package linkerd

import (
	"strings"
	"testing"
)

// What a mesh was installed with has defaults. Its anchors are not among the values if others provide them.
func TestParseConfig(t *testing.T) {
	for name, c := range map[string]struct {
		values string
		want   Config
	}{
		"nothing":          {"", Config{"cluster.local", "cluster.local", "", ""}},
		"a cluster domain": {"clusterDomain: a.example", Config{"a.example", "a.example", "", ""}},
		"a trust domain":   {"identityTrustDomain: a.example", Config{"a.example", "cluster.local", "", ""}},
		"anchors":          {"identityTrustAnchorsPEM: pem", Config{"cluster.local", "cluster.local", "pem", ""}},
		"anchors, of others": {
			"{identityTrustAnchorsPEM: pem, identity: {externalCA: true}}",
			Config{"cluster.local", "cluster.local", "", ""},
		},
		"an issuer": {
			"identity: {issuer: {tls: {crtPEM: pem}}}", Config{"cluster.local", "cluster.local", "", "pem"},
		},
		"an issuer, of others": {
			"identity: {issuer: {scheme: kubernetes.io/tls, tls: {crtPEM: pem}}}",
			Config{"cluster.local", "cluster.local", "", ""},
		},
		"an issuer of another shape": {
			"identity: {issuer: {tls: pem}}", Config{"cluster.local", "cluster.local", "", ""},
		},
		"no identity": {
			"{identityTrustAnchorsPEM: pem, identity: null}", Config{"cluster.local", "cluster.local", "pem", ""},
		},
	} {
		if got, err := ParseConfig(c.values); err != nil || got != c.want {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, c.want)
		}
	}
	for _, values := range []string{"[", "identityTrustDomain: {}", strings.Repeat(" ", maxConfigValues+1)} {
		if got, err := ParseConfig(values); err == nil || got != (Config{}) {
			t.Errorf("%.20q: %+v (%v), want an error", values, got, err)
		}
	}
}

package linkerd

import (
	"cmp"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"
)

// ConfigName is the name of the ConfigMap in which Linkerd keeps the values that it was installed with, in
// the namespace of its control plane, under the key [ConfigValuesKey].
const (
	ConfigName      = "linkerd-config"
	ConfigValuesKey = "values"
)

// maxConfigValues bounds the values that are parsed. Linkerd writes some kilobytes.
const maxConfigValues = 256 << 10

// A Config is what is used of the values that a mesh was installed with.
type Config struct {
	TrustDomain   string
	ClusterDomain string

	// Anchors are the trust anchors as PEM, for [ParseAnchors]. They are empty where others provide them, in the
	// ConfigMap [AnchorsName].
	Anchors string

	// Issuer is the certificate that identities are signed with, and those above it, as PEM, for [ParseIssuer]. It is
	// empty where others write the Secret [IssuerName], such as cert-manager: the key that is in it is not for linked
	// clusters to read, and the certificate is nowhere else.
	Issuer string
}

// ParseConfig returns what is used of the values that a mesh was installed with.
func ParseConfig(values string) (Config, error) {
	if len(values) > maxConfigValues {
		return Config{}, fmt.Errorf("%s has %d bytes, more than %d", ConfigName, len(values), maxConfigValues)
	}
	var parsed struct {
		IdentityTrustDomain     string `json:"identityTrustDomain"`
		ClusterDomain           string `json:"clusterDomain"`
		IdentityTrustAnchorsPEM string `json:"identityTrustAnchorsPEM"`
		Identity                struct {
			ExternalCA bool `json:"externalCA"` // whose anchors are not among the values, or are of no effect there

			Issuer json.RawMessage `json:"issuer"`
		} `json:"identity"`
	}

	if err := yaml.Unmarshal([]byte(values), &parsed); err != nil {
		return Config{}, fmt.Errorf("%s: %w", ConfigName, err)
	}

	config := Config{ClusterDomain: cmp.Or(parsed.ClusterDomain, "cluster.local")}
	config.TrustDomain = cmp.Or(parsed.IdentityTrustDomain, config.ClusterDomain)
	if !parsed.Identity.ExternalCA {
		config.Anchors = parsed.IdentityTrustAnchorsPEM
	}
	config.Issuer = issuerOf(parsed.Identity.Issuer)
	return config, nil
}

// issuerOf returns the certificate of the issuer among the values of a mesh; empty for none, or for values that have
// another shape: nothing else fails for them.
func issuerOf(values json.RawMessage) string {
	var issuer struct {
		Scheme string `json:"scheme"`
		TLS    struct {
			Certificate string `json:"crtPEM"`
		} `json:"tls"`
	}
	err := json.Unmarshal(values, &issuer)
	if err != nil || cmp.Or(issuer.Scheme, IssuerScheme) != IssuerScheme {
		return ""
	}
	return issuer.TLS.Certificate
}

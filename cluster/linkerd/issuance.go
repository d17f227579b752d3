package linkerd

import (
	"cmp"
	"fmt"
	"time"

	"sigs.k8s.io/yaml"
)

// IssuerName is the name of the Secret with the issuer of identities, in the namespace of the control plane.
const IssuerName = "linkerd-identity-issuer"

// Schemes of the Secret [IssuerName], as the values of Linkerd's chart have them: which keys it has.
const (
	IssuerScheme     = "linkerd.io/tls"    // crt.pem and key.pem
	KubernetesScheme = "kubernetes.io/tls" // tls.crt and tls.key
)

// IssuerKeys returns the keys of the Secret [IssuerName] under which are the certificate, with those above it, and the
// private key. As for Linkerd, every other scheme is that of Kubernetes.
func IssuerKeys(scheme string) (certificate, key string) {
	if scheme == IssuerScheme {
		return "crt.pem", "key.pem"
	}
	return "tls.crt", "tls.key"
}

// What Linkerd issues leaves for, unless its values have something else.
const (
	leafLifetime = 24 * time.Hour
	leafSkew     = 20 * time.Second
)

// An Issuance is how a mesh issues leaves, as it was installed.
type Issuance struct {
	Scheme string // of the Secret [IssuerName]

	// LeafLife is how long a leaf lasts after it was issued: its lifetime, and the skew of clocks that is added.
	LeafLife time.Duration
}

// ParseIssuance returns how a mesh issues leaves that was installed with values, of the ConfigMap [ConfigName]; none
// for the defaults of Linkerd's chart.
func ParseIssuance(values string) (Issuance, error) {
	if len(values) > maxConfigValues {
		return Issuance{}, fmt.Errorf("%s has %d bytes, more than %d", ConfigName, len(values), maxConfigValues)
	}

	var parsed struct {
		Identity struct {
			Issuer struct {
				Scheme             string `json:"scheme"`
				IssuanceLifetime   string `json:"issuanceLifetime"`
				ClockSkewAllowance string `json:"clockSkewAllowance"`
			} `json:"issuer"`
		} `json:"identity"`
	}

	if err := yaml.Unmarshal([]byte(values), &parsed); err != nil {
		return Issuance{}, fmt.Errorf("%s: %w", ConfigName, err)
	}

	issuer := parsed.Identity.Issuer
	lasts := durationOr(issuer.IssuanceLifetime, leafLifetime) + durationOr(issuer.ClockSkewAllowance, leafSkew)
	return Issuance{Scheme: cmp.Or(issuer.Scheme, IssuerScheme), LeafLife: lasts}, nil
}

// durationOr reads a duration. One that cannot be read is the usual one, as for Linkerd's identity component.
func durationOr(text string, usual time.Duration) time.Duration {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return d
	}
	return usual
}

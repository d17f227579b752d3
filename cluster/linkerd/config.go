package linkerd

import (
	"cmp"
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

// ParseConfig returns the trust domain and the cluster domain of a mesh from the values that it was
// installed with.
func ParseConfig(values string) (trustDomain, clusterDomain string, err error) {
	if len(values) > maxConfigValues {
		return "", "", fmt.Errorf("%s has %d bytes, more than %d", ConfigName, len(values), maxConfigValues)
	}
	var parsed struct {
		IdentityTrustDomain string `json:"identityTrustDomain"`
		ClusterDomain       string `json:"clusterDomain"`
	}
	if err := yaml.Unmarshal([]byte(values), &parsed); err != nil {
		return "", "", fmt.Errorf("%s: %w", ConfigName, err)
	}
	clusterDomain = cmp.Or(parsed.ClusterDomain, "cluster.local")
	return cmp.Or(parsed.IdentityTrustDomain, clusterDomain), clusterDomain, nil
}

package ruleobject

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// EgressNetwork reads an EgressNetwork. One that cannot be read is not there.
func EgressNetwork(u *unstructured.Unstructured) (*rules.EgressNetwork, error) {
	return stored(rules.KindEgressNetwork, u, (*reader).egressNetwork)
}

func (r *reader) egressNetwork() (*rules.EgressNetwork, error) {
	var spec struct {
		Networks      []networkSpec `json:"networks"`
		TrafficPolicy string        `json:"trafficPolicy"`
	}
	if err := decode(r.spec, &spec); err != nil {
		return nil, err
	}
	if spec.TrafficPolicy != "Allow" && spec.TrafficPolicy != "Deny" {
		return nil, fmt.Errorf("trafficPolicy %.64q is neither Allow nor Deny", spec.TrafficPolicy)
	}

	networks, err := r.networks(spec.Networks)
	if err != nil {
		return nil, err
	}
	to := &rules.EgressNetwork{
		Networks: networks, Deny: spec.TrafficPolicy == "Deny", Settings: r.settings(false),
	}
	to.Meta = r.meta()
	return to, nil
}

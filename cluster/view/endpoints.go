package view

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/federation"
)

// keepEndpoints keeps of Endpoints what would be kept of EndpointSlices that say the same: one for each subset. They say no zones.
func keepEndpoints(object any) ([]*slice, bool) {
	e, ok := object.(*corev1.Endpoints) //nolint:staticcheck // who reads Endpoints was asked to
	if !ok || len(e.Subsets) == 0 {
		return nil, false
	}
	mirror := mirrorOf(e)
	var all []*slice
	for i, subset := range e.Subsets {
		s := &slice{name: fmt.Sprintf("%s#%04d", e.Name, i), service: e.Name}
		for _, p := range subset.Ports {
			if n, is := portNumber(p.Port); is {
				s.ports = append(s.ports, federation.Port{Number: n, Name: intern(p.Name), Protocol: intern(cmp.Or(string(p.Protocol), string(corev1.ProtocolTCP)))})
			}
		}
		keep := func(addresses []corev1.EndpointAddress, ready bool) {
			for _, a := range addresses {
				s.endpoints = appendEndpoints(s.endpoints, e.Namespace, &discoveryv1.Endpoint{
					Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, Hostname: &a.Hostname, TargetRef: a.TargetRef,
				}, mirror)
			}
		}
		keep(subset.Addresses, true)
		keep(subset.NotReadyAddresses, false)
		all = append(all, s)
	}
	return all, true
}

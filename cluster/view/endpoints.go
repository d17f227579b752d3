package view

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// keepEndpoints keeps of Endpoints what would be kept of EndpointSlices that say the same: one for each subset. They say no zones.
func keepEndpoints(object any, r *remarks) ([]*slice, bool) {
	e, ok := object.(*corev1.Endpoints) //nolint:staticcheck // who reads Endpoints was asked to
	if !ok || len(e.Subsets) == 0 {
		return nil, false
	}
	mirror := mirrorOf(e, r)
	var all []*slice
	for i, subset := range first(r, "subsets", e.Subsets, maxSubsets) {
		s := &slice{name: fmt.Sprintf("%s#%04d", e.Name, i), service: e.Name}
		for _, p := range first(r, "ports", subset.Ports, maxSlicePorts) {
			s.ports = appendSlicePort(s.ports, p.Port, p.Name, p.Protocol, "", r)
		}
		keep := func(addresses []corev1.EndpointAddress, ready bool) {
			for _, a := range first(r, "addresses", addresses, maxSubset) {
				s.endpoints = appendEndpoints(s.endpoints, e.Namespace, &discoveryv1.Endpoint{
					Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, Hostname: &a.Hostname, TargetRef: a.TargetRef,
				}, mirror, r)
			}
		}
		keep(subset.Addresses, true)
		keep(subset.NotReadyAddresses, false)
		all = append(all, s)
	}
	return all, true
}

package view

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// reduceEndpoints returns what would be kept of the EndpointSlices that correspond to Endpoints, one
// for each subset. Endpoints have no zones.
//
//nolint:staticcheck // the option Endpoints asks for them
func (r *Reconciler) reduceEndpoints(endpoints *corev1.Endpoints, out *omissions) ([]*sliceRecord, bool) {
	if len(endpoints.Subsets) == 0 {
		return nil, false
	}

	mirror := mirrorMarks(endpoints, r.options.Local, out)
	var all []*sliceRecord

	for i, subset := range firstOf(out, "subsets", endpoints.Subsets, maxSubsets) {
		record := &sliceRecord{name: fmt.Sprintf("%s#%04d", endpoints.Name, i), service: endpoints.Name}
		for _, p := range firstOf(out, "ports", subset.Ports, maxSlicePorts) {
			record.ports = appendSlicePort(record.ports, p.Port, p.Name, p.Protocol, "", out)
		}

		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for _, a := range firstOf(out, "addresses", addresses, maxSubset) {
				endpoint := &discoveryv1.Endpoint{
					Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
					Hostname: &a.Hostname, TargetRef: a.TargetRef,
				}
				record.endpoints = appendEndpoints(record.endpoints, endpoints.Namespace, endpoint, mirror, false, out)
			}
		}
		add(subset.Addresses, true)
		add(subset.NotReadyAddresses, false)
		all = append(all, record)
	}

	return all, true
}

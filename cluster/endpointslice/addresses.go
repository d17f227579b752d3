package endpointslice

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// addresses are those of one source cluster.
type addresses = sets.Set[string]

// onlyWithdraws reports whether groups have fewer ready addresses than slices hold, and no ready one that these do not.
func onlyWithdraws(have []*discoveryv1.EndpointSlice, wanted []*group) bool {
	held, kept := addressesOfSlices(have, readyEndpoint), addressesOfGroups(wanted, readyEndpoint)
	return len(kept) < len(held) && held.IsSuperset(kept)
}

// stillThere returns of groups the endpoints that slices hold.
func stillThere(have []*discoveryv1.EndpointSlice, groups []*group) (all []*group) {
	held := addressesOfSlices(have, anyEndpoint)
	for _, g := range groups {
		next := *g
		next.endpoints = slices.DeleteFunc(slices.Clone(g.endpoints), func(e discoveryv1.Endpoint) bool {
			return !held.Has(e.Addresses[0])
		})
		if len(next.endpoints) > 0 {
			all = append(all, &next)
		}
	}
	return all
}

// addressesOfGroups returns the addresses of those endpoints that are meant.
func addressesOfGroups(groups []*group, meant func(*discoveryv1.Endpoint) bool) addresses {
	all := addresses{}
	for _, g := range groups {
		insertAddresses(all, g.endpoints, meant)
	}
	return all
}

func addressesOfSlices(have []*discoveryv1.EndpointSlice, meant func(*discoveryv1.Endpoint) bool) addresses {
	all := addresses{}
	for _, es := range have {
		insertAddresses(all, es.Endpoints, meant)
	}
	return all
}

func insertAddresses(into addresses, endpoints []discoveryv1.Endpoint, meant func(*discoveryv1.Endpoint) bool) {
	for i := range endpoints {
		if e := &endpoints[i]; meant(e) {
			into.Insert(e.Addresses...)
		}
	}
}

func anyEndpoint(*discoveryv1.Endpoint) bool { return true }

func readyEndpoint(e *discoveryv1.Endpoint) bool {
	return e.Conditions.Ready == nil || *e.Conditions.Ready
}

package apitest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	endpointsResource = "endpoints"
	slicesResource    = "endpointslices.discovery.k8s.io"
	sliceServiceLabel = "kubernetes.io/service-name"
	sliceManagerLabel = "endpointslice.kubernetes.io/managed-by"
	sliceMirrorer     = "endpointslicemirroring-controller.k8s.io"
)

// MirrorEndpoints has the server keep an EndpointSlice for each address family of each subset of Endpoints that are
// written from here on, as the controller of Kubernetes does for Services without a selector. It takes no time.
func (s *Server) MirrorEndpoints() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mirrorsEndpoints = true
}

// mirrorEndpoints makes the slices of an object what they should be if it is Endpoints that were written, or deleted.
// It needs mu.
func (s *Server) mirrorEndpoints(resource string, o *unstructured.Unstructured, deleted bool) {
	if !s.mirrorsEndpoints || resource != endpointsResource {
		return
	}
	wanted := map[string]*unstructured.Unstructured{}
	if !deleted {
		wanted = slicesOf(o)
	}

	for name, is := range s.resource(slicesResource).objects {
		labels := is.GetLabels()
		isOfObject := is.GetNamespace() == o.GetNamespace() && labels[sliceServiceLabel] == o.GetName()
		if isOfObject && labels[sliceManagerLabel] == sliceMirrorer && wanted[name] == nil {
			s.deleteObject(slicesResource, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		s.put(slicesResource, wanted[name])
	}
}

// slicesOf returns the slices of Endpoints by namespace/name. They have the labels and annotations of the Endpoints.
func slicesOf(o *unstructured.Unstructured) map[string]*unstructured.Unstructured {
	all := map[string]*unstructured.Unstructured{}
	labels := map[string]string{sliceServiceLabel: o.GetName(), sliceManagerLabel: sliceMirrorer}
	maps.Copy(labels, o.GetLabels())

	subsets, _, _ := unstructured.NestedSlice(o.Object, "subsets")
	for i, subset := range subsets {
		subset, _ := subset.(map[string]any)
		for family, endpoints := range endpointsByFamily(subset) {
			slice := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
				"ports": subset["ports"], "endpoints": endpoints,
			}}
			slice.SetNamespace(o.GetNamespace())
			slice.SetName(strings.ToLower(fmt.Sprintf("%s-%d-%s", o.GetName(), i, family)))
			slice.SetLabels(labels)
			slice.SetAnnotations(o.GetAnnotations())
			all[nameOf(slice)] = slice
		}
	}

	return all
}

// endpointsByFamily returns the addresses of a subset as a slice has them.
func endpointsByFamily(subset map[string]any) map[string][]any {
	all := map[string][]any{}
	add := func(field string, ready bool) {
		addresses, _, _ := unstructured.NestedSlice(subset, field)
		for _, address := range addresses {
			address, _ := address.(map[string]any)
			ip, _ := address["ip"].(string)
			endpoint := map[string]any{"addresses": []any{ip}, "conditions": map[string]any{"ready": ready}}
			if hostname, found := address["hostname"]; found {
				endpoint["hostname"] = hostname
			}

			family := "IPv4"
			if strings.Contains(ip, ":") {
				family = "IPv6"
			}
			all[family] = append(all[family], endpoint)
		}
	}

	add("addresses", true)
	add("notReadyAddresses", false)
	return all
}

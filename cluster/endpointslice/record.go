package endpointslice

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// Bounds of what is kept of one object. An API server bounds the whole object only, at 1.5 MiB, and takes from users of
// a namespace what we would write there.
const (
	maxPorts        = 1000      // of a Service, an ExternalWorkload or a slice, as in package view
	maxAddresses    = 100       // of an ExternalWorkload, as a slice has them for one endpoint
	maxRequirements = 100       // of a selector
	maxLabels       = 16 << 10  // bytes that the labels of a Service or an ExternalWorkload take
	maxSliceLabels  = 32 << 10  // likewise, those of a slice, which has those of its Service
	maxSliceText    = 128 << 10 // bytes of text of the endpoints of a slice; 100 of ours have 80 KiB at most
	maxOwners       = 4 << 10   // bytes of text of owner references
	maxIdentity     = 2048      // bytes of an identity, as in package view

	// moreMark is an annotation of the record of a slice of which not all is kept. No API server has one of that name,
	// and no slice that is wanted: so it is written anew.
	moreMark = " more"
)

// sliceMarks are the labels by which we know what a slice of ours is.
var sliceMarks = []string{
	discoveryv1.LabelManagedBy, discoveryv1.LabelServiceName, SourceLabel, installationLabel, corev1.IsHeadlessService,
}

// keptSlice returns what is kept of a slice that is ours by its labels: all that one has which we have written. What
// others have put into it besides is not kept, but for small labels; that there is something is. The object is not
// changed.
func keptSlice(es *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	kept := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: api.Intern(es.Namespace), Name: es.Name, GenerateName: es.GenerateName, UID: es.UID,
			ResourceVersion: es.ResourceVersion, Generation: es.Generation, OwnerReferences: keptOwners(es),
		},
		AddressType: es.AddressType,
		Ports:       slices.Clone(es.Ports[:min(len(es.Ports), maxPorts)]),
	}
	kept.Labels = firstLabels(es.Labels, maxSliceLabels, sliceMarks...)
	room := maxSliceText

	for i := range es.Endpoints[:min(len(es.Endpoints), maxEndpoints)] {
		e := es.Endpoints[i]
		e.DeprecatedTopology = nil
		if room -= textOf(&e); room >= 0 {
			kept.Endpoints = append(kept.Endpoints, e)
		}
	}

	identity, found := es.Annotations[linkerd.RemoteGatewayIdentityAnnotation]
	if found = found && len(identity) <= maxIdentity; found {
		kept.Annotations = map[string]string{linkerd.RemoteGatewayIdentityAnnotation: identity}
	}

	isWhole := len(kept.Ports) == len(es.Ports) && len(kept.Labels) == len(es.Labels) &&
		len(kept.Endpoints) == len(es.Endpoints) && len(kept.Annotations) == len(es.Annotations)
	if !isWhole {
		if kept.Annotations == nil {
			kept.Annotations = map[string]string{}
		}
		kept.Annotations[moreMark] = ""
	}
	return kept
}

// keptOwners returns the owners of a slice: all of them, or the one that controls it, or none, as there is room.
func keptOwners(es *discoveryv1.EndpointSlice) []metav1.OwnerReference {
	for _, owners := range [][]metav1.OwnerReference{es.OwnerReferences, controllerIn(es.OwnerReferences)} {
		size := 0
		for _, o := range owners {
			size += len(o.APIVersion) + len(o.Kind) + len(o.Name) + len(o.UID)
		}
		if size <= maxOwners {
			return slices.Clone(owners)
		}
	}
	return nil
}

func controllerIn(owners []metav1.OwnerReference) []metav1.OwnerReference {
	i := slices.IndexFunc(owners, func(o metav1.OwnerReference) bool { return o.Controller != nil && *o.Controller })
	return owners[max(i, 0) : i+1]
}

// textOf returns how many bytes of text an endpoint has.
func textOf(endpoint *discoveryv1.Endpoint) (n int) {
	const header = 16 // of each text in a list
	for _, s := range endpoint.Addresses {
		n += header + len(s)
	}
	for _, s := range []*string{endpoint.Hostname, endpoint.NodeName, endpoint.Zone} {
		n += len(optional(s))
	}

	if r := endpoint.TargetRef; r != nil {
		n += len(r.APIVersion) + len(r.Kind) + len(r.Namespace) + len(r.Name) + len(r.UID) +
			len(r.ResourceVersion) + len(r.FieldPath)
	}

	if h := endpoint.Hints; h != nil {
		for _, z := range h.ForZones {
			n += len(z.Name)
		}
		for _, node := range h.ForNodes {
			n += len(node.Name)
		}
	}
	return n
}

// firstLabels returns labels that take at most limit bytes together, if all take more: those that count first, then the
// others in their order.
func firstLabels(all map[string]string, limit int, first ...string) map[string]string {
	const entry = 64 // bytes in a map, besides the text
	size := 0
	for k, v := range all {
		size += entry + len(k) + len(v)
	}
	if size <= limit {
		return all
	}

	kept, room := map[string]string{}, limit
	for _, k := range append(slices.Clone(first), slices.Sorted(maps.Keys(all))...) {
		v, found := all[k]
		if _, twice := kept[k]; !found || twice {
			continue
		}
		if room -= entry + len(k) + len(v); room < 0 {
			break
		}
		kept[k] = v
	}
	return kept
}

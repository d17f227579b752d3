package mirror

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// Linkerd's tools read Endpoints; Kubernetes makes EndpointSlices of them.
type (
	endpoints      = corev1.Endpoints      //nolint:staticcheck // Linkerd's tools read them
	endpointSubset = corev1.EndpointSubset //nolint:staticcheck // Linkerd's tools read them
)

// copiesKey reports whether a label or annotation of a Service is copied onto what is made of it.
func (in *inputs) copiesKey(key string) bool {
	return mayBeCopied(key) && !excluded(in.options.Exclude, key)
}

// mayBeCopied reports whether a label or annotation is copied unless an option excludes it.
func mayBeCopied(key string) bool { return !isReservedKey(key) && !excluded(controllerKeys, key) }

// copyLabels returns the labels that are copied from a Service; l is nil for one of the local cluster.
func (in *inputs) copyLabels(l *link, svc *corev1.Service) map[string]string {
	copied := map[string]string{mirroredLabel: "true"}
	for k, v := range svc.Labels {
		excludedByLink := l != nil && excluded(l.ExcludedLabels, k)
		if !strings.HasPrefix(k, mirrorLabelPrefix) && in.copiesKey(k) && !excludedByLink {
			copied[k] = v
		}
	}
	return copied
}

// copyAnnotations returns the annotations that are copied from a Service; l is nil for one of the local
// cluster. Opaque ports cannot be excluded: without them proxies would wait for a protocol that they can
// detect.
func (in *inputs) copyAnnotations(l *link, svc *corev1.Service) map[string]string {
	copied := map[string]string{}
	for k, v := range svc.Annotations {
		excludedByLink := l != nil && excluded(l.ExcludedAnnotations, k)
		if k == opaqueAnnotation || in.copiesKey(k) && !excludedByLink {
			copied[k] = v
		}
	}
	return copied
}

// mirrorService returns the mirror of a Service.
func (in *inputs) mirrorService(l *link, k api.Key, svc *corev1.Service) *corev1.Service {
	return newMirror(l, svc, svc.Name, objectMeta(k, in.copyLabels(l, svc), in.copyAnnotations(l, svc)))
}

// endpointMirrorService returns the mirror of one endpoint of a headless Service.
func endpointMirrorService(l *link, k api.Key, hostname string, svc *corev1.Service) *corev1.Service {
	marks := map[string]string{mirroredLabel: "true", headlessLabel: svc.Name + "-" + l.Cluster}
	return newMirror(l, svc, hostname+"."+svc.Name, objectMeta(k, marks, map[string]string{}))
}

// newMirror returns a mirror of what has a DNS name in the namespace of a Service. It completes the marks in meta.
func newMirror(l *link, svc *corev1.Service, dnsName string, meta metav1.ObjectMeta) *corev1.Service {
	m := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: copyPorts(svc)}}
	m.Labels[clusterLabel] = l.Cluster
	setOwners(m, map[string]api.Key{l.Cluster: l.Link})
	m.Annotations[nameAnnotation] = fmt.Sprintf("%s.%s.svc.%s", dnsName, svc.Namespace, l.ClusterDomain)
	m.Annotations[versionAnnotation] = svc.ResourceVersion
	return m
}

func objectMeta(k api.Key, labels, annotations map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, Labels: labels, Annotations: annotations}
}

// newEndpoints returns Endpoints without addresses, behind the gateway of a Link.
func newEndpoints(l *link, meta metav1.ObjectMeta) *endpoints {
	if l.Gateway.Identity != "" {
		meta.Annotations[identityAnnotation] = l.Gateway.Identity
	}
	return &endpoints{ObjectMeta: meta}
}

// emptyEndpoints returns Endpoints of a mirror without addresses.
func emptyEndpoints(l *link, mirror *corev1.Service) *endpoints {
	marks := map[string]string{mirroredLabel: "true", clusterLabel: l.Cluster}
	if parent, found := mirror.Labels[headlessLabel]; found {
		marks[headlessLabel] = parent
	}
	annotations := map[string]string{nameAnnotation: mirror.Annotations[nameAnnotation]}
	return newEndpoints(l, objectMeta(api.Key{Namespace: mirror.Namespace, Name: mirror.Name}, marks, annotations))
}

// gatewayEndpoints returns the gateway's addresses under the port names of a mirror; none unless the remote
// Service has a ready endpoint. keep is true as long as the addresses are not known.
func (m *mirrorInputs) gatewayEndpoints(mirror *corev1.Service, ready bool) (_ *endpoints, keep bool) {
	link, state := m.link, m.gateway
	if len(state.addresses) == 0 {
		return nil, true
	}
	e := emptyEndpoints(link, mirror)
	if !ready {
		return e, false
	}

	subset := subsetOf(state.addresses, state.dead)
	for _, p := range mirror.Spec.Ports {
		subset.Ports = append(subset.Ports, endpointPort(p, link.Gateway.Port))
	}
	e.Subsets = []endpointSubset{subset}
	return e, false
}

func endpointPort(p corev1.ServicePort, number int32) corev1.EndpointPort {
	return corev1.EndpointPort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: number}
}

func subsetOf(addresses []string, dead bool) endpointSubset {
	var all []corev1.EndpointAddress
	for _, ip := range addresses {
		all = append(all, corev1.EndpointAddress{IP: ip})
	}
	if dead {
		return endpointSubset{NotReadyAddresses: all}
	}
	return endpointSubset{Addresses: all}
}

// headlessEndpoints returns the cluster IPs of the mirrors of a headless Service's endpoints, by hostname.
// Their ports are those of the Service, where these mirrors listen. keep is true as long as the endpoints
// are not known.
func (m *mirrorInputs) headlessEndpoints(mirror *corev1.Service) (_ *endpoints, keep bool) {
	remote := m.remote.readiness
	if !remote.known {
		return nil, true
	}

	endpoints := emptyEndpoints(m.link, mirror)
	var subset endpointSubset

	for _, hostname := range slices.Sorted(maps.Keys(remote.hostnames)) {
		one := m.endpointMirrors[hostname]
		if one == nil || one.Labels[headlessLabel] != mirror.Name ||
			one.Spec.ClusterIP == "" || isHeadless(one) {
			continue // it does not exist yet; the event of its creation enqueues this mirror
		}

		address := corev1.EndpointAddress{Hostname: hostname, IP: one.Spec.ClusterIP}
		if remote.hostnames[hostname] {
			subset.Addresses = append(subset.Addresses, address)
		} else {
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
		}
	}

	if len(subset.Addresses)+len(subset.NotReadyAddresses) > 0 {
		for _, p := range mirror.Spec.Ports {
			subset.Ports = append(subset.Ports, endpointPort(p, p.Port))
		}
		endpoints.Subsets = []endpointSubset{subset}
	}
	return endpoints, false
}

// probeObjects returns the Service over which a gateway is probed, and its Endpoints; nil as long as the
// addresses are not known. They stay ready whatever the probe finds: it needs them.
func probeObjects(link *link, key api.Key, addresses []string) (*corev1.Service, *endpoints) {
	marks := map[string]string{gatewayLabel: "true", clusterLabel: link.Cluster, managedByLabel: productName}
	port := link.Probe.Port
	service := &corev1.Service{
		ObjectMeta: objectMeta(key, marks, map[string]string{}),
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: probePort, Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(port)},
		}},
	}
	setOwners(service, map[string]api.Key{link.Cluster: link.Link})
	if len(addresses) == 0 {
		return service, nil
	}

	subset := subsetOf(addresses, false)
	subset.Ports = []corev1.EndpointPort{endpointPort(service.Spec.Ports[0], port)}
	e := newEndpoints(link, objectMeta(key, maps.Clone(marks), map[string]string{}))
	e.Subsets = []endpointSubset{subset}
	return service, e
}

// federatedService returns the federated Service of a union. Its labels and annotations are the first
// member's, its ports those of all. Unless all members are ours, only the list of members changes, and
// another writer keeps the rest. conflicts are the ports that do not fit, by Link. It returns nil if there
// is nothing to make the Service from.
func (in *inputs) federatedService(
	k api.Key, base string, union union, existing *corev1.Service,
) (_ *corev1.Service, conflicts map[api.Key]string) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}}

	firstKnown := len(union.members) > 0 && union.members[0].svc != nil
	fromExisting := existing != nil && (!union.allOurs || !firstKnown)

	switch {
	case fromExisting:
		service.Labels, service.Annotations = maps.Clone(existing.Labels), maps.Clone(existing.Annotations)
	case firstKnown:
		first := union.members[0]
		service.Labels = in.copyLabels(first.link, first.svc)
		service.Annotations = in.copyAnnotations(first.link, first.svc)
		if first.link != nil {
			maps.DeleteFunc(service.Annotations, func(key, _ string) bool { return excluded(policyKeys, key) })
		}
	default:
		return nil, nil
	}

	setMembers(service, base, union, existing)
	service.Spec.Ports, conflicts = federatedPorts(union, existing, fromExisting)
	return service, conflicts
}

// setMembers annotates a federated Service with its members, and with the Links that they were written for.
func setMembers(service *corev1.Service, base string, union union, existing *corev1.Service) {
	if service.Annotations == nil {
		service.Annotations = map[string]string{}
	}

	delete(service.Annotations, localDiscoveryKey)
	delete(service.Annotations, discoveryKey)
	delete(service.Annotations, linksAnnotation)
	delete(service.Annotations, appliedAnnotation)

	written, owners := map[string]api.Key{}, map[string]api.Key{}
	if existing != nil {
		written = ownersOf(existing)
	}
	keepOwner := func(cluster string) {
		if owner, found := written[cluster]; found {
			owners[cluster] = owner
		}
	}

	var remote []string
	for _, m := range union.members {
		if m.link == nil {
			service.Annotations[localDiscoveryKey] = base
			continue
		}
		remote = append(remote, base+"@"+m.link.Cluster)
		if m.link.skipReason == "" {
			owners[m.link.Cluster] = m.link.Link
		} else {
			keepOwner(m.link.Cluster)
		}
	}

	for _, m := range union.foreignMembers {
		keepOwner(clusterOf(m))
	}
	setOwners(service, owners)
	if remote = append(remote, union.foreignMembers...); len(remote) > 0 {
		service.Annotations[discoveryKey] = strings.Join(remote, ",")
	}
}

// federatedPorts returns the ports of a federated Service. As long as members are unknown, or not ours, the
// existing ports stay: those members' are among them.
func federatedPorts(
	union union, existing *corev1.Service, fromExisting bool,
) (_ []corev1.ServicePort, conflicts map[api.Key]string) {
	conflicts = map[api.Key]string{}
	var ports portUnion
	if fromExisting {
		ports.merge(copyPorts(existing))
	}

	allKnown := len(union.foreignMembers) == 0
	for _, m := range union.members {
		if m.svc == nil {
			allKnown = false
			continue
		}
		if conflict := ports.merge(copyPorts(m.svc)); conflict != "" && m.link != nil {
			conflicts[m.link.Link] = conflict
		}
	}

	if existing != nil && !union.allOurs {
		return copyPorts(existing), conflicts
	}
	if existing != nil && !allKnown {
		ports.merge(copyPorts(existing))
	}
	return ports.sorted(), conflicts
}

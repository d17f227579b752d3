package mirror

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster/records"
)

type endpoints = corev1.Endpoints //nolint:staticcheck // Linkerd's tools read Endpoints, and Kubernetes makes slices of them

// copies reports whether what is made of a Service takes over a label or annotation of it.
func (w *inputs) copiesKey(key string) bool {
	return !isReservedKey(key) && !excluded(controllerKeys, key) && !excluded(w.excludedKeys, key)
}

// copyLabels returns what is taken over of a Service's labels.
func (w *inputs) copyLabels(l *link, svc *corev1.Service) map[string]string {
	copied := map[string]string{mirroredLabel: "true"}
	for k, v := range svc.Labels {
		if !strings.HasPrefix(k, mirrorLabelPrefix) && w.copiesKey(k) && (l == nil || !excluded(l.ExcludedLabels, k)) {
			copied[k] = v
		}
	}
	return copied
}

// copyAnnotations returns what is taken over of a Service's annotations. Opaque ports cannot be excluded: without them proxies would wait
// for a protocol that never shows.
func (w *inputs) copyAnnotations(l *link, svc *corev1.Service) map[string]string {
	copied := map[string]string{}
	for k, v := range svc.Annotations {
		if k == opaqueAnnotation || w.copiesKey(k) && (l == nil || !excluded(l.ExcludedAnnotations, k)) {
			copied[k] = v
		}
	}
	return copied
}

func copyPorts(svc *corev1.Service) []corev1.ServicePort {
	var ports []corev1.ServicePort
	for _, p := range svc.Spec.Ports {
		ports = append(ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port, TargetPort: p.TargetPort})
	}
	return ports
}

func (w *inputs) mirrorService(l *link, k records.Key, svc *corev1.Service) *corev1.Service {
	m := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, Labels: w.copyLabels(l, svc), Annotations: w.copyAnnotations(l, svc)},
		Spec:       corev1.ServiceSpec{Ports: copyPorts(svc)},
	}
	m.Labels[clusterLabel] = l.Cluster
	setOwners(m, map[string]records.Key{l.Cluster: l.Link})
	m.Annotations[nameAnnotation] = fmt.Sprintf("%s.%s.svc.%s", svc.Name, svc.Namespace, l.ClusterDomain)
	m.Annotations[versionAnnotation] = svc.ResourceVersion
	return m
}

func endpointMirrorService(l *link, k records.Key, hostname string, svc *corev1.Service) *corev1.Service {
	m := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.Namespace, Name: k.Name,
			Labels: map[string]string{mirroredLabel: "true", clusterLabel: l.Cluster, headlessLabel: svc.Name + "-" + l.Cluster},
			Annotations: map[string]string{
				nameAnnotation:    fmt.Sprintf("%s.%s.%s.svc.%s", hostname, svc.Name, svc.Namespace, l.ClusterDomain),
				versionAnnotation: svc.ResourceVersion,
			},
		},
		Spec: corev1.ServiceSpec{Ports: copyPorts(svc)},
	}
	setOwners(m, map[string]records.Key{l.Cluster: l.Link})
	return m
}

// endpointsOf returns Endpoints of a mirror without addresses.
func emptyEndpoints(l *link, mirror *corev1.Service) *endpoints {
	e := &endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: mirror.Namespace, Name: mirror.Name,
		Labels:      map[string]string{mirroredLabel: "true", clusterLabel: l.Cluster},
		Annotations: map[string]string{nameAnnotation: mirror.Annotations[nameAnnotation]},
	}}
	if parent, found := mirror.Labels[headlessLabel]; found {
		e.Labels[headlessLabel] = parent
	}
	if l.Gateway.Identity != "" {
		e.Annotations[identityAnnotation] = l.Gateway.Identity
	}
	return e
}

// gatewayEndpoints returns the gateway's addresses under the ports of a mirror, if anybody behind the gateway answers. keep is true as
// long as the addresses are not known.
func (w *inputs) gatewayEndpoints(l *link, mirror *corev1.Service, answered bool) (_ *endpoints, keep bool) {
	g := w.gateway(l.Cluster)
	if len(g.addresses) == 0 {
		return nil, true
	}
	e := emptyEndpoints(l, mirror)
	if !answered {
		return e, false
	}
	subset := subsetOf(g.addresses, g.dead)
	for _, p := range mirror.Spec.Ports {
		subset.Ports = append(subset.Ports, corev1.EndpointPort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: l.Gateway.Port})
	}
	e.Subsets = []corev1.EndpointSubset{subset} //nolint:staticcheck // as above
	return e, false
}

func subsetOf(addresses []string, dead bool) (s corev1.EndpointSubset) { //nolint:staticcheck // as above
	for _, ip := range addresses {
		if dead {
			s.NotReadyAddresses = append(s.NotReadyAddresses, corev1.EndpointAddress{IP: ip})
		} else {
			s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: ip})
		}
	}
	return s
}

// headlessEndpoints returns the mirrors of a headless Service's endpoints by hostname. Their ports are those of the Service: that is
// where its endpoints' mirrors listen.
func (w *inputs) headlessEndpoints(l *link, mirror *corev1.Service, who readiness) (_ *endpoints, keep bool) {
	if !who.known {
		return nil, true
	}
	e := emptyEndpoints(l, mirror)
	var subset corev1.EndpointSubset //nolint:staticcheck // as above
	for _, hostname := range slices.Sorted(maps.Keys(who.hostnames)) {
		one := w.local(records.Key{Namespace: mirror.Namespace, Name: hostname + "-" + l.Cluster})
		if one == nil || one.Labels[headlessLabel] != mirror.Name || one.Spec.ClusterIP == "" || isHeadless(one) {
			continue // it is not there yet, and brings us back when it is
		}
		address := corev1.EndpointAddress{Hostname: hostname, IP: one.Spec.ClusterIP}
		if who.hostnames[hostname] {
			subset.Addresses = append(subset.Addresses, address)
		} else {
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
		}
	}
	if len(subset.Addresses)+len(subset.NotReadyAddresses) > 0 {
		for _, p := range mirror.Spec.Ports {
			subset.Ports = append(subset.Ports, corev1.EndpointPort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port})
		}
		e.Subsets = []corev1.EndpointSubset{subset} //nolint:staticcheck // as above
	}
	return e, false
}

// probeObjects returns a Service for the gateway itself, and its Endpoints; none as long as the addresses are not known. They stay
// ready whatever the probe says: it is what asks over them.
func probeObjects(l *link, k records.Key, addresses []string) (*corev1.Service, *endpoints) {
	marks := map[string]string{gatewayLabel: "true", clusterLabel: l.Cluster, managedByLabel: productName}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, Labels: marks, Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: probePort, Protocol: corev1.ProtocolTCP, Port: l.Probe.Port, TargetPort: intstr.FromInt32(l.Probe.Port)},
		}},
	}
	setOwners(service, map[string]records.Key{l.Cluster: l.Link})
	if len(addresses) == 0 {
		return service, nil
	}
	subset := subsetOf(addresses, false)
	subset.Ports = []corev1.EndpointPort{{Name: probePort, Protocol: corev1.ProtocolTCP, Port: l.Probe.Port}}
	e := &endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, Labels: maps.Clone(marks), Annotations: map[string]string{}},
		Subsets:    []corev1.EndpointSubset{subset}, //nolint:staticcheck // as above
	}
	if l.Gateway.Identity != "" {
		e.Annotations[identityAnnotation] = l.Gateway.Identity
	}
	return service, e
}

// federatedService returns the union of members, which stand in the order in which they count: the local one, then by the age of their
// Links. Its marks are those of the first, its ports those of all. Where not all members are ours to write, others look after the rest
// of it, and only who is a member is changed. conflicts tells the Links whose ports do not fit. It returns nil if there is nothing to
// write it from.
func (w *inputs) federatedService(k records.Key, base string, members []member, strangers []string, existing *corev1.Service, ours bool) (_ *corev1.Service, conflicts map[*link]string) {
	f := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}}
	var first member
	switch {
	case existing != nil && (!ours || len(members) == 0 || members[0].svc == nil):
		f.Labels, f.Annotations = maps.Clone(existing.Labels), maps.Clone(existing.Annotations)
	case len(members) > 0 && members[0].svc != nil:
		first = members[0]
		f.Labels, f.Annotations = w.copyLabels(first.link, first.svc), w.copyAnnotations(first.link, first.svc)
		if first.link != nil {
			maps.DeleteFunc(f.Annotations, func(key, _ string) bool { return excluded(policyKeys, key) })
		}
	default:
		return nil, nil
	}
	if f.Annotations == nil {
		f.Annotations = map[string]string{}
	}
	var ports portUnion
	var remote []string
	delete(f.Annotations, localDiscoveryKey)
	delete(f.Annotations, discoveryKey)
	delete(f.Annotations, linksAnnotation)
	written, owners := ownersOf(existing), map[string]records.Key{}
	conflicts = map[*link]string{}
	whole := len(strangers) == 0
	if existing != nil && first.svc == nil {
		ports.merge(copyPorts(existing))
	}
	for _, m := range members {
		if m.link == nil {
			f.Annotations[localDiscoveryKey] = base
		} else {
			remote = append(remote, base+"@"+m.link.Cluster)
			if owner, found := written[m.link.Cluster]; found && m.link.skipReason != "" {
				owners[m.link.Cluster] = owner
			} else if m.link.skipReason == "" {
				owners[m.link.Cluster] = m.link.Link
			}
		}
		if m.svc == nil {
			whole = false
			continue
		}
		if clash := ports.merge(copyPorts(m.svc)); clash != "" && m.link != nil {
			conflicts[m.link] = clash
		}
	}
	for _, stranger := range strangers {
		_, cluster, _ := strings.Cut(stranger, "@")
		if owner, found := written[cluster]; found {
			owners[cluster] = owner
		}
	}
	setOwners(f, owners)
	if remote = append(remote, strangers...); len(remote) > 0 {
		f.Annotations[discoveryKey] = strings.Join(remote, ",")
	}
	switch {
	case existing != nil && !ours:
		f.Spec.Ports = copyPorts(existing)
	case existing != nil && !whole:
		ports.merge(copyPorts(existing)) // those of the members that are not known are among them
		fallthrough
	default:
		f.Spec.Ports = ports.sorted()
	}
	return f, conflicts
}

// A union is the ports of several Services. What was there first counts.
type portUnion struct{ ports []corev1.ServicePort }

// join adds ports, as many as a Service may have, and returns how they conflict with those before them; empty if they do not.
func (u *portUnion) merge(ports []corev1.ServicePort) string {
	var clashes []string
	before := slices.Clone(u.ports)
	for _, p := range ports {
		others := slices.DeleteFunc(slices.Clone(before), func(o corev1.ServicePort) bool { return o.Port != p.Port })
		switch {
		case len(others) == 0 && len(u.ports) >= maxPorts:
			clashes = append(clashes, fmt.Sprintf("port %d is one too many: older members have %d", p.Port, maxPorts))
		case len(others) == 0:
			u.ports = append(u.ports, p)
		case !slices.ContainsFunc(others, func(o corev1.ServicePort) bool { return samePort(o, p) }):
			clashes = append(clashes, fmt.Sprintf("port %d is %s here and %s in an older member, which counts", p.Port, describePort(p), describePort(others[0])))
		}
	}
	if n := len(clashes); n > maxOmitted {
		clashes = append(clashes[:maxOmitted], fmt.Sprintf("and %d more", n-maxOmitted))
	}
	return strings.Join(clashes, "; ")
}

// nameAll returns ports, each with a valid name of its own: a Service must not name two alike. Names say nothing about where members listen,
// because clients ask for numbers.
func uniqueNames(ports []corev1.ServicePort) []corev1.ServicePort {
	taken := map[string]bool{}
	ports = slices.Clone(ports)
	for i, p := range ports {
		if p.Name != "" || len(ports) > 1 {
			ports[i].Name = unusedName(p, taken)
		}
		taken[ports[i].Name] = true
	}
	return ports
}

// named returns the ports by number, each with a valid name of its own.
func (u *portUnion) sorted() []corev1.ServicePort {
	ports := uniqueNames(u.ports)
	slices.SortStableFunc(ports, func(a, b corev1.ServicePort) int { return cmp.Compare(a.Port, b.Port) })
	return ports
}

// freeName returns a port's own name, or one like it that is valid and not taken.
func unusedName(p corev1.ServicePort, taken map[string]bool) string {
	name := p.Name
	if len(validation.IsDNS1123Label(name)) > 0 {
		name = "port"
	} else if !taken[name] {
		return name
	}
	for n := 1; ; n++ {
		suffix := strings.ToLower(fmt.Sprintf("-%d-%s", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP)))
		if n > 1 {
			suffix += fmt.Sprintf("-%d", n)
		}
		room := max(0, validation.DNS1123LabelMaxLength-len(suffix)) // 0 for a protocol that is none
		if free := name[:min(len(name), room)] + suffix; !taken[free] {
			return free
		}
	}
}

func samePort(a, b corev1.ServicePort) bool {
	return a.Name == b.Name && cmp.Or(a.Protocol, corev1.ProtocolTCP) == cmp.Or(b.Protocol, corev1.ProtocolTCP) && appProtocol(a) == appProtocol(b)
}

func appProtocol(p corev1.ServicePort) string {
	if p.AppProtocol == nil {
		return ""
	}
	return *p.AppProtocol
}

func describePort(p corev1.ServicePort) string {
	return strings.TrimSpace(fmt.Sprintf("%q %s %s", p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP), appProtocol(p)))
}

// sameService reports whether a Service is as it should be. The version of what it was copied from alone is no reason to write it.
func sameService(is, want *corev1.Service) bool {
	return maps.Equal(is.Labels, want.Labels) && sameExcept(is.Annotations, want.Annotations, versionAnnotation) &&
		slices.EqualFunc(is.Spec.Ports, want.Spec.Ports, func(a, b corev1.ServicePort) bool {
			return samePort(a, b) && a.Port == b.Port && targetOf(a) == targetOf(b)
		})
}

// targetOf returns where a port leads, as the API server fills it in.
func targetOf(p corev1.ServicePort) intstr.IntOrString {
	if p.TargetPort == (intstr.IntOrString{}) {
		return intstr.FromInt32(p.Port)
	}
	return p.TargetPort
}

func sameEndpoints(is, want *endpoints) bool {
	return maps.Equal(is.Labels, want.Labels) && maps.Equal(is.Annotations, want.Annotations) &&
		equality.Semantic.DeepEqual(sortedSubsets(is.Subsets), sortedSubsets(want.Subsets))
}

// ordered returns subsets with addresses and ports in an order of ours: the API server has its own.
func sortedSubsets(subsets []corev1.EndpointSubset) []corev1.EndpointSubset { //nolint:staticcheck // as above
	byAddress := func(a, b corev1.EndpointAddress) int {
		return cmp.Or(strings.Compare(a.IP, b.IP), strings.Compare(a.Hostname, b.Hostname))
	}
	sorted := slices.Clone(subsets)
	for i := range sorted {
		s := &sorted[i]
		s.Addresses = slices.SortedFunc(slices.Values(s.Addresses), byAddress)
		s.NotReadyAddresses = slices.SortedFunc(slices.Values(s.NotReadyAddresses), byAddress)
		s.Ports = slices.Clone(s.Ports)
		for j := range s.Ports {
			s.Ports[j].Protocol = cmp.Or(s.Ports[j].Protocol, corev1.ProtocolTCP)
		}
		slices.SortFunc(s.Ports, func(a, b corev1.EndpointPort) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
		})
	}
	return sorted
}

func sameExcept(a, b map[string]string, key string) bool {
	a, b = maps.Clone(a), maps.Clone(b)
	delete(a, key)
	delete(b, key)
	return maps.Equal(a, b)
}

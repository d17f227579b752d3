package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/internal/words"
)

// newView returns the View of a Service of a cluster, without slices.
func newView(cluster federation.Cluster, svc *corev1.Service, out *omissions) federation.View {
	policy := svc.Spec.InternalTrafficPolicy
	view := federation.View{
		ExternalName: svc.Spec.Type == corev1.ServiceTypeExternalName,
		LocalOnly:    policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal,
		Ports:        servicePorts(svc.Spec.Ports, out),
		Misread:      MisreadService(svc),
		Unexported:   !isExported(svc),
	}

	if list, found := svc.Annotations[linkerd.OpaquePortsAnnotation]; found {
		view.Opaque = parsePorts(list, func(name string) (uint16, bool) {
			i := slices.IndexFunc(view.Ports, func(p federation.ServicePort) bool { return p.Name == name })
			if i < 0 {
				return 0, false
			}
			return view.Ports[i].Number, true
		}, out)
	}

	view.Composition, view.Malformed = newComposition(cluster, svc, out)
	return view
}

// isExported reports whether a Service has a label by which other clusters mirror it, or have it join a federated one,
// whatever their Links select of those.
func isExported(svc *corev1.Service) bool {
	return svc.Labels[linkerd.ExportedLabel] != "" || svc.Labels[linkerd.FederatedLabel] != ""
}

// throughGateway returns the cluster whose gateway a mirror leads to; empty for any other Service. The Service over
// which a gateway is probed has another label. Like mirrorMarks it counts for the cluster's own clients only.
func throughGateway(svc *corev1.Service, v *federation.View, out *omissions) federation.Cluster {
	const cluster = linkerd.MirrorClusterNameLabel
	isMirror := svc.Labels[linkerd.MirroredServiceLabel] == "true"
	if !isMirror || v.Composition != nil || v.Malformed != "" {
		return ""
	}
	return federation.Cluster(out.label("label "+cluster, svc.Labels[cluster]))
}

// appProtocol returns the application protocol that a port declares (KEP-1507).
func appProtocol(p corev1.ServicePort, out *omissions) string {
	if p.AppProtocol == nil {
		return ""
	}
	return api.Intern(out.app(*p.AppProtocol))
}

// servicePorts returns the ports of a Service by number and protocol.
func servicePorts(declared []corev1.ServicePort, out *omissions) (ports []federation.ServicePort) {
	for _, p := range firstOf(out, "ports", declared, maxPorts) {
		n, is := portNumber(p.Port)
		protocol, known := out.protocol(p.Protocol)
		if !is || !known || !out.validText("a port: its name", p.Name, maxLabel) {
			continue
		}
		ports = append(ports, federation.ServicePort{
			Number: n, Protocol: protocol, Name: p.Name, Target: targetPort(p), App: appProtocol(p, out),
		})
	}

	slices.SortStableFunc(ports, func(a, b federation.ServicePort) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Protocol, b.Protocol))
	})

	return slices.CompactFunc(ports, func(a, b federation.ServicePort) bool {
		return a.Number == b.Number && a.Protocol == b.Protocol
	})
}

// targetPort returns the number of a Service's port at its endpoints, or 0 if each of them has its own.
func targetPort(p corev1.ServicePort) uint16 {
	if p.TargetPort.Type == intstr.String {
		return 0
	}
	if number, is := portNumber(cmp.Or(p.TargetPort.IntVal, p.Port)); is {
		return number
	}
	return 0
}

// newComposition returns the members of a Service that stands for others, or why they are malformed; nil
// for a plain Service. A federated Service may also have the label of a mirror: it is federated.
func newComposition(
	cluster federation.Cluster, svc *corev1.Service, out *omissions,
) (c *federation.Composition, malformed string) {
	const clusterLabel, serviceLabel = linkerd.RemoteDiscoveryKey, linkerd.RemoteServiceLabel
	if IsFederated(svc) {
		members := memberList{
			cluster: cluster, namespace: svc.Namespace, out: out, known: map[federation.MemberRef]bool{},
		}
		if local := svc.Annotations[linkerd.LocalDiscoveryAnnotation]; local != "" {
			members.addMember(local, cluster, true)
		}

		members.parse(svc.Annotations[linkerd.RemoteDiscoveryKey], false)
		members.parse(svc.Annotations[MembersKey], true)
		if members.more > 0 {
			out.addf(words.Count(members.more, "member")+" after the first %d", maxMembers)
		}
		return &federation.Composition{Union: true, Members: members.all}, ""
	}

	remote, isMirror := svc.Labels[clusterLabel]
	if !isMirror {
		return nil, ""
	}

	name := svc.Labels[serviceLabel]
	if !out.validText("label "+clusterLabel, remote, maxLabel) ||
		!out.validText("label "+serviceLabel, name, maxLabel) {
		return nil, fmt.Sprintf("Service %s/%s has malformed labels %s and %s",
			svc.Namespace, svc.Name, clusterLabel, serviceLabel)
	}

	if name == "" {
		return nil, fmt.Sprintf("Service %s/%s has the label %s=%s but no label %s, "+
			"so the Service of that cluster that it stands for is unknown",
			svc.Namespace, svc.Name, clusterLabel, remote, serviceLabel)
	}

	service := federation.Service{Namespace: svc.Namespace, Name: name}
	ref := federation.Ref{Cluster: federation.Cluster(remote), Service: service}
	return &federation.Composition{Members: []federation.MemberRef{{Ref: ref}}}, ""
}

// memberList collects the members of a federated Service, each once.
type memberList struct {
	cluster   federation.Cluster // of the Service
	namespace string
	out       *omissions

	all   []federation.MemberRef
	known map[federation.MemberRef]bool
	more  int // beyond maxMembers
}

// parse adds the members of an annotation; those without a cluster are of its own one, if that is allowed.
func (m *memberList) parse(list string, allowOwn bool) {
	if list == "" {
		return
	}

	for item := range strings.SplitSeq(list, ",") {
		service, cluster, remote := strings.Cut(item, "@")
		malformed := service == "" || remote && cluster == "" || strings.Contains(cluster, "@")
		switch {
		case malformed, !remote && !allowOwn:
			m.out.addf("member %s is not written service@cluster", item)
		case remote:
			m.addMember(service, federation.Cluster(cluster), false)
		default:
			m.addMember(service, m.cluster, true)
		}
	}
}

func (m *memberList) addMember(service string, cluster federation.Cluster, filtered bool) {
	if !m.out.validText("a member: its Service", service, maxLabel) ||
		!m.out.validText("a member: its cluster", string(cluster), maxName) {
		return
	}

	// Interned, a name does not keep the annotation that it is a part of.
	service, cluster = api.Intern(service), federation.Cluster(api.Intern(string(cluster)))
	ref := federation.Ref{Cluster: cluster, Service: federation.Service{Namespace: m.namespace, Name: service}}
	switch member := (federation.MemberRef{Ref: ref, Filtered: filtered}); {
	case m.known[member]:
	case len(m.all) == maxMembers:
		m.more++
	default:
		m.known[member] = true
		m.all = append(m.all, member)
	}
}

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

// MembersKey is an annotation that says of whom a Service is the union, service@cluster or service for one of its own cluster,
// separated by commas. Linkerd does not know it, and so serves the slices of the Service.
const MembersKey = "federation.fingerpost.io/members"

// translateService returns what cluster home says about a Service, without its slices: what is kept of the Service.
func translateService(home federation.Cluster, svc *corev1.Service, r *remarks) federation.View {
	v := federation.View{
		ExternalName: svc.Spec.Type == corev1.ServiceTypeExternalName,
		LocalOnly:    svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
	}
	// Where a number serves TCP and UDP it is the TCP port that a proxy means.
	ports := slices.Clone(first(r, "ports", svc.Spec.Ports, maxPorts))
	slices.SortStableFunc(ports, func(a, b corev1.ServicePort) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(protocolRank(a.Protocol), protocolRank(b.Protocol)))
	})
	for _, p := range ports {
		n, is := portNumber(p.Port)
		if !is || len(v.Ports) > 0 && v.Ports[len(v.Ports)-1].Number == n || !r.valid("a port: its name", p.Name, maxLabel) {
			continue
		}
		v.Ports = append(v.Ports, federation.ServicePort{Number: n, Name: intern(p.Name), Target: target(p)})
	}
	if list, found := svc.Annotations[linkerd.OpaquePortsAnnotation]; found {
		v.Opaque = parsePorts(list, func(name string) (uint16, bool) {
			i := slices.IndexFunc(v.Ports, func(p federation.ServicePort) bool { return p.Name == name })
			if i < 0 {
				return 0, false
			}
			return v.Ports[i].Number, true
		}, r)
	}
	v.Composition, v.Malformed = composition(home, svc, r)
	return v
}

// target returns the number of a Service's port at its endpoints, or 0 if it is for each of them to say.
func target(p corev1.ServicePort) uint16 {
	n := p.TargetPort.IntVal
	switch {
	case p.TargetPort.Type == intstr.String:
		return 0
	case n == 0:
		n = p.Port
	}
	if number, is := portNumber(n); is {
		return number
	}
	return 0
}

func protocolRank(p corev1.Protocol) int {
	if p == corev1.ProtocolTCP || p == "" {
		return 0
	}
	return 1
}

// composition reads which claims make up a Service, and why that cannot be said if it cannot. A federated Service may also bear
// the mirror's label: it is federated.
func composition(home federation.Cluster, svc *corev1.Service, r *remarks) (c *federation.Composition, malformed string) {
	name := func(service string) federation.Service {
		return federation.Service{Namespace: svc.Namespace, Name: service}
	}
	remotes, isRemote := svc.Annotations[linkerd.RemoteDiscoveryKey]
	local, isLocal := svc.Annotations[linkerd.LocalDiscoveryAnnotation]
	members, isUnion := svc.Annotations[MembersKey]
	if isRemote || isLocal || isUnion {
		c = &federation.Composition{Union: true}
		known, more := map[federation.Term]bool{}, 0
		add := func(service string, cluster federation.Cluster, here bool) {
			if !r.valid("a member: its Service", service, maxLabel) || !r.valid("a member: its cluster", string(cluster), maxName) {
				return
			}
			switch term := (federation.Term{Ref: federation.Ref{Cluster: cluster, Service: name(service)}, Filtered: here}); {
			case known[term]:
			case len(known) == maxMembers:
				more++
			default:
				known[term] = true
				c.Members = append(c.Members, term)
			}
		}
		read := func(list string, mayBeHere bool) {
			for item := range strings.SplitSeq(list, ",") {
				service, cluster, remote := strings.Cut(item, "@")
				switch {
				case list == "":
				case service == "" || remote != (cluster != "") || strings.Contains(cluster, "@") || !remote && !mayBeHere:
					r.add("member %s is not written service@cluster", item)
				case remote:
					add(service, federation.Cluster(cluster), false)
				default:
					add(service, home, true)
				}
			}
		}
		if local != "" {
			add(local, home, true)
		}
		read(remotes, false)
		read(members, true)
		if more > 0 {
			r.add("%d members after the first %d", more, maxMembers)
		}
		return c, ""
	}
	cluster, isMirror := svc.Labels[linkerd.RemoteDiscoveryKey]
	if !isMirror {
		return nil, ""
	}
	if !r.valid("label "+linkerd.RemoteDiscoveryKey, cluster, maxLabel) || !r.valid("label "+linkerd.RemoteServiceLabel, svc.Labels[linkerd.RemoteServiceLabel], maxLabel) {
		return nil, fmt.Sprintf("Service %s/%s has labels %s and %s that are no names", svc.Namespace, svc.Name, linkerd.RemoteDiscoveryKey, linkerd.RemoteServiceLabel)
	}
	service := svc.Labels[linkerd.RemoteServiceLabel]
	if service == "" {
		return nil, fmt.Sprintf("Service %s/%s has the label %s=%s but no label %s: it cannot be told which Service of that cluster it stands for",
			svc.Namespace, svc.Name, linkerd.RemoteDiscoveryKey, cluster, linkerd.RemoteServiceLabel)
	}
	return &federation.Composition{Members: []federation.Term{
		{Ref: federation.Ref{Cluster: federation.Cluster(cluster), Service: name(service)}},
	}}, ""
}

package endpointslice

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/records"
)

const (
	// ExternalLease is held by whoever writes the slices of ExternalWorkloads. Linkerd's destination controller takes part.
	ExternalLease = "linkerd-destination-endpoint-write"

	externalManagedBy = "linkerd-external-workloads-controller"
)

// workload is what is kept of an ExternalWorkload.
type workload struct {
	key
	uid    types.UID
	labels map[string]string
	addrs  []netip.Addr
	ports  []workloadPort
	ready  bool
}

// workloadPort is a port that an ExternalWorkload documents.
type workloadPort struct {
	name     string
	number   int32
	protocol corev1.Protocol
}

// parseWorkload returns what is kept of an ExternalWorkload. Addresses and ports that no slice may hold are left out.
func parseWorkload(u *unstructured.Unstructured) (*workload, error) {
	parsed, err := linkerd.ParseExternalWorkload(u)
	if err != nil {
		return nil, err
	}
	w := &workload{
		key: key{Namespace: records.Intern(parsed.Namespace), Name: parsed.Name}, uid: parsed.UID, labels: parsed.Labels, ready: parsed.Ready(),
	}
	for _, ip := range parsed.Spec.WorkloadIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil && reachable(addr.Unmap()) {
			w.addrs = append(w.addrs, addr.Unmap())
		}
	}
	for _, p := range parsed.Spec.Ports {
		if isPort(p.Port) {
			w.ports = append(w.ports, workloadPort{records.Intern(p.Name), p.Port, protocolOf(p.Protocol)})
		}
	}
	return w, nil
}

func (w *workload) zone() string { return w.labels[corev1.LabelTopologyZone] }

// sameEndpoint reports whether every Service that selects both has the same endpoint for them.
func (w *workload) sameEndpoint(o *workload) bool {
	return w.uid == o.uid && w.ready == o.ready && w.zone() == o.zone() &&
		slices.Equal(w.addrs, o.addrs) && slices.Equal(w.ports, o.ports)
}

// concerned returns the Services for which it makes a difference that an ExternalWorkload was old and is now; nil for one that is not
// there. Where only labels differ these are the Services that select one of both.
func concerned(old, now *workload, services []*service) (keys []key) {
	selects := func(s *service, w *workload) bool { return w != nil && s.selects(w.labels) }
	same := old != nil && now != nil && old.sameEndpoint(now)
	for _, s := range services {
		if was, is := selects(s, old), selects(s, now); was != is || was && !same {
			keys = append(keys, s.key)
		}
	}
	return keys
}

// externalGroups returns the endpoints that a Service has of ExternalWorkloads of its namespace, in the order of their names.
func externalGroups(s *service, workloads []*workload) []*group {
	if s.external || s.selector == nil {
		return nil
	}
	groups := grouping{}
	for _, w := range workloads {
		if !s.selector.Matches(labels.Set(w.labels)) {
			continue
		}
		ports := portsOf(s, w)
		if len(ports) == 0 && len(s.ports) > 0 {
			continue // it documents none of them
		}
		for _, family := range s.families {
			e := discoveryv1.Endpoint{
				Conditions: discoveryv1.EndpointConditions{Ready: &w.ready, Serving: &w.ready, Terminating: new(false)},
				TargetRef:  &corev1.ObjectReference{Kind: linkerd.ExternalWorkloadKind, Namespace: w.Namespace, Name: w.Name, UID: w.uid},
			}
			for _, addr := range w.addrs {
				if familyOf(addr) == family {
					e.Addresses = append(e.Addresses, addr.String())
				}
			}
			if len(e.Addresses) == 0 {
				continue
			}
			if zone := w.zone(); zone != "" {
				e.Zone = &zone
			}
			if s.headless && isLabel(w.Name) {
				e.Hostname = &w.Name
			}
			g := groups.of(traits{family: family}, ports)
			g.endpoints = append(g.endpoints, e)
		}
	}
	for _, g := range groups {
		g.meta = s.meta(externalManagedBy, true)
		g.meta.GenerateName = "linkerd-external-" + s.Name + "-"
	}
	return groups.sorted()
}

// portsOf returns the Service's ports at a workload: those whose target the workload documents.
func portsOf(s *service, w *workload) (ports []discoveryv1.EndpointPort) {
	for _, p := range s.ports {
		i := slices.IndexFunc(w.ports, func(own workloadPort) bool {
			if own.protocol != protocolOf(p.Protocol) {
				return false
			}
			if p.TargetPort.Type == intstr.String {
				return own.name == p.TargetPort.StrVal
			}
			return own.number == target(p)
		})
		if i >= 0 {
			ports = append(ports, discoveryv1.EndpointPort{
				Name: &p.Name, Port: &w.ports[i].number, Protocol: &w.ports[i].protocol, AppProtocol: p.AppProtocol,
			})
		}
	}
	return ports
}

// target returns the number that a Service's port has at its endpoints; only for one that is a number.
func target(p corev1.ServicePort) int32 {
	if p.TargetPort.IntVal == 0 {
		return p.Port
	}
	return p.TargetPort.IntVal
}

func familyOf(a netip.Addr) discoveryv1.AddressType {
	if a.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

package oracle

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
)

// A Lookup is what a proxy asks GetProfile for: an IP, a Service, or an instance of one.
type Lookup struct {
	IP                netip.Addr
	Service, Hostname string
	Port              uint16
	Namespace         string // the client's; may be empty
}

// A Profile is what a proxy acts on. The zero Profile is an empty message.
type Profile struct {
	Name      string // fully qualified
	Opaque    bool
	Budget    string // RATIO/MINIMUM/TTL
	Routes    []string
	Overrides []string
	Parent    string // the Service and its port
	Object    string // the ServiceProfile
	At        netip.AddrPort
	Endpoint  Address // if At is set
}

const (
	ofServices    = "shop" // the namespace of everything that is asked for
	defaultBudget = "0.2/10/10s"
)

// Lookup is the rule of rules for profiles. A stream that is open is not refused any more; what it received
// stays, if nothing else is sent.
func (w *World) Lookup(l Lookup) Answer {
	name := l.Service
	if l.IP.IsValid() {
		var owner *corev1.Service
		for _, s := range w.Local.Services {
			if slices.Contains(append(s.Spec.ClusterIPs, s.Spec.ClusterIP), l.IP.String()) {
				owner = s
			}
		}
		if owner == nil {
			return w.resident(l)
		}
		name = owner.Name
	}
	svc := w.Local.Services[name]
	switch {
	case svc == nil && l.Hostname == "":
		// A stream that was open before receives what is true without the Service, or received nothing about the port.
		return Answer{Refused: codes.NotFound, Profiles: []Profile{w.profile(l, name, w.DefaultOpaque, nil), {}}}
	case svc == nil:
		return Answer{Refused: codes.NotFound, Kept: true}
	case l.Hostname != "":
		return w.instance(l)
	case !slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == int32(l.Port) }):
		return Answer{Profiles: []Profile{{}}}
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return Answer{Refused: codes.InvalidArgument, Ends: true}
	}
	list, set := svc.Annotations["config.linkerd.io/opaque-ports"]
	if !set {
		list = w.DefaultOpaque
	}
	named := map[string]int32{}
	for _, p := range svc.Spec.Ports {
		named[p.Name] = p.Port
	}
	return Answer{Profiles: []Profile{w.profile(l, name, list, named)}}
}

// profile is what is sent of a Service at a port that it declares. The client's own ServiceProfile goes
// before the Service's.
func (w *World) profile(l Lookup, name, opaque string, named map[string]int32) Profile {
	full := name + "." + ofServices + ".svc.cluster.local"
	p := Profile{
		Name: full, Opaque: lists(opaque, l.Port, named), Budget: defaultBudget,
		Parent: fmt.Sprintf("Service %s/%s:%d", ofServices, name, l.Port),
	}
	namespace, object := l.Namespace, w.Local.Profiles[l.Namespace][full]
	if l.Namespace == "" || object == nil {
		namespace, object = ofServices, w.Local.Profiles[ofServices][full]
	}
	if object == nil {
		return p
	}
	p.Object = fmt.Sprintf("ServiceProfile %s/%s:0", namespace, full)
	for _, r := range object.Spec.Routes {
		p.Routes = append(p.Routes, r.Name+" "+r.Condition.Method)
	}
	if b := object.Spec.RetryBudget; b != nil {
		ttl, _ := time.ParseDuration(b.TTL)
		p.Budget = fmt.Sprintf("%v/%d/%s", b.RetryRatio, b.MinRetriesPerSecond, ttl)
	}
	for _, o := range object.Spec.DstOverrides {
		authority, weight := o.Authority, o.Weight
		if !strings.Contains(authority, ":") {
			authority = net.JoinHostPort(authority, strconv.Itoa(int(l.Port)))
		}
		p.Overrides = append(p.Overrides, authority+" "+weight+"0000") // in ten-thousandths
	}
	return p
}

// A resident answers at an IP: at all its ports, or at one of a node's or of an ExternalWorkload's.
type resident struct {
	candidate
	port    uint16 // 0: all
	running bool
}

// right is lower the better: the IP is a Pod's own, a node's, an ExternalWorkload's.
func (r resident) right() int {
	switch {
	case r.external != nil:
		return 2
	case r.port != 0:
		return 1
	}
	return 0
}

// residents are all who answer at an IP.
func (w *World) residents(ip netip.Addr) (all []resident) {
	var leaving []resident
	for _, p := range byName(w.Local.Pods) {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		var at []resident
		r := resident{
			candidate: candidate{member: member{cluster: w.Local}, pod: p},
			running:   p.Status.Phase == corev1.PodRunning,
		}
		if slices.ContainsFunc(p.Status.PodIPs, func(i corev1.PodIP) bool { return i.IP == ip.String() }) &&
			!p.Spec.HostNetwork {
			at = append(at, r)
		}
		if slices.ContainsFunc(p.Status.HostIPs, func(i corev1.HostIP) bool { return i.IP == ip.String() }) {
			for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
				for _, port := range c.Ports {
					if port.HostPort > 0 && port.Protocol == corev1.ProtocolTCP { // proxies serve nothing else
						r.port = uint16(port.HostPort)
						at = append(at, r)
					}
				}
			}
		}
		if p.DeletionTimestamp != nil {
			leaving = append(leaving, at...)
		} else {
			all = append(all, at...)
		}
	}
	for _, e := range byName(w.Local.Externals) {
		for _, i := range e.Spec.WorkloadIPs {
			seen := map[int32]bool{}
			for _, p := range e.Spec.Ports {
				if i.IP == ip.String() && !seen[p.Port] {
					all = append(all, resident{
						candidate: candidate{member: member{cluster: w.Local}, external: e},
						port:      uint16(p.Port),
						running:   true,
					})
				}
				seen[p.Port] = true
			}
		}
	}
	for _, r := range leaving { // a Pod that is to be deleted counts as long as no other has its place
		if !slices.ContainsFunc(all, func(o resident) bool { return o.port == r.port }) {
			all = append(all, r)
		}
	}
	return all
}

// resident answers for an IP that is no Service's.
func (w *World) resident(l Lookup) Answer {
	all := slices.DeleteFunc(w.residents(l.IP), func(r resident) bool { return r.port != 0 && r.port != l.Port })
	slices.SortStableFunc(all, func(a, b resident) int { return cmp.Compare(a.right(), b.right()) })
	switch {
	case len(all) > 1 && all[0].right() == all[1].right():
		return Answer{Refused: codes.FailedPrecondition, Kept: true}
	case len(all) == 0 || !all[0].running:
		return Answer{Profiles: []Profile{w.at(l.IP, l.Port, resident{})}}
	}
	return Answer{Profiles: []Profile{w.at(l.IP, l.Port, all[0])}}
}

// instance answers for one endpoint of a Service, ready or not: the first that has the hostname, in IPv4 if
// there is one.
func (w *World) instance(l Lookup) Answer {
	var found *candidate
	for _, s := range byName(w.Local.Slices) {
		if serviceOf(s) != l.Service {
			continue
		}
		for i, e := range s.Endpoints {
			c, known := member{cluster: w.Local}.answering(s, i)
			if !known || e.Hostname == nil || *e.Hostname != l.Hostname {
				continue
			}
			for _, text := range e.Addresses {
				ip, err := netip.ParseAddr(text)
				if err == nil && (found == nil || ip.Is4() && found.addr.Addr().Is6()) {
					at := c
					at.addr = netip.AddrPortFrom(ip, l.Port)
					found = &at
				}
			}
		}
	}
	if found == nil {
		return Answer{Refused: codes.NotFound, Kept: true}
	}
	ip := found.addr.Addr()
	for _, r := range w.residents(ip) {
		if r.pod != nil && r.pod == found.pod && !r.running {
			return Answer{Profiles: []Profile{w.at(ip, l.Port, resident{})}} // another may come to have it
		}
	}
	return Answer{Profiles: []Profile{w.at(ip, l.Port, resident{candidate: *found})}}
}

// at is the profile of the resident of an IP; of a bare address if none is known.
func (w *World) at(ip netip.Addr, port uint16, r resident) Profile {
	r.addr = netip.AddrPortFrom(ip, port)
	p := Profile{Budget: defaultBudget, At: r.addr, Endpoint: Address{Weight: 10_000, Labels: map[string]string{}}}
	switch {
	case r.pod != nil:
		p.Endpoint.Labels["namespace"], p.Endpoint.Labels["zone"] = r.pod.Namespace, ""
		w.pod(&p.Endpoint, r.candidate)
		if r.port != 0 {
			p.Endpoint.InboundPort = 0 // the node leads to that port of the Pod, not to its proxy's
		}
		p.Opaque = w.opaque(r.candidate)
	case r.external != nil:
		p.Endpoint.Labels["namespace"], p.Endpoint.Labels["zone"] = r.external.Namespace, ""
		w.external(&p.Endpoint, r.candidate)
		p.Opaque = w.opaque(r.candidate)
	default:
		p.Opaque = lists(w.DefaultOpaque, port, nil)
	}
	return p
}

// byName returns the objects in the order of their names.
func byName[T any](objects map[string]T) (all []T) {
	names := make([]string, 0, len(objects))
	for name := range objects {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		all = append(all, objects[name])
	}
	return all
}

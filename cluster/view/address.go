package view

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/federation"
)

// Proxies of the local cluster ask for IPs as well as for names. What is published at an IP is also the index
// of the workloads that have it; replaced has those that it leaves out. servicesByIP is the index of
// Services. The way back is what a Service or a workload published last: serviceIPs, and ips of a
// workloadState. Several owners of one IP are not an error: an IP is given to a new Pod while the old one
// terminates, and the Pods of a node share its IP by host ports.

// workloadIPs are the IPs of a workload of the local cluster. A Pod that has ended has none. Most have one,
// and share the rest with all others of their phase.
type workloadIPs struct {
	first netip.Addr // the zero Addr for none
	*otherIPs
}

// otherIPs are what there is besides the first IP. They are immutable.
type otherIPs struct {
	own        []netip.Addr
	*hostPorts // nil for none
	phase
}

// phase is what residents of an IP differ by.
type phase struct{ running, terminating bool }

// hostPorts are IPs on which only some ports lead to a workload, such as those of a Pod's node.
type hostPorts struct {
	ips   []netip.Addr
	ports []uint16         // on all of ips
	bound []netip.AddrPort // on one IP each: a Pod may bind a port to any that its node has
}

// noOtherIPs are shared by the workloads of a phase that have one IP.
var noOtherIPs = map[phase]*otherIPs{
	{}:                  {},
	{running: true}:     {phase: phase{running: true}},
	{terminating: true}: {phase: phase{terminating: true}},
	{true, true}:        {phase: phase{true, true}},
}

// withOwn returns the IPs of a workload of which own is its own, and others the rest.
func (others otherIPs) withOwn(own []netip.Addr) *workloadIPs {
	w := &workloadIPs{}
	if len(own) > 0 {
		w.first, others.own = own[0], slices.Clone(own[1:])
	}
	w.otherIPs = noOtherIPs[others.phase]
	if len(others.own) > 0 || others.hostPorts != nil {
		w.otherIPs = new(others)
	}
	return w
}

// allIPs yields all IPs of a workload, which may be nil.
func (w *workloadIPs) allIPs(yield func(netip.Addr) bool) {
	if w == nil || w.first.IsValid() && !yield(w.first) {
		return
	}

	for _, ip := range w.own {
		if !yield(ip) {
			return
		}
	}
	if w.hostPorts == nil {
		return
	}

	for _, ip := range w.ips {
		if !yield(ip) {
			return
		}
	}
	for _, at := range w.bound {
		if !slices.Contains(w.ips, at.Addr()) && !yield(at.Addr()) {
			return
		}
	}
}

// merelyBinds reports whether all that a workload has at an IP are ports that it binds there, although the IP is not
// known to be its node's. Then everybody else who is there comes first: a Pod may name any IP.
func (w *workloadIPs) merelyBinds(ip netip.Addr) bool {
	return w.first != ip && !slices.Contains(w.own, ip) && w.hostPorts != nil && !slices.Contains(w.ips, ip)
}

func (w *workloadIPs) contains(ip netip.Addr) bool {
	for own := range w.allIPs {
		if own == ip {
			return true
		}
	}
	return false
}

func newWorkloadIPs(pod *corev1.Pod, out *omissions) *workloadIPs {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}

	var others otherIPs
	others.running, others.terminating = pod.Status.Phase == corev1.PodRunning, pod.DeletionTimestamp != nil
	var own []netip.Addr
	if !pod.Spec.HostNetwork {
		for _, ip := range pod.Status.PodIPs {
			own = appendIP(own, ip.IP, out)
		}
		own = appendIP(own, pod.Status.PodIP, out)
	}

	if host := newHostPorts(pod, out); len(host.ports) > 0 || len(host.bound) > 0 {
		others.hostPorts = host
	}
	return others.withOwn(own)
}

// newHostPorts returns the ports at which the node of a Pod leads to it: at all IPs of the node, at those of one family
// (hostIP 0.0.0.0 or ::), or at one IP. Those at an IP that only the node itself can reach are none.
func newHostPorts(pod *corev1.Pod, out *omissions) *hostPorts {
	host, n := &hostPorts{}, 0
	for c := range containersOf(pod) {
		for _, port := range c.Ports {
			number, is := portNumber(port.HostPort)
			isTCP := port.Protocol == corev1.ProtocolTCP || port.Protocol == "" // proxies ask for no other
			if !is || !isTCP || n == maxPorts {
				continue
			}

			n++
			if n == 1 {
				host.ips = nodeIPs(pod, out)
			}
			if port.HostIP == "" {
				host.ports = appendPort(host.ports, port.HostPort)
			} else if ip, is := out.parseIP("hostIP", port.HostIP); is {
				host.bind(ip, number)
			}
		}
	}

	host.bound = slices.DeleteFunc(host.bound, func(at netip.AddrPort) bool {
		return slices.Contains(host.ips, at.Addr()) && slices.Contains(host.ports, at.Port())
	})
	return host
}

func nodeIPs(p *corev1.Pod, out *omissions) (ips []netip.Addr) {
	for _, ip := range p.Status.HostIPs {
		ips = appendIP(ips, ip.IP, out)
	}
	return appendIP(ips, p.Status.HostIP, out)
}

// bind adds a port at an IP, or at those of its family if it is unspecified.
func (h *hostPorts) bind(ip netip.Addr, port uint16) {
	add := func(ip netip.Addr) {
		if at := netip.AddrPortFrom(ip, port); !slices.Contains(h.bound, at) {
			h.bound = append(h.bound, at)
		}
	}

	if IsUsable(ip) {
		add(ip)
	}
	if !ip.IsUnspecified() {
		return
	}

	for _, of := range h.ips {
		if of.Is4() == ip.Is4() {
			add(of)
		}
	}
}

// clusterIPs returns the IPs of a Service; none of a headless one.
func clusterIPs(svc *corev1.Service, out *omissions) (ips []netip.Addr) {
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	for _, ip := range svc.Spec.ClusterIPs {
		ips = appendIP(ips, ip, out)
	}
	return appendIP(ips, svc.Spec.ClusterIP, out)
}

// appendIP appends an IP, unless it is empty, there already or does not parse.
func appendIP(to []netip.Addr, text string, out *omissions) []netip.Addr {
	if text == "" {
		return to
	}
	ip, is := out.parseIP("IP", text)
	if !is || slices.Contains(to, ip) {
		return to
	}
	return append(to, ip)
}

// appendPort appends a port, unless it is there already or out of range.
func appendPort(to []uint16, n int32) []uint16 {
	port, is := portNumber(n)
	if !is || slices.Contains(to, port) {
		return to
	}
	return append(to, port)
}

// publishServiceIPs publishes the IPs of a Service: those that it lost or is new at. Of a Service only the
// name is published, so one that stays is not published again.
func (r *Reconciler) publishServiceIPs(svc key, ips []netip.Addr) {
	if !r.options.Local {
		return
	}
	old := r.serviceIPs[svc]
	r.serviceIPs[svc] = ips
	if len(ips) == 0 {
		delete(r.serviceIPs, svc)
	}

	for _, ip := range old {
		if !slices.Contains(ips, ip) {
			owners := slices.DeleteFunc(r.servicesByIP[ip], func(o key) bool { return o == svc })
			r.servicesByIP[ip] = owners
			if len(owners) == 0 {
				delete(r.servicesByIP, ip)
			}
			r.publishIP(ip, nil)
		}
	}

	for _, ip := range ips {
		owners := r.servicesByIP[ip]
		if i, known := slices.BinarySearchFunc(owners, svc, key.Compare); !known {
			r.servicesByIP[ip] = slices.Insert(owners, i, svc)
			r.publishIP(ip, nil)
		}
	}
}

// publishWorkloadIPs publishes the IPs of a workload, and those that it had. The workload may have changed
// itself, so that an IP that stays is published again.
func (r *Reconciler) publishWorkloadIPs(ref objectRef, state *workloadState) {
	if !r.options.Local {
		return
	}
	old := state.ips
	state.ips = nil
	if state.workload != nil {
		record, _ := r.workloadRecords(ref.kind).Get(ref.key)
		state.ips = record.ips
	}

	for ip := range old.allIPs {
		if !state.ips.contains(ip) {
			r.publishIP(ip, state)
		}
	}
	for ip := range state.ips.allIPs {
		r.publishIP(ip, state)
	}
}

// workloadsAt returns the workloads that have an IP: of those that had it, and of one that changed, if
// it is not nil. They are sorted.
func (r *Reconciler) workloadsAt(ip netip.Addr, changed *workloadState) []*workloadState {
	all := slices.Clone(r.replaced[ip])
	if changed != nil {
		all = append(all, changed)
	}

	if a, found := r.facts.addresses.Get(ip); found {
		for _, o := range a.Residents {
			ref := refOf(o.Workload)
			if w := r.workloads[ref.kind].Get(ref.key); w != nil {
				all = append(all, w)
			}
		}
	}

	all = slices.DeleteFunc(all, func(w *workloadState) bool { return !w.ips.contains(ip) })
	slices.SortFunc(all, (*workloadState).compareNames)
	return slices.Compact(all)
}

// publishIP publishes the owners of an IP; changed is a workload that changed, or nil. A terminating Pod
// counts until another workload has its place, and one that merely binds ports there while no other workload has
// the IP.
func (r *Reconciler) publishIP(ip netip.Addr, changed *workloadState) {
	services, workloads := r.servicesByIP[ip], r.workloadsAt(ip, changed)
	delete(r.replaced, ip)
	if len(services) == 0 && len(workloads) == 0 {
		r.facts.addresses.Delete(ip)
		return
	}

	address := &federation.Address{}
	for _, k := range services {
		address.Services = append(address.Services, federation.Service(k))
	}
	claimed := len(services) > 0 || slices.ContainsFunc(workloads, func(w *workloadState) bool {
		return !w.ips.merelyBinds(ip)
	})

	var its []federation.Resident
	for _, terminating := range []bool{false, true} {
		for _, state := range workloads {
			if state.ips.terminating != terminating {
				continue
			}
			before := len(address.Residents)
			its = its[:0]
			if !claimed || !state.ips.merelyBinds(ip) {
				its = state.ips.appendResidents(its, ip, state.workload)
			}

			for _, o := range its {
				same := func(other federation.Resident) bool { return other.Port == o.Port }
				if !terminating || !slices.ContainsFunc(address.Residents, same) {
					address.Residents = append(address.Residents, o)
				}
			}
			if len(address.Residents) == before {
				r.replaced[ip] = append(r.replaced[ip], state)
			}
		}
	}

	r.facts.addresses.Set(ip, address)
}

// appendResidents appends what a workload is on an IP: its owner, or the owner of some ports.
func (w *workloadIPs) appendResidents(
	to []federation.Resident, ip netip.Addr, workload *federation.Workload,
) []federation.Resident {
	if w.first == ip || slices.Contains(w.own, ip) {
		to = append(to, federation.Resident{Workload: workload, Running: w.running})
	}
	if w.hostPorts == nil {
		return to
	}

	if slices.Contains(w.ips, ip) {
		for _, port := range w.ports {
			to = append(to, federation.Resident{Workload: workload, Port: port, Running: w.running})
		}
	}

	for _, at := range w.bound {
		if at.Addr() == ip {
			to = append(to, federation.Resident{Workload: workload, Port: at.Port(), Running: w.running})
		}
	}
	return to
}

// compareNames orders workloads that are known.
func (w *workloadState) compareNames(o *workloadState) int {
	a, b := w.workload, o.workload
	return cmp.Or(cmp.Compare(a.Kind(), b.Kind()), strings.Compare(a.Namespace(), b.Namespace()),
		strings.Compare(a.Name, b.Name))
}

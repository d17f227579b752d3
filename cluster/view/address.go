package view

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/federation"
)

// Proxies of the local cluster ask for IPs as well as for names. The index is ipsOf, from a Service or
// workload to its IPs, and ownersByIP, the reverse. Several owners of one IP are not an error: an IP is
// given to a new Pod while the old one terminates, and the Pods of a node share its IP by host ports.

// workloadIPs are the IPs of a workload of the local cluster. A Pod that has ended has none.
type workloadIPs struct {
	own         []netip.Addr
	shared      []netip.Addr // on which only hostPorts lead to it, as on the IPs of a Pod's node
	hostPorts   []uint16
	running     bool
	terminating bool
}

func newWorkloadIPs(p *corev1.Pod) *workloadIPs {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	w := &workloadIPs{running: p.Status.Phase == corev1.PodRunning, terminating: p.DeletionTimestamp != nil}
	if !p.Spec.HostNetwork {
		for _, ip := range p.Status.PodIPs {
			w.own = appendIP(w.own, ip.IP)
		}
		w.own = appendIP(w.own, p.Status.PodIP)
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, port := range c.Ports {
			isTCP := port.Protocol == corev1.ProtocolTCP || port.Protocol == "" // proxies ask for no other
			if isTCP && len(w.hostPorts) < maxPorts {
				w.hostPorts = appendPort(w.hostPorts, port.HostPort)
			}
		}
	}
	if len(w.hostPorts) > 0 {
		for _, ip := range p.Status.HostIPs {
			w.shared = appendIP(w.shared, ip.IP)
		}
		w.shared = appendIP(w.shared, p.Status.HostIP)
	}
	return w
}

func clusterIPs(svc *corev1.Service) (ips []netip.Addr) {
	for _, ip := range svc.Spec.ClusterIPs {
		ips = appendIP(ips, ip)
	}
	return appendIP(ips, svc.Spec.ClusterIP)
}

// appendIP appends an IP, unless it is there already or does not parse.
func appendIP(to []netip.Addr, text string) []netip.Addr {
	ip, err := netip.ParseAddr(text)
	if err != nil || slices.Contains(to, ip.Unmap()) {
		return to
	}
	return append(to, ip.Unmap())
}

// appendPort appends a port, unless it is there already or out of range.
func appendPort(to []uint16, n int32) []uint16 {
	port, is := portNumber(n)
	if !is || slices.Contains(to, port) {
		return to
	}
	return append(to, port)
}

// setIPs sets the IPs of a Service or a workload, and publishes those whose owners changed. An IP that
// stays is published again for a workload, which may have changed itself, but not for a Service, of which
// only the name is published.
func (r *Reconciler) setIPs(owner objectRef, ips []netip.Addr) {
	if !r.options.Local {
		return
	}
	old := r.ipsOf[owner]
	for _, ip := range old {
		if !slices.Contains(ips, ip) {
			r.ownersByIP[ip] = slices.DeleteFunc(r.ownersByIP[ip], func(o objectRef) bool { return o == owner })
			r.publishIP(ip)
		}
	}
	if r.ipsOf[owner] = ips; len(ips) == 0 {
		delete(r.ipsOf, owner)
	}
	for _, ip := range ips {
		i, known := slices.BinarySearchFunc(r.ownersByIP[ip], owner, compareRefs)
		if !known {
			r.ownersByIP[ip] = slices.Insert(r.ownersByIP[ip], i, owner)
		}
		if !known || owner.kind != kindService {
			r.publishIP(ip)
		}
	}
}

func (r *Reconciler) publishWorkloadIPs(ref objectRef) {
	var ips []netip.Addr
	if p, found := r.workloadRecords(ref.kind).Get(ref.key); found && p.ips != nil {
		ips = slices.Concat(p.ips.own, p.ips.shared)
	}
	r.setIPs(ref, ips)
}

// publishIP publishes the owners of an IP. A terminating Pod counts until another workload has its place.
func (r *Reconciler) publishIP(ip netip.Addr) {
	if len(r.ownersByIP[ip]) == 0 {
		delete(r.ownersByIP, ip)
		r.writer.DeleteAddress(ip)
		return
	}
	a := &federation.Address{}
	var terminating []federation.Resident
	for _, ref := range r.ownersByIP[ip] {
		if ref.kind == kindService {
			a.Services = append(a.Services, federation.Service{Namespace: ref.Namespace, Name: ref.Name})
			continue
		}
		p, found := r.workloadRecords(ref.kind).Get(ref.key)
		w := r.workloads[ref.kind].get(ref.key)
		if !found || p.ips == nil || w == nil || w.workload == nil {
			continue // it changed since: its key is in the queue
		}
		if p.ips.terminating {
			terminating = p.ips.appendResidents(terminating, ip, w.workload)
		} else {
			a.Residents = p.ips.appendResidents(a.Residents, ip, w.workload)
		}
	}
	for _, old := range terminating {
		if !slices.ContainsFunc(a.Residents, func(o federation.Resident) bool { return o.Port == old.Port }) {
			a.Residents = append(a.Residents, old)
		}
	}
	r.writer.SetAddress(ip, a)
}

// appendResidents appends what a workload is on an IP: its owner, or the owner of some ports.
func (w *workloadIPs) appendResidents(
	to []federation.Resident, ip netip.Addr, workload *federation.Workload,
) []federation.Resident {
	if slices.Contains(w.own, ip) {
		to = append(to, federation.Resident{Workload: workload, Running: w.running})
	}
	if slices.Contains(w.shared, ip) {
		for _, port := range w.hostPorts {
			to = append(to, federation.Resident{Workload: workload, Port: port, Running: w.running})
		}
	}
	return to
}

func compareRefs(a, b objectRef) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), compareKeys(a.key, b.key))
}

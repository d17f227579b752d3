package view

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/federation"
)

// residence is where a workload of the local cluster can be asked for by IP. A Pod that has ended has none.
type residence struct {
	ips     []netip.Addr // its own
	shared  []netip.Addr // of which only some ports lead to it, as a Pod's node's
	ports   []uint16     // these
	running bool
	leaving bool // it is being deleted
}

func residenceOf(p *corev1.Pod) *residence {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	r := &residence{running: p.Status.Phase == corev1.PodRunning, leaving: p.DeletionTimestamp != nil}
	if !p.Spec.HostNetwork {
		for _, ip := range p.Status.PodIPs {
			r.ips = appendIP(r.ips, ip.IP)
		}
		r.ips = appendIP(r.ips, p.Status.PodIP)
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, port := range c.Ports {
			if (port.Protocol == corev1.ProtocolTCP || port.Protocol == "") && len(r.ports) < maxPorts { // no proxy asks for another
				r.ports = appendPort(r.ports, port.HostPort)
			}
		}
	}
	if len(r.ports) > 0 {
		for _, ip := range p.Status.HostIPs {
			r.shared = appendIP(r.shared, ip.IP)
		}
		r.shared = appendIP(r.shared, p.Status.HostIP)
	}
	return r
}

// clusterIPs returns the IPs at which a Service can be asked for.
func clusterIPs(svc *corev1.Service) (ips []netip.Addr) {
	for _, ip := range svc.Spec.ClusterIPs {
		ips = appendIP(ips, ip)
	}
	return appendIP(ips, svc.Spec.ClusterIP)
}

// appendIP appends an IP unless it is there already, or is none.
func appendIP(to []netip.Addr, text string) []netip.Addr {
	ip, err := netip.ParseAddr(text)
	if err != nil || slices.Contains(to, ip.Unmap()) {
		return to
	}
	return append(to, ip.Unmap())
}

// appendPort appends a port unless it is there already, or is none.
func appendPort(to []uint16, n int32) []uint16 {
	port, is := portNumber(n)
	if !is || slices.Contains(to, port) {
		return to
	}
	return append(to, port)
}

// place notes at which IPs a Service or a workload is, and says anew who is where that has changed: at an IP that it has kept, who a
// workload is may have changed as well, but not who a Service is.
func (r *Reconciler) place(it item, ips []netip.Addr) {
	if !r.options.Local {
		return
	}
	old := r.places[it]
	for _, ip := range old {
		if !slices.Contains(ips, ip) {
			r.occupants[ip] = slices.DeleteFunc(r.occupants[ip], func(o item) bool { return o == it })
			r.sayAddress(ip)
		}
	}
	if r.places[it] = ips; len(ips) == 0 {
		delete(r.places, it)
	}
	for _, ip := range ips {
		i, kept := slices.BinarySearchFunc(r.occupants[ip], it, compareItems)
		if !kept {
			r.occupants[ip] = slices.Insert(r.occupants[ip], i, it)
		}
		if !kept || it.what != aService {
			r.sayAddress(ip)
		}
	}
}

func (r *Reconciler) placeWorkload(it item) {
	var ips []netip.Addr
	if p, found := r.records(it.what).Get(it.key); found && p.residence != nil {
		ips = slices.Concat(p.residence.ips, p.residence.shared)
	}
	r.place(it, ips)
}

// sayAddress says who is at an IP. A Pod that is being deleted counts for as long as nobody else has its place.
func (r *Reconciler) sayAddress(ip netip.Addr) {
	if len(r.occupants[ip]) == 0 {
		delete(r.occupants, ip)
		r.claims.DeleteAddress(ip)
		return
	}
	a := &federation.Address{}
	var leaving []federation.Resident
	for _, it := range r.occupants[ip] {
		if it.what == aService {
			a.Services = append(a.Services, federation.Service{Namespace: it.Namespace, Name: it.Name})
			continue
		}
		p, found := r.records(it.what).Get(it.key)
		w := r.workloads[it.what].get(it.key)
		if !found || p.residence == nil || w == nil || w.workload == nil {
			continue // it is about to be placed elsewhere
		}
		to := &a.Residents
		if p.residence.leaving {
			to = &leaving
		}
		if slices.Contains(p.residence.ips, ip) {
			*to = append(*to, federation.Resident{Workload: w.workload, Running: p.residence.running})
		}
		if slices.Contains(p.residence.shared, ip) {
			for _, port := range p.residence.ports {
				*to = append(*to, federation.Resident{Workload: w.workload, Port: port, Running: p.residence.running})
			}
		}
	}
	for _, old := range leaving {
		if !slices.ContainsFunc(a.Residents, func(o federation.Resident) bool { return o.Port == old.Port }) {
			a.Residents = append(a.Residents, old)
		}
	}
	r.claims.SetAddress(ip, a)
}

func compareItems(a, b item) int {
	if a.what != b.what {
		return int(a.what) - int(b.what)
	}
	return compareKeys(a.key, b.key)
}

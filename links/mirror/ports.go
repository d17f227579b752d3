package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// copyPorts returns the ports of a Service without what only its own cluster needs.
func copyPorts(svc *corev1.Service) []corev1.ServicePort {
	var ports []corev1.ServicePort
	for _, p := range svc.Spec.Ports {
		ports = append(ports, corev1.ServicePort{
			Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol,
			Port: p.Port, TargetPort: p.TargetPort,
		})
	}
	return ports
}

// A portUnion is the ports of several Services, each once: a port is a number and a protocol, and two Services that
// name it differently mean the same one. An earlier Service's port counts.
type portUnion struct{ ports []corev1.ServicePort }

// merge adds the ports of another Service, up to the number that a Service may have. It returns how they
// conflict with the ports before them; empty if they do not.
func (u *portUnion) merge(ports []corev1.ServicePort) string {
	var conflicts []string
	before := map[portIdentity]corev1.ServicePort{}
	for _, p := range u.ports {
		before[identityOf(p)] = p
	}

	for _, p := range ports {
		switch o, known := before[identityOf(p)]; {
		case !known && len(u.ports) >= maxPorts:
			conflicts = append(conflicts, fmt.Sprintf("port %d is one too many: older members have %d",
				p.Port, maxPorts))
		case !known:
			u.ports = append(u.ports, p)
			before[identityOf(p)] = p
		case !samePort(o, p):
			conflicts = append(conflicts, fmt.Sprintf("port %d is %s here and %s in an older member, which counts",
				p.Port, describePort(p), describePort(o)))
		}
	}

	if n := len(conflicts); n > maxOmitted {
		conflicts = append(conflicts[:maxOmitted], fmt.Sprintf("and %d more", n-maxOmitted))
	}
	return strings.Join(conflicts, "; ")
}

// sorted returns the ports by number, each with a valid name of its own.
func (u *portUnion) sorted() []corev1.ServicePort {
	ports := uniqueNames(u.ports)
	slices.SortStableFunc(ports, func(a, b corev1.ServicePort) int { return cmp.Compare(a.Port, b.Port) })
	return ports
}

// uniqueNames returns ports with a valid name each, which no other has: a Service must not use a name
// twice. The names do not matter to clients, which ask for numbers.
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

// unusedName returns a port's own name, or a similar one that is valid and not taken.
func unusedName(p corev1.ServicePort, taken map[string]bool) string {
	name := p.Name
	if len(validation.IsDNS1123Label(name)) > 0 {
		name = "port"
	} else if !taken[name] {
		return name
	}

	for n := 1; ; n++ {
		suffix := strings.ToLower(fmt.Sprintf("-%d-%s", p.Port, protocolOf(p)))
		if n > 1 {
			suffix += fmt.Sprintf("-%d", n)
		}
		length := max(0, validation.DNS1123LabelMaxLength-len(suffix)) // 0 for an invalid, long protocol
		if free := name[:min(len(name), length)] + suffix; !taken[free] {
			return free
		}
	}
}

// portIdentity is what makes a port of a Service: the names of clusters for it differ.
type portIdentity struct {
	number   int32
	protocol corev1.Protocol
}

func identityOf(p corev1.ServicePort) portIdentity { return portIdentity{p.Port, protocolOf(p)} }

// samePort reports whether two of one identity do not differ.
func samePort(a, b corev1.ServicePort) bool {
	return a.Name == b.Name && appProtocol(a) == appProtocol(b)
}

func appProtocol(p corev1.ServicePort) string {
	if p.AppProtocol == nil {
		return ""
	}
	return *p.AppProtocol
}

func describePort(p corev1.ServicePort) string {
	return strings.TrimSpace(fmt.Sprintf("%q %s %s", p.Name, protocolOf(p), appProtocol(p)))
}

package mirror

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// What bounds what is kept of one Service of a linked cluster, so that what is made of it is no larger than an API server takes.
const (
	maxPorts           = 1000
	maxLabelBytes      = 64 << 10
	maxAnnotationBytes = 192 << 10 // of the 256 KiB that annotations may have, so that there is room for ours
	maxOmitted         = 5         // that a verdict names
)

// An offer is what a linked cluster says of one of its Services, without what an API server would refuse: nothing that one cluster says keeps
// what is made of it, alone or with others, from being written.
type remoteService struct {
	*corev1.Service
	omitted string // what was left out, for people; empty for nothing
}

// keepOffer keeps of a Service what a mirror could be made of.
func newRemoteService(object any) (*remoteService, bool) {
	svc, kept := trimService(object)
	if !kept || len(validation.IsDNS1123Label(svc.Name)) > 0 || len(validation.IsDNS1123Label(svc.Namespace)) > 0 {
		return nil, false // no API server has such a Service
	}
	return sanitize(svc), true
}

// offerOf changes svc.
func sanitize(svc *corev1.Service) *remoteService {
	var dropped []string
	svc.Labels, dropped = validEntries(svc.Labels, "label", maxLabelBytes, validLabel, dropped)
	svc.Annotations, dropped = validEntries(svc.Annotations, "annotation", maxAnnotationBytes, validAnnotation, dropped)
	svc.Spec.Ports, dropped = validPorts(svc.Spec.Ports, dropped)
	o := &remoteService{Service: svc}
	if n := len(dropped); n > 0 {
		o.omitted = "left out, because it is invalid: " + strings.Join(dropped[:min(n, maxOmitted)], ", ")
		if n > maxOmitted {
			o.omitted += fmt.Sprintf(", and %d more", n-maxOmitted)
		}
	}
	return o
}

// passing returns those of a map's entries that are valid, as long as they are no larger than most together.
func validEntries(all map[string]string, kind string, most int, valid func(k, v string) bool, dropped []string) (map[string]string, []string) {
	size := 0
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if size += len(k) + len(all[k]); valid(k, all[k]) && size <= most {
			continue
		}
		dropped = append(dropped, kind+" "+quoted(k))
		delete(all, k)
	}
	return all, dropped
}

func quoted(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return fmt.Sprintf("%q", s)
}

func validLabel(k, v string) bool {
	return len(validation.IsQualifiedName(k)) == 0 && len(validation.IsValidLabelValue(v)) == 0
}

func validAnnotation(k, v string) bool {
	return len(validation.IsQualifiedName(strings.ToLower(k))) == 0 && utf8.ValidString(v)
}

// validPorts returns ports that a Service may have. One whose number or protocol is none is left out; a name that is none is replaced, and
// what else is not valid of a port is left out of it.
func validPorts(all []corev1.ServicePort, dropped []string) ([]corev1.ServicePort, []string) {
	type place struct {
		number   int32
		protocol corev1.Protocol
	}
	seen := map[place]bool{}
	var ports []corev1.ServicePort
	for _, p := range all {
		protocol := cmp.Or(p.Protocol, corev1.ProtocolTCP)
		at := place{p.Port, protocol}
		switch protocol {
		case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			dropped = append(dropped, fmt.Sprintf("port %d of protocol %s", p.Port, quoted(string(p.Protocol))))
			continue
		}
		if len(validation.IsValidPortNum(int(p.Port))) > 0 || seen[at] || len(ports) == maxPorts {
			dropped = append(dropped, fmt.Sprintf("port %d", p.Port))
			continue
		}
		seen[at] = true
		if p.AppProtocol != nil && len(validation.IsQualifiedName(*p.AppProtocol)) > 0 {
			dropped = append(dropped, fmt.Sprintf("appProtocol %s of port %d", quoted(*p.AppProtocol), p.Port))
			p.AppProtocol = nil
		}
		if !validTarget(p.TargetPort) {
			dropped = append(dropped, fmt.Sprintf("targetPort of port %d", p.Port))
			p.TargetPort = intstr.IntOrString{}
		}
		ports = append(ports, p)
	}
	for i, p := range uniqueNames(ports) {
		if p.Name != ports[i].Name {
			dropped = append(dropped, fmt.Sprintf("name %s of port %d, which is %s here", quoted(ports[i].Name), p.Port, p.Name))
			ports[i].Name = p.Name
		}
	}
	return ports, dropped
}

func validTarget(target intstr.IntOrString) bool {
	if target.Type == intstr.String {
		return len(validation.IsValidPortName(target.StrVal)) == 0
	}
	return target == intstr.IntOrString{} || len(validation.IsValidPortNum(int(target.IntVal))) == 0
}

package mirror

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Bounds of what is kept of one Service of a linked cluster, so that an API server accepts what is made of
// it.
const (
	maxPorts           = 1000
	maxLabelBytes      = 64 << 10
	maxAnnotationBytes = 192 << 10 // of the 256 KiB that annotations may have; the rest is for ours
	maxOmitted         = 5         // that a message names
)

// A remoteService is a Service of a linked cluster without the parts that an API server would reject. So no
// linked cluster can keep what is made of its Service, alone or with others, from being written.
type remoteService struct {
	*corev1.Service
	omitted string // the parts that were left out, for people; empty for none
}

// newRemoteService makes a record of a Service of a linked cluster.
func newRemoteService(object any) (*remoteService, bool) {
	whole, ok := object.(*corev1.Service)
	if !ok || whole.DeletionTimestamp != nil ||
		len(validation.IsDNS1123Label(whole.Name)) > 0 || len(validation.IsDNS1123Label(whole.Namespace)) > 0 {
		return nil, false // no API server has a Service of such a name
	}
	return sanitize(trimService(whole)), true
}

// sanitize removes invalid parts from svc, whose fields it sets; what they refer to stays as it is.
func sanitize(svc *corev1.Service) *remoteService {
	var omitted []string
	svc.Labels, omitted = validEntries(svc.Labels, "label", maxLabelBytes, validLabel, omitted)
	svc.Annotations, omitted = validEntries(
		svc.Annotations, "annotation", maxAnnotationBytes, validAnnotation, omitted)
	svc.Spec.Ports, omitted = validPorts(svc.Spec.Ports, omitted)
	r := &remoteService{Service: svc}

	if n := len(omitted); n > 0 {
		r.omitted = "left out, because it is invalid: " + strings.Join(omitted[:min(n, maxOmitted)], ", ")
		if n > maxOmitted {
			r.omitted += fmt.Sprintf(", and %d more", n-maxOmitted)
		}
	}
	return r
}

// validEntries returns a map without invalid entries, and, in the order of keys, without those beyond limit
// bytes. It appends their names to omitted.
func validEntries(
	all map[string]string, kind string, limit int, valid func(k, v string) bool, omitted []string,
) (map[string]string, []string) {
	size, some := 0, all
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if size += len(k) + len(all[k]); valid(k, all[k]) && size <= limit {
			continue
		}
		omitted = append(omitted, kind+" "+quoted(k))
		if len(some) == len(all) {
			some = maps.Clone(all)
		}
		delete(some, k)
	}
	return some, omitted
}

func quoted(s string) string {
	const limit = 80
	if len(s) > limit {
		return fmt.Sprintf("%q…", s[:limit])
	}
	return fmt.Sprintf("%q", s)
}

func validLabel(k, v string) bool {
	return len(validation.IsQualifiedName(k)) == 0 && len(validation.IsValidLabelValue(v)) == 0
}

func validAnnotation(k, v string) bool {
	return len(validation.IsQualifiedName(strings.ToLower(k))) == 0 && utf8.ValidString(v)
}

// validPorts returns the ports that a Service may have. A port with an invalid number or protocol is left
// out, and so is the second of two with the same. An invalid name is replaced; an invalid appProtocol or
// target is removed.
func validPorts(all []corev1.ServicePort, omitted []string) ([]corev1.ServicePort, []string) {
	seen := map[portIdentity]bool{}
	var ports []corev1.ServicePort

	for _, port := range all {
		id := identityOf(port)
		switch id.protocol {
		case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			omitted = append(omitted, fmt.Sprintf("port %d of protocol %s", port.Port, quoted(string(port.Protocol))))
			continue
		}

		if len(validation.IsValidPortNum(int(port.Port))) > 0 || seen[id] || len(ports) == maxPorts {
			omitted = append(omitted, fmt.Sprintf("port %d", port.Port))
			continue
		}
		seen[id] = true
		if port.AppProtocol != nil && len(validation.IsQualifiedName(*port.AppProtocol)) > 0 {
			omitted = append(omitted, fmt.Sprintf("appProtocol %s of port %d", quoted(*port.AppProtocol), port.Port))
			port.AppProtocol = nil
		}

		if !validTarget(port.TargetPort) {
			omitted = append(omitted, fmt.Sprintf("targetPort of port %d", port.Port))
			port.TargetPort = intstr.IntOrString{}
		}
		ports = append(ports, port)
	}

	for i, p := range uniqueNames(ports) {
		if p.Name != ports[i].Name {
			omitted = append(omitted, fmt.Sprintf("name %s of port %d, which is %s here",
				quoted(ports[i].Name), p.Port, p.Name))
			ports[i].Name = p.Name
		}
	}
	return ports, omitted
}

func validTarget(target intstr.IntOrString) bool {
	if target.Type == intstr.String {
		return len(validation.IsValidPortName(target.StrVal)) == 0
	}
	return target == intstr.IntOrString{} || len(validation.IsValidPortNum(int(target.IntVal))) == 0
}

package mirror

import (
	"cmp"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/fingerpost/fingerpost/cluster/apply/object"
)

// owner is what of mirrors is ours: labels, annotations and ports, or subsets, that follow from the Services of linked
// clusters. Fields that were created, and those that Linkerd's service mirror, or an earlier version of ours, has
// updated are taken over. The version of the remote Service alone is no reason to write.
var owner = &object.Owner{
	Manager: fieldManager, Annotation: appliedAnnotation, Unsigned: []string{versionAnnotation}, Mark: mirroredLabel,
}

type (
	serviceWriter   = object.Writer[*corev1.Service, *applycorev1.ServiceApplyConfiguration]
	endpointsWriter = object.Writer[*endpoints, *endpointsApplied]
)

func (t *term) newWriters() {
	t.writesServices = &serviceWriter{
		Owner: owner, Resource: corev1.Resource("services"), Permissions: t.permissions, Wrote: t.metrics.countWrite,
		In: func(namespace string) object.Client[*corev1.Service, *applycorev1.ServiceApplyConfiguration] {
			return t.core.CoreV1().Services(namespace)
		},
	}
	t.writesEndpoints = &endpointsWriter{
		Owner: owner, Resource: corev1.Resource("endpoints"), Permissions: t.permissions, Wrote: t.metrics.countWrite,
		In: func(namespace string) object.Client[*endpoints, *endpointsApplied] {
			return t.core.CoreV1().Endpoints(namespace)
		},
	}
}

func signService(svc *corev1.Service) string {
	return owner.Sign(svc, svc.Spec.Ports, svc.Spec.ClusterIP)
}

func signEndpoints(e *endpoints) string { return owner.Sign(e, e.Subsets) }

func serviceFields(svc *corev1.Service) [][]string {
	all := object.MarkFields(svc)
	for _, p := range svc.Spec.Ports {
		port := fmt.Sprintf(`k:{"port":%d,"protocol":%q}`, p.Port, protocolOf(p))
		add := func(field string, isSet bool) {
			if isSet {
				all = append(all, []string{"f:spec", "f:ports", port, field})
			}
		}
		add("f:port", true)
		add("f:name", p.Name != "")
		add("f:appProtocol", p.AppProtocol != nil)
		add("f:targetPort", p.TargetPort != intstr.IntOrString{})
	}

	return all
}

func endpointsFields(e *endpoints) [][]string {
	all := object.MarkFields(e)
	if len(e.Subsets) > 0 {
		all = append(all, []string{"f:subsets"})
	}
	return all
}

type endpointsApplied = applycorev1.EndpointsApplyConfiguration //nolint:staticcheck // Linkerd's tools read them

func protocolOf(p corev1.ServicePort) corev1.Protocol { return cmp.Or(p.Protocol, corev1.ProtocolTCP) }

// serviceConfiguration returns what is applied of a Service, to the version with this UID and resourceVersion.
func serviceConfiguration(svc *corev1.Service, uid types.UID, version string) *applycorev1.ServiceApplyConfiguration {
	spec := applycorev1.ServiceSpec()
	if isHeadless(svc) {
		spec.WithClusterIP(corev1.ClusterIPNone)
	}

	for _, p := range svc.Spec.Ports {
		port := applycorev1.ServicePort().WithPort(p.Port).WithProtocol(protocolOf(p))
		if p.Name != "" {
			port.WithName(p.Name)
		}
		if p.TargetPort != (intstr.IntOrString{}) {
			port.WithTargetPort(p.TargetPort)
		}
		port.AppProtocol = p.AppProtocol
		spec.WithPorts(port)
	}

	return applycorev1.Service(svc.Name, svc.Namespace).WithUID(uid).WithResourceVersion(version).
		WithLabels(svc.Labels).WithAnnotations(svc.Annotations).WithSpec(spec)
}

// endpointsConfiguration returns what is applied of Endpoints, to the version with this UID and resourceVersion.
func endpointsConfiguration(e *endpoints, uid types.UID, version string) *endpointsApplied {
	applied := applycorev1.Endpoints(e.Name, e.Namespace).WithUID(uid).WithResourceVersion(version).
		WithLabels(e.Labels).WithAnnotations(e.Annotations)
	text, err := json.Marshal(e.Subsets)
	if err == nil {
		err = json.Unmarshal(text, &applied.Subsets)
	}
	if err != nil {
		panic(err) // both have the same fields
	}

	for i := range applied.Subsets {
		for j := range applied.Subsets[i].Ports {
			p := &applied.Subsets[i].Ports[j]
			p.Protocol = cmp.Or(p.Protocol, new(corev1.ProtocolTCP))
		}
	}
	return applied
}

package endpointslice

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fingerpost/fingerpost/cluster/records"
)

// OptIn is the annotation by which a Service asks for slices with the addresses that other clusters hold, and a Link for slices in the
// cluster that it links. Its value is "enabled".
const (
	OptIn   = "federation.fingerpost.io/endpoint-slices"
	Enabled = "enabled"
)

type key = records.Key

// service is what is kept of a Service.
type service struct {
	key
	uid      types.UID
	external bool // an ExternalName
	headless bool
	selector labels.Selector // nil for none
	ports    []corev1.ServicePort
	families []discoveryv1.AddressType
	labels   map[string]string
	optIn    bool
}

func keepService(object any) (*service, bool) {
	svc, ok := object.(*corev1.Service)
	if !ok {
		return nil, false
	}
	kept := &service{
		key: key{Namespace: records.Intern(svc.Namespace), Name: svc.Name}, uid: svc.UID,
		external: svc.Spec.Type == corev1.ServiceTypeExternalName, headless: svc.Spec.ClusterIP == corev1.ClusterIPNone,
		ports: svc.Spec.Ports, labels: svc.Labels, optIn: svc.Annotations[OptIn] == Enabled,
	}
	if svc.Spec.Selector != nil {
		kept.selector = labels.SelectorFromSet(svc.Spec.Selector)
	}
	for _, f := range svc.Spec.IPFamilies {
		kept.families = append(kept.families, discoveryv1.AddressType(f))
	}
	if len(kept.families) == 0 { // headless and without families
		kept.families = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	}
	return kept, true
}

// equal reports whether what follows from both is the same.
func (s *service) equal(o *service) bool {
	selector := func(s *service) string {
		if s.selector == nil {
			return ""
		}
		return "=" + s.selector.String()
	}
	return s == o || s != nil && o != nil && s.uid == o.uid && s.external == o.external && s.headless == o.headless &&
		s.optIn == o.optIn && selector(s) == selector(o) && slices.Equal(s.families, o.families) && maps.Equal(s.labels, o.labels) &&
		slices.EqualFunc(s.ports, o.ports, func(a, b corev1.ServicePort) bool {
			return a.Name == b.Name && a.Port == b.Port && a.TargetPort == b.TargetPort && a.Protocol == b.Protocol && optional(a.AppProtocol) == optional(b.AppProtocol)
		})
}

// selects reports whether the Service has slices for workloads with these labels.
func (s *service) selects(l map[string]string) bool {
	return !s.external && s.selector != nil && s.selector.Matches(labels.Set(l))
}

// meta returns what every slice of the Service bears. Labels of the Service's own are copied if inherit is set.
func (s *service) meta(managedBy string, inherit bool) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Namespace: s.Namespace,
		Labels:    map[string]string{discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: managedBy},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Service", Name: s.Name, UID: s.uid, Controller: new(true), // it blocks no deletion: that may take a right of its own
		}},
	}
	if s.headless {
		m.Labels[corev1.IsHeadlessService] = ""
	}
	if !inherit {
		return m
	}
	for k, v := range s.labels {
		if !reserved(k) {
			m.Labels[k] = v
		}
	}
	return m
}

// reserved reports whether a label says what a slice is, so that it cannot be the Service's.
func reserved(label string) bool {
	switch label {
	case discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, corev1.IsHeadlessService, SourceLabel, writerLabel:
		return true
	}
	return false
}

// owns reports whether a slice was made for this Service, and not for one of the same name before it.
func (s *service) owns(es *discoveryv1.EndpointSlice) bool {
	owner := metav1.GetControllerOf(es)
	return owner != nil && owner.UID == s.uid
}

func optional[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func protocolOf(p corev1.Protocol) corev1.Protocol { return cmp.Or(p, corev1.ProtocolTCP) }

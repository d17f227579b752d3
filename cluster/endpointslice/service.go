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

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation/policy"
)

type key = api.Key

// serviceRecord is what is kept of a Service. Its size is bounded, and annotations have no part in it, but for what
// they ask us for.
type serviceRecord struct {
	key
	uid      types.UID
	external bool // an ExternalName
	headless bool
	selector labels.Selector // nil for none
	ports    []corev1.ServicePort
	families []discoveryv1.AddressType
	labels   map[string]string
	optIn    bool
	unclear  bool   // whether it opts in cannot be read: it does if it has slices
	misread  string // annotations that are not understood, for people

	policyClusters []string // that its policy names, sorted
}

func newServiceRecord(object any) (*serviceRecord, bool) {
	svc, ok := object.(*corev1.Service)
	if !ok {
		return nil, false
	}

	record := &serviceRecord{
		key:      key{Namespace: api.Intern(svc.Namespace), Name: svc.Name},
		uid:      svc.UID,
		external: svc.Spec.Type == corev1.ServiceTypeExternalName,
		headless: svc.Spec.ClusterIP == corev1.ClusterIPNone,
		ports:    keptPorts(svc.Spec.Ports),
		labels:   firstLabels(svc.Labels, maxLabels),
		misread:  view.MisreadService(svc),
	}

	if view.IsFederated(svc) {
		p, _ := policy.ServiceOf(svc.Annotations)
		record.policyClusters = p.Names()
	}

	record.optIn, record.unclear = view.OptsIn(svc.Annotations)
	switch n := len(svc.Spec.Selector); {
	case n > maxRequirements: // nothing that it may be compared with has so many labels
		record.selector = labels.Nothing()
	case svc.Spec.Selector != nil:
		record.selector = labels.SelectorFromSet(svc.Spec.Selector)
	}

	for _, f := range svc.Spec.IPFamilies {
		record.families = append(record.families, discoveryv1.AddressType(f))
	}
	if len(record.families) == 0 { // headless and without families
		record.families = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	}
	return record, true
}

// keptPorts returns the first ports, without what no slice has.
func keptPorts(all []corev1.ServicePort) []corev1.ServicePort {
	ports := make([]corev1.ServicePort, 0, min(len(all), maxPorts))
	for _, p := range all[:cap(ports)] {
		ports = append(ports, corev1.ServicePort{
			Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port, TargetPort: p.TargetPort,
		})
	}
	return ports
}

// equal reports whether the same slices follow from both.
func (s *serviceRecord) equal(o *serviceRecord) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.uid == o.uid && s.external == o.external && s.headless == o.headless && s.optIn == o.optIn &&
		s.unclear == o.unclear && s.misread == o.misread && slices.Equal(s.policyClusters, o.policyClusters) &&
		s.selectorText() == o.selectorText() && slices.Equal(s.families, o.families) &&
		maps.Equal(s.labels, o.labels) && slices.EqualFunc(s.ports, o.ports, samePort)
}

// selectorText distinguishes no selector from one that selects everything.
func (s *serviceRecord) selectorText() string {
	if s.selector == nil {
		return ""
	}
	return "=" + s.selector.String()
}

func samePort(a, b corev1.ServicePort) bool {
	return a.Name == b.Name && a.Port == b.Port && a.TargetPort == b.TargetPort && a.Protocol == b.Protocol &&
		optional(a.AppProtocol) == optional(b.AppProtocol)
}

// selectsWorkload reports whether the Service has slices for workloads with these labels.
func (s *serviceRecord) selectsWorkload(l map[string]string) bool {
	return !s.external && s.selector != nil && s.selector.Matches(labels.Set(l))
}

// meta returns the metadata of each slice of the Service. The Service's own labels are copied if inherit is
// set, but for those that are set on slices by their writer.
func (s *serviceRecord) meta(managedBy string, inherit bool) metav1.ObjectMeta {
	all := map[string]string{}
	if inherit {
		maps.Copy(all, s.labels)
		for _, name := range []string{corev1.IsHeadlessService, SourceLabel, installationLabel} {
			delete(all, name)
		}
	}

	all[discoveryv1.LabelServiceName], all[discoveryv1.LabelManagedBy] = s.Name, managedBy
	if s.headless {
		all[corev1.IsHeadlessService] = ""
	}

	return metav1.ObjectMeta{
		Namespace: s.Namespace,
		Labels:    all,
		OwnerReferences: []metav1.OwnerReference{{
			// Without BlockOwnerDeletion, which may take a permission of its own.
			APIVersion: "v1", Kind: "Service", Name: s.Name, UID: s.uid, Controller: new(true),
		}},
	}
}

// owns reports whether a slice was created for this Service, and not for a former one of the same name.
func (s *serviceRecord) owns(es *discoveryv1.EndpointSlice) bool {
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

package view

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/federation"
)

// Marks on the slices of mirrored Services, and on those that we write.
const (
	mirrorClusterLabel = "mirror.linkerd.io/cluster-name"
	mirrorNameKey      = "mirror.linkerd.io/remote-svc-fq-name"
	mirrorIdentityKey  = "mirror.linkerd.io/remote-gateway-identity"

	// ManagedBy is the managed-by label of the slices that hold what other clusters claim. No installation reads them back.
	ManagedBy = "federation.fingerpost.io"
)

// slice is what is kept of an EndpointSlice, or of one subset of Endpoints.
type slice struct {
	name      string
	service   string
	ports     []federation.Port
	endpoints []endpoint
}

// endpoint is an address whose workload is not looked up yet.
type endpoint struct {
	federation.Endpoint
	who item // who answers there; zero for a bare address
}

func keepSlice(object any) ([]*slice, bool) {
	es, ok := object.(*discoveryv1.EndpointSlice)
	if !ok || es.Labels[discoveryv1.LabelManagedBy] == ManagedBy {
		return nil, false
	}
	s := &slice{name: es.Name, service: intern(serviceOf(es))}
	if s.service == "" {
		return nil, false
	}
	for _, p := range es.Ports {
		if p.Port == nil {
			continue // every port: no client can be told which
		}
		number, is := portNumber(*p.Port)
		if !is {
			continue
		}
		port := federation.Port{Number: number, Protocol: string(corev1.ProtocolTCP)}
		if p.Name != nil {
			port.Name = intern(*p.Name)
		}
		if p.Protocol != nil {
			port.Protocol = intern(string(*p.Protocol))
		}
		if p.AppProtocol != nil {
			port.App = intern(*p.AppProtocol)
		}
		s.ports = append(s.ports, port)
	}
	mirror := mirrorOf(es)
	s.endpoints = make([]endpoint, 0, len(es.Endpoints)) // as a rule they have one address each
	for i := range es.Endpoints {
		s.endpoints = appendEndpoints(s.endpoints, es.Namespace, &es.Endpoints[i], mirror)
	}
	return []*slice{s}, true
}

// serviceOf returns the name of the Service that a slice belongs to: the label's, else an owner's; empty for none.
func serviceOf(es *discoveryv1.EndpointSlice) string {
	if name, found := es.Labels[discoveryv1.LabelServiceName]; found {
		return name
	}
	for _, o := range es.OwnerReferences {
		if o.Kind == "Service" {
			return o.Name
		}
	}
	return ""
}

// mirrorOf reads the marks of an EndpointSlice, or of Endpoints.
func mirrorOf(o metav1.Object) *federation.Mirror {
	m := federation.Mirror{
		Cluster:  o.GetLabels()[mirrorClusterLabel],
		Identity: o.GetAnnotations()[mirrorIdentityKey],
		Name:     o.GetAnnotations()[mirrorNameKey],
	}
	if m == (federation.Mirror{}) {
		return nil
	}
	return &m
}

// appendEndpoints appends one endpoint for each address; none if e names a workload of a kind that is not served.
func appendEndpoints(to []endpoint, namespace string, e *discoveryv1.Endpoint, mirror *federation.Mirror) []endpoint {
	kept := endpoint{Endpoint: federation.Endpoint{
		Ready:    e.Conditions.Ready == nil || *e.Conditions.Ready,
		Draining: isTrue(e.Conditions.Terminating) && (e.Conditions.Serving == nil || *e.Conditions.Serving),
		Mirror:   mirror,
	}}
	if e.Hostname != nil {
		kept.Hostname = *e.Hostname
	}
	if e.Hints != nil && len(e.Hints.ForZones) > 0 {
		for _, z := range e.Hints.ForZones {
			kept.Hints = append(kept.Hints, intern(z.Name))
		}
		slices.Sort(kept.Hints)
	}
	if ref := e.TargetRef; ref != nil {
		kinds := map[string]what{"Pod": aPod, "ExternalWorkload": anExternal}
		kind, served := kinds[ref.Kind]
		if !served {
			return to
		}
		kept.who = item{kind, key{Namespace: intern(cmp.Or(ref.Namespace, namespace)), Name: ref.Name}}
		if e.Zone != nil { // of a bare address nothing is known but the address
			kept.Zone = intern(*e.Zone)
		}
	}
	for _, a := range e.Addresses {
		addr, err := netip.ParseAddr(a)
		if err != nil || addr.Zone() != "" {
			continue // a DNS name, or junk
		}
		kept.Addr = addr.Unmap()
		to = append(to, kept)
	}
	return to
}

func isTrue(b *bool) bool { return b != nil && *b }

// translateSlice looks up who answers at the addresses. An endpoint whose workload is not known is left out until it is.
func translateSlice(s *slice, lookup func(item) (*federation.Workload, string)) *federation.Slice {
	out := &federation.Slice{Name: s.name, Ports: s.ports, Endpoints: make([]*federation.Endpoint, 0, len(s.endpoints))}
	for i := range s.endpoints {
		e := &s.endpoints[i]
		if e.who == (item{}) {
			out.Endpoints = append(out.Endpoints, &e.Endpoint)
			continue
		}
		workload, node := lookup(e.who)
		if workload == nil {
			continue
		}
		resolved := e.Endpoint
		resolved.Workload, resolved.Node = workload, node
		out.Endpoints = append(out.Endpoints, &resolved)
	}
	return out
}

// Claim returns what cluster home says about a Service that has these slices, with nobody looked up who answers at the addresses.
func Claim(home federation.Cluster, svc *corev1.Service, all []discoveryv1.EndpointSlice) *federation.View {
	v, _ := translateService(home, svc)
	for i := range all {
		kept, _ := keepSlice(&all[i])
		for _, s := range kept {
			out := &federation.Slice{Name: s.name, Ports: s.ports}
			for j := range s.endpoints {
				out.Endpoints = append(out.Endpoints, &s.endpoints[j].Endpoint)
			}
			v.Slices = append(v.Slices, out)
		}
	}
	return &v
}

package view

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

// ManagedBy is the managed-by label of the slices that hold what other clusters claim. No installation reads them back.
const ManagedBy = "federation.fingerpost.io"

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

func keepSlice(object any, r *remarks) ([]*slice, bool) {
	es, ok := object.(*discoveryv1.EndpointSlice)
	if !ok || es.Labels[discoveryv1.LabelManagedBy] == ManagedBy {
		return nil, false
	}
	s := &slice{name: es.Name, service: r.label("all of it: the Service", serviceOf(es))}
	if s.service == "" {
		return nil, false
	}
	for _, p := range first(r, "ports", es.Ports, maxSlicePorts) {
		if p.Port != nil { // nil is every port: no client can be told which
			s.ports = appendSlicePort(s.ports, *p.Port, deref(p.Name), deref(p.Protocol), deref(p.AppProtocol), r)
		}
	}
	mirror := mirrorOf(es, r)
	endpoints := first(r, "endpoints", es.Endpoints, maxEndpoints)
	s.endpoints = make([]endpoint, 0, len(endpoints)) // as a rule they have one address each
	for i := range endpoints {
		s.endpoints = appendEndpoints(s.endpoints, es.Namespace, &endpoints[i], mirror, r)
	}
	return []*slice{s}, true
}

// appendSlicePort appends a port of endpoints, unless it cannot be used.
func appendSlicePort(to []federation.Port, number int32, name string, protocol corev1.Protocol, app string, r *remarks) []federation.Port {
	n, is := portNumber(number)
	if !is || !r.valid("a port: its name", name, maxLabel) {
		return to
	}
	port := federation.Port{Number: n, Name: intern(name), Protocol: r.protocol(protocol), App: r.app(app)}
	if port.Protocol == "" {
		return to
	}
	return append(to, port)
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
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
func mirrorOf(o metav1.Object, r *remarks) *federation.Mirror {
	m := federation.Mirror{
		Cluster:  r.label("label "+linkerd.MirrorClusterNameLabel, o.GetLabels()[linkerd.MirrorClusterNameLabel]),
		Identity: r.text("annotation "+linkerd.RemoteGatewayIdentityAnnotation, o.GetAnnotations()[linkerd.RemoteGatewayIdentityAnnotation], maxName),
		Name:     r.text("annotation "+linkerd.RemoteNameAnnotation, o.GetAnnotations()[linkerd.RemoteNameAnnotation], maxName),
	}
	if m == (federation.Mirror{}) {
		return nil
	}
	return &m
}

// appendEndpoints appends one endpoint for each address; none if e names a workload of a kind that is not served.
func appendEndpoints(to []endpoint, namespace string, e *discoveryv1.Endpoint, mirror *federation.Mirror, r *remarks) []endpoint {
	kept := endpoint{Endpoint: federation.Endpoint{
		Ready:    e.Conditions.Ready == nil || *e.Conditions.Ready,
		Draining: isTrue(e.Conditions.Terminating) && (e.Conditions.Serving == nil || *e.Conditions.Serving),
		Mirror:   mirror,
	}}
	kept.Hostname = r.hostname(deref(e.Hostname))
	if e.Hints != nil && len(e.Hints.ForZones) > 0 {
		for _, z := range first(r, "hints", e.Hints.ForZones, maxHints) {
			if r.valid("a hint for zone", z.Name, maxLabel) {
				kept.Hints = append(kept.Hints, intern(z.Name))
			}
		}
		slices.Sort(kept.Hints)
	}
	if ref := e.TargetRef; ref != nil {
		kinds := map[string]what{"Pod": aPod, linkerd.ExternalWorkloadKind: anExternal}
		kind, served := kinds[ref.Kind]
		if !served {
			return to
		}
		if !r.valid("an endpoint: the namespace of its workload", ref.Namespace, maxLabel) || !r.valid("an endpoint: its workload", ref.Name, maxName) {
			return to
		}
		kept.who = item{kind, key{Namespace: intern(cmp.Or(ref.Namespace, namespace)), Name: ref.Name}}
		kept.Zone = r.label("zone", deref(e.Zone)) // of a bare address nothing is known but the address
	}
	for _, a := range first(r, "addresses of an endpoint", e.Addresses, maxAddresses) {
		if addr, usable := r.address(a); usable {
			kept.Addr = addr
			to = append(to, kept)
		}
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
	var r remarks // they are for whoever reads the cluster to report
	v := translateService(home, svc, &r)
	for i := range all {
		kept, _ := keepSlice(&all[i], &r)
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

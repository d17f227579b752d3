package view

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

// ManagedBy is the managed-by label of the slices that Fingerpost writes with endpoints of other clusters.
// No installation reads them back.
const ManagedBy = "federation.fingerpost.io"

// sliceRecord is what is kept of an EndpointSlice, or of one subset of Endpoints.
type sliceRecord struct {
	name      string
	service   string
	ports     []federation.Port
	endpoints []endpointRecord
}

// endpointRecord is an endpoint whose workload is not resolved.
type endpointRecord struct {
	addr           netip.Addr
	ready, serving bool
	terminating    bool
	copied         bool
	name           string // of the workload
	*endpointDetails
}

// endpointDetails is what is kept once of endpoints of a slice that do not differ in it.
type endpointDetails struct {
	kind      objectKind // of the workload; zero for a bare address
	namespace string     // likewise
	zone      federation.Name
	federation.Detail
}

func (d *endpointDetails) equal(o *endpointDetails) bool {
	return d.kind == o.kind && d.namespace == o.namespace && d.zone == o.zone &&
		d.Hostname == o.Hostname && d.Mirror == o.Mirror && slices.Equal(d.Hints, o.Hints)
}

// shared returns the details of one of the last endpoints, if they are equal, and else a copy.
func (d *endpointDetails) shared(with []endpointRecord) *endpointDetails {
	const few = 16 // more than there are zones
	for i := len(with) - 1; i >= max(0, len(with)-few); i-- {
		if with[i].equal(d) {
			return with[i].endpointDetails
		}
	}
	return new(*d)
}

// readAgain returns what an endpoint with a workload was made from.
func readAgain(e *federation.Endpoint) endpointRecord {
	r := endpointRecord{addr: e.Addr, ready: e.Ready, serving: e.Serving, terminating: e.Terminating, copied: e.Copied}
	r.endpointDetails = &endpointDetails{zone: e.Zone}
	if e.Detail != nil {
		r.Detail = *e.Detail
	}
	ref := refOf(e.Workload)
	r.kind, r.namespace, r.name = ref.kind, ref.Namespace, ref.Name
	return r
}

// refOf returns the reference to a workload.
func refOf(w *federation.Workload) objectRef {
	c := w.Cohort.Value()
	ref := objectRef{kindPod, key{Namespace: c.Namespace, Name: w.Name}}
	if c.Kind == federation.ExternalWorkload {
		ref.kind = kindExternal
	}
	return ref
}

// workloadRef returns the reference to the workload that an endpoint has.
func (e *endpointRecord) workloadRef() objectRef {
	return objectRef{e.kind, key{Namespace: e.namespace, Name: e.name}}
}

// endpoint returns the endpoint with its workload, which runs on a node; nil for a bare address. It returns before,
// which may be nil, if that is the same.
func (e *endpointRecord) endpoint(
	w *federation.Workload, node federation.Name, before *federation.Endpoint,
) *federation.Endpoint {
	made := federation.Endpoint{
		Addr: e.addr, Ready: e.ready, Serving: e.serving, Terminating: e.terminating, Copied: e.copied,
		Node: node, Zone: e.zone, Workload: w, Detail: e.OrNone(),
	}
	if before != nil && *before == made {
		return before
	}
	return new(made)
}

func newSliceRecords(es *discoveryv1.EndpointSlice, local bool, out *omissions) ([]*sliceRecord, bool) {
	if es.Labels[discoveryv1.LabelManagedBy] == ManagedBy {
		return nil, false
	}
	record := &sliceRecord{name: es.Name, service: out.label("all of it: the Service", serviceNameOf(es))}
	if record.service == "" {
		return nil, false
	}

	for _, p := range firstOf(out, "ports", es.Ports, maxSlicePorts) {
		if p.Port == nil { // which means all ports: no client can be given that
			continue
		}
		name, protocol, app := deref(p.Name), deref(p.Protocol), deref(p.AppProtocol)
		record.ports = appendSlicePort(record.ports, *p.Port, name, protocol, app, out)
	}

	mirror, copied := mirrorMarks(es, local, out), isCopy(es)
	if es.AddressType == discoveryv1.AddressTypeFQDN {
		return []*sliceRecord{record}, true // names, which no client can be given
	}
	endpoints := firstOf(out, "endpoints", es.Endpoints, maxEndpoints)
	record.endpoints = make([]endpointRecord, 0, len(endpoints)) // as a rule they have one address each
	for i := range endpoints {
		record.endpoints = appendEndpoints(record.endpoints, es.Namespace, &endpoints[i], mirror, copied, out)
	}
	return []*sliceRecord{record}, true
}

// appendSlicePort appends a port of endpoints, unless it is malformed.
func appendSlicePort(
	to []federation.Port, number int32, name string, protocol corev1.Protocol, app string, out *omissions,
) []federation.Port {
	n, is := portNumber(number)
	if !is || !out.validText("a port: its name", name, maxLabel) {
		return to
	}
	transport, known := out.protocol(protocol)
	if !known {
		return to
	}
	return append(to, federation.Port{Number: n, Protocol: transport, Name: name, App: out.app(app)})
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// serviceNameOf returns the Service of a slice: that of the label, else the owner; empty for none.
func serviceNameOf(es *discoveryv1.EndpointSlice) string {
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

// mirrorMarks returns Linkerd's marks on the slices, or the Endpoints, of a mirror; nil for none. They count
// for the cluster's own clients only: otherwise a linked cluster could send our clients, under any authority,
// to any gateway that it names, and have them trust it.
func mirrorMarks(o metav1.Object, local bool, out *omissions) *federation.Mirror {
	const cluster = linkerd.MirrorClusterNameLabel
	const identity, name = linkerd.RemoteGatewayIdentityAnnotation, linkerd.RemoteNameAnnotation
	m := federation.Mirror{
		Cluster:  out.label("label "+cluster, o.GetLabels()[cluster]),
		Identity: out.text("annotation "+identity, o.GetAnnotations()[identity], maxName),
		Name:     out.text("annotation "+name, o.GetAnnotations()[name], maxName),
	}
	if m == (federation.Mirror{}) || !local {
		return nil
	}
	return &m
}

// isCopy reports whether the writer of a slice states that its endpoints are another cluster's. The label is that
// of the Multi-Cluster Services API (KEP-1645), which tools that copy endpoints set (Cilium, Submariner); Karmada has
// an annotation of its own. Which cluster they name does not matter: its name there need not be that of our Link.
func isCopy(es *discoveryv1.EndpointSlice) bool {
	return es.Labels[sourceClusterLabel] != "" || es.Annotations[karmadaSourceAnnotation] != ""
}

const (
	sourceClusterLabel      = "multicluster.kubernetes.io/source-cluster"
	karmadaSourceAnnotation = "endpointslice.karmada.io/provision-cluster"
)

// workloadKinds are the kinds of which something is known. What a targetRef of any other kind names, such as a Node, is
// a bare address: the targetRef names what is behind it, and not whether it is served.
var workloadKinds = map[string]objectKind{"Pod": kindPod, linkerd.ExternalWorkloadKind: kindExternal}

// appendEndpoints appends one endpoint for each address.
func appendEndpoints(
	to []endpointRecord, namespace string, from *discoveryv1.Endpoint, mirror *federation.Mirror, copied bool,
	out *omissions,
) []endpointRecord {
	details := endpointDetails{Detail: federation.Detail{
		Hostname: out.hostname(deref(from.Hostname)), Hints: zoneHints(from.Hints, out), Mirror: mirror,
	}}
	record := endpointRecord{
		ready:       from.Conditions.Ready == nil || *from.Conditions.Ready,
		terminating: deref(from.Conditions.Terminating),
		copied:      copied,
	}

	if serving := from.Conditions.Serving; serving != nil {
		record.serving = *serving
	} else { // of what is terminating kube-proxy takes that for true, and of anything else it does not matter
		record.serving = record.ready || record.terminating
	}

	if kind, known := workloadKinds[kindOf(from.TargetRef)]; known {
		ref := from.TargetRef
		if !out.validText("an endpoint: the namespace of its workload", ref.Namespace, maxLabel) ||
			!out.validText("an endpoint: its workload", ref.Name, maxName) {
			return to
		}
		record.name, details.kind = ref.Name, kind
		details.namespace = api.Intern(cmp.Or(ref.Namespace, namespace))
		// Of a bare address nothing is known but the address.
		details.zone = out.name("zone", deref(from.Zone), maxLabel)
	}

	record.endpointDetails = details.shared(to)
	for _, a := range firstOf(out, "addresses of an endpoint", from.Addresses, maxAddresses) {
		if addr, usable := out.address(a); usable {
			record.addr = addr
			to = append(to, record)
		}
	}
	return to
}

// kindOf returns the kind that a reference, which may be nil, names.
func kindOf(ref *corev1.ObjectReference) string {
	if ref == nil {
		return ""
	}
	return ref.Kind
}

// zoneHints returns the zones for which an endpoint is meant, sorted.
func zoneHints(hints *discoveryv1.EndpointHints, out *omissions) (zones []string) {
	if hints == nil {
		return nil
	}
	for _, z := range firstOf(out, "hints", hints.ForZones, maxHints) {
		if out.validText("a hint for zone", z.Name, maxLabel) {
			zones = append(zones, api.Intern(z.Name))
		}
	}
	slices.Sort(zones)
	return zones
}

// lookUpFunc returns a workload and its node; nil if it is not known.
type lookUpFunc func(objectRef) (workload *federation.Workload, node federation.Name)

// resolvedSlice is a slice whose workloads were looked up. An endpoint whose workload is not known is left
// out until it is. Nothing else of what was read is kept: it follows from the endpoints.
type resolvedSlice struct {
	*federation.Slice
	leftOut []leftOut // in the order of the slice
}

// leftOut is an endpoint that is left out.
type leftOut struct {
	endpointRecord
	before int // the index of the endpoint that it comes before
}

// resolveSlice looks up the workloads of a slice, which is the i-th. Of those before it takes the endpoints over that
// are the same, and where they were.
func (s *sliceRecord) resolveSlice(lookUp lookUpFunc, before []resolvedSlice, i int) resolvedSlice {
	out := newResolvedSlice(s.name, s.ports, len(s.endpoints))
	for j := range s.endpoints {
		out.addEndpoint(&s.endpoints[j], lookUp, endpointAt(before, i, len(out.Endpoints)))
	}
	return out
}

// resolveAgain looks up the workloads once more. Endpoints to which that changes nothing are the same.
func (s *resolvedSlice) resolveAgain(lookUp lookUpFunc) resolvedSlice {
	out := newResolvedSlice(s.Name, s.Ports, len(s.Endpoints)+len(s.leftOut))
	left := s.leftOut
	addLeftOut := func(before int) {
		for ; len(left) > 0 && left[0].before == before; left = left[1:] {
			out.addEndpoint(&left[0].endpointRecord, lookUp, nil)
		}
	}

	for i, endpoint := range s.Endpoints {
		addLeftOut(i)
		if endpoint.Workload != nil {
			if w, node := lookUp(refOf(endpoint.Workload)); w == nil {
				out.leftOut = append(out.leftOut, leftOut{readAgain(endpoint), len(out.Endpoints)})
				continue
			} else if w != endpoint.Workload || node != endpoint.Node {
				changed := *endpoint
				changed.Workload, changed.Node, endpoint = w, node, &changed
			}
		}
		out.Endpoints = append(out.Endpoints, endpoint)
	}

	addLeftOut(len(s.Endpoints))
	return out
}

func newResolvedSlice(name string, ports []federation.Port, n int) resolvedSlice {
	return resolvedSlice{Slice: &federation.Slice{
		Name: name, Ports: ports, Endpoints: make([]*federation.Endpoint, 0, n),
	}}
}

// addEndpoint adds an endpoint, which may be the same as one before; nil for none.
func (s *resolvedSlice) addEndpoint(e *endpointRecord, lookUp lookUpFunc, before *federation.Endpoint) {
	if e.kind == 0 {
		s.Endpoints = append(s.Endpoints, e.endpoint(nil, federation.Name{}, before))
	} else if w, node := lookUp(e.workloadRef()); w != nil {
		s.Endpoints = append(s.Endpoints, e.endpoint(w, node, before))
	} else {
		s.leftOut = append(s.leftOut, leftOut{*e, len(s.Endpoints)})
	}
}

// Of returns the View of a Service with these slices, without resolving workloads. What is malformed is
// left out and not reported, which is for the Reconciler of that cluster to do.
func Of(cluster federation.Cluster, svc *corev1.Service, all []discoveryv1.EndpointSlice) *federation.View {
	var ignored omissions
	view := newView(cluster, svc, &ignored)
	for i := range all {
		records, _ := newSliceRecords(&all[i], true, &ignored)
		for _, s := range records {
			slice := &federation.Slice{Name: s.name, Ports: s.ports}
			for j := range s.endpoints {
				slice.Endpoints = append(slice.Endpoints, s.endpoints[j].endpoint(nil, federation.Name{}, nil))
			}
			view.Slices = append(view.Slices, slice)
		}
	}

	return &view
}

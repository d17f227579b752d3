package endpointslice

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	endpointsliceutil "k8s.io/endpointslice/util"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
)

const (
	// FederatedLease is the Lease for slices with endpoints of other clusters, and for mirror Services. All
	// installations share it.
	FederatedLease = "fingerpost-write"

	// SourceLabel is a label on slices: the cluster that has the endpoints.
	SourceLabel = "federation.fingerpost.io/source-cluster"
	// installationLabel is a label on slices: the cluster of the installation that wrote it first.
	installationLabel = "federation.fingerpost.io/written-from"

	// maxIdentities is how many identities of one source cluster have slices of their own in a Service, so
	// that no cluster decides how many objects there are here. Those of most endpoints do; the others share
	// slices without identity.
	maxIdentities = 16
)

// federatedGroups returns the endpoints of the members of a Service, and which of its slices are left as
// they are: those of a cluster that was never synced, or that only the installation knows that wrote them.
// What no slice may hold does not pass the border of package view.
func federatedGroups(
	s *serviceRecord, snapshot *federation.Snapshot, installation, controlPlane string,
) (groups []*group, keep func(*discoveryv1.EndpointSlice) bool) {
	if !s.optIn || snapshot.View == nil || snapshot.View.Composition == nil || s.external {
		return nil, func(*discoveryv1.EndpointSlice) bool { return false }
	}
	all := grouping{}
	unknown, foreign := map[string]bool{}, map[string]bool{}
	for _, m := range snapshot.Members {
		name := string(m.Origin.Cluster)
		unknown[name] = unknown[name] || !m.Known
		foreign[name] = !m.Linked
		if m.View == nil || m.View.ExternalName {
			continue
		}
		for _, slice := range m.View.Slices {
			if ports := portsAtMember(s, m.View, slice); len(ports) > 0 {
				all.addEndpoints(s, m.Origin, slice, ports, controlPlane)
			}
		}
	}
	all.boundIdentities()
	for _, g := range all {
		g.meta = s.meta(view.ManagedBy, false)
		g.meta.GenerateName = "fingerpost-" + s.Name + "-"
		g.meta.Labels[SourceLabel] = g.source
		g.meta.Labels[installationLabel] = installation
		if g.identity != "" {
			g.meta.Annotations = map[string]string{linkerd.RemoteGatewayIdentityAnnotation: g.identity}
		}
	}
	groups = slices.DeleteFunc(all.sorted(), func(g *group) bool { return unknown[g.source] })
	return groups, func(es *discoveryv1.EndpointSlice) bool {
		source := es.Labels[SourceLabel]
		return unknown[source] || foreign[source] && es.Labels[installationLabel] != installation
	}
}

// boundIdentities moves the endpoints of a source cluster's identities beyond maxIdentities into groups
// without identity.
func (g grouping) boundIdentities() {
	endpoints := map[string]map[string]int{} // by source and identity
	for k, one := range g {
		if k.identity != "" {
			if endpoints[k.source] == nil {
				endpoints[k.source] = map[string]int{}
			}
			endpoints[k.source][k.identity] += len(one.endpoints)
		}
	}
	for source, counts := range endpoints {
		if len(counts) <= maxIdentities {
			continue
		}
		byCount := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
			return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
		})
		beyond := map[string]bool{}
		for _, identity := range byCount[maxIdentities:] {
			beyond[identity] = true
		}
		for _, one := range g.sorted() {
			if one.source != source || !beyond[one.identity] {
				continue
			}
			delete(g, groupKey{one.traits, endpointsliceutil.NewPortMapKey(one.ports)})
			into := g.of(traits{family: one.family, source: source}, one.ports)
			into.endpoints = append(into.endpoints, one.endpoints...)
		}
	}
}

// withUnknownMembers returns the Snapshot to use while not all objects that link clusters can be read: a
// member whose cluster is not linked, as far as is known, counts as unknown.
func withUnknownMembers(snapshot *federation.Snapshot) *federation.Snapshot {
	next := *snapshot
	next.Members = slices.Clone(snapshot.Members)
	for i, m := range next.Members {
		if m.Known && !m.Linked {
			unknown := *m
			unknown.Known = false
			next.Members[i] = &unknown
		}
	}
	return &next
}

// portsAtMember returns the Service's ports at a member's slice, under the Service's names, by which its
// clients find them.
func portsAtMember(
	s *serviceRecord, member *federation.View, slice *federation.Slice,
) (ports []discoveryv1.EndpointPort) {
	for _, p := range s.ports {
		protocol := protocolOf(p.Protocol)
		i := -1
		if declared, found := member.Port(uint16(p.Port)); found {
			i = slice.Target(declared)
		}
		if i < 0 || slice.Ports[i].Protocol != string(protocol) { // as where a number serves TCP and UDP
			i = slices.IndexFunc(slice.Ports, func(own federation.Port) bool {
				return own.Name == p.Name && own.Protocol == string(protocol)
			})
		}
		if i < 0 {
			continue
		}
		own := slice.Ports[i]
		port := discoveryv1.EndpointPort{
			Name: &p.Name, Port: new(int32(own.Number)), Protocol: &protocol, AppProtocol: p.AppProtocol,
		}
		if own.App != "" && port.AppProtocol == nil {
			port.AppProtocol = &own.App
		}
		ports = append(ports, port)
	}
	return ports
}

// addEndpoints adds a slice's endpoints to the groups that they belong to. Pods of the Service's own
// cluster are named in targetRef; of those of another cluster only the identity is written.
func (g grouping) addEndpoints(
	s *serviceRecord, origin *federation.Origin, slice *federation.Slice, ports []discoveryv1.EndpointPort,
	controlPlane string,
) {
	for _, from := range slice.Endpoints {
		family := familyOf(from.Addr)
		if !slices.Contains(s.families, family) {
			continue
		}
		e := discoveryv1.Endpoint{
			Addresses: []string{from.Addr.String()},
			Conditions: discoveryv1.EndpointConditions{
				Ready: new(from.Ready), Serving: new(from.Ready || from.Draining), Terminating: new(from.Draining),
			},
		}
		if from.Zone != "" {
			e.Zone = new(from.Zone)
		}
		if from.Hostname != "" && s.headless {
			e.Hostname = new(from.Hostname)
		}
		t := traits{family: family, source: string(origin.Cluster)}
		switch w := from.Workload; {
		case w == nil:
		case origin.Home:
			e.TargetRef = targetRef(w)
			if from.Node != "" {
				e.NodeName = new(from.Node)
			}
		case !skipsAny(w, ports):
			t.identity = w.Identity(controlPlane, origin.TrustDomain)
		}
		into := g.of(t, slices.Clone(ports))
		into.endpoints = append(into.endpoints, e)
	}
}

func targetRef(w *federation.Workload) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{Kind: "Pod", Namespace: w.Namespace, Name: w.Name}
	if w.Kind == federation.ExternalWorkload {
		ref.Kind = linkerd.ExternalWorkloadKind
	}
	return ref
}

// skipsAny reports whether one of the ports bypasses the workload's proxy, so that nothing there has its
// identity.
func skipsAny(w *federation.Workload, ports []discoveryv1.EndpointPort) bool {
	skip := w.Template.Value().Skip
	return slices.ContainsFunc(ports, func(p discoveryv1.EndpointPort) bool { return skip.Contains(uint16(*p.Port)) })
}

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
	// FederatedLease is held by whoever writes slices with what other clusters hold, and mirror Services. All installations share it.
	FederatedLease = "fingerpost-write"

	// SourceLabel tells on a slice which cluster holds its endpoints.
	SourceLabel = "federation.fingerpost.io/source-cluster"
	// writerLabel tells on a slice the cluster of the installation that wrote it first.
	writerLabel = "federation.fingerpost.io/written-from"

	// maxIdentities is how many identities of one source cluster have slices of their own in a Service: how many objects there are is not for
	// that cluster to say. Those of most endpoints do; the rest share slices that bear none.
	maxIdentities = 16
)

// federatedGroups returns the endpoints that the members of a Service hold, and the clusters whose slices are to be left as they are,
// because they have not been heard, or are not known here but to whoever wrote the slices. What no slice may hold has not passed the border
// of package view.
func federatedGroups(s *service, snapshot *federation.Snapshot, installation, controlPlane string) (groups []*group, untouched func(*discoveryv1.EndpointSlice) bool) {
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
			if ports := portsAt(s, m.View, slice); len(ports) > 0 {
				addEndpoints(all, s, m.Origin, slice, ports, controlPlane)
			}
		}
	}
	all.fold()
	for _, g := range all {
		g.meta = s.meta(view.ManagedBy, false)
		g.meta.GenerateName = "fingerpost-" + s.Name + "-"
		g.meta.Labels[SourceLabel] = g.source
		g.meta.Labels[writerLabel] = installation
		if g.identity != "" {
			g.meta.Annotations = map[string]string{linkerd.RemoteGatewayIdentityAnnotation: g.identity}
		}
	}
	groups = slices.DeleteFunc(all.sorted(), func(g *group) bool { return unknown[g.source] })
	return groups, func(es *discoveryv1.EndpointSlice) bool {
		source := es.Labels[SourceLabel]
		return unknown[source] || foreign[source] && es.Labels[writerLabel] != installation
	}
}

// fold puts the endpoints of a source cluster's identities beyond maxIdentities into groups without identity.
func (g grouping) fold() {
	endpoints := map[string]map[string]int{} // by source and identity
	for k, one := range g {
		if k.identity != "" {
			if endpoints[k.source] == nil {
				endpoints[k.source] = map[string]int{}
			}
			endpoints[k.source][k.identity] += len(one.endpoints)
		}
	}
	for source, of := range endpoints {
		if len(of) <= maxIdentities {
			continue
		}
		identities := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), strings.Compare(a, b)) })
		beyond := map[string]bool{}
		for _, identity := range identities[maxIdentities:] {
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

// doubted returns the Snapshot for those who cannot read all of what links clusters: one that is not linked may be.
func doubted(snapshot *federation.Snapshot) *federation.Snapshot {
	next := *snapshot
	next.Members = slices.Clone(snapshot.Members)
	for i, m := range next.Members {
		if m.Known && !m.Linked {
			doubted := *m
			doubted.Known = false
			next.Members[i] = &doubted
		}
	}
	return &next
}

// portsAt returns the Service's ports at a member's slice, under the Service's names: that is how clients find them.
func portsAt(s *service, member *federation.View, slice *federation.Slice) (ports []discoveryv1.EndpointPort) {
	for _, p := range s.ports {
		protocol := protocolOf(p.Protocol)
		i := -1
		if declared, found := member.Port(uint16(p.Port)); found {
			i = slice.Target(declared)
		}
		if i < 0 || slice.Ports[i].Protocol != string(protocol) { // as where a number serves TCP and UDP
			i = slices.IndexFunc(slice.Ports, func(own federation.Port) bool { return own.Name == p.Name && own.Protocol == string(protocol) })
		}
		if i < 0 {
			continue
		}
		port := discoveryv1.EndpointPort{Name: &p.Name, Port: new(int32(slice.Ports[i].Number)), Protocol: &protocol, AppProtocol: p.AppProtocol}
		if app := slice.Ports[i].App; app != "" && port.AppProtocol == nil {
			port.AppProtocol = &app
		}
		ports = append(ports, port)
	}
	return ports
}

// addEndpoints adds a slice's endpoints to the groups that they belong to. Pods of the Service's own cluster are named; of another's,
// all that can be said is the identity by which they prove who they are.
func addEndpoints(to grouping, s *service, origin *federation.Origin, slice *federation.Slice, ports []discoveryv1.EndpointPort, controlPlane string) {
	for _, from := range slice.Endpoints {
		if !slices.Contains(s.families, familyOf(from.Addr)) {
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
		t := traits{family: familyOf(from.Addr), source: string(origin.Cluster)}
		if w := from.Workload; w != nil && origin.Home {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: w.Namespace, Name: w.Name}
			if w.Kind == federation.ExternalWorkload {
				e.TargetRef.Kind = linkerd.ExternalWorkloadKind
			}
			if from.Node != "" {
				e.NodeName = new(from.Node)
			}
		} else if w != nil && !slices.ContainsFunc(ports, func(p discoveryv1.EndpointPort) bool { return w.Template.Value().Skip.Contains(uint16(*p.Port)) }) {
			t.identity = w.Identity(controlPlane, origin.TrustDomain)
		}
		g := to.of(t, slices.Clone(ports))
		g.endpoints = append(g.endpoints, e)
	}
}

package endpointslice

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

const (
	// SourceLabel is a label on slices: the cluster that has the endpoints.
	SourceLabel = "federation.fingerpost.io/source-cluster"
	// installationLabel is a label on slices: the installation that writes them.
	installationLabel = apply.InstallationLabel

	// maxIdentities is how many identities of one source cluster have slices of their own in a Service, so
	// that no cluster decides how many objects there are here. Those of most endpoints do; the others share
	// slices without identity.
	maxIdentities = 16
)

// federatedSlices is the content of slices of federated Services: the endpoints of their members.
type federatedSlices struct {
	*sliceWriter
	leftOut map[string]map[key]int // endpoints that are in no slice, by source cluster and Service; guarded by mu
	private map[key]int            // members that are not shown to the cluster, by Service; guarded by mu
	events  *serviceEvents         // nil for all but the local cluster
	losses  map[string]lossState   // of source clusters; guarded by mu
	confirm watch.Value[[]loss]    // those that are to be confirmed
}

func newFederatedSlices(w *Writer, t *apply.Target) *federatedSlices {
	f := &federatedSlices{
		leftOut: map[string]map[key]int{}, private: map[key]int{}, losses: map[string]lossState{},
	}
	background := []func(context.Context){f.enqueueWhenUnlinked, f.enqueueWhenOwned, f.confirmLosses}
	if t.Local {
		f.events = newServiceEvents(w.options.Events)
		background = append(background, f.followClusters, f.reportLeftTo)
	}
	f.sliceWriter = newSliceWriter(w, t, view.ManagedBy, permissions, background...)
	f.content = f
	return f
}

// reportLeftTo reports of each source cluster which other installation writes its endpoints here, until ctx ends.
func (f *federatedSlices) reportLeftTo(ctx context.Context) {
	reported := map[string]string{}
	report := func(source, text string) {
		if reported[source] != text {
			reported[source] = text
			f.writer.registry.ReportLeftTo(source, text)
		}
	}

	for ctx.Err() == nil {
		ownersChanged := f.Owners.Changed()
		names, namesChanged := f.writer.registry.Names()
		owners, held := f.Owners.Load()
		for _, source := range names {
			text := ""
			if owner := owners[source]; owner != f.Installation() {
				text = held[owner]
			}
			report(source, text)
		}
		maps.DeleteFunc(reported, func(source, _ string) bool { return !slices.Contains(names, source) })

		select {
		case <-ownersChanged:
		case <-namesChanged:
		case <-ctx.Done():
		}
	}

	for source := range reported {
		report(source, "")
	}
}

// run writes until ctx ends. It returns [apply.MissingPermissions] if some are missing.
func (f *federatedSlices) run(ctx context.Context) error {
	defer f.forgetLeftOut()
	return f.loop.Run(ctx)
}

// enqueueWhenUnlinked enqueues the Services that opt in when it is decided of a cluster that it is unlinked.
func (f *federatedSlices) enqueueWhenUnlinked(ctx context.Context) {
	before, changed := f.writer.options.Links.Membership()
	for watch.WaitClosed(ctx, changed) {
		var now *federation.Membership
		now, changed = f.writer.options.Links.Membership()
		for c := range now.Changed(before) {
			if now.Of(c) == federation.StateUnlinked {
				f.loop.Enqueue(f.loop.Followed()...)
				break
			}
		}
		before = now
	}
}

// enqueueWhenOwned enqueues the Services that opt in when another installation writes for a source cluster, or we.
func (f *federatedSlices) enqueueWhenOwned(ctx context.Context) {
	for {
		changed := f.Owners.Changed()
		f.loop.Enqueue(f.loop.Followed()...)
		if !watch.WaitClosed(ctx, changed) {
			return
		}
	}
}

func (f *federatedSlices) serviceChanged(k key, old, now *serviceRecord) {
	if now != nil && (now.optIn || now.unclear) {
		f.loop.Follow(k, f.ref(k), f.localRef(k))
	} else {
		f.loop.Unfollow(k)
	}
	if f.events != nil {
		f.events.recordChange(k, old, now)
	}
}

// inForce returns the record of a Service that opts in or not: if that cannot be read it does as long as it has
// slices, so that a mistake in its annotation withdraws nothing, in this term and in the next.
func (f *federatedSlices) inForce(svc *serviceRecord) *serviceRecord {
	if !svc.unclear {
		return svc
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	decided := *svc
	decided.optIn = len(f.slicesOf[svc.key]) > 0
	return &decided
}

func (f *federatedSlices) ref(k key) federation.Ref {
	return federation.Ref{Cluster: federation.Cluster(f.Name), Service: federation.Service(k)}
}

// localRef returns the Service of that name in the local cluster.
func (f *federatedSlices) localRef(k key) federation.Ref {
	return federation.Ref{Cluster: federation.Cluster(f.writer.options.Local), Service: federation.Service(k)}
}

// desired implements content.
func (f *federatedSlices) desired(svc *serviceRecord) desiredSlices {
	svc = f.inForce(svc)
	snapshot := f.loop.Snapshot(svc.key)
	if snapshot == nil { // it does not opt in: what it had is to be withdrawn
		w := f.writer.store.Watch(f.ref(svc.key))
		snapshot, _ = w.Load()
		w.Close()
	}

	if snapshot.View == nil { // no budget had room for it, or it is about to be published
		return desiredSlices{keep: keepAll}
	}
	all := snapshot.Members
	snapshot = f.shown(svc.key, snapshot)
	f.reportPrivate(svc, all, snapshot.Members)

	options, who := f.writer.options, f.ownership()
	who.mayLose = f.mayLose
	desired := desiredSlices{maxSlices: options.MaxSlices}
	desired.groups, desired.keep = federatedGroups(svc, snapshot, options.Namespace, who, true)
	desired.undivided = func() []*group {
		all, _ := federatedGroups(svc, snapshot, options.Namespace, who, false)
		return all
	}
	return desired
}

// ownership is which installation this is, whether its Lease is seen to be held, which one writes the endpoints of a
// source cluster, empty for none, which clusters are linked, and of which it may be written that something is gone; nil
// for all.
type ownership struct {
	installation string
	held         bool
	ownerOf      func(source string) string
	membership   *federation.Membership
	mayLose      func(source string) bool
}

// waitsForLosses reports whether it is not confirmed yet what a source cluster has lost.
func (o ownership) waitsForLosses(source string) bool { return o.mayLose != nil && !o.mayLose(source) }

func (o ownership) isUnlinked(source federation.Cluster) bool {
	return o.membership.Of(source) == federation.StateUnlinked
}

// ownership returns what is so now. It does not change afterwards, unless a cluster is unlinked: the groups that are
// wanted and the slices that are kept follow from the same owners.
func (f *federatedSlices) ownership() ownership {
	own := f.Installation()
	owners, held := f.Owners.Load()
	ownerOf := func(source string) string { return owners[source] }
	_, isHeld := held[own]
	membership, _ := f.writer.options.Links.Membership()
	return ownership{own, isHeld, ownerOf, membership, nil}
}

// federatedGroups returns the endpoints of the members of a Service that this installation writes, and which of its
// slices are left as they are: those of a cluster that was never synced, or may be linked again in a moment, or whose
// losses are not confirmed, and those that another installation writes. What no slice may hold does not pass the border
// of package view. With choose, the endpoints are those whose claims to their addresses count, and of each member what
// its share of the traffic has; otherwise they are all.
func federatedGroups(
	svc *serviceRecord, snapshot *federation.Snapshot, controlPlane string, who ownership, choose bool,
) (groups []*group, keep func(*discoveryv1.EndpointSlice) bool) {
	unknown, linked := map[string]bool{}, map[string]bool{}

	waits := false // for our Lease to be seen: nothing can be written in place of what is deleted
	keep = func(es *discoveryv1.EndpointSlice) bool {
		source := es.Labels[SourceLabel]
		switch owner := who.ownerOf(source); {
		case unknown[source]:
			return true
		case owner == "": // we unlinked it, or our Lease is about to list it
			return waits || linked[source] || es.Labels[installationLabel] != who.installation
		default:
			return owner != who.installation
		}
	}

	if !svc.optIn || snapshot.View.Composition == nil || svc.external {
		return nil, keep
	}
	waits = !who.held
	all := grouping{}
	chosen := &choice{}
	if choose {
		chosen = chooseEndpoints(svc, snapshot, controlPlane, who.ownerOf)
	}

	for _, member := range snapshot.Members {
		name := string(member.Origin.Cluster)
		undecided := !member.Linked && !who.isUnlinked(member.Origin.Cluster)
		unknown[name] = unknown[name] || !member.Known || undecided || who.waitsForLosses(name)
		linked[name] = member.Linked
		if member.View == nil || member.View.ExternalName {
			continue
		}

		for _, slice := range member.View.Slices {
			if ports := portsAtMember(svc, member.View, slice); len(ports) > 0 {
				all.addEndpoints(svc, member, slice, ports, controlPlane, chosen)
			}
		}
	}

	all.boundIdentities()
	for _, g := range all {
		g.meta = svc.meta(view.ManagedBy, false)
		g.meta.GenerateName = "fingerpost-" + svc.Name + "-"
		g.meta.Labels[SourceLabel] = g.source
		g.meta.Labels[installationLabel] = who.installation
		if g.identity != "" {
			g.meta.Annotations = map[string]string{linkerd.RemoteGatewayIdentityAnnotation: g.identity}
		}
	}

	return slices.DeleteFunc(all.sorted(), func(g *group) bool {
		return unknown[g.source] || who.ownerOf(g.source) != who.installation
	}), keep
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
			delete(g, newGroupKey(one.traits, one.ports))
			into := g.groupFor(traits{family: one.family, source: source}, one.ports)
			into.endpoints = append(into.endpoints, one.endpoints...)
		}
	}
}

// portsAtMember returns the Service's ports at a member's slice, under the Service's names, by which its
// clients find them. A member has a port if it declares one of that number and protocol, whatever its name.
func portsAtMember(
	s *serviceRecord, member *federation.View, slice *federation.Slice,
) (ports []discoveryv1.EndpointPort) {
	for _, servicePort := range s.ports {
		protocol := protocolOf(servicePort.Protocol)
		transport, _ := federation.TransportOf(string(protocol))
		declared, found := member.PortOf(uint16(servicePort.Port), transport)
		if !found {
			continue
		}

		i := slice.Target(declared)
		if i < 0 {
			continue
		}

		own := slice.Ports[i]
		port := discoveryv1.EndpointPort{
			Name: &servicePort.Name, Port: new(int32(own.Number)),
			Protocol: &protocol, AppProtocol: servicePort.AppProtocol,
		}
		if own.App != "" && port.AppProtocol == nil {
			port.AppProtocol = &own.App
		}
		ports = append(ports, port)
	}

	slices.SortFunc(ports, func(a, b discoveryv1.EndpointPort) int { return strings.Compare(*a.Name, *b.Name) })
	return ports
}

// addEndpoints adds a slice's endpoints to the groups that they belong to. Pods of the Service's own
// cluster are named in targetRef; of those of another cluster only the identity is written.
func (g grouping) addEndpoints(
	s *serviceRecord, m *federation.Member, slice *federation.Slice, ofSlice []discoveryv1.EndpointPort,
	controlPlane string, chosen *choice,
) {
	origin := m.Origin
	for i, from := range slice.Endpoints {
		family, hostname := familyOf(from.Addr), s.hostnameOf(from)
		if !slices.Contains(s.families, family) {
			continue
		}

		ports := chosen.portsOf(federation.Claim{Member: m, Slice: slice, Index: i}, ofSlice)
		if len(ports) == 0 || hostname == "" && !chosen.write(origin.Cluster, from) {
			continue
		}

		endpoint := discoveryv1.Endpoint{
			Addresses: []string{from.Addr.String()},
			Conditions: discoveryv1.EndpointConditions{
				Ready: new(from.Ready), Serving: new(from.Serving), Terminating: new(from.Terminating),
			},
		}
		if from.Zone != (federation.Name{}) {
			endpoint.Zone = new(from.Zone.String())
		}

		if hostname != "" {
			endpoint.Hostname = &hostname
		}

		traits := traits{family: family, source: string(origin.Cluster)}
		switch w := from.Workload; {
		case w == nil:
		case origin.Home:
			endpoint.TargetRef = targetRef(w)
			if from.Node != (federation.Name{}) {
				endpoint.NodeName = new(from.Node.String())
			}
		case !skipsAny(w, ports):
			traits.identity = w.Identity(controlPlane, origin.TrustDomain)
		}

		into := g.groupFor(traits, ports)
		into.endpoints = append(into.endpoints, endpoint)
	}
}

// hostnameOf returns the name by which clients ask for an endpoint; empty for none.
func (s *serviceRecord) hostnameOf(e *federation.Endpoint) string {
	if !s.headless {
		return ""
	}
	return e.Hostname()
}

func targetRef(w *federation.Workload) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{Kind: "Pod", Namespace: w.Namespace(), Name: w.Name}
	if w.Kind() == federation.ExternalWorkload {
		ref.Kind = linkerd.ExternalWorkloadKind
	}
	return ref
}

// skipsAny reports whether one of the ports bypasses the workload's proxy, so that nothing there has its
// identity.
func skipsAny(w *federation.Workload, ports []discoveryv1.EndpointPort) bool {
	skip := w.Template().Skip
	return slices.ContainsFunc(ports, func(p discoveryv1.EndpointPort) bool { return skip.Contains(uint16(*p.Port)) })
}

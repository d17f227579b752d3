package app_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/federation"
)

// The model: what clients hold and what is written when everything has settled, computed from nothing but the
// objects that the API servers have now. It shares no code with Fingerpost, has no memory, and knows the
// Services of namespace shop only, with one port, as the verb endpoints makes them.

const (
	shop           = "shop"
	membersOf      = "federation.fingerpost.io/members"
	exportedLabel  = "mirror.linkerd.io/exported"
	federatedLabel = "mirror.linkerd.io/federated"
	discoveryLabel = "multicluster.linkerd.io/remote-discovery"

	slicesAnnotation = "federation.fingerpost.io/endpoint-slices"
	trustAnnotation  = "multicluster.linkerd.io/trust-domain"

	exportedSelector  = "remoteDiscoverySelector"
	federatedSelector = "federatedServiceSelector"
	gatewayAddress    = "gatewayAddress"

	byGateway = " by gateway" // after the name of a mirror
)

// selected are the labels that the selectors of Links are about, and chosen the values that they select unless a
// history changes that.
var (
	selected = map[string]string{exportedSelector: exportedLabel, federatedSelector: federatedLabel}
	chosen   = map[string]string{exportedSelector: "remote-discovery", federatedSelector: "member"}
)

// addresses are those of a Service in one cluster, and whether they are ready.
type addresses map[netip.AddrPort]bool

// modelCluster is what the model reads of a cluster.
type modelCluster struct {
	labels    map[string]map[string]string // of Services
	notes     map[string]map[string]string // their annotations
	endpoints map[string]addresses         // by Service
	drain     string                       // that it asks for itself
	opaque    bool                         // a Server makes its Pods so
	routes    map[string]string            // of the ServiceProfiles of Services
}

// model is what the model reads.
type model struct {
	clusters map[string]*modelCluster     // those that are linked, and the local one
	links    map[string]map[string]string // annotations and fields of the Links of clusters that have one
	trust    map[string]string            // trust domains of clusters
	nodes    []string                     // of the local cluster
}

func (s *scenario) readModel() *model {
	s.t.Helper()
	m := &model{
		clusters: map[string]*modelCluster{home: s.readCluster(home)}, links: map[string]map[string]string{},
		trust: map[string]string{home: trust},
	}
	for _, node := range s.network.Server(home).List("nodes") {
		m.nodes = append(m.nodes, node.GetName())
	}
	for _, secret := range s.network.Server(home).List("secrets") {
		if name, labelled := secret.GetLabels()["multicluster.linkerd.io/cluster-name"]; labelled {
			m.clusters[name] = s.readCluster(name)
			m.trust[name] = secret.GetAnnotations()[trustAnnotation]
		}
	}
	for _, link := range s.network.Server(home).List(linkResource) {
		name := link.GetName() // whatever it is edited to name
		if m.links[name] = link.GetAnnotations(); m.links[name] == nil {
			m.links[name] = map[string]string{}
		}
		for selector, label := range selected {
			value, _, _ := unstructured.NestedString(link.Object, "spec", selector, "matchLabels", label)
			m.links[name][selector] = value
		}
		m.links[name][gatewayAddress], _, _ = unstructured.NestedString(link.Object, "spec", gatewayAddress)
		delete(s.heldLinks, name)
	}
	maps.Copy(m.links, s.heldLinks) // nothing changes when a CRD is deleted, and created again
	for name := range m.links {
		m.clusters[name], m.trust[name] = s.readCluster(name), trust
	}
	return m
}

func (s *scenario) readCluster(name string) *modelCluster {
	s.t.Helper()
	c := &modelCluster{
		labels: map[string]map[string]string{}, notes: map[string]map[string]string{},
		endpoints: map[string]addresses{}, routes: map[string]string{},
	}
	server := s.network.Server(name)
	for _, svc := range server.List("services") {
		if svc.GetNamespace() == shop {
			c.labels[svc.GetName()], c.notes[svc.GetName()] = svc.GetLabels(), svc.GetAnnotations()
			c.endpoints[svc.GetName()] = addresses{}
		}
	}
	if namespace := server.Get("namespaces", "", ours); namespace != nil && name != home {
		c.drain = namespace.GetAnnotations()[annotationPrefix+"drain"]
	}
	c.opaque = len(server.List(serverResource)) > 0
	for _, profile := range server.List(profileResource) {
		c.routes[serviceOf(profile.GetName())] = "read" // which is the only one
	}
	workloads := map[string]bool{}
	for _, w := range slices.Concat(server.List("pods"), server.List(externalResource)) {
		workloads[w.GetKind()+" "+w.GetNamespace()+"/"+w.GetName()] = true
	}
	for _, slice := range decode[discoveryv1.EndpointSlice](s, name, sliceResource) {
		of := c.endpoints[slice.Labels[discoveryv1.LabelServiceName]]
		if of == nil || slice.Labels[discoveryv1.LabelManagedBy] != "" {
			continue
		}
		for _, e := range slice.Endpoints {
			if workloads[e.TargetRef.Kind+" "+e.TargetRef.Namespace+"/"+e.TargetRef.Name] {
				addr := netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*slice.Ports[0].Port))
				of[addr] = *e.Conditions.Ready
			}
		}
	}
	return c
}

// selects reports whether a Link selects a Service of its cluster. Of the local cluster, which has none, Services join
// federated ones.
func (m *model) selects(cluster, selector, service string) bool {
	want, found := m.links[cluster][selector]
	if !found {
		want = chosen[selector]
	}
	return (m.links[cluster] != nil || cluster == home && selector == federatedSelector) &&
		m.clusters[cluster].labels[service][selected[selector]] == want
}

// leads reports whether a Service of a cluster has a mirror that leads to the gateway there.
func (m *model) leads(cluster, service string) bool {
	return m.links[cluster] != nil && m.clusters[cluster].labels[service][exportedLabel] == "true"
}

// gatewayMirrors returns the names of all mirrors that could lead to a gateway.
func gatewayMirrors() (all []string) {
	for _, cluster := range simClusters[1:] {
		for _, service := range simServices {
			all = append(all, service+"-"+cluster+byGateway)
		}
	}
	return all
}

// members returns the Services that a local one consists of, by cluster; nil if it should not exist.
func (m *model) members(service string) map[string]string {
	all := map[string]string{}
	add := func(cluster, of string) {
		if c := m.clusters[cluster]; c != nil && c.endpoints[of] != nil {
			all[cluster] = of
		}
	}
	local := m.clusters[home]
	if list, federated := local.notes[service][membersOf]; federated {
		for member := range strings.SplitSeq(list, ",") {
			of, cluster, remote := strings.Cut(member, "@")
			if !remote {
				cluster = home
			}
			add(cluster, of)
		}
		return all
	}
	if of, federated := strings.CutSuffix(service, "-federated"); federated {
		for name := range m.clusters {
			if m.selects(name, federatedSelector, of) {
				add(name, of)
			}
		}
	} else if mirror, ends := strings.CutSuffix(service, byGateway); ends {
		if of, cluster, _ := strings.Cut(mirror, "-"); m.leads(cluster, of) {
			add(cluster, of)
		}
	} else if of, cluster, mirrored := strings.Cut(service, "-"); mirrored {
		if m.selects(cluster, exportedSelector, of) {
			add(cluster, of)
		}
	} else {
		add(home, service)
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// written returns the Services that a mirror or a federated Service leads to as it is written now.
func (m *model) written(service string) map[string]string {
	local, all := m.clusters[home], map[string]string{}
	remote := strings.Split(local.notes[service][remoteDiscovery], ",")
	if cluster, mirrored := local.labels[service][discoveryLabel]; mirrored {
		remote = append(remote, local.labels[service]["multicluster.linkerd.io/remote-service"]+"@"+cluster)
	}
	for _, member := range append(remote, local.notes[service][localDiscovery]+"@"+home) {
		of, cluster, _ := strings.Cut(member, "@")
		if of != "" {
			all[cluster] = of
		}
	}
	return all
}

// ready returns the addresses of members that clients get; nil without any.
func (m *model) ready(members map[string]string) map[netip.AddrPort]bool {
	if members == nil {
		return nil
	}
	all := map[netip.AddrPort]bool{}
	for cluster, of := range members {
		if m.clusters[cluster] == nil {
			continue
		}
		for addr, ready := range m.clusters[cluster].endpoints[of] {
			if ready {
				all[addr] = true
			}
		}
	}
	return all
}

// serviceOf returns the Service that an authority names.
func serviceOf(authority string) string {
	name, _, _ := strings.Cut(authority, ".")
	return name
}

// identityIn returns the identity of a Pod of shop in a trust domain.
func identityIn(trust string) string {
	return "default." + shop + ".serviceaccount.identity." + ours + "." + trust
}

// clusterOf returns the cluster that has an address.
func clusterOf(addr netip.AddrPort) string {
	for _, name := range simClusters {
		if addr.IsValid() && octet(name) == int(addr.Addr().As4()[1]) {
			return name
		}
	}
	return ""
}

// differences returns what is not as the model has it.
func (s *scenario) differences() (all []string) {
	s.t.Helper()
	m, now := s.readModel(), time.Now()
	facts := m.facts()
	report := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	steps := m.stepping(now)
	for _, name := range s.opened {
		st, is := s.streams[name].(*proxy.Stream)
		if !is || inDepot(st.Request().Authority) {
			continue
		}
		want := m.given(serviceOf(st.Request().Authority), nodeNameOf(st.Request().Token), now)
		if want == nil || steps {
			continue // a proxy keeps what it holds of a Service that is not found
		}
		held := map[netip.AddrPort]bool{}
		for _, a := range st.Holds() {
			held[a.Addr] = true
			for _, f := range s.factsOf(a) {
				if !facts[f] {
					report("stream %s: %s has %q as the %s", name, a.Addr, f.value, f.something)
				}
			}
		}
		if lacks, surplus := minus(want, held), minus(held, want); lacks != "" || surplus != "" {
			report("stream %s of %s: lacks [%s], holds in vain [%s]", name, st.Request().Authority, lacks, surplus)
		}
	}
	for _, r := range s.replicas {
		statuses, _ := r.Registry.Statuses()
		for name, status := range statuses {
			if m.clusters[name] == nil {
				report("cluster of %s: %s is not linked", r.name, name)
			} else if status.State != federation.Live {
				report("cluster of %s: %s is %s", r.name, name, status.State)
			}
		}
		for _, name := range sortedKeys(m.clusters) {
			if _, linked := statuses[name]; !linked {
				report("cluster of %s: %s is linked", r.name, name)
			}
		}
	}
	if !steps {
		s.trafficDifferences(m, now, report)
	}
	if s.holds("-federated-slices") && !steps {
		all = append(all, s.sliceDifferences(m, now)...)
		all = append(all, s.kubeProxyDifferences(m, now)...)
	}
	all = append(all, s.profileDifferences(m, facts)...)
	if s.holds("-mirror-services=on") {
		all = append(all, s.mirrorDifferences(m)...)
	}
	return all
}

func (s *scenario) holds(flag string) bool { return slices.Contains(s.flags, flag) }

// slicing reports whether slices are to be written into a cluster.
func (m *model) slicing(cluster string) bool {
	return cluster == home || m.links[cluster][slicesAnnotation] == "enabled"
}

// sliceDifferences returns what is not as the model has it of the slices in each cluster that they are written into.
// In linked ones the Services that ask for slices consist of the same members as in the local one.
func (s *scenario) sliceDifferences(m *model, now time.Time) (all []string) {
	s.t.Helper()
	for _, in := range sortedKeys(m.clusters) {
		if !m.slicing(in) {
			continue
		}
		want, have := map[string]bool{}, map[string]bool{}
		for service, notes := range m.clusters[in].notes {
			if notes[slicesAnnotation] != "enabled" {
				continue
			}
			for cluster, of := range m.sliced(service, now) {
				for addr, ready := range of {
					want[fmt.Sprintf("%s %s %s %t", service, cluster, addr.Addr(), ready)] = true
				}
			}
		}
		for _, slice := range decode[discoveryv1.EndpointSlice](s, in, sliceResource) {
			if slice.Namespace != shop || slice.Labels[discoveryv1.LabelManagedBy] != managers[0] {
				continue
			}
			source := slice.Labels[sourceLabel]
			if s.mayStay(m, source) {
				continue
			}
			for _, e := range slice.Endpoints {
				have[fmt.Sprintf("%s %s %s %t", slice.Labels[discoveryv1.LabelServiceName], source,
					e.Addresses[0], *e.Conditions.Ready)] = true
			}
		}
		if lacks, surplus := minus(want, have), minus(have, want); lacks != "" || surplus != "" {
			all = append(all, fmt.Sprintf("slices in %s: lack [%s], hold in vain [%s]", in, lacks, surplus))
		}
	}
	return all
}

// reads reports whether the Service all has slices in a cluster, which a client reads. A value that cannot be read
// changes nothing.
func (m *model) reads(cluster string) bool {
	return m.slicing(cluster) && m.clusters[cluster].notes["all"][slicesAnnotation] != "disabled"
}

func (s *scenario) mirrorDifferences(m *model) (all []string) {
	s.t.Helper()
	want, have := map[string]bool{}, map[string]bool{}
	for name, c := range m.clusters {
		for service := range c.labels {
			if m.selects(name, exportedSelector, service) {
				want[service+"-"+name] = true
			}
			if m.leads(name, service) {
				want[service+"-"+name] = true
				if len(m.ready(map[string]string{name: service})) > 0 {
					want[service+"-"+name+" to "+m.links[name][gatewayAddress]] = true
				}
			}
			if m.selects(name, federatedSelector, service) {
				want[service+"-federated"] = true
			}
		}
	}
	for _, svc := range decode[corev1.Service](s, home, "services") {
		stays := false
		for cluster := range m.written(svc.Name) {
			stays = stays || s.mayStay(m, cluster)
		}
		if svc.Labels[mirroredLabel] == "true" && (want[svc.Name] || !stays) {
			have[svc.Name] = true
		}
	}
	for _, e := range decode[corev1.Endpoints](s, home, "endpoints") { //nolint:staticcheck // mirrors have them
		for _, subset := range e.Subsets {
			for _, a := range subset.Addresses {
				have[e.Name+" to "+a.IP] = true
			}
		}
	}
	if lacks, surplus := minus(want, have), minus(have, want); lacks != "" || surplus != "" {
		all = append(all, fmt.Sprintf("mirrors: lack [%s], exist in vain [%s]", lacks, surplus))
	}
	return all
}

// mayStay reports whether what was written for a cluster that is not linked may still be there. A replica that has
// neither restored the cluster nor seen it linked leaves it until Links could be back that were deleted with their CRD:
// it was started without its state, or after the cluster was unlinked, by which its state has none of it.
func (s *scenario) mayStay(m *model, cluster string) bool {
	const grace = 5*time.Minute + simSettle
	at, unlinked := s.unlinked[cluster]
	return m.clusters[cluster] == nil && slices.ContainsFunc(s.replicas, func(r *replica) bool {
		knowsNothing := r.bare || unlinked && r.began.After(at)
		return knowsNothing && time.Since(r.began) < grace
	})
}

// minus returns what is in a and not in b, sorted.
func minus[K comparable](a, b map[K]bool) string {
	var all []string
	for k := range maps.Keys(a) {
		if !b[k] {
			all = append(all, fmt.Sprint(k))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

package app_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/federation/policy/policytest"
)

// Slices and streams lead to the same endpoints. For each port of a federated Service, in each cluster with slices and
// on each node, three things are equal when everything has settled:
//
//	what kube-proxy makes of the members' own slices, each in the member's cluster, together
//	what kube-proxy makes of the slices that Fingerpost has written for the Service
//	what a client of Get holds
//
// The first has nothing in common with the others, so that a fault in what they share, such as a port that is looked up
// by its name, does not hide. A member's port is the one of the same number and protocol; its slices have it by the
// name that the member gives it.
//
// Example: the Service has dns 53/UDP, east has dns 53/TCP and name 53/UDP, and a slice with name 5353/UDP and
// 10.70.0.1 twice, terminating and ready. kube-proxy there sends 53/UDP to 10.70.0.1:5353, so our slices have it
// once, ready, in a port dns, and a client that asks for 53 is given it.
//
// Two things differ by their nature. Where nothing is ready kube-proxy falls back to what is terminating and still
// serves (KEP-1669), and a client of Get has nothing, as with Linkerd's controller: slices are compared in both, and
// streams in what is ready. Where a policy leaves some of a cluster to clients, slices are rounded once for all of
// them, so that only how many there are is compared, and that each is one of those that there could be. Members that
// are Local, and zones, are not drawn: there a client's place decides.
//
// What it is about is in a namespace of its own: the Service parcel in each cluster, which the verb publish makes, and
// the federated Service parcels of them.

const (
	depot   = "depot"
	parcel  = "parcel"
	parcels = "parcels" // federated
)

// depotNodes are those of clients, and of Pods; empty for a client that names none.
var depotNodes = []string{"", "node-1", "node-2"}

// inDepot reports whether a stream is about the Service parcels, of which the rest of the model knows nothing.
func inDepot(authority string) bool {
	return strings.HasPrefix(authority, parcels+"."+depot+".")
}

// use is what kube-proxy uses an endpoint for.
type use int

const (
	over     use = iota // nothing, and never again
	waiting             // nothing yet: not ready, not terminating
	fallback            // where nothing is ready: terminating, and still serving
	ready
)

// useOf reads conditions as kube-proxy does: what is not known is good.
func useOf(c discoveryv1.EndpointConditions) use {
	isSet := func(condition *bool, unknown bool) bool {
		return condition == nil && unknown || condition != nil && *condition
	}
	switch terminating := isSet(c.Terminating, false); {
	case isSet(c.Ready, true):
		return ready
	case !terminating:
		return waiting
	case isSet(c.Serving, true):
		return fallback
	default:
		return over
	}
}

// backend is what kube-proxy knows of an address at a port.
type backend struct {
	use     use
	node    string
	cluster string
	claims  int // how many endpoints have the address
}

// backends returns what kube-proxy finds in a Service's slices for a port, by its name and protocol. Of endpoints that
// have one address it keeps any; by Kubernetes' own controller only one of them is more than a remainder, so that of
// the most use is what counts.
func backends(
	all []*discoveryv1.EndpointSlice, port *corev1.ServicePort, clusterOf func(*discoveryv1.EndpointSlice) string,
) map[netip.AddrPort]backend {
	found := map[netip.AddrPort]backend{}
	for _, es := range all {
		i := slices.IndexFunc(es.Ports, func(p discoveryv1.EndpointPort) bool {
			return *p.Name == port.Name && *p.Protocol == port.Protocol
		})
		if i < 0 {
			continue
		}
		for _, e := range es.Endpoints {
			addr := netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*es.Ports[i].Port))
			b := found[addr]
			if use := useOf(e.Conditions); b.claims == 0 || use > b.use {
				b.use = use
			}
			b.claims, b.cluster = b.claims+1, clusterOf(es)
			if e.NodeName != nil {
				b.node = *e.NodeName
			}
			found[addr] = b
		}
	}
	return found
}

// depotOf is what there is in the namespace in one cluster.
type depotOf struct {
	services map[string]*corev1.Service
	slices   map[string][]*discoveryv1.EndpointSlice // by Service, of all writers
}

func (s *scenario) readDepot(cluster string) *depotOf {
	s.t.Helper()
	d := &depotOf{map[string]*corev1.Service{}, map[string][]*discoveryv1.EndpointSlice{}}
	for _, svc := range decode[corev1.Service](s, cluster, "services") {
		if svc.Namespace == depot {
			d.services[svc.Name] = svc
		}
	}
	for _, es := range decode[discoveryv1.EndpointSlice](s, cluster, sliceResource) {
		if es.Namespace == depot {
			of := es.Labels[discoveryv1.LabelServiceName]
			d.slices[of] = append(d.slices[of], es)
		}
	}
	return d
}

// membersHave returns what kube-proxy finds in the members' clusters for a port of the federated Service. No address is
// in two of them.
func membersHave(depots map[string]*depotOf, port *corev1.ServicePort) map[netip.AddrPort]backend {
	all := map[netip.AddrPort]backend{}
	for cluster, d := range depots {
		svc := d.services[parcel]
		if svc == nil {
			continue
		}
		for i := range svc.Spec.Ports {
			own := &svc.Spec.Ports[i]
			if own.Port != port.Port || own.Protocol != port.Protocol {
				continue
			}
			of := func(*discoveryv1.EndpointSlice) string { return cluster }
			maps.Copy(all, backends(d.slices[parcel], own, of))
		}
	}
	return all
}

// near returns the addresses of some use to a client on a node. Where the node counts these are Pods there, of the
// Service's own cluster. Of an address that several endpoints have, none of which is ready, kube-proxy keeps any: it is
// left out.
func near(
	all map[netip.AddrPort]backend, of use, in, node string, local bool, contested map[netip.AddrPort]backend,
) map[netip.AddrPort]bool {
	found := map[netip.AddrPort]bool{}
	for addr, b := range all {
		isNear := !local || b.cluster == in && node != "" && b.node == node
		if b.use == of && isNear && (of == ready || contested[addr].claims < 2) {
			found[addr] = true
		}
	}
	return found
}

// kubeProxyDifferences returns where that law does not hold.
func (s *scenario) kubeProxyDifferences(m *model, now time.Time) (all []string) {
	s.t.Helper()
	if s.network.Server(home).Get("services", depot, parcels) == nil ||
		slices.ContainsFunc(sortedKeys(m.clusters), m.limited) {
		return nil
	}
	depots := map[string]*depotOf{}
	for _, name := range sortedKeys(m.clusters) {
		depots[name] = s.readDepot(name)
	}
	for _, in := range sortedKeys(depots) {
		if m.slicing(in) && depots[in].services[parcels] != nil {
			all = append(all, s.writtenDifferences(m, depots, in, now)...)
		}
	}
	for _, name := range s.opened {
		if st, is := s.streams[name].(*proxy.Stream); is && inDepot(st.Request().Authority) {
			all = append(all, m.heldDifferences(name, st, depots, now)...)
		}
	}
	return all
}

// writtenDifferences compares what kube-proxy makes of the slices in a cluster with what it does where the members are.
func (s *scenario) writtenDifferences(
	m *model, depots map[string]*depotOf, in string, now time.Time,
) (all []string) {
	report := func(format string, args ...any) {
		all = append(all, fmt.Sprintf("kube-proxy in "+in+": "+format, args...))
	}
	svc := depots[in].services[parcels]
	local := isLocal(svc)
	perPort := make([]map[netip.AddrPort]backend, len(svc.Spec.Ports))
	could, does := map[string]uses{}, map[string]uses{}
	for i := range svc.Spec.Ports {
		perPort[i] = membersHave(depots, &svc.Spec.Ports[i])
		addUses(could, perPort[i], true)
	}
	counts, whole := m.shared(could, now, policytest.Rounded)

	for i := range svc.Spec.Ports {
		port, want := &svc.Spec.Ports[i], perPort[i]
		have := backends(s.known(m, depots[in].slices[parcels]), port, sourceOf)
		addUses(does, have, true)
		at := fmt.Sprintf("port %s %d/%s", port.Name, port.Port, port.Protocol)
		for addr, b := range have {
			if b.claims > 1 || b.cluster != want[addr].cluster {
				report("%s: %s is there %d times, of %s", at, addr, b.claims, b.cluster)
			}
		}

		for _, node := range depotNodes {
			for _, of := range []use{ready, fallback} {
				given, written := near(want, of, in, node, local, want), near(have, of, in, node, local, want)
				lacks, surplus := minus(given, written), minus(written, given)
				if whole && lacks != "" || surplus != "" {
					report("%s on node %q: lacks [%s], has in vain [%s] for use %d", at, node, lacks, surplus, of)
				}
			}
		}
	}

	for cluster, want := range counts {
		if n := count(does[cluster], ready); n != want {
			report("has %d ready addresses of %s, want %d", n, cluster, want)
		}
	}
	return all
}

// known leaves out what may stay of clusters that are not linked.
func (s *scenario) known(m *model, all []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(slices.Clone(all), func(es *discoveryv1.EndpointSlice) bool {
		return s.mayStay(m, sourceOf(es))
	})
}

func sourceOf(es *discoveryv1.EndpointSlice) string { return es.Labels[sourceLabel] }

func isLocal(svc *corev1.Service) bool {
	policy := svc.Spec.InternalTrafficPolicy
	return policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal
}

// heldDifferences compares what a client holds with what kube-proxy makes of the members' slices.
func (m *model) heldDifferences(
	name string, st *proxy.Stream, depots map[string]*depotOf, now time.Time,
) (all []string) {
	svc := depots[home].services[parcels]
	port := askedPort(svc, st.Request().Authority)
	if port == nil {
		return nil // a port that it does not declare is no port of the union
	}
	node, local := nodeNameOf(st.Request().Token), isLocal(svc)
	have := membersHave(depots, port)
	want, held := near(have, ready, home, node, local, have), map[netip.AddrPort]bool{}
	heldOf := map[string]int{}
	for _, a := range st.Holds() {
		held[a.Addr] = true
		heldOf[have[a.Addr].cluster]++
	}

	could := map[string]uses{}
	addUses(could, have, false)
	counts, whole := m.shared(could, now, func(shares []*big.Rat, parts []policytest.Part) []int {
		return policytest.Given(shares, parts)[policytest.SixteenthOf(node, m.nodes)]
	})

	lacks, surplus := minus(want, held), minus(held, want)
	if whole && lacks != "" || surplus != "" {
		all = append(all, fmt.Sprintf("get %s of %s on node %q: lacks [%s], holds in vain [%s]",
			name, st.Request().Authority, node, lacks, surplus))
	}
	for cluster, n := range counts {
		// Of a Service that is Local a client is given a share of what runs on its node.
		if !local && heldOf[cluster] != n {
			all = append(all, fmt.Sprintf("get %s: holds %d of %s, want %d", name, heldOf[cluster], cluster, n))
		}
	}
	return all
}

// askedPort returns the port of a Service that an authority names: who asks for a number means TCP where there is that.
func askedPort(svc *corev1.Service, authority string) (asked *corev1.ServicePort) {
	_, number, _ := strings.Cut(authority, ":")
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if strconv.Itoa(int(p.Port)) == number && (asked == nil || p.Protocol == corev1.ProtocolTCP) {
			asked = p
		}
	}
	return asked
}

// uses is what addresses are of use for. Those in slices have no port here: a policy takes or leaves them at all ports.
type uses map[netip.AddrPort]use

// addUses adds those of each cluster, at the port where that is most.
func addUses(to map[string]uses, all map[netip.AddrPort]backend, atAnyPort bool) {
	for addr, b := range all {
		if to[b.cluster] == nil {
			to[b.cluster] = uses{}
		}
		if atAnyPort {
			addr = netip.AddrPortFrom(addr.Addr(), 0)
		}
		to[b.cluster][addr] = max(to[b.cluster][addr], b.use)
	}
}

func count(all uses, of use) (n int) {
	for _, u := range all {
		if u == of {
			n++
		}
	}
	return n
}

// shared returns how many addresses of each cluster are given, as a rule has it, and whether they are all.
func (m *model) shared(
	could map[string]uses, now time.Time, rule func([]*big.Rat, []policytest.Part) []int,
) (counts map[string]int, whole bool) {
	var parts []policytest.Part
	for _, name := range sortedKeys(m.clusters) {
		n := count(could[name], ready)
		parts = append(parts, m.part(parcels, name, n, n+count(could[name], waiting), now))
	}
	counts, whole = map[string]int{}, true
	for i, n := range rule(policytest.Policy{}.Shares(home, localRegion, parts), parts) {
		counts[parts[i].Cluster] = n
		whole = whole && n == parts[i].Ready
	}
	return counts, whole
}

// publish makes a Service have these ports, and slices with these endpoints, whatever Kubernetes' own controller would
// make of them:
//
//	publish CLUSTER NAMESPACE/SERVICE [unready] PORT ... [slice PORT,... ENDPOINT ...] ...
//
// A port is NAME:NUMBER/PROTOCOL. An endpoint is a number, which decides about its address and what its targetRef
// names, and after a colon its conditions that are true, of r, s and t; without a colon it has none. With unready
// the Service publishes what is not ready.
func (s *scenario) publish(cluster, namespace, name string, words []string) {
	s.t.Helper()
	spec := map[string]any{}
	if words[0] == "unready" {
		spec["publishNotReadyAddresses"], words = true, words[1:]
	}
	isSlice := func(word string) bool { return word == "slice" }
	end := len(words)
	if i := slices.IndexFunc(words, isSlice); i >= 0 {
		end = i
	}
	spec["ports"] = portObjects(words[:end])
	s.applyObject(cluster, "v1", "Service", namespace, name, nil, map[string]any{"spec": spec})

	specs := map[string]map[string]any{}
	for words = words[end:]; len(words) > 0; words = words[end:] {
		words = words[1:]
		if end = slices.IndexFunc(words, isSlice); end < 0 {
			end = len(words)
		}
		endpoints := []any{}
		for _, word := range words[1:end] {
			endpoints = append(endpoints, s.endpointObject(cluster, namespace, name, word))
		}
		specs[fmt.Sprintf("%s-%d", name, len(specs))] = map[string]any{
			"addressType": "IPv4", "endpoints": endpoints, "ports": portObjects(strings.Split(words[0], ",")),
		}
	}

	s.settleEvents() // in which order the watches deliver Pods and slices is not known otherwise
	for _, slice := range sortedKeys(specs) {
		of := map[string]any{discoveryv1.LabelServiceName: name}
		s.applyObject(cluster, "discovery.k8s.io/v1", "EndpointSlice", namespace, slice, of, specs[slice])
	}
	for _, es := range decode[discoveryv1.EndpointSlice](s, cluster, sliceResource) {
		of := es.Labels[discoveryv1.LabelServiceName] == name && es.Labels[discoveryv1.LabelManagedBy] == ""
		if es.Namespace == namespace && of && specs[es.Name] == nil {
			s.network.Server(cluster).Delete("EndpointSlice", namespace, es.Name)
		}
	}
	s.settleEvents()
}

// portObjects returns NAME:NUMBER/PROTOCOL as ports of objects.
func portObjects(words []string) []any {
	all := []any{}
	for _, word := range words {
		name, rest, _ := strings.Cut(word, ":")
		number, protocol, _ := strings.Cut(rest, "/")
		n, err := strconv.Atoi(number)
		if err != nil {
			panic(fmt.Errorf("port %s: %w", word, err))
		}
		all = append(all, map[string]any{"name": name, "port": int64(n), "protocol": protocol})
	}
	return all
}

// endpointKinds are what the targetRefs of endpoints name, by their numbers; empty for none.
var endpointKinds = []string{"Pod", "", "Node", "Pod", "VirtualMachine"}

func (s *scenario) endpointObject(cluster, namespace, service, word string) map[string]any {
	number, set, has := strings.Cut(word, ":")
	n, err := strconv.Atoi(number)
	if err != nil {
		s.t.Fatalf("publish: endpoint %s: %v", word, err)
	}
	workload, address := fmt.Sprintf("%s-%d", service, n), podAddress(cluster, service, n)
	conditions := map[string]any{}
	for _, condition := range []string{"ready", "serving", "terminating"} {
		if has {
			conditions[condition] = strings.Contains(set, condition[:1])
		}
	}
	e := map[string]any{"addresses": []any{address}, "conditions": conditions}
	kind := endpointKinds[n%len(endpointKinds)]
	if kind != "" {
		e["targetRef"] = map[string]any{"kind": kind, "namespace": namespace, "name": workload}
	}
	if kind == "Pod" {
		node := depotNodes[1+n/len(endpointKinds)%2]
		e["nodeName"] = node
		if s.network.Server(cluster).Get("pods", namespace, workload) == nil {
			s.applyWorkload(cluster, kind, namespace, workload, service, address, true)
			s.place(cluster, namespace, workload, node)
		}
	}
	return e
}

// place binds a Pod to a node.
func (s *scenario) place(cluster, namespace, pod, node string) {
	o := s.network.Server(cluster).Get("pods", namespace, pod)
	if err := unstructured.SetNestedField(o.Object, node, "spec", "nodeName"); err != nil {
		s.t.Fatal(err)
	}
	s.network.Server(cluster).Apply(o)
}

// depotDraws are what a history draws of all that. They have a source of chance of their own: a history is otherwise
// the same with them and without.
type depotDraws struct {
	random  *rand.Rand
	largest int // number of an endpoint
}

// newDepotDraws returns what to draw from; nil in two of three histories.
func newDepotDraws(seed uint64, policies bool) *depotDraws {
	d := &depotDraws{rand.New(rand.NewPCG(seed, 1)), 9}
	if policies {
		d.largest = 5 // so few that the share of a cluster which is guarded is about the same
	}
	if d.random.IntN(3) > 0 {
		return nil
	}
	return d
}

// asked are the ports of which there are streams.
var asked = []string{"80/TCP", "80/UDP", "81/TCP", "53/UDP", "443/TCP"}

// ports draws ports of a Service: their names mean nothing, and are others in each cluster.
func (d *depotDraws) ports() (all []string) {
	names := []string{"http", "web", "dns", "admin", "more"}
	d.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for i, port := range asked {
		if d.random.IntN(3) > 0 {
			all = append(all, names[i]+":"+port)
		}
	}
	if all == nil {
		all = []string{names[0] + ":" + asked[0]}
	}
	return all
}

// publishing draws what a Service is in a cluster.
func (d *depotDraws) publishing(cluster string) string {
	ports, unready, line := d.ports(), d.random.IntN(6) == 0, "publish "+cluster+" "+depot+"/"+parcel
	if unready {
		line += " unready"
	}
	line += " " + strings.Join(ports, " ")
	ends := d.random.IntN(5) == 0 // none is ready
	for range 1 + d.random.IntN(3) {
		of := []string{}
		for i, port := range ports {
			name, rest, _ := strings.Cut(port, ":")
			_, protocol, _ := strings.Cut(rest, "/")
			if d.random.IntN(8) == 0 { // not yet, or no more, the port of this name
				protocol = map[string]string{"TCP": "UDP", "UDP": "TCP"}[protocol]
			}
			if d.random.IntN(6) > 0 {
				of = append(of, fmt.Sprintf("%s:%d/%s", name, 8000+10*i+d.random.IntN(2), protocol))
			}
		}
		if len(of) == 0 {
			continue
		}
		line += " slice " + strings.Join(of, ",")
		for range d.random.IntN(5) {
			line += " " + d.endpoint(ends, unready)
		}
	}
	return line
}

// endpoint draws one. Their numbers are few, so that many addresses stand twice.
func (d *depotDraws) endpoint(ends, unready bool) string {
	all := []string{"", ":rs", ":rs", ":rs", ":", ":s", ":st", ":st", ":t"}
	switch {
	case unready:
		all = []string{":rs", ":r", ":rt", ":rst"}
	case ends:
		all = []string{":", ":st", ":st", ":t"}
	}
	return strconv.Itoa(1+d.random.IntN(d.largest)) + all[d.random.IntN(len(all))]
}

// prepareDepot adds the Services, and streams to the federated one in the local cluster. It is federated in linked
// clusters as well if slices are written there.
func (h *history) prepareDepot() {
	if h.depot == nil {
		return
	}
	add := func(format string, args ...any) { h.setup = append(h.setup, fmt.Sprintf(format, args...)) }
	members := make([]string, len(h.clusters))
	for i, name := range h.clusters {
		add("%s", h.depot.publishing(name))
		members[i] = parcel + "@" + name
	}
	members[0] = parcel
	for i, name := range h.clusters {
		if name != home && (!h.slicing || !byLink(name)) {
			continue
		}
		of := slices.Clone(members) // as this cluster names them
		of[0], of[i] = parcel+"@"+home, parcel
		add("publish %s %s/%s %s", name, depot, parcels, strings.Join(h.depot.ports(), " "))
		add(`patch %s Service %s/%s {"metadata":{"annotations":{%q:%q,%q:"enabled"}}}`,
			name, depot, parcels, membersOf, strings.Join(of, ","), slicesAnnotation)
	}
	for i, port := range []string{"80", "80", "80", "81", "53", "443"} {
		token := `{"ns":"depot"}`
		if node := depotNodes[i%len(depotNodes)]; node != "" && i < len(depotNodes) {
			token = fmt.Sprintf(`{"ns":"depot","nodeName":%q}`, node)
		}
		add("get o%d %s.%s.svc.mycluster.local:%s via=replica-%d token=%q", i+1, parcels, depot, port, 1+i%2, token)
	}
}

// depotRound draws what becomes of it in a round.
func (h *history) depotRound(from, to time.Duration) {
	if h.depot == nil {
		return
	}
	d := h.depot
	for range 2 + d.random.IntN(5) {
		at := from + time.Duration(d.random.Int64N(int64(to-from)))
		line := d.publishing(h.clusters[d.random.IntN(len(h.clusters))])
		if d.random.IntN(4) == 0 {
			line = d.changing()
		}
		h.deeds = append(h.deeds, deed{{at, line}})
	}
}

// changing draws another federated Service.
func (d *depotDraws) changing() string {
	spec := map[string]any{}
	if d.random.IntN(2) == 0 {
		spec["internalTrafficPolicy"] = []string{"Local", "Cluster"}[d.random.IntN(2)]
	} else {
		spec["ports"] = portObjects(d.ports())
	}
	text, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		panic(err)
	}
	return "patch " + home + " Service " + depot + "/" + parcels + " " + string(text)
}

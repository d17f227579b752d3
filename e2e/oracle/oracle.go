// Package oracle returns what a proxy should receive, computed from nothing but what the API servers hold now:
// one function without memory, read top-down. It shares no code with the server, on purpose, and is as slow
// as it is plain.
package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A Config is what the server's flags set.
type Config struct {
	ControlPlane    string // namespace of the mesh's control plane
	DefaultOpaque   string // ports, as an annotation lists them
	IPv6            bool
	H2Upgrade       bool
	ZoneWeights     bool
	TransportHeader bool
	Endpoints       bool // are read instead of EndpointSlices
}

// A World is everything that the API servers hold in one namespace.
type World struct {
	Config
	Local  *Cluster
	Linked map[string]*Cluster // by name; only those whose credentials are there
}

// A Cluster is one listing of one API server. Objects are in maps by name.
type Cluster struct {
	Name        string
	TrustDomain string
	Services    map[string]*corev1.Service
	Slices      map[string]*discoveryv1.EndpointSlice
	Pods        map[string]*corev1.Pod
	Nodes       map[string]*corev1.Node
	Externals   map[string]*External
	Servers     map[string]*Server
	ReplicaSets map[string]*metav1.PartialObjectMetadata
	Jobs        map[string]*metav1.PartialObjectMetadata
	Profiles    map[string]map[string]*ServiceProfile // by namespace, and name
}

// An External is an ExternalWorkload.
type External struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		MeshTLS struct {
			Identity   string `json:"identity"`
			ServerName string `json:"serverName"`
		} `json:"meshTLS"`
		Ports []struct {
			Name string `json:"name"`
			Port int32  `json:"port"`
		} `json:"ports"`
		WorkloadIPs []struct {
			IP string `json:"ip"`
		} `json:"workloadIPs"`
	} `json:"spec"`
}

// A Server is one of Linkerd's policy.
type Server struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		PodSelector              *metav1.LabelSelector `json:"podSelector,omitempty"`
		ExternalWorkloadSelector *metav1.LabelSelector `json:"externalWorkloadSelector,omitempty"`
		Port                     intstr.IntOrString    `json:"port"`
		ProxyProtocol            string                `json:"proxyProtocol"`
	} `json:"spec"`
}

// A ServiceProfile is as much of one as is compared.
type ServiceProfile struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Routes []struct {
			Name      string `json:"name"`
			Condition struct {
				Method string `json:"method"`
			} `json:"condition"`
		} `json:"routes"`
		RetryBudget *struct {
			RetryRatio          float32 `json:"retryRatio"`
			MinRetriesPerSecond uint32  `json:"minRetriesPerSecond"`
			TTL                 string  `json:"ttl"`
		} `json:"retryBudget"`
		DstOverrides []struct {
			Authority string `json:"authority"`
			Weight    string `json:"weight"` // a whole number
		} `json:"dstOverrides"`
	} `json:"spec"`
}

// A Question is what a proxy asks, and what it states about itself.
type Question struct {
	Service, Hostname string
	Port              uint16
	Node              string
}

// An Answer is what a proxy should hold, or why a stream that is opened now is refused. A stream that was
// served before holds nothing instead of being refused, unless Ends.
type Answer struct {
	Refused   codes.Code // OK: it is not
	Ends      bool       // and streams that are open end with the same code
	Kept      bool       // what a stream that is open received before stays
	Addresses map[netip.AddrPort]Address
	Profiles  []Profile // of a Lookup: any of these
}

// An Address is what a proxy acts on. Labels are those of the address and of its message together.
type Address struct {
	Weight      uint32
	Identity    string // "dns <name>" or "uri <uri>"; empty for none
	ServerName  string
	Hint        string // "h2", "opaque", "unset" for a hint without a protocol; empty for none
	InboundPort uint32 // of an opaque transport; 0 for none
	Authority   string // the override
	Labels      map[string]string
}

// SlicesOf returns EndpointSlices with the content of Endpoints: one for each subset.
//
//nolint:staticcheck // who reads Endpoints was asked to
func SlicesOf(e *corev1.Endpoints) (all []*discoveryv1.EndpointSlice) {
	for i, subset := range e.Subsets {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s#%04d", e.Name, i), Namespace: e.Namespace, Labels: maps.Clone(e.Labels),
			Annotations: e.Annotations,
		}}
		if s.Labels == nil {
			s.Labels = map[string]string{}
		}
		s.Labels["kubernetes.io/service-name"] = e.Name
		for _, p := range subset.Ports {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port})
		}
		for i, a := range slices.Concat(subset.Addresses, subset.NotReadyAddresses) {
			ready := i < len(subset.Addresses)
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
				Hostname: &a.Hostname, TargetRef: a.TargetRef,
			})
		}
		all = append(all, s)
	}
	return all
}

// Answer is the rule of rules.
func (w *World) Answer(q Question) Answer {
	svc := w.Local.Services[q.Service]
	if svc == nil {
		return Answer{Refused: codes.NotFound}
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return Answer{Refused: codes.InvalidArgument, Ends: true}
	}
	members, refused := w.members(svc)
	if refused != codes.OK {
		return Answer{
			Refused: refused,
			Ends:    refused == codes.InvalidArgument,
			Kept:    refused == codes.FailedPrecondition,
		}
	}
	var all []candidate
	for _, m := range members {
		of := w.candidates(m, q)
		switch {
		case isUnion(svc) && isLocal(svc):
			of = only(of, func(c candidate) bool { return w.runsOn(c, q.Node) })
		case m.filtered:
			of = w.near(of, of, m.service, q.Node)
		}
		all = append(all, of...)
	}
	if given, divided := w.divide(svc, members, q); divided {
		all = given
	}
	all = oneFamily(all)
	answer := Answer{Addresses: map[netip.AddrPort]Address{}}
	for _, c := range w.counting(q, all) {
		answer.Addresses[c.addr] = w.describe(c, q)
	}
	return answer
}

// counting returns of all claims to an address the one that counts. Of those of a cluster only such in the best
// condition stand: what is terminating, or does not serve, has left its address to another Pod.
func (w *World) counting(q Question, all []candidate) []candidate {
	all = only(all, func(c candidate) bool {
		return !slices.ContainsFunc(all, func(o candidate) bool {
			return o.addr == c.addr && o.cluster == c.cluster && o.condition() < c.condition()
		})
	})
	slices.SortFunc(all, func(a, b candidate) int { return w.compareClaims(q, a, b) })
	return slices.CompactFunc(all, func(a, b candidate) bool { return a.addr == b.addr })
}

// condition is lower the better.
func (c candidate) condition() (worse int) {
	if terminating := c.endpoint.Conditions.Terminating; terminating != nil && *terminating {
		worse += 2
	}
	if serving := c.endpoint.Conditions.Serving; serving != nil && !*serving {
		worse++
	}
	return worse
}

// runsOn reports whether a candidate is a Pod on a node of the clients' cluster.
func (w *World) runsOn(c candidate, node string) bool {
	return c.cluster == w.Local && c.pod != nil && c.pod.Spec.NodeName == node
}

// A member is a Service of some cluster that makes up the one that is asked for, or is that one.
type member struct {
	cluster  *Cluster
	service  *corev1.Service
	filtered bool // by zone and node: clients are near to, or far from, endpoints of their own cluster only
	plain    bool // it is the Service that is asked for
}

// isUnion reports whether a Service is federated: it has either annotation, even if that is empty.
func isUnion(svc *corev1.Service) bool {
	_, isRemote := svc.Annotations["multicluster.linkerd.io/remote-discovery"]
	_, isLocal := svc.Annotations["multicluster.linkerd.io/local-discovery"]
	return isRemote || isLocal
}

// members returns what a Service consists of. Members stand for themselves: what they would consist of does not matter.
func (w *World) members(svc *corev1.Service) ([]member, codes.Code) {
	// Federated, if either annotation is there. This goes before the label.
	remote := svc.Annotations["multicluster.linkerd.io/remote-discovery"]
	local := svc.Annotations["multicluster.linkerd.io/local-discovery"]
	if isUnion(svc) {
		var members []member
		if m := w.Local.Services[local]; m != nil {
			members = append(members, member{cluster: w.Local, service: m, filtered: true})
		}
		seen := map[string]bool{}
		for item := range strings.SplitSeq(remote, ",") {
			parts := strings.Split(item, "@")
			if len(parts) != 2 || seen[item] {
				continue // it cannot be read, and the others count all the same
			}
			seen[item] = true
			cluster := w.Linked[parts[1]]
			if cluster == nil {
				continue // it joins when it is linked
			}
			if m := cluster.Services[parts[0]]; m != nil {
				members = append(members, member{cluster: cluster, service: m})
			}
		}
		return members, codes.OK
	}
	// The mirror of one Service of another cluster.
	if name, isMirror := svc.Labels["multicluster.linkerd.io/remote-discovery"]; isMirror {
		if svc.Labels["multicluster.linkerd.io/remote-service"] == "" {
			return nil, codes.FailedPrecondition // half-made
		}
		cluster := w.Linked[name]
		if cluster == nil {
			return nil, codes.NotFound
		}
		m := cluster.Services[svc.Labels["multicluster.linkerd.io/remote-service"]]
		switch {
		case m == nil:
			return nil, codes.OK // nothing, and the stream stays open
		case m.Spec.Type == corev1.ServiceTypeExternalName:
			return nil, codes.InvalidArgument
		}
		return []member{{cluster: cluster, service: m}}, codes.OK
	}
	return []member{{cluster: w.Local, service: svc, filtered: true, plain: true}}, codes.OK
}

// A candidate is one address of one endpoint, with the resident that answers there.
type candidate struct {
	member
	slice    *discoveryv1.EndpointSlice
	index    int
	endpoint discoveryv1.Endpoint
	addr     netip.AddrPort
	pod      *corev1.Pod // or
	external *External   // or neither: a bare address
}

// candidates returns the addresses of a member, wherever the client is.
func (w *World) candidates(m member, q Question) []candidate {
	return w.candidatesThat(m, q, func(c discoveryv1.EndpointConditions) bool {
		return c.Ready == nil || *c.Ready // not set is ready; serving and terminating do not count
	})
}

func (w *World) candidatesThat(m member, q Question, are func(discoveryv1.EndpointConditions) bool) []candidate {
	if m.service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil // it has no addresses, whatever slices name it
	}
	var all []candidate
	for _, slice := range m.cluster.Slices {
		if serviceOf(slice) != m.service.Name {
			continue
		}
		port := targetPort(m, slice, q.Port, w.protocolOf(q))
		if port == 0 {
			continue
		}
		for i, e := range slice.Endpoints {
			if !are(e.Conditions) {
				continue
			}
			if q.Hostname != "" && (e.Hostname == nil || *e.Hostname != q.Hostname) {
				continue
			}
			c, known := m.answering(slice, i)
			if !known {
				continue
			}
			for _, text := range e.Addresses {
				ip, err := netip.ParseAddr(text)
				if err != nil {
					continue
				}
				if ip.Is6() && !w.IPv6 && c.workload() != "" {
					continue // a workload is not reached over IPv6; a bare address has no other
				}
				c.addr = netip.AddrPortFrom(ip, port)
				all = append(all, c)
			}
		}
	}
	return all
}

// answering returns who answers at an endpoint; none that is known if it is not there (yet). Of other kinds nothing is
// known but the address.
func (m member) answering(slice *discoveryv1.EndpointSlice, i int) (c candidate, known bool) {
	c = candidate{member: m, slice: slice, index: i, endpoint: slice.Endpoints[i]}
	ref := c.endpoint.TargetRef
	if ref == nil {
		return c, true
	}
	switch ref.Kind {
	case "Pod":
		c.pod = m.cluster.Pods[ref.Name]
	case "ExternalWorkload":
		c.external = m.cluster.Externals[ref.Name]
	default:
		return c, true
	}
	return c, c.pod != nil || c.external != nil
}

// serviceOf is the label's Service; without the label, an owner.
func serviceOf(slice *discoveryv1.EndpointSlice) string {
	if name, set := slice.Labels["kubernetes.io/service-name"]; set {
		return name
	}
	for _, o := range slice.OwnerReferences {
		if o.Kind == "Service" {
			return o.Name
		}
	}
	return ""
}

// targetPort is the number of a Service's port at the endpoints of a slice; 0 for none.
func targetPort(m member, slice *discoveryv1.EndpointSlice, requested uint16, protocol corev1.Protocol) uint16 {
	// A port without a number is as good as none (B29), and a slice without ports leads nowhere.
	ports := slices.DeleteFunc(slices.Clone(slice.Ports),
		func(p discoveryv1.EndpointPort) bool { return p.Port == nil })
	if len(ports) == 0 {
		return 0
	}
	declared := declares(m.service, requested, protocol)
	if declared == nil {
		// A port that is not declared is taken as it is; but a member that does not declare it contributes nothing.
		if m.plain {
			return requested
		}
		return 0
	}
	var byNumber uint16
	for _, p := range ports {
		switch {
		case transport(p.Protocol) != protocol: // the same name, or number, of another port
		case p.Name != nil && *p.Name == declared.Name, p.Name == nil && declared.Name == "":
			return uint16(*p.Port)
		case *p.Port == int32(declared.TargetPort.IntValue()) && declared.TargetPort.Type == intstr.Int:
			byNumber = uint16(*p.Port) // the port was renamed, and the slice does not know it yet (F20)
		}
	}
	return byNumber
}

// declares returns the Service's port of a number and a protocol; nil for none.
func declares(svc *corev1.Service, number uint16, protocol corev1.Protocol) *corev1.ServicePort {
	for _, p := range svc.Spec.Ports {
		if p.Port == int32(number) && transport(&p.Protocol) == protocol {
			return &p
		}
	}
	return nil
}

// protocolOf is what a client means, who names a number: what the Service itself has there, or its members have, if it
// has nothing; TCP before UDP before SCTP.
func (w *World) protocolOf(q Question) corev1.Protocol {
	svc := w.Local.Services[q.Service]
	members, _ := w.members(svc)
	others := make([]*corev1.Service, 0, len(members))
	for _, m := range members {
		others = append(others, m.service)
	}
	for _, among := range [][]*corev1.Service{{svc}, others} {
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
			if slices.ContainsFunc(
				among,
				func(s *corev1.Service) bool { return declares(s, q.Port, protocol) != nil },
			) {
				return protocol
			}
		}
	}
	return corev1.ProtocolTCP
}

// transport is the protocol of a port; none is TCP.
func transport(p *corev1.Protocol) corev1.Protocol {
	if p == nil || *p == "" {
		return corev1.ProtocolTCP
	}
	return *p
}

// near leaves what a client on a node should use of its own cluster's addresses, among those of all that it may use.
func (w *World) near(some, all []candidate, svc *corev1.Service, node string) []candidate {
	if isLocal(svc) {
		// Even if that is nothing.
		return only(some, func(c candidate) bool { return c.pod != nil && c.pod.Spec.NodeName == node })
	}
	// Zone hints count if every address has them, and if they leave any.
	if slices.ContainsFunc(all, func(c candidate) bool { return len(hints(c)) == 0 }) {
		return some
	}
	zone := w.zoneOf(node)
	if here := only(some, func(c candidate) bool {
		return zone != "" && slices.Contains(hints(c), zone)
	}); len(here) > 0 {
		return here
	}
	return some
}

func isLocal(svc *corev1.Service) bool {
	p := svc.Spec.InternalTrafficPolicy
	return p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal
}

func hints(c candidate) (zones []string) {
	if c.endpoint.Hints != nil {
		for _, z := range c.endpoint.Hints.ForZones {
			zones = append(zones, z.Name)
		}
	}
	return zones
}

// zoneOf is where a client is: a node of the local cluster, whichever cluster the endpoint is in.
func (w *World) zoneOf(node string) string {
	if n := w.Local.Nodes[node]; n != nil {
		return n.Labels["topology.kubernetes.io/zone"]
	}
	return ""
}

// oneFamily leaves of a workload that has both families IPv6 only. It comes after nearness, so IPv4 stays
// where that took IPv6 away.
func oneFamily(all []candidate) []candidate {
	has6 := map[string]bool{}
	for _, c := range all {
		if c.addr.Addr().Is6() {
			has6[c.workload()] = true
		}
	}
	return only(all, func(c candidate) bool { return c.workload() == "" || c.addr.Addr().Is6() || !has6[c.workload()] })
}

// workload names who answers; empty for a bare address.
func (c candidate) workload() string {
	switch {
	case c.pod != nil:
		return c.cluster.Name + " pod " + c.pod.Name
	case c.external != nil:
		return c.cluster.Name + " external " + c.external.Name
	}
	return ""
}

// compareClaims orders several claims to one address, the one that counts first: the local cluster's, then
// one with an identity, then by name of cluster, Service, workload (Pods, ExternalWorkloads, bare addresses)
// and slice.
func (w *World) compareClaims(q Question, a, b candidate) int {
	if c := a.addr.Compare(b.addr); c != 0 {
		return c
	}
	declared := declares(
		a.service,
		q.Port,
		w.protocolOf(q),
	) != nil // b's too: members of a union that do not are left out
	unproven := func(c candidate) int {
		if !declared { // such ports share one Set, so ports that a proxy skips cannot count
			c.addr = netip.AddrPortFrom(c.addr.Addr(), 0)
		}
		if w.describe(c, q).Identity == "" {
			return 1
		}
		return 0
	}
	copied := func(c candidate) int { // from another cluster, by the label of KEP-1645
		return min(1, len(c.slice.Labels["multicluster.kubernetes.io/source-cluster"]))
	}
	rank := func(c candidate) (remote, unfiltered, kind int, name string) {
		if c.cluster != w.Local || copied(c) == 1 {
			remote = 1
		}
		if !c.filtered {
			unfiltered = 1
		}
		switch {
		case c.pod != nil:
			return remote, unfiltered, 0, c.pod.Name
		case c.external != nil:
			return remote, unfiltered, 1, c.external.Name
		}
		return remote, unfiltered, 2, ""
	}
	ar, au, ak, an := rank(a)
	br, bu, bk, bn := rank(b)
	return cmp.Or(
		cmp.Compare(ar, br), cmp.Compare(unproven(a), unproven(b)), cmp.Compare(copied(a), copied(b)),
		cmp.Compare(au, bu),
		cmp.Compare(a.cluster.Name, b.cluster.Name), cmp.Compare(a.service.Name, b.service.Name),
		cmp.Compare(ak, bk), cmp.Compare(an, bn), cmp.Compare(a.slice.Name, b.slice.Name),
		cmp.Compare(a.index, b.index),
	)
}

// describe returns everything about one address.
func (w *World) describe(c candidate, q Question) Address {
	a := Address{
		Weight: 10_000,
		Labels: map[string]string{
			"service":       c.service.Name,
			"namespace":     c.service.Namespace,
			"zone_locality": "unknown",
		},
	}
	// Marks of gateways, and identities of any trust domain, count in the local cluster only.
	here := c.cluster == w.Local
	if cluster := c.slice.Labels["mirror.linkerd.io/cluster-name"]; cluster != "" && here {
		a.Labels["target_cluster"] = cluster
		if parts := strings.Split(c.slice.Annotations["mirror.linkerd.io/remote-svc-fq-name"], "."); len(parts) >= 2 {
			a.Labels["target_service"], a.Labels["target_service_namespace"] = parts[0], parts[1]
		}
	}
	if c.pod == nil && c.external == nil {
		if here {
			w.gateway(&a, c, q)
		}
		return a
	}
	// Where it is: of a bare address that is not known.
	zone, mine := "", w.zoneOf(q.Node)
	if c.endpoint.Zone != nil {
		zone = *c.endpoint.Zone
	}
	a.Labels["zone"] = zone
	switch {
	case zone == "" || mine == "":
	case zone != mine:
		a.Labels["zone_locality"] = "remote"
	default:
		a.Labels["zone_locality"] = "local"
		if w.ZoneWeights {
			a.Weight *= 10
		}
	}
	if c.pod != nil {
		w.pod(&a, c)
	} else {
		w.external(&a, c)
		if domain, _, _ := strings.Cut(strings.TrimPrefix(a.Identity, "uri spiffe://"), "/"); !here &&
			!within(domain, c.cluster.TrustDomain) {
			a.Identity, a.ServerName = "", ""
		}
	}
	return a
}

func within(domain, of string) bool { return strings.HasSuffix("."+domain, "."+of) }

// gateway adds what the slice of a mirrored Service holds.
func (w *World) gateway(a *Address, c candidate, q Question) {
	if name := c.slice.Annotations["mirror.linkerd.io/remote-svc-fq-name"]; name != "" {
		a.Authority = fmt.Sprintf("%s:%d", name, q.Port)
	}
	if identity := c.slice.Annotations["mirror.linkerd.io/remote-gateway-identity"]; identity != "" {
		a.Identity = "dns " + identity
		if w.H2Upgrade {
			a.Hint = "h2"
		}
	}
}

// pod adds what is known of a Pod. Its phase does not count: the slice does.
func (w *World) pod(a *Address, c candidate) {
	p, port := c.pod, c.addr.Port()
	containers := slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
	account := cmp.Or(p.Spec.ServiceAccountName, "default")
	a.Labels["pod"], a.Labels["serviceaccount"] = p.Name, account
	if kind, name := c.cluster.owner(p); kind == "job" {
		a.Labels["k8s_job"] = name // job is a label of Prometheus' own
	} else if kind != "" {
		a.Labels[kind] = name
	}
	if hash := p.Labels["pod-template-hash"]; hash != "" {
		a.Labels["pod_template_hash"] = hash
	}
	controlPlane := p.Labels["linkerd.io/control-plane-ns"]
	if controlPlane == "" {
		return
	}
	a.Labels["control_plane_ns"] = controlPlane
	if lists(p.Annotations["config.linkerd.io/skip-inbound-ports"], port, nil) {
		return // there is a proxy, and it does not see the port
	}
	if controlPlane == w.ControlPlane {
		name := fmt.Sprintf("%s.%s.serviceaccount.identity.%s.%s", account, p.Namespace, controlPlane,
			c.cluster.TrustDomain)
		a.Identity, a.ServerName = "dns "+name, name
	}

	opaque := w.opaque(c)
	switch {
	case opaque:
		a.Hint = "opaque"
	case w.H2Upgrade:
		a.Hint = "h2"
	default:
		a.Hint = "unset"
	}
	// An opaque transport to the port on which the proxy listens, except for the ports that are the proxy's
	// own, and where these are not known.
	inbound := listens(containers, "LINKERD2_PROXY_INBOUND_LISTEN_ADDR")
	admin := listens(containers, "LINKERD2_PROXY_ADMIN_LISTEN_ADDR")
	control := listens(containers, "LINKERD2_PROXY_CONTROL_LISTEN_ADDR")
	if (opaque || w.TransportHeader) && inbound != 0 && admin != 0 && control != 0 && port != admin && port != control {
		a.InboundPort = uint32(inbound)
	}
}

// opaque reports whether a workload's port carries no protocol that a proxy should detect: its annotation
// has it so, or, if it has none, the default; or a Server does.
func (w *World) opaque(c candidate) bool {
	port, named := c.addr.Port(), map[string]int32{}
	if e := c.external; e != nil {
		for _, p := range e.Spec.Ports {
			named[p.Name] = p.Port
		}
		list, set := e.Annotations["config.linkerd.io/opaque-ports"]
		if !set {
			list = w.DefaultOpaque
		}
		opaque := lists(list, port, named)
		for _, s := range c.cluster.Servers {
			opaque = opaque || s.Spec.ProxyProtocol == "opaque" && selects(s.Spec.ExternalWorkloadSelector, e.Labels) &&
				isPort(s.Spec.Port, port, func(name string) bool { return name != "" && named[name] == int32(port) })
		}
		return opaque
	}
	p := c.pod
	containers := slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
	for _, container := range containers {
		for _, port := range container.Ports {
			named[port.Name] = port.ContainerPort
		}
	}
	list, set := p.Annotations["config.linkerd.io/opaque-ports"]
	if !set {
		list = w.DefaultOpaque
	}
	opaque := lists(list, port, named)
	for _, s := range c.cluster.Servers {
		opaque = opaque || s.Spec.ProxyProtocol == "opaque" && selects(s.Spec.PodSelector, p.Labels) &&
			isPort(s.Spec.Port, port, func(name string) bool {
				for _, container := range containers {
					for _, p := range container.Ports {
						if p.Name == name && (p.ContainerPort == int32(port) || p.HostPort == int32(port)) {
							return true
						}
					}
				}
				return false
			})
	}
	return opaque
}

// owner is who a Pod stands for in metrics: the Deployment behind its ReplicaSet, the CronJob behind its Job,
// else its owner; none if it has none, or several.
func (c *Cluster) owner(p *corev1.Pod) (kind, name string) {
	kind, name = labelledOwner(p.OwnerReferences)
	switch kind {
	case "replicaset":
		if rs := c.ReplicaSets[name]; rs != nil {
			if up, of := labelledOwner(rs.OwnerReferences); slices.Contains([]string{
				"job", "statefulset", "daemonset", "deployment",
			}, up) {
				return up, of
			}
		}
	case "job":
		if job := c.Jobs[name]; job != nil {
			if up, of := labelledOwner(job.OwnerReferences); up != "" {
				return up, of
			}
		}
	}
	return kind, name
}

// labelledOwner is the one owner, of a kind that metrics have a label for; none otherwise.
func labelledOwner(refs []metav1.OwnerReference) (kind, name string) {
	if len(refs) != 1 {
		return "", ""
	}
	kind, name = strings.ToLower(refs[0].Kind), refs[0].Name
	if !slices.Contains([]string{
		"cronjob", "daemonset", "deployment", "job", "node", "pod", "replicaset", "replicationcontroller",
		"statefulset", "workloadgroup",
	}, kind) {
		return "", ""
	}
	return kind, name
}

func listens(containers []corev1.Container, variable string) uint16 {
	for _, c := range containers {
		for _, e := range c.Env {
			if c.Name == "linkerd-proxy" && e.Name == variable {
				addr, _ := netip.ParseAddrPort(e.Value)
				return addr.Port()
			}
		}
	}
	return 0
}

// external adds what is known of an ExternalWorkload: it is always meshed, and no flag changes how it is reached.
func (w *World) external(a *Address, c candidate) {
	e := c.external
	a.Labels["external_workload"] = e.Name
	if kind, name := labelledOwner(e.OwnerReferences); kind != "" {
		a.Labels[kind] = name
	}
	a.Identity, a.ServerName, a.Hint = "uri "+e.Spec.MeshTLS.Identity, e.Spec.MeshTLS.ServerName, "h2"
	inbound := int32(4143)
	for _, p := range e.Spec.Ports {
		if p.Name == "linkerd-proxy" {
			inbound = p.Port
		}
	}
	opaque := w.opaque(c)
	if opaque {
		a.Hint = "opaque"
	}
	if opaque || w.TransportHeader {
		a.InboundPort = uint32(inbound)
	}
}

// selects reports whether a Server is about a workload: no selector selects nothing, an empty one everything.
func selects(s *metav1.LabelSelector, of map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(of))
}

func isPort(p intstr.IntOrString, port uint16, isNamed func(string) bool) bool {
	if p.Type == intstr.String {
		return isNamed(p.StrVal)
	}
	return p.IntVal == int32(port)
}

// lists reports whether a list of numbers, ranges and names has a port. What cannot be read does not count.
func lists(list string, port uint16, named map[string]int32) bool {
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 == nil && err2 == nil && from <= int(port) && int(port) <= to && to <= 65535 {
			return true
		}
		if number, found := named[item]; found && item != "" && number == int32(port) {
			return true
		}
	}
	return false
}

func only(all []candidate, keep func(candidate) bool) (kept []candidate) {
	for _, c := range all {
		if keep(c) {
			kept = append(kept, c)
		}
	}
	return kept
}

package mirror

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
)

// existence is what is known of whether a remote Service exists.
type existence uint8

const (
	unknown existence = iota // nothing may follow from it, such as of what is withdrawn and held
	absent
	present
)

// inputs is everything that the plan for one name is computed from: values that were read once.
type inputs struct {
	options *Options
	*linkSet
	name              api.Key
	existing          *corev1.Service // nil: there is none
	existingEndpoints *endpoints      // likewise
	namespaceExists   bool            // true also if it is not known
	probe             *link           // the Link whose gateway is probed over the name; nil: none
	probeGateway      gatewayState

	mirrors []mirrorInputs // for each Link whose cluster's name the name ends with, the oldest first

	// Of the name of a federated Service.
	localMember *corev1.Service // nil: there is none
	members     []remoteState   // one for each of links
}

// mirrorInputs are those of a mirror of one cluster.
type mirrorInputs struct {
	link    *link
	gateway gatewayState
	remote  remoteState // the Service whose mirror has the name

	// Of mirrors of headless Services, and of their endpoints.
	endpointMirrors map[string]*corev1.Service // by hostname, of remote
	hostname        string                     // the endpoint whose mirror has the name
	parent          remoteState                // the Service that has it, if there is one
	parentMirror    *corev1.Service
	owner           remoteState // the Service that had the endpoint when what exists of its mirror was written
}

// remoteState is what is known of one Service of a linked cluster.
type remoteState struct {
	api.Key
	svc       *remoteService // nil unless it is present
	exists    existence
	readiness readiness
}

// A reader has the newest state of what inputs are read from.
type reader interface {
	readRemote(cluster string, k api.Key) (*remoteService, existence)
	readLocal(k api.Key) *corev1.Service // nil: there is none
	readEndpoints(k api.Key) *endpoints  // likewise
	namespaceExists(name string) bool    // true also if it is not known
	readiness(cluster string, k api.Key) readiness
	gateway(cluster string) gatewayState
	// servicesWithHostname returns the Services of a cluster that have an endpoint with a hostname, sorted.
	servicesWithHostname(cluster, namespace, hostname string) []string
}

// readInputs reads what the plan for a name is computed from. It costs a few map look-ups, and for the name of a
// federated Service one for each Link.
func readInputs(reader reader, all *linkSet, options *Options, key api.Key) *inputs {
	in := &inputs{
		options: options, linkSet: all, name: key, existing: reader.readLocal(key), probe: all.probedOver(key),
		existingEndpoints: reader.readEndpoints(key),
	}
	// Services and Namespaces are watched apart: of a new Namespace the mirror that is in it may be seen first.
	in.namespaceExists = in.existing != nil || reader.namespaceExists(key.Namespace)
	if in.probe != nil {
		in.probeGateway = reader.gateway(in.probe.Cluster)
	}

	for l, base := range all.suffixed(key.Name) {
		in.mirrors = append(in.mirrors, in.readMirror(reader, l, base))
	}

	if base, suffixed := strings.CutSuffix(key.Name, federatedSuffix); suffixed && base != "" {
		in.localMember = reader.readLocal(api.Key{Namespace: key.Namespace, Name: base})
		in.members = make([]remoteState, 0, len(all.links))
		for _, l := range all.links {
			in.members = append(in.members, readRemoteState(reader, l.Cluster, key.Namespace, base))
		}
	}
	return in
}

func readRemoteState(r reader, cluster, namespace, name string) remoteState {
	state := remoteState{Key: api.Key{Namespace: namespace, Name: name}}
	state.svc, state.exists = r.readRemote(cluster, state.Key)
	return state
}

// readMirror reads what a mirror in the cluster of a Link is made of; name is that of the Service there.
func (in *inputs) readMirror(reader reader, link *link, name string) mirrorInputs {
	read := func(name string) remoteState {
		state := readRemoteState(reader, link.Cluster, in.name.Namespace, name)
		state.readiness = reader.readiness(link.Cluster, state.Key)
		return state
	}
	mirror := mirrorInputs{link: link, gateway: reader.gateway(link.Cluster), remote: read(name)}

	if in.options.Headless {
		mirror.readHeadless(reader)
		if names := reader.servicesWithHostname(link.Cluster, in.name.Namespace, name); len(names) > 0 {
			mirror.hostname, mirror.parent = name, read(names[0])
			mirror.parentMirror = reader.readLocal(mirrorName(link.Cluster, mirror.parent.Key))
		}
	}

	if o := in.object(); o != nil && o.GetLabels()[headlessLabel] != "" {
		mirror.owner = read(strings.TrimSuffix(o.GetLabels()[headlessLabel], "-"+link.Cluster))
	}
	return mirror
}

// object returns what exists under the name: the Service, or Endpoints that are left of one; nil for neither.
func (in *inputs) object() metav1.Object {
	switch {
	case in.existing != nil:
		return in.existing
	case in.existingEndpoints != nil:
		return in.existingEndpoints
	}
	return nil
}

// readHeadless reads what the mirror of a headless Service is made of.
func (m *mirrorInputs) readHeadless(r reader) {
	m.endpointMirrors = map[string]*corev1.Service{}
	for hostname := range m.remote.readiness.hostnames {
		k := mirrorName(m.link.Cluster, api.Key{Namespace: m.remote.Namespace, Name: hostname})
		if one := r.readLocal(k); one != nil {
			m.endpointMirrors[hostname] = one
		}
	}
}

// A link is a Link, and whether it is ours to serve.
type link struct {
	*links.Mirroring
	skipReason string // why nothing is written for it; empty if it is ours to serve
}

// readiness is the state of a remote Service's endpoints.
type readiness struct {
	known     bool
	given     bool            // clients are given the Service, see term.isGiven
	endpoints bool            // there are some, ready or not
	ready     bool            // at least one endpoint is
	hostnames map[string]bool // of endpoints; whether that endpoint is ready
}

// gatewayState is the state of a cluster's gateway.
type gatewayState struct {
	addresses  []string // IP addresses, sorted; none: they are not known
	dead       bool     // it fails its probes
	resolving  bool     // its hosts were not asked for yet
	unresolved int      // host names that lead nowhere, or whose last addresses are kept
	problem    string   // describes them, for people; empty for none
	unprobed   string   // why it cannot be probed; empty if it can, or need not
}

// A serviceResult is the outcome for one Service of a linked cluster, for the status of its Link. That for one endpoint
// of a headless Service, which has a mirror of its own, becomes a part of it (withEndpoints).
type serviceResult struct {
	link       api.Key
	federated  bool
	remote     api.Key
	endpoint   string // its hostname; empty for the Service
	mirrored   bool
	overBudget bool // the cluster has as many Services here as it may
	noGateway  bool // its gateway has no address for the mirror
	forbidden  bool // we lack the permission
	reason     string
	message    string
}

// The reasons of a serviceResult, which are Linkerd's.
const (
	reasonMirrored         = "Mirrored"
	reasonInvalidService   = "InvalidService"
	reasonError            = "Error"
	reasonMissingNamespace = "MissingNamespace"
)

const keptWhileUnknown = "kept as it is until the cluster is synced, or what it has withdrawn is not held any more"

// A namePlan is what should exist under one name.
type namePlan struct {
	service         *corev1.Service // nil: none
	endpoints       *endpoints      // nil: none
	keepService     bool            // the existing one stays as it is
	keepEndpoints   bool
	shared          bool              // the Service is another writer's, too
	overBudget      bool              // it would exist if the cluster had space left
	namespaceLabels map[string]string // of the missing namespace, which is to be created; nil if none is
	results         []serviceResult
}

// takesName reports whether anything should exist under the name.
func (p *namePlan) takesName() bool { return p.service != nil || p.endpoints != nil || p.keepService }

// Plan computes what should exist under a name.
//
// # What it keeps true
//
//   - It depends on the inputs alone, not on what happened before. The annotations
//     of that Service (its members, the Links it was written for) are the only memory, and they are in the
//     cluster, where the next writer finds them.
//   - Unknown is not empty. A remote Service is present, absent or unknown. Unknown keeps what exists: a
//     mirror as it is, a member as a member. A Service is absent only if a complete listing lacks it, and
//     clients are not given it either: what is held of a cluster that withdraws much keeps its mirror.
//   - A Service that we do not own is neither changed nor deleted. mayChange and mayRemove decide that,
//     after the candidates and for all of them: so no candidate has to be trusted with it. They decide of
//     Endpoints without a Service likewise.
//   - One name has one owner, the first candidate that wants it: the Service for the probe of a gateway,
//     then a federated Service, then mirrors in the order of their Links' age, then mirrors of headless
//     endpoints. Every later candidate is reported as an error in the status of its Link.
//   - A federated Service may have members of several writers: ours, Linkerd's for Links with a live Lease,
//     and those of Links that we do not read. Members that are not ours stay as they are. If any is another
//     writer's, only the list of members is changed, and labels, annotations and ports are left to that
//     writer.
//   - Nothing that one linked cluster publishes keeps the members of others from being written; sanitize
//     has removed what an API server would reject.
//
// # What is therefore not needed
//
// There are no handlers for created, changed and deleted Services or Links, no cache of what was written,
// no garbage collector, no repair loop and no migration between versions. All of them are a Plan for a name
// that was enqueued. Enqueueing a name too often costs one Plan; enqueueing too few is the only kind of
// bug.
//
// # What it costs
//
// A copy of one Service, and of a federated one its members. It calls nothing and takes no lock. The budget of
// a cluster is no input, because several workers use it up together: who creates a Service reserves space for it
// first, and makes the plan one without it if there is none (withoutSpace).
func (in *inputs) Plan() namePlan {
	p, existing := in.firstCandidate(), in.existing
	switch {
	case existing == nil && in.existingEndpoints == nil:
	case existing != nil && p.service != nil && !in.mayChange(existing):
		failResults(p.results, errNameTaken{in.name, existing}.Error())
		return namePlan{keepService: true, keepEndpoints: true, results: p.results}
	case !p.takesName():
		p.keepService = !in.mayRemove()
		p.keepEndpoints = p.keepService
	}
	return p
}

// withoutSpace returns what becomes of a plan to create a Service if its clusters have as many as they may.
func (p *namePlan) withoutSpace() namePlan {
	for i := range p.results {
		p.results[i].overBudget = p.results[i].mirrored
	}
	failResults(p.results, "the cluster has as many Services here as it may: "+
		"raise -max-mirrors-per-link, or export fewer")
	return namePlan{overBudget: true, results: p.results}
}

// firstCandidate returns the plan of the first candidate that wants a name, with the results of all.
func (in *inputs) firstCandidate() namePlan {
	candidates := []namePlan{in.planProbe(), in.planFederated()}
	for i := range in.mirrors {
		candidates = append(candidates, in.planMirror(&in.mirrors[i]))
	}
	for i := range in.mirrors {
		candidates = append(candidates, in.planEndpointMirror(&in.mirrors[i]))
	}

	var first namePlan
	var results []serviceResult
	for _, next := range candidates {
		switch {
		case !next.takesName():
		case first.takesName():
			failResults(next.results, "another Service is mirrored as "+in.name.String()+" already")
		default:
			first = next
		}
		results = append(results, next.results...)
	}

	first.results = results
	return first
}

// failResults replaces the result of Services that would be mirrored by an error.
func failResults(results []serviceResult, message string) {
	for i := range results {
		if results[i].mirrored {
			results[i].mirrored, results[i].reason, results[i].message = false, reasonError, message
		}
	}
}

// mayChange reports whether an object is ours to change: it was written for a Link that is ours to serve, or
// was. A Link that we never saw belongs to another writer, and so does all that was written for it.
func (in *inputs) mayChange(existing metav1.Object) bool {
	if !isOurs(existing) {
		return false
	}
	cluster := existing.GetLabels()[clusterLabel]
	if cluster == "" {
		return true // a federated Service, whose members are checked one by one
	}
	if l := in.linkOf(cluster); l != nil {
		return l.skipReason == ""
	}
	return in.linkGone(existing, cluster)
}

// linkGone reports whether the Link for which we wrote something is known to be deleted. A cluster without a
// Link is not enough: its Link may be in a namespace that we do not read.
func (in *inputs) linkGone(existing metav1.Object, cluster string) bool {
	switch {
	case !in.complete, in.servedByLinkerd[cluster], in.linkOf(cluster) != nil:
		return false
	case in.membership.Of(federation.Cluster(cluster)) == federation.StateUndecided:
		return false // its Link may be about to come back, with a CRD that was deleted before this process started
	}
	owner, written := ownersOf(existing)[cluster]
	return in.everServed[cluster] || written && (in.namespace == "" || in.namespace == owner.Namespace)
}

// mayRemove reports whether what exists, which no candidate wants, is known to be wanted by none, and ours to delete.
func (in *inputs) mayRemove() bool {
	existing := in.object()
	if !in.mayChange(existing) {
		return false
	}

	cluster := existing.GetLabels()[clusterLabel]
	if cluster == "" { // its members were all ours to remove
		was := membershipOf(in.existing)
		written := was.local != "" || len(was.remote) > 0 || existing.GetAnnotations()[linksAnnotation] != ""
		return strings.HasSuffix(in.name.Name, federatedSuffix) && written
	}
	link := in.linkOf(cluster)
	if existing.GetLabels()[gatewayLabel] == "true" {
		return in.complete && (link == nil || link.Problem == "")
	}

	switch {
	case !strings.HasSuffix(in.name.Name, "-"+cluster):
		return false
	case link == nil:
		return true
	case link.Problem != "":
		return false
	}

	i := slices.IndexFunc(in.mirrors, func(m mirrorInputs) bool { return m.link == link })
	if i < 0 {
		return false // its name is the suffix alone
	}
	m := &in.mirrors[i]
	if existing.GetLabels()[headlessLabel] == "" {
		return m.remote.exists != unknown
	}

	owner := m.owner
	if owner.exists == present && in.options.Headless && link.Selector.Matches(labels.Set(owner.svc.Labels)) {
		return owner.readiness.known
	}
	return owner.exists != unknown
}

// unsuitable returns why a remote Service can be neither mirrored nor a member; empty if it can. name is
// that of the local Service.
func unsuitable(svc *corev1.Service, name string) string {
	switch {
	case isMirror(svc):
		return "it is itself a mirror of a Service of another cluster: link that cluster"
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return "it is of type ExternalName and has no endpoints"
	case len(svc.Spec.Ports) == 0:
		return "it has no ports"
	}

	// Whether a name may begin with a digit is for the local API server to decide: since Kubernetes 1.36 it may.
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return fmt.Sprintf("%q is not a valid name of a Service: %s", name, strings.Join(problems, "; "))
	}
	return ""
}

func missingNamespace(name string) string {
	return "there is no namespace " + name + " in the local cluster"
}

// planMirror plans the mirror of one Service of a Link's cluster.
func (in *inputs) planMirror(mirror *mirrorInputs) namePlan {
	link, svc := mirror.link, mirror.remote.svc
	exists := in.existing != nil && in.existing.Labels[clusterLabel] == link.Cluster
	switch {
	case link.skipReason != "" || link.Problem != "" || mirror.remote.exists == unknown:
		return mirror.keepUnknown(exists)
	case mirror.remote.exists == absent, !link.mirrors(labels.Set(svc.Labels)):
		return namePlan{}
	}

	if problem := unsuitable(svc.Service, in.name.Name); problem != "" {
		return mirror.failed(reasonInvalidService, problem)
	}

	direct := link.RemoteDiscoverySelector.Matches(labels.Set(svc.Labels))
	if !direct && len(link.Gateway.Addresses) == 0 {
		p := mirror.failed(reasonError, "the Link has no gatewayAddress: "+
			"set it, or mirror the Service by remoteDiscoverySelector")
		p.keepService, p.keepEndpoints = exists, exists
		return p
	}

	namespaceLabels, possible := in.planNamespace(link)
	if !possible {
		return mirror.failed(reasonMissingNamespace, missingNamespace(in.name.Namespace))
	}
	plan := namePlan{namespaceLabels: namespaceLabels, results: mirror.mirrored(svc.omitted)}
	plan.service = in.mirrorService(link, in.name, svc.Service)
	if direct {
		plan.service.Labels[discoveryKey], plan.service.Labels[remoteServiceLabel] = link.Cluster, mirror.remote.Name
		return plan
	}

	plan.results = in.gatewayResults(mirror, plan.results)
	if in.options.Headless && isHeadless(svc.Service) {
		if problem := in.chooseKind(plan.service, mirror.remote.readiness); problem != "" {
			return mirror.failed(reasonError, problem)
		}
		if isHeadless(plan.service) {
			plan.endpoints, plan.keepEndpoints = mirror.headlessEndpoints(plan.service)
			return plan
		}
	}

	ready := !mirror.remote.readiness.known || mirror.remote.readiness.ready
	plan.endpoints, plan.keepEndpoints = mirror.gatewayEndpoints(plan.service, ready)
	return plan
}

// gatewayResults returns the results for a mirror, as an error if the gateway has no address for it. Endpoints that
// lead to earlier addresses stay as they are. As long as the gateway was not resolved there is no result, and the
// status of the Link has what it had.
func (in *inputs) gatewayResults(m *mirrorInputs, results []serviceResult) []serviceResult {
	problem := in.noAddress(m.gateway)
	leads := in.existingEndpoints != nil && slices.ContainsFunc(in.existingEndpoints.Subsets, hasAddresses)

	switch stays := leads && !isHeadlessMirror(in.existing); {
	case m.gateway.resolving:
		return nil
	case problem == "":
	case stays && len(m.gateway.addresses) == 0:
		results[0].message = strings.TrimPrefix(results[0].message+"; its Endpoints stay as they are: "+problem, "; ")
	default:
		failResults(results, problem)
		results[0].noGateway = true
	}
	return results
}

// noAddress returns why a gateway has no address that the existing mirror can lead to; empty if it has one, or if that
// is not known. A Service leads to addresses of its own families only.
func (in *inputs) noAddress(state gatewayState) string {
	switch {
	case len(state.addresses) == 0 && state.problem != "":
		return "the gateway has no address: " + state.problem
	case len(state.addresses) == 0 || in.existing == nil || len(in.existing.Spec.IPFamilies) == 0:
		return ""
	}
	families := in.existing.Spec.IPFamilies
	if slices.ContainsFunc(state.addresses, func(ip string) bool { return slices.Contains(families, familyOf(ip)) }) {
		return ""
	}
	return fmt.Sprintf("the gateway has no %s address, and this Service has no other: it has %s",
		families[0], describeAddresses(state.addresses))
}

func familyOf(ip string) corev1.IPFamily {
	if strings.Contains(ip, ":") {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// failed returns the plan for a Service that is not mirrored, and why.
func (m *mirrorInputs) failed(reason, message string) namePlan {
	return namePlan{results: []serviceResult{
		{link: m.link.Link, remote: m.remote.Key, reason: reason, message: message},
	}}
}

// mirrored returns the result for a Service that is mirrored.
func (m *mirrorInputs) mirrored(message string) []serviceResult {
	return []serviceResult{
		{link: m.link.Link, remote: m.remote.Key, mirrored: true, reason: reasonMirrored, message: message},
	}
}

// keepUnknown returns the plan that keeps a mirror, if it exists, of which is not known whether it should.
func (m *mirrorInputs) keepUnknown(exists bool) namePlan {
	if !exists {
		return namePlan{}
	}
	p := namePlan{keepService: true, keepEndpoints: true}
	if m.link.skipReason == "" {
		p.results = m.mirrored(keptWhileUnknown)
	}
	return p
}

// chooseKind makes the mirror of a headless Service headless, if its endpoints have names. It returns why that is not
// known yet; empty if it is.
func (in *inputs) chooseKind(mirror *corev1.Service, remote readiness) (problem string) {
	isNamed := len(remote.hostnames) > 0
	switch {
	case in.existing != nil && isOurs(in.existing): // an existing mirror keeps its kind
		isNamed = isHeadless(in.existing)
	case !remote.known:
		return "its endpoints are not known yet"
	case !remote.endpoints: // a Service comes before its endpoints, and a mirror keeps its kind
		return "it is headless and has no endpoints yet: whether they have names decides what its mirror is"
	}

	if isNamed {
		mirror.Spec.ClusterIP = corev1.ClusterIPNone
	}
	return ""
}

// planEndpointMirror plans the Service that represents one endpoint of a headless Service.
func (in *inputs) planEndpointMirror(mirror *mirrorInputs) namePlan {
	link, svc := mirror.link, mirror.parent.svc
	switch {
	case mirror.hostname == "" || link.skipReason != "" || link.Problem != "" || len(link.Gateway.Addresses) == 0,
		!in.namespaceExists || mirror.parent.exists != present,
		!isHeadless(svc.Service) || !mirrorsThroughGateway(link, svc),
		mirror.parentMirror == nil || !isOurs(mirror.parentMirror) || !isHeadless(mirror.parentMirror):
		return namePlan{}
	}

	result := serviceResult{link: link.Link, remote: mirror.parent.Key, endpoint: mirror.hostname}
	if problem := unsuitable(svc.Service, in.name.Name); problem != "" {
		result.reason, result.message = reasonInvalidService, problem
		return namePlan{results: []serviceResult{result}}
	}

	result.mirrored, result.reason = true, reasonMirrored
	p := namePlan{
		service: endpointMirrorService(link, in.name, mirror.hostname, svc.Service), results: []serviceResult{result},
	}
	ready := !mirror.parent.readiness.known || mirror.parent.readiness.hostnames[mirror.hostname]
	p.endpoints, p.keepEndpoints = mirror.gatewayEndpoints(p.service, ready)
	return p
}

// planProbe plans the Service over which a gateway is probed, and Endpoints with the gateway's port. A Service that
// the chart has created stays as it is, with its own port.
func (in *inputs) planProbe() namePlan {
	existing := in.existing
	if in.probe == nil || existing != nil && !isProbeService(existing) {
		return namePlan{}
	}
	service, endpoints := probeObjects(in.probe, in.name, in.probeGateway.addresses)
	plan := namePlan{service: service, endpoints: endpoints, keepEndpoints: endpoints == nil}
	if existing == nil || isOurs(existing) {
		return plan
	}

	plan.service, plan.keepService = nil, true
	port, err := probedBy(in.name, existing)
	switch {
	case err != nil:
		plan.endpoints, plan.keepEndpoints = nil, true
	case plan.endpoints != nil:
		plan.endpoints.Subsets[0].Ports[0].Name = port.Name
	}
	return plan
}

// planNamespace returns the labels of the missing namespace, which is to be created; nil if none is. It returns false
// if the namespace is missing and stays so.
func (in *inputs) planNamespace(l *link) (marks map[string]string, possible bool) {
	if in.namespaceExists || !in.options.CreateNamespaces {
		return nil, in.namespaceExists
	}
	return map[string]string{mirroredLabel: "true", clusterLabel: l.Cluster}, true
}

// A unionMember is one Service of a federated one.
type unionMember struct {
	link *link           // nil: it is in the local cluster
	svc  *corev1.Service // nil: it is not known, and a member because it was one
}

// A union is the members of a federated Service.
type union struct {
	members        []unionMember // in the order in which they count: the local one, then by the age of their Links
	foreignMembers []string      // service@cluster of members whose Links, if there are any, are not ours to serve
	allOurs        bool          // no member is another writer's
}

// planFederated plans a federated Service, the union of the Services of one name.
func (in *inputs) planFederated() namePlan {
	name, existing := in.name, in.existing
	base, suffixed := strings.CutSuffix(name.Name, federatedSuffix)
	isMirrorOfCluster := existing != nil && existing.Labels[clusterLabel] != "" && isMirror(existing)
	if !suffixed || base == "" || isMirrorOfCluster {
		return namePlan{}
	}

	was := membershipOf(existing)
	var plan namePlan
	union := union{allOurs: true}
	in.addLocalMember(&union, was)
	for i, l := range in.links {
		if l.Cluster != "" {
			in.addRemoteMember(&union, &plan, l, &in.members[i], was)
		}
	}

	for _, m := range was.remote {
		cluster := clusterOf(m)
		if in.linkOf(cluster) == nil && !in.linkGone(existing, cluster) {
			union.foreignMembers = append(union.foreignMembers, m)
			union.allOurs = union.allOurs && !in.servedByLinkerd[cluster]
		}
	}

	if len(union.members)+len(union.foreignMembers) == 0 {
		return plan
	}
	union.allOurs = union.allOurs && len(union.members) > 0
	if existing != nil && !isOurs(existing) {
		existing = nil // Plan rejects the name; nothing is taken from the Service
	}

	service, conflicts := in.federatedService(name, base, union, existing)
	if service == nil { // nothing is known of any member
		plan.keepService = true
		return plan
	}
	if plan.shared = !union.allOurs; plan.shared && existing != nil && sameMembers(existing, service) {
		plan.keepService = true // there is nothing for us to write
		return plan
	}

	plan.service = service
	for i, result := range plan.results {
		if conflict := conflicts[result.link]; result.mirrored && conflict != "" {
			plan.results[i].message = strings.TrimPrefix(result.message+"; "+conflict, "; ")
		}
	}
	return plan
}

// sameMembers reports whether two federated Services name the same members, written for the same Links.
func sameMembers(a, b *corev1.Service) bool {
	return !slices.ContainsFunc([]string{localDiscoveryKey, discoveryKey, linksAnnotation}, func(key string) bool {
		return a.Annotations[key] != b.Annotations[key]
	})
}

// addLocalMember adds the local Service of a name to a union, if it joins.
func (in *inputs) addLocalMember(u *union, was membership) {
	if in.localSkipReason != "" {
		if was.local != "" {
			u.members, u.allOurs = append(u.members, unionMember{}), false
		}
		return
	}
	svc := in.localMember
	if joinsFederated(svc) && !isHeadless(svc) && unsuitable(svc, in.name.Name) == "" {
		u.members = append(u.members, unionMember{svc: svc})
	}
}

// addRemoteMember adds the Service of a name in a Link's cluster to a union, if it joins, and its result to
// plan.
func (in *inputs) addRemoteMember(union *union, plan *namePlan, link *link, remote *remoteState, was membership) {
	wasMember := was.has(remote.Name, link.Cluster)
	svc, exists := remote.svc, remote.exists
	result := serviceResult{link: link.Link, federated: true, remote: remote.Key, reason: reasonInvalidService}

	switch {
	case link.skipReason != "":
		if wasMember {
			union.members, union.allOurs = append(union.members, unionMember{link: link}), false
		}
		return
	case link.Problem != "" || exists == unknown:
		if wasMember {
			union.members = append(union.members, unionMember{link: link})
			result.mirrored, result.reason, result.message = true, reasonMirrored, keptWhileUnknown
			plan.results = append(plan.results, result)
		}
		return
	case exists == absent || !link.FederatedServiceSelector.Matches(labels.Set(svc.Labels)):
		return
	}

	namespaceLabels, possible := in.planNamespace(link)

	problem := unsuitable(svc.Service, in.name.Name)
	switch {
	case problem != "":
		result.message = problem
	case isHeadless(svc.Service):
		result.message = "it is headless: such a Service cannot join a federated one"
	case !possible:
		result.reason, result.message = reasonMissingNamespace, missingNamespace(remote.Namespace)
	default:
		result.mirrored, result.reason, result.message = true, reasonMirrored, svc.omitted
		union.members = append(union.members, unionMember{link: link, svc: svc.Service})
		plan.namespaceLabels = namespaceLabels
	}

	plan.results = append(plan.results, result)
}

// membership is the list of members that a federated Service has in its annotations.
type membership struct {
	local  string
	remote []string // service@cluster
}

func (m membership) has(service, cluster string) bool {
	return slices.Contains(m.remote, service+"@"+cluster)
}

// clusterOf returns the cluster of a member, service@cluster.
func clusterOf(member string) string {
	_, cluster, _ := strings.Cut(member, "@")
	return cluster
}

func membershipOf(svc *corev1.Service) (m membership) {
	if svc == nil || !isOurs(svc) {
		return m
	}
	m.local = svc.Annotations[localDiscoveryKey]
	if list := svc.Annotations[discoveryKey]; list != "" {
		m.remote = strings.Split(list, ",")
	}
	return m
}

func isHeadless(svc *corev1.Service) bool { return svc.Spec.ClusterIP == corev1.ClusterIPNone }

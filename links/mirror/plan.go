package mirror

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/links"
)

// knowledge is what is known of whether a remote Service exists.
type existence uint8

const (
	unknown existence = iota // nothing may follow from it
	absent
	present
)

// A world is everything that bears on what is written, at one time.
type inputs struct {
	links           []*link         // the oldest first, one a cluster
	linksComplete   bool            // there are no other Links where Links are read
	linkNamespace   string          // the namespace that Links are read in; empty for all
	everServed      map[string]bool // clusters that had a Link of ours to write, at some time in this term
	servedByLinkerd map[string]bool // clusters that Linkerd's service mirror serves for Links that are not read
	localMembers    localMembers

	headless         bool     // Options.Headless
	createNamespaces bool     // Options.CreateNamespaces
	excludedKeys     []string // Options.Exclude

	reserveSpace        func(k records.Key, clusters []string) bool // a Service may be made that one of the clusters has to have room for
	remote              func(cluster string, k records.Key) (*remoteService, existence)
	local               func(records.Key) *corev1.Service // nil: there is none
	namespaceExists     func(name string) bool            // false: it is known that there is none
	readiness           func(cluster string, k records.Key) readiness
	serviceWithHostname func(cluster, namespaceExists, hostname string) (headless string, known bool) // the Service that has an endpoint of the name
	gateway             func(cluster string) gatewayState
}

// locals says which Services of the local cluster join federated ones.
type localMembers struct {
	selector labels.Selector
	skip     bool // to Linkerd
}

// link is a Link and who looks after it.
type link struct {
	*links.Mirroring
	skipReason string // why its Services are left alone; empty if they are ours to write
}

// answers is who answers for a remote Service.
type readiness struct {
	known     bool
	ready     bool            // at least one endpoint is
	hostnames map[string]bool // whether the endpoint of a hostname is ready
}

// gatewayState is how a gateway fares.
type gatewayState struct {
	addresses []string // IP addresses, sorted; none: they are not known
	dead      bool
}

// A verdict is what became of one Service of a linked cluster, for the status of its Link.
type serviceResult struct {
	link       records.Key
	federated  bool
	remote     records.Key
	mirrored   bool
	overBudget bool // there is no room for what would stand for it
	reason     string
	message    string
}

// The reasons of a verdict, which are Linkerd's.
const (
	reasonMirrored         = "Mirrored"
	reasonInvalidService   = "InvalidService"
	reasonError            = "Error"
	reasonMissingNamespace = "MissingNamespace"
)

// A decision is what should be there under one name.
type plan struct {
	service         *corev1.Service // nil: none
	endpoints       *endpoints      // nil: none
	keepService     bool            // what is there stays as it is
	keepEndpoints   bool
	overBudget      bool              // there is no room for it
	namespaceLabels map[string]string // labels of the namespace, which is missing; nil if it is not
	results         []serviceResult
}

// claims reports whether somebody wants something to be there.
func (d *plan) takesName() bool { return d.service != nil || d.endpoints != nil || d.keepService }

// decide returns what should be there under a name, given the Service that is; nil: none. Where several want the name the first one has
// it: the probe of a gateway, a federated Service, and then mirrors by the age of their Links.
func (w *inputs) Plan(k records.Key, existing *corev1.Service) plan {
	claimants := []func(records.Key, *corev1.Service) plan{w.planProbe, w.planFederated}
	for _, l := range w.links {
		claimants = append(claimants, func(k records.Key, existing *corev1.Service) plan { return w.planMirror(l, k, existing) })
	}
	for _, l := range w.links {
		claimants = append(claimants, func(k records.Key, _ *corev1.Service) plan { return w.planEndpointMirror(l, k) })
	}
	var d plan
	for _, claim := range claimants {
		next := claim(k, existing)
		if d.takesName() && next.takesName() {
			failResults(next.results, "another Service is mirrored as "+k.String()+" already")
			next = plan{results: next.results}
		}
		verdicts := append(d.results, next.results...)
		if next.takesName() {
			d = next
		}
		d.results = verdicts
	}
	switch {
	case existing == nil && d.service != nil && !w.reserveSpace(k, chargeableClusters(d.service)):
		for i := range d.results {
			d.results[i].overBudget = d.results[i].mirrored
		}
		failResults(d.results, "the Link has as many Services here as it may: raise -max-mirrors-per-link, or export fewer")
		return plan{overBudget: true, results: d.results}
	case existing == nil:
	case d.service != nil && !w.mayChange(existing):
		failResults(d.results, errNameTaken{k, existing}.Error())
		return plan{keepService: true, keepEndpoints: true, results: d.results}
	case !d.takesName():
		d.keepService = !w.mayRemove(k, existing)
		d.keepEndpoints = d.keepService
	case d.service != nil:
		for key, value := range existing.Annotations { // what people ask of us is written here, as there is nowhere else
			if _, said := d.service.Annotations[key]; !said && key != linksAnnotation && strings.HasPrefix(key, productPrefix) {
				d.service.Annotations[key] = value
			}
		}
	}
	return d
}

// refuse turns verdicts that a Service is mirrored into the reason why it is not.
func failResults(verdicts []serviceResult, message string) {
	for i := range verdicts {
		if verdicts[i].mirrored {
			verdicts[i].mirrored, verdicts[i].reason, verdicts[i].message = false, reasonError, message
		}
	}
}

// touchable reports whether a Service may be changed: somebody made it for a Link that is ours to write, or was. A Link that we never
// saw is another's, and so is all that was made for it.
func (w *inputs) mayChange(existing *corev1.Service) bool {
	if !isOurs(existing) {
		return false
	}
	cluster := existing.Labels[clusterLabel]
	if cluster == "" {
		return true // a federated Service: of whom it consists is decided for each member
	}
	if l := w.linkOf(cluster); l != nil {
		return l.skipReason == ""
	}
	return w.linkGone(existing, cluster)
}

// unlinked reports whether the Link for which we wrote something about a cluster is known to be gone. That a cluster has no Link is not
// enough: it may have one where we do not read.
func (w *inputs) linkGone(existing *corev1.Service, cluster string) bool {
	if !w.linksComplete || w.servedByLinkerd[cluster] || w.linkOf(cluster) != nil {
		return false
	}
	owner, written := ownersOf(existing)[cluster]
	return w.everServed[cluster] || written && (w.linkNamespace == "" || w.linkNamespace == owner.Namespace)
}

// removable reports whether it is known that nobody wants what is there, and that it is for us to remove.
func (w *inputs) mayRemove(k records.Key, existing *corev1.Service) bool {
	if !w.mayChange(existing) {
		return false
	}
	cluster := existing.Labels[clusterLabel]
	if cluster == "" { // its members were all for us to remove
		was := membershipOf(existing)
		return strings.HasSuffix(k.Name, federatedSuffix) && (was.local != "" || len(was.remote) > 0 || existing.Annotations[linksAnnotation] != "")
	}
	l := w.linkOf(cluster)
	if existing.Labels[gatewayLabel] == "true" {
		return w.linksComplete && (l == nil || l.Problem == "")
	}
	name, suffixed := strings.CutSuffix(k.Name, "-"+cluster)
	switch {
	case !suffixed:
		return false
	case l == nil:
		return true
	case l.Problem != "":
		return false
	}
	if parent, found := existing.Labels[headlessLabel]; found {
		name = strings.TrimSuffix(parent, "-"+cluster)
		svc, known := w.remote(cluster, records.Key{Namespace: k.Namespace, Name: name})
		if known == present && w.headless && l.Selector.Matches(labels.Set(svc.Labels)) {
			return w.readiness(cluster, records.Key{Namespace: k.Namespace, Name: name}).known
		}
		return known != unknown
	}
	_, known := w.remote(cluster, records.Key{Namespace: k.Namespace, Name: name})
	return known != unknown
}

func (w *inputs) linkOf(cluster string) *link {
	i := slices.IndexFunc(w.links, func(l *link) bool { return l.Cluster == cluster })
	if i < 0 {
		return nil
	}
	return w.links[i]
}

// unfit returns why a remote Service can be neither mirrored nor joined; empty if it can.
func unsuitable(svc *corev1.Service, name string) string {
	switch {
	case isMirror(svc):
		return "it stands for a Service of yet another cluster: link that one"
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return "it is of type ExternalName and has no endpoints"
	case len(svc.Spec.Ports) == 0:
		return "it has no ports"
	}
	if problems := validation.IsDNS1035Label(name); len(problems) > 0 {
		return fmt.Sprintf("%q is no name for a Service: %s", name, strings.Join(problems, "; "))
	}
	return ""
}

// mirror decides about the mirror of one Service of a Link's cluster.
func (w *inputs) planMirror(l *link, k records.Key, existing *corev1.Service) plan {
	base, suffixed := strings.CutSuffix(k.Name, "-"+l.Cluster)
	if l.Cluster == "" || !suffixed || base == "" {
		return plan{}
	}
	remote := records.Key{Namespace: k.Namespace, Name: base}
	svc, known := w.remote(l.Cluster, remote)
	if l.skipReason != "" || l.Problem != "" || known == unknown {
		if existing == nil || existing.Labels[clusterLabel] != l.Cluster {
			return plan{}
		}
		d := plan{keepService: true, keepEndpoints: true}
		if l.skipReason == "" {
			d.results = []serviceResult{{link: l.Link, remote: remote, mirrored: true, reason: reasonMirrored, message: "kept as it is until the cluster is heard"}}
		}
		return d
	}
	if known == absent {
		return plan{}
	}
	direct := l.RemoteDiscoverySelector.Matches(labels.Set(svc.Labels))
	if !direct && !l.Selector.Matches(labels.Set(svc.Labels)) {
		return plan{}
	}
	v := serviceResult{link: l.Link, remote: remote, reason: reasonInvalidService}
	if v.message = unsuitable(svc.Service, k.Name); v.message != "" {
		return plan{results: []serviceResult{v}}
	}
	if !direct && len(l.Gateway.Addresses) == 0 {
		v.reason, v.message = reasonError, "the Link has no gatewayAddress: give it one, or mirror the Service by remoteDiscoverySelector"
		mine := existing != nil && existing.Labels[clusterLabel] == l.Cluster
		return plan{keepService: mine, keepEndpoints: mine, results: []serviceResult{v}}
	}
	d, there := w.planNamespace(l, k.Namespace)
	if !there {
		v.reason, v.message = reasonMissingNamespace, "there is no namespace "+k.Namespace+" in the local cluster"
		return plan{results: []serviceResult{v}}
	}
	v.mirrored, v.reason, v.message = true, reasonMirrored, svc.omitted
	d.results = []serviceResult{v}
	d.service = w.mirrorService(l, k, svc.Service)
	if direct {
		d.service.Labels[discoveryKey], d.service.Labels[remoteServiceLabel] = l.Cluster, base
		return d
	}
	who := w.readiness(l.Cluster, remote)
	if w.headless && isHeadless(svc.Service) {
		switch {
		case existing != nil && isOurs(existing): // a mirror keeps its kind
			if isHeadless(existing) {
				d.service.Spec.ClusterIP = corev1.ClusterIPNone
			}
		case !who.known:
			v.mirrored, v.reason, v.message = false, reasonError, "who answers for it is not known yet"
			return plan{results: []serviceResult{v}}
		case len(who.hostnames) > 0:
			d.service.Spec.ClusterIP = corev1.ClusterIPNone
		}
		if isHeadless(d.service) {
			d.endpoints, d.keepEndpoints = w.headlessEndpoints(l, d.service, who)
			return d
		}
	}
	d.endpoints, d.keepEndpoints = w.gatewayEndpoints(l, d.service, !who.known || who.ready)
	return d
}

// endpointMirror decides about the Service that stands for one endpoint of a headless Service.
func (w *inputs) planEndpointMirror(l *link, k records.Key) plan {
	hostname, suffixed := strings.CutSuffix(k.Name, "-"+l.Cluster)
	if !w.headless || l.Cluster == "" || !suffixed || l.skipReason != "" || l.Problem != "" || len(l.Gateway.Addresses) == 0 {
		return plan{}
	}
	name, known := w.serviceWithHostname(l.Cluster, k.Namespace, hostname)
	if !known || !w.namespaceExists(k.Namespace) {
		return plan{}
	}
	svc, is := w.remote(l.Cluster, records.Key{Namespace: k.Namespace, Name: name})
	if is != present || !isHeadless(svc.Service) || !l.Selector.Matches(labels.Set(svc.Labels)) || l.RemoteDiscoverySelector.Matches(labels.Set(svc.Labels)) {
		return plan{}
	}
	parent := w.local(records.Key{Namespace: k.Namespace, Name: name + "-" + l.Cluster})
	if unsuitable(svc.Service, k.Name) != "" || parent == nil || !isOurs(parent) || !isHeadless(parent) {
		return plan{}
	}
	var d plan
	d.service = endpointMirrorService(l, k, hostname, svc.Service)
	who := w.readiness(l.Cluster, records.Key{Namespace: k.Namespace, Name: name})
	d.endpoints, d.keepEndpoints = w.gatewayEndpoints(l, d.service, !who.known || who.hostnames[hostname])
	return d
}

// probe decides about the Service over which a gateway is probed. One that the chart has made is left as it is.
func (w *inputs) planProbe(k records.Key, existing *corev1.Service) plan {
	for _, l := range w.links {
		if l.Probe == nil || l.skipReason != "" || l.Problem != "" || k.Namespace != l.Link.Namespace || k.Name != probePrefix+l.Link.Name {
			continue
		}
		foreign := existing != nil && !isOurs(existing)
		if foreign && existing.Labels[gatewayLabel] != "true" {
			return plan{}
		}
		service, endpoints := probeObjects(l, k, w.gateway(l.Cluster).addresses)
		d := plan{endpoints: endpoints, keepEndpoints: endpoints == nil}
		if foreign {
			d.keepService = true
		} else {
			d.service = service
		}
		return d
	}
	return plan{}
}

// enter returns a decision for a namespace of the local cluster, and whether there is one, or may be.
func (w *inputs) planNamespace(l *link, namespace string) (plan, bool) {
	if w.namespaceExists(namespace) {
		return plan{}, true
	}
	if !w.createNamespaces {
		return plan{}, false
	}
	return plan{namespaceLabels: map[string]string{mirroredLabel: "true", clusterLabel: l.Cluster}}, true
}

// A member is one Service of a federated one.
type member struct {
	link *link           // nil: the local cluster's
	svc  *corev1.Service // nil: it is not known, and a member because it was one
}

// federated decides about a union of the Services of one name.
func (w *inputs) planFederated(k records.Key, existing *corev1.Service) plan {
	base, suffixed := strings.CutSuffix(k.Name, federatedSuffix)
	if !suffixed || base == "" || existing != nil && existing.Labels[clusterLabel] != "" && isMirror(existing) {
		return plan{}
	}
	name := records.Key{Namespace: k.Namespace, Name: base}
	was := membershipOf(existing)
	var d plan
	var members []member
	var strangers []string // members whose Links, if there are any, are not ours
	hands := true          // all members are ours to write
	if w.localMembers.skip {
		if was.local != "" {
			members, hands = append(members, member{}), false
		}
	} else if svc := w.local(name); svc != nil && w.localMembers.selector.Matches(labels.Set(svc.Labels)) && !isHeadless(svc) && unsuitable(svc, k.Name) == "" {
		members = append(members, member{svc: svc})
	}
	for _, l := range w.links {
		if l.Cluster == "" {
			continue
		}
		svc, known := w.remote(l.Cluster, name)
		v := serviceResult{link: l.Link, federated: true, remote: name, reason: reasonInvalidService}
		switch {
		case l.skipReason != "":
			if was.has(base, l.Cluster) {
				members, hands = append(members, member{link: l}), false
			}
			continue
		case l.Problem != "" || known == unknown:
			if was.has(base, l.Cluster) {
				members = append(members, member{link: l})
				v.mirrored, v.reason, v.message = true, reasonMirrored, "kept as it is until the cluster is heard"
				d.results = append(d.results, v)
			}
			continue
		case known == absent || !l.FederatedServiceSelector.Matches(labels.Set(svc.Labels)):
			continue
		}
		switch there, problem := w.namespaceExists(k.Namespace) || w.createNamespaces, unsuitable(svc.Service, k.Name); {
		case problem != "":
			v.message = problem
		case isHeadless(svc.Service):
			v.message = "it is headless: such a Service cannot join a federated one"
		case !there:
			v.reason, v.message = reasonMissingNamespace, "there is no namespace "+k.Namespace+" in the local cluster"
		default:
			v.mirrored, v.reason, v.message = true, reasonMirrored, svc.omitted
			members = append(members, member{link: l, svc: svc.Service})
			if !w.namespaceExists(k.Namespace) {
				d.namespaceLabels = map[string]string{mirroredLabel: "true", clusterLabel: l.Cluster}
			}
		}
		d.results = append(d.results, v)
	}
	for _, m := range was.remote {
		if _, cluster, _ := strings.Cut(m, "@"); w.linkOf(cluster) == nil && !w.linkGone(existing, cluster) {
			strangers = append(strangers, m)
			hands = hands && !w.servedByLinkerd[cluster]
		}
	}
	if len(members)+len(strangers) == 0 {
		return d
	}
	hands = hands && len(members) > 0
	if existing != nil && !isOurs(existing) {
		existing = nil // it is refused below; nothing is taken from it
	}
	service, conflicts := w.federatedService(k, base, members, strangers, existing, hands)
	if service == nil { // everything about it is kept
		d.keepService = true
		return d
	}
	d.service = service
	for i, v := range d.results {
		if l := w.linkByKey(v.link); v.mirrored && conflicts[l] != "" {
			d.results[i].message = strings.TrimPrefix(v.message+"; "+conflicts[l], "; ")
		}
	}
	return d
}

func (w *inputs) linkByKey(k records.Key) *link {
	i := slices.IndexFunc(w.links, func(l *link) bool { return l.Link == k })
	if i < 0 {
		return nil
	}
	return w.links[i]
}

// membership is what a federated Service says about its members.
type membership struct {
	local  string
	remote []string // service@cluster
}

func (m membership) has(service, cluster string) bool {
	return slices.Contains(m.remote, service+"@"+cluster)
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

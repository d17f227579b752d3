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
type knowledge uint8

const (
	unknown knowledge = iota // nothing may follow from it
	absent
	present
)

// A world is everything that bears on what is written, at one time.
type world struct {
	links    []*link         // the oldest first, one a cluster
	complete bool            // there are no other Links where Links are read
	scope    string          // the namespace that Links are read in; empty for all
	seen     map[string]bool // clusters that had a Link of ours to write, at some time in this term
	foreign  map[string]bool // clusters that Linkerd's service mirror serves for Links that are not read
	locals   locals

	headless bool     // Options.Headless
	create   bool     // Options.CreateNamespaces
	exclude  []string // Options.Exclude

	room      func(k records.Key, clusters []string) bool // a Service may be made that one of the clusters has to have room for
	remote    func(cluster string, k records.Key) (*offer, knowledge)
	local     func(records.Key) *corev1.Service // nil: there is none
	namespace func(name string) bool            // false: it is known that there is none
	answers   func(cluster string, k records.Key) answers
	named     func(cluster, namespace, hostname string) (headless string, known bool) // the Service that has an endpoint of the name
	gateway   func(cluster string) gatewayState
}

// locals says which Services of the local cluster join federated ones.
type locals struct {
	selector labels.Selector
	left     bool // to Linkerd
}

// link is a Link and who looks after it.
type link struct {
	*links.Mirroring
	left string // why its Services are left alone; empty if they are ours to write
}

// answers is who answers for a remote Service.
type answers struct {
	known bool
	ready bool            // at least one endpoint is
	hosts map[string]bool // whether the endpoint of a hostname is ready
}

// gatewayState is how a gateway fares.
type gatewayState struct {
	addresses []string // IP addresses, sorted; none: they are not known
	dead      bool
}

// A verdict is what became of one Service of a linked cluster, for the status of its Link.
type verdict struct {
	link      records.Key
	federated bool
	remote    records.Key
	mirrored  bool
	refused   bool // there is no room for what would stand for it
	reason    string
	message   string
}

// The reasons of a verdict, which are Linkerd's.
const (
	reasonMirrored  = "Mirrored"
	reasonInvalid   = "InvalidService"
	reasonError     = "Error"
	reasonNamespace = "MissingNamespace"
)

// A decision is what should be there under one name.
type decision struct {
	service       *corev1.Service // nil: none
	endpoints     *endpoints      // nil: none
	keepService   bool            // what is there stays as it is
	keepEndpoints bool
	refused       bool              // there is no room for it
	namespace     map[string]string // labels of the namespace, which is missing; nil if it is not
	verdicts      []verdict
}

// claims reports whether somebody wants something to be there.
func (d *decision) claims() bool { return d.service != nil || d.endpoints != nil || d.keepService }

// decide returns what should be there under a name, given the Service that is; nil: none. Where several want the name the first one has
// it: the probe of a gateway, a federated Service, and then mirrors by the age of their Links.
func (w *world) decide(k records.Key, existing *corev1.Service) decision {
	claimants := []func(records.Key, *corev1.Service) decision{w.probe, w.federated}
	for _, l := range w.links {
		claimants = append(claimants, func(k records.Key, existing *corev1.Service) decision { return w.mirror(l, k, existing) })
	}
	for _, l := range w.links {
		claimants = append(claimants, func(k records.Key, _ *corev1.Service) decision { return w.endpointMirror(l, k) })
	}
	var d decision
	for _, claim := range claimants {
		next := claim(k, existing)
		if d.claims() && next.claims() {
			refuse(next.verdicts, "another Service is mirrored as "+k.String()+" already")
			next = decision{verdicts: next.verdicts}
		}
		verdicts := append(d.verdicts, next.verdicts...)
		if next.claims() {
			d = next
		}
		d.verdicts = verdicts
	}
	switch {
	case existing == nil && d.service != nil && !w.room(k, payers(d.service)):
		for i := range d.verdicts {
			d.verdicts[i].refused = d.verdicts[i].mirrored
		}
		refuse(d.verdicts, "the Link has as many Services here as it may: raise -max-mirrors-per-link, or export fewer")
		return decision{refused: true, verdicts: d.verdicts}
	case existing == nil:
	case d.service != nil && !w.touchable(existing):
		refuse(d.verdicts, errTaken{k, existing}.Error())
		return decision{keepService: true, keepEndpoints: true, verdicts: d.verdicts}
	case !d.claims():
		d.keepService = !w.removable(k, existing)
		d.keepEndpoints = d.keepService
	case d.service != nil:
		for key, value := range existing.Annotations { // what people ask of us is written here, as there is nowhere else
			if _, said := d.service.Annotations[key]; !said && key != linksKey && strings.HasPrefix(key, askedPrefix) {
				d.service.Annotations[key] = value
			}
		}
	}
	return d
}

// refuse turns verdicts that a Service is mirrored into the reason why it is not.
func refuse(verdicts []verdict, message string) {
	for i := range verdicts {
		if verdicts[i].mirrored {
			verdicts[i].mirrored, verdicts[i].reason, verdicts[i].message = false, reasonError, message
		}
	}
}

// touchable reports whether a Service may be changed: somebody made it for a Link that is ours to write, or was. A Link that we never
// saw is another's, and so is all that was made for it.
func (w *world) touchable(existing *corev1.Service) bool {
	if !isOurs(existing) {
		return false
	}
	cluster := existing.Labels[clusterLabel]
	if cluster == "" {
		return true // a federated Service: of whom it consists is decided for each member
	}
	if l := w.linkOf(cluster); l != nil {
		return l.left == ""
	}
	return w.unlinked(existing, cluster)
}

// unlinked reports whether the Link for which we wrote something about a cluster is known to be gone. That a cluster has no Link is not
// enough: it may have one where we do not read.
func (w *world) unlinked(existing *corev1.Service, cluster string) bool {
	if !w.complete || w.foreign[cluster] || w.linkOf(cluster) != nil {
		return false
	}
	owner, written := linksOf(existing)[cluster]
	return w.seen[cluster] || written && (w.scope == "" || w.scope == owner.Namespace)
}

// removable reports whether it is known that nobody wants what is there, and that it is for us to remove.
func (w *world) removable(k records.Key, existing *corev1.Service) bool {
	if !w.touchable(existing) {
		return false
	}
	cluster := existing.Labels[clusterLabel]
	if cluster == "" { // its members were all for us to remove
		was := membersOf(existing)
		return strings.HasSuffix(k.Name, federatedSuffix) && (was.local != "" || len(was.remote) > 0 || existing.Annotations[linksKey] != "")
	}
	l := w.linkOf(cluster)
	if existing.Labels[gatewayLabel] == "true" {
		return w.complete && (l == nil || l.Problem == "")
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
		if known == present && w.headless && l.ByGateway.Matches(labels.Set(svc.Labels)) {
			return w.answers(cluster, records.Key{Namespace: k.Namespace, Name: name}).known
		}
		return known != unknown
	}
	_, known := w.remote(cluster, records.Key{Namespace: k.Namespace, Name: name})
	return known != unknown
}

func (w *world) linkOf(cluster string) *link {
	i := slices.IndexFunc(w.links, func(l *link) bool { return l.Cluster == cluster })
	if i < 0 {
		return nil
	}
	return w.links[i]
}

// unfit returns why a remote Service can be neither mirrored nor joined; empty if it can.
func unfit(svc *corev1.Service, name string) string {
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
func (w *world) mirror(l *link, k records.Key, existing *corev1.Service) decision {
	base, suffixed := strings.CutSuffix(k.Name, "-"+l.Cluster)
	if l.Cluster == "" || !suffixed || base == "" {
		return decision{}
	}
	remote := records.Key{Namespace: k.Namespace, Name: base}
	svc, known := w.remote(l.Cluster, remote)
	if l.left != "" || l.Problem != "" || known == unknown {
		if existing == nil || existing.Labels[clusterLabel] != l.Cluster {
			return decision{}
		}
		d := decision{keepService: true, keepEndpoints: true}
		if l.left == "" {
			d.verdicts = []verdict{{link: l.Link, remote: remote, mirrored: true, reason: reasonMirrored, message: "kept as it is until the cluster is heard"}}
		}
		return d
	}
	if known == absent {
		return decision{}
	}
	direct := l.Directly.Matches(labels.Set(svc.Labels))
	if !direct && !l.ByGateway.Matches(labels.Set(svc.Labels)) {
		return decision{}
	}
	v := verdict{link: l.Link, remote: remote, reason: reasonInvalid}
	if v.message = unfit(svc.Service, k.Name); v.message != "" {
		return decision{verdicts: []verdict{v}}
	}
	if !direct && len(l.Gateway.Addresses) == 0 {
		v.reason, v.message = reasonError, "the Link has no gatewayAddress: give it one, or mirror the Service by remoteDiscoverySelector"
		mine := existing != nil && existing.Labels[clusterLabel] == l.Cluster
		return decision{keepService: mine, keepEndpoints: mine, verdicts: []verdict{v}}
	}
	d, there := w.enter(l, k.Namespace)
	if !there {
		v.reason, v.message = reasonNamespace, "there is no namespace "+k.Namespace+" in the local cluster"
		return decision{verdicts: []verdict{v}}
	}
	v.mirrored, v.reason, v.message = true, reasonMirrored, svc.dropped
	d.verdicts = []verdict{v}
	d.service = w.mirrorService(l, k, svc.Service)
	if direct {
		d.service.Labels[discoveryKey], d.service.Labels[remoteServiceLabel] = l.Cluster, base
		return d
	}
	who := w.answers(l.Cluster, remote)
	if w.headless && isHeadless(svc.Service) {
		switch {
		case existing != nil && isOurs(existing): // a mirror keeps its kind
			if isHeadless(existing) {
				d.service.Spec.ClusterIP = corev1.ClusterIPNone
			}
		case !who.known:
			v.mirrored, v.reason, v.message = false, reasonError, "who answers for it is not known yet"
			return decision{verdicts: []verdict{v}}
		case len(who.hosts) > 0:
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
func (w *world) endpointMirror(l *link, k records.Key) decision {
	hostname, suffixed := strings.CutSuffix(k.Name, "-"+l.Cluster)
	if !w.headless || l.Cluster == "" || !suffixed || l.left != "" || l.Problem != "" || len(l.Gateway.Addresses) == 0 {
		return decision{}
	}
	name, known := w.named(l.Cluster, k.Namespace, hostname)
	if !known || !w.namespace(k.Namespace) {
		return decision{}
	}
	svc, is := w.remote(l.Cluster, records.Key{Namespace: k.Namespace, Name: name})
	if is != present || !isHeadless(svc.Service) || !l.ByGateway.Matches(labels.Set(svc.Labels)) || l.Directly.Matches(labels.Set(svc.Labels)) {
		return decision{}
	}
	parent := w.local(records.Key{Namespace: k.Namespace, Name: name + "-" + l.Cluster})
	if unfit(svc.Service, k.Name) != "" || parent == nil || !isOurs(parent) || !isHeadless(parent) {
		return decision{}
	}
	var d decision
	d.service = endpointMirrorService(l, k, hostname, svc.Service)
	who := w.answers(l.Cluster, records.Key{Namespace: k.Namespace, Name: name})
	d.endpoints, d.keepEndpoints = w.gatewayEndpoints(l, d.service, !who.known || who.hosts[hostname])
	return d
}

// probe decides about the Service over which a gateway is probed. One that the chart has made is left as it is.
func (w *world) probe(k records.Key, existing *corev1.Service) decision {
	for _, l := range w.links {
		if l.Probe == nil || l.left != "" || l.Problem != "" || k.Namespace != l.Link.Namespace || k.Name != probePrefix+l.Link.Name {
			continue
		}
		foreign := existing != nil && !isOurs(existing)
		if foreign && existing.Labels[gatewayLabel] != "true" {
			return decision{}
		}
		service, endpoints := probeObjects(l, k, w.gateway(l.Cluster).addresses)
		d := decision{endpoints: endpoints, keepEndpoints: endpoints == nil}
		if foreign {
			d.keepService = true
		} else {
			d.service = service
		}
		return d
	}
	return decision{}
}

// enter returns a decision for a namespace of the local cluster, and whether there is one, or may be.
func (w *world) enter(l *link, namespace string) (decision, bool) {
	if w.namespace(namespace) {
		return decision{}, true
	}
	if !w.create {
		return decision{}, false
	}
	return decision{namespace: map[string]string{mirroredLabel: "true", clusterLabel: l.Cluster}}, true
}

// A member is one Service of a federated one.
type member struct {
	link *link           // nil: the local cluster's
	svc  *corev1.Service // nil: it is not known, and a member because it was one
}

// federated decides about a union of the Services of one name.
func (w *world) federated(k records.Key, existing *corev1.Service) decision {
	base, suffixed := strings.CutSuffix(k.Name, federatedSuffix)
	if !suffixed || base == "" || existing != nil && existing.Labels[clusterLabel] != "" && isMirror(existing) {
		return decision{}
	}
	name := records.Key{Namespace: k.Namespace, Name: base}
	was := membersOf(existing)
	var d decision
	var members []member
	var strangers []string // members whose Links, if there are any, are not ours
	hands := true          // all members are ours to write
	if w.locals.left {
		if was.local != "" {
			members, hands = append(members, member{}), false
		}
	} else if svc := w.local(name); svc != nil && w.locals.selector.Matches(labels.Set(svc.Labels)) && !isHeadless(svc) && unfit(svc, k.Name) == "" {
		members = append(members, member{svc: svc})
	}
	for _, l := range w.links {
		if l.Cluster == "" {
			continue
		}
		svc, known := w.remote(l.Cluster, name)
		v := verdict{link: l.Link, federated: true, remote: name, reason: reasonInvalid}
		switch {
		case l.left != "":
			if was.has(base, l.Cluster) {
				members, hands = append(members, member{link: l}), false
			}
			continue
		case l.Problem != "" || known == unknown:
			if was.has(base, l.Cluster) {
				members = append(members, member{link: l})
				v.mirrored, v.reason, v.message = true, reasonMirrored, "kept as it is until the cluster is heard"
				d.verdicts = append(d.verdicts, v)
			}
			continue
		case known == absent || !l.Federated.Matches(labels.Set(svc.Labels)):
			continue
		}
		switch there, problem := w.namespace(k.Namespace) || w.create, unfit(svc.Service, k.Name); {
		case problem != "":
			v.message = problem
		case isHeadless(svc.Service):
			v.message = "it is headless: such a Service cannot join a federated one"
		case !there:
			v.reason, v.message = reasonNamespace, "there is no namespace "+k.Namespace+" in the local cluster"
		default:
			v.mirrored, v.reason, v.message = true, reasonMirrored, svc.dropped
			members = append(members, member{link: l, svc: svc.Service})
			if !w.namespace(k.Namespace) {
				d.namespace = map[string]string{mirroredLabel: "true", clusterLabel: l.Cluster}
			}
		}
		d.verdicts = append(d.verdicts, v)
	}
	for _, m := range was.remote {
		if _, cluster, _ := strings.Cut(m, "@"); w.linkOf(cluster) == nil && !w.unlinked(existing, cluster) {
			strangers = append(strangers, m)
			hands = hands && !w.foreign[cluster]
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
	for i, v := range d.verdicts {
		if l := w.linkByKey(v.link); v.mirrored && conflicts[l] != "" {
			d.verdicts[i].message = strings.TrimPrefix(v.message+"; "+conflicts[l], "; ")
		}
	}
	return d
}

func (w *world) linkByKey(k records.Key) *link {
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

func membersOf(svc *corev1.Service) (m membership) {
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

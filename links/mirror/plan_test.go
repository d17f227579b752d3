package mirror

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
)

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// scene makes inputs of maps.
type scene struct {
	links         []*link
	partial       bool                         // there may be Links that are not known
	grace         bool                         // Links that were never seen may be about to come back
	linkNamespace string                       // the namespace that Links are read in
	seen          map[string]bool              // clusters whose Link was ours in this term
	foreign       map[string]bool              // clusters that Linkerd serves for Links that are not read
	remote        map[string][]*corev1.Service // by cluster; others were not synced
	held          map[string]bool              // clusters whose removals are held
	local         []*corev1.Service
	localSkip     bool
	headless      bool
	create        bool
	exclude       []string
	full          bool                 // no cluster has space left
	missing       []string             // namespaces that do not exist
	ready         map[string]readiness // by cluster and name
	gateways      map[string]gatewayState
	leads         map[string]bool       // names of Services whose Endpoints have addresses
	left          map[string]*endpoints // Endpoints without a Service, by name
}

func (s scene) linkSet() *linkSet {
	all := &linkSet{
		links: s.links, complete: !s.partial, everServed: s.seen, servedByLinkerd: s.foreign,
		membership: s.membership(), namespace: s.linkNamespace,
	}
	if s.localSkip {
		all.localSkipReason = "Linkerd does it"
	}
	return all
}

// membership returns which clusters are linked: what was seen and has no Link is not any more.
func (s scene) membership() *federation.Membership {
	states, others := map[federation.Cluster]federation.LinkState{}, federation.StateUnlinked
	for name, seen := range s.seen {
		if seen {
			states[federation.Cluster(name)] = federation.StateUnlinked
		}
	}
	for _, l := range s.links {
		states[federation.Cluster(l.Cluster)] = federation.StateLinked
	}
	if s.grace {
		others = federation.StateUndecided
	}
	return federation.NewMembership(states, others, true)
}

func find(all []*corev1.Service, k api.Key) *corev1.Service {
	i := slices.IndexFunc(all, func(s *corev1.Service) bool { return s.Namespace == k.Namespace && s.Name == k.Name })
	if i < 0 {
		return nil
	}
	return all[i]
}

func (s scene) readRemote(cluster string, k api.Key) (*remoteService, existence) {
	all, synced := s.remote[cluster]
	switch svc := find(all, k); {
	case svc != nil:
		return sanitize(svc.DeepCopy()), present
	case synced && !s.held[cluster]:
		return nil, absent
	default:
		return nil, unknown
	}
}

func (s scene) readLocal(k api.Key) *corev1.Service { return find(s.local, k) }

func (s scene) namespaceExists(name string) bool { return !slices.Contains(s.missing, name) }

func (s scene) readiness(cluster string, k api.Key) readiness { return s.ready[cluster+" "+k.String()] }

func (s scene) gateway(cluster string) gatewayState { return s.gateways[cluster] }

func (s scene) readEndpoints(k api.Key) *endpoints {
	if s.leads[k.Name] {
		return &endpoints{Subsets: []endpointSubset{{Addresses: make([]corev1.EndpointAddress, 1)}}}
	}
	return s.left[k.Name]
}

// leftOf returns the Endpoints of a Service that was deleted, by its name.
func leftOf(svc *corev1.Service) map[string]*endpoints {
	e := &endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name, Labels: svc.Labels}}
	return map[string]*endpoints{svc.Name: e}
}

func (s scene) servicesWithHostname(cluster, namespace, hostname string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(s.ready)) {
		base, is := strings.CutPrefix(name, cluster+" "+namespace+"/")
		if _, has := s.ready[name].hostnames[hostname]; is && has {
			names = append(names, base)
		}
	}
	return names
}

func (s scene) inputs(name string) *inputs {
	options := &Options{Headless: s.headless, CreateNamespaces: s.create, Exclude: s.exclude}
	return readInputs(s, s.linkSet(), options, api.Key{Namespace: "shop", Name: name})
}

func (s scene) plan(name string) namePlan {
	in := s.inputs(name)
	p := in.Plan()
	if s.full && in.existing == nil && p.service != nil && len(chargeableClusters(p.service)) > 0 {
		return p.withoutSpace()
	}
	return p
}

// aLink returns a Link with Linkerd's usual selectors and a gateway. Later ones are younger.
func aLink(t *testing.T, cluster string, age int) *link {
	t.Helper()
	return linkFor(cluster, age)
}

func linkFor(cluster string, age int) *link {
	selects := func(text string) labels.Selector {
		selector, err := labels.Parse(text)
		if err != nil {
			panic(err)
		}
		return selector
	}
	return &link{Mirroring: &links.Mirroring{
		Link: api.Key{Namespace: "mc", Name: cluster}, UID: cluster, Cluster: cluster,
		ClusterDomain:            cluster + ".local",
		Created:                  time.Date(2026, 1, age, 0, 0, 0, 0, time.UTC),
		Selector:                 selects("mirror.linkerd.io/exported=true"),
		RemoteDiscoverySelector:  selects("mirror.linkerd.io/exported=remote-discovery"),
		FederatedServiceSelector: selects("mirror.linkerd.io/federated=member"),
		Gateway: links.Gateway{
			Addresses: []string{"192.0.2.1"}, Port: 4143, Identity: "gateway.id",
		},
	}}
}

func service(name string, marks map[string]string, ports ...corev1.ServicePort) *corev1.Service {
	if ports == nil {
		ports = []corev1.ServicePort{tcp("http", 80)}
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: marks, ResourceVersion: "7"},
		Spec:       corev1.ServiceSpec{Ports: ports},
	}
}

func tcp(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{
		Name: name, Protocol: corev1.ProtocolTCP, Port: number, TargetPort: intstr.FromInt32(number + 8000),
	}
}

func with(svc *corev1.Service, change func(*corev1.Service)) *corev1.Service {
	change(svc)
	return svc
}

func mirrored(name, cluster string) *corev1.Service {
	return service(name, map[string]string{mirroredLabel: "true", clusterLabel: cluster})
}

func joined(members, local string) *corev1.Service {
	return with(service("web-federated", map[string]string{mirroredLabel: "true"}), func(s *corev1.Service) {
		s.Annotations = map[string]string{}
		if members != "" {
			s.Annotations[discoveryKey] = members
		}
		if local != "" {
			s.Annotations[localDiscoveryKey] = local
		}
	})
}

// written returns a Service as we have written it for Links, each as cluster=namespace/name.
func written(svc *corev1.Service, links string) *corev1.Service {
	return with(svc, func(s *corev1.Service) {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[linksAnnotation] = links
	})
}

var (
	exported = map[string]string{"mirror.linkerd.io/exported": "true"}
	direct   = map[string]string{"mirror.linkerd.io/exported": "remote-discovery"}
	joins    = map[string]string{"mirror.linkerd.io/federated": "member"}
	plain    = map[string]string{"app": "web"}
)

// A mirror through the gateway is a Service without selector, and Endpoints with the gateway's addresses under the
// Service's own port names.
func TestGatewayMirror(t *testing.T) {
	h2c := "kubernetes.io/h2c"
	web := service("web", map[string]string{
		"mirror.linkerd.io/exported": "true", "app": "web", "secret/a": "1", "secretly/a": "2", "drop": "3",
		"federation.fingerpost.io/source-cluster": "west",
	}, modified(tcp("http", 80), func(p *corev1.ServicePort) {
		p.NodePort = 30080
		p.AppProtocol = &h2c
	}), tcp("admin", 90))
	web.Annotations = map[string]string{
		"note": "kept", opaqueAnnotation: "90", "service.kubernetes.io/topology-mode": "Auto",
		"service.kubernetes.io/topology-aware-hints": "auto",
		corev1.LastAppliedConfigAnnotation:           "{}", "out/a": "1", "config.linkerd.io/x": "2",
		discoveryKey: "web@elsewhere", "federation.fingerpost.io/members": "admin,pay@west",
		"federation.fingerpost.io/endpoint-slices": "enabled",
	}
	east := aLink(t, "east", 1)
	east.ExcludedLabels = []string{"secret/*", "drop"}
	east.ExcludedAnnotations = []string{"out/*", "config.linkerd.io/*"}
	d := scene{
		links: []*link{east}, remote: map[string][]*corev1.Service{"east": {web}},
		ready:    map[string]readiness{"east shop/web": {known: true, ready: true}},
		gateways: map[string]gatewayState{"east": {addresses: []string{"192.0.2.1", "192.0.2.2"}}},
	}.plan("web-east")
	want := namePlan{
		service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "web-east",
				Labels: map[string]string{
					mirroredLabel: "true", clusterLabel: "east", "app": "web", "secretly/a": "2",
				},
				Annotations: map[string]string{
					nameAnnotation: "web.shop.svc.east.local", versionAnnotation: "7", "note": "kept",
					opaqueAnnotation: "90", linksAnnotation: "east=mc/east",
				},
			},
			Spec: corev1.ServiceSpec{
				Ports: []corev1.ServicePort{
					modified(tcp("http", 80), func(p *corev1.ServicePort) { p.AppProtocol = &h2c }),
					tcp("admin", 90),
				},
			},
		},
		endpoints: &endpoints{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "web-east",
				Labels: map[string]string{mirroredLabel: "true", clusterLabel: "east"},
				Annotations: map[string]string{
					nameAnnotation: "web.shop.svc.east.local", identityAnnotation: "gateway.id",
				},
			},
			Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // Endpoints are what is written
				Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}, {IP: "192.0.2.2"}},
				Ports: []corev1.EndpointPort{
					{Name: "http", Protocol: "TCP", AppProtocol: &h2c, Port: 4143},
					{Name: "admin", Protocol: "TCP", Port: 4143},
				},
			}},
		},
		results: []serviceResult{
			{
				link: east.Link, remote: api.Key{Namespace: "shop", Name: "web"}, mirrored: true,
				reason: "Mirrored",
			},
		},
	}
	if diff := cmp.Diff(want, d, cmp.AllowUnexported(namePlan{}, serviceResult{})); diff != "" {
		t.Error(diff)
	}
}

func modified[T any](v T, change func(*T)) T {
	change(&v)
	return v
}

// Endpoints of a mirror follow the readiness of the remote endpoints, and of the gateway. Unknown changes nothing.
func TestGatewayEndpoints(t *testing.T) {
	up := gatewayState{addresses: []string{"192.0.2.1"}}
	for name, c := range map[string]struct {
		readiness readiness
		gateway   gatewayState
		want      string
	}{
		"an endpoint is ready": {readiness{known: true, ready: true}, up, "ready 192.0.2.1:4143"},
		"no endpoint is ready": {readiness{known: true}, up, "empty"},
		"they are not known":   {readiness{}, up, "ready 192.0.2.1:4143"},
		"the gateway is dead": {
			readiness{known: true, ready: true},
			gatewayState{addresses: up.addresses, dead: true},
			"not ready 192.0.2.1:4143",
		},
		"the gateway is not resolved": {readiness{known: true, ready: true}, gatewayState{}, "kept"},
	} {
		t.Run(name, func(t *testing.T) {
			d := scene{
				links:    []*link{aLink(t, "east", 1)},
				remote:   map[string][]*corev1.Service{"east": {service("web", exported)}},
				ready:    map[string]readiness{"east shop/web": c.readiness},
				gateways: map[string]gatewayState{"east": c.gateway},
			}.plan("web-east")
			if got := addresses(d); got != c.want {
				t.Errorf("endpoints: %s, want %s", got, c.want)
			}
		})
	}
}

func addresses(d namePlan) string {
	switch {
	case d.keepEndpoints:
		return "kept"
	case d.endpoints == nil:
		return "none"
	case len(d.endpoints.Subsets) == 0:
		return "empty"
	}
	var all []string
	for _, s := range d.endpoints.Subsets {
		for _, a := range s.Addresses {
			all = append(all, fmt.Sprintf("ready %s%s:%d", prefixed(a.Hostname), a.IP, s.Ports[0].Port))
		}
		for _, a := range s.NotReadyAddresses {
			all = append(all, fmt.Sprintf("not ready %s%s:%d", prefixed(a.Hostname), a.IP, s.Ports[0].Port))
		}
	}
	return strings.Join(all, ", ")
}

func prefixed(hostname string) string {
	if hostname == "" {
		return ""
	}
	return hostname + "="
}

// summary renders a plan in one line: the Service, and the results.
func summary(d namePlan) string {
	var parts []string
	switch {
	case d.keepService:
		parts = append(parts, "keep")
	case d.service == nil:
		parts = append(parts, "none")
	default:
		text := d.service.Name
		for _, key := range []string{discoveryKey, localDiscoveryKey} {
			if value := d.service.Annotations[key]; value != "" {
				text += " " + value
			}
			if value := d.service.Labels[key]; value != "" {
				text += " label " + value + " " + d.service.Labels[remoteServiceLabel]
			}
		}
		if isHeadless(d.service) {
			text += " headless"
		}
		parts = append(parts, text)
	}
	for _, v := range d.results {
		of := v.link.Name
		if v.endpoint != "" {
			of += " " + v.remote.Name + " " + v.endpoint
		}
		parts = append(parts, strings.TrimSuffix(of+" "+v.reason+": "+v.message, ": "))
	}
	return strings.Join(parts, "; ")
}

// The plan for a name, for each rule.
func TestPlan(t *testing.T) {
	east, west := aLink(t, "east", 1), aLink(t, "west", 2)
	both := []*link{east, west}
	only := func(cluster string, all ...*corev1.Service) map[string][]*corev1.Service {
		return map[string][]*corev1.Service{cluster: all}
	}
	left := modified(*aLink(t, "east", 1), func(l *link) { l.skipReason = "Lease mc/x is held by a" })
	problem := aLink(t, "east", 1)
	problem.Problem = "spec.selector: junk"
	nothing := aLink(t, "east", 1)
	nothing.Selector, nothing.RemoteDiscoverySelector, nothing.FederatedServiceSelector = labels.Nothing(),
		labels.Nothing(), labels.Nothing()
	noGateway := aLink(t, "east", 1)
	noGateway.Gateway = links.Gateway{}
	probed := aLink(t, "east", 1)
	probed.Probe, probed.Link = &links.Probe{Port: 4191}, api.Key{Namespace: "shop", Name: "east"}
	headless := func(s *corev1.Service) { s.Spec.ClusterIP = "None" }
	external := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }
	gateways := map[string]gatewayState{
		"east": {addresses: []string{"192.0.2.1"}}, "west": {addresses: []string{"192.0.2.2"}},
	}

	for _, c := range []struct {
		rule string
		name string
		scene
		want string
	}{
		// Which Services are selected.
		{
			"what is not exported has no mirror", "web-east",
			scene{links: both, remote: only("east", service("web", plain))},
			"none",
		},
		{
			"an empty selector selects nothing", "web-east",
			scene{links: []*link{nothing}, remote: only("east", service("web", exported))},
			"none",
		},
		{
			"remote discovery: labels instead of Endpoints", "web-east",
			scene{links: both, remote: only("east", service("web", direct))},
			"web-east label east web; east Mirrored",
		},
		{
			"a mirror of a mirror is rejected", "web-west-east",
			scene{
				links: both,
				remote: only(
					"east",
					with(mirrored("web-west", "west"), func(s *corev1.Service) {
						s.Labels["mirror.linkerd.io/exported"] = "true"
					}),
				),
			},
			"none; east InvalidService: it is itself a mirror of a Service of another cluster: link that cluster",
		},
		{
			"an ExternalName is rejected", "web-east",
			scene{links: both, remote: only("east", with(service("web", exported), external))},
			"none; east InvalidService: it is of type ExternalName and has no endpoints",
		},
		{
			"no ports, no mirror", "web-east",
			scene{links: both, remote: only("east", service("web", exported, []corev1.ServicePort{}...))},
			"none; east InvalidService: it has no ports",
		},
		{
			"a gateway mirror needs a gateway", "web-east",
			scene{links: []*link{noGateway}, remote: only("east", service("web", exported))},
			"none; east Error: the Link has no gatewayAddress: set it, or mirror the Service by remoteDiscoverySelector",
		},
		{
			"a Service in a missing namespace", "web-east",
			scene{links: both, remote: only("east", service("web", exported)), missing: []string{"shop"}},
			"none; east MissingNamespace: there is no namespace shop in the local cluster",
		},
		{
			"the namespace is created if configured", "web-east",
			scene{
				links: both, remote: only("east", service("web", direct)), missing: []string{"shop"},
				create: true,
			},
			"web-east label east web; east Mirrored",
		},
		{
			"a mirror whose namespace its watch does not show yet", "web-east",
			scene{
				links: both, remote: only("east", service("web", direct)), missing: []string{"shop"},
				local: []*corev1.Service{mirrored("web-east", "east")},
			},
			"web-east label east web; east Mirrored",
		},

		// Which Service has the name.
		{
			"a user's own Service is not changed", "web-east",
			scene{
				links: both, remote: only("east", service("web", direct)),
				local: []*corev1.Service{service("web-east", plain)},
			},
			"keep; east Error: Service shop/web-east exists already and is not a mirror: rename one of the two, or delete the local one",
		},
		{
			"a user's own Service is not deleted", "web-east",
			scene{links: both, remote: only("east"), local: []*corev1.Service{service("web-east", plain)}},
			"keep",
		},
		{
			"a mirror that Linkerd has created is taken over", "web-east",
			scene{
				links: both, remote: only("east", service("web", direct)),
				local: []*corev1.Service{mirrored("web-east", "east")},
			},
			"web-east label east web; east Mirrored",
		},
		{"two that want one name: the older Link's has it", "a-b-c", scene{
			links:  []*link{aLink(t, "c", 1), aLink(t, "b-c", 2)},
			remote: map[string][]*corev1.Service{"c": {service("a-b", direct)}, "b-c": {service("a", direct)}},
		}, "a-b-c label c a-b; c Mirrored; b-c Error: another Service is mirrored as shop/a-b-c already"},

		// What is deleted, and what stays.
		{
			"unexported: it is deleted", "web-east",
			scene{
				links: both, remote: only("east", service("web", plain)),
				local: []*corev1.Service{mirrored("web-east", "east")},
			},
			"none",
		},
		{
			"deleted meanwhile: it is deleted", "web-east",
			scene{links: both, remote: only("east"), local: []*corev1.Service{mirrored("web-east", "east")}},
			"none",
		},
		{
			"the cluster was not synced: it stays", "web-east",
			scene{links: both, local: []*corev1.Service{mirrored("web-east", "east")}},
			"keep; east Mirrored: " + keptWhileUnknown,
		},
		{
			"a held removal: it stays", "web-east",
			scene{
				links: both, remote: only("east"), held: map[string]bool{"east": true},
				local: []*corev1.Service{mirrored("web-east", "east")},
			},
			"keep; east Mirrored: " + keptWhileUnknown,
		},
		{
			"the Link is invalid: it stays", "web-east",
			scene{
				links: []*link{problem}, remote: only("east"),
				local: []*corev1.Service{mirrored("web-east", "east")},
			},
			"keep; east Mirrored: " + keptWhileUnknown,
		},
		{
			"the Link was deleted: it is deleted", "web-east",
			scene{
				links: []*link{west},
				local: []*corev1.Service{written(mirrored("web-east", "east"), "east=mc/east")},
			},
			"none",
		},
		{
			"the Link was deleted, but not all are known: it stays", "web-east",
			scene{
				links: []*link{west}, partial: true,
				local: []*corev1.Service{written(mirrored("web-east", "east"), "east=mc/east")},
			},
			"keep",
		},
		{
			"the Link was deleted before the start: it stays during the grace", "web-east",
			scene{
				links: []*link{west}, grace: true,
				local: []*corev1.Service{written(mirrored("web-east", "east"), "east=mc/east")},
			},
			"keep",
		},
		{
			"the Link existed in this term: it is deleted", "web-east",
			scene{
				links: []*link{west}, grace: true, seen: map[string]bool{"east": true},
				local: []*corev1.Service{mirrored("web-east", "east")},
			},
			"none",
		},
		{
			"the Link was deleted where Links are read: it is deleted", "web-east",
			scene{
				linkNamespace: "mc",
				local:         []*corev1.Service{written(mirrored("web-east", "east"), "east=mc/east")},
			},
			"none",
		},
		{
			"its Link may be in a namespace that is not read: it stays", "web-east",
			scene{
				linkNamespace: "ours",
				local:         []*corev1.Service{written(mirrored("web-east", "east"), "east=mc/east")},
			},
			"keep",
		},
		{
			"a Link that we never saw: it stays", "web-east",
			scene{links: []*link{west}, local: []*corev1.Service{mirrored("web-east", "east")}},
			"keep",
		},
		{
			"Linkerd serves the cluster by now: it stays", "web-east",
			scene{
				foreign: map[string]bool{"east": true}, seen: map[string]bool{"east": true},
				local: []*corev1.Service{written(mirrored("web-east", "east"), "east=mc/east")},
			},
			"keep",
		},
		{
			"the mirror of a cluster that is not ours is not written over", "a-b-c",
			scene{
				links: []*link{aLink(t, "c", 1)}, remote: only("c", service("a-b", direct)),
				local: []*corev1.Service{mirrored("a-b-c", "b-c")},
			},
			"keep; c Error: Service shop/a-b-c is the mirror of another cluster, b-c, whose Link is not served here: rename one of the two Services",
		},
		{
			"a mark on a name that no mirror has: it stays", "odd",
			scene{links: both, remote: only("east"), local: []*corev1.Service{mirrored("odd", "east")}},
			"keep",
		},
		{
			"left to Linkerd: nothing is created", "web-east",
			scene{links: []*link{&left}, remote: only("east", service("web", direct))},
			"none",
		},
		{
			"left to Linkerd: nothing is deleted", "web-east",
			scene{
				links: []*link{&left}, remote: only("east"),
				local: []*corev1.Service{mirrored("web-east", "east")},
			},
			"keep",
		},

		// The budget of a cluster.
		{
			"no space: nothing is created", "web-east",
			scene{links: both, full: true, remote: only("east", service("web", direct))},
			"none; east Error: the cluster has as many Services here as it may: raise -max-mirrors-per-link, or export fewer",
		},
		{
			"existing mirrors are kept up to date", "web-east",
			scene{
				links: both, full: true, remote: only("east", service("web", direct)),
				local: []*corev1.Service{mirrored("web-east", "east")},
			},
			"web-east label east web; east Mirrored",
		},
		{
			"a federated Service takes space, too", "web-federated",
			scene{links: both, full: true, remote: only("east", service("web", joins))},
			"none; east Error: the cluster has as many Services here as it may: raise -max-mirrors-per-link, or export fewer",
		},
		{
			"but not of the linked clusters if the local cluster asks for it", "web-federated",
			scene{
				links: both, full: true, remote: only("east", service("web", joins)),
				local: []*corev1.Service{service("web", joins)},
			},
			"web-federated web@east web; east Mirrored",
		},

		// Federated Services.
		{"members in the order of age, the local one apart", "web-federated", scene{
			links: both,
			remote: map[string][]*corev1.Service{
				"east": {service("web", joins)}, "west": {service("web", joins)},
			},
			local: []*corev1.Service{service("web", joins)},
		}, "web-federated web@east,web@west web; east Mirrored; west Mirrored"},
		{
			"the local member alone", "web-federated",
			scene{local: []*corev1.Service{service("web", joins)}},
			"web-federated web",
		},
		{
			"a headless Service cannot join", "web-federated",
			scene{links: both, remote: only("east", with(service("web", joins), headless))},
			"none; east InvalidService: it is headless: such a Service cannot join a federated one",
		},
		{
			"nor can an ExternalName", "web-federated",
			scene{links: both, remote: only("east", with(service("web", joins), external))},
			"none; east InvalidService: it is of type ExternalName and has no endpoints",
		},
		{"a cluster that was not synced stays a member", "web-federated", scene{
			links: both, remote: only("west", service("web", joins)),
			local: []*corev1.Service{joined("web@east", "")},
		}, "web-federated web@east,web@west; east Mirrored: " + keptWhileUnknown + "; west Mirrored"},
		{
			"and does not become one", "web-federated",
			scene{links: both, remote: only("west", service("web", joins))},
			"web-federated web@west; west Mirrored",
		},
		{"a deleted Service leaves", "web-federated", scene{
			links: both, remote: map[string][]*corev1.Service{"east": {}, "west": {service("web", joins)}},
			local: []*corev1.Service{joined("web@east,web@west", "web")},
		}, "web-federated web@west; west Mirrored"},
		{
			"it is deleted with the last member", "web-federated",
			scene{
				links: both, remote: map[string][]*corev1.Service{"east": {}, "west": {}},
				local: []*corev1.Service{joined("web@east", "")},
			},
			"none",
		},
		{
			"an unlinked cluster leaves", "web-federated",
			scene{
				links: []*link{west}, remote: only("west", service("web", joins)),
				local: []*corev1.Service{written(joined("web@east,web@west", ""), "east=mc/east,west=mc/west")},
			},
			"web-federated web@west; west Mirrored",
		},
		{
			"one whose Link we never saw stays", "web-federated",
			scene{
				links: []*link{west}, remote: only("west", service("web", joins)),
				local: []*corev1.Service{joined("web@east,web@west", "")},
			},
			"web-federated web@west,web@east; west Mirrored",
		},
		{
			"all members of others: it is not changed", "web-federated",
			scene{
				links: []*link{west}, remote: only("west"),
				local: []*corev1.Service{joined("web@east,web@north", "")},
			},
			"keep",
		},
		{
			"our last member leaves, those of others stay", "web-federated",
			scene{
				links: []*link{west}, remote: only("west"),
				local: []*corev1.Service{joined("web@east,web@west", "")},
			},
			"web-federated web@east",
		},
		{
			"without a member and never written by us: it stays", "web-federated",
			scene{local: []*corev1.Service{joined("", "")}},
			"keep",
		},
		{
			"unless not all Links are known", "web-federated",
			scene{
				links: []*link{west}, partial: true, remote: only("west", service("web", joins)),
				local: []*corev1.Service{joined("web@east,web@west", "")},
			},
			"web-federated web@west,web@east; west Mirrored",
		},
		{
			"a member that is left to Linkerd stays as it is", "web-federated",
			scene{
				links:  []*link{&left, west},
				remote: map[string][]*corev1.Service{"east": {}, "west": {service("web", joins)}},
				local:  []*corev1.Service{joined("web@east", "")},
			},
			"web-federated web@east,web@west; west Mirrored",
		},
		{
			"so does the local one", "web-federated",
			scene{
				links: both, localSkip: true, remote: map[string][]*corev1.Service{"east": {}, "west": {}},
				local: []*corev1.Service{joined("", "web")},
			},
			"keep",
		},
		{
			"a user's own Service of the name is not changed", "web-federated",
			scene{
				links: both, remote: only("east", service("web", joins)),
				local: []*corev1.Service{service("web-federated", plain)},
			},
			"keep; east Error: Service shop/web-federated exists already and is not a mirror: rename one of the two, or delete the local one",
		},
		{
			"a federated Service in a missing namespace", "web-federated",
			scene{links: both, remote: only("east", service("web", joins)), missing: []string{"shop"}},
			"none; east MissingNamespace: there is no namespace shop in the local cluster",
		},

		// Headless Services.
		{
			"without the option a headless Service has an ordinary mirror", "db-east",
			scene{links: both, gateways: gateways, remote: only("east", with(service("db", exported), headless))},
			"db-east; east Mirrored",
		},
		{"with it a headless one, if endpoints have names", "db-east", scene{
			links: both, headless: true, gateways: gateways,
			remote: only("east", with(service("db", exported), headless)),
			ready: map[string]readiness{
				"east shop/db": {known: true, endpoints: true, ready: true, hostnames: map[string]bool{"db-0": true}},
			},
		}, "db-east headless; east Mirrored"},
		{"and an ordinary one if none has", "db-east", scene{
			links: both, headless: true, gateways: gateways,
			remote: only("east", with(service("db", exported), headless)),
			ready:  map[string]readiness{"east shop/db": {known: true, endpoints: true, ready: true}},
		}, "db-east; east Mirrored"},
		{"it waits until there is an endpoint", "db-east", scene{
			links: both, headless: true, gateways: gateways,
			remote: only("east", with(service("db", exported), headless)),
			ready:  map[string]readiness{"east shop/db": {known: true}},
		}, "none; east Error: it is headless and has no endpoints yet: whether they have names decides what its mirror is"},
		{
			"it waits until that is known", "db-east",
			scene{
				links: both, headless: true, gateways: gateways,
				remote: only("east", with(service("db", exported), headless)),
			},
			"none; east Error: its endpoints are not known yet",
		},
		{"and keeps its kind when the last name goes", "db-east", scene{
			links: both, headless: true, gateways: gateways,
			remote: only("east", with(service("db", exported), headless)),
			ready:  map[string]readiness{"east shop/db": {known: true}},
			local:  []*corev1.Service{with(mirrored("db-east", "east"), headless)},
		}, "db-east headless; east Mirrored"},
		{"each name is a Service", "db-0-east", scene{
			links: both, headless: true, gateways: gateways,
			remote: only("east", with(service("db", exported), headless)),
			ready: map[string]readiness{
				"east shop/db": {known: true, hostnames: map[string]bool{"db-0": true}},
			},
			local: []*corev1.Service{with(mirrored("db-east", "east"), headless)},
		}, "db-0-east; east db db-0 Mirrored"},
		{"or none that another one has", "db-0-east", scene{
			links: both, headless: true, gateways: gateways,
			remote: only("east", with(service("db", exported), headless)),
			ready: map[string]readiness{
				"east shop/db": {known: true, hostnames: map[string]bool{"db-0": true}},
			},
			local: []*corev1.Service{with(mirrored("db-east", "east"), headless), service("db-0-east", plain)},
		}, "keep; east db db-0 Error: Service shop/db-0-east exists already and is not a mirror: " +
			"rename one of the two, or delete the local one"},
		{"or that is mirrored itself", "db-0-east", scene{
			links: both, headless: true, gateways: gateways,
			remote: only("east", with(service("db", exported), headless), service("db-0", exported)),
			ready: map[string]readiness{
				"east shop/db": {known: true, hostnames: map[string]bool{"db-0": true}},
			},
			local: []*corev1.Service{with(mirrored("db-east", "east"), headless)},
		}, "db-0-east; east Mirrored; east db db-0 Error: another Service is mirrored as shop/db-0-east already"},
		{"that is deleted with the name", "db-1-east", scene{
			links: both, headless: true, gateways: gateways,
			remote: only("east", with(service("db", exported), headless)),
			ready: map[string]readiness{
				"east shop/db": {known: true, hostnames: map[string]bool{"db-0": true}},
			},
			local: []*corev1.Service{
				with(mirrored("db-east", "east"), headless),
				with(mirrored("db-1-east", "east"), func(s *corev1.Service) {
					s.Labels[headlessLabel] = "db-east"
				}),
			},
		}, "none"},
		{"but not while the endpoints are unknown", "db-1-east", scene{
			links: both, headless: true, gateways: gateways,
			remote: only("east", with(service("db", exported), headless)),
			local: []*corev1.Service{
				with(mirrored("db-east", "east"), headless),
				with(mirrored("db-1-east", "east"), func(s *corev1.Service) {
					s.Labels[headlessLabel] = "db-east"
				}),
			},
		}, "keep"},

		// Endpoints that are left of a Service.
		{"they go if there is no Service behind them", "web-east", scene{
			links: both, remote: only("east"), left: leftOf(mirrored("web-east", "east")),
		}, "none"},
		{"they go if that is not selected", "web-east", scene{
			links: both, remote: only("east", service("web", plain)), left: leftOf(mirrored("web-east", "east")),
		}, "none"},
		{"they stay while that is unknown", "web-east", scene{
			links: both, left: leftOf(mirrored("web-east", "east")),
		}, "keep"},
		{"they stay while Linkerd serves the Link", "web-east", scene{
			links: []*link{&left}, remote: only("east"), left: leftOf(mirrored("web-east", "east")),
		}, "keep"},
		{"they go with a Link that was served", "web-east", scene{
			seen: map[string]bool{"east": true}, left: leftOf(mirrored("web-east", "east")),
		}, "none"},
		{"they stay of a Link that was never seen", "web-east", scene{
			left: leftOf(mirrored("web-east", "east")),
		}, "keep"},
		{"those of others stay", "web-east", scene{
			links: both, remote: only("east"),
			left: leftOf(service("web-east", map[string]string{clusterLabel: "east"})),
		}, "keep"},
		{"those of an endpoint stay while its Service is unknown", "db-0-east", scene{
			links: both, headless: true,
			left: leftOf(with(mirrored("db-0-east", "east"), func(s *corev1.Service) {
				s.Labels[headlessLabel] = "db-east"
			})),
		}, "keep"},
		{"those of an endpoint go with its Service", "db-0-east", scene{
			links: both, headless: true, remote: only("east"),
			left: leftOf(with(mirrored("db-0-east", "east"), func(s *corev1.Service) {
				s.Labels[headlessLabel] = "db-east"
			})),
		}, "none"},
		{"those of a Service over which a gateway was probed go", "probe-east", scene{
			links: []*link{east}, left: leftOf(service("probe-east",
				map[string]string{gatewayLabel: "true", clusterLabel: "east", managedByLabel: productName})),
		}, "none"},

		// The gateway's own Service.
		{
			"the way to probe a gateway", "probe-east",
			scene{links: []*link{probed}, gateways: gateways},
			"probe-east",
		},
		{
			"the chart's own is left as it is", "probe-east",
			scene{
				links: []*link{probed}, gateways: gateways,
				local: []*corev1.Service{service("probe-east", map[string]string{gatewayLabel: "true"})},
			},
			"keep",
		},
		{
			"it is deleted with the Link", "probe-east",
			scene{
				local: []*corev1.Service{
					written(
						service("probe-east",
							map[string]string{gatewayLabel: "true", clusterLabel: "east", managedByLabel: productName}),
						"east=mc/east",
					),
				},
			},
			"none",
		},
	} {
		t.Run(c.rule, func(t *testing.T) {
			if got := summary(c.plan(c.name)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// The Endpoints of a headless mirror are the mirrors of its endpoints, under the Service's own port.
func TestHeadlessEndpoints(t *testing.T) {
	headless := func(s *corev1.Service) { s.Spec.ClusterIP = "None" }
	at := func(name, ip string) *corev1.Service {
		return with(mirrored(name, "east"), func(s *corev1.Service) {
			s.Labels[headlessLabel], s.Spec.ClusterIP = "db-east", ip
		})
	}
	s := scene{
		links: []*link{aLink(t, "east", 1)}, headless: true,
		gateways: map[string]gatewayState{"east": {addresses: []string{"192.0.2.1"}}},
		remote:   map[string][]*corev1.Service{"east": {with(service("db", exported), headless)}},
		ready: map[string]readiness{
			"east shop/db": {
				known: true, ready: true,
				hostnames: map[string]bool{"db-0": true, "db-1": false, "db-2": true},
			},
		},
		local: []*corev1.Service{
			with(mirrored("db-east", "east"), headless), at("db-0-east", "10.0.0.1"),
			at("db-1-east", "10.0.0.2"),
		},
	}
	if got, want := addresses(s.plan("db-east")), "ready db-0=10.0.0.1:80, not ready db-1=10.0.0.2:80"; got != want {
		t.Errorf("the headless mirror leads to %s, want %s", got, want)
	}
	one := s.plan("db-0-east")
	if got, want := addresses(one), "ready 192.0.2.1:4143"; got != want {
		t.Errorf("the mirror of an endpoint leads to %s, want %s", got, want)
	}
	if got, want := one.endpoints.Annotations[nameAnnotation], "db-0.db.shop.svc.east.local"; got != want {
		t.Errorf("it is called %s, want %s", got, want)
	}
	if got := one.endpoints.Labels[headlessLabel]; got != "db-east" {
		t.Errorf("it belongs to %q", got)
	}
	if got := addresses(s.plan("db-1-east")); got != "empty" {
		t.Errorf("an endpoint that is not ready leads to %s", got)
	}
}

// The ports of a federated Service are those of all members. If they conflict, the older member's count, and the
// younger one's Link reports it.
func TestFederatedPorts(t *testing.T) {
	grpc := "grpc"
	east := service("web", joins, tcp("http", 80), tcp("dns", 53), corev1.ServicePort{
		Name: "dns-udp", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(53),
	})
	west := service(
		"web", joins, tcp("http", 80), tcp("http-alt", 81),
		modified(tcp("dns", 53), func(p *corev1.ServicePort) { p.AppProtocol = &grpc }),
	)
	north := service("web", joins, tcp("http", 8080), tcp("web", 80))
	s := scene{
		links:  []*link{aLink(t, "east", 1), aLink(t, "west", 2), aLink(t, "north", 3)},
		remote: map[string][]*corev1.Service{"east": {east}, "west": {west}, "north": {north}},
	}
	d := s.plan("web-federated")
	var ports []string
	for _, p := range d.service.Spec.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s %s", p.Port, p.Protocol, p.Name))
	}
	if got, want := strings.Join(ports, ", "),
		"53/TCP dns, 53/UDP dns-udp, 80/TCP http, 81/TCP http-alt, 8080/TCP http-8080-tcp"; got != want {
		t.Errorf("ports %s, want %s", got, want)
	}
	if got, want := summary(namePlan{results: d.results}),
		`none; east Mirrored; west Mirrored: port 53 is "dns" TCP grpc here and "dns" TCP in an older member, which counts; `+
			`north Mirrored: port 80 is "web" TCP here and "http" TCP in an older member, which counts`; got != want {
		t.Errorf("results\n%s, want\n%s", got, want)
	}
}

// Each port of a union has a valid name of its own, whatever its members call theirs.
func TestPortNames(t *testing.T) {
	long := strings.Repeat("a", 52) + "-bcdefghij" // cut to make room, and short enough to be a name
	hyphen := strings.Repeat("a", 6) + "-" + strings.Repeat("b", 55)
	for name, c := range map[string]struct {
		ports []corev1.ServicePort
		want  []string // by number
	}{
		"one without a name": {[]corev1.ServicePort{tcp("", 80)}, []string{""}},
		"several without": {
			[]corev1.ServicePort{tcp("", 80), tcp("", 81)}, []string{"port-80-tcp", "port-81-tcp"},
		},
		"a name that would be given": {
			[]corev1.ServicePort{tcp("http", 80), tcp("http-82-tcp", 81), tcp("http", 82)},
			[]string{"http", "http-82-tcp", "http-82-tcp-2"},
		},
		"and one that was given": {
			[]corev1.ServicePort{tcp("http", 80), tcp("http", 81), tcp("http-81-tcp", 82)},
			[]string{"http", "http-81-tcp", "http-81-tcp-82-tcp"},
		},
		"a long one": {
			[]corev1.ServicePort{tcp(long, 80), tcp(long, 65535)},
			[]string{long, strings.Repeat("a", 52) + "--65535-tcp"},
		},
		"long ones cut to one name": {
			[]corev1.ServicePort{tcp(long, 80), tcp(long, 81), udp(long, 81), tcp(long[:53]+"-81-tcp", 82)},
			nil,
		},
		"a hyphen where it is cut": {
			[]corev1.ServicePort{tcp(hyphen, 80), tcp(hyphen, 81)},
			[]string{hyphen, hyphen[:56] + "-81-tcp"},
		},
		"invalid ones": {
			[]corev1.ServicePort{
				tcp("-http", 80), tcp("HTTP", 81), tcp(strings.Repeat("a", 64), 82), tcp("é", 83),
			},
			[]string{"port-80-tcp", "port-81-tcp", "port-82-tcp", "port-83-tcp"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			seen := map[string]bool{}
			for _, p := range (&portUnion{c.ports}).sorted() {
				got = append(got, p.Name)
				if problems := validation.IsDNS1123Label(p.Name); seen[p.Name] ||
					len(c.ports) > 1 && len(problems) > 0 {
					t.Errorf("%q: seen before %t, %v", p.Name, seen[p.Name], problems)
				}
				seen[p.Name] = true
			}
			if c.want != nil && !slices.Equal(got, c.want) {
				t.Errorf("names %q, want %q", got, c.want)
			}
		})
	}
	odd := modified(tcp("http", 80), func(p *corev1.ServicePort) {
		p.Protocol = corev1.Protocol(strings.Repeat("x", 99))
	})
	(&portUnion{[]corev1.ServicePort{odd, odd}}).sorted() // nothing makes it valid, and it must not panic
}

func udp(name string, number int32) corev1.ServicePort {
	return modified(tcp(name, number), func(p *corev1.ServicePort) { p.Protocol = corev1.ProtocolUDP })
}

// A federated Service has the labels and annotations of the local member, or else of the oldest Link's; when that
// leaves, of the next, at once.
func TestFederatedMarks(t *testing.T) {
	member := func(team string) *corev1.Service {
		svc := service("web", map[string]string{
			"mirror.linkerd.io/federated": "member", "team": team, "excluded": "x",
		})
		// Set by its own cluster.
		svc.Annotations = map[string]string{"federation.fingerpost.io/members": "admin@" + team}
		return svc
	}
	east, west := aLink(t, "east", 1), aLink(t, "west", 2)
	east.ExcludedLabels = []string{"excluded"}
	s := scene{
		links:  []*link{east, west},
		remote: map[string][]*corev1.Service{"east": {member("east")}, "west": {member("west")}},
		local:  []*corev1.Service{member("local")},
	}
	wants := func(want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, s.plan("web-federated").service.Labels); diff != "" {
			t.Error(diff)
		}
	}
	wants(map[string]string{mirroredLabel: "true", "team": "local", "excluded": "x"})
	s.local = nil
	wants(map[string]string{mirroredLabel: "true", "team": "east"})
	s.remote["east"] = nil
	wants(map[string]string{mirroredLabel: "true", "team": "west", "excluded": "x"})
	// As long as the oldest was not synced, its labels and ports stay.
	delete(s.remote, "east")
	s.local = []*corev1.Service{with(joined("web@east", ""), func(svc *corev1.Service) {
		svc.Labels["team"], svc.Spec.Ports = "east", []corev1.ServicePort{tcp("old", 80), tcp("metrics", 90)}
	})}
	wants(map[string]string{mirroredLabel: "true", "team": "east"})
	if got := s.plan("web-federated").service.Spec.Ports; len(got) != 2 || got[0].Name != "old" ||
		got[1].Name != "metrics" {
		t.Errorf("ports %v", got)
	}
}

// foo/* excludes the keys that begin with foo/, and no others.
func TestExcluded(t *testing.T) {
	list := []string{"foo/*", "bar", "all*"}
	for key, want := range map[string]bool{
		"foo/a": true, "foo/": true, "foobar/a": false, "foo": false, "bar": true, "bar/a": false,
		"barn": false, "allow": false,
	} {
		if got := excluded(list, key); got != want {
			t.Errorf("excluded(%q) is %t", key, got)
		}
	}
}

// A mirror without a gateway that it can lead to is none, and its entry in the Link reports why.
func TestNoGateway(t *testing.T) {
	const problem = "gw.example in spec.gatewayAddress cannot be resolved: there is no such host"
	existing := func(families ...corev1.IPFamily) []*corev1.Service {
		return []*corev1.Service{with(mirrored("web-east", "east"), func(s *corev1.Service) {
			s.Spec.IPFamilies = families
		})}
	}
	for name, c := range map[string]struct {
		gateway gatewayState
		local   []*corev1.Service
		leads   bool
		want    string
	}{
		"not asked for yet": {gatewayState{resolving: true}, nil, false, "web-east"},
		"unresolved": {
			gatewayState{problem: problem}, nil, false, "Error: the gateway has no address: " + problem,
		},
		"unresolved, and Endpoints without addresses": {
			gatewayState{problem: problem}, existing(), false, "Error: the gateway has no address: " + problem,
		},
		"unresolved since this term began": {
			gatewayState{problem: problem},
			existing(), true,
			"Mirrored: its Endpoints stay as they are: the gateway has no address: " + problem,
		},
		"one name of several": {
			gatewayState{problem: problem, addresses: []string{"192.0.2.1"}}, existing(), true, "Mirrored",
		},
		"another family": {
			gatewayState{addresses: []string{"2001:db8::1"}},
			existing(corev1.IPv4Protocol), true,
			"Error: the gateway has no IPv4 address, and this Service has no other: it has 2001:db8::1",
		},
		"one of two families": {
			gatewayState{addresses: []string{"2001:db8::1"}},
			existing(corev1.IPv4Protocol, corev1.IPv6Protocol), true,
			"Mirrored",
		},
		"families that are not known": {gatewayState{addresses: []string{"2001:db8::1"}}, existing(), true, "Mirrored"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, spec := range []string{"", corev1.ClusterIPNone} {
				web := service("web", exported)
				web.Spec.ClusterIP = spec
				p := scene{
					links: []*link{aLink(t, "east", 1)}, remote: map[string][]*corev1.Service{"east": {web}},
					gateways: map[string]gatewayState{"east": c.gateway}, local: c.local,
					leads: map[string]bool{"web-east": c.leads},
				}.plan("web-east")
				if got := strings.TrimPrefix(summary(p), "web-east; east "); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
				if len(c.gateway.addresses) == 0 && (p.endpoints != nil || !p.keepEndpoints) {
					t.Error("the Endpoints do not stay as they are")
				}
			}
		})
	}
}

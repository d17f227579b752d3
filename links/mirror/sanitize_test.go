package mirror

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// refusals returns why an API server would reject a Service: by the rules for metadata, and for ports by those of
// Kubernetes' ValidateService.
func refusals(svc *corev1.Service) (all []string) {
	for _, err := range validation.ValidateObjectMeta(&svc.ObjectMeta, true, validation.NameIsDNS1035Label,
		field.NewPath("metadata")) {
		all = append(all, err.Error())
	}
	for _, err := range metav1validation.ValidateLabels(svc.Labels, field.NewPath("labels")) {
		all = append(all, err.Error())
	}
	if len(svc.Spec.Ports) == 0 {
		all = append(all, "no ports")
	}
	names, places := map[string]bool{}, map[string]bool{}
	for _, p := range svc.Spec.Ports {
		at := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if names[p.Name] || places[at] {
			all = append(all, fmt.Sprintf("%s %q is there twice", at, p.Name))
		}
		names[p.Name], places[at] = true, true
		if p.Name != "" || len(svc.Spec.Ports) > 1 {
			all = append(all, utilvalidation.IsDNS1123Label(p.Name)...)
		}
		all = append(all, utilvalidation.IsValidPortNum(int(p.Port))...)
		if p.Protocol != corev1.ProtocolTCP && p.Protocol != corev1.ProtocolUDP &&
			p.Protocol != corev1.ProtocolSCTP && p.Protocol != "" {
			all = append(all, fmt.Sprintf("protocol %q", p.Protocol))
		}
		if p.AppProtocol != nil {
			all = append(all, utilvalidation.IsQualifiedName(*p.AppProtocol)...)
		}
		switch {
		case p.TargetPort.Type == intstr.String:
			all = append(all, utilvalidation.IsValidPortName(p.TargetPort.StrVal)...)
		case p.TargetPort.IntVal != 0:
			all = append(all, utilvalidation.IsValidPortNum(int(p.TargetPort.IntVal))...)
		}
	}
	if len(svc.Spec.Ports) > maxPorts {
		all = append(all, fmt.Sprintf("%d ports", len(svc.Spec.Ports)))
	}
	return all
}

// drawService draws a Service that joins, with parts that no API server would accept.
func drawService(t *rapid.T, name string) *corev1.Service {
	text := rapid.OneOf(
		rapid.SampledFrom([]string{
			"", "http", "HTTP", "-a", "a b", "a/b", "a/b/c", "x\xff", "é", strings.Repeat("a", 64),
			strings.Repeat("b", 300), "kubernetes.io/h2c", "example.com/team",
		}),
		rapid.String(),
	)
	number := rapid.OneOf(rapid.SampledFrom([]int32{-1, 0, 1, 80, 443, 65535, 65536, 99999}), rapid.Int32())
	svc := service(name, maps.Clone(joins))
	svc.Labels["mirror.linkerd.io/exported"] = "remote-discovery"
	svc.Annotations = map[string]string{}
	for range rapid.IntRange(0, 4).Draw(t, "labels") {
		if k := text.Draw(t, "label"); !strings.HasPrefix(k, "mirror.linkerd.io/") {
			svc.Labels[k] = text.Draw(t, "value")
		}
		svc.Annotations[text.Draw(t, "annotation")] = text.Draw(t, "value")
	}
	if rapid.IntRange(0, 9).Draw(t, "large") == 0 {
		svc.Annotations["example.com/large"] = strings.Repeat("x", 300<<10)
	}
	for range rapid.IntRange(0, 5).Draw(t, "ports") {
		p := corev1.ServicePort{
			Name: text.Draw(t, "name"), Port: number.Draw(t, "port"),
			TargetPort: intstr.FromInt32(number.Draw(t, "target")),
			Protocol: rapid.SampledFrom([]corev1.Protocol{
				"", "TCP", "UDP", "SCTP", "tcp", "ICMP", "x\xff",
			}).Draw(t, "protocol"),
		}
		if rapid.Bool().Draw(t, "named target") {
			p.TargetPort = intstr.FromString(text.Draw(t, "target"))
		}
		if rapid.Bool().Draw(t, "application") {
			p.AppProtocol = new(text.Draw(t, "appProtocol"))
		}
		svc.Spec.Ports = append(svc.Spec.Ports, p)
	}
	return svc
}

// Whatever members publish, what is made of them is valid, and contains the good member and its port.
func TestNoMemberKeepsAnotherOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"east", "west", "north", "south"}
		s := scene{remote: map[string][]*corev1.Service{}}
		good := rapid.IntRange(0, len(names)-1).Draw(t, "good")
		for i, name := range names {
			svc := drawService(t, "web")
			if i == good {
				svc.Spec.Ports = []corev1.ServicePort{tcp("own", 7)}
			}
			s.links = append(s.links, linkFor(name, i+1))
			s.remote[name] = []*corev1.Service{svc}
		}
		union := s.plan("web-federated")
		if union.service == nil {
			t.Fatal("there is no federated Service")
		}
		if all := refusals(union.service); len(all) > 0 {
			t.Fatalf("an API server rejects the federated Service: %q", all)
		}
		was := membershipOf(union.service)
		if !was.has("web", names[good]) {
			t.Fatalf("%s is not among the members %q", names[good], was.remote)
		}
		if !slices.ContainsFunc(union.service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == 7 }) {
			t.Fatalf("the port of %s is not among %v", names[good], union.service.Spec.Ports)
		}
		for _, name := range names {
			if d := s.plan("web-" + name); d.service != nil {
				if all := refusals(d.service); len(all) > 0 {
					t.Fatalf("an API server rejects the mirror: %q", all)
				}
			}
		}
		s.remote[names[good]] = nil // it leaves
		s.local = []*corev1.Service{union.service}
		if next := s.plan("web-federated"); next.service != nil {
			if all := refusals(next.service); len(all) > 0 || membershipOf(next.service).has("web", names[good]) {
				t.Fatalf("it cannot leave: %q, members %q", all, membershipOf(next.service).remote)
			}
		}
	})
}

// The parts of a Service that are left out are named, up to five of them.
func TestOmitted(t *testing.T) {
	for name, c := range map[string]struct {
		svc  *corev1.Service
		want string
	}{
		"nothing": {service("web", joins), ""},
		"a port": {
			service("web", joins, tcp("http", 80), tcp("more", 99999)),
			"left out, because it is invalid: port 99999",
		},
		"a port twice": {
			service("web", joins, tcp("http", 80), tcp("again", 80)),
			"left out, because it is invalid: port 80",
		},
		"a protocol": {
			service(
				"web", joins, tcp("http", 80),
				modified(tcp("x", 81), func(p *corev1.ServicePort) { p.Protocol = "tcp" }),
			),
			`left out, because it is invalid: port 81 of protocol "tcp"`,
		},
		"a name": {
			service("web", joins, tcp("HTTP", 80)),
			`left out, because it is invalid: name "HTTP" of port 80, which is port-80-tcp here`,
		},
		"an appProtocol": {
			service(
				"web", joins,
				modified(tcp("http", 80), func(p *corev1.ServicePort) { p.AppProtocol = new("a b") }),
			),
			`left out, because it is invalid: appProtocol "a b" of port 80`,
		},
		"a label": {
			with(service("web", map[string]string{"ok": "x", "team": "not a value"}), func(*corev1.Service) {}),
			`left out, because it is invalid: label "team"`,
		},
		"an annotation": {
			with(service("web", nil), func(s *corev1.Service) {
				s.Annotations = map[string]string{"x\xff": "", "ok": "any thing"}
			}),
			`left out, because it is invalid: annotation "x\xff"`,
		},
		"a large annotation": {
			with(service("web", nil), func(s *corev1.Service) {
				s.Annotations = map[string]string{"large": strings.Repeat("x", 300<<10)}
			}),
			`left out, because it is invalid: annotation "large"`,
		},
		"more than five": {
			service(
				"web", joins, tcp("", -1), tcp("", -2), tcp("", -3), tcp("", -4), tcp("", -5), tcp("", -6),
				tcp("", -7), tcp("", 1),
			),
			"left out, because it is invalid: port -1, port -2, port -3, port -4, port -5, and 2 more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sanitize(c.svc).omitted; got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
	many := service("web", joins)
	for i := range 5000 {
		many.Spec.Ports = append(many.Spec.Ports, tcp("", int32(i+1)))
	}
	if o := sanitize(many); len(o.Spec.Ports) != maxPorts || len(o.omitted) > 200 {
		t.Errorf("%d ports, and %q", len(o.Spec.Ports), o.omitted)
	}
	for _, key := range []string{"web\xff", "a.b", "", strings.Repeat("a", 64)} {
		if _, kept := newRemoteService(service(key, joins)); kept {
			t.Errorf("a Service named %q has a record", key)
		}
	}
}

// The entry in a Link names what was left out of a mirrored Service, and of a member.
func TestOmittedIsInTheLink(t *testing.T) {
	web := with(
		service(
			"web",
			map[string]string{
				"mirror.linkerd.io/federated": "member", "mirror.linkerd.io/exported": "remote-discovery",
			},
			tcp("http", 80), tcp("more", 99999),
		),
		func(*corev1.Service) {},
	)
	s := scene{links: []*link{aLink(t, "east", 1)}, remote: map[string][]*corev1.Service{"east": {web}}}
	if got, want := summary(s.plan("web-east")),
		"web-east label east web; east Mirrored: left out, because it is invalid: port 99999"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := summary(s.plan("web-federated")),
		"web-federated web@east; east Mirrored: left out, because it is invalid: port 99999"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Keys that controllers act on are not copied; nor, onto a federated Service, the retry and timeout policy of a
// remote member.
func TestControllerKeys(t *testing.T) {
	east := aLink(t, "east", 1)
	web := with(service("web", map[string]string{
		"mirror.linkerd.io/federated": "member", "mirror.linkerd.io/exported": "remote-discovery", "app": "web",
		"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "shop",
		"app.kubernetes.io/managed-by": "Helm", "service.kubernetes.io/service-proxy-name": "none",
	}), func(s *corev1.Service) {
		s.Annotations = map[string]string{
			"note": "kept", opaqueAnnotation: "25", "timeout.linkerd.io/request": "1s",
			"example.com/own": "x", "example.org/a": "x",
		}
		for _, key := range controllerKeys {
			s.Annotations[strings.Replace(key, "*", "x", 1)] = "x"
		}
	})
	s := scene{
		links: []*link{east}, remote: map[string][]*corev1.Service{"east": {web}},
		exclude: []string{"example.com/own", "example.org/*"},
	}
	check := func(name string, is map[string]string, keys ...string) {
		t.Helper()
		got := slices.Sorted(maps.Keys(is))
		slices.Sort(keys)
		if !slices.Equal(got, keys) {
			t.Errorf("%s: %q, want %q", name, got, keys)
		}
	}
	mirror := s.plan("web-east").service
	check(
		"labels of a mirror", mirror.Labels, "app", "app.kubernetes.io/name", mirroredLabel, clusterLabel,
		discoveryKey, remoteServiceLabel,
	)
	check(
		"annotations of a mirror", mirror.Annotations, "note", opaqueAnnotation,
		"timeout.linkerd.io/request", linksAnnotation, nameAnnotation, versionAnnotation,
	)
	union := s.plan("web-federated").service
	check("labels of a federated Service", union.Labels, "app", "app.kubernetes.io/name", mirroredLabel)
	check(
		"annotations of a federated Service", union.Annotations, "note", opaqueAnnotation, linksAnnotation,
		discoveryKey,
	)
	s.local = []*corev1.Service{with(service("web", joins), func(s *corev1.Service) {
		s.Annotations = map[string]string{
			"timeout.linkerd.io/request": "2s", "argocd.argoproj.io/tracking-id": "x",
		}
	})}
	check(
		"with a local member", s.plan("web-federated").service.Annotations, "timeout.linkerd.io/request",
		linksAnnotation, discoveryKey, localDiscoveryKey,
	)
}

// docs/mirror.md has the list of keys that are not copied.
func TestControllerKeysAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/mirror.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(page), "<!-- keys that are not copied -->")
	list, _, found := strings.Cut(list, "<!-- end -->")
	if !found {
		t.Fatal("docs/mirror.md has no list of keys")
	}
	var documented []string
	for i, part := range strings.Split(list, "`") {
		if i%2 == 1 {
			documented = append(documented, part)
		}
	}
	slices.Sort(documented)
	if want := slices.Sorted(slices.Values(controllerKeys)); !slices.Equal(documented, want) {
		t.Errorf("docs/mirror.md lists\n%q, want\n%q", documented, want)
	}
}

// A budget never exceeds its limit for a cluster. A deletion enqueues a Service that waits for space.
func TestBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 3
		b, there := newBudget(most), map[api.Key]string{}
		name := func(i int) api.Key { return api.Key{Name: fmt.Sprint(i)} }
		count := func(cluster string) (n int) {
			for _, of := range there {
				if of == cluster {
					n++
				}
			}
			return n
		}
		var again []api.Key
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			k := name(rapid.IntRange(0, 9).Draw(t, "name"))
			if len(again) > 0 {
				k, again = again[0], again[1:]
			}
			cluster := []string{"east", "west"}[int(k.Name[0])%2]
			switch _, is := there[k]; {
			case !is && b.reserve(k, []string{cluster}):
				there[k] = cluster
			case is && rapid.Bool().Draw(t, "goes"):
				delete(there, k)
				again = append(again, b.assign(k, "")...)
			}
			for _, cluster := range []string{"east", "west"} {
				if n := count(cluster); n > most || n != b.count[cluster] {
					t.Fatalf("%s has %d, counted as %d", cluster, n, b.count[cluster])
				}
				if b.exhausted(cluster) && count(cluster) < most && len(again) == 0 {
					t.Fatalf("%s has space, and no waiting Service is enqueued", cluster)
				}
			}
		}
	})
}

// Other informers are given the same object.
func TestObjectStaysAsItIs(t *testing.T) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", Finalizers: []string{"x"},
			Labels: map[string]string{"app": "web", "not valid": "x"}, Annotations: map[string]string{"-": "x"},
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "a", Port: 80}, {Name: "a", Port: 81, AppProtocol: new("-")}, {Port: -1},
		}},
		Status: corev1.ServiceStatus{Conditions: []metav1.Condition{{Type: "x"}}},
	}
	before := svc.DeepCopy()
	if r, ok := newRemoteService(svc); !ok || r.omitted == "" {
		t.Fatalf("nothing is left out: %+v", r)
	}
	if diff := cmp.Diff(before, svc); diff != "" {
		t.Error(diff)
	}
}

package routestatus

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/zapr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/federation/watch"
)

var testTiming = lease.Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond}

const leases = "leases.coordination.k8s.io"

var (
	httpRoutes = linkerd.HTTPRoutes.String()
	service    = rules.Reference{Kind: rules.KindService, Namespace: "shop", Name: "web"}
	server     = rules.Reference{Kind: rules.KindServer, Namespace: "shop", Name: "web"}
	egress     = rules.Reference{Kind: rules.KindEgressNetwork, Namespace: "shop", Name: "out"}
)

// A site is a cluster with objects of policy, and the replicas that write their status. What is wanted follows from
// objects and routes by the functions of package rules.
type site struct {
	t        *testing.T
	network  *apitest.Network
	api      *apitest.Server
	replicas map[string]*replica

	objects  map[rules.Reference]rules.ParentObject // that exist
	routes   map[rules.Reference]*rules.Route
	verdicts map[rules.Reference]rules.WantedStatus // of others than routes, but for generations
}

type replica struct {
	registry *cluster.Registry
	writer   *Writer
	statuses *facts.Writer[rules.Reference, *rules.WantedStatus]
	warnings *observer.ObservedLogs
	path     *apitest.Path
	stop     func()
}

func inSite(t *testing.T, test func(*site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &site{
			t: t, network: apitest.NewNetwork(), replicas: map[string]*replica{},
			objects: map[rules.Reference]rules.ParentObject{}, routes: map[rules.Reference]*rules.Route{},
			verdicts: map[rules.Reference]rules.WantedStatus{},
		}
		defer s.network.Close()
		s.api = s.network.Server("local")
		for _, k := range kinds {
			s.api.Serve(k.Resource.String(), k.Versions[0])
		}
		s.api.ApplyYAML("{apiVersion: v1, kind: Namespace, metadata: {name: linkerd}}")
		test(s)
		for _, r := range s.replicas {
			r.stop()
		}
	})
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// pass lets virtual time pass, and what is due then happen.
func (s *site) pass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

// start starts a replica, with a path of its own. What is engaged before what is engaged by all of them is optional.
func (s *site) start(name string, engage ...cluster.EngageFunc) *replica {
	s.t.Helper()
	core, warnings := observer.New(zapcore.WarnLevel)
	log := zapr.NewLogger(zap.New(core))
	store := federation.NewStore()
	levels := rules.NewLevels(store)
	store.MarkClustersListed()
	r := &replica{warnings: warnings, writer: New(levels), path: s.network.Path("local", name)}
	r.registry = cluster.NewRegistry(log, store, cluster.Options{
		ProbeInterval: 5 * time.Second, Dial: s.network.DialAs(name),
	})
	campaign := apply.NewCampaign(log, r.registry, apply.Options{
		Namespace: "linkerd", Local: "local", Replica: name, Timing: testTiming,
	})
	r.writer.AddTo(campaign)
	for _, e := range append(engage, campaign.Engage) {
		r.registry.Engage(e)
	}

	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(r.path.Kubeconfig(s.api.Token())))
	s.must(err)
	s.must(r.registry.Apply(cluster.Spec{
		Name: "local", Local: true, Access: []cluster.Access{{Source: "test", Config: config}},
	}))
	r.statuses = levels.Statuses.NewWriter("local")
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.registry.Start(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
	s.replicas[name] = r
	return r
}

// publish has all replicas want what follows from what there is.
func (s *site) publish() {
	parents, attachments := map[rules.Reference][]*rules.Route{}, map[rules.Reference][]rules.Attachment{}
	for _, route := range s.routes {
		for _, parent := range route.Parents {
			parents[parent.Reference] = append(parents[parent.Reference], route)
		}
	}
	for of, routes := range parents {
		object := s.objects[of]
		object.Reference = of
		attachments[of] = rules.Attach(object, routes)
	}

	attached := func(of rules.Reference) []rules.Attachment { return attachments[of] }
	all := map[rules.Reference]*rules.WantedStatus{}
	for of, route := range s.routes {
		all[of] = &rules.WantedStatus{
			Generation: route.Generation, Partial: route.Partial(),
			Parents: rules.StatusOf(route, attached, func(r rules.Reference) (bool, string) {
				return s.objects[r].Exists, ""
			}),
		}
	}
	for of, want := range s.verdicts {
		want.Generation = s.get(of).GetGeneration()
		all[of] = &want
	}
	for _, r := range s.replicas {
		for of, want := range all {
			r.statuses.Set(of, want)
		}
		r.statuses.MarkSynced()
	}
}

// apply applies an object, with a spec of a text that stands for all of it, and returns its Meta.
func (s *site) apply(of rules.Reference, spec, status string) rules.Meta {
	s.t.Helper()
	for _, k := range kinds {
		if k.Kind == of.Kind {
			s.api.ApplyYAML(fmt.Sprintf("{apiVersion: %s/%s, kind: %s, metadata: {name: %s, namespace: %s}, "+
				"spec: {text: %q}%s}", of.Kind.Group(), k.Versions[0], of.Kind, of.Name, of.Namespace, spec, status))
		}
	}
	return rules.Meta{Reference: of, Generation: s.get(of).GetGeneration()}
}

func (s *site) get(of rules.Reference) *unstructured.Unstructured {
	for _, k := range kinds {
		if k.Kind == of.Kind {
			return s.api.Get(k.Resource.String(), of.Namespace, of.Name)
		}
	}
	return nil
}

func routeNamed(name string) rules.Reference {
	return rules.Reference{Kind: rules.KindHTTPRoute, Namespace: "shop", Name: name}
}

// route applies a route with parents, and a rule for each backend.
func (s *site) route(of rules.Reference, parents []rules.Reference, backends ...rules.Reference) *rules.Route {
	s.t.Helper()
	route := &rules.Route{}
	for _, p := range parents {
		route.Parents = append(route.Parents, rules.Parent{Reference: p})
	}
	for _, b := range backends {
		route.Rules = append(route.Rules, rules.Rule{Backends: []rules.Backend{{Reference: b}}})
	}
	route.Meta = s.apply(of, fmt.Sprint(parents, backends), "")
	s.routes[of] = route
	return route
}

func (s *site) exists(all ...rules.Reference) {
	for _, of := range all {
		s.objects[of] = rules.ParentObject{Reference: of, Exists: true, HasIP: true, IsAccepted: true}
	}
}

// shown returns the conditions in a status, an entry a line: whose it is, and each with its reason and message.
func (s *site) shown(of rules.Reference) string {
	s.t.Helper()
	status, _, _ := unstructured.NestedMap(s.get(of).Object, "status")
	text := func(all any) (lines []string) {
		list, _ := all.([]any)
		for _, c := range list {
			c := c.(map[string]any)
			line := fmt.Sprintf("%v %v %v", c["type"], c["status"], c["reason"])
			if c["message"] != "" {
				line += fmt.Sprintf(" (%v)", c["message"])
			}
			lines = append(lines, line)
		}
		return lines
	}

	lines := text(status["conditions"])
	parents, _ := status["parents"].([]any)
	for _, p := range parents {
		p := p.(map[string]any)
		ref, _ := p["parentRef"].(map[string]any)
		who := "theirs "
		if p["controllerName"] == linkerd.PolicyController {
			who = ""
		}
		conditions := strings.Join(text(p["conditions"]), ", ")
		lines = append(lines, fmt.Sprintf("%s%v %v: %s", who, ref["kind"], ref["name"], conditions))
	}
	return strings.Join(lines, "\n")
}

func (s *site) expect(when string, of rules.Reference, want ...string) {
	s.t.Helper()
	s.publish()
	s.pass(3 * time.Second)
	if diff := cmp.Diff(strings.Join(want, "\n"), s.shown(of)); diff != "" {
		s.t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

func (s *site) patches() (n int) {
	for _, k := range kinds {
		n += s.api.Requests("patch", k.Resource.String())
	}
	return n
}

// times returns since when each condition of a route's first entry has its status.
func (s *site) times(of rules.Reference) map[string]any {
	parents, _, _ := unstructured.NestedSlice(s.get(of).Object, "status", "parents")
	conditions, _, _ := unstructured.NestedSlice(parents[0].(map[string]any), "conditions")
	all := map[string]any{}
	for _, c := range conditions {
		all[c.(map[string]any)["type"].(string)] = c.(map[string]any)[transitionTime]
	}
	return all
}

func (s *site) failing(of *replica) []cluster.Failing {
	statuses, _ := of.registry.Statuses()
	return statuses["local"].Writing.Failing
}

func (s *site) holder() string {
	l := s.api.Get(leases, "linkerd", linkerd.PolicyLease)
	if l == nil {
		return ""
	}
	identity, _, _ := unstructured.NestedString(l.Object, "spec", "holderIdentity")
	name, _, _ := strings.Cut(identity, "_")
	return name
}

// TestCases are the contract cases about status that concern who writes it, and how it looks.
func TestCases(t *testing.T) {
	one := routeNamed("one")
	accept := func(of rules.Reference) string { return fmt.Sprintf("%v %s: Accepted True Accepted", of.Kind, of.Name) }
	resolved := ", ResolvedRefs True ResolvedRefs"

	for _, c := range []struct {
		id   string
		test func(*site)
	}{
		{"PT01", func(s *site) {
			s.exists(server)
			s.route(one, []rules.Reference{server})
			s.expect("a route of a Server", one, accept(server))
			entry, _, _ := unstructured.NestedSlice(s.get(one).Object, "status", "parents")
			if name := entry[0].(map[string]any)["controllerName"]; name != "linkerd.io/policy-controller" {
				t.Errorf("written as %v", name)
			}
		}},
		{"PT02", func(s *site) {
			s.route(one, []rules.Reference{server})
			s.expect("missing", one, "Server web: Accepted False NoMatchingParent")
			s.exists(server)
			s.expect("created", one, accept(server))
			delete(s.objects, server)
			s.expect("deleted", one, "Server web: Accepted False NoMatchingParent")
		}},
		{"PT06", func(s *site) {
			s.route(one, []rules.Reference{service})
			s.expect("missing", one, "Service web: Accepted False NoMatchingParent"+resolved)
			s.objects[service] = rules.ParentObject{Reference: service, Exists: true}
			s.expect("headless", one,
				"Service web: Accepted False NoMatchingParent (parent service must have a ClusterIP)"+resolved)
		}},
		{"PT07", func(s *site) {
			s.route(one, []rules.Reference{egress})
			s.expect("missing", one, "EgressNetwork out: Accepted False NoMatchingParent"+resolved)
			s.objects[egress] = rules.ParentObject{Reference: egress, Exists: true}
			s.expect("not accepted", one,
				"EgressNetwork out: Accepted False NoMatchingParent (EgressNetwork parent has not been accepted)"+resolved)
		}},
		{"PT08", func(s *site) {
			s.exists(server, service)
			s.route(one, []rules.Reference{server})
			s.expect("one", one, accept(server))
			s.route(one, []rules.Reference{service})
			s.expect("another", one, accept(service)+resolved)
		}},
		{"PT09", func(s *site) {
			theirs := ", status: {parents: [{controllerName: x, parentRef: {kind: Gateway, name: g}, conditions: []}]}"
			s.routes[one] = &rules.Route{Meta: s.apply(one, "Gateway", theirs)}
			before := s.get(one).GetResourceVersion()
			s.expect("of a Gateway", one, "theirs Gateway g: ")
			if s.get(one).GetResourceVersion() != before {
				t.Error("it was written")
			}
		}},
		{"PT10", func(s *site) {
			s.exists(service)
			s.route(one, []rules.Reference{service}, service, service)
			s.expect("backends exist", one, accept(service)+resolved)
		}},
		{"PT11", func(s *site) {
			s.exists(service)
			s.route(one, []rules.Reference{service}, rules.Reference{Kind: rules.KindService, Name: "gone"})
			s.expect("missing", one, accept(service)+", ResolvedRefs False BackendNotFound")
			s.route(one, []rules.Reference{service}, rules.Reference{Kind: rules.KindOther, Name: "secret"})
			s.expect("of another kind", one, accept(service)+", ResolvedRefs False InvalidKind")
			s.route(one, []rules.Reference{service}, egress)
			s.expect("an EgressNetwork", one, accept(service)+
				", ResolvedRefs False InvalidKind (EgressNetwork out is not the parent of the route)")
		}},
		{"PT12", func(s *site) {
			s.exists(service)
			s.route(one, []rules.Reference{service}, service, rules.Reference{Kind: rules.KindService, Name: "gone"})
			s.expect("the second is missing", one, accept(service)+", ResolvedRefs False BackendNotFound")
		}},
		{"PT14", func(s *site) {
			far := rules.Reference{Kind: rules.KindServer, Namespace: "other", Name: "web"}
			s.exists(far)
			s.route(one, []rules.Reference{far})
			s.expect("of another namespace", one,
				"Server web: Accepted False NoMatchingParent (a Server must be in the namespace of the route)")
		}},
		{"PT16", func(s *site) {
			other := rules.Reference{Kind: rules.KindService, Namespace: "shop", Name: "other"}
			s.exists(service)
			s.route(one, []rules.Reference{service}, other)
			s.expect("missing", one, accept(service)+", ResolvedRefs False BackendNotFound")
			before := s.times(one)
			s.pass(time.Minute)
			s.exists(other)
			s.expect("created", one, accept(service)+resolved)
			after := s.times(one)
			if after[accepted] != before[accepted] || after[resolvedRefs] == before[resolvedRefs] {
				t.Errorf("%v, were %v", after, before)
			}
		}},
		{"PT17", func(s *site) {
			s.exists(server)
			s.route(one, []rules.Reference{server})
			s.expect("at first", one, accept(server))
			before := s.patches()
			s.publish()
			s.pass(time.Hour)
			if n := s.patches() - before; n != 0 {
				t.Errorf("%d patches although nothing has changed", n)
			}
		}},
		{"PT20", func(s *site) {
			s.apply(egress, "", `, status: {conditions: [{type: Ready, status: "True", reason: Theirs, message: ""}]}`)
			overlaps := rules.Verdict{Reason: rules.NetworkOverlap, Message: "why"}
			s.verdicts[egress] = rules.WantedStatus{Verdict: overlaps}
			s.expect("overlaps", egress, "Ready True Theirs", "Accepted False EgressReasonNetworkOverlap (why)")
		}},
		{"PT21", testConcurrentWrite},
		{"PT23", func(s *site) {
			for i := range 1000 {
				of := rules.Reference{Kind: rules.KindService, Namespace: "shop", Name: fmt.Sprint("s", i%100)}
				s.exists(of)
				s.route(routeNamed(fmt.Sprint("r", i)), []rules.Reference{of})
			}
			s.publish()
			s.pass(5 * time.Second)
			if n := s.patches(); n != 1000 {
				t.Errorf("%d patches of 1000 routes", n)
			}
			delete(s.objects, rules.Reference{Kind: rules.KindService, Namespace: "shop", Name: "s7"})
			s.publish()
			s.pass(5 * time.Second)
			if n := s.patches(); n != 1010 {
				t.Errorf("%d patches once one of 100 Services is gone", n-1000)
			}
		}},
		{"PT24", testDeletedMeanwhile},
		{"PT25", testFailingPatches},
		{"PT26", func(s *site) {
			s.exists(server)
			route := s.route(one, []rules.Reference{server})
			route.Findings = []rules.Finding{
				{Unconverted: true, Rule: 1, Part: "filter", Reason: "RequestMirror is not supported"},
			}
			s.expect("with a filter that does not convert", one, accept(server)+
				", PartiallyInvalid True UnsupportedValue (rule 1: filter: RequestMirror is not supported)")
			s.route(one, []rules.Reference{service, server}[1:], service)
			s.expect("fixed", one, accept(server))
		}},
		{"PT27", testReferenceHolds},
	} {
		t.Run(c.id, func(t *testing.T) {
			inSite(t, func(s *site) {
				s.start("a")
				s.pass(5 * time.Second)
				c.test(s)
			})
		})
	}
	t.Run("PT22", testHolders)
}

const theirEntry = "theirs Gateway g: Accepted True Theirs"

// meddle replaces the status of a route, as another controller does that has read the entries that there are.
func (s *site) meddle(of rules.Reference, change func(parents []any) []any) {
	o := s.get(of)
	parents, _, _ := unstructured.NestedSlice(o.Object, "status", "parents")
	s.must(unstructured.SetNestedSlice(o.Object, change(parents), "status", "parents"))
	s.api.Apply(o)
}

func theirParent() any {
	return map[string]any{
		"controllerName": "example.com/other", "parentRef": map[string]any{"kind": "Gateway", "name": "g"},
		"conditions": []any{map[string]any{"type": "Accepted", "status": "True", "reason": "Theirs", "message": ""}},
	}
}

// PT21: what another writes between our read and our patch is a conflict, and its entry stays.
func testConcurrentWrite(s *site) {
	one := routeNamed("one")
	s.exists(server)
	s.route(one, []rules.Reference{server})
	var first atomic.Bool
	s.api.Audit(func(_, verb, resource string) {
		if verb == "patch" && resource == httpRoutes && first.CompareAndSwap(false, true) {
			s.meddle(one, func(parents []any) []any { return append(parents, theirParent()) })
		}
	})
	s.expect("written at once", one, theirEntry, "Server web: Accepted True Accepted")
	if n := testutil.ToFloat64(s.replicas["a"].writer.patches.WithLabelValues(
		"HTTPRoute.gateway.networking.k8s.io", "Conflict")); n != 1 {
		s.t.Errorf("%v conflicts", n)
	}
	if n := s.patches(); n != 2 {
		s.t.Errorf("%d patches", n)
	}
}

// PT24: no patch is sent for a route that is gone, and one that finds it gone is the last. Neither is logged.
func testDeletedMeanwhile(s *site) {
	one, two := routeNamed("one"), routeNamed("two")
	s.exists(server)
	s.route(one, []rules.Reference{server})
	s.route(two, []rules.Reference{server})
	s.api.Audit(func(_, verb, resource string) {
		if verb == "patch" && resource == httpRoutes {
			s.api.Delete("HTTPRoute", two.Namespace, two.Name)
		}
	})
	s.api.Delete("HTTPRoute", one.Namespace, one.Name)
	s.pass(time.Second)
	s.publish()
	s.pass(10 * time.Minute)
	if n := s.patches(); n != 1 {
		s.t.Errorf("%d patches", n)
	}
	r := s.replicas["a"]
	if all := r.warnings.All(); len(all) != 0 {
		s.t.Errorf("logged: %v", all)
	}
	if failing := s.failing(r); len(failing) != 0 {
		s.t.Errorf("reported: %v", failing)
	}
}

// PT25: a patch that fails is tried again, ever more rarely, and others go on. One that fails for long is reported, and
// is not any more once it is written.
func testFailingPatches(s *site) {
	one := routeNamed("one")
	s.exists(server, service)
	s.route(one, []rules.Reference{server})
	var mu sync.Mutex
	var tried []time.Time
	left := 3
	fail := func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		tried = append(tried, time.Now())
		if left--; left == 0 {
			go s.api.AnswerVerb("patch", httpRoutes, nil)
		}
		http.Error(w, "no", http.StatusInternalServerError)
	}
	s.api.AnswerVerb("patch", httpRoutes, fail)
	other := rules.Reference{Kind: rules.KindGRPCRoute, Namespace: "shop", Name: "other"}
	s.route(other, []rules.Reference{service})
	s.expect("after three", one, "Server web: Accepted True Accepted")
	s.expect("beside it", other, "Service web: Accepted True Accepted, ResolvedRefs True ResolvedRefs")
	const first = 200 * time.Millisecond
	if len(tried) != 3 || tried[1].Sub(tried[0]) < first || tried[2].Sub(tried[1]) < 2*first {
		s.t.Errorf("tried at %v", tried)
	}

	r := s.replicas["a"]
	left = 1 << 30
	s.api.AnswerVerb("patch", httpRoutes, fail)
	delete(s.objects, server)
	s.publish()
	s.pass(time.Minute)
	failing := s.failing(r)
	const what = "statuses of HTTPRoute.gateway.networking.k8s.io"
	if len(failing) != 1 || failing[0].What != what || failing[0].Count != 1 ||
		!slices.Equal(failing[0].Objects, []string{"HTTPRoute.gateway.networking.k8s.io shop/one"}) {
		s.t.Errorf("reported: %+v", failing)
	}
	s.api.AnswerVerb("patch", httpRoutes, nil)
	s.pass(time.Minute)
	if failing := s.failing(r); len(failing) != 0 {
		s.t.Errorf("reported once it is written: %+v", failing)
	}
	s.expect("in the end", one, "Server web: Accepted False NoMatchingParent")
}

// PT22: where the holder is gone, another one writes within 30 s, and never two do; an API server that is away for 20 s
// ends no process.
func testHolders(t *testing.T) {
	inSite(t, func(s *site) {
		one := routeNamed("one")
		s.start("a")
		s.pass(5 * time.Second)
		s.start("b")
		s.route(one, []rules.Reference{server})
		s.expect("with two replicas", one, "Server web: Accepted False NoMatchingParent")
		if s.holder() != "a" {
			t.Fatalf("the holder is %q", s.holder())
		}
		var mu sync.Mutex
		var senders []string
		s.api.Audit(func(client, verb, resource string) {
			mu.Lock()
			defer mu.Unlock()
			if verb == "patch" && resource == httpRoutes {
				senders = append(senders, client)
			}
		})
		s.api.Cut(apitest.Refuse)
		for _, r := range s.replicas {
			r.path.Cut(apitest.Refuse)
		}
		s.pass(20 * time.Second)
		s.exists(server)
		s.publish()
		s.api.Cut(apitest.None)
		for _, r := range s.replicas {
			r.path.Cut(apitest.None)
		}
		s.pass(30 * time.Second)
		if got := s.shown(one); got != "Server web: Accepted True Accepted" || len(senders) != 1 {
			t.Errorf("after an outage: %s, written by %v", got, senders)
		}

		dead := s.replicas[s.holder()]
		dead.path.Cut(apitest.Silence)
		senders = nil
		delete(s.objects, server)
		s.publish()
		s.pass(30 * time.Second)
		if got := s.shown(one); got != "Server web: Accepted False NoMatchingParent" || len(senders) != 1 {
			t.Errorf("without its holder: %s, written by %v", got, senders)
		}
		dead.path.Cut(apitest.None) // and what waits in its connections comes
		s.pass(time.Minute)
		if len(senders) != 1 || s.replicas[s.holder()] == dead {
			t.Errorf("written by %v, the holder is %s", senders, s.holder())
		}
	})
}

// PT27: while Linkerd's policy controller holds the Lease nothing is written.
func testReferenceHolds(s *site) {
	one := routeNamed("one")
	s.replicas["a"].stop()
	hold := func() {
		s.api.ApplyYAML(fmt.Sprintf(`{apiVersion: coordination.k8s.io/v1, kind: Lease,
			metadata: {name: policy-controller-write, namespace: linkerd},
			spec: {holderIdentity: linkerd-destination-0, leaseDurationSeconds: 30, renewTime: %q}}`,
			time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")))
	}
	hold()
	s.start("b")
	s.exists(server)
	s.route(one, []rules.Reference{server})
	s.publish()
	for range 20 {
		s.pass(10 * time.Second)
		hold()
	}
	if n := s.patches(); n != 0 {
		s.t.Errorf("%d patches", n)
	}
	s.pass(35 * time.Second)
	if got := s.shown(one); got != "Server web: Accepted True Accepted" {
		s.t.Errorf("once it is gone: %s", got)
	}
}

// Another writer that removes or changes what is ours is noticed, and corrected; not as fast as the API server answers.
func TestMeddling(t *testing.T) {
	inSite(t, func(s *site) {
		one := routeNamed("one")
		s.start("a")
		s.pass(5 * time.Second)
		s.exists(server)
		s.route(one, []rules.Reference{server})
		s.expect("at first", one, "Server web: Accepted True Accepted")
		s.meddle(one, func([]any) []any { return []any{theirParent()} })
		s.expect("once ours was removed", one, theirEntry, "Server web: Accepted True Accepted")
		before := s.patches()
		for range 1000 {
			s.meddle(one, func([]any) []any { return []any{theirParent()} })
			s.pass(10 * time.Millisecond)
		}
		if n := s.patches() - before; n > 12 {
			t.Errorf("%d patches within 10 s", n)
		}
		s.expect("in the end", one, theirEntry, "Server web: Accepted True Accepted")
		s.meddle(one, func(parents []any) []any { return []any{parents[1], parents[0]} })
		before = s.patches()
		s.pass(time.Minute)
		if n := s.patches() - before; n != 0 {
			t.Errorf("%d patches for an order", n)
		}
	})
}

// A field that a schema lacks, as a standard one of the Gateway API may lack port, is left out, and all else is written
// once.
func TestSchemaLacksPort(t *testing.T) {
	inSite(t, func(s *site) {
		one := routeNamed("one")
		s.api.Mutate(httpRoutes, func(o *unstructured.Unstructured) {
			parents, _, _ := unstructured.NestedSlice(o.Object, "status", "parents")
			for _, p := range parents {
				unstructured.RemoveNestedField(p.(map[string]any), "parentRef", "port")
			}
			_ = unstructured.SetNestedSlice(o.Object, parents, "status", "parents")
		})
		s.start("a")
		s.pass(5 * time.Second)
		s.exists(service)
		s.route(one, []rules.Reference{service}).Parents[0].Port = 80
		s.expect("written", one, "Service web: Accepted True Accepted, ResolvedRefs True ResolvedRefs")
		s.pass(25 * time.Minute)
		if n := s.patches(); n > 5 { // one each 10 minutes, in case the schema has it by now
			t.Errorf("%d patches in 25 minutes", n)
		}
	})
}

// Rate limits have a targetRef. One that is not decided about is left alone, and so is an object of another generation.
func TestRateLimit(t *testing.T) {
	inSite(t, func(s *site) {
		s.start("a")
		s.pass(5 * time.Second)
		limit := rules.Reference{Kind: rules.KindRateLimit, Namespace: "shop", Name: "limit"}
		s.apply(limit, "", "")
		s.expect("not decided about", limit, "")
		s.verdicts[limit] = rules.WantedStatus{Target: server, Verdict: rules.Verdict{Reason: rules.AlreadyExists}}
		s.expect("a second one", limit, "Accepted False RateLimitReasonAlreadyExists")
		target, _, _ := unstructured.NestedStringMap(s.get(limit).Object, "status", "targetRef")
		want := map[string]string{"group": "policy.linkerd.io", "kind": "Server", "name": "web"}
		if diff := cmp.Diff(want, target); diff != "" {
			t.Error(diff)
		}

		s.apply(limit, "changed", "") // what is wanted of it is not known yet
		s.pass(time.Second)
		before := s.patches()
		for _, r := range s.replicas {
			verdict := rules.Verdict{Reason: rules.Accepted}
			r.statuses.Set(limit, &rules.WantedStatus{Generation: 1, Target: server, Verdict: verdict})
		}
		s.pass(time.Minute)
		if n := s.patches() - before; n != 0 {
			t.Errorf("%d patches of another generation", n)
		}
		s.expect("computed", limit, "Accepted False RateLimitReasonAlreadyExists")
		conditions, _, _ := unstructured.NestedSlice(s.get(limit).Object, "status", "conditions")
		if of := conditions[0].(map[string]any)["observedGeneration"]; of != int64(2) {
			t.Errorf("observedGeneration %v", of)
		}
	})
}

// Without a right to write the status of one kind that of others is written, which is reported; without any no Lease is
// held. A kind without a CRD keeps no other from being written, and is written once it is there.
func TestRightsAndKinds(t *testing.T) {
	inSite(t, func(s *site) {
		one := routeNamed("one")
		s.api.Serve(httpRoutes)
		s.api.Deny("patch", linkerd.TCPRoutes.String(), true)
		r := s.start("a")
		s.pass(10 * time.Second)
		writing := func() cluster.Writing {
			statuses, _ := r.registry.Statuses()
			return statuses["local"].Writing
		}
		lacks := func(when string) {
			t.Helper()
			if w := writing(); w.State != cluster.ReadOnly || s.holder() == "" ||
				!strings.Contains(w.Problem, "tcproutes/status") || strings.Contains(w.Problem, "httproutes") {
				t.Errorf("%s: %+v, holder %q", when, w, s.holder())
			}
		}
		lacks("without a right")
		s.exists(server)
		policy := rules.Reference{Kind: rules.KindPolicyHTTPRoute, Namespace: "shop", Name: "one"}
		s.route(policy, []rules.Reference{server})
		s.expect("without a kind, and a right to another", policy, "Server web: Accepted True Accepted")

		s.api.Serve(httpRoutes, "v1")
		s.pass(4 * time.Minute) // an optional kind that is absent is asked for ever more rarely
		s.route(one, []rules.Reference{server})
		s.expect("with it", one, "Server web: Accepted True Accepted")
		lacks("much later")
		s.api.Deny("patch", linkerd.TCPRoutes.String(), false)
		s.pass(time.Minute)
		if w := writing(); w.State != cluster.Holding || w.Problem != "" {
			t.Errorf("with all rights: %+v", w)
		}

		for _, k := range kinds {
			s.api.Deny("patch", k.Resource.String(), true)
		}
		delete(s.objects, server)
		s.publish()
		s.pass(20 * time.Second)
		if w := writing(); w.State != cluster.ReadOnly || strings.Count(w.Problem, "httproutes/status") != 2 {
			t.Errorf("when rights are taken away: %+v", w)
		}
		r.stop()
		r = s.start("b")
		s.pass(time.Minute)
		if w := writing(); w.State != cluster.ReadOnly || s.holder() != "" {
			t.Errorf("without any right: %+v, holder %q", w, s.holder())
		}

		for _, k := range kinds {
			s.api.Deny("patch", k.Resource.String(), false)
		}
		s.pass(2 * time.Minute)
		s.expect("and back", one, "Server web: Accepted False NoMatchingParent")
	})
}

// The rights of Linkerd's policy controller are enough: to get, create and patch the Lease, and to patch statuses.
func TestLinkerdsRights(t *testing.T) {
	inSite(t, func(s *site) {
		one := routeNamed("one")
		for _, verb := range []string{"list", "watch", "update", "delete"} {
			s.api.Deny(verb, leases, true)
		}
		for _, k := range kinds {
			s.api.Deny("update", k.Resource.String(), true)
		}
		s.start("a")
		s.pass(10 * time.Second)
		b := s.start("b")
		s.route(one, []rules.Reference{server})
		s.expect("written", one, "Server web: Accepted False NoMatchingParent")
		s.pass(time.Minute)
		if s.holder() != "a" {
			t.Errorf("the holder is %q", s.holder())
		}
		if statuses, _ := b.registry.Statuses(); statuses["local"].Writing.State != cluster.Standby ||
			statuses["local"].Writing.Problem != "" {
			t.Errorf("the other replica: %+v", statuses["local"].Writing)
		}

		s.replicas["a"].stop()
		s.exists(server)
		s.expect("once the holder has stopped", one, "Server web: Accepted True Accepted")
		if n := s.api.Requests("update", leases) + s.api.Requests("watch", leases); n != 0 {
			t.Errorf("%d requests without a right", n)
		}
		for _, r := range s.replicas {
			if all := r.warnings.All(); len(all) != 0 {
				t.Errorf("logged: %v", all)
			}
		}
	})
}

// The informers of a term leave their stores to watches that are shared, so that a term costs none.
func TestTermCostsNoWatch(t *testing.T) {
	inSite(t, func(s *site) {
		share := func(ctx context.Context, _ *watch.Value[cluster.Spec], conn *api.Connection) {
			var wg sync.WaitGroup
			defer wg.Wait()
			for _, k := range kinds {
				kind := api.Newest(k.Resource, k.Versions, k.String())
				shared := api.NewInformer(conn, kind, newRecord, func(api.Key) {})
				conn.Share(shared.Watcher)
				wg.Go(func() { shared.Run(ctx) })
			}
		}
		one := routeNamed("one")
		s.start("a", share)
		s.pass(5 * time.Second)
		s.exists(server)
		s.route(one, []rules.Reference{server})
		s.expect("over a shared watch", one, "Server web: Accepted True Accepted")
		for _, k := range kinds {
			if n := s.api.Watches()[k.Resource.String()]; n != 1 {
				t.Errorf("%d watches of %s", n, kindText(k.Kind))
			}
		}
	})
}

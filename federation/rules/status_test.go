package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// lines renders what the status of a route has.
func statusLines(all []ParentStatus) (lines []string) {
	for _, s := range all {
		line := fmt.Sprintf("%s:%d %s", s.Name, s.Port, s.Reason)
		if s.Message != "" {
			line += " (" + s.Message + ")"
		}
		if s.Backends != nil {
			line += ", " + string(s.Backends.Reason)
			if s.Backends.Message != "" {
				line += " (" + s.Backends.Message + ")"
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// What the status of a route has of its parents, by the case that it is about.
func TestStatusOf(t *testing.T) {
	web := ParentObject{Reference: Reference{KindService, "shop", "web"}, Exists: true, HasIP: true}
	v := ParentObject{Reference: Reference{KindServer, "shop", "v"}, Exists: true}
	elsewhere := ParentObject{Reference: Reference{KindServer, "other", "v"}, Exists: true}
	out := ParentObject{Reference: Reference{KindEgressNetwork, "shop", "out"}, Exists: true, IsAccepted: true}
	to := func(parent ParentObject, backends ...Backend) *Route {
		r := route(KindHTTPRoute, "a", 1, backends...)
		r.Parents = []Parent{{Reference: parent.Reference, Port: 8080}}
		return r
	}
	headless, refused, missing := web, out, v
	headless.HasIP, refused.IsAccepted, missing.Exists = false, false, false
	api := backend(KindService, "shop", "api", 80, 1)

	for _, c := range []struct {
		id     string
		route  *Route
		object ParentObject
		want   string
	}{
		{"PT01", to(v), v, "v:8080 Accepted"},
		{"PT02", to(v), missing, "v:8080 NoMatchingParent"},
		{"PT06", to(web), headless, "web:8080 NoMatchingParent (parent service must have a ClusterIP), ResolvedRefs"},
		{
			"PT07", to(out), refused,
			"out:8080 NoMatchingParent (EgressNetwork parent has not been accepted), ResolvedRefs",
		},
		{"PT10", to(web, api), web, "web:8080 Accepted, ResolvedRefs"},
		{"PT11", to(web, backend(KindService, "shop", "gone", 80, 1)), web, "web:8080 Accepted, BackendNotFound"},
		{"PT11", to(web, api, Backend{Invalid: "x"}), web, "web:8080 Accepted, InvalidKind"},
		{
			"PT11", to(web, backend(KindEgressNetwork, "shop", "out", 80, 1)), web,
			"web:8080 Accepted, InvalidKind (EgressNetwork out is not the parent of the route)",
		},
		{
			"PM13", to(web, backend(KindService, "shop", "mirror", 80, 1), api), web,
			"web:8080 Accepted, ResolvedRefs (it is not linked)",
		},
		{
			"PM13, and one that is missing",
			to(web, backend(KindService, "shop", "mirror", 80, 1), backend(KindService, "shop", "gone", 80, 1)), web,
			"web:8080 Accepted, BackendNotFound",
		},
		{
			"the parent itself", to(out, backend(KindEgressNetwork, "shop", "out", 80, 1)), out,
			"out:8080 Accepted, ResolvedRefs",
		},
		{
			"PT14", to(elsewhere), elsewhere,
			"v:8080 NoMatchingParent (a Server must be in the namespace of the route)",
		},
	} {
		attached := func(of Reference) []Attachment {
			object := c.object
			object.Reference = of
			return Attach(object, []*Route{c.route})
		}
		find := func(of Reference) (exists bool, nowhere string) {
			if of.Name == "mirror" {
				return true, "it is not linked"
			}
			return of == api.Reference, ""
		}
		if got := strings.Join(statusLines(StatusOf(c.route, attached, find)), "; "); got != c.want {
			t.Errorf("%s: %s, want %s", c.id, got, c.want)
		}
	}
}

func TestStatusOfLimits(t *testing.T) {
	limit := func(name string, age int, server string) *RateLimit {
		return &RateLimit{Meta: named(KindRateLimit, name, age), Server: server}
	}
	limits := []*RateLimit{limit("b", 2, "v"), limit("a", 1, "v"), limit("c", 1, "gone"), limit("d", 1, "")}
	got := map[string]Reason{}
	for limit, verdict := range StatusOfLimits(limits, func(s Reference) bool { return s.Name == "v" }) {
		got[limit.Name] = verdict.Reason
	}
	want := map[string]Reason{"a": Accepted, "b": AlreadyExists, "c": NoMatchingTarget}
	if !maps.Equal(got, want) {
		t.Errorf("PT18: %v, want %v", got, want)
	}
}

// What does not convert is described in a bounded text, whose last line counts what is left out.
func TestPartial(t *testing.T) {
	m := Meta{Findings: []Finding{
		{Part: PartTimeouts, Reason: "backendRequest is not used"},
		{Unconverted: true, Rule: 2, Part: PartFilter, Reason: "RequestMirror is not supported"},
	}}
	if got := m.Partial(); got != "rule 2: filter: RequestMirror is not supported" {
		t.Errorf("PT26: %q", got)
	}

	m.MoreFindings = 5
	for range MaxFindings - 2 {
		m.Findings = append(m.Findings, Finding{Unconverted: true, Part: PartMatch, Reason: strings.Repeat("x", 50)})
	}
	got := m.Partial()
	shown := strings.Count(got, "\n")
	want := fmt.Sprintf("\nand %d more", MaxFindings-1-shown+5)
	if len(got) > MaxPartial || !strings.HasSuffix(got, want) {
		t.Errorf("%d bytes that do not end in %q: %q", len(got), want, got)
	}
}

// A route is in an answer if and only if its status has Accepted for that parent.
func TestAttachmentIsCondition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := []Kind{KindHTTPRoute, KindPolicyHTTPRoute, KindGRPCRoute, KindTLSRoute, KindTCPRoute}
		object := ParentObject{
			Reference: Reference{KindService, "shop", "web"}, Exists: rapid.Bool().Draw(t, "exists"),
			HasIP: rapid.Bool().Draw(t, "has an IP"),
		}
		var routes []*Route
		for i := range rapid.IntRange(1, 5).Draw(t, "routes") {
			r := route(rapid.SampledFrom(kinds).Draw(t, "kind"), fmt.Sprint(i), 1)
			r.Parents[0].Port = rapid.SampledFrom([]uint16{0, 8080}).Draw(t, "port")
			routes = append(routes, r)
		}

		target := &Target{Reference: object.Reference, Exists: object.Exists, Attached: Attach(object, routes)}
		answers := map[string]bool{} // names of routes, over all protocols that the port could have
		for _, protocol := range []string{"", "http", "kubernetes.io/h2c", "linkerd.io/tcp"} {
			target.Ports = []ServicePort{{NamedPort{"", 8080}, protocol}}
			for _, r := range testOptions().Outbound(target, OutboundQuery{Port: 8080, Client: "shop"}).Routes {
				answers[r.Name] = true
			}
		}

		attached := func(Reference) []Attachment { return Attach(object, routes) }
		accepted := map[string]bool{}
		for _, r := range routes {
			for _, s := range StatusOf(r, attached, func(Reference) (bool, string) { return true, "" }) {
				accepted[r.Name] = accepted[r.Name] || s.Accepted()
			}
		}

		for name := range answers {
			if name != "" && !accepted[name] {
				t.Fatalf("route %s is in an answer, and its status does not have it as accepted", name)
			}
		}
		if len(answers) == 1 && answers[""] && slices.Contains(slices.Collect(maps.Values(accepted)), true) {
			t.Fatalf("no route is in an answer, and %v is accepted", accepted)
		}
	})
}

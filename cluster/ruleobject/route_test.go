package ruleobject

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubejson "sigs.k8s.io/json"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// inShop returns an object of a kind and name in namespace shop.
func inShop(kind rules.Kind, name string) rules.Reference {
	return rules.Reference{Kind: kind, Namespace: "shop", Name: name}
}

func read(t *testing.T, kind rules.Kind, metadata, spec string) *rules.Route {
	t.Helper()
	route, err := Route(kind, parse(t, metadata, spec))
	if err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return route
}

func checkLines(t *testing.T, route *rules.Route, want []string) {
	t.Helper()
	if got := lines(route.Findings); !contain(got, want) {
		t.Errorf("findings %q, want %q", got, want)
	}
}

func TestParents(t *testing.T) {
	service := rules.Parent{Reference: inShop(rules.KindService, "web"), Port: 8080}
	server := rules.Parent{Reference: inShop(rules.KindServer, "v")}
	with := func(p rules.Parent, change func(*rules.Parent)) []rules.Parent {
		change(&p)
		return []rules.Parent{p}
	}

	for _, c := range []struct {
		id, parents string
		want        []rules.Parent
		findings    []string
	}{
		{"PR01", "{group: core, kind: Service, name: web, port: 8080}", []rules.Parent{service}, nil},
		{"PR21/empty", "{group: '', kind: Service, name: web, port: 8080}", []rules.Parent{service}, nil},
		{"PR21/case", "{group: Core, kind: service, name: web, port: 8080}", []rules.Parent{service}, nil},
		{
			"PR03", "{group: '', kind: Service, name: web}", with(service, func(p *rules.Parent) { p.Port = 0 }), nil,
		},
		{
			"PR08", "{group: '', kind: Service, name: web, namespace: other, port: 8080}",
			with(service, func(p *rules.Parent) { p.Namespace = "other" }), nil,
		},
		{
			"PR23", "{group: '', kind: Service, name: web, port: 8080, sectionName: http}",
			with(service, func(p *rules.Parent) { p.Section = true }), nil,
		},
		{
			"PO56", "{group: policy.linkerd.io, kind: EgressNetwork, name: out, port: 80}",
			[]rules.Parent{{Reference: inShop(rules.KindEgressNetwork, "out"), Port: 80}},
			nil,
		},
		{"PR26", "{name: gateway}, {kind: Gateway, name: gateway}, {kind: Service, name: of-gateway-group}", nil, nil},
		{"another kind", "{group: apps, kind: Deployment, name: web, port: 70000}", nil, nil},
		{
			"PR22", "{group: '', kind: Service, name: web, port: 70000}, {group: '', kind: Service, name: web, port: 8080}",
			[]rules.Parent{service},
			[]string{"parentRef: port 70000 is not between"},
		},
		{"port 0", "{group: '', kind: Service, name: web, port: 0}", nil, []string{"parentRef: port 0 is not between"}},
		{
			"PR27", "{group: '', kind: Service, name: 1}, null, {group: '', kind: Service, name: web, port: 8080}, {group: '', kind: Service}",
			[]rules.Parent{service},
			[]string{"cannot unmarshal number", "it is null", "no object has the name"},
		},
		{"PN80", "{group: policy.linkerd.io, kind: Server, name: v}", []rules.Parent{server}, nil},
		{
			"PN86/port", "{group: policy.linkerd.io, kind: Server, name: v, port: 8080}",
			with(server, func(p *rules.Parent) { p.Port = 8080 }),
			[]string{"Server v is referred to with a port"},
		},
		{
			"PN86/section", "{group: policy.linkerd.io, kind: Server, name: v, sectionName: x}",
			with(server, func(p *rules.Parent) { p.Section = true }),
			[]string{"Server v is referred to with a port"},
		},
		{
			"PN86/namespace", "{group: policy.linkerd.io, kind: Server, name: v, namespace: other}",
			with(server, func(p *rules.Parent) { p.Namespace = "other" }),
			[]string{"Server v is in another namespace"},
		},
		{
			"many", strings.Repeat("{group: '', kind: Service, name: web, port: 8080},", 65), slices.Repeat([]rules.Parent{service}, 64),
			[]string{"parentRef: those after the first 64 are left out"},
		},
	} {
		t.Run(c.id, func(t *testing.T) {
			for _, kind := range []rules.Kind{rules.KindPolicyHTTPRoute, rules.KindHTTPRoute, rules.KindGRPCRoute} {
				route := read(t, kind, "", "{parentRefs: ["+c.parents+"]}")
				if diff := cmp.Diff(c.want, route.Parents, readable); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				checkLines(t, route, c.findings)
			}
		})
	}
}

func TestHostnames(t *testing.T) {
	for _, c := range []struct {
		id, hostnames string
		want          []rules.Pattern
		silent        bool
		findings      []string
	}{
		{"PN89, PR31", "[a.b, '*.c.d']", []rules.Pattern{{Text: "a.b"}, {Text: "c.d", Suffix: true}}, false, nil},
		{"one is bad", "[a.b, 'a b', 1]", []rules.Pattern{{Text: "a.b"}}, false, []string{`"a b" is no hostname`, "unmarshal"}},
		{"all are bad", "['*', '', 'a.', \"a\\nb\"]", nil, true, []string{`"*"`, `""`, `"a."`, `"a\nb"`}},
		{"no list", "a.b", nil, true, []string{"hostname: it is no list"}},
		{"empty", "[]", nil, false, nil},
		{"absent", "null", nil, false, nil},
	} {
		t.Run(c.id, func(t *testing.T) {
			for _, kind := range []rules.Kind{rules.KindPolicyHTTPRoute, rules.KindGRPCRoute, rules.KindTLSRoute} {
				route := read(t, kind, "", "{hostnames: "+c.hostnames+", rules: [{}]}")
				if diff := cmp.Diff(c.want, route.Hostnames, readable); diff != "" || route.Silent != c.silent {
					t.Errorf("silent: %t; -want +got:\n%s", route.Silent, diff)
				}
				checkLines(t, route, c.findings)
			}
		})
	}
}

func TestHTTPMatches(t *testing.T) {
	path := func(kind rules.PathType, text string) rules.Match {
		return rules.Match{Path: rules.PathMatch{Type: kind, Text: text}}
	}
	headers := func(all ...rules.ValueMatch) rules.Match { return rules.Match{Headers: all} }

	for _, c := range []struct {
		id, matches string
		want        []rules.Match
		unmatched   bool
		findings    []string
	}{
		{"PN90, PR30/exact", "[{path: {type: Exact, value: /a}}]", []rules.Match{path(rules.PathExact, "/a")}, false, nil},
		{"PN90, PR30/prefix", "[{path: {type: PathPrefix, value: /a}}]", []rules.Match{path(rules.PathPrefix, "/a")}, false, nil},
		{"PN90, PR30/regex", "[{path: {type: RegularExpression, value: 'a.*'}}]", []rules.Match{path(rules.PathRegex, "a.*")}, false, nil},
		{"PN90, PR30/absent type", "[{path: {value: /a}}]", []rules.Match{path(rules.PathPrefix, "/a")}, false, nil},
		{"absent value", "[{path: {}}]", []rules.Match{path(rules.PathPrefix, "/")}, false, nil},
		{"empty match", "[{}]", []rules.Match{{}}, false, nil},
		{
			"PN90, PR30/headers", "[{headers: [{name: x-a, value: v}, {type: RegularExpression, name: X-B, value: '.*'}]}]",
			[]rules.Match{headers(rules.ValueMatch{Name: "x-a", Value: "v"}, rules.ValueMatch{Name: "X-B", Value: ".*", Regex: true})},
			false, nil,
		},
		{
			"PN90, PR30/queries", "[{queryParams: [{name: a, type: Exact, value: 'ä'}, {type: RegularExpression, name: b, value: '[0-9]'}]}]",
			[]rules.Match{{Queries: []rules.ValueMatch{{Name: "a", Value: "ä"}, {Name: "b", Value: "[0-9]", Regex: true}}}},
			false, nil,
		},
		{"PN90, PR30/method", "[{method: GET}]", []rules.Match{{Method: "GET"}}, false, nil},
		{"absent", "null", nil, false, nil},
		{"empty", "[]", nil, false, nil},
		{
			"PN94", `[{path: {type: RegularExpression, value: '\Qa\E'}}]`, nil, true,
			[]string{`rule 1: match: regular expression "\\Qa\\E": \Q is not known`},
		},
		{
			"PR34", "[{path: {type: RegularExpression, value: '[[a]'}}, {path: {value: /x}}]",
			[]rules.Match{path(rules.PathPrefix, "/x")},
			false,
			[]string{"a [ in a class is to be escaped"},
		},
		{"PW18/path", "[{path: {value: a}}]", nil, true, []string{`path "a" does not begin with /`}},
		{"PW18/header", "[{headers: [{name: 'a b', value: v}]}]", nil, true, []string{`"a b" is no name of a header`}},
		{"header value", "[{headers: [{name: a, value: \"v\\n\"}]}]", nil, true, []string{`cannot have the value "v\n"`}},
		{"header type", "[{headers: [{name: a, type: Prefix, value: v}]}]", nil, true, []string{`type "Prefix"`}},
		{"path type", "[{path: {type: Prefix, value: /}}]", nil, true, []string{`type "Prefix" of a path is unknown`}},
		{"path long", "[{path: {value: /" + strings.Repeat("a", maxText) + "}}]", nil, true, []string{"a path has 4097 bytes"}},
		{"method", "[{method: 'G T'}]", nil, true, []string{`"G T" is no method`}},
		{"query name", "[{queryParams: [{name: '', value: v}]}]", nil, true, []string{`"" is no name of a parameter`}},
		{
			"many headers", "[{headers: [" + strings.Repeat("{name: a, value: v},", 65) + "]}]", nil, true,
			[]string{"a match has 65 headers"},
		},
		{"null", "[null]", nil, true, []string{"it is null"}},
		{"no list", "{}", nil, true, []string{"match: it is no list"}},
		{
			"many", "[" + strings.Repeat("{path: {value: /x}},", 129) + "]", slices.Repeat([]rules.Match{path(rules.PathPrefix, "/x")}, 128), false,
			[]string{"match: those after the first 128"},
		},
	} {
		t.Run(c.id, func(t *testing.T) {
			for _, kind := range []rules.Kind{rules.KindPolicyHTTPRoute, rules.KindHTTPRoute} {
				route := read(t, kind, "", "{rules: [{matches: "+c.matches+"}, {}]}")
				if diff := cmp.Diff(c.want, route.Rules[0].Matches, readable); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				if route.Rules[0].Unmatched != c.unmatched || route.Silent {
					t.Errorf("unmatched: %t, silent: %t", route.Rules[0].Unmatched, route.Silent)
				}
				checkLines(t, route, c.findings)
			}
		})
	}
}

func TestGRPCMatches(t *testing.T) {
	for _, c := range []struct {
		id, matches string
		want        []rules.Match
		unmatched   bool
		findings    []string
	}{
		{"PN95, PR32/both", "[{method: {service: s, method: m}}]", []rules.Match{{RPCService: "s", RPCMethod: "m"}}, false, nil},
		{"PR32/service", "[{method: {type: Exact, service: s}}]", []rules.Match{{RPCService: "s"}}, false, nil},
		{"PR32/none", "[{}]", []rules.Match{{}}, false, nil},
		{
			"PN95/headers", "[{headers: [{name: a, value: b}]}]",
			[]rules.Match{{Headers: []rules.ValueMatch{{Name: "a", Value: "b"}}}},
			false, nil,
		},
		{
			"PR33", "[{method: {type: RegularExpression, service: s}}]", nil, true,
			[]string{"a method cannot be matched by a regular expression"},
		},
		{"type", "[{method: {type: Prefix, service: s}}]", nil, true, []string{`type "Prefix" of a method`}},
		{"name", "[{method: {service: \"a\\nb\"}}]", nil, true, []string{`of "a\nb"`}},
	} {
		t.Run(c.id, func(t *testing.T) {
			route := read(t, rules.KindGRPCRoute, "", "{rules: [{matches: "+c.matches+"}]}")
			if diff := cmp.Diff(c.want, route.Rules[0].Matches, readable); diff != "" || route.Rules[0].Unmatched != c.unmatched {
				t.Errorf("unmatched: %t; -want +got:\n%s", route.Rules[0].Unmatched, diff)
			}
			checkLines(t, route, c.findings)
		})
	}
}

func TestFilters(t *testing.T) {
	const (
		service = "parentRefs: [{group: '', kind: Service, name: web}]"
		server  = "parentRefs: [{group: policy.linkerd.io, kind: Server, name: v}]"
		request = "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}], add: [{name: c, value: d}], remove: [e]}}"
		answer  = "{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [a]}}"
	)
	redirect := func(text string) string { return "{type: RequestRedirect, requestRedirect: " + text + "}" }
	requested := rules.Filter{RequestHeaders: &rules.HeaderChanges{
		Set: []rules.Header{{Name: "a", Value: "b"}}, Add: []rules.Header{{Name: "c", Value: "d"}}, Remove: []string{"e"},
	}}
	answered := rules.Filter{ResponseHeaders: &rules.HeaderChanges{Remove: []string{"a"}}}
	redirected := func(to rules.Redirect) []rules.Filter { return []rules.Filter{{Redirect: &to}} }
	unsupported := func(reason string) []rules.Filter { return []rules.Filter{{Unsupported: reason}} }
	http, policy, grpc := rules.KindHTTPRoute, rules.KindPolicyHTTPRoute, rules.KindGRPCRoute

	for _, c := range []struct {
		id      string
		kind    rules.Kind
		parents string
		filters string
		want    []rules.Filter
		finding string // of the only Finding
	}{
		{
			"PR35", http, service, request + "," + answer + "," + redirect("{}"),
			[]rules.Filter{requested, answered, {Redirect: &rules.Redirect{Status: 302}}},
			"",
		},
		{"PN91", policy, server, request, []rules.Filter{requested}, ""},
		{"PN92", http, server, answer, []rules.Filter{answered}, "rule 1: filter: ResponseHeaderModifier has no effect at Servers"},
		{"PR39", grpc, service, answer, []rules.Filter{answered}, "rule 1: filter: ResponseHeaderModifier is not supported on GRPCRoutes"},
		{
			"PR37/full", http, service,
			redirect("{scheme: https, hostname: a.b, path: {type: ReplaceFullPath, replaceFullPath: /x}, port: 8443, statusCode: 301}"),
			redirected(rules.Redirect{
				Scheme: "https", Hostname: "a.b", Path: &rules.PathChange{Text: "/x"}, Port: 8443, Status: 301,
			}), "",
		},
		{
			"PR37/prefix", policy, service, redirect("{path: {type: ReplacePrefixMatch, replacePrefixMatch: /y}}"),
			redirected(rules.Redirect{Path: &rules.PathChange{Prefix: true, Text: "/y"}, Status: 302}), "",
		},
		{"PR40", http, service, "{type: URLRewrite, urlRewrite: {}}", unsupported(`"URLRewrite" is not supported`), "URLRewrite"},
		{"PT26", http, service, "{type: RequestMirror}", unsupported(`"RequestMirror" is not supported`), `rule 1: filter: "RequestMirror"`},
		{"CORS", http, service, "{type: CORS, cors: {}}", unsupported(`"CORS" is not supported`), "CORS"},
		{"ExtensionRef", grpc, service, "{type: ExtensionRef}", unsupported(`"ExtensionRef" is not supported`), "ExtensionRef"},
		{"redirect of gRPC", grpc, service, redirect("{}"), unsupported(`"RequestRedirect" is not supported`), "RequestRedirect"},
		{
			"PZ06", http, service, request + ", {type: URLRewrite}",
			[]rules.Filter{requested, {Unsupported: `"URLRewrite" is not supported`}},
			"URLRewrite",
		},
		{"no content", http, service, "{type: RequestHeaderModifier}", unsupported("it is null"), "it is null"},
		{
			"header", http, service, "{type: RequestHeaderModifier, requestHeaderModifier: {remove: ['a b']}}",
			unsupported(`"a b" is no name of a header`), "no name of a header",
		},
		{
			"header value", http, service, "{type: RequestHeaderModifier, requestHeaderModifier: {add: [{name: a, value: \"\\r\"}]}}",
			unsupported(`header a cannot have the value "\r"`), "cannot have the value",
		},
		{
			"PW18/redirect", http, service, redirect("{path: {type: ReplaceFullPath, replaceFullPath: x}}"),
			unsupported(`path "x" does not begin with /`), "does not begin",
		},
		{
			"redirect/path type", http, service, redirect("{path: {type: Foo}}"),
			unsupported(`a redirect cannot change a path by "Foo"`), "Foo",
		},
		{
			"redirect/hostname", http, service, redirect("{hostname: 'a b'}"),
			unsupported(`a redirect cannot have the hostname "a b"`), "hostname",
		},
		{"redirect/scheme", http, service, redirect("{scheme: ftp}"), unsupported(`a redirect cannot have the scheme "ftp"`), "scheme"},
		{"redirect/status", http, service, redirect("{statusCode: 200}"), unsupported("a redirect cannot have the status 200"), "200"},
		{"redirect/port", http, service, redirect("{port: 65536}"), unsupported("port 65536 is not between 1 and 65535"), "65536"},
		{
			"many", http, service, strings.Repeat(request+",", 40), unsupported("there are more than 32"),
			"filter: there are more than 32",
		},
	} {
		t.Run(c.id, func(t *testing.T) {
			route := read(t, c.kind, "", "{"+c.parents+", rules: [{filters: ["+c.filters+"]}]}")
			if diff := cmp.Diff(c.want, route.Rules[0].Filters, readable); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got := strings.Join(lines(route.Findings), "\n"); !strings.Contains(got, c.finding) || (got == "") != (c.finding == "") {
				t.Errorf("findings %q, want %q", got, c.finding)
			}
			if slices.ContainsFunc(route.Findings, func(f rules.Finding) bool { return !f.Unconverted }) {
				t.Errorf("%+v is not for the status", route.Findings)
			}
		})
	}
}

func TestBackends(t *testing.T) {
	api := rules.Backend{Reference: inShop(rules.KindService, "api"), Port: 80, Weight: 1}
	with := func(change func(*rules.Backend)) []rules.Backend {
		b := api
		change(&b)
		return []rules.Backend{b}
	}
	invalid := func(reason string) []rules.Backend { return []rules.Backend{{Weight: 1, Invalid: reason}} }
	filtered := func(filter string) string { return "{name: api, port: 80, filters: [" + filter + "]}" }
	changes := &rules.HeaderChanges{Remove: []string{"a"}}
	const unsupported = "unsupported backend filter"
	http, policy, grpc, tcp := rules.KindHTTPRoute, rules.KindPolicyHTTPRoute, rules.KindGRPCRoute, rules.KindTCPRoute

	for _, c := range []struct {
		id       string
		kind     rules.Kind
		backends string
		want     []rules.Backend
		finding  string // of the only Finding
	}{
		{"PR43", http, "{name: api, port: 80}", []rules.Backend{api}, ""},
		{"PR43/TCP", tcp, "{group: '', kind: Service, name: api, port: 80}", []rules.Backend{api}, ""},
		{
			"PR44", http, "{name: api, namespace: other, port: 80}",
			with(func(b *rules.Backend) { b.Namespace = "other" }), "",
		},
		{
			"PR47", http, "{name: api}",
			with(func(b *rules.Backend) { b.Port, b.Invalid = 0, "missing port for backend Service api" }), "missing port",
		},
		{
			"port 0", policy, "{name: api, port: 0}",
			with(func(b *rules.Backend) {
				b.Port, b.Invalid = 0, "backend Service api: port 0 is not between 1 and 65535"
			}), "port 0",
		},
		{"PR48/kind", http, "{kind: Secret, name: api, port: 80}", invalid("unsupported backend type core Secret"), "core Secret"},
		{"PR48/group", http, "{group: x, name: api, port: 80}", invalid("unsupported backend type x Service"), "x Service"},
		{
			"PR36", policy, filtered("{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [a]}}"),
			with(func(b *rules.Backend) { b.Filters = []rules.Filter{{ResponseHeaders: changes}} }), "",
		},
		{
			"PR42", http, filtered("{type: RequestMirror}"), with(func(b *rules.Backend) { b.Invalid = unsupported }),
			`rule 1: backendRef filter: "RequestMirror" is not supported`,
		},
		{
			"PR39/backend", grpc, filtered("{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [a]}}"),
			with(func(b *rules.Backend) { b.Invalid = unsupported }), "backendRef filter: ResponseHeaderModifier",
		},
		{
			"filters/no list", http, "{name: api, port: 80, filters: 1}",
			with(func(b *rules.Backend) { b.Invalid = unsupported }), "backendRef filter: it is no list",
		},
		{
			"filters/many", http, filtered(strings.Repeat("{type: RequestMirror},", 33)),
			with(func(b *rules.Backend) { b.Invalid = unsupported }), "backendRef filter: there are more than 32",
		},
		{"filters of TCP", tcp, filtered("{type: RequestMirror}"), []rules.Backend{api}, ""},
		{
			"PR51", http, "{name: api, port: 80, weight: 70}, {name: api, port: 80, weight: 0}",
			append(with(func(b *rules.Backend) { b.Weight = 70 }), with(func(b *rules.Backend) { b.Weight = 0 })...), "",
		},
		{
			"PW34/weights", http, "{name: api, port: 80, weight: 0}", with(func(b *rules.Backend) { b.Weight = 0 }),
			"rule 1: backendRef: no backend has a weight",
		},
		{
			"weight", http, "{name: api, port: 80, weight: 1000001}", with(func(b *rules.Backend) { b.Weight = 1_000_000 }),
			"weight 1000001 counts as 1000000",
		},
		{
			"PR54", rules.KindTLSRoute, "{group: policy.linkerd.io, kind: EgressNetwork, name: out}",
			[]rules.Backend{{Reference: inShop(rules.KindEgressNetwork, "out"), Weight: 1}},
			"",
		},
		{"no name", http, "{port: 80}", invalid(`no object has the name "" in namespace ""`), "no object has the name"},
		{"null", http, "null", invalid("it is null"), "it is null"},
		{"many", http, strings.Repeat("{name: api, port: 80},", 65), slices.Repeat([]rules.Backend{api}, 64), "backendRef: those after the first 64"},
	} {
		t.Run(c.id, func(t *testing.T) {
			route := read(t, c.kind, "", "{rules: [{backendRefs: ["+c.backends+"]}]}")
			if diff := cmp.Diff(c.want, route.Rules[0].Backends, readable); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got := strings.Join(lines(route.Findings), "\n"); !strings.Contains(got, c.finding) || (got == "") != (c.finding == "") {
				t.Errorf("findings %q, want %q", got, c.finding)
			}
		})
	}

	// Without its backends a rule would lead to its parent.
	route := read(t, http, "", "{rules: [{backendRefs: {}}]}")
	if b := route.Rules[0].Backends; len(b) != 1 || b[0].Invalid == "" {
		t.Errorf("%+v", b)
	}
}

func TestRuleTimeouts(t *testing.T) {
	policy, gateway := rules.KindPolicyHTTPRoute, rules.KindHTTPRoute
	for _, c := range []struct {
		id       string
		kind     rules.Kind
		timeouts string
		want     rules.Timeout
		findings []string
	}{
		{"PR70", policy, "{request: 4s}", given(4 * time.Second), nil},
		{"PR70", policy, "{request: 1m30s}", given(90 * time.Second), nil},
		{"PR70", policy, "{request: 0.5s}", given(time.Second / 2), nil},
		{"PR71", gateway, "{request: 1m30s}", given(90 * time.Second), nil},
		{"PR71", gateway, "{request: 500ms}", given(time.Second / 2), nil},
		{"PR71", gateway, "{request: 2h}", given(2 * time.Hour), nil},
		{"PR72", gateway, "{request: 0s}", given(0), []string{"rule 1: timeouts: a timeout of 0 is no timeout"}},
		{"PR60", gateway, "{request: 2s, backendRequest: 1s}", given(2 * time.Second), []string{"backendRequest is not used"}},
		{"bad", gateway, "{request: 1.5s}", rules.Timeout{}, []string{`timeouts: request: "1.5s": not a duration`}},
		{"negative", policy, "{request: -1s}", rules.Timeout{}, []string{`timeouts: request: "-1s": a negative`}},
		{"bad backendRequest", policy, "{request: 1s, backendRequest: x}", rules.Timeout{}, []string{`backendRequest: "x"`}},
		{"type", policy, "{request: 1}", rules.Timeout{}, []string{"timeouts: json: cannot unmarshal number"}},
		{"none", policy, "{}", rules.Timeout{}, nil},
	} {
		t.Run(c.id, func(t *testing.T) {
			route := read(t, c.kind, "", "{rules: [{timeouts: "+c.timeouts+"}]}")
			if got := route.Rules[0].Timeouts; got != (rules.Timeouts{Request: c.want}) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			checkLines(t, route, c.findings)
		})
	}
}

func TestRouteAnnotations(t *testing.T) {
	const (
		service = "{parentRefs: [{group: '', kind: Service, name: web}]}"
		server  = "{parentRefs: [{group: policy.linkerd.io, kind: Server, name: v}]}"
	)
	http, grpc, tcp := rules.KindHTTPRoute, rules.KindGRPCRoute, rules.KindTCPRoute
	for _, c := range []struct {
		id, annotations string
		kind            rules.Kind
		spec            string
		timeouts        rules.Timeouts
		retry           *rules.Retries
		findings        []string
	}{
		{"PR75", "timeout.linkerd.io/response: 1s", http, service, rules.Timeouts{Response: given(time.Second)}, nil, nil},
		{
			"PR78", "timeout.linkerd.io/request: abc, retry.linkerd.io/http: '500'", http, service,
			rules.Timeouts{},
			&rules.Retries{Limit: 1, Statuses: []rules.StatusRange{{First: 500, Last: 500}}},
			[]string{`annotation: timeout.linkerd.io/request: "abc"`},
		},
		{
			"PR82", "retry.linkerd.io/grpc: internal", grpc, service,
			rules.Timeouts{},
			&rules.Retries{Limit: 1, Codes: rules.GRPCInternal}, nil,
		},
		{
			"PR85", "retry.linkerd.io/limit: '2'", http, service,
			rules.Timeouts{},
			&rules.Retries{Limit: 2},
			[]string{"nothing is tried again without"},
		},
		{"of gRPC on HTTP", "retry.linkerd.io/grpc: internal", http, service, rules.Timeouts{}, nil, nil},
		{"inbound", "timeout.linkerd.io/request: abc", http, server, rules.Timeouts{}, nil, nil},
		{"TCP", "timeout.linkerd.io/request: 1s", tcp, service, rules.Timeouts{}, nil, []string{"a TCPRoute has one rule, and not 0"}},
	} {
		t.Run(c.id, func(t *testing.T) {
			route := read(t, c.kind, "annotations: {"+c.annotations+"}", c.spec)
			if diff := cmp.Diff(c.retry, route.Retry, readable); diff != "" || route.Timeouts != c.timeouts {
				t.Errorf("timeouts %+v; -want +got:\n%s", route.Timeouts, diff)
			}
			checkLines(t, route, c.findings)
		})
	}
}

// What is sent of a route whose rules do not convert.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		id         string
		kind       rules.Kind
		spec       string
		sent, kept int
		findings   []string
	}{
		{"PR33", rules.KindGRPCRoute, "{rules: [{matches: [{method: {type: RegularExpression}}]}, {}]}", 1, 2, []string{"rule 1: match"}},
		{"PN94", rules.KindHTTPRoute, "{rules: [{matches: [{path: {type: RegularExpression, value: '\\Qa'}}]}]}", 0, 1, []string{"rule 1"}},
		{"PR58", rules.KindTLSRoute, "{rules: [{}, {}]}", 0, 2, []string{"rule: a TLSRoute has one rule, and not 2"}},
		{"TCP", rules.KindTCPRoute, "{rules: [{}]}", 1, 1, nil},
		{"no list", rules.KindHTTPRoute, "{rules: {}}", 0, 0, []string{"rule: it is no list"}},
		{"a rule is none", rules.KindHTTPRoute, "{rules: [1, {}]}", 1, 2, []string{"rule 1: rule: json: cannot unmarshal number"}},
		{"hostnames", rules.KindHTTPRoute, "{hostnames: ['*'], rules: [{}]}", 0, 1, []string{"hostname"}},
		{"spec", rules.KindHTTPRoute, "1", 0, 0, []string{"spec: json: cannot unmarshal number"}},
		{"no spec", rules.KindHTTPRoute, "null", 0, 0, []string{"spec: it is null"}},
		{"many", rules.KindHTTPRoute, "{rules: [" + strings.Repeat("{},", 129) + "]}", 128, 128, []string{"rule: those after the first 128"}},
		{
			"PR60", rules.KindHTTPRoute, "{rules: [{}, {retry: {attempts: 1}, sessionPersistence: {}}]}", 2, 2,
			[]string{"rule 2: rule: retry is not used", "rule 2: rule: sessionPersistence is not used"},
		},
	} {
		t.Run(c.id, func(t *testing.T) {
			route := read(t, c.kind, "", c.spec)
			sent := 0
			for range route.Sent() {
				sent++
			}
			if sent != c.sent || len(route.Rules) != c.kept {
				t.Errorf("%d of %d rules are sent, want %d of %d", sent, len(route.Rules), c.sent, c.kept)
			}
			checkLines(t, route, c.findings)
		})
	}

	many := read(t, rules.KindHTTPRoute, "", "{rules: ["+strings.Repeat("{retry: {}, sessionPersistence: {}},", 100)+"]}")
	if len(many.Findings) != rules.MaxFindings || many.MoreFindings != 100 {
		t.Errorf("%d findings and %d more", len(many.Findings), many.MoreFindings)
	}
}

const hostileRoute = `{
  "parentRefs": [{"group": "policy.linkerd.io", "kind": "Server", "name": "v"}, {"kind": "Service", "group": "", "name": "web", "port": 1}],
  "hostnames": ["*.a.b"],
  "rules": [{
    "matches": [{"path": {"type": "RegularExpression", "value": "[a"}, "headers": [{"name": "a", "value": "b"}], "method": "GET"}, {"method": {"service": "s"}}],
    "filters": [{"type": "RequestRedirect", "requestRedirect": {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/"}, "port": 1, "statusCode": 301}}],
    "backendRefs": [{"name": "a", "port": 1, "weight": -1, "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "a", "value": ""}]}}]}],
    "timeouts": {"request": "1s", "backendRequest": "2s"}, "retry": {}
  }]
}`

// Whatever the spec is: a route is read, always as the same, and what is sent of it is in bounds.
func FuzzRoute(f *testing.F) {
	for kind := rules.KindPolicyHTTPRoute; kind <= rules.KindTCPRoute; kind++ {
		for _, spec := range []string{"null", "[]", hostileRoute, `{"rules":[null,{}]}`} {
			f.Add(uint8(kind), []byte(spec))
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, spec []byte) {
		raw := fmt.Appendf(nil, `{"metadata":{"name":"x","namespace":"shop"},"spec":%s}`, spec)
		var u unstructured.Unstructured
		if !rules.Kind(min(kind, uint8(rules.KindTCPRoute))).IsRoute() || kubejson.UnmarshalCaseSensitivePreserveInts(raw, &u.Object) != nil {
			return
		}

		read := func() *rules.Route {
			route, err := Route(rules.Kind(min(kind, uint8(rules.KindTCPRoute))), &u)
			if err != nil {
				t.Fatalf("%s: %v", raw, err)
			}
			return route
		}
		route := read()
		if again := read(); !reflect.DeepEqual(route, again) {
			t.Errorf("%s is read as\n%+v\nand as\n%+v", spec, route, again)
		}

		checkFindings(t, &route.Meta)
		for rule := range route.Sent() {
			checkRule(t, rule)
		}
	})
}

func checkRule(t *testing.T, rule *rules.Rule) {
	t.Helper()
	for _, m := range rule.Matches {
		switch m.Path.Type {
		case rules.PathAny:
		case rules.PathRegex:
			if err := checkRegex(m.Path.Text); err != nil {
				t.Error(err)
			}
		default:
			if !strings.HasPrefix(m.Path.Text, "/") {
				t.Errorf("%+v", m)
			}
		}
	}
	for _, b := range rule.Backends {
		if b.Weight > rules.MaxWeight || b.Invalid == "" && (b.Kind == rules.KindOther || b.Kind == rules.KindService && b.Port == 0) {
			t.Errorf("%+v", b)
		}
		if b.Invalid != "" && len(b.Filters) > 0 {
			t.Errorf("%+v", b)
		}
	}
}

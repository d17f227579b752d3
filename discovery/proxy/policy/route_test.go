package policy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
)

// clientOf decodes a policy of one protocol whose routes are texts without metadata and backends.
func clientOf(t *testing.T, protocol policy.Protocol, routes ...string) *policy.Client {
	t.Helper()
	var all strings.Builder
	for i, route := range routes {
		route = strings.ReplaceAll(route, "rules {", "rules { backends { empty {} } ")
		fmt.Fprintf(&all, "routes { metadata { default: %q } %s }\n", fmt.Sprint(i), route)
	}
	text := fmt.Sprintf("%s protocol { %s { %s } }", metadata, protocol, all.String())
	client, err := policy.DecodeOutbound(outboundOf(t, text, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// found returns the numbers of the route and of the rule that a request gets; empty if it gets none.
func found(client *policy.Client, request policy.Request) string {
	route, rule := client.Route(request)
	if route == nil {
		return ""
	}
	for i := range route.Rules {
		if &route.Rules[i] == rule {
			return fmt.Sprintf("%s/%d", route.Metadata.Name, i)
		}
	}
	return route.Metadata.Name + "/?"
}

// rules returns a route whose rules have one match each.
func rules(matches ...string) string {
	var all strings.Builder
	for _, match := range matches {
		fmt.Fprintf(&all, "rules { matches { %s } } ", match)
	}
	return all.String()
}

// A request gets the best match.
func TestRoute(t *testing.T) {
	t.Parallel()
	everything := rules("")
	for _, test := range []struct {
		name     string
		protocol policy.Protocol
		routes   []string
		request  policy.Request
		want     string // route/rule
	}{
		// Hosts.
		{"no routes for the host", policy.HTTP1, []string{`hosts { exact: "a" }` + everything}, policy.Request{Authority: "b"}, ""},
		{
			"an exact host is better than a suffix", policy.HTTP1,
			[]string{
				everything, `hosts { suffix { reverse_labels: ["example", "b"] } }` + rules(`path { exact: "/long" }`),
				`hosts { exact: "a.b.example" }` + everything,
			},
			policy.Request{Authority: "a.b.example:80", Path: "/long"},
			"2/0",
		},
		{
			"a longer suffix is better than a shorter one", policy.HTTP1,
			[]string{
				`hosts { suffix { reverse_labels: "example" } }` + everything,
				`hosts { suffix { reverse_labels: ["example", "b"] } }` + everything,
			},
			policy.Request{Authority: "user@a.B.example."},
			"1/0",
		},
		{
			"a suffix is better than no host", policy.HTTP1,
			[]string{rules(`path { exact: "/long" }`), `hosts { suffix { reverse_labels: "example" } }` + everything},
			policy.Request{Authority: "a.example", Path: "/long"},
			"1/0",
		},
		{
			"a suffix does not match itself", policy.HTTP1,
			[]string{`hosts { suffix { reverse_labels: "example" } }` + everything},
			policy.Request{Authority: "example"},
			"",
		},
		{
			"a host of several", policy.HTTP1,
			[]string{`hosts { exact: "a" } hosts { exact: "B" }` + everything},
			policy.Request{Authority: "b"},
			"0/0",
		},
		{
			"a dot behind a host counts", policy.HTTP1,
			[]string{`hosts { exact: "a." }` + everything},
			policy.Request{Authority: "a"},
			"",
		},
		{
			"a dot behind a suffix counts", policy.HTTP1,
			[]string{`hosts { suffix { reverse_labels: ["", "a"] } }` + everything},
			policy.Request{Authority: "b.a."},
			"0/0",
		},
		{
			"an address", policy.HTTP1,
			[]string{`hosts { exact: "[::1]" }` + everything},
			policy.Request{Authority: "[::1]:80"},
			"0/0",
		},

		// Paths.
		{
			"a longer prefix is better", policy.HTTP1,
			[]string{rules(`path { prefix: "/a" }`, `path { prefix: "/a/b/" }`, `path { prefix: "/" }`)},
			policy.Request{Path: "/a/b"},
			"0/1",
		},
		{
			"a prefix ends with a segment", policy.HTTP1,
			[]string{rules(`path { prefix: "/a" }`, `path { prefix: "/" }`)},
			policy.Request{Path: "/ab"},
			"0/1",
		},
		{
			"an exact path as long as a prefix is no better", policy.HTTP1,
			[]string{rules(`path { prefix: "/a" }`, `path { exact: "/a" }`)},
			policy.Request{Path: "/a?x"},
			"0/0",
		},
		{
			"an exact path with a slash is better than its prefix", policy.HTTP1,
			[]string{rules(`path { prefix: "/a/" }`, `path { exact: "/a/" }`)},
			policy.Request{Path: "/a/"},
			"0/1",
		},
		{
			"a regular expression equals an exact path", policy.HTTP1,
			[]string{rules(`path { regex: "/[a-z]+" }`, `path { exact: "/abc" }`)},
			policy.Request{Path: "/abc"},
			"0/0",
		},
		{
			"a regular expression is better than a prefix", policy.HTTP1,
			[]string{rules(`path { prefix: "/abc" }`, `path { regex: "/a.*" }`)},
			policy.Request{Path: "/abc/d"},
			"0/1",
		},
		{
			"a regular expression matches by its first choice", policy.HTTP1,
			[]string{rules(`path { regex: "/a|/ab" }`)},
			policy.Request{Path: "/ab"},
			"",
		},
		{
			"no path is a prefix of one slash", policy.HTTP1,
			[]string{rules(``, `path { prefix: "/" }`)},
			policy.Request{Path: "/a"},
			"0/0",
		},
		{
			"a rule without matches has the same", policy.HTTP1,
			[]string{"rules { }" + rules(`path { prefix: "/" }`)},
			policy.Request{Path: "/a"},
			"0/0",
		},
		{"a prefix of nothing but slashes", policy.HTTP1, []string{rules(`path { prefix: "//" }`, ``)}, policy.Request{}, "0/1"},

		// What is compared of matches of equal paths.
		{
			"headers", policy.HTTP1,
			[]string{rules(`method { registered: GET }`, `query_params { name: "q" exact: "1" }`, `headers { name: "x-a" exact: "b" }`)},
			policy.Request{Path: "/?q=1", Header: http.Header{"X-A": {"z", "b"}}},
			"0/2",
		},
		{
			"then query parameters", policy.HTTP1,
			[]string{rules(`method { registered: GET }`, `query_params { name: "q" exact: "a b" }`)},
			policy.Request{Path: "/?x&q=a+%62"},
			"0/1",
		},
		{
			"then the method", policy.HTTP1,
			[]string{rules(``, `method { registered: POST }`)},
			policy.Request{Method: http.MethodPost},
			"0/1",
		},
		{"then the order", policy.HTTP1, []string{everything, everything}, policy.Request{}, "0/0"},
		{
			"the path counts before headers", policy.HTTP1,
			[]string{rules(`headers { name: "X-A" regex: "." }`, `path { prefix: "/a" }`)},
			policy.Request{Path: "/a", Header: http.Header{"X-A": {"b"}}},
			"0/1",
		},
		{
			"a regular expression of a header", policy.HTTP1,
			[]string{rules(`headers { name: "X-A" regex: "." }`)},
			policy.Request{Header: http.Header{"X-A": {"bb", "\xff"}}},
			"",
		},
		{
			"a regular expression of a parameter", policy.HTTP1,
			[]string{rules(`query_params { name: "q" regex: "1+" }`)},
			policy.Request{Path: "/?q=%zz&q=11"},
			"0/0",
		},
		{
			"a parameter without a value", policy.HTTP1,
			[]string{rules(`query_params { name: "q" exact: "" }`)},
			policy.Request{Path: "/?q"},
			"0/0",
		},
		{"another method", policy.HTTP1, []string{rules(`method { unregistered: "PURGE" }`)}, policy.Request{}, ""},
		{
			"the best match of a rule counts", policy.HTTP1,
			[]string{rules(`path { prefix: "/a" }`) + `rules { matches {} matches { path { prefix: "/a/b" } } }`},
			policy.Request{Path: "/a/b"},
			"0/1",
		},
		{"no rules", policy.HTTP1, []string{"", everything}, policy.Request{}, "1/0"},

		// gRPC.
		{
			"a service is better than a method", policy.GRPC,
			[]string{rules(`rpc { method: "longer" }`, `rpc { service: "s" }`, `rpc {}`)},
			policy.Request{Method: http.MethodPost, Path: "/s/longer"},
			"0/1",
		},
		{
			"both are best", policy.GRPC,
			[]string{rules(`rpc { service: "s" }`, `rpc { service: "s" method: "m" }`)},
			policy.Request{Method: http.MethodPost, Path: "/s/m"},
			"0/1",
		},
		{
			"then headers", policy.GRPC,
			[]string{rules(`rpc {}`, `rpc {} headers { name: "a" exact: "b" }`)},
			policy.Request{Method: http.MethodPost, Path: "/s/m", Header: http.Header{"A": {"b"}}},
			"0/1",
		},
		{"another service", policy.GRPC, []string{rules(`rpc { service: "s" }`)}, policy.Request{Method: "POST", Path: "/t/m"}, ""},
		{"a GET is no gRPC", policy.GRPC, []string{rules(`rpc {}`)}, policy.Request{Path: "/s/m"}, ""},
		{"no matches", policy.GRPC, []string{"rules { }"}, policy.Request{Path: "/s"}, "0/0"},

		// TLS, and what is no HTTP.
		{
			"a server name", policy.TLS,
			[]string{"rules { }", `snis { suffix { reverse_labels: "b" } } rules { }`, `snis { exact: "a.b" } rules { }`},
			policy.Request{Protocol: policy.TLS, SNI: "A.b"},
			"2/0",
		},
		{
			"a server name in upper case matches none", policy.TLS,
			[]string{`snis { exact: "A" } rules { }`},
			policy.Request{Protocol: policy.TLS, SNI: "A"},
			"",
		},
		{"no TLS", policy.TLS, []string{"rules { }"}, policy.Request{Protocol: policy.Opaque}, ""},
		{"no HTTP", policy.HTTP2, []string{everything}, policy.Request{Protocol: policy.TLS}, ""},
		{"anything", policy.Opaque, []string{"rules { }"}, policy.Request{Protocol: policy.HTTP2}, "0/0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := found(clientOf(t, test.protocol, test.routes...), test.request); got != test.want {
				t.Errorf("%+v gets %q, want %q", test.request, got, test.want)
			}
		})
	}
}

// What a proxy detects decides which routes count.
func TestDetect(t *testing.T) {
	t.Parallel()
	text := metadata + "protocol { detect { timeout { seconds: 10 } "
	for _, protocol := range []policy.Protocol{policy.HTTP1, policy.HTTP2, policy.Opaque} {
		rule := "rules { " + first + " matches {} }"
		if protocol == policy.Opaque {
			rule = "rules { " + first + " }"
		}
		text += fmt.Sprintf("%s { routes { metadata { default: %q } %s } }", protocol, protocol, rule)
	}
	client, err := policy.DecodeOutbound(outboundOf(t, text+"} }", "", ""))
	if err != nil {
		t.Fatal(err)
	}

	for sent, want := range map[policy.Protocol]policy.Protocol{
		"": policy.HTTP1, policy.HTTP1: policy.HTTP1, policy.HTTP2: policy.HTTP2, policy.GRPC: policy.HTTP2,
		policy.TLS: policy.Opaque, policy.Opaque: policy.Opaque,
	} {
		route, _ := client.Route(policy.Request{Protocol: sent})
		if route == nil || route.Metadata.Name != string(want) {
			t.Errorf("%q gets the route %v, want %s", sent, route, want)
		}
	}
}

// What becomes of the requests of a rule.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	const web = "balancer web.shop.svc.cluster.local:80"
	for _, test := range []struct {
		name, text, old, new string
		want                 []string
	}{
		{"a redirect", httpPolicy, "", "", []string{"1 redirect 302"}},
		{
			"a share of failures", httpPolicy, redirect,
			"filters { failure_injector { status: 500 ratio { denominator: 1 } } }",
			[]string{"3 fail 503: sorry", "3 " + web, "1 forward 10.0.0.1:80"},
		},
		{"a failure", grpcPolicy, "", "", []string{"1 fail 13: sorry"}},
		{"first available", tlsPolicy, "", "", []string{"1 " + web}},
		{"forbidden", tcpPolicy, "", "", []string{"1 close: forbidden"}},
		{
			"invalid", tlsPolicy, "backends { backend", `backends { filters { invalid { message: "why" } } backend`,
			[]string{"1 close: why"},
		},
		{"no dispatcher", tlsPolicy, balancer, "", []string{"1 fail: no dispatcher"}},
		{"empty", tlsPolicy, first, "backends { empty {} }", []string{"1 fail: no backend"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			client, err := policy.DecodeOutbound(outboundOf(t, test.text, test.old, test.new))
			if err != nil {
				t.Fatal(err)
			}
			routes := client.Routes(policy.Request{Protocol: client.Protocol})
			var got []string
			for _, outcome := range routes[0].Rules[0].Outcomes() {
				got = append(got, outcome.String())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

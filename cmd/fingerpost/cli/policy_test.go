package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
)

// The verdict on a client comes first, and then what is refused, what is wrong, and what has no effect.
func TestExplainPolicy(t *testing.T) {
	addr := cmdtest.DebugServer(t, map[string]any{"/explain/policy": debug.PolicyPage{
		Workload: "Pod shop/p", Port: 80, Policy: "Server shop/v", Protocol: "HTTP/1",
		Client: "ServiceAccount shop/api", Verdict: debug.SomeAllowed,
		Decisions: []debug.PolicyDecision{
			{Route: "HTTPRoute shop/open", Allowed: true, By: "AuthorizationPolicy shop/all", FromOnly: "10.0.0.0/8"},
			{Why: []string{"AuthorizationPolicy shop/x: it lets in a; add b"}},
		},
		Authorizations: []debug.PolicyGrant{{By: "AuthorizationPolicy shop/x", Clients: "a"}},
		Explained: debug.Explained{
			Notes: []string{"one"},
			Objects: []debug.ExplainedObject{
				{Object: "Server shop/v", Counts: true, Why: "it selects the port"},
				{Object: "Server shop/w", Why: "Server shop/v is older"},
			},
			Findings: []debug.FoundObject{{Object: "HTTPRoute shop/z", Unreadable: true, Lines: []string{"no rules"}}},
		},
	}})
	out, err := fingerpost(t, "explain", "policy", "shop/p:80", "--from", "api.shop", "--debug-addr", addr)
	want := `allowed in part: ServiceAccount shop/api
Pod shop/p, port 80: Server shop/v, protocol HTTP/1

   OF                   WHY
×  connections          AuthorizationPolicy shop/x: it lets in a; add b
√  HTTPRoute shop/open  AuthorizationPolicy shop/all, from 10.0.0.0/8 only

AT    BY                          LETS IN
port  AuthorizationPolicy shop/x  a
note: one

WRONG             WHAT
HTTPRoute shop/z  nothing of it counts: no rules

HAS NO EFFECT  WHY
Server shop/w  Server shop/v is older

COUNTS         WHY
Server shop/v  it selects the port
`
	if diff := cmp.Diff(want, out); diff != "" || ExitCode(err) != ExitNo {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}

	for _, args := range [][]string{
		{"shop/p"},
		{"shop/p:x"},
		{"shop/p:0"},
		{"shop//p:80"},
		{"/p:80"},
		{":80"},
		{"shop/p:80", "--from", "a.b", "--no-tls"},
		{},
	} {
		_, err := fingerpost(t, append([]string{"explain", "policy", "--debug-addr", addr}, args...)...)
		if ExitCode(err) != ExitUsage {
			t.Errorf("%q: %v", args, err)
		}
	}
	refuses := cmdtest.DebugServer(t, map[string]any{"/explain/policy": errors.New("no client: x")})
	if _, err := fingerpost(t, "explain", "policy", "shop/p:80", "--debug-addr", refuses); ExitCode(err) != ExitUsage {
		t.Errorf("a page that is refused: %v", err)
	}
}

// Workloads are named as people do it, and asked for as proxies do.
func TestParsePolicyPort(t *testing.T) {
	for text, want := range map[string]string{
		"shop/p:80":           "shop:p 80",
		"pod/shop/p:80":       "shop:p 80",
		"p:80":                "default:p 80",
		"external/shop/vm:22": `{"external_workload":"vm","ns":"shop"} 22`,
	} {
		workload, port, err := (&policyCommand{}).parsePort(text)
		if got := workload + " " + port; got != want || err != nil {
			t.Errorf("%s is %s, %v; want %s", text, got, err, want)
		}
	}
}

// Each line is a rule and one of its backends; the first line has how much fails.
func TestExplainRoute(t *testing.T) {
	addr := cmdtest.DebugServer(t, map[string]any{"/explain/route": debug.RoutePage{
		Target: "web.shop.svc.cluster.local:80", Client: "till", Of: "Service shop/web", Protocol: "detected",
		Failing: 2,
		Routes: []debug.RoutedRoute{
			{Route: "HTTPRoute shop/r", Hosts: []string{"a"}, Rules: []debug.RoutedRule{
				{
					Number: 2, Matches: []string{"GET /*"}, Settings: []string{"request timeout 1s"},
					Backends: []debug.RoutedBackend{
						{To: "Service shop/api:80", Percent: "90%"},
						{To: "Service shop/gone:80", Percent: "10%", Fails: "not found"},
					},
				},
				{Number: 3, Fails: "URLRewrite is not supported"},
			}},
			{Route: "default opaq", Opaque: true, Rules: []debug.RoutedRule{{
				Backends: []debug.RoutedBackend{{To: "Service shop/web:80", Percent: "100%"}},
			}}},
		},
	}})
	const web = "web.shop.svc.cluster.local:80"
	out, err := fingerpost(t, "explain", "route", web, "--from", "till", "--debug-addr", addr)
	want := `2 parts of what follows fail (×)
web.shop.svc.cluster.local:80 for clients in till: Service shop/web, protocol detected

   ROUTE                    RULE  MATCHES  PART  TO
√  HTTPRoute shop/r for a   2     GET /*   90%   Service shop/api:80, request timeout 1s
×  HTTPRoute shop/r for a   2     GET /*   10%   Service shop/gone:80 fails: not found
×  HTTPRoute shop/r for a   3     all      100%  fails: URLRewrite is not supported
√  default opaq (not HTTP)  -     all      100%  Service shop/web:80
`
	if diff := cmp.Diff(want, out); diff != "" || ExitCode(err) != ExitNo {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}

	out, err = fingerpost(t, "explain", "route", "10.0.0.1:80", "-o", "json", "--debug-addr", addr)
	if ExitCode(err) != ExitNo || !strings.Contains(out, `"failing": 2`) {
		t.Errorf("%v\n%s", err, out)
	}
}

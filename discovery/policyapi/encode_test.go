package policyapi_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	inbound "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
	"github.com/fingerpost/fingerpost/federation/rules"
)

var (
	web      = rules.Reference{Kind: rules.KindService, Namespace: "shop", Name: "web"}
	api      = rules.Reference{Kind: rules.KindService, Namespace: "shop", Name: "api"}
	out      = rules.Reference{Kind: rules.KindEgressNetwork, Namespace: "shop", Name: "out"}
	original = netip.MustParseAddrPort("1.1.1.1:443")
)

func options() *rules.Options {
	return &rules.Options{
		ClusterDomain: "cluster.local", ProbeNetworks: rules.Everywhere, ClusterNetworks: rules.Everywhere[:1],
		Identity:        rules.IdentityDomain{ControlPlane: "linkerd", Domain: "cluster.local"},
		GRPCAppProtocol: true, DefaultPolicy: rules.AllUnauthenticated,
	}
}

// wantsText compares a message with what it should be, in the text form of protobuf.
func wantsText(t *testing.T, id string, got, want proto.Message, text string) {
	t.Helper()
	if err := prototext.Unmarshal([]byte(text), want); err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	if !proto.Equal(got, want) {
		t.Errorf("%s: the message is\n%s\nand not\n%s", id, prototext.Format(got), prototext.Format(want))
	}
}

const (
	queue   = `queue {capacity: 100 failfast_timeout {seconds: 3}}`
	ewma    = `peak_ewma {default_rtt {nanos: 30000000} decay {seconds: 10}}`
	ownMeta = `metadata {resource {group: "core" kind: "Service" name: "web" namespace: "shop" port: 8080}}`
	own     = `backend {` + ownMeta + queue + ` balancer {` + ewma +
		` discovery {dst {path: "web.shop.svc.cluster.local:8080"}}}}`
	webHTTP = `routes {metadata {default: "http"} rules {matches {path {prefix: "/"}} timeouts {} ` +
		`backends {first_available {backends {` + own + `}}}}}`
	forward = `queue {capacity: 100 failfast_timeout {seconds: 3}} ` +
		`forward {addr {ip {ipv4: 16843009} port: 443} weight: 1}`
)

// Messages to clients, written from the cases.
func TestOutboundMessages(t *testing.T) {
	target := &rules.Target{
		Reference: web, Exists: true, Ports: []rules.ServicePort{{NamedPort: rules.NamedPort{Number: 8080}}},
	}
	detected := options().Outbound(target, rules.OutboundQuery{Port: 8080, ByAddress: true})
	wantsText(t, "PO01", policyapi.EncodeOutbound(detected, original), new(outbound.OutboundPolicy),
		ownMeta+` protocol {detect {timeout {seconds: 10} http1 {`+webHTTP+`} http2 {`+webHTTP+
			`} opaque {routes {metadata {default: "opaq"} rules {backends {first_available {backends {`+own+`}}}}}}}}`)

	undefined := options().Outbound(target, rules.OutboundQuery{Port: 7777, ByAddress: true})
	wantsText(t, "PO05", policyapi.EncodeOutbound(undefined, original), new(outbound.OutboundPolicy), `
		metadata {resource {group: "core" kind: "Service" name: "web" namespace: "shop" port: 7777}}
		protocol {opaque {routes {metadata {default: "undefined-port"}
			rules {backends {empty {}} filters {forbidden {}}}}}}`)

	const outMeta = `metadata {resource {
		group: "policy.linkerd.io" kind: "EgressNetwork" name: "out" namespace: "shop" port: 443}}`
	const denied = `routes {metadata {default: "http-egress-deny"} rules {matches {path {prefix: "/"}} timeouts {}
		filters {failure_injector {status: 403 message: "traffic not allowed"}}
		backends {first_available {backends {backend {` + outMeta + forward + `}}}}}}`
	egress := &rules.Target{Reference: out, Deny: true}
	deny := options().Outbound(egress, rules.OutboundQuery{Port: 443, ByAddress: true})
	wantsText(t, "PO41", policyapi.EncodeOutbound(deny, original), new(outbound.OutboundPolicy),
		outMeta+` protocol {detect {timeout {seconds: 10} http1 {`+denied+`} http2 {`+denied+`}
			opaque {routes {metadata {default: "tcp-egress-deny"} rules {filters {forbidden {}}
				backends {first_available {backends {backend {`+outMeta+forward+`}}}}}}}}}`)

	const fallbackMeta = `metadata {default: "egress-fallback"}`
	const fallback = `backends {first_available {backends {backend {` + fallbackMeta + forward + `}}}}`
	const http = `routes {` + fallbackMeta + ` rules {matches {} timeouts {} ` + fallback + `}}`
	wantsText(t, "7.4", policyapi.EncodeOutbound(rules.Fallback(), original), new(outbound.OutboundPolicy),
		fallbackMeta+` protocol {detect {timeout {seconds: 10} http1 {`+http+`} http2 {`+http+`}
			opaque {routes {`+fallbackMeta+` rules {`+fallback+`}}}}}`)
}

// A route of gRPC with a backend that there is not, retries and accrual.
func TestGRPCMessage(t *testing.T) {
	route := &rules.Route{
		Meta:    rules.Meta{Reference: rules.Reference{Kind: rules.KindGRPCRoute, Namespace: "shop", Name: "a"}},
		Parents: []rules.Parent{{Reference: web, Port: 8080}},
		Rules: []rules.Rule{{
			Matches:  []rules.Match{{RPCService: "s", RPCMethod: "m"}},
			Backends: []rules.Backend{{Reference: api, Port: 80, Weight: 70}, {Reference: web, Port: 80, Weight: 30}},
		}},
		Retry: &rules.Retries{Limit: 2, Codes: rules.GRPCCancelled | rules.GRPCUnavailable},
	}
	target := &rules.Target{
		Reference: web, Exists: true, Found: map[rules.Reference]bool{web: true},
		Settings: rules.Settings{Accrual: &rules.Accrual{
			MaxFailures: 7, Unified: true, Threshold: 0.8, Window: 10 * time.Second, MinRequests: 5,
			Backoff: rules.Backoff{Min: time.Second, Max: time.Minute, Jitter: 0.5},
		}},
		Attached: rules.Attach(rules.ParentObject{Reference: web, Exists: true, HasIP: true}, []*rules.Route{route}),
	}
	answer := options().Outbound(target, rules.OutboundQuery{Port: 8080})
	wantsText(t, "PR51, PR52, PR82, PR89", policyapi.EncodeOutbound(answer, netip.AddrPort{}),
		new(outbound.OutboundPolicy), ownMeta+` protocol {grpc {
		failure_accrual {unified {success_rate_threshold: 0.8 decay {seconds: 10} min_requests: 5
			max_consecutive_failures: 7 backoff {min_backoff {seconds: 1} max_backoff {seconds: 60} jitter_ratio: 0.5}}}
		routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "GRPCRoute" name: "a" namespace: "shop"}}
		rules {matches {rpc {service: "s" method: "m"}} timeouts {}
			retry {max_retries: 2 max_request_bytes: 65536 conditions {cancelled: true unavailable: true}
				backoff {min_backoff {nanos: 25000000} max_backoff {nanos: 250000000} jitter_ratio: 1}}
			backends {random_available {
				backends {weight: 70 backend {
					backend {metadata {resource {
						group: "core" kind: "Service" name: "api" namespace: "shop" port: 80}}`+queue+`}
					filters {failure_injector {code: 13 message: "Service not found api"}}}}
				backends {weight: 30 backend {backend {metadata {resource {
					group: "core" kind: "Service" name: "web" namespace: "shop" port: 80}}`+queue+` balancer {`+ewma+`
						discovery {dst {path: "web.shop.svc.cluster.local:80"}}}}}}}}}}}}`)
}

// Messages to the proxies of servers, written from the cases.
func TestInboundMessages(t *testing.T) {
	const all = `networks {net {ip {ipv4: 0}}} networks {net {ip {ipv6 {}}}}`
	const unauthenticated = `authentication {unauthenticated {}}`
	pod := &rules.Workload{Namespace: "shop", Probes: []rules.Probe{{Port: 4191, Path: "/live"}}}
	wantsText(t, "PN02", policyapi.EncodeInbound(options().Inbound(pod, nil, 4191)), new(inbound.Server), `
		labels {key: "group" value: ""} labels {key: "kind" value: "default"}
		labels {key: "name" value: "all-unauthenticated"}
		authorizations {`+all+unauthenticated+` metadata {default: "all-unauthenticated"}
			labels {key: "group" value: ""} labels {key: "kind" value: "default"}
			labels {key: "name" value: "all-unauthenticated"}}
		protocol {detect {timeout {seconds: 10}
			http_routes {metadata {default: "default"} rules {matches {path {prefix: "/"}}}}
			http_routes {metadata {default: "probe"}
				rules {matches {path {exact: "/live"} method {registered: GET}}}
				authorizations {`+all+unauthenticated+` metadata {default: "probe"}
					labels {key: "group" value: ""} labels {key: "kind" value: "default"}
					labels {key: "name" value: "probe"}}}}}`)

	server := &rules.Server{
		Meta: rules.Meta{Reference: rules.Reference{Kind: rules.KindServer, Namespace: "shop", Name: "v"}},
		Pods: &rules.LabelSelector{}, Port: rules.PortRef{Number: 8080}, Protocol: rules.ProtocolHTTP2,
	}
	account := rules.Reference{Kind: rules.KindServiceAccount, Namespace: "shop", Name: "sa"}
	objects := &rules.NamespaceObjects{
		Servers: []*rules.Server{server},
		ServerAuthorizations: []*rules.ServerAuthorization{{
			Meta: rules.Meta{Reference: rules.Reference{
				Kind: rules.KindServerAuthorization, Namespace: "shop", Name: "a",
			}},
			Server: "v", Clients: rules.ClientsIdentified, Identities: rules.Identities{
				Patterns: []rules.Pattern{rules.ParseIdentity("*.x.y")}, Accounts: []rules.Reference{account},
			},
		}},
		RateLimits: []*rules.RateLimit{{
			Meta:   rules.Meta{Reference: rules.Reference{Kind: rules.KindRateLimit, Namespace: "shop", Name: "l"}},
			Server: "v", Total: 10, Overrides: []rules.RateOverride{{Limit: 5, Accounts: []rules.Reference{account}}},
		}},
	}
	answer := options().Inbound(&rules.Workload{Namespace: "shop"}, options().Of(objects).All, 8080)
	wantsText(t, "PN30, PN50, PN54, PN55, PN107", policyapi.EncodeInbound(answer), new(inbound.Server), `
		labels {key: "group" value: "policy.linkerd.io"} labels {key: "kind" value: "server"}
		labels {key: "name" value: "v"}
		authorizations {networks {net {ip {ipv4: 0}}}
			authentication {meshTLS {identities {
				identities {name: "sa.shop.serviceaccount.identity.linkerd.cluster.local"}
				suffixes {parts: "x" parts: "y"}}}}
			metadata {resource {group: "policy.linkerd.io" kind: "serverauthorization" name: "a"}}
			labels {key: "group" value: "policy.linkerd.io"} labels {key: "kind" value: "serverauthorization"}
			labels {key: "name" value: "a"}}
		protocol {http2 {
			routes {metadata {default: "default"} rules {matches {path {prefix: "/"}}}}
			local_rate_limit {
				metadata {resource {group: "policy.linkerd.io" kind: "HTTPLocalRateLimitPolicy" name: "l"}}
				total {requestsPerSecond: 10}
				overrides {limit {requestsPerSecond: 5}
					clients {identities {name: "sa.shop.serviceaccount.identity.linkerd.cluster.local"}}}}}}`)
}

// Whatever routes there are, proxies take the message, and do not die of it (PZ01).
func TestProxiesTakeOutbound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		target := drawTarget(t)
		query := rules.OutboundQuery{
			Port: rapid.SampledFrom([]uint16{80, 443, 8080}).Draw(t, "port"), Client: "shop",
			ByAddress: target.Kind == rules.KindEgressNetwork || rapid.Bool().Draw(t, "by address"),
		}
		message := policyapi.EncodeOutbound(options().Outbound(target, query), original)
		if _, err := policy.DecodeOutbound(message); err != nil {
			t.Fatalf("%v\n%s", err, prototext.Format(message))
		}
	})
}

func drawTarget(t *rapid.T) *rules.Target {
	target := &rules.Target{
		Reference: rapid.SampledFrom([]rules.Reference{web, out}).Draw(t, "target"), Exists: true,
		Deny: rapid.Bool().Draw(t, "deny"), Found: map[rules.Reference]bool{api: rapid.Bool().Draw(t, "api exists")},
	}
	if target.Kind == rules.KindService {
		protocols := []string{"", "http", "kubernetes.io/h2c", "grpc", "linkerd.io/tcp"}
		target.Ports = []rules.ServicePort{{
			NamedPort:   rules.NamedPort{Name: "http", Number: 8080},
			AppProtocol: rapid.SampledFrom(protocols).Draw(t, "appProtocol"),
		}}
	}

	var routes []*rules.Route
	for i := range rapid.IntRange(0, 4).Draw(t, "routes") {
		routes = append(routes, drawRoute(t, target.Reference, i))
	}
	target.Attached = rules.Attach(
		rules.ParentObject{Reference: target.Reference, Exists: true, HasIP: true, IsAccepted: true}, routes)
	target.Settings = drawSettings(t)
	return target
}

func drawSettings(t *rapid.T) (s rules.Settings) {
	s.Timeouts = drawTimeouts(t)
	if rapid.Bool().Draw(t, "retries") {
		s.HTTPRetry = &rules.Retries{
			Limit:    rapid.Uint16().Draw(t, "limit"),
			Statuses: []rules.StatusRange{{First: 500, Last: 599}},
		}
		s.GRPCRetry = &rules.Retries{Limit: 1, Timeout: time.Second}
	}
	if rapid.Bool().Draw(t, "accrual") {
		s.Accrual = &rules.Accrual{
			MaxFailures: 7, Backoff: rules.Backoff{Min: time.Second, Max: time.Minute, Jitter: 0.5},
			Unified: rapid.Bool().Draw(t, "unified"), Threshold: 0.8, Window: 10 * time.Second,
		}
	}
	if rapid.Bool().Draw(t, "load") {
		s.Load = &rules.Load{Penalty: 5 * time.Second, MaxRetryAfter: time.Minute}
	}
	return s
}

func drawTimeouts(t *rapid.T) (timeouts rules.Timeouts) {
	draw := func(name string) rules.Timeout {
		return rules.Timeout{
			After: rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, name),
			Given: rapid.Bool().Draw(t, name+" is given"),
		}
	}
	return rules.Timeouts{Request: draw("request"), Response: draw("response"), Idle: draw("idle")}
}

func drawRoute(t *rapid.T, parent rules.Reference, number int) *rules.Route {
	kinds := []rules.Kind{
		rules.KindHTTPRoute, rules.KindPolicyHTTPRoute, rules.KindGRPCRoute, rules.KindTLSRoute, rules.KindTCPRoute,
	}
	kind := rapid.SampledFrom(kinds).Draw(t, "kind")
	route := &rules.Route{
		Meta: rules.Meta{Reference: rules.Reference{
			Kind: kind, Namespace: rapid.SampledFrom([]string{"shop", "other"}).Draw(t, "namespace"),
			Name: fmt.Sprint("route-", number),
		}},
		Parents: []rules.Parent{{
			Reference: parent, Port: rapid.SampledFrom([]uint16{0, 443, 8080}).Draw(t, "port of the parent"),
		}},
		Hostnames: []rules.Pattern{rules.ParseHostname("*.example.com"), rules.ParseHostname("example.com")},
		Silent:    rapid.Bool().Draw(t, "silent"), Timeouts: drawTimeouts(t),
	}

	most := 3
	if !kind.IsHTTP() && kind != rules.KindGRPCRoute {
		most = 1 // others are silent
		if route.Silent {
			most = 3
		}
	}
	for range rapid.IntRange(min(1, most), most).Draw(t, "rules") {
		route.Rules = append(route.Rules, drawRule(t, kind, parent))
	}
	return route
}

func drawRule(t *rapid.T, kind rules.Kind, parent rules.Reference) (rule rules.Rule) {
	match := rules.Match{Path: rules.PathMatch{Type: rules.PathRegex, Text: "/a+"}, Method: "PURGE"}
	if kind == rules.KindGRPCRoute {
		match = rules.Match{RPCService: "s"}
	}
	if kind.IsHTTP() || kind == rules.KindGRPCRoute {
		match.Headers = []rules.ValueMatch{{Name: "x", Value: "y"}, {Name: "z", Value: "[0-9]", Regex: true}}
		rule.Matches = []rules.Match{match}
		rule.Filters = drawFilters(t, kind)
		rule.Timeouts = drawTimeouts(t)
		rule.Unmatched = rapid.Bool().Draw(t, "unmatched")
	}

	references := []rules.Reference{api, web, out, parent, {}}
	for range rapid.IntRange(0, 3).Draw(t, "backends") {
		to := rules.Backend{
			Reference: rapid.SampledFrom(references).Draw(t, "backend"),
			Weight:    rapid.Uint32Range(0, 2).Draw(t, "weight"),
			Port:      rapid.SampledFrom([]uint16{0, 80}).Draw(t, "port of the backend"),
		}
		if to.Kind == rules.KindOther {
			to.Invalid = "unsupported backend type"
		}
		if kind.IsHTTP() || kind == rules.KindGRPCRoute {
			to.Filters = drawFilters(t, kind)
		}
		rule.Backends = append(rule.Backends, to)
	}
	return rule
}

func drawFilters(t *rapid.T, kind rules.Kind) (all []rules.Filter) {
	changes := &rules.HeaderChanges{Set: []rules.Header{{Name: "a", Value: "b"}}, Remove: []string{"c"}}
	possible := []rules.Filter{{RequestHeaders: changes}, {ResponseHeaders: changes}, {Unsupported: "it is not"}}
	if kind.IsHTTP() {
		path := &rules.PathChange{Prefix: true, Text: "/x"}
		possible = append(possible, rules.Filter{Redirect: &rules.Redirect{Scheme: "https", Path: path, Status: 302}})
	}
	for range rapid.IntRange(0, 2).Draw(t, "filters") {
		all = append(all, rapid.SampledFrom(possible).Draw(t, "filter"))
	}
	return all
}

// A request meets the route, the rule and the backend that its author means, as a proxy looks for them.
func TestRequestsMeetRoutes(t *testing.T) {
	canary := &rules.Route{
		Meta:    rules.Meta{Reference: rules.Reference{Kind: rules.KindHTTPRoute, Namespace: "shop", Name: "canary"}},
		Parents: []rules.Parent{{Reference: web}},
		Rules: []rules.Rule{
			{
				Matches: []rules.Match{{Path: rules.PathMatch{Type: rules.PathPrefix, Text: "/new"}}},
				Backends: []rules.Backend{
					{Reference: api, Port: 80, Weight: 10}, {Reference: web, Port: 80, Weight: 90},
				},
			},
			{Matches: []rules.Match{{Path: rules.PathMatch{Type: rules.PathPrefix, Text: "/"}}}},
		},
	}
	target := &rules.Target{
		Reference: web, Exists: true, Found: map[rules.Reference]bool{web: true, api: true},
		Attached: rules.Attach(rules.ParentObject{Reference: web, Exists: true, HasIP: true}, []*rules.Route{canary}),
	}
	client, err := policy.DecodeOutbound(policyapi.EncodeOutbound(
		options().Outbound(target, rules.OutboundQuery{Port: 80}), netip.AddrPort{}))
	if err != nil {
		t.Fatal(err)
	}

	for path, want := range map[string]string{
		"/new/x": "10 balancer api.shop.svc.cluster.local:80, 90 balancer web.shop.svc.cluster.local:80",
		"/old":   "1 balancer web.shop.svc.cluster.local:80",
	} {
		_, rule := client.Route(policy.Request{Method: "GET", Authority: "web", Path: path})
		if rule == nil {
			t.Errorf("%s meets no rule", path)
			continue
		}
		var got []string
		for _, outcome := range rule.Outcomes() {
			got = append(got, outcome.String())
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s leads to %s, want %s", path, text, want)
		}
	}
}

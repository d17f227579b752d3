package policy_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
)

// A mutation is one change of a valid message, and what a proxy makes of the result.
type mutation struct {
	text, old, new string
	class          error  // nil if there is nothing to find
	field          string // the end of the path that is found
}

// check compares what is found with what a mutation must lead to.
func (m mutation) check(t *testing.T, err error, odd []policy.Finding, decoded bool) {
	t.Helper()
	lines := strings.Split(fmt.Sprint(err), "\n")
	for _, finding := range odd {
		lines = append(lines, finding.Error())
	}
	found := m.class != nil && slices.ContainsFunc(lines, func(line string) bool {
		field, reason, _ := strings.Cut(line, ": ")
		return strings.HasSuffix(field, m.field) && strings.HasSuffix(reason, m.class.Error())
	})

	nothing := err == nil && len(odd) == 0
	if found == nothing || nothing != (m.class == nil) {
		t.Errorf("found %s\nwant %s: %v", strings.Join(lines, "\n"), m.field, m.class)
	}
	if err != nil && !errors.Is(err, m.class) {
		t.Errorf("%v does not wrap %v", err, m.class)
	}
	if refused := errors.Is(err, policy.ErrInvalid) || errors.Is(err, policy.ErrPanic); refused == decoded {
		t.Errorf("decoded: %t, with the error %v", decoded, err)
	}
}

const backendPath = "backends.random_available.backends[1].backend.backend"

// Each rule of what an outbound proxy refuses, dies of, or takes otherwise.
func TestDecodeOutbound(t *testing.T) {
	t.Parallel()
	invalid, panics, fails, odd := policy.ErrInvalid, policy.ErrPanic, policy.ErrFailsAtOnce, policy.ErrOdd
	const limits = "min_backoff { seconds: 1 } max_backoff { seconds: 60 }"
	withoutWeight := strings.Replace(httpPolicy, "weight: 3", "", 1)
	for _, test := range []mutation{
		{httpPolicy, "", "", nil, ""},
		{grpcPolicy, "", "", nil, ""},
		{tlsPolicy, "", "", nil, ""},
		{tcpPolicy, "", "", nil, ""},
		{detect, "", "", nil, ""},

		// The frame.
		{tcpPolicy, metadata, "", invalid, "metadata"},
		{tcpPolicy, metadata, "metadata {}", invalid, "metadata"},
		{tcpPolicy, metadata, `metadata { default: "" }`, nil, ""},
		{tcpPolicy, `group: "core"`, "", invalid, "metadata.resource.group"},
		{tcpPolicy, `kind: "Service"`, "", invalid, "metadata.resource.kind"},
		{tcpPolicy, `name: "web"`, "", invalid, "metadata.resource.name"},
		{tcpPolicy, `namespace: "shop"`, "", invalid, "metadata.resource.namespace"},
		{tcpPolicy, "port: 80", "port: 65536", odd, "metadata.resource.port"},
		{metadata, "", "", invalid, "protocol"},
		{metadata + "protocol {}", "", "", invalid, "protocol.kind"},
		{detect, "timeout { seconds: 10 }", "", invalid, "detect.timeout"},
		{detect, "timeout { seconds: 10 }", "timeout { seconds: -1 }", invalid, "detect.timeout"},
		{detect, "timeout { seconds: 10 }", "timeout {}", odd, "detect.timeout"},
		{detect, "http1 { routes { " + httpRoute + " } }", "", invalid, "detect.http1"},
		{detect, "http1 { routes { " + httpRoute + " } }", "http1 {}", odd, "detect.http1.routes"},
		{detect, "http2 { routes { " + httpRoute + " } }", "", invalid, "detect.http2"},
		{detect, "opaque { " + opaque + " }", "", invalid, "detect.opaque"},

		// Routes and rules.
		{httpPolicy, "routes { " + metadata, "routes {", invalid, "http1.routes[0].metadata"},
		{httpPolicy, "routes { " + httpRoute + " }", "", odd, "http1.routes"},
		{httpPolicy, "routes { " + httpRoute + " }", "routes { " + metadata + " }", odd, "routes[0].rules"},
		{tcpPolicy, opaque, opaque + opaque, invalid, "opaque.routes"},
		{tcpPolicy, opaque, "", odd, "opaque.routes"},
		{tcpPolicy, opaque, "routes { " + metadata + " }", invalid, "opaque.routes[0].rules"},
		{tcpPolicy, "rules { ", "rules { " + first + " } rules { ", invalid, "opaque.routes[0].rules"},
		{tlsPolicy, "rules { " + first + " }", "", invalid, "tls.routes[0].rules"},
		{tlsPolicy, "rules { ", "rules { " + first + " } rules { ", invalid, "tls.routes[0].rules"},
		{grpcPolicy, `matches { rpc { service: "s" method: "m" } headers { name: "x-a" regex: "b+" } }`, "", odd, "rules[0].matches"},

		// Matches.
		{httpPolicy, `hosts { exact: "web" }`, "hosts {}", invalid, "hosts[0].match"},
		{tlsPolicy, `snis { exact: "web" }`, "snis {}", invalid, "snis[0].match"},
		{httpPolicy, `path { prefix: "/" }`, "path {}", invalid, "matches[0].path.kind"},
		{httpPolicy, `path { prefix: "/" }`, `path { regex: "(" }`, invalid, "matches[0].path.regex"},
		{httpPolicy, `path { prefix: "/" }`, `path { exact: "a" }`, odd, "matches[0].path.exact"},
		{httpPolicy, `path { prefix: "/" }`, `path { exact: "/a" }`, odd, "filters[1].redirect.path.prefix"},
		{httpPolicy, "method { registered: GET }", "method {}", invalid, "matches[0].method"},
		{httpPolicy, "registered: GET", "registered: 99", invalid, "matches[0].method"},
		{httpPolicy, "registered: GET", `unregistered: "a b"`, invalid, "matches[0].method"},
		{httpPolicy, "registered: GET", `unregistered: "PURGE"`, nil, ""},
		{httpPolicy, `name: "x-a"`, `name: "x a"`, invalid, "headers[0].name"},
		{httpPolicy, `exact: "b"`, "", invalid, "headers[0].value"},
		{httpPolicy, `exact: "b"`, `exact: "\n"`, invalid, "headers[0].exact"},
		{httpPolicy, `exact: "b"`, `regex: "["`, invalid, "headers[0].regex"},
		{httpPolicy, `name: "q"`, "", invalid, "query_params[0].name"},
		{httpPolicy, `exact: "v"`, "", invalid, "query_params[0].value"},
		{httpPolicy, `exact: "v"`, `regex: "["`, invalid, "query_params[0].regex"},
		{grpcPolicy, `rpc { service: "s" method: "m" }`, "", invalid, "matches[0].rpc"},

		// Filters.
		{httpPolicy, "filters { request", "filters {} filters { request", invalid, "rules[0].filters[0].kind"},
		{httpPolicy, `name: "x-set"`, `name: ""`, invalid, "set.headers[0].name"},
		{httpPolicy, `value: "y"`, `value: "\r"`, invalid, "set.headers[0].value"},
		{httpPolicy, `remove: "x-remove"`, `remove: ":"`, invalid, "request_header_modifier.remove"},
		{httpPolicy, `remove: "x-remove"`, "", nil, ""},
		{httpPolicy, "scheme { registered: HTTPS }", "scheme {}", invalid, "redirect.scheme"},
		{httpPolicy, "registered: HTTPS", "registered: 9", invalid, "redirect.scheme.registered"},
		{httpPolicy, "registered: HTTPS", `unregistered: ":"`, invalid, "redirect.scheme.unregistered"},
		{httpPolicy, "registered: HTTPS", `unregistered: "ftp"`, nil, ""},
		{httpPolicy, "port: 443", "port: 65536", invalid, "redirect.port"},
		{httpPolicy, `host: "other"`, `host: "a b"`, invalid, "redirect.host"},
		{httpPolicy, `host: "other"`, `host: "[::1]"`, nil, ""},
		{httpPolicy, `prefix: "/new"`, `prefix: "new"`, invalid, "redirect.path.prefix"},
		{httpPolicy, `prefix: "/new"`, `full: ""`, invalid, "redirect.path.full"},
		{httpPolicy, `path { prefix: "/new" }`, "path {}", nil, ""},
		{httpPolicy, "status: 302", "status: 1000", invalid, "redirect.status"},
		{httpPolicy, "status: 302", "", nil, ""},
		{httpPolicy, "status: 503", "", invalid, "failure_injector.status"},
		{httpPolicy, "denominator: 2", "", invalid, "failure_injector.ratio"},
		{httpPolicy, "numerator: 1", "numerator: 3", invalid, "failure_injector.ratio"},
		{grpcPolicy, "code: 13", "code: 65536", invalid, "failure_injector.code"},
		{grpcPolicy, "code: 13", "code: 500", odd, "failure_injector.code"},
		{tcpPolicy, "filters { forbidden {} }", "filters {}", invalid, "filters[0].kind"},
		{tlsPolicy, first, first + `filters { invalid { message: "why" } }`, nil, ""},

		// Distributions and backends.
		{httpPolicy, random, "", invalid, "rules[0].backends"},
		{httpPolicy, random, "backends {}", invalid, "rules[0].backends.kind"},
		{httpPolicy, random, "backends { empty {} }", odd, "rules[0].backends"},
		{httpPolicy, random, "backends { first_available {} }", invalid, "backends.first_available"},
		{httpPolicy, random, "backends { random_available {} }", invalid, "backends.random_available"},
		{tcpPolicy, first, "", invalid, "rules[0].backends"},
		{tlsPolicy, first, "", invalid, "rules[0].backends"},
		{grpcPolicy, first, "", invalid, "rules[0].backends"},
		{httpPolicy, "backend { " + backend, "backend { filters {} " + backend, invalid, "backend.filters[0].kind"},
		{httpPolicy, "backend { " + forward + " }", "", invalid, "backends[1].backend"},
		{httpPolicy, forward, "", invalid, backendPath},
		{httpPolicy, forward, "backend { " + queue + " }", invalid, backendPath + ".metadata"},
		{httpPolicy, forward, "backend { " + metadata + queue + " }", odd, backendPath + ".kind"},
		{httpPolicy, forward, "backend { " + metadata + " }", invalid, backendPath + ".queue"},
		{tcpPolicy, "failfast_timeout { seconds: 3 }", "", invalid, "backend.queue.failfast_timeout"},
		{tcpPolicy, "failfast_timeout { seconds: 3 }", "failfast_timeout { nanos: -1 }", invalid, ".failfast_timeout"},
		{tcpPolicy, "capacity: 100", "", panics, "backend.queue.capacity"},
		{tcpPolicy, `discovery { dst { path: "web.shop.svc.cluster.local:80" } }`, "", invalid, "balancer.discovery"},
		{tcpPolicy, `dst { path: "web.shop.svc.cluster.local:80" }`, "", invalid, "balancer.discovery.kind"},
		{tcpPolicy, "web.shop.svc.cluster.local:80", "web.shop.svc.cluster.local", panics, "discovery.dst.path"},
		{tcpPolicy, "web.shop.svc.cluster.local:80", "10.0.0.1:80", panics, "discovery.dst.path"},
		{tcpPolicy, "web.shop.svc.cluster.local:80", "-web.shop:80", panics, "discovery.dst.path"},
		{tcpPolicy, "web.shop.svc.cluster.local:80", strings.Repeat("a.", 127) + ":80", panics, "discovery.dst.path"},
		{tcpPolicy, "web.shop.svc.cluster.local:80", "web:65536", panics, "discovery.dst.path"},
		{tcpPolicy, "web.shop.svc.cluster.local:80", "WEB_1.shop.:0", nil, ""},
		{tcpPolicy, load, "", invalid, "balancer.load"},
		{tcpPolicy, "default_rtt { nanos: 30000000 }", "", invalid, "peak_ewma.default_rtt"},
		{tcpPolicy, "decay { seconds: 10 }", "", invalid, "peak_ewma.decay"},
		{httpPolicy, load, "penalty_peak_ewma {}", nil, ""},
		{httpPolicy, load, "penalty_peak_ewma { penalty { seconds: -1 } }", invalid, "penalty_peak_ewma.penalty"},
		{tcpPolicy, load, "penalty_peak_ewma {}", odd, "balancer.penalty_peak_ewma"},
		{httpPolicy, "addr { ip { ipv4: 167772161 } port: 80 }", "", invalid, "forward.addr"},
		{httpPolicy, "ip { ipv4: 167772161 }", "", invalid, "forward.addr.ip"},
		{httpPolicy, "ip { ipv4: 167772161 }", "ip {}", invalid, "forward.addr.ip"},
		{httpPolicy, "ip { ipv4: 167772161 }", "ip { ipv6 { last: 1 } }", nil, ""},
		{httpPolicy, "port: 80 } weight", "} weight", panics, "forward.addr.port"},
		{httpPolicy, "port: 80 } weight", "port: 65536 } weight", panics, "forward.addr.port"},
		{httpPolicy, "port: 80 } weight", "port: 65537 } weight", odd, "forward.addr.port"},
		{withoutWeight, "backends { weight: 1", "backends {", panics, "random_available.backends"},
		{httpPolicy, "backends { weight: 1", "backends { weight: 4294967295", panics, "random_available.backends"},
		{withoutWeight, "backends { weight: 1 backend { " + forward + " } }", "", odd, "random_available.backends"},

		// Timeouts, retries and breakers.
		{httpPolicy, "request { seconds: 3 }", "request {}", fails, "timeouts.request"},
		{httpPolicy, "response { seconds: 2 }", "response {}", fails, "timeouts.response"},
		{httpPolicy, "idle { seconds: 1 }", "idle {}", fails, "timeouts.idle"},
		{grpcPolicy, "idle { seconds: 1 }", "idle { seconds: -1 }", invalid, "timeouts.idle"},
		{httpPolicy, timeouts, "requestTimeout {}", fails, "requestTimeout"},
		{httpPolicy, "requestTimeout { seconds: 3 }", "requestTimeout {}", nil, ""},
		{httpPolicy, "requestTimeout { seconds: 3 }", "requestTimeout { seconds: -3 }", invalid, "requestTimeout"},
		{httpPolicy, "timeout { seconds: 1 }", "timeout {}", fails, "retry.timeout"},
		{httpPolicy, "conditions { status_ranges { start: 500 end: 599 } }", "", invalid, "retry.conditions"},
		{httpPolicy, "status_ranges { start: 500 end: 599 }", "", odd, "retry.conditions"},
		{grpcPolicy, "conditions { internal: true }", "", invalid, "retry.conditions"},
		{grpcPolicy, "conditions { internal: true }", "conditions {}", odd, "retry.conditions"},
		{httpPolicy, "start: 500", "start: 0", invalid, "conditions.status_ranges[0]"},
		{httpPolicy, "start: 500 end: 599", "start: 1 end: 1", nil, ""},
		{httpPolicy, "end: 599", "end: 600", invalid, "conditions.status_ranges[0]"},
		{httpPolicy, "end: 599", "end: 499", invalid, "conditions.status_ranges[0]"},
		{httpPolicy, "max_retries: 1", "max_retries: 65536", invalid, "retry.max_retries"},
		{grpcPolicy, unified, "", invalid, "failure_accrual.kind"},
		{httpPolicy, "max_failures: 7 " + backoff, "max_failures: 7", invalid, "consecutive_failures.backoff"},
		{grpcPolicy, "max_consecutive_failures: 7 " + backoff, "", invalid, "unified.backoff"},
		{grpcPolicy, "min_backoff { seconds: 1 }", "", invalid, "backoff.min_backoff"},
		{grpcPolicy, "max_backoff { seconds: 60 }", "", invalid, "backoff.max_backoff"},
		{grpcPolicy, "min_backoff { seconds: 1 }", "min_backoff { seconds: 61 }", invalid, "backoff.min_backoff"},
		{grpcPolicy, limits, "min_backoff {} max_backoff {}", invalid, "backoff.max_backoff"},
		{grpcPolicy, "min_backoff { seconds: 1 }", "min_backoff {}", nil, ""},
		{grpcPolicy, "jitter_ratio: 0.5", "jitter_ratio: 101", invalid, "backoff.jitter_ratio"},
		{grpcPolicy, "jitter_ratio: 0.5", "jitter_ratio: -0.1", invalid, "backoff.jitter_ratio"},
		{grpcPolicy, "jitter_ratio: 0.5", "jitter_ratio: nan", invalid, "backoff.jitter_ratio"},
		{httpPolicy, "jitter_ratio: 0.5 }", "jitter_ratio: 101 }", invalid, "retry.backoff.jitter_ratio"},
		{grpcPolicy, "threshold: 0.8", "threshold: 1.1", invalid, "unified.success_rate_threshold"},
		{grpcPolicy, "threshold: 0.8", "threshold: nan", invalid, "unified.success_rate_threshold"},
		{grpcPolicy, "decay { seconds: 10 } min", "decay { nanos: 9999999 } min", invalid, "unified.decay"},
		{grpcPolicy, "decay { seconds: 10 } min", "decay { nanos: 10000000 } min", nil, ""},
		{grpcPolicy, "decay { seconds: 10 } min", "min", nil, ""},
		{grpcPolicy, "threshold: 0.8 decay { seconds: 10 }", "threshold: 0.00004 decay {}", nil, ""},
		{grpcPolicy, "min_requests: 5", "min_requests: 1000001", invalid, "unified.min_requests"},
	} {
		t.Run(test.field+" "+test.new, func(t *testing.T) {
			t.Parallel()
			client, err := policy.DecodeOutbound(outboundOf(t, test.text, test.old, test.new))
			var found []policy.Finding
			if client != nil {
				found = client.Oddities
			}
			test.check(t, err, found, client != nil)
		})
	}
}

// Each rule of what an inbound proxy refuses, or takes otherwise.
func TestDecodeInbound(t *testing.T) {
	t.Parallel()
	invalid, odd := policy.ErrInvalid, policy.ErrOdd
	for _, test := range []mutation{
		{inboundWeb, "", "", nil, ""},
		{inboundHTTP2, "", "", nil, ""},
		{inboundGRPC, "", "", nil, ""},
		{inboundTLS, "", "", nil, ""},
		{inboundTCP, "", "", nil, ""},

		{labels, "", "", invalid, "protocol"},
		{labels + "protocol {}", "", "", invalid, "protocol.kind"},
		{inboundTLS, labels, "", invalid, "labels"},
		{inboundWeb, "timeout { seconds: 10 }", "", invalid, "detect.timeout"},
		{inboundWeb, "timeout { seconds: 10 }", "timeout { seconds: -1 }", invalid, "detect.timeout"},

		// Authorizations.
		{inboundTCP, networks, "", invalid, "authorizations[0].networks"},
		{inboundTCP, "net { ip { ipv4: 167772160 } prefix_len: 8 }", "", invalid, "networks[0].net"},
		{inboundTCP, "ip { ipv4: 167772160 }", "", invalid, "networks[0].net.ip"},
		{inboundTCP, "prefix_len: 8", "prefix_len: 33", invalid, "networks[0].net.prefix_len"},
		{inboundTCP, "prefix_len: 16", "prefix_len: 33", invalid, "networks[0].except[0].prefix_len"},
		{inboundTCP, "prefix_len: 64", "prefix_len: 129", invalid, "networks[1].net.prefix_len"},
		{inboundTCP, "authentication { " + identities + " }", "", invalid, "authorizations[0].authentication"},
		{inboundTCP, identities, "", invalid, "authentication.permit"},
		{inboundTCP, identities, "meshTLS {}", invalid, "authentication.meshTLS.clients"},
		{inboundTCP, identities, "meshTLS { unauthenticated {} }", nil, ""},
		{inboundTCP, identities, "unauthenticated {}", nil, ""},
		{inboundTCP, identities, "meshTLS { identities {} }", odd, "meshTLS.identities"},
		{inboundTCP, `kind: "authorizationpolicy"`, "", nil, ""},
		{inboundTCP, granted, "metadata {}", invalid, "authorizations[0].metadata"},
		{inboundTCP, granted, "", invalid, "authorizations[0].labels"},
		{inboundTCP, granted, labels, nil, ""},

		// Routes.
		{inboundWeb, "http_routes { " + inboundRoute + " }", "", nil, ""},
		{inboundWeb, `http_routes { metadata { default: "default" }`, "http_routes {", invalid, "http_routes[0].metadata"},
		{inboundWeb, `hosts { exact: "web" }`, "hosts {}", invalid, "http_routes[0].hosts[0].match"},
		{inboundHTTP2, networks, "", invalid, "http2.routes[0].authorizations[0].networks"},
		{inboundWeb, `path { exact: "/" }`, `path { regex: "*" }`, invalid, "path.regex"},
		{inboundWeb, `matches { path { exact: "/" } }`, "", odd, "rules[0].matches"},
		{inboundWeb, "failure_injector { status: 403 }", "", odd, "filters[0].kind"},
		{inboundWeb, "status: 403", "status: 99", invalid, "failure_injector.status"},
		{inboundGRPC, "rpc {}", "", invalid, "matches[0].rpc"},
		{inboundGRPC, "rules { matches { rpc {} } }", "", odd, "routes[0].rules"},

		// Rate limits.
		{inboundWeb, `metadata { default: "limit" }`, "metadata {}", invalid, "http_local_rate_limit.metadata"},
		{inboundWeb, `metadata { default: "limit" }`, "", nil, ""},
		{inboundWeb, `name: "spiffe://a/b"`, `name: "*"`, odd, "overrides[0].clients.identities[0].name"},
	} {
		t.Run(test.field+" "+test.new, func(t *testing.T) {
			t.Parallel()
			server, err := policy.DecodeInbound(inboundOf(t, test.text, test.old, test.new))
			var found []policy.Finding
			if server != nil {
				found = server.Oddities
			}
			test.check(t, err, found, server != nil)
		})
	}
}

// The findings of the worst class are the error.
func TestWorst(t *testing.T) {
	t.Parallel()
	text := strings.NewReplacer(`dst { path: "web.shop.svc.cluster.local:80" }`, `dst { path: "web" }`,
		"idle { seconds: 1 }", "idle {}", "max_retries: 1", "max_retries: 70000").Replace(httpPolicy)
	client, err := policy.DecodeOutbound(outboundOf(t, text, "", ""))
	if client != nil || !errors.Is(err, policy.ErrInvalid) || errors.Is(err, policy.ErrPanic) {
		t.Errorf("decoded as %v: %v", client, err)
	}

	client, err = policy.DecodeOutbound(outboundOf(t, text, "max_retries: 70000", ""))
	if client != nil || !errors.Is(err, policy.ErrPanic) || errors.Is(err, policy.ErrFailsAtOnce) {
		t.Errorf("decoded as %v: %v", client, err)
	}
}

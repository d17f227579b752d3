package rules

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const ownHTTP = "http {/, -> web.shop.svc.cluster.local:8080}"

// Answers about a Service, by the case that they are about.
func TestOutboundOfService(t *testing.T) {
	api := backend(KindService, "shop", "api", 80, 1)
	given := func(d time.Duration) Timeout { return Timeout{d, true} }
	for name, c := range map[string]struct {
		target *Target
		change func(*Target, *Options)
		query  OutboundQuery
		want   string
	}{
		"PO01": {
			want: "Detect Service/shop/web:8080\n" + ownHTTP + "\nopaque opaq {-> web.shop.svc.cluster.local:8080}",
		},
		"PO05": {
			query: OutboundQuery{Port: 7777, ByAddress: true},
			want:  "Opaque Service/shop/web:7777\nundefined-port {fails forbidden=true}",
		},
		"PO17 a port that is not declared, by name": {
			query: OutboundQuery{Port: 80},
			want: "Detect Service/shop/web:80\nhttp {/, -> web.shop.svc.cluster.local:80}\n" +
				"opaque opaq {-> web.shop.svc.cluster.local:80}",
		},
		"PO31": {
			change: func(t *Target, _ *Options) { t.Ports[0].AppProtocol = "https" },
			want:   "Opaque Service/shop/web:8080\nopaq {-> web.shop.svc.cluster.local:8080}",
		},
		"PO32 without a route": {
			change: func(t *Target, _ *Options) { t.Ports[0].AppProtocol = "GRPC" },
			want:   "Http2 Service/shop/web:8080\n" + ownHTTP,
		},
		"PO32": {
			target: webTarget(route(KindGRPCRoute, "a", 1)),
			change: func(t *Target, _ *Options) { t.Ports[0].AppProtocol = "grpc" },
			want:   "Grpc Service/shop/web:8080\nGRPCRoute/shop/a {-> web.shop.svc.cluster.local:8080}",
		},
		"PO33": {
			change: func(t *Target, o *Options) { t.Ports[0].AppProtocol, o.GRPCAppProtocol = "grpc", false },
			want:   "Opaque Service/shop/web:8080\nopaq {-> web.shop.svc.cluster.local:8080}",
		},
		"PO34 by the name of a port": {
			change: func(t *Target, _ *Options) { t.Settings.OpaquePorts = ports("http") },
			want:   "Opaque Service/shop/web:8080\nopaq {-> web.shop.svc.cluster.local:8080}",
		},
		"PO35": {
			change: func(t *Target, _ *Options) {
				t.Ports[0].AppProtocol, t.Settings.OpaquePorts = "http", ports("8080")
			},
			want: "Http1 Service/shop/web:8080\n" + ownHTTP,
		},
		"PO36": {
			query: OutboundQuery{Port: 3306},
			want:  "Opaque Service/shop/web:3306\nopaq {-> web.shop.svc.cluster.local:3306}",
		},
		"PO36 with an empty list": {
			change: func(t *Target, _ *Options) { t.Settings.OpaquePorts = ports("") },
			query:  OutboundQuery{Port: 3306},
			want: "Detect Service/shop/web:3306\nhttp {/, -> web.shop.svc.cluster.local:3306}\n" +
				"opaque opaq {-> web.shop.svc.cluster.local:3306}",
		},
		"PR01, PR12": {
			target: webTarget(route(KindHTTPRoute, "b", 2), route(KindPolicyHTTPRoute, "c", 1)),
			want: "Detect Service/shop/web:8080\nHTTPRoute/shop/c {/, -> web.shop.svc.cluster.local:8080}\n" +
				"HTTPRoute/shop/b {/, -> web.shop.svc.cluster.local:8080}\n" +
				"opaque opaq {-> web.shop.svc.cluster.local:8080}",
		},
		"PR01 at another port": {
			target: webTarget(route(KindHTTPRoute, "b", 2)), query: OutboundQuery{Port: 9999},
			want: "Detect Service/shop/web:9999\nhttp {/, -> web.shop.svc.cluster.local:9999}\n" +
				"opaque opaq {-> web.shop.svc.cluster.local:9999}",
		},
		"PR42, PR43, PR47, PR48": {
			target: webTarget(route(KindHTTPRoute, "a", 1, api,
				Backend{Reference: api.Reference, Port: 80, Weight: 2, Filters: []Filter{{Unsupported: "no"}}},
				backend(KindService, "shop", "api", 0, 3),
				Backend{Weight: 4, Invalid: "unsupported backend type  Secret"},
				backend(KindService, "shop", "gone", 80, 5), backend(KindEgressNetwork, "shop", "out", 80, 6))),
			want: "Detect Service/shop/web:8080\nHTTPRoute/shop/a {/, -> api.shop.svc.cluster.local:80 x1, " +
				"-> Service/shop/api fails: unsupported backend filter x2, " +
				"-> Service/shop/api fails: missing port for backend Service api x3, " +
				"-> invalid fails: unsupported backend type  Secret x4, " +
				"-> Service/shop/gone fails: Service not found gone x5, " +
				"-> EgressNetwork/shop/out fails: an EgressNetwork is no backend of a Service x6}\n" +
				"opaque opaq {-> web.shop.svc.cluster.local:8080}",
		},
		"weights that leave nothing": {
			target: webTarget(route(KindHTTPRoute, "a", 1, backend(KindService, "shop", "api", 80, 0))),
			want: "Detect Service/shop/web:8080\nHTTPRoute/shop/a {/, -> invalid fails: no backend has a weight}\n" +
				"opaque opaq {-> web.shop.svc.cluster.local:8080}",
		},
		"PR40": {
			target: webTarget(func() *Route {
				r := route(KindHTTPRoute, "a", 1, api)
				r.Rules[0].Filters = []Filter{
					{RequestHeaders: &HeaderChanges{}}, {Unsupported: "URLRewrite is not supported"},
				}
				return r
			}()),
			want: "Detect Service/shop/web:8080\n" +
				"HTTPRoute/shop/a {/, fails forbidden=false URLRewrite is not supported, -> api.shop.svc.cluster.local:80 x1}\nopaque opaq {-> web.shop.svc.cluster.local:8080}",
		},
		"PR39": {
			target: webTarget(func() *Route {
				r := route(KindGRPCRoute, "a", 1)
				r.Rules[0].Filters = []Filter{{ResponseHeaders: &HeaderChanges{}}}
				return r
			}()),
			want: "Grpc Service/shop/web:8080\nGRPCRoute/shop/a {fails forbidden=false " +
				"ResponseHeaderModifier is not supported on GRPCRoutes, -> web.shop.svc.cluster.local:8080}",
		},
		"PR58 of bytes": {
			target: webTarget(func() *Route {
				r := route(KindTCPRoute, "a", 1)
				r.Silent = true
				return r
			}()),
			want: "Opaque Service/shop/web:8080\n" +
				"TCPRoute/shop/a {fails forbidden=false the rule of the route cannot be known}",
		},
		"PR58": {
			target: webTarget(func() *Route {
				r := route(KindTLSRoute, "a", 1)
				r.Silent = true
				return r
			}()),
			want: "Tls Service/shop/web:8080\n" +
				"TLSRoute/shop/a {fails forbidden=false the rule of the route cannot be known}",
		},
		"several TCPRoutes": {
			target: webTarget(route(KindTCPRoute, "b", 2), route(KindTCPRoute, "a", 1, api)),
			want:   "Opaque Service/shop/web:8080\nTCPRoute/shop/a {-> api.shop.svc.cluster.local:80 x1}",
		},
		"PR72, PR74": {
			target: webTarget(func() *Route {
				r := route(KindHTTPRoute, "a", 1)
				r.Rules[0].Timeouts.Request = given(0)
				return r
			}(), route(KindHTTPRoute, "b", 2)),
			change: func(t *Target, _ *Options) {
				t.Settings.Timeouts = Timeouts{Request: given(5 * time.Second), Response: given(2 * time.Second)}
			},
			want: "Detect Service/shop/web:8080\nHTTPRoute/shop/a {/, -> web.shop.svc.cluster.local:8080}\n" +
				"HTTPRoute/shop/b {/, -> web.shop.svc.cluster.local:8080, request 5s, response 2s}\n" +
				"opaque opaq {-> web.shop.svc.cluster.local:8080}",
		},
		"PR75, PR76, PR85": {
			target: webTarget(func() *Route {
				r := route(KindHTTPRoute, "a", 1)
				r.Timeouts.Response = given(time.Second)
				r.Retry = &Retries{}
				return r
			}(), func() *Route {
				r := route(KindHTTPRoute, "b", 2)
				r.Rules[0].Timeouts.Request = given(3 * time.Second)
				return r
			}()),
			change: func(t *Target, o *Options) {
				t.Settings.Timeouts = Timeouts{Request: given(5 * time.Second)}
				t.Settings.HTTPRetry, o.AllowRequestHeaders = &Retries{Limit: 4}, true
			},
			want: "Detect Service/shop/web:8080\n" +
				"HTTPRoute/shop/a {/, -> web.shop.svc.cluster.local:8080, response 1s, l5d}\n" +
				"HTTPRoute/shop/b {/, -> web.shop.svc.cluster.local:8080, request 3s, retries 4, l5d}\n" +
				"opaque opaq {-> web.shop.svc.cluster.local:8080}",
		},
		"PR86, PR93": {
			target: webTarget(route(KindHTTPRoute, "a", 1, api)),
			change: func(t *Target, _ *Options) {
				t.Settings.Load, t.Settings.Accrual = &Load{}, &Accrual{MaxFailures: 7}
			},
			want: "Detect Service/shop/web:8080 after 7 failures\n" +
				"HTTPRoute/shop/a {/, -> api.shop.svc.cluster.local:80 x1 penalized}\n" +
				"opaque opaq {-> web.shop.svc.cluster.local:8080 penalized}",
		},
		"PR96": {
			target: webTarget(route(KindTLSRoute, "a", 1, api), route(KindTLSRoute, "b", 2)),
			change: func(t *Target, _ *Options) { t.Settings.Load = &Load{} },
			want: "Tls Service/shop/web:8080\nTLSRoute/shop/a {-> api.shop.svc.cluster.local:80 x1}\n" +
				"TLSRoute/shop/b {-> web.shop.svc.cluster.local:8080 penalized}",
		},
		"a port of bytes is not penalized": {
			change: func(t *Target, _ *Options) { t.Settings.Load, t.Settings.OpaquePorts = &Load{}, ports("8080") },
			want:   "Opaque Service/shop/web:8080\nopaq {-> web.shop.svc.cluster.local:8080}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			options := testOptions()
			if c.target == nil {
				c.target = webTarget()
			}
			if c.change != nil {
				c.change(c.target, options)
			}
			if c.query.Port == 0 {
				c.query.Port = 8080
			}
			if diff := cmp.Diff(c.want, options.Outbound(c.target, c.query).lines()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Consumer routes are those of clients of their own namespace, beside the producer routes (PR04, PR06, PR14, PR49).
func TestConsumerRoutes(t *testing.T) {
	consumer := route(KindHTTPRoute, "a", 1, backend(KindService, "other", "near", 80, 1))
	consumer.Namespace = "other"
	target := webTarget(route(KindHTTPRoute, "a", 1), consumer)
	target.Found[Reference{KindService, "other", "near"}] = true
	const producer = "HTTPRoute/shop/a {/, -> web.shop.svc.cluster.local:8080}"
	const head, tail = "Detect Service/shop/web:8080\n", "\nopaque opaq {-> web.shop.svc.cluster.local:8080}"
	for client, want := range map[string]string{
		"shop": producer, "third": producer,
		"other": "HTTPRoute/other/a {/, -> near.other.svc.cluster.local:80 x1}\n" + producer,
	} {
		got := testOptions().Outbound(target, OutboundQuery{Port: 8080, Client: client}).lines()
		if diff := cmp.Diff(head+want+tail, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", client, diff)
		}
	}
}

// Answers about an EgressNetwork lead to the address that was asked for, whatever it allows.
func TestOutboundOfEgress(t *testing.T) {
	at := func(kind Kind, backends ...Backend) *Route {
		r := route(kind, "a", 1, backends...)
		r.Parents = []Parent{{Reference: Reference{KindEgressNetwork, "shop", "out"}, Port: 443}}
		return r
	}
	own := backend(KindEgressNetwork, "shop", "out", 0, 3)
	for name, c := range map[string]struct {
		target *Target
		want   string
	}{
		"PO41": {egressTarget(true), "Detect EgressNetwork/shop/out:443\n" +
			"http-egress-deny {/, fails forbidden=true traffic not allowed, -> original}\n" +
			"opaque tcp-egress-deny {fails forbidden=true traffic not allowed, -> original}"},
		"PO56": {egressTarget(false, at(KindHTTPRoute)), "Detect EgressNetwork/shop/out:443\n" +
			"HTTPRoute/shop/a {/, -> original}\nhttp-egress-allow {/, -> original}\n" +
			"opaque tcp-egress-allow {-> original}"},
		"PO57 gRPC": {
			egressTarget(false, at(KindGRPCRoute)),
			"Grpc EgressNetwork/shop/out:443\nGRPCRoute/shop/a {-> original}\ngrpc-egress-allow {-> original}",
		},
		"PO57 TLS": {
			egressTarget(false, at(KindTLSRoute)),
			"Tls EgressNetwork/shop/out:443\nTLSRoute/shop/a {-> original}\ntls-egress-allow {-> original}",
		},
		"PO57 TCP": {
			egressTarget(true, at(KindTCPRoute)), "Opaque EgressNetwork/shop/out:443\nTCPRoute/shop/a {-> original}",
		},
		"PR54": {
			egressTarget(false, at(KindTCPRoute, own, backend(KindEgressNetwork, "shop", "x", 0, 1))),
			"Opaque EgressNetwork/shop/out:443\nTCPRoute/shop/a {-> original x3, " +
				"-> EgressNetwork/shop/x fails: EgressNetwork x is not the parent of the route x1}",
		},
		"PR57, PR97": {
			func() *Target {
				to := egressTarget(false, at(KindHTTPRoute, backend(KindService, "shop", "api", 80, 1)))
				to.Settings.Load = &Load{}
				return to
			}(),
			"Detect EgressNetwork/shop/out:443\nHTTPRoute/shop/a {/, -> api.shop.svc.cluster.local:80 x1}\n" +
				"http-egress-allow {/, -> original}\nopaque tcp-egress-allow {-> original}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := testOptions().Outbound(c.target, OutboundQuery{Port: 443, Client: "shop", ByAddress: true}).lines()
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}

	const fallback = "Detect egress-fallback\negress-fallback {any, -> original}\nopaque egress-fallback {-> original}"
	if got := Fallback().lines(); got != fallback {
		t.Error(got)
	}
}

// Which EgressNetwork decides about an address.
func TestEgress(t *testing.T) {
	egress := func(name string, age int, cidrs ...string) *EgressNetwork {
		e := &EgressNetwork{Meta: named(KindEgressNetwork, name, age)}
		if cidrs != nil {
			e.Networks = networks(cidrs...)
		}
		return e
	}
	all := egress("all", 9)
	six := testOptions()
	six.ClusterNetworks = append(six.ClusterNetworks, networks("fd00::/8")...)
	one := func(all ...*EgressNetwork) []*EgressNetwork { return all }
	for _, c := range []struct {
		id          string
		own, global []*EgressNetwork
		addr, want  string
	}{
		{"PO43", one(all), one(egress("f", 1)), "1.1.1.1", "all"},
		{"PO43 without one of its own", nil, one(egress("f", 1)), "1.1.1.1", "f"},
		{"PO44", one(egress("e", 1, "203.0.113.0/24")), one(all), "1.1.1.1", ""},
		{"PO45", one(egress("a", 1, "203.0.0.0/16"), egress("b", 2, "203.0.113.0/24")), nil, "203.0.113.9", "b"},
		{"PO46", one(egress("a", 2, "203.0.113.0/24"), egress("b", 1, "203.0.113.0/24")), nil, "203.0.113.9", "b"},
		{"PO46", one(egress("b", 1, "203.0.113.0/24"), egress("a", 1, "203.0.113.0/24")), nil, "203.0.113.9", "a"},
		{"PO47", one(egress("a", 1, "203.0.113.0/30"), egress("b", 2, "203.0.113.0/31")), nil, "203.0.113.1", "b"},
		{
			"PO48", one(egress("b", 1, "203.0.113.0/24 except 203.0.113.0/25"), egress("a", 2, "203.0.113.128/25")),
			nil, "203.0.113.200", "b",
		},
		{"PO49", one(egress("a", 1, "::/0", "2000::/3"), egress("b", 2, "2606::/16")), nil, "2606:4700::1111", "b"},
		{"PO51", one(egress("a", 1, "203.0.113.0/24 except 203.0.113.9/32")), nil, "203.0.113.9", ""},
		{"PO52", one(all), nil, "fd00::5", ""},
		{"PO52", one(all), nil, "2001:db8::5", "all"},
		{"PO53", one(egress("a", 1, "10.0.0.0/8")), nil, "10.200.0.1", ""},
		{"PO54", one(egress("a", 1, "0.0.0.0/0")), nil, "1.1.1.1", "a"},
		{
			"the smallest of several", one(egress("a", 1, "1.0.0.0/8", "1.1.1.1"), egress("b", 0, "1.1.0.0/16")),
			nil, "1.1.1.1", "a",
		},
	} {
		got := ""
		if e := six.Egress(addr(c.addr), c.own, c.global); e != nil {
			got = e.Name
		}
		if got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.id, c.addr, got, c.want)
		}
	}

	for _, c := range []struct {
		e    *EgressNetwork
		want bool
	}{
		{egress("PT19", 1, "10.1.0.0/16"), false},
		{egress("PT19", 1), true},
		{egress("PT19", 1, "0.0.0.0/0 except 10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16"), true},
		{egress("an exception in part", 1, "10.0.0.0/8 except 10.0.0.0/9"), false},
		{egress("around", 1, "10.0.0.0/7"), false},
		{egress("apart", 1, "203.0.113.0/24"), true},
	} {
		if got := six.AcceptsEgress(c.e); got != c.want {
			t.Errorf("%s is accepted: %t", c.e.Name, got)
		}
	}
}

package policy_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
)

// Which authorization lets a client in.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	const (
		everyone   = `networks { net { ip { ipv4: 0 } } } networks { net { ip { ipv6 {} } } }`
		web        = "web.ns.id"
		open       = `authorizations { metadata { default: "open" } ` + everyone + ` authentication { unauthenticated {} } }`
		tls        = `authorizations { metadata { default: "tls" } ` + everyone + ` authentication { meshTLS { unauthenticated {} } } }`
		all        = `authorizations { metadata { default: "all" } ` + everyone + ` authentication { meshTLS { identities { suffixes {} } } } }`
		route      = `metadata { default: "r" } rules { matches { path { prefix: "/r" } } } `
		both       = "protocol { http1 { routes { " + route + open + "} } }"
		opaquePort = "protocol { opaque {} }"
		anyone     = labels + all + opaquePort
		uri        = "spiffe://a/b"
		inside     = "10.1.0.1"
		outside    = "192.0.2.1"
		none       = ""
		noRoute    = "no route"
		localhost  = "default/localhost"
		some       = "policy.linkerd.io/authorizationpolicy/some"
		routed     = "protocol { http1 { routes { " + route + " } } }"
	)
	for _, test := range []struct {
		name, text string
		request    policy.Request
		client     string
		want       string // what lets it in
	}{
		{"an identity", inboundTCP, policy.Request{MeshTLS: true, Identity: "WEB.shop.id"}, inside, some},
		{"a suffix", inboundTCP, policy.Request{MeshTLS: true, Identity: web}, inside, some},
		{"another family", inboundTCP, policy.Request{MeshTLS: true, Identity: web}, "0:0:0:1::", some},
		{"an exception", inboundTCP, policy.Request{MeshTLS: true, Identity: web}, "10.0.0.1", none},
		{"another network", inboundTCP, policy.Request{MeshTLS: true, Identity: web}, outside, none},
		{"another identity", inboundTCP, policy.Request{MeshTLS: true, Identity: "ns.id"}, inside, none},
		{"no TLS", inboundTCP, policy.Request{Identity: web}, inside, none},
		{"no identity", inboundTCP, policy.Request{MeshTLS: true}, inside, none},
		{"localhost", inboundTCP, policy.Request{}, "127.0.0.1", localhost},
		{"localhost of the other family", inboundTCP, policy.Request{}, "::1", localhost},
		{"the rest of 127.0.0.0/8", inboundTCP, policy.Request{}, "127.0.0.2", none},
		{"no authorizations", labels + "protocol { tls {} }", policy.Request{Protocol: policy.TLS}, inside, none},
		{"the first one", labels + tls + open + opaquePort, policy.Request{MeshTLS: true}, inside, "default/tls"},
		{"the next one", labels + tls + open + opaquePort, policy.Request{}, inside, "default/open"},

		{"every DNS name", anyone, policy.Request{MeshTLS: true, Identity: "a"}, inside, "default/all"},
		{"a URI has no suffix", anyone, policy.Request{MeshTLS: true, Identity: uri}, inside, none},

		{"no routes at all", labels + open + "protocol { http1 {} }", policy.Request{}, inside, "default/open"},
		{"of the route", labels + tls + both, policy.Request{Path: "/r"}, inside, "default/open"},
		{
			"of the route first", labels + tls + both,
			policy.Request{Path: "/r", MeshTLS: true},
			inside, "default/open",
		},
		{"of the port", labels + open + routed, policy.Request{Path: "/r"}, inside, "default/open"},
		{"no route", labels + open + routed, policy.Request{}, inside, noRoute},
		{"no HTTP", labels + open + "protocol { http1 {} }", policy.Request{Protocol: policy.Opaque}, inside, noRoute},
		{"a route that opens nothing", labels + routed, policy.Request{Path: "/r"}, inside, none},
		{"gRPC", labels + open + "protocol { grpc {} }", policy.Request{Protocol: policy.GRPC}, inside, "default/open"},
		{
			"no HTTP where it is detected", labels + open + "protocol { detect { timeout { seconds: 1 } } }",
			policy.Request{Protocol: policy.TLS},
			inside, "default/open",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server, err := policy.DecodeInbound(inboundOf(t, test.text, "", ""))
			if err != nil {
				t.Fatal(err)
			}
			test.request.Client = netip.MustParseAddr(test.client)
			route, by := server.Authorize(test.request)
			got := none
			switch {
			case by != nil:
				got = by.Metadata.String()
			case route == nil && server.Protocol != policy.Opaque && server.Protocol != policy.TLS:
				got = noRoute
			}
			if got != test.want {
				t.Errorf("let in by %q, want %q", got, test.want)
			}
		})
	}
}

// What else there is of a port.
func TestServer(t *testing.T) {
	t.Parallel()
	server, err := policy.DecodeInbound(inboundOf(t, inboundWeb, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	limit := server.RateLimit
	if limit.Total != 100 || limit.PerIdentity != 10 || limit.Overrides["spiffe://a/b"] != 50 ||
		limit.Metadata.Name != "limit" {
		t.Errorf("the limit is %+v", limit)
	}
	if server.DetectTimeout.Seconds() != 10 || len(server.Routes) != 1 || len(server.Authorizations) != 2 {
		t.Errorf("decoded as %+v", server)
	}

	for own, want := range map[string]string{
		`labels { key: "name" value: "web" }`: "policy.linkerd.io/server/web",
		`labels { key: "name" value: "deny" } labels { key: "kind" value: "default" } labels { key: "group" value: "" }`: "default/deny",
		`labels { key: "name" value: "default:deny" }`:                                                                   "default/deny",
		`labels { key: "name" value: "server:web" } labels { key: "group" value: "own" }`:                                "own/server/web",
	} {
		server, err := policy.DecodeInbound(inboundOf(t, own+"protocol { tls {} }", "", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(server.Metadata); got != want {
			t.Errorf("%s stand for %s, want %s", own, got, want)
		}
	}
}

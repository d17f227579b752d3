package policy_test

import (
	"strings"
	"testing"

	inboundpb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outboundpb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/prototext"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The parts of messages that a proxy takes without a finding.
const (
	metadata = `metadata { resource { group: "core" kind: "Service" namespace: "shop" name: "web" port: 80 } }`
	queue    = `queue { capacity: 100 failfast_timeout { seconds: 3 } }`
	load     = `peak_ewma { default_rtt { nanos: 30000000 } decay { seconds: 10 } }`
	balancer = `balancer { discovery { dst { path: "web.shop.svc.cluster.local:80" } } ` + load + ` }`
	backend  = `backend { ` + metadata + balancer + queue + ` }`
	forward  = `backend { ` + metadata + `forward { addr { ip { ipv4: 167772161 } port: 80 } weight: 1 }` + queue + ` }`
	first    = `backends { first_available { backends { ` + backend + ` } } }`
	random   = `backends { random_available {
		backends { weight: 3 backend { ` + backend + ` filters {
			failure_injector { status: 503 message: "sorry" ratio { numerator: 1 denominator: 2 } } } } }
		backends { weight: 1 backend { ` + forward + ` } }
	} }`
	backoff  = `backoff { min_backoff { seconds: 1 } max_backoff { seconds: 60 } jitter_ratio: 0.5 }`
	timeouts = `timeouts { request { seconds: 3 } response { seconds: 2 } idle { seconds: 1 } } requestTimeout { seconds: 3 }`

	redirect = `filters { redirect {
		scheme { registered: HTTPS } host: "other" port: 443 status: 302 path { prefix: "/new" } } }`

	httpRoute = metadata + `hosts { exact: "web" } rules {
		matches {
			path { prefix: "/" } method { registered: GET }
			headers { name: "x-a" exact: "b" } query_params { name: "q" exact: "v" }
		}
		filters { request_header_modifier { set { headers { name: "x-set" value: "y" } } remove: "x-remove" } }
		` + redirect + random + timeouts + `
		retry { max_retries: 1 conditions { status_ranges { start: 500 end: 599 } } timeout { seconds: 1 } ` + backoff + ` }
	}`
	httpPolicy = metadata + `protocol { http1 {
		routes { ` + httpRoute + ` }
		failure_accrual { consecutive_failures { max_failures: 7 ` + backoff + ` } }
	} }`
	unified = `unified {
		success_rate_threshold: 0.8 decay { seconds: 10 } min_requests: 5 max_consecutive_failures: 7 ` + backoff + `
	}`
	grpcPolicy = metadata + `protocol { grpc {
		routes { ` + metadata + ` hosts { suffix { reverse_labels: "shop" } } rules {
			matches { rpc { service: "s" method: "m" } headers { name: "x-a" regex: "b+" } }
			filters { failure_injector { code: 13 message: "sorry" } }
			` + first + timeouts + ` retry { max_retries: 70000 conditions { internal: true } }
		} }
		failure_accrual { ` + unified + ` }
	} }`
	tlsPolicy = metadata + `protocol { tls { routes { ` + metadata + ` snis { exact: "web" } rules { ` + first + ` } } } }`
	opaque    = `routes { ` + metadata + ` rules { ` + first + ` filters { forbidden {} } } }`
	tcpPolicy = metadata + `protocol { opaque { ` + opaque + ` } }`
	detect    = metadata + `protocol { detect {
		timeout { seconds: 10 }
		http1 { routes { ` + httpRoute + ` } } http2 { routes { ` + httpRoute + ` } } opaque { ` + opaque + ` }
	} }`

	networks = `networks { net { ip { ipv4: 167772160 } prefix_len: 8 } except { ip { ipv4: 167772160 } prefix_len: 16 } }
		networks { net { ip { ipv6 { first: 1 } } prefix_len: 64 } }`
	identities    = `meshTLS { identities { identities { name: "web.shop.id" } suffixes { parts: "ns" parts: "id" } } }`
	granted       = `metadata { resource { group: "policy.linkerd.io" kind: "authorizationpolicy" name: "some" } }`
	authorization = `authorizations { ` + networks + ` authentication { ` + identities + ` } ` + granted + ` }`
	inboundRoute  = `metadata { default: "default" } hosts { exact: "web" } ` + authorization + ` rules {
		matches { path { exact: "/" } } filters { failure_injector { status: 403 } } }`
	labels     = `labels { key: "name" value: "web" } `
	inboundWeb = labels + authorization + `protocol { detect {
		timeout { seconds: 10 }
		http_routes { ` + inboundRoute + ` }
		http_local_rate_limit {
			metadata { default: "limit" }
			total { requestsPerSecond: 100 } identity { requestsPerSecond: 10 }
			overrides { limit { requestsPerSecond: 50 } clients { identities { name: "spiffe://a/b" } } }
		}
	} }`
	inboundHTTP2 = labels + `protocol { http2 { routes { ` + inboundRoute + ` } local_rate_limit { total {} } } }`
	inboundGRPC  = labels + `protocol { grpc { routes { metadata { default: "default" } rules { matches { rpc {} } } } } }`
	inboundTLS   = labels + `protocol { tls {} }`
	inboundTCP   = labels + authorization + `protocol { opaque {} }`
)

// outboundOf reads a message in which the first of some text is replaced.
func outboundOf(t *testing.T, text, old, replacement string) *outboundpb.OutboundPolicy {
	t.Helper()
	message := &outboundpb.OutboundPolicy{}
	if err := prototext.Unmarshal(replaced(t, text, old, replacement), message); err != nil {
		t.Fatal(err)
	}
	return message
}

// inboundOf does the same.
func inboundOf(t *testing.T, text, old, replacement string) *inboundpb.Server {
	t.Helper()
	message := &inboundpb.Server{}
	if err := prototext.Unmarshal(replaced(t, text, old, replacement), message); err != nil {
		t.Fatal(err)
	}
	return message
}

func replaced(t *testing.T, text, old, replacement string) []byte {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("there is no %q", old)
	}
	return []byte(strings.Replace(text, old, replacement, 1))
}

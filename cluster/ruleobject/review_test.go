package ruleobject

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubejson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// reviewed returns the verdict on an object of namespace shop: its annotations and its spec in YAML.
func reviewed(tb testing.TB, kind rules.Kind, annotations, spec string) Verdict {
	tb.Helper()
	object, err := yaml.YAMLToJSON([]byte("metadata: {namespace: shop, annotations: {" + annotations + "}}\nspec: " + spec))
	if err != nil {
		tb.Fatalf("%s: %v", spec, err)
	}
	return Review(kind.Group(), kind.String(), object, nil)
}

const (
	toService  = "parentRefs: [{group: '', kind: Service, name: web, port: 80}]"
	toServer   = "parentRefs: [{group: policy.linkerd.io, kind: Server, name: v}]"
	toGateway  = "parentRefs: [{name: gateway}]"
	toEgress   = "parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: out, port: 80}]"
	toAllPorts = "parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: out}]"
	onServer   = "targetRef: {group: policy.linkerd.io, kind: Server, name: v}"
)

// valid is an object of each kind that is neither denied nor warned of.
var valid = map[rules.Kind]string{
	rules.KindServer:                "{podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: HTTP/1, accessPolicy: deny}",
	rules.KindServerAuthorization:   "{server: {selector: {}}, client: {meshTLS: {identities: ['*']}}}",
	rules.KindAuthorizationPolicy:   "{" + onServer + ", requiredAuthenticationRefs: [{kind: ServiceAccount, name: sa}]}",
	rules.KindMeshTLSAuthentication: "{identities: ['*.a.b', 'spiffe://t.d/a']}",
	rules.KindNetworkAuthentication: "{networks: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}]}",
	rules.KindRateLimit:             "{" + onServer + ", total: {requestsPerSecond: 10}, identity: {requestsPerSecond: 5}}",
	rules.KindEgressNetwork:         "{trafficPolicy: Allow}",
	rules.KindPolicyHTTPRoute:       "{" + toService + ", rules: [{matches: [{path: {value: /a}}], timeouts: {request: 1m30s}}]}",
	rules.KindHTTPRoute:             "{" + toEgress + ", hostnames: [a.b], rules: [{backendRefs: [{name: api, port: 80}]}]}",
	rules.KindGRPCRoute:             "{" + toServer + ", rules: [{matches: [{method: {service: s}}]}]}",
	rules.KindTLSRoute:              "{" + toEgress + ", hostnames: ['*.a.b'], rules: [{backendRefs: [{name: api, port: 80}]}]}",
	rules.KindTCPRoute:              "{" + toService + ", rules: [{}]}",
}

// TestReviews are the contract cases of the webhook that need no server. Kinds of one row get the same verdict.
func TestReviews(t *testing.T) {
	for kind, spec := range valid {
		if v := reviewed(t, kind, "", spec); v.Denied != "" || len(v.Warnings) > 0 {
			t.Errorf("PW01: %v: %+v", kind, v)
		}
	}
	if len(valid) != len(reviews) {
		t.Errorf("PW01: %d kinds are valid, and %d reviewed", len(valid), len(reviews))
	}

	const (
		mesh    = "{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: m}"
		account = "{kind: ServiceAccount, name: sa}"
		nets    = "{group: policy.linkerd.io, kind: NetworkAuthentication, name: nets}"
	)
	server, saz, policy := rules.KindServer, rules.KindServerAuthorization, rules.KindAuthorizationPolicy
	mtls, networks := rules.KindMeshTLSAuthentication, rules.KindNetworkAuthentication
	limit, egress, own := rules.KindRateLimit, rules.KindEgressNetwork, rules.KindPolicyHTTPRoute
	http, grpc, tls, tcp := rules.KindHTTPRoute, rules.KindGRPCRoute, rules.KindTLSRoute, rules.KindTCPRoute
	kinds := func(all ...rules.Kind) []rules.Kind { return all }
	requiring := func(refs string) string { return "{" + onServer + ", requiredAuthenticationRefs: [" + refs + "]}" }
	target := func(ref string) string { return "{targetRef: " + ref + ", requiredAuthenticationRefs: []}" }
	client := func(text string) string { return "{server: {name: v}, client: " + text + "}" }
	rule := func(text string) string { return "{" + toService + ", rules: [" + text + "]}" }
	match := func(text string) string { return rule("{matches: [" + text + "]}") }
	filter := func(text string) string { return rule("{filters: [" + text + "]}") }
	backend := func(text string) string { return rule("{backendRefs: [" + text + "]}") }
	limited := func(text string) string { return "{" + onServer + ", " + text + "}" }

	for _, c := range []struct {
		id          string
		kinds       []rules.Kind
		annotations string
		spec        string
		denied      string   // a part of the reason; empty if it is allowed
		warnings    []string // a part of each
	}{
		{"PW03/MeshTLS", kinds(policy), "", requiring(mesh + "," + mesh), "more than one", nil},
		{"PW03/accounts", kinds(policy), "", requiring(account + "," + account), "more than one", nil},
		{"PW03/one each", kinds(policy), "", requiring(mesh + "," + account), "more than one", nil},
		{"PW03/networks", kinds(policy), "", requiring(nets + "," + nets), "more than one", nil},
		{"PW04/target", kinds(policy), "", target("{group: apps, kind: Deployment, name: d}"), "can be the target", nil},
		{"PW04/required", kinds(policy), "", requiring("{kind: Pod, name: p}"), "can be required", nil},
		{"PW05/empty", kinds(policy), "", requiring(""), "", nil},
		{"PW05/absent", kinds(policy), "", "{" + onServer + "}", "it needs targetRef and requiredAuthenticationRefs", nil},
		{"PW06/HTTPRoute", kinds(policy), "", target("{group: gateway.networking.k8s.io, kind: HTTPRoute, name: r}"), "", nil},
		{"PW06/of policy", kinds(policy), "", target("{group: policy.linkerd.io, kind: HTTPRoute, name: r}"), "", nil},
		{"PW06/GRPCRoute", kinds(policy), "", target("{group: gateway.networking.k8s.io, kind: GRPCRoute, name: r}"), "", nil},
		{"PW06/TLSRoute", kinds(policy), "", target("{group: gateway.networking.k8s.io, kind: TLSRoute, name: r}"), "can be the target", nil},
		{"own Namespace", kinds(policy), "", target("{kind: Namespace, name: shop}"), "", nil},
		{"another Namespace", kinds(policy), "", target("{kind: Namespace, name: other}"), "targetRef is Namespace other", nil},

		{"PW07", kinds(mtls), "", "{identities: ['*', '*.a.b', a.b, 'spiffe://t.d/a/b']}", "", nil},
		{"PW08", kinds(mtls), "", "{identities: [a.b, Foo.bar]}", `"Foo.bar" is no identity`, nil},
		{"PW08/empty", kinds(mtls), "", "{identities: ['']}", `"" is no identity`, nil},
		{"PW09", kinds(mtls), "", "{identities: ['spiffe://t/a/..']}", `"spiffe://t/a/.." is no identity`, nil},
		{"identityRefs/kind", kinds(mtls), "", "{identityRefs: [{kind: Pod, name: p}]}", "gives no identity", nil},
		{"identityRefs/Namespace", kinds(mtls), "", "{identityRefs: [{kind: Namespace, name: n2}]}", "", nil},
		{
			"identityRefs/Namespace with one", kinds(mtls), "", "{identityRefs: [{kind: Namespace, name: n2, namespace: shop}]}",
			"Namespace n2 is referred to with a namespace", nil,
		},

		{"PW11/protocol", kinds(server), "", "{podSelector: {}, port: 80, proxyProtocol: foo}", `proxyProtocol "foo"`, nil},
		{"PW11/access", kinds(server), "", "{podSelector: {}, port: 80, accessPolicy: foo}", `"foo" is unknown`, nil},
		{"PW11/port", kinds(server), "", "{podSelector: {}, port: 0}", "port 0 is not between", nil},
		{"PW11/selector", kinds(server), "", "{port: 80}", "it has no selector", nil},
		{"PW12", kinds(server), "", "{podSelector: {}, port: 80}", "", nil},
		{"type", kinds(server), "", "{podSelector: {}, port: true}", "cannot unmarshal bool", nil},

		{"PW13/covers", kinds(networks, egress), "", "{trafficPolicy: Allow, networks: [{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}]}", "covers", nil},
		{"PW13/outside", kinds(networks, egress), "", "{trafficPolicy: Allow, networks: [{cidr: 10.0.0.0/8, except: [192.168.0.0/16]}]}", "outside", nil},
		{"PW13/cidr", kinds(networks, egress), "", "{trafficPolicy: Allow, networks: [{cidr: 10.0.0.0/33}]}", "neither a network", nil},
		{"PW13/client", kinds(saz), "", client("{unauthenticated: true, networks: [{cidr: x}]}"), "neither a network", nil},
		{"PW14", kinds(networks, egress), "", "{trafficPolicy: Allow, networks: [{cidr: 10.0.0.1}, {cidr: '::/0', except: ['::1']}]}", "", nil},
		{"PW15/empty", kinds(networks, egress), "", "{trafficPolicy: Allow, networks: []}", "the list of networks is empty", nil},
		{"PW15/client", kinds(saz), "", client("{unauthenticated: true, networks: []}"), "the list of networks is empty", nil},
		{"PW15/absent", kinds(egress), "", "{trafficPolicy: Allow}", "", nil},
		{"PW16/meshTLS", kinds(saz), "", client("{unauthenticated: true, meshTLS: {identities: ['*']}}"), "meshTLS has no effect", nil},
		{"PW16/identities", kinds(saz), "", client("{meshTLS: {unauthenticatedTLS: true, identities: ['*']}}"), "identities have no effect", nil},
		{"PW16/accounts", kinds(saz), "", client("{meshTLS: {unauthenticatedTLS: true, serviceAccounts: [{name: sa}]}}"), "identities have no effect", nil},

		{"PW18, PW19/path", kinds(own, http), "", match("{path: {value: a}}"), `path "a" does not begin`, nil},
		{"PW18, PW19/regex", kinds(own, http), "", match("{path: {type: RegularExpression, value: '('}}"), "missing closing )", nil},
		{"PW18, PW19/header", kinds(own, http), "", match("{headers: [{name: 'a b', value: v}]}"), "no name of a header", nil},
		{
			"PW18, PW19/redirect", kinds(own, http), "",
			filter("{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: x}}}"), `path "x"`, nil,
		},
		{"query regex", kinds(own, http), "", match("{queryParams: [{type: RegularExpression, name: a, value: '*'}]}"), "missing argument", nil},
		{
			"filter header", kinds(own, http, grpc), "",
			filter("{type: RequestHeaderModifier, requestHeaderModifier: {remove: ['a b']}}"), "no name of a header", nil,
		},
		{"regex of Rust", kinds(own, http), "", match("{path: {type: RegularExpression, value: 'a**'}}"), "", []string{"rule 1: match: regular expression"}},
		{"PW20/filter", kinds(own), "", filter("{type: RequestMirror}"), `"RequestMirror" is not supported`, nil},
		{"PW20/order", kinds(own), "", rule("{timeouts: {backendRequest: 2s, request: 1s}}"), "longer than request", nil},
		{"PW20/negative", kinds(own), "", rule("{timeouts: {request: -1s}}"), "a negative duration", nil},
		{"timeouts/text", kinds(own), "", rule("{timeouts: {request: x}}"), "not a duration", nil},
		{"timeouts/gateway", kinds(http), "", rule("{timeouts: {request: -1s}}"), "", []string{"not a duration"}},
		{
			"timeouts/gateway order", kinds(http), "", rule("{timeouts: {backendRequest: 2s, request: 1s}}"), "",
			[]string{"backendRequest is not used"},
		},
		{
			"PW21", kinds(http), "",
			rule("{filters: [{type: RequestMirror}, {type: URLRewrite}, {type: ExtensionRef}], backendRefs: [{kind: Foo, name: f}]}"), "",
			[]string{
				`rule 1: filter: "RequestMirror"`, `"URLRewrite"`, `"ExtensionRef"`,
				"rule 1: backendRef: unsupported backend type core Foo",
			},
		},
		{"PW22/absent", kinds(http, grpc), "", backend("{kind: Service, name: api}"), "missing port", nil},
		{"PW22/0", kinds(http, grpc), "", backend("{name: api, port: 0}"), "port 0 is not between", nil},
		{"PW22/kind absent", kinds(http, grpc), "", backend("{name: api}"), "missing port", nil},
		{"PW22/of policy", kinds(own, tls, tcp), "", backend("{name: api}"), "", []string{"missing port"}},
		{"PW23", kinds(http, grpc), "", backend("{kind: service, name: api}"), "", []string{"missing port"}},
		{"PW24", kinds(http, grpc), "", "1", "", []string{"spec: json: cannot unmarshal number"}},
		{"PW24/one rule", kinds(tls, tcp), "", "1", "", []string{"spec: json: cannot unmarshal number", "has one rule, and not 0"}},
		{"PW24/of policy", kinds(own), "", "1", "cannot unmarshal number", nil},
		{
			"PW24/a part", kinds(http), "", match("{path: {value: a}}, {path: {type: Foo}}"), "",
			[]string{`path "a"`, `type "Foo" of a path is unknown`},
		},
		{"PW24/a part, of policy", kinds(own), "", match("{path: {type: Foo}}"), `type "Foo"`, nil},
		{"PW25/Service", kinds(own, http), "retry.linkerd.io/http: foo", rule("{}"), `"foo": no status`, nil},
		{"PW25/gRPC", kinds(grpc), "retry.linkerd.io/grpc: foo", rule("{}"), `"foo": no code`, nil},
		{"PW25/timeout", kinds(own, http, grpc), "timeout.linkerd.io/idle: foo", rule("{}"), "not a duration", nil},
		{"PW25/Gateway", kinds(own, http), "retry.linkerd.io/http: foo", "{" + toGateway + "}", "", nil},
		{"EgressNetwork without port", kinds(own, http, grpc, tls, tcp), "", "{" + toAllPorts + ", rules: [{}]}", "without a port", nil},
		{"gRPC method", kinds(grpc), "", match("{method: {type: RegularExpression, method: m}}"), "regular expression", nil},
		{
			"gRPC header", kinds(grpc), "", match("{headers: [{type: RegularExpression, name: a, value: '('}]}"), "",
			[]string{"missing closing )"},
		},
		{"two rules", kinds(tls, tcp), "", rule("{}, {}"), "has one rule, and not 2", nil},
		{"no rules", kinds(tls, tcp), "", "{" + toService + "}", "has one rule, and not 0", nil},

		{"PW29/identity", kinds(limit), "", limited("total: {requestsPerSecond: 1}, identity: {requestsPerSecond: 2}"), "more than the total", nil},
		{"PW29/override", kinds(limit), "", limited("total: {requestsPerSecond: 1}, overrides: [{requestsPerSecond: 2}]"), "more than the total", nil},
		{"PW29/0", kinds(limit), "", limited("total: {requestsPerSecond: 0}"), "0 requests", nil},
		{"PW29/target", kinds(limit), "", "{targetRef: {group: apps, kind: Deployment, name: d}}", "no Server", nil},
		{
			"PW29/client", kinds(limit), "", limited("overrides: [{requestsPerSecond: 2, clientRefs: [{kind: Pod, name: p}]}]"),
			"gives no identity", nil,
		},
		{"PW30", kinds(limit), "", limited("identity: {requestsPerSecond: 100}, overrides: [{requestsPerSecond: 200}]"), "", nil},

		{"PW34/weights", kinds(own, http), "", backend("{name: api, port: 80, weight: 0}"), "", []string{"no backend has a weight"}},
		{"PW34/limit", kinds(own, http, grpc), "retry.linkerd.io/limit: '2'", rule("{}"), "", []string{"nothing is tried again"}},
		{
			"PW34/port", kinds(own, http, grpc), "", "{parentRefs: [{group: policy.linkerd.io, kind: Server, name: v, port: 80}]}", "",
			[]string{"Server v is referred to with a port"},
		},
		{"zero", kinds(own, http), "timeout.linkerd.io/idle: '0'", rule("{timeouts: {request: 0s}}"), "", []string{"timeout of 0", "timeout of 0"}},
		{"egress annotations", kinds(egress), "retry.linkerd.io/limit: x", "{trafficPolicy: Allow}", "", []string{"annotation: retry.linkerd.io/limit"}},
	} {
		for _, kind := range c.kinds {
			t.Run(c.id+" "+kind.String(), func(t *testing.T) {
				v := reviewed(t, kind, c.annotations, c.spec)
				if (v.Denied == "") != (c.denied == "") || !strings.Contains(v.Denied, c.denied) {
					t.Errorf("denied: %q, want %q", v.Denied, c.denied)
				}
				if !contain(v.Warnings, c.warnings) {
					t.Errorf("warnings %q, want %q", v.Warnings, c.warnings)
				}
			})
		}
	}
}

func TestReviewBounds(t *testing.T) {
	// PW31
	for _, c := range [][2]string{{"", "Pod"}, {"apps", "Deployment"}, {"policy.linkerd.io", "Foo"}, {"", ""}, {"", "Service"}} {
		if v := Review(c[0], c[1], []byte("{}"), nil); v.Denied != "unsupported resource type" || v.Warnings != nil {
			t.Errorf("%s of %q: %+v", c[1], c[0], v)
		}
	}
	// Of any version, and without regard to case.
	if v := Review("Policy.Linkerd.io", "server", []byte(`{"spec":{"podSelector":{},"port":80}}`), nil); v.Denied != "" {
		t.Errorf("%+v", v)
	}

	// PW35
	thirty := "{" + toService + ", rules: [" + strings.Repeat("{retry: {}},", 30) + "]}"
	v := reviewed(t, rules.KindHTTPRoute, "", thirty)
	if len(v.Warnings) != maxWarnings || v.Warnings[9] != "and 21 more" {
		t.Errorf("PW35: %q", v.Warnings)
	}
	ten := "{" + toService + ", rules: [" + strings.Repeat("{retry: {}},", 10) + "]}"
	if v := reviewed(t, rules.KindHTTPRoute, "", ten); len(v.Warnings) != 10 || v.Warnings[9] != "rule 10: rule: retry is not used" {
		t.Errorf("%q", v.Warnings)
	}

	for _, object := range []string{"", "null", "[]", "{", `{"metadata":1}`, `{"metadata":{"annotations":{"a":1}}}`} {
		if v := Review("policy.linkerd.io", "HTTPRoute", []byte(object), nil); v.Denied == "" {
			t.Errorf("%s is allowed", object)
		}
		if v := Review("gateway.networking.k8s.io", "HTTPRoute", []byte(object), nil); v.Denied != "" || len(v.Warnings) == 0 {
			t.Errorf("%s: %+v", object, v)
		}
	}
	large := []byte(`{"spec":{"podSelector":{},"port":80,"x":"` + strings.Repeat("a", maxBytes) + `"}}`)
	if v := Review("policy.linkerd.io", "Server", large, nil); !strings.Contains(v.Denied, "bytes, more than") {
		t.Errorf("%+v", v)
	}
	many := []byte(`{"spec":{"rules":[` + strings.Repeat("{},", maxObjects) + `{}]}}`)
	if v := Review("gateway.networking.k8s.io", "HTTPRoute", many, nil); !strings.Contains(v.Denied, "JSON objects") {
		t.Errorf("%+v", v)
	}
	long := strings.Repeat("ä", 1000)
	if v := reviewed(t, rules.KindServer, "", "{podSelector: {}, port: 80, proxyProtocol: "+long+"}"); len(v.Denied) > maxWarning {
		t.Errorf("%d bytes", len(v.Denied))
	}
}

// What is referred to and is known not to exist is a warning. What is not known to exist is none.
func TestReferents(t *testing.T) {
	const (
		policy = "{" + onServer + ", requiredAuthenticationRefs: " +
			"[{kind: ServiceAccount, name: sa}, {group: policy.linkerd.io, kind: NetworkAuthentication, namespace: n2, name: nets}]}"
		limit = "{" + onServer + ", total: {requestsPerSecond: 1}}"
	)
	var asked []rules.Reference
	object := func(spec string) []byte {
		raw, err := yaml.YAMLToJSON([]byte("metadata: {namespace: shop}\nspec: " + spec))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	missing := func(of rules.Reference) (exists, known bool) {
		asked = append(asked, of)
		return of.Kind == rules.KindServer, of.Kind != rules.KindServiceAccount
	}

	v := Review("policy.linkerd.io", "AuthorizationPolicy", object(policy), missing)
	if v.Denied != "" || !slices.Equal(v.Warnings, []string{"reference: NetworkAuthentication nets does not exist at present"}) {
		t.Errorf("%+v", v)
	}
	Review("policy.linkerd.io", "HTTPLocalRateLimitPolicy", object(limit), missing)
	server := rules.Reference{Kind: rules.KindServer, Namespace: "shop", Name: "v"}
	want := []rules.Reference{
		server,
		{Kind: rules.KindServiceAccount, Namespace: "shop", Name: "sa"},
		{Kind: rules.KindNetworkAuthentication, Namespace: "n2", Name: "nets"},
		server,
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked for %v, want %v", asked, want)
	}

	unknown := func(rules.Reference) (exists, known bool) { return false, false }
	if v := Review("policy.linkerd.io", "AuthorizationPolicy", object(policy), unknown); v.Denied != "" || v.Warnings != nil {
		t.Errorf("%+v", v)
	}
}

// PW38, PW39: whatever the spec is, there is a verdict in bounds, and what is allowed without a warning converts.
func FuzzReview(f *testing.F) {
	for kind, spec := range valid {
		b, err := yaml.YAMLToJSON([]byte(spec))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(kind), b)
		f.Add(uint8(kind), []byte(hostileRoute))
	}
	f.Fuzz(func(t *testing.T, n uint8, spec []byte) {
		if int(n) > int(rules.KindTCPRoute) {
			return
		}
		kind := rules.Kind(n)
		raw := fmt.Appendf(nil, `{"metadata":{"name":"x","namespace":"shop"},"spec":%s}`, spec)
		v := Review(kind.Group(), kind.String(), raw, nil)

		if v.Denied != "" && len(v.Warnings) > 0 || len(v.Denied) > maxWarning || len(v.Warnings) > maxWarnings {
			t.Errorf("%s: %+v", spec, v)
		}
		for _, w := range v.Warnings {
			if w == "" || len(w) > maxWarning || strings.Contains(w, "\n") {
				t.Errorf("%s: %q", spec, w)
			}
		}

		var u unstructured.Unstructured
		if kubejson.UnmarshalCaseSensitivePreserveInts(raw, &u.Object) != nil || v.Denied != "" || len(v.Warnings) > 0 {
			return
		}
		of, is := KindOf(kind)
		if !is {
			t.Fatalf("%v is allowed", kind)
		}
		if o, err := of.Read(&u); err != nil || len(o.Metadata().Findings) > 0 {
			t.Errorf("%s is allowed without a warning, and read as %+v: %v", spec, o, err)
		}
	})
}

package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"
	kubejson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/admission"
	"github.com/fingerpost/fingerpost/cluster/ruleobject"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// policyServer returns a server of the review of objects of policy.
func policyServer(lookup ruleobject.Lookup) *admission.Server {
	return admission.NewServer(logr.Discard(), 1, map[string][]admission.Review{"/": {Policy(lookup)}})
}

// policyBody returns a review, in a version, of an object of namespace shop: its annotations and its spec in YAML.
func policyBody(tb rapid.TB, version string, kind rules.Kind, annotations, spec string) []byte {
	tb.Helper()
	object, err := yaml.YAMLToJSON([]byte(
		"metadata: {namespace: shop, name: x, annotations: {" + annotations + "}}\nspec: " + spec))
	if err != nil {
		tb.Fatalf("%s: %v", spec, err)
	}
	return policyReview(version, kind.Group(), kind.String(), object)
}

func policyReview(version, group, kind string, object []byte) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/%s","kind":"AdmissionReview","request":{"uid":"u1","kind":`+
		`{"group":%q,"version":"v9","kind":%q},"operation":"UPDATE","object":%s}}`, version, group, kind, object)
}

// verdict returns the response to a review.
func verdict(tb rapid.TB, hook http.Handler, body []byte) *admissionv1.AdmissionResponse {
	tb.Helper()
	to := post(hook, body)
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(to.Body.Bytes(), &answer); err != nil || to.Code != http.StatusOK ||
		answer.Response == nil {
		tb.Fatalf("%s: %d %s: %v", body, to.Code, to.Body, err)
	}
	return answer.Response
}

const (
	toService = "parentRefs: [{group: '', kind: Service, name: web, port: 80}]"
	toServer  = "parentRefs: [{group: policy.linkerd.io, kind: Server, name: v}]"
	toGateway = "parentRefs: [{name: gateway}]"
	toEgress  = "parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: out, port: 80}]"
	onServer  = "targetRef: {group: policy.linkerd.io, kind: Server, name: v}"

	meshRef    = "{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: m}"
	netsRef    = "{group: policy.linkerd.io, kind: NetworkAuthentication, name: nets}"
	accountRef = "{kind: ServiceAccount, name: sa}"
)

// valid is an object of each kind.
var valid = map[rules.Kind]string{
	rules.KindServer:                "{podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: HTTP/1, accessPolicy: deny}",
	rules.KindServerAuthorization:   "{server: {selector: {}}, client: {meshTLS: {identities: ['*']}}}",
	rules.KindAuthorizationPolicy:   "{" + onServer + ", requiredAuthenticationRefs: [" + accountRef + "]}",
	rules.KindMeshTLSAuthentication: "{identities: ['*.a.b', 'spiffe://t.d/a']}",
	rules.KindNetworkAuthentication: "{networks: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}]}",
	rules.KindRateLimit: "{" + onServer +
		", total: {requestsPerSecond: 10}, identity: {requestsPerSecond: 5}}",
	rules.KindEgressNetwork: "{trafficPolicy: Allow}",
	rules.KindPolicyHTTPRoute: "{" + toService +
		", rules: [{matches: [{path: {value: /a}}], timeouts: {request: 1m30s}}]}",
	rules.KindHTTPRoute: "{" + toEgress +
		", hostnames: [a.b], rules: [{backendRefs: [{name: api, port: 80}]}]}",
	rules.KindGRPCRoute: "{" + toServer + ", rules: [{matches: [{method: {service: s}}]}]}",
	rules.KindTLSRoute: "{" + toEgress +
		", hostnames: ['*.a.b'], rules: [{backendRefs: [{name: api, port: 80}]}]}",
	rules.KindTCPRoute: "{" + toService + ", rules: [{}]}",
}

// A policyCase is an object of a row, and what the row has of it.
type policyCase struct {
	kind        rules.Kind
	annotations string
	spec        string
	denied      bool
	warnings    []string // a part of each
}

// testPolicyCases are the contract cases of section PW, and the warnings in a case of another section.
func testPolicyCases(t *testing.T) {
	t.Helper()
	for id, cases := range policyCases() {
		t.Run(id, func(t *testing.T) {
			for i, c := range cases {
				r := verdict(t, policyServer(nil), policyBody(t, "v1", c.kind, c.annotations, c.spec))
				if r.UID != "u1" || r.Allowed == c.denied {
					t.Errorf("object %d, %v %s: allowed=%t: %v", i, c.kind, c.spec, r.Allowed, r.Result)
				}
				if !slices.EqualFunc(r.Warnings, c.warnings, strings.Contains) {
					t.Errorf("object %d, %v %s: warnings %q, want %q", i, c.kind, c.spec, r.Warnings, c.warnings)
				}
			}
		})
	}
	t.Run("PW31", testNoReview)
	t.Run("PW32", testVersions)
	t.Run("PW34", testWarnings)
	t.Run("PW35", testManyWarnings)
	t.Run("PW38", testRandomSpecs)
	t.Run("PW39", testAdmittedConverts)
}

func policyCases() map[string][]policyCase {
	const (
		saz, policy    = rules.KindServerAuthorization, rules.KindAuthorizationPolicy
		mtls, networks = rules.KindMeshTLSAuthentication, rules.KindNetworkAuthentication
		server, limit  = rules.KindServer, rules.KindRateLimit
		egress, own    = rules.KindEgressNetwork, rules.KindPolicyHTTPRoute
		httpRoute, rpc = rules.KindHTTPRoute, rules.KindGRPCRoute
	)
	requiring := func(refs string) string { return "{" + onServer + ", requiredAuthenticationRefs: [" + refs + "]}" }
	target := func(ref string) string { return "{targetRef: " + ref + ", requiredAuthenticationRefs: []}" }
	client := func(text string) string { return "{server: {name: v}, client: " + text + "}" }
	rule := func(text string) string { return "{" + toService + ", rules: [" + text + "]}" }
	match := func(text string) string { return rule("{matches: [" + text + "]}") }
	filters := func(text string) string { return rule("{filters: [" + text + "]}") }
	backend := func(text string) string { return rule("{backendRefs: [" + text + "]}") }
	limited := func(text string) string { return "{" + onServer + ", " + text + "}" }
	net := func(text string) string { return "{trafficPolicy: Allow, networks: [" + text + "]}" }

	denied := func(kind rules.Kind, specs ...string) (all []policyCase) {
		for _, spec := range specs {
			all = append(all, policyCase{kind: kind, spec: spec, denied: true})
		}
		return all
	}
	allowed := func(kind rules.Kind, specs ...string) (all []policyCase) {
		for _, spec := range specs {
			all = append(all, policyCase{kind: kind, spec: spec})
		}
		return all
	}
	identities := func(texts ...string) (specs []string) {
		for _, text := range texts {
			specs = append(specs, "{identities: ['"+text+"']}")
		}
		return specs
	}

	badParts := []string{
		match("{path: {value: a}}"),
		match("{path: {type: RegularExpression, value: '('}}"),
		match("{headers: [{name: 'a b', value: v}]}"),
		filters("{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: x}}}"),
	}
	var ofEachKind []policyCase
	for kind, spec := range valid {
		ofEachKind = append(ofEachKind, policyCase{kind: kind, spec: spec})
	}

	return map[string][]policyCase{
		"PR60": {{
			kind: httpRoute, spec: rule("{timeouts: {request: 3s, backendRequest: 1s}, retry: {attempts: 3}, " +
				"sessionPersistence: {sessionName: s}}"),
			warnings: []string{"backendRequest", "retry", "sessionPersistence"},
		}},
		"PW01": ofEachKind,
		"PW03": denied(policy, requiring(meshRef+","+meshRef), requiring(accountRef+","+accountRef),
			requiring(meshRef+","+accountRef), requiring(netsRef+","+netsRef)),
		"PW04": denied(policy, target("{group: apps, kind: Deployment, name: d}"), requiring("{kind: Pod, name: p}")),
		"PW05": slices.Concat(allowed(policy, requiring("")), denied(policy, "{"+onServer+"}")),
		"PW06": slices.Concat(
			allowed(policy,
				target("{group: gateway.networking.k8s.io, kind: HTTPRoute, name: r}"),
				target("{group: policy.linkerd.io, kind: HTTPRoute, name: r}"),
				target("{group: gateway.networking.k8s.io, kind: GRPCRoute, name: r}")),
			denied(policy, target("{group: gateway.networking.k8s.io, kind: TLSRoute, name: r}"))),

		"PW07": allowed(mtls, identities("*", "*.a.b", "a.b", "spiffe://t.d/a/b")...),
		"PW08": denied(mtls, identities("Foo.bar", "a..b", ".a", "a.", "a.*", "")...),
		"PW09": denied(mtls, identities("spiffe:///x", "spiffe://t/", "spiffe://t/a//b", "spiffe://t/a/..",
			"spiffe://t:80/x", "spiffe://T/x")...),

		"PW11": denied(server, "{podSelector: {}, port: 80, proxyProtocol: foo}",
			"{podSelector: {}, port: 80, accessPolicy: foo}",
			"{podSelector: {}, port: 0}", "{port: 80}"),
		"PW12": allowed(server, "{podSelector: {}, port: 80}"),

		"PW13": slices.Concat(
			denied(networks, net("{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}"),
				net("{cidr: 10.0.0.0/8, except: [192.168.0.0/16]}"), net("{cidr: 10.0.0.0/33}")),
			denied(egress, net("{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}"),
				net("{cidr: 10.0.0.0/8, except: [192.168.0.0/16]}"), net("{cidr: 10.0.0.0/33}")),
			denied(saz, client("{unauthenticated: true, networks: [{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}]}"),
				client("{unauthenticated: true, networks: [{cidr: 10.0.0.0/8, except: [192.168.0.0/16]}]}"),
				client("{unauthenticated: true, networks: [{cidr: 10.0.0.0/33}]}"))),
		"PW14": slices.Concat(
			allowed(networks, net("{cidr: 10.0.0.1}"), net("{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}")),
			allowed(egress, net("{cidr: 10.0.0.1}"), net("{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}"))),
		"PW15": slices.Concat(denied(networks, "{networks: []}"), denied(egress, net("")), allowed(egress,
			"{trafficPolicy: Allow}")),
		"PW16": denied(saz, client("{unauthenticated: true, meshTLS: {identities: ['*']}}"),
			client("{meshTLS: {unauthenticatedTLS: true, identities: ['*']}}"),
			client("{meshTLS: {unauthenticatedTLS: true, serviceAccounts: [{name: sa}]}}")),

		"PW18": denied(own, badParts...),
		"PW19": denied(httpRoute, badParts...),
		"PW20": denied(own, filters("{type: RequestMirror}"), rule("{timeouts: {backendRequest: 2s, request: 1s}}"),
			rule("{timeouts: {request: -1s}}")),
		"PW21": {{
			kind: httpRoute, spec: rule("{filters: [{type: RequestMirror}, {type: URLRewrite}, {type: " +
				"ExtensionRef}], " +
				"backendRefs: [{kind: Foo, name: f}]}"),
			warnings: []string{"RequestMirror", "URLRewrite", "ExtensionRef", "Foo"},
		}},
		"PW22": slices.Concat(
			denied(httpRoute, backend("{group: '', kind: Service, name: api}"),
				backend("{kind: Service, name: api, port: 0}"), backend("{name: api}")),
			denied(rpc, backend("{group: '', kind: Service, name: api}"),
				backend("{kind: Service, name: api, port: 0}"), backend("{name: api}"))),
		"PW23": {
			{kind: httpRoute, spec: backend("{kind: service, name: api}"), warnings: []string{"missing port"}},
			{kind: rpc, spec: backend("{kind: service, name: api}"), warnings: []string{"missing port"}},
		},
		"PW24": {
			{kind: httpRoute, spec: "1", warnings: []string{"spec"}},
			{kind: rpc, spec: "{rules: a}", warnings: []string{"rule"}},
		},
		"PW25": {
			{kind: own, annotations: "retry.linkerd.io/http: foo", spec: rule("{}"), denied: true},
			{kind: own, annotations: "retry.linkerd.io/http: foo", spec: "{" + toGateway + "}"},
			{kind: httpRoute, annotations: "retry.linkerd.io/http: foo", spec: rule("{}"), denied: true},
			{kind: httpRoute, annotations: "retry.linkerd.io/http: foo", spec: "{" + toGateway + "}"},
		},

		"PW29": denied(limit, limited("total: {requestsPerSecond: 1}, identity: {requestsPerSecond: 2}"),
			limited("total: {requestsPerSecond: 1}, overrides: [{requestsPerSecond: 2}]"),
			limited("total: {requestsPerSecond: 0}"),
			"{targetRef: {group: apps, kind: Deployment, name: d}}",
			limited("overrides: [{requestsPerSecond: 2, clientRefs: [{kind: Pod, name: p}]}]")),
		"PW37": casesOfLinkerd(),
		"PW30": allowed(limit, limited("identity: {requestsPerSecond: 100}, overrides: [{requestsPerSecond: 200}]")),
	}
}

// PW31: what the webhook is not for. A denial without a UID is one that no API server takes for an answer.
func testNoReview(t *testing.T) {
	hook := policyServer(nil)
	r := verdict(t, hook, policyReview("v1", "apps", "Deployment", []byte("{}")))
	if r.UID != "u1" || r.Allowed || r.Result.Message != "unsupported resource type" {
		t.Errorf("an unknown kind: %+v", r)
	}

	body := policyBody(t, "v1", rules.KindServer, "", valid[rules.KindServer])
	for _, c := range []struct{ method, path string }{
		{http.MethodGet, "/"}, {http.MethodPut, "/"}, {http.MethodHead, "/"}, {http.MethodPost, "/x"}, {
			http.MethodPost,
			"//",
		},
	} {
		to := httptest.NewRecorder()
		hook.ServeHTTP(to, httptest.NewRequest(c.method, "http://webhook"+c.path, bytes.NewReader(body)))
		if to.Code != http.StatusNotFound {
			t.Errorf("%s %s: %d %s", c.method, c.path, to.Code, to.Body)
		}
	}

	for _, garbage := range []string{
		"", "nothing", "{}", "[]", "{", `{"request":null}`, `{"request":{"uid":""}}`,
		`{"apiVersion":"v1","kind":"Pod","request":{"uid":"u1"}}`,
	} {
		if r := verdict(t, hook, []byte(garbage)); r.UID != "" || r.Allowed || r.Result.Message == "" {
			t.Errorf("%q: %+v", garbage, r)
		}
	}
}

// PW32: the answer is in the version of the request.
func testVersions(t *testing.T) {
	for _, version := range []string{"v1", "v1beta1"} {
		to := post(policyServer(nil), policyBody(t, version, rules.KindServer, "", valid[rules.KindServer]))
		want := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/` + version +
			`","response":{"uid":"u1","allowed":true}}` + "\n"
		if to.Code != http.StatusOK || to.Body.String() != want {
			t.Errorf("%d %s", to.Code, to.Body)
		}
	}
}

// PW34: what has no effect is allowed with a warning.
func testWarnings(t *testing.T) {
	const own = rules.KindPolicyHTTPRoute
	missing := func(of rules.Reference) (exists, known bool) { return of.Kind == rules.KindServer, true }
	hook := policyServer(missing)
	long := strings.Repeat("m", 253)
	for _, c := range []policyCase{
		{own, "", "{" + toService + ", rules: [{backendRefs: [{name: a, port: 80, weight: 0}, {name: b, port: 80, weight: 0}]}]}", false, []string{"weight"}},
		{
			own, "retry.linkerd.io/limit: '2'", "{" + toService + ", rules: [{}]}", false,
			[]string{"nothing is tried again"},
		},
		{
			own, "", "{parentRefs: [{group: policy.linkerd.io, kind: Server, name: v, port: 80}]}", false,
			[]string{"with a port"},
		},
		{
			rules.KindAuthorizationPolicy, "", "{" + onServer + ", requiredAuthenticationRefs: [" + meshRef + "]}",
			false,
			[]string{"MeshTLSAuthentication m does not exist"},
		},
		{
			rules.KindAuthorizationPolicy, "",
			"{" + onServer + ", requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: NetworkAuthentication, name: " + long + "}]}",
			false,
			[]string{"NetworkAuthentication m"},
		},
	} {
		r := verdict(t, hook, policyBody(t, "v1", c.kind, c.annotations, c.spec))
		if !r.Allowed || !slices.EqualFunc(r.Warnings, c.warnings, strings.Contains) || len(r.Warnings[0]) > 256 {
			t.Errorf("%s: %+v", c.spec, r)
		}
	}

	// What is not known to exist is not missing.
	unknown := func(rules.Reference) (exists, known bool) { return false, false }
	for _, lookup := range []ruleobject.Lookup{unknown, nil} {
		spec := "{" + onServer + ", requiredAuthenticationRefs: [" + meshRef + "]}"
		r := verdict(t, policyServer(lookup), policyBody(t, "v1", rules.KindAuthorizationPolicy, "", spec))
		if !r.Allowed || r.Warnings != nil {
			t.Errorf("%+v", r)
		}
	}
}

// PW35: of thirty findings ten lines are sent.
func testManyWarnings(t *testing.T) {
	spec := "{" + toService + ", rules: [" + strings.Repeat("{retry: {}},", 30) + "]}"
	r := verdict(t, policyServer(nil), policyBody(t, "v1", rules.KindHTTPRoute, "", spec))
	if !r.Allowed || len(r.Warnings) != 10 || r.Warnings[9] != "and 21 more" {
		t.Errorf("%+v", r)
	}
	for _, w := range r.Warnings {
		if len(w) > 256 {
			t.Errorf("%d bytes: %s", len(w), w)
		}
	}
}

// hostile are specs that are no usual ones, and pieces of others.
var hostile = []string{
	"", "null", "[]", "{", `""`, "1e999", `{"rules":[null,{}],"parentRefs":{}}`,
	`{"rules":[` + strings.Repeat("[],", 9999) + `[]]}`,
	`{"rules":[{"matches":[{"path":{"type":"RegularExpression","value":"` + strings.Repeat("((a*)*b){9}", 99) + `"}}]}]}`,
	`{"networks":[{"cidr":"::/0","except":["::/1","8000::/1"]}],"identities":["*.*"],"port":-1,"trafficPolicy":1}`,
	`{"podSelector":{"matchExpressions":[{"key":"\u0000","operator":"In","values":null}]},"port":65536,"server":{}}`,
	strings.Repeat(`{"rules":[`, 5000),
}

// PW38: whatever the spec, a review is answered, soon.
func testRandomSpecs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	hook := policyServer(nil)
	seeds := slices.Clone(hostile)
	for _, spec := range valid {
		raw, err := yaml.YAMLToJSON([]byte(spec))
		if err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, string(raw))
	}
	slices.Sort(seeds) // the same run each time

	slowest := time.Duration(0)
	for kind := rules.KindServer; kind <= rules.KindTCPRoute; kind++ {
		for _, seed := range seeds {
			for round := range 20 {
				spec := []byte(seed)
				for range min(round, len(spec)) {
					spec[random.IntN(len(spec))] = byte(random.IntN(256))
				}
				began := time.Now()
				checkVerdict(t, hook, kind, spec)
				slowest = max(slowest, time.Since(began))
			}
		}
	}

	t.Logf("the slowest answer took %s", slowest)
	if slowest > 500*time.Millisecond { // five times the bound
		t.Errorf("an answer took %s", slowest)
	}
}

// checkVerdict checks that a review of any bytes is answered, within the bounds on answers.
func checkVerdict(tb testing.TB, hook http.Handler, kind rules.Kind, spec []byte) {
	tb.Helper()
	object := fmt.Appendf(nil, `{"metadata":{"name":"x","namespace":"shop"},"spec":%s}`, spec)
	r := verdict(tb, hook, policyReview("v1", kind.Group(), kind.String(), object))
	if r.UID != "u1" && r.UID != "" || r.Allowed != (r.Result == nil) || r.Allowed && r.UID == "" ||
		len(r.Warnings) > 10 {
		tb.Errorf("%v %q: %+v", kind, spec, r)
	}
	if r.UID == "u1" && r.Result != nil && len(r.Result.Message) > 256 {
		tb.Errorf("%v %q: %d bytes", kind, spec, len(r.Result.Message))
	}
	for _, w := range r.Warnings {
		if w == "" || len(w) > 256 || strings.Contains(w, "\n") {
			tb.Errorf("%v %q: warning %q", kind, spec, w)
		}
	}
}

// FuzzPolicy: PW38, with what the fuzzer finds.
func FuzzPolicy(f *testing.F) {
	for kind, spec := range valid {
		raw, err := yaml.YAMLToJSON([]byte(spec))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(kind), raw)
	}
	for i, spec := range hostile {
		f.Add(uint8(i), []byte(spec))
	}
	hook := policyServer(nil)
	f.Fuzz(func(t *testing.T, n uint8, spec []byte) {
		checkVerdict(t, hook, rules.KindServer+rules.Kind(n)%(rules.KindTCPRoute-rules.KindServer+1), spec)
	})
}

// pieces are values of fields by name, good ones and bad ones. An object is made of some of them.
var pieces = map[string][]string{
	"annotations": {
		"retry.linkerd.io/http: 5xx", "retry.linkerd.io/http: foo", "retry.linkerd.io/limit: '2'",
		"timeout.linkerd.io/request: 1s", "timeout.linkerd.io/idle: x",
	},

	"podSelector": {
		"{}", "{matchLabels: {a: b}}",
		"{matchExpressions: [{key: a, operator: In, values: [b]}]}", "{matchExpressions: [{key: a, operator: Foo}]}",
		"1",
	},
	"externalWorkloadSelector": {"{}", "{matchLabels: {a: b}}"},
	"port":                     {"80", "http", "0", "70000", "true", "''"},
	"proxyProtocol":            {"HTTP/1", "gRPC", "foo", "opaque"},
	"accessPolicy":             {"deny", "audit", "all-unauthenticated", "foo"},

	"server": {"{name: v}", "{selector: {}}", "{}", "{name: v, selector: {}}"},
	"client": {
		"{unauthenticated: true}", "{}", "{meshTLS: {identities: ['*', a.b, '']}}",
		"{meshTLS: {unauthenticatedTLS: true}}",
		"{meshTLS: {serviceAccounts: [{name: sa}, {name: '', namespace: n}]}}",
		"{networks: [{cidr: 10.0.0.0/8}], meshTLS: {identities: [x]}}",
		"{unauthenticated: true, networks: [{cidr: foo}]}",
	},
	"targetRef": {
		"{group: policy.linkerd.io, kind: Server, name: v}", "{kind: Namespace, name: shop}",
		"{kind: Namespace, name: other}",
		"{group: gateway.networking.k8s.io, kind: GRPCRoute, name: r}", "{kind: Pod, name: p}",
	},
	"requiredAuthenticationRefs": {"[]", "[" + meshRef + "]", "[" + accountRef + ", " + netsRef + "]", "[" +
		meshRef + ", " + accountRef + "]", "[{}]"},
	"identities": {"['*']", "[a.b, '*.c']", "['spiffe://t/a']", "[]", "[A]"},
	"identityRefs": {
		"[{kind: ServiceAccount, name: a}]", "[{kind: Namespace, name: n}]",
		"[{kind: Pod, name: p}]",
	},
	"networks": {
		"[{cidr: 10.0.0.0/8}]", "[{cidr: '::/0', except: ['::1']}]", "[]",
		"[{cidr: 10.0.0.0/8, except: [11.0.0.0/8]}]", "[{cidr: 10.0.0.1}]",
	},
	"trafficPolicy": {"Allow", "Deny", "Foo"},
	"total":         {"{requestsPerSecond: 10}", "{requestsPerSecond: 0}"},
	"identity":      {"{requestsPerSecond: 5}", "{requestsPerSecond: 50}", "{}"},
	"overrides": {
		"[{requestsPerSecond: 3, clientRefs: [{kind: ServiceAccount, name: a}]}]", "[{requestsPerSecond: 3}]",
		"[{requestsPerSecond: 1, clientRefs: [{kind: Pod, name: a}]}]",
	},

	"parentRefs": {
		"[{group: '', kind: Service, name: web, port: 80}]", "[{group: policy.linkerd.io, kind: Server, name: v}]",
		"[{group: policy.linkerd.io, kind: Server, name: v, port: 1}]", "[{name: gateway}]",
		"[{group: policy.linkerd.io, kind: EgressNetwork, name: out, port: 80}]",
		"[{group: core, kind: service, name: web, port: 70000}]", "[]",
	},
	"hostnames": {"[a.b]", "['*.c.d']", "['a..b']", "['*']", "[]"},
	"rules":     {"[]", "[null]", "1"},
}

var rulePieces = map[string][]string{
	"matches": {
		"[]", "[{path: {value: /a}}]", "[{path: {type: Exact, value: a}}]",
		"[{path: {type: RegularExpression, value: 'a.*'}}]",
		`[{path: {type: RegularExpression, value: '\Qa'}}, {method: GET}]`, "[{headers: [{name: a, value: b}]}]", "[{headers: [{name: 'a b', value: b}]}]",
		"[{queryParams: [{type: RegularExpression, name: q, value: '['}]}]", "[{method: {service: s, method: m}}]",
		"[{method: {type: RegularExpression, method: m}}]", "[{path: {type: Foo, value: /}}]",
	},
	"filters": {
		"[]", "[{type: RequestHeaderModifier, requestHeaderModifier: {add: [{name: a, value: b}]}}]", "[{type: URLRewrite}]",
		"[{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [a]}}]", "[{type: RequestMirror}]",
		"[{type: RequestRedirect, requestRedirect: {port: 80, statusCode: 301}}]", "[{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: x}}}]",
		"[{type: RequestHeaderModifier}]",
	},
	"backendRefs": {
		"[]", "[{name: a, port: 80}]", "[{name: a}]", "[{name: a, port: 80, weight: 0}]", "[{kind: Foo, name: a}]",
		"[{name: a, port: 80, weight: -1}]",
		"[{name: a, port: 80, filters: [{type: URLRewrite}]}]",
		"[{group: policy.linkerd.io, kind: EgressNetwork, name: out}]", "[{kind: service, name: a}]",
	},
	"timeouts": {
		"{request: 1s}", "{request: 0s}", "{request: x}", "{backendRequest: 1s, request: 2s}",
		"{backendRequest: 3s, request: 2s}",
	},
	"retry":              {"{}", "{attempts: 3}"},
	"sessionPersistence": {"{}"},
}

// fields are those of the spec of a kind that is no route.
var fields = map[rules.Kind][]string{
	rules.KindServer: {
		"podSelector", "externalWorkloadSelector", "port", "proxyProtocol",
		"accessPolicy",
	},
	rules.KindServerAuthorization:   {"server", "client"},
	rules.KindAuthorizationPolicy:   {"targetRef", "requiredAuthenticationRefs"},
	rules.KindMeshTLSAuthentication: {"identities", "identityRefs"},
	rules.KindNetworkAuthentication: {"networks"},
	rules.KindRateLimit:             {"targetRef", "total", "identity", "overrides"},
	rules.KindEgressNetwork:         {"networks", "trafficPolicy"},
}

// drawFields draws a value for most of the fields: half of the time the first one, which is good.
func drawFields(t *rapid.T, names []string, of map[string][]string) string {
	var text []string
	for _, name := range names {
		switch choice := rapid.IntRange(0, 9).Draw(t, name+"?"); {
		case choice >= 5:
			text = append(text, name+": "+of[name][0])
		case choice > 0:
			text = append(text, name+": "+rapid.SampledFrom(of[name]).Draw(t, name))
		}
	}

	return "{" + strings.Join(text, ", ") + "}"
}

func drawSpec(t *rapid.T, kind rules.Kind) string {
	if !kind.IsRoute() {
		return drawFields(t, fields[kind], pieces)
	}
	names := []string{"parentRefs", "hostnames"}
	if rapid.IntRange(0, 9).Draw(t, "odd rules") == 0 {
		return drawFields(t, append(names, "rules"), pieces)
	}

	var all []string
	for range rapid.IntRange(1, 2).Draw(t, "rules") {
		of := []string{"backendRefs"}
		if rapid.Bool().Draw(t, "more than backends") {
			of = append(of, "matches", "filters", "timeouts", "retry", "sessionPersistence")
		}
		all = append(all, drawFields(t, of, rulePieces))
	}
	spec := drawFields(t, names, pieces)
	return strings.TrimSuffix(spec, "}") + ", rules: [" + strings.Join(all, ", ") + "]}"
}

// PW39: what does not convert in an object that was admitted was warned about.
func testAdmittedConverts(t *testing.T) {
	hook := policyServer(nil)
	admitted, clean := map[rules.Kind]int{}, map[rules.Kind]int{}

	rapid.Check(t, func(t *rapid.T) {
		for kind := rules.KindServer; kind <= rules.KindTCPRoute; kind++ {
			annotations := rapid.SampledFrom(append([]string{"", "", ""}, pieces["annotations"]...)).Draw(t,
				"annotations")
			spec := strings.Replace(drawSpec(t, kind), "{, ", "{", 1)
			body := policyBody(t, "v1", kind, annotations, spec)
			r := verdict(t, hook, body)
			if !r.Allowed {
				continue
			}

			admitted[kind]++
			if len(r.Warnings) == 0 {
				clean[kind]++
			}
			checkConverts(t, kind, body, r.Warnings)
		}
	})

	for kind := rules.KindServer; kind <= rules.KindTCPRoute; kind++ {
		t.Logf("%s: %d admitted, %d without a warning", kind, admitted[kind], clean[kind])
		if admitted[kind] == 0 {
			t.Errorf("no %v was admitted: the property holds of nothing", kind)
		}
	}
}

// checkConverts reads an object that was admitted as the process does that serves policy.
func checkConverts(t *rapid.T, kind rules.Kind, body []byte, warnings []string) {
	var review struct {
		Request struct{ Object json.RawMessage }
	}
	var u unstructured.Unstructured
	if err := json.Unmarshal(body, &review); err != nil {
		t.Fatal(err)
	}
	if err := kubejson.UnmarshalCaseSensitivePreserveInts(review.Request.Object, &u.Object); err != nil {
		t.Fatal(err)
	}

	meta, err := readPolicy(kind, &u)
	if err != nil {
		if !slices.ContainsFunc(warnings, func(w string) bool { return strings.HasPrefix(w, "spec: ") }) {
			t.Errorf("%v %s is admitted with %q, and cannot be read: %v", kind, review.Request.Object, warnings, err)
		}
		return
	}
	for _, f := range meta.Findings {
		if !slices.Contains(warnings, f.String()) && len(warnings) < 10 {
			t.Errorf("%v %s is admitted with %q, and has %q", kind, review.Request.Object, warnings, f)
		}
	}
	if len(warnings) == 0 && len(meta.Findings) > 0 {
		t.Errorf("%v %s is admitted, and has %q", kind, review.Request.Object, meta.Findings)
	}
}

func readPolicy(kind rules.Kind, u *unstructured.Unstructured) (*rules.Meta, error) {
	of, _ := ruleobject.KindOf(kind)
	object, err := of.Read(u)
	if err != nil {
		return nil, err
	}
	return object.Metadata(), nil
}

// Reviews are counted by kind. What is no review is of no kind.
func TestPolicyReviewsAreCounted(t *testing.T) {
	policy := Policy(nil)
	hook := admission.NewServer(logr.Discard(), 1, map[string][]admission.Review{"/": {policy}})
	for _, body := range [][]byte{
		policyBody(t, "v1", rules.KindServer, "", valid[rules.KindServer]),
		policyBody(t, "v1", rules.KindHTTPRoute, "", valid[rules.KindHTTPRoute]),
		policyBody(t, "v1", rules.KindPolicyHTTPRoute, "", "1"),
		policyReview("v1", "", "Pod", []byte("{}")), []byte("?"),
	} {
		post(hook, body)
	}

	for _, c := range []struct {
		kind, verdict string
		want          float64
	}{
		{"Server.policy.linkerd.io", "allowed", 1},
		{"HTTPRoute.gateway.networking.k8s.io", "allowed", 1},
		{"HTTPRoute.policy.linkerd.io", "denied", 1},
		{"HTTPRoute.policy.linkerd.io", "allowed", 0},
		{"other", "denied", 1},
		{"other", "unreadable", 1},
	} {
		if got := testutil.ToFloat64(policy.Verdicts.WithLabelValues(c.kind, c.verdict)); got != c.want {
			t.Errorf("%g of %s are %s, want %g", got, c.kind, c.verdict, c.want)
		}
	}
	if series := testutil.CollectAndCount(policy.Verdicts); series != 4*(len(valid)+1) {
		t.Errorf("%d series", series)
	}
}

// Where both sets are reviewed at a path the kind decides, and what has none is answered as an object of policy.
func TestBothReviews(t *testing.T) {
	hook := admission.NewServer(logr.Discard(), 1, map[string][]admission.Review{"/": {ServiceProfiles(), Policy(nil)}})
	profile := func(group, kind, spec string) []byte {
		return policyReview("v1", group, kind, toJSON(t, "web.shop.svc.cluster.local", spec))
	}
	for name, c := range map[string]struct {
		body   []byte
		denied string
	}{
		"a profile":          {profile("linkerd.io", "ServiceProfile", "{routes: []}"), ""},
		"of any case":        {profile("LINKERD.io", "serviceprofile", "{routes: []}"), ""},
		"an invalid profile": {profile("linkerd.io", "ServiceProfile", "{routes: [null]}"), "spec.routes[0] is null"},
		"another group":      {profile("example.com", "ServiceProfile", "{routes: []}"), "unsupported resource type"},
		"a Server":           {policyBody(t, "v1", rules.KindServer, "", valid[rules.KindServer]), ""},
		"an invalid Server":  {policyBody(t, "v1", rules.KindServer, "", "{port: 80}"), "it has no selector"},
		"garbage":            {[]byte("garbage"), "not an AdmissionReview"},
	} {
		t.Run(name, func(t *testing.T) {
			r := verdict(t, hook, c.body)
			if r.Allowed != (c.denied == "") || !r.Allowed && !strings.Contains(r.Result.Message, c.denied) {
				t.Errorf("%+v", r)
			}
		})
	}
}

package ruleobject

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubejson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/federation/rules"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parse returns an object of namespace shop, as informers have it: its name, and its metadata and spec in YAML.
func parse(tb testing.TB, metadata, spec string) *unstructured.Unstructured {
	tb.Helper()
	b, err := yaml.YAMLToJSON([]byte("metadata: {namespace: shop, name: x, " + metadata + "}\nspec: " + spec))
	if err != nil {
		tb.Fatalf("%s: %v", spec, err)
	}
	return fromJSON(tb, b)
}

func fromJSON(tb testing.TB, raw []byte) *unstructured.Unstructured {
	tb.Helper()
	u := new(unstructured.Unstructured)
	if err := kubejson.UnmarshalCaseSensitivePreserveInts(raw, &u.Object); err != nil {
		tb.Fatal(err)
	}
	return u
}

// readable are what is compared of values: all but what every object has.
var readable = cmp.Options{
	cmpopts.IgnoreTypes(rules.Meta{}), cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b rules.Network) bool { return reflect.DeepEqual(a, b) }),
	cmp.Comparer(func(a, b rules.PortList) bool { return reflect.DeepEqual(a, b) }),
}

// A row is an object, and what it is read as.
type row[V any] struct {
	id, spec string
	want     *V       // nil if it cannot be read
	findings []string // a part of each; of the only error, if there is one
}

// compare reads the object of a row.
func compare[V any](t *testing.T, c row[V], read func(*unstructured.Unstructured) (*V, error)) {
	t.Helper()
	t.Run(c.id, func(t *testing.T) {
		got, err := read(parse(t, "", c.spec))
		if diff := cmp.Diff(c.want, got, readable); diff != "" {
			t.Errorf("%s: %v: -want +got:\n%s", c.spec, err, diff)
		}

		var findings []string
		switch {
		case err != nil:
			findings = []string{err.Error()}
		case got != nil:
			findings = lines(any(got).(Object).Metadata().Findings)
		}
		if !contain(findings, c.findings) {
			t.Errorf("%s: findings %q, want %q", c.spec, findings, c.findings)
		}
	})
}

func lines(findings []rules.Finding) (all []string) {
	for _, f := range findings {
		all = append(all, f.String())
	}
	return all
}

// contain reports whether each text contains the one of wanted at its place.
func contain(texts, wanted []string) bool {
	if len(texts) != len(wanted) {
		return false
	}
	for i, text := range texts {
		if !strings.Contains(text, wanted[i]) {
			return false
		}
	}
	return true
}

func network(cidr string, except ...string) rules.Network {
	n, err := rules.ParseNetwork(cidr, except)
	if err != nil {
		panic(err)
	}
	return n
}

func account(namespace, name string) rules.Reference {
	return rules.Reference{Kind: rules.KindServiceAccount, Namespace: namespace, Name: name}
}

func TestMeta(t *testing.T) {
	got, err := Server(parse(t,
		`creationTimestamp: "2026-01-02T03:04:05+01:00", generation: 7, labels: {a: b, c: "a\tb", "": x}`,
		"{podSelector: {}, port: 80}"))
	if err != nil {
		t.Fatal(err)
	}
	want := rules.Meta{
		Reference: rules.Reference{Kind: rules.KindServer, Namespace: "shop", Name: "x"},
		Created:   time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC), Generation: 7,
	}
	if diff := cmp.Diff(want, got.Meta); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a": "b"}, got.Labels); diff != "" {
		t.Errorf("labels: -want +got:\n%s", diff)
	}

	for name, object := range map[string]string{
		"no name":      `{"metadata":{"namespace":"shop"},"spec":{"podSelector":{},"port":80}}`,
		"no namespace": `{"metadata":{"name":"x"},"spec":{"podSelector":{},"port":80}}`,
		"line break":   `{"metadata":{"namespace":"shop","name":"a\nb"},"spec":{"podSelector":{},"port":80}}`,
		"long":         `{"metadata":{"namespace":"shop","name":"` + strings.Repeat("a", 254) + `"},"spec":{"podSelector":{},"port":80}}`,
		"types":        `{"metadata":{"namespace":1,"name":["x"]},"spec":{"podSelector":{},"port":80}}`,
	} {
		if got, err := Server(fromJSON(t, []byte(object))); err == nil || got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestServer(t *testing.T) {
	everything := &rules.LabelSelector{}
	server := func(change func(*rules.Server)) *rules.Server {
		s := &rules.Server{Pods: everything, Port: rules.PortRef{Number: 8080}}
		change(s)
		return s
	}
	plain := server(func(*rules.Server) {})
	selector := func(r ...rules.LabelRequirement) *rules.Server {
		return server(func(s *rules.Server) { s.Pods = &rules.LabelSelector{Requirements: r} })
	}
	selectsNothing := server(func(s *rules.Server) { s.Pods = nil })

	for _, c := range []row[rules.Server]{
		{"PN43", "{podSelector: {}, port: 8080}", plain, nil},
		{"PN32/unknown", "{podSelector: {}, port: 8080, proxyProtocol: unknown}", plain, nil},
		{
			"PN32/gRPC", "{podSelector: {}, port: 8080, proxyProtocol: gRPC, accessPolicy: audit}",
			server(func(s *rules.Server) { s.Protocol, s.Access = rules.ProtocolGRPC, rules.Audit }), nil,
		},
		{
			"PN36", "{podSelector: {}, port: http}",
			server(func(s *rules.Server) { s.Port = rules.PortRef{Name: "http"} }), nil,
		},
		{
			"PN45", "{externalWorkloadSelector: {}, port: 8080}",
			server(func(s *rules.Server) { s.Pods, s.Externals = nil, everything }), nil,
		},
		{
			"PN40/labels", "{podSelector: {matchLabels: {b: '2', a: '1'}}, port: 8080}",
			selector(rules.LabelRequirement{Key: "a", Values: []string{"1"}},
				rules.LabelRequirement{Key: "b", Values: []string{"2"}}), nil,
		},
		{
			"PN40/expressions", `
  podSelector:
    matchExpressions:
    - {key: a, operator: In, values: [v, w]}
    - {key: b, operator: NotIn, values: ['']}
    - {key: c, operator: Exists}
    - {key: d, operator: DoesNotExist, values: []}
  port: 8080`,
			selector(
				rules.LabelRequirement{Key: "a", Operator: rules.LabelIn, Values: []string{"v", "w"}},
				rules.LabelRequirement{Key: "b", Operator: rules.LabelNotIn, Values: []string{""}},
				rules.LabelRequirement{Key: "c", Operator: rules.LabelExists},
				rules.LabelRequirement{Key: "d", Operator: rules.LabelDoesNotExist}), nil,
		},
		{
			"operator/unknown", "{podSelector: {matchExpressions: [{key: a, operator: in, values: [x]}]}, port: 8080}",
			selectsNothing,
			[]string{`selector: it selects nothing: operator "in" of key "a"`},
		},
		{
			"operator/no values", "{podSelector: {matchExpressions: [{key: a, operator: In}]}, port: 8080}",
			selectsNothing,
			[]string{"has 0 values"},
		},
		{
			"operator/values", "{podSelector: {matchExpressions: [{key: a, operator: Exists, values: [x]}]}, port: 8080}",
			selectsNothing,
			[]string{"has 1 values"},
		},
		{
			"label/long", "{podSelector: {matchLabels: {a: " + strings.Repeat("x", 64) + "}}, port: 8080}",
			selectsNothing,
			[]string{"is no value of a label"},
		},
		{
			"requirements/many", "{podSelector: {matchExpressions: [" +
				strings.Repeat("{key: a, operator: Exists},", 101) + "]}, port: 8080}",
			selectsNothing,
			[]string{"it has 101 requirements"},
		},
		{
			"access/unknown", "{podSelector: {}, port: 8080, accessPolicy: foo}",
			plain,
			[]string{`accessPolicy: "foo" is unknown: it counts as deny`},
		},
		{"PP20", "{podSelector: {}, port: true}", nil, []string{"cannot unmarshal bool"}},
		{"port/0", "{podSelector: {}, port: 0}", nil, []string{"port 0 is not between"}},
		{"port/absent", "{podSelector: {}}", nil, []string{"port 0 is not between"}},
		{"port/65536", "{podSelector: {}, port: 65536}", nil, []string{"port 65536 is not between"}},
		{"port/-1", "{podSelector: {}, port: -1}", nil, []string{"port -1 is not between"}},
		{"port/2^40", "{podSelector: {}, port: 1099511627776}", nil, []string{"cannot unmarshal number"}},
		{"port/empty", "{podSelector: {}, port: ''}", nil, []string{"no port has the name"}},
		{"selector/absent", "{port: 8080}", nil, []string{"it has no selector"}},
		{"selector/list", "{podSelector: [], port: 8080}", nil, []string{"cannot unmarshal array"}},
		{"protocol/unknown", "{podSelector: {}, port: 8080, proxyProtocol: foo}", nil, []string{`proxyProtocol "foo"`}},
		{"spec/absent", "null", nil, []string{"it is null"}},
		{"spec/list", "[]", nil, []string{"cannot unmarshal array"}},
	} {
		compare(t, c, Server)
	}
}

func TestServerAuthorization(t *testing.T) {
	granting := func(clients rules.ClientClass, ids rules.Identities, n ...rules.Network) *rules.ServerAuthorization {
		return &rules.ServerAuthorization{Server: "v", Clients: clients, Identities: ids, Networks: n}
	}
	client := func(text string) string { return "{server: {name: v}, client: " + text + "}" }
	none, unmeshed := rules.Identities{}, granting(rules.ClientsAny, rules.Identities{})

	for _, c := range []row[rules.ServerAuthorization]{
		{"PN50, PN52", client("{unauthenticated: true}"), unmeshed, nil},
		{
			"PN51", "{server: {selector: {matchLabels: {a: b}}}, client: {unauthenticated: true}}",
			&rules.ServerAuthorization{
				Selector: &rules.LabelSelector{Requirements: []rules.LabelRequirement{{Key: "a", Values: []string{"b"}}}},
				Clients:  rules.ClientsAny,
			}, nil,
		},
		{"PN53", client("{meshTLS: {unauthenticatedTLS: true}}"), granting(rules.ClientsTLS, none), nil},
		{
			"PN54", client("{meshTLS: {identities: ['*', '*.x.y', a.b, 'spiffe://t/a', 'a.*.b']}}"),
			granting(rules.ClientsIdentified, rules.Identities{Patterns: []rules.Pattern{
				{Suffix: true}, {Text: "x.y", Suffix: true}, {Text: "a.b"}, {Text: "spiffe://t/a"}, {Text: "a.*.b"},
			}}), nil,
		},
		{
			"PN55", client("{meshTLS: {serviceAccounts: [{name: sa}, {name: sb, namespace: n2}]}}"),
			granting(rules.ClientsIdentified, rules.Identities{
				Accounts: []rules.Reference{account("shop", "sa"), account("n2", "sb")},
			}), nil,
		},
		{"PN56", client("{}"), granting(rules.ClientsNone, none), []string{"it names no clients"}},
		{
			"PN57", client("{unauthenticated: true, networks: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}, {cidr: '::1'}]}"),
			granting(rules.ClientsAny, none, network("10.0.0.0/8", "10.1.0.0/16"), network("::1")), nil,
		},
		{
			"PW13, stored", client("{unauthenticated: true, networks: [{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}, " +
				"{cidr: 10.0.0.0/8, except: [192.168.0.0/16]}]}"),
			granting(rules.ClientsAny, none, network("10.0.0.0/8")),
			[]string{"network: 10.0.0.0/8 except 10.0.0.0/8: the exception covers", "lies outside"},
		},
		{
			"PW16, stored", client("{unauthenticated: true, meshTLS: {identities: [a.b]}}"), unmeshed,
			[]string{"meshTLS has no effect"},
		},
		{
			"identities/one is bad", client("{meshTLS: {identities: [\"a\\nb\", a.b]}}"),
			granting(rules.ClientsIdentified, rules.Identities{Patterns: []rules.Pattern{{Text: "a.b"}}}),
			[]string{`identity: "a\nb" is no identity`},
		},
		{
			"networks/bad", client("{unauthenticated: true, networks: [{cidr: 10.0.0.0/33}]}"),
			nil,
			[]string{"neither a network nor an address"},
		},
		{
			"networks/many", client("{unauthenticated: true, networks: [" + strings.Repeat("{cidr: 10.0.0.1},", 1001) + "]}"),
			nil,
			[]string{"it has 1001 networks"},
		},
		{
			"networks/many exceptions", client("{unauthenticated: true, networks: [{cidr: 10.0.0.0/8, except: [" +
				strings.Repeat("10.0.0.1,", 10_001) + "]}]}"),
			nil,
			[]string{"with 10001 exceptions"},
		},
		{"server/absent", "{client: {}}", nil, []string{"it needs either the name or the selector"}},
		{"server/both", "{server: {name: v, selector: {}}, client: {}}", nil, []string{"it needs either"}},
		{"client/absent", "{server: {name: v}}", nil, []string{"it has no client"}},
		{"client/type", "{server: {name: v}, client: {unauthenticated: 'yes'}}", nil, []string{"cannot unmarshal string"}},
	} {
		compare(t, c, ServerAuthorization)
	}

	// An empty list of networks is not an absent one, which stands for those of the cluster.
	for spec, isNil := range map[string]bool{"{}": true, "{networks: null}": true, "{networks: []}": false} {
		got, err := ServerAuthorization(parse(t, "", client(spec)))
		if err != nil || (got.Networks == nil) != isNil {
			t.Errorf("%s: %v %v", spec, got, err)
		}
	}
}

func TestAuthorizationPolicy(t *testing.T) {
	policy := func(kind rules.Kind, identities, networks rules.Reference) *rules.AuthorizationPolicy {
		p := &rules.AuthorizationPolicy{
			Target: rules.Reference{Kind: kind, Namespace: "shop", Name: "v"}, Identities: identities, Networks: networks,
		}
		if kind == rules.KindNamespace {
			p.Target = rules.Reference{Kind: kind, Name: "shop"}
		}
		return p
	}
	void := func(p *rules.AuthorizationPolicy, reason string) *rules.AuthorizationPolicy {
		p.Void = reason
		return p
	}
	var none rules.Reference
	mtls := rules.Reference{Kind: rules.KindMeshTLSAuthentication, Namespace: "shop", Name: "m"}
	nets := rules.Reference{Kind: rules.KindNetworkAuthentication, Namespace: "other", Name: "nets"}
	const (
		server  = "targetRef: {group: policy.linkerd.io, kind: Server, name: v}"
		meshRef = "{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: m}"
		netRef  = "{group: policy.linkerd.io, kind: NetworkAuthentication, name: nets, namespace: other}"
	)
	required := func(refs string) string { return "{" + server + ", requiredAuthenticationRefs: [" + refs + "]}" }
	target := func(text string) string { return "{targetRef: " + text + ", requiredAuthenticationRefs: []}" }
	twice := "more than one MeshTLSAuthentication is required"
	either := "more than one MeshTLSAuthentication or ServiceAccount is required"

	for _, c := range []row[rules.AuthorizationPolicy]{
		{"PN58", required(""), policy(rules.KindServer, none, none), nil},
		{"PN60", required(meshRef + "," + netRef), policy(rules.KindServer, mtls, nets), nil},
		{
			"PN60/account", required("{kind: ServiceAccount, name: sa}"),
			policy(rules.KindServer, account("shop", "sa"), none), nil,
		},
		{"PN63/MeshTLS", required(meshRef + "," + meshRef), void(policy(rules.KindServer, mtls, none), twice), []string{twice}},
		{
			"PN63/MeshTLS and account", required(meshRef + ", {kind: ServiceAccount, name: sa}"),
			void(policy(rules.KindServer, mtls, none), either),
			[]string{either},
		},
		{
			"PN63/networks", required(netRef + "," + netRef),
			void(policy(rules.KindServer, none, nets),
				"more than one NetworkAuthentication is required"),
			[]string{"more than one"},
		},
		{
			"required/another kind", required("{kind: Pod, name: p}"),
			void(policy(rules.KindServer, none, none), `nothing of the kind "Pod" can be required`),
			[]string{`reference: nothing of the kind "Pod"`},
		},
		{"PN65", target("{kind: Namespace, name: shop}"), policy(rules.KindNamespace, none, none), nil},
		{
			"PN66", target("{group: Policy.Linkerd.IO, kind: server, name: v}"),
			policy(rules.KindServer, none, none), nil,
		},
		{
			"PN85", target("{group: gateway.networking.k8s.io, kind: HTTPRoute, name: v}"),
			policy(rules.KindHTTPRoute, none, none), nil,
		},
		{
			"PN85/policy", target("{group: policy.linkerd.io, kind: HTTPRoute, name: v}"),
			policy(rules.KindPolicyHTTPRoute, none, none), nil,
		},
		{
			"target/other Namespace", target("{group: core, kind: Namespace, name: other}"), &rules.AuthorizationPolicy{
				Target: rules.Reference{Kind: rules.KindNamespace, Name: "other"},
			}, []string{"targetRef is Namespace other"},
		},
		{
			"target/another kind", target("{group: apps, kind: Deployment, name: v}"),
			void(policy(rules.KindOther, none, none), `nothing of the kind "Deployment" of "apps" can be the target`),
			[]string{"can be the target"},
		},
		{
			"target/TLSRoute", target("{group: gateway.networking.k8s.io, kind: TLSRoute, name: v}"),
			void(policy(rules.KindTLSRoute, none, none),
				`nothing of the kind "TLSRoute" of "gateway.networking.k8s.io" can be the target`),
			[]string{"can be the target"},
		},
		{"target/absent", "{requiredAuthenticationRefs: []}", nil, []string{"it needs targetRef and"}},
		{"required/absent", "{" + server + "}", nil, []string{"it needs targetRef and"}},
		{"required/no name", required("{kind: ServiceAccount}"), nil, []string{`no object has the name ""`}},
		{"required/null", required("null"), nil, []string{`no object has the name ""`}},
	} {
		compare(t, c, AuthorizationPolicy)
	}
}

func TestAuthentications(t *testing.T) {
	for _, c := range []row[rules.MeshTLSAuthentication]{
		{"identities", "{identities: ['*', a.b]}", &rules.MeshTLSAuthentication{Identities: rules.Identities{
			Patterns: []rules.Pattern{{Suffix: true}, {Text: "a.b"}},
		}}, nil},
		{
			"identityRefs", "{identityRefs: [{kind: ServiceAccount, name: sa}, {kind: Namespace, name: n2}, {kind: Pod, name: p}]}",
			&rules.MeshTLSAuthentication{Identities: rules.Identities{
				Accounts: []rules.Reference{account("shop", "sa"), {Kind: rules.KindNamespace, Name: "n2"}},
			}},
			[]string{`identity: a reference to the kind "Pod" gives no identity`},
		},
		{"PN54, stored", "{identities: ['a.*.b']}", &rules.MeshTLSAuthentication{Identities: rules.Identities{
			Patterns: []rules.Pattern{{Text: "a.*.b"}},
		}}, []string{`identity: "a.*.b" is no identity that a client can have`}},
		{"PN68", "{identities: [a.b], identityRefs: [{kind: ServiceAccount, name: sa}]}", nil, []string{"it needs either"}},
		{"neither", "{}", nil, []string{"it needs either"}},
		{"many", "{identities: [" + strings.Repeat("a,", 1001) + "]}", &rules.MeshTLSAuthentication{
			Identities: rules.Identities{Patterns: slices.Repeat([]rules.Pattern{{Text: "a"}}, 1000)},
		}, []string{"identity: there are 1001: those after the first 1000"}},
	} {
		compare(t, c, MeshTLSAuthentication)
	}

	for _, c := range []row[rules.NetworkAuthentication]{
		{"networks", "{networks: [{cidr: 10.0.0.0/8}]}", &rules.NetworkAuthentication{
			Networks: []rules.Network{network("10.0.0.0/8")},
		}, nil},
		{"empty", "{networks: []}", &rules.NetworkAuthentication{}, []string{"the list of networks is empty"}},
		{"absent", "{}", nil, []string{"it has no networks"}},
		{"bad exception", "{networks: [{cidr: 10.0.0.0/8, except: [x]}]}", nil, []string{"neither a network"}},
	} {
		compare(t, c, NetworkAuthentication)
	}
}

func TestRateLimit(t *testing.T) {
	const target = "targetRef: {group: policy.linkerd.io, kind: Server, name: v}"
	for _, c := range []row[rules.RateLimit]{
		{"PN107/total", "{" + target + ", total: {requestsPerSecond: 10}}", &rules.RateLimit{Server: "v", Total: 10}, nil},
		{
			"PN107/overrides",
			"{" + target + ", overrides: [{requestsPerSecond: 5, clientRefs: [{kind: ServiceAccount, name: sa}]}]}",
			&rules.RateLimit{Server: "v", Overrides: []rules.RateOverride{{
				Limit: 5, Accounts: []rules.Reference{account("shop", "sa")},
			}}}, nil,
		},
		{"PN105", "{" + target + ", identity: {requestsPerSecond: 1}}", &rules.RateLimit{Server: "v", Identity: 1}, nil},
		{
			"PW29, stored", "{" + target + ", total: {requestsPerSecond: 10}, identity: {requestsPerSecond: 11}}",
			&rules.RateLimit{Server: "v", Total: 10, Identity: 11},
			[]string{"more than the total of 10"},
		},
		{"zero", "{" + target + ", total: {requestsPerSecond: 0}}", &rules.RateLimit{Server: "v"}, []string{"counts as no limit"}},
		{
			"PT18", "{targetRef: {group: apps, kind: Deployment, name: v}}", &rules.RateLimit{},
			[]string{`targetRef is of the kind "Deployment" of "apps"`},
		},
		{
			"client/another kind", "{" + target + ", overrides: [{requestsPerSecond: 5, clientRefs: [{kind: Pod, name: p}]}]}",
			&rules.RateLimit{Server: "v", Overrides: []rules.RateOverride{{Limit: 5}}},
			[]string{"gives no identity"},
		},
		{"target/absent", "{total: {requestsPerSecond: 1}}", nil, []string{"it has no targetRef"}},
		{"negative", "{" + target + ", total: {requestsPerSecond: -1}}", nil, []string{"cannot unmarshal number -1"}},
		{"too large", "{" + target + ", total: {requestsPerSecond: 4294967296}}", nil, []string{"cannot unmarshal number"}},
	} {
		compare(t, c, RateLimit)
	}
}

func TestEgressNetwork(t *testing.T) {
	for _, c := range []row[rules.EgressNetwork]{
		{"PO41", "{trafficPolicy: Deny}", &rules.EgressNetwork{Deny: true}, nil},
		{
			"PO50", "{trafficPolicy: Allow, networks: [{cidr: '::/0', except: [2000::/3, 2001::/16]}]}",
			&rules.EgressNetwork{Networks: []rules.Network{network("::/0", "2000::/3")}}, nil,
		},
		{"policy/bad", "{trafficPolicy: allow}", nil, []string{`trafficPolicy "allow"`}},
		{"policy/absent", "{}", nil, []string{`trafficPolicy ""`}},
		{"networks/type", "{trafficPolicy: Allow, networks: {}}", nil, []string{"cannot unmarshal object"}},
	} {
		compare(t, c, EgressNetwork)
	}

	// PO59, PO61, PR97: without load.
	got, err := EgressNetwork(parse(t, `annotations: {timeout.linkerd.io/request: 5s,
  balancer.linkerd.io/failure-accrual: consecutive, balancer.alpha.linkerd.io/penalize-failures: "true"}`,
		"{trafficPolicy: Allow}"))
	if err != nil || got.Settings.Timeouts.Request.After != 5*time.Second || got.Settings.Accrual == nil ||
		got.Settings.Load != nil || len(got.Findings) > 0 {
		t.Errorf("%+v: %v", got, err)
	}
}

func TestIdentities(t *testing.T) {
	for id, texts := range map[string][]string{
		"PW07": {"*", "*.a.b", "a.b", "spiffe://t.d/a/b"},
		"also": {"a", "spiffe://t", "spiffe://t_d/A-b.c_1"},
	} {
		for _, text := range texts {
			if !isIdentity(text) {
				t.Errorf("%s: %q is no identity", id, text)
			}
		}
	}
	for id, texts := range map[string][]string{
		"PW08": {"Foo.bar", "a..b", ".a", "a.", "a.*", ""},
		"PW09": {
			"spiffe:///x", "spiffe://t/", "spiffe://t/a//b", "spiffe://t/a/..", "spiffe://t:80/x", "spiffe://T/x",
		},
		"also": {"*.", "*.*", "*a", "spiffe://", "spiffe://t/a/./b", "spiffe://t/a/", "spiffe://t/ä", "spiffe://t/a?b", "a_b"},
	} {
		for _, text := range texts {
			if isIdentity(text) {
				t.Errorf("%s: %q is an identity", id, text)
			}
		}
	}
}

// Whatever the spec is, an object is read as a value or not, with reasons in bounds, and always as the same.
func FuzzObjects(f *testing.F) {
	for _, kind := range Kinds {
		for _, spec := range []string{
			"{}", "null", "[]", `{"podSelector":{"matchExpressions":[{"key":"a","operator":"In"}]},"port":"http"}`,
			`{"server":{"name":"v"},"client":{"meshTLS":{"identities":["*"],"serviceAccounts":[{"name":"a"}]},"networks":[{"cidr":"10.0.0.0/8","except":["10.0.0.0/7"]}]}}`,
			`{"targetRef":{"kind":"Namespace","name":"shop"},"requiredAuthenticationRefs":[{"kind":"ServiceAccount","name":"a"},null]}`,
			`{"identityRefs":[{"kind":"Namespace","name":"a"}]}`, `{"networks":[{"cidr":"::/0","except":["::1"]}],"trafficPolicy":"Deny"}`,
			`{"targetRef":{"group":"policy.linkerd.io","kind":"Server","name":"v"},"total":{"requestsPerSecond":1},"overrides":[{"requestsPerSecond":2}]}`,
		} {
			f.Add(uint8(kind.Kind), []byte(spec))
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, spec []byte) {
		of, is := KindOf(rules.Kind(kind))
		raw := fmt.Appendf(nil, `{"metadata":{"name":"x","namespace":"shop"},"spec":%s}`, spec)
		var u unstructured.Unstructured
		if !is || kubejson.UnmarshalCaseSensitivePreserveInts(raw, &u.Object) != nil {
			return
		}

		v, err := of.Read(&u)
		if err != nil {
			if len(err.Error()) > rules.MaxReason {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		checkFindings(t, v.Metadata())
		if again, _ := of.Read(&u); !reflect.DeepEqual(v, again) {
			t.Errorf("%s is read as\n%+v\nand as\n%+v", spec, v, again)
		}
	})
}

func checkFindings(t *testing.T, meta *rules.Meta) {
	t.Helper()
	if len(meta.Findings) > rules.MaxFindings {
		t.Errorf("%d findings", len(meta.Findings))
	}
	for _, f := range meta.Findings {
		if f.Part == "" || f.Reason == "" || len(f.Reason) > rules.MaxReason || strings.ContainsAny(f.Reason, "\n\t") {
			t.Errorf("%q", f)
		}
	}
}

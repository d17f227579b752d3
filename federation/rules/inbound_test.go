package rules

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation"
)

func pod() *Workload {
	return &Workload{
		Namespace: "shop", Labels: map[string]string{"app": "p"},
		Ports:  []NamedPort{{"http", 8080}, {"admin", 4191}},
		Probes: []Probe{{4191, "/live"}, {4191, "/ready"}, {4191, "/live"}},
	}
}

func server(name string, age int) *Server {
	return &Server{
		Meta: named(KindServer, name, age), Pods: &LabelSelector{}, Port: PortRef{Number: 8080},
		Labels: map[string]string{"kind": "v"},
	}
}

// of returns what follows from objects, of which no other namespace has any.
func (o *NamespaceObjects) of(options *Options) []*ServerRules {
	if o.MeshTLS == nil {
		o.MeshTLS = func(Reference) *MeshTLSAuthentication { return nil }
	}
	if o.Networks == nil {
		o.Networks = func(Reference) *NetworkAuthentication { return nil }
	}
	return options.Of(o).All
}

const openHTTP = "Detect all-unauthenticated\n" + everybody + "\ndefault /"

const everybody = "lets in all-unauthenticated 0.0.0.0/0 ::/0 any"

// Ports without a Server, by the case that they are about.
func TestInboundWithoutServer(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Workload, *Options)
		port   uint16
		want   string
	}{
		"PN01": {nil, 8080, openHTTP},
		"PN02": {nil, 4191, "Detect all-unauthenticated\n" + everybody + "\ndefault /\n" +
			"probe GET=/live GET=/ready, lets in probe 0.0.0.0/0 ::/0 any"},
		"PN14": {
			func(w *Workload, _ *Options) { w.Default, w.HasDefault = ClusterAuthenticated, true }, 8080,
			"Detect cluster-authenticated\nlets in cluster-authenticated 10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 " +
				"192.168.0.0/16 identified *\ndefault /",
		},
		"PN14 audit": {
			func(w *Workload, _ *Options) { w.Default, w.HasDefault = Audit, true }, 8080,
			"Detect audit\nlets in audit 0.0.0.0/0 ::/0 any\ndefault /",
		},
		"PN17": {func(_ *Workload, o *Options) { o.DefaultPolicy = Deny }, 8080, "Detect deny\ndefault /"},
		"PN18": {
			func(w *Workload, _ *Options) { w.RequireIdentity = ports("8080") }, 8080,
			"Detect all-authenticated\nlets in all-authenticated 0.0.0.0/0 ::/0 identified *\ndefault /",
		},
		"PN18 deny": {
			func(w *Workload, o *Options) { w.RequireIdentity, o.DefaultPolicy = ports("8080"), Deny }, 8080,
			"Detect deny\ndefault /",
		},
		"PN19": {
			func(w *Workload, o *Options) { w.RequireIdentity, o.DefaultPolicy = ports("8080"), Audit }, 8080,
			"Detect all-authenticated\nlets in all-authenticated 0.0.0.0/0 ::/0 identified *\ndefault /",
		},
		"PN20": {
			func(w *Workload, _ *Options) { w.RequireIdentity = ports("8080") }, 9090,
			"Detect all-unauthenticated\n" + everybody + "\ndefault /",
		},
		"PN21": {
			func(w *Workload, _ *Options) { w.Opaque = ports("8000-8100") }, 8080,
			"Opaque all-unauthenticated\n" + everybody,
		},
		"PN22": {
			func(w *Workload, _ *Options) { w.Opaque = ports("http") }, 8080,
			"Opaque all-unauthenticated\n" + everybody,
		},
		"PN24":  {nil, 3306, openHTTP},
		"PN101": {func(_ *Workload, o *Options) { o.ProbeNetworks = nil }, 4191, openHTTP},
	} {
		t.Run(name, func(t *testing.T) {
			workload, options := pod(), testOptions()
			if c.change != nil {
				c.change(workload, options)
			}
			if diff := cmp.Diff(c.want, options.Inbound(workload, nil, c.port).lines()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Which Server a port is of.
func TestServerOfPort(t *testing.T) {
	byName := func(name string) *Server {
		s := server("v", 1)
		s.Port = PortRef{Name: name}
		return s
	}
	external := server("v", 1)
	external.Pods, external.Externals = nil, &LabelSelector{}
	undeclared := server("v", 1)
	undeclared.Port.Number = 7777
	other := server("v", 1)
	other.Pods = &LabelSelector{[]LabelRequirement{{Key: "app", Operator: LabelIn, Values: []string{"q"}}}}

	for _, c := range []struct {
		id      string
		servers []*Server
		port    uint16
		want    string
	}{
		{"PN30", []*Server{server("v", 1)}, 8080, "v"},
		{"PN31", nil, 8080, ""},
		{"PN36", []*Server{byName("nobody")}, 8080, ""},
		{"PN36", []*Server{byName("http")}, 8080, "v"},
		{"PN37", []*Server{undeclared}, 7777, "v"},
		{"PN38", []*Server{server("a", 2), server("b", 1)}, 8080, "b"},
		{"PN39", []*Server{server("b", 1), server("a", 1)}, 8080, "a"},
		{"PN40", []*Server{other}, 8080, ""},
		{"PN47", []*Server{external}, 8080, ""},
	} {
		objects := &NamespaceObjects{Servers: c.servers}
		in := testOptions().Inbound(pod(), objects.of(testOptions()), c.port)
		if in.Name != c.want {
			t.Errorf("%s: %q", c.id, in.Name)
		}
	}

	objects := &NamespaceObjects{Servers: []*Server{external}}
	workload := &Workload{External: true, Namespace: "shop", Ports: []NamedPort{{"http", 8080}}}
	if in := testOptions().Inbound(workload, objects.of(testOptions()), 8080); in.Name != "v" {
		t.Errorf("PN45: %s", in.lines())
	}
}

// What objects let in at a Server.
func TestAuthorizations(t *testing.T) {
	authorization := func(name string, change func(*ServerAuthorization)) *ServerAuthorization {
		a := &ServerAuthorization{
			Meta: named(KindServerAuthorization, name, 1), Server: "v", Clients: ClientsAny,
			Networks: networks("1.0.0.0/8"),
		}
		if change != nil {
			change(a)
		}
		return a
	}
	policy := func(name string, change func(*AuthorizationPolicy)) *AuthorizationPolicy {
		p := &AuthorizationPolicy{
			Meta: named(KindAuthorizationPolicy, name, 1), Target: Reference{KindServer, "shop", "v"},
		}
		if change != nil {
			change(p)
		}
		return p
	}
	mtls := Reference{KindMeshTLSAuthentication, "other", "m"}
	account := Reference{KindServiceAccount, "shop", "sa"}
	nets := Reference{KindNetworkAuthentication, "other", "n"}
	const head = "Detect Server/shop/v"

	for name, c := range map[string]struct {
		objects NamespaceObjects
		want    string
	}{
		"PN50": {
			NamespaceObjects{ServerAuthorizations: []*ServerAuthorization{authorization("a", nil)}},
			"\nlets in ServerAuthorization/shop/a 1.0.0.0/8 any",
		},
		"PN51": {
			NamespaceObjects{ServerAuthorizations: []*ServerAuthorization{
				authorization("a", func(a *ServerAuthorization) {
					a.Server, a.Selector = "", &LabelSelector{[]LabelRequirement{{"kind", LabelIn, []string{"v"}}}}
				}),
				authorization("b", func(a *ServerAuthorization) {
					a.Server, a.Selector = "", &LabelSelector{[]LabelRequirement{{"kind", LabelIn, []string{"x"}}}}
				}),
			}},
			"\nlets in ServerAuthorization/shop/a 1.0.0.0/8 any",
		},
		"PN54, PN55": {
			NamespaceObjects{ServerAuthorizations: []*ServerAuthorization{
				authorization("a", func(a *ServerAuthorization) {
					a.Clients = ClientsIdentified
					a.Identities = Identities{
						[]Pattern{ParseIdentity("*.x.y"), ParseIdentity("spiffe://t/a")},
						[]Reference{{KindServiceAccount, "n2", "sb"}, {KindNamespace, "", "n3"}},
					}
				}),
			}},
			"\nlets in ServerAuthorization/shop/a 1.0.0.0/8 identified *.x.y spiffe://t/a " +
				"sb.n2.serviceaccount.identity.linkerd.cluster.local *.n3.serviceaccount.identity.linkerd.cluster.local",
		},
		"PN56": {
			NamespaceObjects{ServerAuthorizations: []*ServerAuthorization{
				authorization("a", func(a *ServerAuthorization) { a.Clients = ClientsNone }),
				authorization("b", func(a *ServerAuthorization) { a.Networks = []Network{} }),
			}},
			"",
		},
		"PN57": {
			NamespaceObjects{ServerAuthorizations: []*ServerAuthorization{
				authorization("a", func(a *ServerAuthorization) { a.Networks, a.Clients = nil, ClientsTLS }),
			}},
			"\nlets in ServerAuthorization/shop/a 10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16 tls",
		},
		"PN58, PN65": {
			NamespaceObjects{Policies: []*AuthorizationPolicy{
				policy("b", nil), policy("c", func(p *AuthorizationPolicy) { p.Target.Name = "w" }),
				policy("a", func(p *AuthorizationPolicy) { p.Target = Reference{Kind: KindNamespace, Name: "shop"} }),
			}},
			"\nlets in AuthorizationPolicy/shop/a 0.0.0.0/0 ::/0 any\nlets in AuthorizationPolicy/shop/b 0.0.0.0/0 ::/0 any",
		},
		"PN60": {
			NamespaceObjects{
				Policies: []*AuthorizationPolicy{
					policy("a", func(p *AuthorizationPolicy) { p.Identities = mtls }),
					policy("b", func(p *AuthorizationPolicy) { p.Networks = nets }),
					policy("c", func(p *AuthorizationPolicy) { p.Identities = account }),
				},
				MeshTLS: func(Reference) *MeshTLSAuthentication {
					return &MeshTLSAuthentication{Identities: Identities{Patterns: []Pattern{ParseIdentity("a.b")}}}
				},
				Networks: func(Reference) *NetworkAuthentication {
					return &NetworkAuthentication{Networks: networks("2.0.0.0/8")}
				},
			},
			"\nlets in AuthorizationPolicy/shop/a 0.0.0.0/0 ::/0 identified a.b" +
				"\nlets in AuthorizationPolicy/shop/b 2.0.0.0/8 any" +
				"\nlets in AuthorizationPolicy/shop/c 0.0.0.0/0 ::/0 identified " +
				"sa.shop.serviceaccount.identity.linkerd.cluster.local",
		},
		"PN61, PN63": {
			NamespaceObjects{Policies: []*AuthorizationPolicy{
				policy("a", func(p *AuthorizationPolicy) { p.Identities = mtls }),
				policy("b", func(p *AuthorizationPolicy) { p.Networks = nets }),
				policy("c", func(p *AuthorizationPolicy) { p.Void = "two NetworkAuthentications" }),
			}},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.objects.Servers = []*Server{server("v", 1)}
			in := testOptions().Inbound(pod(), c.objects.of(testOptions()), 8080)
			if diff := cmp.Diff(head+c.want+"\ndefault /", in.lines()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// atServer returns a route whose parent is the Server v.
func atServer(kind Kind, name string, change func(*Route)) *Route {
	r := route(kind, name, 1)
	r.Parents = []Parent{{Reference: Reference{KindServer, "shop", "v"}}}
	if change != nil {
		change(r)
	}
	return r
}

// What comes in at a Server by its routes, its protocol and its rate limits.
func TestRoutesOfServer(t *testing.T) {
	of := func(name string, kind Kind) *AuthorizationPolicy {
		return &AuthorizationPolicy{Meta: named(KindAuthorizationPolicy, name, 1), Target: Reference{kind, "shop", "a"}}
	}
	limit := func(name string, age int) *RateLimit {
		return &RateLimit{Meta: named(KindRateLimit, name, age), Server: "v", Total: 10}
	}
	for name, c := range map[string]struct {
		protocol ServerProtocol
		objects  NamespaceObjects
		want     string
	}{
		"PN32": {ProtocolTLS, NamespaceObjects{}, "Tls Server/shop/v"},
		"PN33": {ProtocolGRPC, NamespaceObjects{}, "Grpc Server/shop/v\ndefault any"},
		"PN80, PN81": {
			ProtocolHTTP1,
			NamespaceObjects{Routes: []*Route{
				atServer(KindPolicyHTTPRoute, "a", nil), atServer(KindHTTPRoute, "a", nil),
			}},
			"Http1 Server/shop/v\nHTTPRoute/shop/a /\nHTTPRoute/shop/a /",
		},
		"PN85": {
			ProtocolHTTP1,
			NamespaceObjects{
				Routes: []*Route{atServer(KindHTTPRoute, "a", nil)},
				Policies: []*AuthorizationPolicy{
					of("x", KindPolicyHTTPRoute), of("y", KindHTTPRoute),
				},
			},
			"Http1 Server/shop/v\nHTTPRoute/shop/a /, lets in AuthorizationPolicy/shop/y 0.0.0.0/0 ::/0 any",
		},
		"PN86": {
			ProtocolDetect,
			NamespaceObjects{Routes: []*Route{
				atServer(KindHTTPRoute, "a", func(r *Route) { r.Parents[0].Port = 8080 }),
				atServer(KindHTTPRoute, "b", func(r *Route) { r.Parents[0].Section = true }),
				atServer(KindHTTPRoute, "c", func(r *Route) { r.Parents[0].Namespace = "other" }),
				atServer(KindHTTPRoute, "d", func(r *Route) { r.Namespace = "other" }),
			}},
			"Detect Server/shop/v\ndefault /",
		},
		"PN91, PN92, PN94": {
			ProtocolHTTP2,
			NamespaceObjects{Routes: []*Route{
				atServer(KindHTTPRoute, "a", func(r *Route) {
					r.Rules[0].Filters = []Filter{
						{RequestHeaders: &HeaderChanges{}},
						{ResponseHeaders: &HeaderChanges{}},
						{Redirect: &Redirect{}},
					}
					r.Rules = append(r.Rules, Rule{Unmatched: true}, Rule{
						Filters: []Filter{{RequestHeaders: &HeaderChanges{}}, {Unsupported: "no"}},
					})
				}),
			}},
			"Http2 Server/shop/v\nHTTPRoute/shop/a / with 2 filters fails: no",
		},
		"PN95, PN96": {
			ProtocolGRPC,
			NamespaceObjects{Routes: []*Route{
				atServer(KindHTTPRoute, "a", nil),
				atServer(KindGRPCRoute, "b", func(r *Route) {
					r.Parents[0].Port = 0
					r.Rules[0].Matches = []Match{{RPCService: "s", RPCMethod: "m"}}
				}),
			}},
			"Grpc Server/shop/v\nGRPCRoute/shop/b s/m",
		},
		"PN104": {
			ProtocolGRPC, NamespaceObjects{RateLimits: []*RateLimit{limit("a", 1)}}, "Grpc Server/shop/v\ndefault any",
		},
		"PN105": {
			ProtocolHTTP1,
			NamespaceObjects{RateLimits: []*RateLimit{limit("a", 2), limit("b", 1)}},
			"Http1 Server/shop/v\ndefault /\nlimit b 10",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := server("v", 1)
			v.Protocol = c.protocol
			c.objects.Servers = []*Server{v}
			in := testOptions().Inbound(pod(), c.objects.of(testOptions()), 8080)
			if diff := cmp.Diff(c.want, in.lines()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The order in which objects are known changes no answer (PN67, PZ02).
func TestOrderOfObjects(t *testing.T) {
	objects := NamespaceObjects{
		Servers: []*Server{server("v", 1), server("w", 1)},
		Routes:  []*Route{atServer(KindHTTPRoute, "a", nil), atServer(KindPolicyHTTPRoute, "a", nil)},
		RateLimits: []*RateLimit{
			{Meta: named(KindRateLimit, "a", 1), Server: "v"},
			{Meta: named(KindRateLimit, "b", 1), Server: "v"},
		},
	}
	for _, name := range []string{"a", "z"} {
		objects.Policies = append(objects.Policies, &AuthorizationPolicy{
			Meta: named(KindAuthorizationPolicy, name, 1), Target: Reference{Kind: KindNamespace},
		})
		objects.ServerAuthorizations = append(objects.ServerAuthorizations, &ServerAuthorization{
			Meta: named(KindServerAuthorization, name, 1), Server: "v",
			Clients: ClientsTLS, Networks: Everywhere,
		})
	}
	want := testOptions().Inbound(pod(), objects.of(testOptions()), 8080).lines()

	random := rand.New(rand.NewPCG(67, 0))
	for range 100 {
		shuffle(random, objects.Servers)
		shuffle(random, objects.Routes)
		shuffle(random, objects.RateLimits)
		shuffle(random, objects.Policies)
		shuffle(random, objects.ServerAuthorizations)
		if got := testOptions().Inbound(pod(), objects.of(testOptions()), 8080).lines(); got != want {
			t.Fatalf("%s\n\n%s", want, got)
		}
	}
}

func shuffle[T any](random *rand.Rand, all []T) {
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
}

// A route counts for a parent if the condition that is written has it as accepted.
func TestAttach(t *testing.T) {
	web := Reference{KindService, "shop", "web"}
	is := ParentObject{Reference: web, Exists: true, HasIP: true}
	egress := Reference{KindEgressNetwork, "shop", "web"}
	all, grpc := route(KindHTTPRoute, "all", 1), route(KindGRPCRoute, "b", 2)
	all.Parents[0].Port = 0
	tcp := route(KindTCPRoute, "tcp", 1)
	tcp.Parents = append(tcp.Parents, Parent{Reference: Reference{KindService, "other", "web"}, Port: 8080},
		Parent{Reference: web, Port: 9999})
	for _, c := range []struct {
		id     string
		object ParentObject
		routes []*Route
		want   []Reason
	}{
		{"PT02", ParentObject{Reference: web}, []*Route{all}, []Reason{NoMatchingParent}},
		{"PT06", ParentObject{Reference: web, Exists: true}, []*Route{all}, []Reason{NoMatchingParent}},
		{"PR18", is, []*Route{route(KindHTTPRoute, "a", 1), grpc}, []Reason{Conflicted, Accepted}},
		{"every port is none of them", is, []*Route{all, grpc}, []Reason{Accepted, Accepted}},
		{
			"each parent by itself", is,
			[]*Route{tcp, route(KindTLSRoute, "a", 1)},
			[]Reason{Conflicted, Accepted, Accepted},
		},
		{"PR11", ParentObject{Reference: egress, Exists: true}, []*Route{all}, nil},
	} {
		var got []Reason
		for _, a := range Attach(c.object, c.routes) {
			got = append(got, a.Reason)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.id, got, c.want)
		}
	}
}

// A reference to a ServiceAccount means those of linked clusters, too, where their Links have it so; a text never does.
func TestTrustDomains(t *testing.T) {
	options := &Options{Identity: IdentityDomain{ControlPlane: "linkerd", Domain: "cluster.local"}}
	account := Reference{KindServiceAccount, "shop", "sa"}
	objects := NamespaceObjects{
		Servers: []*Server{server("v", 1)},
		ServerAuthorizations: []*ServerAuthorization{{
			Meta: named(KindServerAuthorization, "sa", 1), Server: "v",
			Clients: ClientsIdentified, Networks: Everywhere,
			Identities: Identities{Patterns: []Pattern{{Text: "a.b"}}, Accounts: []Reference{account}},
		}},
		RateLimits: []*RateLimit{{
			Meta: named(KindRateLimit, "l", 1), Server: "v",
			Overrides: []RateOverride{{Limit: 5, Accounts: []Reference{account}}},
		}},
	}

	for _, c := range []struct {
		id      string
		domains []string
		want    []Pattern
	}{
		{"PM11", nil, []Pattern{{Text: "sa.shop.serviceaccount.identity.linkerd.cluster.local"}}},
		{"PM10", []string{"td2"}, []Pattern{
			{Text: "sa.shop.serviceaccount.identity.linkerd.cluster.local"},
			{Text: "sa.shop.serviceaccount.identity.linkerd.td2"},
		}},
	} {
		objects.TrustDomains = c.domains
		in := options.Inbound(pod(), objects.of(options), 8080)
		if diff := cmp.Diff(append([]Pattern{{Text: "a.b"}}, c.want...), in.Authorizations[0].Identities); diff != "" {
			t.Errorf("%s: authorization (-want +got):\n%s", c.id, diff)
		}
		if diff := cmp.Diff(c.want, in.Limit.Overrides[0].Identities); diff != "" {
			t.Errorf("%s: rate limit (-want +got):\n%s", c.id, diff)
		}
	}
}

// Workloads have one text if and only if they are equal: they then share what follows from them.
func TestTextOfWorkload(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) *Workload {
			word := func(what string) string { return rapid.SampledFrom([]string{"", "a", `a" b`, "1"}).Draw(t, label+what) }
			list := func(what string) *PortList {
				return rapid.SampledFrom([]*PortList{
					nil,
					{},
					{names: []string{"a"}},
					ListOf(federation.PortsOf(federation.PortRange{First: 55296, Last: 55297})),
					ListOf(federation.PortsOf(federation.PortRange{First: 1, Last: 2})), ListOf(federation.PortsOf()),
				}).Draw(t, label+what)
			}
			number := rapid.SampledFrom([]uint16{1, 55296, 55297}).Draw(t, label+"number")
			w := &Workload{
				External: rapid.Bool().Draw(t, label+"external"), Namespace: word("namespace"),
				Labels: map[string]string{word("key"): word("value")},
				Ports:  []NamedPort{{word("port"), number}}, Probes: []Probe{{number, word("path")}},
				HasDefault:      rapid.Bool().Draw(t, label+"default"),
				RequireIdentity: list("identity"), Opaque: list("opaque"),
			}
			if rapid.Bool().Draw(t, label+"finding") {
				w.Findings = []Finding{{Part: word("part"), Reason: word("reason")}}
			}
			return w
		}
		a := draw("a ")
		b := rapid.SampledFrom([]*Workload{draw("b "), new(*a)}).Draw(t, "b")
		if equal := reflect.DeepEqual(a, b); equal != bytes.Equal(a.AppendText(nil), b.AppendText(nil)) {
			t.Fatalf("%+v and %+v are equal: %t; texts:\n%s\n%s", a, b, equal, a.AppendText(nil), b.AppendText(nil))
		}
	})
}

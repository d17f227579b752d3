package rules

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// A world is all objects that answers follow from.
type world struct {
	objects  NamespaceObjects
	mesh     []*MeshTLSAuthentication
	networks []*NetworkAuthentication
	routes   []*Route // of Services and EgressNetworks
	services []Reference
	own      []*EgressNetwork
	global   []*EgressNetwork
}

// without returns the world without one object.
func (w world) without(r Reference) world {
	w.objects.Servers = drop(w.objects.Servers, r)
	w.objects.ServerAuthorizations = drop(w.objects.ServerAuthorizations, r)
	w.objects.Policies = drop(w.objects.Policies, r)
	w.objects.Routes = drop(w.objects.Routes, r)
	w.objects.RateLimits = drop(w.objects.RateLimits, r)
	w.mesh, w.networks, w.routes = drop(w.mesh, r), drop(w.networks, r), drop(w.routes, r)
	w.own, w.global = drop(w.own, r), drop(w.global, r)
	w.services = slices.DeleteFunc(slices.Clone(w.services), func(s Reference) bool { return s == r })
	return w
}

func drop[T interface{ Metadata() *Meta }](all []T, r Reference) []T {
	return slices.DeleteFunc(slices.Clone(all), func(o T) bool { return o.Metadata().Reference == r })
}

func references[T interface{ Metadata() *Meta }](all []T) (found []Reference) {
	for _, o := range all {
		found = append(found, o.Metadata().Reference)
	}
	return found
}

func (w world) all() []Reference {
	return slices.Concat(
		references(w.objects.Servers), references(w.objects.ServerAuthorizations), references(w.objects.Policies),
		references(w.objects.Routes), references(w.objects.RateLimits), references(w.mesh), references(w.networks),
		references(w.routes), w.services, references(w.own), references(w.global),
	)
}

func (w world) servers(o *Options) *NamespaceServers {
	objects := w.objects
	objects.MeshTLS = func(r Reference) *MeshTLSAuthentication { return find(w.mesh, r) }
	objects.Networks = func(r Reference) *NetworkAuthentication { return find(w.networks, r) }
	return o.Of(&objects)
}

func find[T interface{ Metadata() *Meta }](all []T, r Reference) (found T) {
	for _, o := range all {
		if o.Metadata().Reference == r {
			return o
		}
	}
	return found
}

// target returns the Service web.
func (w world) target() *Target {
	web := Reference{KindService, "shop", "web"}
	is := slices.Contains(w.services, web)
	t := &Target{
		Reference: web, Exists: is, Found: map[Reference]bool{},
		Attached: Attach(ParentObject{Reference: web, Exists: is, HasIP: is}, w.routes),
	}
	if is {
		t.Ports = []ServicePort{{NamedPort: NamedPort{"http", 8080}}}
	}
	for _, s := range w.services {
		t.Found[s] = true
	}
	return t
}

func drawWorld(t *rapid.T) (w world) {
	one := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	yes := func(label string) bool { return rapid.Bool().Draw(t, label) }
	meta := func(kind Kind) Meta {
		return named(kind, one("name", "a", "b"), rapid.IntRange(1, 2).Draw(t, "age"))
	}
	patterns := func() Identities {
		return Identities{Patterns: []Pattern{ParseIdentity(one("identity", "*", "*.x.y", "a.b"))}}
	}
	routeKind := func() Kind {
		return rapid.SampledFrom([]Kind{KindHTTPRoute, KindPolicyHTTPRoute, KindGRPCRoute, KindTCPRoute, KindTLSRoute}).
			Draw(t, "route")
	}
	w.services = []Reference{{KindService, "shop", "web"}, {KindService, "shop", "api"}, {KindService, "shop", "x"}}

	for range rapid.IntRange(0, 14).Draw(t, "objects") {
		switch one("kind", "server", "sa", "ap", "ap", "mesh", "net", "limit", "route", "route", "to", "to", "egress") {
		case "server":
			s := &Server{Meta: meta(KindServer), Labels: map[string]string{"kind": one("label", "v", "w")}}
			s.Pods, s.Port.Number = &LabelSelector{}, rapid.SampledFrom([]uint16{8080, 80}).Draw(t, "port")
			s.Protocol = ServerProtocol(rapid.IntRange(0, 5).Draw(t, "protocol"))
			s.Access = DefaultPolicy(rapid.IntRange(0, 2).Draw(t, "access"))
			w.objects.Servers = append(w.objects.Servers, s)
		case "sa":
			a := &ServerAuthorization{Meta: meta(KindServerAuthorization), Identities: patterns(), Networks: Everywhere}
			a.Clients = ClientClass(rapid.IntRange(0, 3).Draw(t, "clients"))
			a.Server = one("server", "a", "b", "")
			a.Selector = &LabelSelector{[]LabelRequirement{{"kind", LabelIn, []string{one("selects", "v", "w")}}}}
			w.objects.ServerAuthorizations = append(w.objects.ServerAuthorizations, a)
		case "ap":
			p := &AuthorizationPolicy{Meta: meta(KindAuthorizationPolicy)}
			kind := rapid.SampledFrom([]Kind{KindServer, KindNamespace, KindHTTPRoute, KindGRPCRoute}).Draw(t, "target")
			p.Target = Reference{kind, "shop", one("of", "a", "b")}
			if yes("mesh") {
				p.Identities = Reference{KindMeshTLSAuthentication, "shop", one("requires", "a", "b")}
			}
			if yes("net") {
				p.Networks = Reference{KindNetworkAuthentication, "shop", one("requires", "a", "b")}
			}
			w.objects.Policies = append(w.objects.Policies, p)
		case "mesh":
			w.mesh = append(w.mesh, &MeshTLSAuthentication{meta(KindMeshTLSAuthentication), patterns()})
		case "net":
			cidrs := networks(one("cidr", "1.0.0.0/8", "10.0.0.0/8"))
			w.networks = append(w.networks, &NetworkAuthentication{meta(KindNetworkAuthentication), cidrs})
		case "limit":
			w.objects.RateLimits = append(w.objects.RateLimits, &RateLimit{
				Meta: meta(KindRateLimit), Server: one("server", "a", "b", ""), Total: 1,
			})
		case "route":
			r := atServer(routeKind(), one("name", "a", "b"), nil)
			r.Parents[0].Name, r.Parents[0].Section = one("server", "a", "b"), yes("section")
			w.objects.Routes = append(w.objects.Routes, r)
		case "to":
			to := backend(KindService, "shop", one("backend", "api", "gone"), 80, 1)
			r := route(routeKind(), one("name", "a", "b"), 1, to)
			r.Namespace = one("namespace", "shop", "till")
			r.Parents[0].Port = rapid.SampledFrom([]uint16{0, 8080, 80}).Draw(t, "parent")
			w.routes = append(w.routes, r)
		case "egress":
			cidrs := networks(one("cidr", "1.0.0.0/8", "1.1.0.0/16", "2.0.0.0/8"))
			e := &EgressNetwork{Meta: meta(KindEgressNetwork), Networks: cidrs}
			if yes("global") {
				e.Namespace = "linkerd-egress"
				w.global = append(w.global, e)
			} else {
				w.own = append(w.own, e)
			}
		}
	}
	return w.unique()
}

// unique leaves one object of a name.
func (w world) unique() world {
	w.objects.Servers = unique(w.objects.Servers)
	w.objects.ServerAuthorizations = unique(w.objects.ServerAuthorizations)
	w.objects.Policies = unique(w.objects.Policies)
	w.objects.Routes, w.objects.RateLimits = unique(w.objects.Routes), unique(w.objects.RateLimits)
	w.mesh, w.networks, w.routes = unique(w.mesh), unique(w.networks), unique(w.routes)
	w.own, w.global = unique(w.own), unique(w.global)
	return w
}

func unique[T interface{ Metadata() *Meta }](all []T) (kept []T) {
	for _, o := range all {
		if !slices.Contains(references(kept), o.Metadata().Reference) {
			kept = append(kept, o)
		}
	}
	return kept
}

// The answer of an explanation is that which clients get, and depends on no object that the explanation does not name.
// What counts is in it once, before what does not.
func TestExplainLaws(t *testing.T) {
	options := testOptions()
	outside := netip.MustParseAddr("1.1.1.1")
	equal := []gocmp.Option{gocmp.AllowUnexported(Network{}), cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})}

	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		query := OutboundQuery{
			Port:      rapid.SampledFrom([]uint16{8080, 80}).Draw(t, "asked"),
			Client:    rapid.SampledFrom([]string{"shop", "till", "x"}).Draw(t, "client"),
			ByAddress: rapid.Bool().Draw(t, "by address"),
		}
		workload := &Workload{Namespace: "shop", Ports: []NamedPort{{"http", 8080}}}
		type answers struct {
			In     *Inbound
			Out    *Outbound
			Egress *EgressNetwork
		}
		answer := func(w world) answers {
			return answers{
				options.Inbound(workload, w.servers(options).All, 8080), options.Outbound(w.target(), query),
				options.Egress(outside, w.own, w.global),
			}
		}

		in := options.ExplainInbound(workload, w.servers(options), 8080)
		out := options.ExplainOutbound(w.target(), query)
		egress, candidates := options.ExplainEgress(outside, w.own, w.global)
		want := answer(w)
		if diff := gocmp.Diff(want, answers{in.Answer, out.Answer, egress}, equal...); diff != "" {
			t.Fatalf("the answer of an explanation differs from that of clients:\n%s", diff)
		}

		isNamed := map[Reference]bool{}
		for _, all := range [][]Cause{in.Causes, out.Causes, candidates} {
			for i, c := range all {
				again := slices.ContainsFunc(all[:i], func(o Cause) bool {
					return o.Reference == c.Reference || c.Counts && !o.Counts
				})
				if again || c.Why == "" || strings.ContainsAny(c.Why, "\n%") {
					t.Fatalf("%s twice, after what does not count, or without a reason: %+v", c.Reference, all)
				}
				isNamed[c.Reference] = true
			}
		}
		for _, object := range w.all() {
			if isNamed[object] {
				continue
			}
			if diff := gocmp.Diff(want, answer(w.without(object)), equal...); diff != "" {
				t.Fatalf("%s is not named, and without it the answer differs:\n%s", object, diff)
			}
		}
	})
}

// What lets a client in, or what would have to be changed for that.
func TestDecide(t *testing.T) {
	policy := func(name string, requires ...Reference) *AuthorizationPolicy {
		p := &AuthorizationPolicy{
			Meta: named(KindAuthorizationPolicy, name, 1), Target: Reference{KindServer, "shop", "v"},
		}
		for _, r := range requires {
			if r.Kind == KindNetworkAuthentication {
				p.Networks = r
			} else {
				p.Identities = r
			}
		}
		return p
	}
	till := Identities{Accounts: []Reference{{KindServiceAccount, "till", "web"}}}
	mesh, nets := Reference{KindMeshTLSAuthentication, "shop", "m"}, Reference{KindNetworkAuthentication, "shop", "n"}
	account := Reference{KindServiceAccount, "till", "web"}
	client := func(from, ip string) (c Client) {
		if from != "" {
			c.TLS, c.Identity = true, from+".serviceaccount.identity.linkerd.cluster.local"
		}
		if ip != "" {
			c.Addr = addr(ip)
		}
		return c
	}

	for _, c := range []struct {
		name    string
		objects NamespaceObjects
		client  Client
		want    string
	}{
		{"no authorization", NamespaceObjects{}, client("web.till", ""), "refused"},
		{
			"by name",
			NamespaceObjects{Policies: []*AuthorizationPolicy{policy("p", account)}},
			client("web.till", ""),
			"AuthorizationPolicy shop/p",
		},
		{
			"another one",
			NamespaceObjects{Policies: []*AuthorizationPolicy{policy("p", account)}},
			client("api.shop", ""),
			"refused; AuthorizationPolicy shop/p: it lets in ServiceAccount till/web; create a second " +
				"AuthorizationPolicy, which names ServiceAccount shop/api, or have AuthorizationPolicy shop/p require a " +
				"MeshTLSAuthentication with both",
		},
		{
			"not in the list",
			NamespaceObjects{Policies: []*AuthorizationPolicy{policy("p", mesh)}},
			client("api.shop", ""),
			"refused; AuthorizationPolicy shop/p: it lets in ServiceAccount till/web; add ServiceAccount shop/api to " +
				"MeshTLSAuthentication shop/m",
		},
		{
			"no TLS",
			NamespaceObjects{Policies: []*AuthorizationPolicy{policy("p", mesh)}},
			client("", ""),
			"refused; AuthorizationPolicy shop/p: it lets in clients with TLS, and this one has none; give the client " +
				"a proxy, and let it come by that",
		},
		{
			"from anywhere",
			NamespaceObjects{Policies: []*AuthorizationPolicy{policy("p", nets)}},
			client("", ""),
			"AuthorizationPolicy shop/p from 2.0.0.0/8",
		},
		{
			"from elsewhere",
			NamespaceObjects{Policies: []*AuthorizationPolicy{policy("p", nets)}},
			client("", "1.1.1.1"),
			"refused; AuthorizationPolicy shop/p: it lets in clients from 2.0.0.0/8; add a network with 1.1.1.1 to " +
				"NetworkAuthentication shop/n",
		},
		{"localhost", NamespaceObjects{}, client("", "127.0.0.1"), "localhost"},
	} {
		c.objects.MeshTLS = func(Reference) *MeshTLSAuthentication { return &MeshTLSAuthentication{Identities: till} }
		c.objects.Networks = func(Reference) *NetworkAuthentication {
			return &NetworkAuthentication{Networks: networks("2.0.0.0/8")}
		}
		v := server("v", 1)
		v.Protocol = ProtocolTLS
		c.objects.Servers = []*Server{v}
		options := testOptions()
		var got string
		for _, d := range options.Decide(options.Inbound(pod(), c.objects.of(options), 8080), c.client) {
			got = d.text()
		}
		if diff := gocmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func (d *Decision) text() string {
	if d.By == nil {
		text := "refused"
		for _, m := range d.Misses {
			text += "; " + m.Reference.String() + ": " + m.Why + "; " + m.Change
		}
		return text
	}
	if d.By.Default != "" {
		return d.By.Default
	}
	text := d.By.Reference.String()
	if len(d.From) > 0 {
		text += " from " + DescribeNetworks(d.From)
	}
	return text
}

// What explanations name for people.
func TestDescribe(t *testing.T) {
	domain := testOptions().Identity
	for want, p := range map[string]Pattern{
		"every identity":                  ParseIdentity("*"),
		"ServiceAccount till/web":         {Text: "web.till.serviceaccount.identity.linkerd.cluster.local"},
		"ServiceAccount till/a.b":         {Text: "a.b.till.serviceaccount.identity.linkerd.cluster.local"},
		"every ServiceAccount of till":    {Text: "till.serviceaccount.identity.linkerd.cluster.local", Suffix: true},
		"web.till.serviceaccount.other":   {Text: "web.till.serviceaccount.other"},
		"spiffe://t/a":                    {Text: "spiffe://t/a"},
		"*.x.y":                           ParseIdentity("*.x.y"),
		"till.serviceaccount.identity.no": {Text: "till.serviceaccount.identity.no"},
	} {
		if got := domain.Describe(p); got != want {
			t.Errorf("%v is %q, want %q", p, got, want)
		}
	}

	for want, m := range map[string]Match{
		"all":                          {},
		"GET /api/*":                   {Method: "GET", Path: PathMatch{PathPrefix, "/api"}},
		"/*":                           allPaths,
		"/live":                        {Path: PathMatch{PathExact, "/live"}},
		"~/v, header x=y":              {Path: PathMatch{PathRegex, "/v"}, Headers: []ValueMatch{{"x", "y", false}}},
		"query q~[0-9]":                {Queries: []ValueMatch{{"q", "[0-9]", true}}},
		"shop.Cart/*":                  {RPCService: "shop.Cart"},
		"*/Get, header user=a, query ": {RPCMethod: "Get", Headers: []ValueMatch{{"user", "a", false}}},
	} {
		if got := m.String(); got != strings.TrimSuffix(want, ", query ") {
			t.Errorf("%+v is %q", m, got)
		}
	}
}

package debug

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/serving"
)

// policyOf returns the Sources of a replica. In its cluster the Server shop/v lets in till/web, and a route of shop/web
// leads to a Service that exists and to one that does not. Clients in till have a ServiceProfile for shop/web.
func policyOf() *Sources {
	const local federation.Cluster = "local"
	reference := func(kind rules.Kind, name string) rules.Reference {
		return rules.Reference{Kind: kind, Namespace: "shop", Name: name}
	}
	store := federation.NewStore()
	levels := rules.NewLevels(store)
	store.AddCluster(local, federation.Expectation{Local: true})
	options := &rules.Options{
		ClusterDomain: "cluster.local",
		Identity:      rules.IdentityDomain{ControlPlane: "linkerd", Domain: "cluster.local"},
	}

	workloads := levels.Workloads.NewWriter(local)
	workloads.Set(rules.WorkloadRef{Namespace: "shop", Name: "p"}, &rules.Workload{Namespace: "shop"})
	workloads.MarkSynced()
	servers := levels.Servers.NewWriter(local)
	servers.Set("shop", options.Of(&rules.NamespaceObjects{
		Servers: []*rules.Server{{
			Meta: rules.Meta{Reference: reference(rules.KindServer, "v")}, Pods: &rules.LabelSelector{},
			Port: rules.PortRef{Number: 80}, Protocol: rules.ProtocolHTTP1,
		}},
		Policies: []*rules.AuthorizationPolicy{
			{
				Meta:       rules.Meta{Reference: reference(rules.KindAuthorizationPolicy, "only-till")},
				Target:     reference(rules.KindServer, "v"),
				Identities: rules.Reference{Kind: rules.KindServiceAccount, Namespace: "till", Name: "web"},
			},
			{
				Meta:   rules.Meta{Reference: reference(rules.KindAuthorizationPolicy, "lost")},
				Target: reference(rules.KindServer, "w"),
			},
		},
	}))
	servers.MarkSynced()

	web, api := reference(rules.KindService, "web"), reference(rules.KindService, "api")
	route := &rules.Route{
		Meta: rules.Meta{Reference: reference(rules.KindHTTPRoute, "r")}, Parents: []rules.Parent{{Reference: web}},
		Rules: []rules.Rule{{Unmatched: true}, {
			Matches: []rules.Match{{Method: "GET", Path: rules.PathMatch{Type: rules.PathPrefix, Text: "/"}}},
			Backends: []rules.Backend{
				{Reference: api, Port: 80, Weight: 9},
				{Reference: reference(rules.KindService, "gone"), Port: 80, Weight: 1},
			},
		}},
	}
	targets := levels.Targets.NewWriter(local)
	targets.Set(web, &rules.Target{
		Reference: web, Exists: true, Found: map[rules.Reference]bool{api: true},
		Attached: rules.Attach(rules.ParentObject{Reference: web, Exists: true, HasIP: true}, []*rules.Route{route}),
	})
	targets.MarkSynced()
	levels.Egress.NewWriter(local).MarkSynced()
	store.Addresses.NewWriter(local).MarkSynced()
	levels.Findings.NewWriter(local).Set(route.Reference, &rules.ObjectFindings{Findings: []rules.Finding{
		{Unconverted: true, Rule: 1, Part: rules.PartMatch, Reason: "no path"},
	}})

	store.Profiles.NewWriter(local).Set(federation.Service{Namespace: "till", Name: "web.shop.svc.cluster.local"},
		&profile.Profile{Overrides: []profile.Override{{}}})
	config := linkerd.Defaults()
	config.Cluster = local
	on := serving.NewServer(logr.Discard(), serving.DefaultConfig())
	return &Sources{
		Policy:    policyapi.NewServer(logr.Discard(), on, levels.In(store, local), options),
		Discovery: linkerd.NewServer(logr.Discard(), on, store, config),
	}
}

func pagesOf(s *Sources) http.Handler {
	mux := http.NewServeMux()
	s.addPolicy(mux)
	return mux
}

// get returns a page, or the text of an error.
func get[T any](t *testing.T, handler http.Handler, path string) (page T, code int, text string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	if recorder.Code != http.StatusOK {
		return page, recorder.Code, recorder.Body.String()
	}
	if err := json.Unmarshal(recorder.Body.Bytes(), &page); err != nil {
		t.Fatal(err)
	}
	return page, recorder.Code, ""
}

// The page about a port has the verdict on a client, and the objects that lead to it.
func TestPolicyPage(t *testing.T) {
	handler := pagesOf(policyOf())
	grant := PolicyGrant{By: "AuthorizationPolicy shop/only-till", Clients: "ServiceAccount till/web"}
	want := PolicyPage{
		Workload: "Pod shop/p", Port: 80, Policy: "Server shop/v", Protocol: "HTTP/1",
		Client: "ServiceAccount shop/api", Verdict: AllRefused,
		Decisions: []PolicyDecision{{Route: "default route", Why: []string{
			"AuthorizationPolicy shop/only-till: it lets in ServiceAccount till/web; create a second AuthorizationPolicy, " +
				"which names ServiceAccount shop/api, or have AuthorizationPolicy shop/only-till require a " +
				"MeshTLSAuthentication with both",
		}}},
		Authorizations: []PolicyGrant{grant},
		Routes:         []InboundRoute{{Route: "default route", Rules: []RoutedRule{{Matches: []string{"/*"}}}}},
		Explained: Explained{Objects: []ExplainedObject{
			{"Server shop/v", true, "it selects the port, accessPolicy is deny"},
			{"AuthorizationPolicy shop/only-till", true, "it lets in ServiceAccount till/web"},
			{"AuthorizationPolicy shop/lost", false, "Server shop/w does not exist, or cannot be read"},
		}},
	}
	got, _, text := get[PolicyPage](t, handler, "/explain/policy?workload=shop:p&port=80&from=api.shop")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", text, diff)
	}

	allowed, _, _ := get[PolicyPage](t, handler, "/explain/policy?workload=shop:p&port=80&from=web.till")
	if allowed.Verdict != AllAllowed || allowed.Decisions[0].By != grant.By {
		t.Errorf("the client that is named gets %+v", allowed.Decisions)
	}
	if without, _, _ := get[PolicyPage](t, handler, "/explain/policy?workload=shop:p&port=80"); without.Verdict != "" {
		t.Errorf("without a client it is decided %s", without.Verdict)
	}
}

// The page about a target has where each rule leads, and what fails.
func TestRoutePage(t *testing.T) {
	want := RoutePage{
		Target: "web.shop:80", Client: "till", Of: "Service shop/web", Protocol: "detected", Failing: 1,
		Routes: []RoutedRoute{
			{Route: "HTTPRoute shop/r", Rules: []RoutedRule{{
				Number: 2, Matches: []string{"GET /*"},
				Backends: []RoutedBackend{
					{"Service shop/api:80", "90%", ""}, {"Service shop/gone:80", "10%", "Service not found gone"},
				},
			}}},
			{Route: "default opaq", Opaque: true, Rules: []RoutedRule{{
				Backends: []RoutedBackend{{"Service shop/web:80", "100%", ""}},
			}}},
		},
		Explained: Explained{
			Notes: []string{"proxies use ServiceProfile till/web.shop.svc.cluster.local instead, as long as it has " +
				"routes or dstOverrides"},
			Objects: []ExplainedObject{
				{"Service shop/web", true, "it is what clients ask for"},
				{"HTTPRoute shop/r", true, "it is attached, with 1 of 2 rules"},
				{"Service shop/api", true, "a backend of HTTPRoute shop/r"},
				{
					"Service shop/gone", false,
					"a backend of HTTPRoute shop/r, and what is sent there fails: Service not found gone",
				},
			},
			Findings: []FoundObject{{"HTTPRoute shop/r", false, []string{"rule 1: match: no path"}}},
		},
	}
	got, _, text := get[RoutePage](t, pagesOf(policyOf()), "/explain/route?target=web.shop:80&from=till")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", text, diff)
	}
}

// What cannot be explained is an error that names what is wrong.
func TestPolicyPageErrors(t *testing.T) {
	handler := pagesOf(policyOf())
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/explain/policy?workload=shop:x&port=80":           {http.StatusNotFound, "Pod shop/x is not known"},
		"/explain/policy?workload=shop:p&port=0":            {http.StatusBadRequest, "no port: 0"},
		"/explain/policy?workload=shop:p":                   {http.StatusBadRequest, `port: "" is no port`},
		"/explain/policy?workload=p&port=80":                {http.StatusBadRequest, "no workload"},
		"/explain/policy?workload=shop:p&port=80&from=x":    {http.StatusBadRequest, "SERVICEACCOUNT.NAMESPACE"},
		"/explain/policy?workload=shop:p&port=80&from-ip=x": {http.StatusBadRequest, "is no IP"},
		"/explain/route?target=":                            {http.StatusBadRequest, "no authority"},
		"/explain/route?target=www.example.com:80":          {http.StatusNotFound, "is no Service"},
	} {
		if _, code, text := get[any](t, handler, path); code != want.code || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d %s, want %d %s", path, code, text, want.code, want.text)
		}
	}

	for _, path := range []string{"/explain/policy?workload=shop:p&port=80", "/explain/route?target=web.shop:80"} {
		_, code, text := get[any](t, pagesOf(&Sources{}), path)
		if code != http.StatusNotFound || !strings.Contains(text, "-policy-addr") {
			t.Errorf("without policy %s is %d %s", path, code, text)
		}
	}
}

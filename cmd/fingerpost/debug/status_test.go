package debug

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
)

// The page counts what a Service consists of, finds by a part of a name, shows a part of what is too much,
// and is the same for everybody: what comes from outside is text, and no other script runs.
func TestStatus(t *testing.T) {
	store := federation.NewStore()
	store.MarkClustersListed()
	svc := func(name string) federation.Service { return federation.Service{Namespace: "shop", Name: name} }
	view := func(ready ...bool) *federation.View {
		s := &federation.Slice{Name: "s"}
		for _, r := range ready {
			s.Endpoints = append(s.Endpoints, &federation.Endpoint{Ready: r})
		}
		return &federation.View{Slices: []*federation.Slice{s}, LocalOnly: len(ready) == 1}
	}
	for name, views := range map[federation.Cluster]map[federation.Service]*federation.View{
		"east": {
			svc("web"): view(true, false), svc("alone"): view(true),
			svc("bad"): {Malformed: "<b>malformed</b>"}, svc("web-federated"): {Composition: &federation.Composition{
				Union: true, Members: []federation.MemberRef{
					{Ref: federation.Ref{Cluster: "east", Service: svc("web")}},
					{Ref: federation.Ref{Cluster: "west", Service: svc("web")}},
					{Ref: federation.Ref{
						Cluster: "ghost",
						Service: svc("web"),
					}},
				},
			}},
		},
		"west": {svc("web"): view(true, true, true)},
	} {
		store.AddCluster(name, federation.Expectation{Since: time.Now()})
		claims := store.NewWriter(name)
		for s, v := range views {
			claims.Set(s, v)
		}
		for i := range shownServices {
			if name == "east" {
				claims.Set(svc(fmt.Sprintf("many-%03d", i)), &federation.View{ExternalName: true})
			}
		}
		claims.MarkSynced()
	}
	conn, err := api.NewConnection(&rest.Config{Host: "https://127.0.0.1:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	registry := cluster.NewRegistry(logr.Discard(), store, cluster.Options{})
	reconciler, err := links.NewReconciler(logr.Discard(), conn, registry, nil, func() {}, links.Options{})
	if err != nil {
		t.Fatal(err)
	}
	handler := &statusPageHandler{Sources: Sources{
		Store: store, Registry: registry, Links: reconciler, Discovery: linkerd.NewServer(logr.Discard(), store,
			linkerd.Defaults()),
		Cluster: "east", Replica: "replica-0",
	}}
	ask := func(path string) (*http.Response, string) {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil))
		return w.Result(), w.Body.String()
	}
	response, body := ask("/")
	policy := response.Header.Get("Content-Security-Policy")
	if !regexp.MustCompile(`default-src 'none'; style-src 'sha256-[\w+/]{43}='; script-src 'sha256-[\w+/]{43}=';`).
		MatchString(policy) ||
		policy != contentSecurityPolicy() {
		t.Errorf("policy %q", policy)
	}
	flat := regexp.MustCompile(`\s+`).
		ReplaceAllString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(body, " "), " ")
	for _, want := range []string{
		"204 in east, 200 shown", "shop/alone plain 1 of 1 east 0 for clients on the same node",
		"shop/bad plain 0 of 0 east 0 &lt;b&gt;malformed&lt;/b&gt;",
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("the page lacks %q:\n%s", want, flat)
		}
	}
	_, body = ask("/?q=WEB")
	flat = regexp.MustCompile(`\s+`).ReplaceAllString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(body, " "), " ")
	for _, want := range []string{
		"2 found", "shop/web plain 1 of 2 east 0",
		"shop/web-federated federated 4 of 5 east, ghost, west 0 cluster ghost is not linked",
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("the page lacks %q:\n%s", want, flat)
		}
	}
	if _, body := ask(`/?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E`); strings.Count(body, "<script") != 1 {
		t.Errorf("a filter becomes a script:\n%s", body)
	}
}

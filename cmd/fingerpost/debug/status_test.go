package debug

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/changes"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/serving"
)

// The page counts what a Service consists of, finds by a part of a name, shows a part of what is too much,
// and is the same for everybody: what comes from outside is text, and no other script runs.
func TestStatusPage(t *testing.T) {
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
		writer := store.NewWriter(name)
		for s, v := range views {
			writer.Set(s, v)
		}
		for i := range foldedServices {
			if name == "east" {
				writer.Set(svc(fmt.Sprintf("many-%03d", i)), &federation.View{ExternalName: true})
			}
		}
		writer.MarkSynced()
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
	recent := changes.NewRecent()
	for i := range shownChanges + 1 {
		recent.Add(changes.Change{At: time.Now(), Cluster: "west", What: changes.Left, Text: fmt.Sprint("left ", i)})
	}
	recent.Add(changes.Change{At: time.Now(), Service: "shop/web", What: changes.Deleted, Text: "<i>gone</i>"})
	on := serving.NewServer(logr.Discard(), serving.DefaultConfig())
	handler := &statusPageHandler{Sources: Sources{
		Store: store, Registry: registry, Links: reconciler,
		Discovery: linkerd.NewServer(logr.Discard(), on, store, linkerd.Defaults()),
		Changes:   recent,
		Cluster:   "east", Replica: "replica-0",
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
	for _, want := range []string{
		"88 more Services; find the other 4 by name",
		"0s ago Deleted shop/web &lt;i&gt;gone&lt;/i&gt; 0s ago Left left 6 ", "2 more changes 0s ago Left left 1 ",
		"shop/alone plain 1 of 1 0 for clients on the same node",
		"shop/bad plain 0 of 0 0 &lt;b&gt;malformed&lt;/b&gt;",
		"Service shop/bad is malformed &lt;b&gt;malformed&lt;/b&gt; fingerpost explain bad.shop ",
	} {
		if flat := textOf(body); !strings.Contains(flat, want) {
			t.Errorf("the page lacks %q:\n%s", want, flat)
		}
	}
	_, body = ask("/?q=WEB")
	for _, want := range []string{
		"2 of 104 found", "shop/web plain 1 of 2 0", "0s ago Deleted shop/web &lt;i&gt;gone&lt;/i&gt; Services",
		"shop/web-federated federated 4 of 5 0 cluster ghost of its member web@ghost is not linked",
	} {
		if flat := textOf(body); !strings.Contains(flat, want) {
			t.Errorf("the page lacks %q:\n%s", want, flat)
		}
	}
	if _, body := ask(`/?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E`); strings.Count(body, "<script") != 1 {
		t.Errorf("a filter becomes a script:\n%s", body)
	}
}

var (
	drawing = regexp.MustCompile(`(?s)<svg.*?</svg>|<style>.*?</style>|<script>.*?</script>`)
	tag     = regexp.MustCompile(`<[^>]*>`)
	spaces  = regexp.MustCompile(`\s+`)
)

// textOf returns the text of a page without its drawings.
func textOf(body string) string {
	return spaces.ReplaceAllString(tag.ReplaceAllString(drawing.ReplaceAllString(body, " "), " "), " ")
}

func renderFleet(t *testing.T, in overviewInput) string {
	t.Helper()
	o := newOverview(in)
	page := render(o.newPage(""))
	if page.Err != nil {
		t.Fatal(page.Err)
	}
	return string(page.Body)
}

// What a default installation is when all is well has no word, mark or line that stands for a problem, however many
// clusters it has.
func TestHealthyPage(t *testing.T) {
	loud := regexp.MustCompile(`class="[^"]*\b(bad|warn|away|stale|Stale|Suspect|Connecting)\b`)
	for n, verdict := range map[int]string{
		1: "The cluster is Live", 5: "All 5 clusters are Live", 60: "All 60 clusters are Live",
	} {
		body := renderFleet(t, newFleet(n, 40))
		if found := loud.FindString(body); found != "" {
			t.Errorf("with %d clusters the page has %s", n, found)
		}
		flat := textOf(body)
		for _, want := range []string{
			verdict + " Nothing needs attention.", "replicas ready 3 of 3", "fingerpost…9f8-zz1ab",
		} {
			if !strings.Contains(flat, want) {
				t.Errorf("with %d clusters the page lacks %q:\n%s", n, want, flat)
			}
		}
	}
}

// A replica that writes nothing is neither green nor a problem.
func TestReadOnlyPage(t *testing.T) {
	fleet := newFleet(1, 1)
	fleet.clusters.ReadOnly = true
	body := renderFleet(t, fleet)
	verdict := regexp.MustCompile(`id="verdict" class="\w* idle"`)
	want := "Nothing needs attention. Discovery only: this replica writes nothing."
	if text := textOf(body); !strings.Contains(text, want) || !verdict.MatchString(body) {
		t.Errorf("the page does not show it:\n%.300s", text)
	}
}

// A cluster that is away comes first, with since when, what is affected, a command and a runbook.
func TestClusterIsAway(t *testing.T) {
	for _, n := range []int{5, 60} {
		in := newFleet(n, 40)
		in.fail(4, federation.Stale, "no response within 3s", 6*time.Minute)
		body := renderFleet(t, in)
		flat := textOf(body)
		for _, want := range []string{
			fmt.Sprintf("1 of %d clusters is not Live 1 problem, 1 urgent.", n),
			"west is Stale since 11:54:00 UTC , for 6m0s its last state is kept: ",
			" ready endpoints in 20 Services here no response within 3s fingerpost clusters west Runbook",
			"west Stale – 40 ",
		} {
			if !strings.Contains(flat, want) {
				t.Errorf("with %d clusters the page lacks %q:\n%s", n, want, flat)
			}
		}
		if first := strings.Index(body, `id="cluster-`); !strings.HasPrefix(body[first:], `id="cluster-west"`) {
			t.Errorf("with %d clusters the first is %.40s", n, body[first:])
		}
		if !strings.Contains(body, docsURL+"problems.md#stale") || !strings.Contains(body, ` stale"`) {
			t.Errorf("with %d clusters the page lacks the runbook, or the endpoints of west look like new ones", n)
		}
	}
}

// Whatever clusters, Services and clients are called is text, and does not change how other text is shown.
func TestHostileNames(t *testing.T) {
	in := newFleet(3, 2)
	for i, name := range []string{
		"\u202egpj.\x1b[31mexe", strings.Repeat("x", 5000) + `"><script>alert(1)</script>`,
	} {
		c := &in.clusters.Clusters[i+1]
		c.Name, c.Status.Contact, c.State = name, errors.New(name), federation.Stale
	}
	in.clusters.FindProblems(noon)
	in.streams[0].Pod, in.streams[0].Authority = "</td><img src=x onerror=alert(1)>", "שלום\u2066.shop"
	body := renderFleet(t, in)
	if strings.Count(body, "<script") != 1 || strings.Contains(body, "<img") {
		t.Errorf("a name becomes an element:\n%s", body)
	}
	if i := strings.IndexAny(body, "\x1b\u202e\u2066"); i >= 0 {
		t.Errorf("the page has a character that changes others: %q", body[max(i-40, 0):i+10])
	}
	for _, want := range []string{"שלום", `fingerpost clusters &#39;`} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// A View is counted once, and the size of a page is bounded by the number of clusters.
func TestLargePage(t *testing.T) {
	in := newFleet(60, 300)
	first := newOverview(in)
	in.counts = first.counts
	for v, n := range in.counts {
		in.counts[v] = endpointCount{n.ready + 1, n.total + 1}
	}
	if second := newOverview(in); second.page.Endpoints != first.page.Endpoints+len(in.counts) {
		t.Errorf("%d ready endpoints, want %d with those that are taken over",
			second.page.Endpoints, first.page.Endpoints+len(in.counts))
	}
	if body := renderFleet(t, in); len(body) > 300_000 {
		t.Errorf("a page of %d bytes", len(body))
	}
}

// For what is wrong with Services a View is not counted anew, either.
func TestProblemsOfCountedViews(t *testing.T) {
	store, web := federation.NewStore(), federation.Service{Namespace: "shop", Name: "web"}
	store.AddCluster("east", federation.Expectation{Local: true})
	store.NewWriter("east").Set(web, fleetView(1))
	counts := endpointCounts{store.Views("east").Get(web): {ready: 0, total: 7}}
	for _, counts := range []endpointCounts{nil, counts} {
		page := newProblemsPage(problemsInput{
			store: store, local: "east", streams: map[federation.Service]int{web: 1}, counts: counts,
		})
		if counts == nil && len(page) > 0 {
			t.Errorf("the endpoint of web is ready: %+v", page)
		}
		if counts != nil && (len(page) != 1 || page[0].Message != "none of its 7 endpoints is ready") {
			t.Errorf("web was counted anew: %+v", page)
		}
	}
}

// Each heading that a Problem leads to is one of the docs.
func TestRunbooks(t *testing.T) {
	page, err := os.ReadFile("../../../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range problem.Descriptions() {
		_, anchor, _ := strings.Cut(d.Class.Runbook(), "#")
		if heading := regexp.MustCompile(`(?im)^### ` + anchor + `$`); !heading.Match(page) {
			t.Errorf("docs/problems.md has no heading %s", anchor)
		}
	}
}

// Urgent Problems come first; of equal ones those of the cluster whose name comes first.
func TestWorstFirst(t *testing.T) {
	in := newFleet(5, 1)
	in.fail(1, federation.Suspect, "refused", 20*time.Second)
	in.fail(3, federation.Stale, "refused", time.Hour)
	in.fail(4, federation.Stale, "refused", 2*time.Hour)
	var got []string
	for _, p := range problem.ToLook(in.clusters.Problems) {
		got = append(got, p.Cluster)
	}
	if want := []string{"south", "west", "central"}; !slices.Equal(got, want) {
		t.Errorf("in the order %v, want %v", got, want)
	}
}

// A labelled Secret that links a cluster although others have Links is one thing to look at, and so is a state that
// cannot be saved.
func TestProblemsOfPage(t *testing.T) {
	in := newFleet(3, 1)
	page := &in.clusters
	page.Clusters[1].Link = "linkerd/central"
	page.NotSaved = cluster.NotSaved{Clusters: 2, Reason: "the disk is full"}
	page.FindProblems(noon)

	var got []string
	for _, p := range problem.ToLook(page.Problems) {
		got = append(got, fmt.Sprintf("%s %s %s: %s", p.Severity, p.Class, p.Cluster, p.Message()))
	}
	want := []string{
		"Warning SecretAlone north: north is linked by Secret linkerd/cluster-credentials-north only, without a Link; " +
			"if the Link was deleted to unlink the cluster, delete the Secret as well",
		"Warning NotSaved : that of 2 clusters cannot be saved: the disk is full; a replica that starts while a " +
			"cluster is unreachable will not have its endpoints",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

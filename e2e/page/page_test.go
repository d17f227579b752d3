// Package page looks at the status page with Debian's Chromium: of a replica's own parts, with API servers in memory.
package page

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/changes"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/e2e/internal/browser"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/serving"
)

// A fleet is a replica's page about clusters, the first of which is the local one.
type fleet struct {
	t        *testing.T
	network  *apitest.Network
	registry *cluster.Registry
	url      string
}

// newFleet starts a page about clusters with so many Services each, which are federated. It returns once all are Live.
func newFleet(t *testing.T, services int, names ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, network: apitest.NewNetwork()}
	store := federation.NewStore()
	f.registry = cluster.NewRegistry(logr.Discard(), store, cluster.Options{
		ProbeInterval: 200 * time.Millisecond, Dial: f.network.Dial,
		Thresholds: federation.Thresholds{Suspect: 3 * time.Second, Stale: 6 * time.Second},
	})
	var local *api.Connection
	for i, name := range names {
		server := f.network.Server(fmt.Sprintf("server-%d", i)) // its certificate has the name
		f.fill(server, services, i, names)
		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(server.Kubeconfig(server.Token())))
		f.do(err)
		spec := cluster.Spec{
			Name: name, Local: i == 0, TrustDomain: "cluster.local", ClusterDomain: "cluster.local",
			Access: []cluster.Access{{Source: "Secret linkerd/cluster-credentials-" + name, Config: config}},
		}
		f.do(f.registry.Apply(spec))
		if i == 0 {
			local, err = api.NewConnection(config, f.network.Dial)
			f.do(err)
		}
	}
	store.MarkClustersListed()
	reconciler, err := links.NewReconciler(logr.Discard(), local, f.registry, nil, func() {}, links.Options{})
	f.do(err)
	config := linkerd.Defaults()
	config.Cluster = federation.Cluster(names[0])
	on := serving.NewServer(logr.Discard(), serving.DefaultConfig())
	server := httptest.NewServer(debug.Handler(debug.Sources{
		Store: store, Registry: f.registry, Links: reconciler, Namespace: "linkerd",
		Discovery: linkerd.NewServer(logr.Discard(), on, store, config), Changes: changes.NewRecent(),
		Cluster: names[0], Replica: "fingerpost-6c9f8-k2x4p", Version: "v0.1.0",
	}))
	f.url = server.URL + "/"
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.registry.Start(ctx) }()
	t.Cleanup(func() {
		server.Close()
		cancel()
		f.do(<-ended)
		local.Close()
		f.network.Close()
	})
	deadline, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	for {
		statuses, changed := f.registry.Statuses()
		live := 0
		for _, s := range statuses {
			if s.State == federation.Live {
				live++
			}
		}
		if live == len(names) {
			return f
		}
		select {
		case <-changed:
		case <-deadline.Done():
			t.Fatalf("%d of %d clusters are Live", live, len(names))
		}
	}
}

func (f *fleet) do(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// fill puts Services with ready endpoints into a cluster; the local one has a union of each, too.
func (f *fleet) fill(server *apitest.Server, services, index int, names []string) {
	f.t.Helper()
	for i := range services {
		name := fmt.Sprintf("web-%02d", i)
		f.apply(server, `{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: shop},
  spec: {ports: [{port: 80, name: http}]}}`, name)
		var endpoints []string
		for n := range 1 + (7*i+3*index)%5 {
			endpoints = append(endpoints, fmt.Sprintf("{addresses: [10.%d.%d.%d]}", index, i, n+1))
		}
		f.apply(server, `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
  metadata: {name: %[1]s-1, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}},
  addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [%[2]s]}`, name, strings.Join(endpoints, ", "))
		if index > 0 {
			continue
		}
		var members []string
		for _, c := range names[1:] {
			members = append(members, name+"@"+c)
		}
		f.apply(server, `{apiVersion: v1, kind: Service, metadata: {name: %[1]s-federated, namespace: shop, annotations: {
  multicluster.linkerd.io/remote-discovery: %[2]q, multicluster.linkerd.io/local-discovery: %[1]s}},
  spec: {ports: [{port: 80, name: http}]}}`, name, strings.Join(members, ","))
	}
}

func (f *fleet) apply(server *apitest.Server, format string, args ...any) {
	f.t.Helper()
	var o unstructured.Unstructured
	f.do(yaml.Unmarshal([]byte(fmt.Sprintf(format, args...)), &o.Object))
	server.Apply(&o)
}

// open opens the page in a window of a height, once it shows the clusters as Live.
func (f *fleet) open(b *browser.Browser, height int64) {
	f.t.Helper()
	b.Do("the page", chromedp.EmulateViewport(1280, height), chromedp.Navigate(f.url),
		chromedp.WaitVisible("#verdict.ok"))
}

// count returns how many elements of the page a selector finds that are shown.
func count(b *browser.Browser, selector string) int {
	script := fmt.Sprintf(`[...document.querySelectorAll(%q)].filter(e => e.checkVisibility()).length`, selector)
	return browser.Get(b, selector, chromedp.Evaluate[int](script))
}

// fits reports an error if the page is wider than the window, or higher than most.
func fits(t *testing.T, b *browser.Browser, most int) {
	t.Helper()
	wide := browser.Get(b, "its width",
		chromedp.Evaluate[int](`document.documentElement.scrollWidth - document.documentElement.clientWidth`))
	if wide > 0 {
		t.Errorf("the page is %d pixels wider than the window", wide)
	}
	high := browser.Get(b, "its height", chromedp.Evaluate[int](`document.documentElement.scrollHeight`))
	if high > most {
		t.Errorf("the page is %d pixels high, want %d at most", high, most)
	}
}

// loudElements returns what stands out: elements with the colour of a warning or of a problem.
const loudElements = `(() => {
  const colours = new Set();
  for (const name of ["--warn", "--bad", "--warnbg", "--badbg"]) {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.hidden = false; probe.style.color = "var(" + name + ")";
    colours.add(getComputedStyle(probe).color); probe.remove();
  }
  const shown = e => e.checkVisibility() && e.getBoundingClientRect().width > 0;
  return [...document.querySelectorAll("body *")].filter(shown).filter(e => {
    const s = getComputedStyle(e);
    return [s.color, s.backgroundColor, s.borderLeftColor, ...(e instanceof SVGElement ? [s.stroke, s.fill] : [])]
      .some(c => colours.has(c));
  }).map(e => e.tagName + "." + e.getAttribute("class") + " " + e.textContent.trim().slice(0, 40)).join("\n");
})()`

// contrast returns the texts that are hard to read: less than 4.5:1 with what is behind them (WCAG 2.2 AA).
const contrast = `(() => {
  const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("body *:not(svg, svg *)")].filter(e => e.checkVisibility() &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).filter(e => {
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 4.5;
  }).map(e => e.tagName + " " + e.textContent.trim().slice(0, 40)).join("\n");
})()`

func quiet(t *testing.T, b *browser.Browser) {
	t.Helper()
	if loud := browser.Get(b, "what stands out", chromedp.Evaluate[string](loudElements)); loud != "" {
		t.Errorf("while all is well these stand out:\n%s", loud)
	}
	if count(b, "#problems") > 0 {
		t.Error("while all is well there is a list of problems")
	}
}

func readable(t *testing.T, b *browser.Browser) {
	t.Helper()
	if hard := browser.Get(b, "contrast", chromedp.Evaluate[string](contrast)); hard != "" {
		t.Errorf("hard to read:\n%s", hard)
	}
}

func noComplaints(t *testing.T, b *browser.Browser) {
	t.Helper()
	for _, c := range b.Complaints() {
		t.Errorf("the browser complains: %s", c)
	}
}

func clusterNames(n int) []string {
	names := []string{"east", "central", "north", "south", "west"}
	for i := len(names); i < n; i++ {
		names = append(names, fmt.Sprintf("eu-%02d", i))
	}
	return names[:n]
}

// A single cluster: nothing stands out, and there is a way to go on.
func TestOneCluster(t *testing.T) {
	b, f := browser.Open(t), newFleet(t, 4, "east")
	f.open(b, 800)
	quiet(t, b)
	fits(t, b, 800)
	readable(t, b)
	if n := count(b, `#clusters a[href*="link-two-clusters"]`); n != 1 {
		t.Errorf("%d links to the page about links", n)
	}
	b.Picture("one")
	noComplaints(t, b)
}

// Five clusters: nothing stands out, in the light and in the dark; one that goes away is shown by itself, first, with
// a command and a runbook, and its endpoints are pale; on a phone and without the script the page shows as much.
func TestFiveClusters(t *testing.T) {
	b, f := browser.Open(t), newFleet(t, 8, clusterNames(5)...)
	f.open(b, 900)
	quiet(t, b)
	fits(t, b, 1200)
	readable(t, b)
	for selector, want := range map[string]int{
		"#clusters tbody tr": 5, "#map circle": 5, "#map line": 4, "#clusters .spark .answers": 5,
		"#services tbody tr": 12, "#services .bar": 12, "#services .bar rect.stale": 0, "#streams table": 0,
	} {
		if n := count(b, selector); n != want {
			t.Errorf("%d of %s, want %d", n, selector, want)
		}
	}
	b.Picture("five")
	b.Dark()
	quiet(t, b)
	readable(t, b)
	b.Picture("five-dark")

	f.network.Server("server-4").Cut(apitest.Silence)
	b.Do("it follows", chromedp.WaitVisible("#cluster-west .Stale"))
	for selector, want := range map[string]int{
		"#verdict.bad": 1, "#problems li.bad": 1, "#problems li code": 1, `#problems a[href$="problems.md#stale"]`: 1,
		"#clusters tbody tr:first-child#cluster-west": 1, "#map .away.bad circle": 1,
	} {
		if n := count(b, selector); n != want {
			t.Errorf("%d of %s, want %d", n, selector, want)
		}
	}
	if count(b, "#services .bar rect.stale") == 0 {
		t.Error("the endpoints of a cluster out of contact look like others")
	}
	readable(t, b)
	b.Picture("stale-dark")

	b.Do("a phone", chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), chromedp.Reload(),
		chromedp.WaitVisible("#cluster-west .Stale"))
	fits(t, b, 5000)
	b.Picture("stale-phone")
	noComplaints(t, b)
	f.hasWithoutScripts(b, `id="verdict" class="bad"`, `http-equiv="refresh"`, `<td class="state Stale">`)
}

// hasWithoutScripts asserts what the source of the page has where scripts do not run.
func (f *fleet) hasWithoutScripts(b *browser.Browser, wanted ...string) {
	f.t.Helper()
	b.WithoutScripts()
	b.Do("without its script", chromedp.Navigate(f.url))
	html := browser.Get(b, "its source", chromedp.OuterHTML("html"))
	for _, want := range wanted {
		if !strings.Contains(html, want) {
			f.t.Errorf("without its script the page lacks %s", want)
		}
	}
}

// Sixty clusters: a screen and a half, and what the user has unfolded stays so.
func TestSixtyClusters(t *testing.T) {
	b, f := browser.Open(t), newFleet(t, 8, clusterNames(60)...)
	f.open(b, 900)
	quiet(t, b)
	fits(t, b, 1350)
	for selector, want := range map[string]int{"#clusters tbody tr": 12, "#map .tiles a": 60, "#map svg": 0} {
		if n := count(b, selector); n != want {
			t.Errorf("%d of %s, want %d", n, selector, want)
		}
	}
	b.Picture("sixty")
	b.Do("unfold", chromedp.Click("#show-clusters"))
	f.network.Server("server-31").Cut(apitest.Refuse)
	b.Do("it follows", chromedp.WaitVisible("#clusters tbody tr:first-child#cluster-eu-31 .Stale"))
	if n := count(b, "#clusters tbody tr"); n != 60 {
		t.Errorf("%d clusters are shown after what was unfolded was updated, want 60", n)
	}
	b.Picture("sixty-stale")
	noComplaints(t, b)
}

// What a policy gives each cluster is below what is ready, in the light, in the dark, on a phone and without the
// script, whatever the clusters are called.
func TestTraffic(t *testing.T) {
	names := []string{"east", "central", `<img src=x onerror=console.error(1)>`, strings.Repeat("long", 60)}
	b, f := browser.Open(t), newFleet(t, 4, names...)
	for name, annotation := range map[string]string{
		"web-00": "weights: 'east=80,central=20'", "web-01": "prefer: local > *", "web-02": "capacity: '1000'",
	} {
		f.apply(f.network.Server("server-0"), `{apiVersion: v1, kind: Service, metadata: {name: %[1]s-federated,
  namespace: shop, annotations: {multicluster.linkerd.io/remote-discovery: '%[1]s@central,%[1]s@%[2]s,%[1]s@%[3]s',
  multicluster.linkerd.io/local-discovery: %[1]s, federation.fingerpost.io/%[4]s}},
  spec: {ports: [{port: 80, name: http}]}}`,
			name, names[2], names[3], annotation)
	}
	f.open(b, 900)
	const last = `#services tbody tr:has(.traffic):nth-child(3)` // all three have one
	b.Do("the policies", chromedp.WaitVisible(last))
	quiet(t, b)
	fits(t, b, 1300)
	readable(t, b)
	for selector, want := range map[string]int{
		".traffic": 3, "#services .bar": 11, ".traffic + .bar": 3, ".traffic + .bar rect": 2 + 1 + 4, "main img": 0,
	} {
		if n := count(b, selector); n != want {
			t.Errorf("%d of %s, want %d", n, selector, want)
		}
	}
	b.Picture("traffic")
	b.Dark()
	quiet(t, b)
	readable(t, b)
	b.Picture("traffic-dark")
	b.Do("a phone", chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), chromedp.Reload(),
		chromedp.WaitVisible(last))
	fits(t, b, 5000)
	b.Do("further down", chromedp.ScrollIntoView(last))
	b.Picture("traffic-phone")
	noComplaints(t, b)
	f.hasWithoutScripts(b, "<title>east: 80%, preferred; central: 20%, preferred; ", ">east 80%</text>")
}

// Names of clusters are text, whatever they are, and do not widen the page.
func TestHostileNames(t *testing.T) {
	names := []string{
		"east", `<img src=x onerror=console.error(1)>`, "\u202egpj.\x1b[31mexe", "שלום-עולם",
		strings.Repeat("long", 60), `"'><script>console.error(2)</script>`,
	}
	b, f := browser.Open(t), newFleet(t, 0, names...)
	f.open(b, 900)
	fits(t, b, 3000)
	b.Picture("hostile")
	b.Do("a phone", chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), chromedp.Reload(),
		chromedp.WaitVisible("#verdict.ok"))
	fits(t, b, 5000)
	b.Picture("hostile-phone")
	if n := count(b, "#clusters tbody tr") + count(b, "main img") + count(b, "main script"); n != len(names) {
		t.Errorf("%d rows, images and scripts, want %d rows", n, len(names))
	}
	noComplaints(t, b)
}

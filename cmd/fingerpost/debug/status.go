package debug

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/changes"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/internal/words"
)

// How much of a large page is shown. What is folded is one click away, and a filter finds the rest.
const (
	shownProblems  = 6
	foldedProblems = 100
	shownClusters  = 12 // with more of them the map is one of tiles
	shownServices  = 12
	foldedServices = 100
	shownNotes     = 3 // of a Service
	shownStreams   = 50
	shownChanges   = 6
	foldedChanges  = 100

	// slowClient is how long a client may leave a message unread before that is a Problem.
	slowClient = 30 * time.Second

	ownLeases = "fingerpost-" // begins the names of the Leases that no other program has
)

const docsURL = "https://github.com/fingerpost/fingerpost/blob/main/docs/"

//go:embed status.html
var statusHTML string

var statusTemplate = template.Must(template.New("status").Funcs(template.FuncMap{
	"age":        func(p statusPage, at time.Time) string { return Age(at, p.Now) },
	"clock":      func(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05") },
	"since":      sinceText,
	"docs":       func(page string) string { return docsURL + page },
	"paragraphs": paragraphs,
	"count":      words.Count,
	"number":     words.Number,
	"short":      func(name string) string { return Shorten(name, 20) },
	"mood":       func(p problem.Problem) string { return moodOf(p.Severity).String() },
	"pair":       func(of problem.Problem, p statusPage) any { return map[string]any{"Problem": of, "Page": p} },
	"changesOf": func(all []changes.Change, p statusPage) any {
		return map[string]any{"Changes": all, "Page": p}
	},
	"lag": func(p statusPage, s discovery.StreamStatus) string {
		return strings.TrimPrefix(LagText(s, p.Now), ", ")
	},
}).Parse(statusHTML))

// sinceText returns when something began, without the date if it was not long ago.
func sinceText(p statusPage, at time.Time) string {
	if p.Now.Sub(at) < 12*time.Hour {
		return at.UTC().Format("15:04:05 UTC")
	}
	return at.UTC().Format("2006-01-02 15:04 UTC")
}

// endText returns when the credentials of a cluster expire; the kubelet rotates those of the local one.
func endText(c ClusterEntry, now time.Time) string {
	switch {
	case c.Local || c.Expires.IsZero():
		return "–"
	case c.Expires.Before(now):
		return Ago(c.Expires, now)
	default:
		return "in " + Age(now, c.Expires)
	}
}

// contentSecurityPolicy lets the page's own style and script run, and nothing else that a name may bring into
// it. It has their hashes instead of a nonce, because the script puts parts of later responses into the page,
// whose nonces would differ.
var contentSecurityPolicy = sync.OnceValue(func() string {
	var b strings.Builder
	if err := statusTemplate.Execute(&b, statusPage{}); err != nil {
		panic("BUG: an empty status page: " + err.Error())
	}
	hash := func(tag string) string {
		_, text, _ := strings.Cut(b.String(), "<"+tag+">")
		text, _, _ = strings.Cut(text, "</"+tag+">")
		sum := sha256.Sum256([]byte(text))
		return base64.StdEncoding.EncodeToString(sum[:])
	}
	return fmt.Sprintf(
		"default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; connect-src 'self'; img-src data:; "+
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
		hash("style"),
		hash("script"),
	)
})

// A mood is how urgent something is. The worst of several is the greatest.
type mood int

const (
	calm mood = iota
	uneasy
	alarm
)

// String returns the class of the page.
func (m mood) String() string { return [...]string{"ok", "warn", "bad"}[m] }

func moodOf(s problem.Severity) mood {
	switch s {
	case problem.Urgent:
		return alarm
	case problem.Warning:
		return uneasy
	default:
		return calm
	}
}

// statusPage is the page at / of the debug server.
type statusPage struct {
	Now     time.Time
	Replica string
	Version string
	Cluster string // name of the local cluster

	ReadOnly bool // this replica writes into no cluster

	Verdict      string // about the clusters
	Advice       string // about the Problems
	Mood         mood
	Problems     []problem.Problem
	MoreProblems []problem.Problem
	Unlisted     int // Problems that are not shown

	Endpoints, Behind, Open  int // ready endpoints of all clusters; streams
	Replicas, ReadyReplicas  int // of this installation; 0 if they are not known
	Clusters, FoldedClusters []clusterRow
	Linked                   int
	Map                      *starMap // nil with many clusters
	Tiles                    []clusterRow

	Changes, MoreChanges []changes.Change // that the filter finds
	ChangesSince         time.Time        // what was before is not known

	Filter   string       // of Services, streams and changes: part of a name
	Services []serviceRow // those with problems first, then those with the most streams
	Folded   []serviceRow
	Found    int // Services that the filter finds
	Known    int // Services of the local cluster
	Streams  []discovery.StreamStatus
	Matching int // streams that the filter finds
	Hidden   int // Services that the filter finds and that are not shown
}

// statusPageHandler serves the statusPage. The overview, and the page without a filter, are computed at most
// once a second; a page with a filter is cheap next to the overview that it is made from.
//
// An overview is made from values that were read once, its overviewInput, and does not change afterwards, but for the
// bars of traffic: those cost a Selection each, and are drawn for the rows that are shown, at the first time. The
// endpoints of a View are counted once as long as the cluster publishes it, because a View never changes: the counts
// of one overview are an input of the next one. So the cost of a second is in proportion to the Services of all
// clusters, and to the endpoints that have changed.
//
// The lock of the page comes before that of the overview and that of the bars. Each of them is held while its value
// is computed, and comes before the locks of the Registry, the Store and discovery.
type statusPageHandler struct {
	cachedOverview server.CachedValue[overview]
	cachedPage     server.CachedValue[server.RenderedPage]
	counts         endpointCounts // of the last overview, of which one at a time is computed

	Sources
}

// overview is all that a page can show.
type overview struct {
	overviewInput
	page     statusPage   // without what a filter finds
	services []serviceRow // of the local cluster

	states  map[string]federation.ClusterState
	colours map[string]int   // of bars, by cluster; 0 for the local one, and for one that is not linked
	used    map[string]usage // by cluster
	traffic *shownTraffic
}

// usage is what Services of the local cluster consist of, as far as one cluster has it.
type usage struct{ ready, services int }

// endpointCount counts the endpoints of a View.
type endpointCount struct{ ready, total int }

// ServeHTTP serves the page: ?q= is the filter.
func (h *statusPageHandler) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	var page server.RenderedPage
	if filter := strings.TrimSpace(request.URL.Query().Get("q")); filter != "" {
		page = h.rendered(filter)
	} else {
		page = h.cachedPage.Get(func() server.RenderedPage { return h.rendered("") })
	}

	if page.Err == nil {
		header := writer.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("Content-Security-Policy", contentSecurityPolicy())
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
	}
	page.WriteTo(writer, "text/html; charset=utf-8")
}

func (h *statusPageHandler) rendered(filter string) server.RenderedPage {
	all := h.cachedOverview.Get(h.newOverview)
	return render(all.newPage(filter))
}

func render(page statusPage) server.RenderedPage {
	var b bytes.Buffer
	err := statusTemplate.Execute(&b, page)
	return server.RenderedPage{Body: bytes.Map(visible, b.Bytes()), Err: err}
}

// visible replaces characters that change how those around them are shown, such as escapes and marks that reverse
// the direction of a text: names are not trusted.
func visible(r rune) rune {
	if unicode.IsPrint(r) || r == '\n' || r == '\t' {
		return r
	}
	return unicode.ReplacementChar
}

// newPage returns the page with what a filter finds.
func (o *overview) newPage(filter string) statusPage {
	page, text := o.page, strings.ToLower(filter)
	page.Filter = filter
	matches := func(name string) bool { return strings.Contains(strings.ToLower(name), text) }
	for _, s := range o.streams {
		if !matches(s.Authority) && !matches(s.Namespace+"/"+s.Pod) {
			continue
		}
		page.Matching++
		if page.Matching <= shownStreams {
			page.Streams = append(page.Streams, s)
		}
	}

	for _, change := range o.changes.Changes {
		switch {
		case !matches(change.Cluster) && !matches(change.Service):
		case len(page.Changes) < shownChanges:
			page.Changes = append(page.Changes, change)
		case len(page.MoreChanges) < foldedChanges:
			page.MoreChanges = append(page.MoreChanges, change)
		}
	}

	for _, row := range o.services {
		if !matches(row.Service) {
			continue
		}

		page.Found++
		if page.Found > foldedServices {
			continue
		}
		row.Traffic = o.traffic.barOf(row)
		if page.Found <= shownServices {
			page.Services = append(page.Services, row)
		} else {
			page.Folded = append(page.Folded, row)
		}
	}

	page.Hidden = max(page.Found-foldedServices, 0)
	return page
}

func (h *statusPageHandler) newOverview() overview {
	clusters := h.newClustersPage()
	probes := map[string][]cluster.Probe{}
	for _, c := range clusters.Clusters {
		probes[c.Name] = h.Registry.Probes(c.Name)
	}

	streams := h.Discovery.Streams()
	streamsOf := countStreams(streams)
	overview := newOverview(overviewInput{
		now: time.Now(), local: h.Cluster, replica: h.Replica, version: h.Version, namespace: h.Namespace,
		clusters: clusters, changes: h.newChangesPage(), probes: probes, streams: streams, streamsOf: streamsOf,
		problems: newProblemsPage(problemsInput{
			store: h.Store, local: federation.Cluster(h.Cluster), links: clusters.Links,
			streams: streamsOf, counts: h.counts,
		}),
		views: maps.Collect(h.Store.All()), counts: h.counts,
		sharesOf: h.Discovery.Shares,
	})

	h.counts = overview.counts
	return overview
}

// overviewInput is all that an overview depends on.
type overviewInput struct {
	now                     time.Time
	local, replica, version string
	namespace               string // of the control plane
	clusters                ClustersPage
	changes                 ChangesPage
	probes                  map[string][]cluster.Probe
	streams                 []discovery.StreamStatus
	streamsOf               map[federation.Service]int // number of streams
	problems                ProblemsPage
	views                   map[federation.Cluster]*federation.Views
	counts                  endpointCounts // as computed before, and then those of views
	sharesOf                func(discovery.Query) []discovery.ClusterShare
}

func newOverview(in overviewInput) overview {
	overview := overview{
		overviewInput: in,
		page: statusPage{
			Now: in.now, Replica: in.replica, Version: in.version, Cluster: in.local, ReadOnly: in.clusters.ReadOnly,
			ChangesSince: in.changes.Since,
		},
		states:  map[string]federation.ClusterState{},
		colours: map[string]int{},
		used:    map[string]usage{},
		traffic: &shownTraffic{sharesOf: in.sharesOf, bars: map[federation.Service]*bar{}},
	}
	problems := append(problem.ToLook(in.clusters.Problems), overview.addStreams()...)

	for i, c := range in.clusters.Clusters {
		overview.states[c.Name] = c.State
		if !c.Local {
			overview.colours[c.Name] = 1 + i%(barColours-1)
		}
	}

	overview.countViews()
	problems = append(problems, overview.addServices()...)
	pods := overview.replicaPods()
	problems = append(problems, foreignHolders(in.clusters.Clusters, pods)...)
	for i, p := range problems {
		if problem.IsContact(p.Class) {
			problems[i].Affected = overview.consequence(p)
		}
	}

	problem.Sort(problems)
	overview.addClusters(problems)
	for _, ready := range pods {
		overview.page.Replicas++
		if ready {
			overview.page.ReadyReplicas++
		}
	}
	overview.addVerdict(problems)
	return overview
}

// addStreams counts the streams, puts the slowest first, and returns what is wrong with them.
func (o *overview) addStreams() []problem.Problem {
	var since time.Time
	slow := 0

	for _, s := range o.streams {
		if s.Behind != nil || s.Sending != nil {
			o.page.Behind++
		}
		if s.Sending != nil && o.now.Sub(*s.Sending) > slowClient {
			slow++
			if since.IsZero() || s.Sending.Before(since) {
				since = *s.Sending
			}
		}
	}

	o.page.Open = len(o.streams)
	slices.SortStableFunc(o.streams, CompareStreams)
	if slow == 0 {
		return nil
	}

	p := problem.New(problem.Object{Kind: "Replica", Name: o.replica}, problem.SlowClients, problem.Warning,
		words.Count(slow, "client")+" with an unread message: what they hold is out of date")
	p.Since, p.Affected = since, "the other streams are not affected"
	return []problem.Problem{p}
}

// countViews counts the endpoints of each View.
func (o *overview) countViews() {
	before := o.counts
	o.counts = endpointCounts{}
	for _, views := range o.views {
		for _, v := range views.All() {
			n := before.of(v)
			o.counts[v] = n
			o.page.Endpoints += n.ready
		}
	}
}

// endpointCounts are counts that were made before. A View never changes, and so its count does not.
type endpointCounts map[*federation.View]endpointCount

// of returns the count of any View.
func (c endpointCounts) of(view *federation.View) endpointCount {
	count, counted := c[view]
	if counted {
		return count
	}

	for _, s := range view.Slices {
		count.total += len(s.Endpoints)
		for _, e := range s.Endpoints {
			if e.Ready {
				count.ready++
			}
		}
	}
	return count
}

// consequence returns what it means to clients here that a cluster is not Live.
func (o *overview) consequence(p problem.Problem) string {
	used := o.used[p.Cluster]
	services := words.Count(used.services, "Service") + " here"
	switch {
	case used.services == 0:
		return p.Affected
	case p.Class == problem.Connecting:
		return "served without it: " + services
	default:
		return fmt.Sprintf("%s: %s in %s", p.Affected, words.Count(used.ready, "ready endpoint"), services)
	}
}

// A paragraph is a part of what is known of a Problem.
type paragraph struct {
	Text string
	Long bool // it may be a whole error, and is cut where there is no room
}

// paragraphs returns why there is a Problem, and what follows from it. Of a cluster that is out of contact the latter
// comes first: errors of connections are long.
func paragraphs(p problem.Problem) []paragraph {
	cause := p.Text
	p.Text = ""
	all := []paragraph{{cause, true}, {p.Message(), false}}
	if problem.IsContact(p.Class) {
		slices.Reverse(all)
	}
	return slices.DeleteFunc(all, func(p paragraph) bool { return p.Text == "" })
}

// foreignHolders returns the Leases that this replica waits for and that a process holds which is none of the Pods of
// this installation: what they are for is not done. Without a Service of this installation that is not known, and
// 'fingerpost check' asks the replicas. The Lease that Linkerd's destination controller has as well is left out.
func foreignHolders(clusters []ClusterEntry, pods map[string]bool) (all []problem.Problem) {
	if len(pods) == 0 {
		return nil
	}

	for _, c := range clusters {
		for _, lease := range slices.Sorted(maps.Keys(c.Writing.Holders)) {
			holder, _, _ := strings.Cut(c.Writing.Holders[lease], "_")
			if _, is := pods[holder]; is || holder == "" || !strings.HasPrefix(lease, ownLeases) {
				continue
			}
			all = append(all, problem.OfCluster(c.Name, problem.ForeignLease, problem.Warning,
				holder+" holds the Lease "+lease+" there, and is none of the replicas"))
		}
	}
	return all
}

// replicaPods returns the Pods of this installation, and whether each is ready: those of a Service of its namespace
// that this replica is behind, the largest if there are several.
func (o *overview) replicaPods() (all map[string]bool) {
	for svc, v := range o.views[federation.Cluster(o.local)].All() {
		if svc.Namespace != o.namespace {
			continue
		}

		pods, own := map[string]bool{}, false // whether they are ready
		for _, s := range v.Slices {
			for _, e := range s.Endpoints {
				if e.Workload != nil {
					pods[e.Workload.Name] = e.Ready
					own = own || e.Workload.Name == o.replica
				}
			}
		}

		if own && len(pods) > len(all) {
			all = pods
		}
	}
	return all
}

// addVerdict sums up the clusters and the Problems, which are sorted. Where no cluster is out of contact the worst
// Problem is the verdict, if it is urgent.
func (o *overview) addVerdict(problems []problem.Problem) {
	page, away := &o.page, 0
	for _, state := range o.states {
		if state != federation.Live {
			away++
		}
	}

	switch clusters := len(o.states); {
	case clusters == 0:
		page.Verdict = "No cluster is known yet"
	case away == 0 && clusters == 1:
		page.Verdict = "The cluster is Live"
	case away == 0:
		page.Verdict = fmt.Sprintf("All %d clusters are Live", clusters)
	case clusters == 1:
		page.Verdict = "The cluster is not Live"
	default:
		page.Verdict = fmt.Sprintf("%d of %s %s not Live", away, words.Count(clusters, "cluster"), words.Are(away))
	}

	severe := 0
	for _, p := range problems {
		page.Mood = max(page.Mood, moodOf(p.Severity))
		if p.IsUrgent() {
			severe++
		}
	}

	switch {
	case len(problems) == 0:
		page.Advice = "Nothing needs attention."
	case severe == 0:
		page.Advice = words.Count(len(problems), "problem") + ", none of them urgent."
	default:
		page.Advice = words.Count(len(problems), "problem") + ", " + fmt.Sprint(severe) + " urgent."
	}
	if severe > 0 && away == 0 && len(o.states) > 0 { // what is red is not that
		page.Verdict, page.Advice = problems[0].Title, page.Verdict+". "+page.Advice
	}

	page.Problems = problems[:min(len(problems), shownProblems)]
	more := problems[len(page.Problems):]
	page.MoreProblems = more[:min(len(more), foldedProblems)]
	page.Unlisted = len(more) - len(page.MoreProblems)
}

// A clusterRow is one line of the table of clusters, and a tile.
type clusterRow struct {
	ClusterEntry
	Mood            mood
	Services, Ready int
	Probes          sparkline
	Writer, Ends    string // who writes there, and when the credentials expire
	Drain           string // how far it is drained; empty for not
}

// addClusters adds the rows, tiles and map of all clusters, the worst first.
func (o *overview) addClusters(problems []problem.Problem) {
	moods := map[string]mood{}
	for _, p := range problems {
		moods[p.Cluster] = max(moods[p.Cluster], moodOf(p.Severity))
	}

	var rows []clusterRow
	for _, c := range o.clusters.Clusters {
		views := o.views[federation.Cluster(c.Name)]
		row := clusterRow{
			ClusterEntry: c, Mood: moods[c.Name], Services: views.Len(),
			Probes: newSparkline(o.probes[c.Name]), Writer: writerText(c.Writing), Ends: endText(c, o.now),
			Drain: DrainText(c.Traffic.Drain),
		}
		for _, v := range views.All() {
			row.Ready += o.counts[v].ready
		}
		rows = append(rows, row)
	}

	if len(rows) > 0 && len(rows) <= shownClusters {
		o.page.Map = newStarMap(rows)
	}
	state := func(r clusterRow) int { return slices.Index(federation.ClusterStates, r.State) }
	slices.SortStableFunc(rows, func(a, b clusterRow) int {
		return cmp.Or(cmp.Compare(state(b), state(a)), cmp.Compare(b.Mood, a.Mood))
	})

	o.page.Clusters, o.page.Linked = rows, len(rows)-1
	if len(rows) > shownClusters {
		o.page.Tiles = rows
		o.page.Clusters, o.page.FoldedClusters = rows[:shownClusters], rows[shownClusters:]
	}
}

// writerText returns who writes into a cluster, in a word.
func writerText(w cluster.Writing) string {
	switch w.State {
	case cluster.Holding:
		return "this replica"
	case cluster.Standby:
		return cmp.Or(w.Holder(), "not known")
	case cluster.ReadOnly:
		return "read-only"
	case cluster.Reviewing:
		return "not known yet"
	default:
		return "–"
	}
}

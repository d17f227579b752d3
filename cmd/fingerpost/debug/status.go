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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
)

// How much of a large page is shown. A filter finds what is not.
const (
	shownServices = 200
	shownStreams  = 50
)

//go:embed status.html
var statusHTML string

var statusTemplate = template.Must(template.New("status").Funcs(template.FuncMap{
	"ago": func(p statusPage, at time.Time) string { return Ago(at, p.Now) },
	"age": func(p statusPage, at time.Time) string { return Age(at, p.Now) },
	"lag": func(p statusPage, s discovery.StreamStatus) string {
		return strings.TrimPrefix(LagText(s, p.Now), ", ")
	},
}).Parse(statusHTML))

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

// statusPage is the page at / of the debug server.
type statusPage struct {
	Now     time.Time
	Replica string
	Version string
	Cluster string // name of the local cluster

	Clusters []clusterRow
	Filter   string // of Services and streams: part of a name
	Services []serviceRow
	Found    int // Services that the filter finds
	Known    int // Services of the local cluster
	Streams  []discovery.StreamStatus
	Open     int // streams that the filter finds
	Behind   int // of all streams
}

type clusterRow struct {
	Cluster
	Services, Pods int
	Notes          []note
}

// A note is a line in the last cell of a row. Its class is bad or soft.
type note struct{ Class, Text string }

type serviceRow struct {
	Service string // namespace/name
	Kind    string
	Ready   int
	Total   int      // addresses, ready or not
	Members []string // names of clusters
	Streams int      // of Get
	Notes   []note
}

// statusPageHandler serves the statusPage. The overview, and the page without a filter, are computed at most
// once a second; a page with a filter is cheap next to the overview that it is made from.
type statusPageHandler struct {
	cachedOverview cachedValue[overview]
	cachedPage     cachedValue[renderedPage]

	Sources
}

type renderedPage struct {
	body []byte
	err  error
}

// overview is all that a page can show.
type overview struct {
	page      statusPage // without what a filter finds
	streams   []discovery.StreamStatus
	streamsOf map[federation.Service]int // number of streams
	services  []federation.Service       // of the local cluster, those with the most streams first
	views     map[federation.Cluster]*federation.Views
}

// ServeHTTP serves the page: ?q= is the filter.
func (h *statusPageHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var page renderedPage
	if filter := strings.TrimSpace(r.URL.Query().Get("q")); filter != "" {
		page = h.render(filter)
	} else {
		page = h.cachedPage.get(func() renderedPage { return h.render("") })
	}
	if page.err != nil {
		http.Error(w, page.err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy", contentSecurityPolicy())
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(page.body) // it fails when the client is gone
}

func (h *statusPageHandler) render(filter string) renderedPage {
	var b bytes.Buffer
	err := statusTemplate.Execute(&b, h.newPage(filter))
	return renderedPage{b.Bytes(), err}
}

// newPage returns the page with what a filter finds.
func (h *statusPageHandler) newPage(filter string) statusPage {
	all := h.cachedOverview.get(h.newOverview)
	page, text := all.page, strings.ToLower(filter)
	page.Filter = filter
	matches := func(name string) bool { return strings.Contains(strings.ToLower(name), text) }
	for _, s := range all.streams {
		if !matches(s.Authority) && !matches(s.Namespace+"/"+s.Pod) {
			continue
		}
		if page.Open++; page.Open <= shownStreams {
			page.Streams = append(page.Streams, s)
		}
	}
	for _, svc := range all.services {
		if !matches(svc.Namespace + "/" + svc.Name) {
			continue
		}
		if page.Found++; page.Found <= shownServices {
			page.Services = append(page.Services, all.newServiceRow(svc))
		}
	}
	return page
}

func (h *statusPageHandler) newOverview() overview {
	o := overview{
		page: statusPage{
			Now:      time.Now(),
			Replica:  h.Replica,
			Version:  h.Version,
			Cluster:  h.Cluster,
			Clusters: h.newClusterRows(),
		},
		streams:   h.Discovery.Streams(),
		streamsOf: map[federation.Service]int{},
		views:     maps.Collect(h.Store.All()),
	}
	for _, s := range o.streams {
		if s.Behind != nil || s.Sending != nil {
			o.page.Behind++
		}
		if q := s.Query(); q != nil {
			o.streamsOf[q.Service]++
		}
	}
	slices.SortStableFunc(o.streams, CompareStreams)
	local := o.views[federation.Cluster(h.Cluster)]
	o.page.Known = local.Len()
	for svc := range local.All() {
		o.services = append(o.services, svc)
	}
	slices.SortFunc(o.services, func(a, b federation.Service) int {
		return cmp.Or(
			o.streamsOf[b]-o.streamsOf[a],
			strings.Compare(a.Namespace, b.Namespace),
			strings.Compare(a.Name, b.Name),
		)
	})
	return o
}

func (h *statusPageHandler) newClusterRows() (rows []clusterRow) {
	linkNotes := map[string][]note{} // by cluster
	for _, l := range h.Links.Links() {
		for _, c := range l.Conditions {
			if c.Status != metav1.ConditionTrue {
				text := fmt.Sprintf("Link %s/%s: %s is %s: %s",
					l.Namespace, l.Name, c.Type, c.Status, c.Message)
				linkNotes[l.Cluster] = append(linkNotes[l.Cluster], note{"bad", text})
			}
		}
	}
	for _, c := range newClusters(h.Registry) {
		row := clusterRow{
			Cluster:  c,
			Services: c.Objects("services"),
			Pods:     c.Objects("pods"),
			Notes:    linkNotes[c.Name],
		}
		add := func(class, text string) { row.Notes = append(row.Notes, note{class, text}) }
		problem := cmp.Or(c.Contact, c.Credentials)
		if problem != "" && row.Notes == nil { // conditions of Links report it, too
			add("bad", problem)
		}
		if w := c.Writing; w.State != cluster.NotWriting {
			add("soft", strings.TrimRight("writing: "+string(w.State)+" "+strings.Join(w.Leases, ", "), " "))
		}
		if c.Writing.Problem != "" {
			add("bad", c.Writing.Problem)
		}
		for _, k := range c.Kinds {
			if k.Refused != "" {
				add("soft", "without "+k.Kind+" ("+string(k.Refused)+")")
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// newServiceRow counts the endpoints of all members of a Service of the local cluster.
func (o *overview) newServiceRow(svc federation.Service) serviceRow {
	row := serviceRow{Service: svc.Namespace + "/" + svc.Name, Kind: "plain", Streams: o.streamsOf[svc]}
	local := federation.Ref{Cluster: federation.Cluster(o.page.Cluster), Service: svc}
	view := o.views[local.Cluster].Get(svc)
	if view.Malformed != "" {
		row.Notes = append(row.Notes, note{"bad", view.Malformed})
	}
	if view.LocalOnly {
		row.Notes = append(row.Notes, note{"soft", "for clients on the same node"})
	}
	members := []federation.Ref{local}
	switch {
	case view.ExternalName:
		row.Kind = "ExternalName"
	case view.Composition != nil:
		row.Kind, members = "mirror", nil
		if view.Composition.Union {
			row.Kind = "federated"
		}
		for _, m := range view.Composition.Members {
			members = append(members, m.Ref)
		}
	}
	clusters := map[string]bool{}
	for _, m := range members {
		views, linked := o.views[m.Cluster]
		if !linked && !clusters[string(m.Cluster)] {
			row.Notes = append(row.Notes, note{"bad", fmt.Sprintf("cluster %s is not linked", m.Cluster)})
		}
		clusters[string(m.Cluster)] = true
		ready, total := countEndpoints(views.Get(m.Service))
		row.Ready, row.Total = row.Ready+ready, row.Total+total
	}
	row.Members = slices.Sorted(maps.Keys(clusters))
	return row
}

// countEndpoints returns how many endpoints a View has, and how many of them are ready; it has none if it is
// nil.
func countEndpoints(view *federation.View) (ready, total int) {
	if view == nil {
		return 0, 0
	}
	for _, s := range view.Slices {
		total += len(s.Endpoints)
		for _, e := range s.Endpoints {
			if e.Ready {
				ready++
			}
		}
	}
	return ready, total
}

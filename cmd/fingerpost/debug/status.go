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

// So many Services and streams are on the page; a filter finds the others.
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

// statusPolicy lets nothing run but the page's own style and script, whatever else gets into it. They are told by their hashes: a nonce
// would not be the one of the page into which the script puts the next one.
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
	return fmt.Sprintf("default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; connect-src 'self'; img-src data:; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'", hash("style"), hash("script"))
})

// statusPage is the page at / of the debug server: what this replica knows, for people. It changes nothing.
type statusPage struct {
	Now     time.Time
	Replica string
	Version string
	Cluster string // that the replica runs in

	Clusters []clusterRow
	Filter   string // of Services and streams: part of a name
	Services []serviceRow
	Found    int // Services that the filter finds
	Known    int // Services of the cluster
	Streams  []discovery.StreamStatus
	Open     int // streams that the filter finds
	Behind   int // of all streams
}

type clusterRow struct {
	Cluster
	Services, Pods int
	Notes          []note
}

// A note is a line of a row: bad, soft, or neither.
type note struct{ Class, Text string }

type serviceRow struct {
	Service string // namespace/name
	Kind    string
	Ready   int
	Total   int      // addresses, those that are not ready included
	Members []string // clusters that take part
	Streams int      // of Get
	Notes   []note
}

// statusHandler serves the statusPage. What it shows is gathered, and shown without a filter, at most once a second.
type statusPageHandler struct {
	all   cachedValue[overview]
	plain cachedValue[rendered]

	Sources
}

// rendered is a page, or why there is none.
type rendered struct {
	body []byte
	err  error
}

// overview is all that a page can show.
type overview struct {
	page      statusPage // but for what a filter finds
	streams   []discovery.StreamStatus
	streamsOf map[federation.Service]int // streams of each
	services  []federation.Service       // most streams first
	views     map[federation.Cluster]*federation.Views
}

// ServeHTTP answers with the page as of the last second.
func (h *statusPageHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var page rendered
	if filter := strings.TrimSpace(r.URL.Query().Get("q")); filter != "" {
		page = h.render(filter)
	} else {
		page = h.plain.get(func() rendered { return h.render("") })
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
	_, _ = w.Write(page.body) // it fails where nobody reads any more
}

func (h *statusPageHandler) render(filter string) rendered {
	var b bytes.Buffer
	err := statusTemplate.Execute(&b, h.page(filter))
	return rendered{b.Bytes(), err}
}

// overview gathers what is known now.
func (h *statusPageHandler) overview() overview {
	page := statusPage{Now: time.Now(), Replica: h.Replica, Version: h.Version, Cluster: h.Cluster}
	problems := map[string][]note{}
	for _, l := range h.Links.Links() {
		for _, c := range l.Conditions {
			if c.Status != metav1.ConditionTrue {
				problems[l.Cluster] = append(problems[l.Cluster], note{"bad", fmt.Sprintf("Link %s/%s: %s is %s: %s", l.Namespace, l.Name, c.Type, c.Status, c.Message)})
			}
		}
	}
	for _, c := range clusterPages(h.Registry) {
		row := clusterRow{Cluster: c, Services: c.Objects("services"), Pods: c.Objects("pods"), Notes: problems[c.Name]}
		if text := cmp.Or(c.Contact, c.Credentials); text != "" && row.Notes == nil {
			row.Notes = append(row.Notes, note{"bad", text})
		}
		if w := c.Writing; w.State != cluster.NotWriting {
			row.Notes = append(row.Notes, note{"soft", strings.TrimRight("writing: "+string(w.State)+" "+w.Leases, " ")})
		}
		if c.Writing.Problem != "" {
			row.Notes = append(row.Notes, note{"bad", c.Writing.Problem})
		}
		for _, k := range c.Kinds {
			if k.Refused != "" {
				row.Notes = append(row.Notes, note{"soft", "without " + k.Kind + " (" + string(k.Refused) + ")"})
			}
		}
		page.Clusters = append(page.Clusters, row)
	}

	o := overview{streams: h.Discovery.Streams(), streamsOf: map[federation.Service]int{}, views: maps.Collect(h.Store.All())}
	for _, s := range o.streams {
		if s.Behind != nil || s.Sending != nil {
			page.Behind++
		}
		o.streamsOf[s.Service()]++
	}
	slices.SortStableFunc(o.streams, CompareStreams)
	local := o.views[federation.Cluster(h.Cluster)]
	page.Known = local.Len()
	for svc := range local.All() {
		o.services = append(o.services, svc)
	}
	slices.SortFunc(o.services, func(a, b federation.Service) int {
		return cmp.Or(o.streamsOf[b]-o.streamsOf[a], strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	o.page = page
	return o
}

// page returns what a filter finds.
func (h *statusPageHandler) page(filter string) statusPage {
	all := h.all.get(h.overview)
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
			row := newServiceRow(svc, all.views[federation.Cluster(h.Cluster)].Get(svc), all.views, federation.Cluster(h.Cluster))
			row.Streams = all.streamsOf[svc]
			page.Services = append(page.Services, row)
		}
	}
	return page
}

// rowOf counts what a Service consists of.
func newServiceRow(svc federation.Service, v *federation.View, views map[federation.Cluster]*federation.Views, home federation.Cluster) serviceRow {
	row := serviceRow{Service: svc.Namespace + "/" + svc.Name, Kind: "plain"}
	if v.Malformed != "" {
		row.Notes = append(row.Notes, note{"bad", v.Malformed})
	}
	if v.LocalOnly {
		row.Notes = append(row.Notes, note{"soft", "for clients on the same node"})
	}
	members := []federation.Ref{{Cluster: home, Service: svc}}
	switch {
	case v.ExternalName:
		row.Kind = "ExternalName"
	case v.Composition != nil:
		row.Kind, members = "mirror", nil
		if v.Composition.Union {
			row.Kind = "federated"
		}
		for _, m := range v.Composition.Members {
			members = append(members, m.Ref)
		}
	}
	seen := map[string]bool{}
	for _, m := range members {
		said, linked := views[m.Cluster]
		if !linked && !seen[string(m.Cluster)] {
			row.Notes = append(row.Notes, note{"bad", fmt.Sprintf("cluster %s is not linked", m.Cluster)})
		}
		seen[string(m.Cluster)] = true
		view := said.Get(m.Service)
		if view == nil {
			continue
		}
		for _, s := range view.Slices {
			row.Total += len(s.Endpoints)
			for _, e := range s.Endpoints {
				if e.Ready {
					row.Ready++
				}
			}
		}
	}
	row.Members = slices.Sorted(maps.Keys(seen))
	return row
}

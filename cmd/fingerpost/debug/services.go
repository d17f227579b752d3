package debug

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/internal/words"
)

// A serviceRow is one line of the table of Services.
type serviceRow struct {
	Service string // namespace/name
	Kind    string
	Mood    mood
	Ready   int
	Total   int     // endpoints, ready or not
	Shares  []share // of the ready ones, by cluster
	Streams int     // of Get
	Notes   []note
	Traffic *bar // what a policy gives each cluster, for rows that are shown; nil without one

	query discovery.Query // for its first port; for port 0 if it has none
}

// A share is what one cluster adds to a Service.
type share struct {
	Cluster string
	Ready   int
	Stale   bool // the cluster is out of contact
	Colour  int
}

const kindFederated = "federated"

// A note is a line in the last cell of a row.
type note struct {
	Mood mood
	Text string
}

// Bar draws the shares.
func (r serviceRow) Bar() bar { return newBar(r.Shares) }

// shownTraffic is what was computed for rows of an overview when they were shown first.
type shownTraffic struct {
	sharesOf func(discovery.Query) []discovery.ClusterShare

	mu   sync.Mutex // guards bars, and is held while one is computed
	bars map[federation.Service]*bar
}

// barOf returns the bar of what a policy gives each cluster; nil if there is no policy.
func (t *shownTraffic) barOf(r serviceRow) *bar {
	if t.sharesOf == nil || r.Kind != kindFederated {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b, known := t.bars[r.query.Service]
	if !known {
		b = newTrafficBar(t.sharesOf(r.query), r.Shares)
		t.bars[r.query.Service] = b
	}
	return b
}

// addServices adds a row for each Service of the local cluster, those with problems first, then those with the most
// streams, and returns the Problems.
func (o *overview) addServices() (problems []problem.Problem) {
	found := map[string][]ServiceProblem{}
	for _, p := range o.problems {
		found[p.Service] = append(found[p.Service], p)
	}
	local := o.views[federation.Cluster(o.local)]
	o.page.Known = local.Len()

	for svc, view := range local.All() {
		of := found[svc.Namespace+"/"+svc.Name]
		row := o.newServiceRow(svc, view, of)
		o.services = append(o.services, row)
		if len(of) > 0 {
			problems = append(problems, row.problem(of[0]))
		}
	}

	slices.SortFunc(o.services, func(a, b serviceRow) int {
		return cmp.Or(
			cmp.Compare(b.Mood, a.Mood),
			cmp.Compare(b.Streams, a.Streams),
			cmp.Compare(kindRank(a.Kind), kindRank(b.Kind)),
			strings.Compare(a.Service, b.Service),
		)
	})
	slices.SortStableFunc(problems, func(a, b problem.Problem) int { return strings.Compare(a.Title, b.Title) })
	return problems
}

// problem returns the first ServiceProblem of a row with who is affected.
func (r serviceRow) problem(first ServiceProblem) problem.Problem {
	object := problem.Object{Kind: "Service", Namespace: r.query.Namespace, Name: r.query.Name}
	severity := problem.Warning
	if r.Mood == alarm {
		severity = problem.Urgent
	}

	p := problem.New(object, first.Reason, severity, first.Message)
	p.Command = "fingerpost explain " + problem.Quote(r.authority())
	if first.Reason != problem.Malformed {
		p.Affected = r.affected()
	}
	return p
}

// kindRank puts what consists of several clusters first.
func kindRank(kind string) int {
	if kind == "plain" || kind == "ExternalName" {
		return 1
	}
	return 0
}

// authority names the first port of the Service, as commands take it.
func (r serviceRow) authority() string {
	name := r.query.Name + "." + r.query.Namespace
	if r.query.Port == 0 {
		return name
	}
	return fmt.Sprintf("%s:%d", name, r.query.Port)
}

// affected returns who is affected by a Problem of a Service.
func (r serviceRow) affected() string {
	var names []string
	for _, s := range r.Shares {
		names = append(names, s.Cluster)
	}
	const most = 6
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%d of %s ready in %s; %s open",
		r.Ready, words.Count(r.Total, "endpoint"), strings.Join(names, ", "), words.Count(r.Streams, "stream"))
}

// newServiceRow counts the endpoints of all members of a Service of the local cluster.
func (o *overview) newServiceRow(
	svc federation.Service, view *federation.View, problems []ServiceProblem,
) serviceRow {
	row := serviceRow{
		Service: svc.Namespace + "/" + svc.Name, Kind: "plain", Streams: o.streamsOf[svc],
		query: discovery.Query{Service: svc},
	}
	if len(view.Ports) > 0 {
		row.query.Port = view.Ports[0].Number
	}

	add := func(m mood, text string) {
		row.Mood = max(row.Mood, m)
		row.Notes = append(row.Notes, note{m, text})
	}

	members := []federation.Ref{{Cluster: federation.Cluster(o.local), Service: svc}}

	composed := view.Composition != nil
	switch {
	case view.ExternalName:
		row.Kind = "ExternalName"
	case composed:
		members = nil
		for _, m := range view.Composition.Members {
			members = append(members, m.Ref)
		}
		row.Kind = kindFederated
		if !view.Composition.Union && len(members) > 0 {
			row.Kind = "mirror of " + string(members[0].Cluster)
		}
	case view.ThroughGateway != "":
		row.Kind = "mirror of " + string(view.ThroughGateway)
	}

	for i, p := range problems {
		m := moodOf(p.severity())
		row.Mood = max(row.Mood, m)
		if i < shownNotes {
			add(m, p.Message)
		}
	}
	if more := len(problems) - shownNotes; more > 0 {
		add(calm, fmt.Sprintf("and %d more", more))
	}

	waiting := o.addShares(&row, members)
	if len(problems) == 0 && row.Ready == 0 {
		switch {
		case waiting:
			add(calm, "waits for a cluster that was never synced")
		case composed, view.ThroughGateway != "":
			add(calm, "no endpoint")
		}
	}

	if view.LocalOnly {
		add(calm, "for clients on the same node")
	}
	return row
}

// addShares adds what each cluster adds to a Service. It returns whether one was never synced.
func (o *overview) addShares(row *serviceRow, members []federation.Ref) (waiting bool) {
	for _, m := range members {
		name := string(m.Cluster)
		count := o.counts[o.views[m.Cluster].Get(m.Service)]
		row.Ready, row.Total = row.Ready+count.ready, row.Total+count.total
		state, known := o.states[name]
		waiting = waiting || known && state == federation.Connecting
		usage := o.used[name]
		usage.ready += count.ready

		same := func(s share) bool { return s.Cluster == name }
		if i := slices.IndexFunc(row.Shares, same); i >= 0 {
			row.Shares[i].Ready += count.ready
		} else {
			stale := known && state != federation.Live
			row.Shares = append(row.Shares,
				share{Cluster: name, Ready: count.ready, Stale: stale, Colour: o.colours[name]})
			usage.services++
		}
		o.used[name] = usage
	}

	slices.SortFunc(row.Shares, func(a, b share) int { // those out of contact first, so that they are drawn
		return cmp.Or(TrueFirst(a.Stale, b.Stale), strings.Compare(a.Cluster, b.Cluster))
	})
	return waiting
}

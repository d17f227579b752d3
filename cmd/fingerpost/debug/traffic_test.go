package debug

import (
	"strings"
	"testing"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
)

// What a policy gives each cluster is a bar below that of ready endpoints, the largest share first, in the colours of
// the clusters. Rows of Services without a policy have none.
func TestTrafficBar(t *testing.T) {
	in := newFleet(5, 4)
	in.fail(4, federation.Stale, "no response within 3s", 0)
	web := federation.Service{Namespace: "shop", Name: "web-federated"}
	in.sharesOf = func(q discovery.Query) []discovery.ClusterShare {
		if q.Service != web {
			return nil
		}
		if q.Port != 8080 {
			t.Errorf("asked about port %d", q.Port)
		}
		return []discovery.ClusterShare{
			{Cluster: "central", Share: 19.5, Why: "preferred"},
			{Cluster: "east", Share: 70, Why: "preferred"},
			{Cluster: "west", Share: 10, Why: "stale, takes what is left over"},
			{Cluster: "north", Share: 0.5, Why: "draining"},
			{Cluster: "south", Why: "lower tier"},
		}
	}
	body := renderFleet(t, in)
	_, row, _ := strings.Cut(body, "<bdi>shop/web-federated</bdi>")
	row, _, _ = strings.Cut(row, "</tr>")
	_, row, found := strings.Cut(row, `<p class="traffic">`)
	if !found || strings.Count(body, `class="traffic"`) != 1 {
		t.Fatalf("want one bar of traffic:\n%s", row)
	}
	for _, want := range []string{
		"Traffic by policy: <bdi>east</bdi> 70%, <bdi>central</bdi> 19.5%, <bdi>west</bdi> 10%, " +
			"<bdi>north</bdi> 0.5%</p>",
		"<title>east: 70%, preferred; central: 19.5%, preferred; west: 10%, stale, takes what is left over; " +
			"north: 0.5%, draining; south: 0%, lower tier</title>",
		`<rect class="c0" x="0.0%" width="70.0%" height="100%"/><text x="35.0%" y="13">east 70%</text>`,
		`<rect class="c2" x="70.0%" width="19.5%" height="100%"/><text x="79.8%" y="13">19.5%</text>`,
		`<rect class="c5 stale" x="89.5%" width="10.0%" height="100%"/>`,
	} {
		if !strings.Contains(row, want) {
			t.Errorf("the bar lacks %s:\n%s", want, row)
		}
	}
}

// Shares are computed for what is shown, once in an overview, and a page with them is bounded.
func TestTrafficIsBounded(t *testing.T) {
	in := newFleet(60, 400)
	asked := map[federation.Service]int{}
	name := `<img src=x onerror=alert(1)>` + strings.Repeat("x", 200)
	in.sharesOf = func(q discovery.Query) (all []discovery.ClusterShare) {
		asked[q.Service]++
		for range 60 {
			all = append(all, discovery.ClusterShare{Cluster: name, Share: 100. / 60, Why: "preferred"})
		}
		return all
	}
	o := newOverview(in)
	for range 2 {
		page := render(o.newPage(""))
		if n := len(page.Body); page.Err != nil || n > 500_000 || strings.Contains(string(page.Body), "<img") {
			t.Errorf("a page of %d bytes, or a name that is an element: %v", n, page.Err)
		}
	}
	if n := len(asked); n == 0 || n > foldedServices {
		t.Errorf("the shares of %d Services are computed", n)
	}
	o.newPage("ledger-4") // finds others
	for service, n := range asked {
		if n > 1 {
			t.Errorf("the shares of %s are computed %d times", service, n)
		}
	}
}

// An explanation names the clusters of the Service that are over their budget: what they have more is nowhere else.
func TestBudgetNotes(t *testing.T) {
	statuses := map[string]cluster.Status{
		"west": {OverBudget: "5 endpoints are refused"}, "south": {OverBudget: "of another Service"}, "east": {},
	}
	notes := budgetNotes([]discovery.ClusterShare{{Cluster: "west"}, {Cluster: "east"}, {Cluster: "gone"}}, statuses)
	want := "over budget: not all that cluster west publishes is taken: 5 endpoints are refused"
	if len(notes) != 1 || notes[0] != want {
		t.Errorf("%q, want %q", notes, want)
	}
}

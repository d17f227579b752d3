package debug

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
)

// Each thing that can be wrong with a cluster or a Link is one Problem, or none where it is meant to be so.
func TestProblems(t *testing.T) {
	link := func(kind string) links.LinkStatus {
		condition := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Message: "because"}
		return links.LinkStatus{
			Namespace: "linkerd", Name: "west", Cluster: "west", Conditions: []metav1.Condition{condition},
		}
	}
	state := func(s federation.ClusterState) func(*Cluster) { return func(c *Cluster) { c.State = s } }
	expires := func(d time.Duration) func(*Cluster) { return func(c *Cluster) { c.Expires = noon.Add(d) } }
	writing := func(local bool, s cluster.WritingState, problem string) func(*Cluster) {
		return func(c *Cluster) { c.Local, c.Writing = local, cluster.Writing{State: s, Problem: problem} }
	}
	refusedKind := func(kind string, reason metav1.StatusReason) func(*Cluster) {
		return func(c *Cluster) {
			c.Kinds = []cluster.KindStatus{{Kind: kind, Health: api.Health{Refused: reason}}}
		}
	}
	refused := func(reason metav1.StatusReason) func(*Cluster) { return refusedKind("pods", reason) }
	const externals = "externalworkloads.workload.linkerd.io"
	for name, c := range map[string]struct {
		change func(*Cluster)
		links  []links.LinkStatus
		want   string // "!" before a severe one
	}{
		"healthy":   {},
		"read-only": {change: writing(false, cluster.ReadOnly, "grant it")},
		"read-only, and slices are asked for": {
			change: func(c *Cluster) {
				writing(false, cluster.ReadOnly, "grant it")(c)
				c.Slices = true
			},
			want: "No slices are written into west",
		},
		"a task waits out of contact": {
			change: func(c *Cluster) {
				writing(false, cluster.Holding, "no")(c)
				c.State = federation.Stale
			},
			want: "!west is Stale",
		},
		"without a CRD":       {change: refused(metav1.StatusReasonNotFound)},
		"not Writable":        {links: []links.LinkStatus{link(links.Writable)}},
		"a rotated token":     {change: func(c *Cluster) { c.Local, c.Expires = true, noon.Add(-time.Hour) }},
		"a token of 30 days":  {change: expires(29 * 24 * time.Hour)},
		"never synced":        {change: state(federation.Connecting), want: "!west is Connecting"},
		"out of contact":      {change: state(federation.Suspect), want: "west is Suspect"},
		"out of contact long": {change: state(federation.Stale), want: "!west is Stale"},
		"restored, not tried yet": {
			change: func(c *Cluster) { c.State, c.Checkpoint = federation.Stale, noon }, want: "west is Stale",
		},
		"restored, out of contact": {
			change: func(c *Cluster) { c.State, c.Checkpoint, c.Contact = federation.Stale, noon, "refused" },
			want:   "!west is Stale",
		},
		"forbidden": {
			change: refused(metav1.StatusReasonForbidden), want: "west cannot be read completely",
		},
		"not granted by Linkerd's chart": {change: refusedKind(externals, metav1.StatusReasonForbidden)},
		"not granted here": {
			change: func(c *Cluster) {
				c.Local = true
				refusedKind(externals, metav1.StatusReasonForbidden)(c)
			},
			want: "west cannot be read completely",
		},
		"optional, and granted by Linkerd's chart": {
			change: refusedKind("servers.policy.linkerd.io", metav1.StatusReasonForbidden),
			want:   "west cannot be read completely",
		},
		"not granted, and failing": {
			change: refusedKind(externals, metav1.StatusReasonInternalError), want: "west cannot be read completely",
		},
		"expires soon": {change: expires(time.Minute), want: "The credentials of west expire soon"},
		"expired":      {change: expires(0), want: "!The credentials of west have expired"},
		"clock":        {change: func(c *Cluster) { c.ClockSkew = "5m ahead" }, want: "The clock of west is off"},
		"local and read-only": {
			change: writing(true, cluster.ReadOnly, ""), want: "!Nothing is written into west",
		},
		"a task waits": {
			change: writing(false, cluster.Holding, "no"), want: "Not everything is written into west",
		},
		"bad new credentials": {
			change: func(c *Cluster) { c.Credentials = "401" }, want: "!New credentials of west do not work",
		},
		"the same cluster": {
			change: func(c *Cluster) { c.SameAs = "south" }, want: "!west is not as its Link describes it",
		},
		"just linked": {
			change: func(c *Cluster) { c.State, c.Since = federation.Connecting, noon }, want: "west is Connecting",
		},
		"budget": {
			change: func(c *Cluster) { c.OverBudget = "too many" }, want: "!west publishes more than its budget",
		},
		"not accepted": {
			links: []links.LinkStatus{link(links.Accepted)}, want: "!Link linkerd/west: Accepted is False",
		},
		"reported once": {
			change: func(c *Cluster) { c.State, c.Contact = federation.Stale, "401" },
			links:  []links.LinkStatus{link(links.CredentialsValid), link(links.Connected)}, want: "!west is Stale",
		},
		"not all mirrored": {
			links: []links.LinkStatus{link(links.Mirrors)}, want: "Link linkerd/west: Mirroring is False",
		},
	} {
		page := ClustersPage{Links: c.links, Clusters: []Cluster{{Status: cluster.Status{
			Name: "west", State: federation.Live, Since: noon.Add(-time.Hour), Synced: true, Source: "Secret west",
		}}}}
		if c.change != nil {
			c.change(&page.Clusters[0])
		}
		var got []string
		for _, p := range page.Problems(noon) {
			mark := ""
			if p.Severe {
				mark = "!"
			}
			got = append(got, mark+p.Title)
			if p.Runbook == "" || !strings.Contains(p.Command, "west") {
				t.Errorf("%s: no first step in %+v", name, p)
			}
		}
		if fmt.Sprint(got) != "["+c.want+"]" {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Severe Problems come first; of equal ones those of the cluster whose name comes first.
func TestWorstFirst(t *testing.T) {
	in := newFleet(5, 1)
	in.fail(1, federation.Suspect, "refused", 20*time.Second)
	in.fail(3, federation.Stale, "refused", time.Hour)
	in.fail(4, federation.Stale, "refused", 2*time.Hour)
	var got []string
	for _, p := range in.clusters.Problems(noon) {
		got = append(got, p.Cluster)
	}
	if want := []string{"south", "west", "central"}; !slices.Equal(got, want) {
		t.Errorf("in the order %v, want %v", got, want)
	}
}

package check

import (
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/federation"
)

// TestCases are the contract cases that are about the report alone.
func TestCases(t *testing.T) { t.Run("IC81", testUnknownAnchors) }

// IC81: whether a linked cluster shares a trust anchor is unknown if its ConfigMap may not be read, or ours, and no
// error.
func testUnknownAnchors(t *testing.T) {
	known := []linkerd.Anchor{{Subject: "CN=root", NotAfter: time.Now().AddDate(1, 0, 0)}}
	for name, c := range map[string]struct {
		ours, theirs []linkerd.Anchor
		want         string // after the description
	}{
		"both are known":     {known, known, ""},
		"there is no mesh":   {nil, nil, ""},
		"theirs are unknown": {known, nil, ": unknown whether it shares a trust anchor with this cluster: ConfigMap "},
		"ours are unknown":   {nil, known, ": unknown whether it shares a trust anchor with this cluster, whose own "},
	} {
		page := debug.ClustersPage{Clusters: []debug.ClusterEntry{
			{Status: cluster.Status{Name: "east", Local: true, State: federation.Live}},
			{Status: cluster.Status{Name: "west", State: federation.Live}},
		}}
		page.Clusters[0].Identity.Anchors, page.Clusters[1].Identity.Anchors = c.ours, c.theirs
		page.FindProblems(time.Now())
		known := &knownReplicas{pages: []cli.Response[debug.ClustersPage]{{Page: page}}}
		r := newRunner(0, time.Second)

		r.run(t.Context(), hasIdentity.decided("west is", known.identityOf("west")))
		got := r.report.Categories[0].Checks[0]
		if got.Result != resultSuccess || !strings.HasPrefix(got.Description, "west is"+c.want) ||
			c.want == "" && got.Description != "west is" {
			t.Errorf("%s: %+v, want %q", name, got, c.want)
		}
	}
}

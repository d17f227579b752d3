package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/serving"
)

// The table of traffic has a line for each cluster, and JSON all replicas.
func TestTraffic(t *testing.T) {
	page := discovery.Explanation{
		Authority: "web.shop:80", Client: discovery.Asker{Client: serving.Client{Namespace: "shop", Pod: "cart"}},
		Policy: true,
		Notes:  []string{"over budget: west"},
		Traffic: []discovery.ClusterShare{
			{
				Cluster: "local", Tier: 1, Ready: 2, All: 3, Weight: new(uint32(7)), Share: 93.33, Gets: 93.75,
				Given: 2, Why: "preferred",
			},
			{Cluster: "west", Tier: 2, Ready: 3, All: 3, Drain: 5, Share: 6.67, Gets: 6.25, Why: "over its share"},
		},
	}
	server := cmdtest.DebugServer(t, map[string]any{"/debug/explain": page})
	out, err := fingerpost(t, "traffic", "web.shop:80", "--client", "shop/cart", "--node", "n", "--debug-addr", server)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"web.shop:80", "for shop/cart", "note: over budget: west", "",
		"CLUSTER TIER READY ALL WEIGHT DRAIN SHARE GETS GIVEN WHY",
		"local 1 2 3 7 0% 93.33% 93.75% 2 preferred", "west 2 3 3 - 5% 6.67% 6.25% 0 over its share",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	out, err = fingerpost(t, "traffic", "web.shop:80", "-o", "json", "--debug-addr", server)
	all := cmdtest.DecodeJSON[[]clientTraffic](t, out)
	if err != nil || len(all) != 1 || all[0].Replica != server || !cmp.Equal(all[0].Traffic, page.Traffic) {
		t.Errorf("%v %+v", err, all)
	}
	page.Policy = false
	server = cmdtest.DebugServer(t, map[string]any{"/debug/explain": page})
	if out, _ = fingerpost(t, "traffic", "web.shop:80", "--debug-addr", server); !strings.Contains(out, "no policy") {
		t.Errorf("without a policy:\n%s", out)
	}
	if _, err := fingerpost(t, "traffic", "web.shop:80", "--client", "cart", "--debug-addr", server); err == nil {
		t.Error("a client without a namespace is accepted")
	}
}

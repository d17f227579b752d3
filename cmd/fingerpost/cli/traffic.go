package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/discovery"
)

// A clientTraffic is what a client gets of each cluster, by one replica.
type clientTraffic struct {
	Replica   string                   `json:"replica"`
	Authority string                   `json:"authority"`
	Client    discovery.Asker          `json:"client"`
	Notes     []string                 `json:"notes,omitempty"`
	Policy    bool                     `json:"policy"`
	Traffic   []discovery.ClusterShare `json:"traffic"`
}

func trafficCommand(version string) *cobra.Command {
	flags := explanationCommand{debugCommand: newDebugCommand(version)}
	cmd := &cobra.Command{
		Use:   "traffic SERVICE",
		Short: "Show how a Service's traffic is divided between clusters",
		Long: `Show how a Service's traffic is divided between clusters, and why: for each cluster the tier that it
is in, its endpoints that are ready and all that may be ready soon, its weight, how much of it is
drained, its share of the traffic, and how many of its addresses a client gets.

` + authorityHelp + `

Clients get different endpoints, and where a share is a fraction of one, some get none. Without
--client it is shown for a client without context.

Every replica is asked, and the table is that of the first. With -o json there are all of them.`,
		Example: `  fingerpost traffic web-federated.shop:8080
  fingerpost traffic web-federated.shop:8080 --client shop/cart-5b7c9d-x2x4z`,
		Args: arguments("SERVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showExplanations(cmd, &flags, args[0], view[discovery.Explanation, []clientTraffic]{
				merge: mergeTraffic, print: printTraffic,
			})
		},
	}

	flags.addExplanationFlags(cmd)
	return cmd
}

func mergeTraffic(responses []Response[discovery.Explanation]) []clientTraffic {
	all := []clientTraffic{}
	for _, r := range responses {
		x := r.Page
		all = append(all, clientTraffic{r.Replica, x.Authority, x.Client, x.Notes, x.Policy, x.Traffic})
	}
	return all
}

func printTraffic(frame *frame, all []clientTraffic, _ bool, _ time.Time) {
	first := all[0]
	frame.printf("%s", first.Authority)
	frame.printf("for %s", clientText(first.Client))
	if !first.Policy {
		frame.printf("no policy: all ready endpoints of all clusters are given")
	}
	for _, note := range first.Notes {
		frame.printf("note: %s", note)
	}

	frame.printf("")
	table := newTable("CLUSTER", "TIER", "READY", "ALL", "WEIGHT", "DRAIN", "SHARE", "GETS", "GIVEN", "WHY")
	table.keepColumns = 1

	for _, c := range first.Traffic {
		var weight any = "-"
		if c.Weight != nil {
			weight = *c.Weight
		}
		table.addRow(c.Cluster, c.Tier, c.Ready, c.All, weight,
			fmt.Sprintf("%d%%", c.Drain), fmt.Sprintf("%.4g%%", c.Share),
			fmt.Sprintf("%.4g%%", c.Gets), c.Given, c.Why)
	}
	frame.addTable(table)
}

package cli

import (
	"cmp"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/links"
)

func clustersCommand(version string) *cobra.Command {
	p := debugCommand{ReplicaFlags: NewReplicaFlags(version, DebugPort)}
	cmd := &cobra.Command{
		Use:   "clusters [NAME...]",
		Short: "Show every cluster, its state and the age of the last contact",
		Long: `Show every cluster, its state and the age of the last contact, as each replica knows them.

States: Connecting (never heard), Live (in contact), Suspect and Stale (out of contact; what the cluster said
last is kept).`,
		Example: "  fingerpost clusters\n  fingerpost clusters --watch\n  fingerpost clusters -o json | jq '.clusters[] | select(.state != \"Live\")'",
		RunE: func(cmd *cobra.Command, names []string) error {
			return showPages(cmd, &p, "/debug/clusters", func(answers []Response[debug.ClustersPage]) replicaClusters {
				return mergeClusters(answers, names)
			}, printClusters)
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return p.clusterNames(cmd), cobra.ShellCompDirectiveNoFileComp
		},
	}
	p.addFlags(cmd)
	return cmd
}

// clusterNames returns what completes the name of a cluster; nothing if no server can be asked.
func (p *debugCommand) clusterNames(cmd *cobra.Command) (names []string) {
	server, done, err := p.openFirst(cmd.Context())
	if err != nil {
		return nil
	}
	defer done()
	var page debug.ClustersPage
	if FetchPage(cmd.Context(), server, "/debug/clusters", &page) != nil {
		return nil
	}
	for _, c := range page.Clusters {
		names = append(names, c.Name)
	}
	return names
}

// replicaClusters are the clusters, and the Links, as each replica knows them.
type replicaClusters struct {
	Clusters []replicaCluster `json:"clusters"`
	Links    []replicaLink    `json:"links"`
}

type replicaCluster struct {
	Replica string `json:"replica"`
	debug.Cluster
}

type replicaLink struct {
	Replica string `json:"replica"`
	links.LinkStatus
}

// mergeClusters returns what all replicas say of some clusters, or of all if none is named: cluster by cluster and Link by Link.
func mergeClusters(answers []Response[debug.ClustersPage], names []string) replicaClusters {
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	all := replicaClusters{Clusters: []replicaCluster{}, Links: []replicaLink{}}
	for _, a := range answers {
		for _, c := range a.Page.Clusters {
			if wanted(c.Name) {
				all.Clusters = append(all.Clusters, replicaCluster{a.Replica, c})
			}
		}
		for _, l := range a.Page.Links {
			if wanted(l.Cluster) {
				all.Links = append(all.Links, replicaLink{a.Replica, l})
			}
		}
	}
	slices.SortStableFunc(all.Clusters, func(a, b replicaCluster) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(all.Links, func(a, b replicaLink) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}

func printClusters(to io.Writer, all replicaClusters, several bool, now time.Time) error {
	t := newTable("CLUSTER", "REPLICA", "STATE", "CONTACT", "SERVICES", "PODS", "CREDENTIALS", "NOTE")
	t.keepColumns = 1
	for _, c := range all.Clusters {
		name := c.Name
		if c.Local {
			name += " (local)"
		}
		t.addRow(name, c.Replica, string(c.State), debug.Ago(c.LastContact, now), strconv.Itoa(c.Objects("services")), strconv.Itoa(c.Objects("pods")), dash(c.Source),
			cmp.Or(c.Contact, c.Credentials, c.Writing.Problem))
	}
	if !several {
		t.dropColumn(1) // REPLICA
	}
	return t.print(to)
}

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
	d := newDebugCommand(version)
	cmd := &cobra.Command{
		Use:   "clusters [NAME...]",
		Short: "Show the state of each cluster and the age of the last contact",
		Long: `Show the state of each cluster and the age of the last contact, for each replica.

States: Connecting (never synced), Live (in contact), Suspect and Stale (out of contact; the endpoints that
the cluster published last are kept).`,
		Example: `  fingerpost clusters
  fingerpost clusters --watch
  fingerpost clusters -o json | jq '.clusters[] | select(.state != "Live")'`,
		RunE: func(cmd *cobra.Command, names []string) error {
			merge := func(responses []Response[debug.ClustersPage]) replicaClusters {
				return mergeClusters(responses, names)
			}
			return showPages(cmd, &d, "/debug/clusters", merge, printClusters)
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return d.clusterNames(cmd), cobra.ShellCompDirectiveNoFileComp
		},
	}
	d.addDebugFlags(cmd)
	return cmd
}

// clusterNames returns the names that complete an argument; none if no replica can be read.
func (d *debugCommand) clusterNames(cmd *cobra.Command) (names []string) {
	replica, done, err := d.openFirst(cmd.Context())
	if err != nil {
		return nil
	}
	defer done()
	var page debug.ClustersPage
	if FetchPage(cmd.Context(), replica, "/debug/clusters", &page) != nil {
		return nil
	}
	for _, c := range page.Clusters {
		names = append(names, c.Name)
	}
	return names
}

// replicaClusters are the clusters and the Links of all replicas.
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

// mergeClusters returns the named clusters of all replicas, or all if there are no names, cluster by cluster
// and Link by Link.
func mergeClusters(responses []Response[debug.ClustersPage], names []string) replicaClusters {
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	all := replicaClusters{Clusters: []replicaCluster{}, Links: []replicaLink{}}
	for _, r := range responses {
		for _, c := range r.Page.Clusters {
			if wanted(c.Name) {
				all.Clusters = append(all.Clusters, replicaCluster{r.Replica, c})
			}
		}
		for _, l := range r.Page.Links {
			if wanted(l.Cluster) {
				all.Links = append(all.Links, replicaLink{r.Replica, l})
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
		services, pods := strconv.Itoa(c.Objects("services")), strconv.Itoa(c.Objects("pods"))
		note := cmp.Or(c.Contact, c.Credentials, c.Writing.Problem)
		contact := debug.Ago(c.LastContact, now)
		t.addRow(name, c.Replica, string(c.State), contact, services, pods, dash(c.Source), note)
	}
	if !several {
		t.dropColumn(1) // REPLICA
	}
	return t.print(to)
}

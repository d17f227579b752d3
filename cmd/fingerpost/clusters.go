package main

import (
	"cmp"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func clustersCommand() *cobra.Command {
	var p pager
	cmd := &cobra.Command{
		Use:   "clusters [NAME...]",
		Short: "Show every cluster, its state and the age of the last contact",
		Long: `Show every cluster, its state and the age of the last contact, as a running server knows them.

States: Connecting (never heard), Live (in contact), Suspect and Stale (out of contact; what the cluster said
last is kept).`,
		Example: "  fingerpost clusters\n  fingerpost clusters --watch\n  fingerpost clusters -o json | jq '.clusters[] | select(.state != \"Live\")'",
		RunE: func(cmd *cobra.Command, names []string) error {
			return p.show(cmd, "/debug/clusters", func(to io.Writer, body []byte, now time.Time) error { return printClusters(to, body, names, now) })
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return p.clusterNames(cmd), cobra.ShellCompDirectiveNoFileComp
		},
	}
	p.flags(cmd)
	return cmd
}

// clusterNames returns what completes the name of a cluster; nothing if no server can be asked.
func (p *pager) clusterNames(cmd *cobra.Command) (names []string) {
	server, done, err := p.one(cmd.Context())
	if err != nil {
		return nil
	}
	defer done()
	body, err := getPage(cmd.Context(), server.Addr, "/debug/clusters")
	if err != nil {
		return nil
	}
	page, err := decode[clustersPage](body)
	if err != nil {
		return nil
	}
	for _, c := range page.Clusters {
		names = append(names, c.Name)
	}
	return names
}

func printClusters(to io.Writer, body []byte, names []string, now time.Time) error {
	page, err := decode[clustersPage](body)
	if err != nil {
		return err
	}
	t := newTable("CLUSTER", "STATE", "LAST CONTACT", "SERVICES", "PODS", "CREDENTIALS", "NOTE")
	for _, c := range page.Clusters {
		if len(names) > 0 && !slices.Contains(names, c.Name) {
			continue
		}
		name := c.Name
		if c.Local {
			name += " (local)"
		}
		t.row(name, c.State, ago(c.LastContact, now), strconv.Itoa(c.objects("services")), strconv.Itoa(c.objects("pods")), dash(c.Source),
			cmp.Or(c.Contact, c.Credentials, c.WritingNote))
	}
	return t.print(to)
}

func (c clusterPage) objects(resource string) int {
	for _, k := range c.Kinds {
		if k.Resource == resource {
			return k.Objects
		}
	}
	return 0
}

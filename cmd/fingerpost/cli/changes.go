package cli

import (
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cluster/changes"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/internal/words"
)

func changesCommand(version string) *cobra.Command {
	flags := newDebugCommand(version)
	cmd := &cobra.Command{
		Use:   "changes [SERVICE|CLUSTER]",
		Short: "Show what has changed of late, the newest first",
		Long: `Show what has changed within the last two hours, the newest first: problems that began and ended,
clusters that were linked, unlinked and drained, credentials that were replaced, replicas that took
over writing, Services that were created, deleted, exported or lost all their endpoints, members of
federated Services that joined and left, and policies.

With a Service, as web.shop or shop/web, it is what concerns that Service and its members in all
clusters. Any other name is that of a cluster.

A replica knows what has changed since it started. Every replica is asked, and the table is that of
the one that knows the most. With -o json there are all of them.`,
		Example: `  fingerpost changes
  fingerpost changes west
  fingerpost changes web-federated.shop --watch`,
		Args: func(cmd *cobra.Command, args []string) error {
			return arguments([]string{"a name"}[:min(len(args), 1)]...)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd, &flags, view[debug.ChangesPage, []replicaChanges]{
				path: changesPath(args), merge: mergeChanges, print: printChanges,
			})
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return flags.clusterNames(cmd), cobra.ShellCompDirectiveNoFileComp
		},
	}

	flags.addDebugFlags(cmd)
	return cmd
}

// changesPath returns the page with the Changes about what an argument names. A name that may be that of a Service and
// of a cluster is both.
func changesPath(args []string) string {
	const path = "/debug/changes"
	if len(args) == 0 {
		return path
	}
	about := url.Values{"cluster": {args[0]}}
	if s, short, err := parseServiceName(args[0]); err == nil && short && s.namespace != "" {
		about.Set("service", s.namespace+"/"+s.name)
	}
	return path + "?" + about.Encode()
}

// replicaChanges are the Changes that a replica knows.
type replicaChanges struct {
	Replica string `json:"replica"`
	debug.ChangesPage
}

// mergeChanges returns those of all replicas, the one that has run for longest first.
func mergeChanges(responses []Response[debug.ChangesPage]) []replicaChanges {
	all := []replicaChanges{}
	for _, r := range responses {
		all = append(all, replicaChanges{r.Replica, r.Page})
	}
	slices.SortStableFunc(all, func(a, b replicaChanges) int { return a.Since.Compare(b.Since) })
	return all
}

// lossy are the sorts by which clients may lose something.
var lossy = []changes.What{changes.Began, changes.Left, changes.Deleted, changes.Emptied}

// printChanges prints those of the replica that knows the most.
func printChanges(frame *frame, all []replicaChanges, several bool, now time.Time) {
	first := all[0]
	by := ""
	if several {
		by = ", as " + first.Replica + " has seen it"
	}
	frame.printf("%s since %s%s", words.Count(len(first.Changes), "change"),
		first.Since.In(now.Location()).Format(time.TimeOnly), by)
	if len(first.Changes) == 0 {
		return
	}

	table := newTable("TIME", "AGO", "WHAT", "CLUSTER", "SERVICE", "CHANGE")
	table.keepColumns, table.volatile = 3, []string{"AGO"}
	table.optional = []string{"AGO"}
	for _, change := range first.Changes {
		row := table.addRow(change.At.In(now.Location()).Format(time.TimeOnly), debug.Age(change.At, now), change.What,
			dash(change.Cluster), dash(change.Service), change.Text)
		if slices.Contains(lossy, change.What) {
			row.colours["WHAT"] = Yellow
		}
	}
	frame.addTable(table)
}

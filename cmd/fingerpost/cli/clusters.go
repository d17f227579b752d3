package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/internal/words"
	"github.com/fingerpost/fingerpost/links"
)

func clustersCommand(version string) *cobra.Command {
	flags := newDebugCommand(version)
	var wait time.Duration

	cmd := &cobra.Command{
		Use:        "clusters [NAME...]",
		SuggestFor: []string{"get", "gateways"}, // of kubectl, and of 'linkerd multicluster'
		Short:      "Show the state of each cluster, the worst first",
		Long: `Show the state of each cluster, the worst first. A row has what the replica with the worst
state reports.

States: Connecting (never synced), Live (in contact), Suspect and Stale (out of contact; the
endpoints that the cluster published last are kept). NotLinked is a Link without a cluster. With
"drained" traffic is taken away from the cluster, see 'fingerpost drain'.

REPLICAS is how many replicas have the cluster Live, of those that respond. WRITES is the replica
that holds the Lease, or read-only if Fingerpost may not write there. PROBLEM is the first one,
and since when; -o wide shows all of it, for each replica.

With --wait the table is printed once all clusters are Live in all replicas, or those that are
named, and at the latest when the time is over: then the exit code is 1.`,
		Example: `  fingerpost clusters
  fingerpost clusters --watch
  fingerpost clusters west -o wide
  fingerpost clusters west --wait 1m
  fingerpost clusters -o json | jq '.clusters[] | select(.state != "Live")'`,
		RunE: func(cmd *cobra.Command, names []string) error {
			if wait > 0 {
				if err := awaitClusters(cmd, &flags, names, wait); err != nil {
					return err
				}
			}
			return show(cmd, &flags, view[debug.ClustersPage, replicaClusters]{
				path:  "/debug/clusters",
				merge: func(all []Response[debug.ClustersPage]) replicaClusters { return mergeClusters(all, names) },
				print: func(f *frame, all replicaClusters, several bool, now time.Time) {
					switch flags.output {
					case nameOutput:
						for _, s := range all.summaries() {
							f.printf("%s", s.worst.Name)
						}
					case wideOutput:
						f.addTable(all.wideTable(several, now))
					default:
						printClusters(f, all, now)
					}
				},
				check: func(all replicaClusters) error {
					missing := all.missing(names)
					if wait > 0 && missing == nil {
						return all.notLive()
					}
					return missing
				},
			})
		},
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return flags.clusterNames(cmd), cobra.ShellCompDirectiveNoFileComp
		},
	}

	flags.addDebugFlags(cmd, wideOutput, nameOutput)
	cmd.Flags().DurationVar(&wait, "wait", 0,
		"how long to wait until all clusters are Live; 0 to print them as they are")
	return cmd
}

// clusterNames returns the names that complete an argument; none if no replica can be read.
func (d *debugCommand) clusterNames(cmd *cobra.Command) (names []string) {
	replica, err := d.openFirst(cmd.Context())
	if err != nil {
		return nil
	}
	defer replica.Close()

	var page debug.ClustersPage
	if replica.Fetch(cmd.Context(), "/debug/clusters", &page) != nil {
		return nil
	}
	for _, c := range page.Clusters {
		names = append(names, c.Name)
	}
	return names
}

// replicaClusters are the clusters and the Links of all replicas.
//
// Each replica has connections of its own, so that two may report one cluster in different states, and each is right.
// For machines, and with -o wide, there is a row for each replica and cluster. The other table has one row a cluster:
// all of it is what the replica reports that sees the worst state, or of the same state the oldest contact, so that its
// columns fit together. Only the holder of the Lease, and a problem if that replica has none, are of any replica.
type replicaClusters struct {
	Clusters []replicaCluster `json:"clusters"`
	Links    []replicaLink    `json:"links"`

	known []string // names of all clusters, sorted
	pages []Response[debug.ClustersPage]
}

type replicaCluster struct {
	Replica string `json:"replica"`
	debug.ClusterEntry
}

type replicaLink struct {
	Replica string `json:"replica"`
	links.LinkStatus
}

// mergeClusters returns the named clusters of all replicas, or all if there are no names, cluster by cluster
// and Link by Link. A Link whose cluster is not among them has one of its own, which is NotLinked.
func mergeClusters(responses []Response[debug.ClustersPage], names []string) replicaClusters {
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	all := replicaClusters{Clusters: []replicaCluster{}, Links: []replicaLink{}, pages: responses}

	for _, response := range responses {
		for _, l := range response.Page.Links {
			l.Cluster = cmp.Or(l.Cluster, l.Name)
			sameName := func(c debug.ClusterEntry) bool { return c.Name == l.Cluster }
			if !slices.ContainsFunc(response.Page.Clusters, sameName) {
				none := debug.ClusterEntry{Status: cluster.Status{Name: l.Cluster, State: notLinked}}
				response.Page.Clusters = append(slices.Clone(response.Page.Clusters), none)
			}
			if wanted(l.Cluster) {
				all.Links = append(all.Links, replicaLink{response.Replica, l})
			}
		}

		for _, c := range response.Page.Clusters {
			all.known = append(all.known, c.Name)
			if wanted(c.Name) {
				all.Clusters = append(all.Clusters, replicaCluster{response.Replica, c})
			}
		}
	}

	slices.Sort(all.known)
	all.known = slices.Compact(all.known)
	slices.SortStableFunc(all.Clusters, func(a, b replicaCluster) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(all.Links, func(a, b replicaLink) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}

// missing returns an error for names that are no clusters.
func (all replicaClusters) missing(names []string) error {
	var errs []error
	for _, name := range names {
		if !slices.Contains(all.known, name) {
			errs = append(errs, fmt.Errorf("there is no cluster %q: there are %s",
				name, strings.Join(all.known, ", ")))
		}
	}
	return WithExitCode(ExitNotFound, errors.Join(errs...))
}

// notLinked is the state of a cluster that a Link names, and that is not linked. Replicas do not report it: a row is
// added for it, so that a Link that was not accepted is not missed.
const notLinked federation.ClusterState = "NotLinked"

// badness orders states; 0 is in order.
var badness = map[federation.ClusterState]int{
	federation.Live: 0, federation.Suspect: 1, federation.Stale: 2, federation.Connecting: 3, notLinked: 4,
}

// A clusterSummary is one cluster, as the replicas together report it.
type clusterSummary struct {
	worst    replicaCluster   // that of the replica that sees the most trouble
	problem  *problem.Problem // the first of the same one, or else of any; nil for none
	live     int              // replicas that have it Live
	replicas int
	holder   string // that holds a Lease; empty for none
}

// summaries returns the clusters, the worst first.
func (all replicaClusters) summaries() (rows []clusterSummary) {
	problems := all.problems()
	for i, report := range all.Clusters { // cluster by cluster
		if i == 0 || all.Clusters[i-1].Name != report.Name {
			rows = append(rows, clusterSummary{worst: report})
		}
		summary := &rows[len(rows)-1]
		summary.replicas++
		if report.State == federation.Live {
			summary.live++
		}

		summary.holder = cmp.Or(holderOf(report), summary.holder)
		found := problem.ToLook(problems[report.clusterKey()])
		worse := cmp.Or(cmp.Compare(badness[report.State], badness[summary.worst.State]),
			summary.worst.LastContact.Compare(report.LastContact)) > 0
		if worse {
			summary.worst = report
		}
		if len(found) > 0 && (summary.problem == nil || worse) {
			summary.problem = &found[0]
		}
	}

	slices.SortStableFunc(rows, func(a, b clusterSummary) int {
		return cmp.Or(
			cmp.Compare(badness[b.worst.State], badness[a.worst.State]),
			debug.TrueFirst(a.problem != nil, b.problem != nil), debug.TrueFirst(a.worst.Local, b.worst.Local),
			strings.Compare(a.worst.Name, b.worst.Name))
	})
	return rows
}

// A clusterKey is a cluster as one replica reports it.
type clusterKey struct{ replica, cluster string }

func (c replicaCluster) clusterKey() clusterKey { return clusterKey{c.Replica, c.Name} }

// problems returns what each replica reports of each cluster, the worst first.
func (all replicaClusters) problems() map[clusterKey][]problem.Problem {
	byCluster := map[clusterKey][]problem.Problem{}
	for _, r := range all.pages {
		for _, p := range r.Page.Problems {
			key := clusterKey{r.Replica, p.Cluster}
			byCluster[key] = append(byCluster[key], p)
		}
	}
	return byCluster
}

// withSince adds to a problem the time since when it lasts, in the zone of now.
func withSince(text string, since, now time.Time) string {
	if since.IsZero() {
		return text
	}
	layout := time.TimeOnly
	if now.Sub(since) > 24*time.Hour {
		layout = time.DateOnly
	}
	return fmt.Sprintf("%s (since %s)", text, since.In(now.Location()).Format(layout))
}

// firstClause returns the part of a text that names the problem, without what follows from it.
func firstClause(text string) string {
	for _, end := range []string{"; ", ". ", "\n"} {
		text, _, _ = strings.Cut(text, end)
	}
	return text
}

// printClusters prints a line for each cluster, and a verdict.
func printClusters(frame *frame, all replicaClusters, now time.Time) {
	table := newTable("CLUSTER", "STATE", "REPLICAS", "CONTACT", "SERVICES", "ENDPOINTS", "WRITES",
		"EXPIRES", "PROBLEM")
	table.keepColumns, table.oneLine = 2, true
	table.volatile = []string{"CONTACT", "SERVICES", "ENDPOINTS", "EXPIRES"}
	table.optional = []string{"WRITES", "SERVICES", "EXPIRES", "REPLICAS"}

	rows := all.summaries()
	if len(rows) == 0 && len(all.known) > 0 {
		return // none has a name that was asked for, which is the error of the command
	}
	var bad, flawed []string

	for _, summary := range rows {
		worst := summary.worst
		colour := Green
		switch {
		case badness[worst.State] > 1:
			colour = Red
		case badness[worst.State] == 1:
			colour = Yellow
		}

		text := ""
		if p := summary.problem; p != nil {
			text = withSince(firstClause(p.Text), p.Since, now)
		}

		ends, ended := endOfCredentials(worst, now)
		row := table.addRow(displayName(worst), stateText(worst), fmt.Sprintf("%d/%d", summary.live, summary.replicas),
			contactAge(worst, now), publishedServices(worst), worst.Endpoints,
			writes(worst, shortName(summary.holder)), ends, text)
		row.colours["STATE"] = colour
		if ended {
			row.colours["EXPIRES"] = Red
		}

		switch {
		case colour != Green:
			bad, row.colours["PROBLEM"] = append(bad, worst.Name), colour
		case text != "":
			flawed, row.colours["PROBLEM"] = append(flawed, worst.Name), Yellow
		}
		if summary.live < summary.replicas {
			row.colours["REPLICAS"] = colour
		}
	}

	frame.addTable(table)
	text, colour := verdict(rows, len(all.known), bad, flawed)
	frame.lines = append(frame.lines, line{frame.Paint(colour, text), text})
}

// verdict sums up how many of the clusters that are shown, of all that are known, are not Live, and how many others
// have a problem.
func verdict(shown []clusterSummary, known int, bad, flawed []string) (text string, colour Colour) {
	if known == 0 {
		return "There are no clusters.", Plain
	}

	are, flaws := subjectOf(shown, known), ""
	switch {
	case len(bad) > 0 && len(shown) == 1:
		text, colour = are+" not Live", Red
	case len(bad) > 0:
		text, colour = fmt.Sprintf("%d of %d clusters %s not Live", len(bad), len(shown), words.Are(len(bad))), Red
		flaws = fmt.Sprintf(", and %d Live with a problem", len(flawed))
	case len(flawed) == 0:
		return are + " Live.", Green
	default:
		text, colour = are+" Live", Yellow
		flaws = ", with a problem"
		if len(shown) > 1 {
			flaws = fmt.Sprintf(", %d with a problem", len(flawed))
		}
	}

	if len(flawed) > 0 {
		text += flaws
	}
	first := append(bad, flawed...)[0]
	return text + ". Details: fingerpost clusters " + Printable(first) + " -o wide", colour
}

// subjectOf names the clusters that are shown, with their verb.
func subjectOf(shown []clusterSummary, known int) string {
	switch {
	case known == 1:
		return "The only cluster is"
	case len(shown) == 1:
		return Printable(shown[0].worst.Name) + " is"
	case len(shown) < known:
		return fmt.Sprintf("These %s are", words.Count(len(shown), "cluster"))
	default:
		return fmt.Sprintf("All %s are", words.Count(known, "cluster"))
	}
}

// wideTable has a row for each cluster and replica.
func (all replicaClusters) wideTable(several bool, now time.Time) *table {
	table := newTable("CLUSTER", "REPLICA", "STATE", "SINCE", "CONTACT", "SERVICES", "PODS", "ENDPOINTS", "WRITES",
		"CREDENTIALS", "EXPIRES", "PROBLEM")
	table.keepColumns = 1
	table.volatile = []string{"SINCE", "CONTACT", "SERVICES", "PODS", "ENDPOINTS", "EXPIRES"}
	problems := all.problems()

	for _, report := range all.Clusters {
		var texts []string
		for _, p := range problems[report.clusterKey()] {
			if !p.Repeats {
				texts = append(texts, withSince(p.Message(), p.Since, now))
			}
		}

		ends, _ := endOfCredentials(report, now)
		since := "—"
		if !report.Since.IsZero() {
			since = debug.Age(report.Since, now)
		}
		table.addRow(displayName(report), report.Replica, stateText(report), since, contactAge(report, now),
			publishedServices(report), pods(report), report.Endpoints,
			writes(report, holderOf(report)), cmp.Or(report.Source, "—"), ends, strings.Join(texts, "; "))
	}

	if !several {
		table.dropColumn("REPLICA")
	}
	return table
}

// stateText returns the state of a cluster, and how far it is drained.
func stateText(c replicaCluster) string {
	if drain := debug.DrainText(c.Traffic.Drain); drain != "" {
		return string(c.State) + ", " + drain
	}
	return string(c.State)
}

func displayName(c replicaCluster) string {
	if c.Local {
		return c.Name + " (local)"
	}
	return c.Name
}

// publishedServices returns how many Services a cluster has. One whose state was restored has none that were read.
func publishedServices(c replicaCluster) int { return cmp.Or(c.Objects("services"), c.Services) }

// pods returns how many Pods a cluster has. What is restored has the endpoints that they were, and no Pods.
func pods(c replicaCluster) string {
	if n := c.Objects("pods"); n > 0 || c.Checkpoint.IsZero() {
		return strconv.Itoa(n)
	}
	return "—"
}

func contactAge(c replicaCluster, now time.Time) string {
	if c.LastContact.IsZero() {
		return "never"
	}
	return debug.Age(c.LastContact, now)
}

// holderOf returns the replica that holds a Lease of a cluster, this one or another; empty if it is not known.
func holderOf(c replicaCluster) string {
	if c.Writing.State == cluster.Holding {
		return c.Replica
	}
	return c.Writing.Holder()
}

// writes returns who writes into a cluster.
func writes(c replicaCluster, holder string) string {
	switch {
	case holder != "":
		return holder
	case c.Writing.State == cluster.ReadOnly:
		return "read-only"
	case c.Writing.State == cluster.NotWriting:
		return "—"
	case c.Writing.State == cluster.Reviewing:
		return "not known yet"
	}
	return "standby"
}

// shortName returns what distinguishes a Pod from others of its Deployment. An address stays as it is.
func shortName(replica string) string {
	if _, _, err := net.SplitHostPort(replica); err == nil {
		return replica
	}
	return replica[strings.LastIndexByte(replica, '-')+1:]
}

// endOfCredentials returns in which time the credentials of a linked cluster end. Those of the local one are
// renewed by the kubelet.
func endOfCredentials(c replicaCluster, now time.Time) (text string, ended bool) {
	switch {
	case c.Expires.IsZero() || c.Local:
		return "—", false
	case !c.Expires.After(now):
		return "ended " + debug.Ago(c.Expires, now), true
	}
	return debug.Age(now, c.Expires), false
}

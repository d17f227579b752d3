package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery"
)

func streamsCommand(version string) *cobra.Command {
	p := debugCommand{ReplicaFlags: NewReplicaFlags(version, DebugPort)}
	var slow bool
	cmd := &cobra.Command{
		Use:   "streams",
		Short: "Show every open stream of all replicas, the slowest first",
		Long: `Show every open stream of all replicas: who asks for what, how many addresses it was sent and holds, and how
it is behind. The slowest come first: those whose client has not read for the longest time, then those that
were not sent everything yet. An ID is one of its replica's. +2 -1 stands for two addresses that come and
one that goes.`,
		Example: "  fingerpost streams --slow --watch\n  fingerpost streams -o json | jq '.[] | select(.sending)'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showPages(cmd, &p, "/debug/streams", mergeStreams, func(to io.Writer, all []replicaStream, several bool, now time.Time) error {
				return printStreams(to, all, slow, several, now)
			})
		},
	}
	p.addFlags(cmd)
	cmd.Flags().BoolVar(&slow, "slow", false, "only those that are behind; with -o json it has no effect")
	return cmd
}

// A replicaStream is an open stream of a replica. IDs are the replica's own.
type replicaStream struct {
	Replica string `json:"replica"`
	discovery.StreamStatus
}

// mergeStreams returns the streams of all replicas, the slowest first.
func mergeStreams(answers []Response[[]discovery.StreamStatus]) []replicaStream {
	all := []replicaStream{}
	for _, a := range answers {
		for _, s := range a.Page {
			all = append(all, replicaStream{a.Replica, s})
		}
	}
	slices.SortStableFunc(all, func(a, b replicaStream) int { return debug.CompareStreams(a.StreamStatus, b.StreamStatus) })
	return all
}

func printStreams(to io.Writer, all []replicaStream, slow, several bool, now time.Time) error {
	t := newTable("REPLICA", "ID", "AGE", "METHOD", "ASKS FOR", "CLIENT", "HOLDS", "LAST SENT", "BEHIND")
	behind := 0
	for _, s := range all {
		lag := shortLagText(s.StreamStatus, now)
		if lag != "" {
			behind++
		}
		if slow && lag == "" {
			continue
		}
		client := cmp.Or(s.Pod, s.Peer)
		if s.Namespace != "" {
			client = s.Namespace + "/" + client
		}
		t.addRow(s.Replica, strconv.FormatUint(s.ID, 10), debug.Age(s.Opened, now), s.Method, strings.Replace(s.Authority, ".svc.cluster.local", "", 1),
			dash(client), strconv.Itoa(s.Addresses), lastSentText(s.Last, now), dash(lag))
	}
	if !several {
		t.dropColumn(0) // REPLICA
	}
	if len(t.rows) > 0 {
		if err := t.print(to); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(to, "%d streams, %d behind.\n", len(all), behind)
	return err
}

// lastSent says what a stream was sent last, and when.
func lastSentText(last *discovery.LastSent, now time.Time) string {
	if last == nil {
		return "nothing"
	}
	return cmp.Or(countChanges(last.Adds, last.Removes), strings.ReplaceAll(last.What, "_", " ")) + ", " + debug.Age(last.At, now) + " ago"
}

// briefLag says how a stream is behind; nothing if it is not.
func shortLagText(s discovery.StreamStatus, now time.Time) string {
	var parts []string
	if s.Behind != nil {
		parts = append(parts, countChanges(s.Behind.Adds, s.Behind.Removes))
	}
	if s.Sending != nil {
		parts = append(parts, "not read for "+debug.Age(*s.Sending, now))
	}
	return strings.Join(parts, ", ")
}

// changes counts addresses that come and that go; it is empty if none do.
func countChanges(adds, removes int) string {
	var parts []string
	if adds > 0 {
		parts = append(parts, fmt.Sprintf("+%d", adds))
	}
	if removes > 0 {
		parts = append(parts, fmt.Sprintf("-%d", removes))
	}
	return strings.Join(parts, " ")
}

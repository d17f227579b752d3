package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/internal/words"
)

func streamsCommand(version string) *cobra.Command {
	flags := newDebugCommand(version)

	var slow bool
	cmd := &cobra.Command{
		Use:   "streams",
		Short: "Show every open stream of all replicas, the slowest first",
		Long: `Show every open stream of all replicas: its client and its request, how many addresses it was sent
and holds, and how far it is behind. The slowest come first: those whose client has not read for
the longest time, then those with the most changes to send: +2 -1 is two addresses to add and one
to remove. An ID is unique in its replica.`,
		Example: "  fingerpost streams --slow --watch\n  fingerpost streams -o json | jq '.[] | select(.sending)'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &flags, view[[]discovery.StreamStatus, []replicaStream]{
				path: "/debug/streams", merge: mergeStreams,
				print: func(f *frame, all []replicaStream, several bool, now time.Time) {
					printStreams(f, all, slow, several, now)
				},
			})
		},
	}

	flags.addDebugFlags(cmd)
	cmd.Flags().BoolVar(&slow, "slow", false, "only streams that are behind; without effect on -o json")
	return cmd
}

// A replicaStream is an open stream of a replica.
type replicaStream struct {
	Replica string `json:"replica"`
	discovery.StreamStatus
}

// mergeStreams returns the streams of all replicas, the slowest first.
func mergeStreams(responses []Response[[]discovery.StreamStatus]) []replicaStream {
	all := []replicaStream{}
	for _, r := range responses {
		for _, s := range r.Page {
			all = append(all, replicaStream{r.Replica, s})
		}
	}
	slices.SortStableFunc(
		all,
		func(a, b replicaStream) int { return debug.CompareStreams(a.StreamStatus, b.StreamStatus) },
	)
	return all
}

func printStreams(frame *frame, all []replicaStream, slow, several bool, now time.Time) {
	table := newTable("REPLICA", "ID", "AGE", "METHOD", "ASKS FOR", "CLIENT", "HOLDS", "LAST SENT", "BEHIND")
	table.volatile = []string{"AGE", "LAST SENT"}
	behind := 0

	for _, stream := range all {
		lag := shortLagText(stream.StreamStatus, now)
		if lag != "" {
			behind++
		}
		if slow && lag == "" {
			continue
		}

		client := cmp.Or(stream.Pod, stream.Peer)
		if stream.Namespace != "" {
			client = stream.Namespace + "/" + client
		}
		authority := strings.Replace(stream.Authority, ".svc.cluster.local", "", 1)
		table.addRow(
			stream.Replica, stream.ID, debug.Age(stream.Opened, now), stream.Method, authority,
			dash(client), stream.Addresses, lastSentText(stream.Last, now), dash(lag),
		)
	}

	if !several {
		table.dropColumn("REPLICA")
	}
	if len(table.rows) > 0 {
		frame.addTable(table)
	}
	frame.printf("%s, %d behind.", words.Count(len(all), "stream"), behind)
}

// lastSentText describes the last message of a stream.
func lastSentText(last *discovery.LastSent, now time.Time) string {
	if last == nil {
		return "nothing"
	}
	what := cmp.Or(countChanges(last.Adds, last.Removes), strings.ReplaceAll(last.What, "_", " "))
	return what + ", " + debug.Age(last.At, now) + " ago"
}

// shortLagText describes how far a stream is behind; it is empty for one that is not.
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

// countChanges is +2 -1 for two addresses to add and one to remove; it is empty for none.
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

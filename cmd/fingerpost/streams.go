package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/discovery"
)

func streamsCommand() *cobra.Command {
	var p pager
	var slow bool
	cmd := &cobra.Command{
		Use:   "streams",
		Short: "Show every open stream of a server, the slowest first",
		Long: `Show every open stream of a server: who asks for what, how many addresses it was sent and holds, and how it
is behind. The slowest come first: those whose client has not read for the longest time, then those that were
not sent everything yet.`,
		Example: "  fingerpost streams --slow --watch\n  fingerpost streams -o json | jq '.[] | select(.sending)'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.show(cmd, "/debug/streams", func(to io.Writer, body []byte, now time.Time) error {
				return printStreams(to, body, slow, now)
			})
		},
	}
	p.flags(cmd)
	cmd.Flags().BoolVar(&slow, "slow", false, "only those that are behind; with -o json it has no effect")
	return cmd
}

func printStreams(to io.Writer, body []byte, slow bool, now time.Time) error {
	var all []discovery.StreamStatus
	if err := json.Unmarshal(body, &all); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	slowestFirst(all)
	t := newTable("ID", "AGE", "METHOD", "ASKS FOR", "CLIENT", "PEER", "HOLDS", "SENT", "BEHIND")
	behind := 0
	for _, s := range all {
		lag := strings.TrimPrefix(lagText(s, now), ", ")
		if lag != "" {
			behind++
		}
		if slow && lag == "" {
			continue
		}
		client, sent := s.Pod, "never"
		if s.Namespace != "" {
			client = s.Namespace + "/" + s.Pod
		}
		if s.Last != nil {
			sent = age(s.Last.At, now) + " ago"
		}
		t.row(strconv.FormatUint(s.ID, 10), age(s.Opened, now), s.Method, strings.Replace(s.Authority, ".svc.cluster.local", "", 1), dash(client), s.Peer,
			strconv.Itoa(s.Addresses), sent, dash(lag))
	}
	if len(t.rows) > 0 {
		if err := t.print(to); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(to, "%d streams, %d behind.\n", len(all), behind)
	return err
}

// slowestFirst sorts streams: who has not read for long, then who is far behind, then by number.
func slowestFirst(all []discovery.StreamStatus) {
	slices.SortFunc(all, func(a, b discovery.StreamStatus) int {
		waits := func(s discovery.StreamStatus) int64 {
			if s.Sending == nil {
				return 0
			}
			return -time.Since(*s.Sending).Milliseconds()
		}
		lag := func(s discovery.StreamStatus) int {
			if s.Behind == nil {
				return 0
			}
			return -s.Behind.Adds - s.Behind.Removes
		}
		return cmp.Or(cmp.Compare(waits(a), waits(b)), cmp.Compare(lag(a), lag(b)), cmp.Compare(a.ID, b.ID))
	})
}

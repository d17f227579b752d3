package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
)

func diffCommand(version string) *cobra.Command {
	r := NewReplicaFlags(version, DebugPort)
	var output string
	var settle time.Duration
	cmd := &cobra.Command{
		Use:   "diff [REPLICA REPLICA]",
		Short: "Tell where two replicas say something different",
		Long: `Tell where two replicas say something different about a Service of a cluster, and what. What is on its way
from an API server reaches one replica before the other: only what stays different for --settle is told.

REPLICA is the name of a Pod. Without any the first two are compared. It exits with 1 if there is a difference.`,
		Example: "  fingerpost diff\n  fingerpost diff --debug-addr 127.0.0.1:9998,127.0.0.1:9999",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 0 && len(args) != 2 {
				return fmt.Errorf("two replicas are compared, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := tableOrJSON(output); err != nil {
				return err
			}
			if settle < 0 {
				return fmt.Errorf("--settle %s is negative", settle)
			}
			all, done, err := r.Open(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			pair, err := selectPair(all, names)
			if err != nil {
				return err
			}
			differences, err := Compare(cmd.Context(), pair, settle)
			if err != nil {
				return err
			}
			if err := printDifferences(cmd.OutOrStdout(), pair, differences, output); err != nil {
				return err
			}
			if n := len(differences); n > 0 {
				return fmt.Errorf("%s and %s differ in %d places", pair[0].Name, pair[1].Name, n)
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	r.AddFlags(cmd)
	outputFlag(cmd, &output)
	cmd.Flags().DurationVar(&settle, "settle", 3*time.Second, "how long something must stay different")
	return cmd
}

func selectPair(all []Replica, names []string) (pair [2]Replica, err error) {
	if len(names) == 0 {
		if len(all) < 2 {
			return pair, fmt.Errorf("there is one replica only, %s", all[0].Name)
		}
		return [2]Replica{all[0], all[1]}, nil
	}
	for i, name := range names {
		j := slices.IndexFunc(all, func(r Replica) bool { return r.Name == name })
		if j < 0 {
			return pair, fmt.Errorf("there is no ready replica %s", name)
		}
		pair[i] = all[j]
	}
	return pair, nil
}

// A difference is one thing about which two replicas do not agree.
type Difference struct {
	Cluster string `json:"cluster"`
	Service string `json:"service,omitempty"` // namespace/name; empty if it is about the cluster
	What    string `json:"what"`
}

// compare returns what stays different.
func Compare(ctx context.Context, pair [2]Replica, settle time.Duration) ([]Difference, error) {
	deadline := time.Now().Add(settle)
	ticker := time.NewTicker(min(settle/4+time.Millisecond, time.Second))
	defer ticker.Stop()
	var left map[Difference]bool
	for {
		now, err := currentDifferences(ctx, pair)
		if err != nil {
			return nil, err
		}
		if left == nil {
			left = now
		}
		maps.DeleteFunc(left, func(d Difference, _ bool) bool { return !now[d] })
		if len(left) == 0 || !time.Now().Before(deadline) {
			break
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	all := slices.SortedFunc(maps.Keys(left), func(a, b Difference) int {
		return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Service, b.Service))
	})
	for i := range all {
		if all[i].What != "" {
			continue
		}
		var err error
		if all[i].What, err = describeDifference(ctx, pair, all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// disagreements returns what is different now. Where both know a Service, What is left open.
func currentDifferences(ctx context.Context, pair [2]Replica) (map[Difference]bool, error) {
	digests, err := FetchAll[debug.DigestsPage](ctx, pair[:], "/debug/digests")
	if err != nil {
		return nil, err
	}
	clusters, err := FetchAll[debug.ClustersPage](ctx, pair[:], "/debug/clusters")
	if err != nil {
		return nil, err
	}
	all := map[Difference]bool{}
	states := [2]map[string]string{{}, {}}
	for i := range pair {
		for _, c := range clusters[i].Page.Clusters {
			states[i][c.Name] = string(c.State)
		}
	}
	for name := range allKeys(states[0], states[1]) {
		a, b := states[0][name], states[1][name]
		if a != b {
			all[Difference{name, "", fmt.Sprintf("%s in %s, %s in %s", cmp.Or(a, "not linked"), pair[0].Name, cmp.Or(b, "not linked"), pair[1].Name)}] = true
		}
		if a == "" || b == "" {
			continue
		}
		one, other := digests[0].Page[name], digests[1].Page[name]
		for service := range allKeys(one, other) {
			switch {
			case one[service] == "":
				all[Difference{name, service, "only in " + pair[1].Name}] = true
			case other[service] == "":
				all[Difference{name, service, "only in " + pair[0].Name}] = true
			case one[service] != other[service]:
				all[Difference{name, service, ""}] = true
			}
		}
	}
	return all, nil
}

func allKeys[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return all
}

// detail tells which addresses are different.
func describeDifference(ctx context.Context, pair [2]Replica, d Difference) (string, error) {
	namespace, name, _ := strings.Cut(d.Service, "/")
	claims, err := FetchAll[debug.ViewPage](ctx, pair[:], "/debug/views/"+url.PathEscape(d.Cluster)+"/"+url.PathEscape(namespace)+"/"+url.PathEscape(name))
	if err != nil {
		return "", err
	}
	ready := [2]map[string]bool{{}, {}}
	for i := range pair {
		for _, s := range claims[i].Page.Slices {
			for _, e := range s.Endpoints {
				ready[i][e.Addr.String()] = e.Ready
			}
		}
	}
	var parts []string
	for _, addr := range slices.Sorted(maps.Keys(allKeys(ready[0], ready[1]))) {
		a, inA := ready[0][addr]
		b, inB := ready[1][addr]
		switch {
		case !inB:
			parts = append(parts, addr+" only in "+pair[0].Name)
		case !inA:
			parts = append(parts, addr+" only in "+pair[1].Name)
		case a && !b:
			parts = append(parts, addr+" ready only in "+pair[0].Name)
		case b && !a:
			parts = append(parts, addr+" ready only in "+pair[1].Name)
		}
	}
	if len(parts) > 5 {
		parts = append(parts[:5], fmt.Sprintf("and %d more", len(parts)-5))
	}
	if len(parts) == 0 {
		return "something else than addresses: ports, zones, hints, policy or workloads", nil
	}
	return strings.Join(parts, ", "), nil
}

func printDifferences(to io.Writer, pair [2]Replica, differences []Difference, output string) error {
	if output == "json" {
		return PrintJSON(to, append([]Difference{}, differences...))
	}
	if len(differences) == 0 {
		_, err := fmt.Fprintf(to, "%s and %s say the same.\n", pair[0].Name, pair[1].Name)
		return err
	}
	t := newTable("CLUSTER", "SERVICE", "DIFFERENCE")
	for _, d := range differences {
		t.addRow(d.Cluster, dash(d.Service), d.What)
	}
	return t.print(to)
}

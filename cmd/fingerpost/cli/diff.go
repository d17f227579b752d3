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
	r := NewReplicaFlags(version)
	var output string
	var settle time.Duration
	cmd := &cobra.Command{
		Use:   "diff [REPLICA REPLICA]",
		Short: "Compare what two replicas know of each cluster and Service",
		Long: `Compare what two replicas know of each cluster and Service. A change reaches one replica before the
other: a difference is reported if it lasts for --settle.

REPLICA is the name of a Pod. Without names the first two are compared. The exit code is 1 if there is a
difference.`,
		Example: "  fingerpost diff\n  fingerpost diff --debug-addr 127.0.0.1:9998,127.0.0.1:9999",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 0 && len(args) != 2 {
				return fmt.Errorf("two replicas are compared, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := checkOutput(output); err != nil {
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
	addOutputFlag(cmd, &output)
	cmd.Flags().DurationVar(&settle, "settle", 3*time.Second, "how long a difference must last")
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

// A Difference is one thing in which two replicas differ.
type Difference struct {
	Cluster string `json:"cluster"`
	Service string `json:"service,omitempty"` // namespace/name; empty if it is about the cluster
	What    string `json:"what"`
}

// Compare returns the differences that last for a time.
func Compare(ctx context.Context, pair [2]Replica, settle time.Duration) ([]Difference, error) {
	deadline := time.Now().Add(settle)
	ticker := time.NewTicker(min(settle/4+time.Millisecond, time.Second))
	defer ticker.Stop()
	var lasting map[Difference]bool
	for {
		current, err := currentDifferences(ctx, pair)
		if err != nil {
			return nil, err
		}
		if lasting == nil {
			lasting = current
		}
		maps.DeleteFunc(lasting, func(d Difference, _ bool) bool { return !current[d] })
		if len(lasting) == 0 || !time.Now().Before(deadline) {
			break
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	all := slices.SortedFunc(maps.Keys(lasting), func(a, b Difference) int {
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

// currentDifferences returns how two replicas differ now. What is empty for a Service that both have: their
// digests differ, and what differs is read once it has lasted.
func currentDifferences(ctx context.Context, pair [2]Replica) (map[Difference]bool, error) {
	digests, err := FetchAll[debug.DigestsPage](ctx, pair[:], "/debug/digests")
	if err != nil {
		return nil, err
	}
	clusters, err := FetchAll[debug.ClustersPage](ctx, pair[:], "/debug/clusters")
	if err != nil {
		return nil, err
	}
	states := [2]map[string]string{{}, {}}
	for i := range pair {
		for _, c := range clusters[i].Page.Clusters {
			states[i][c.Name] = string(c.State)
		}
	}
	all := map[Difference]bool{}
	for name := range allKeys(states[0], states[1]) {
		first, second := states[0][name], states[1][name]
		if first != second {
			what := fmt.Sprintf("%s in %s, %s in %s",
				cmp.Or(first, "not linked"), pair[0].Name, cmp.Or(second, "not linked"), pair[1].Name)
			all[Difference{name, "", what}] = true
		}
		if first == "" || second == "" {
			continue
		}
		maps.Copy(all, compareDigests(name, pair, digests[0].Page[name], digests[1].Page[name]))
	}
	return all, nil
}

// compareDigests compares the Services of one cluster.
func compareDigests(cluster string, pair [2]Replica, first, second map[string]string) map[Difference]bool {
	all := map[Difference]bool{}
	for service := range allKeys(first, second) {
		switch {
		case first[service] == "":
			all[Difference{cluster, service, "only in " + pair[1].Name}] = true
		case second[service] == "":
			all[Difference{cluster, service, "only in " + pair[0].Name}] = true
		case first[service] != second[service]:
			all[Difference{cluster, service, ""}] = true
		}
	}
	return all
}

func allKeys[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return all
}

// describeDifference names up to five addresses of a Service in which two replicas differ.
func describeDifference(ctx context.Context, pair [2]Replica, d Difference) (string, error) {
	namespace, name, _ := strings.Cut(d.Service, "/")
	escape := url.PathEscape
	path := fmt.Sprintf("/debug/views/%s/%s/%s", escape(d.Cluster), escape(namespace), escape(name))
	views, err := FetchAll[debug.ViewPage](ctx, pair[:], path)
	if err != nil {
		return "", err
	}
	ready := [2]map[string]bool{{}, {}} // by address
	for i := range pair {
		for _, s := range views[i].Page.Slices {
			for _, e := range s.Endpoints {
				ready[i][e.Addr.String()] = e.Ready
			}
		}
	}
	var parts []string
	for _, addr := range slices.Sorted(maps.Keys(allKeys(ready[0], ready[1]))) {
		first, inFirst := ready[0][addr]
		second, inSecond := ready[1][addr]
		switch {
		case !inSecond:
			parts = append(parts, addr+" only in "+pair[0].Name)
		case !inFirst:
			parts = append(parts, addr+" only in "+pair[1].Name)
		case first && !second:
			parts = append(parts, addr+" ready only in "+pair[0].Name)
		case second && !first:
			parts = append(parts, addr+" ready only in "+pair[1].Name)
		}
	}
	if len(parts) > 5 {
		parts = append(parts[:5], fmt.Sprintf("and %d more", len(parts)-5))
	}
	if len(parts) == 0 {
		return "not addresses: ports, zones, hints, policy or workloads", nil
	}
	return strings.Join(parts, ", "), nil
}

func printDifferences(to io.Writer, pair [2]Replica, differences []Difference, output string) error {
	if output == "json" {
		return PrintJSON(to, append([]Difference{}, differences...))
	}
	if len(differences) == 0 {
		_, err := fmt.Fprintf(to, "%s and %s agree.\n", pair[0].Name, pair[1].Name)
		return err
	}
	t := newTable("CLUSTER", "SERVICE", "DIFFERENCE")
	for _, d := range differences {
		t.addRow(d.Cluster, dash(d.Service), d.What)
	}
	return t.print(to)
}

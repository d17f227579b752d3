package check

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/internal/words"
)

// A fleetReport is the report of one cluster of a fleet.
type fleetReport struct {
	Name    string `json:"name"`
	Context string `json:"context"`
	checkReport

	text                bytes.Buffer // what did not succeed
	runner              *runner
	total, failed, warn int // checks
}

// A fleetRun checks clusters of a fleet.
type fleetRun struct {
	environment func(cli.FleetCluster) *environment
	runner      func() *runner
	progress    *cli.Progress
	pre, json   bool
}

// ofFile checks the clusters that a file names, and prints their reports.
func (f *fleetRun) ofFile(cmd *cobra.Command, path string) error {
	clusters, err := cli.ReadFleet(path)
	if err != nil {
		return cli.WithExitCode(cli.ExitUsage, err)
	}
	return f.finish(cmd.OutOrStdout(), f.run(cmd.Context(), clusters))
}

// run checks all clusters at the same time, and returns their reports, the worst first.
func (f *fleetRun) run(ctx context.Context, clusters []cli.FleetCluster) []*fleetReport {
	reports, done := make([]*fleetReport, len(clusters)), make([]chan error, len(clusters))
	for i, c := range clusters {
		report := &fleetReport{Name: c.Name, Context: c.Context, runner: f.runner()}
		report.runner.to, report.runner.short = &report.text, true
		reports[i], done[i] = report, make(chan error, 1)

		go func() {
			f.environment(c).run(ctx, report.runner, f.pre)
			done[i] <- nil
		}()
	}

	shows := &runner{progress: f.progress}
	for i, report := range reports {
		_ = shows.await("checking "+report.Name, done[i])
		report.count()
	}
	f.progress.Clear()

	slices.SortFunc(reports, func(a, b *fleetReport) int {
		return cmp.Or(b.failed-a.failed, b.warn-a.warn, strings.Compare(a.Name, b.Name))
	})
	return reports
}

// count takes over the results of the runner.
func (r *fleetReport) count() {
	r.checkReport = r.runner.report
	for _, in := range r.Categories {
		for _, c := range in.Checks {
			r.total++
			switch c.Result {
			case resultError:
				r.failed++
			case resultWarning:
				r.warn++
			}
		}
	}
}

// result is the worst of the cluster's checks.
func (r *fleetReport) result() string {
	switch {
	case r.failed > 0:
		return resultError
	case r.warn > 0:
		return resultWarning
	default:
		return resultSuccess
	}
}

// finish prints reports and one summary, and returns ErrFailed if a check of any cluster has failed.
func (f *fleetRun) finish(to io.Writer, reports []*fleetReport) error {
	counts := map[string]int{}
	result, interrupted := resultSuccess, false
	for _, report := range reports {
		counts[report.result()]++
		interrupted = interrupted || report.runner.interrupted
		if !f.json {
			report.print(to)
		}
	}

	if counts[resultWarning] > 0 {
		result = resultWarning
	}
	if counts[resultError] > 0 {
		result = resultError
	}

	if f.json {
		page := map[string]any{"success": counts[resultError] == 0, "clusters": reports}
		if err := cli.PrintJSON(to, page); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(to, "Status check results are %s: %s, %d with failures, %d with warnings\n",
			glyphs[result], words.Count(len(reports), "cluster"), counts[resultError], counts[resultWarning])
	}

	switch {
	case result == resultError:
		return ErrFailed
	case interrupted:
		return errInterrupted
	}
	return nil
}

// print prints a cluster, and what did not succeed there.
func (r *fleetReport) print(to io.Writer) {
	fmt.Fprintf(to, "%s %s (context %s): %s", glyphs[r.result()], r.Name, r.Context, words.Count(r.total, "check"))
	if r.failed+r.warn == 0 {
		fmt.Fprint(to, "\n\n")
		return
	}
	fmt.Fprintf(to, ", %d failed, %s\n\n%s\n", r.failed, words.Count(r.warn, "warning"), r.text.Bytes())
}

// fleetChecks compare a cluster with what the file of its fleet has of it.
func (e *environment) fleetChecks(known *knownReplicas) []check {
	if e.fleet == nil {
		return nil
	}
	named := func(context.Context) error { return known.checkName(e.fleet.Name) }
	linked := func(context.Context) error { return known.checkReads(e.fleet.Reads) }
	return []check{
		fleetName.decided("it has the name that the fleet has for it", named),
		fleetReads.retried("all that it reads is linked", linked),
	}
}

// checkName reports a cluster whose own name is not that by which the fleet links it.
func (k *knownReplicas) checkName(name string) error {
	for _, local := range k.local() {
		if local.Page.Name != name {
			return permanentErrorf("its name is %s%s: set cluster.name of the chart, or correct the file",
				local.Page.Name, k.suffix(local.Replica))
		}
	}
	return nil
}

// checkReads reports clusters of the fleet that a replica does not know.
func (k *knownReplicas) checkReads(reads []string) error {
	for _, page := range k.pages {
		missing := slices.DeleteFunc(slices.Clone(reads), func(name string) bool {
			return slices.ContainsFunc(page.Page.Clusters, func(c debug.ClusterEntry) bool {
				return c.Name == name && !c.Local
			})
		})
		if len(missing) > 0 {
			return fmt.Errorf("%s: not linked%s: apply what 'fingerpost link gen --fleet' writes for this cluster",
				strings.Join(missing, ", "), k.suffix(page.Replica))
		}
	}
	return nil
}

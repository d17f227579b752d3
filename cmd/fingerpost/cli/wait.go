package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/internal/words"
)

// awaitClusters waits until all replicas respond and have all clusters Live, or the named ones, or until the time is
// over. Each try finds the replicas anew: while an installation begins there are none.
func awaitClusters(cmd *cobra.Command, flags *debugCommand, names []string, wait time.Duration) error {
	if flags.watch {
		return usageError(cmd, errors.New("--wait ends, and --watch does not: give one of them"))
	}

	deadline := time.Now().Add(wait)
	progress := NewProgress(cmd.ErrOrStderr())
	defer progress.Clear()

	for time.Now().Before(deadline) {
		missing := missingClusters(cmd.Context(), &flags.ReplicaFlags, names)
		if missing == nil {
			return nil
		}
		if ExitCode(missing) == ExitUsage {
			return missing
		}

		text := func() string {
			left := time.Until(deadline).Round(time.Second)
			return fmt.Sprintf("waiting up to %s (--wait) for all clusters to be Live: %s", left, missing)
		}
		if !progress.Pause(cmd.Context(), min(watchPeriod, time.Until(deadline)), "clusters", text) {
			return fmt.Errorf("interrupted: %w", missing)
		}
	}
	return nil
}

// missingClusters returns what keeps clusters from being Live in all replicas.
func missingClusters(ctx context.Context, flags *ReplicaFlags, names []string) error {
	replicas, err := flags.Open(ctx)
	if err != nil {
		return err
	}
	defer CloseAll(replicas)
	responses, err := FetchAll[debug.ClustersPage](ctx, replicas, "/debug/clusters")
	if err != nil {
		return err
	}

	all := mergeClusters(responses, names)
	if err := all.missing(names); err != nil {
		return err
	}
	return all.notLive()
}

// notLive returns an error if not all replicas have all clusters Live.
func (all replicaClusters) notLive() error {
	var away []clusterSummary
	for _, s := range all.summaries() {
		if s.live < s.replicas {
			away = append(away, s)
		}
	}
	if len(away) == 0 {
		return nil
	}

	first := away[0]
	text := fmt.Sprintf("%s is %s", first.worst.Name, first.worst.State)
	if first.live > 0 {
		text += fmt.Sprintf(" in %d of %s", first.replicas-first.live, words.Count(first.replicas, "replica"))
	}
	if len(away) > 1 {
		text += fmt.Sprintf(", and %d more %s not Live", len(away)-1, words.Are(len(away)-1))
	}
	return WithExitCode(ExitNo, errors.New(text))
}

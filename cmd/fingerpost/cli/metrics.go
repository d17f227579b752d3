package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func metricsCommand(version string) *cobra.Command {
	flags := newReplicaFlags(version, adminPort)
	cmd := &cobra.Command{
		Use:     "metrics [PREFIX...]",
		Short:   "Print the metrics of all replicas, or those whose names have a prefix",
		Example: "  fingerpost metrics\n  fingerpost metrics fingerpost_cluster_state endpoints_",
		RunE: func(cmd *cobra.Command, prefixes []string) error {
			replicas, err := flags.Open(cmd.Context())
			if err != nil {
				return err
			}

			defer CloseAll(replicas)
			var failed error // the metrics of the others are printed nevertheless

			for i, replica := range replicas {
				body, err := replica.fetchBody(cmd.Context(), "/metrics")
				if err != nil {
					failed = errors.Join(failed, fmt.Errorf("%s: %w", replica.Name, err))
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "#\n# POD %s (%d of %d)\n#\n",
					Printable(replica.Name), i+1, len(replicas))
				if err := printMetrics(cmd.OutOrStdout(), string(body), prefixes); err != nil {
					return err
				}
			}

			return failed
		},
	}

	flags.AddFlags(cmd)
	return cmd
}

// printMetrics prints the lines of a page about metrics whose names have one of the prefixes, or all if there
// is none.
func printMetrics(to io.Writer, page string, prefixes []string) error {
	for line := range strings.Lines(page) {
		name := line
		for _, comment := range []string{"# HELP ", "# TYPE "} {
			name = strings.TrimPrefix(name, comment)
		}

		has := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if len(prefixes) > 0 && !slices.ContainsFunc(prefixes, has) {
			continue
		}
		if _, err := io.WriteString(to, PrintableLines(line)); err != nil {
			return err
		}
	}
	return nil
}

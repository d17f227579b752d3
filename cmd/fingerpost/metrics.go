package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func metricsCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:     "metrics [PREFIX...]",
		Short:   "Print the metrics of all replicas, or those whose names begin so",
		Example: "  fingerpost metrics\n  fingerpost metrics fingerpost_cluster_state endpoints_",
		RunE: func(cmd *cobra.Command, prefixes []string) error {
			replicas, done, err := r.open(cmd.Context(), 0)
			if err != nil {
				return err
			}
			defer done()
			for i, replica := range replicas {
				fmt.Fprintf(cmd.OutOrStdout(), "#\n# POD %s (%d of %d)\n#\n", replica.Name, i+1, len(replicas))
				if err := printMetrics(cmd.Context(), cmd.OutOrStdout(), replica, prefixes); err != nil {
					return err
				}
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	r.flags(cmd, adminPort)
	return cmd
}

func printMetrics(ctx context.Context, to io.Writer, from replica, prefixes []string) error {
	body, err := getPage(ctx, from, "/metrics")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(body)) {
		name := line
		for _, comment := range []string{"# HELP ", "# TYPE "} {
			name = strings.TrimPrefix(name, comment)
		}
		wanted := len(prefixes) == 0
		for _, prefix := range prefixes {
			wanted = wanted || strings.HasPrefix(name, prefix)
		}
		if !wanted {
			continue
		}
		if _, err := io.WriteString(to, line); err != nil {
			return err
		}
	}
	return nil
}

// Command fingerpost tells a mesh of Kubernetes clusters where every service is, now, in every cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends what does not end by itself
	if err := command(os.Args[1:]).ExecuteContext(ctx); err != nil {
		if !errors.Is(err, errChecks) { // they speak for themselves
			fmt.Fprintln(os.Stderr, "fingerpost:", printableLines(err.Error()))
		}
		os.Exit(1)
	}
}

// command returns the command line for args.
func command(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:           "fingerpost",
		Short:         "Tells a mesh of Kubernetes clusters where every service is, now, in every cluster",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(
		serveCommand(), validatorCommand(),
		checkCommand(), clustersCommand(), diffCommand(), endpointsCommand(), explainCommand(), linkCommand(), metricsCommand(), profileCommand(), streamsCommand(),
		versionCommand(),
	)
	root.SetArgs(doubleDashes(args))
	return root
}

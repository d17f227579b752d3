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

	"github.com/fingerpost/fingerpost/cmd/fingerpost/check"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends what does not end by itself
	if err := command(os.Args[1:]).ExecuteContext(ctx); err != nil {
		if !errors.Is(err, check.ErrFailed) { // they speak for themselves
			fmt.Fprintln(os.Stderr, "fingerpost:", cli.PrintableLines(err.Error()))
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
	root.AddCommand(serveCommand(), validatorCommand(), versionCommand(), check.Command(binaryVersion()))
	root.AddCommand(cli.Commands(binaryVersion())...)
	root.SetArgs(doubleDashes(args))
	return root
}

// Command fingerpost streams the live endpoints of Services in all linked Kubernetes clusters to
// linkerd2-proxies, and writes them as EndpointSlices. It is the server, the webhooks and the command line in one
// binary.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/check"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second signal ends the process
	root := command(os.Args[1:])
	cli.Prepare(root, os.Args[0])
	err := root.ExecuteContext(ctx)
	stop()

	switch {
	case errors.Is(err, check.ErrFailed): // the report has them
		os.Exit(cli.ExitNo)
	case err != nil:
		fmt.Fprintln(os.Stderr, "fingerpost:", cli.PrintableLines(api.InWords(err).Error()))
		os.Exit(cli.ExitCode(err))
	}
}

// command returns the root command, with arguments.
func command(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:           "fingerpost",
		Short:         "Stream the live endpoints of Services in all linked clusters to linkerd2-proxies",
		Version:       binaryVersion(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(serveCommand(), policyCommand(), identityCommand(), validatorCommand(), injectorCommand())
	root.AddCommand(check.Command(binaryVersion()))
	root.AddCommand(cli.Commands(binaryVersion())...)
	root.SetArgs(doubleDashes(args))
	return root
}

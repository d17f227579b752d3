// Command control-planes builds the programs of a Kubernetes control plane,
// unless they are built already, and prints the directory that holds them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	dir, err := controlplane.Binaries(ctx, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "control-planes:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, dir)
}

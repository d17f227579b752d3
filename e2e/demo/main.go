// Command demo builds the demo, which takes a minute or two the first time, and becomes it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fingerpost/fingerpost/e2e/internal/gobuild"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run expects to be in the directory of the module, where go run -C starts it.
func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	target, err := filepath.Abs("../bin/demo")
	if err != nil {
		return err
	}
	build := &gobuild.Build{Dir: ".", Package: "./demo/play", Target: target, Env: os.Environ()}
	began := time.Now()
	shown := gobuild.Show(os.Stderr, "demo: building itself", build.Percent)
	output, err := build.Run(ctx)
	shown()
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted after %s", time.Since(began).Round(time.Second))
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, output)
	}
	return syscall.Exec(target, append([]string{target}, os.Args[1:]...), os.Environ())
}

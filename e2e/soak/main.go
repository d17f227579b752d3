// Command soak runs two replicas of the server, as they are run, beside many clusters and proxies to which something
// happens all the time: changes, partitions, slow API servers, rotated tokens, clusters that are linked and unlinked,
// replicas that start again. All of it follows from a seed. What each stream must hold is computed from what this
// program itself has put into the clusters, with no code of the server. It ends with a verdict.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

func main() {
	o := options{progress: os.Stderr}
	flag.Uint64Var(&o.seed, "seed", 0, "of everything that happens; 0 for a new one")
	flag.DurationVar(&o.duration, "duration", 10*time.Minute, "how long it lasts, without the start")
	flag.IntVar(&o.proxies, "proxies", 1000, "model proxies that are connected at a time, half of them to each replica")
	flag.IntVar(&o.lights, "clusters", 20, "clusters that this program plays, besides the two real ones")
	flag.IntVar(&o.apps, "services", 40, "federated Services")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Usage: make soak [ARGS='-seed N -duration D']\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if o.seed == 0 {
		o.seed = rand.Uint64N(1 << 32)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "soak: seed %d: %v\n", o.seed, err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (ok bool, err error) {
	if runtime.GOOS != "linux" {
		return false, errors.New("file descriptors of processes are read from /proc, which this system does not have")
	}
	if o.dir, err = os.MkdirTemp("", "fingerpost-soak-"); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	fmt.Fprintf(o.progress, "soak: seed %d; building the server\n", o.seed)
	if o.binary, err = fingerpost.Build(ctx, o.dir, false); err != nil {
		return false, err
	}
	if _, err := controlplane.Binaries(ctx, o.progress); err != nil {
		return false, err
	}
	s := &soak{options: o}
	err = s.run(ctx)
	text, ok := s.summary()
	fmt.Print(text)
	return ok, err
}

// Command demo shows Fingerpost at work: three real control planes on this machine, a small shop in each, and
// what a proxy is told while they are linked, scaled, rotated, cut off, healed and unlinked.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// Probe times are short here, so that one need not wait: the server's own defaults are 5 s, 10 s and 150 s.
var short = []string{"-probe-interval=1s", "-suspect-after=2s", "-stale-after=5s"}

const shortNote = "probe times are short here: Suspect after 2 s, Stale after 5 s; the defaults are 10 s and 150 s"

func main() {
	once := flag.Bool("once", false, "play the script once, without a terminal, and check each step")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(),
			"Usage: make demo [ARGS=--once]\n\nShows three real control planes being linked, cut off and healed. Ctrl-C stops everything.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *once || !term.IsTerminal(int(os.Stdout.Fd())))
	interrupted := ctx.Err() != nil
	stop()
	if err != nil {
		if interrupted {
			fmt.Println("demo: stopped")
			return
		}
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run sets the stage, plays the script and clears up, whatever happens.
func run(ctx context.Context, once bool) (err error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "fingerpost-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if _, err := controlplane.Binaries(ctx, os.Stderr); err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Printf("demo: "+format+"\n", args...) }
	say("building the server")
	binary, err := fingerpost.Build(ctx, dir, false)
	if err != nil {
		return err
	}
	say("starting three control planes: east, west, north")
	clusters, err := controlplane.StartAll(ctx, controlplane.Options{Name: "east"},
		controlplane.Options{Name: "west"}, controlplane.Options{Name: "north"})
	if err != nil {
		return err
	}
	defer func() {
		for _, c := range clusters {
			err = errors.Join(err, c.Stop())
		}
	}()
	say("opening the shop in each of them: Deployment and Service web, two Pods")
	m, err := mesh.New(ctx, "shop", 2, clusters...)
	if err != nil {
		return err
	}
	if err := m.Grant(ctx); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "fingerpost.log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if err := m.Serve(ctx, fingerpost.Options{Binary: binary, Dir: dir, Args: short, Log: log}); err != nil {
		return err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, m.Server.Stop())
		}
	}()
	say("the stage is set after %s; %s", time.Since(began).Round(100*time.Millisecond), shortNote)

	p := &play{mesh: m}
	if once {
		err = p.once(ctx, say)
	} else {
		err = p.watched(ctx)
	}
	if p.stream != nil {
		defer p.stream.Close()
	}
	if err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w\nthe end of the server's log:\n%s", err, m.Server.Tail())
		}
		return err
	}
	stopped = true
	if err := m.Server.Stop(); err != nil {
		return err
	}
	say("ok")
	return nil
}

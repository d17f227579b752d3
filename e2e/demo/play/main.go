// Command play shows Fingerpost at work: three control planes on this machine, a small shop in each, and what
// a proxy receives while they are linked, scaled, rotated, cut off, healed and unlinked.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
)

func main() {
	once := flag.Bool("once", false, "play the script once, without a terminal, and check each step")
	inMemory := flag.Bool("memory", false, "play on API servers in memory only, which need no build")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "Usage: make demo [ARGS='--once --memory']\n\n"+
			"Shows three real control planes being linked, cut off and healed. While they are built, the first\n"+
			"time, the same is shown on API servers in memory. Enter goes on to the next step, q and Ctrl-C stop\n"+
			"everything.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, quit := context.WithCancel(ctx)
	d := &demo{out: os.Stdout}
	if !*once {
		d.terminal = openTerminal(quit)
	}
	if d.terminal != nil {
		d.out = d.terminal
	}
	err := d.run(ctx, *inMemory)
	interrupted := ctx.Err() != nil
	stop()
	quit()
	if d.terminal != nil {
		d.terminal.close()
		fmt.Print(d.transcript)
	}
	switch {
	case interrupted:
		fmt.Println("demo: stopped")
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// A demo is one run of this command.
type demo struct {
	terminal   *terminal // nil: play once
	out        io.Writer
	transcript string // what is left on the terminal at the end
}

// report prints a line. On a terminal the lines of the script are shown in another form, and printed at the
// end.
func (d *demo) report(format string, args ...any) { fmt.Fprintf(d.out, "demo: "+format+"\n", args...) }

// run sets the stage, plays the script and clears up, whatever happens.
func (d *demo) run(ctx context.Context, inMemory bool) (err error) {
	if inMemory {
		return d.rehearse(ctx, &lastLine{}, nil)
	}
	dir, err := os.MkdirTemp("", "fingerpost-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	there, err := controlplane.Built(ctx)
	if err != nil {
		return err
	}
	if there {
		return d.perform(ctx, build(ctx, dir, os.Stderr))
	}
	d.report("real control planes are built first, once. Until then the script is played on API servers in memory.")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	progress, built := &lastLine{}, make(chan struct{})
	var programs programs
	go func() {
		defer close(built)
		programs = build(ctx, dir, progress)
	}()
	if err := d.rehearse(ctx, progress, built); err != nil {
		cancel()
		<-built
		return err
	}
	<-built
	return d.perform(ctx, programs)
}

// rehearse plays the script in memory, while something else is under way.
func (d *demo) rehearse(ctx context.Context, progress fmt.Stringer, done <-chan struct{}) error {
	stage, err := newMemory(ctx)
	if err != nil {
		return err
	}
	return d.play(ctx, stage, "on API servers IN MEMORY", progress, done)
}

// perform plays the script on real control planes.
func (d *demo) perform(ctx context.Context, p programs) error {
	if p.err != nil {
		return p.err
	}
	stage, err := newLive(ctx, p.binary, d.report)
	if err != nil {
		return err
	}
	if err := d.play(ctx, stage, "on real control planes", &lastLine{}, nil); err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w\nthe end of the server's log:\n%s", err, stage.mesh.Server.Tail())
		}
		return err
	}
	d.report("ok")
	return nil
}

// play plays the script on a stage, and closes it.
func (d *demo) play(
	ctx context.Context, stage stage, label string, progress fmt.Stringer, done <-chan struct{},
) (err error) {
	p := &play{stage: stage}
	defer func() { err = errors.Join(err, p.close()) }()
	d.report("the script, %s; %s", label, shortNote)
	if d.terminal == nil {
		return p.once(ctx, d.report)
	}
	d.transcript += "demo: the script, " + label + "\n"
	keep := func(format string, args ...any) { d.transcript += fmt.Sprintf("demo: "+format+"\n", args...) }
	return p.watched(ctx, d.terminal, label, keep, progress, done)
}

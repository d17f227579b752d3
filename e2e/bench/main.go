// Command bench measures the server as it is run: a process of its own, fed by a real API server, read over
// TCP by a client in another process that takes every byte. It prints a table and writes it to
// docs/bench/results.md.
//
// What is counted is the CPU time of the server's process, all of it, and not that of the API server or of
// the client, which share the machine; so CPU figures hold on a busy machine where times do not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

func main() {
	only := flag.String("only", "", "measure only what matches this regular expression, and write nothing")
	out := flag.String("out", "", "write the table to this file too")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(),
			"Usage: make bench [ARGS='-only REGEXP']\n\nMeasures the server end to end. Takes some minutes.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if flag.Arg(0) == "variant" { // started by this program
		err = serveVariant(ctx, flag.Arg(1), os.Stdin, os.Stdout)
	} else {
		err = run(ctx, *only, *out)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is what all measurements share.
type bench struct {
	binary  string
	dir     string
	cluster *controlplane.Cluster
	fleet   *fleet
	table   table
}

// A measurement adds rows to the table. It starts servers of its own.
type measurement struct {
	name string
	run  func(context.Context, *bench) error
	own  bool // it starts API servers of its own, or this program plays them
}

var measurements = []measurement{
	{name: "start", run: start},
	{name: "idle", run: idle},
	{name: "messages", run: messages},
	{name: "first-answers", run: firstAnswers},
	{name: "reconnect", run: reconnect},
	{name: "churn", run: churn},
	{name: "change", run: changes},
	{name: "isolated", run: isolated, own: true},
	{name: "isolated-cpu", run: isolatedCPU, own: true},
	{name: "admission", run: admission},
	{name: "external-workloads", run: workloads},
	{name: "clusters", run: clusters, own: true},
	{name: "ports", run: ports, own: true},
	{name: "pods", run: pods, own: true},
	{name: "linked", run: linked, own: true},
	{name: "proxies", run: proxies, own: true},
	{name: "million", run: million, own: true},
	{name: "policy-changes", run: policyChanges, own: true},
	{name: "policy-fleet", run: policyFleet, own: true},
}

func run(ctx context.Context, only, out string) (err error) {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if runtime.GOOS != "linux" {
		return errors.New("CPU and memory of processes are read from /proc, which this system does not have")
	}
	began := time.Now()
	log := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "bench: %4.0fs "+format+"\n", append([]any{time.Since(began).Seconds()}, args...)...)
	}
	b := &bench{}
	if b.dir, err = os.MkdirTemp("", "fingerpost-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	log("building the server")
	if b.binary, err = fingerpost.Build(ctx, b.dir, false); err != nil {
		return err
	}
	if slices.ContainsFunc(measurements, func(m measurement) bool { return !m.own && wanted.MatchString(m.name) }) {
		if _, err := controlplane.Binaries(ctx, os.Stderr); err != nil {
			return err
		}
		log("starting an API server")
		if b.cluster, err = controlplane.Start(ctx, controlplane.Options{Name: "bench", Light: true}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.cluster.Stop()) }()
		log("writing %d Pods and their EndpointSlices", totalPods)
		if b.fleet, err = newFleet(ctx, b.cluster); err != nil {
			return err
		}
	}
	for _, m := range measurements {
		if !wanted.MatchString(m.name) {
			continue
		}
		log("measuring %s", m.name)
		if err := m.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	log("done")
	fmt.Println()
	fmt.Print(b.table.text())
	if out == "" || only != "" {
		return nil
	}
	return os.WriteFile(filepath.Clean(out), []byte(b.table.page()), 0o644)
}

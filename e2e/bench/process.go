package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

// tick is the unit of CPU times in /proc, the same on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpu returns the CPU time that a process has used, user and system, since it started.
func cpu(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // the first is number 3, the state
	var ticks int
	for _, field := range fields[11:13] { // utime and stime, numbers 14 and 15
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// peak returns the most memory that a process has had resident, in bytes.
func peak(pid int) (int, error) {
	page, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(page)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status: no VmHWM", pid)
}

// serve starts a Fingerpost server and waits until it is ready.
func (b *bench) serve(ctx context.Context, env []string, args ...string) (*fingerpost.Server, error) {
	dir, err := os.MkdirTemp(b.dir, "server-")
	if err != nil {
		return nil, err
	}
	s, err := fingerpost.Start(ctx, fingerpost.Options{
		Binary: b.binary, Dir: dir, Kubeconfig: b.cluster.AdminKubeconfig(), Env: env,
		Args: append([]string{"-enable-pprof", "-identity-trust-domain=cluster.local", "-default-opaque-ports=25,587"}, args...),
	})
	if err != nil {
		return nil, err
	}
	ready := time.NewTicker(5 * time.Millisecond)
	defer ready.Stop()
	timeout, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !s.Ready(ctx) {
		select {
		case <-ready.C:
		case <-timeout.Done():
			return nil, fmt.Errorf("not ready: %w\n%s", timeout.Err(), s.Tail())
		}
	}
	return s, nil
}

// unbounded lets as many streams in as come.
var unbounded = []string{"-admission-rate=1000000", "-admission-burst=1000000", "-admission-answers=1000"}

func pathOf(s service) string { return fmt.Sprintf("%s.%s.svc.cluster.local:80", s.name, namespace) }

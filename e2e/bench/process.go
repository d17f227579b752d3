package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

// serve starts a Fingerpost server beside the real API server and waits until it is ready.
func (b *bench) serve(ctx context.Context, env []string, args ...string) (*fingerpost.Server, error) {
	return b.serveFrom(ctx, b.cluster.AdminKubeconfig(), env, args...)
}

// serveFrom starts a Fingerpost server in the cluster of a kubeconfig and waits until it is ready.
func (b *bench) serveFrom(ctx context.Context, kubeconfig []byte, env []string,
	args ...string,
) (*fingerpost.Server, error) {
	dir, err := os.MkdirTemp(b.dir, "server-")
	if err != nil {
		return nil, err
	}
	s, err := fingerpost.Start(ctx, fingerpost.Options{
		Binary: b.binary, Dir: dir, Kubeconfig: kubeconfig, Env: env,
		Args: append([]string{
			"-enable-pprof", "-identity-trust-domain=cluster.local", "-default-opaque-ports=25,587",
		}, args...),
	})
	if err != nil {
		return nil, err
	}
	ready := time.NewTicker(5 * time.Millisecond)
	defer ready.Stop()
	timeout, cancel := context.WithTimeout(ctx, 10*time.Minute)
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

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

const linkerd = "linkerd"

// A replica is the server's binary, started again and again at other addresses.
type replica struct {
	number  int
	options fingerpost.Options

	mu     sync.Mutex
	server *fingerpost.Server
	ready  bool
	starts int
	young  time.Time // see law; zero: no exception
}

// newReplicas returns replicas that know each other, by a token, and are not started.
func newReplicas(
	ctx context.Context, n int, binary, dir string, kubeconfig []byte, token string,
) (all []*replica, err error) {
	tokenFile := filepath.Join(dir, "peer-token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		return nil, err
	}
	var peers []string
	for range n {
		// The source of connections within this machine is 127.0.0.1, so that none takes the port of a replica that
		// is away.
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.2:0")
		if err != nil {
			return nil, err
		}
		peers = append(peers, l.Addr().String())
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	for i := range n {
		own := filepath.Join(dir, fmt.Sprintf("replica-%d", i))
		state := filepath.Join(own, "state")
		if err := os.MkdirAll(state, 0o700); err != nil {
			return nil, err
		}
		others := append(append([]string{}, peers[:i]...), peers[i+1:]...)
		all = append(all, &replica{number: i, options: fingerpost.Options{
			Binary: binary, Dir: own, Kubeconfig: kubeconfig, Env: []string{fmt.Sprintf("HOSTNAME=fingerpost-%d", i)},
			Args: []string{
				"-cluster-name=" + clusterName(localSite), "-controller-namespace=" + linkerd,
				"-link-namespace=" + fakeapi.LinkNamespace, "-cluster-domain=cluster.local",
				"-identity-trust-domain=cluster.local", "-enable-pprof",
				"-state-dir=" + state, "-peer-addr=" + peers[i], "-peers=" + strings.Join(others, ","),
				"-peer-token-file=" + tokenFile,
				// Outages are short here, and so is what depends on how long they last. Connections soon have all ages.
				"-probe-interval=1s", "-suspect-after=2s", "-stale-after=6s", "-drain-window=2s",
				"-max-connection-age=30s",
			},
		}})
	}
	return all, nil
}

// start starts a process and waits until it is ready.
func (r *replica) start(ctx context.Context, ended func(error)) error {
	server, err := fingerpost.Start(ctx, r.options)
	if err != nil {
		return fmt.Errorf("replica %d: %w", r.number, err)
	}
	r.mu.Lock()
	r.server = server
	r.starts++
	r.mu.Unlock()
	go func() {
		<-server.Exited()
		r.mu.Lock()
		meant := r.server != server
		r.mu.Unlock()
		if !meant {
			ended(fmt.Errorf("replica %d has ended\n%s", r.number, server.Tail()))
		}
	}()
	err = until(ctx, func(ctx context.Context) error {
		if !server.Ready(ctx) {
			return errors.New("it is not")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("replica %d is not ready: %w\n%s", r.number, err, server.Tail())
	}
	r.mu.Lock()
	r.ready = true
	r.mu.Unlock()
	return nil
}

// stop ends the process, by force if kill.
func (r *replica) stop(kill bool) error {
	r.mu.Lock()
	server := r.server
	r.server, r.ready = nil, false
	r.mu.Unlock()
	if server == nil {
		return nil
	}
	if !kill {
		return server.Stop()
	}
	err := syscall.Kill(server.PID(), syscall.SIGKILL)
	<-server.Exited()
	_ = server.Stop() // it was killed
	return err
}

// exempt makes the law leave out what is younger than that at streams of the replica; the zero Time ends it.
func (r *replica) exempt(young time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.young = young
}

func (r *replica) exempted() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.young
}

// dial connects to the replica, if it is ready, as a Service does.
func (r *replica) dial(ctx context.Context, _ string) (net.Conn, error) {
	r.mu.Lock()
	server, ready := r.server, r.ready
	r.mu.Unlock()
	if !ready {
		return nil, errors.New("the replica is not ready")
	}
	return new(net.Dialer).DialContext(ctx, "tcp", server.Addr)
}

// within is how long what takes seconds may take on a busy machine.
const within = 2 * time.Minute

// until asks until check succeeds, and returns its last error if that takes too long.
func until(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

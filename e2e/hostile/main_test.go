// Package hostile tests the server as it is run beside clients and API servers that mean it harm, or are
// merely broken. An honest client asks beside each of them: its answers are complete and it loses none.
// Memory is bounded; times are logged, and have deadlines only.
package hostile

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
	"github.com/fingerpost/fingerpost/e2e/hostile/honest"
	"github.com/fingerpost/fingerpost/e2e/internal/proc"
)

var (
	binary string                   // the server's
	busy   = make(chan struct{}, 3) // has a token for each test that does more than wait
)

func TestMain(m *testing.M) {
	proc.ExitUnlessLinux()
	fingerpost.TestMain(context.Background(), false, func(_ context.Context, built string) (code int, err error) {
		binary = built
		if err := flag.Set("test.parallel", "100"); err != nil { // all at once, but see busy
			return 1, err
		}
		code = m.Run()
		if code == 0 {
			err = goleak.Find()
		}
		return code, err
	})
}

// slack is what the resident memory of a server varies by without an attack, between two collections.
const slack = 16 << 20

// within is how long what should take seconds may take on a busy machine.
const within = 5 * time.Minute

// world is a server, the clusters that it reads, and an honest client of a Service in its own cluster.
type world struct {
	t      *testing.T
	ctx    context.Context // ends with the test, or with what makes it fail
	api    *fakeapi.Server
	local  *fakeapi.Cluster
	server *fingerpost.Server
	honest *honest.Client
	log    *lineCount // of what the server logs; nil for none
	env    []string   // of the server
}

// web is the Service that the honest client asks for.
var web = fakeapi.App{Namespace: "shop", Name: "web", Pods: 100, First: netip.MustParseAddr("10.0.0.1")}

// newBusy is newWorld, in turn with others that take CPUs.
func newBusy(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	busy <- struct{}{}
	t.Cleanup(func() { <-busy })
	return newWorld(t)
}

// newIdle is newWorld for a test that waits most of the time.
func newIdle(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorld(t)
}

// newWorld starts API servers, of which the local one holds what the honest client asks for.
func newWorld(t *testing.T) *world {
	t.Helper()
	api, err := fakeapi.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	w := &world{t: t, ctx: t.Context(), api: api, local: api.Cluster("local")}
	w.local.Run(1, func(int) fakeapi.App { return web })
	return w
}

// link links a cluster.
func (w *world) link(name string) *fakeapi.Cluster {
	c := w.api.Cluster(name)
	w.local.Apply(fakeapi.Link(name, c.Kubeconfig(fakeapi.Token))...)
	return c
}

// serve starts the server and an honest client, and lets both run in for a while.
func (w *world) serve(args ...string) {
	w.t.Helper()
	var err error
	var log io.Writer
	if w.log != nil {
		log = w.log
	}
	w.server, err = fingerpost.Start(w.t.Context(), fingerpost.Options{
		Binary: binary, Dir: w.t.TempDir(), Kubeconfig: w.local.Kubeconfig(fakeapi.Token), Log: log, Env: w.env,
		Args: append([]string{
			"-identity-trust-domain=cluster.local", "-cluster-domain=cluster.local",
			"-link-namespace=" + fakeapi.LinkNamespace,
			"-mirror-services=off", "-federated-slices=false", "-external-workload-slices=false",
			"-probe-interval=1s", "-suspect-after=3s", "-stale-after=20s", "-first-sync-grace=2s", "-enable-pprof",
		}, args...),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	started := w.server
	w.t.Cleanup(func() {
		if err := started.Stop(); err != nil && w.server == started {
			w.t.Error(err)
		}
		if w.t.Failed() {
			w.t.Logf("the end of the server's log:\n%s", started.Tail())
		}
	})
	w.eventually("the server is ready", func(ctx context.Context) error {
		if !w.server.Ready(ctx) {
			return errors.New("it is not")
		}
		return nil
	})
	w.honest = w.client(web.Authority(), web.Addrs()...)
	w.answered(20)
	quiet := w.honest.Report()
	w.t.Logf("quiet: %s", quiet)
	if quiet.Err != nil {
		w.t.Fatal(quiet.Err)
	}
}

// client starts one more honest client. What it has seen wrong at the end fails the test.
func (w *world) client(authority string, want ...netip.AddrPort) *honest.Client {
	w.t.Helper()
	c, err := honest.Start(w.t.Context(), w.server.Addr, authority, want)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		report := c.Report()
		c.Stop()
		if report.Err != nil {
			w.t.Errorf("an honest client of %s: %v", authority, report.Err)
		}
		w.t.Logf("an honest client of %s: %s", authority, report)
	})
	return c
}

// answered waits until the honest client was answered n times more.
func (w *world) answered(n int) {
	w.t.Helper()
	w.answers(w.honest, n)
}

// answers waits until a client was answered n times more.
func (w *world) answers(c *honest.Client, n int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, within)
	defer cancel()
	if err := c.Answered(ctx, n); err != nil {
		w.t.Fatal(err)
	}
}

// eventually waits until check succeeds.
func (w *world) eventually(what string, check func(ctx context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, within)
	defer cancel()
	began := time.Now()
	if err := poll(ctx, check); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	w.t.Logf("%s, after %s", what, time.Since(began).Round(time.Millisecond))
}

// poll asks until check succeeds, and returns its last error if ctx ends before.
func poll(ctx context.Context, check func(context.Context) error) error {
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	var seen error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if seen == nil || ctx.Err() == nil {
			seen = err // not that the last check was cut short
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), seen)
		}
	}
}

// state returns an error if a cluster is not in a state.
func (w *world) state(ctx context.Context, name, state string) error {
	c, err := w.server.Cluster(ctx, name)
	if err == nil && c.State != state {
		err = fmt.Errorf("%s is %q: %s %s", name, c.State, c.Contact, c.Credentials)
	}
	return err
}

// live waits until clusters are Live.
func (w *world) live(names ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d clusters are Live", len(names)), func(ctx context.Context) error {
		for _, name := range names {
			if err := w.state(ctx, name, "Live"); err != nil {
				return err
			}
		}
		return nil
	})
}

// reported waits until it is known of a cluster, which is not in use, what is wrong with it.
func (w *world) reported(name string) {
	w.t.Helper()
	w.eventually(name+" is reported", func(ctx context.Context) error {
		c, err := w.server.Cluster(ctx, name)
		if err == nil && (c.State != "Connecting" || c.Contact+c.Credentials == "") {
			err = fmt.Errorf("%s is %q: %s %s", name, c.State, c.Contact, c.Credentials)
		}
		return err
	})
}

// bounded does what is hostile, and fails the test if the server has taken up more memory for it, at any
// time, than it may. One that takes up very much more is killed, so that the machine survives.
func (w *world) bounded(may int, hostile func()) {
	w.t.Helper()
	const far = 1 << 30
	pid := w.server.PID()
	before, err := proc.Resident(pid)
	if err := errors.Join(err, proc.ResetPeak(pid)); err != nil {
		w.t.Fatal(err)
	}
	w.honest.Report()
	var peak int
	ctx, cancel := context.WithCancelCause(w.ctx)
	w.ctx = ctx
	var guard sync.WaitGroup
	guard.Go(func() {
		_ = poll(ctx, func(context.Context) error {
			now, err := proc.Peak(pid)
			peak = max(peak, now)
			if err != nil || now-before < far {
				return errors.New("goes on")
			}
			cancel(fmt.Errorf("the server has taken up %d MiB more and was killed", (now-before)>>20))
			return syscall.Kill(pid, syscall.SIGKILL)
		})
	})
	defer func() {
		cancel(nil)
		guard.Wait()
		if last, err := proc.Peak(pid); err == nil {
			peak = max(peak, last)
		}
		more := (peak - before) >> 20
		w.t.Logf("resident memory %d MiB, at most %d MiB meanwhile: + %d MiB (may be: %d)", before>>20,
			peak>>20, more, may>>20)
		if peak-before > may+slack {
			w.t.Errorf("the server has taken up %d MiB more, which is beyond %d MiB and a slack of %d MiB",
				more, may>>20, slack>>20)
		}
	}()
	hostile()
	w.answered(10) // the server is there, and others are served
}

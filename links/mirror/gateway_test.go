package mirror

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fingerpost/fingerpost/links"
)

// settle lets time pass, and waits until every goroutine is idle.
func settle(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}

// A gateway counts as alive until it fails as often in a row as its Link allows, and again from the first success
// on. Each period is at most a tenth longer than configured. Metrics report it.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var code atomic.Int32
		code.Store(http.StatusOK)
		var hangs atomic.Bool
		listener := newPipes()
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/ready" {
				t.Errorf("path %s", r.URL.Path)
			}
			if hangs.Load() {
				<-r.Context().Done()
				return
			}
			w.Header().Set("Location", "/elsewhere") // which is not followed
			w.WriteHeader(int(code.Load()))
		})}
		go func() { _ = server.Serve(listener) }()
		var changes, dials atomic.Int32
		m := newMetrics()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(m.vectors()...)
		g := &gateway{
			log: logr.Discard(), metrics: m, changed: func() { changes.Add(1) },
			link: &links.Mirroring{
				Cluster: "east",
				Probe: &links.Probe{
					Path: "/ready", Port: 4191, Period: 10 * time.Second, Timeout: 2 * time.Second,
					FailureThreshold: 3,
				},
			},
			probePort: func() (int32, error) { return 4191, nil },
			dial: func(context.Context, string, string) (net.Conn, error) {
				dials.Add(1)
				return listener.dial()
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { g.runProbe(ctx); close(done) }()
		wants := func(dead bool, n int32) {
			t.Helper()
			if g.state().dead != dead || changes.Load() != n {
				t.Errorf("dead is %t after %d changes, want %t after %d", g.state().dead, changes.Load(), dead, n)
			}
			alive := 1.0
			if dead {
				alive = 0
			}
			if got := testutil.ToFloat64(m.alive.WithLabelValues("east")); got != alive {
				t.Errorf("gateway_alive is %v", got)
			}
		}
		settle(time.Second)
		wants(false, 0)
		settle(109 * time.Second) // at 10 to 11 s each
		if n := dials.Load(); n < 10 || n > 11 {
			t.Errorf("%d probes in 110 s", n)
		}
		wants(false, 0)
		code.Store(http.StatusServiceUnavailable)
		settle(22 * time.Second)
		wants(false, 0)
		settle(11 * time.Second)
		wants(true, 1)
		settle(time.Minute)
		wants(true, 1)
		code.Store(http.StatusOK)
		settle(11 * time.Second)
		wants(false, 2)
		code.Store(http.StatusFound)
		settle(33 * time.Second)
		wants(true, 3)
		code.Store(http.StatusOK)
		settle(11 * time.Second)
		wants(false, 4)
		hangs.Store(true) // each probe ends with its timeout
		settle(40 * time.Second)
		wants(true, 5)
		if n := testutil.ToFloat64(m.probes.WithLabelValues("east", "false")); n < 8 {
			t.Errorf("%v probes have failed", n)
		}
		cancel()
		<-done
		for _, name := range []string{
			"gateway_alive", "gateway_enabled", "gateway_latency", "gateway_probes",
			"gateway_probe_latency_ms",
		} {
			if n, err := testutil.GatherAndCount(registry, name); err != nil || n != 0 {
				t.Errorf("%d series of %s are left: %v", n, name, err)
			}
		}
		_ = server.Close()
	})
}

// pipes is a listener of connections in memory.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) dial() (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.accept <- server:
		return client, nil
	case <-p.closed:
		return nil, errors.New("connection refused")
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { close(p.closed); return nil }

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// Names are resolved periodically. One that cannot be resolved keeps its last addresses, and is reported: what is
// reported does not depend on which DNS server was asked.
func TestResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type names map[string][]netip.Addr
		var answers atomic.Pointer[names]
		var timesOut atomic.Bool
		addr := netip.MustParseAddr
		answers.Store(&names{"b.example": {addr("192.0.2.9"), addr("192.0.2.3")}})
		var changes, asked atomic.Int32
		g := &gateway{
			log: logr.Discard(), changed: func() { changes.Add(1) },
			link: &links.Mirroring{
				Cluster: "east",
				Gateway: links.Gateway{Addresses: []string{"192.0.2.3", "a.example", "b.example"}},
			},
			resolve: func(ctx context.Context, host string) ([]netip.Addr, error) {
				n := asked.Add(1)
				if timesOut.Load() {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				if found := (*answers.Load())[host]; found != nil {
					return found, nil
				}
				return nil, &net.DNSError{
					Err:        "no such host",
					Server:     fmt.Sprintf("10.96.0.%d:53", n),
					IsNotFound: true,
				}
			},
		}
		if !g.state().resolving {
			t.Error("what was not asked for yet counts as resolved")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { g.runResolver(ctx); close(done) }()
		wants := func(n int32, problem string, want ...string) {
			t.Helper()
			now := g.state()
			if now.resolving || !slices.Equal(now.addresses, want) || changes.Load() != n {
				t.Errorf("addresses %v after %d changes, want %v after %d", now.addresses, changes.Load(), want, n)
			}
			if now.problem != problem {
				t.Errorf("problem %q, want %q", now.problem, problem)
			}
		}
		const (
			noA  = "a.example in spec.gatewayAddress cannot be resolved: there is no such host"
			keep = ": its last addresses are kept, 192.0.2.1"
			noB  = "b.example in spec.gatewayAddress cannot be resolved: there is no such host: its last addresses are " +
				"kept, 192.0.2.3, 192.0.2.9"
		)
		settle(time.Second)
		wants(1, noA, "192.0.2.3", "192.0.2.9")
		settle(5 * time.Minute)
		wants(1, noA, "192.0.2.3", "192.0.2.9")
		if n := asked.Load(); n > 30 {
			t.Errorf("two names were asked for %d times in 5 minutes", n)
		}
		answers.Store(&names{"a.example": {addr("192.0.2.1")}})
		settle(33 * time.Second)
		wants(2, noB, "192.0.2.1", "192.0.2.3", "192.0.2.9")
		answers.Store(&names{})
		settle(5 * time.Minute)
		wants(3, noA+keep+"; "+noB, "192.0.2.1", "192.0.2.3", "192.0.2.9")
		unusable := []netip.Addr{
			addr("0.0.0.0"), addr("::1"), addr("::ffff:127.0.0.1"), addr("169.254.1.1"), addr("224.0.0.1"),
		}
		answers.Store(&names{"b.example": unusable}) // any of them has the API server reject the Endpoints
		settle(33 * time.Second)
		wants(4, noA+keep+"; b.example in spec.gatewayAddress has no address that can be that of a gateway: 0.0.0.0, "+
			"169.254.1.1, 224.0.0.1, and 2 more: its last addresses are kept, 192.0.2.3, 192.0.2.9",
			"192.0.2.1", "192.0.2.3", "192.0.2.9")
		answers.Store(&names{"a.example": {addr("192.0.2.1")}, "b.example": append(unusable, addr("2001:db8::1"))})
		settle(33 * time.Second)
		wants(5, "", "192.0.2.1", "192.0.2.3", "2001:db8::1")
		timesOut.Store(true)
		settle(40 * time.Second) // both are asked at once
		wants(6, "a.example in spec.gatewayAddress cannot be resolved: DNS does not answer within 5s"+keep+
			"; b.example in spec.gatewayAddress cannot be resolved: DNS does not answer within 5s: its last addresses "+
			"are kept, 2001:db8::1", "192.0.2.1", "192.0.2.3", "2001:db8::1")
		timesOut.Store(false)
		var many []netip.Addr
		for a := addr("198.51.0.0"); len(many) <= maxGatewayIPs; a = a.Next() {
			many = append(many, a)
		}
		answers.Store(&names{"b.example": many})
		settle(33 * time.Second)
		if n := len(g.state().addresses); n != maxGatewayIPs {
			t.Errorf("%d addresses are used", n)
		}
		cancel()
		<-done
	})
}

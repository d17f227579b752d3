package hostile

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/e2e/hostile/attack"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// dial connects to the server by a library.
func (w *world) dial() *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+w.server.Addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// raw connects to the server by frames.
func (w *world) raw() *attack.Client {
	w.t.Helper()
	c, err := attack.Dial(w.t.Context(), w.server.Addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

// ask asks for a Service and returns by what code the question ends; OK once there is an answer.
func ask(ctx context.Context, conn *grpc.ClientConn, request *pb.GetDestination) codes.Code {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	stream, err := pb.NewDestinationClient(conn).Get(ctx, request)
	if err == nil {
		_, err = stream.Recv()
	}
	return status.Code(err)
}

// Names and tokens of megabytes are refused, and nothing of them stays.
func TestGiantNames(t *testing.T) {
	const lookups, size, parallel = 150, 4_000_000, 4
	w := newBusy(t)
	w.serve()
	giant := strings.Repeat("x", size)
	w.bounded(5<<20, func() {
		conn := w.dial()
		var wg sync.WaitGroup
		for worker := range parallel {
			wg.Go(func() {
				for i := worker; i < lookups; i += parallel {
					request := &pb.GetDestination{
						Scheme: "k8s",
						Path:   fmt.Sprintf("%d%s.shop.svc.cluster.local:80", i, giant),
					}
					if i%3 == 2 {
						request = &pb.GetDestination{
							Scheme:       "k8s",
							Path:         web.Authority(),
							ContextToken: fmt.Sprintf(`{"ns":"shop","nodeName":"%d%s"}`, i, giant),
						}
					}
					if code := ask(t.Context(), conn, request); code != codes.InvalidArgument &&
						code != codes.ResourceExhausted {
						t.Errorf("lookup %d of %d bytes: %s", i, size, code)
					}
				}
			})
		}
		wg.Wait()
	})
}

// Streams without a request, and requests whose headers are short on the wire and long in memory, are refused
// or end, whether the client leaves or stays.
func TestHalfOpenStreams(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                         string
		connections, streams, fields int
	}{
		{"on one connection", 1, 20_000, 0},
		{"on many connections", 20, 1_000, 0},
		{"with floods of header fields on one connection", 1, 2_000, 100_000},
		{"with floods of header fields on many connections", 20, 100, 100_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newIdle(t)
			w.serve()
			w.bounded(20<<20, func() {
				var all []*attack.Client
				var wg sync.WaitGroup
				for range c.connections {
					client := w.raw()
					all = append(all, client)
					wg.Go(func() { client.HalfOpen(c.streams, c.fields) })
				}
				wg.Wait()
				w.eventually("all streams are refused or ended", func(ctx context.Context) error {
					for _, client := range all {
						if err := client.Ended(ctx); err != nil {
							return err
						}
					}
					return nil
				})
			})
		})
	}
}

// A client that asks for each port of a large Service and reads nothing costs no more than a few copies of the answer.
func TestStalledReaders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name               string
		connections, ports int
	}{
		{"on one connection", 1, 300},
		{"on many connections", 10, 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			large := fakeapi.App{Namespace: "shop", Name: "large", Pods: 10_000, First: netip.MustParseAddr("10.1.0.0")}
			w := newBusy(t)
			w.local.Run(1, func(int) fakeapi.App { return large })
			w.serve()
			w.bounded(150<<20, func() {
				ticks := time.NewTicker(60 * time.Millisecond)
				defer ticks.Stop()
				var all []*attack.Client
				for range c.connections {
					all = append(all, w.raw())
				}
				for port := range c.ports {
					for i, client := range all {
						// A client that is refused, or cut off, is none the worse.
						_ = client.Get(fmt.Sprintf("large.shop.svc.cluster.local:%d", 1000+i*c.ports+port))
						<-ticks.C
					}
				}
				large := w.client(large.Authority(), large.Addrs()...)
				defer large.Stop()
				w.answers(large, 3)
			})
		})
	}
}

// A client that asks as fast as it can is refused; no other is. Its lookups wait for up to 2 s before: more workers ask
// than a connection may have lookups that wait.
func TestLookupFlood(t *testing.T) {
	const workers = 1_000
	w := newBusy(t)
	w.serve()
	w.bounded(50<<20, func() {
		ctx, cancel := context.WithCancel(t.Context())
		conn := w.dial()
		var asked, refused atomic.Int64
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for ctx.Err() == nil {
					asked.Add(1)
					if ask(ctx, conn, &pb.GetDestination{
						Scheme: "k8s",
						Path:   "nothing.shop.svc.cluster.local:80",
					}) == codes.ResourceExhausted {
						refused.Add(1)
					}
				}
			})
		}
		defer wg.Wait()
		defer cancel()
		w.eventually("the flood is refused", func(context.Context) error {
			if refused.Load() == 0 {
				return fmt.Errorf("%d lookups were not", asked.Load())
			}
			return nil
		})
		w.answered(50)
		t.Logf("%d lookups of the flood, %d of them refused", asked.Load(), refused.Load())
	})
}

// Connections over which nothing comes are cheap, and there are no more than may be.
func TestSilentConnections(t *testing.T) {
	const silence = 20 * time.Second // after which the server closes one
	t.Parallel()
	for _, c := range []struct {
		name               string
		connections, bound int
	}{
		{"as many as there may be", 3_000, 0},
		{"more than there may be", 3_000, 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newBusy(t)
			stay := c.connections
			var args []string
			if c.bound > 0 {
				stay = c.bound
				args = append(args, fmt.Sprintf("-max-connections=%d", c.bound))
			}
			w.serve(args...)
			w.bounded(stay*16<<10, func() {
				began, closed := time.Now(), 0
				for range c.connections {
					conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.server.Addr)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = conn.Close() })
					if _, err := conn.Read(make([]byte, 1)); err != nil { // settings come first
						closed++
					}
				}
				took := time.Since(began)
				w.answered(20)
				// Those that send nothing make room for as many others when their time is over.
				least := c.connections - stay*(1+int(took/silence))
				if closed < least || c.bound == 0 && closed > 0 {
					t.Errorf("within %s %d connections of %d were closed at once, want %d",
						took, closed, c.connections, least)
				}
			})
		})
	}
}

// Connections to the server of probes and metrics over which nothing comes make room for one another, and a scrape is
// answered beside them.
func TestSilentAdminConnections(t *testing.T) {
	const (
		connections, stay = 3_000, 1_000
		silence           = 10 * time.Second // after which the server closes one
	)
	w := newBusy(t)
	w.serve()
	w.bounded(stay*16<<10, func() {
		began := time.Now()
		for range connections {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.server.Admin)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
		took := time.Since(began)
		closed, err := w.server.Metric(t.Context(), `fingerpost_http_connections_closed_total{server="admin"}`)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d connections within %s, of which %v were closed", connections, took, closed)
		if least := connections - stay*(1+int(took/silence)); int(closed) < least {
			t.Errorf("%v connections were closed, want %d", closed, least)
		}
	})
}

// A server that is asked to stop does so, whatever clients keep open.
func TestStopBesideOpenStreams(t *testing.T) {
	const window = 500 * time.Millisecond
	w := newBusy(t)
	w.serve("-drain-window=" + window.String())
	conn := w.dial()
	health, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = health.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	w.raw().HalfOpen(10, 0)
	stalled := w.raw()
	for port := range 10 {
		if err := stalled.Get(fmt.Sprintf("web.shop.svc.cluster.local:%d", 1000+port)); err != nil {
			t.Fatal(err)
		}
	}
	w.honest.Stop()
	began := time.Now()
	if err := w.server.Terminate(); err != nil {
		t.Fatal(err)
	}
	<-w.server.Exited()
	took := time.Since(began)
	t.Logf("ended after %s", took.Round(time.Millisecond))
	if took > 5*(window+time.Second) {
		t.Errorf("the server has ended after %s, with %s for streams to end", took, window)
	}
}

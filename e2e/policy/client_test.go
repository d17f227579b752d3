package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	inbound "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/net"
	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
)

// A watch is an open stream of messages, each of which a proxy would take. V is what the proxy makes of one.
type watch[V any] struct {
	t    *testing.T
	what string

	mu      sync.Mutex
	all     []V
	changed chan struct{} // closed with the next message, or the end
	err     error         // why it has ended; io.EOF if well
}

// follow receives until the stream ends. A message that a proxy would refuse fails the test.
func follow[M, V any](
	t *testing.T, what string, open func(context.Context) (grpc.ServerStreamingClient[M], error),
	decode func(*M) (V, error),
) *watch[V] {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	stream, err := open(ctx)
	if err != nil {
		cancel()
		t.Fatalf("%s: %v", what, err)
	}

	w := &watch[V]{t: t, what: what, changed: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			message, err := stream.Recv()
			var value V
			if err == nil {
				if value, err = decode(message); err != nil {
					t.Errorf("%s: a proxy refuses %v: %v", what, message, err)
				}
			}
			if !w.add(value, err) {
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

func (w *watch[V]) add(value V, err error) (goesOn bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.all = append(w.all, value)
	}
	w.err = err
	close(w.changed)
	w.changed = make(chan struct{})
	return err == nil
}

func (w *watch[V]) load() (all []V, changed <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all, w.changed, w.err
}

// count returns how many messages there were; it fails the test if the stream has ended.
func (w *watch[V]) count() int {
	w.t.Helper()
	all, _, err := w.load()
	if err != nil {
		w.t.Fatalf("%s: the stream has ended: %v", w.what, err)
	}
	return len(all)
}

// until waits for a message, the newest one or one to come.
func (w *watch[V]) until(claimed time.Duration, what string, is func(V) error) {
	w.t.Helper()
	began := time.Now()
	timer := time.NewTimer(5 * claimed)
	defer timer.Stop()
	last := errors.New("there is no message")
	for {
		all, changed, err := w.load()
		if len(all) > 0 {
			if last = is(all[len(all)-1]); last == nil {
				w.t.Logf("%s: %s: %s (claimed: %s)", w.what, what, time.Since(began).Round(time.Millisecond), claimed)
				return
			}
		}
		if err != nil {
			w.t.Fatalf("%s: %s: the stream has ended: %v (%v)", w.what, what, err, last)
		}
		select {
		case <-changed:
		case <-timer.C:
			w.t.Fatalf("%s: %s: %v", w.what, what, last)
		}
	}
}

// outbound opens a stream of how clients of a namespace reach an address.
func (r *replica) outbound(namespace string, to netip.AddrPort) *watch[*policy.Client] {
	r.t.Helper()
	return follow(r.t, "outbound "+to.String(),
		func(ctx context.Context) (grpc.ServerStreamingClient[outbound.OutboundPolicy], error) {
			return outbound.NewOutboundPoliciesClient(r.conn).Watch(ctx, trafficSpec(namespace, to))
		}, policy.DecodeOutbound)
}

func trafficSpec(namespace string, to netip.AddrPort) *outbound.TrafficSpec {
	b := to.Addr().As4()
	v4 := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	return &outbound.TrafficSpec{
		SourceWorkload: namespace + ":client",
		Target: &outbound.TrafficSpec_Addr{Addr: &net.TcpAddress{
			Ip: &net.IPAddress{Ip: &net.IPAddress_Ipv4{Ipv4: v4}}, Port: uint32(to.Port()),
		}},
	}
}

// portOf names the port of the Pod of a shop.
func portOf(namespace string) *inbound.PortSpec {
	return &inbound.PortSpec{Workload: namespace + ":p", Port: 8080}
}

// inbound opens a stream of what the port of the Pod of a shop lets in.
func (r *replica) inbound(namespace string) *watch[*policy.Server] {
	r.t.Helper()
	return follow(r.t, "inbound",
		func(ctx context.Context) (grpc.ServerStreamingClient[inbound.Server], error) {
			return inbound.NewInboundServerPoliciesClient(r.conn).WatchPort(ctx, portOf(namespace))
		}, policy.DecodeInbound)
}

// ask calls both services once.
func (r *replica) ask(
	ctx context.Context, namespace string, to netip.AddrPort,
) (*policy.Client, *policy.Server, error) {
	client, err := outbound.NewOutboundPoliciesClient(r.conn).Get(ctx, trafficSpec(namespace, to))
	if err != nil {
		return nil, nil, err
	}
	server, err := inbound.NewInboundServerPoliciesClient(r.conn).GetPort(ctx, portOf(namespace))
	if err != nil {
		return nil, nil, err
	}
	decodedClient, errClient := policy.DecodeOutbound(client)
	decodedServer, errServer := policy.DecodeInbound(server)
	return decodedClient, decodedServer, errors.Join(errClient, errServer)
}

// address returns where a Service is.
func (s *site) address(t *testing.T, namespace, service string) netip.AddrPort {
	t.Helper()
	found, err := s.CoreV1().Services(namespace).Get(t.Context(), service, metav1.GetOptions{})
	do(t, err)
	addr, err := netip.ParseAddr(found.Spec.ClusterIP)
	do(t, err)
	return netip.AddrPortFrom(addr, uint16(found.Spec.Ports[0].Port))
}

// hasRoutes checks which routes HTTP requests have, as kind and name, sorted; "default http" if there are none.
func hasRoutes(want ...string) func(*policy.Client) error {
	return func(c *policy.Client) error {
		var have []string
		for _, route := range c.Routes(policy.Request{Authority: "web"}) {
			have = append(have, route.Metadata.Kind+" "+route.Metadata.Name)
		}
		slices.Sort(have)
		return sameTexts(have, want)
	}
}

// isServer checks which Server a port has, and who let clients in, as kind and name.
func isServer(want string, authorizations ...string) func(*policy.Server) error {
	return func(s *policy.Server) error {
		if have := s.Metadata.Kind + " " + s.Metadata.Name; have != want {
			return fmt.Errorf("the port has %q, want %q", have, want)
		}
		var have []string
		for _, a := range s.Authorizations {
			if a.Metadata.Name != "localhost" { // which proxies always let in
				have = append(have, a.Metadata.Kind+" "+a.Metadata.Name)
			}
		}
		return sameTexts(have, authorizations)
	}
}

func sameTexts(have, want []string) error {
	if h, w := strings.Join(have, ", "), strings.Join(want, ", "); h != w {
		return fmt.Errorf("there are %q, want %q", h, w)
	}
	return nil
}

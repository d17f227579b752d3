package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// streamsOfProxy is how many Services a proxy sends to.
const streamsOfProxy = 2

// A client is a model proxy: a connection to one replica, and a stream for each Service that it sends to.
type client struct {
	number  int
	replica *replica
	conn    *grpc.ClientConn
	streams []*stream
}

type stream struct {
	client *client
	app    int
	open   *proxy.Stream

	mu       sync.Mutex // guards all below
	held     map[netip.AddrPort]bool
	fed      bool // it was answered
	notFound bool // and ended so; not since it was answered
	last     string
}

// openClient opens a proxy. check is called with a stream whenever it holds something else, and before others are
// received.
func openClient(ctx context.Context, r *rand.Rand, number, apps int, to *replica,
	check func(*stream),
) (*client, error) {
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///replica-%d", to.number), grpc.WithContextDialer(to.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second,
			},
		}))
	if err != nil {
		return nil, err
	}
	c := &client{number: number, replica: to, conn: conn}
	for range streamsOfProxy {
		s := &stream{client: c, app: r.IntN(apps), held: map[netip.AddrPort]bool{}}
		s.open = proxy.Open(ctx, conn, proxy.Request{
			Authority: fakeapi.Authority(namespace, federatedName(s.app)), Reconnect: true,
		}, func(e proxy.Event) { s.observe(e, check) })
		c.streams = append(c.streams, s)
	}
	return c, nil
}

func (s *stream) observe(e proxy.Event, check func(*stream)) {
	s.mu.Lock()
	if e.End != nil {
		s.notFound = e.End.Code() == codes.NotFound
		s.last = "end " + e.End.String()
		s.mu.Unlock()
		return
	}
	s.notFound = false
	switch m := e.Message; m.Type {
	case proxy.Heartbeat:
		s.mu.Unlock()
		return
	case proxy.NoEndpoints:
		clear(s.held)
	case proxy.Remove:
		for _, a := range m.Removed {
			delete(s.held, a)
		}
	case proxy.Add:
		if m.Reset {
			clear(s.held)
		}
		for _, a := range m.Added {
			s.held[a.Addr] = true
		}
	}
	s.fed = true
	s.last = fmt.Sprintf("%s (first of the stream: %t, %d added, %d removed)", e.Message.Type, e.Message.Reset,
		len(e.Message.Added), len(e.Message.Removed))
	s.mu.Unlock()
	check(s)
}

// holds returns a copy of what the stream holds.
func (s *stream) holds() (held map[netip.AddrPort]bool, last string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.held), s.last
}

// differs returns how the stream differs from what it should hold; nothing if it does not.
func (s *stream) differs(want map[netip.AddrPort]bool, retired bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if retired && s.notFound { // a proxy that is refused keeps what it held
		return ""
	}
	if s.fed && !s.notFound && maps.Equal(want, s.held) {
		return ""
	}
	return fmt.Sprintf("%s: answered: %t, not found: %t, lacks %v, holds in vain %v; its last message: %s", s, s.fed,
		s.notFound, minus(want, s.held), minus(s.held, want), s.last)
}

func (s *stream) String() string {
	return fmt.Sprintf("proxy %d at replica %d for %s", s.client.number, s.client.replica.number, federatedName(s.app))
}

func minus(a, b map[netip.AddrPort]bool) (all []netip.AddrPort) {
	for addr := range a {
		if !b[addr] {
			all = append(all, addr)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

// close ends the proxy and returns what servers must not have sent it, and how many first messages came late.
func (c *client) close() (violations []error, late int) {
	for _, s := range c.streams {
		s.open.Close()
		err := s.open.Violations()
		if all, several := err.(interface{ Unwrap() []error }); several {
			for _, err := range all.Unwrap() {
				if errors.Is(err, proxy.ErrLate) {
					late++
				} else {
					violations = append(violations, fmt.Errorf("%s: %w", s, err))
				}
			}
		}
	}
	_ = c.conn.Close()
	return violations, late
}

package mesh

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// A Watch is a model proxy that follows one authority and remembers everything that it received, heartbeats left out.
type Watch struct {
	*proxy.Stream
	conn *grpc.ClientConn
	seen watch.Value[seen]
	mu   sync.Mutex // serialises what is added
}

// seen is what was observed of a stream. It is never changed, only replaced.
type seen struct {
	events   []proxy.Event // without heartbeats
	messages int           // with them
}

// Watch opens a stream at the server. It does not come back by itself when it ends.
func (m *Mesh) Watch(ctx context.Context, authority string) (*Watch, error) {
	return Open(ctx, m.Server.Addr, authority)
}

// Open opens a stream at a server, by its address. It does not come back by itself when it ends.
func Open(ctx context.Context, server, authority string) (*Watch, error) {
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	w := &Watch{conn: conn}
	w.Stream = proxy.Open(ctx, conn, proxy.Request{Authority: authority}, w.remember)
	return w, nil
}

func (w *Watch) remember(e proxy.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next, _ := w.seen.Load()
	if e.Message != nil {
		next.messages++
	}
	if e.Message == nil || e.Message.Type != proxy.Heartbeat {
		next.events = append(slices.Clip(next.events), e)
	}
	w.seen.Store(next)
}

// Close ends the stream.
func (w *Watch) Close() {
	w.Stream.Close()
	_ = w.conn.Close()
}

// Events returns what the proxy received so far, and a channel that closes when it receives more.
func (w *Watch) Events() ([]proxy.Event, <-chan struct{}) {
	now, more := w.seen.Load()
	return now.events, more
}

// Until waits until the proxy holds what done wants, and the events show how it came to it. It returns an
// error that names what it holds instead when ctx ends.
func (w *Watch) Until(ctx context.Context, what string, done func(*Watch) bool) error {
	for {
		now, more := w.seen.Load()
		if done(w) && w.Messages() == now.messages {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%s: the proxy holds %d addresses: %w\n%s", what, w.Len(), context.Cause(ctx),
				w.Transcript(0))
		}
	}
}

// Held returns the addresses that the proxy holds.
func (w *Watch) Held() []netip.AddrPort {
	var all []netip.AddrPort
	for _, a := range w.Holds() {
		all = append(all, a.Addr)
	}
	return all
}

// HoldsOf returns how many of the addresses are Pods of a site.
func HoldsOf(held []netip.AddrPort, site *Site) int {
	n := 0
	for _, a := range held {
		if site.PodCIDR().Contains(a.Addr()) {
			n++
		}
	}
	return n
}

// Transcript renders the events from number n on, one a line.
func (w *Watch) Transcript(n int) string {
	events, _ := w.Events()
	var b strings.Builder
	for _, e := range events[min(n, len(events)):] {
		fmt.Fprintln(&b, Line(e))
	}
	return b.String()
}

// Line renders one event.
func Line(e proxy.Event) string {
	at := e.At.Format("15:04:05.000")
	if e.End != nil {
		return fmt.Sprintf("%s end %s %s", at, e.End.Code(), e.End.Message())
	}
	switch m := e.Message; m.Type {
	case proxy.Add:
		var all []string
		for _, a := range m.Added {
			all = append(all, a.Addr.String())
		}
		return fmt.Sprintf("%s add %s", at, strings.Join(all, " "))
	case proxy.Remove:
		var all []string
		for _, a := range m.Removed {
			all = append(all, a.String())
		}
		return fmt.Sprintf("%s remove %s", at, strings.Join(all, " "))
	case proxy.NoEndpoints:
		return fmt.Sprintf("%s no endpoints (the service exists: %t)", at, m.Exists)
	default:
		return fmt.Sprintf("%s %s", at, m.Type)
	}
}

// Eventually waits until check succeeds, which is asked each 50 ms, and returns its last error when ctx ends.
func Eventually(ctx context.Context, check func(context.Context) error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
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
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), seen)
		}
	}
}

// Package honest holds a client that does nothing wrong, beside others that do: it asks for a Service again
// and again, and keeps one stream open, and notes what it should not have seen.
package honest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

const (
	pace     = 100 * time.Millisecond
	patience = 5 * proxy.InitialTimeout // five times that of a proxy: a deadline, not a measurement
)

// A Client asks for one Service.
type Client struct {
	authority string
	want      []netip.AddrPort
	conn      *grpc.ClientConn
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	mu     sync.Mutex // guards all below
	held   []netip.AddrPort
	times  []time.Duration
	failed int
	wrongs []error // of lookups that failed, and of the open stream
}

// Start starts a client that expects at least these addresses in each answer. It ends with Stop.
func Start(ctx context.Context, addr, authority string, want []netip.AddrPort) (*Client, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	c := &Client{authority: authority, want: want, conn: conn}
	ctx, c.cancel = context.WithCancel(ctx)
	c.wg.Go(func() { c.follow(ctx) })
	c.wg.Go(func() { c.ask(ctx) })
	return c, nil
}

// Stop ends the client. A second Stop does nothing.
func (c *Client) Stop() {
	c.cancel()
	c.wg.Wait()
	_ = c.conn.Close()
}

// follow keeps one stream open, which must not lose what it has held.
func (c *Client) follow(ctx context.Context) {
	fed := false
	err := c.get(ctx, func(_ proxy.MessageType, held []netip.AddrPort) bool {
		c.mu.Lock()
		c.held = held
		c.mu.Unlock()
		missing := c.missing(held)
		if fed && missing > 0 {
			c.wrong(fmt.Errorf("the open stream has lost %d of %d addresses", missing, len(c.want)))
		}
		fed = fed || missing == 0
		return true
	})
	if ctx.Err() == nil {
		c.wrong(fmt.Errorf("the open stream has ended: %w", err))
	}
}

// ask asks again and again.
func (c *Client) ask(ctx context.Context) {
	ticks := time.NewTicker(pace)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		took, err := c.lookup(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.wrong(fmt.Errorf("a lookup: %w", err))
			c.mu.Lock()
			c.failed++
			c.mu.Unlock()
		default:
			c.mu.Lock()
			c.times = append(c.times, took)
			c.mu.Unlock()
		}
	}
}

// lookup asks once, until the answer is complete, and returns when its first message came.
func (c *Client) lookup(ctx context.Context) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	var missing int
	complete := false
	err = c.get(ctx, func(kind proxy.MessageType, held []netip.AddrPort) bool {
		if took == 0 {
			took = time.Since(began)
		}
		missing = c.missing(held)
		complete = missing == 0
		return !complete && kind == proxy.Add // until the rest is added
	})
	switch {
	case err != nil:
		return took, fmt.Errorf("after %s: %w", time.Since(began).Round(time.Millisecond), err)
	case !complete:
		return took, fmt.Errorf("%d of %d addresses are missing", missing, len(c.want))
	}
	return took, nil
}

// get opens a stream and passes on what it holds after each message that is no heartbeat, until more returns false.
func (c *Client) get(ctx context.Context, more func(kind proxy.MessageType, held []netip.AddrPort) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewDestinationClient(c.conn).Get(ctx, &pb.GetDestination{Scheme: "k8s", Path: c.authority})
	if err != nil {
		return err
	}
	var fold proxy.Fold
	for {
		update, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = errors.New("the server has ended the stream with OK")
		}
		if err != nil {
			return err
		}
		m, err := fold.Apply(update)
		if err != nil {
			return err
		}
		var held []netip.AddrPort
		for _, a := range fold.Addresses() {
			held = append(held, a.Addr)
		}
		if m.Type != proxy.Heartbeat && !more(m.Type, held) {
			return nil
		}
	}
}

// missing returns how many addresses are not held, which are sorted.
func (c *Client) missing(held []netip.AddrPort) (n int) {
	for _, a := range c.want {
		if _, found := slices.BinarySearchFunc(held, a, netip.AddrPort.Compare); !found {
			n++
		}
	}
	return n
}

func (c *Client) wrong(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrongs = append(c.wrongs, err)
}

// Holds returns what the open stream holds, sorted.
func (c *Client) Holds() []netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// A Report is what a client has seen.
type Report struct {
	Lookups       int           // that were answered in full
	Failed        int           // that were refused or incomplete
	P50, P99, Max time.Duration // until the first message
	// What went wrong: lookups that were refused or incomplete, a stream that ended or lost an address.
	Err error
}

func (r Report) String() string {
	const digits = 10 * time.Microsecond
	return fmt.Sprintf("%d lookups and %d that failed, p50 %s, p99 %s, at most %s", r.Lookups, r.Failed,
		r.P50.Round(digits), r.P99.Round(digits), r.Max.Round(digits))
}

// Report returns what was seen since the last Report, or the start.
func (c *Client) Report() Report {
	c.mu.Lock()
	times, failed, wrongs, held := c.times, c.failed, c.wrongs, c.held
	c.times, c.failed, c.wrongs = nil, 0, nil
	c.mu.Unlock()
	slices.Sort(times)
	r := Report{Lookups: len(times), Failed: failed}
	if len(times) > 0 {
		r.P50, r.P99, r.Max = times[len(times)/2], times[len(times)*99/100], times[len(times)-1]
	}
	if missing := c.missing(held); missing > 0 {
		wrongs = append(wrongs, fmt.Errorf("the open stream lacks %d addresses of %d", missing, len(c.want)))
	}
	if more := len(wrongs) - 10; more > 0 {
		wrongs = append(wrongs[:10], fmt.Errorf("and %d more", more))
	}
	r.Err = errors.Join(wrongs...)
	return r
}

// Answered waits until n more lookups have ended, well or badly.
func (c *Client) Answered(ctx context.Context, n int) error {
	ended := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.times) + c.failed
	}
	ticks := time.NewTicker(pace)
	defer ticks.Stop()
	for until := ended() + n; ended() < until; {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", c.authority, context.Cause(ctx))
		}
	}
	return nil
}

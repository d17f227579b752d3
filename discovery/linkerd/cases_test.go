package linkerd

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// TestCases are the contract cases of section O that a scenario cannot express, because they are about a
// client that does not read.
func TestCases(t *testing.T) {
	t.Run("O01", testSendAfterTheEnd)
	t.Run("O02", testEndWhileSending)
	t.Run("O04", testSlowStreamSkips)
}

// O01: nothing can be sent on a stream that has ended. The transport returns an error to a sender, which does
// not try again.
func testSendAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, writer := streamtest.Local(map[federation.Service]*federation.View{
			streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("a", 1, 3)),
		})
		server := NewServer(logr.Discard(), transport(), store, Defaults())
		ctx, cancel := context.WithCancel(t.Context())
		reads, hangs := streamtest.NewSink(ctx), streamtest.NewSink(ctx)
		close(reads.Gate)
		ended := make(chan error, 3)
		for _, s := range []*streamtest.Sink{reads, hangs} {
			go func() { ended <- server.Get(&pb.GetDestination{Path: streamtest.Path}, s) }()
		}
		synctest.Wait()
		at := time.Now()
		cancel()
		synctest.Wait()
		writer.Set(streamtest.Web, streamtest.ViewOf(streamtest.SliceOf("a", 1, 4)))
		go func() { ended <- server.Get(&pb.GetDestination{Path: streamtest.Path}, hangs) }()
		for range 3 {
			if err := <-ended; status.Code(err) != codes.Canceled {
				t.Errorf("a stream ended with %v", err)
			}
		}
		if d := time.Since(at); d > 0 {
			t.Errorf("they have taken %s to end", d)
		}
		if n, m := len(reads.Sent()), len(hangs.Sent()); n != 1 || m != 0 {
			t.Errorf("%d and %d messages were sent, want 1 and 0", n, m)
		}
	})
}

// O02: a client that goes away while it is being sent something leaves nothing behind.
func testEndWhileSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20_000 // addresses: more than the transport takes for a client that does not read
		store, writer := streamtest.Local(map[federation.Service]*federation.View{
			streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("a", 1, n)),
		})
		server := NewServer(logr.Discard(), transport(), store, Defaults())
		listener := bufconn.Listen(1 << 16)
		grpcServer := grpc.NewServer(serving.Codec(), grpc.WaitForHandlers(true))
		pb.RegisterDestinationServer(grpcServer, server)
		var wg sync.WaitGroup
		wg.Go(func() { _ = grpcServer.Serve(listener) })
		conn, err := grpc.NewClient("passthrough:///fingerpost",
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(1<<16),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := pb.NewDestinationClient(conn).Get(ctx, &pb.GetDestination{Path: streamtest.Path}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i := range 5 {
			writer.Set(streamtest.Web, streamtest.ViewOf(streamtest.SliceOf("a", 2+i, n)))
			synctest.Wait()
		}
		if all := server.Streams(); len(all) != 1 || all[0].Messages != 1 {
			t.Errorf("%+v, want one stream that hangs in its second message", all)
		}
		at := time.Now()
		cancel()
		synctest.Wait()
		if left := len(server.Streams()); left != 0 || time.Since(at) > 0 {
			t.Errorf("%d streams are left after %s", left, time.Since(at))
		}
		writer.Set(streamtest.Web, streamtest.ViewOf(streamtest.SliceOf("a", 1, 1)))
		synctest.Wait()
		conn.Close()
		grpcServer.Stop()
		wg.Wait() // the bubble ends only if no goroutine is left in it
	})
}

// O04: a client that stops reading while 50 changes happen delays no other, is not cut off, and when it
// reads again gets one step to the newest state, not 50.
func testSlowStreamSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, writer := streamtest.Local(map[federation.Service]*federation.View{
			streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("a", 1, 3)),
		})
		server := NewServer(logr.Discard(), transport(), store, Defaults())
		ctx, cancel := context.WithCancel(t.Context())
		slow, fast := streamtest.NewSink(ctx), streamtest.NewSink(ctx)
		close(fast.Gate)
		var wg sync.WaitGroup
		for _, s := range []*streamtest.Sink{slow, fast} {
			wg.Go(func() {
				if err := server.Get(&pb.GetDestination{Path: streamtest.Path}, s); status.Code(err) != codes.Canceled {
					t.Errorf("the stream ended with %v", err)
				}
			})
		}
		synctest.Wait()
		for i := range 50 {
			writer.Set(streamtest.Web, streamtest.ViewOf(streamtest.SliceOf("a", 1, 3),
				streamtest.SliceOf("b", 2+i%3, 1+i%5)))
			synctest.Wait()
		}
		if n := len(fast.Sent()); n < 50 {
			t.Errorf("the fast client got %d messages, it must not wait for the slow one", n)
		}
		close(slow.Gate)
		synctest.Wait()
		if n := len(slow.Sent()); n != 2 { // the first answer, in which it hung, and the step to the newest
			t.Errorf("the slow client got %d messages", n)
		}
		if !slices.Equal(slow.Holds(), fast.Holds()) {
			t.Errorf("the slow client holds %v, the fast one %v", slow.Holds(), fast.Holds())
		}
		cancel()
		wg.Wait()
		for _, s := range []*streamtest.Sink{slow, fast} {
			for _, p := range s.Problems() {
				t.Error(p)
			}
		}
		if n := metric(t, server, "fingerpost_queries"); n != 0 {
			t.Errorf("%d questions are left", n)
		}
		if n := len(server.Streams()); n != 0 {
			t.Errorf("%d streams are left", n)
		}
	})
}

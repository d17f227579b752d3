package discovery

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// elapse lets time pass until everything that it brings about has happened.
func elapse(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a bubble it takes no time
	synctest.Wait()
}

// listen starts a gRPC server of one Service, web, with n addresses, over connections in memory, and returns how to
// connect a client. It ends with the test.
func listen(t *testing.T, n int, configure func(*serving.Config)) (client func() *grpc.ClientConn) {
	t.Helper()
	store, _ := streamtest.Local(map[federation.Service]*federation.View{
		streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("a", 1, n)),
	})
	config := serving.DefaultConfig()
	configure(&config)
	toy := newToy(store, config)
	server := grpc.NewServer(append(toy.server.Options(), grpc.WaitForHandlers(true))...)
	pb.RegisterDestinationServer(server, toy)
	listener := bufconn.Listen(1 << 16)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(toy.server.Listen(listener)) })
	t.Cleanup(func() {
		server.Stop()
		wg.Wait()
	})
	return func() *grpc.ClientConn {
		dial := func(context.Context, string) (net.Conn, error) { return listener.Dial() }
		conn, err := grpc.NewClient("passthrough:///fingerpost", grpc.WithContextDialer(dial),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

// New questions are paid for by their size: one client that asks for port after port cannot go on for
// long, and others are served.
func TestNewQuestionsCostMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst = 400
		client := listen(t, 10_000, func(c *serving.Config) { c.Admission.ConnectionBurst = burst })
		shares, asks := client(), client()
		stays, err := pb.NewDestinationClient(client()).Get(t.Context(), &pb.GetDestination{Path: streamtest.Path})
		if err == nil {
			_, err = stays.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		atOnce := func(conn *grpc.ClientConn, path func(i int) string) (n int) {
			for i := range 50 {
				began := time.Now()
				err := streamtest.GetOnce(t.Context(), conn, &pb.GetDestination{Path: path(i)})
				if err == nil && time.Since(began) == 0 {
					n++
				}
				synctest.Wait() // no stream has the query any more
			}
			return n
		}
		if n := atOnce(shares, func(int) string { return streamtest.Path }); n != 50 {
			t.Errorf("%d of 50 lookups of the same Service were admitted", n)
		}
		n := atOnce(asks, func(i int) string { return fmt.Sprintf("web.ns.svc.cluster.local:%d", 1000+i) })
		if n == 0 || n > burst/50+5 {
			t.Errorf("%d new questions for 10,000 addresses were admitted at once; the burst is %d", n, burst)
		}
		if n := atOnce(shares, func(int) string { return streamtest.Path }); n != 50 {
			t.Errorf("%d of 50 lookups of another client were admitted meanwhile", n)
		}
	})
}

package linkerd

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
)

// Whatever is longer than it can be is refused, and not repeated.
func TestNamesAreBounded(t *testing.T) {
	store, _ := streamtest.Local(map[federation.Service]*federation.View{
		streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("a", 1, 3)),
	})
	server := NewServer(logr.Discard(), transport(), store, Defaults())
	conn := connect(t, server)
	const maxRequest = 16 << 10 // of the Engine
	long := func(n int) string { return strings.Repeat("x", n) }
	for what, request := range map[string]*pb.GetDestination{
		"a Service":    {Path: long(64) + ".ns.svc.cluster.local"},
		"a namespace":  {Path: "web." + long(64) + ".svc.cluster.local"},
		"an instance":  {Path: long(64) + ".web.ns.svc.cluster.local"},
		"a host":       {Path: long(245) + ".ns.svc.cluster.local:80"},
		"a path":       {Path: long(10_000) + ".ns.svc.cluster.local:80"},
		"a domain":     {Path: "web.ns.svc." + long(10_000)},
		"a node":       {Path: streamtest.Path, ContextToken: `{"nodeName":"` + long(254) + `"}`},
		"a pod":        {Path: streamtest.Path, ContextToken: `{"pod":"` + long(254) + `"}`},
		"a client":     {Path: streamtest.Path, ContextToken: `{"ns":"` + long(10_000) + `"}`},
		"an old token": {Path: streamtest.Path, ContextToken: "ns:" + long(10_000)},
	} {
		for name, err := range map[string]error{
			"Get":        streamtest.GetOnce(t.Context(), conn, request),
			"GetProfile": profileOnce(t.Context(), conn, request),
		} {
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s that is too long: %s: %v", what, name, status.Code(err))
			}
			if message := status.Convert(err).Message(); len(message) > 300 {
				t.Errorf("%s that is too long: %s repeats it: %.300s", what, name, message)
			}
		}
	}
	for what, request := range map[string]*pb.GetDestination{
		"names": {Path: long(63) + "." + long(63) + "." + long(63) + ".svc.cluster.local:65535"},
		"token": {
			Path:         streamtest.Path,
			ContextToken: fmt.Sprintf(`{"ns":%q,"nodeName":%q,"pod":%q}`, long(63), long(253), long(253)),
		},
	} {
		if err := streamtest.GetOnce(t.Context(), conn, request); status.Code(err) == codes.InvalidArgument {
			t.Errorf("%s that are as long as can be: %v", what, err)
		}
	}
	if err := streamtest.GetOnce(t.Context(), conn,
		&pb.GetDestination{
			Path:         streamtest.Path,
			ContextToken: long(maxRequest),
		}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request that is too large: %v", err)
	}
	if n := metric(t, server, "fingerpost_queries"); n > 2 {
		t.Errorf("%d selections are kept", n)
	}
}

// connect serves over a connection in memory, and returns that of a client. It ends with the test.
func connect(t *testing.T, s *Server) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(append(s.Serving().Options(), grpc.WaitForHandlers(true))...)
	pb.RegisterDestinationServer(server, s)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///fingerpost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		wg.Wait()
	})
	return conn
}

func profileOnce(ctx context.Context, conn *grpc.ClientConn, request *pb.GetDestination) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewDestinationClient(conn).GetProfile(ctx, request)
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

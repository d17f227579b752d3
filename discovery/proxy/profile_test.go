package proxy_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers GetProfile by a function.
type server struct {
	pb.UnimplementedDestinationServer
	answer func(pb.Destination_GetProfileServer) error
}

func (s *server) GetProfile(_ *pb.GetDestination, to pb.Destination_GetProfileServer) error {
	return s.answer(to)
}

// lookUp lets a proxy look a profile up for a while, and returns what it has seen and what it holds against the server.
func lookUp(t *testing.T, d time.Duration, reconnect bool,
	answer func(pb.Destination_GetProfileServer) error,
) (seen []string, violations error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(1 << 16)
		grpcServer := grpc.NewServer()
		pb.RegisterDestinationServer(grpcServer, &server{answer: answer})
		go func() { _ = grpcServer.Serve(listener) }()
		conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
		if err != nil {
			t.Fatal(err)
		}
		s := proxy.OpenProfile(t.Context(), conn, proxy.Request{Authority: "web:80", Reconnect: reconnect},
			func(e proxy.Event) {
				switch {
				case e.End != nil:
					seen = append(seen, "end "+e.End.Code().String())
				case e.Profile.Heartbeat:
					seen = append(seen, "heartbeat")
				case e.Profile.Repeated:
					seen = append(seen, "repeated")
				default:
					seen = append(seen, e.Profile.GetFullyQualifiedName())
				}
			})
		time.Sleep(d) //nolint:forbidigo // virtual time
		synctest.Wait()
		s.Close()
		violations = s.Violations()
		conn.Close()
		grpcServer.Stop()
	})
	return seen, violations
}

func TestProfileStream(t *testing.T) {
	t.Parallel()
	named := func(name string) *pb.DestinationProfile { return &pb.DestinationProfile{FullyQualifiedName: name} }
	// sendEach sends Profiles, each after a wait, and leaves the stream open.
	sendEach := func(wait time.Duration,
		profiles ...*pb.DestinationProfile,
	) func(pb.Destination_GetProfileServer) error {
		return func(to pb.Destination_GetProfileServer) error {
			for _, p := range profiles {
				time.Sleep(wait) //nolint:forbidigo // virtual time
				if err := to.Send(p); err != nil {
					return err
				}
			}
			<-to.Context().Done()
			return nil
		}
	}
	end := func(code codes.Code) func(pb.Destination_GetProfileServer) error {
		return func(pb.Destination_GetProfileServer) error { return status.Error(code, "") }
	}
	endpoint := func(id *pb.TlsIdentity) *pb.DestinationProfile {
		return &pb.DestinationProfile{Endpoint: &pb.WeightedAddr{
			Addr:   &netpb.TcpAddress{Ip: &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: 1}}, Port: 80},
			Weight: 1, TlsIdentity: id,
		}}
	}
	uri := &pb.TlsIdentity{
		Strategy: &pb.TlsIdentity_UriLikeIdentity_{
			UriLikeIdentity: &pb.TlsIdentity_UriLikeIdentity{Uri: "spiffe://a/b"},
		},
	}
	named2 := &pb.TlsIdentity{Strategy: uri.GetStrategy(), ServerName: &pb.TlsIdentity_DnsLikeIdentity{Name: "b"}}
	for _, test := range []struct {
		name      string
		lasts     time.Duration
		reconnect bool
		answer    func(pb.Destination_GetProfileServer) error
		seen      string // the first of it
		violation string // none if empty
	}{
		{"the newest counts", time.Minute, false, sendEach(time.Second, named("a"), named("b")), "a b", ""},
		{
			"the same at once is a waste", time.Minute, false, sendEach(time.Second, named("a"), named("a")),
			"a repeated", "",
		},
		{
			"the same at once is no heartbeat either", 6 * time.Minute, false,
			sendEach(0, named("a"), named("a"), named("a")), "a repeated repeated", "no message for 5m0s",
		},
		{"heartbeats", 9 * time.Minute, false, func(to pb.Destination_GetProfileServer) error {
			for {
				if err := to.Send(named("a")); err != nil {
					return err
				}
				select {
				case <-time.Tick(4 * time.Minute):
				case <-to.Context().Done():
					return nil
				}
			}
		}, "a heartbeat heartbeat", ""},
		{"a late answer", time.Minute, false, sendEach(4*time.Second, named("a")), "a", "no message within 3s"},
		{"silence", 6 * time.Minute, false, sendEach(0, named("a")), "a", "no message for 5m0s"},
		{
			"a message that is too large", time.Minute, false,
			sendEach(0, named(strings.Repeat("a", proxy.MaxMessage))), "end ResourceExhausted",
			"a message that cannot be received",
		},
		{
			"a URI identity without a server name", time.Minute, false, sendEach(0, endpoint(uri)), "",
			"without a server name",
		},
		{"a URI identity with one", time.Minute, false, sendEach(0, endpoint(named2)), "", ""},
		{"a lookup that makes no sense", time.Minute, true, end(codes.InvalidArgument), "end InvalidArgument", ""},
		{"a lookup that is impossible", time.Minute, true, end(codes.FailedPrecondition), "end FailedPrecondition", ""},
		{"what is tried again", time.Second / 2, true, end(codes.NotFound), "end NotFound end NotFound", ""},
		{"an end that is none", time.Second / 2, true, end(codes.OK), "end OK end OK", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			seen, violations := lookUp(t, test.lasts, test.reconnect, test.answer)
			got := strings.Join(seen, " ")
			if ok := got == test.seen || test.reconnect && strings.HasPrefix(got, test.seen+" "); !ok {
				t.Errorf("it has seen %q, want %q", got, test.seen)
			}
			if !strings.Contains(fmt.Sprint(violations), test.violation) || test.violation == "" && violations != nil {
				t.Errorf("violations: %v, want %q", violations, test.violation)
			}
		})
	}
}

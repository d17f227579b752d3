package cli

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

// destination serves each stream by a function, which gets its number.
type destination struct {
	pb.UnimplementedDestinationServer
	streams atomic.Int32
	asked   func(path string) // may be nil
	get     func(n int32, stream grpc.ServerStreamingServer[pb.Update]) error
	profile func(n int32, stream grpc.ServerStreamingServer[pb.DestinationProfile]) error
}

func (d *destination) Get(asked *pb.GetDestination, stream grpc.ServerStreamingServer[pb.Update]) error {
	if d.asked != nil {
		d.asked(asked.GetPath())
	}
	return d.get(d.streams.Add(1), stream)
}

func (d *destination) GetProfile(
	_ *pb.GetDestination,
	stream grpc.ServerStreamingServer[pb.DestinationProfile],
) error {
	return d.profile(d.streams.Add(1), stream)
}

// serve returns the address, and how to stop.
func (d *destination) serve(t *testing.T, options ...grpc.ServerOption) (string, func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	pb.RegisterDestinationServer(server, d)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	stop := func() { server.Stop(); wg.Wait() }
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

func add(ip uint32, pod string) *pb.Update {
	return &pb.Update{Update: &pb.Update_Add{Add: &pb.WeightedAddrSet{Addrs: []*pb.WeightedAddr{{
		Addr:   &netpb.TcpAddress{Ip: &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: ip}}, Port: 80},
		Weight: 1, MetricLabels: map[string]string{"pod": pod},
	}}}}}
}

// A stream that ends before a message is an error.
func TestStreamWithoutMessage(t *testing.T) {
	d := &destination{get: func(int32, grpc.ServerStreamingServer[pb.Update]) error { return nil }}
	addr, _ := d.serve(t)
	out, err := fingerpost(t, "endpoints", "web.shop.svc.cluster.local", "--addr", addr)
	if err == nil || err.Error() != "the server ended the stream before it sent anything: try again" || out != "" {
		t.Errorf("%v\n%s", err, out)
	}
}

// Of a Service whose changes keep coming what the stream holds is printed.
func TestEndpointsThatKeepChanging(t *testing.T) {
	d := &destination{get: func(_ int32, stream grpc.ServerStreamingServer[pb.Update]) error {
		changes := time.NewTicker(quietPeriod / 10)
		defer changes.Stop()
		for {
			if err := stream.Send(add(1, "pod")); err != nil {
				return err
			}
			select {
			case <-changes.C:
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
	}}
	addr, _ := d.serve(t)
	out, err := fingerpost(t, "endpoints", "web.shop.svc.cluster.local", "--addr", addr, "--timeout", "1s")
	if err != nil || !strings.Contains(out, "0.0.0.1") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The server may end a stream at the --timeout before the command does: what the stream holds is printed nevertheless.
func TestServerNoticesTimeoutFirst(t *testing.T) {
	end := status.Error(codes.DeadlineExceeded, "RST_STREAM")
	d := &destination{
		get: func(n int32, stream grpc.ServerStreamingServer[pb.Update]) error {
			if n == 1 {
				_ = stream.Send(add(1, "pod"))
			}
			return end
		},
		profile: func(int32, grpc.ServerStreamingServer[pb.DestinationProfile]) error { return end },
	}
	addr, _ := d.serve(t)
	out, err := fingerpost(t, "endpoints", "web.shop.svc.cluster.local", "--addr", addr)
	if err != nil || !strings.Contains(out, "0.0.0.1") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, verb := range []string{"endpoints", "profile"} {
		out, err := fingerpost(t, verb, "web.shop.svc.cluster.local", "--addr", addr)
		if err == nil || !strings.Contains(err.Error(), "no message about web.shop.svc.cluster.local within ") {
			t.Errorf("%s without a message: %v\n%s", verb, err, out)
		}
	}
}

// A watch reports the ends of streams, and that the next one replaces all addresses.
func TestWatchEndpoints(t *testing.T) {
	d := &destination{get: func(n int32, stream grpc.ServerStreamingServer[pb.Update]) error {
		if err := stream.Send(add(uint32(n), "pod\x1b[31m")); err != nil || n == 1 {
			return err
		}
		if n == 2 {
			return status.Error(codes.Internal, "broken\x1b[31m")
		}
		<-stream.Context().Done()
		return nil
	}}
	addr, _ := d.serve(t)
	w := watch(t, "endpoints", "web.shop.svc.cluster.local", "--watch", "-o", "json", "--addr", addr)
	w.until(
		`"what":"add","reset":true,"added":[{"addr":"0.0.0.1:80"`,
		`"what":"add","reset":true,"added":[{"addr":"0.0.0.2:80"`,
		"0.0.0.3:80",
		"the stream has ended ",
		"the stream has ended: Internal: broken[31m ",
	)
	d.streams.Store(0)
	w = watch(t, "endpoints", "web.shop.svc.cluster.local", "--watch", "--addr", addr)
	w.until(
		"+ 0.0.0.1:80 - pod[31m",
		"these replace all addresses before",
		"+ 0.0.0.2:80",
		"+ 0.0.0.3:80",
		"the stream has ended: Internal: broken[31m ",
	)
	if before, _, _ := strings.Cut(w.seen.String(), "0.0.0.1"); strings.Contains(before, "replace") {
		t.Errorf("nothing was before:\n%s", w.seen.String())
	}
}

// If a replica is gone, the watch moves to another one.
func TestWatchMovesToAnotherReplica(t *testing.T) {
	stay := func(ip uint32) *destination {
		return &destination{
			get: func(_ int32, stream grpc.ServerStreamingServer[pb.Update]) error {
				if err := stream.Send(add(ip, "pod")); err != nil {
					return err
				}
				<-stream.Context().Done()
				return nil
			},
			profile: func(_ int32, stream grpc.ServerStreamingServer[pb.DestinationProfile]) error {
				if err := stream.Send(&pb.DestinationProfile{FullyQualifiedName: add(ip,
					"").GetAdd().String()}); err != nil {
					return err
				}
				<-stream.Context().Done()
				return nil
			},
		}
	}
	for _, verb := range []string{"endpoints", "profile"} {
		first, stop := stay(1).serve(t)
		second, _ := stay(2).serve(t)
		w := watch(t, verb, "web.shop.svc.cluster.local", "--watch", "-o", "json", "--addr", first+","+second)
		w.until("1")
		stop()
		w.until(
			"the stream has ended: Unavailable",
			map[string]string{"endpoints": "0.0.0.2:80", "profile": "ipv4:2"}[verb],
		)
	}
}

// An invalid authority ends the watch.
func TestWatchOfInvalidAuthority(t *testing.T) {
	d := &destination{get: func(int32, grpc.ServerStreamingServer[pb.Update]) error {
		return status.Error(codes.InvalidArgument, "Invalid authority: foo")
	}}
	addr, _ := d.serve(t)
	if _, err := fingerpost(t, "endpoints", "foo", "--watch", "--addr", addr); err == nil ||
		err.Error() != "Invalid authority: foo" {
		t.Error(err)
	}
}

// A server with TLS is read with TLS; without it the error names the flag.
func TestServerWithTLS(t *testing.T) {
	dir := t.TempDir()
	serverCert, serverKey := cmdtest.Certificate(t, "dst.test", 1)
	clientCert, clientKey := cmdtest.Certificate(t, "client.test", 2)
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string][]byte{
		"tls.crt": serverCert, "tls.key": serverKey,
		"client.crt": clientCert, "client.key": clientKey, "empty": nil,
	} {
		if err := os.WriteFile(path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(clientCert)
	pair, err := tls.X509KeyPair(serverCert, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	d := &destination{
		get: func(_ int32, stream grpc.ServerStreamingServer[pb.Update]) error { return stream.Send(add(1, "pod")) },
		profile: func(_ int32, stream grpc.ServerStreamingServer[pb.DestinationProfile]) error {
			return stream.Send(&pb.DestinationProfile{})
		},
	}
	addr, _ := d.serve(t, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: authorities, MinVersion: tls.VersionTLS12,
	})))
	known := []string{"--tls-ca-file", path("tls.crt"), "--tls-server-name", "dst.test"}
	shown := []string{"--tls-cert-file", path("client.crt"), "--tls-key-file", path("client.key")}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"both":      {append(known, shown...), ""},
		"plaintext": {nil, "(if the server has TLS, add --tls-ca-file)"},
		"no certificate": {
			known,
			"Unavailable: ",
		}, // in the server's own words, unless it has hung up before they are read
		"unknown authority": {append(shown, "--tls-server-name", "dst.test"), "unknown authority"},
		"another name":      {append(shown, known[:2]...), "certificate"},
		"no key":            {append(known, shown[:2]...), "--tls-cert-file, --tls-key-file: "},
		"no authorities":    {[]string{"--tls-ca-file", path("empty")}, "holds no certificate"},
		"no file":           {[]string{"--tls-ca-file", path("none")}, "--tls-ca-file: open"},
	} {
		for _, verb := range []string{"endpoints", "profile"} {
			out, err := fingerpost(
				t,
				append([]string{verb, "web.ns.svc.cluster.local", "--addr", addr}, c.args...)...)
			if c.want == "" && (err != nil || out == "") ||
				c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s, %s: %v\n%s", verb, name, err, out)
			}
		}
	}
}

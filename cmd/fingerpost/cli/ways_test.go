package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

const someService = "kubernetes.default.svc.cluster.local:443"

// listen accepts connections, which serve gets, and returns the address.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serve(conn)
			t.Cleanup(func() { conn.Close() })
		}
	})
	t.Cleanup(func() { listener.Close(); wg.Wait() })
	return listener.Addr().String()
}

// refusing returns an address at which nothing listens.
func refusing(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// ends serves streams that end with an error, or at once.
func ends(t *testing.T, err error) string {
	t.Helper()
	d := &destination{get: func(int32, grpc.ServerStreamingServer[pb.Update]) error { return err }}
	addr, _ := d.serve(t)
	return addr
}

// sends serves streams with one message each.
func sends(t *testing.T, message *pb.Update, options ...grpc.ServerOption) string {
	t.Helper()
	d := &destination{get: func(_ int32, stream grpc.ServerStreamingServer[pb.Update]) error {
		if message != nil {
			if err := stream.Send(message); err != nil {
				return err
			}
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}}
	addr, _ := d.serve(t, options...)
	return addr
}

func serverTLS(t *testing.T) grpc.ServerOption {
	t.Helper()
	certificate, key := cmdtest.Certificate(t, "dst.test", 1)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
	}))
}

func ask(t *testing.T, way Way, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return way.Ask(ctx, someService)
}

func onlyWay(t *testing.T, flags ReplicaFlags, opened ...Replica) Way {
	t.Helper()
	ways, err := flags.Ways(opened)
	if err != nil || len(ways) != 1 {
		t.Fatalf("%d ways: %v", len(ways), err)
	}
	return ways[0]
}

// Every first message is an answer, and so is that there is no such Service. An error names the step that fails.
func TestAsk(t *testing.T) {
	const short, long = 300 * time.Millisecond, 10 * time.Second
	none := &pb.Update{Update: &pb.Update_NoEndpoints{NoEndpoints: &pb.NoEndpoints{}}}
	heartbeat := &pb.Update{Update: &pb.Update_Add{Add: &pb.WeightedAddrSet{}}}
	for name, c := range map[string]struct {
		addr   string
		within time.Duration
		want   string
	}{
		"endpoints":       {sends(t, add(1, "pod")), long, ""},
		"no endpoints":    {sends(t, none), long, ""},
		"heartbeat":       {sends(t, heartbeat), long, ""},
		"no such Service": {ends(t, status.Error(codes.NotFound, "no such Service")), long, ""},
		"nothing listens": {refusing(t), long, "connecting to ADDR: connection refused"},
		"silent": {
			listen(t, func(net.Conn) {}), short,
			"ADDR accepts connections, and no gRPC server answers on them within 300ms",
		},
		"closes": {
			listen(t, func(conn net.Conn) { conn.Close() }), long, "the connection to ADDR was closed before an",
		},
		"no message": {sends(t, nil), short, "connected to ADDR, and no message within "},
		"no message, as the server notices first": {
			ends(t, status.Error(codes.DeadlineExceeded, "RST_STREAM")), long,
			"connected to ADDR, and no message within ",
		},
		"ends":    {ends(t, nil), long, "connected to ADDR, and the stream ended before a message"},
		"is full": {ends(t, status.Error(codes.ResourceExhausted, "full")), long, ""},
		"is no replica": {
			ends(t, status.Error(codes.Unimplemented, "what?")), long,
			"ADDR does not serve the stream: Unimplemented: what?",
		},
		"no such host": {"nosuch.invalid:8086", long, "ADDR does not serve the stream: Unavailable: "},
		"TLS":          {sends(t, none, serverTLS(t)), long, "the server has TLS: "},
	} {
		way := onlyWay(t, ReplicaFlags{serverAddrs: []string{c.addr}}, replicaAt("127.0.0.1:1"))
		err := ask(t, way, c.within)
		want := strings.ReplaceAll(c.want, "ADDR", c.addr)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
		if _, is := errors.AsType[NotTried](err); is != (name == "TLS") {
			t.Errorf("%s: not tried %t: %v", name, is, err)
		}
	}
}

// Beside the debug server of another port there may be any gRPC server; beside one that is on this host none, if only
// its port is forwarded.
func TestWaysBeside(t *testing.T) {
	for debug, c := range map[string]struct{ name, want string }{
		"127.0.0.1:9997": {
			"the replica of 127.0.0.1:9997", "the address of its gRPC server is not known: name it by --addr",
		},
		"127.0.0.1:9998": {"127.0.0.1:8086", ""},
		"localhost:9998": {"localhost:8086", ""},
		"[::1]:9998":     {"[::1]:8086", ""},
		"10.0.0.1:9998":  {"10.0.0.1:8086", ""},
	} {
		way := onlyWay(t, ReplicaFlags{}, replicaAt(debug))
		if way.Name != c.name || way.unknown != c.want || way.guessed != (c.want == "" && debug != "10.0.0.1:9998") {
			t.Errorf("%s: %+v", debug, way)
		}
	}

	server := replicaAt(refusing(t))
	err := ask(t, Way{open: server.itself, guessed: true}, time.Minute)
	if _, is := errors.AsType[NotTried](err); !is || !strings.Contains(err.Error(), "connection refused (if the gRPC") {
		t.Errorf("guessed: %v", err)
	}
	if _, err := (&ReplicaFlags{serverAddrs: []string{"a:b"}}).Ways(nil); ExitCode(err) != ExitUsage {
		t.Errorf("--addr a:b: %v", err)
	}
}

// A port of the Pod is forwarded, and inside of the cluster its own address is another way.
func TestWaysToPods(t *testing.T) {
	for name, c := range map[string]struct {
		target string
		within time.Duration
		want   string
	}{
		"answers": {sends(t, add(1, "pod")), 10 * time.Second, ""},
		"silent": {
			listen(t, func(net.Conn) {}), time.Second, "connecting to Pod linkerd/a, port 18086 timed out after ",
		},
	} {
		api := &apiServer{t: t, target: c.target, pods: []corev1.Pod{
			pod("a", podSelectors[1], true, "destination", "-addr=:18086"),
		}}
		api.pods[0].Status.PodIP = "10.0.0.7"
		server := httptest.NewServer(api)
		defer server.Close()

		flags := NewReplicaFlags("test")
		cmd := &cobra.Command{}
		flags.AddFlags(cmd)
		if err := cmd.ParseFlags([]string{"--kubeconfig", cmdtest.WriteKubeconfig(t, server.URL)}); err != nil {
			t.Fatal(err)
		}
		opened, err := flags.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer CloseAll(opened)
		way := onlyWay(t, flags, opened...)
		if err := ask(t, way, c.within); c.want == "" && err != nil ||
			c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if found, number, err := opened[0].GRPCPort(); err != nil || found.Name != "a" || number != 18086 {
			t.Errorf("%s: %v, port %d: %v", name, found, number, err)
		}

		host, port, _ := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
		t.Setenv("KUBERNETES_SERVICE_HOST", host)
		t.Setenv("KUBERNETES_SERVICE_PORT", port)
		opened[0].pods.config.Host = "https://" + net.JoinHostPort(host, port)
		ways, err := flags.Ways(opened)
		if err != nil || len(ways) != 2 || ways[1].Name != "a at 10.0.0.7:18086" {
			t.Errorf("%s: inside: %+v, %v", name, ways, err)
		}
	}
}

// An error of endpoints and of profile names the step that fails.
func TestStepThatFails(t *testing.T) {
	silent, none, refused := listen(t, func(net.Conn) {}), sends(t, nil), refusing(t)
	for addr, want := range map[string]string{
		silent:  silent + " accepts connections, and no gRPC server answers on them within 300ms",
		none:    "connected to " + none + ", and no message about web.shop.svc.cluster.local within 300ms: the",
		refused: "connecting to " + refused + ": connection refused",
	} {
		_, err := fingerpost(t, "endpoints", "web.shop.svc.cluster.local", "--addr", addr, "--timeout", "300ms")
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	_, err := fingerpost(t, "profile", "web.shop.svc.cluster.local", "--addr", silent, "--timeout", "300ms")
	if err == nil || !strings.HasPrefix(err.Error(), silent+" accepts connections") {
		t.Errorf("profile: %v", err)
	}
}

package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// AnswerTimeout is how long a Way may take to connect and to bring the first message.
const AnswerTimeout = 5 * time.Second

// A Way is how a client of the gRPC server of a replica reaches it.
type Way struct {
	Name string // of the replica, and the way if there are several

	open    func(ctx context.Context) Replica
	guessed bool   // what is reached may be no replica at all
	unknown string // why the way is not known; empty if it is
}

// NotTried is the error of a Way that cannot be tried from here: why.
type NotTried string

func (n NotTried) Error() string { return string(n) }

// AddServerFlag adds the flag of a command that reads debug servers and also opens streams to the gRPC servers.
func (r *ReplicaFlags) AddServerFlag(fs *pflag.FlagSet) {
	fs.StringSliceVar(&r.serverAddrs, grpcPort.flag, nil, "address of the gRPC server of a replica, or several "+
		"addresses; empty for the Pods that are found, or for port 8086 beside port 9998 of --debug-addr")
}

// Ways returns how the gRPC servers of replicas are reached: those of Pods by a forwarded port, and at their own
// address from inside of the cluster.
func (r *ReplicaFlags) Ways(opened []Replica) (all []Way, err error) {
	servers := *r
	servers.port, servers.addrs = grpcPort, r.serverAddrs
	given, err := servers.givenReplicas()
	if err != nil {
		return nil, err
	}
	for _, server := range given {
		all = append(all, Way{Name: server.Name, open: server.itself})
	}
	if len(given) > 0 {
		return all, nil
	}

	for _, replica := range opened {
		if replica.pod == nil {
			all = append(all, wayBeside(replica))
			continue
		}

		forward := func(ctx context.Context) Replica { return servers.forwardTo(ctx, replica.pods, replica.pod) }
		all = append(all, Way{Name: replica.Name + " through a forwarded port", open: forward})
		number, err := grpcPort.numberIn(replica.pod)
		if err == nil && replica.pods.areNear() {
			server := replicaAt(net.JoinHostPort(replica.pod.Status.PodIP, fmt.Sprint(number)))
			all = append(all, Way{Name: replica.Name + " at " + server.Addr, open: server.itself})
		}
	}
	return all, nil
}

// wayBeside returns the way to a gRPC server at the default port beside a debug server at its default port.
func wayBeside(replica Replica) Way {
	host, isDefault := strings.CutSuffix(replica.Addr, fmt.Sprintf(":%d", debugPort.number))
	if !isDefault {
		return Way{
			Name:    "the replica of " + replica.Name,
			unknown: "the address of its gRPC server is not known: name it by --" + grpcPort.flag,
		}
	}

	server := replicaAt(fmt.Sprintf("%s:%d", host, grpcPort.number))
	ip, _ := netip.ParseAddr(strings.Trim(host, "[]"))
	return Way{Name: server.Name, open: server.itself, guessed: ip.IsLoopback() || host == "localhost"}
}

// areNear reports whether this process runs in a Pod of the same cluster.
func (p readyPods) areNear() bool {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	return host != "" && p.config.Host == "https://"+net.JoinHostPort(host, port)
}

// itself opens a replica to which no port is to be forwarded.
func (r *Replica) itself(context.Context) Replica { return *r }

// GRPCPort returns the Pod of a replica, and the port of its gRPC server there. The Pod is nil if the replica was given
// by its address.
func (r *Replica) GRPCPort() (pod *corev1.Pod, number uint16, err error) {
	if r.pod == nil {
		return nil, 0, nil
	}
	number, err = grpcPort.numberIn(r.pod)
	return r.pod, number, err
}

// Ask asks for a Service as a proxy does, and waits for the first message. That there is no such Service is an answer,
// too, and so is that no more streams are admitted. The error names the step that fails; it is NotTried where that
// shows nothing about the replica.
func (w *Way) Ask(ctx context.Context, authority string) error {
	if w.unknown != "" {
		return NotTried(w.unknown)
	}

	server := w.open(ctx)
	if server.Err != nil {
		return server.Err
	}
	defer server.Close()
	err := server.askAsProxy(ctx, authority)
	if err != nil && w.guessed {
		return NotTried(err.Error() + " (if the gRPC server has another address, name it by --" + grpcPort.flag + ")")
	}
	return err
}

// askAsProxy is Ask, of a server that is open.
func (r *Replica) askAsProxy(ctx context.Context, authority string) error {
	ctx, cancel := context.WithTimeout(ctx, AnswerTimeout)
	defer cancel()
	conn, err := newServerConn(*r, insecure.NewCredentials())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.await(ctx); err != nil {
		return err
	}

	began, answered := time.Now(), false
	var end *status.Status

	reading, stop := context.WithCancel(ctx)
	defer stop()
	stream := proxy.Open(reading, conn, proxy.Request{Authority: authority}, func(e proxy.Event) {
		if e.End != nil {
			end = e.End
			return
		}
		answered = true
		stop()
	})
	<-stream.Done()

	switch {
	case answered:
		return nil
	case ctx.Err() != nil || end.Code() == codes.DeadlineExceeded: // which the server may notice before we do
		return fmt.Errorf("connected to %s, and no message within %s", r.target, waitOf(ctx, began))
	case end.Code() == codes.Unavailable && closedByPeer(end.Message()) && r.servesTLS(ctx):
		return NotTried("the server has TLS: open a stream with 'fingerpost endpoints --tls-ca-file'")
	}
	return conn.endError(end)
}

// endError returns what is wrong with a stream that ended before a message; nil if its end is an answer.
func (c *serverConn) endError(end *status.Status) error {
	unavailable := end.Code() == codes.Unavailable
	if err := c.dialError(); err != nil && unavailable {
		return err
	}

	answers := []codes.Code{codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition, codes.ResourceExhausted}
	switch code := end.Code(); {
	case slices.Contains(answers, code):
		return nil
	case code == codes.OK:
		return fmt.Errorf("connected to %s, and the stream ended before a message", c.to)
	case unavailable && closedByPeer(end.Message()):
		return fmt.Errorf("the connection to %s was closed before an answer: %s", c.to, end.Message())
	default:
		return fmt.Errorf("%s does not serve the stream: %s: %s", c.to, code, end.Message())
	}
}

// servesTLS reports whether the server begins TLS. Its certificate need not be one that is trusted here.
func (r *Replica) servesTLS(ctx context.Context) bool {
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", r.Addr)
	if err == nil {
		conn.Close()
		return true
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	return untrusted || alert
}

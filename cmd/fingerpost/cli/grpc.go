package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// A grpcCommand opens a stream of its own to the gRPC server of a replica, as a proxy does.
type grpcCommand struct {
	ReplicaFlags
	output, token             string
	debugAddrs                []string
	watch                     bool
	timeout                   time.Duration
	ca, cert, key, serverName string
}

func newGRPCCommand(version string) grpcCommand {
	return grpcCommand{ReplicaFlags: newReplicaFlags(version, grpcPort)}
}

func (g *grpcCommand) addGRPCFlags(cmd *cobra.Command) {
	g.addAuthorityFlags(cmd)
	addOutputFlag(cmd, &g.output)
	groupFlags(cmd.Flags(), g.addTLSFlags)
	fs := cmd.Flags()
	fs.StringVar(&g.token, "token", "",
		`context of the client, as its proxy sends it, such as {"ns":"shop","nodeName":"node-1"}`)
	fs.BoolVarP(&g.watch, "watch", "w", false, "print every change until interrupted")
	fs.DurationVar(&g.timeout, "timeout", 15*time.Second, "how long to wait for the response")
}

func (g *grpcCommand) addTLSFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&g.debugAddrs, debugPort.flag, nil, "address of the debug server of the same replica, which "+
		"has the clusters of addresses and the ports of Services; empty for port 9998 beside port 8086")
	fs.StringVar(&g.ca, "tls-ca-file", "",
		"authorities (PEM) of the certificate of a server with TLS; empty for those of this host")
	fs.StringVar(&g.cert, "tls-cert-file", "", "certificate chain (PEM) to present to a server with TLS")
	fs.StringVar(&g.key, "tls-key-file", "", "private key (PEM) of --tls-cert-file")
	fs.StringVar(&g.serverName, "tls-server-name", "",
		"name in the certificate of a server with TLS; empty for the host of its address")
}

// usesTLS reports whether there is any flag about TLS.
func (g *grpcCommand) usesTLS() bool { return g.ca+g.cert+g.key+g.serverName != "" }

func (g *grpcCommand) credentials() (credentials.TransportCredentials, error) {
	if !g.usesTLS() {
		return insecure.NewCredentials(), nil
	}

	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: g.serverName}
	if g.ca != "" {
		pem, err := os.ReadFile(g.ca)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca-file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-ca-file: %s holds no certificate", g.ca)
		}
	}

	if g.cert+g.key != "" {
		pair, err := tls.LoadX509KeyPair(g.cert, g.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file, --tls-key-file: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

// A replicaConn is a connection to the first replica that can be reached. With --watch a stream is opened again
// whenever it has ended, until the server rejects the request: to another replica, if this one is gone. The pauses
// are those of [proxy.Request.Reconnect].
//
// Until its stream is done, only the goroutine of that uses it.
type replicaConn struct {
	*serverConn
	g       *grpcCommand
	cmd     *cobra.Command
	replica Replica
	end     *status.Status // of the last stream; nil if none has ended
}

// openConn returns a connection, which is to be closed.
func (g *grpcCommand) openConn(cmd *cobra.Command) (*replicaConn, error) {
	c := &replicaConn{g: g, cmd: cmd}
	return c, c.connect(cmd.Context())
}

func (c *replicaConn) connect(ctx context.Context) error {
	creds, err := c.g.credentials()
	if err != nil {
		return err
	}
	replica, err := c.g.openFirst(ctx)
	if err != nil {
		return err
	}

	conn, err := newServerConn(replica, creds)
	if err != nil {
		replica.Close()
		return fmt.Errorf("--addr: %w", err)
	}
	c.Close()
	c.serverConn, c.replica = conn, replica
	return nil
}

// Close closes the connection, if there is one.
func (c *replicaConn) Close() {
	if c.serverConn != nil {
		c.serverConn.Close()
		c.replica.Close()
	}
}

// NewStream opens a stream, to another replica if the last stream has ended because this one is gone.
func (c *replicaConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if c.end.Code() == codes.Unavailable {
		if err := c.connect(ctx); err != nil && ctx.Err() == nil {
			printNote(c.cmd, err.Error())
		}
	}
	return c.ClientConn.NewStream(ctx, desc, method, options...)
}

// observeEnd takes in why a stream has ended. While streams are watched it prints that, unless the server rejects the
// request.
func (c *replicaConn) observeEnd(end *status.Status) {
	if end.Code() == codes.DeadlineExceeded && !c.g.watch {
		return // the --timeout, which the server may notice before we do
	}
	c.end = end
	rejected := end.Code() == codes.InvalidArgument || end.Code() == codes.FailedPrecondition
	switch {
	case !c.g.watch || rejected:
	case end.Code() == codes.OK:
		printNote(c.cmd, "the stream has ended")
	default:
		printNote(c.cmd, "the stream has ended: "+c.streamError(end).Error())
	}
}

// streamContext returns the context of a stream: it ends after --timeout, unless the stream is watched.
func (g *grpcCommand) streamContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if g.watch {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, g.timeout)
}

func printNote(cmd *cobra.Command, text string) {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s  %s\n", time.Now().Format(time.TimeOnly), Printable(text))
}

// noMessageError is the error of a stream that the server has taken and not answered.
func (c *replicaConn) noMessageError(authority string) error {
	return fmt.Errorf("connected to %s, and no message about %s within %s: the cluster of a member may not be synced "+
		"yet, see 'fingerpost clusters'", c.to, authority, c.g.timeout)
}

// streamError returns why a connection has failed, or else the server's message, with the code unless the message is
// about the request.
func (c *replicaConn) streamError(end *status.Status) error {
	text := end.Message()
	err := c.dialError()

	switch {
	case end.Code() == codes.Unavailable && err != nil:
		text = err.Error()
	case end.Code() == codes.OK:
		text = "the server ended the stream before it sent anything: try again"
	case end.Code() != codes.InvalidArgument:
		text = end.Code().String() + ": " + text
	}
	if end.Code() == codes.Unavailable && !c.g.usesTLS() && closedByPeer(text) {
		text += " (if the server has TLS, add --tls-ca-file)"
	}
	return WithExitCode(exitCodeOf(end.Code()), errors.New(text))
}

// exitCodeOf returns the exit code of a command whose stream ended before it was answered.
func exitCodeOf(end codes.Code) int {
	switch end {
	case codes.NotFound:
		return ExitNotFound
	case codes.InvalidArgument:
		return ExitUsage
	case codes.FailedPrecondition:
		return ExitNo
	default:
		return ExitFailed
	}
}

// closedByPeer reports whether a connection was closed before HTTP/2 began. A server with TLS closes it like
// that, and which error it is depends on who is faster.
func closedByPeer(text string) bool {
	signs := []string{"server preface", "EOF", "broken pipe", "reset by peer"}
	return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(text, sign) })
}

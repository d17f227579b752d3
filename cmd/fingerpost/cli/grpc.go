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

// Bounds on the pause before a stream is opened again. It doubles until a message arrives.
const (
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
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

// connect returns a connection to the first replica that can be reached, and a function that closes it.
func (g *grpcCommand) connect(ctx context.Context) (*grpc.ClientConn, func(), error) {
	creds, err := g.credentials()
	if err != nil {
		return nil, nil, err
	}
	server, err := g.openFirst(ctx)
	if err != nil {
		return nil, nil, err
	}
	conn, err := grpc.NewClient(server.Addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		server.Close()
		return nil, nil, fmt.Errorf("--addr: %w", err)
	}
	return conn, func() { conn.Close(); server.Close() }, nil
}

// A streamFunc runs a stream until it ends. It returns the status that the server ended it with, nil if we
// ended it, and whether a message arrived.
type streamFunc func(ctx context.Context, conn grpc.ClientConnInterface) (end *status.Status, received bool)

// keepOpen runs a stream again whenever it has ended, to another replica if this one is gone, until the
// server rejects the request.
func (g *grpcCommand) keepOpen(cmd *cobra.Command, run streamFunc) error {
	ctx := cmd.Context()
	conn, done, err := g.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { done() }()
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		end, received := run(ctx, conn)
		if ctx.Err() != nil || end == nil {
			return nil
		}
		switch end.Code() {
		case codes.OK:
			printNote(cmd, "the stream has ended")
		case codes.InvalidArgument, codes.FailedPrecondition:
			return g.streamError(end)
		default:
			printNote(cmd, "the stream has ended: "+g.streamError(end).Error())
		}
		if received {
			pause = minPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		if end.Code() != codes.Unavailable {
			continue
		}
		otherConn, otherDone, err := g.connect(ctx)
		switch {
		case err == nil:
			done()
			conn, done = otherConn, otherDone
		case ctx.Err() == nil:
			printNote(cmd, err.Error())
		}
	}
}

func printNote(cmd *cobra.Command, text string) {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s  %s\n", time.Now().Format(time.TimeOnly), Printable(text))
}

// streamError returns the server's message, with the code unless the message is about the request.
func (g *grpcCommand) streamError(end *status.Status) error {
	text := end.Message()
	switch {
	case end.Code() == codes.OK:
		text = "the server ended the stream before it sent anything: try again"
	case end.Code() != codes.InvalidArgument:
		text = end.Code().String() + ": " + text
	}
	if end.Code() == codes.Unavailable && !g.usesTLS() && closedByPeer(text) {
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

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
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Bounds on the pause before a stream is opened again. It doubles until something is said.
const (
	leastPause = 100 * time.Millisecond
	mostPause  = 10 * time.Second
)

// An asker is a command that opens a stream of its own to the gRPC server of any replica, as a proxy does.
type grpcCommand struct {
	ReplicaFlags
	output, token             string
	watch                     bool
	timeout                   time.Duration
	ca, cert, key, serverName string
}

func (a *grpcCommand) addFlags(cmd *cobra.Command) {
	a.ReplicaFlags.AddFlags(cmd)
	outputFlag(cmd, &a.output)
	fs := cmd.Flags()
	fs.StringVar(&a.token, "token", "", `what to say about the client, such as {"ns":"shop","nodeName":"node-1"}`)
	fs.BoolVarP(&a.watch, "watch", "w", false, "print every change until interrupted")
	fs.DurationVar(&a.timeout, "timeout", 15*time.Second, "how long to wait for the answer")
	fs.StringVar(&a.ca, "tls-ca-file", "", "authorities (PEM) that sign the certificate of a server that speaks TLS; empty for those of this host")
	fs.StringVar(&a.cert, "tls-cert-file", "", "certificate chain (PEM) to show to a server that speaks TLS")
	fs.StringVar(&a.key, "tls-key-file", "", "private key (PEM) of --tls-cert-file")
	fs.StringVar(&a.serverName, "tls-server-name", "", "name in the certificate of a server that speaks TLS; empty for the host of its address")
}

// speaksTLS reports whether anything was said about TLS.
func (a *grpcCommand) usesTLS() bool { return a.ca+a.cert+a.key+a.serverName != "" }

func (a *grpcCommand) credentials() (credentials.TransportCredentials, error) {
	if !a.usesTLS() {
		return insecure.NewCredentials(), nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.serverName}
	if a.ca != "" {
		pem, err := os.ReadFile(a.ca)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca-file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-ca-file: %s holds no certificate", a.ca)
		}
	}
	if a.cert+a.key != "" {
		pair, err := tls.LoadX509KeyPair(a.cert, a.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file, --tls-key-file: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

// connect returns a connection to any replica, and how to let go of it.
func (a *grpcCommand) connect(ctx context.Context) (*grpc.ClientConn, func(), error) {
	creds, err := a.credentials()
	if err != nil {
		return nil, nil, err
	}
	server, done, err := a.openFirst(ctx)
	if err != nil {
		return nil, nil, err
	}
	conn, err := grpc.NewClient(server.Addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("--addr: %w", err)
	}
	return conn, func() { conn.Close(); done() }, nil
}

// A stream runs until it ends, and returns how, nil if we ended it, and whether anything was said.
type streamFunc func(ctx context.Context, conn grpc.ClientConnInterface) (end *status.Status, said bool)

// follow runs a stream again and again, with another replica if the one is out of reach, until the server says that it makes no sense.
func (a *grpcCommand) keepOpen(cmd *cobra.Command, run streamFunc) error {
	ctx := cmd.Context()
	conn, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { done() }()
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		end, said := run(ctx, conn)
		if ctx.Err() != nil || end == nil {
			return nil
		}
		switch end.Code() {
		case codes.OK:
			a.printNote(cmd, "the stream has ended")
		case codes.InvalidArgument, codes.FailedPrecondition:
			return a.streamError(end)
		default:
			a.printNote(cmd, "the stream has ended: "+a.streamError(end).Error())
		}
		if said {
			pause = leastPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		if end.Code() == codes.Unavailable {
			again, let, err := a.connect(ctx)
			if err == nil {
				done()
				conn, done = again, let
			} else if ctx.Err() == nil {
				a.printNote(cmd, err.Error())
			}
		}
	}
}

func (a *grpcCommand) printNote(cmd *cobra.Command, what string) {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s  %s\n", time.Now().Format(time.TimeOnly), Printable(what))
}

// endError is the server's own words, with the code where they do not say it all.
func (a *grpcCommand) streamError(end *status.Status) error {
	text := end.Message()
	switch {
	case end.Code() == codes.OK:
		text = "the server ended the stream without an answer: ask again"
	case end.Code() != codes.InvalidArgument:
		text = end.Code().String() + ": " + text
	}
	// What a server that speaks TLS does with us depends on who is quicker.
	hungUp := slices.ContainsFunc([]string{"server preface", "EOF", "broken pipe", "reset by peer"}, func(s string) bool { return strings.Contains(text, s) })
	if end.Code() == codes.Unavailable && hungUp && !a.usesTLS() {
		text += " (if the server speaks TLS, say --tls-ca-file)"
	}
	return errors.New(text)
}

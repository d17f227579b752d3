package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

// TestTLS serves without a sidecar: clients with ALPN and, like linkerd2-proxy, without; clients without a
// certificate are refused; a new certificate and new authorities are used without a restart.
func TestTLS(t *testing.T) {
	write := writeTo(t, t.TempDir())
	serverCert, serverKey := cmdtest.Certificate(t, "dst.test", 1)
	clientCert, clientKey := cmdtest.Certificate(t, "client.test", 2)
	files := TLSFiles{write("tls.crt", serverCert), write("tls.key", serverKey), write("ca.crt", clientCert)}
	addr, _, stop := startGRPCWith(t, watched(t, logr.Discard(), files), nil)

	config := func(authority, cert, key []byte) *tls.Config {
		c := &tls.Config{ServerName: "dst.test", RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
		c.RootCAs.AppendCertsFromPEM(authority)
		if cert != nil {
			pair, err := tls.X509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{pair}
		}
		return c
	}
	ask := func(options ...grpc.DialOption) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		conn, err := grpc.NewClient("passthrough:///"+addr, options...)
		if err != nil {
			return err
		}
		defer conn.Close()
		get, err := pb.NewDestinationClient(conn).
			Get(ctx, &pb.GetDestination{Path: "web.ns.svc.cluster.local"}, grpc.WaitForReady(false))
		if err != nil {
			return err
		}
		_, err = get.Recv()
		return err
	}
	with := func(c *tls.Config) grpc.DialOption { return grpc.WithTransportCredentials(credentials.NewTLS(c)) }
	listens(t, addr)

	if err := ask(with(config(serverCert, clientCert, clientKey))); err != nil {
		t.Errorf("a client with a certificate: %v", err)
	}
	noALPN := grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return (&tls.Dialer{Config: config(serverCert, clientCert, clientKey)}).DialContext(ctx, "tcp", addr)
	})
	if err := ask(noALPN, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Errorf("a client without ALPN: %v", err)
	}
	if err := ask(grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Errorf("a client without TLS on the loopback interface: %v", err)
	}
	otherCert, otherKey := cmdtest.Certificate(t, "client.test", 3)
	for what, c := range map[string]*tls.Config{
		"no certificate": config(serverCert, nil, nil),
		"a stranger's":   config(serverCert, otherCert, otherKey),
	} {
		if err := ask(with(c)); err == nil {
			t.Errorf("a client with %s was let in", what)
		}
	}

	newCert, newKey := cmdtest.Certificate(t, "dst.test", 4)
	write("tls.key", newKey)
	write("tls.crt", newCert)
	write("ca.crt", otherCert)
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for err := errors.New("not asked yet"); err != nil; err = ask(with(config(newCert, otherCert, otherKey))) {
		if deadline.Err() != nil {
			t.Fatalf("the new files are not used: %v", err)
		}
	}
	if err := ask(with(config(newCert, clientCert, clientKey))); err == nil {
		t.Error("a client of the old authority was let in")
	}
	write("ca.crt", []byte("junk"))
	if err := ask(with(config(newCert, otherCert, otherKey))); err != nil {
		t.Errorf("with authorities that cannot be read: %v; those of before go on", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// fromOutside is a connection, and the listener that accepts it, between addresses that are not loopback, or one of
// which is not.
type fromOutside struct {
	net.Conn
	local, remote string
}

func (c fromOutside) Accept() (net.Conn, error) { return c, nil }
func (c fromOutside) Addr() net.Addr            { return c.LocalAddr() }
func (c fromOutside) LocalAddr() net.Addr       { return &net.TCPAddr{IP: net.ParseIP(c.local)} }
func (c fromOutside) RemoteAddr() net.Addr      { return &net.TCPAddr{IP: net.ParseIP(c.remote)} }

// Plaintext is for the loopback interface only, and is read there from its first byte on.
func TestPlaintextIsRefusedFromOutside(t *testing.T) {
	certificate, key := cmdtest.Certificate(t, "dst.test", 1)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for _, c := range []struct {
		local, remote string
		taken         bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"::1", "::1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"10.0.0.1", "10.0.0.1", false},
		{"10.0.0.1", "127.0.0.1", false},
	} {
		client, server := net.Pipe()
		l := &tlsListener{fromOutside{server, c.local, c.remote}, &tls.Config{Certificates: []tls.Certificate{pair}}}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = client.Write([]byte(preface))
			_, _ = io.Copy(io.Discard, client) // an alert
		}()
		read := make([]byte, len(preface))
		_, err = io.ReadFull(accepted, read)
		if c.taken != (err == nil && string(read) == preface) {
			t.Errorf("%+v: %q %v", c, read, err)
		}
		accepted.Close()
		client.Close()
		<-ended
	}
}

// listens waits until a server listens.
func listens(t *testing.T, addr string) {
	t.Helper()
	for {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		if err == nil {
			conn.Close()
			return
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

// watched returns a certificate in files that are read again when they change, until the test ends.
func watched(t *testing.T, log logr.Logger, files TLSFiles) *Certificate {
	t.Helper()
	c, err := OpenCertificate(log, "test", files)
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return c
}

func TestTLSFilesThatCannotBeRead(t *testing.T) {
	cert, key := cmdtest.Certificate(t, "dst.test", 5)
	write := writeTo(t, t.TempDir())
	good, junk := TLSFiles{write("tls.crt", cert), write("tls.key", key), ""}, write("junk", []byte("junk"))
	for want, files := range map[string]TLSFiles{
		"certificate " + junk:     {junk, good.Key, ""},
		"key /nowhere":            {good.Certificate, "/nowhere", ""},
		"authorities of clients ": {good.Certificate, good.Key, junk},
	} {
		_, err := OpenCertificate(logr.Discard(), "test", files)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// writeTo returns what replaces a file in a directory, and returns its path.
func writeTo(t *testing.T, dir string) func(name string, content []byte) string {
	t.Helper()
	return func(name string, content []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

// A pair that cannot be read leaves the one before in use, and is reported; a new one is presented to new connections,
// and those that are open go on.
func TestCertificateIsReplaced(t *testing.T) {
	write := writeTo(t, t.TempDir())
	old, oldKey := cmdtest.Certificate(t, "dst.test", 1)
	reports := make(chan string, 1000)
	log := funcr.New(func(_, line string) { reports <- line }, funcr.Options{})
	c := watched(t, log, TLSFiles{Certificate: write("tls.crt", old), Key: write("tls.key", oldKey)})
	reported := func(texts ...string) {
		t.Helper()
		for {
			select {
			case line := <-reports:
				if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
					return
				}
			case <-t.Context().Done():
				t.Fatalf("no line with %q", texts)
			}
		}
	}

	served := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok")
	}))
	served.TLS = c.ServerConfig(tls.VersionTLS13)
	served.StartTLS()
	defer served.Close()
	newClient := func() *http.Client {
		transport := &http.Transport{TLSClientConfig: &tls.Config{ServerName: "dst.test", InsecureSkipVerify: true}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	serial := func(client *http.Client) (serial int64) {
		t.Helper()
		answer, err := client.Get(served.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "ok" {
			t.Errorf("%q %v", body, err)
		}
		return answer.TLS.PeerCertificates[0].SerialNumber.Int64()
	}

	first := newClient()
	if n := serial(first); n != 1 {
		t.Errorf("presented %d", n)
	}
	reported("Certificate is in use", `"server"="test"`, `"serial"="1"`)

	write("tls.crt", []byte("junk"))
	reported("Certificate cannot be read: the previous one stays in use", "failed to find any PEM data")
	if n := serial(newClient()); n != 1 {
		t.Errorf("presented %d after a file that cannot be read", n)
	}

	next, nextKey := cmdtest.Certificate(t, "dst.test", 2)
	write("tls.key", nextKey)
	write("tls.crt", next)
	reported("Certificate is in use", `"server"="test"`, `"serial"="2"`)
	if n := serial(newClient()); n != 2 {
		t.Errorf("presented %d after the new one", n)
	}
	if n := serial(first); n != 1 {
		t.Error("the first connection was closed")
	}
	const help = "When the certificate of a server expires, in seconds since 1970; 0 before the first."
	if err := testutil.CollectAndCompare(c.Metrics()[0], strings.NewReader(`
# HELP fingerpost_certificate_expiry_timestamp_seconds `+help+`
# TYPE fingerpost_certificate_expiry_timestamp_seconds gauge
fingerpost_certificate_expiry_timestamp_seconds{server="test"} 4e+09
`)); err != nil {
		t.Error(err)
	}
}

// Replicas that ask each other present certificates on both sides, of one authority; new files count for new
// connections.
func TestMutualTLS(t *testing.T) {
	write := writeTo(t, t.TempDir())
	cert, key := cmdtest.Certificate(t, "peer.test", 1)
	open := func(files TLSFiles) *Certificate {
		t.Helper()
		c, err := OpenCertificate(logr.Discard(), "test", files)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	peer := open(TLSFiles{write("tls.crt", cert), write("tls.key", key), write("ca.crt", cert)})
	strange, strangeKey := cmdtest.Certificate(t, "peer.test", 2)
	stranger := open(TLSFiles{write("other.crt", strange), write("other.key", strangeKey), write("other-ca.crt", cert)})

	served := httptest.NewUnstartedServer(http.NotFoundHandler())
	served.TLS = peer.ServerConfig(tls.VersionTLS13)
	served.Config.ErrorLog = log.New(io.Discard, "", 0)
	served.StartTLS()
	defer served.Close()
	ask := func(c *Certificate, name string) error {
		config, err := c.ClientConfig(name)
		if err != nil {
			return err
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, served.URL, http.NoBody)
		if err != nil {
			return err
		}
		response, err := transport.RoundTrip(request)
		if err == nil {
			response.Body.Close()
		}
		return err
	}

	if err := ask(peer, "peer.test"); err != nil {
		t.Errorf("a peer: %v", err)
	}
	if ask(peer, "other.test") == nil || ask(stranger, "peer.test") == nil {
		t.Error("a server of another name, or a client of another authority, is accepted")
	}
	without := open(TLSFiles{Certificate: write("tls.crt", cert), Key: write("tls.key", key)})
	if ask(without, "peer.test") == nil {
		t.Error("a server is accepted without authorities")
	}

	write("tls.crt", strange)
	write("tls.key", strangeKey)
	write("ca.crt", strange)
	peer.reload(t.Context())
	if err := ask(peer, "peer.test"); err != nil {
		t.Errorf("a peer with new files: %v", err)
	}
	write("ca.crt", []byte("junk"))
	peer.reload(t.Context())
	if err := ask(peer, "peer.test"); err != nil {
		t.Errorf("with authorities that cannot be read: %v; those of before go on", err)
	}
}

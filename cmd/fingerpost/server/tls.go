package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// TLSFiles are the files with which a server terminates TLS itself, without a proxy beside it. It reads them
// again when they change.
type TLSFiles struct {
	Certificate string // certificate chain (PEM); empty to serve plaintext
	Key         string // its private key (PEM)
	ClientCA    string // authorities (PEM) of clients' certificates; empty to ask for none
}

// Validate reports files that do not go together.
func (f *TLSFiles) Validate() error {
	switch {
	case (f.Certificate == "") != (f.Key == ""):
		return errors.New("-tls-cert-file and -tls-key-file go together: one of them is not set")
	case f.ClientCA != "" && f.Certificate == "":
		return errors.New("-tls-client-ca-file needs -tls-cert-file and -tls-key-file")
	}
	return nil
}

// wrap returns a listener that terminates TLS, or the same one if there are no files. It registers the metric
// of when the certificate expires. wg waits for the goroutine that watches the files until ctx ends.
//
// These are not gRPC's own transport credentials: those refuse clients that offer no ALPN, such as
// linkerd2-proxy.
func (f *TLSFiles) wrap(
	ctx context.Context, wg *sync.WaitGroup, log logr.Logger, metrics prometheus.Registerer, listener net.Listener,
) (net.Listener, error) {
	if f.Certificate == "" {
		return listener, nil
	}

	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	if f.ClientCA != "" {
		authorities := &clientAuthorities{file: f.ClientCA, log: log}
		if err := authorities.reload(); err != nil {
			return nil, fmt.Errorf("-tls-client-ca-file: %w", err)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
		config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := config.Clone()
			c.GetConfigForClient, c.ClientCAs = nil, authorities.currentPool()
			return c, nil
		}
	}

	certificate, err := certwatcher.New(f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("-tls-cert-file, -tls-key-file: %w", err)
	}

	config.GetCertificate = certificate.GetCertificate
	metrics.MustRegister(CertificateExpiry(
		"fingerpost_certificate_expiry_timestamp_seconds",
		"When the certificate of the gRPC server expires, in seconds since 1970.",
		certificate,
	))

	wg.Go(func() {
		if err := certificate.Start(ctx); err != nil {
			log.Error(err, "Certificate cannot be watched: a new one needs a restart", "file", f.Certificate)
		}
	})
	return &tlsListener{listener, config}, nil
}

// A tlsListener terminates TLS. Over the loopback interface a client may send plaintext as well: that is
// another container of the Pod, or 'kubectl port-forward', by which Linkerd's CLI reads a control plane.
// Neither gains anything by it: the debug server has more, and asks for no certificate on that interface.
type tlsListener struct {
	net.Listener
	config *tls.Config
}

// Accept returns the next connection. It waits for no byte of it.
func (l *tlsListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if isLoopback(conn.LocalAddr()) && isLoopback(conn.RemoteAddr()) {
		return &loopbackConn{Conn: conn, config: l.config}, nil
	}
	return tls.Server(conn, l.config), nil
}

func isLoopback(addr net.Addr) bool {
	tcp, is := addr.(*net.TCPAddr)
	return is && tcp.IP.IsLoopback()
}

// A loopbackConn has TLS or not, as its first byte shows, which clients send first in both cases. Deadlines
// are those of the connection below.
type loopbackConn struct {
	net.Conn
	config *tls.Config

	once  sync.Once
	inner net.Conn // after once
	err   error
}

// opened returns the connection to read and write, once the first byte has arrived.
func (c *loopbackConn) opened() (net.Conn, error) {
	const handshake = 22 // content type of a ClientHello (RFC 8446, 5.1); no HTTP/2 preface begins with it
	c.once.Do(func() {
		first := make([]byte, 1)
		if _, c.err = io.ReadFull(c.Conn, first); c.err != nil {
			return
		}
		c.inner = &rereadConn{c.Conn, io.MultiReader(bytes.NewReader(first), c.Conn)}
		if first[0] == handshake {
			c.inner = tls.Server(c.inner, c.config)
		}
	})
	return c.inner, c.err
}

// Read reads what the client has sent.
func (c *loopbackConn) Read(into []byte) (int, error) {
	inner, err := c.opened()
	if err != nil {
		return 0, err
	}
	return inner.Read(into)
}

// Write sends to the client, once it has sent something.
func (c *loopbackConn) Write(b []byte) (int, error) {
	inner, err := c.opened()
	if err != nil {
		return 0, err
	}
	return inner.Write(b)
}

// A rereadConn is a connection whose first bytes were read, and are read again.
type rereadConn struct {
	net.Conn
	reader io.Reader // those bytes, then the connection
}

func (c *rereadConn) Read(into []byte) (int, error) { return c.reader.Read(into) }

// Mutual returns the TLS settings of a client that presents the certificate, and accepts a server of a name whose
// certificate is of an authority of clients. It reads the files, as they are now.
func (f *TLSFiles) Mutual(serverName string) (*tls.Config, error) {
	certificate, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, err
	}

	authorities := clientAuthorities{file: f.ClientCA}
	if err := authorities.reload(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: serverName,
		Certificates: []tls.Certificate{certificate}, RootCAs: authorities.pool,
		ClientCAs: authorities.pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}, nil
}

// MutualServer returns the settings of the server of such clients. It reads the files for each connection.
func (f *TLSFiles) MutualServer() *tls.Config {
	read := func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.Mutual("") }
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: read}
}

// CertificateExpiry returns the metric of when a watched certificate expires.
func CertificateExpiry(name, help string, certificate *certwatcher.CertWatcher) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		c, _ := certificate.GetCertificate(nil) // never fails: New has read one
		return float64(c.Leaf.NotAfter.Unix())
	})
}

// clientAuthorities is a file of certificates that may be replaced at any time.
type clientAuthorities struct {
	file string
	log  logr.Logger

	mu      sync.Mutex
	modTime time.Time // of the file that pool was read from
	pool    *x509.CertPool
}

// currentPool returns the authorities in the file. While the file cannot be read, those read before stay.
func (a *clientAuthorities) currentPool() *x509.CertPool {
	if err := a.reload(); err != nil {
		a.log.Error(err, "Authorities of clients cannot be read; the previous ones stay in use", "file", a.file)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pool
}

// reload reads the file if it has changed.
func (a *clientAuthorities) reload() error {
	info, err := os.Stat(a.file)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()

	if info.ModTime().Equal(a.modTime) {
		return nil
	}
	pem, err := os.ReadFile(a.file)
	if err != nil {
		return err
	}

	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no certificate", a.file)
	}
	a.modTime, a.pool = info.ModTime(), pool
	return nil
}

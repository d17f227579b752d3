package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/identity"
)

// TLSFiles are the files with which a server terminates TLS itself, without a proxy beside it.
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

// A Certificate is one that may be replaced at any time, as every server of this process presents it: in files, or
// issued to this process. While there is no newer one, the one before stays in use, and the log has the reason.
// Connections stay as they are.
type Certificate struct {
	log         logr.Logger
	server      string
	pair        pair
	authorities *reread[x509.CertPool] // nil if clients are not asked for certificates
	clients     tls.ClientAuthType     // if there are authorities
	missing     fedwatch.Value[string] // why there is none that counts now; empty: there is one
}

// A pair is a certificate with its key. One goroutine renews it; the rest is for all.
type pair interface {
	load() *tls.Certificate // nil before the first

	// renew replaces it if that is due, for those who trust authorities, which are nil before they are known.
	renew(ctx context.Context, authorities *x509.CertPool) (changed bool, err error)

	source() string    // for people: a file, or who issues it
	complaint() string // what the log has when it was not replaced
	isNews(err error) bool
	unreadable() string
}

// rereadInterval is how often files are compared with what was read of them. A kubelet takes about a minute to replace
// those of a Secret. Unlike events of a file system it needs no inotify instance, of which a node has few.
const rereadInterval = time.Second

// OpenCertificate reads files, which must be valid now. server is who presents the certificate, for the log and for
// metrics.
func OpenCertificate(log logr.Logger, server string, files TLSFiles) (*Certificate, error) {
	certificate := newCertificate(log, server, &filePair{
		reread[tls.Certificate]{paths: []string{files.Certificate, files.Key}, parse: parsePair},
	})
	if err := certificate.renew(context.Background()); err != nil {
		return nil, fmt.Errorf("certificate %s and key %s: %w", files.Certificate, files.Key, err)
	}

	if files.ClientCA != "" {
		certificate.clients = tls.RequireAndVerifyClientCert
		certificate.authorities = &reread[x509.CertPool]{paths: []string{files.ClientCA}, parse: parseAuthorities}
		if _, err := certificate.authorities.read(); err != nil {
			return nil, fmt.Errorf("authorities of clients %s: %w", files.ClientCA, err)
		}
	}
	return certificate, nil
}

func newCertificate(log logr.Logger, server string, of pair) *Certificate {
	return &Certificate{log: log.WithValues("server", server), server: server, pair: of}
}

// Start renews the certificate when that is due, and reads files again when they change, until ctx ends.
func (c *Certificate) Start(ctx context.Context) error {
	c.reload(ctx)
	reloadUntilDone(ctx, func() { c.reload(ctx) })
	return nil
}

// reloadUntilDone has files read again each rereadInterval, until ctx ends.
func reloadUntilDone(ctx context.Context, reload func()) {
	ticker := time.NewTicker(rereadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			reload()
		}
	}
}

// reload does what is due, and reports what fails, once for each reason.
func (c *Certificate) reload(ctx context.Context) {
	if c.authorities != nil {
		if _, err := c.authorities.read(); c.authorities.isNews(err) {
			c.log.Error(err, "Authorities of clients cannot be read: the previous ones stay in use",
				"file", c.authorities.paths[0])
		}
	}

	err := c.renew(ctx)
	isReported := errors.Is(err, identity.ErrNoIssuer) // by what reads the issuer, with the reason
	if isNews := c.pair.isNews(err); isNews && !isReported && ctx.Err() == nil {
		c.log.Error(err, c.pair.complaint(), "from", c.pair.source())
	}
	c.setMissing(err)
}

// renew replaces the certificate if that is due.
func (c *Certificate) renew(ctx context.Context) error {
	changed, err := c.pair.renew(ctx, c.trusted())
	if changed {
		now := c.pair.load().Leaf
		c.log.Info("Certificate is in use", "from", c.pair.source(), "names", now.DNSNames,
			"serial", now.SerialNumber.String(), "notAfter", now.NotAfter)
	}
	return err
}

// trusted returns the authorities of clients; nil before they are known, and if clients are not asked.
func (c *Certificate) trusted() *x509.CertPool {
	if c.authorities == nil {
		return nil
	}
	return c.authorities.value.Load()
}

// setMissing stores whether there is a certificate that counts now.
func (c *Certificate) setMissing(err error) {
	missing := ""
	switch now := c.pair.load(); {
	case now == nil && err != nil:
		missing = err.Error()
	case now == nil:
		missing = notYetIssued
	case time.Now().After(now.Leaf.NotAfter):
		missing = "it has ended at " + now.Leaf.NotAfter.Format(time.RFC3339)
	}
	if before, _ := c.missing.Load(); before != missing {
		c.missing.Store(missing)
	}
}

// notYetIssued is why there is no certificate at first.
const notYetIssued = "it was not issued yet"

// Conditions returns what a process of servers that present the certificate waits for: that it was issued one which has
// not ended. One in files is there from the start, and whether it ends is up to who replaces it.
func (c *Certificate) Conditions() []Condition {
	if _, is := c.pair.(*issuedPair); !is {
		return nil
	}
	return []Condition{Lasting("certificate of "+c.server, &c.missing)}
}

// A filePair is one in files.
type filePair struct{ reread[tls.Certificate] }

func (p *filePair) load() *tls.Certificate { return p.value.Load() }
func (p *filePair) source() string         { return p.paths[0] }
func (p *filePair) complaint() string {
	return "Certificate cannot be read: the previous one stays in use"
}

func (p *filePair) renew(context.Context, *x509.CertPool) (changed bool, err error) { return p.read() }

func parsePair(contents [][]byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	return &pair, err
}

func parseAuthorities(contents [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(contents[0]) {
		return nil, errors.New("the file holds no certificate")
	}
	return pool, nil
}

// Unreadable returns why files could not be read when that was tried last, by their paths. What was read before is in
// use. A nil Certificate has no files.
func (c *Certificate) Unreadable() map[string]string {
	all := map[string]string{}
	if c == nil {
		return all
	}

	if problem := c.pair.unreadable(); problem != "" {
		all[c.pair.source()] = problem
	}
	if c.authorities != nil {
		if problem := c.authorities.unreadable(); problem != "" {
			all[c.authorities.paths[0]] = problem
		}
	}
	return all
}

// Metrics returns the metrics of when the certificate expires, and of files that cannot be read.
func (c *Certificate) Metrics() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "fingerpost_certificate_expiry_timestamp_seconds",
			Help:        "When the certificate of a server expires, in seconds since 1970; 0 before the first.",
			ConstLabels: prometheus.Labels{"server": c.server},
		}, func() float64 {
			if now := c.pair.load(); now != nil {
				return float64(now.Leaf.NotAfter.Unix())
			}
			return 0
		}),
		unreadableFiles(c.server, c.Unreadable),
	}
}

// unreadableFiles returns the metric of how many files cannot be read.
func unreadableFiles(of string, unreadable func() map[string]string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "fingerpost_certificate_files_unreadable",
		Help:        "Files of a server's certificate or authorities whose newest content cannot be used.",
		ConstLabels: prometheus.Labels{"server": of},
	}, func() float64 { return float64(len(unreadable())) })
}

// errNoCertificate is returned while none was issued.
var errNoCertificate = errors.New("this process has no certificate yet")

// present returns the newest certificate.
func (c *Certificate) present(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if now := c.pair.load(); now != nil {
		return now, nil
	}
	return nil, errNoCertificate
}

// ServerConfig returns the settings of a server of a TLS version and newer ones. It asks clients for certificates if
// there are authorities of clients. While those are not known, none counts.
func (c *Certificate) ServerConfig(minVersion uint16, protocols ...string) *tls.Config {
	config := &tls.Config{MinVersion: minVersion, NextProtos: protocols, GetCertificate: c.present}
	if c.authorities != nil {
		config.ClientAuth = c.clients
		config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			current := config.Clone()
			current.GetConfigForClient, current.ClientCAs = nil, cmp.Or(c.trusted(), x509.NewCertPool())
			return current, nil
		}
	}
	return config
}

// ClientConfig returns the settings of a client that presents the certificate, and accepts a server of a name whose
// certificate is of an authority of clients. Where certificates are issued, every replica has one of the same name, and
// that counts. The settings are those of now: a new connection needs new ones.
func (c *Certificate) ClientConfig(serverName string) (*tls.Config, error) {
	now, err := c.present(nil)
	if err != nil {
		return nil, err
	}
	if _, is := c.pair.(*issuedPair); is {
		serverName = now.Leaf.DNSNames[0]
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: serverName,
		Certificates: []tls.Certificate{*now}, RootCAs: cmp.Or(c.trusted(), x509.NewCertPool()),
	}, nil
}

// A tlsListener terminates TLS, in the place of gRPC's own transport credentials: those refuse clients that offer no
// ALPN, such as linkerd2-proxy. Over the loopback interface a client may send plaintext as well: that is
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

// A reread is a value made of files that are read again and again. One goroutine reads them; value is for all.
type reread[T any] struct {
	paths []string
	parse func(contents [][]byte) (*T, error)
	value atomic.Pointer[T]

	contents [][]byte // of which value was made
	news
}

// read makes the value anew if a file has changed. After an error it stays as it is.
func (r *reread[T]) read() (changed bool, err error) {
	contents := make([][]byte, len(r.paths))
	for i, path := range r.paths {
		if contents[i], err = readFile(path); err != nil {
			return false, err
		}
	}
	if r.contents != nil && slices.EqualFunc(contents, r.contents, bytes.Equal) {
		return false, nil
	}

	value, err := r.parse(contents)
	if err != nil {
		return false, err
	}
	r.contents = contents
	r.value.Store(value)
	return true, nil
}

// maxReadAgain bounds a file that is read again and again, in bytes. Certificates and values have some kilobytes.
const maxReadAgain = 1 << 20

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()

	content, err := io.ReadAll(io.LimitReader(file, maxReadAgain+1))
	if err == nil && len(content) > maxReadAgain {
		err = fmt.Errorf("%s has more than %d bytes", path, maxReadAgain)
	}
	return content, err
}

// news is the last error of something that is tried again and again.
type news struct {
	problem atomic.Value // string; empty for none
}

// isNews reports whether an error is another one than that of the last time.
func (n *news) isNews(err error) bool {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	before, _ := n.problem.Swap(problem).(string)
	return err != nil && problem != before
}

// unreadable returns why it failed last; empty if it did not.
func (n *news) unreadable() string {
	problem, _ := n.problem.Load().(string)
	return problem
}

package apitest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"
)

// Cut is how a cluster is cut off.
type Cut int

// The ways in which a cluster is reached, or is not.
const (
	None    Cut = iota // everything passes
	Refuse             // connections are refused, and those that were open are reset
	Silence            // connections stay open, or are accepted; what is written waits until the cut ends
)

// A Network connects clients with the API servers of clusters.
type Network struct {
	mu      sync.Mutex
	paths   map[string]*Path // by host:port
	serving sync.WaitGroup
}

// NewNetwork returns a network without servers.
func NewNetwork() *Network { return &Network{paths: map[string]*Path{}} }

// Server returns the API server of a cluster, and starts it if it is new.
func (n *Network) Server(cluster string) *Server {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.server(cluster)
}

func (n *Network) server(cluster string) *Server {
	host := cluster + ".test"
	if p, found := n.paths[host+port]; found {
		return p.server
	}
	s := newServer(cluster, host)
	n.serve(s.path)
	return s
}

// Path returns a path to the API server of a cluster by its name, as through a proxy in front of it; "" names the
// server's own, and others are made when they are first asked for.
func (n *Network) Path(cluster, name string) *Path {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.server(cluster)
	if name == "" {
		return s.path
	}

	addr := name + "." + s.path.addr
	if p, found := n.paths[addr]; found {
		return p
	}
	p := newPath(s, addr)
	n.serve(p)
	return p
}

func (n *Network) serve(p *Path) {
	n.paths[p.addr] = p
	n.serving.Go(func() {
		config := &tls.Config{GetConfigForClient: p.server.tlsConfig}
		_ = p.server.http.Serve(tls.NewListener(listener{p}, config))
	})
}

// Dial opens a connection to an API server by its host and port.
func (n *Network) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return n.DialAs("")(ctx, network, addr)
}

// DialAs returns a function like Dial for a client with a name, which servers pass to what Audit has set.
func (n *Network) DialAs(client string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		n.mu.Lock()
		p := n.paths[addr]
		n.mu.Unlock()
		if p == nil {
			return nil, fmt.Errorf("dial %s: no such host", addr)
		}
		return p.dial(ctx, client)
	}
}

// Close stops all servers and waits for them.
func (n *Network) Close() {
	n.mu.Lock()
	for _, p := range n.paths {
		p.Cut(None)
		_ = listener{p}.Close()
		_ = p.server.http.Close()
	}
	clear(n.paths) // a dial function may be kept for longer
	n.mu.Unlock()
	n.serving.Wait()
}

const port = ":6443"

// A Path leads to an API server by an address of its own, and can be cut off without others.
type Path struct {
	server *Server
	addr   string // host:port

	mu      sync.Mutex
	cut     Cut
	opened  chan struct{} // closed once the cut ends
	conns   map[*conn]bool
	accept  chan net.Conn
	closed  chan struct{}
	closing sync.Once
}

func newPath(server *Server, addr string) *Path {
	return &Path{
		server: server, addr: addr,
		opened: closedChannel(),
		conns:  map[*conn]bool{},
		accept: make(chan net.Conn),
		closed: make(chan struct{}),
	}
}

func closedChannel() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Cut cuts the path off, or connects it again.
func (p *Path) Cut(how Cut) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.cut == how {
		return
	}
	if p.cut == Silence {
		close(p.opened)
	}
	p.cut = how
	if how == Silence {
		p.opened = make(chan struct{})
	}

	if how == Refuse {
		for c := range p.conns {
			c.Conn.Close()
		}
	}
}

// Addr returns the host and port that Dial takes.
func (p *Path) Addr() string { return p.addr }

func (p *Path) dial(ctx context.Context, name string) (net.Conn, error) {
	p.mu.Lock()
	cut := p.cut
	p.mu.Unlock()

	if cut == Refuse {
		return nil, fmt.Errorf("dial %s: connection refused", p.addr)
	}

	client, server := pipe()
	server.client = name
	var err error
	select {
	case p.accept <- server:
	case <-p.closed:
		err = fmt.Errorf("dial %s: connection refused", p.addr)
	case <-ctx.Done():
		err = ctx.Err()
	}

	if err != nil {
		return nil, errors.Join(err, client.Close(), server.Close())
	}
	c := &conn{Conn: client, path: p, done: make(chan struct{})}
	p.mu.Lock()
	p.conns[c] = true
	p.mu.Unlock()
	return c, nil
}

// pipe returns the two ends of a connection that holds what was written until it is read, as a network
// does.
func pipe() (a, b *bufferedConn) {
	client, server := net.Pipe()
	return newBuffered(client), newBuffered(server)
}

// bufferedConn is an end of a pipe whose Write does not wait for the reader. What was written before Close
// still arrives.
type bufferedConn struct {
	net.Conn
	client string // at the other end
	mu     sync.Mutex
	change sync.Cond // of what follows
	held   []byte    // written, and not passed on
	closed bool
}

// clientAddr is the name of a client as an address.
type clientAddr string

func (clientAddr) Network() string  { return "pipe" }
func (a clientAddr) String() string { return string(a) }

// RemoteAddr returns the name of the client.
func (b *bufferedConn) RemoteAddr() net.Addr { return clientAddr(b.client) }

func newBuffered(c net.Conn) *bufferedConn {
	b := &bufferedConn{Conn: c}
	b.change.L = &b.mu
	go b.passOn()
	return b
}

// passOn writes what is held, until Close and nothing is left, or the other end is closed.
func (b *bufferedConn) passOn() {
	b.mu.Lock()
	defer b.mu.Unlock()

	for {
		for len(b.held) == 0 && !b.closed {
			b.change.Wait()
		}
		data := b.held
		b.held = nil
		if len(data) == 0 {
			break
		}
		b.mu.Unlock()

		_, err := b.Conn.Write(data)
		b.mu.Lock()
		if err != nil {
			b.closed = true
			break
		}
	}
	_ = b.Conn.Close()
}

func (b *bufferedConn) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, net.ErrClosed
	}
	b.held = append(b.held, data...)
	b.change.Signal()
	return len(data), nil
}

func (b *bufferedConn) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.change.Signal()
	return b.SetReadDeadline(time.Unix(1, 0))
}

// conn is the client's end of a connection. A write never waits, as it does not where a kernel buffers it:
// the transport of net/http closes connections, which writes, with a lock held that stops virtual time for
// those who wait for it.
type conn struct {
	net.Conn
	path *Path
	done chan struct{}
	once sync.Once

	mu      sync.Mutex
	pending [][]byte // written while the path was silent
}

// opened returns a channel that is closed while the path is open.
func (c *conn) opened() <-chan struct{} {
	c.path.mu.Lock()
	defer c.path.mu.Unlock()
	return c.path.opened
}

// Read hands out what has arrived once the path is open.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.opened():
		return n, err
	case <-c.done:
		return 0, net.ErrClosed
	}
}

// Write sends, or has the bytes wait for the path to open. What still waits when the connection is closed
// is lost.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	opened := c.opened()
	select {
	case <-c.done:
		return 0, net.ErrClosed
	case <-opened:
		if len(c.pending) == 0 {
			return c.Conn.Write(b)
		}
	default:
	}

	c.pending = append(c.pending, bytes.Clone(b))
	if len(c.pending) == 1 {
		go c.flush(opened)
	}
	return len(b), nil
}

// flush sends what waits, in order, once the path is open.
func (c *conn) flush(opened <-chan struct{}) {
	select {
	case <-opened:
	case <-c.done:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, b := range c.pending {
		if _, err := c.Conn.Write(b); err != nil {
			break // the connection is closed, which its reader notices
		}
	}
	c.pending = nil
}

// Close closes both ends.
func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.done)
		c.path.mu.Lock()
		delete(c.path.conns, c)
		c.path.mu.Unlock()
	})
	return c.Conn.Close()
}

// listener accepts the connections of a path.
type listener struct{ *Path }

func (l listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close stops listening.
func (l listener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return nil
}

// Addr is of no use.
func (l listener) Addr() net.Addr { return &net.TCPAddr{} }

func (s *Server) tlsConfig(*tls.ClientHelloInfo) (*tls.Config, error) {
	config := &tls.Config{Certificates: []tls.Certificate{s.certificate}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.multiplexes {
		config.NextProtos = []string{"h2"}
	}
	return config, nil
}

// Cut cuts the server's own path off, or connects it again.
func (s *Server) Cut(how Cut) { s.path.Cut(how) }

// Addr returns the host and port that Dial takes.
func (s *Server) Addr() string { return s.path.addr }

// Kubeconfig returns credentials for the cluster as JSON on one line.
func (s *Server) Kubeconfig(token string) string { return s.path.Kubeconfig(token) }

// Kubeconfig returns credentials for the cluster, over this path, as JSON on one line.
func (p *Path) Kubeconfig(token string) string {
	b, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{
			"name":    "c",
			"cluster": map[string]any{"server": "https://" + p.addr, "certificate-authority-data": p.server.authority},
		}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
	})
	if err != nil {
		panic(err)
	}

	return string(b)
}

// selfSigned returns a certificate for host and what is below it, and itself as PEM to trust.
func selfSigned(host string) (tls.Certificate, []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host, "*." + host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}

	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
)

// egressSelector has the API server reach Services, nodes and Pods through a socket, as it would through konnectivity.
const egressSelector = `
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}
`

// services is the network of Services, as the API server sees it: there are no nodes that would route them.
type services struct {
	server http.Server
	wg     sync.WaitGroup // of the server, and of connections

	mu      sync.Mutex
	routes  map[string][]string
	joined  map[net.Conn]struct{}
	stopped bool
}

// Route has the API server find a Service, by its address and port, at addresses of this machine, which are tried in
// sequence. It takes Options.Services.
func (c *Cluster) Route(service string, addrs ...string) error {
	if c.routed == nil {
		return fmt.Errorf("route %s in cluster %q: it has no network of Services", service, c.name)
	}
	c.routed.mu.Lock()
	defer c.routed.mu.Unlock()
	c.routed.routes[service] = addrs
	return nil
}

// serveServices listens at a socket.
func serveServices(socket string) (*services, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	s := &services{routes: map[string][]string{}, joined: map[net.Conn]struct{}{}}
	s.server.Handler = http.HandlerFunc(s.connect)
	s.wg.Go(func() { _ = s.server.Serve(listener) })
	return s, nil
}

// connect joins a connection with one to where it is to lead. What is no Service is where its address is.
func (s *services) connect(w http.ResponseWriter, r *http.Request) {
	to, err := s.dial(r.Context(), r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	from, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil || !s.keep(from, to) {
		_ = to.Close()
		return
	}
	defer s.wg.Done()

	_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
	var both sync.WaitGroup
	pipe := func(to io.WriteCloser, from io.Reader) {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}
	both.Go(func() { pipe(to, buffered) })
	both.Go(func() { pipe(from, to) })
	both.Wait()
	s.mu.Lock()
	delete(s.joined, from)
	delete(s.joined, to)
	s.mu.Unlock()
}

// keep counts two connections among those that shut ends, unless it has ended all.
func (s *services) keep(from, to net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		_ = from.Close()
		return false
	}
	s.joined[from], s.joined[to] = struct{}{}, struct{}{}
	s.wg.Add(1)
	return true
}

func (s *services) dial(ctx context.Context, addr string) (net.Conn, error) {
	s.mu.Lock()
	addrs, isService := s.routes[addr]
	s.mu.Unlock()
	if !isService {
		addrs = []string{addr}
	}

	var errs error
	for _, at := range addrs {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", at)
		if err == nil {
			return conn, nil
		}
		errs = errors.Join(errs, err)
	}
	return nil, fmt.Errorf("%s: %w", addr, errs)
}

// shut ends all connections, and returns when no goroutine is left.
func (s *services) shut() {
	_ = s.server.Close()
	s.mu.Lock()
	s.stopped = true
	for conn := range s.joined {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

package serving

import (
	"net"
	"sync"
)

// Listen returns a listener that passes on as many connections as may be open, and closes what is more
// at once: before TLS, and before gRPC spends a goroutine and buffers on it.
func (s *Server) Listen(l net.Listener) net.Listener { return &listener{l, s.admission} }

type listener struct {
	net.Listener
	admission *admission
}

// Accept waits for the next connection that there is room for.
func (l *listener) Accept() (net.Conn, error) {
	admission := l.admission
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admission.connections.Add(1) <= int64(admission.config.Connections) {
			return &accepted{Conn: conn, leave: sync.OnceFunc(func() { admission.connections.Add(-1) })}, nil
		}
		admission.connections.Add(-1)
		_ = conn.Close() // of an error there is nothing to report
		admission.refuseConnection()
	}
}

// accepted is a connection that counts until it is closed.
type accepted struct {
	net.Conn
	leave func()
}

// Close may be called more than once.
func (c *accepted) Close() error {
	c.leave()
	return c.Conn.Close()
}

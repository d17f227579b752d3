package server

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// maxWaiting is how many connections of an HTTP server may wait for a request.
const maxWaiting = 1000

// waitingConns are the connections of an HTTP server of which no request is being handled: those that are new, that
// have sent a part of a header, or that are kept for a next request. One too many has the one closed that has waited
// longest. So a client that opens many closes its own, and the kubelet, whose request comes at once, is answered; a
// bound that refused new connections would have it restart the replica.
type waitingConns struct {
	limit  int
	closed prometheus.Counter // may be nil

	mu      sync.Mutex
	longest list.List // of net.Conn, the one that has waited longest first
	entries map[net.Conn]*list.Element
}

// ClosedConnections returns the metric of what [HTTP.Closed] counts.
func ClosedConnections() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fingerpost_http_connections_closed_total",
		Help: "Connections of an HTTP server that were closed because too many waited for a request.",
	}, []string{"server"})
}

// bound has a server close connections that are too many.
func (w *waitingConns) bound(server *http.Server) {
	w.entries = map[net.Conn]*list.Element{}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew, http.StateIdle:
			w.startWaiting(conn)
		case http.StateHijacked, http.StateClosed:
			w.stopWaiting(conn)
		case http.StateActive: // a request has begun to arrive: it waits until that is handled
		}
	}

	type connection struct{}
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connection{}, conn)
	}
	handler := server.Handler
	server.Handler = http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		if conn, ok := r.Context().Value(connection{}).(net.Conn); ok {
			w.stopWaiting(conn)
		}
		handler.ServeHTTP(to, r)
	})
}

func (w *waitingConns) startWaiting(conn net.Conn) {
	w.stopWaiting(conn) // one of HTTP/2 may become idle without a request
	var last net.Conn
	w.mu.Lock()
	w.entries[conn] = w.longest.PushBack(conn)
	if w.longest.Len() > w.limit {
		last = w.longest.Remove(w.longest.Front()).(net.Conn) //nolint:forcetypeassert // it has no others
		delete(w.entries, last)
	}
	w.mu.Unlock()

	if last == nil {
		return
	}
	if w.closed != nil {
		w.closed.Inc()
	}
	if secure, ok := last.(*tls.Conn); ok {
		last = secure.NetConn() // without a farewell, which may have to wait
	}
	_ = last.Close() // its goroutine notices
}

func (w *waitingConns) stopWaiting(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, waits := w.entries[conn]; waits {
		w.longest.Remove(e)
		delete(w.entries, conn)
	}
}

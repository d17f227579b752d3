package controlplane

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// A link is one connection through the proxy: the client's and, once silence
// allows, one to the API server.
type link struct {
	proxy  *Proxy
	client *net.TCPConn

	mu     sync.Mutex
	server *net.TCPConn
	done   chan struct{} // closed when the link has ended
}

func (l *link) run() {
	defer func() {
		l.proxy.mu.Lock()
		delete(l.proxy.links, l)
		l.proxy.mu.Unlock()
	}()
	if !l.wait(time.Now()) || !l.connect() {
		l.wait(time.Now()) // silence hides this end too
		l.reset()
		return
	}
	var there sync.WaitGroup
	there.Go(func() { l.carry(l.server, l.client) })
	l.carry(l.client, l.server)
	there.Wait()
	l.end(false)
}

func (l *link) connect() bool {
	server, err := net.DialTimeout("tcp", l.proxy.target(), 5*time.Second)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.done:
		_ = server.Close()
		return false
	default:
		l.server = server.(*net.TCPConn)
		return true
	}
}

// reset ends the link so that both sides see a reset and not an orderly end.
func (l *link) reset() { l.end(true) }

func (l *link) end(reset bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.done:
		return
	default:
		close(l.done)
	}
	for _, side := range []*net.TCPConn{l.client, l.server} {
		if side == nil {
			continue
		}
		if reset {
			_ = side.SetLinger(0)
		}
		_ = side.Close()
	}
}

// parcel is something under way: bytes, or the end of a direction, which is
// io.EOF where it is orderly.
type parcel struct {
	sent  time.Time
	bytes []byte
	end   error
}

// carry moves one direction until its end. Up to 1 MiB is under way; then the
// sender has to wait, as it would for a network.
func (l *link) carry(to, from *net.TCPConn) {
	underWay := make(chan parcel, 64)
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() { l.collect(from, underWay) })
	for {
		select {
		case <-l.done:
			return
		case next := <-underWay:
			if !l.wait(next.sent) {
				return
			}
			switch _, err := to.Write(next.bytes); {
			case err != nil:
				l.reset()
				return
			case errors.Is(next.end, io.EOF):
				_ = to.CloseWrite()
				return
			case next.end != nil:
				l.reset()
				return
			}
		}
	}
}

func (l *link) collect(from *net.TCPConn, underWay chan<- parcel) {
	for {
		buffer := make([]byte, 16<<10)
		n, err := from.Read(buffer)
		select {
		case underWay <- parcel{sent: time.Now(), bytes: buffer[:n], end: err}:
		case <-l.done:
			return
		}
		if err != nil {
			return
		}
	}
}

// wait returns true when what was sent then may arrive, and false if the link
// ended before.
func (l *link) wait(sent time.Time) bool {
	for {
		now, changed := l.proxy.look()
		var arrival <-chan time.Time
		if !now.silent {
			left := time.Until(sent.Add(now.delay))
			if left <= 0 {
				return true
			}
			arrival = time.NewTimer(left).C
		}
		select {
		case <-l.done:
			return false
		case <-arrival:
		case <-changed:
		}
	}
}

package controlplane

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// A Proxy is the network between clients and the API server of one cluster. It
// passes bytes, so TLS goes through, and its address is in the serving
// certificate. It follows the API server when that moves.
//
// Each Proxy has faults of its own; a cluster may have several, one per client.
type Proxy struct {
	target func() string
	port   *port
	wg     sync.WaitGroup // of all goroutines

	mu       sync.Mutex
	closed   bool
	listener net.Listener // nil while refusing
	weather  weather
	changed  chan struct{} // closed when weather is replaced
	links    map[*link]struct{}
}

// weather is what happens to bytes on their way, in both directions.
type weather struct {
	silent bool
	delay  time.Duration
}

// NewProxy puts a Proxy before the cluster, which passes everything. It lives
// until Stop.
func (c *Cluster) NewProxy() (*Proxy, error) {
	proxy, err := newProxy(c.address)
	if err != nil {
		return nil, fmt.Errorf("put a proxy before cluster %q: %w", c.name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proxies == nil {
		proxy.shut()
		return nil, fmt.Errorf("put a proxy before cluster %q: %w", c.name, errStopped)
	}
	c.proxies[proxy] = struct{}{}
	return proxy, nil
}

func newProxy(target func() string) (*Proxy, error) {
	at, err := newPort()
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, port: at, changed: make(chan struct{}), links: make(map[*link]struct{})}
	if err := p.Pass(); err != nil {
		at.release()
		return nil, err
	}
	return p, nil
}

// URL returns where clients go. It stays the same.
func (p *Proxy) URL() string { return "https://" + p.port.address() }

// Pass heals everything: connections are accepted, bytes pass at once, and
// those that Silence or Delay held back are delivered.
func (p *Proxy) Pass() error { return p.listen(weather{}) }

// Silence lets connections be made and stay, but no byte passes, and no end of
// a connection, in either direction: a network that drops every packet.
func (p *Proxy) Silence() error { return p.listen(weather{silent: true}) }

// Delay makes every byte, in each direction, arrive d after it was sent.
func (p *Proxy) Delay(d time.Duration) error { return p.listen(weather{delay: d}) }

// Refuse resets all connections and refuses new ones.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuseLocked()
}

func (p *Proxy) refuseLocked() {
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.cutLocked()
}

// CutConnections resets all connections. New ones are treated as before.
func (p *Proxy) CutConnections() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutLocked()
}

func (p *Proxy) cutLocked() {
	for link := range p.links {
		link.reset()
	}
}

// shut refuses for good and returns when no goroutine is left.
func (p *Proxy) shut() {
	p.mu.Lock()
	p.closed = true
	p.refuseLocked()
	p.mu.Unlock()
	p.wg.Wait()
	p.port.release()
}

// listen sets the weather and accepts connections if it did not.
func (p *Proxy) listen(next weather) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("the proxy is closed")
	}
	if p.listener == nil {
		listener, err := net.Listen("tcp", p.port.address())
		if err != nil {
			return fmt.Errorf("listen again: %w", err)
		}
		p.listener = listener
		p.wg.Go(func() { p.accept(listener) })
	}
	p.weather = next
	close(p.changed)
	p.changed = make(chan struct{})
	return nil
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed
		}
		l := &link{proxy: p, client: client.(*net.TCPConn), done: make(chan struct{})}
		p.mu.Lock()
		if p.listener != listener {
			l.reset() // refused while it was being accepted
		} else {
			p.links[l] = struct{}{}
			p.wg.Go(l.run)
		}
		p.mu.Unlock()
	}
}

func (p *Proxy) look() (weather, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.weather, p.changed
}

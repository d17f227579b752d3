package controlplane

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// echoServer sends back every line, and "bye" when the client has finished.
func echoServer(t *testing.T) (address func() string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer client.Close()
				if _, err := io.Copy(client, client); err == nil {
					_, _ = io.WriteString(client, "bye\n")
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		wg.Wait()
	})
	return listener.Addr().String
}

func proxyTo(t *testing.T, target func() string) *Proxy {
	t.Helper()
	proxy, err := newProxy(target)
	must(t, err)
	t.Cleanup(proxy.shut)
	return proxy
}

// A caller is a client of the echo server.
type caller struct {
	*testing.T
	conn  *net.TCPConn
	lines *bufio.Reader
}

func call(t *testing.T, proxy *Proxy) *caller {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(proxy.URL(), "https://"))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &caller{T: t, conn: conn.(*net.TCPConn), lines: bufio.NewReader(conn)}
}

func (c *caller) write(line string) {
	c.Helper()
	_, err := io.WriteString(c.conn, line+"\n")
	must(c.T, err)
}

// reads wants the line within 10 s.
func (c *caller) reads(want string) {
	c.Helper()
	must(c.T, c.conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	got, err := c.lines.ReadString('\n')
	must(c.T, err)
	if got != want+"\n" {
		c.Errorf("read %q, want %q", got, want)
	}
}

// readsError wants the connection to fail within the time given.
func (c *caller) readsError(within time.Duration, want error) {
	c.Helper()
	must(c.T, c.conn.SetReadDeadline(time.Now().Add(within)))
	if line, err := c.lines.ReadString('\n'); !errors.Is(err, want) {
		c.Errorf("read %q and %v, want %v", line, err, want)
	}
}

func (c *caller) readsNothing() {
	c.Helper()
	c.readsError(100*time.Millisecond, errTimeout)
}

// errTimeout is what a connection returns at its deadline.
var errTimeout = os.ErrDeadlineExceeded

func TestProxyPasses(t *testing.T) {
	c := call(t, proxyTo(t, echoServer(t)))
	c.write("hello")
	c.reads("hello")
	big := strings.Repeat("x", 3<<20)
	c.write(big)
	c.reads(big)
	must(t, c.conn.CloseWrite())
	c.reads("bye")
	c.readsError(10*time.Second, io.EOF)
}

func TestProxyRefuses(t *testing.T) {
	proxy := proxyTo(t, echoServer(t))
	c := call(t, proxy)
	c.write("hello")
	c.reads("hello")
	for range 3 {
		proxy.Refuse()
		c.readsError(10*time.Second, syscall.ECONNRESET)
		if _, err := net.Dial("tcp", proxy.port.address()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v, want a refusal", err)
		}
		must(t, proxy.Pass())
		c = call(t, proxy)
		c.write("again")
		c.reads("again")
	}
}

func TestProxyKeepsSilence(t *testing.T) {
	proxy := proxyTo(t, echoServer(t))
	before := call(t, proxy)
	before.write("hello")
	before.reads("hello")

	must(t, proxy.Silence())
	during := call(t, proxy)
	for _, c := range []*caller{before, during} {
		c.write("anybody?")
		must(t, c.conn.CloseWrite())
	}
	for _, c := range []*caller{before, during} {
		c.readsNothing()
	}

	must(t, proxy.Pass())
	for _, c := range []*caller{before, during} {
		c.reads("anybody?")
		c.reads("bye")
	}
}

func TestProxyHidesAnEndInSilence(t *testing.T) {
	var server net.Conn
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	proxy := proxyTo(t, listener.Addr().String)
	c := call(t, proxy)
	server, err = listener.Accept()
	must(t, err)

	must(t, proxy.Silence())
	must(t, server.(*net.TCPConn).SetLinger(0))
	must(t, server.Close())
	c.readsNothing()
	must(t, proxy.Pass())
	c.readsError(10*time.Second, syscall.ECONNRESET)
}

func TestProxyDelays(t *testing.T) {
	proxy := proxyTo(t, echoServer(t))
	c := call(t, proxy)
	c.write("hello")
	c.reads("hello")
	const delay = 100 * time.Millisecond
	must(t, proxy.Delay(delay))
	begin := time.Now()
	c.write("slow")
	c.reads("slow")
	if took := time.Since(begin); took < 2*delay {
		t.Errorf("there and back took %v, want %v at least", took, 2*delay)
	}

	// A shorter delay is also for what is under way.
	must(t, proxy.Delay(time.Hour))
	c.write("very slow")
	c.readsNothing()
	must(t, proxy.Pass())
	c.reads("very slow")
}

func TestProxyCutsConnections(t *testing.T) {
	proxy := proxyTo(t, echoServer(t))
	c := call(t, proxy)
	c.write("hello")
	c.reads("hello")
	proxy.CutConnections()
	c.readsError(10*time.Second, syscall.ECONNRESET)
	c = call(t, proxy)
	c.write("again")
	c.reads("again")
}

func TestProxyBeforeNothing(t *testing.T) {
	gone, err := newPort()
	must(t, err)
	defer gone.release()
	conn, err := net.Dial("tcp", proxyTo(t, gone.address).port.address())
	if err == nil {
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection through a proxy before nothing: %v, want a reset", err)
	}
}

func TestPortIsOurs(t *testing.T) {
	ours, err := newPort()
	must(t, err)
	defer ours.release()
	for range 3 {
		if _, err := net.Dial("tcp", ours.address()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v, want a refusal", err)
		}
		listener, err := net.Listen("tcp", ours.address())
		must(t, err)
		must(t, listener.Close())
	}
}

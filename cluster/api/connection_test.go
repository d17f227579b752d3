package api

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"k8s.io/client-go/rest"
)

// The message of an outage does not change from one probe to the next.
func TestPlain(t *testing.T) {
	api := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 6443}
	reset := func(n int) error {
		return &net.OpError{
			Op:     "read",
			Net:    "tcp",
			Source: &net.TCPAddr{IP: net.ParseIP("fd00::1"), Port: 40000 + n},
			Addr:   api,
			Err:    syscall.ECONNRESET,
		}
	}
	for name, c := range map[string]struct {
		at   func(n int) error
		want string
	}{
		"reset": {reset, "read tcp 192.0.2.1:6443: connection reset by peer"},
		"wrapped": {
			func(n int) error { return fmt.Errorf("http: %w", reset(n)) },
			"http: read tcp 192.0.2.1:6443: connection reset by peer",
		},
		"by a text": {
			func(n int) error { return errors.New("http: " + reset(n).Error()) },
			"http: read tcp 192.0.2.1:6443: connection reset by peer",
		},
		"no name": {func(n int) error {
			server := fmt.Sprintf("10.96.0.%d:53", n)
			return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{
				Name: "east.test", Server: server,
				Err: fmt.Sprintf("read udp 10.0.0.5:%d->%s: connection refused", 40000+n, server),
			}}
		}, "dial tcp: lookup east.test: connection refused"},
		"no host": {
			func(int) error { return &net.DNSError{Name: "east.test", Server: "10.96.0.10:53", Err: "no such host"} },
			"lookup east.test: no such host",
		},
		"expired": {func(n int) error {
			detail := fmt.Sprintf("current time %s is after 2000-01-01T00:00:00Z",
				time.Unix(1e9+int64(n), 0).UTC().Format(time.RFC3339))
			return x509.CertificateInvalidError{Reason: x509.Expired, Detail: detail}
		}, "certificate has expired or is not yet valid: current time is after 2000-01-01T00:00:00Z"},
	} {
		for n := range 2 {
			if got := stableError(&url.Error{
				Op:  "Get",
				URL: "https://east.test:6443/readyz",
				Err: c.at(n),
			}, ProbeTimeout).Error(); got != c.want {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
		}
	}
}

// gate is a network that holds back what is sent while it is shut.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while it is
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) shut() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
	return sync.OnceFunc(func() { close(g.open) })
}

func (g *gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return &gated{Conn: conn, gate: g, closed: make(chan struct{})}, err
}

type gated struct {
	net.Conn
	gate   *gate
	once   sync.Once
	closed chan struct{}
}

func (c *gated) Write(b []byte) (int, error) {
	c.gate.mu.Lock()
	open := c.gate.open
	c.gate.mu.Unlock()
	select {
	case <-open:
		return c.Conn.Write(b)
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *gated) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// apiServer serves HTTP/2 until the test ends.
func apiServer(t *testing.T, handler http.HandlerFunc) *rest.Config {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	config := &rest.Config{Host: s.URL}
	config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return config
}

// What waits in a connection to be sent is gone when the writes are cut, and open watches stay.
func TestCutWrites(t *testing.T) {
	var mu sync.Mutex
	var wrote []string
	config := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		wrote = append(wrote, r.URL.Path)
	})
	network := newGate()
	c, err := NewConnection(config, network.dial)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	do := func(ctx context.Context, method, path string) (*http.Response, error) {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, method, config.Host+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		return c.HTTPClient.Do(r)
	}
	post := func(ctx context.Context, path string) error {
		t.Helper()
		response, err := do(ctx, http.MethodPost, path)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	watching, err := do(t.Context(), http.MethodGet, "/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Body.Close()
	if err := post(t.Context(), "/before"); err != nil {
		t.Fatal(err)
	}

	open := network.shut()
	defer open()
	term, fence := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer fence()
	if err := post(term, "/held-back"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while nothing passes: %v", err)
	}
	c.CutWrites()
	open()
	if err := post(t.Context(), "/after"); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"/before", "/after"}; !slices.Equal(wrote, want) {
		t.Errorf("the server got %v, want %v", wrote, want)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := watching.Body.Read(make([]byte, 1))
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Errorf("the watch ended with %v", err)
	default:
	}
	c.Reset()
	if err := <-ended; err == nil {
		t.Error("the watch outlasts a Reset")
	}
}

// What the kernel has not sent yet goes with the connection.
func TestAbortive(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := abortOnClose(new(net.Dialer).DialContext)(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := conn.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(server); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ended with %v", err)
	}
}

// Nothing is changed after the fence, and reading goes on. What is changed has the time at which it was
// sent.
func TestFence(t *testing.T) {
	var ids []string
	config := apiServer(t, func(_ http.ResponseWriter, r *http.Request) {
		ids = append(ids, r.Method, r.Header.Get("Audit-ID"))
	})
	c, err := NewConnection(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	errOver := errors.New("the term is over")
	over := false
	ctx := WithFence(t.Context(), func() error {
		if over {
			return errOver
		}
		return nil
	})
	send := func(method string) error {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, method, config.Host, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		response, err := c.HTTPClient.Do(r)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	began := time.Now().Truncate(time.Millisecond)
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		if err := send(method); err != nil {
			t.Error(err)
		}
	}
	over = true
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if err := send(method); !errors.Is(err, errOver) {
			t.Errorf("%s after the fence: %v", method, err)
		}
	}
	if err := send(http.MethodGet); err != nil {
		t.Error(err)
	}
	if len(ids) != 6 || ids[0] != http.MethodPost || ids[3] != "" {
		t.Fatalf("the server got %v", ids)
	}
	id, err := uuid.Parse(ids[1])
	if err != nil {
		t.Fatal(err)
	}
	if sent := time.Unix(id.Time().UnixTime()); id.Version() != 7 || sent.Before(began) || sent.After(time.Now()) {
		t.Errorf("Audit-ID %s of %s", id, sent)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What is sent goes to the API server, below its path if it has one, whatever host it was for.
func TestSend(t *testing.T) {
	for host, want := range map[string]string{
		"https://east.test:6443":               "https://east.test:6443/api/v1/a%2Fb?limit=1",
		"https://rancher.test/k8s/clusters/c1": "https://rancher.test/k8s/clusters/c1/api/v1/a%2Fb?limit=1",
	} {
		conn, err := NewConnection(&rest.Config{Host: host}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got *http.Request
		conn.HTTPClient.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			got = r
			return &http.Response{Body: http.NoBody}, nil
		})
		request, err := http.NewRequestWithContext(
			t.Context(), http.MethodGet, "https://cluster.invalid/api/v1/a%2Fb?limit=1", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := conn.Send(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got.URL.String() != want || got.URL.RequestURI() != want[strings.Index(want[8:], "/")+8:] || got.Host != "" {
			t.Errorf("%s: a request for %s, as %s of %q", host, got.URL, got.URL.RequestURI(), got.Host)
		}
		conn.Close()
		if conn.AwaitContact(t.Context()) {
			t.Error("a connection that is closed is in contact")
		}
	}
}

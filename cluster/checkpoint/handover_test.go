package checkpoint

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fingerpost/fingerpost/federation"
)

// pipes listens for connections within a bubble of synctest.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.closed) }); return nil }

func (*pipes) Addr() net.Addr { return &net.IPAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours, nil
}

// inHandover serves states of clusters to peers that call themselves something, as the peer port does.
func inHandover(t *testing.T, find Finder, f func(t *testing.T, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{ //nolint:gosec // the timeout of writing is what matters
			Handler:      Handler(find, nil, func(r *http.Request) string { return r.Header.Get("Peer") }),
			WriteTimeout: maxTurn,
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = server.Serve(p) })
		f(t, p)
		_ = server.Close()
		wg.Wait()
	})
}

func always(p federation.Published) Finder {
	return func(cluster string, before Checkpoint) (Checkpoint, bool) {
		c := east(p)
		c.Cluster, c.AsOf = cluster, time.Now()
		return c, before.Header == c.Header
	}
}

// get asks as a peer, and returns the code and how many bytes came.
func get(t *testing.T, p *pipes, peer string) (code int, size int64) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: p.dial, DisableCompression: true}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(
		t.Context(),
		http.MethodGet,
		"http://peers.test/clusters/east",
		http.NoBody,
	)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Peer", peer)
	request.Header.Set("Accept-Encoding", "gzip")
	response, err := client.Do(request)
	if err != nil {
		return 0, 0
	}
	defer response.Body.Close()
	size, err = io.Copy(io.Discard, response.Body)
	if err != nil {
		code = -1
	}
	return code + response.StatusCode, size
}

// begin asks as a peer and reads nothing but the status.
func begin(t *testing.T, p *pipes, peer string) (net.Conn, *bufio.Reader, string) {
	t.Helper()
	conn, err := p.dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = fmt.Fprintf(conn, "GET /clusters/east HTTP/1.1\r\nHost: x\r\nPeer: %s\r\n\r\n", peer) }()
	status := make([]byte, len("HTTP/1.1 200"))
	if _, err := io.ReadFull(conn, status); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReaderSize(conn, 16), string(status)
}

// Peers that do not read lose their turns after some seconds, and meanwhile others are asked to come again. No peer has
// two turns.
func TestTurns(t *testing.T) {
	inHandover(t, always(large(10_000)), func(t *testing.T, p *pipes) {
		t.Helper()
		for i := range maxTransfers {
			conn, _, status := begin(t, p, fmt.Sprint("slow-", i))
			defer conn.Close()
			if !strings.HasSuffix(status, "200") {
				t.Fatalf("peer %d: %s", i, status)
			}
			if code, _ := get(t, p, fmt.Sprint("slow-", i)); code != http.StatusServiceUnavailable {
				t.Errorf("a peer with a turn gets %d", code)
			}
		}
		if code, _ := get(t, p, "honest"); code != http.StatusServiceUnavailable {
			t.Errorf("while all turns are taken a peer gets %d", code)
		}
		pass(stall + time.Second)
		if code, size := get(t, p, "honest"); code != http.StatusOK || size < 1000 {
			t.Errorf("after %v without progress: %d, %d bytes", stall, code, size)
		}
	})
}

// A peer that reads a few bytes now and then makes no progress, and its turn ends.
func TestTurnEnds(t *testing.T) {
	inHandover(t, always(large(10_000)), func(t *testing.T, p *pipes) {
		t.Helper()
		conn, reader, _ := begin(t, p, "slow")
		defer conn.Close()
		began := time.Now()
		for {
			if _, err := reader.Discard(16); err != nil {
				break
			}
			pass(time.Second)
		}
		if took := time.Since(began); took > maxTurn+stall {
			t.Errorf("it had a turn for %v", took)
		}
		synctest.Wait()
		if code, _ := get(t, p, "slow"); code != http.StatusOK {
			t.Errorf("it gets %d after its turn", code)
		}
	})
}

// A version is encoded once, has one tag, and is forgotten when no peer asks for it; another state is another version.
func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small := federation.Published{
			Views: new(federation.Views).With(federation.Service{Name: "a"}, &federation.View{}),
		}
		state, failing := large(1000), false
		h := &handover{process: "p", most: maxKept, versions: map[string]*version{}, turns: map[string]bool{}}
		h.idle = time.AfterFunc(keptFor, h.forget)
		h.peerOf = remoteAddr
		h.find = func(cluster string, before Checkpoint) (Checkpoint, bool) {
			if failing {
				return Checkpoint{}, false
			}
			c := east(state)
			c.Cluster, c.AsOf = cluster, time.Now()
			return c, before.Header == c.Header && before.Published.Views == state.Views
		}
		ask := func(cluster, accepts, tag string) *httptest.ResponseRecorder {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, peersPath+cluster, http.NoBody)
			request.SetPathValue("cluster", cluster)
			request.Header.Set("Accept-Encoding", accepts)
			request.Header.Set("If-None-Match", tag)
			recorder := httptest.NewRecorder()
			h.serve(recorder, request)
			return recorder
		}

		kept := func(cluster string) *version {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.versions[cluster]
		}

		first := ask("east", "gzip", "")
		body := kept("east").body
		tag := first.Header().Get("ETag")
		again := ask("east", "gzip, zstd", `W/"other"`)
		if &kept("east").body[0] != &body[0] || again.Header().Get("ETag") != tag || tag == "" {
			t.Error("it was encoded twice")
		}
		if !bytes.Equal(first.Body.Bytes(), body) || first.Header().Get("Content-Encoding") != "gzip" {
			t.Error("other bytes are sent than are kept")
		}
		plain := ask("east", "", "")
		if c, err := decode(plain.Body.Bytes()); err != nil || c.Published.Views.Len() != state.Views.Len() {
			t.Errorf("uncompressed: %v", err)
		}
		if r := ask("east", "gzip", tag); r.Code != http.StatusNotModified || r.Body.Len() > 0 {
			t.Errorf("nothing new: %d", r.Code)
		}

		state = small
		if r := ask("east", "gzip", tag); r.Code != http.StatusOK || r.Header().Get("ETag") == tag {
			t.Errorf("another state: %d %s", r.Code, r.Header().Get("ETag"))
		}
		state = large(1000)
		ask("west", "gzip", "")
		h.most = len(body) + 1
		ask("north", "gzip", "")
		if kept("west") != nil || kept("north").body == nil {
			t.Error("what was asked for first is not what is dropped")
		}
		h.most = len(body) / 2
		z, err := gzip.NewReader(ask("south", "gzip", "").Body)
		if err != nil {
			t.Fatal(err)
		}
		long, err := io.ReadAll(z)
		if c, decodeErr := decode(long); errors.Join(err, decodeErr) != nil || c.Cluster != "south" {
			t.Errorf("what is too long to be kept: %v, %v", err, decodeErr)
		}
		if kept("south").body != nil {
			t.Error("it is kept")
		}
		pass(keptFor + time.Second)
		h.mu.Lock()
		if len(h.versions) > 0 {
			t.Errorf("%d versions are kept that nobody asks for", len(h.versions))
		}
		h.mu.Unlock()
		failing = true
		if r := ask("east", "gzip", ""); r.Code != http.StatusNotFound {
			t.Errorf("nothing is there: %d", r.Code)
		}
	})
}

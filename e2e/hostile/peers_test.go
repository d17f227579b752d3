package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

const audience = "peers.fingerpost.io"

// freeAddress returns an address at which nothing listens.
func freeAddress(t *testing.T, host string) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// besidePeers has linked clusters, each with so many endpoints, and another home cluster, which reaches none of them.
func besidePeers(t *testing.T, n, services, pods int) (w *world, other *fakeapi.Cluster, names []string) {
	t.Helper()
	w = newBusy(t)
	other = w.api.Cluster("other")
	other.Run(1, func(int) fakeapi.App { return web })
	for i := range n {
		c := w.link(fmt.Sprint("c", i))
		names = append(names, c.Name)
		c.Run(services, func(j int) fakeapi.App {
			first := netip.AddrFrom4([4]byte{byte(20 + i), byte(j * pods >> 16), byte(j * pods >> 8), byte(j * pods)})
			return fakeapi.App{Namespace: "shop", Name: fmt.Sprint("app-", j), Pods: pods, First: first}
		})
		kubeconfig := regexp.MustCompile(`https://127\.0\.0\.1:\d+`).ReplaceAll(
			c.Kubeconfig(fakeapi.Token), []byte("https://127.0.0.1:9"))
		other.Apply(fakeapi.Link(c.Name, kubeconfig)...)
	}
	return w, other, names
}

// account returns a file with a token by which the local cluster knows a Pod of an account.
func (w *world) account(name, pod string) (token, file string) {
	w.t.Helper()
	token = name + "/" + pod
	w.local.Issue(token, "linkerd", name, pod, audience)
	file = filepath.Join(w.t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return token, file
}

// newcomer starts a replica of another home cluster, which asks for what it cannot reach.
func (w *world) newcomer(home *fakeapi.Cluster, log io.Writer, args ...string) *fingerpost.Server {
	w.t.Helper()
	_, file := w.account("fingerpost", "newcomer")
	s, err := fingerpost.Start(w.t.Context(), fingerpost.Options{
		Binary: binary, Dir: w.t.TempDir(), Kubeconfig: home.Kubeconfig(fakeapi.Token), Log: log,
		Args: append([]string{
			"-identity-trust-domain=cluster.local", "-cluster-domain=cluster.local",
			"-link-namespace=" + fakeapi.LinkNamespace, "-mirror-services=off", "-federated-slices=false",
			"-external-workload-slices=false", "-allow-kubeconfig-hosts=127.0.0.1", "-state-max-age=1h",
			"-peer-token-file=" + file,
		}, args...),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			w.t.Error(err)
		}
		if w.t.Failed() {
			w.t.Logf("the end of the newcomer's log:\n%s", s.Tail())
		}
	})
	return s
}

// complete waits until a replica is ready, and checks that it has clusters then.
func (w *world) complete(s *fingerpost.Server, names ...string) {
	w.t.Helper()
	began := time.Now()
	w.eventually("the newcomer is ready", func(ctx context.Context) error {
		if !s.Ready(ctx) {
			return errors.New("it is not")
		}
		return nil
	})
	w.t.Logf("ready after %s", time.Since(began).Round(time.Millisecond))
	for _, name := range names {
		if c, err := s.Cluster(w.t.Context(), name); err != nil || c.State != "Stale" {
			w.t.Errorf("when it is ready it has %s as %s (%v)", name, c.State, err)
		}
	}
}

// from returns a client that asks from an address of loopback, as a Pod of its own.
func from(address string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
}

// Pods ask at the peer port without end, without a token, with garbage, and with a token of another account, and some
// read nothing. They are refused and cost little, and a replica that starts meanwhile has the cluster that is away.
// Replicas that hang, with good tokens, do not keep another one from it either.
func TestPeerPort(t *testing.T) {
	w, other, names := besidePeers(t, 1, 500, 100)
	port := freeAddress(t, "127.0.0.1")
	_, own := w.account("fingerpost", "first")
	w.serve("-peer-addr="+port, "-peer-token-file="+own)
	w.live(names...)
	url := "http://" + port + "/clusters/c0"
	stranger, _ := w.account("stranger", "pod")

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var codes sync.Map // number of answers
	flood := func(client *http.Client, token func(n int64) string) {
		defer client.CloseIdleConnections()
		for n := int64(0); ctx.Err() == nil; n++ {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			if token != nil {
				request.Header.Set("Authorization", "Bearer "+token(n))
			}
			response, err := client.Do(request)
			if err != nil {
				continue
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			count, _ := codes.LoadOrStore(response.StatusCode, new(atomic.Int64))
			count.(*atomic.Int64).Add(1)
		}
	}
	silent := func(header string) {
		for ctx.Err() == nil {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", port)
			if err != nil {
				return
			}
			_ = conn.(*net.TCPConn).SetReadBuffer(4096)
			_, _ = fmt.Fprintf(conn, "GET /clusters/c0 HTTP/1.1\r\nHost: x\r\n%s\r\n", header)
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			_, _ = io.ReadFull(conn, make([]byte, 12))
			<-ctx.Done() // it reads no more
			stop()
			_ = conn.Close()
		}
	}
	w.honest.Report()
	before, began := w.local.Reviews(), time.Now()
	w.bounded(24<<20, func() {
		for i := range 4 {
			wg.Go(func() { flood(from("127.0.0.2"), nil) })
			wg.Go(
				func() { flood(from("127.0.0.3"), func(n int64) string { return fmt.Sprint("garbage-", i, "-", n) }) },
			)
			wg.Go(func() { flood(from("127.0.0.4"), func(int64) string { return stranger }) })
			wg.Go(func() { silent("") })
		}
		w.complete(w.newcomer(other, nil, "-peers="+port), names...)
		for i := range 4 {
			token, _ := w.account("fingerpost", fmt.Sprint("hung-", i))
			wg.Go(func() { silent("Authorization: Bearer " + token + "\r\n") })
		}
		w.complete(w.newcomer(other, nil, "-peers="+port), names...)
	})
	seconds := time.Since(began).Seconds()
	if n := float64(w.local.Reviews() - before); n > 60*seconds+10 {
		t.Errorf("%.0f tokens were reviewed in %.0f s", n, seconds)
	}
	codes.Range(func(code, n any) bool {
		t.Logf("%d answers %d", n.(*atomic.Int64).Load(), code)
		if code == http.StatusOK {
			t.Error("some were let in")
		}
		return true
	})
	t.Logf("honest: %s", w.honest.Report())
}

// A replica that reaches no linked cluster has what another one has of them, and goes on to ask: for as long as nothing
// changes that costs next to nothing.
func TestPartitionedReplica(t *testing.T) {
	w, other, names := besidePeers(t, 10, 100, 100)
	port := freeAddress(t, "127.0.0.1")
	_, own := w.account("fingerpost", "first")
	w.serve("-peer-addr="+port, "-peer-token-file="+own)
	w.live(names...)
	relay, bytes := newRelay(t, port)
	log := &lineCounter{}
	began := time.Now()
	w.complete(w.newcomer(other, log, "-peers="+relay), names...)
	w.honest.Report()
	first := bytes.Load()
	rounds := 2
	if *full {
		rounds = 43 // five minutes
	}
	for range rounds {
		before, lines := bytes.Load(), log.lines.Load()
		w.pass(7 * time.Second)
		t.Logf("%d bytes, %d lines logged in 7 s", bytes.Load()-before, log.lines.Load()-lines)
		if log.lines.Load()-lines > 10 {
			t.Error("what goes on is logged again and again")
		}
	}
	t.Logf("%.1f MB at first, %.3f MB in all after %s; honest: %s", float64(first)/1e6, float64(bytes.Load())/1e6,
		time.Since(began).Round(time.Second), w.honest.Report())
	if n := bytes.Load(); n > 10e6 { // 2 MB a minute, for five
		t.Errorf("%d bytes were transferred for 100,000 endpoints", n)
	}
	if n := bytes.Load() - first; n > 1e6 {
		t.Errorf("%d bytes more were transferred, where nothing has changed", n)
	}
}

// pass lets time pass in which the honest client is answered.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		w.answered(20)
	}
}

// lineCounter counts the lines of a log.
type lineCounter struct{ lines atomic.Int64 }

func (c *lineCounter) Write(b []byte) (int, error) {
	c.lines.Add(int64(strings.Count(string(b), "\n")))
	return len(b), nil
}

// newRelay forwards connections to an address, and counts the bytes that come from there.
func newRelay(t *testing.T, to string) (address string, bytes *atomic.Int64) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bytes = new(atomic.Int64)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() { cancel(); _ = l.Close(); wg.Wait() })
	forward := func(a net.Conn) {
		defer a.Close()
		b, err := new(net.Dialer).DialContext(ctx, "tcp", to)
		if err != nil {
			return
		}
		defer b.Close()
		defer context.AfterFunc(ctx, func() { _ = a.Close(); _ = b.Close() })()
		go func() { // it ends when a or b is closed
			_, _ = io.Copy(b, a)
			_ = b.Close()
		}()
		n, _ := io.Copy(a, b)
		bytes.Add(n)
	}
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { forward(conn) })
		}
	})
	return l.Addr().String(), bytes
}

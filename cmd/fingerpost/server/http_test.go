package server

import (
	"bufio"
	"compress/gzip"
	"context"
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

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/test/bufconn"
)

// dialHTTP starts a server, over connections in memory, and sends it a piece of a request. Both end with the
// test.
func dialHTTP(t *testing.T, handler http.Handler, request string) net.Conn {
	t.Helper()
	listener := bufconn.Listen(1 << 10)
	server := (&HTTP{Log: logr.Discard(), Name: "test", Handler: handler}).server()
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	conn, err := listener.Dial()
	if err == nil {
		_, err = io.WriteString(conn, request)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Close()
		wg.Wait()
	})
	return conn
}

// A server on loopback answers requests for addresses and localhost, and not for a name that was made to resolve
// to loopback; a server that others may reach answers to any name.
func TestNamesOfOtherHosts(t *testing.T) {
	for addr, refuses := range map[string]bool{
		"127.0.0.1:0": true, "[::1]:0": true, "0.0.0.0:0": false, "[::ffff:127.0.0.1]:0": true,
	} {
		t.Run(addr, func(t *testing.T) {
			listening := make(chan net.Addr, 1)
			listen := func(ctx context.Context, network, address string) (net.Listener, error) {
				l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
				if err != nil {
					return nil, err
				}
				listening <- l.Addr()
				return l, nil
			}
			handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "topology") })
			s := &HTTP{Log: logr.Discard(), Name: "test", Addr: addr, Listen: listen, Handler: handler}
			ctx, stop := context.WithCancel(t.Context())
			stopped := make(chan error, 1)
			go func() { stopped <- s.Start(ctx) }()
			defer func() {
				stop()
				if err := <-stopped; err != nil {
					t.Error(err)
				}
			}()
			var at net.Addr
			select {
			case at = <-listening:
			case err := <-stopped:
				stopped <- nil
				t.Skipf("no such address here: %v", err)
			}
			_, port, err := net.SplitHostPort(at.String())
			if err != nil {
				t.Fatal(err)
			}
			for host, isOther := range map[string]bool{
				"127.0.0.1:" + port: false, "localhost:" + port: false, "LOCALHOST": false, "localhost.": false,
				"[::1]:" + port: false, "::1": false, "a.localhost": false, "10.1.2.3": false, "": false,
				"rebound.example:" + port: true, "rebound.example": true, "127.0.0.1.example": true,
				"localhost.example": true, "notlocalhost": true, "1270.0.0.1": true,
			} {
				conn, err := net.Dial("tcp", net.JoinHostPort(strings.Trim(dialable(at), "[]"), port))
				if err != nil {
					t.Fatal(err)
				}
				version := "1.1"
				if host == "" {
					version = "1.0"
				}
				fmt.Fprintf(conn, "GET /debug/clusters HTTP/%s\r\nHost: %s\r\nConnection: close\r\n\r\n", version, host)
				answer, err := io.ReadAll(conn)
				conn.Close()
				want := "topology"
				if isOther && refuses {
					want = "HTTP/1.1 421 "
				}
				if err != nil || !strings.Contains(string(answer), want) {
					t.Errorf("Host %q: %v, want %q in\n%s", host, err, want, answer)
				}
				if want != "topology" && strings.Contains(string(answer), "topology") {
					t.Errorf("Host %q is answered:\n%s", host, answer)
				}
			}
		})
	}
}

// dialable returns the address at which a listener is reached.
func dialable(at net.Addr) string {
	host, _, _ := net.SplitHostPort(at.String())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		return "127.0.0.1"
	}
	return host
}

// A client that does not take its answer is cut off, unless it has asked for a profile, which takes as long
// as it is asked to. Where no profiles are served, their paths are as others.
func TestAnswersThatAreNotTaken(t *testing.T) {
	for path, cut := range map[string]bool{
		"/metrics": true, "/debug/streams": true, "/debug/pprof/other": true, "/debug/pprof/profile": false,
	} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failed error
				var took time.Duration
				answer := func(w http.ResponseWriter, _ *http.Request) {
					begun := time.Now()
					_, failed = w.Write(make([]byte, 1<<20))
					took = time.Since(begun)
				}
				mux := http.NewServeMux()
				mux.HandleFunc("/", answer)
				mux.HandleFunc("/debug/pprof/profile", withoutDeadlines(answer))
				conn := dialHTTP(t, mux, fmt.Sprintf("GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path))
				time.Sleep(2 * responseTimeout) //nolint:forbidigo // in a bubble it takes no time
				synctest.Wait()
				if cut != (failed != nil) || cut && took != responseTimeout {
					t.Errorf("after %s an answer that was not taken failed with %v", took, failed)
				}
				conn.Close()
				synctest.Wait()
				if failed == nil {
					t.Error("the answer goes on")
				}
			})
		})
	}
}

// A client that does not complete the header of its request is cut off.
func TestHeadersThatDoNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := dialHTTP(t, http.NotFoundHandler(), "GET / HTTP/1.1\r\nHost: x\r\n")
		begun := time.Now()
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("cut off after %s", took)
		}
	})
}

// A client that does not send the body that it has announced is cut off, also where its request would be one for a
// profile if profiles were served.
func TestBodiesThatAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := AdminHandler(NewMetrics(""), prometheus.NewRegistry(), never, false)
		conn := dialHTTP(t, handler, "GET /debug/pprof/profile HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
		begun := time.Now()
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != responseTimeout {
			t.Errorf("cut off after %s", took)
		}
	})
}

// A client that does not send the body that it has announced is cut off.
func TestBodiesThatDoNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := -time.Second
		conn := dialHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			begun := time.Now()
			_, _ = w.Write(make([]byte, 1<<20))
			took = time.Since(begun)
		}), "GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
		time.Sleep(2 * responseTimeout) //nolint:forbidigo // in a bubble it takes no time
		synctest.Wait()
		if took != responseTimeout {
			t.Errorf("its request was handled for %s", took)
		}
		conn.Close()
	})
}

// Connections that wait for a request are bounded: the one that has waited longest is closed, and one whose request
// comes is answered. A connection whose request is being handled does not count, and counts again afterwards.
func TestConnectionsThatWaitAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 3
		closed := ClosedConnections().WithLabelValues("test")
		entered, finish := make(chan struct{}), make(chan struct{})
		server := (&HTTP{Log: logr.Discard(), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				close(entered)
				<-finish
			}
		})}).server()
		waiting := &waitingConns{limit: limit, closed: closed}
		waiting.bound(server)
		listener := bufconn.Listen(1 << 10)
		var wg sync.WaitGroup
		wg.Go(func() { _ = server.Serve(listener) })
		var conns []net.Conn
		open := func(text string) net.Conn {
			conn, err := listener.Dial()
			if err == nil {
				_, err = io.WriteString(conn, text)
			}
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
			synctest.Wait()
			return conn
		}
		isAnswered := func(conn net.Conn) bool {
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			return err == nil && response.StatusCode == http.StatusOK
		}
		wants := func(waits, total int) {
			t.Helper()
			synctest.Wait()
			n, counted := len(waiting.entries), testutil.ToFloat64(closed)
			if n != waits || waiting.longest.Len() != waits || int(counted) != total {
				t.Errorf("%d connections wait and %v were closed, want %d and %d", n, counted, waits, total)
			}
		}
		slow := open("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
		<-entered
		wants(0, 0)
		first := open("GET / HTTP/1.1\r\n")
		for range limit + 1 {
			open("")
		}
		wants(limit, 2)
		if n, err := first.Read(make([]byte, 1)); err == nil {
			t.Errorf("the one that has waited longest can be read: %d bytes", n)
		}
		if !isAnswered(open("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) {
			t.Error("a request that came at once was not answered")
		}
		wants(limit, 3)
		close(finish)
		if !isAnswered(slow) {
			t.Error("a request that was being handled was not answered")
		}
		wants(limit, 4)
		for _, conn := range conns {
			conn.Close()
		}
		wants(0, 4)
		server.Close()
		wg.Wait()
	})
}

// Three clients that do not read hold the turns of all requests that gather metrics. Scrapes beside them share one page
// a second, and the kubelet is answered.
func TestRequestsForMetricsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gathered, held := prometheus.NewCounter(prometheus.CounterOpts{Name: "gathered"}), make(chan struct{})
		own := prometheus.NewRegistry()
		own.MustRegister(gathered)
		handler := AdminHandler(NewMetrics(""), prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			gathered.Inc()
			return own.Gather()
		}), func() (bool, []string) { return true, nil }, false)
		ask := func(path, encoding string) (int, string) {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
			r.Header.Set("Accept-Encoding", encoding)
			handler.ServeHTTP(w, r)
			if w.Header().Get("Content-Encoding") != "gzip" {
				return w.Code, w.Body.String()
			}
			body, err := gzip.NewReader(w.Body)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(body)
			return w.Code, string(text)
		}
		var wg sync.WaitGroup
		for range maxGathering {
			wg.Go(func() {
				w := unreadResponse{httptest.NewRecorder(), held}
				handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			})
		}
		synctest.Wait()
		for _, want := range []string{"gathered 4\n", "gathered 4\n", "gathered 5\n"} {
			if want == "gathered 5\n" {
				time.Sleep(CachePeriod) //nolint:forbidigo // in a bubble it takes no time
			}
			if code, body := ask("/metrics", "gzip"); code != http.StatusOK || !strings.HasSuffix(body, want) {
				t.Errorf("beside clients that do not read: %d %s, want %s", code, body, want)
			}
		}
		for path, want := range map[string]int{
			"/metrics": http.StatusServiceUnavailable, "/ping": http.StatusOK, "/ready": http.StatusOK,
		} {
			if code, _ := ask(path, "identity"); code != want {
				t.Errorf("%s beside clients that do not read: %d, want %d", path, code, want)
			}
		}
		close(held)
		wg.Wait()
		for _, want := range []string{"gathered 6\n", "gathered 7\n"} {
			if code, body := ask("/metrics", "gzip"); code != http.StatusOK || !strings.HasSuffix(body, want) {
				t.Errorf("afterwards: %d %s, want %s", code, body, want)
			}
		}
	})
}

// An unreadResponse is not taken until it is released.
type unreadResponse struct {
	*httptest.ResponseRecorder
	released chan struct{}
}

func (r unreadResponse) Write(b []byte) (int, error) {
	<-r.released
	return len(b), nil
}

package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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

// A client that does not take its answer is cut off, unless it has asked for a profile, which takes as long
// as it is asked to.
func TestAnswersThatAreNotTaken(t *testing.T) {
	for path, cut := range map[string]bool{"/metrics": true, "/debug/streams": true, "/debug/pprof/profile": false} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failed error
				var took time.Duration
				conn := dialHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					begun := time.Now()
					_, failed = w.Write(make([]byte, 1<<20))
					took = time.Since(begun)
				}), fmt.Sprintf("GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path))
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

// Metrics are gathered for three requests at a time, and more are refused. The kubelet is answered meanwhile.
func TestRequestsForMetricsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 3
		finish := make(chan struct{})
		handler := AdminHandler(
			NewMetrics(""),
			prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
				<-finish
				return nil, nil
			}),
			func() bool { return true },
			false,
		)
		ask := func(path string) int {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Code
		}
		var wg sync.WaitGroup
		for range bound {
			wg.Go(func() {
				if code := ask("/metrics"); code != http.StatusOK {
					t.Errorf("a request within the bound: %d", code)
				}
			})
		}
		synctest.Wait()
		for path, want := range map[string]int{
			"/metrics": http.StatusServiceUnavailable, "/ping": http.StatusOK,
			"/ready": http.StatusOK,
		} {
			if code := ask(path); code != want {
				t.Errorf("%s beside %d requests for metrics: %d, want %d", path, bound, code, want)
			}
		}
		close(finish)
		wg.Wait()
		if code := ask("/metrics"); code != http.StatusOK {
			t.Errorf("afterwards: %d", code)
		}
	})
}

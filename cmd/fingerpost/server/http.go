package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// httpServer is an HTTP server as a part of the process.
type HTTP struct {
	Log         logr.Logger
	Name, Addr  string
	Handler     http.Handler
	TLS         *tls.Config   // nil: in clear
	ReadTimeout time.Duration // for a request; 0: none
	Drain       time.Duration // for which requests may go on when the process is told to stop
	listens     atomic.Bool
}

// Start serves until ctx ends. Without an address there is nothing to serve.
func (s *HTTP) Start(ctx context.Context) error {
	if s.Addr == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Addr)
	if err != nil {
		return fmt.Errorf("address of the %s server: %w", s.Name, err)
	}
	s.Log.Info("HTTP server listens", "server", s.Name, "addr", listener.Addr().String())
	server := s.server()
	s.listens.Store(true)
	stopped := make(chan error, 1)
	go func() {
		if s.TLS != nil {
			stopped <- server.ServeTLS(listener, "", "")
			return
		}
		stopped <- server.Serve(listener)
	}()
	select {
	case err := <-stopped:
		return fmt.Errorf("%s server: %w", s.Name, err)
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Drain)
	defer cancel()
	if server.Shutdown(patience) != nil {
		_ = server.Close() // what has not ended is cut off
	}
	if err := <-stopped; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s server: %w", s.Name, err)
	}
	return nil
}

// listening reports whether the server listens, or did.
func (s *HTTP) Listening() bool { return s.listens.Load() }

// server returns a server that no client keeps busy for long.
func (s *HTTP) server() *http.Server {
	return &http.Server{
		Handler: withWriteDeadline(s.Handler), MaxHeaderBytes: 64 << 10, TLSConfig: s.TLS, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: s.ReadTimeout,
		IdleTimeout: 2 * time.Minute, // longer than clients keep a connection: they close it, and lose no request
		ErrorLog:    slog.NewLogLogger(logr.ToSlogHandler(s.Log.WithValues("server", s.Name)), slog.LevelInfo),
	}
}

// answerTimeout is how long an answer may take to be made and to be taken.
const responseTimeout = 30 * time.Second

// inTime cuts off whoever does not take an answer. A profile takes as long as it is asked to.
func withWriteDeadline(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var end time.Time
		if !strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			end = time.Now().Add(responseTimeout)
		}
		_ = http.NewResponseController(w).SetWriteDeadline(end) // net/http's own can
		handler.ServeHTTP(w, r)
	})
}

// newMetrics returns a registry with what every process tells of itself.
func NewMetrics() *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return metrics
}

// adminHandler answers what a kubelet and Prometheus ask. Metrics are those in the registry, and what others gather.
func AdminHandler(metrics *prometheus.Registry, ready func() bool, withPprof bool, others ...prometheus.Gatherer) *http.ServeMux {
	mux := http.NewServeMux()
	all := append(prometheus.Gatherers{metrics}, others...)
	mux.Handle("GET /metrics", promhttp.InstrumentMetricHandler(metrics, promhttp.HandlerFor(all, promhttp.HandlerOpts{MaxRequestsInFlight: 3})))
	mux.HandleFunc("GET /ping", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "pong\n") })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "not ready", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "ok\n")
	})
	if withPprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

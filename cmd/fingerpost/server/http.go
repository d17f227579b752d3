package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
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

// HTTP is an HTTP server as a part of the process.
type HTTP struct {
	Log         logr.Logger
	Name        string // for logs and errors
	Addr        string // empty to serve nothing
	Listen      ListenFunc
	Handler     http.Handler
	TLS         *tls.Config   // nil to serve plaintext
	ReadTimeout time.Duration // of a request; 0 for none
	DrainWindow time.Duration // in which open requests may end when the server stops

	listens atomic.Bool
}

// Start serves until ctx ends, and then for the drain window at most.
func (s *HTTP) Start(ctx context.Context) error {
	if s.Addr == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := s.Listen.listen(ctx, s.Addr)
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
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.DrainWindow)
	defer cancel()
	if server.Shutdown(drain) != nil {
		_ = server.Close() // cuts off what is still open
	}
	if err := <-stopped; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s server: %w", s.Name, err)
	}
	return nil
}

// Listening reports whether the server listens, or has listened.
func (s *HTTP) Listening() bool { return s.listens.Load() }

// server returns a server with bounds on what a client can make it wait for or read.
func (s *HTTP) server() *http.Server {
	return &http.Server{
		Handler:           withWriteDeadline(s.Handler),
		TLSConfig:         s.TLS,
		MaxHeaderBytes:    64 << 10,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       s.ReadTimeout,
		IdleTimeout:       2 * time.Minute, // longer than clients', who thus close, and lose no request
		ErrorLog:          slog.NewLogLogger(logr.ToSlogHandler(s.Log.WithValues("server", s.Name)), slog.LevelInfo),
	}
}

// responseTimeout is how long a response may take to be computed and read.
const responseTimeout = 30 * time.Second

// withWriteDeadline cuts off clients that do not read a response. A profile of the process has no deadline: its
// request sets how long it takes.
func withWriteDeadline(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var end time.Time
		if !strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			end = time.Now().Add(responseTimeout)
		}
		_ = http.NewResponseController(w).SetWriteDeadline(end) // net/http's own writers support it
		handler.ServeHTTP(w, r)
	})
}

// NewMetrics returns a registry with the metrics of the process and of the Go runtime.
func NewMetrics() *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return metrics
}

// AdminHandler serves probes and metrics: those in the registry, and those of other gatherers.
func AdminHandler(
	metrics *prometheus.Registry, ready func() bool, withPprof bool, others ...prometheus.Gatherer,
) *http.ServeMux {
	mux := http.NewServeMux()
	all := append(prometheus.Gatherers{metrics}, others...)
	metricsHandler := promhttp.HandlerFor(all, promhttp.HandlerOpts{MaxRequestsInFlight: 3})
	mux.Handle("GET /metrics", promhttp.InstrumentMetricHandler(metrics, metricsHandler))
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

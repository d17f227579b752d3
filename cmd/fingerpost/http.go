package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
)

// httpServer is an HTTP server as a part of the process.
type httpServer struct {
	log         logr.Logger
	name, addr  string
	handler     http.Handler
	tls         *tls.Config   // nil: in clear
	readTimeout time.Duration // for a request; 0: none
	drain       time.Duration // for which requests may go on when the process is told to stop
	serving     atomic.Bool
}

// Start serves until ctx ends. Without an address there is nothing to serve.
func (s *httpServer) Start(ctx context.Context) error {
	if s.addr == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.addr)
	if err != nil {
		return fmt.Errorf("address of the %s server: %w", s.name, err)
	}
	s.log.Info("HTTP server listens", "server", s.name, "addr", listener.Addr().String())
	server := &http.Server{
		Handler: inTime(s.handler), MaxHeaderBytes: 64 << 10, TLSConfig: s.tls, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: s.readTimeout,
		IdleTimeout: 2 * time.Minute, // longer than clients keep a connection: they close it, and lose no request
		ErrorLog:    slog.NewLogLogger(logr.ToSlogHandler(s.log.WithValues("server", s.name)), slog.LevelInfo),
	}
	s.serving.Store(true)
	stopped := make(chan error, 1)
	go func() {
		if s.tls != nil {
			stopped <- server.ServeTLS(listener, "", "")
			return
		}
		stopped <- server.Serve(listener)
	}()
	select {
	case err := <-stopped:
		return fmt.Errorf("%s server: %w", s.name, err)
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	if server.Shutdown(patience) != nil {
		_ = server.Close() // what has not ended is cut off
	}
	if err := <-stopped; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s server: %w", s.name, err)
	}
	return nil
}

// answerTimeout is how long an answer may take to be made and to be taken.
const answerTimeout = 30 * time.Second

// inTime cuts off whoever does not take an answer. A profile takes as long as it is asked to.
func inTime(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var end time.Time
		if !strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			end = time.Now().Add(answerTimeout)
		}
		_ = http.NewResponseController(w).SetWriteDeadline(end) // net/http's own can
		handler.ServeHTTP(w, r)
	})
}

// newMetrics returns a registry with what every process tells of itself.
func newMetrics() *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return metrics
}

// adminHandler answers what a kubelet and Prometheus ask. Metrics are those in the registry, and what others gather.
func adminHandler(metrics *prometheus.Registry, ready func() bool, withPprof bool, others ...prometheus.Gatherer) *http.ServeMux {
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

// debugHandler shows people what the process knows: at / a page, and all else as JSON. What is about everything is computed at most
// once a second.
func debugHandler(store *federation.Store, registry *cluster.Registry, reconciler *links.Reconciler, server *discovery.Server, o options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", &statusHandler{store: store, registry: registry, reconciler: reconciler, server: server, cluster: o.clusterName, replica: os.Getenv("HOSTNAME")})
	mux.HandleFunc("GET /debug/clusters", shared(func() clustersPage {
		return clustersPage{Clusters: clusterPages(registry), Links: reconciler.Links()}
	}))
	mux.HandleFunc("GET /debug/services/{namespace}/{name}", func(w http.ResponseWriter, r *http.Request) {
		watch := store.Watch(federation.Ref{
			Cluster: federation.Cluster(o.clusterName), Service: federation.Service{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
		})
		defer watch.Close()
		snapshot, _ := watch.Load()
		if snapshot.View == nil && len(snapshot.Unknown()) == 0 {
			http.Error(w, fmt.Sprintf("no Service %s/%s in cluster %s", r.PathValue("namespace"), r.PathValue("name"), o.clusterName), http.StatusNotFound)
			return
		}
		writeJSON(w, servicePageOf(snapshot, store.Standing))
	})
	mux.HandleFunc("GET /debug/streams", shared(server.Streams))
	mux.HandleFunc("GET /debug/streams/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
		if err != nil {
			http.Error(w, "the id of a stream is a number, see /debug/streams", http.StatusBadRequest)
			return
		}
		stream, found := server.Stream(id)
		if !found {
			http.Error(w, fmt.Sprintf("stream %d is not open", id), http.StatusNotFound)
			return
		}
		writeJSON(w, stream)
	})
	mux.HandleFunc("GET /debug/malformed", shared(func() malformedPage { return malformedPageOf(store, o.clusterName) }))
	mux.HandleFunc("GET /debug/digests", shared(func() digestsPage { return digestsPageOf(store) }))
	mux.HandleFunc("GET /debug/claims/{cluster}/{namespace}/{name}", func(w http.ResponseWriter, r *http.Request) {
		v := store.View(federation.Ref{
			Cluster: federation.Cluster(r.PathValue("cluster")), Service: federation.Service{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
		})
		if v == nil {
			http.Error(w, fmt.Sprintf("cluster %s says nothing about a Service %s/%s", r.PathValue("cluster"), r.PathValue("namespace"), r.PathValue("name")), http.StatusNotFound)
			return
		}
		writeJSON(w, claimsPageOf(v))
	})
	mux.HandleFunc("GET /debug/explain", func(w http.ResponseWriter, r *http.Request) { explain(w, r, server) })
	return mux
}

// explain answers /debug/explain?authority=&ns=&pod=&node=.
func explain(w http.ResponseWriter, r *http.Request, server *discovery.Server) {
	query := r.URL.Query()
	x, err := server.Explain(query.Get("authority"), discovery.Place{Namespace: query.Get("ns"), Pod: query.Get("pod"), Node: query.Get("node")})
	if err != nil {
		http.Error(w, status.Convert(err).Message(), http.StatusBadRequest)
		return
	}
	writeJSON(w, x)
}

func writeJSON(w http.ResponseWriter, page any) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(page) // it fails where nobody reads any more
}

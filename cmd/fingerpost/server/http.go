package server

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
)

// HTTP is an HTTP server as a part of the process.
type HTTP struct {
	Log         logr.Logger
	Name        string // for logs and errors
	Addr        string // empty to serve nothing
	Listen      ListenFunc
	Handler     http.Handler
	TLS         *tls.Config        // nil to serve plaintext
	ReadTimeout time.Duration      // of a request; 0 for the responseTimeout
	DrainWindow time.Duration      // in which open requests may end when the server stops
	Closed      prometheus.Counter // of connections that too many others made it close; may be nil

	listens fedwatch.Value[bool]
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
	if isLoopback(listener.Addr()) {
		server.Handler = localHosts(server.Handler)
	}

	(&waitingConns{limit: maxWaiting, closed: s.Closed}).bound(server)
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

// Listens returns the Condition that the server listens, or has listened.
func (s *HTTP) Listens() Condition { return Reached(s.Name, &s.listens) }

// server returns a server with bounds on what a client can make it wait for or read. It cuts off clients that do not
// read a response, or do not send the body that they have announced, for which net/http waits before it responds.
func (s *HTTP) server() *http.Server {
	return &http.Server{
		Handler:           s.Handler,
		TLSConfig:         s.TLS,
		MaxHeaderBytes:    64 << 10,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       cmp.Or(s.ReadTimeout, responseTimeout),
		WriteTimeout:      responseTimeout,
		IdleTimeout:       2 * time.Minute, // longer than clients', who thus close, and lose no request
		ErrorLog:          slog.NewLogLogger(logr.ToSlogHandler(s.Log.WithValues("server", s.Name)), slog.LevelInfo),
	}
}

// localHosts rejects requests for the names of other hosts. A server on loopback has its own host for protection, and a
// browser on that host, or on one from which a port is forwarded, runs pages of others: one whose name resolves to
// loopback by now would read everything (DNS rebinding), and is recognized by that name, which the browser sends. An
// address is no name, and no foreign page can be of localhost.
func localHosts(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocalHost(r.Host) {
			http.Error(w, "this server is on a loopback address: ask it by an address or as localhost, "+
				"such as http://127.0.0.1:9998, and not by the name of another host", http.StatusMisdirectedRequest)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// isLocalHost reports whether a Host, with a port or without, is an address or localhost; HTTP/1.0 needs none.
func isLocalHost(host string) bool {
	name := host
	if withoutPort, _, err := net.SplitHostPort(host); err == nil {
		name = withoutPort
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" || name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	_, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	return err == nil
}

// responseTimeout is how long a response may take to be computed and read.
const responseTimeout = 30 * time.Second

// withoutDeadlines lets a profile of the process take as long as its request asks for. A deadline of reading would end
// that, although nothing is read any more.
func withoutDeadlines(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn := http.NewResponseController(w)
		_ = conn.SetWriteDeadline(time.Time{}) // net/http's own writers support it
		_ = conn.SetReadDeadline(time.Time{})
		handler(w, r)
	}
}

// NewMetrics returns a registry with the metrics of the process, of the Go runtime, and the version of the binary.
func NewMetrics(version string) *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fingerpost_build_info", Help: "1, with the version of the binary, and of the Go that it was built with.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	metrics.MustRegister(
		build,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return metrics
}

// Labelled returns a Gatherer with a label on every series, unless value returns an empty one. It is for a label that
// is not known yet when metrics are registered.
func Labelled(of prometheus.Gatherer, name string, value func() string) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := of.Gather()
		text := value()
		if text == "" {
			return families, err
		}

		label := &dto.LabelPair{Name: &name, Value: &text}
		byName := func(l *dto.LabelPair, name string) int { return strings.Compare(l.GetName(), name) }
		for _, f := range families {
			for _, m := range f.GetMetric() {
				labels := m.GetLabel()
				i, _ := slices.BinarySearchFunc(labels, name, byName)
				m.Label = slices.Concat(labels[:i], []*dto.LabelPair{label}, labels[i:]) // others share the array
			}
		}
		return families, err
	})
}

// metricsHandler serves what is gathered. maxGathering requests at a time gather it and send it piece by piece, at the
// pace of their clients. All others share one page that is computed at most once in a CachePeriod, so that clients that
// do not read keep no scrape from being answered, and have at most as many pages held as there are periods in the
// responseTimeout. A page is compressed, which takes a twentieth: a client that does not accept that has to try again.
func metricsHandler(all prometheus.Gatherer) http.HandlerFunc {
	handler := promhttp.HandlerFor(all, promhttp.HandlerOpts{})
	turns := make(chan struct{}, maxGathering)

	var shared CachedValue[RenderedPage]
	return func(writer http.ResponseWriter, request *http.Request) {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
			handler.ServeHTTP(writer, request)
			return
		default:
		}

		if !strings.Contains(request.Header.Get("Accept-Encoding"), "gzip") {
			http.Error(writer, "others are being served", http.StatusServiceUnavailable)
			return
		}
		page := shared.Get(func() RenderedPage { return compressedMetrics(all) })
		if page.Err == nil {
			writer.Header().Set("Content-Encoding", "gzip")
		}
		page.WriteTo(writer, string(textFormat))
	}
}

const maxGathering = 3 // requests

var textFormat = expfmt.NewFormat(expfmt.TypeTextPlain)

func compressedMetrics(all prometheus.Gatherer) RenderedPage {
	families, err := all.Gather()
	if err != nil {
		return RenderedPage{Err: err}
	}
	var b bytes.Buffer
	compressor := gzip.NewWriter(&b)
	encoder := expfmt.NewEncoder(compressor, textFormat)
	for _, f := range families {
		err = errors.Join(err, encoder.Encode(f))
	}
	err = errors.Join(err, compressor.Close())
	return RenderedPage{Body: b.Bytes(), Err: err}
}

// AdminHandler serves probes, and all that is gathered as metrics. It adds its own to the registry. ready returns
// whether the process is ready, and what is missing if it is not.
func AdminHandler(
	metrics prometheus.Registerer, all prometheus.Gatherer, ready func() (bool, []string), withPprof bool,
) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.InstrumentMetricHandler(metrics, metricsHandler(all)))
	probes := map[string]string{"/ping": "pong\n", "/live": "live\n"} // as Linkerd's components have them
	for path, answer := range probes {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
	}

	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		is, missing := ready()
		if !is {
			lines := append([]string{"not ready"}, missing...)
			http.Error(w, strings.Join(lines, "\nwaiting for: "), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "ok\n")
	})

	if withPprof {
		mux.HandleFunc("/debug/pprof/", withoutDeadlines(pprof.Index))
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", withoutDeadlines(pprof.Profile))
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", withoutDeadlines(pprof.Trace))
	}
	return mux
}

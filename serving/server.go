package serving

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
)

// Config is what the operator decides about streams, whatever their protocol.
type Config struct {
	// MaxStreamAge is the age at which a stream ends with OK, give or take a tenth, so that clients spread anew
	// over the replicas; 0: never.
	MaxStreamAge time.Duration
	DrainWindow  time.Duration // in which streams end when the process is to stop
	FrameBytes   int64         // bound on the encoded messages that are kept
	Admission    AdmissionConfig
}

// DefaultConfig returns a Config with the defaults of everything.
func DefaultConfig() Config {
	return Config{
		MaxStreamAge: 30 * time.Minute, DrainWindow: 5 * time.Second, FrameBytes: 64 << 20,
		Admission: DefaultAdmission(),
	}
}

// A Server is what all gRPC servers of a process have in common, whatever protocols they serve: which connections and
// streams are admitted, which are open, what they have in flight, and how they end.
type Server struct {
	config     Config
	admission  *admission
	cache      *Cache
	streams    streams
	metrics    streamMetrics
	collectors metricList
	draining   atomic.Pointer[drain]
}

// NewServer returns a Server without streams.
func NewServer(log logr.Logger, config Config) *Server {
	s := &Server{config: config, cache: NewCache(config.FrameBytes)}
	s.metrics = newStreamMetrics(&s.collectors, s)
	s.admission = newAdmission(log, config.Admission, &s.collectors)
	s.AddTypes(Beat)
	return s
}

// Config returns what the operator has decided.
func (s *Server) Config() Config { return s.config }

// Cache returns what keeps messages that streams share.
func (s *Server) Cache() *Cache { return s.cache }

// Collectors returns the Server's metrics, to be registered.
func (s *Server) Collectors() []prometheus.Collector { return slices.Clip(s.collectors) }

// drain is how streams end when the server is about to stop: at random points of a spread, so that
// their clients do not all come to the other replicas at once.
type drain struct {
	from   time.Time
	spread time.Duration
}

func (d *drain) endTime() time.Time { return d.from.Add(rand.N(d.spread + 1)) }

// Drain ends every stream, those to come included, with OK: their clients go elsewhere. It takes a
// millisecond for each stream that is open, and no more than within. The channel that it returns is
// closed when there is none any more. A drain that has begun goes on as it did: each gRPC server of a process may begin
// it.
func (s *Server) Drain(within time.Duration) (drained <-chan struct{}) {
	spread := min(within, time.Duration(s.streams.len())*time.Millisecond)
	s.draining.CompareAndSwap(nil, &drain{from: time.Now(), spread: spread})
	return s.streams.wakeAll()
}

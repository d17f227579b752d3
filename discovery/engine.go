package discovery

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/federation"
)

// Config is what the operator decides about answers and streams, whatever their protocol.
type Config struct {
	Cluster             federation.Cluster // that we run in: the one whose Services are asked for
	ControllerNamespace string             // of the mesh's control plane: other meshes' workloads get no identity
	IPv6                bool               // reach workloads over IPv6 where they have it
	ZoneWeights         bool               // weigh endpoints in the client's zone ten times

	// MaxStreamAge is the age at which a stream ends with OK, give or take a tenth, so that clients spread anew
	// over the replicas; 0: never.
	MaxStreamAge time.Duration
	DrainWindow  time.Duration // in which streams end when the process is to stop
	// FirstSyncGrace is how long a first answer waits for a cluster that is being listed for the first
	// time, from when it was linked: see [federation.Snapshot.WaitUntil].
	FirstSyncGrace time.Duration
	FrameBytes     int64 // bound on the encoded messages that are kept
	Admission      AdmissionConfig

	// DetailedMetrics exports what no dashboard shows, and counts streams by the member of the Service, the
	// node of the client and the hostname, too.
	DetailedMetrics bool
}

// DefaultConfig returns a Config with the defaults of everything that has one.
func DefaultConfig() Config {
	return Config{
		Cluster: "local", ControllerNamespace: "linkerd", IPv6: true,
		MaxStreamAge: 30 * time.Minute, DrainWindow: 5 * time.Second, FirstSyncGrace: 10 * time.Second,
		FrameBytes: 64 << 20,
		Admission:  DefaultAdmission(),
	}
}

// An Engine serves the Answers of a Store to streams of any protocol.
type Engine struct {
	config     Config
	store      *federation.Store
	admission  *admission
	cache      *Cache
	leftOut    atomic.Uint64 // addresses and other things that could not be encoded
	selections *selections
	streams    streams
	feeds      feeds
	services   *serviceMetrics
	metrics    streamMetrics
	collectors metricList
	started    time.Time
	draining   atomic.Pointer[drain]
}

// NewEngine returns an Engine of what store holds.
func NewEngine(log logr.Logger, store *federation.Store, config Config) *Engine {
	e := &Engine{config: config, store: store, started: time.Now()}
	e.metrics = newStreamMetrics(&e.collectors)
	e.admission = newAdmission(log, config.Admission, &e.collectors)
	e.cache = newCache(config.FrameBytes)
	e.selections = newSelections(&e.config, e.cache, &e.leftOut)
	e.services = &serviceMetrics{engine: e}
	e.addMetrics(&e.collectors)
	return e
}

// Store returns what the Engine serves.
func (e *Engine) Store() *federation.Store { return e.store }

// Collectors returns the Engine's metrics, to be registered.
func (e *Engine) Collectors() []prometheus.Collector { return slices.Clip(e.collectors) }

// Cache returns what keeps messages that streams share.
func (e *Engine) Cache() *Cache { return e.cache }

// LeaveOut counts an object that could not be encoded, besides the addresses that an Encoder reports.
func (e *Engine) LeaveOut() { e.leftOut.Add(1) }

// drain is how streams end when the server is about to stop: at random points of a spread, so that
// their clients do not all come to the other replicas at once.
type drain struct {
	from   time.Time
	spread time.Duration
}

func (d *drain) endTime() time.Time { return d.from.Add(rand.N(d.spread + 1)) }

// Drain ends every stream, those to come included, with OK: their clients go elsewhere. It takes a
// millisecond for each stream that is open, and no more than within. The channel that it returns is
// closed when there is none any more. A drain that has begun goes on as it did: each server of a process may begin it.
func (e *Engine) Drain(within time.Duration) (drained <-chan struct{}) {
	spread := min(within, time.Duration(e.streams.len())*time.Millisecond)
	e.draining.CompareAndSwap(nil, &drain{from: time.Now(), spread: spread})
	return e.streams.wakeAll()
}

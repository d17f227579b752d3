package discovery

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/serving"
)

// Config is what the operator decides about answers, whatever their protocol.
type Config struct {
	Cluster             federation.Cluster // that we run in: the one whose Services are asked for
	ControllerNamespace string             // of the mesh's control plane: other meshes' workloads get no identity
	IPv6                bool               // reach workloads over IPv6 where they have it
	ZoneWeights         bool               // weigh endpoints in the client's zone ten times

	// FirstSyncGrace is how long a first answer waits for a cluster that is being listed for the first
	// time, from when it was linked: see [federation.Snapshot.WaitUntil].
	FirstSyncGrace time.Duration

	// DetailedMetrics exports what no dashboard shows, and counts streams by the member of the Service, the
	// node of the client and the hostname, too.
	DetailedMetrics bool
}

// DefaultConfig returns a Config with the defaults of everything that has one.
func DefaultConfig() Config {
	return Config{
		Cluster: "local", ControllerNamespace: "linkerd", IPv6: true, FirstSyncGrace: 10 * time.Second,
	}
}

// The types of messages that Encoders make, and any protocol may send.
const (
	Add       serving.MessageType = "add"
	Remove    serving.MessageType = "remove"
	NoEntries serving.MessageType = "no_endpoints"
)

// An Engine serves the Answers of a Store to streams of any protocol.
type Engine struct {
	config     Config
	server     *serving.Server
	store      *federation.Store
	nodes      watch.Reader[string, federation.Node] // on which clients stand
	leftOut    atomic.Uint64                         // addresses and other things that could not be encoded
	selections *selections
	feeds      feeds
	services   *serviceMetrics
	metrics    feedMetrics
	collectors []prometheus.Collector
	started    time.Time
}

// NewEngine returns an Engine of what store holds, for streams of a server.
func NewEngine(server *serving.Server, store *federation.Store, config Config) *Engine {
	e := &Engine{
		config: config, server: server, store: store, nodes: store.Nodes.In(config.Cluster), started: time.Now(),
	}
	server.AddTypes(Add, Remove, NoEntries)
	e.selections = newSelections(&e.config, server.Cache(), &e.leftOut)
	e.services = &serviceMetrics{engine: e}
	e.metrics, e.collectors = newFeedMetrics()
	e.collectors = append(e.collectors, e.ownMetrics()...)
	return e
}

// Serving returns the Server on which the Engine's streams are opened.
func (e *Engine) Serving() *serving.Server { return e.server }

// Store returns what the Engine serves.
func (e *Engine) Store() *federation.Store { return e.store }

// Collectors returns the Engine's metrics, to be registered.
func (e *Engine) Collectors() []prometheus.Collector { return slices.Clip(e.collectors) }

// LeaveOut counts an object that could not be encoded, besides the addresses that an Encoder reports.
func (e *Engine) LeaveOut() { e.leftOut.Add(1) }

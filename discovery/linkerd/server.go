package linkerd

import (
	"net"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
)

// A Server answers Destination requests from a Store.
type Server struct {
	pb.UnimplementedDestinationServer

	log       logr.Logger
	config    Config
	engine    *discovery.Engine
	followers *profileFollowers
	workloads prometheus.Counter
}

// NewServer returns a Server of what store holds.
func NewServer(log logr.Logger, store *federation.Store, config Config) *Server {
	return &Server{
		log: log, config: config, engine: discovery.NewEngine(log, store, config.Config),
		followers: newProfileFollowers(store.Profiles()),
		workloads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "workload_updates",
			Help: "Answers to GetProfile about what is at an IP, the first and each that differs from the one before.",
		}),
	}
}

// Engine returns what serves the Server's streams.
func (s *Server) Engine() *discovery.Engine { return s.engine }

// Options returns what a grpc.Server needs that serves the Server.
func (s *Server) Options() []grpc.ServerOption { return s.engine.Options() }

// Listen returns a listener that passes on no more connections than may be open; see
// [discovery.Engine.Listen].
func (s *Server) Listen(l net.Listener) net.Listener { return s.engine.Listen(l) }

// Collectors returns the metrics of the Server and its Engine, to be registered. What no dashboard shows of
// GetProfile is among them with Config.DetailedMetrics.
func (s *Server) Collectors() []prometheus.Collector {
	if !s.config.DetailedMetrics {
		return s.engine.Collectors()
	}
	return append(s.engine.Collectors(), s.followers, s.workloads)
}

// Drain ends every stream; see [discovery.Engine.Drain].
func (s *Server) Drain(within time.Duration) (drained <-chan struct{}) { return s.engine.Drain(within) }

// Streams returns every open stream, the oldest first.
func (s *Server) Streams() []discovery.StreamStatus { return s.engine.Streams() }

// Stream returns one open stream with the addresses that its client holds.
func (s *Server) Stream(id uint64) (discovery.StreamStatus, bool) { return s.engine.Stream(id) }

// clientOf returns what the context token of a request names. A token that cannot be read names nothing.
func (s *Server) clientOf(request *pb.GetDestination) (discovery.Client, error) {
	client, err := parseToken(request.GetContextToken())
	if err != nil {
		s.log.V(1).Info("A context token cannot be read", "path", request.GetPath(), "error", err.Error())
	}
	return client, validateClient(client)
}

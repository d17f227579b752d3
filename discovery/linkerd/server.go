package linkerd

import (
	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// A Server answers Destination requests from the Store of its Engine.
type Server struct {
	pb.UnimplementedDestinationServer
	*discovery.Engine

	log       logr.Logger
	config    Config
	followers *profileFollowers
	workloads prometheus.Counter
}

// NewServer returns a Server of what store holds, whose streams are opened on another one.
func NewServer(log logr.Logger, on *serving.Server, store *federation.Store, config Config) *Server {
	on.AddTypes(typeProfile)
	return &Server{
		log: log, config: config, Engine: discovery.NewEngine(on, store, config.Config),
		followers: newProfileFollowers(store.Profiles.In(config.Cluster)),
		workloads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "workload_updates",
			Help: "Answers to GetProfile about what is at an IP, the first and each that differs from the one before.",
		}),
	}
}

// Collectors returns the metrics of the Server and its Engine, to be registered. What no dashboard shows of
// GetProfile is among them with Config.DetailedMetrics.
func (s *Server) Collectors() []prometheus.Collector {
	if !s.config.DetailedMetrics {
		return s.Engine.Collectors()
	}
	return append(s.Engine.Collectors(), s.followers, s.workloads)
}

// clientOf returns what the context token of a request names. A token that cannot be read names nothing.
func (s *Server) clientOf(request *pb.GetDestination) (serving.Client, error) {
	client, err := parseToken(request.GetContextToken())
	if err != nil {
		s.log.V(1).Info("A context token cannot be read", "path", request.GetPath(), "error", err.Error())
	}
	return client, validateClient(client)
}

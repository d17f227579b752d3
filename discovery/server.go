package discovery

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"golang.org/x/time/rate"

	"github.com/fingerpost/fingerpost/federation"
)

// Server answers Destination requests from a Store.
type Server struct {
	pb.UnimplementedDestinationServer

	log       logr.Logger
	config    Config
	store     *federation.Store
	admission *Admission
	frames    *frameCache
	feeds     *feeds
	streams   streams
	audiences *audiences
	metrics   *metrics
	started   time.Time
	draining  atomic.Pointer[drain]
}

// NewServer returns a Server of what store holds.
func NewServer(log logr.Logger, store *federation.Store, config Config) *Server {
	s := &Server{
		log: log, config: config, store: store, started: time.Now(),
	}
	full := rate.Sometimes{Interval: time.Minute}
	s.admission = NewAdmission(config.Admission, counts{
		refused: func(reason string) { s.metrics.refusedOf[reason].Inc() },
		connectionRefused: func() {
			s.metrics.noConnection.Inc()
			full.Do(func() {
				log.Info("New connections are closed: as many are open as -max-connections allows", "open", config.Admission.Connections)
			})
		},
		halfOpenEnded: func() { s.metrics.halfOpenEnded.Inc() },
		stalled:       func() { s.metrics.stalled.Inc() },
	})
	s.frames = newFrameCache(config.FrameBytes)
	s.feeds = newFeeds(&s.config, s.frames)
	s.audiences = newAudiences(&s.streams, store.Profiles())
	s.metrics = newMetrics(s)
	return s
}

// drain is how streams end when the server is about to stop: at random points of a spread, so that their clients do not all come to
// the other replicas at once.
type drain struct {
	from   time.Time
	spread time.Duration
}

func (d *drain) end() time.Time { return d.from.Add(rand.N(d.spread + 1)) }

// Drain ends every stream, those to come included, with OK: their clients go elsewhere. It takes a millisecond for each stream that is
// open, and no more than within. The channel that it returns is closed when there is none any more.
func (s *Server) Drain(within time.Duration) (drained <-chan struct{}) {
	s.draining.Store(&drain{from: time.Now(), spread: min(within, time.Duration(s.streams.len())*time.Millisecond)})
	return s.streams.end()
}

// Get streams the addresses of a Service. See docs/protocol.md for what it sends when.
func (s *Server) Get(request *pb.GetDestination, sink pb.Destination_GetServer) error {
	asked, err := parseAuthority(request.GetPath(), s.config.ClusterDomain)
	if err != nil {
		return err
	}
	who, err := s.whoIs(request)
	if err != nil {
		return err
	}
	g := newGet(s, request.GetPath(), asked, who, sink)
	defer g.close()
	return g.run(sink.Context())
}

// GetProfile streams what is known of a Service, or of the workload at an IP. See docs/protocol.md.
func (s *Server) GetProfile(request *pb.GetDestination, sink pb.Destination_GetProfileServer) error {
	asked, err := parseTarget(request.GetPath(), s.config.ClusterDomain)
	if err != nil {
		return err
	}
	who, err := s.whoIs(request)
	if err != nil {
		return err
	}
	l := newLookup(s, request.GetPath(), asked, who, sink)
	defer l.close()
	return l.run(sink.Context())
}

// whoIs returns what the context token of a request names. A token that cannot be read names nothing.
func (s *Server) whoIs(request *pb.GetDestination) (client, error) {
	who, err := parseToken(request.GetContextToken())
	if err != nil {
		s.log.V(1).Info("A context token cannot be read", "path", request.GetPath(), "error", err.Error())
	}
	return who, who.validate()
}

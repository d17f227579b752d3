// Package certify serves Linkerd's Identity API (io.linkerd.proxy.identity): a proxy sends a token and a signing
// request, and gets its certificate. What is answered is decided in package identity; here it becomes messages, codes,
// metrics and lines of the log. None of them has a token or a signing request in it, and no label has an identity.
package certify

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/identity"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fingerpost/fingerpost/identity"
)

// Outcomes are called with what became of calls; nil for nothing. They must return at once: a call waits for them.
type Outcomes struct {
	Issued  func(*identity.Leaf)
	Refused func(*identity.Refusal)
}

// A Server serves the API.
type Server struct {
	pb.UnimplementedIdentityServer
	log       logr.Logger
	authority *identity.Authority
	outcomes  Outcomes
	calls     *prometheus.CounterVec
	seconds   prometheus.Histogram
}

// NewServer returns a Server of an Authority.
func NewServer(log logr.Logger, authority *identity.Authority, outcomes Outcomes) *Server {
	server := &Server{
		log: log, authority: authority, outcomes: outcomes,
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fingerpost_certify_total",
			Help: "Calls for a certificate that have ended, by the code of the answer and the check that it did not " +
				"pass; that is empty for OK.",
		}, []string{"code", "check"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fingerpost_certify_seconds",
			Help:    "How long calls for a certificate take, with the review of the token, whatever becomes of them.",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10},
		}),
	}

	// A rate begins with a first value.
	server.calls.WithLabelValues(codes.OK.String(), "")
	server.calls.WithLabelValues(codes.Unavailable.String(), string(identity.CheckIssuer))
	return server
}

// Register adds the API to a gRPC server.
func (s *Server) Register(with grpc.ServiceRegistrar) { pb.RegisterIdentityServer(with, s) }

// Collectors returns the metrics of calls, to be registered.
func (s *Server) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.calls, s.seconds}
}

// Certify answers a call: with a leaf, with what is above it, and with when it ends. Its errors name the check that the
// request has not passed.
func (s *Server) Certify(ctx context.Context, request *pb.CertifyRequest) (*pb.CertifyResponse, error) {
	began := time.Now()
	leaf, refusal := s.authority.Certify(ctx, identity.Request{
		Identity: request.GetIdentity(), Token: request.GetToken(), Signing: request.GetCertificateSigningRequest(),
	})
	s.seconds.Observe(time.Since(began).Seconds())
	if refusal != nil {
		return nil, s.refuse(ctx, request.GetIdentity(), refusal)
	}

	s.calls.WithLabelValues(codes.OK.String(), "").Inc()
	s.log.V(1).Info("Certificate was issued", "identity", request.GetIdentity(), "client", addressOf(ctx),
		"serial", leaf.Certificate.SerialNumber.String(), "notAfter", leaf.Certificate.NotAfter)
	if s.outcomes.Issued != nil {
		s.outcomes.Issued(leaf)
	}
	return &pb.CertifyResponse{
		LeafCertificate: leaf.Certificate.Raw, IntermediateCertificates: leaf.Chain,
		ValidUntil: timestamppb.New(leaf.Certificate.NotAfter),
	}, nil
}

// refuse counts and logs a refusal, and returns it as the status of a call.
func (s *Server) refuse(ctx context.Context, name string, refusal *identity.Refusal) error {
	code := codeOf(refusal.Cause)
	s.calls.WithLabelValues(code.String(), string(refusal.Check)).Inc()
	if s.outcomes.Refused != nil {
		s.outcomes.Refused(refusal)
	}

	fields := []any{
		"identity", shorten(name), "client", addressOf(ctx), "check", string(refusal.Check), "reason", refusal.Text,
	}
	if refusal.Cause == identity.Bug {
		s.log.Error(refusal.Err, "BUG: a certificate that was signed does not verify, and was not sent", fields...)
		return status.Error(code, refusal.Text)
	}
	if refusal.Err != nil {
		fields = append(fields, "cause", refusal.Err.Error())
	}
	s.log.Info("Certificate was refused", fields...)
	return status.Error(code, refusal.Text)
}

func codeOf(cause identity.Cause) codes.Code {
	switch cause {
	case identity.Malformed:
		return codes.InvalidArgument
	case identity.Denied:
		return codes.FailedPrecondition
	case identity.Unavailable:
		return codes.Unavailable
	default:
		return codes.Internal
	}
}

// maxLogged is how many bytes of an identity are logged: those of any that can be right.
const maxLogged = 253

func shorten(name string) string {
	if len(name) > maxLogged {
		return name[:maxLogged] + "..."
	}
	return name
}

// addressOf returns where a call comes from; empty if that is not known.
func addressOf(ctx context.Context) string {
	if from, known := peer.FromContext(ctx); known && from.Addr != nil {
		return from.Addr.String()
	}
	return ""
}

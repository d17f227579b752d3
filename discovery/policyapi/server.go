package policyapi

import (
	"context"
	"errors"
	"time"

	inbound "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/serving"
)

// typePolicy is the type of all messages.
const typePolicy serving.MessageType = "policy"

// patience is how long a call waits until everything was listed.
const patience = 10 * time.Second

// A Server answers both services of the Policy API from Levels.
type Server struct {
	inbound.UnimplementedInboundServerPoliciesServer
	outbound.UnimplementedOutboundPoliciesServer

	on      *serving.Server
	levels  rules.LevelsReader
	options *rules.Options
}

// NewServer returns a Server of what the local cluster has, whose streams are opened on another one.
func NewServer(on *serving.Server, levels rules.LevelsReader, options *rules.Options) *Server {
	on.AddTypes(typePolicy)
	return &Server{on: on, levels: levels, options: options}
}

// Register registers both services.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	inbound.RegisterInboundServerPoliciesServer(to, s)
	outbound.RegisterOutboundPoliciesServer(to, s)
}

// errEnded ends a stream with OK: its client asks again.
var errEnded = errors.New("what was asked for stands for something else")

func ended(err error) error {
	if errors.Is(err, errEnded) {
		return nil
	}
	return err
}

// errNotListed is what a call gets that has waited for long enough.
var errNotListed = status.Error(codes.Unavailable, "objects of policy were not listed yet")

// await waits until everything was listed.
func (s *Server) await(ctx context.Context) error {
	bell := watch.NewBell()
	remove := s.levels.AddToListed(bell)
	defer remove()
	timer := time.NewTimer(patience)
	defer timer.Stop()

	for !s.levels.Listed() {
		select {
		case <-bell.Rung():
		case <-timer.C:
			return errNotListed
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

// isListed reports for a stream whether everything was listed. The error ends one that has waited for long enough.
func (s *Server) isListed(stream *serving.Stream, now time.Time) (bool, error) {
	if s.levels.Listed() {
		return true, nil
	}
	until := stream.About().Opened.Add(patience)
	if !now.Before(until) {
		return false, errNotListed
	}
	stream.WakeBy(now, until)
	return false, nil
}

// newFrame encodes a message. What streams with an equal level share is kept for them.
func newFrame(message proto.Message) (f *serving.Frame, refers int) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		panic("BUG: texts of rules are valid UTF-8: " + err.Error())
	}
	return serving.NewFrame(typePolicy, b, 0, 0), len(b)
}

package policyapi

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	inbound "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/serving"
)

// typePolicy is the type of all messages.
const typePolicy serving.MessageType = "policy"

// patience is how long a call waits until everything was listed, and a process until it answers from the last state
// that was saved.
const patience = 10 * time.Second

// A Server answers both services of the Policy API from Levels.
type Server struct {
	inbound.UnimplementedInboundServerPoliciesServer
	outbound.UnimplementedOutboundPoliciesServer

	on      *serving.Server
	levels  rules.LevelsReader
	options *rules.Options
	patient time.Time // until when what was restored is no answer
	log     logr.Logger
	large   tooLarge
}

// NewServer returns a Server of what the local cluster has, whose streams are opened on another one.
func NewServer(log logr.Logger, on *serving.Server, levels rules.LevelsReader, options *rules.Options) *Server {
	on.AddTypes(typePolicy)
	return &Server{on: on, levels: levels, options: options, patient: time.Now().Add(patience), log: log}
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

// isKnown reports whether a call that began at a time is answered now, or else until when it waits. What was restored
// is an answer once the API server had its time: it may have been withdrawn since. The error ends a call that has
// waited for long enough.
func (s *Server) isKnown(began, now time.Time) (is bool, until time.Time, err error) {
	state := s.levels.Completeness()
	if state == facts.Complete || state == facts.Restored && !now.Before(s.patient) {
		return true, time.Time{}, nil
	}
	until = began.Add(patience)
	if !now.Before(until) {
		return false, until, errNotListed
	}
	if s.patient.After(now) && s.patient.Before(until) {
		until = s.patient
	}
	return false, until, nil
}

// await waits until calls are answered.
func (s *Server) await(ctx context.Context) error {
	bell := watch.NewBell()
	remove := s.levels.AddToCompleteness(bell)
	defer remove()

	for began := time.Now(); ; {
		is, until, err := s.isKnown(began, time.Now())
		if is || err != nil {
			return err
		}
		if err := waitRung(ctx, bell, until); err != nil {
			return err
		}
	}
}

func waitRung(ctx context.Context, bell *watch.Bell, until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-bell.Rung():
	case <-timer.C:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// isListed reports for a stream whether it is answered. The error ends one that has waited for long enough.
func (s *Server) isListed(stream *serving.Stream, now time.Time) (bool, error) {
	is, until, err := s.isKnown(stream.About().Opened, now)
	if !is && err == nil {
		stream.WakeBy(now, until)
	}
	return is, err
}

// addUntilComplete rings a bell when everything may have been listed, until remove is called. What was listed once
// stays so, and costs a stream nothing.
func (s *Server) addUntilComplete(bell *watch.Bell) (remove func()) {
	if s.levels.Completeness() == facts.Complete {
		return func() {}
	}
	return s.levels.AddToCompleteness(bell)
}

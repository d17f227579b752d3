package policyapi

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/internal/logs"
	"github.com/fingerpost/fingerpost/serving"
)

// A TooLarge is an object whose policy is too large for a message: no client gets its changes.
type TooLarge struct {
	Of    rules.Reference `json:"of"`
	Bytes int             `json:"bytes"`
	Since time.Time       `json:"since"`
}

const (
	// reportedLarge is how many such objects are reported at most.
	reportedLarge = 10
	// largeInterval is how long what was found counts, before it is asked for again.
	largeInterval = 10 * time.Second
)

// A question is what a client has asked for: of the two, workload is that of a port, and zero for a target.
type question struct {
	workload rules.WorkloadRef
	port     uint16

	asked  target
	client string // its namespace
}

// tooLarge are the objects whose messages were refused, by the question that first found each. Streams with equal
// levels share one refusal, and nothing ends that: so each question is asked once more before an object is
// reported.
type tooLarge struct {
	mu    sync.Mutex
	found map[rules.Reference]*largeAnswer
	asked time.Time // when all were asked again
}

type largeAnswer struct {
	TooLarge
	question question
}

// note notes a message that was refused. It returns whether that is new.
func (t *tooLarge) note(of rules.Reference, bytes int, asked question, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.found[of]; known != nil {
		known.Bytes = bytes
		return false
	}
	if len(t.found) >= reportedLarge {
		return false
	}

	if t.found == nil {
		t.found = map[rules.Reference]*largeAnswer{}
	}
	t.found[of] = &largeAnswer{TooLarge: TooLarge{of, bytes, now}, question: asked}
	return true
}

// due returns the questions that are to be asked again, if any.
func (t *tooLarge) due(now time.Time) map[rules.Reference]question {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.asked) < largeInterval {
		return nil
	}
	t.asked = now
	questions := map[rules.Reference]question{}
	for of, answer := range t.found {
		questions[of] = answer.question
	}
	return questions
}

func (t *tooLarge) forget(of rules.Reference) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.found, of)
}

func (t *tooLarge) list() (all []TooLarge) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range slices.SortedFunc(maps.Keys(t.found), rules.Reference.Compare) {
		all = append(all, t.found[of].TooLarge)
	}
	return all
}

// TooLarge returns the objects whose policy clients have asked for and that is too large for a message, 10 at most. It
// computes their messages if that was not done within 10 s.
func (s *Server) TooLarge() []TooLarge {
	for of, asked := range s.large.due(time.Now()) {
		message, now, err := s.answer(asked)
		switch {
		case errors.Is(err, errUnknown): // perhaps it still is
		case err != nil || now != of || proto.Size(message) <= serving.MaxFrame:
			s.large.forget(of)
		default:
			s.large.note(of, proto.Size(message), asked, time.Now())
		}
	}
	return s.large.list()
}

// Metric returns the metric of such objects, to be registered.
func (s *Server) Metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fingerpost_policy_too_large",
		Help: "Objects whose policy was asked for and does not fit into a message; 10 at most are counted.",
	}, func() float64 { return float64(len(s.TooLarge())) })
}

// answer returns the answer to a question as it is now, and what it is about.
func (s *Server) answer(to question) (message proto.Message, of rules.Reference, err error) {
	if to.workload != (rules.WorkloadRef{}) {
		return s.inbound(to.workload, to.port)
	}
	return s.outbound(to.asked, to.client)
}

// checkSize refuses a message that clients of gRPC would not decode. Objects that an API server accepts one by one may
// be one in all: a hundred routes of a Service, or all that is granted in a namespace.
func checkSize(message proto.Message, of rules.Reference) error {
	size := proto.Size(message)
	if size <= serving.MaxFrame {
		return nil
	}
	return status.Errorf(codes.ResourceExhausted, "the policy of %s takes %d bytes, and a message has %d at most",
		of, size, serving.MaxFrame)
}

// check refuses a message that is too large, and notes it.
func (s *Server) check(message proto.Message, of rules.Reference, asked question) error {
	err := checkSize(message, of)
	if err != nil && s.large.note(of, proto.Size(message), asked, time.Now()) {
		logs.Warn(s.log, "A policy does not fit into a message: clients keep what they have",
			"object", of.String(), "error", err.Error())
	}
	return err
}

// newFrame encodes a message about an object. What streams with an equal level share is kept for them, a refusal, too.
func (s *Server) newFrame(message proto.Message, of rules.Reference, asked question) (f *serving.Frame, refers int) {
	if err := s.check(message, of, asked); err != nil {
		return serving.NewRefusal(err), serving.MaxFrame
	}

	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		panic("BUG: texts of rules are valid UTF-8: " + err.Error())
	}
	return serving.NewFrame(typePolicy, b, 0, 0), len(b)
}

package discovery

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// AdmissionConfig bounds the work that streams may cause, and what they may hold. Each bound is per connection first, and then in all.
type AdmissionConfig struct {
	ConnectionRate  float64 // new streams a second of one connection, in the long run
	ConnectionBurst int     // new streams at once of one connection
	Rate            float64 // of all
	Burst           int

	ConnectionStreams int // open streams of one connection
	Streams           int // of all

	Request time.Duration // how long the request of a stream may take to arrive

	Answers  int           // first answers that are made at the same time
	Patience time.Duration // how long a new stream waits for its turn to be answered
}

// DefaultAdmission returns bounds for the CPUs and the memory that there are. A client is patient for 3 s, so a turn that comes later is
// too late. Ten connections that do their worst leave the rest of the rate to others.
func DefaultAdmission() AdmissionConfig {
	cpus := runtime.GOMAXPROCS(0)
	return AdmissionConfig{
		ConnectionRate: 100 * float64(cpus), ConnectionBurst: 1000,
		Rate: 1000 * float64(cpus), Burst: 4000,
		ConnectionStreams: 4000, Streams: streamsFor(debug.SetMemoryLimit(-1)),
		Request: 30 * time.Second,
		Answers: 4 * cpus, Patience: 2 * time.Second,
	}
}

// streamsFor returns how many streams fit half of a limit of memory, at 16 KiB for each.
func streamsFor(limit int64) int {
	if limit == math.MaxInt64 {
		return 100_000 // there is none
	}
	return int(max(1000, limit/2/(16<<10)))
}

const (
	// The rest of a header is for intermediaries: a proxy sends about ten fields. gRPC keeps them as long as the stream.
	maxHeaderFields = 64
	maxHeaderBytes  = 16 << 10
	maxRequestBytes = 16 << 10

	// maxHalfOpen bounds the streams of one connection whose request has not arrived: a client sends it with the header.
	maxHalfOpen = 1000
)

// The reasons why a stream is refused; labels of a metric.
const (
	refusedHeader            = "header"
	refusedHalfOpen          = "half-open"
	refusedConnectionRate    = "connection-rate"
	refusedConnectionStreams = "connection-streams"
	refusedRate              = "rate"
	refusedStreams           = "streams"
	refusedTurn              = "turn"
)

var refusals = []string{
	refusedHeader, refusedHalfOpen, refusedConnectionRate, refusedConnectionStreams, refusedRate, refusedStreams, refusedTurn,
}

// Admission stands before all work for a new stream, and before its goroutine. What is too much is refused, so that the rest is answered
// in time: a client that is refused comes back later, one that is left waiting gives up and comes back at once.
type Admission struct {
	config  AdmissionConfig
	limiter *rate.Limiter
	turns   chan struct{}
	refused func(reason string) // counts
	ended   func()              // counts a stream whose request did not arrive

	connections, streams, halfOpen atomic.Int64
}

// NewAdmission returns an Admission with nothing admitted. The functions count.
func NewAdmission(c AdmissionConfig, refused func(reason string), ended func()) *Admission {
	return &Admission{
		config: c, limiter: rate.NewLimiter(rate.Limit(c.Rate), c.Burst), turns: make(chan struct{}, c.Answers),
		refused: refused, ended: ended,
	}
}

// admit lets a new stream of a connection in, or refuses it with RESOURCE_EXHAUSTED. What a connection may not have costs the others
// nothing.
func (a *Admission) admit(c *connection) error {
	reason, err := "", error(nil)
	switch config := &a.config; {
	case c.halfOpen.Load() >= maxHalfOpen:
		reason, err = refusedHalfOpen, status.Errorf(codes.ResourceExhausted, "more than %d streams of this connection have sent no request", maxHalfOpen)
	case c.streams.Load() >= int64(config.ConnectionStreams):
		reason, err = refusedConnectionStreams, status.Errorf(codes.ResourceExhausted, "more than %d streams on one connection", config.ConnectionStreams)
	case !c.limiter.Allow():
		reason, err = refusedConnectionRate, status.Errorf(codes.ResourceExhausted, "more than %.0f new streams a second on one connection: try again later", config.ConnectionRate)
	case a.streams.Load() >= int64(config.Streams):
		reason, err = refusedStreams, status.Errorf(codes.ResourceExhausted, "more than %d streams: try another replica", config.Streams)
	case !a.limiter.Allow():
		reason, err = refusedRate, status.Errorf(codes.ResourceExhausted, "more than %.0f new streams a second: try again later", config.Rate)
	default:
		return nil
	}
	a.refused(reason)
	return err
}

// turn waits for the stream's turn to be answered first, and returns how to end it.
func (a *Admission) turn(ctx context.Context) (done func(), err error) {
	done = func() { <-a.turns }
	select {
	case a.turns <- struct{}{}:
		return done, nil
	default:
	}
	timer := time.NewTimer(a.config.Patience)
	defer timer.Stop()
	select {
	case a.turns <- struct{}{}:
		return done, nil
	case <-timer.C:
		a.refused(refusedTurn)
		return nil, status.Errorf(codes.ResourceExhausted, "no turn within %s: try again later", a.config.Patience)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

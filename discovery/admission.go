package discovery

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
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

	ConnectionBytes int64 // of messages that gRPC has not written yet, on one connection
	Bytes           int64 // of all, where what streams share counts once

	Request time.Duration // how long the request of a stream may take to arrive
	Stall   time.Duration // how long a connection may make no progress while something waits on it

	Answers  int           // first answers that are made at the same time
	Patience time.Duration // how long a new stream waits for its turn to be answered
}

// DefaultAdmission returns bounds for the CPUs and the memory that there are. A client is patient for 3 s, so a turn that comes later is
// too late. Ten connections that do their worst leave the rest of the rate to others.
func DefaultAdmission() AdmissionConfig {
	cpus := runtime.GOMAXPROCS(0)
	limit := debug.SetMemoryLimit(-1)
	return AdmissionConfig{
		ConnectionRate: 100 * float64(cpus), ConnectionBurst: 2000,
		Rate: 1000 * float64(cpus), Burst: 4000,
		ConnectionStreams: 4000, Streams: streamsFor(limit),
		ConnectionBytes: 16 << 20, Bytes: bytesFor(limit),
		Request: 30 * time.Second, Stall: 5 * time.Minute,
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

// bytesFor returns how many bytes may be in flight: an eighth of a limit of memory.
func bytesFor(limit int64) int64 {
	if limit == math.MaxInt64 {
		return 128 << 20 // there is none
	}
	return max(16<<20, limit/8)
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
//
// A first answer that nobody has yet costs as much as it is large: thousands of times what one costs that is there already. So those of large
// Services have turns of their own, one at a time for each connection and half of the CPUs for all, and each is paid for by its size from
// the connection's rate.
type Admission struct {
	config  AdmissionConfig
	limiter *rate.Limiter
	turns   chan struct{}
	large   chan struct{} // turns of large answers
	count   counts

	streams, halfOpen atomic.Int64
	bytes             atomic.Int64 // in flight

	mu      sync.Mutex // guards all below
	open    map[*connection]struct{}
	waiting map[*alarm]struct{} // for room
	hurried time.Time           // when stalled connections were looked for last
}

// counts are called for what an Admission does.
type counts struct {
	refused                func(reason string)
	halfOpenEnded, stalled func()
}

// NewAdmission returns an Admission with nothing admitted.
func NewAdmission(c AdmissionConfig, count counts) *Admission {
	return &Admission{
		config: c, limiter: rate.NewLimiter(rate.Limit(c.Rate), c.Burst), count: count,
		turns: make(chan struct{}, c.Answers), large: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		open: map[*connection]struct{}{},
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
	a.count.refused(reason)
	return err
}

// turn waits for the turn of a stream of c to be answered first, by an answer that is large or not, and returns how to end it.
func (a *Admission) turn(ctx context.Context, c *connection, large bool) (done func(), err error) {
	turns := []chan struct{}{a.turns}
	if large {
		turns[0] = a.large
		if c != nil {
			turns = []chan struct{}{c.large, a.large}
		}
	}
	taken := 0
	done = func() {
		for _, t := range turns[:taken] {
			<-t
		}
	}
	var late <-chan time.Time
	for _, t := range turns {
		select {
		case t <- struct{}{}:
			taken++
			continue
		default:
		}
		if late == nil {
			timer := time.NewTimer(a.config.Patience)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case t <- struct{}{}:
			taken++
		case <-late:
			done()
			a.count.refused(refusedTurn)
			return nil, status.Errorf(codes.ResourceExhausted, "no turn within %s: try again later", a.config.Patience)
		case <-ctx.Done():
			done()
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return done, nil
}

const (
	largeAnswer   = 500 // addresses
	addressesPaid = 200 // for which an answer costs as much as one more stream
)

// pay charges the connection for an answer with n addresses that is made for it: it opens as many streams less for a while.
func (c *connection) pay(n int) {
	if c != nil {
		c.limiter.ReserveN(time.Now(), min(n/addressesPaid, c.limiter.Burst()))
	}
}

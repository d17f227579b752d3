package serving

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// AdmissionConfig bounds the work that streams may cause, and what they may hold. Each bound is per
// connection first, and then in all.
type AdmissionConfig struct {
	ConnectionRate  float64 // new streams a second of one connection, in the long run
	ConnectionBurst int     // new streams at once of one connection
	Rate            float64 // of all
	Burst           int

	Connections       int // open, those before the HTTP/2 preface included
	ConnectionStreams int // open streams of one connection
	Streams           int // of all

	ConnectionBytes int64 // of messages that gRPC has not written yet, on one connection
	Bytes           int64 // of all, where what streams share counts once

	Request time.Duration // how long the request of a stream may take to arrive
	Stall   time.Duration // how long a connection may make no progress while something waits on it

	Answers  int           // first answers that are made at the same time
	Patience time.Duration // how long a new stream waits for its turn to be answered
}

// DefaultAdmission returns bounds for the CPUs and the memory that there are. A client is patient for 3
// s, so a turn that comes later is too late. In the long run it takes ten connections that do their worst
// to use up the rate of all.
func DefaultAdmission() AdmissionConfig {
	cpus := runtime.GOMAXPROCS(0)
	limit := debug.SetMemoryLimit(-1)
	return AdmissionConfig{
		ConnectionRate: 100 * float64(cpus), ConnectionBurst: 2000,
		Rate: 1000 * float64(cpus), Burst: 4000,
		Connections: connectionsFor(limit), ConnectionStreams: 4000, Streams: streamsFor(limit),
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

// connectionsFor returns how many connections fit a quarter of a limit of memory, at 64 KiB for each.
func connectionsFor(limit int64) int {
	if limit == math.MaxInt64 {
		return 10_000 // there is none
	}
	return int(max(500, limit/4/(64<<10)))
}

// bytesFor returns how many bytes may be in flight: an eighth of a limit of memory.
func bytesFor(limit int64) int64 {
	if limit == math.MaxInt64 {
		return 48 << 20 // there is none
	}
	return max(16<<20, limit/8)
}

const (
	// The rest of a header is for intermediaries: a proxy sends about ten fields. gRPC keeps them as
	// long as the stream.
	maxHeaderFields = 64
	maxHeaderBytes  = 16 << 10
	maxRequestBytes = 16 << 10

	moreStreams = 1000 // than are admitted on a connection: they are refused; further ones wait at the client

	// maxHalfOpen bounds the streams whose request has not arrived: each holds a goroutine. A client
	// sends its requests with the headers, so that few of its streams are half open at any time: a
	// connection with few of them is not refused for those of others.
	maxHalfOpen = 600
	fewHalfOpen = 16

	// maxStarting bounds the streams of a connection whose handlers have not begun to run, and so
	// cannot have received a request that is here. It is less than fewHalfOpen, so that no client is
	// refused because CPUs are busy.
	maxStarting   = 8
	startPatience = time.Second
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

// refusals returns what clients get for each reason. They are made once: gRPC keeps them until they are
// written, however many a client causes.
func (c *AdmissionConfig) refusals() map[string]error {
	refusal := func(format string, bounds ...any) error {
		return status.Errorf(codes.ResourceExhausted, format, bounds...)
	}
	return map[string]error{
		refusedHeader: refusal("more than %d header fields", maxHeaderFields),
		refusedHalfOpen: refusal("more than %d streams have sent no request, %d of them on this connection",
			maxHalfOpen, fewHalfOpen),
		refusedConnectionStreams: refusal("more than %d streams on one connection", c.ConnectionStreams),
		refusedConnectionRate: refusal("more than %.0f new streams a second on one connection: try again later",
			c.ConnectionRate),
		refusedStreams: refusal("more than %d streams: try another replica", c.Streams),
		refusedRate:    refusal("more than %.0f new streams a second: try again later", c.Rate),
		refusedTurn:    refusal("no turn within %s: try again later", c.Patience),
	}
}

// admission stands before all work for a new stream, and before its goroutine. What is too much is
// refused, so that the rest is answered in time: a client that is refused comes back later, one that is
// left waiting gives up and comes back at once.
//
// A stream that is too much only now waits, as long as a client is patient. A proxy that is refused tries again after
// 0.1, 0.2, 0.4 s and so on, without jitter, and so do all its streams: what was refused together comes back together,
// is refused again, and waits for up to 52 s in the end. Among those that wait the limiters keep the order. So at most
// Patience times the rate of a connection, and that of all, wait at any time, each with its goroutine.
//
// A first answer that no stream has yet costs as much as it is large: thousands of times what one costs
// that is there already. So those of large Services have turns of their own, one at a time for each
// connection and half of the CPUs for all, and each is paid for by its size from the connection's rate.
type admission struct {
	config   AdmissionConfig
	limiter  *rate.Limiter
	turns    chan struct{}
	large    chan struct{}    // turns of large answers
	refusals map[string]error // by reason
	metrics  admissionMetrics
	log      logr.Logger
	full     rate.Sometimes // when it is logged that connections are refused

	connections       atomic.Int64
	streams, halfOpen atomic.Int64
	bytes             atomic.Int64 // in flight

	mu      sync.Mutex // guards all below
	open    map[*connection]struct{}
	waiting map[*alarm]struct{} // for room
	hurried time.Time           // when stalled connections were looked for last
}

// newAdmission returns an admission with nothing admitted, whose metrics are added to some.
func newAdmission(log logr.Logger, c AdmissionConfig, metrics *metricList) *admission {
	admission := &admission{
		config:   c,
		limiter:  rate.NewLimiter(rate.Limit(c.Rate), c.Burst),
		turns:    make(chan struct{}, c.Answers),
		large:    make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		refusals: c.refusals(),
		log:      log,
		full:     rate.Sometimes{Interval: time.Minute},
		open:     map[*connection]struct{}{},
	}
	admission.metrics = newAdmissionMetrics(metrics, admission)
	return admission
}

// admit lets a new stream of a connection in, after a wait, or refuses it with RESOURCE_EXHAUSTED. What a
// connection may not have costs the others nothing.
func (a *admission) admit(c *connection) (wait time.Duration, err error) {
	config := &a.config
	if a.halfOpen.Load() >= maxHalfOpen && c.halfOpen.Load() >= fewHalfOpen {
		return 0, a.refuse(refusedHalfOpen)
	}
	if c.streams.Load() >= int64(config.ConnectionStreams) {
		return 0, a.refuse(refusedConnectionStreams)
	}

	ofConnection, admitted := reserve(c.limiter, config.Patience)
	if !admitted {
		return 0, a.refuse(refusedConnectionRate)
	}
	if a.streams.Load() >= int64(config.Streams) {
		return 0, a.refuse(refusedStreams)
	}

	ofAll, admitted := reserve(a.limiter, config.Patience)
	if !admitted {
		return 0, a.refuse(refusedRate)
	}
	return max(ofConnection, ofAll), nil
}

// reserve takes one event from a limiter, and returns when it may happen; false, and takes none, if that is later
// than a client is patient.
func reserve(l *rate.Limiter, patience time.Duration) (wait time.Duration, admitted bool) {
	now := time.Now()
	r := l.ReserveN(now, 1)
	if !r.OK() {
		return 0, false
	}
	if wait = r.DelayFrom(now); wait > patience {
		r.CancelAt(now)
		return 0, false
	}
	return wait, true
}

// refuse counts a refusal and returns it.
func (a *admission) refuse(reason string) error {
	a.metrics.refused[reason].Inc()
	return a.refusals[reason]
}

// refuseConnection counts a connection that is closed because too many are open.
func (a *admission) refuseConnection() {
	a.metrics.connectionRefused.Inc()
	a.full.Do(func() {
		a.log.Info("New connections are closed: as many are open as -max-connections allows",
			"open", a.config.Connections)
	})
}

// turn waits for the turn of a stream of c to be answered first, by an answer that is large or not, and
// returns how to end it. If it has to wait it calls waits before.
func (a *admission) turn(
	ctx context.Context, c *connection, large bool, waits func() error,
) (done func(), err error) {
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
	for _, turn := range turns {
		select {
		case turn <- struct{}{}:
			taken++
			continue
		default:
		}

		if late == nil {
			if err := waits(); err != nil {
				done()
				return nil, err
			}
			timer := time.NewTimer(a.config.Patience)
			defer timer.Stop()
			late = timer.C
		}

		select {
		case turn <- struct{}{}:
			taken++
		case <-late:
			done()
			return nil, a.refuse(refusedTurn)
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

// pay charges the connection for an answer with n addresses that is made for it: it opens as many
// streams less for a while.
func (c *connection) pay(n int) {
	if c != nil {
		c.limiter.ReserveN(time.Now(), min(n/addressesPaid, c.limiter.Burst()))
	}
}

package discovery

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// AdmissionConfig bounds the work that new streams may cause.
type AdmissionConfig struct {
	Rate     float64       // new streams a second, in the long run
	Burst    int           // new streams at once
	Answers  int           // first answers that are made at the same time
	Patience time.Duration // how long a new stream waits for its turn to be answered
}

// DefaultAdmission returns bounds for the CPUs that there are. A client is patient for 3 s, so a turn that comes later is too late.
func DefaultAdmission() AdmissionConfig {
	cpus := runtime.GOMAXPROCS(0)
	return AdmissionConfig{Rate: 1000 * float64(cpus), Burst: 4000, Answers: 4 * cpus, Patience: 2 * time.Second}
}

// Admission stands before all work for a new stream. What is too much is refused, so that the rest is answered in time: a client
// that is told comes back later, one that is left waiting gives up and comes back at once.
type Admission struct {
	config  AdmissionConfig
	limiter *rate.Limiter
	turns   chan struct{}
}

// NewAdmission returns an Admission with nothing admitted.
func NewAdmission(c AdmissionConfig) *Admission {
	return &Admission{config: c, limiter: rate.NewLimiter(rate.Limit(c.Rate), c.Burst), turns: make(chan struct{}, c.Answers)}
}

// Admit lets a new stream in, or refuses it with RESOURCE_EXHAUSTED.
func (a *Admission) Admit() error {
	if a.limiter.Allow() {
		return nil
	}
	return status.Errorf(codes.ResourceExhausted, "more than %.0f new streams a second: try again later", a.config.Rate)
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
		return nil, status.Errorf(codes.ResourceExhausted, "no turn within %s: try again later", a.config.Patience)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

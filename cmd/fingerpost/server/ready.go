package server

import (
	"context"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
)

// A Condition is something that a process waits for before it is ready.
type Condition struct {
	Name string // what is waited for

	// Load returns for how long the process waits for it, from when it waits for nothing Forever: 0 once it is there.
	// That may be another duration when one of changed has closed.
	Load func() (patience time.Duration, changed []<-chan struct{})

	Missing func() []string // what of it is not there, if it has parts; nil: it has none

	// Lasting is what the process cannot do without later either: it is not ready while that is away. Load then always
	// returns a channel, and no patience but 0 and Forever.
	Lasting bool
}

// report returns the name, with what is missing.
func (c Condition) report() string {
	if c.Missing == nil {
		return c.Name
	}
	if missing := c.Missing(); len(missing) > 0 {
		return c.Name + " (" + strings.Join(missing, ", ") + ")"
	}
	return c.Name
}

// Forever is how long a process waits for what it cannot do without.
const Forever time.Duration = math.MaxInt64

// Reached returns the Condition that a value is true. It waits for that Forever.
func Reached(name string, value *fedwatch.Value[bool]) Condition {
	return Condition{Name: name, Load: func() (time.Duration, []<-chan struct{}) {
		reached, changed := value.Load()
		if reached {
			return 0, nil
		}
		return Forever, []<-chan struct{}{changed}
	}}
}

// Lasting returns the Condition that a value is empty, and stays so. It is why the Condition is not there.
func Lasting(name string, missing *fedwatch.Value[string]) Condition {
	return Condition{
		Name: name, Lasting: true,
		Load: func() (time.Duration, []<-chan struct{}) {
			problem, changed := missing.Load()
			if problem == "" {
				return 0, []<-chan struct{}{changed}
			}
			return Forever, []<-chan struct{}{changed}
		},
		Missing: func() []string {
			problem, _ := missing.Load()
			return []string{problem}
		},
	}
}

// Readiness is whether a process serves. /ready, the metric fingerpost_ready and gRPC's health (of the whole server and
// of each of its services) report the same value. A process becomes ready when all Conditions are there, or have been
// waited for. It stays ready until it stops, whatever becomes of them, but for those that are Lasting.
type Readiness struct {
	Log logr.Logger // gets a line when the process is ready

	conditions []Condition
	followers  []func(ready bool)
	ready      fedwatch.Value[bool]
}

// Add adds Conditions, which are loaded in this order. It must not be called once the Readiness has started.
func (r *Readiness) Add(conditions ...Condition) { r.conditions = append(r.conditions, conditions...) }

// follow calls a function with whether the process is ready, now and whenever that is set. It must not be called once
// the Readiness has started.
func (r *Readiness) follow(follower func(ready bool)) {
	r.followers = append(r.followers, follower)
	follower(r.Ready())
}

func (r *Readiness) setReady(ready bool) {
	r.ready.Store(ready)
	for _, follower := range r.followers {
		follower(ready)
	}
}

// Ready reports whether the process is ready.
func (r *Readiness) Ready() bool {
	ready, _ := r.Load()
	return ready
}

// Load returns whether the process is ready, and a channel that closes when that changes.
func (r *Readiness) Load() (ready bool, changed <-chan struct{}) { return r.ready.Load() }

// Report returns whether the process is ready, and if it is not, the names of what it waits for: none when it stops.
func (r *Readiness) Report() (ready bool, missing []string) {
	if r.Ready() {
		return true, nil
	}
	for _, c := range r.conditions {
		if patience, _ := c.Load(); patience > 0 {
			missing = append(missing, c.report())
		}
	}
	return false, missing
}

// Start watches what readiness depends on until ctx ends, when the process is no longer ready.
func (r *Readiness) Start(ctx context.Context) error {
	defer r.setReady(false)
	began := time.Now()
	var waiting time.Time // since when nothing is waited for Forever
	limit := time.NewTimer(0)
	defer limit.Stop()

	for {
		patience, wake := r.load()
		if patience < Forever {
			if waiting.IsZero() {
				waiting = time.Now()
			}
			left := time.Until(waiting.Add(patience))
			if left <= 0 {
				r.setReady(true)
				r.Log.Info("Ready", "after", time.Since(began).Round(time.Millisecond).String())
				r.last(ctx)
				return nil
			}
			limit.Reset(left)
		}

		awaitAny(append(wake, ctx.Done()), limit.C)
		if ctx.Err() != nil {
			return nil
		}
	}
}

// last has the process be ready while all lasting Conditions are there, until ctx ends.
func (r *Readiness) last(ctx context.Context) {
	lasting := &Readiness{}
	for _, c := range r.conditions {
		if c.Lasting {
			lasting.Add(c)
		}
	}

	for {
		patience, wake := lasting.load()
		if is := patience == 0; is != r.Ready() && ctx.Err() == nil {
			r.setReady(is)
			_, missing := r.Report()
			r.Log.Info("Readiness has changed", "ready", is, "missing", missing)
		}
		awaitAny(append(wake, ctx.Done()), nil)
		if ctx.Err() != nil {
			return
		}
	}
}

// load returns for how long the process waits, and what may change that.
func (r *Readiness) load() (patience time.Duration, changed []<-chan struct{}) {
	for _, c := range r.conditions {
		p, all := c.Load()
		patience, changed = max(patience, p), append(changed, all...)
	}
	return patience, changed
}

// awaitAny waits until a channel closes, or the timer fires.
func awaitAny(channels []<-chan struct{}, timer <-chan time.Time) {
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(timer)}}
	for _, c := range channels {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)})
	}
	reflect.Select(cases)
}

// Metric returns the metric fingerpost_ready.
func (r *Readiness) Metric() prometheus.Collector {
	opts := prometheus.GaugeOpts{
		Name: "fingerpost_ready",
		Help: "1 once this replica is ready to serve, as /ready reports.",
	}
	return prometheus.NewGaugeFunc(opts, func() float64 {
		if r.Ready() {
			return 1
		}
		return 0
	})
}

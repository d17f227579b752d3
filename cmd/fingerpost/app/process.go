package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
)

// A Part is what a process is built from: something that runs for as long as the process does.
type Part struct {
	Name string // for the log

	// Run runs the Part until ctx ends. An error ends the process. A Part that returns nil before has done its work.
	Run func(ctx context.Context) error

	Ready []server.Condition // what the process waits for, besides those of other Parts, before it is ready
}

// A Process is Parts that run together, with what each process has: metrics, readiness, HTTP servers. All Parts start
// at once, and are asked to end at once: when the Process is, or when one of them fails. A Part that has to end after
// others, or before, waits for them itself.
type Process struct {
	Metrics *prometheus.Registry
	Ready   *server.Readiness

	version string    // of the binary
	events  *recorder // that its Parts send; nil if none does

	log    logr.Logger
	listen server.ListenFunc
	window time.Duration // in which Parts drain
	closed *prometheus.CounterVec
	parts  []Part
}

// endGrace is how long Parts may take to end beyond the time in which they drain.
const endGrace = 10 * time.Second

// newProcess returns a Process without Parts.
func newProcess(log logr.Logger, version string, listen server.ListenFunc, window time.Duration) *Process {
	p := &Process{
		Metrics: server.NewMetrics(version), Ready: &server.Readiness{Log: log.WithName("ready")},
		version: version, log: log, listen: listen, window: window, closed: server.ClosedConnections(),
	}
	p.Metrics.MustRegister(p.closed)
	p.Add(Part{Name: "readiness", Run: p.Ready.Start})
	return p
}

// addEvents has Parts send Events to the cluster of a connection. What it starts ends with Run, or with abandon.
func (p *Process) addEvents(conn *api.Connection) (err error) {
	p.events, err = newRecorder(p.log, conn)
	return err
}

// abandon ends what was started for a Process that cannot be built, and so is never run.
func (p *Process) abandon() {
	if p.events != nil {
		p.events.broadcaster.Shutdown()
	}
}

// Add adds Parts, before Run: those of a program that imports this package, as a manager of controllers, run beside
// the others.
func (p *Process) Add(parts ...Part) {
	p.parts = append(p.parts, parts...)
	for _, part := range parts {
		p.Ready.Add(part.Ready...)
	}
}

// addAdmin adds the admin server, which has all that is gathered as metrics.
func (p *Process) addAdmin(addr string, all prometheus.Gatherer, withPprof bool) {
	handler := server.AdminHandler(p.Metrics, all, p.Ready.Report, withPprof)
	p.Add(Part{Name: "admin server", Run: p.newHTTP("admin", addr, handler).Start})
}

// newHTTP returns an HTTP server, with metrics of its name, for a Part.
func (p *Process) newHTTP(name, addr string, handler http.Handler) *server.HTTP {
	return &server.HTTP{
		Log: p.log, Name: name, Addr: addr, Listen: p.listen, Handler: handler, Closed: p.closed.WithLabelValues(name),
	}
}

// Run runs all Parts until ctx ends or one of them fails, and waits for all of them, for as long as they may take to
// end. It returns the error of the Part that has failed. What fails afterwards is logged.
func (p *Process) Run(ctx context.Context) error {
	if p.events != nil {
		stop, err := p.events.start(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	type end struct {
		part string
		err  error
	}
	ended, running := make(chan end, len(p.parts)), make([]string, 0, len(p.parts))
	for _, part := range p.parts {
		running = append(running, part.Name)
		go func() { ended <- end{part.Name, part.Run(ctx)} }()
	}

	var failed error
	var slow, late <-chan time.Time // once the Parts are to end
	stopping := ctx.Done()

	for len(running) > 0 {
		select {
		case e := <-ended:
			running = slices.DeleteFunc(running, func(name string) bool { return name == e.part })
			switch {
			case e.err == nil, ctx.Err() != nil && errors.Is(e.err, context.Canceled):
			case ctx.Err() != nil:
				p.log.Error(e.err, "A part of the process has failed while the process stops", "part", e.part)
			default:
				failed = e.err
				stop()
			}

		case <-stopping:
			stopping = nil
			slower, latest := time.NewTicker(p.window+endGrace/2), time.NewTimer(p.window+endGrace)
			defer slower.Stop()
			defer latest.Stop()
			slow, late = slower.C, latest.C

		case <-slow:
			p.log.Info("The process stops, and waits for parts that take long", "parts", running)

		case <-late:
			err := fmt.Errorf("parts of the process have not ended within %s: %s",
				p.window+endGrace, strings.Join(running, ", "))
			return errors.Join(failed, err)
		}
	}

	return failed
}

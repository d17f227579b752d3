package cluster

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
)

const (
	// retryInterval is the pause between probes of a cluster that is out of contact, and between tries to
	// connect.
	retryInterval = time.Second
	// optionalTimeout is how long a cluster waits for its optional kinds once its required kinds were
	// listed.
	optionalTimeout = 5 * time.Second
)

// An engagement is one set of informers on one connection to a cluster, and the reconciler that publishes
// their records. It goes through newEngagement, sync, startReconciler and startProbe to disengage;
// one that failed to sync ends without having published.
type engagement struct {
	log        logr.Logger
	access     Access
	conn       *api.Connection
	beside     *atomic.Pointer[api.Connection] // another connection to the API server, if there is one
	reconciler *view.Reconciler
	rules      Reader // nil: none
	kinds      []kindInformer
	required   []kindInformer // of kinds

	health watch.Value[health]

	ctx    context.Context // ends with the engagement
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // all its goroutines
}

// kindInformer is the informer of one kind in an engagement.
type kindInformer struct {
	view.Input
	*api.Watcher
	reader interface{ Listed(view.Input) }
}

// health is what the probe of an engagement found.
type health struct {
	lastContact time.Time     // of the last probe that found the API server and each required watch in order
	err         error         // why the engagement is out of contact; nil if it is in contact
	overBudget  string        // what of the cluster is refused, and why
	unusable    Unusable      // objects of policy
	rtt         time.Duration // of the last probe that was answered; 0 for none
	skew        time.Duration // how far its clock is ahead of ours, beyond maxSkew
	restored    time.Time     // when the API server was last found to have gone back to an older state
	failed      []api.FailedCall
}

// newEngagement prepares an engagement, which ends with ctx or disengage and closes conn then. It does not use
// the network.
func (s *supervisor) newEngagement(ctx context.Context, access Access, conn *api.Connection) *engagement {
	options := view.Options{Local: s.wanted.Local, Endpoints: s.registry.options.Endpoints}
	if !options.Local {
		options.MaxEndpoints = s.registry.options.Budget.ServiceEndpoints
	}
	var rules Reader
	if options.Local && s.registry.options.Rules != nil {
		rules, options.Probes = s.registry.options.Rules(federation.Cluster(s.name)), true
	}

	engagement := &engagement{
		log: s.log, access: access, conn: conn, beside: &s.beside, rules: rules,
		reconciler: view.NewReconciler(s.log, federation.Cluster(s.name), options),
	}
	engagement.ctx, engagement.cancel = context.WithCancelCause(ctx)

	for _, k := range engagement.reconciler.Inputs() {
		s.addInput(engagement, k, engagement.reconciler)
	}
	if rules != nil {
		for _, k := range rules.Inputs() {
			s.addInput(engagement, k, rules)
		}
	}
	return engagement
}

// addInput adds the informer of a kind to an engagement.
func (s *supervisor) addInput(to *engagement, k view.Input, reader interface{ Listed(view.Input) }) {
	w := api.NewWatcher(to.conn, k.Kind, k.Store)
	w.ObserveLag(s.metrics.lag(k.Resource.GroupResource().String()))
	if !k.Required {
		w.Optional()
	}

	to.conn.Share(w)
	informer := kindInformer{k, w, reader}
	to.kinds = append(to.kinds, informer)
	if k.Required {
		to.required = append(to.required, informer)
	}
}

// disengage ends the engagement for a cause, waits for all its goroutines and closes its connection.
func (e *engagement) disengage(cause error) {
	e.cancel(cause)
	e.wg.Wait()
	e.conn.Close()
}

// sync starts the informers and returns once the engagement can replace another: each required kind was
// listed, and each optional kind was listed, was refused, or had some seconds. A kind that is listed later
// is read from then on. sync returns an error if ctx ends, or if the API server refuses a required kind,
// makes no progress with listing one, or lists many times what the budget allows.
func (e *engagement) sync(ctx context.Context) error {
	for _, k := range e.kinds {
		e.wg.Go(func() { k.Run(logr.NewContext(e.ctx, e.log.V(1))) })
	}
	for _, k := range e.required {
		if err := k.WaitSynced(ctx); err != nil {
			return err
		}
	}

	patience, cancel := context.WithTimeout(ctx, optionalTimeout) // for all of them
	defer cancel()

	for _, informer := range e.kinds {
		select {
		case <-informer.Store.Synced():
		case <-informer.Refused():
		case <-patience.Done():
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	e.logUnlisted()
	return nil
}

// logUnlisted logs which optional kinds are not read, each once: some have two readers.
func (e *engagement) logUnlisted() {
	logged := map[string]bool{}
	for _, informer := range e.kinds {
		kind := informer.Resource.GroupResource().String()
		if !watch.IsClosed(informer.Store.Synced()) && !logged[kind] {
			e.logOptional(informer, kind)
			logged[kind] = true
		}
	}
}

// logOptional logs why an optional kind is not read.
func (e *engagement) logOptional(informer kindInformer, kind string) {
	switch informer.Health().Refused {
	case metav1.StatusReasonNotFound:
		e.log.Info("CRD "+kind+" is not installed: it is left out", "kind", kind)
	case "":
		e.log.Info("A kind is not listed yet: what was known of it stays", "kind", kind, "reason", informer.Problem())
	default:
		logs.Warn(e.log, "A kind cannot be listed: what was known of it stays, or it is left out",
			"kind", kind, "reason", informer.Problem())
	}
}

// checkToken returns an error if the API server does not let a token list and watch each required kind. The
// token in use stays.
func (e *engagement) checkToken(ctx context.Context, token string) error {
	var required []api.Kind
	for _, k := range e.required {
		required = append(required, k.Kind)
	}
	return e.conn.CheckToken(ctx, token, required...)
}

// startReconciler publishes everything that the cluster holds, and then what changes, until the engagement
// ends.
func (e *engagement) startReconciler(writer *federation.ClusterWriter, guard *guard) {
	var publish view.Writer = writer
	if guard != nil {
		publish = guard.newWriter(writer, func(w *guardedWriter) {
			e.wg.Go(func() { e.confirmWithdrawal(w) })
		})
	}

	var unlisted []kindInformer
	var ofViews, ofRules []view.Input

	for _, k := range e.kinds {
		switch {
		case watch.IsClosed(k.Store.Synced()) || watch.IsClosed(k.Absent()):
			continue
		case k.reader == e.rules:
			ofRules = append(ofRules, k.Input)
		default:
			ofViews = append(ofViews, k.Input)
		}

		unlisted = append(unlisted, k)
	}

	e.reconciler.Begin(publish, writer.Facts(), ofViews...)
	e.wg.Go(func() { e.reconciler.Run(e.ctx) })
	if e.rules != nil {
		e.rules.Begin(ofRules...)
		e.wg.Go(func() { e.rules.Run(e.ctx) })
	}
	for _, k := range unlisted {
		e.wg.Go(func() { e.awaitListed(k) })
	}
}

// awaitListed has the reader of a kind keep nothing more of it once it is listed, or known to be absent.
func (e *engagement) awaitListed(k kindInformer) {
	if k.WaitListed(e.ctx, k.Store.Synced()) {
		k.reader.Listed(k.Input)
	}
}

// relistRefused lists the kinds anew of which something was refused.
func (e *engagement) relistRefused() {
	refused := e.conn.Budget.Refused()
	for _, k := range e.kinds {
		if slices.Contains(refused, k.Name) {
			k.Relist()
		}
	}
}

// startProbe probes the cluster until the engagement ends.
func (e *engagement) startProbe(interval time.Duration, history *probeHistory) {
	now := time.Now()
	p := &prober{engagement: e, history: history, interval: interval, answered: now}
	p.found.lastContact = now
	e.health.Store(p.found)
	e.wg.Go(p.run)
}

// A prober probes the cluster of an engagement. One goroutine uses it.
type prober struct {
	*engagement
	history  *probeHistory
	interval time.Duration // between probes while all is well

	found    health    // by the last probe
	paced    int64     // changes that had to wait, when that was last logged
	answered time.Time // when the API server last answered
	silent   bool      // it has not since
}

func (p *prober) run() {
	timer := time.NewTimer(p.interval)
	defer timer.Stop()

	for {
		select {
		case <-timer.C:
		case <-p.ctx.Done():
			return
		}

		began := time.Now()
		err := p.conn.Probe(p.ctx)
		if p.ctx.Err() != nil {
			return
		}
		timer.Reset(p.recordProbe(err, time.Since(began)))
	}
}

// recordProbe publishes what follows from a probe, and returns when the next one is due.
func (p *prober) recordProbe(err error, rtt time.Duration) (next time.Duration) {
	next = min(p.interval, retryInterval)
	if err != nil {
		p.silent = true
	} else {
		if p.silent && p.reconnect() {
			next = retryInterval / 5 // the watches are about to be open again
		}
		p.answered, p.silent, p.found.rtt = time.Now(), false, max(rtt, 1)
		err = p.unhealthyWatch()
	}

	p.history.add(rtt, err)
	p.found.err = err
	if err == nil {
		p.found.lastContact, next = time.Now(), p.interval
	}

	p.found.restored, p.found.skew = p.lastRestored(), steadySkew(p.found.skew, p.conn.ClockSkew())
	p.found.overBudget, p.found.failed = p.overBudget(), p.failedCalls()
	if p.rules != nil {
		p.found.unusable.Count, p.found.unusable.Examples = p.rules.Unusable()
	}
	if n := p.conn.Paced(); n > p.paced {
		p.log.Info("The cluster changes faster than is read: what it sends waits there", "waited", n-p.paced)
		p.paced = n
	}
	p.health.Store(p.found)
	return next
}

// overBudget returns what of the cluster is not taken because it has too much of it; empty for nothing.
func (e *engagement) overBudget() string {
	var problems []string
	if e.conn.Budget != nil {
		problems = append(problems, e.conn.Budget.Problem())
	}
	problems = append(problems, e.reconciler.Oversized())
	return strings.Join(slices.DeleteFunc(problems, func(p string) bool { return p == "" }), "; ")
}

// failedCalls returns what the API server does not do of what is requested of it, over this connection and another one.
func (p *prober) failedCalls() []api.FailedCall {
	all := p.conn.FailedCalls()
	if other := p.beside.Load(); other != nil {
		all = append(all, other.FailedCalls()...)
	}
	return all
}

// reconnect has requests that wait to be retried made at once, because the API server answers again. After a longer
// silence everything is connected anew, because a connection that hangs may take as long again to notice: then it
// returns true.
func (p *prober) reconnect() (reset bool) {
	if reset = time.Since(p.answered) > 2*retryInterval+api.ProbeTimeout; reset {
		p.conn.Reset()
	} else {
		p.conn.RetryNow()
	}
	return reset
}

// lastRestored returns when the API server was last found to have gone back to an older state.
func (e *engagement) lastRestored() (last time.Time) {
	for _, k := range e.kinds {
		if at := k.Health().Restored; at.After(last) {
			last = at
		}
	}
	return last
}

// unhealthyWatch returns an error if changes of a required kind may not arrive.
func (e *engagement) unhealthyWatch() error {
	for _, k := range e.required {
		if err := k.CheckHealth(); err != nil {
			return err
		}
	}
	return nil
}

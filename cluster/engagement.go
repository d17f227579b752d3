package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

const (
	// urgent is how often a cluster is probed, or tried, that is out of contact.
	retryInterval = time.Second
	// optionalPatience is how long a cluster waits, once its required kinds were listed, for the optional ones.
	optionalTimeout = 5 * time.Second
)

// An engagement is one set of informers on one connection to a cluster, and the reconciler that publishes what they hold.
type engagement struct {
	log        logr.Logger
	access     Access
	conn       *api.Connection
	reconciler *view.Reconciler
	kinds      []kindInformer

	health watch.Value[health]

	ctx    context.Context // ends with the engagement
	cancel context.CancelFunc
	wg     sync.WaitGroup // all its goroutines
}

// kind is one kind of object in an engagement.
type kindInformer struct {
	view.Kind
	*api.Watcher
}

// health is how an engagement fares.
type health struct {
	lastContact time.Time // when all was last known to be in order
	err         error     // why it is not; nil if it is
	overBudget  string    // what of the cluster is refused, and why
	restored    time.Time // when the API server was last found to have gone back to an older state
}

// newEngagement prepares an engagement, which ends with ctx or stop. It does not use the network. The connection is closed with it.
func newEngagement(ctx context.Context, log logr.Logger, spec Spec, access Access, conn *api.Connection, meters *clusterMetrics, endpoints bool) *engagement {
	e := &engagement{log: log, access: access, conn: conn, reconciler: view.NewReconciler(log, federation.Cluster(spec.Name), view.Options{Local: spec.Local, Endpoints: endpoints})}
	e.ctx, e.cancel = context.WithCancel(ctx)
	for _, k := range e.reconciler.Kinds() {
		w := api.NewWatcher(conn, k.Kind, k.Store)
		w.ObserveLag(meters.lag(k.Resource.GroupResource().String()))
		if !k.Required {
			w.Optional()
		}
		e.kinds = append(e.kinds, kindInformer{k, w})
	}
	return e
}

// stop ends the engagement and waits for everything in it. It may have been started or not.
func (e *engagement) stop() {
	e.cancel()
	e.wg.Wait()
	e.conn.Close()
}

// sync starts the watches and returns once the engagement can replace another: each required kind was listed, and the optional ones were
// listed, refused, or given some seconds. A kind that comes later is read from then on. It returns early if ctx ends, or if the API
// server refuses a required kind, does not get on with listing one, or lists many times what may be held of it.
func (e *engagement) sync(ctx context.Context) error {
	for _, k := range e.kinds {
		e.wg.Go(func() { k.Run(logr.NewContext(e.ctx, e.log.V(1))) })
	}
	for _, k := range e.kinds {
		if k.Required {
			if err := k.WaitSynced(ctx); err != nil {
				return err
			}
		}
	}
	patience := time.NewTimer(optionalTimeout)
	defer patience.Stop()
	for _, k := range e.kinds {
		select {
		case <-k.Store.Synced():
			continue
		case <-k.Refused():
		case <-patience.C:
			patience.Reset(0) // for the others, too
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-k.Store.Synced():
		default:
			e.log.Info("The API server does not serve a kind: what depends on it is left out until it is served",
				"kind", k.Resource.GroupResource().String(), "reason", k.Problem())
		}
	}
	return nil
}

// checkToken returns an error if the API server does not let a token list and watch each required kind. The token in use stays so.
func (e *engagement) checkToken(ctx context.Context, token string) error {
	var required []api.Kind
	for _, k := range e.kinds {
		if k.Required {
			required = append(required, k.Kind.Kind)
		}
	}
	return e.conn.CheckToken(ctx, token, required...)
}

// publish writes everything that is in the cluster, and then what changes until the engagement ends.
func (e *engagement) startReconciler(claims *federation.ClusterWriter) {
	e.reconciler.Begin(claims)
	e.wg.Go(func() { e.reconciler.Run(e.ctx) })
}

// monitor probes the cluster until the engagement ends. When an answer comes again, whatever waits is woken; after a longer silence
// everything is connected anew, because connections that hung may not notice for as long again.
func (e *engagement) startProbe(interval time.Duration) {
	h := health{lastContact: time.Now()}
	e.health.Store(h)
	answered, silent := time.Now(), false
	e.wg.Go(func() {
		timer := time.NewTimer(interval)
		defer timer.Stop()
		for {
			select {
			case <-timer.C:
			case <-e.ctx.Done():
				return
			}
			h.err = e.conn.Probe(e.ctx)
			if e.ctx.Err() != nil {
				return
			}
			reset := h.err == nil && silent && time.Since(answered) > 2*retryInterval+api.ProbeTimeout
			switch {
			case h.err != nil:
				silent = true
			case reset:
				e.conn.Reset()
			case silent:
				e.conn.RetryNow()
			}
			if h.err == nil {
				answered, silent = time.Now(), false
				h.err = e.unhealthyWatch()
			}
			h.restored = e.lastRestored()
			if e.conn.Budget != nil {
				h.overBudget = e.conn.Budget.Problem()
			}
			next := min(interval, retryInterval)
			switch {
			case h.err == nil:
				h.lastContact, next = time.Now(), interval
			case reset:
				next = retryInterval / 5 // the watches are about to be back
			}
			e.health.Store(h)
			timer.Reset(next)
		}
	})
}

// restored returns when the API server was last found to have gone back to an older state.
func (e *engagement) lastRestored() (last time.Time) {
	for _, k := range e.kinds {
		if at := k.Health().Restored; at.After(last) {
			last = at
		}
	}
	return last
}

// unhealthyWatch returns an error if changes of a required kind do not arrive.
func (e *engagement) unhealthyWatch() error {
	for _, k := range e.kinds {
		if !k.Required {
			continue
		}
		if excess := k.Excess(); excess != nil {
			return &api.ProbeError{Reason: api.OverBudget, Err: excess}
		}
		if k.Healthy() {
			continue
		}
		if refused := k.Health().Refused; refused != "" {
			return &api.ProbeError{Reason: api.Forbidden, Err: fmt.Errorf("the API server refuses to watch %s (%s)", k.Resource.GroupResource(), refused)}
		}
		return &api.ProbeError{Reason: api.Unreachable, Err: fmt.Errorf("the watch of %s is interrupted", k.Resource.GroupResource())}
	}
	return nil
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/watch"
)

const (
	maxRetry           = 30 * time.Second
	maxRetryBesideLive = 5 * time.Minute // where another access works
)

// A supervisor owns one cluster of the Registry from Apply to Remove: it tries the accesses that its Spec has, keeps the best that works in
// use, and reports how it fares.
type supervisor struct {
	registry *Registry
	log      logr.Logger
	name     string
	metrics  *clusterMetrics
	spec     watch.Value[Spec]       // what is wanted
	cancel   context.CancelCauseFunc // nil until run was started; guarded by Registry.mu

	current atomic.Pointer[engagement] // the live one, written by run

	// Owned by run.
	status Status
}

// run makes what is wanted live, and watches over it, until ctx ends.
func (s *supervisor) supervise(ctx context.Context) {
	defer func() {
		if live := s.current.Swap(nil); live != nil {
			live.stop()
		}
	}()
	for failures := 0; ctx.Err() == nil; {
		spec, superseded := s.spec.Load()
		s.status.Local, s.status.TrustDomain, s.status.ClusterDomain = spec.Local, spec.TrustDomain, spec.ClusterDomain
		err := s.tryAccesses(ctx, spec, superseded)
		if errors.Is(err, context.Canceled) {
			continue
		}
		failures++
		if s.status.Credentials == nil {
			failures = 0
		}
		if s.current.Load() == nil {
			s.status.Contact, s.status.OverBudget = err, ""
			if excess, is := errors.AsType[*api.ExcessError](err); is {
				s.status.OverBudget = excess.Error()
			}
		}
		s.registry.updateStatus(s)
		s.waitForChange(ctx, spec, superseded, retryAfter(s.status.Credentials, failures, err == nil))
	}
}

// retryAfter returns how long to wait before accesses that failed are tried again, where another works or none does; 0 for not at all.
func retryAfter(err error, failures int, another bool) time.Duration {
	switch {
	case err == nil:
		return 0
	case another, api.ReasonFor(err) == api.OverBudget: // a listing that is ended costs as much as one that is not
		return min(retryInterval<<min(failures, 10), maxRetryBesideLive)
	case api.ReasonFor(err) == api.Unreachable, api.ReasonFor(err) == api.NotReady:
		return retryInterval // a probe costs little, and one that has just started is ready soon
	default:
		return min(retryInterval<<min(failures-1, 5), maxRetry)
	}
}

// connect brings the first of the accesses that works into use. It returns an error if none does; what was live then stays so.
// It returns [context.Canceled] if it was not finished.
func (s *supervisor) tryAccesses(ctx context.Context, spec Spec, superseded <-chan struct{}) error {
	var failed []error
	var inUse *Access
	for i, access := range spec.Access {
		if live := s.current.Load(); live != nil && live.access.equal(access) {
			inUse = &spec.Access[i]
			if h, _ := live.health.Load(); h.err == nil {
				break
			}
			continue // another may work; this one is supervised anyway
		}
		next, err := s.tryBeside(ctx, spec, access, superseded)
		if err == nil {
			err = s.switchTo(next, access)
		}
		if ctx.Err() != nil || errors.Is(err, context.Canceled) {
			return context.Canceled
		}
		if err == nil {
			inUse = &spec.Access[i]
			break
		}
		failed = append(failed, fmt.Errorf("%s: %w", access.Source, err))
	}
	if len(spec.Access) == 0 {
		failed = append(failed, errors.New("there are no credentials that can be used"))
	}
	old := s.status.Credentials
	s.status.Credentials = errors.Join(failed...)
	if s.status.Credentials != nil && (old == nil || old.Error() != s.status.Credentials.Error()) {
		s.log.Info("Credentials do not work", "error", s.status.Credentials.Error(), "reason", api.ReasonFor(s.status.Credentials), "keeping", s.status.Source)
	}
	if inUse == nil {
		return s.status.Credentials
	}
	s.status.Source, s.status.Expires = inUse.Source, api.Expiry(inUse.Config)
	return nil
}

// tryBeside tries access while the engagement in use goes on and is supervised, however long the other takes: a cluster that goes
// dark during a rotation is Suspect, and Stale, on time. It returns [context.Canceled] once spec is superseded.
func (s *supervisor) tryBeside(ctx context.Context, spec Spec, access Access, superseded <-chan struct{}) (*engagement, error) {
	type result struct {
		next *engagement
		err  error
	}
	attempt, cancel := context.WithCancel(ctx)
	defer cancel()
	live, done := s.current.Load(), make(chan result)
	go func() {
		next, err := s.try(attempt, ctx, spec, access, live)
		done <- result{next, err}
	}()
	for {
		select {
		case r := <-done:
			return r.next, r.err
		case <-s.checkHealth():
		case <-superseded:
			cancel()
			if r := <-done; r.err == nil && r.next != live {
				r.next.stop()
			}
			return nil, context.Canceled
		}
	}
}

// try returns an engagement that has listed each required kind with access, and publishes nothing yet. If only the token differs it
// returns live, for which the token was tried. The engagement ends with life.
func (s *supervisor) try(ctx, life context.Context, spec Spec, access Access, live *engagement) (*engagement, error) {
	if live != nil && live.access.transportKey() == access.transportKey() {
		return live, live.checkToken(ctx, access.Config.BearerToken)
	}
	conn, err := api.NewConnection(withProxy(s.metrics.instrument(access.Config), spec), s.registry.options.Dial)
	if err != nil {
		return nil, err
	}
	if !spec.Local {
		conn.Budget = api.NewBudget(s.registry.options.Budget)
	}
	if err := conn.Probe(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	next := newEngagement(life, s.log, spec, access, conn, s.metrics, s.registry.options.Endpoints)
	if err := next.sync(ctx); err != nil {
		next.stop()
		return nil, err
	}
	return next, nil
}

// use replaces the engagement in use by next, which may be the same with a new token. It does not wait for the network.
func (s *supervisor) switchTo(next *engagement, access Access) error {
	live := s.current.Load()
	if next == live {
		live.conn.UseToken(access.Config.BearerToken)
		live.access = access
		s.log.Info("A new token is in use", "source", access.Source)
		return nil
	}
	claims, err := s.registry.newWriter(s)
	if err != nil {
		next.stop()
		return err
	}
	// The old engagement is fenced; what it wrote stays until the new one has written it again.
	next.startReconciler(claims)
	next.startProbe(s.registry.options.ProbeInterval)
	s.current.Store(next)
	for _, f := range s.registry.allEngageFuncs() {
		next.wg.Go(func() { f(next.ctx, &s.spec, next.conn) })
	}
	if live != nil {
		live.stop()
	}
	s.status.Synced = true
	s.log.Info("Cluster is in use", "source", access.Source, "server", access.Config.Host)
	return nil
}

// waitForChange supervises the engagement in use until something has to be done: something else is wanted, or it is time to try again.
func (s *supervisor) waitForChange(ctx context.Context, spec Spec, superseded <-chan struct{}, retry time.Duration) {
	var due <-chan time.Time
	arm := func(d time.Duration) *time.Timer {
		timer := time.NewTimer(d)
		due = timer.C
		return timer
	}
	if retry > 0 {
		defer arm(retry).Stop()
	}
	for {
		changed := s.checkHealth()
		if due == nil && s.current.Load() != nil && s.status.State != Live && len(spec.Access) > 1 {
			defer arm(maxRetry).Stop() // others may work
		}
		select {
		case <-changed:
		case <-due:
			return
		case <-superseded:
			return
		case <-ctx.Done():
			return
		}
	}
}

// checkHealth updates the state by the health of the engagement in use, and returns a channel that closes once that has changed;
// nil without an engagement.
func (s *supervisor) checkHealth() <-chan struct{} {
	live := s.current.Load()
	if live == nil {
		return nil
	}
	h, changed := live.health.Load()
	s.updateState(h)
	return changed
}

// updateState follows from how the live engagement fares.
func (s *supervisor) updateState(h health) {
	standing := s.registry.options.Patience.StateAfter(time.Since(h.lastContact))
	s.registry.setState(s, standing)
	if h.restored.After(s.status.Restored) {
		s.status.Restored = h.restored
		s.log.Info("The API server has gone back to an older state, as after a restore from a backup: everything was listed anew")
	}
	if s.status.OverBudget != h.overBudget {
		s.status.OverBudget = h.overBudget
		s.log.Info("What the cluster publishes is more than its budget, or is not any more", "problem", h.overBudget)
	}
	s.status.LastContact, s.status.Contact = h.lastContact, h.err
	state := stateOf(standing)
	if s.status.State != state {
		s.status.State, s.status.Since = state, time.Now()
		s.log.Info("Cluster is "+string(state), "lastContact", time.Since(h.lastContact).Round(time.Second).String()+" ago", "error", errorText(h.err))
	}
	s.registry.updateStatus(s)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

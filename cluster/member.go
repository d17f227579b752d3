package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

const maxRetry = 30 * time.Second

// A member is one cluster in the Registry.
type member struct {
	registry *Registry
	log      logr.Logger
	name     string
	meters   *meters
	spec     watch.Value[Spec]       // what is wanted
	cancel   context.CancelCauseFunc // nil until run was started; guarded by Registry.mu

	current atomic.Pointer[engagement] // the live one, written by run

	// Owned by run.
	status Status
}

// run makes what is wanted live, and watches over it, until ctx ends.
func (m *member) run(ctx context.Context) {
	defer func() {
		if live := m.current.Swap(nil); live != nil {
			live.stop()
		}
	}()
	for failures := 0; ctx.Err() == nil; {
		spec, superseded := m.spec.Load()
		m.status.Local, m.status.TrustDomain, m.status.ClusterDomain = spec.Local, spec.TrustDomain, spec.ClusterDomain
		err := m.pursue(ctx, spec, superseded)
		if errors.Is(err, context.Canceled) {
			continue
		}
		failures++
		if err == nil {
			failures = 0
		}
		if m.current.Load() == nil {
			m.status.Contact = err
		}
		m.registry.publish(m)
		m.follow(ctx, spec, superseded, retryAfter(err, failures))
	}
}

// retryAfter returns how long to wait before what failed is tried again; 0 for not at all.
func retryAfter(err error, failures int) time.Duration {
	switch {
	case err == nil:
		return 0
	case ReasonFor(err) == Unreachable, ReasonFor(err) == NotReady:
		return urgent // a probe costs little, and one that has just started is ready soon
	default:
		return min(urgent<<min(failures-1, 5), maxRetry)
	}
}

// pursue sees to it that the first of the accesses that works is in use. It returns an error if none is; what was live then stays
// so. It returns [context.Canceled] if it was not finished.
func (m *member) pursue(ctx context.Context, spec Spec, superseded <-chan struct{}) error {
	var failed []error
	var inUse *Access
	for i, access := range spec.Access {
		if live := m.current.Load(); live != nil && live.access.equal(access) {
			inUse = &spec.Access[i]
			if h, _ := live.health.Load(); h.err == nil {
				break
			}
			continue // another may work; this one is watched over anyway
		}
		err := m.use(ctx, spec, access, superseded)
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
	old := m.status.Credentials
	m.status.Credentials = errors.Join(failed...)
	if m.status.Credentials != nil && (old == nil || old.Error() != m.status.Credentials.Error()) {
		m.log.Info("Credentials do not work", "error", m.status.Credentials.Error(), "reason", ReasonFor(m.status.Credentials), "keeping", m.status.Source)
	}
	if inUse == nil {
		return m.status.Credentials
	}
	m.status.Source, m.status.Expires = inUse.Source, Expiry(inUse.Config)
	return nil
}

// use makes access the one in use.
func (m *member) use(ctx context.Context, spec Spec, access Access, superseded <-chan struct{}) error {
	live := m.current.Load()
	if live != nil && live.access.transport() == access.transport() { // only the token differs
		if err := live.conn.UseToken(ctx, access.Config.BearerToken); err != nil {
			return err
		}
		live.access = access
		m.log.Info("A new token is in use", "source", access.Source)
		return nil
	}
	conn, err := NewConnection(m.meters.counted(access.Config), m.registry.options.Dial)
	if err != nil {
		return err
	}
	if err := conn.Probe(ctx); err != nil {
		conn.Close()
		return err
	}
	next, err := newEngagement(ctx, m.log, spec, access, conn, m.meters, m.registry.options.Endpoints)
	if err != nil {
		return err
	}
	err = next.sync(ctx, superseded)
	var claims *federation.Claims
	if err == nil {
		claims, err = m.registry.claim(m)
	}
	if err != nil {
		next.stop()
		return err
	}
	// The claims of the old engagement are silenced, and stay until the new one has repeated them.
	next.speak(claims)
	next.watchOver(m.registry.options.ProbeInterval)
	m.current.Store(next)
	m.registry.engage(m, next)
	if live != nil {
		live.stop()
	}
	m.status.Synced = true
	m.log.Info("Cluster is in use", "source", access.Source, "server", access.Config.Host)
	return nil
}

// follow watches over what is live until something has to be done: something else is wanted, or it is time to try again.
func (m *member) follow(ctx context.Context, spec Spec, superseded <-chan struct{}, retry time.Duration) {
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
		var changed <-chan struct{} // nil without an engagement
		if live := m.current.Load(); live != nil {
			var h health
			h, changed = live.health.Load()
			m.judge(h)
			if due == nil && m.status.State != Live && len(spec.Access) > 1 {
				defer arm(maxRetry).Stop() // others may work
			}
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

// judge draws the conclusions from how the live engagement fares.
func (m *member) judge(h health) {
	standing := m.registry.options.Patience.Judge(time.Since(h.lastContact))
	m.registry.stand(m, standing)
	m.status.LastContact, m.status.Contact = h.lastContact, h.err
	state := stateOf(standing)
	if m.status.State != state {
		m.status.State, m.status.Since = state, time.Now()
		m.log.Info("Cluster is "+string(state), "lastContact", time.Since(h.lastContact).Round(time.Second).String()+" ago", "error", errorText(h.err))
	}
	m.registry.publish(m)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

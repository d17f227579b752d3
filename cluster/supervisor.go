package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
)

const (
	maxRetry           = 30 * time.Second
	maxRetryBesideLive = 5 * time.Minute // where another access works

	// firstPatience is how long an API server may take to answer first before other replicas are asked for what they
	// have of its cluster: the first answers to clients wait for both.
	firstPatience = time.Second
	// listPatience is how long one that answers may take to list what is required before they are asked as well: less
	// than readiness waits for the cluster (3 s), so that those who are asked may stop as soon as this replica is
	// ready. Clusters that list in less are not transferred in a rollout.
	listPatience = 2 * time.Second
)

// A supervisor owns one cluster of the Registry from Apply to Remove. It tries the accesses of its Spec in
// their sequence, keeps the first that works in use, and publishes the Status.
//
// What it keeps true: access that works is never given up for access that has not proved itself. New access
// is tried beside the old one, as a second engagement with a connection, informers and a budget of its own.
// It publishes nothing while it lists. Only when each required kind was listed does switchTo take a new
// writer from the Store, which fences the old engagement, and publish. The Store keeps what the old
// engagement wrote until the new one has written everything again, so clients see no gap. Until then the
// old engagement is in use like any other: it publishes changes, its probe runs, and the supervisor updates
// the state by its health while the attempt is under way (tryBeside), so that a cluster that becomes
// unreachable during a rotation is Suspect and Stale on time. If the attempt fails, nothing has happened
// but a condition.
//
// A token is the one exception to the second engagement: where nothing but the token differs, the new one
// is checked against the API server (is it taken, may it list and watch each required kind?) and then
// swapped in the connection that is in use. Listing everything again each hour, as bound tokens rotate,
// would cost too much.
//
// The order of accesses is a preference. If the one in use is healthy, those before it that fail are
// retried with a growing pause, up to five minutes, because a listing that fails late costs as much as one
// that succeeds. Once the one in use is out of contact, all others are tried every 30 s. If none works, an
// API server that does not answer is probed each second, which costs little.
//
// What this costs: during an attempt a cluster is held twice in memory, for as long as its listing takes.
//
// One goroutine, supervise, owns status and is the only one that stores current. An attempt runs in a
// second goroutine, which returns its engagement, reports to the Store that the API server answers, and
// writes nothing else; where it takes long or fails, a third one asks other replicas (checkpoints.go). supervise
// always waits for both. A new Spec ends an attempt through the channel superseded. No lock is held; calls into
// the Registry take its locks.
type supervisor struct {
	registry *Registry
	log      logr.Logger
	name     string
	metrics  *clusterMetrics
	spec     watch.Value[Spec]       // what is wanted
	cancel   context.CancelCauseFunc // nil until supervise was started; guarded by Registry.mu

	guard   *guard                         // nil for the local cluster
	current atomic.Pointer[engagement]     // the one in use; stored by supervise
	beside  atomic.Pointer[api.Connection] // another connection to its API server, which lasts; nil for none
	probes  probeHistory
	own     ownReports // guarded by Registry.mu

	// Owned by supervise.
	wanted     Spec            // the one that is acted upon
	superseded <-chan struct{} // closes when there is a newer one
	status     Status
	inquiry    *inquiry // of other replicas; nil while they are not asked
}

// newSupervisor returns the supervisor of a cluster that was never reached.
func newSupervisor(r *Registry, spec Spec) *supervisor {
	supervisor := &supervisor{
		registry: r, log: r.log.WithValues("cluster", spec.Name), name: spec.Name,
		metrics: newClusterMetrics(spec.Name, r.options.DetailedMetrics),
		own:     newOwnReports(spec.Local),
	}
	supervisor.status = Status{Name: spec.Name, State: federation.Connecting, Since: time.Now()}
	supervisor.status.describe(spec)
	supervisor.spec.Store(spec)
	if !spec.Local {
		supervisor.guard = newGuard(supervisor.log, r.store, spec.Name, r.trafficChanged.Ring)
	}
	return supervisor
}

// supervise connects to the cluster as its Spec wants, and supervises the engagement in use, until ctx
// ends.
func (s *supervisor) supervise(ctx context.Context) {
	defer func() {
		s.stopAsking()
		if live := s.current.Swap(nil); live != nil {
			live.disengage(context.Cause(ctx)) // it may not have noticed yet that ctx has ended
		}
	}()

	s.restoreFromDir()
	for failures := 0; ctx.Err() == nil; {
		s.wanted, s.superseded = s.spec.Load()
		s.status.describe(s.wanted)
		s.useLimits()
		s.beginAttempt()
		if s.wanted.Traffic.WithdrawalGuard.Hold > 0 {
			s.askPeers(ctx) // what they hold
		}

		err := s.tryAccesses(ctx)
		if errors.Is(err, context.Canceled) {
			continue
		}
		failures++
		s.status.tried = s.wanted.attempt
		if s.status.Credentials == nil {
			failures = 0
		}

		if s.current.Load() == nil {
			s.status.Contact, s.status.OverBudget = err, ""
			s.registry.setListing(s, false)
			s.askPeers(ctx)
			if excess, is := errors.AsType[*api.ExcessError](err); is {
				s.status.OverBudget = excess.Error()
			}
		}
		s.registry.updateStatus(s)
		s.waitForChange(ctx, retryAfter(s.status.Credentials, failures, err == nil))
	}
}

// beginAttempt forgets what became of other Access, and what other replicas had then, where nothing is known of the
// cluster: its Link is read together with the local cluster, without which no replica hands anything over.
func (s *supervisor) beginAttempt() {
	if s.status.tried == s.wanted.attempt || !s.needsPeers() || !s.status.Checkpoint.IsZero() {
		return
	}
	s.status.Contact = nil
	if !s.status.AskingPeers {
		s.stopAsking()
	}
}

// limits returns what may be held of the cluster, as it is wanted.
func (s *supervisor) limits(wanted Spec) api.Limits {
	given := func(l policy.Limit) *int {
		if !l.Given {
			return nil
		}
		return &l.N
	}
	asked := wanted.Traffic
	return s.registry.options.Budget.With(given(asked.MaxServices), given(asked.MaxEndpoints))
}

// useLimits has the engagement in use keep to the limits that are wanted.
func (s *supervisor) useLimits() {
	live := s.current.Load()
	if live == nil || live.conn.Budget == nil {
		return
	}
	if live.conn.Budget.SetLimits(s.limits(s.wanted)) {
		live.relistRefused()
	}
}

// retryAfter returns the pause before accesses that failed with err are tried again; 0 for never. another
// is whether one access works.
func retryAfter(err error, failures int, another bool) time.Duration {
	switch reason := api.ReasonFor(err); {
	case err == nil, errors.Is(err, errNoAccess):
		return 0
	case another, reason == api.OverBudget: // a listing that is ended early is still expensive
		return min(retryInterval<<min(failures, 10), maxRetryBesideLive)
	case reason == api.Unreachable, reason == api.NotReady:
		return retryInterval // a probe is cheap, and an API server that has just started is ready soon
	default:
		return min(retryInterval<<min(failures-1, 5), maxRetry)
	}
}

// errNoAccess is that of a cluster whose Link or Secret has to be mended: its Spec changes then.
var errNoAccess = errors.New("no usable credentials")

// tryAccesses uses the first access that works. If none does it returns an error, and the engagement in use
// stays. It returns [context.Canceled] if ctx ended or the Spec was superseded before it was finished.
func (s *supervisor) tryAccesses(ctx context.Context) error {
	var failed []error
	if len(s.wanted.Access) == 0 {
		failed = append(failed, errNoAccess)
	}

	var inUse *Access
	var lost error // why the one in use is out of contact

	for index, access := range s.wanted.Access {
		if live := s.current.Load(); live != nil && live.access.equal(access) {
			inUse = &s.wanted.Access[index]
			h, _ := live.health.Load()
			if h.err == nil {
				break
			}
			lost = fmt.Errorf("%s: %w", access.Source, h.err)
			continue // another may work; this one goes on and is supervised
		}

		next, err := s.tryBeside(ctx, access)
		if err == nil {
			err = s.switchTo(next, access)
		}

		if ctx.Err() != nil || errors.Is(err, context.Canceled) {
			return context.Canceled
		}
		if err == nil {
			inUse = &s.wanted.Access[index]
			failed = append(failed, lost) // it is preferred, and tried again like others that fail
			break
		}
		failed = append(failed, fmt.Errorf("%s: %w", access.Source, err))
	}

	err := errors.Join(failed...)
	s.recordCredentials(inUse, err)
	if inUse == nil {
		return err
	}
	return nil
}

// recordCredentials records which access is in use, nil for none, and why others are not.
func (s *supervisor) recordCredentials(inUse *Access, failed error) {
	if failed != nil && failed.Error() != ErrorText(s.status.Credentials) {
		logs.Warn(s.log, "Credentials do not work", "error", failed.Error(), "reason", api.ReasonFor(failed),
			"keeping", s.status.Source)
	}
	s.status.Credentials = failed
	if inUse != nil {
		s.status.Source = inUse.Source
		s.status.issued, s.status.Expires = api.Validity(inUse.Config)
	}
}

// tryBeside tries access while it supervises the engagement in use, however long that takes. Where there is none, it
// publishes meanwhile what another replica has of the cluster. It returns [context.Canceled] once the Spec is
// superseded, or ctx has ended.
func (s *supervisor) tryBeside(ctx context.Context, access Access) (next *engagement, err error) {
	var wg sync.WaitGroup
	defer wg.Wait()
	attempt, cancel := context.WithCancel(ctx)
	defer cancel()
	live, done := s.current.Load(), make(chan struct{})
	patience := api.ProbeTimeout
	slow := time.NewTimer(listPatience)
	defer slow.Stop()

	if !s.needsPeers() {
		slow.Stop()
	} else if s.status.Contact == nil {
		patience = firstPatience
	}
	wg.Go(func() {
		defer close(done)
		next, err = s.try(attempt, ctx, access, live, patience)
	})

	abandon := func() error {
		cancel()
		<-done
		if err == nil && next != live {
			next.disengage(ErrReplaced)
		}
		return context.Canceled
	}

	finished := done
	holds := time.NewTimer(guardPatience) // in which others report what they hold
	defer holds.Stop()

	for {
		select {
		case <-finished:
			if err != nil || !s.waitsForHolds() {
				return next, err
			}
			finished = nil
			holds.Reset(time.Until(s.inquiry.began.Add(guardPatience)))
		case <-holds.C:
			if finished == nil {
				return next, nil
			}
		case <-s.checkHealth():
		case <-slow.C:
			s.askPeers(ctx)
		case a := <-s.peerAnswers():
			s.takeAnswer(a)
			if finished == nil && !s.waitsForHolds() {
				return next, nil
			}
		case <-s.superseded:
			return nil, abandon()
		case <-ctx.Done():
			return nil, abandon()
		}
	}
}

// try returns an engagement that has listed each required kind with access and publishes nothing yet. If
// access has a token, and only that differs from live, it checks the token and returns live. ctx ends the
// attempt; the engagement ends with life. The API server has patience to answer.
func (s *supervisor) try(
	ctx, life context.Context, access Access, live *engagement, patience time.Duration,
) (*engagement, error) {
	if token := access.Config.BearerToken; live != nil && token != "" && live.access.sameTransport(access) {
		return live, live.checkToken(ctx, token)
	}
	config := withProxy(s.metrics.instrument(access.Config), s.wanted)
	conn, err := api.NewConnection(config, s.registry.options.Dial)
	if err != nil {
		return nil, err
	}

	if !s.wanted.Local {
		conn.Budget = api.NewBudget(s.limits(s.wanted))
	}

	began := time.Now()
	if err := probe(ctx, conn, patience); err != nil {
		if live == nil && ctx.Err() == nil {
			s.probes.add(time.Since(began), err)
		}
		conn.Close()
		return nil, err
	}

	s.registry.setListing(s, true)
	next := s.newEngagement(life, access, conn)
	if err := next.sync(ctx); err != nil {
		next.disengage(ErrReplaced)
		return nil, err
	}
	return next, nil
}

// probe probes an API server that has patience to answer.
func probe(ctx context.Context, conn *api.Connection, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return conn.Probe(ctx)
}

// switchTo replaces the engagement in use by next, which may be the same one with a new token. It returns once the
// old one has ended: its writers release their Leases, and those that delete what they wrote finish that.
func (s *supervisor) switchTo(next *engagement, access Access) error {
	live := s.current.Load()
	if next == live {
		live.conn.UseToken(access.Config.BearerToken)
		live.access = access
		s.log.Info("A new token is in use", "source", access.Source)
		return nil
	}

	writer := s.registry.newWriter(s)
	if writer == nil { // the cluster was removed
		next.disengage(ErrReplaced)
		return context.Canceled
	}

	// The old engagement is fenced. What it wrote stays until the new one has written everything.
	next.startReconciler(writer, s.guard)
	next.startProbe(s.registry.options.ProbeInterval, &s.probes)
	s.current.Store(next)
	next.wg.Go(func() { s.followSelf(next) })
	for _, f := range s.registry.engageFuncs {
		next.wg.Go(func() { f(next.ctx, &s.spec, next.conn) })
	}

	if live != nil {
		live.disengage(ErrReplaced)
	}
	s.status.Synced, s.status.Checkpoint, s.status.NotRestored = true, time.Time{}, ""
	s.stopAsking()
	s.log.Info("Cluster is in use", "source", access.Source, "server", access.Config.Host)
	return nil
}

// waitForChange supervises the engagement in use until the Spec is superseded, or until accesses are to be
// tried again: after retry unless that is 0, and after maxRetry at most once the one in use is out of contact.
func (s *supervisor) waitForChange(ctx context.Context, retry time.Duration) {
	timer := time.NewTimer(retry)
	defer timer.Stop()
	if retry == 0 {
		timer.Stop()
	}

	for soon := retry > 0 && retry <= maxRetry; ; {
		changed := s.checkHealth()
		if !soon && s.current.Load() != nil && s.status.State != federation.Live && len(s.wanted.Access) > 1 {
			timer.Reset(maxRetry) // others may work
			soon = true
		}

		select {
		case <-changed:
		case a := <-s.peerAnswers():
			s.takeAnswer(a)
		case <-timer.C:
			return
		case <-s.superseded:
			return
		case <-ctx.Done():
			return
		}
	}
}

// checkHealth updates the state by the health of the engagement in use, and returns a channel that closes
// with the next change of that health; nil without an engagement.
func (s *supervisor) checkHealth() <-chan struct{} {
	live := s.current.Load()
	if live == nil {
		return nil
	}
	h, changed := live.health.Load()
	s.updateState(h)
	return changed
}

// updateFailed records what the API server does not do. What fails anew is logged, and that nothing does any more.
func (s *supervisor) updateFailed(failed []api.FailedCall) {
	for _, call := range failed {
		same := func(o api.FailedCall) bool { return o.Call == call.Call && o.Cause == call.Cause }
		if !slices.ContainsFunc(s.status.Failed, same) {
			logs.Warn(s.log, "Requests fail", "call", call.String(), "reason", call.Reason, "error", call.Text)
		}
	}
	if len(failed) == 0 && len(s.status.Failed) > 0 {
		s.log.Info("No requests fail any more")
	}
	s.status.Failed = failed
}

// updateState derives the state of the cluster from the health of the engagement in use, and publishes it.
func (s *supervisor) updateState(health health) {
	state := s.registry.options.Thresholds.StateAfter(time.Since(health.lastContact))
	s.registry.setState(s, state)
	if health.restored.After(s.status.Restored) {
		s.status.Restored = health.restored
		s.log.Info("The API server went back to an older state, as after a restore from a backup: " +
			"everything was listed anew")
	}

	if s.status.OverBudget != health.overBudget {
		s.status.OverBudget = health.overBudget
		if health.overBudget == "" {
			s.log.Info("The cluster is within its budget again")
		} else {
			logs.Warn(s.log, "The cluster is over its budget", "problem", health.overBudget)
		}
	}

	s.updateFailed(health.failed)
	s.status.Unusable = health.unusable
	if skew := skewText(health.skew); s.status.ClockSkew != skew {
		s.status.ClockSkew = skew
		if skew == "" {
			s.log.Info("The clock of the cluster is right again")
		} else {
			logs.Warn(s.log, "The clock of the cluster is off", "skew", skew)
		}
	}

	s.status.LastContact, s.status.Contact = health.lastContact, health.err
	if s.status.State != state {
		s.status.State, s.status.Since = state, time.Now()
		contact := time.Since(health.lastContact).Round(time.Second).String() + " ago"
		if state == federation.Live {
			s.log.Info("Cluster is "+string(state), "lastContact", contact)
		} else {
			logs.Warn(s.log, "Cluster is "+string(state), "lastContact", contact, "error", ErrorText(health.err))
		}
	}
	s.registry.updateStatus(s)
}

package cluster

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/checkpoint"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// How checkpoints are kept.
//
// A replica that starts while a cluster cannot be reached would not have its endpoints. So each replica writes what
// Live clusters have published into files, and a supervisor that starts publishes what its file holds before it
// connects. That is a writer's term like any other: the cluster is Stale until an engagement takes over, whose first
// complete sync removes what is gone. Nothing has to be taken back, and a client is answered at once.
//
// A replica in a new Pod has no files. About a cluster that it could not reach, or not list within some seconds, it
// asks the other replicas, and publishes likewise what the one holds that was in contact last. It does so only then:
// in a rollout with everything in reach nothing is transferred but the names of clusters, of which others may hold some
// whose Links are gone (package links). The one exception is a cluster whose Link has the annotation withdrawal-guard:
// others may hold what the cluster itself does not have any more. They are asked while the cluster is listed for the
// first time, and what it has is published once they have answered, or after guardPatience.
//
// An inquiry goes on until the cluster is synced: after a second, and then ever more rarely, up to each half minute,
// because what others have goes on. It has a goroutine of its own, so that the supervisor takes new credentials, or
// ends, at any time. What is not new is not transferred (package checkpoint).
//
// Only clusters that are Live are saved, so that a file never holds what was restored. One that cannot be written is
// logged, counted and shown, and tried again, also when the cluster is out of contact by then: as of when it was Live.
// Serving does not depend on it. A cluster that is unlinked loses its file.
//
// It costs a pass over the Views of the clusters that have changed, every ten seconds at most, and less often where a
// pass takes longer than 100 ms: all passes take one percent of a core at most.
const (
	checkpointInterval = 10 * time.Second
	checkpointShare    = 100 // the pause after a pass, in times of what the pass took
)

// savedCheckpoint is what the file of a cluster holds; zero if nothing was saved yet.
type savedCheckpoint struct {
	checkpoint.Checkpoint
	failed string // why that could not be saved; empty if it was
}

// keepCheckpoints saves what clusters publish until ctx ends, and once more then.
func (r *Registry) keepCheckpoints(ctx context.Context) {
	saved := map[string]*savedCheckpoint{}
	timer := time.NewTimer(checkpointInterval)
	defer timer.Stop()

	for ended := false; !ended; {
		select {
		case <-timer.C:
		case <-ctx.Done():
			ended = true
		}
		began := time.Now()
		r.saveCheckpoints(saved)
		timer.Reset(max(checkpointInterval, checkpointShare*time.Since(began)))
	}
}

func (r *Registry) saveCheckpoints(saved map[string]*savedCheckpoint) {
	r.forgotten.Range(func(key, _ any) bool {
		name := key.(string)
		delete(saved, name)
		if err := r.options.Checkpoints.Remove(name); err != nil {
			r.log.Error(err, "The checkpoint of a cluster that was unlinked cannot be deleted", "cluster", name)
		}
		r.forgotten.Delete(name)
		return true
	})

	statuses, _ := r.Statuses() // after that: what is unlinked from now on is forgotten next time
	failures := NotSaved{}

	for _, name := range slices.Sorted(maps.Keys(statuses)) {
		status := statuses[name]
		last := saved[name]
		if last == nil {
			last = &savedCheckpoint{}
			saved[name] = last
		}

		switch {
		case status.State == federation.Live:
			r.saveCheckpoint(status, last)
		case last.failed != "":
			last.failed = ErrorText(r.options.Checkpoints.Save(last.Checkpoint))
		}
		if last.failed != "" {
			failures.Clusters, failures.Reason = failures.Clusters+1, cmp.Or(failures.Reason, last.failed)
		}
	}
	r.notSaved.Store(failures)
}

// NotSaved counts the clusters whose last state could not be saved when that was tried last.
type NotSaved struct {
	Clusters int    `json:"clusters"`
	Reason   string `json:"reason"` // that of the first of them
}

// NotSaved returns what could not be saved.
func (r *Registry) NotSaved() NotSaved {
	last, _ := r.notSaved.Load()
	return last
}

// saveCheckpoint saves what a cluster has published, or confirms the file if that is the same.
func (r *Registry) saveCheckpoint(status Status, saved *savedCheckpoint) {
	published, same := r.store.Published(federation.Cluster(status.Name), saved.Published)
	next := checkpoint.Checkpoint{Header: headerOf(status), AsOf: time.Now(), Published: published}
	var err error
	if same && saved.Header == next.Header && saved.failed == "" {
		err = r.options.Checkpoints.Confirm(status.Name)
	} else {
		err = r.options.Checkpoints.Save(next)
	}

	problem := ErrorText(err)
	if problem != saved.failed && err != nil {
		r.log.Error(err, "The checkpoint of a cluster cannot be saved: a replica that starts here while the cluster "+
			"is unreachable will not have its endpoints", "cluster", status.Name)
	}
	saved.Checkpoint, saved.failed = next, problem
}

// restoreFromDir publishes the checkpoint of the cluster, if there is one, and not of one that was unlinked.
func (s *supervisor) restoreFromDir() {
	_, forgotten := s.registry.forgotten.Load(s.name)
	if dir := s.registry.options.Checkpoints; dir != nil && !forgotten {
		s.restore(dir.Load(s.name))
	}
}

const (
	// busyRetry is the first pause after a peer had no time, and askRetry after it had nothing, or what is new. Each
	// pause is twice the one before, up to maxRetry.
	busyRetry = time.Second / 4
	askRetry  = time.Second
	// guardPatience is how long what a guarded cluster has waits for what others hold of it.
	guardPatience = 10 * time.Second
)

// An inquiry asks other replicas about a cluster until it is stopped.
type inquiry struct {
	answers chan peerAnswer // read by the supervisor
	began   time.Time
	cancel  context.CancelFunc
	done    chan struct{} // closed when its goroutine has ended
}

type peerAnswer struct {
	checkpoint.Answer
	err error
}

// needsPeers reports whether what other replicas have of the cluster is to be published until it is synced. Of the
// local cluster it is only if there was a file: without, it is not known which clusters are linked, and the other
// replica serves more than this one can.
func (s *supervisor) needsPeers() bool {
	missing := !s.status.Synced && (!s.status.Local || !s.status.Checkpoint.IsZero())
	return missing && s.registry.options.Peers != nil
}

// askPeers begins to ask other replicas for what they hold of the cluster, if that is needed and was not begun.
func (s *supervisor) askPeers(ctx context.Context) {
	if s.inquiry != nil || !s.needsPeers() {
		return
	}

	ctx, cancel := context.WithCancel(ctx)
	q := &inquiry{
		answers: make(chan peerAnswer), began: time.Now(), cancel: cancel, done: make(chan struct{}),
	}
	about := s.registry.options.Peers.About(s.name, s.status.Checkpoint)
	go func() {
		defer close(q.done)
		q.run(ctx, about)
	}()

	s.inquiry, s.status.AskingPeers = q, true
	s.registry.updateStatus(s)
}

func (q *inquiry) run(ctx context.Context, about *checkpoint.Inquiry) {
	pause := wait.Backoff{Duration: busyRetry, Factor: 2, Steps: math.MaxInt, Cap: maxRetry}
	for ctx.Err() == nil {
		answer, err := about.Ask(ctx)
		select {
		case q.answers <- peerAnswer{answer, err}:
		case <-ctx.Done():
			return
		}

		if !errors.Is(err, checkpoint.ErrBusy) {
			pause.Duration = max(pause.Duration, askRetry)
		}
		timer := time.NewTimer(pause.Step())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// stopAsking ends the inquiry, if there is one.
func (s *supervisor) stopAsking() {
	if s.inquiry != nil {
		s.inquiry.cancel()
		<-s.inquiry.done
		s.inquiry, s.status.AskingPeers = nil, false
	}
}

// peerAnswers returns the channel of answers of other replicas; nil if they are not asked.
func (s *supervisor) peerAnswers() <-chan peerAnswer {
	if s.inquiry == nil {
		return nil
	}
	return s.inquiry.answers
}

// waitsForHolds reports whether what the cluster has may not be published yet, because others may hold more of it.
func (s *supervisor) waitsForHolds() bool {
	guarded := s.wanted.Traffic.WithdrawalGuard.Hold > 0
	return guarded && s.status.AskingPeers && time.Since(s.inquiry.began) < guardPatience
}

// takeAnswer publishes what another replica holds of the cluster.
func (s *supervisor) takeAnswer(a peerAnswer) {
	s.status.AskingPeers = errors.Is(a.err, checkpoint.ErrBusy)
	switch {
	case a.err != nil || !a.Same:
		s.restore(a.Checkpoint, a.err)
	case !s.status.Checkpoint.IsZero(): // what it had before was published
		s.status.Checkpoint, s.status.LastContact = a.AsOf, a.AsOf
	}
	s.registry.updateStatus(s)
}

// restore publishes what a cluster had published at a time.
func (s *supervisor) restore(stored checkpoint.Checkpoint, err error) {
	if err == nil && stored.Local != s.status.Local {
		err = errors.New("it is that of the local cluster, or this one is, and the other is not")
	}
	if err != nil {
		if problem := api.CauseOf(err).Text; !errors.Is(err, checkpoint.ErrNone) && problem != s.status.NotRestored {
			s.status.NotRestored = problem
			logs.Warn(s.log, "The last state of the cluster is not restored", "reason", problem)
		}
		return
	}

	if s.guard == nil || !s.guard.restores(stored.Released) {
		stored.Published.Holds = nil
	}
	boundHolds(stored.Published.Holds, time.Now())
	s.registry.setState(s, federation.Stale)
	writer := s.registry.newWriter(s)
	if writer == nil {
		return // it was removed
	}

	writer.Write(stored.Published)
	writer.MarkSynced()
	if s.status.State != federation.Stale {
		s.status.State, s.status.Since = federation.Stale, time.Now()
	}

	again := !s.status.Checkpoint.IsZero()
	s.status.Checkpoint, s.status.LastContact, s.status.NotRestored = stored.AsOf, stored.AsOf, ""
	s.registry.updateStatus(s)
	level := 0
	if again {
		level = 1 // in a partition each change of the cluster is taken over from others
	}
	s.log.V(level).Info("The last state of the cluster was restored; it is Stale until the cluster is synced",
		"asOf", stored.AsOf, "services", stored.Published.Views.Len(), "held", len(stored.Published.Holds))
	s.registry.trafficChanged.Ring()
}

// boundHolds deletes holds that have ended, and has others end when one that begins now would end at the latest: a
// clock that was wrong where they were saved must not keep endpoints for years.
func boundHolds(holds map[federation.Service]federation.PublishedHold, now time.Time) {
	for svc, hold := range holds {
		switch latest := now.Add(policy.MaxTime); {
		case hold.Until.IsZero(): // it waits for a list
			if hold.Since.IsZero() || hold.Since.After(now) {
				hold.Since = now
			}
			holds[svc] = hold
		case !now.Before(hold.Until):
			delete(holds, svc)
		case hold.Until.After(latest):
			hold.Until = latest
			holds[svc] = hold
		}
	}
}

// FindPublished is a [checkpoint.Finder] of what clusters have published, or of what was restored of them.
func (r *Registry) FindPublished(name string, before checkpoint.Checkpoint) (now checkpoint.Checkpoint, same bool) {
	statuses, _ := r.Statuses()
	s, found := statuses[name]
	asOf := r.publishedAt(s)
	if !found || asOf.IsZero() {
		return checkpoint.Checkpoint{}, false
	}
	published, same := r.store.Published(federation.Cluster(name), before.Published)
	now = checkpoint.Checkpoint{Header: headerOf(s), Published: published, AsOf: asOf}
	return now, same && now.Header == before.Header
}

// publishedAt returns as of when the state of a cluster is; zero if there is none.
func (r *Registry) publishedAt(s Status) time.Time {
	if _, at := r.Inspect(s.Name); !at.IsZero() {
		return at
	}
	return s.Checkpoint
}

// PublishedClusters returns the linked clusters of which FindPublished finds something.
func (r *Registry) PublishedClusters() []checkpoint.Header {
	all := []checkpoint.Header{}
	statuses, _ := r.Statuses()
	for _, s := range statuses {
		if !s.Local && !r.publishedAt(s).IsZero() {
			all = append(all, headerOf(s))
		}
	}
	return all
}

// ClustersOfPeers returns the linked clusters that other replicas have the state of.
func (r *Registry) ClustersOfPeers(ctx context.Context) (all []Spec, err error) {
	if r.options.Peers == nil {
		return nil, nil
	}
	headers, err := r.options.Peers.Clusters(ctx)
	for _, h := range headers {
		if !h.Local {
			all = append(all, RestoredSpec(h))
		}
	}
	return all, err
}

// RestoredSpec returns the Spec of a cluster that is known by its checkpoint only: it has no access.
func RestoredSpec(h checkpoint.Header) Spec {
	return Spec{Name: h.Cluster, TrustDomain: h.TrustDomain, ClusterDomain: h.ClusterDomain}
}

func headerOf(s Status) checkpoint.Header {
	return checkpoint.Header{
		Cluster: s.Name, Local: s.Local, TrustDomain: s.TrustDomain, ClusterDomain: s.ClusterDomain,
		Released: s.Traffic.Released,
	}
}

package cluster

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// A guard stands before the writers of one linked cluster. The local cluster has none: it is the truth here.
//
// # What it keeps true
//
// A cluster that withdraws most of what it had within a minute is more often a mistake than meant: a deleted
// namespace, an empty restore, a watch that went wrong. So such a withdrawal takes three steps:
//
//  1. Set and Delete count on balance what the cluster has lost since its [policy.Peak]. From the one on that makes
//     it a mass withdrawal, what each of them would withdraw is held in the Store (see ClusterWriter.Hold), for all
//     readers. Views are written as ever; only Snapshots have more.
//  2. The kinds that publish what was withdrawn, Services and EndpointSlices, are listed anew, with lists that begin
//     now, and everything is published that follows from them. That takes as long as the lists do. Until then nothing
//     goes, even if the API server is cut off meanwhile.
//  3. What the cluster has after that is confirmed. Without an annotation the holds end: what is gone goes. With
//     withdrawal-guard what is gone is held for so long, where nothing else is ready.
//
// The first sync of an engagement is a list of everything, which needs no other one. With the annotation it is
// compared with what there was before, so that a cluster which was restored empty is held as well.
//
// With the annotation, what was lost within the last minute before step 1 is held, too, so that all of a withdrawal
// is that comes bit by bit. For that the Store remembers it for a minute, and a Service that is deleted stays as long
// without endpoints: the mirror of one that is gone could not be written again. Without the annotation nothing is
// remembered.
//
// # What bounds it
//
// The cluster is not trusted here: it may withdraw in turn what it publishes, and never answer the list. What is
// written and what is held, or remembered, together stay within its budget (federation/account.go); past it the oldest
// holds go. What a hold has is fixed when it begins. Step 2 ends, or else one of the two kinds has not listed for
// longer than a watch may be silent, and the cluster is out of contact: Suspect and then Stale, as one is that does not
// answer at all, with all that it had. A hold that is not confirmed even so ends when the longest would that a Link can
// ask for. Until then it is reported (cluster/traffic.go).
//
// # A replica that starts
//
// Checkpoints, and what peers give, have the holds beside the Views, with their ends, and the last release. So a
// replica goes on with them, and adds no time. What has ended since does not come back, because ends are times, nor
// what was released, because the Link has another release then. A hold that is not confirmed waits for the first sync,
// which is a list of everything. A replica that has neither knows nothing of all that. But what is written elsewhere
// of the cluster outlives it: writers compare that with what they find, once, and ask ConfirmLoss before they act.
//
// # What it costs
//
// Two additions for each View that differs, and a count of the endpoints of those slices in it that differ.
//
// # Locks
//
// mu guards all below it, and comes before Store.mu: a hold must not outlast the decision that ends it. The
// Reconciler's goroutine calls Set and Delete; decide runs in one that is started for step 2. Those of an engagement
// that was replaced may still run: what they write has no effect, and does not count.
type guard struct {
	log     logr.Logger
	store   *federation.Store
	cluster federation.Cluster
	changed func() // what report returns may have

	mu       sync.Mutex
	decides  policy.Guard   // of what is written
	released string         // when the Link was released last; as it has it
	losses   []*Unconfirmed // that writers have found, and that no list has confirmed yet
	writer   *guardedWriter // the newest: what others write has no effect, and does not count
	letGo    LetGo          // as last seen
}

func newGuard(log logr.Logger, store *federation.Store, name string, changed func()) *guard {
	return &guard{log: log, store: store, cluster: federation.Cluster(name), changed: changed}
}

// A guardedWriter is a ClusterWriter that asks the guard first. One goroutine uses it.
type guardedWriter struct {
	*federation.ClusterWriter
	guard   *guard
	confirm func(*guardedWriter) // starts what calls decide

	had    policy.Amount // of what was given before it
	synced bool
}

// newWriter returns the guarded form of the newest writer.
func (g *guard) newWriter(writer *federation.ClusterWriter, confirm func(*guardedWriter)) *guardedWriter {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.recount()
	had := g.decides.Has()
	for svc, h := range g.store.Holds(g.cluster) {
		if !h.Until.IsZero() {
			continue
		}
		had.Endpoints += h.Endpoints
		if writer.View(svc) == nil {
			had.Services++
		}
	}

	g.writer = &guardedWriter{ClusterWriter: writer, guard: g, confirm: confirm, had: had}
	return g.writer
}

// Set writes a View, and returns what is stored.
func (w *guardedWriter) Set(svc federation.Service, v *federation.View) *federation.View {
	w.holdLoss(svc, v)
	return w.ClusterWriter.Set(svc, v)
}

// Delete removes the View of a Service.
func (w *guardedWriter) Delete(svc federation.Service) {
	w.holdLoss(svc, nil)
	w.ClusterWriter.Delete(svc)
}

// holdLoss counts what the cluster has when the next View of a Service is written, and holds what that would withdraw.
func (w *guardedWriter) holdLoss(svc federation.Service, next *federation.View) {
	guard := w.guard
	guard.mu.Lock()
	defer guard.mu.Unlock()

	if guard.writer != w || !w.synced && guard.decides.Asked.Hold == 0 {
		return // it is fenced, or MarkSynced counts
	}

	gain, now := gainOf(w.View(svc), next), time.Now()
	if !w.synced { // MarkSynced goes on
		if gain.Endpoints < 0 {
			w.Hold(svc, now)
		}
		return
	}

	switch guard.decides.Change(now, gain) {
	case policy.Withdraw:
	case policy.Remember:
		if w.Remember(svc, now.Add(policy.Window), gain.Services < 0) {
			guard.changed() // it is to be forgotten
		}
	case policy.Confirm:
		w.beginHold(now)
		w.Hold(svc, now)
	case policy.Hold:
		w.Hold(svc, now)
	}
}

// beginHold holds what was lost of late, and has it confirmed.
func (w *guardedWriter) beginHold(now time.Time) {
	guard := w.guard
	had, has := guard.decides.Had(), guard.decides.Has()
	logs.Warn(guard.log, "The cluster withdraws most of what it had: it is held until a new list confirms that",
		"endpoints", had.Endpoints-has.Endpoints, "of", had.Endpoints, "services", had.Services-has.Services,
		"ofServices", had.Services)
	guard.store.EndHolds(guard.cluster, now) // what was lost longer ago
	w.HoldRemembered(now)
	w.confirm(w)
	guard.changed()
}

// MarkSynced removes what was not written, unless that is held.
func (w *guardedWriter) MarkSynced() {
	guard := w.guard
	guard.mu.Lock()
	guard.decides.List(w.had)
	if guard.decides.Asked.Hold > 0 {
		for _, svc := range w.Unwritten() {
			w.Hold(svc, time.Now())
		}
	}

	w.synced = true
	guard.mu.Unlock()
	w.ClusterWriter.MarkSynced()
	guard.mu.Lock()
	guard.recount()
	guard.mu.Unlock()
	w.decide()
}

// recount counts what the cluster has written. It needs mu.
func (g *guard) recount() {
	var has policy.Amount
	for _, v := range g.store.Views(g.cluster).All() {
		ready, _ := v.Count()
		has = has.Add(policy.Amount{Endpoints: ready, Services: 1})
	}
	g.decides.Set(time.Now(), has)
}

// decide confirms what is held or ends it, after everything was listed.
func (w *guardedWriter) decide() {
	guard := w.guard
	guard.mu.Lock()
	if guard.writer != w {
		guard.mu.Unlock()
		return // it is fenced: the next one decides
	}

	confirming := guard.decides.Confirming()
	mass, asked, until := guard.decides.Listed(), guard.decides.Asked, time.Time{}
	if mass && asked.Hold > 0 {
		until = time.Now().Add(asked.Hold)
	}
	held := guard.store.ConfirmHolds(guard.cluster, until)
	if asked.Hold == 0 {
		guard.store.EndHolds(guard.cluster, time.Time{}) // what was restored, and is not asked for any more
	}

	if confirming {
		has := guard.decides.Has()
		guard.log.Info("A withdrawal was listed", "confirmed", mass, "of", held, "until", until,
			"endpoints", has.Endpoints, "services", has.Services)
	}
	guard.mu.Unlock()

	if held > 0 {
		guard.changed()
	}
}

// ask sets what the Link asks for. Nothing stays held that was confirmed if it asks for no hold any more, or if it was
// released anew: that the time of the last release is removed releases nothing.
func (g *guard) ask(asked policy.WithdrawalGuard, released string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	again := released != "" && released != g.released
	if g.decides.Asked.Hold > 0 && asked.Hold == 0 || again {
		g.store.EndHolds(g.cluster, time.Time{})
	}
	g.decides.Asked = asked
	if again {
		g.released = released
	}
}

// noteLetGo returns what is to be reported about endpoints of which so many were held so far, and are not because there
// is no room in a budget.
func (g *guard) noteLetGo(endpoints int, budget string, now time.Time) LetGo {
	g.mu.Lock()
	defer g.mu.Unlock()

	if endpoints > g.letGo.Endpoints {
		if now.Sub(g.letGo.At) > letGoReported {
			logs.Warn(g.log, "What the cluster has and what is held of it exceeds its budget: what was held "+
				"first is let go",
				"endpoints", endpoints-g.letGo.Endpoints, "budget", budget)
		}
		g.letGo = LetGo{endpoints, now, budget}
	}

	if now.Sub(g.letGo.At) >= letGoReported {
		return LetGo{}
	}
	return g.letGo
}

// restores reports whether what was held when a Link had been released is still to be held. If the Link was not read
// yet, ask decides on that later.
func (g *guard) restores(released string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released == "" {
		g.released = released
	}
	return g.released == released
}

// gainOf returns what a cluster gains by one View in place of another; nil is none. Slices that are the same are
// not looked at.
func gainOf(old, next *federation.View) (gain policy.Amount) {
	var before, now []*federation.Slice
	if old != nil {
		before, gain.Services = old.Slices, -1
	}
	if next != nil {
		now, gain.Services = next.Slices, gain.Services+1
	}

	for len(before) > 0 || len(now) > 0 {
		switch {
		case len(now) == 0 || len(before) > 0 && before[0].Name < now[0].Name:
			gain.Endpoints, before = gain.Endpoints-readyIn(before[0]), before[1:]
		case len(before) == 0 || now[0].Name < before[0].Name:
			gain.Endpoints, now = gain.Endpoints+readyIn(now[0]), now[1:]
		default:
			if before[0] != now[0] {
				gain.Endpoints += readyIn(now[0]) - readyIn(before[0])
			}
			before, now = before[1:], now[1:]
		}
	}
	return gain
}

func readyIn(s *federation.Slice) (n int) {
	for _, e := range s.Endpoints {
		if e.Ready {
			n++
		}
	}
	return n
}

// confirmWithdrawal lists anew what publishes endpoints, publishes what follows, and has the guard decide.
func (e *engagement) confirmWithdrawal(writer *guardedWriter) {
	if e.relistPublished(e.ctx) == nil {
		writer.decide()
	}
}

// relistPublished lists the kinds anew that publish what was withdrawn, and publishes what follows. The others may be
// stuck. It returns an error if ctx or the engagement ends first.
func (e *engagement) relistPublished(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()

	for _, k := range e.kinds {
		if k.Publishes {
			k.Relist()
		}
	}

	for _, k := range e.kinds {
		if k.Publishes {
			if err := k.WaitRelisted(ctx); err != nil {
				return err
			}
		}
	}
	return e.reconciler.Settle(ctx)
}

// ConfirmLoss waits until a cluster may lack what it had, as what was written for it elsewhere shows: if that is a mass
// withdrawal by the guard of its Link, until everything was listed anew and published. A replica that starts with
// neither files nor peers knows of no withdrawal; those who write ask here before they act on what they find. It
// returns an error if ctx ends first. What the local cluster lacks is gone.
func (r *Registry) ConfirmLoss(ctx context.Context, name string, had, has policy.Amount) error {
	supervisor := r.supervisor(name)
	if supervisor == nil || supervisor.guard == nil || !supervisor.guard.isMass(had, has) {
		return ctx.Err()
	}
	defer supervisor.guard.reportLoss(had, has)()

	for supervisor == r.supervisor(name) && supervisor.guard.isMass(had, has) {
		_, changed := r.Statuses()
		live := supervisor.current.Load()
		if live != nil && live.relistPublished(ctx) == nil {
			return nil
		}
		if !watch.WaitClosed(ctx, changed) {
			return ctx.Err()
		}
	}
	return r.ConfirmLoss(ctx, name, had, has) // the Link asks for something else, or is another one
}

// reportLoss reports what a writer has found, until end is called.
func (g *guard) reportLoss(had, has policy.Amount) (end func()) {
	logs.Warn(g.log, "Most of what is written of the cluster is gone there: it stays until a new list confirms that",
		"endpoints", had.Endpoints-has.Endpoints, "of", had.Endpoints,
		"services", had.Services-has.Services, "ofServices", had.Services)
	found := &Unconfirmed{Endpoints: had.Endpoints - has.Endpoints, Since: time.Now()}
	g.mu.Lock()
	g.losses = append(g.losses, found)
	g.mu.Unlock()
	g.changed()

	return func() {
		g.mu.Lock()
		g.losses = slices.DeleteFunc(g.losses, func(l *Unconfirmed) bool { return l == found })
		g.mu.Unlock()
		g.changed()
	}
}

// unconfirmed returns what is not known to be gone, of what is held and of what writers have found. Several of these
// may have found the same endpoints.
func (g *guard) unconfirmed(held federation.HoldStatus) Unconfirmed {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := Unconfirmed{held.Endpoints, held.Since}
	for _, found := range g.losses {
		all.Endpoints, all.Since = max(all.Endpoints, found.Endpoints), earliest(all.Since, found.Since)
	}
	return all
}

func (g *guard) isMass(had, has policy.Amount) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.decides.Asked.IsMass(had, has)
}

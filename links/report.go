package links

import (
	"context"
	"slices"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// A linkReport is what is known about one Link, besides the Link itself.
type linkReport struct {
	conditions []metav1.Condition // as this replica computed them; nil: not yet
	own        []problem.Problem  // of the Link itself, which the conditions report
	mirror     *MirrorStatus      // as it is written; nil: nothing was handed over in this term
	recorded   []metav1.Condition // as Events show them; types without an Event in this term are missing
}

// reportOf returns the report of a Link; nil if that was deleted meanwhile. The caller holds mu.
func (r *Reconciler) reportOf(link api.Key, uid string) *linkReport {
	if now := r.seenLinks[link]; now == nil || now.uid != uid {
		return nil
	}
	if r.reports[uid] == nil {
		r.reports[uid] = &linkReport{}
	}
	return r.reports[uid]
}

// followStatuses has Links report each change of their cluster's Status, and what begins at a time of it, such as that
// its credentials expire, until ctx ends.
func (r *Reconciler) followStatuses(ctx context.Context) {
	var seen map[string]cluster.Status
	var looked time.Time
	expiry, reported := time.NewTimer(time.Hour), ""
	defer expiry.Stop()

	for ctx.Err() == nil {
		statuses, changed := r.registry.Statuses()
		now, next := time.Now(), time.Time{}
		reported = r.logLeaseProblem(statuses[r.options.ClusterName].Writing, reported)

		for name, status := range statuses {
			old, known := seen[name]
			deadlines := status.Deadlines()
			isDue := func(at time.Time) bool { return at.After(looked) && !at.After(now) }
			if !known || !old.SameButTimes(status) || slices.ContainsFunc(deadlines, isDue) {
				r.report(name)
			}
			for _, at := range deadlines {
				if at.After(now) && (next.IsZero() || at.Before(next)) {
					next = at
				}
			}
		}

		seen, looked = statuses, now
		expiry.Stop()
		if !next.IsZero() {
			expiry.Reset(time.Until(next))
		}

		select {
		case <-changed:
		case <-expiry.C:
		case <-ctx.Done():
		}
	}
}

// logLeaseProblem logs why the Lease cannot be had under which the status of Links is written, if that differs from
// what was logged last, and returns it; empty if it can be had, or if that is not known yet.
func (r *Reconciler) logLeaseProblem(local cluster.Writing, logged string) (now string) {
	isOwn := func(lease string) bool { return lease != linkerd.ExternalWorkloadsLease }
	if !slices.ContainsFunc(local.Wanted, isOwn) {
		now = local.Problem
	}
	if now != logged && now != "" {
		logs.Warn(r.log, "This replica cannot write the status of Links: it cannot hold the local cluster's "+
			"Lease. Metrics and debug pages report their conditions", "reason", now)
	}
	return now
}

// report computes the conditions of the Links that name a cluster, from the newest outcome of its name and the newest
// Status. It is called after either has changed, and after a Link shows another status. Calls follow one another, so
// the last one has the newest of all.
func (r *Reconciler) report(name string) {
	r.reporting.Lock()
	defer r.reporting.Unlock()

	out, links := r.resolved(name)
	statuses, _ := r.registry.Statuses()
	status, applied := statuses[name]
	now := time.Now()
	for _, link := range links {
		problems := problemsFor(link, out, status, applied, now)
		r.setConditions(link, conditionsFor(link, out, status, problems), problems)
	}
}

// resolved returns the outcome of a cluster name, and its Links, as they were resolved and with the status that they
// show now. Those that were deleted since, or name another cluster, are missing.
func (r *Reconciler) resolved(name string) (out outcome, links []*Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out = r.outcomes[name]
	for _, l := range out.links {
		if now := r.seenLinks[l.key]; now != nil && now.uid == l.uid && now.clusterName == name {
			shown := *l
			shown.status = now.status
			links = append(links, &shown)
		}
	}
	return out, links
}

// setConditions stores the conditions that this replica computed for a Link and of which Problems, and logs what has
// changed.
func (r *Reconciler) setConditions(link *Link, conditions []metav1.Condition, problems []problem.Problem) {
	own := own(problems)
	r.mu.Lock()
	report := r.reportOf(link.key, link.uid)
	if report == nil {
		r.mu.Unlock()
		return
	}
	before := report.conditions
	problem.KeepSince(report.own, own, time.Now())
	report.conditions, report.own = conditions, own
	r.mu.Unlock()

	for _, c := range changedConditions(before, link.status.conditions, conditions) {
		write := logr.Logger.Info
		if c.Status != metav1.ConditionTrue && isUrgent(problems, c.Reason) {
			write = logs.Warn
		}
		write(r.log, "Link: "+c.Type+" is "+string(c.Status),
			"link", link.key.String(), "cluster", link.clusterName, "reason", c.Reason, "message", c.Message)
	}
	r.enqueueStatus(link.key)
}

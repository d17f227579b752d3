package app

import (
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	"github.com/fingerpost/fingerpost/federation/rules"
	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
)

// clusterReadiness is what a replica waits for of clusters before it is ready: that Links were listed, and that the
// local cluster is synced. Where that cannot be reached, what was restored of it takes the place of both.
//
// After these it waits until each linked cluster was tried, for linkedPatience at most: clients of the replicas that a
// new one replaces have the endpoints of a cluster that is away, and this one gets them from those replicas within
// about a second. So a cluster that fails delays readiness, but not by more than that, unless one of those replicas
// has not answered yet, or has no time: then it waits for as long as first answers do.
type clusterReadiness struct {
	localCluster string
	grace        time.Duration                                       // of first answers
	statuses     func() (map[string]cluster.Status, <-chan struct{}) // of clusters
	linksListed  fedwatch.Value[bool]
}

const linkedPatience = 3 * time.Second

// links is the condition that Links were listed.
func (r *clusterReadiness) links() server.Condition {
	return server.Condition{Name: "Links", Load: func() (time.Duration, []<-chan struct{}) {
		listed, listedChanged := r.linksListed.Load()
		statuses, statusesChanged := r.statuses()
		if listed || isRestored(statuses[r.localCluster]) {
			return 0, []<-chan struct{}{statusesChanged}
		}
		return server.Forever, []<-chan struct{}{listedChanged, statusesChanged}
	}}
}

// clusters are the conditions of the local cluster and of linked ones. They come after links: the clusters of Links
// that were listed are then among the statuses.
func (r *clusterReadiness) clusters() []server.Condition {
	local := func(statuses map[string]cluster.Status) time.Duration {
		if s := statuses[r.localCluster]; s.Synced || isRestored(s) {
			return 0
		}
		return server.Forever
	}

	condition := func(name string, patience func(map[string]cluster.Status) time.Duration) server.Condition {
		return server.Condition{Name: name, Load: func() (time.Duration, []<-chan struct{}) {
			statuses, changed := r.statuses()
			return patience(statuses), []<-chan struct{}{changed}
		}}
	}

	return []server.Condition{condition("local cluster", local), condition("linked clusters", r.patienceFor)}
}

// rules is the condition that the objects of policy are listed, or known from before. It has the names of the kinds
// that are missing.
func (r *clusterReadiness) rules(levels *rules.Levels, local rules.LevelsReader) server.Condition {
	return server.Condition{
		Name: "objects of policy",
		Load: func() (time.Duration, []<-chan struct{}) {
			var changed []<-chan struct{}
			for _, synced := range local.AllSynced() {
				is, superseded := synced()
				if !is {
					changed = append(changed, superseded)
				}
			}
			if len(changed) > 0 {
				return server.Forever, changed
			}
			return 0, nil
		},
		Missing: func() []string {
			names, _ := levels.Unlisted.Load()
			return names
		},
	}
}

func isRestored(local cluster.Status) bool { return !local.Checkpoint.IsZero() && local.Contact != nil }

// patienceFor returns for how long clusters are waited for that are as statuses have them.
func (r *clusterReadiness) patienceFor(statuses map[string]cluster.Status) (patience time.Duration) {
	for _, s := range statuses {
		switch {
		case s.Tried():
		case s.AskingPeers:
			return max(linkedPatience, r.grace)
		default:
			patience = linkedPatience
		}
	}
	return patience
}

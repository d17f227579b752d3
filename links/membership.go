package links

import (
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// A knowledge is how much this process knows of what links clusters. It only grows.
type knowledge uint8

const (
	knowsNothing knowledge = iota
	knowsListed            // all that may be listed was: see onListed
	knowsAll               // all that links clusters is known: see step 3
	knowsGone              // and what does not link one does not come back: see step 4
)

// Membership returns which clusters are linked, and a channel that closes when that has changed.
//
// A cluster is linked while a Link or a labelled Secret names it, and while the deletion of its Link is pending or
// held. One that was restored is undecided until it is known whether its Link is gone. Others that were linked since
// the start are unlinked; so are, after the last step, those of which this process knows nothing.
func (r *Reconciler) Membership() (*federation.Membership, <-chan struct{}) {
	return r.membership.Load()
}

// learn records that more is known.
func (r *Reconciler) learn(k knowledge) {
	r.mu.Lock()
	r.knows = k
	if k == knowsGone {
		r.everLinked = nil
	}
	r.mu.Unlock()
	r.noteChange()
}

// noteChange publishes the Membership that follows from a change, and wakes those who follow Links.
func (r *Reconciler) noteChange() {
	r.publishMembership()
	r.changes.Store(struct{}{})
}

func (r *Reconciler) publishMembership() {
	r.mu.Lock()
	var superseded watch.Superseded
	before, _ := r.membership.Load()
	if now := r.newMembership(); !now.Equal(before) {
		superseded = r.membership.Swap(now)
	}
	r.mu.Unlock()
	superseded.Wake()
}

// newMembership computes the Membership. It needs mu.
func (r *Reconciler) newMembership() *federation.Membership {
	states := map[federation.Cluster]federation.LinkState{}
	if r.knows >= knowsListed {
		for name := range r.everLinked {
			states[federation.Cluster(name)] = federation.StateUnlinked
		}
	}

	for name := range r.restored {
		states[federation.Cluster(name)] = federation.StateUndecided
	}
	for _, link := range r.seenLinks {
		states[federation.Cluster(link.clusterName)] = federation.StateLinked
	}
	for _, name := range r.labelled {
		states[federation.Cluster(name)] = federation.StateLinked
	}
	delete(states, "")

	others := federation.StateUndecided
	if r.knows == knowsGone {
		others = federation.StateUnlinked
	}
	return federation.NewMembership(states, others, r.knows >= knowsAll)
}

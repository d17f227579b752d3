package endpointslice

import (
	"context"
	"maps"
	"slices"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// What is written here outlives a replica. One that starts with neither files nor peers does not know that a cluster
// had more than it finds, so that its guard has nothing to compare with. The slices show it: once in a term, when a
// source cluster is known, what they have of it is compared with what its members claim now. If most of that is gone
// the cluster confirms it first (Registry.ConfirmLoss), and until then its slices are left as they are.
//
// From then on the guard of the cluster has seen everything: what it holds is in Snapshots.
//
// Example: slices have 40 endpoints of east in 12 Services when a term begins, and 35 of them are claimed by no member.
// Nothing of east is written until east was listed anew. If they are gone after that, they are withdrawn.

// A lossState is how far it is decided what a source cluster has lost before this term.
type lossState uint8

const (
	notCompared lossState = iota
	unconfirmed
	decided
)

// A loss is what slices have of a source cluster, and what of that its members claim.
type loss struct {
	source   string
	had, has policy.Amount
}

func (f *federatedSlices) begin() {}

// mayLose reports whether slices may lose endpoints of a source cluster that is known. The first call compares.
func (f *federatedSlices) mayLose(source string) bool {
	f.mu.Lock()
	state := f.losses[source]
	if state == notCompared {
		f.losses[source] = unconfirmed
	}
	f.mu.Unlock()
	if state != notCompared {
		return state == decided
	}

	lost := f.lossOf(source)
	if lost.had == lost.has {
		f.decide(source)
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all, _ := f.confirm.Load()
	f.confirm.Store(append(slices.Clone(all), lost))
	return false
}

// lossOf compares what slices have of a source cluster with what its members claim. What goes for another reason than
// that a member lacks it does not count.
func (f *federatedSlices) lossOf(source string) loss {
	lost := loss{source: source}

	for k, have := range f.slicesOfSource(source) {
		f.mu.Lock()
		svc := f.servicesIn[k.Namespace][k.Name]
		f.mu.Unlock()
		snapshot := f.loop.Snapshot(k)
		if svc == nil || snapshot == nil || snapshot.View == nil {
			continue
		}

		shown := f.shown(k, snapshot)
		if !slices.ContainsFunc(shown.Members, func(m *federation.Member) bool {
			return m.Known && string(m.Origin.Cluster) == source
		}) {
			continue
		}

		groups, _ := federatedGroups(f.inForce(svc), shown, f.writer.options.Namespace, f.ownership(), false)
		held := addressesOfSlices(have, anyEndpoint)
		claimed := held.Intersection(addressesOfGroups(bySource(groups)[source], anyEndpoint))
		lost.had.Endpoints += len(held)
		lost.has.Endpoints += len(claimed)
	}
	return lost
}

// slicesOfSource returns the slices that have endpoints of a source cluster, by Service.
func (f *federatedSlices) slicesOfSource(source string) map[key][]*discoveryv1.EndpointSlice {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[key][]*discoveryv1.EndpointSlice{}
	for k, ofService := range f.slicesOf {
		for _, es := range ofService {
			if es.Labels[SourceLabel] == source {
				all[k] = append(all[k], es)
			}
		}
	}
	return all
}

// confirmLosses confirms losses until ctx ends.
func (f *federatedSlices) confirmLosses(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()

	for done := 0; ; {
		all, changed := f.confirm.Load()
		for _, lost := range all[done:] {
			wg.Go(func() {
				if f.writer.registry.ConfirmLoss(ctx, lost.source, lost.had, lost.has) == nil {
					f.decide(lost.source)
				}
			})
		}

		done = len(all)
		if !watch.WaitClosed(ctx, changed) {
			return
		}
	}
}

// decide has slices written that wait for what a source cluster has lost.
func (f *federatedSlices) decide(source string) {
	f.mu.Lock()
	f.losses[source] = decided
	f.mu.Unlock()
	f.loop.Enqueue(slices.Collect(maps.Keys(f.slicesOfSource(source)))...)
	f.loop.Enqueue(f.loop.Followed()...)
}

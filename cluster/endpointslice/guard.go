package endpointslice

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// The guard against mass withdrawals. A watch that went wrong, or a cluster that was restored from an old
// backup, can make most endpoints of a Service disappear at once; acting on that would empty the Service
// everywhere. So a plan that withdraws more than half of the endpoints that one source cluster has in a
// Service, or, within a minute, more than half of all that it has in this cluster, is confirmed first (package
// policy has the numbers): the API servers themselves are read again, and most of the endpoints must be gone
// there, too. While they do not answer, the endpoints stay, and the Service is retried.
//
// All counts are by source cluster: one that does not answer holds back its own endpoints only. Confirmations are slow
// when a cluster is: at most maxConfirmations of one source, and half of the workers in all, are at it;
// further Services are busy and come up again later.
const (
	confirmTimeout   = 5 * time.Second
	maxConfirmations = 2
)

// sourceAddress is an address that one source cluster has.
type sourceAddress struct{ source, addr string }

// removals returns the addresses that slices hold and groups do not.
func removals(have []*discoveryv1.EndpointSlice, wanted []*group) (gone []sourceAddress) {
	kept := addressesOfGroups(wanted)
	for a := range addressesOfSlices(have) {
		if !kept[a] {
			gone = append(gone, a)
		}
	}
	return gone
}

// onlyWithdraws reports whether groups have fewer ready addresses than slices hold, and no ready one that these do not.
func onlyWithdraws(have []*discoveryv1.EndpointSlice, wanted []*group) bool {
	held, kept := map[string]bool{}, map[string]bool{}
	for _, es := range have {
		for a := range readyAddresses(es.Endpoints) {
			held[a] = true
		}
	}
	for _, g := range wanted {
		for a := range readyAddresses(g.endpoints) {
			if !held[a] {
				return false
			}
			kept[a] = true
		}
	}
	return len(kept) < len(held)
}

func readyAddresses(endpoints []discoveryv1.Endpoint) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, e := range endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, a := range e.Addresses {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// stillThere returns of groups the endpoints that slices hold.
func stillThere(have []*discoveryv1.EndpointSlice, groups []*group) (all []*group) {
	held := addressesOfSlices(have)
	for _, g := range groups {
		next := *g
		next.endpoints = slices.DeleteFunc(slices.Clone(g.endpoints), func(e discoveryv1.Endpoint) bool {
			return !held[sourceAddress{g.source, e.Addresses[0]}]
		})
		if len(next.endpoints) > 0 {
			all = append(all, &next)
		}
	}
	return all
}

func addressesOfGroups(groups []*group) map[sourceAddress]bool {
	all := map[sourceAddress]bool{}
	for _, g := range groups {
		for _, e := range g.endpoints {
			for _, a := range e.Addresses {
				all[sourceAddress{g.source, a}] = true
			}
		}
	}
	return all
}

func addressesOfSlices(have []*discoveryv1.EndpointSlice) map[sourceAddress]bool {
	all := map[sourceAddress]bool{}
	for _, es := range have {
		for _, e := range es.Endpoints {
			for _, a := range e.Addresses {
				all[sourceAddress{es.Labels[SourceLabel], a}] = true
			}
		}
	}
	return all
}

// exceedsGuard reports whether removals need a confirmation. have are the slices of that source in the
// Service.
func (t *sliceWriter) exceedsGuard(gone []sourceAddress, have []*discoveryv1.EndpointSlice) bool {
	if len(gone) == 0 {
		return false
	}
	exceeds := policy.IsMass(len(gone), len(addressesOfSlices(have)))
	bySource := map[string]int{}
	for _, a := range gone {
		bySource[a.source]++
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for source, n := range bySource {
		held := func() int { return t.heldOf(source) }
		exceeds = t.guard.Exceeds(time.Now(), source, n, held) || exceeds
	}
	return exceeds
}

// heldOf returns how many endpoints of a source cluster the slices of all Services hold. It needs t.mu.
func (t *sliceWriter) heldOf(source string) (held int) {
	for _, ofService := range t.slicesOf {
		for _, es := range ofService {
			if es.Labels[SourceLabel] == source {
				held += len(es.Endpoints)
			}
		}
	}
	return held
}

// confirm reads again whether addresses are gone. It returns errBusy if too many confirmations run.
func (t *sliceWriter) confirm(
	ctx context.Context, gone []sourceAddress, read func(context.Context, []sourceAddress) error,
) error {
	sources := map[string]bool{}
	for _, a := range gone {
		sources[a.source] = true
	}
	if !t.beginConfirmation(sources) {
		return errBusy
	}
	defer t.endConfirmation(sources)
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	return read(ctx, gone)
}

func (t *sliceWriter) beginConfirmation(sources map[string]bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := 0
	for source, n := range t.confirmations {
		if all += n; sources[source] && n >= maxConfirmations {
			return false
		}
	}
	if all >= workers/2 {
		return false
	}
	for source := range sources {
		t.confirmations[source]++
	}
	return true
}

func (t *sliceWriter) endConfirmation(sources map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for source := range sources {
		if t.confirmations[source]--; t.confirmations[source] == 0 {
			delete(t.confirmations, source)
		}
	}
}

// checkRemoved returns an error if most of the addresses that would go are still there.
func checkRemoved(gone []sourceAddress, now []*group) error {
	held, still := addressesOfGroups(now), 0
	for _, a := range gone {
		if held[a] {
			still++
		}
	}
	if 2*still > len(gone) {
		return fmt.Errorf("%w: %d of %d still exist", errUnconfirmed, still, len(gone))
	}
	return nil
}

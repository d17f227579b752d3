package endpointslice

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fingerpost/fingerpost/cluster/apply"
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

// addresses are those of one source cluster.
type addresses = sets.Set[string]

// removals returns the addresses that slices hold and groups do not.
func removals(have []*discoveryv1.EndpointSlice, wanted []*group) addresses {
	return addressesOfSlices(have, anyEndpoint).Difference(addressesOfGroups(wanted, anyEndpoint))
}

// onlyWithdraws reports whether groups have fewer ready addresses than slices hold, and no ready one that these do not.
func onlyWithdraws(have []*discoveryv1.EndpointSlice, wanted []*group) bool {
	held, kept := addressesOfSlices(have, readyEndpoint), addressesOfGroups(wanted, readyEndpoint)
	return len(kept) < len(held) && held.IsSuperset(kept)
}

// stillThere returns of groups the endpoints that slices hold.
func stillThere(have []*discoveryv1.EndpointSlice, groups []*group) (all []*group) {
	held := addressesOfSlices(have, anyEndpoint)
	for _, g := range groups {
		next := *g
		next.endpoints = slices.DeleteFunc(slices.Clone(g.endpoints), func(e discoveryv1.Endpoint) bool {
			return !held.Has(e.Addresses[0])
		})
		if len(next.endpoints) > 0 {
			all = append(all, &next)
		}
	}
	return all
}

// addressesOfGroups returns the addresses of those endpoints that are meant.
func addressesOfGroups(groups []*group, meant func(*discoveryv1.Endpoint) bool) addresses {
	all := addresses{}
	for _, g := range groups {
		insertAddresses(all, g.endpoints, meant)
	}
	return all
}

func addressesOfSlices(have []*discoveryv1.EndpointSlice, meant func(*discoveryv1.Endpoint) bool) addresses {
	all := addresses{}
	for _, es := range have {
		insertAddresses(all, es.Endpoints, meant)
	}
	return all
}

func insertAddresses(into addresses, endpoints []discoveryv1.Endpoint, meant func(*discoveryv1.Endpoint) bool) {
	for i := range endpoints {
		if e := &endpoints[i]; meant(e) {
			into.Insert(e.Addresses...)
		}
	}
}

func anyEndpoint(*discoveryv1.Endpoint) bool { return true }

func readyEndpoint(e *discoveryv1.Endpoint) bool {
	return e.Conditions.Ready == nil || *e.Conditions.Ready
}

// exceedsGuard reports whether removals need a confirmation. have are the slices of that source in the
// Service.
func (t *sliceWriter) exceedsGuard(source string, gone addresses, have []*discoveryv1.EndpointSlice) bool {
	if len(gone) == 0 {
		return false
	}
	inService := policy.IsMass(len(gone), len(addressesOfSlices(have, anyEndpoint)))
	t.mu.Lock()
	defer t.mu.Unlock()
	held := func() int { return t.heldOf(source) }
	return t.guard.Exceeds(time.Now(), source, len(gone), held) || inService
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

// A confirmFunc returns an error unless addresses of a source cluster are gone from a Service, which was read again.
type confirmFunc func(ctx context.Context, now *corev1.Service, source string, gone addresses) error

// confirm reads again whether addresses of a source are gone from a Service. It returns errUnconfirmed if they are
// not, or a Retry if too many confirmations run.
func (t *sliceWriter) confirm(ctx context.Context, k key, source string, gone addresses, read confirmFunc) error {
	if !t.beginConfirmation(source) {
		return &apply.Retry{After: confirmTimeout/2 + rand.N(confirmTimeout), Err: errBusy}
	}
	defer t.endConfirmation(source)
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()

	now, err := readService(ctx, t.Client, k)
	if err == nil && now != nil {
		err = read(ctx, now, source, gone)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	return nil
}

func (t *sliceWriter) beginConfirmation(source string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := 0
	for _, n := range t.confirmations {
		all += n
	}
	if all >= workers/2 || t.confirmations[source] >= maxConfirmations {
		return false
	}
	t.confirmations[source]++
	return true
}

func (t *sliceWriter) endConfirmation(source string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.confirmations[source]--
}

// checkRemoved returns an error if most of the addresses that would go are still there.
func checkRemoved(gone addresses, now []*group) error {
	if still := len(gone.Intersection(addressesOfGroups(now, anyEndpoint))); 2*still > len(gone) {
		return fmt.Errorf("%d of %d still exist", still, len(gone))
	}
	return nil
}

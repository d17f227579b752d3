package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
)

// The guard against mass withdrawals. A watch that went wrong, or a cluster that was restored from an old
// backup, can make most endpoints of a Service disappear at once; acting on that would empty the Service
// everywhere. So a plan that withdraws more than half of the endpoints that one source cluster has in a
// Service, or, within budgetPeriod, more than half of all that it has in this cluster, is confirmed first:
// the API servers themselves are read again, and most of the endpoints must be gone there, too. While they
// do not answer, the endpoints stay, and the Service is retried.
//
// Up to guard endpoints go without confirmation, so that small Services are not slowed down. All counts are
// by source cluster: one that does not answer holds back its own endpoints only. Confirmations are slow
// when a cluster is: at most maxConfirmations of one source, and half of the workers in all, are at it;
// further Services are busy and come up again later.
const (
	guard            = 4 // endpoints
	budgetPeriod     = time.Minute
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

// removalBudget counts what was withdrawn of a source cluster since it began, confirmed or not.
type removalBudget struct {
	began   time.Time
	held    int // endpoints in this cluster, when it began
	removed int
}

// exceedsGuard reports whether removals need a confirmation. have are the slices of that source in the
// Service.
func (t *termWriter) exceedsGuard(gone []sourceAddress, have []*discoveryv1.EndpointSlice) bool {
	if len(gone) == 0 {
		return false
	}
	if len(gone) > guard && 2*len(gone) > len(addressesOfSlices(have)) {
		return true
	}
	bySource := map[string]int{}
	for _, a := range gone {
		bySource[a.source]++
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	exceeds := false
	for source, n := range bySource {
		b := t.budgets[source]
		if b == nil || time.Since(b.began) > budgetPeriod {
			b = &removalBudget{began: time.Now(), held: t.heldOf(source)}
			t.budgets[source] = b
		}
		if b.removed += n; b.removed > guard && 2*b.removed > b.held {
			exceeds = true
		}
	}
	return exceeds
}

// heldOf returns how many endpoints of a source cluster the slices of all Services hold. It needs t.mu.
func (t *termWriter) heldOf(source string) (held int) {
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
func (t *termWriter) confirm(
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

func (t *termWriter) beginConfirmation(sources map[string]bool) bool {
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

func (t *termWriter) endConfirmation(sources map[string]bool) {
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

// confirmWorkloads lists the ExternalWorkloads of a Service's namespace again.
func (t *termWriter) confirmWorkloads(ctx context.Context, svc *serviceRecord, gone []sourceAddress) error {
	now, err := readService(ctx, t.client, svc.key)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	if now == nil {
		return nil
	}
	fresh, _ := newServiceRecord(now)
	listed, err := listWorkloads(ctx, t.dynamic, svc.Namespace, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	var all []*workloadRecord
	for _, u := range listed.Items {
		if w, err := newWorkloadRecord(&u); err == nil {
			all = append(all, w)
		}
	}
	return checkRemoved(gone, externalGroups(fresh, all))
}

// confirmMembers reads again, from the Service's own cluster, whether it still has the same members, and
// from their clusters, which slices these have. A cluster that is no longer linked is not asked: that it
// was unlinked is certain.
func (t *termWriter) confirmMembers(
	ctx context.Context, svc *serviceRecord, snapshot *federation.Snapshot, gone []sourceAddress,
) error {
	now, err := readService(ctx, t.client, svc.key)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	if now == nil {
		return nil
	}
	record, _ := newServiceRecord(now)
	fresh := *snapshot
	fresh.View, fresh.Members = view.Of(federation.Cluster(t.name), now, nil), slices.Clone(snapshot.Members)
	if !fresh.View.SameComposition(snapshot.View) {
		return fmt.Errorf("%w: the Service has other members by now", errUnconfirmed)
	}
	for i, m := range fresh.Members {
		loses := slices.ContainsFunc(gone, func(a sourceAddress) bool { return a.source == string(m.Origin.Cluster) })
		if !m.Linked || !loses {
			continue
		}
		member := *m
		if member.View, err = t.readView(ctx, m.Origin.Ref); err != nil {
			return fmt.Errorf("%w: cluster %s: %w", errUnconfirmed, m.Origin.Cluster, err)
		}
		fresh.Members[i] = &member
	}
	groups, _ := federatedGroups(record, &fresh, t.writer.options.Installation, t.writer.options.Namespace)
	return checkRemoved(gone, groups)
}

// readView reads the View of a Service from its cluster, without workloads; nil if there is no such
// Service.
func (t *termWriter) readView(ctx context.Context, ref federation.Ref) (*federation.View, error) {
	conn := t.writer.connection(string(ref.Cluster))
	if conn == nil {
		return nil, errors.New("it is out of reach")
	}
	client, err := kubernetes.NewForConfigAndClient(conn.Config, conn.HTTPClient)
	if err != nil {
		return nil, err
	}
	svc, err := readService(ctx, client, key{Namespace: ref.Namespace, Name: ref.Name})
	if err != nil || svc == nil {
		return nil, err
	}
	listed, err := client.DiscoveryV1().EndpointSlices(ref.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + ref.Name,
	})
	if err != nil {
		return nil, err
	}
	return view.Of(ref.Cluster, svc, listed.Items), nil
}

func compareNames(a, b key) int { return strings.Compare(a.Name, b.Name) }

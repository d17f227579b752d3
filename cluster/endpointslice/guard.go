package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
)

// Before most endpoints of a Service go, what says so is read again, from the API servers themselves: a watch that has lost its way,
// or a cluster that was restored from an old backup, must not empty a Service everywhere. While that cannot be done, the endpoints stay.

const (
	// lookTimeout is how long a second look takes at most.
	lookTimeout = 5 * time.Second
	// maxLooks is how many are taken at one source cluster at once; at all of them together, half of the workers do.
	maxLooks = 2
)

// place is an address as one cluster holds it.
type place struct{ source, addr string }

// missing returns the places that slices hold and groups do not.
func missing(have []*discoveryv1.EndpointSlice, wanted []*group) (gone []place) {
	kept := held(wanted)
	for p := range places(have) {
		if !kept[p] {
			gone = append(gone, p)
		}
	}
	return gone
}

// held returns the places that groups hold.
func held(groups []*group) map[place]bool {
	all := map[place]bool{}
	for _, g := range groups {
		for _, e := range g.endpoints {
			for _, a := range e.Addresses {
				all[place{g.source, a}] = true
			}
		}
	}
	return all
}

func places(have []*discoveryv1.EndpointSlice) map[place]bool {
	all := map[place]bool{}
	for _, es := range have {
		for _, e := range es.Endpoints {
			for _, a := range e.Addresses {
				all[place{es.Labels[SourceLabel], a}] = true
			}
		}
	}
	return all
}

// account is how much of a source cluster went lately without a second look.
type account struct {
	began time.Time
	held  int // endpoints, when it began
	gone  int
}

// tooMany reports whether so many endpoints would go that a second look is due: more than half of those that one source cluster has in the
// Service, or, within a minute, of all that it holds here.
func (t *term) tooMany(gone []place, have []*discoveryv1.EndpointSlice) bool {
	if len(gone) == 0 {
		return false
	}
	if len(gone) > guard && 2*len(gone) > len(places(have)) {
		return true
	}
	by := map[string]int{}
	for _, p := range gone {
		by[p.source]++
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	many := false
	for source, n := range by {
		a := t.ledger[source]
		if a == nil || time.Since(a.began) > time.Minute {
			a = &account{began: time.Now()}
			for _, written := range t.written {
				for _, es := range written {
					if es.Labels[SourceLabel] == source {
						a.held += len(es.Endpoints)
					}
				}
			}
			t.ledger[source] = a
		}
		if a.gone += n; a.gone > guard && 2*a.gone > a.held {
			many = true
		}
	}
	return many
}

// secondLook confirms that places are gone. Clusters that do not answer leave workers for other Services: those for which nobody is free to
// look are tried again after a while.
func (t *term) secondLook(ctx context.Context, gone []place, confirm func(context.Context, []place) error) error {
	sources := map[string]int{}
	for _, p := range gone {
		sources[p.source] = 1
	}
	t.mu.Lock()
	all, busy := 0, false
	for source, n := range t.asked {
		all += n
		busy = busy || n+sources[source] > maxLooks
	}
	if busy = busy || all >= workers/2; !busy {
		for source := range sources {
			t.asked[source]++
		}
	}
	t.mu.Unlock()
	if busy {
		return errBusy
	}
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for source := range sources {
			if t.asked[source]--; t.asked[source] == 0 {
				delete(t.asked, source)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return confirm(ctx, gone)
}

// readService reads a Service from the API server itself; nil if there is none.
func readService(ctx context.Context, client kubernetes.Interface, k key) (*corev1.Service, error) {
	svc, err := client.CoreV1().Services(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return svc, err
}

// confirmWorkloads lists the ExternalWorkloads of a Service's namespace again.
func (t *term) confirmWorkloads(ctx context.Context, svc *service, gone []place) error {
	now, err := readService(ctx, t.client, svc.key)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	} else if now == nil {
		return nil
	}
	again, _ := keepService(now)
	listed, err := listWorkloads(ctx, t.dynamic, svc.Namespace, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	var all []*workload
	for _, u := range listed.Items {
		if w, err := parseWorkload(&u); err == nil {
			all = append(all, w)
		}
	}
	return stillGone(gone, externalGroups(again, all))
}

// stillGone returns an error if most of what would go is still there.
func stillGone(gone []place, now []*group) error {
	there, n := held(now), 0
	for _, p := range gone {
		if there[p] {
			n++
		}
	}
	if 2*n > len(gone) {
		return fmt.Errorf("%w: %d of %d are still there", errUnconfirmed, n, len(gone))
	}
	return nil
}

// confirmMembers asks the Service's own cluster whether it is still made up of the same members, and the clusters of these for the slices
// that they hold. A cluster that is not linked any more is not asked: that it was unlinked is known for sure.
func (t *term) confirmMembers(ctx context.Context, svc *service, snapshot *federation.Snapshot, gone []place) error {
	now, err := readService(ctx, t.client, svc.key)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	} else if now == nil {
		return nil
	}
	again, _ := keepService(now)
	fresh := *snapshot
	fresh.View, fresh.Members = view.ViewOf(federation.Cluster(t.cluster), now, nil), slices.Clone(snapshot.Members)
	if !fresh.View.SameComposition(snapshot.View) {
		return fmt.Errorf("%w: the Service is made up of others by now", errUnconfirmed)
	}
	for i, m := range fresh.Members {
		if !m.Linked || !slices.ContainsFunc(gone, func(p place) bool { return p.source == string(m.Origin.Cluster) }) {
			continue
		}
		asked := *m
		if asked.View, err = t.claim(ctx, m.Origin.Ref); err != nil {
			return fmt.Errorf("%w: cluster %s: %w", errUnconfirmed, m.Origin.Cluster, err)
		}
		fresh.Members[i] = &asked
	}
	groups, _ := federatedGroups(again, &fresh, t.writer.options.Installation, t.writer.options.Namespace)
	return stillGone(gone, groups)
}

// claim asks a cluster itself what it says about a Service, without who answers at the addresses; nil if there is no such Service.
func (t *term) claim(ctx context.Context, ref federation.Ref) (*federation.View, error) {
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
	listed, err := client.DiscoveryV1().EndpointSlices(ref.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + ref.Name})
	if err != nil {
		return nil, err
	}
	return view.ViewOf(ref.Cluster, svc, listed.Items), nil
}

func cmpKeys(a, b key) int { return strings.Compare(a.Name, b.Name) }

package mirror

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/links"
)

// The Leases of Linkerd's service mirrors.
const (
	linkLeasePrefix      = "service-mirror-write-" // and the name of the Link
	localLeaseName       = "local-service-mirror-write"
	defaultLeaseDuration = 30 * time.Second // of a Lease without leaseDurationSeconds
)

// A leaseRecord is what is kept of a Lease of Linkerd's service mirrors.
type leaseRecord struct {
	holder   string
	renewed  time.Time // by the holder's clock
	duration time.Duration
}

// newLeaseRecord keeps nothing of Leases of other programs.
func newLeaseRecord(object any) (leaseRecord, bool) {
	l, ok := object.(*coordinationv1.Lease)
	if !ok || l.Name != localLeaseName && !strings.HasPrefix(l.Name, linkLeasePrefix) {
		return leaseRecord{}, false
	}
	r := lease.NewRecord(l)
	return leaseRecord{r.Holder, r.Renewed, cmp.Or(r.Duration, defaultLeaseDuration)}, true
}

// An observedLease is a Lease, and when it was last seen to change (renewed, released or deleted), by our
// clock. The holder's clock is not compared with ours.
type observedLease struct {
	leaseRecord
	observedAt time.Time
	gone       bool // it was deleted
}

// heldUntil returns until when the Lease must be respected: it must have been free for its own duration. It
// is the zero time if the Lease was never observed.
func (l observedLease) heldUntil() time.Time {
	switch {
	case l.observedAt.IsZero():
		return time.Time{}
	case l.holder == "":
		return l.observedAt.Add(l.duration)
	default:
		return l.observedAt.Add(2 * l.duration)
	}
}

func (l observedLease) String() string {
	if l.holder == "" {
		return "was released less than " + l.duration.String() + " ago"
	}
	return "is held by " + l.holder
}

// observedLeases are the Leases of Linkerd's service mirrors, also those that are gone, until a list
// confirms that.
type observedLeases struct {
	changed watch.Value[struct{}]

	mu     sync.Mutex
	byName map[api.Key]observedLease
}

// observeLease stores the present state of a Lease; nil if it was deleted.
func (o *observedLeases) observeLease(key api.Key, now *leaseRecord) {
	o.mu.Lock()
	old, known := o.byName[key]
	next := observedLease{observedAt: time.Now()}
	switch {
	case now != nil:
		next.leaseRecord = *now
	case known:
		next.leaseRecord, next.gone = leaseRecord{duration: old.duration}, true
	}

	isChange := next.leaseRecord != old.leaseRecord || next.gone && !old.gone || !known && now != nil
	if isChange {
		if o.byName == nil {
			o.byName = map[api.Key]observedLease{}
		}
		o.byName[key] = next
	}
	o.mu.Unlock()

	if isChange {
		o.changed.Store(struct{}{})
	}
}

// forgetGone drops the Leases of a namespace that are gone, and free at a time after which a list did not have them.
func (o *observedLeases) forgetGone(namespace string, listed time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.byName, func(k api.Key, l observedLease) bool {
		return k.Namespace == namespace && l.gone && !listed.Before(l.heldUntil())
	})
}

// linkNames returns the names of Links for which a namespace has, or had, Leases.
func (o *observedLeases) linkNames(namespace string) (names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k := range o.byName {
		if name, is := strings.CutPrefix(k.Name, linkLeasePrefix); is && k.Namespace == namespace {
			names = append(names, name)
		}
	}
	return names
}

func (o *observedLeases) get(k api.Key) observedLease {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byName[k]
}

// Bounds of listing Leases to confirm what a watch shows. A linkFollower waits for the answer.
const (
	leaseListTimeout = 3 * time.Second
	leaseListRetry   = 10 * time.Second // after a failure
)

// leasesUnknown is why nothing is written until the Leases were listed.
const leasesUnknown = "it is not known yet whether Linkerd's service mirror runs"

// A leaseWatch watches the Leases of one namespace.
type leaseWatch struct {
	*api.Informer[leaseRecord]
	cancel context.CancelFunc

	// Of confirmLease, which lists the Leases beside the watch.
	triedAt     time.Time
	confirmedAt time.Time // when a list that has succeeded was tried last
}

// watchLeases watches the Leases of every namespace with a Link, until ctx ends, and stops watching others.
func (f *linkFollower) watchLeases(ctx context.Context, all []*links.Mirroring) {
	needed := map[string]bool{f.options.Namespace: true}
	for _, m := range all {
		needed[m.Link.Namespace] = true
	}
	start := func(namespace string) *leaseWatch { return f.watchLeasesIn(ctx, namespace) }
	links.WatchNeeded(f.watches, needed, start, func(w *leaseWatch) { w.cancel() })
}

func (f *linkFollower) watchLeasesIn(ctx context.Context, namespace string) *leaseWatch {
	leases := &leaseWatch{}
	kind := lease.Leases
	kind.Namespace = namespace
	leases.Informer = api.NewInformer(f.local, kind, newLeaseRecord, func(k api.Key) {
		if now, found := leases.Get(k); found {
			f.observed.observeLease(k, &now)
		} else {
			f.observed.observeLease(k, nil)
		}
	})
	ctx, leases.cancel = context.WithCancel(ctx)
	f.started.Go(func() { leases.Run(logr.NewContext(ctx, f.log.V(1))) })

	f.started.Go(func() {
		select {
		case <-leases.Synced():
		case <-leases.Refused():
		case <-ctx.Done():
		}
		f.observed.changed.Store(struct{}{})
		watch.WaitClosed(ctx, leases.Synced())
		f.observed.changed.Store(struct{}{})
	})

	return leases
}

// leaseHeld returns why a Lease of Linkerd's keeps us from writing; empty if it does not. It is due again when that
// may change without an event.
func (f *linkFollower) leaseHeld(ctx context.Context, namespace, name string) (reason string) {
	key, leases := api.Key{Namespace: namespace, Name: name}, f.watches[namespace]
	switch {
	case leases.Health().Refused != "": // also if it was listed before
		f.setDue(time.Now().Add(leaseListRetry))
		return "whether Linkerd's service mirror runs is unknown: grant list and watch on " +
			"leases.coordination.k8s.io in namespace " + namespace
	case !leases.HasSynced():
		return leasesUnknown
	}

	until := f.observed.get(key).heldUntil()
	if !time.Now().Before(until) && !f.confirmLease(ctx, namespace, leases, until) {
		f.setDue(leases.triedAt.Add(leaseListRetry))
		return "whether Linkerd's service mirror still runs is unknown: the API server does not list Leases in " +
			"namespace " + namespace
	}

	last := f.observed.get(key) // confirmLease may have observed a renewal
	until = last.heldUntil()
	if !time.Now().Before(until) {
		return ""
	}
	f.setDue(until)
	return "Lease " + key.String() + " of Linkerd's service mirror " + last.String()
}

func (f *linkFollower) setDue(at time.Time) {
	if f.due.IsZero() || at.Before(f.due) {
		f.due = at
	}
}

// confirmLease reports whether the Leases of a namespace were listed after a time, and lists them if they
// were not: a Link must not be taken over because a watch is silent.
func (f *linkFollower) confirmLease(ctx context.Context, namespace string, leases *leaseWatch, since time.Time) bool {
	if !leases.confirmedAt.Before(since) {
		return true
	}

	lastTryFailed := leases.confirmedAt.Before(leases.triedAt)
	if lastTryFailed && time.Since(leases.triedAt) < leaseListRetry {
		return false
	}
	leases.triedAt = time.Now()
	ctx, cancel := context.WithTimeout(ctx, leaseListTimeout)
	defer cancel()

	list, err := f.core.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		f.log.V(1).Info("Leases cannot be listed", "namespace", namespace, "error", err.Error())
		return false
	}

	for i := range list.Items {
		if now, ok := newLeaseRecord(&list.Items[i]); ok {
			f.observed.observeLease(api.Key{Namespace: namespace, Name: list.Items[i].Name}, &now)
		}
	}
	leases.confirmedAt = leases.triedAt
	f.observed.forgetGone(namespace, leases.confirmedAt)
	return true
}

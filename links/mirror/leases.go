package mirror

import (
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// The Leases of Linkerd's service mirrors, and how long one lasts that does not say it.
const (
	linkLeasePrefix      = "service-mirror-write-" // and the name of the Link
	localLeaseName       = "local-service-mirror-write"
	defaultLeaseDuration = 30 * time.Second
)

// lease is what is kept of a Lease.
type leaseRecord struct {
	holder   string
	renewed  time.Time // on the holder's clock
	duration time.Duration
}

func newLeaseRecord(object any) (leaseRecord, bool) {
	l, ok := object.(*coordinationv1.Lease)
	if !ok {
		return leaseRecord{}, false
	}
	kept := leaseRecord{duration: defaultLeaseDuration}
	if l.Spec.HolderIdentity != nil {
		kept.holder = *l.Spec.HolderIdentity
	}
	if l.Spec.RenewTime != nil {
		kept.renewed = l.Spec.RenewTime.Time
	}
	if l.Spec.LeaseDurationSeconds != nil && *l.Spec.LeaseDurationSeconds > 0 {
		kept.duration = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	return kept, true
}

// A tenure is a Lease and when, on our own clock, it was last renewed, released or deleted.
type observedLease struct {
	leaseRecord
	observedAt time.Time
}

// busy returns until when somebody else is to be reckoned with: the Lease must have been free for as long as it lasts. It is the zero
// time for one that was never seen.
func (t observedLease) heldUntil() time.Time {
	switch {
	case t.observedAt.IsZero():
		return time.Time{}
	case t.holder == "":
		return t.observedAt.Add(t.duration)
	default:
		return t.observedAt.Add(2 * t.duration)
	}
}

func (t observedLease) String() string {
	if t.holder == "" {
		return "was released less than " + t.duration.String() + " ago"
	}
	return fmt.Sprintf("is held by %s", t.holder)
}

// tenures are the Leases of Linkerd's service mirrors that were seen.
type observedLeases struct {
	changed watch.Value[struct{}]

	mu     sync.Mutex
	byName map[records.Key]observedLease
}

// note tells of a Lease as it is now; nil if it was deleted. Those of others are not remembered.
func (t *observedLeases) observe(k records.Key, now *leaseRecord) {
	if k.Name != localLeaseName && !strings.HasPrefix(k.Name, linkLeasePrefix) {
		return
	}
	t.mu.Lock()
	old, known := t.byName[k]
	next := observedLease{observedAt: time.Now()}
	switch {
	case now != nil:
		next.leaseRecord = *now
	case known:
		next.leaseRecord = leaseRecord{duration: old.duration}
	}
	news := next.leaseRecord != old.leaseRecord || !known && now != nil
	if news {
		if t.byName == nil {
			t.byName = map[records.Key]observedLease{}
		}
		t.byName[k] = next
	}
	t.mu.Unlock()
	if news {
		t.changed.Store(struct{}{})
	}
}

// links returns the names of Links that a namespace has, or has had, Leases for.
func (t *observedLeases) linkNames(namespace string) (names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.byName {
		if name, is := strings.CutPrefix(k.Name, linkLeasePrefix); is && k.Namespace == namespace {
			names = append(names, name)
		}
	}
	return names
}

func (t *observedLeases) lookup(k records.Key) observedLease {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byName[k]
}

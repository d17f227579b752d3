package mirror

import (
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// The Leases of Linkerd's service mirrors.
const (
	linkLeasePrefix      = "service-mirror-write-" // and the name of the Link
	localLeaseName       = "local-service-mirror-write"
	defaultLeaseDuration = 30 * time.Second // of a Lease without leaseDurationSeconds
)

// A leaseRecord is the record of a Lease.
type leaseRecord struct {
	holder   string
	renewed  time.Time // by the holder's clock
	duration time.Duration
}

func newLeaseRecord(object any) (leaseRecord, bool) {
	l, ok := object.(*coordinationv1.Lease)
	if !ok {
		return leaseRecord{}, false
	}
	r := leaseRecord{duration: defaultLeaseDuration}
	if l.Spec.HolderIdentity != nil {
		r.holder = *l.Spec.HolderIdentity
	}
	if l.Spec.RenewTime != nil {
		r.renewed = l.Spec.RenewTime.Time
	}
	if l.Spec.LeaseDurationSeconds != nil && *l.Spec.LeaseDurationSeconds > 0 {
		r.duration = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	return r, true
}

// An observedLease is a Lease, and when it was last seen to change (renewed, released or deleted), by our
// clock. The holder's clock is not compared with ours.
type observedLease struct {
	leaseRecord
	observedAt time.Time
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

// observedLeases are the Leases of Linkerd's service mirrors, also of those that are gone.
type observedLeases struct {
	changed watch.Value[struct{}]

	mu     sync.Mutex
	byName map[api.Key]observedLease
}

// observeLease stores the present state of a Lease; nil if it was deleted. It ignores Leases of other programs.
func (o *observedLeases) observeLease(k api.Key, now *leaseRecord) {
	if k.Name != localLeaseName && !strings.HasPrefix(k.Name, linkLeasePrefix) {
		return
	}
	o.mu.Lock()
	old, known := o.byName[k]
	next := observedLease{observedAt: time.Now()}
	switch {
	case now != nil:
		next.leaseRecord = *now
	case known:
		next.leaseRecord = leaseRecord{duration: old.duration}
	}
	isChange := next.leaseRecord != old.leaseRecord || !known && now != nil
	if isChange {
		if o.byName == nil {
			o.byName = map[api.Key]observedLease{}
		}
		o.byName[k] = next
	}
	o.mu.Unlock()
	if isChange {
		o.changed.Store(struct{}{})
	}
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

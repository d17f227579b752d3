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
	linkLease       = "service-mirror-write-" // and the name of the Link
	localLease      = "local-service-mirror-write"
	defaultDuration = 30 * time.Second
)

// lease is what is kept of a Lease.
type lease struct {
	holder   string
	renewed  time.Time // on the holder's clock
	duration time.Duration
}

func keepLease(object any) (lease, bool) {
	l, ok := object.(*coordinationv1.Lease)
	if !ok {
		return lease{}, false
	}
	kept := lease{duration: defaultDuration}
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
type tenure struct {
	lease
	seen time.Time
}

// busy returns until when somebody else is to be reckoned with: the Lease must have been free for as long as it lasts. It is the zero
// time for one that was never seen.
func (t tenure) busy() time.Time {
	switch {
	case t.seen.IsZero():
		return time.Time{}
	case t.holder == "":
		return t.seen.Add(t.duration)
	default:
		return t.seen.Add(2 * t.duration)
	}
}

func (t tenure) String() string {
	if t.holder == "" {
		return "was released less than " + t.duration.String() + " ago"
	}
	return fmt.Sprintf("is held by %s", t.holder)
}

// tenures are the Leases of Linkerd's service mirrors that were seen.
type tenures struct {
	changed watch.Value[struct{}]

	mu   sync.Mutex
	seen map[records.Key]tenure
}

// note tells of a Lease as it is now; nil if it was deleted. Those of others are not remembered.
func (t *tenures) note(k records.Key, now *lease) {
	if k.Name != localLease && !strings.HasPrefix(k.Name, linkLease) {
		return
	}
	t.mu.Lock()
	old, known := t.seen[k]
	next := tenure{seen: time.Now()}
	switch {
	case now != nil:
		next.lease = *now
	case known:
		next.lease = lease{duration: old.duration}
	}
	news := next.lease != old.lease || !known && now != nil
	if news {
		if t.seen == nil {
			t.seen = map[records.Key]tenure{}
		}
		t.seen[k] = next
	}
	t.mu.Unlock()
	if news {
		t.changed.Store(struct{}{})
	}
}

// links returns the names of Links that a namespace has, or has had, Leases for.
func (t *tenures) links(namespace string) (names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.seen {
		if name, is := strings.CutPrefix(k.Name, linkLease); is && k.Namespace == namespace {
			names = append(names, name)
		}
	}
	return names
}

func (t *tenures) get(k records.Key) tenure {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen[k]
}

package mirror

import (
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// A Lease is respected until it has been free for its own duration by our clock, whether it was renewed, released,
// expired or deleted.
func TestLeaseHeldUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all observedLeases
		k := api.Key{Namespace: "mc", Name: linkLeasePrefix + "east"}
		note := func(holder string, renewed time.Time) {
			kept, ok := newLeaseRecord(
				&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.Name}, Spec: coordinationv1.LeaseSpec{
					HolderIdentity: &holder, LeaseDurationSeconds: new(int32(20)),
					RenewTime: &metav1.MicroTime{Time: renewed},
				}},
			)
			if !ok {
				t.Fatal("a Lease has no record")
			}
			all.observeLease(k, &kept)
		}
		wants := func(held bool) {
			t.Helper()
			if got := time.Now().Before(all.get(k).heldUntil()); got != held {
				t.Errorf("held is %t, want %t: %s", got, held, all.get(k))
			}
		}
		wants(false) // there never was one
		old := time.Now().Add(-time.Hour)
		note("a", old) // the holder's clock is an hour behind
		settle(39 * time.Second)
		wants(true)
		note("a", old) // observed again, as after a new listing: no renewal
		settle(2 * time.Second)
		wants(false)
		note("a", old.Add(time.Second))
		settle(30 * time.Second)
		note("a", old.Add(2*time.Second))
		settle(30 * time.Second)
		wants(true)
		note("", old.Add(3*time.Second)) // released
		settle(19 * time.Second)
		wants(true)
		settle(2 * time.Second)
		wants(false)
		note("b", old.Add(4*time.Second))
		all.observeLease(k, nil) // deleted
		settle(19 * time.Second)
		wants(true)
		all.forgetGone(k.Namespace, time.Now()) // the watch may be wrong until it is free
		wants(true)
		settle(2 * time.Second)
		wants(false)
		all.forgetGone("another", time.Now())
		if names := all.linkNames(k.Namespace); len(names) != 1 {
			t.Errorf("the Leases of %v are kept before a list confirms what is gone", names)
		}
		all.forgetGone(k.Namespace, time.Now())
		if names := all.linkNames(k.Namespace); names != nil {
			t.Errorf("the Leases of %v are kept after that", names)
		}
		all.observeLease(api.Key{Namespace: "mc", Name: "never-seen"}, nil)
		if got := all.get(api.Key{Namespace: "mc", Name: "never-seen"}); !got.observedAt.IsZero() {
			t.Error("a Lease that never existed is stored")
		}
		scheduler := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kube-scheduler"}}
		if _, kept := newLeaseRecord(scheduler); kept {
			t.Error("a Lease of another program is kept")
		}
	})
}

package cluster_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/checkpoint"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// withBlockedDir runs test with the cluster east linked, and a directory that cannot be written until unblock is
// called.
func withBlockedDir(t *testing.T, test func(w *world, dir *checkpoint.Dir, unblock func())) {
	t.Helper()
	blocked := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := checkpoint.NewDir(blocked, time.Hour)
	inWorldWith(t, func(o *cluster.Options) { o.Checkpoints = dir }, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(service, slice)
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		test(w, dir, func() {
			t.Helper()
			if err := os.Remove(blocked); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// A directory that cannot be written is counted, and costs nothing else; once it can be, the state is there.
func TestCheckpointsFail(t *testing.T) {
	withBlockedDir(t, func(w *world, dir *checkpoint.Dir, unblock func()) {
		failures := func() float64 {
			t.Helper()
			families, err := w.metrics().Gather()
			if err != nil {
				t.Error(err)
			}
			for _, f := range families {
				if f.GetName() == "fingerpost_checkpoint_failures" {
					return f.GetMetric()[0].GetGauge().GetValue()
				}
			}
			t.Error("there is no metric of failures")
			return -1
		}
		w.wait(time.Minute)
		w.wantsState(federation.Live)
		w.wants(1)
		if n := failures(); n != 1 {
			t.Errorf("%v clusters are counted as not saved", n)
		}
		unblock()
		w.wait(time.Minute)
		if n := failures(); n != 0 {
			t.Errorf("%v clusters are counted as not saved when all are", n)
		}
		c, err := dir.Load("east")
		if n := c.Published.Views.Len(); err != nil || n != 1 || time.Since(c.AsOf) > 15*time.Second {
			t.Errorf("%v: %d Services as of %v ago", err, n, time.Since(c.AsOf))
		}
		w.registry.Remove("east")
		w.wait(time.Minute)
		if _, err := dir.Load("east"); err == nil {
			t.Error("the checkpoint of a cluster that was unlinked is still there")
		}
	})
}

// What could not be saved while a cluster was Live is saved once it can be, also if the cluster is away by then: as of
// when it was Live last.
func TestCheckpointOfClusterThatIsAway(t *testing.T) {
	withBlockedDir(t, func(w *world, dir *checkpoint.Dir, unblock func()) {
		w.wait(time.Minute)
		w.wantsState(federation.Live)
		w.network.Server("east").Cut(apitest.Silence)
		w.wait(5 * time.Minute)
		w.wantsState(federation.Stale)
		unblock()
		w.wait(time.Minute)
		if failures := w.registry.NotSaved(); failures.Clusters != 0 {
			t.Errorf("it is not saved: %s", failures.Reason)
		}
		c, err := dir.Load("east")
		if age := time.Since(c.AsOf); err != nil || c.Published.Views.Len() != 1 || age < 5*time.Minute {
			t.Errorf("%v: %d Services as of %v ago", err, c.Published.Views.Len(), age)
		}
	})
}

// A cluster without Services is saved like any other, and what its Link has about it is saved when that changes alone.
func TestCheckpointOfQuietCluster(t *testing.T) {
	dir := checkpoint.NewDir(t.TempDir(), time.Hour)
	inWorldWith(t, func(o *cluster.Options) { o.Checkpoints = dir }, func(w *world) {
		access := []cluster.Access{w.access("east", w.network.Server("east").Token())}
		for _, trustDomain := range []string{"old.test", "new.test"} {
			w.apply(cluster.Spec{Name: "east", TrustDomain: trustDomain, Access: access})
			w.wait(15 * time.Second)
			w.wantsState(federation.Live)
			if failures := w.registry.NotSaved(); failures.Clusters != 0 {
				t.Errorf("it is not saved: %s", failures.Reason)
			}
			if c, err := dir.Load("east"); err != nil || c.TrustDomain != trustDomain {
				t.Errorf("the trust domain in its checkpoint is %q (%v), want %q", c.TrustDomain, err, trustDomain)
			}
		}
	})
}

// A hold that is restored ends after the longest time that a Link can ask for, whatever the file has.
func TestRestoredHoldEnds(t *testing.T) {
	svc := federation.Service{Namespace: "ns", Name: "web"}
	dir := checkpoint.NewDir(t.TempDir(), time.Hour)
	inWorldWith(t, func(o *cluster.Options) { o.Checkpoints = dir }, func(w *world) {
		until := time.Now().AddDate(10, 0, 0)
		before := &federation.View{Slices: []*federation.Slice{{
			Name: "web-1", Ports: []federation.Port{{Number: 80}},
			Endpoints: []*federation.Endpoint{{Addr: netip.MustParseAddr("10.0.0.1"), Ready: true}},
		}}}
		err := dir.Save(checkpoint.Checkpoint{
			Header: checkpoint.Header{Cluster: "east"},
			Published: federation.Published{
				Views: new(federation.Views).With(svc, &federation.View{}),
				Holds: map[federation.Service]federation.PublishedHold{svc: {Before: before, Until: until}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.network.Server("east").Cut(apitest.Silence)
		guarded := policy.Link{WithdrawalGuard: policy.WithdrawalGuard{Percent: 50, Hold: time.Hour}}
		access := []cluster.Access{w.access("east", w.network.Server("east").Token())}
		w.apply(cluster.Spec{Name: "east", Access: access, Traffic: guarded})
		w.wait(time.Minute)
		w.wantsState(federation.Stale)
		held := w.store.Holds("east")[svc]
		left := time.Until(held.Until)
		if held.Endpoints != 1 || left > policy.MaxTime || left < policy.MaxTime-time.Hour {
			t.Errorf("%d endpoints are held for another %v", held.Endpoints, left)
		}
	})
}

package cluster_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/checkpoint"
	"github.com/fingerpost/fingerpost/federation"
)

// A directory that cannot be written is counted, and costs nothing else; once it can be, the state is there.
func TestCheckpointsFail(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := checkpoint.NewDir(blocked, time.Hour)
	inWorldWith(t, func(o *cluster.Options) { o.Checkpoints = dir }, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(service, slice)
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
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
		if err := os.Remove(blocked); err != nil {
			t.Fatal(err)
		}
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

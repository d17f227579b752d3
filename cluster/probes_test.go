package cluster

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// The history has the slowest response of each step, a failure before all, nothing for a step without a probe, and
// nothing that is older than it.
func TestProbeHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pass := func(d time.Duration) { <-time.NewTimer(d).C }
		var h probeHistory
		h.add(time.Millisecond, nil)
		h.add(3*time.Millisecond, nil)
		h.add(2*time.Millisecond, nil)
		pass(2 * ProbeStep)
		h.add(time.Second, errors.New("no answer"))
		h.add(time.Millisecond, nil)
		n := ProbeSteps
		want := []Probe{{RTT: 3 * time.Millisecond}, {}, {Failed: true}}
		for i, p := range h.last()[n-3:] {
			if p != want[i] {
				t.Errorf("step %d is %v, want %v", i-3, p, want[i])
			}
		}
		pass(time.Duration(n-2) * ProbeStep)
		h.add(2*time.Hour, nil)
		all := h.last()
		if len(all) != n || all[0] != (Probe{}) || !all[1].Failed || all[n-1].RTT < time.Hour || all[n-1].Failed {
			t.Errorf("after a quarter of an hour: %v", all)
		}
		pass(ProbeSteps * ProbeStep)
		for i, p := range h.last() {
			if p != (Probe{}) {
				t.Errorf("step %d without a probe is %v", i, p)
			}
		}
	})
}

package cluster

import (
	"math"
	"sync"
	"time"
)

// A cluster keeps what its probes found in the last ProbeSteps steps of time, each of ProbeStep.
const (
	ProbeSteps = 180
	ProbeStep  = 5 * time.Second
)

// A Probe is what the probes of one step found. It is zero for a step without a probe.
type Probe struct {
	RTT    time.Duration // until the slowest response; 0 if one of them failed
	Failed bool          // one of them found the cluster out of contact
}

// probeHistory is a ring of steps, 1.5 KB for each cluster. It outlasts engagements. The zero value is empty.
type probeHistory struct {
	mu    sync.Mutex
	steps [ProbeSteps]probeStep
}

type probeStep struct {
	number uint32 // since 1970
	micros uint32 // of the slowest response; failedProbe if one failed
}

const failedProbe = math.MaxUint32

func stepAt(at time.Time) uint32 {
	return uint32(at.Unix() / int64(ProbeStep/time.Second)) //nolint:gosec // until 2650
}

// add records a probe that has just ended.
func (h *probeHistory) add(rtt time.Duration, err error) {
	micros := uint32(min(max(rtt.Microseconds(), 1), failedProbe-1)) //nolint:gosec // it is within bounds
	if err != nil {
		micros = failedProbe
	}
	number := stepAt(time.Now())
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.steps[number%ProbeSteps]
	if s.number != number {
		*s = probeStep{number: number}
	}
	s.micros = max(s.micros, micros)
}

// last returns the steps until now, the oldest first.
func (h *probeHistory) last() []Probe {
	all, first := make([]Probe, ProbeSteps), stepAt(time.Now())+1-ProbeSteps
	h.mu.Lock()
	defer h.mu.Unlock()

	for i := range all {
		number := first + uint32(i) //nolint:gosec // it is less than ProbeSteps
		switch s := h.steps[number%ProbeSteps]; {
		case s.number != number:
		case s.micros == failedProbe:
			all[i].Failed = true
		default:
			all[i].RTT = time.Duration(s.micros) * time.Microsecond
		}
	}
	return all
}

// Probes returns what the probes of a cluster found in the last ProbeSteps steps, the oldest first; nil if the
// cluster is not known.
func (r *Registry) Probes(name string) []Probe {
	if s := r.supervisor(name); s != nil {
		return s.probes.last()
	}
	return nil
}

package federation

import (
	"iter"
	"maps"
)

// A LinkState is whether a cluster is linked.
type LinkState uint8

// The LinkStates. What was written for a cluster is deleted only if that is unlinked.
const (
	StateUndecided LinkState = iota // it may be linked: not all Links are known, or its Link may come back
	StateLinked
	StateUnlinked
)

// A Membership is which clusters are linked, as all that link clusters have it. It is immutable. The nil Membership is
// that of a process which knows nothing yet: each cluster is undecided.
//
// Example: a process starts with the checkpoints of east and west, and lists a Link of east alone. Then east is linked,
// west undecided until it is decided whether its Link was deleted, and so is any other name: its Link may come back
// with a CRD that was deleted. Minutes later west is unlinked, and so is each name that no Link has.
type Membership struct {
	states     map[Cluster]LinkState
	others     LinkState
	isComplete bool
}

// NewMembership returns a Membership of the clusters in states, which is not changed afterwards, and of all others.
// It is complete if every cluster that is linked is among them.
func NewMembership(states map[Cluster]LinkState, others LinkState, isComplete bool) *Membership {
	return &Membership{states, others, isComplete}
}

// Of returns the LinkState of a cluster.
func (m *Membership) Of(c Cluster) LinkState {
	if m == nil {
		return StateUndecided
	}
	if state, known := m.states[c]; known {
		return state
	}
	return m.others
}

// IsComplete reports whether every cluster that is linked is known to be.
func (m *Membership) IsComplete() bool { return m != nil && m.isComplete }

// Equal reports whether two Memberships are the same.
func (m *Membership) Equal(o *Membership) bool {
	if m == nil || o == nil {
		return m == o
	}
	return m.others == o.others && m.isComplete == o.isComplete && maps.Equal(m.states, o.states)
}

// Changed yields the clusters whose LinkState is another one than before, and the empty name if that is so of all
// others.
func (m *Membership) Changed(before *Membership) iter.Seq[Cluster] {
	return func(yield func(Cluster) bool) {
		for _, of := range []*Membership{m, before} {
			for c := range of.named() {
				isTwice := of == before && m.isNamed(c)
				if !isTwice && m.Of(c) != before.Of(c) && !yield(c) {
					return
				}
			}
		}
		if m.Of("") != before.Of("") {
			yield("")
		}
	}
}

func (m *Membership) isNamed(c Cluster) bool {
	_, is := m.named()[c]
	return is
}

func (m *Membership) named() map[Cluster]LinkState {
	if m == nil {
		return nil
	}
	return m.states
}

package federation

import (
	"slices"
	"time"
)

// Standing says how far to trust what a cluster said last.
type Standing uint8

// The standings, from the best to the worst.
const (
	Live    Standing = iota // in contact
	Suspect                 // no contact for a while; nothing changes yet
	Stale                   // no contact for so long that others come first where both claim an address
)

// String returns the standing's name.
func (s Standing) String() string { return [...]string{"Live", "Suspect", "Stale"}[s] }

// Patience is how long a cluster may be silent. Zero fields mean no limit.
type Patience struct{ Suspect, Stale time.Duration }

// Judge returns the standing of a cluster from which nothing was heard for so long.
func (p Patience) Judge(silence time.Duration) Standing {
	switch {
	case p.Stale > 0 && silence > p.Stale:
		return Stale
	case p.Suspect > 0 && silence > p.Suspect:
		return Suspect
	default:
		return Live
	}
}

// A Snapshot is one Service as its home cluster sees it, at one version: the members of its Composition, each with what its
// cluster says. It is immutable. A newer Snapshot of the same Service has a higher Version.
type Snapshot struct {
	Ref
	Version uint64
	View    *View // what the home cluster says about the Service itself; nil: nothing
	Members []*Member
}

// A Member is one cluster's part in a Snapshot. Equal ones keep their pointer from one Snapshot of a Service to the next.
type Member struct {
	Origin *Origin
	View   *View // nil: the cluster says nothing about the Service
	Linked bool  // the cluster is expected; false for everyone as long as the clusters were not listed
	Known  bool  // View is the cluster's word, even if it is nil
	Stale  bool  // the cluster is; others come first where both claim an address

	Since time.Time // when the cluster was first expected; zero if it is not Linked
}

func (m *Member) sameTerm(o *Member) bool { return m.Origin.Term == o.Origin.Term }

// An Origin is where an address comes from, as the Composition says it. Equal origins keep their pointer from one
// Snapshot of a Service to the next.
type Origin struct {
	Term
	Home        bool // the cluster is the one whose Service this is
	TrustDomain string
}

// Exists reports whether there is a Service that clients can be told about: the Service itself, and for one that stands for
// another (remote discovery) that one too. It is meaningful where all members are Known.
func (s *Snapshot) Exists() bool {
	return s.View != nil && (s.View.Composition == nil || s.View.Composition.Union || s.Members[0].View != nil)
}

// Declared returns port if a member declares it, and else 0: of ports that none declares, all are answered by the same entries.
func (s *Snapshot) Declared(port uint16) uint16 {
	for _, m := range s.Members {
		if m.View != nil {
			if _, declared := m.View.Port(port); declared {
				return port
			}
		}
	}
	return 0
}

// Unknown returns the members whose clusters have not been heard.
func (s *Snapshot) Unknown() []*Member {
	var unknown []*Member
	for _, m := range s.Members {
		if !m.Known {
			unknown = append(unknown, m)
		}
	}
	return unknown
}

// equal ignores the version. It compares members by their pointers.
func (s *Snapshot) equal(o *Snapshot) bool {
	return s.View == o.View && slices.Equal(s.Members, o.Members)
}

// members returns what finds the member of s that was made of the i-th of the terms: as a rule it is the i-th, too. It
// finds nil for none; s may be nil.
func (s *Snapshot) members(terms []Term) func(i int) *Member {
	switch {
	case s == nil:
		return func(int) *Member { return nil }
	case slices.EqualFunc(s.Members, terms, func(m *Member, t Term) bool { return m.Origin.Term == t }):
		return func(i int) *Member { return s.Members[i] }
	}
	by := make(map[Term]*Member, len(s.Members))
	for _, m := range s.Members {
		by[m.Origin.Term] = m
	}
	return func(i int) *Member { return by[terms[i]] }
}

package federation

import (
	"slices"
	"time"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// A ClusterState is how far to trust what a cluster has written.
type ClusterState string

// The states of a cluster. What it has written is kept in all of them.
const (
	Connecting ClusterState = "Connecting" // never synced since it was added
	Live       ClusterState = "Live"       // in contact
	Suspect    ClusterState = "Suspect"    // no contact for a while; nothing changes yet
	Stale      ClusterState = "Stale"      // none for so long that others come first where both claim an address
)

// ClusterStates are all states, the best first.
var ClusterStates = []ClusterState{Live, Suspect, Connecting, Stale}

// Thresholds are how long a cluster may be without contact. Zero fields mean no limit.
type Thresholds struct{ Suspect, Stale time.Duration }

// StateAfter returns the state of a cluster that was without contact for so long.
func (p Thresholds) StateAfter(silence time.Duration) ClusterState {
	switch {
	case p.Stale > 0 && silence > p.Stale:
		return Stale
	case p.Suspect > 0 && silence > p.Suspect:
		return Suspect
	default:
		return Live
	}
}

// A Snapshot is one Service as its home cluster sees it, at one version: the members of its
// Composition, each with its View. It is immutable. A newer Snapshot of the same Service
// has a higher Version.
type Snapshot struct {
	Ref
	Version uint64
	View    *View // of the Service itself in its home cluster; nil: there is none
	Members []*Member
}

// A Member is one cluster's part in a Snapshot. Equal ones keep their pointer from one Snapshot of a
// Service to the next.
type Member struct {
	Origin *Origin
	View   *View // nil: the cluster has no such Service, or is not known
	Linked bool  // the cluster was added; false for all of them until the clusters are listed
	Known  bool  // View is what the cluster has, even if it is nil
	Stale  bool  // the cluster is; others come first where both claim an address

	// Listing: the cluster was never synced, but its API server answers, so that it is synced soon.
	Listing bool

	Held    int   // ready endpoints of View that the cluster has withdrawn: see [ClusterWriter.Hold]
	Written *View // what the cluster has instead of View, if some are Held

	Since time.Time // when the cluster was added first; zero if it is not Linked

	Policy *policy.ForCluster // of the cluster; nil for none
	Near   bool               // the cluster is in the region of the Service's own
}

func (m *Member) memberRef() MemberRef { return m.Origin.MemberRef }

func (m *Member) sameRef(o *Member) bool { return m.memberRef() == o.memberRef() }

// An Origin is where an address comes from, by the Composition. Equal origins keep their
// pointer from one Snapshot of a Service to the next.
type Origin struct {
	MemberRef
	Home        bool // the cluster is the one whose Service this is
	TrustDomain string
}

// Federated reports whether the Service is a union of several.
func (s *Snapshot) Federated() bool {
	return s.View != nil && s.View.Composition != nil && s.View.Composition.Union
}

// LocalOnly reports whether clients of a union get what runs on their own node only, as its Service asks for. Of any
// other Service its member's does.
func (s *Snapshot) LocalOnly() bool { return s.Federated() && s.View.LocalOnly }

// Exists reports whether there is a Service for clients: the Service itself, and for
// one that stands for another (remote discovery) that one too. It is meaningful where all members are
// Known.
func (s *Snapshot) Exists() bool {
	return s.View != nil && (s.View.Composition == nil || s.Federated() || s.Members[0].View != nil)
}

// Declared returns port if a member declares it, and else 0: of ports that none declares, all are
// answered by the same entries.
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

// Transport returns which of the ports of a number is meant by clients, who name no protocol: that which the Service
// itself declares, or, of a number that it does not declare, what a member does; of several the first.
func (s *Snapshot) Transport(port uint16) Transport {
	if s.View != nil {
		if own, declared := s.View.Port(port); declared {
			return own.Protocol
		}
	}

	first, found := TCP, false
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		if p, declared := m.View.Port(port); declared && (!found || p.Protocol < first) {
			first, found = p.Protocol, true
		}
	}
	return first
}

// Unknown returns the members whose clusters were never synced.
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

package cluster

import (
	"time"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
)

// State is how a cluster fares.
type State string

// The states. What a cluster said is kept in all of them.
const (
	Connecting State = "Connecting" // never heard since it was applied
	Live       State = "Live"       // in contact
	Suspect    State = "Suspect"    // out of contact for a while
	Stale      State = "Stale"      // out of contact for so long that what it said last should be doubted
)

// Status is what is known of one cluster. Its errors have no place in JSON: who writes one adds them as text.
type Status struct {
	Name          string `json:"name"`
	Local         bool   `json:"local,omitempty"`
	TrustDomain   string `json:"trustDomain"`
	ClusterDomain string `json:"clusterDomain,omitempty"`

	State State     `json:"state"`
	Since time.Time `json:"since"` // when the State was entered

	Source      string    `json:"source,omitempty"`     // of the credentials in use; empty for none
	Expires     time.Time `json:"expires,omitzero"`     // when they end; zero if they do not, or do not say so
	Synced      bool      `json:"synced"`               // everything in the cluster has been heard once
	LastContact time.Time `json:"lastContact,omitzero"` // zero for never
	Restored    time.Time `json:"restored,omitzero"`    // when its API server was last found to have gone back to an older state, as after a restore; zero for never

	OverBudget string `json:"overBudget,omitempty"` // what of it is refused, because it publishes more than we hold of one cluster; empty for nothing

	Writing Writing `json:"writing,omitzero"` // how writing into it goes
	LeftOut LeftOut `json:"leftOut,omitzero"` // what it holds and is in no slice of the local cluster

	Contact     error `json:"-"` // why it is out of contact; nil if it is not
	Credentials error `json:"-"` // why the credentials wanted first are not in use; nil if they are, or were not tried yet
}

// WritingState is whether this replica writes into a cluster.
type WritingState string

// The states of writing.
const (
	NotWriting WritingState = ""         // nothing is to be written, or it is not known yet what may be
	ReadOnly   WritingState = "ReadOnly" // we may not
	Standby    WritingState = "Standby"  // another replica does
	Holding    WritingState = "Holding"  // this replica does
)

// Writing is how writing into a cluster goes.
type Writing struct {
	State   WritingState `json:"state,omitempty"`
	Leases  string       `json:"leases,omitempty"`       // that this replica holds, separated by commas
	Wanted  string       `json:"wantedLeases,omitempty"` // Leases that it holds or waits for: others may rightly be nobody's
	Problem string       `json:"problem,omitempty"`      // what keeps us from writing, or from writing everything; empty if nothing does
}

// LeftOut is how many endpoints of a cluster are in no slice of the local cluster although they should be.
type LeftOut struct {
	Known  bool `json:"known"`            // this replica writes them
	Excess int  `json:"excess,omitempty"` // they would take more slices than a cluster may have in a Service
}

// credentials reports whether the newest credentials are in use; that is not known where none are, because the cluster does not answer.
func (s *Status) credentialsValid() (valid, known bool) {
	switch reason := api.ReasonFor(s.Credentials); {
	case s.Credentials != nil:
		return false, s.Source != "" || reason.Credentials()
	case s.Contact != nil && api.ReasonFor(s.Contact) == api.Unauthorized:
		return false, true
	default:
		return s.Source != "", s.Source != ""
	}
}

// KindStatus is how one kind of object in a cluster fares.
type KindStatus struct {
	Kind    string `json:"resource"`
	Objects int    `json:"objects"`
	// Malformed is how many objects so far had something that cannot be used, and is left out.
	Malformed int `json:"malformed,omitempty"`
	api.Health
}

func stateOf(s federation.ClusterState) State {
	switch s {
	case federation.Live:
		return Live
	case federation.Suspect:
		return Suspect
	default:
		return Stale
	}
}

// Same reports whether both say the same, apart from times.
func (s Status) SameButTimes(o Status) bool {
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	return s.Name == o.Name && s.Local == o.Local && s.TrustDomain == o.TrustDomain && s.ClusterDomain == o.ClusterDomain &&
		s.State == o.State && s.Source == o.Source && s.Expires.Equal(o.Expires) && s.Restored.Equal(o.Restored) && s.Synced == o.Synced && s.Writing == o.Writing && s.LeftOut == o.LeftOut &&
		s.OverBudget == o.OverBudget &&
		text(s.Contact) == text(o.Contact) && text(s.Credentials) == text(o.Credentials)
}

package cluster

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
)

// Status is what is known of one cluster. It has two parts: what the supervisor of the cluster owns, and Reports of
// others. Each part is replaced whole, and none is merged. Errors are not part of its JSON: pages add them as text.
type Status struct {
	Reports

	Name          string `json:"name"`
	Local         bool   `json:"local,omitempty"`
	TrustDomain   string `json:"trustDomain"`
	ClusterDomain string `json:"clusterDomain,omitempty"`

	State federation.ClusterState `json:"state"`
	Since time.Time               `json:"since"` // when the State was entered

	Source      string    `json:"source,omitempty"`     // of the credentials in use; empty for none
	Expires     time.Time `json:"expires,omitzero"`     // when they expire; zero for never, or not known
	Synced      bool      `json:"synced"`               // each required kind was listed once
	LastContact time.Time `json:"lastContact,omitzero"` // zero for never
	Restored    time.Time `json:"restored,omitzero"`    // when its API server last went back to an older state

	// Checkpoint is as of when the state holds that was restored; zero once the cluster was synced.
	Checkpoint time.Time `json:"checkpoint,omitzero"`

	// NotRestored is why the state that is saved here, or that another replica has, cannot be; empty if it was or is
	// not needed.
	NotRestored string `json:"notRestored,omitempty"`

	// AskingPeers: other replicas are asked for its state, and it is not known yet what they have, or one that has it
	// cannot hand it over now.
	AskingPeers bool `json:"askingPeers,omitempty"`

	ClockSkew  string `json:"clockSkew,omitempty"`  // such as "5m0s ahead of this replica's"; empty up to 10 s
	Slices     bool   `json:"slices,omitempty"`     // its Link asks for slices in it
	OverBudget string `json:"overBudget,omitempty"` // what of it its budget refuses; empty for nothing

	// Unusable are its objects of policy of which something does not convert.
	Unusable Unusable `json:"unusable,omitzero"`

	// Failed is what its API server was asked for again and again, and does not do.
	Failed []api.FailedCall `json:"failedCalls,omitempty"`

	issued time.Time // of the credentials in use; zero if it is not known
	tried  uint64    // the attempt that was made last, of those that a Spec asks for

	Contact     error `json:"-"` // why it is out of contact; nil if it is not
	Credentials error `json:"-"` // why the preferred credentials do not work; nil if they do, or were not tried
}

// Reports are what others than its supervisor know of a cluster. Each field has one writer.
type Reports struct {
	Identity Identity `json:"identity,omitzero"` // as it reports itself
	SameAs   string   `json:"sameAs,omitempty"`  // names of other clusters with its UID, separated by commas

	// OtherAnchors describes the trust anchors of the local cluster, if they are known and it has none of them.
	OtherAnchors string `json:"otherTrustAnchors,omitempty"`

	// Untrusted describes issuers, of it or of the local cluster, which the other one does not trust although they
	// share an anchor; empty for none.
	Untrusted string `json:"untrustedIssuers,omitempty"`

	// Overlap is an address that Pods of it and of the local cluster have, if they should have none; empty for none.
	Overlap string `json:"overlap,omitempty"`

	// Outside is an endpoint of it that is outside of the networks of the clusters, of those that clients here may get,
	// and how many there are; empty for none.
	Outside string `json:"outside,omitempty"`

	Writing Writing `json:"writing,omitzero"` // of this replica into it
	LeftOut LeftOut `json:"leftOut,omitzero"` // what it publishes that is in no slice of the local cluster
	LeftTo  string  `json:"leftTo,omitempty"` // another installation, which writes those slices; empty for none
	Traffic Traffic `json:"traffic,omitzero"` // how traffic to it is limited

	wanted uint64 // the attempt that its Spec asks for
}

// describe takes over what a Spec has.
func (s *Status) describe(spec Spec) {
	s.Local, s.Slices = spec.Local, spec.Slices
	s.TrustDomain, s.ClusterDomain = spec.TrustDomain, spec.ClusterDomain
}

// Tried reports whether this replica has of the cluster what it can get for now: the cluster is synced, or was
// restored, or did not answer over the Access that is wanted now and the other replicas were asked.
func (s Status) Tried() bool {
	failed := s.Contact != nil && s.tried == s.wanted
	return s.Synced || !s.Checkpoint.IsZero() || failed && !s.AskingPeers
}

// Renewed reports whether a cluster is reached by other credentials, or at another address, than before.
func (s Status) Renewed(before Status) bool {
	isOther := s.tried != before.tried || s.Source != before.Source || !s.Expires.Equal(before.Expires)
	return isOther && before.Source != "" && s.Source != "" && s.Credentials == nil
}

// WritingState reports whether this replica writes into a cluster.
type WritingState string

// The states of writing.
const (
	NotWriting WritingState = ""          // nothing is to be written
	Reviewing  WritingState = "Reviewing" // the permissions are not known yet
	ReadOnly   WritingState = "ReadOnly"  // they are missing
	Standby    WritingState = "Standby"   // another replica does
	Holding    WritingState = "Holding"   // this replica does
)

// IsWritable reports whether one of the replicas writes, or waits for the Lease.
func (s WritingState) IsWritable() bool { return s == Standby || s == Holding }

// Writing is the state of writing into a cluster.
type Writing struct {
	State   WritingState `json:"state,omitempty"`
	Leases  []string     `json:"leases,omitempty"`       // held by this replica, sorted
	Wanted  []string     `json:"wantedLeases,omitempty"` // held or waited for, sorted; others may have no holder
	Problem string       `json:"problem,omitempty"`      // what prevents writing all or a part; empty for nothing
	Failing []Failing    `json:"failing,omitempty"`      // what was tried again and again, and not written

	// Holders are those of the Leases that this replica waits for, by Lease, as they name themselves. Another
	// replica calls itself by its name, an underscore and random letters.
	Holders map[string]string `json:"holders,omitempty"`
}

// Unusable counts objects that cannot be used, or not completely.
type Unusable struct {
	Count    int    `json:"count"`
	Examples string `json:"examples"` // some of them, with the reason
}

// Failing is objects of one sort that this replica has tried to write again and again, for one reason or several.
type Failing struct {
	What    string     `json:"what"`    // is written of each, such as EndpointSlices
	Objects []string   `json:"objects"` // those that fail for longest, three at most
	Count   int        `json:"count"`   // of all
	Since   time.Time  `json:"since"`   // the first of them
	Reason  api.Reason `json:"reason"`  // why that one was not written last
	Error   string     `json:"error"`   // likewise, in the words of what has refused it
}

func (f Failing) equal(o Failing) bool {
	return f.What == o.What && slices.Equal(f.Objects, o.Objects) && f.Count == o.Count && f.Since.Equal(o.Since) &&
		f.Reason == o.Reason && f.Error == o.Error
}

// Holder returns the replica that holds one of the Leases that this one waits for; empty if it is not known.
func (w Writing) Holder() string {
	for _, lease := range w.Wanted {
		if name, _, _ := strings.Cut(w.Holders[lease], "_"); name != "" {
			return name
		}
	}
	return ""
}

func (w Writing) equal(o Writing) bool {
	return w.State == o.State && w.Problem == o.Problem && slices.EqualFunc(w.Failing, o.Failing, Failing.equal) &&
		slices.Equal(w.Leases, o.Leases) && slices.Equal(w.Wanted, o.Wanted) && maps.Equal(w.Holders, o.Holders)
}

// LeftOut counts the endpoints of a cluster that should be in slices of the local cluster, and are not.
type LeftOut struct {
	Known  bool `json:"known"`            // this replica writes those slices
	Excess int  `json:"excess,omitempty"` // past the slices that one cluster may have in a Service
}

// KindStatus is the state of one informer of a cluster.
type KindStatus struct {
	Kind    string `json:"resource"`
	Objects int    `json:"objects"`
	// Malformed counts the objects so far of which something could not be used and was left out.
	Malformed int `json:"malformed,omitempty"`
	api.Health
}

// SameButTimes reports whether both are equal but for Since and LastContact. Errors are equal if their
// texts are.
func (s Status) SameButTimes(other Status) bool {
	return s.Name == other.Name && s.Local == other.Local &&
		s.TrustDomain == other.TrustDomain && s.ClusterDomain == other.ClusterDomain && s.Slices == other.Slices &&
		s.State == other.State && s.Synced == other.Synced && s.Source == other.Source &&
		s.issued.Equal(other.issued) && s.Expires.Equal(other.Expires) && s.Restored.Equal(other.Restored) &&
		s.Checkpoint.Equal(other.Checkpoint) && s.AskingPeers == other.AskingPeers &&
		s.NotRestored == other.NotRestored &&
		s.ClockSkew == other.ClockSkew && s.OverBudget == other.OverBudget &&
		s.Unusable == other.Unusable && s.tried == other.tried &&
		slices.EqualFunc(s.Failed, other.Failed, api.FailedCall.IsSame) &&
		ErrorText(s.Contact) == ErrorText(other.Contact) && ErrorText(s.Credentials) == ErrorText(other.Credentials) &&
		s.same(other.Reports)
}

func (r Reports) same(o Reports) bool {
	return r.Identity.equal(o.Identity) && r.SameAs == o.SameAs && r.OtherAnchors == o.OtherAnchors &&
		r.Untrusted == o.Untrusted && r.Overlap == o.Overlap && r.Outside == o.Outside && r.Writing.equal(o.Writing) &&
		r.LeftOut == o.LeftOut && r.LeftTo == o.LeftTo && r.Traffic.equal(o.Traffic) && r.wanted == o.wanted
}

// ErrorText returns the text of an error; empty for none.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

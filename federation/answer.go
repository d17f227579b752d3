package federation

import "time"

// A State is what there is to send about a Service.
type State uint8

// The states.
const (
	// Unknown: no synced cluster has an address for the client, and a cluster that was never synced may
	// have one. There is nothing to send: what the client holds stays, except for addresses that their
	// cluster has withdrawn.
	Unknown State = iota
	// Rejected: clients cannot be served, for a Rejection.
	Rejected
	// Absent: there is no such Service.
	Absent
	// Empty: there is a Service, and no address for the client.
	Empty
	// Serving: there are addresses.
	Serving
)

// String returns the state's name.
func (s State) String() string {
	return [...]string{"Unknown", "Rejected", "Absent", "Empty", "Serving"}[s]
}

// A Rejection is why a Service cannot be served.
type Rejection uint8

// The rejections.
const (
	NotRejected  Rejection = iota
	ExternalName           // a DNS alias: it has no addresses
	Malformed              // View.Malformed has the reason; clients keep what they hold
	Unlinked               // it stands for one in a cluster that is not linked; clients that were served get Absent
)

// An Answer is what clients at one place get for one Query. It is immutable, and everything that a
// client is sent follows from one Answer: its State and its Set were computed from its Snapshot, and
// nothing is read beside it.
//
// It knows no time and no client. A client that has no answer yet waits, while clusters are not synced,
// until WaitUntil; whether a Service that is Absent is an error depends on whether the client was
// served before. Both are up to who serves the client.
type Answer struct {
	Version   uint64 // of the Snapshot
	State     State
	Rejection Rejection
	Set       *Set // empty unless Serving
	Snapshot  *Snapshot

	selection *Selection
	node      string // of the client
}

// Division returns how the traffic is divided between clusters, before the client's bucket takes its part of it, which
// the Set is: see [Selection.Division].
func (a *Answer) Division() *Division { return a.selection.divisionAt(a.node) }

// Answer returns the answer for clients at a place, which Reduce may have reduced. previous may be any
// earlier Answer for that place, or nil: its Set is taken over if it is equal. The result does not
// depend on it otherwise.
func (x *Selection) Answer(p Place, previous *Answer) *Answer {
	snapshot := x.snapshot
	answer := &Answer{Version: snapshot.Version, Snapshot: snapshot, selection: x, node: p.Node}
	var before *Set
	if previous != nil {
		before = previous.Set
	}

	answer.Set = x.At(p, before)
	answer.Rejection = snapshot.Rejection()

	switch {
	case answer.Rejection == ExternalName || answer.Rejection == Malformed:
		answer.State = Rejected
	case !answer.Set.Empty():
		answer.State = Serving
	case len(snapshot.Unknown()) > 0:
		answer.State = Unknown
	case snapshot.Exists():
		answer.State = Empty
	default:
		answer.State = Absent
	}

	return answer
}

// Rejection returns why clients cannot be served, as far as that is known.
func (s *Snapshot) Rejection() Rejection {
	view := s.View
	switch {
	case view == nil:
		return NotRejected
	case view.ExternalName:
		return ExternalName
	}

	target := view
	if view.Composition != nil && !s.Federated() {
		m := s.Members[0]
		if m.Known && !m.Linked {
			return Unlinked
		}
		target = m.View
	}

	switch {
	case target != nil && target.ExternalName:
		return ExternalName
	case view.Malformed != "":
		return Malformed
	default:
		return NotRejected
	}
}

// contactGrace is how long a first answer waits for a cluster that has not answered at all: less than the 3 s
// for which a request waits in a proxy that has no endpoint.
const contactGrace = 2 * time.Second

// WaitUntil returns until when a client that holds nothing waits for clusters that were never synced:
// its first answer replaces everything that it has held on an earlier stream, so it should be complete. But a
// client that has held nothing loses requests meanwhile, and the server cannot distinguish the two. So a
// cluster that is being listed has the whole grace from when it was linked, and one that does not answer has
// contactGrace; before the clusters are listed, both are counted from started. The zero time means that there
// is nothing to wait for.
func (s *Snapshot) WaitUntil(grace time.Duration, started time.Time) (until time.Time) {
	for _, m := range s.Members {
		if m.Known {
			continue
		}
		since, wait := m.Since, min(grace, contactGrace)
		if !m.Linked { // not yet: the clusters are not listed
			since = started
		}

		if m.Listing {
			wait = grace
		}
		if end := since.Add(wait); end.After(until) {
			until = end
		}
	}
	return until
}

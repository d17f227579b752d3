package federation

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/fingerpost/fingerpost/federation/facts"
)

// Published is all that one cluster has published, and what is held of it. It is immutable.
type Published struct {
	Views *Views
	Holds map[Service]PublishedHold
	Facts map[string]facts.Copy // by the names of Tables
}

// PublishedHold is what a hold is made of.
type PublishedHold struct {
	Before *View
	Until  time.Time // zero: it is not confirmed
	Since  time.Time // when it began, if it is not confirmed
}

// Published returns what a cluster has published. It never holds up a writer for longer than a moment: Views
// are shared, and facts are copied in parts. The copy of a fact that changes meanwhile is the old or the new
// one. It returns before, and true, if nothing has changed since.
func (s *Store) Published(of Cluster, before Published) (p Published, same bool) {
	k := s.cluster(of)
	if k == nil {
		return Published{}, false
	}

	p = Published{
		Views: k.views.Load(), Holds: s.publishedHolds(of), Facts: make(map[string]facts.Copy, len(s.all)),
	}
	for _, t := range s.all {
		if !t.IsDerived() {
			p.Facts[t.Name()] = t.Copy(of, before.Facts[t.Name()])
		}
	}

	same = p.Views == before.Views && maps.Equal(p.Holds, before.Holds) &&
		maps.EqualFunc(p.Facts, before.Facts, facts.Copy.Same)
	if same {
		return before, true
	}
	return p, false
}

// Write writes everything that is published, and replaces all holds by those in it. MarkSynced then removes what it
// does not have. The terms of facts end by that at once.
func (k *ClusterWriter) Write(published Published) {
	k.restoreHolds(published.Holds)
	for svc, v := range published.Views.All() {
		k.Set(svc, v)
	}

	isFenced := true
	k.do(func(*cluster) { isFenced = false })
	if isFenced {
		return
	}
	for _, t := range k.store.all {
		t.Restore(k.name, published.Facts[t.Name()].All)
	}
}

// MarshalBinary returns the set in the form that UnmarshalBinary reads.
func (p Ports) MarshalBinary() ([]byte, error) {
	if !p.given {
		return []byte{}, nil
	}
	return append([]byte{1}, p.ranges...), nil
}

// UnmarshalBinary sets what MarshalBinary returned.
func (p *Ports) UnmarshalBinary(b []byte) error {
	if len(b) == 0 {
		*p = Ports{}
		return nil
	}
	if b[0] != 1 || len(b)%4 != 1 {
		return errors.New("no set of ports")
	}
	*p = Ports{ranges: string(b[1:]), given: true}
	return nil
}

// Valid reports whether a View from outside keeps what readers depend on: the order of its ports and slices, protocols
// that there are, and members that are distinct.
func (v *View) Valid() bool {
	ports := v.validPorts()
	ordered := slices.IsSortedFunc(v.Slices, compareNames)
	if v.Composition == nil {
		return ports && ordered
	}

	seen := map[MemberRef]bool{} // a Service may be a member twice, once as other clusters see it
	for _, m := range v.Composition.Members {
		if seen[m] {
			return false
		}
		seen[m] = true
	}
	return ports && ordered && (v.Composition.Union || len(seen) == 1)
}

func (v *View) validPorts() bool {
	if slices.ContainsFunc(v.Ports, func(p ServicePort) bool { return p.Protocol > SCTP }) {
		return false
	}
	for _, s := range v.Slices {
		if slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Protocol > SCTP }) {
			return false
		}
	}
	return slices.IsSortedFunc(v.Ports, ServicePort.comparePorts)
}

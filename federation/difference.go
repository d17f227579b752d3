package federation

import "github.com/fingerpost/fingerpost/federation/watch"

// maxDifferences is how many of them wait for their reader.
const maxDifferences = 4096

// A Difference is that a cluster which was synced publishes something else about a Service, other than which endpoints
// it has: whether the Service exists, is exported, has endpoints at all, is malformed, what it is composed of, and how
// its traffic is divided. Before and After are nil where there is no Service.
type Difference struct {
	Ref
	Before, After *View
}

// Differences are those that one reader has not taken yet. They are kept from the time on at which it asked for them,
// and up to a bound: a reader that is slow learns how many it has missed, and keeps no Views alive without end.
type Differences struct {
	store  *Store
	bell   *watch.Bell
	kept   []Difference // guarded by Store.mu, like missed
	missed int
}

// Differences returns those from now on. There is one reader, the last that asked.
func (s *Store) Differences() *Differences {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.differences = &Differences{store: s, bell: watch.NewBell()}
	return s.differences
}

// Rung returns the channel that the reader receives from. Then it calls Take.
func (d *Differences) Rung() <-chan struct{} { return d.bell.Rung() }

// Take returns the Differences since it was last called, in their order, and how many more there were.
func (d *Differences) Take() (all []Difference, missed int) {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	all, missed = d.kept, d.missed
	d.kept, d.missed = nil, 0
	return all, missed
}

// add adds a Difference, if the Views have one. It needs Store.mu.
func (d *Differences) add(ref Ref, before, after *View) {
	if d == nil || !before.differs(after) {
		return
	}
	if len(d.kept) < maxDifferences {
		d.kept = append(d.kept, Difference{ref, before, after})
	} else {
		d.missed++
	}
	d.bell.Ring()
}

// differs reports whether two Views, nil for none, are a Difference.
func (v *View) differs(o *View) bool {
	if v == nil || o == nil {
		return v != o
	}
	return v.Unexported != o.Unexported || v.Malformed != o.Malformed || v.HasEndpoints() != o.HasEndpoints() ||
		v.ThroughGateway != o.ThroughGateway || !v.Composition.equal(o.Composition) || !v.Policy.Equal(o.Policy)
}

// HasEndpoints reports whether there is an endpoint, ready or not.
func (v *View) HasEndpoints() bool {
	for _, slice := range v.Slices {
		if len(slice.Endpoints) > 0 {
			return true
		}
	}
	return false
}

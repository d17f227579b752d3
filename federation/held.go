package federation

import (
	"net/netip"
	"slices"
	"time"
)

// Endpoints that a cluster has withdrawn, and that readers get nevertheless.
//
// A cluster that withdraws most of its endpoints within a moment does so more often by mistake than on purpose. The
// owner of its writer decides which withdrawals are held; this file only keeps the decision. Hold keeps the endpoints
// that a Service has now in Snapshots, whatever is written after it:
//
//   - A hold begins unconfirmed: every Snapshot that names the Service has the endpoints that are held.
//   - ConfirmHolds is called once it is known that the cluster no longer has the endpoints. From then on, and until
//     some time, a Snapshot has them only while no other of its members has a ready endpoint: a federated Service
//     that has others loses them at once. With the zero time no Snapshot has them any more.
//   - Keep is called before a Service is deleted, and keeps it without endpoints until some time. If the deletion
//     turns out to be part of a mass withdrawal, the Service is still there: what readers remove when a Service is
//     deleted would not come back.
//   - EndHolds ends the holds whose time has come. A hold also ends when the Service has as many ready endpoints
//     again, and when its cluster is removed.
//
// What is held is added to what was written: an endpoint that is ready now stays as it is written, and so does one
// that is new. Views are what the cluster has written; holds are saved beside them (Published), so that a replica
// that starts takes them over.
//
// Without a hold this costs a comparison of a number with zero.

// hold is what is held of one Service. It is immutable.
type hold struct {
	before *View     // with the endpoints that are held
	until  time.Time // zero: it is not confirmed
	view   *View     // that readers are given: what was written, and what of before it lacks
	lacks  int       // ready endpoints of before
}

// A HoldStatus is what is held of one Service.
type HoldStatus struct {
	Endpoints int
	Until     time.Time // zero: it is not confirmed that they are gone
}

// Hold keeps the endpoints that a Service has now in Snapshots. It is called before the Set or Delete that withdraws
// them. A hold that is confirmed stays as it is.
func (k *ClusterWriter) Hold(svc Service) {
	k.do(func(c *cluster) {
		before := k.View(svc)
		if h := c.held[svc]; h != nil {
			if !h.until.IsZero() {
				return
			}
			before = h.view
		}
		if before == nil {
			return
		}
		k.changeHold(svc, &hold{before: before, view: before})
	})
}

// HoldBefore is Hold for the endpoints that a Service had some time ago.
func (k *ClusterWriter) HoldBefore(svc Service, before *View) {
	k.do(func(c *cluster) {
		h := c.held[svc]
		if h == nil || h.lacks == 0 && !h.until.IsZero() {
			h = &hold{before: before}
		}
		k.changeHold(svc, h.over(k.View(svc)))
	})
}

// Keep keeps a Service, without endpoints, until some time. It is called before the Delete.
func (k *ClusterWriter) Keep(svc Service, until time.Time) {
	k.do(func(c *cluster) {
		if v := k.View(svc); v != nil && c.held[svc] == nil {
			empty := *v
			empty.Slices = nil
			k.store.setHold(c, svc, &hold{before: &empty, until: until, view: v})
		}
	})
}

// ConfirmHolds confirms those holds of c that are not confirmed yet, and returns how many there were, one a Service.
// Until some time Snapshots in which nothing else is ready still have what is held; with the zero time it ends now.
func (s *Store) ConfirmHolds(c Cluster, until time.Time) (confirmed int) {
	s.reviseHolds(c, func(h *hold) *hold {
		if !h.until.IsZero() {
			return h
		}
		confirmed++
		if until.IsZero() {
			return nil
		}
		next := *h
		next.until = until
		return &next
	})
	return confirmed
}

// EndHolds ends those confirmed holds of c whose time is not after now, or all of them if now is the zero time. It
// returns when the next one is due; the zero time if there is none.
func (s *Store) EndHolds(c Cluster, now time.Time) (next time.Time) {
	s.reviseHolds(c, func(h *hold) *hold {
		switch {
		case h.until.IsZero():
		case now.IsZero() || !now.Before(h.until):
			return nil
		case next.IsZero() || h.until.Before(next):
			next = h.until
		}
		return h
	})
	return next
}

// reviseHolds replaces each hold of c by what revise makes of it; nil ends it.
func (s *Store) reviseHolds(c Cluster, revise func(*hold) *hold) {
	s.mu.Lock()
	defer s.unlock()
	k := s.cluster(c)
	if k == nil {
		return
	}
	for svc, h := range k.held {
		if next := revise(h); next != h {
			s.setHold(k, svc, next)
			s.refreshMembers(c, svc)
		}
	}
}

// Holds returns the holds of c, by Service; nil if there are none.
func (s *Store) Holds(c Cluster) map[Service]HoldStatus {
	return holdsOf(s, s.cluster(c), func(h *hold) HoldStatus { return HoldStatus{h.lacks, h.until} })
}

// holdsOf maps each hold of a cluster, which may be nil; nil if there are none. The caller does not hold Store.mu.
func holdsOf[T any](s *Store, k *cluster, of func(*hold) T) map[Service]T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k == nil || len(k.held) == 0 {
		return nil
	}
	all := make(map[Service]T, len(k.held))
	for svc, h := range k.held {
		all[svc] = of(h)
	}
	return all
}

// Gives reports whether a Service exists for readers: its cluster has written it, or it is deleted and held.
func (s *Store) Gives(ref Ref) bool {
	if s.View(ref) != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.cluster(ref.Cluster)
	return k != nil && k.held[ref.Service] != nil
}

// restoreHolds replaces all holds. It is called before what was written is restored, so that no reader is given less.
func (k *ClusterWriter) restoreHolds(all map[Service]PublishedHold) {
	k.do(func(c *cluster) {
		for svc := range c.held {
			k.changeHold(svc, nil)
		}
		for svc, h := range all {
			restored := hold{before: h.Before, until: h.Until}
			k.changeHold(svc, restored.over(k.View(svc)))
		}
	})
}

// changeHold sets what is held of a Service, nil for nothing, in all that is watched, too. It needs Store.mu.
func (k *ClusterWriter) changeHold(svc Service, h *hold) {
	k.store.setHold(k.cluster, svc, h)
	k.store.refreshMembers(k.name, svc)
}

// setHold sets what is held of a Service; nil for nothing. It needs s.mu.
func (s *Store) setHold(k *cluster, svc Service, h *hold) {
	s.holds -= len(k.held)
	if k.held[svc] = h; h == nil {
		delete(k.held, svc)
	}
	s.holds += len(k.held)
}

// over returns what is held when v was written, nil for a Service that was deleted; nil if the hold ends by that.
func (h *hold) over(v *View) *hold {
	next := hold{before: h.before, until: h.until}
	next.view, next.lacks = v.withHeld(h.before)
	if v != nil && (next.lacks == 0 || v.readyCount() >= h.before.readyCount()) {
		return nil
	}
	return &next
}

// holdFor returns the hold whose view a member of home has instead of what its cluster has written; nil for none.
func (c *cluster) holdFor(s *Store, home Ref, term MemberRef) *hold {
	h := c.held[term.Service]
	if h == nil || !h.until.IsZero() && s.hasOthers(home, term) {
		return nil
	}
	return h
}

// hasOthers reports whether a member of home other than one has a ready endpoint, which is not held.
func (s *Store) hasOthers(home Ref, one MemberRef) bool {
	v := s.View(home)
	if v == nil || v.Composition == nil {
		return false
	}
	return slices.ContainsFunc(v.Composition.Members, func(m MemberRef) bool {
		return m.Ref != one.Ref && s.View(m.Ref).HasReady()
	})
}

// ready yields the endpoints of v, which may be nil, that are ready.
func (v *View) ready(yield func(*Endpoint) bool) {
	if v == nil {
		return
	}
	for _, s := range v.Slices {
		for _, e := range s.Endpoints {
			if e.Ready && !yield(e) {
				return
			}
		}
	}
}

// HasReady reports whether an endpoint of the View, which may be nil, is ready.
func (v *View) HasReady() bool {
	for range v.ready {
		return true
	}
	return false
}

func (v *View) readyCount() (n int) {
	for range v.ready {
		n++
	}
	return n
}

func (v *View) readyAddresses() map[netip.Addr]bool {
	addresses := map[netip.Addr]bool{}
	for e := range v.ready {
		addresses[e.Addr] = true
	}
	return addresses
}

// withHeld returns a View with everything of v, which may be nil, and with the ready endpoints of before that v lacks,
// or that are not ready in it. missing is how many those are. They are in Slices of their own, with the ports that they
// had: a Service without Pods keeps one of its EndpointSlices, which has no ports any more.
func (v *View) withHeld(before *View) (with *View, missing int) {
	if v == nil {
		return before, before.readyCount()
	}
	ready := v.readyAddresses()
	held, inSlice := map[netip.Addr]bool{}, map[*Slice][]*Endpoint{}
	for _, s := range before.Slices {
		for _, e := range s.Endpoints {
			if e.Ready && !ready[e.Addr] {
				held[e.Addr] = true
				inSlice[s] = append(inSlice[s], e)
				missing++
			}
		}
	}
	if missing == 0 {
		return v, 0
	}
	n, taken := *v, map[string]bool{}
	n.Slices = nil
	for _, s := range v.Slices {
		n.Slices = append(n.Slices, s.without(held))
		taken[s.Name] = true
	}
	for _, s := range before.Slices {
		if lost := inSlice[s]; lost != nil {
			name := s.Name
			for taken[name] {
				name += "/held" // no EndpointSlice has such a name
			}
			taken[name] = true
			n.Slices = append(n.Slices, &Slice{Name: name, Ports: s.Ports, Endpoints: lost})
		}
	}
	slices.SortFunc(n.Slices, compareNames)
	return &n, missing
}

// without returns the Slice without the endpoints of some addresses.
func (s *Slice) without(addresses map[netip.Addr]bool) *Slice {
	leaves := func(e *Endpoint) bool { return addresses[e.Addr] }
	if !slices.ContainsFunc(s.Endpoints, leaves) {
		return s
	}
	stay := slices.DeleteFunc(slices.Clone(s.Endpoints), leaves)
	return &Slice{Name: s.Name, Ports: s.Ports, Endpoints: stay}
}

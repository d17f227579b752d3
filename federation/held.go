package federation

import (
	"net/netip"
	"slices"
	"time"
)

// Endpoints that a cluster has withdrawn, and that readers are given nevertheless.
//
// A cluster that withdraws most of what it had within a moment is more often a mistake than meant. Who decides on
// that is the owner of its writer: this is only where the decision is kept. Hold has the endpoints that a Service has
// now stay in Snapshots, whatever is written after it:
//
//   - A hold is not confirmed at first. Every Snapshot that names the Service has what is held.
//   - ConfirmHolds is called when it is known that the cluster does not have the endpoints. From then on a Snapshot
//     has them only while no other of its members has a ready endpoint (a federated Service lets them go at once),
//     and until a time. Or they end at once.
//   - Keep has a Service that is deleted next stay, without endpoints, until a time. What was removed
//     because a Service is gone would not come back if the Service turns out to be a part of such a withdrawal.
//   - EndHolds ends what was held until its time. A hold ends by itself when the Service has as many ready endpoints
//     again, and with its cluster.
//
// What is held is added to what was written: an endpoint that is ready now is not replaced by what it was, and one
// that is new is there as well. Views are what the cluster has written; holds are saved beside them (Published), so
// that a replica that starts goes on with them.
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

// Hold has the endpoints that a Service has now stay in Snapshots. It is called before the Set or Delete that withdraws
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

// Keep has a Service stay until a time, without endpoints, when it is deleted: it is called before the Delete.
func (k *ClusterWriter) Keep(svc Service, until time.Time) {
	k.do(func(c *cluster) {
		if v := k.View(svc); v != nil && c.held[svc] == nil {
			empty := *v
			empty.Slices = nil
			k.store.setHold(c, svc, &hold{before: &empty, until: until, view: v})
		}
	})
}

// ConfirmHolds has what is held of c, and was not confirmed, held until a time for Snapshots in which nothing else is
// ready; with the zero time it ends. It returns of how many Services that is.
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

// EndHolds ends what is held of c, and confirmed, until a time that is not after now; all of it if now is zero. It
// returns when the next one ends; zero for never.
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

// Holds returns what is held of each Service of which something is, or which is kept.
func (s *Store) Holds(c Cluster) map[Service]HoldStatus {
	return holdsOf(s, s.cluster(c), func(h *hold) HoldStatus { return HoldStatus{h.lacks, h.until} })
}

// holdsOf returns what of makes of each hold of a cluster, which may be nil; nil if there is none. It must be called
// without Store.mu.
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

// Gives reports whether readers are given a Service for itself: its cluster has written it, or has withdrawn it and it
// is held.
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

// holdFor returns what a member of home is given instead of what its cluster has written; nil for nothing.
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

// withHeld returns a View with everything of v, which may be nil, and with the ready endpoints of before that it
// lacks, or that are not ready in it. missing is how many those are. They are in Slices of their own, because they keep
// the ports that they had: a Service without Pods keeps one of its EndpointSlices, which has no ports any more.
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
	return &Slice{Name: s.Name, Ports: s.Ports, Endpoints: slices.DeleteFunc(slices.Clone(s.Endpoints), leaves)}
}

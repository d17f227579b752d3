package federation

import (
	"net/netip"
	"slices"
	"strings"
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

// hold is what is held of one Service; guarded by Store.mu.
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
		before := c.views.Load().Get(svc)
		if h := c.held[svc]; h != nil {
			if !h.until.IsZero() {
				return
			}
			before = h.view
		}
		if before == nil {
			return
		}
		k.setHold(svc, &hold{before: before, view: before})
		k.store.refreshMembers(k.name, svc)
	})
}

// HoldBefore is Hold for the endpoints that a Service had some time ago.
func (k *ClusterWriter) HoldBefore(svc Service, before *View) {
	k.do(func(c *cluster) {
		if h := c.held[svc]; h == nil || h.lacks == 0 && !h.until.IsZero() {
			k.setHold(svc, &hold{before: before, view: before})
		}
		k.updateHold(svc, c.views.Load().Get(svc))
		k.store.refreshMembers(k.name, svc)
	})
}

// Keep has a Service stay until a time, without endpoints, when it is deleted: it is called before the Delete.
func (k *ClusterWriter) Keep(svc Service, until time.Time) {
	k.do(func(c *cluster) {
		if v := c.views.Load().Get(svc); v != nil && c.held[svc] == nil {
			empty := *v
			empty.Slices = nil
			k.setHold(svc, &hold{before: &empty, until: until, view: v})
		}
	})
}

// ConfirmHolds has what is held of c, and was not confirmed, held until a time for Snapshots in which nothing else is
// ready; with the zero time it ends. It returns of how many Services that is.
func (s *Store) ConfirmHolds(c Cluster, until time.Time) (confirmed int) {
	s.reviseHolds(c, func(h *hold) (ends, changed bool) {
		if !h.until.IsZero() {
			return false, false
		}
		confirmed++
		h.until = until
		return until.IsZero(), true
	})
	return confirmed
}

// EndHolds ends what is held of c, and confirmed, until a time that is not after now; all of it if now is zero. It
// returns when the next one ends; zero for never.
func (s *Store) EndHolds(c Cluster, now time.Time) (next time.Time) {
	s.reviseHolds(c, func(h *hold) (ends, changed bool) {
		switch {
		case h.until.IsZero():
			return false, false
		case now.IsZero() || !now.Before(h.until):
			return true, true
		case next.IsZero() || h.until.Before(next):
			next = h.until
		}
		return false, false
	})
	return next
}

// reviseHolds has revise look at everything that is held of c.
func (s *Store) reviseHolds(c Cluster, revise func(*hold) (ends, changed bool)) {
	s.mu.Lock()
	defer s.unlock()
	k := s.cluster(c)
	if k == nil {
		return
	}
	for svc, h := range k.held {
		ends, changed := revise(h)
		if ends {
			delete(k.held, svc)
			s.holds--
		}
		if changed {
			s.refreshMembers(c, svc)
		}
	}
}

// Holds returns what is held of each Service of which something is, or which is kept.
func (s *Store) Holds(c Cluster) map[Service]HoldStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.cluster(c)
	if k == nil || len(k.held) == 0 {
		return nil
	}
	all := make(map[Service]HoldStatus, len(k.held))
	for svc, h := range k.held {
		all[svc] = HoldStatus{Endpoints: h.lacks, Until: h.until}
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

// copyHolds returns what the holds of a cluster are made of. It must be called without Store.mu.
func (s *Store) copyHolds(k *cluster) map[Service]PublishedHold {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(k.held) == 0 {
		return nil
	}
	all := make(map[Service]PublishedHold, len(k.held))
	for svc, h := range k.held {
		all[svc] = PublishedHold{Before: h.before, Until: h.until}
	}
	return all
}

// restoreHolds replaces all holds. It is called before what was written is restored, so that no reader is given less.
func (k *ClusterWriter) restoreHolds(all map[Service]PublishedHold) {
	k.do(func(c *cluster) {
		for svc := range c.held {
			k.setHold(svc, nil)
			k.store.refreshMembers(k.name, svc)
		}
		for svc, h := range all {
			k.setHold(svc, &hold{before: h.Before, until: h.Until})
			k.updateHold(svc, c.views.Load().Get(svc))
			k.store.refreshMembers(k.name, svc)
		}
	})
}

// setHold sets what is held of a Service; nil for nothing. It needs Store.mu.
func (k *ClusterWriter) setHold(svc Service, h *hold) {
	c := k.cluster
	if c.held == nil {
		c.held = map[Service]*hold{}
	}
	k.store.holds -= len(c.held)
	if c.held[svc] = h; h == nil {
		delete(c.held, svc)
	}
	k.store.holds += len(c.held)
}

// updateHold computes anew what is held of a Service when v was written; nil if it was deleted. It needs Store.mu.
func (k *ClusterWriter) updateHold(svc Service, v *View) {
	h := k.cluster.held[svc]
	if h == nil {
		return
	}
	next := hold{before: h.before, until: h.until}
	next.view, next.lacks = v.withHeld(h.before)
	if v != nil && (next.lacks == 0 || v.readyCount() >= h.before.readyCount()) {
		k.setHold(svc, nil)
		return
	}
	k.setHold(svc, &next)
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

// HasReady reports whether an endpoint of the View, which may be nil, is ready.
func (v *View) HasReady() bool {
	if v == nil {
		return false
	}
	for _, s := range v.Slices {
		for _, e := range s.Endpoints {
			if e.Ready {
				return true
			}
		}
	}
	return false
}

// readyAddresses returns the addresses of v, which may be nil, that are ready.
func (v *View) readyAddresses() map[netip.Addr]bool {
	ready := map[netip.Addr]bool{}
	if v == nil {
		return ready
	}
	for _, s := range v.Slices {
		for _, e := range s.Endpoints {
			if e.Ready {
				ready[e.Addr] = true
			}
		}
	}
	return ready
}

func (v *View) readyCount() int {
	if v == nil {
		return 0
	}
	ready, _ := v.Count()
	return ready
}

// withHeld returns a View with everything of v, which may be nil, and with the ready endpoints of before that it
// lacks, or that are not ready in it. missing is how many those are.
func (v *View) withHeld(before *View) (with *View, missing int) {
	if v == nil {
		return before, before.readyCount()
	}
	ready := v.readyAddresses()
	held, from := map[netip.Addr]bool{}, map[string]*Slice{}
	for _, s := range before.Slices {
		lacks := func(e *Endpoint) bool { return e.Ready && !ready[e.Addr] }
		if !slices.ContainsFunc(s.Endpoints, lacks) {
			continue
		}
		part := &Slice{Name: s.Name, Ports: s.Ports}
		for _, e := range s.Endpoints {
			if lacks(e) {
				part.Endpoints = append(part.Endpoints, e)
				held[e.Addr] = true
				missing++
			}
		}
		from[s.Name] = part
	}
	if missing == 0 {
		return v, 0
	}
	n := *v
	n.Slices = nil
	for _, s := range v.Slices {
		isHeld := func(e *Endpoint) bool { return held[e.Addr] }
		part := from[s.Name]
		if part != nil || slices.ContainsFunc(s.Endpoints, isHeld) {
			s = &Slice{Name: s.Name, Ports: s.Ports, Endpoints: slices.DeleteFunc(slices.Clone(s.Endpoints), isHeld)}
		}
		if part != nil {
			s.Endpoints = append(s.Endpoints, part.Endpoints...)
			delete(from, s.Name)
		}
		n.Slices = append(n.Slices, s)
	}
	for _, part := range from {
		n.Slices = append(n.Slices, part)
	}
	slices.SortFunc(n.Slices, func(a, b *Slice) int { return strings.Compare(a.Name, b.Name) })
	return &n, missing
}

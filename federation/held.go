package federation

import (
	"net/netip"
	"slices"
	"strings"
)

// Endpoints that a cluster has withdrawn, and that readers are given nevertheless.
//
// A cluster that withdraws most of what it had within a moment is more often a mistake than meant. Who decides on
// that is the owner of its writer: this is only where the decision is kept. Hold has the endpoints that a Service has
// now stay in Snapshots, whatever is written after it, until Release:
//
//   - A hold is not confirmed at first. Every Snapshot that names the Service has what is held.
//   - ConfirmHolds is called when the cluster does not have the endpoints. From then on a Snapshot has them only
//     while no other of its members has a ready endpoint: a federated Service lets them go at once.
//   - A hold ends by itself when the Service has as many ready endpoints again, and with its cluster.
//
// What is held is added to what was written: an endpoint that is ready now is not replaced by what it was, and one
// that is new is there as well. Views, and what is saved of them, are what the cluster has written.
//
// Without a hold this costs a comparison of a number with zero.

// hold is what is held of one Service; guarded by Store.mu.
type hold struct {
	before    *View // with the endpoints that are held
	confirmed bool
	view      *View // that readers are given: what was written, and what of before it lacks
	missing   int   // endpoints of before in it
}

// Hold has the endpoints that a Service has now stay in Snapshots: see [Store.Release]. It is called before the Set
// or Delete that withdraws them.
func (k *ClusterWriter) Hold(svc Service) {
	k.do(func(c *cluster) {
		before := c.views.Load().Get(svc)
		if h := c.held[svc]; h != nil {
			before = h.view
		}
		if before == nil {
			return
		}
		if c.held == nil {
			c.held = map[Service]*hold{}
		}
		if c.held[svc] == nil {
			k.store.holds++
		}
		c.held[svc] = &hold{before: before, view: before}
		k.store.refreshMembers(k.name, svc)
	})
}

// HoldBefore is Hold for the endpoints that a Service had some time ago.
func (k *ClusterWriter) HoldBefore(svc Service, before *View) {
	k.do(func(c *cluster) {
		if c.held == nil {
			c.held = map[Service]*hold{}
		}
		if c.held[svc] == nil {
			k.store.holds++
			c.held[svc] = &hold{before: before, view: before}
		}
		k.updateHold(svc, c.views.Load().Get(svc))
		k.store.refreshMembers(k.name, svc)
	})
}

// ConfirmHolds restricts the holds of some Services to Snapshots in which nothing else is ready.
func (s *Store) ConfirmHolds(c Cluster, services ...Service) {
	s.mu.Lock()
	defer s.unlock()
	k := s.cluster(c)
	if k == nil {
		return
	}
	for _, svc := range services {
		if h := k.held[svc]; h != nil && !h.confirmed {
			h.confirmed = true
			s.refreshMembers(c, svc)
		}
	}
}

// Release ends the holds of some Services.
func (s *Store) Release(c Cluster, services ...Service) {
	s.mu.Lock()
	defer s.unlock()
	k := s.cluster(c)
	if k == nil {
		return
	}
	for _, svc := range services {
		if k.held[svc] != nil {
			delete(k.held, svc)
			s.holds--
			s.refreshMembers(c, svc)
		}
	}
}

// Holds returns how many endpoints are held of each Service of which some are.
func (s *Store) Holds(c Cluster) map[Service]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.cluster(c)
	if k == nil || len(k.held) == 0 {
		return nil
	}
	all := make(map[Service]int, len(k.held))
	for svc, h := range k.held {
		all[svc] = h.missing
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

// updateHold computes anew what is held of a Service when v was written; nil if it was deleted. It needs Store.mu.
func (k *ClusterWriter) updateHold(svc Service, v *View) {
	h := k.cluster.held[svc]
	if h == nil {
		return
	}
	next := hold{before: h.before, confirmed: h.confirmed}
	next.view, next.missing = v.withHeld(h.before)
	if next.missing == 0 || v.readyCount() >= h.before.readyCount() {
		delete(k.cluster.held, svc)
		k.store.holds--
		return
	}
	k.cluster.held[svc] = &next
}

// refreshMembers looks again at a Service of c in all that is watched; it needs s.mu.
func (s *Store) refreshMembers(c Cluster, svc Service) {
	for _, u := range s.uses[c][svc] {
		s.exchange(u)
	}
}

// holdFor returns what a member of home is given instead of what its cluster has written; nil for nothing.
func (c *cluster) holdFor(s *Store, home Ref, term MemberRef) *hold {
	h := c.held[term.Service]
	if h == nil || h.confirmed && s.hasOthers(home, term) {
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
	ready := map[netip.Addr]bool{}
	for _, s := range v.Slices {
		for _, e := range s.Endpoints {
			if e.Ready {
				ready[e.Addr] = true
			}
		}
	}
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

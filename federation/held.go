package federation

import (
	"container/list"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// Endpoints that a cluster has withdrawn, and that readers get nevertheless.
//
// A cluster that withdraws most of its endpoints within a moment does so more often by mistake than on purpose. The
// owner of its writer decides which withdrawals are held; this file only keeps the decision. What a hold has is fixed
// when it begins: the endpoints that the Service has then. It goes through three stages:
//
//   - Remember, before something is withdrawn, keeps what the Service has until some time, and no reader gets it. A
//     Service that is deleted stays for readers meanwhile, without endpoints: what they remove when a Service is
//     deleted would not come back.
//   - Hold, and HoldRemembered for all that is remembered, begins a hold that is not confirmed: every Snapshot that
//     names the Service has the endpoints. It ends after [policy.MaxTime] at the latest.
//   - ConfirmHolds is called once it is known that the cluster no longer has the endpoints. From then on, and until
//     some time, a Snapshot has them only while no other of its members has a ready endpoint: a federated Service
//     that has others loses them at once. With the zero time no Snapshot has them any more.
//
// EndHolds ends those whose time has come. A hold also ends when the Service has as many ready endpoints again, and
// when its cluster is removed.
//
// What is held is added to what was written: an endpoint that is ready now stays as it is written, and so does one
// that is new. Views are what the cluster has written; holds are saved beside them (Published), so that a replica
// that starts takes them over.
//
// One account a cluster (account.go) has both: what is written and what is held, remembered or restored, together never
// exceed the limit of the cluster. Past it the holds end that began first. So a cluster of 200 endpoints at most, which
// has withdrawn 150 of a and then publishes 100 of b, has none of a held: that hold would make 250. With 20 of b it
// has: 50 of a and b written, 100 of a held, and 20 of b.
//
// Without a hold this costs a comparison of a number with zero. With one, a Set of its Service compares the View with
// what is held, before it takes the lock.

// A holdStage is how far it is decided what becomes of a withdrawal.
type holdStage uint8

const (
	remembered holdStage = iota
	unconfirmed
	confirmed
)

// hold is what is held of one Service. It is immutable.
type hold struct {
	service Service
	stage   holdStage
	before  *View     // with the endpoints that are held: fixed when it begins
	since   time.Time // when it began to be unconfirmed; zero before
	until   time.Time // when it ends at the latest

	// What it comes to beside the View that was written.
	view  *View // that readers are given, with what of before was not written; nil: they are given what was
	lacks int   // ready endpoints of before that they get by that
	size  Size  // of all that is not a part of what was written
}

// A HoldStatus is what is held of one Service.
type HoldStatus struct {
	Endpoints int
	Until     time.Time // zero: it is not confirmed that they are gone
	Since     time.Time // when that began
}

// holds are those of one cluster, guarded by Store.mu.
type holds struct {
	byService  map[Service]*list.Element
	order      list.List // of *hold, those that began first are first
	size       Size
	remembered int
	given      int // those that readers have something of
	letGo      int // endpoints that were held and are not because there was no room, so far
}

func (a *holds) get(svc Service) *hold {
	if at := a.byService[svc]; at != nil {
		return at.Value.(*hold)
	}
	return nil
}

// all yields the holds, those that began first are first. The one that is yielded may be replaced.
func (a *holds) all(yield func(*hold) bool) {
	for at := a.order.Front(); at != nil; {
		h := at.Value.(*hold)
		at = at.Next()
		if !yield(h) {
			return
		}
	}
}

// set sets what is held of a Service; nil for nothing.
func (a *holds) set(svc Service, hold *hold) {
	at := a.byService[svc]
	a.count(a.get(svc), -1)
	a.count(hold, 1)

	switch {
	case hold == nil && at != nil:
		a.order.Remove(at)
		delete(a.byService, svc)
	case hold == nil:
	case at != nil:
		at.Value = hold
	default:
		if a.byService == nil {
			a.byService = map[Service]*list.Element{}
		}
		a.byService[svc] = a.order.PushBack(hold)
	}
}

func (a *holds) count(h *hold, sign int) {
	if h == nil {
		return
	}
	a.size = a.size.plus(h.size, sign)
	if h.stage == remembered {
		a.remembered += sign
	}
	if h.view != nil {
		a.given += sign
	}
}

// Remember keeps what a Service has now until some time, in case that what is written next turns out to be a part of
// a mass withdrawal. It is called before that. What is held, or remembered, of the Service stays as it is, but for one
// that is about to be deleted, which stays remembered until then. It returns whether it is the first of the cluster.
func (k *ClusterWriter) Remember(svc Service, until time.Time, deleted bool) (first bool) {
	k.do(func(c *cluster) {
		first = c.holds.remembered == 0
		h, before := c.holds.get(svc), k.View(svc)
		switch {
		case h == nil && before != nil:
			k.changeHold(svc, (&hold{service: svc, before: before, until: until}).beside(before))
		case h != nil && h.stage == remembered && deleted:
			next := *h
			next.until = until
			k.changeHold(svc, &next)
		}
	})
	return first
}

// Hold keeps the endpoints that a Service has now, and what is remembered of it, in Snapshots. It is called before the
// Set or Delete that withdraws them. What is held already stays as it is.
func (k *ClusterWriter) Hold(svc Service, now time.Time) {
	k.do(func(c *cluster) {
		h, before := c.holds.get(svc), k.View(svc)
		if h == nil && before != nil {
			h = &hold{service: svc, before: before}
		}
		if h != nil {
			k.changeHold(svc, h.begin(before, now))
		}
	})
}

// HoldRemembered is Hold for all Services of which something is remembered.
func (k *ClusterWriter) HoldRemembered(now time.Time) {
	k.do(func(c *cluster) {
		for h := range c.holds.all {
			k.changeHold(h.service, h.begin(k.View(h.service), now))
		}
	})
}

// begin returns the hold when it is not confirmed from now on, while v is written, nil for a Service that was deleted.
// What v has is held as well.
func (h *hold) begin(v *View, now time.Time) *hold {
	if h.stage != remembered {
		return h
	}
	before, _ := v.withHeld(h.before)
	next := &hold{
		service: h.service, stage: unconfirmed, before: before, since: now, until: now.Add(policy.MaxTime),
	}
	return next.beside(v)
}

// ConfirmHolds confirms those holds of c that are not confirmed yet, and returns how many there were, one a Service.
// Until some time Snapshots in which nothing else is ready still have what is held; with the zero time it ends now.
func (s *Store) ConfirmHolds(c Cluster, until time.Time) (n int) {
	s.reviseHolds(c, func(h *hold) *hold {
		if h.stage != unconfirmed {
			return h
		}
		n++
		if until.IsZero() {
			return nil
		}
		next := *h
		next.stage, next.until = confirmed, until
		return &next
	})
	return n
}

// EndHolds ends those holds of c whose time is not after now; if now is the zero time, all but those that are not
// confirmed. It returns when the next one is due; the zero time if there is none.
func (s *Store) EndHolds(c Cluster, now time.Time) (next time.Time) {
	s.reviseHolds(c, func(h *hold) *hold {
		switch {
		case now.IsZero() && h.stage != unconfirmed, !now.IsZero() && !now.Before(h.until):
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
	for h := range k.holds.all {
		if next := revise(h); next != h {
			s.setHold(k, h.service, next)
			s.refreshMembers(c, h.service)
		}
	}
}

// Holds returns the holds of c that readers have something of, by Service; nil if there are none.
func (s *Store) Holds(c Cluster) (all map[Service]HoldStatus) {
	s.eachHold(c, func(hold *hold) {
		if hold.view == nil {
			return
		}

		if all == nil {
			all = map[Service]HoldStatus{}
		}
		status := HoldStatus{Endpoints: hold.lacks, Since: hold.since}
		if hold.stage != unconfirmed {
			status.Until = hold.until
		}
		all[hold.service] = status
	})
	return all
}

// eachHold calls f with each hold of c, those that began first are first.
func (s *Store) eachHold(c Cluster, f func(*hold)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.cluster(c); k != nil {
		for h := range k.holds.all {
			f(h)
		}
	}
}

// publishedHolds returns the holds of c that are saved, by Service; nil if there are none. What is remembered is
// not, but for Services that were deleted.
func (s *Store) publishedHolds(c Cluster) (all map[Service]PublishedHold) {
	s.eachHold(c, func(hold *hold) {
		out := PublishedHold{Before: hold.before, Until: hold.until}
		switch {
		case hold.view == nil:
			return
		case hold.stage == unconfirmed:
			out.Until, out.Since = time.Time{}, hold.since
		case hold.stage == remembered:
			out.Before = hold.view
		}

		if all == nil {
			all = map[Service]PublishedHold{}
		}
		all[hold.service] = out
	})
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
	return k != nil && k.holds.get(ref.Service) != nil
}

// restoreHolds replaces all holds. It is called before what was written is restored, so that no reader is given less.
// Until MarkSynced they may exceed the limit: what they share with what is written is not known before.
func (k *ClusterWriter) restoreHolds(all map[Service]PublishedHold) {
	k.do(func(c *cluster) {
		k.restoring = true
		for h := range c.holds.all {
			k.changeHold(h.service, nil)
		}

		var restored []*hold
		for svc, p := range all {
			h := &hold{service: svc, stage: confirmed, before: p.Before, since: p.Since, until: p.Until}
			if p.Until.IsZero() {
				h.stage, h.until = unconfirmed, p.Since.Add(policy.MaxTime)
			}
			restored = append(restored, h)
		}

		slices.SortFunc(restored, func(a, b *hold) int { return a.until.Compare(b.until) })
		for _, h := range restored {
			k.changeHold(h.service, h.over(k.View(h.service)))
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
	given, n := k.holds.given, k.holds.order.Len()
	k.holds.set(svc, h)
	s.holds += k.holds.given - given
	s.kept.Add(int64(k.holds.order.Len() - n))
}

// over returns what is held when v was written, nil for a Service that was deleted; nil if the hold ends by that.
func (h *hold) over(v *View) *hold {
	next := h.beside(v)
	if v != nil && (next.lacks == 0 || v.readyCount() >= h.before.readyCount()) {
		return nil
	}
	return next
}

// beside returns the hold with what it comes to beside v.
func (h *hold) beside(v *View) *hold {
	next := *h
	next.view, next.lacks = v.withHeld(h.before)
	next.size = h.before.sizeBeside(v)
	if h.stage == remembered { // readers get what was written, or an empty Service
		next.view = nil
		if v == nil {
			next.view, next.lacks = new(*h.before), 0
			next.view.Slices = nil
		}
	}
	return &next
}

// heldLater is what becomes of a hold when a View is written, computed before that: it takes time in proportion to the
// View.
type heldLater struct {
	of, next *hold
}

// holdLater returns what becomes of what is held of a Service when v is written.
func (k *ClusterWriter) holdLater(svc Service, v *View) (later heldLater) {
	if k.cluster == nil || k.store.kept.Load() == 0 {
		return heldLater{}
	}
	k.store.mu.Lock()
	h := k.cluster.holds.get(svc)
	k.store.mu.Unlock()
	if h == nil {
		return heldLater{}
	}
	return heldLater{h, h.over(v)}
}

// writeHeld keeps what is held of a Service true when v is written. It needs Store.mu.
func (k *ClusterWriter) writeHeld(svc Service, v *View, later heldLater) {
	switch h := k.cluster.holds.get(svc); h {
	case nil:
	case later.of:
		k.store.setHold(k.cluster, svc, later.next)
	default: // it was confirmed meanwhile
		k.store.setHold(k.cluster, svc, h.over(v))
	}
}

// holdFor returns the hold whose view a member of home has instead of what its cluster has written; nil for none.
func (c *cluster) holdFor(s *Store, home Ref, term MemberRef) *hold {
	h := c.holds.get(term.Service)
	if h == nil || h.view == nil || h.stage != unconfirmed && s.hasOthers(home, term) {
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
	lost := v.lost(before)
	if len(lost) == 0 {
		return v, 0
	}

	next := *v
	next.Slices = make([]*Slice, 0, len(v.Slices)+1)
	taken := map[string]*Slice{}
	for _, s := range v.Slices {
		next.Slices = append(next.Slices, s.without(lost))
		taken[s.Name] = nil
	}

	for _, s := range before.Slices {
		var endpoints []*Endpoint
		for _, e := range s.Endpoints {
			if e.Ready && lost[e.Addr] {
				endpoints = append(endpoints, e)
			}
		}
		missing += len(endpoints)
		if len(endpoints) > 0 {
			next.addHeld(s, endpoints, taken)
		}
	}

	slices.SortFunc(next.Slices, compareNames)
	return &next, missing
}

// heldSuffix is what the names of Slices that hold endpoints end in: no EndpointSlice has such a name.
const heldSuffix = "/held"

// addHeld adds endpoints of s that are held, in a Slice that is named after s. taken has the names of all Slices.
func (v *View) addHeld(s *Slice, endpoints []*Endpoint, taken map[string]*Slice) {
	name := s.Name
	for {
		other, found := taken[name]
		switch {
		case !found:
			taken[name] = &Slice{Name: name, Ports: s.Ports, Endpoints: endpoints}
			v.Slices = append(v.Slices, taken[name])
			return
		case other != nil && slices.Equal(other.Ports, s.Ports):
			other.Endpoints = append(other.Endpoints, endpoints...)
			return
		case !strings.HasSuffix(name, heldSuffix):
			name += heldSuffix
		default:
			name += "/more"
		}
	}
}

// lost returns the addresses that are ready in before, and not in v. Slices that both have are not looked at, but for
// whether they have one that has left another.
func (v *View) lost(before *View) map[netip.Addr]bool {
	lost := map[netip.Addr]bool{}
	for _, s := range before.Slices {
		if v.slice(s.Name) == s {
			continue
		}
		for _, e := range s.Endpoints {
			if e.Ready {
				lost[e.Addr] = true
			}
		}
	}

	if len(lost) > 0 {
		for e := range v.ready {
			delete(lost, e.Addr)
		}
	}
	return lost
}

// slice returns the Slice of a name; nil for none.
func (v *View) slice(name string) *Slice {
	at, found := slices.BinarySearchFunc(v.Slices, name, func(s *Slice, name string) int {
		return strings.Compare(s.Name, name)
	})
	if !found {
		return nil
	}
	return v.Slices[at]
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

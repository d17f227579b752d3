package federation

import (
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// A Store holds the Views of every cluster and republishes the Services that a change concerns. Writers
// are serialised and do work in proportion to what they change, times the watched Services that name
// it; readers never lock.
//
// Snapshots are built under the lock: a Service that an operation changes more than once gets one
// draft, which is published when the operation is done. Those who wait are woken after that, without
// the lock: it takes as long as there are many of them.
type Store struct {
	Facts

	clusters atomic.Pointer[map[Cluster]*cluster] // replaced, never written to, under mu

	mu         sync.Mutex // serialises writers; guards all below
	version    uint64     // of the newest Snapshot
	listed     bool
	heads      map[Ref]*head                 // what is watched
	uses       map[Cluster]map[Service][]use // what is watched, by the members of its Snapshots
	drafts     []*head                       // those with a draft
	superseded []watch.Superseded            // whose waiters are to be woken, besides those of drafts
	holds      int                           // of all clusters that readers have something of; see held.go

	differences *Differences // nil: there is no reader of them

	kept atomic.Int64 // holds of all clusters; stored under mu
}

// cluster is what is known of an expected cluster. Its pointers are written under Store.mu, and read by
// all; the rest is guarded by it.
type cluster struct {
	views atomic.Pointer[Views]
	state atomic.Value // ClusterState

	isLocal bool // it never changes

	expectation Expectation
	synced      bool               // it was synced once
	listing     bool               // see Member
	policy      *policy.ForCluster // nil for none
	writer      *ClusterWriter
	holds       holds // see held.go
	written     Size  // what the Views take, but for the local cluster; see account.go
	limit       Size  // of that and of what is held
}

// head is a watched Service; all but the Values is guarded by Store.mu.
type head struct {
	ref         Ref
	watchers    int
	draft       *Snapshot // the next one; nil: nothing has changed
	snapshot    watch.Value[*Snapshot]
	declaration watch.Value[*Declaration] // of the same View as the Snapshot's
}

// use is a member of what is watched, by its place in the Snapshot.
type use struct {
	head *head
	i    int
}

// An Expectation is what is known of a cluster before it is synced.
type Expectation struct {
	TrustDomain string    // of the identities of its workloads
	Since       time.Time // when the cluster was added first
	Local       bool      // it is the one that we run in; it never changes
}

// NewStore returns an empty Store.
func NewStore() *Store {
	s := &Store{Facts: newFacts(), heads: map[Ref]*head{}, uses: map[Cluster]map[Service][]use{}}
	s.clusters.Store(&map[Cluster]*cluster{})
	return s
}

// MarkClustersListed reports that all clusters which are linked now were added: from here on a cluster
// that was not added is known to have nothing.
func (s *Store) MarkClustersListed() {
	s.mu.Lock()
	defer s.unlock()
	if s.listed {
		return
	}
	s.listed = true
	for c := range s.uses {
		if s.cluster(c) == nil {
			s.refresh(c)
		}
	}
}

// AddCluster links a cluster. Until its first MarkSynced it is unknown. A second AddCluster replaces the trust domain
// only.
func (s *Store) AddCluster(name Cluster, expectation Expectation) {
	s.mu.Lock()
	defer s.unlock()

	linked := s.cluster(name)
	switch {
	case linked == nil:
		linked = &cluster{expectation: expectation, isLocal: expectation.Local && !s.hasLocal()}
		linked.state.Store(Connecting)
		s.link(name, linked)
		for _, t := range s.all {
			t.Link(name)
		}
	case linked.expectation.TrustDomain == expectation.TrustDomain:
		return
	default:
		linked.expectation.TrustDomain = expectation.TrustDomain
	}

	s.refresh(name)
}

// SetState sets how far to trust c from now on. Only Stale makes a difference for clients.
func (s *Store) SetState(c Cluster, state ClusterState) {
	s.mu.Lock()
	defer s.unlock()
	if k := s.cluster(c); k != nil {
		if before := k.state.Swap(state); before != state && (before == Stale || state == Stale) {
			s.refresh(c)
		}
	}
}

// SetPolicy sets the policy that is in force for a cluster; the zero Cluster is no policy. RemoveCluster removes it,
// and a cluster that was not added has none.
func (s *Store) SetPolicy(name Cluster, next policy.ForCluster) {
	s.mu.Lock()
	defer s.unlock()
	linked := s.cluster(name)
	if linked == nil {
		return
	}

	var before policy.ForCluster
	if linked.policy != nil {
		before = *linked.policy
	}
	if before == next {
		return
	}

	linked.policy = new(next)
	if next == (policy.ForCluster{}) {
		linked.policy = nil
	}

	s.refresh(name)
	if next.Region != before.Region { // of its Services, other clusters are in its region
		for ref := range s.heads {
			if ref.Cluster == name {
				s.recompose(ref)
			}
		}
	}
}

// Policy returns the policy that is in force for c.
func (s *Store) Policy(c Cluster) policy.ForCluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.cluster(c); k != nil && k.policy != nil {
		return *k.policy
	}
	return policy.ForCluster{}
}

// SetListing sets whether the API server of c, which was never synced, answers: see [Member].
func (s *Store) SetListing(c Cluster, listing bool) {
	s.mu.Lock()
	defer s.unlock()
	if k := s.cluster(c); k != nil && !k.synced && k.listing != listing {
		k.listing = listing
		s.refresh(c)
	}
}

// State returns how far c is trusted now. A cluster that was not added is Live.
func (s *Store) State(c Cluster) ClusterState {
	if k := s.cluster(c); k != nil {
		return k.state.Load().(ClusterState)
	}
	return Live
}

// Linked reports whether c was added.
func (s *Store) Linked(c Cluster) bool { return s.cluster(c) != nil }

// RemoveCluster removes everything that a cluster has written, fences its writer, and makes it a cluster that is
// not linked.
func (s *Store) RemoveCluster(name Cluster) {
	s.mu.Lock()
	defer s.unlock()
	linked := s.cluster(name)
	if linked == nil {
		return
	}
	s.link(name, nil)
	for h := range linked.holds.all {
		s.setHold(linked, h.service, nil)
	}

	linked.writer = nil
	for _, t := range s.all {
		s.superseded = append(s.superseded, t.Unlink(name)...)
	}
	for svc := range linked.views.Load().All() {
		s.recompose(Ref{name, svc})
	}
	s.refresh(name)
}

// hasLocal reports whether there is a local cluster: there is one at a time.
func (s *Store) hasLocal() bool {
	for _, k := range *s.clusters.Load() {
		if k.isLocal {
			return true
		}
	}
	return false
}

// cluster returns what is known of c; nil if it was not added.
func (s *Store) cluster(c Cluster) *cluster { return (*s.clusters.Load())[c] }

// link makes k what is known of c; nil for nothing. It needs s.mu.
func (s *Store) link(c Cluster, k *cluster) {
	next := maps.Clone(*s.clusters.Load())
	next[c] = k
	if k == nil {
		delete(next, c)
	}
	s.clusters.Store(&next)
}

// Views returns the Views of c now; nil, which is empty, if c was not added or has written none. Like
// all that follows it takes no lock.
func (s *Store) Views(c Cluster) *Views {
	if k := s.cluster(c); k != nil {
		return k.views.Load()
	}
	return nil
}

// View returns the View of a Service now; nil for none.
func (s *Store) View(ref Ref) *View { return s.Views(ref.Cluster).Get(ref.Service) }

// All yields the Views of every cluster now, in no order.
func (s *Store) All() iter.Seq2[Cluster, *Views] {
	return func(yield func(Cluster, *Views) bool) {
		for c, k := range *s.clusters.Load() {
			if !yield(c, k.views.Load()) {
				return
			}
		}
	}
}

// NewWriter returns the writer of c from now on, and fences the one before it. What that one has written
// stays until the new one's MarkSynced, so that taking over leaves no gap. The writer of a cluster that
// was not added is fenced from the beginning.
func (s *Store) NewWriter(c Cluster) *ClusterWriter {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &ClusterWriter{store: s, name: c, cluster: s.cluster(c), written: map[Service]bool{}}
	if k.cluster != nil {
		k.cluster.writer = k
	}
	return k
}

// A ClusterWriter writes what one cluster publishes. Its owner may write the same again at any time,
// writes everything that changes, and calls MarkSynced when it has written everything once. It is fenced,
// and changes nothing any more, by the cluster's next NewWriter and by RemoveCluster. A Service is set
// and deleted by one goroutine at a time.
type ClusterWriter struct {
	store   *Store
	name    Cluster
	cluster *cluster // nil: it was not added

	written   map[Service]bool // guarded by Store.mu; nil once synced
	restoring bool             // what is held may exceed the limit until MarkSynced; guarded by Store.mu
}

// Set replaces the View of svc and returns what is stored: a View equal to the given one that
// shares all equal parts with the one before.
func (k *ClusterWriter) Set(svc Service, view *View) *View {
	before := k.View(svc) // outside the lock, like all that takes long: no other goroutine sets svc
	view = view.sharing(before)
	change := k.changeOf(before, view)
	later := k.holdLater(svc, view)
	k.do(func(*cluster) {
		if k.written != nil {
			k.written[svc] = true
		}
		k.replace(svc, view, change, later)
	})
	return view
}

// Delete removes the View of svc.
func (k *ClusterWriter) Delete(svc Service) {
	change := k.changeOf(k.View(svc), nil)
	k.do(func(*cluster) { k.replace(svc, nil, change, heldLater{}) })
}

// changeOf returns how much more a cluster has written by one View, nil for none, instead of another. Of the local one
// that is not counted.
func (k *ClusterWriter) changeOf(old, next *View) Size {
	if k.cluster == nil || k.cluster.isLocal || old == next {
		return Size{}
	}
	return next.change(old)
}

// Unwritten returns what MarkSynced will remove.
func (k *ClusterWriter) Unwritten() (services []Service) {
	k.do(func(*cluster) { services = k.unwritten() })
	return services
}

// MarkSynced reports that everything was written once since NewWriter: what was not is removed, and the
// cluster is known from now on.
func (k *ClusterWriter) MarkSynced() {
	k.do(func(linked *cluster) {
		if k.written == nil {
			return
		}
		first := !linked.synced
		linked.synced, linked.listing = true, false
		for _, svc := range k.unwritten() {
			k.replace(svc, nil, k.changeOf(k.View(svc), nil), heldLater{})
		}

		k.restoring = false
		k.written = nil
		if first {
			linked.state.CompareAndSwap(Connecting, Live)
			k.store.refresh(k.name)
		}
	})
}

// do runs f under the lock unless the writer is fenced.
func (k *ClusterWriter) do(f func(*cluster)) {
	k.store.mu.Lock()
	defer k.store.unlock()
	if k.cluster != nil && k.cluster.writer == k {
		f(k.cluster)
		if !k.restoring {
			k.store.boundHolds(k.name, k.cluster)
		}
	}
}

// View returns what was written of svc last, by any writer of the cluster; nil for nothing.
func (k *ClusterWriter) View(svc Service) *View {
	if k.cluster == nil {
		return nil
	}
	return k.cluster.views.Load().Get(svc)
}

// unwritten and all below need Store.mu.
func (k *ClusterWriter) unwritten() (services []Service) {
	if k.written == nil {
		return nil
	}
	for svc := range k.cluster.views.Load().All() {
		if !k.written[svc] {
			services = append(services, svc)
		}
	}
	return services
}

// replace stores a View, by which the cluster has changed so much. A nil View removes the one that there is.
func (k *ClusterWriter) replace(svc Service, view *View, change Size, later heldLater) {
	views := k.cluster.views.Load()
	before := views.Get(svc)
	if view == before {
		return
	}

	k.cluster.views.Store(views.With(svc, view))
	k.cluster.written = k.cluster.written.plus(change, 1)
	k.writeHeld(svc, view, later)
	if k.cluster.synced {
		k.store.differences.add(Ref{k.name, svc}, before, view)
	}
	k.store.recompose(Ref{k.name, svc})
	k.store.refreshMembers(k.name, svc)
}

// unlock publishes the drafts, releases the lock, and wakes those who wait on what was before.
func (s *Store) unlock() {
	superseded := s.publish()
	s.mu.Unlock()
	for _, waiting := range superseded {
		waiting.Wake()
	}
}

// publish publishes the drafts and returns what this operation has superseded.
func (s *Store) publish() []watch.Superseded {
	superseded := s.superseded
	for _, h := range s.drafts {
		s.version++
		h.draft.Version = s.version
		superseded = append(superseded, h.snapshot.Swap(h.draft))
		before, _ := h.declaration.Load()
		if next := h.draft.declaration(before); next != before {
			superseded = append(superseded, h.declaration.Swap(next))
		}
		h.draft = nil
	}

	s.drafts, s.superseded = nil, nil
	return superseded
}

// refresh looks again at c's part in all that is watched.
func (s *Store) refresh(c Cluster) {
	for svc := range s.uses[c] {
		s.refreshMembers(c, svc)
	}
}

// refreshMembers looks again at a Service of c in all that is watched.
func (s *Store) refreshMembers(c Cluster, svc Service) {
	for _, u := range s.uses[c][svc] {
		s.exchange(u)
	}
}

// exchange looks again at one member of what is watched, and at the others if what is held of them may depend on it.
func (s *Store) exchange(u use) {
	if s.exchangeOne(u) && s.holds > 0 {
		for i := range u.head.newest().Members {
			s.exchangeOne(use{u.head, i})
		}
	}
}

func (s *Store) exchangeOne(use use) (changed bool) {
	newest := use.head.newest()
	old := newest.Members[use.i]
	m := s.member(use.head.ref, old.Origin.MemberRef, old)
	if m == old {
		return false
	}

	if use.head.draft == nil {
		next := *newest
		next.Members = slices.Clone(next.Members)
		s.draft(use.head, &next)
	}
	use.head.draft.Members[use.i] = m
	return true
}

// recompose looks again at the home cluster's View of ref, if it is watched, and at all its members.
func (s *Store) recompose(ref Ref) {
	h, watched := s.heads[ref]
	if !watched {
		return
	}
	old := h.newest()
	next := s.resolve(ref, old)
	if next.equal(old) {
		return
	}
	s.index(h, old, next)
	s.draft(h, next)
}

// newest returns the Snapshot that is published next, or else the one that is.
func (h *head) newest() *Snapshot {
	if h.draft != nil {
		return h.draft
	}
	newest, _ := h.snapshot.Load()
	return newest
}

func (s *Store) draft(h *head, next *Snapshot) {
	if h.draft == nil {
		s.drafts = append(s.drafts, h)
	}
	h.draft = next
}

// index keeps uses true when a head goes from the members of one Snapshot to those of another; nil for none.
func (s *Store) index(head *head, old, next *Snapshot) {
	if old != nil && next != nil && slices.EqualFunc(old.Members, next.Members, (*Member).sameRef) {
		return
	}

	if old != nil {
		for i, m := range old.Members {
			services, svc := s.uses[m.Origin.Cluster], m.Origin.Service
			at := slices.Index(services[svc], use{head, i})
			if services[svc] = slices.Delete(services[svc], at, at+1); len(services[svc]) > 0 {
				continue
			}
			delete(services, svc)
			if len(services) == 0 {
				delete(s.uses, m.Origin.Cluster)
			}
		}
	}

	if next != nil {
		for i, m := range next.Members {
			services := s.uses[m.Origin.Cluster]
			if services == nil {
				services = map[Service][]use{}
				s.uses[m.Origin.Cluster] = services
			}
			services[m.Origin.Service] = append(services[m.Origin.Service], use{head, i})
		}
	}
}

// resolve builds the Snapshot of ref from the Views. It copies pointers, one a member, and keeps the
// equal members of old.
func (s *Store) resolve(ref Ref, old *Snapshot) *Snapshot {
	snapshot := &Snapshot{Ref: ref, View: s.View(ref)}
	terms := []MemberRef{{Ref: ref, Filtered: true}}
	if snapshot.View != nil && snapshot.View.Composition != nil {
		terms = snapshot.View.Composition.Members
	}
	before := cursor[MemberRef, *Member]{key: (*Member).memberRef}
	if old != nil {
		before.list = old.Members
	}

	snapshot.Members = make([]*Member, len(terms))
	for i, term := range terms {
		var same *Member
		if at := before.find(term); at >= 0 {
			same = before.list[at]
		}
		snapshot.Members[i] = s.member(ref, term, same)
	}
	return snapshot
}

// member returns a member of home, and old if that is equal. An equal Origin of old's is kept in any case.
func (s *Store) member(home Ref, term MemberRef, old *Member) *Member {
	member := Member{Known: s.listed}
	origin := Origin{MemberRef: term, Home: term.Cluster == home.Cluster}
	if c := s.cluster(term.Cluster); c != nil {
		member.View = c.views.Load().Get(term.Service)
		if h := c.holdFor(s, home, term); h != nil {
			member.View, member.Held, member.Written = h.view, h.lacks, member.View
		}
		member.Linked, member.Known, member.Since = true, c.synced || member.View != nil, c.expectation.Since
		member.Stale, member.Listing = c.state.Load() == Stale, c.listing
		member.Policy, member.Near = c.policy, c.isNear(s.cluster(home.Cluster))
		origin.TrustDomain = c.expectation.TrustDomain
	}

	if old != nil && *old.Origin == origin {
		member.Origin = old.Origin
	} else {
		member.Origin = new(origin)
	}
	if old != nil && *old == member {
		return old
	}
	return new(member)
}

// isNear reports whether c is known to be in the region of another cluster, nil for none.
func (c *cluster) isNear(o *cluster) bool {
	if o == nil || c.policy == nil || o.policy == nil {
		return false
	}
	return c.policy.Region != "" && c.policy.Region == o.policy.Region
}

// Watch opens a watch on a Service as its home cluster sees it. The Service need not exist. The caller
// closes the Watch.
func (s *Store) Watch(ref Ref) *Watch {
	s.mu.Lock()
	defer s.unlock()
	h, found := s.heads[ref]
	if !found {
		h = &head{ref: ref}
		s.heads[ref] = h
		first := s.resolve(ref, nil)
		s.index(h, nil, first)
		s.draft(h, first)
	}
	h.watchers++
	return &Watch{store: s, head: h}
}

// A Watch follows one Service. It is closed once, by its owner; any goroutine may load.
type Watch struct {
	store  *Store
	head   *head
	closed bool   // guarded by Store.mu
	remove func() // takes off the Bell; nil for none; of the owner
}

// Add rings b whenever there is a newer Snapshot, until Close. The owner calls either Add or
// AddToDeclaration, once at most.
func (w *Watch) Add(b *watch.Bell) { w.remove = w.head.snapshot.Add(b) }

// AddToDeclaration is Add for the Declaration.
func (w *Watch) AddToDeclaration(b *watch.Bell) { w.remove = w.head.declaration.Add(b) }

// Load returns the newest Snapshot and a channel that closes once there is a newer one; after Close it
// returns some earlier one.
func (w *Watch) Load() (*Snapshot, <-chan struct{}) { return w.head.snapshot.Load() }

// Declaration is Load for readers that need no more than the Declaration, nil for a Service that does not
// exist: they are not woken when only endpoints change, which is what changes nearly always.
func (w *Watch) Declaration() (*Declaration, <-chan struct{}) { return w.head.declaration.Load() }

// Ref returns which Service is watched.
func (w *Watch) Ref() Ref { return w.head.ref }

// Close ends the watch. A second Close does nothing.
func (w *Watch) Close() {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()

	if w.closed {
		return
	}
	w.closed = true
	if w.remove != nil {
		w.remove()
	}

	w.head.watchers--
	if w.head.watchers == 0 {
		newest, _ := w.head.snapshot.Load()
		w.store.index(w.head, newest, nil)
		delete(w.store.heads, w.head.ref)
	}
}

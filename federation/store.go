package federation

import (
	"net/netip"
	"sync"
	"time"

	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// A Store holds what every cluster says and republishes the Services that a change concerns. Writers are serialised and do
// work in proportion to what they change; readers never lock.
type Store struct {
	// What the local cluster says besides its Services: the zone of a node, who is at an IP, and ServiceProfiles by namespace and name.
	Nodes     watch.Table[string, string]
	Addresses watch.Table[netip.Addr, *Address]
	Profiles  watch.Table[Service, *profile.Profile]

	mu         sync.Mutex // serialises writers; guards all below
	version    uint64     // of the newest Snapshot
	listed     bool
	clusters   map[Cluster]*cluster
	dependants map[Ref]map[Ref]bool // member -> the composed Services that name it
	heads      map[Ref]*head        // what is watched
}

// cluster is what is known of an expected cluster; guarded by Store.mu.
type cluster struct {
	expectation Expectation
	standing    Standing
	complete    bool // it has been heard once
	voice       *Claims
	views       map[Service]*View
	nodes       *facts[string, string]
	addresses   *facts[netip.Addr, *Address]
	profiles    *facts[Service, *profile.Profile]
}

// head is a watched Service; watchers is guarded by Store.mu.
type head struct {
	watchers int
	snapshot watch.Value[*Snapshot]
}

// An Expectation is what is known of a cluster before it has said anything.
type Expectation struct {
	TrustDomain string    // of the identities of its workloads
	Since       time.Time // when the cluster was first expected
}

// NewStore returns an empty Store.
func NewStore() *Store {
	return &Store{clusters: map[Cluster]*cluster{}, dependants: map[Ref]map[Ref]bool{}, heads: map[Ref]*head{}}
}

// Listed declares that all clusters which are linked now have been expected: from here on a cluster that was never
// expected is known to contribute nothing.
func (s *Store) Listed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = true
	s.republish(func(Ref) bool { return true })
}

// Expect makes c a linked cluster. Until its first Complete it is unknown. A second Expect replaces the expectation only, and
// the first one's Since stays.
func (s *Store) Expect(c Cluster, e Expectation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, found := s.clusters[c]; found {
		e.Since = k.expectation.Since
		k.expectation = e
	} else {
		s.clusters[c] = &cluster{
			expectation: e, views: map[Service]*View{},
			nodes:     newFacts(&s.Nodes, func(a, b string) bool { return a == b }),
			addresses: newFacts(&s.Addresses, (*Address).equal),
			profiles:  newFacts(&s.Profiles, func(a, b *profile.Profile) bool { return a == b }),
		}
	}
	s.republishCluster(c)
}

// Stand says how far to trust c from now on.
func (s *Store) Stand(c Cluster, standing Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, found := s.clusters[c]; found {
		k.standing = standing
		s.republishCluster(c)
	}
}

// Forget withdraws everything c ever said, silences it, and expects it no more.
func (s *Store) Forget(c Cluster) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, found := s.clusters[c]
	if !found {
		return
	}
	for svc := range k.views {
		s.replace(Ref{c, svc}, k, nil)
	}
	k.nodes.forget()
	k.addresses.forget()
	k.profiles.forget()
	delete(s.clusters, c)
	s.republishCluster(c)
}

// Claim opens a handle through which c speaks from now on and silences the handle before it. What that one said stays until
// the new one's Complete, so that taking over leaves no gap. The handle of a cluster that is not expected is mute.
func (s *Store) Claim(c Cluster) *Claims {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &Claims{store: s, cluster: c, said: map[Service]bool{}}
	if known, found := s.clusters[c]; found {
		known.voice = k
		known.nodes.claim()
		known.addresses.claim()
		known.profiles.claim()
	}
	return k
}

// Claims is a cluster's voice. Its owner may say the same thing again at any time, says everything that changes, and calls
// Complete when it has said everything once. After the cluster's next Claim, or Forget, it changes nothing any more.
// A Service is set and deleted by one goroutine at a time.
type Claims struct {
	store   *Store
	cluster Cluster

	said map[Service]bool // guarded by Store.mu; nil once complete
}

// Set replaces what the cluster says about svc and returns what is stored: a View equal to v that shares all equal parts with
// the one before.
func (k *Claims) Set(svc Service, v *View) *View {
	for {
		old := k.view(svc)
		v := v.sharing(old) // outside the lock
		if k.exchange(svc, old, v) {
			return v
		}
	}
}

// Delete withdraws what the cluster says about svc.
func (k *Claims) Delete(svc Service) {
	k.do(func(c *cluster) { k.store.replace(Ref{k.cluster, svc}, c, nil) })
}

// Complete declares that everything has been said once since Claim: what was not repeated is withdrawn, and the cluster is
// known from now on.
func (k *Claims) Complete() {
	k.do(func(c *cluster) {
		if k.said == nil {
			return
		}
		for svc := range c.views {
			if !k.said[svc] {
				k.store.replace(Ref{k.cluster, svc}, c, nil)
			}
		}
		c.nodes.complete()
		c.addresses.complete()
		c.profiles.complete()
		k.said = nil
		c.complete = true
		k.store.republishCluster(k.cluster)
	})
}

// do runs f under the lock unless the handle is silenced.
func (k *Claims) do(f func(*cluster)) {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	if c, found := k.store.clusters[k.cluster]; found && c.voice == k {
		f(c)
	}
}

func (k *Claims) view(svc Service) *View {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	if c, found := k.store.clusters[k.cluster]; found {
		return c.views[svc]
	}
	return nil
}

// exchange replaces old by v and fails if something else is claimed by now.
func (k *Claims) exchange(svc Service, old, v *View) (done bool) {
	done = true // a silenced handle has nothing to do
	k.do(func(c *cluster) {
		if done = c.views[svc] == old; !done {
			return
		}
		if k.said != nil {
			k.said[svc] = true
		}
		k.store.replace(Ref{k.cluster, svc}, c, v)
	})
	return done
}

// replace and all below need s.mu. A nil View withdraws the claim.
func (s *Store) replace(ref Ref, c *cluster, v *View) {
	old := c.views[ref.Service]
	if v == old {
		return
	}
	if v == nil {
		delete(c.views, ref.Service)
	} else {
		c.views[ref.Service] = v
	}
	s.index(ref, old, v)
	s.publish(ref)
	for dependant := range s.dependants[ref] {
		s.publish(dependant)
	}
}

// index keeps dependants true when ref's View changes from old to v.
func (s *Store) index(ref Ref, old, v *View) {
	if old != nil && old.Composition != nil {
		for _, m := range old.Composition.Members {
			delete(s.dependants[m.Ref], ref)
			if len(s.dependants[m.Ref]) == 0 {
				delete(s.dependants, m.Ref)
			}
		}
	}
	if v != nil && v.Composition != nil {
		for _, m := range v.Composition.Members {
			if s.dependants[m.Ref] == nil {
				s.dependants[m.Ref] = map[Ref]bool{}
			}
			s.dependants[m.Ref][ref] = true
		}
	}
}

// republishCluster publishes every watched Service that names c.
func (s *Store) republishCluster(c Cluster) {
	s.republish(func(member Ref) bool { return member.Cluster == c })
}

func (s *Store) republish(concerns func(member Ref) bool) {
	for ref, h := range s.heads {
		snapshot, _ := h.snapshot.Load()
		for _, m := range snapshot.Members {
			if concerns(m.Origin.Ref) {
				s.publish(ref)
				break
			}
		}
	}
}

// publish makes the newest Snapshot of ref visible, if it is watched and has changed.
func (s *Store) publish(ref Ref) {
	h, watched := s.heads[ref]
	if !watched {
		return
	}
	old, _ := h.snapshot.Load()
	if next := s.resolve(ref, old); !next.equal(old) {
		s.version++
		next.Version = s.version
		h.snapshot.Store(next)
	}
}

// resolve builds the Snapshot of ref from the claims. It copies pointers, one a member, and keeps equal origins of old.
func (s *Store) resolve(ref Ref, old *Snapshot) *Snapshot {
	snapshot := &Snapshot{Ref: ref, View: s.claim(ref)}
	terms := []Term{{Ref: ref, Filtered: true}}
	if snapshot.View != nil && snapshot.View.Composition != nil {
		terms = snapshot.View.Composition.Members
	}
	snapshot.Members = make([]Member, len(terms))
	for i, term := range terms {
		m := Member{View: s.claim(term.Ref), Known: s.listed}
		origin := Origin{Term: term, Home: term.Cluster == ref.Cluster}
		if c, expected := s.clusters[term.Cluster]; expected {
			m.Linked, m.Since, m.Standing = true, c.expectation.Since, c.standing
			m.Known = c.complete || m.View != nil
			origin.Stale, origin.TrustDomain = c.standing == Stale, c.expectation.TrustDomain
		}
		if old != nil && i < len(old.Members) && *old.Members[i].Origin == origin {
			m.Origin = old.Members[i].Origin
		} else {
			m.Origin = &origin
		}
		snapshot.Members[i] = m
	}
	return snapshot
}

func (s *Store) claim(ref Ref) *View {
	if c, found := s.clusters[ref.Cluster]; found {
		return c.views[ref.Service]
	}
	return nil
}

// Watch opens a watch on a Service as its home cluster sees it. The Service need not exist. The caller closes the Watch.
func (s *Store) Watch(ref Ref) *Watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, found := s.heads[ref]
	if !found {
		h = &head{}
		first := s.resolve(ref, nil)
		s.version++
		first.Version = s.version
		h.snapshot.Store(first)
		s.heads[ref] = h
	}
	h.watchers++
	return &Watch{store: s, ref: ref, head: h}
}

// A Watch follows one Service. It belongs to one goroutine.
type Watch struct {
	store *Store
	ref   Ref
	head  *head
}

// Load returns the newest Snapshot and a channel that closes once there is a newer one.
func (w *Watch) Load() (*Snapshot, <-chan struct{}) { return w.head.snapshot.Load() }

// Close ends the watch. A second Close does nothing.
func (w *Watch) Close() {
	if w.head == nil {
		return
	}
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.head.watchers--; w.head.watchers == 0 {
		delete(w.store.heads, w.ref)
	}
	w.head = nil
}

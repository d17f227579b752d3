package federation

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// An Address is what the local cluster knows of an IP. It is immutable. An IP of which nothing is known
// has none.
type Address struct {
	Services  []Service  // whose cluster IP it is; sorted. More than one is a conflict
	Residents []Resident // sorted
}

// A Resident is a workload that answers at an IP.
type Resident struct {
	*Workload
	Port    uint16 // the one that leads to the workload, as a node's may; 0: the IP is the workload's own
	Running bool   // otherwise it is not known yet what runs there
}

func (a *Address) equal(o *Address) bool {
	return a == o || slices.Equal(a.Services, o.Services) &&
		slices.EqualFunc(a.Residents, o.Residents, func(r, s Resident) bool {
			return r.Port == s.Port && r.Running == s.Running && *r.Workload == *s.Workload
		})
}

// factTable is the facts of one kind. Its Table is read without Store.mu, which guards the rest.
type factTable[K, V comparable] struct {
	table     watch.Table[K, V]
	unwritten map[K]struct{} // what the newest writer has not written yet; nil once it is synced
}

func (f *factTable[K, V]) write(s *Store, k K, v V) {
	delete(f.unwritten, k)
	if old, known := f.table.Get(k); !known || old != v {
		s.noteFact(f.table.Swap(k, v))
	}
}

func (f *factTable[K, V]) delete(s *Store, k K) {
	delete(f.unwritten, k)
	if _, known := f.table.Get(k); known {
		s.noteFact(f.table.Remove(k))
	}
}

// expectAll begins a new writer, which has written nothing.
func (f *factTable[K, V]) expectAll() {
	f.unwritten = map[K]struct{}{}
	for k := range f.table.All() {
		f.unwritten[k] = struct{}{}
	}
}

// keepUnwritten makes what is not written yet count as written, and returns the keys, in no order.
func (f *factTable[K, V]) keepUnwritten() []K {
	kept := slices.Collect(maps.Keys(f.unwritten))
	clear(f.unwritten)
	return kept
}

func (f *factTable[K, V]) deleteUnwritten(s *Store) {
	for k := range f.unwritten {
		f.delete(s, k)
	}
	f.unwritten = nil
}

// noteFact counts a fact that has changed, and has those woken who wait for it. A reader that sees
// the new number sees the new fact. It needs s.mu.
func (s *Store) noteFact(old watch.Superseded) {
	s.factChanges.Add(1)
	s.superseded = append(s.superseded, old)
}

// expectFacts follows NewWriter of the local cluster, and deleteUnwrittenFacts its MarkSynced. Both need s.mu.
func (s *Store) expectFacts() {
	s.nodes.expectAll()
	s.addresses.expectAll()
	s.profiles.expectAll()
}

func (s *Store) deleteUnwrittenFacts() {
	s.nodes.deleteUnwritten(s)
	s.addresses.deleteUnwritten(s)
	s.profiles.deleteUnwritten(s)
}

// Nodes returns the nodes of the local cluster, by name.
func (s *Store) Nodes() watch.Reader[string, Node] { return &s.nodes.table }

// Addresses returns what is at an IP of the local cluster.
func (s *Store) Addresses() watch.Reader[netip.Addr, *Address] { return &s.addresses.table }

// Profiles returns the ServiceProfiles of the local cluster, by namespace and name.
func (s *Store) Profiles() watch.Reader[Service, *profile.Profile] { return &s.profiles.table }

// writeFacts runs f under the lock. Only the local cluster has facts.
func (k *ClusterWriter) writeFacts(f func(*Store)) {
	k.do(func(c *cluster) {
		if c.hasFacts {
			f(k.store)
		}
	})
}

// SetNode sets the zone of a node. Only the local cluster has nodes, and all that follows; the writer of
// another one changes nothing by it.
func (k *ClusterWriter) SetNode(name, zone string) {
	k.writeFacts(func(s *Store) { s.nodes.write(s, name, zone) })
}

// KeepNodes keeps the nodes that are not written yet, and returns their names. It is called when nodes cannot be
// listed, so that it is not known whether these still exist.
func (k *ClusterWriter) KeepNodes() (names []string) {
	k.writeFacts(func(s *Store) { names = s.nodes.keepUnwritten() })
	return names
}

// DeleteNode removes a node.
func (k *ClusterWriter) DeleteNode(name string) {
	k.writeFacts(func(s *Store) { s.nodes.delete(s, name) })
}

// SetAddress sets what is at an IP.
func (k *ClusterWriter) SetAddress(ip netip.Addr, a *Address) {
	k.writeFacts(func(s *Store) {
		stored := a
		if old, _ := s.addresses.table.Get(ip); old != nil && old.equal(a) {
			stored = old
		}
		s.addresses.write(s, ip, stored)
	})
}

// Address returns what k has set at an IP; nil for nothing.
func (k *ClusterWriter) Address(ip netip.Addr) (a *Address) {
	k.writeFacts(func(s *Store) {
		if _, unwritten := s.addresses.unwritten[ip]; !unwritten {
			a, _ = s.addresses.table.Get(ip)
		}
	})
	return a
}

// DeleteAddress removes an IP.
func (k *ClusterWriter) DeleteAddress(ip netip.Addr) {
	k.writeFacts(func(s *Store) { s.addresses.delete(s, ip) })
}

// SetProfile sets a ServiceProfile. One with another pointer is another one.
func (k *ClusterWriter) SetProfile(name Service, p *profile.Profile) {
	k.writeFacts(func(s *Store) { s.profiles.write(s, name, p) })
}

// KeepProfile reports that a ServiceProfile is there that cannot be read: the one that was set before, if
// any, stays.
func (k *ClusterWriter) KeepProfile(name Service) {
	k.writeFacts(func(s *Store) { delete(s.profiles.unwritten, name) })
}

// KeepProfiles is KeepNodes for ServiceProfiles.
func (k *ClusterWriter) KeepProfiles() (names []Service) {
	k.writeFacts(func(s *Store) { names = s.profiles.keepUnwritten() })
	return names
}

// DeleteProfile removes a ServiceProfile.
func (k *ClusterWriter) DeleteProfile(name Service) {
	k.writeFacts(func(s *Store) { s.profiles.delete(s, name) })
}

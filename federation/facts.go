package federation

import (
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

// facts is what the local cluster publishes besides its Services; guarded by Store.mu.
type facts struct {
	nodes     *kind[string, string]
	addresses *kind[netip.Addr, *Address]
	profiles  *kind[Service, *profile.Profile]
}

// newFacts needs s.mu. It returns nil while another cluster is the local one.
func (s *Store) newFacts() *facts {
	for _, c := range *s.clusters.Load() {
		if c.facts != nil {
			return nil
		}
	}
	return &facts{
		newKind(s, &s.nodes, func(a, b string) bool { return a == b }),
		newKind(s, &s.addresses, (*Address).equal),
		newKind(s, &s.profiles, func(a, b *profile.Profile) bool { return a == b }),
	}
}

// begin, prune and clear follow NewWriter, MarkSynced and RemoveCluster of the cluster.
func (f *facts) begin() { f.nodes.begin(); f.addresses.begin(); f.profiles.begin() }
func (f *facts) prune() { f.nodes.prune(); f.addresses.prune(); f.profiles.prune() }
func (f *facts) clear() { f.begin(); f.prune() }

// kind is the facts of one kind, in the Table that shows it. Nothing else is in the Table.
type kind[K comparable, V any] struct {
	store     *Store
	table     *watch.Table[K, V]
	equal     func(a, b V) bool
	unwritten map[K]struct{} // what the newest writer has not written yet; nil once it is synced
}

func newKind[K comparable, V any](s *Store, table *watch.Table[K, V], equal func(a, b V) bool) *kind[K, V] {
	return &kind[K, V]{store: s, table: table, equal: equal}
}

func (f *kind[K, V]) set(k K, v V) {
	delete(f.unwritten, k)
	if old, known := f.table.Get(k); !known || !f.equal(old, v) {
		f.store.factChanges.Add(1)
		f.store.superseded = append(f.store.superseded, f.table.Swap(k, v))
	}
}

// written returns the value of k, unless the newest writer has not written it; the zero value for none.
func (f *kind[K, V]) written(k K) (v V) {
	if _, is := f.unwritten[k]; !is {
		v, _ = f.table.Get(k)
	}
	return v
}

// keep writes the value of k again, if it has one.
func (f *kind[K, V]) keep(k K) { delete(f.unwritten, k) }

func (f *kind[K, V]) delete(k K) {
	delete(f.unwritten, k)
	if _, known := f.table.Get(k); known {
		f.store.factChanges.Add(1)
		f.store.superseded = append(f.store.superseded, f.table.Remove(k))
	}
}

// begin begins a new writer.
func (f *kind[K, V]) begin() {
	f.unwritten = map[K]struct{}{}
	for k := range f.table.All() {
		f.unwritten[k] = struct{}{}
	}
}

// prune removes everything that the newest writer has not written.
func (f *kind[K, V]) prune() {
	for k := range f.unwritten {
		f.delete(k)
	}
	f.unwritten = nil
}

// Nodes returns the zone of each node of the local cluster.
func (s *Store) Nodes() watch.Reader[string, string] { return &s.nodes }

// Addresses returns what is at an IP of the local cluster.
func (s *Store) Addresses() watch.Reader[netip.Addr, *Address] { return &s.addresses }

// Profiles returns the ServiceProfiles of the local cluster, by namespace and name.
func (s *Store) Profiles() watch.Reader[Service, *profile.Profile] { return &s.profiles }

// updateFacts runs f on the facts. Only the local cluster has some.
func (k *ClusterWriter) updateFacts(f func(*facts)) {
	k.do(func(c *cluster) {
		if c.facts != nil {
			f(c.facts)
		}
	})
}

// SetNode sets the zone of a node. Only the local cluster has nodes, and all that follows; the writer of
// another one changes nothing by it.
func (k *ClusterWriter) SetNode(name, zone string) {
	k.updateFacts(func(f *facts) { f.nodes.set(name, zone) })
}

// DeleteNode removes a node.
func (k *ClusterWriter) DeleteNode(name string) {
	k.updateFacts(func(f *facts) { f.nodes.delete(name) })
}

// SetAddress sets what is at an IP.
func (k *ClusterWriter) SetAddress(ip netip.Addr, a *Address) {
	k.updateFacts(func(f *facts) { f.addresses.set(ip, a) })
}

// Address returns what k has set at an IP; nil for nothing.
func (k *ClusterWriter) Address(ip netip.Addr) (a *Address) {
	k.updateFacts(func(f *facts) { a = f.addresses.written(ip) })
	return a
}

// DeleteAddress removes an IP.
func (k *ClusterWriter) DeleteAddress(ip netip.Addr) {
	k.updateFacts(func(f *facts) { f.addresses.delete(ip) })
}

// SetProfile sets a ServiceProfile. One with another pointer is another one.
func (k *ClusterWriter) SetProfile(name Service, p *profile.Profile) {
	k.updateFacts(func(f *facts) { f.profiles.set(name, p) })
}

// KeepProfile reports that a ServiceProfile is there that cannot be read: the one that was set before, if
// any, stays.
func (k *ClusterWriter) KeepProfile(name Service) {
	k.updateFacts(func(f *facts) { f.profiles.keep(name) })
}

// DeleteProfile removes a ServiceProfile.
func (k *ClusterWriter) DeleteProfile(name Service) {
	k.updateFacts(func(f *facts) { f.profiles.delete(name) })
}

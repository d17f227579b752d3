package federation

import (
	"net/netip"
	"slices"

	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// An Address is what the local cluster knows of an IP. It is immutable. An IP of which nothing is known has none.
type Address struct {
	Services  []Service  // whose cluster IP it is; sorted. More than one is a conflict
	Residents []Resident // sorted
}

// A Resident is a workload that answers at an IP.
type Resident struct {
	*Workload
	Port    uint16 // the one that leads to the workload, as a node's may; 0: the IP is the workload's own
	Running bool   // otherwise it is not known yet who it is
}

func (a *Address) equal(o *Address) bool {
	return a == o || slices.Equal(a.Services, o.Services) && slices.EqualFunc(a.Residents, o.Residents, func(r, s Resident) bool {
		return r.Port == s.Port && r.Running == s.Running && *r.Workload == *s.Workload
	})
}

// facts is what the local cluster says besides its Services; guarded by Store.mu.
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

// claim, complete and forget are what they are for the cluster.
func (f *facts) claim()    { f.nodes.now++; f.addresses.now++; f.profiles.now++ }
func (f *facts) complete() { f.nodes.prune(true); f.addresses.prune(true); f.profiles.prune(true) }
func (f *facts) forget()   { f.nodes.prune(false); f.addresses.prune(false); f.profiles.prune(false) }

// kind is the facts of one kind, in the Table that shows it.
type kind[K comparable, V any] struct {
	store *Store
	table *watch.Table[K, V]
	equal func(a, b V) bool
	said  map[K]int // in which generation it was said last
	now   int       // the generation of the cluster's voice
}

func newKind[K comparable, V any](s *Store, table *watch.Table[K, V], equal func(a, b V) bool) *kind[K, V] {
	return &kind[K, V]{store: s, table: table, equal: equal, said: map[K]int{}}
}

func (f *kind[K, V]) set(k K, v V) {
	_, known := f.said[k]
	f.said[k] = f.now
	if old, _ := f.table.Get(k); !known || !f.equal(old, v) {
		f.store.superseded = append(f.store.superseded, f.table.Swap(k, v))
	}
}

// keep says again whatever was said of k.
func (f *kind[K, V]) keep(k K) {
	if _, known := f.said[k]; known {
		f.said[k] = f.now
	}
}

func (f *kind[K, V]) delete(k K) {
	if _, known := f.said[k]; known {
		delete(f.said, k)
		f.store.superseded = append(f.store.superseded, f.table.Remove(k))
	}
}

// prune withdraws everything but what this generation has said, or that too.
func (f *kind[K, V]) prune(but bool) {
	for k, when := range f.said {
		if !but || when != f.now {
			f.delete(k)
		}
	}
}

// Nodes returns the zone of each node of the local cluster.
func (s *Store) Nodes() watch.Reader[string, string] { return &s.nodes }

// Addresses returns who is at an IP of the local cluster.
func (s *Store) Addresses() watch.Reader[netip.Addr, *Address] { return &s.addresses }

// Profiles returns the ServiceProfiles of the local cluster, by namespace and name.
func (s *Store) Profiles() watch.Reader[Service, *profile.Profile] { return &s.profiles }

// state runs f on the facts. The handle of any other cluster than the local one states none.
func (k *Claims) state(f func(*facts)) {
	k.do(func(c *cluster) {
		if c.facts != nil {
			f(c.facts)
		}
	})
}

// SetNode says in which zone a node is. Only the local cluster speaks of nodes, and of all that follows; of another it changes nothing.
func (k *Claims) SetNode(name, zone string) { k.state(func(f *facts) { f.nodes.set(name, zone) }) }

// DeleteNode withdraws a node.
func (k *Claims) DeleteNode(name string) { k.state(func(f *facts) { f.nodes.delete(name) }) }

// SetAddress says who is at an IP.
func (k *Claims) SetAddress(ip netip.Addr, a *Address) {
	k.state(func(f *facts) { f.addresses.set(ip, a) })
}

// DeleteAddress says that nobody is.
func (k *Claims) DeleteAddress(ip netip.Addr) { k.state(func(f *facts) { f.addresses.delete(ip) }) }

// SetProfile says what a ServiceProfile is. It is told apart from another one by its pointer.
func (k *Claims) SetProfile(name Service, p *profile.Profile) {
	k.state(func(f *facts) { f.profiles.set(name, p) })
}

// KeepProfile says that a ServiceProfile is there that cannot be read: what was said of it before, if anything, stays.
func (k *Claims) KeepProfile(name Service) { k.state(func(f *facts) { f.profiles.keep(name) }) }

// DeleteProfile withdraws a ServiceProfile.
func (k *Claims) DeleteProfile(name Service) { k.state(func(f *facts) { f.profiles.delete(name) }) }

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

// facts is what one cluster says about one kind of thing, in the Table that shows it; guarded by Store.mu.
type facts[K comparable, V any] struct {
	table *watch.Table[K, V]
	equal func(a, b V) bool
	said  map[K]int // in which generation it was said last
	now   int       // the generation of the cluster's voice
}

func newFacts[K comparable, V any](table *watch.Table[K, V], equal func(a, b V) bool) *facts[K, V] {
	return &facts[K, V]{table: table, equal: equal, said: map[K]int{}}
}

func (f *facts[K, V]) set(k K, v V) {
	_, known := f.said[k]
	f.said[k] = f.now
	if old, _ := f.table.Get(k); !known || !f.equal(old, v) {
		f.table.Set(k, v)
	}
}

// keep says again whatever was said of k.
func (f *facts[K, V]) keep(k K) {
	if _, known := f.said[k]; known {
		f.said[k] = f.now
	}
}

func (f *facts[K, V]) delete(k K) {
	if _, known := f.said[k]; known {
		delete(f.said, k)
		f.table.Delete(k)
	}
}

// claim, complete and forget are what they are for the cluster.
func (f *facts[K, V]) claim() { f.now++ }

func (f *facts[K, V]) complete() {
	for k, when := range f.said {
		if when != f.now {
			f.delete(k)
		}
	}
}

func (f *facts[K, V]) forget() {
	for k := range f.said {
		f.delete(k)
	}
}

// SetNode says in which zone a node is. Only the local cluster speaks of nodes, and of all that follows.
func (k *Claims) SetNode(name, zone string) { k.do(func(c *cluster) { c.nodes.set(name, zone) }) }

// DeleteNode withdraws a node.
func (k *Claims) DeleteNode(name string) { k.do(func(c *cluster) { c.nodes.delete(name) }) }

// SetAddress says who is at an IP.
func (k *Claims) SetAddress(ip netip.Addr, a *Address) {
	k.do(func(c *cluster) { c.addresses.set(ip, a) })
}

// DeleteAddress says that nobody is.
func (k *Claims) DeleteAddress(ip netip.Addr) { k.do(func(c *cluster) { c.addresses.delete(ip) }) }

// SetProfile says what a ServiceProfile is. It is told apart from another one by its pointer.
func (k *Claims) SetProfile(name Service, p *profile.Profile) {
	k.do(func(c *cluster) { c.profiles.set(name, p) })
}

// KeepProfile says that a ServiceProfile is there that cannot be read: what was said of it before, if anything, stays.
func (k *Claims) KeepProfile(name Service) { k.do(func(c *cluster) { c.profiles.keep(name) }) }

// DeleteProfile withdraws a ServiceProfile.
func (k *Claims) DeleteProfile(name Service) { k.do(func(c *cluster) { c.profiles.delete(name) }) }

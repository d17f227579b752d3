package federation

import (
	"net/netip"
	"slices"

	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/profile"
)

// Facts are what clusters write besides Views: the Tables of a Store, of which all know which clusters are linked.
type Facts struct {
	// Of the local cluster only: its clients stand on nodes, and look up IPs.
	Nodes     *facts.Table[string, Node]              // by name
	Addresses *facts.Table[netip.Addr, *Address]      // by IP
	Profiles  *facts.Table[Service, *profile.Profile] // ServiceProfiles by namespace and name; each pointer is another

	// Of each cluster: what endpoints take from them.
	Externals *facts.Table[Service, External]     // ExternalWorkloads by namespace and name
	Servers   *facts.Table[Service, OpaqueServer] // those that make a port opaque, by namespace and name

	all []facts.Any
}

func newFacts() (f Facts) {
	f.Nodes = addTable(&f, "nodes", facts.Options[string, Node]{
		Arrange: func() facts.Arranger[string, Node] { return &ranking{} },
	})
	f.Addresses = addTable(&f, "addresses", facts.Options[netip.Addr, *Address]{Equal: (*Address).equal})
	f.Profiles = addTable(&f, "profiles", facts.Options[Service, *profile.Profile]{})
	f.Externals = addTable(&f, "externals", facts.Options[Service, External]{Equal: External.equal})
	f.Servers = addTable(&f, "servers", facts.Options[Service, OpaqueServer]{})
	return f
}

func addTable[K, V comparable](f *Facts, name string, options facts.Options[K, V]) *facts.Table[K, V] {
	t := facts.NewTable(name, options)
	f.all = append(f.all, t)
	return t
}

// AddTable has one more Table know which clusters are linked and, unless it is derived, be a part of what is published.
// It is called before the first cluster is added.
func (s *Store) AddTable(t facts.Any) { s.all = append(s.all, t) }

// Facts returns the Tables of the Store that k writes Views of.
func (k *ClusterWriter) Facts() *Facts { return &k.store.Facts }

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

// External is what endpoints that name an ExternalWorkload take from it.
type External struct {
	*Workload
	Node Name
}

func (e External) equal(o External) bool {
	return e.Node == o.Node && (e.Workload == o.Workload || *e.Workload == *o.Workload)
}

// An OpaqueServer is a Server that makes a port opaque at the workloads that it selects.
type OpaqueServer struct {
	Pods, Externals Selector
	Port            uint16
	PortName        string // if it has no number
}

// A Selector selects workloads by their labels, in the form that Kubernetes prints and parses.
type Selector struct {
	Text  string // empty: all
	Given bool   // otherwise it selects none
}

package debug

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/links"
)

// clustersPage is /debug/clusters.
type ClustersPage struct {
	Clusters []Cluster          `json:"clusters"`
	Links    []links.LinkStatus `json:"links"`
}

// A Cluster is the Status of a cluster with its errors as text, and the health of each kind.
type Cluster struct {
	cluster.Status
	Contact     string               `json:"contact,omitempty"`     // why it is out of contact
	Credentials string               `json:"credentials,omitempty"` // why the newest credentials are not in use
	Kinds       []cluster.KindStatus `json:"kinds,omitempty"`
}

// Objects returns how many objects of a resource the cluster has.
func (c Cluster) Objects(resource string) int {
	for _, k := range c.Kinds {
		if k.Kind == resource {
			return k.Objects
		}
	}
	return 0
}

func clusterPages(registry *cluster.Registry) []Cluster {
	statuses, _ := registry.Statuses()
	pages := []Cluster{}
	for _, name := range slices.Sorted(maps.Keys(statuses)) {
		page := Cluster{Status: statuses[name]}
		page.Contact, page.Credentials = errorText(page.Status.Contact), errorText(page.Status.Credentials)
		page.Kinds, page.LastContact = registry.Inspect(name)
		pages = append(pages, page)
	}
	return pages
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// servicePage is /debug/services: one Service as it is known now, member by member.
type servicePage struct {
	Namespace string                   `json:"namespace"`
	Name      string                   `json:"name"`
	Version   uint64                   `json:"version"`
	Exists    bool                     `json:"exists"`
	Malformed string                   `json:"malformed,omitempty"`
	Ports     []federation.ServicePort `json:"ports,omitempty"`
	Federated bool                     `json:"federated,omitempty"`
	Members   []memberPage             `json:"members"`
}

type memberPage struct {
	Cluster     string                   `json:"cluster"`
	Service     string                   `json:"service"`
	Linked      bool                     `json:"linked"`
	Known       bool                     `json:"known"` // the cluster has been heard
	Standing    string                   `json:"standing"`
	Filtered    bool                     `json:"filtered"` // zone hints and internalTrafficPolicy count
	TrustDomain string                   `json:"trustDomain"`
	Exists      bool                     `json:"exists"`
	LocalOnly   bool                     `json:"localOnly,omitempty"`
	Ports       []federation.ServicePort `json:"ports,omitempty"`
	Slices      []slicePage              `json:"slices,omitempty"`
}

type slicePage struct {
	Name      string            `json:"name"`
	Ports     []federation.Port `json:"ports"`
	Endpoints []endpointPage    `json:"endpoints"`
}

type endpointPage struct {
	Addr     netip.Addr         `json:"addr"`
	Ready    bool               `json:"ready"`
	Pod      string             `json:"pod,omitempty"`
	Hostname string             `json:"hostname,omitempty"`
	Node     string             `json:"node,omitempty"`
	Zone     string             `json:"zone,omitempty"`
	Hints    []string           `json:"hints,omitempty"`
	Mirror   *federation.Mirror `json:"mirror,omitempty"`
}

func servicePageOf(s *federation.Snapshot, standing func(federation.Cluster) federation.Standing) servicePage {
	page := servicePage{Namespace: s.Namespace, Name: s.Name, Version: s.Version, Exists: s.Exists(), Members: []memberPage{}}
	if v := s.View; v != nil {
		page.Malformed, page.Ports = v.Malformed, v.Ports
		page.Federated = v.Composition != nil && v.Composition.Union
	}
	for _, m := range s.Members {
		p := memberPage{
			Cluster: string(m.Origin.Cluster), Service: m.Origin.Namespace + "/" + m.Origin.Name, Linked: m.Linked, Known: m.Known,
			Standing: standing(m.Origin.Cluster).String(), Filtered: m.Origin.Filtered, TrustDomain: m.Origin.TrustDomain, Exists: m.View != nil,
		}
		if m.View != nil {
			p.LocalOnly, p.Ports = m.View.LocalOnly, m.View.Ports
			for _, slice := range m.View.Slices {
				p.Slices = append(p.Slices, slicePageOf(slice))
			}
		}
		page.Members = append(page.Members, p)
	}
	return page
}

// digestsPage is /debug/digests: cluster, Service as namespace/name, and a number for all that the cluster says about it.
type DigestsPage map[string]map[string]string

func digestsPageOf(store *federation.Store) DigestsPage {
	page := DigestsPage{}
	for name, views := range store.All() {
		of := make(map[string]string, views.Len())
		for svc, v := range views.All() {
			of[svc.Namespace+"/"+svc.Name] = fmt.Sprintf("%016x", v.Digest())
		}
		page[string(name)] = of
	}
	return page
}

// malformedPage is /debug/malformed: Services of this cluster, as namespace/name, and why clients cannot be served.
type MalformedPage map[string]string

func malformedPageOf(store *federation.Store, local string) MalformedPage {
	page := MalformedPage{}
	for svc, v := range store.Views(federation.Cluster(local)).All() {
		if v.Malformed != "" {
			page[svc.Namespace+"/"+svc.Name] = v.Malformed
		}
	}
	return page
}

// claimsPage is /debug/claims: what one cluster says about one Service.
type ViewPage struct {
	Ports     []federation.ServicePort `json:"ports,omitempty"`
	LocalOnly bool                     `json:"localOnly,omitempty"`
	Malformed string                   `json:"malformed,omitempty"`
	Members   []string                 `json:"members,omitempty"` // of a Service that consists of others: namespace/name@cluster
	Slices    []slicePage              `json:"slices"`
}

func viewPageOf(v *federation.View) ViewPage {
	page := ViewPage{Ports: v.Ports, LocalOnly: v.LocalOnly, Malformed: v.Malformed, Slices: []slicePage{}}
	if v.Composition != nil {
		for _, m := range v.Composition.Members {
			page.Members = append(page.Members, fmt.Sprintf("%s/%s@%s", m.Namespace, m.Name, m.Cluster))
		}
	}
	for _, s := range v.Slices {
		page.Slices = append(page.Slices, slicePageOf(s))
	}
	return page
}

func slicePageOf(s *federation.Slice) slicePage {
	page := slicePage{Name: s.Name, Ports: s.Ports, Endpoints: []endpointPage{}}
	for _, e := range s.Endpoints {
		p := endpointPage{Addr: e.Addr, Ready: e.Ready, Hostname: e.Hostname, Node: e.Node, Zone: e.Zone, Hints: e.Hints, Mirror: e.Mirror}
		if e.Workload != nil {
			p.Pod = cmp.Or(e.Workload.Namespace, "default") + "/" + e.Workload.Name
		}
		page.Endpoints = append(page.Endpoints, p)
	}
	return page
}

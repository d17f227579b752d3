package debug

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/changes"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/internal/words"
	"github.com/fingerpost/fingerpost/links"
	"github.com/fingerpost/fingerpost/serving"
)

// ClustersPage is /debug/clusters.
type ClustersPage struct {
	Clusters []ClusterEntry     `json:"clusters"`
	Links    []links.LinkStatus `json:"links"`

	// Problems are those of all clusters and Links, and of this process, the worst first. It is nil from versions that
	// do not have the list.
	Problems []problem.Problem `json:"problems"`

	LinksRefused string `json:"linksRefused,omitempty"` // why Links cannot be listed, such as NotFound without a CRD

	ReadOnly bool `json:"readOnly,omitempty"` // this replica writes into no cluster
	Policy   bool `json:"policy,omitempty"`   // this replica serves policy

	NotSaved cluster.NotSaved `json:"notSaved,omitzero"` // what this replica cannot save in -state-dir

	PeersRefuse string `json:"peersRefuse,omitempty"` // why other replicas hand over nothing

	Unreadable map[string]string `json:"unreadableFiles,omitempty"` // why, by path

	TooLarge []policyapi.TooLarge `json:"policyTooLarge,omitempty"` // for a message

	LeaseNamespaces []string `json:"leaseNamespaces"` // in which Leases of installations count, in each cluster
}

func (s *Sources) newClustersPage() ClustersPage {
	page := ClustersPage{
		Clusters: s.newClusters(), Links: s.Links.Links(), LinksRefused: s.Links.Refused(),
		ReadOnly: s.ReadOnly, Policy: s.Policy != nil, NotSaved: s.Registry.NotSaved(),
		PeersRefuse:     s.Registry.PeersRefuse(),
		LeaseNamespaces: append([]string{s.Namespace}, s.Installations...),
	}
	if s.Unreadable != nil {
		page.Unreadable = s.Unreadable()
	}
	if s.Policy != nil {
		page.TooLarge = s.Policy.TooLarge()
	}

	for i := range page.Clusters {
		c := &page.Clusters[i]
		for _, l := range page.Links {
			if l.Cluster == c.Name && c.Link == "" && l.Deleted.IsZero() {
				c.Link = l.Namespace + "/" + l.Name
			}
		}
	}

	page.FindProblems(time.Now())
	return page
}

// FindProblems sets the Problems of a page. They follow from the rest of it, and from the errors of Statuses.
func (p *ClustersPage) FindProblems(now time.Time) {
	p.Problems = []problem.Problem{}
	for _, c := range p.Clusters {
		p.Problems = append(p.Problems, c.Problems(c.Kinds, now)...)
	}
	for _, l := range p.Links {
		p.Problems = append(p.Problems, l.Problems()...)
	}

	for _, c := range p.withoutLink() {
		p.Problems = append(p.Problems, problem.OfCluster(
			c.Name, problem.SecretAlone, problem.Warning,
			c.Name+" is linked by "+c.Source+" only, without a Link",
		))
	}
	if n := p.NotSaved; n.Clusters > 0 {
		saved := problem.New(problem.Object{Kind: "Replica"}, problem.NotSaved, problem.Warning, fmt.Sprintf(
			"that of %s cannot be saved: %s", words.Count(n.Clusters, "cluster"), n.Reason))
		saved.Affected = "a replica that starts while a cluster is unreachable will not have its endpoints"
		p.Problems = append(p.Problems, saved)
	}

	if p.PeersRefuse != "" {
		refuse := problem.New(problem.Object{Kind: "Replica"}, problem.PeersRefuse, problem.Warning, p.PeersRefuse)
		refuse.Affected = "a replica that starts while a cluster is unreachable will not have its endpoints"
		p.Problems = append(p.Problems, refuse)
	}

	for _, path := range slices.Sorted(maps.Keys(p.Unreadable)) {
		file := problem.New(problem.Object{Kind: "File", Name: path}, problem.Unreadable, problem.Warning,
			p.Unreadable[path])
		file.Affected = "what was read of it before stays in use"
		p.Problems = append(p.Problems, file)
	}
	for _, large := range p.TooLarge {
		p.Problems = append(p.Problems, tooLarge(large))
	}

	problem.Sort(p.Problems)
}

func tooLarge(found policyapi.TooLarge) problem.Problem {
	of := problem.Object{Kind: found.Of.Kind.Qualified(), Namespace: found.Of.Namespace, Name: found.Of.Name}
	p := problem.New(of, problem.TooLarge, problem.Warning,
		fmt.Sprintf("it takes %d bytes, and a message has %d at most", found.Bytes, serving.MaxFrame))
	p.Since = found.Since
	p.Affected = "clients keep the policy that they have, and new ones get none"
	return p
}

// withoutLink returns the clusters that only a labelled Secret links although others have a Link: perhaps the Link was
// deleted, and the Secret was not. Links that were deleted and whose clusters stay linked are not meant.
func (p *ClustersPage) withoutLink() (all []ClusterEntry) {
	others := false
	for _, c := range p.Clusters {
		held := slices.ContainsFunc(p.Links, func(l links.LinkStatus) bool {
			return l.Cluster == c.Name && l.Held != ""
		})
		others = others || c.Link != ""
		if !c.Local && c.Link == "" && c.Source != "" && !held {
			all = append(all, c)
		}
	}

	if !others {
		return nil
	}
	return all
}

// A ClusterEntry is the Status of a cluster with its errors as text, and the health of each kind.
type ClusterEntry struct {
	cluster.Status
	Link        string               `json:"link,omitempty"`        // that links it; "" if only a labelled Secret does
	Contact     string               `json:"contact,omitempty"`     // why it is out of contact
	Credentials string               `json:"credentials,omitempty"` // why the newest credentials are not in use
	Kinds       []cluster.KindStatus `json:"kinds,omitempty"`
	Services    int                  `json:"services,omitempty"` // that it publishes
	Endpoints   int                  `json:"endpoints"`          // of them, ready or not
}

// Objects returns how many objects of a resource the cluster has.
func (c ClusterEntry) Objects(resource string) int {
	for _, k := range c.Kinds {
		if k.Kind == resource {
			return k.Objects
		}
	}
	return 0
}

// newClusters returns all clusters, sorted by name.
func (s *Sources) newClusters() []ClusterEntry {
	statuses, _ := s.Registry.Statuses()
	all := []ClusterEntry{}

	for _, name := range slices.Sorted(maps.Keys(statuses)) {
		entry := ClusterEntry{Status: statuses[name]}
		entry.Contact = cluster.ErrorText(entry.Status.Contact)
		entry.Credentials = cluster.ErrorText(entry.Status.Credentials)
		kinds, contact := s.Registry.Inspect(name)
		entry.Kinds = kinds
		if !contact.IsZero() {
			entry.LastContact = contact
		}

		for _, v := range s.Store.Views(federation.Cluster(name)).All() {
			entry.Services++
			for _, slice := range v.Slices {
				entry.Endpoints += len(slice.Endpoints)
			}
		}
		all = append(all, entry)
	}

	return all
}

// ChangesPage is /debug/changes: what has changed of late, the newest first.
type ChangesPage struct {
	Since   time.Time        `json:"since"` // what was before is not known to this replica
	Changes []changes.Change `json:"changes"`
}

func (s *Sources) newChangesPage() ChangesPage {
	now := time.Now()
	return ChangesPage{s.Changes.Since(now), s.Changes.Last(now)}
}

// aboutCluster and aboutService limit a ChangesPage: ?cluster=NAME&service=NAMESPACE/NAME, what is about either.
const (
	aboutCluster = "cluster"
	aboutService = "service"
)

// changesAbout returns the Changes that are about what a query names; all for none.
func (s *Sources) changesAbout(query url.Values) ChangesPage {
	page := s.newChangesPage()
	if !query.Has(aboutCluster) && !query.Has(aboutService) {
		return page
	}

	subject := changes.Subject{
		Cluster: query.Get(aboutCluster), Home: s.Cluster, Service: query.Get(aboutService),
	}

	if namespace, name, both := strings.Cut(subject.Service, "/"); both {
		view := s.Store.View(federation.Ref{
			Cluster: federation.Cluster(s.Cluster), Service: federation.Service{Namespace: namespace, Name: name},
		})
		if view != nil && view.Composition != nil {
			for _, m := range view.Composition.Members {
				subject.Members = append(subject.Members, m.Ref)
			}
		}
	}
	page.Changes = subject.Of(page.Changes)
	return page
}

// VersionPage is /debug/version.
type VersionPage struct {
	Version string `json:"version"` // of the binary
}

// servicePage is /debug/services: a Service of the local cluster at one version, resolved to members.
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
	Service     string                   `json:"service"` // namespace/name
	Linked      bool                     `json:"linked"`
	Synced      bool                     `json:"synced"`   // the cluster was synced once
	State       federation.ClusterState  `json:"state"`    // of the cluster
	Filtered    bool                     `json:"filtered"` // zone hints and internalTrafficPolicy apply
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
	Pod      string             `json:"pod,omitempty"` // namespace/name
	Hostname string             `json:"hostname,omitempty"`
	Node     string             `json:"node,omitempty"`
	Zone     string             `json:"zone,omitempty"`
	Hints    []string           `json:"hints,omitempty"`
	Mirror   *federation.Mirror `json:"mirror,omitempty"`
}

func newServicePage(
	snapshot *federation.Snapshot, stateOf func(federation.Cluster) federation.ClusterState,
) servicePage {
	page := servicePage{
		Namespace: snapshot.Namespace,
		Name:      snapshot.Name,
		Version:   snapshot.Version,
		Exists:    snapshot.Exists(),
		Members:   []memberPage{},
	}

	if v := snapshot.View; v != nil {
		page.Malformed, page.Ports = v.Malformed, v.Ports
		page.Federated = v.Composition != nil && v.Composition.Union
	}

	for _, m := range snapshot.Members {
		from := m.Origin
		p := memberPage{
			Cluster: string(from.Cluster), Service: from.Namespace + "/" + from.Name,
			Linked: m.Linked, Synced: m.Known, State: stateOf(from.Cluster),
			Filtered: from.Filtered, TrustDomain: from.TrustDomain, Exists: m.View != nil,
		}
		if m.View != nil {
			p.LocalOnly, p.Ports, p.Slices = m.View.LocalOnly, m.View.Ports, newSlicePages(m.View)
		}
		page.Members = append(page.Members, p)
	}
	return page
}

// DigestsPage is /debug/digests: for each cluster and Service (namespace/name), a digest of its View.
// Replicas whose digests are equal have the same View.
type DigestsPage map[string]map[string]string

func (s *Sources) newDigestsPage() DigestsPage {
	page := DigestsPage{}
	for name, views := range s.Store.All() {
		digests := make(map[string]string, views.Len())
		for svc, v := range views.All() {
			digests[svc.Namespace+"/"+svc.Name] = fmt.Sprintf("%016x", v.Digest())
		}
		page[string(name)] = digests
	}
	return page
}

func newSlicePages(v *federation.View) []slicePage {
	all := []slicePage{}
	for _, s := range v.Slices {
		page := slicePage{Name: s.Name, Ports: s.Ports, Endpoints: []endpointPage{}}
		for _, e := range s.Endpoints {
			p := endpointPage{
				Addr: e.Addr, Ready: e.Ready, Hostname: e.Hostname(),
				Node: e.Node.String(), Zone: e.Zone.String(), Hints: e.Hints(), Mirror: e.Mirror(),
			}
			if e.Workload != nil {
				p.Pod = cmp.Or(e.Workload.Namespace(), "default") + "/" + e.Workload.Name
			}
			page.Endpoints = append(page.Endpoints, p)
		}
		all = append(all, page)
	}

	return all
}

package federation

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"unique"

	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// Cluster is the name of a cluster, the same all over the fleet.
type Cluster = facts.Cluster

// Service names a Service within a cluster.
type Service struct{ Namespace, Name string }

// Ref names a Service of one cluster.
type Ref struct {
	Cluster Cluster
	Service
}

// A View is what one cluster publishes about one of its Services. It is immutable once it was passed to
// [ClusterWriter.Set].
type View struct {
	ExternalName bool          // a DNS alias: it has no endpoints and cannot be resolved
	LocalOnly    bool          // internalTrafficPolicy: Local
	Malformed    string        // why clients cannot be served although the Service exists; empty if they can
	Misread      string        // what its owner asks for that is not understood, for people; empty for nothing
	Unexported   bool          // its cluster does not export it: no other one learns of it by asking for it
	Ports        []ServicePort // sorted by Number, then Protocol; one entry for both
	Opaque       Ports         // ports whose protocol a proxy should not detect; not given: the server's default holds
	Composition  *Composition  // nil: the Service consists of its own endpoints
	Slices       []*Slice      // sorted by Name

	// ThroughGateway is the cluster whose Service this one is a mirror of, over that cluster's gateway; empty for any
	// other Service. Its endpoints are the gateway's addresses.
	ThroughGateway Cluster

	Policy *policy.Service // how traffic is divided between the members of a union; nil for none
}

// A Declaration is what a View publishes about the Service itself, without its members and endpoints.
// It is immutable, and an equal one keeps its pointer from one View to the next.
type Declaration struct {
	ExternalName bool
	Ports        []ServicePort
	Opaque       Ports
	Imported     []ImportedPort // of a Service that stands for others: what these declare; sorted by Number
}

// An ImportedPort is the protocol of a port by the Services that another one stands for. All of them that declare one
// agree, or it is Disputed. One that declares neither App nor Opaque has it detected.
type ImportedPort struct {
	Number   uint16
	App      string // as of a ServicePort
	Opaque   bool   // a proxy should not detect it
	Disputed bool   // then the rest is empty
}

// A ServicePort is a port that a Service declares. A number may be that of several, of one Protocol each: who asks
// for the number means the TCP port. Its name may be empty.
type ServicePort struct {
	Number   uint16
	Protocol Transport
	Name     string
	Target   uint16 // number of the port at the endpoints, if the Service has one; 0: only the Slices do
	App      string // the application protocol, if the Service declares one
}

// A Port is a port of endpoints, by the name that the Service gives it.
type Port struct {
	Number   uint16
	Protocol Transport
	Name     string
	App      string // the application protocol, if the slice has one
}

// A Transport is the protocol of a port below that of the application. The zero Transport is TCP, as where an object
// names none.
type Transport uint8

// The protocols that Kubernetes has, in the order in which those of one number are meant.
const (
	TCP Transport = iota
	UDP
	SCTP
)

var transports = [...]string{TCP: "TCP", UDP: "UDP", SCTP: "SCTP"}

// TransportOf returns the protocol of a name; that of no name is TCP.
func TransportOf(name string) (t Transport, known bool) {
	if name == "" {
		return TCP, true
	}
	i := slices.Index(transports[:], name)
	return Transport(max(0, i)), i >= 0
}

// String returns the name that Kubernetes has for it.
func (t Transport) String() string { return transports[t] }

// MarshalText returns the name.
func (t Transport) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText sets what MarshalText returned.
func (t *Transport) UnmarshalText(name []byte) error {
	of, known := TransportOf(string(name))
	if !known {
		return fmt.Errorf("protocol %q is not TCP, UDP or SCTP", name)
	}
	*t = of
	return nil
}

// A Composition is the Services of clusters that make up a Service as its clients see it. Members have
// endpoints of their own; they are never compositions.
type Composition struct {
	Union   bool        // a federated Service; otherwise the Service stands for exactly one other
	Members []MemberRef // distinct
}

// A MemberRef names one member of a Composition.
type MemberRef struct {
	Ref
	Filtered bool // locality applies: zone hints and internalTrafficPolicy count for this member
}

// A Slice is one EndpointSlice. Its ports hold for all its endpoints.
type Slice struct {
	Name      string
	Ports     []Port // target ports by name
	Endpoints []*Endpoint
}

// An Endpoint is one address of a Slice, ready or not.
type Endpoint struct {
	Addr        netip.Addr
	Ready       bool
	Serving     bool // it answers; where a Service publishes what is not ready, one may be Ready that does not
	Terminating bool
	Copied      bool      // its cluster states that it has it from another one
	Node        Name      // where the Pod runs; empty for everything else
	Zone        Name      // empty where it is not known
	Workload    *Workload // what runs there; nil for a bare address
	Detail      *Detail   // nil for none
}

// A Name is a string that many endpoints share, such as that of their node. Equal ones are equal. The zero Name
// is empty.
type Name struct{ handle unique.Handle[string] }

// NameOf returns s as a Name.
func NameOf(s string) (n Name) {
	if s != "" {
		n.handle = unique.Make(s)
	}
	return n
}

func (n Name) String() string {
	if n == (Name{}) {
		return ""
	}
	return n.handle.Value()
}

// A Detail is what few endpoints have, and many of one Slice share.
type Detail struct {
	Hostname string
	Hints    []string // zones that should use the address; sorted
	Mirror   *Mirror  // of a mirrored slice; nil otherwise
}

// OrNone returns d, or nil if there is nothing in it.
func (d *Detail) OrNone() *Detail {
	if d.Hostname == "" && len(d.Hints) == 0 && d.Mirror == nil {
		return nil
	}
	return d
}

// Hostname returns the name of the endpoint; empty for none.
func (e *Endpoint) Hostname() string {
	return e.detail().Hostname
}

// Hints returns the zones that should use the address, sorted; none means all.
func (e *Endpoint) Hints() []string {
	return e.detail().Hints
}

// Mirror returns what a mirrored slice has about the gateway; nil for any other.
func (e *Endpoint) Mirror() *Mirror {
	return e.detail().Mirror
}

// noDetail is that of endpoints without one. It is not to be written to.
var noDetail Detail

func (e *Endpoint) detail() *Detail {
	if e.Detail == nil {
		return &noDetail
	}
	return e.Detail
}

// A Mirror is what the slice of a mirrored Service has about the gateway behind its addresses.
type Mirror struct {
	Cluster  string // the Service's home; empty if the slice has none
	Identity string // TLS identity of the gateway; empty for none
	Name     string // fully qualified name of the Service in its home; empty if the slice has none
}

// A WorkloadKind is what a Workload is.
type WorkloadKind uint8

// The kinds of workload.
const (
	Pod WorkloadKind = iota
	ExternalWorkload
)

// A Workload is what runs at an address. It is computed once and shared by all Endpoints that name it. There are
// as many as Pods, so it has little more than a name of its own.
type Workload struct {
	Name   string
	Cohort unique.Handle[Cohort] // never the zero Handle
}

// A Cohort is what workloads of one owner have in common.
type Cohort struct {
	Kind                 WorkloadKind
	Namespace            string
	OwnerKind, OwnerName string                  // of the controller, of OwnerKinds; empty for none
	Template             unique.Handle[Template] // never the zero Handle
}

// OwnerKinds are the kinds of owners that Linkerd labels metrics with, in lower case: the kind is the key of a label.
// It is none of the keys that others have, such as namespace.
var OwnerKinds = []string{
	"cronjob", "daemonset", "deployment", "job", "node", ownerPod, "replicaset", "replicationcontroller",
	"statefulset", "workloadgroup",
}

// Kind returns what w is.
func (w *Workload) Kind() WorkloadKind { return w.Cohort.Value().Kind }

// Namespace returns where w is.
func (w *Workload) Namespace() string { return w.Cohort.Value().Namespace }

// Template returns what w has in common with workloads of one origin.
func (w *Workload) Template() Template { return w.Cohort.Value().Template.Value() }

// Owner returns the controller, kind in lower case. A Pod without one is its own.
func (w *Workload) Owner() (kind, name string) {
	c := w.Cohort.Value()
	if c.OwnerKind == "" && c.Kind == Pod {
		return ownerPod, w.Name
	}
	return c.OwnerKind, c.OwnerName
}

// Workload returns the workload of that Cohort with a name. A Pod that is its own owner has none in the Cohort.
func (c Cohort) Workload(name string) Workload {
	if c.Kind == Pod && c.OwnerKind == ownerPod && c.OwnerName == name {
		c.OwnerKind, c.OwnerName = "", ""
	}
	return Workload{name, unique.Make(c)}
}

const ownerPod = "pod"

// A Template is what workloads of one origin, such as the Pods of a ReplicaSet, have in common.
type Template struct {
	ServiceAccount string
	ControlPlane   string // namespace of the mesh's control plane; empty for a workload that is not meshed
	Hash           string // label pod-template-hash
	Opaque         Ports  // ports whose protocol a proxy should not detect; not given: the server's default holds
	ServerOpaque   Ports  // further ones: those that Servers declare
	Skip           Ports  // ports that bypass the proxy
	InboundPort    uint16 // of the proxy; 0: unknown
	AdminPort      uint16
	ControlPort    uint16
	Identity       string // URI by which an ExternalWorkload is known; a Pod's follows from the rest
	ServerName     string // for TLS with it
}

// Identity returns the name that a meshed Pod proves to its clients over TLS, in a trust domain; empty
// for none: it is not in the mesh whose control plane runs in this namespace, or no Pod.
func (w *Workload) Identity(controlPlane, trustDomain string) string {
	t := w.Template()
	if w.Kind() != Pod || t.ControlPlane == "" || t.ControlPlane != controlPlane || trustDomain == "" {
		return ""
	}
	account := t.ServiceAccount + "." + cmp.Or(w.Namespace(), "default")
	return account + ".serviceaccount.identity." + controlPlane + "." + trustDomain
}

// Trusts reports whether clients of the Service may take the identity that a workload gives itself. One
// in the Service's own cluster may have any. One in another cluster must be of that cluster's trust
// domain, or of one below it: else the cluster could send clients to whatever it likes and have them
// accept an identity that is another's.
func (o *Origin) Trusts(w *Workload) bool {
	identity := w.Template().Identity
	if o.Home || identity == "" {
		return true
	}
	rest, spiffe := strings.CutPrefix(identity, "spiffe://")
	domain, _, _ := strings.Cut(rest, "/")
	return spiffe && o.TrustDomain != "" && (domain == o.TrustDomain || strings.HasSuffix(domain, "."+o.TrustDomain))
}

// equalAt reports whether w and o, which may be nil, are the same to clients of a port; of every port
// if it is 0.
func (w *Workload) equalAt(port uint16, o *Workload) bool {
	if equal := equalValues(w, o); equal || w == nil || o == nil || port == 0 {
		return equal
	}
	a, b := w.Cohort.Value(), o.Cohort.Value()
	a.Template, b.Template = unique.Handle[Template]{}, unique.Handle[Template]{}
	return w.Name == o.Name && a == b && w.Template().at(port) == o.Template().at(port)
}

// at returns a Template whose sets are t's as far as one port is concerned.
func (t Template) at(port uint16) Template {
	t.Opaque = t.Opaque.at(port)
	t.ServerOpaque, t.Skip = t.ServerOpaque.at(port), t.Skip.at(port)
	t.ServerOpaque.given, t.Skip.given = true, true // it makes no difference where there is no default
	return t
}

// Ports is a set of port numbers. It is comparable. The zero Ports is an empty set that was not
// given.
type Ports struct {
	ranges string // four bytes a range: first and last, big-endian
	given  bool
}

// A PortRange holds both its ends.
type PortRange struct{ First, Last uint16 }

// PortsOf returns the set of all ports in the ranges. Equal sets are equal only if given by equal ranges.
func PortsOf(ranges ...PortRange) Ports {
	var b []byte
	for _, r := range ranges {
		b = append(b, byte(r.First>>8), byte(r.First), byte(r.Last>>8), byte(r.Last))
	}
	return Ports{string(b), true}
}

// Given reports whether the set was given, be it empty.
func (p Ports) Given() bool { return p.given }

// Contains reports whether port n is in the set.
func (p Ports) Contains(n uint16) bool {
	for r := p.ranges; len(r) > 0; r = r[4:] {
		first, last := uint16(r[0])<<8|uint16(r[1]), uint16(r[2])<<8|uint16(r[3])
		if first <= n && n <= last {
			return true
		}
	}
	return false
}

// at returns the part of the set that is port n.
func (p Ports) at(n uint16) Ports {
	var ranges []PortRange
	if p.Contains(n) {
		ranges = []PortRange{{n, n}}
	}
	return Ports{PortsOf(ranges...).ranges, p.given}
}

// Count returns how many endpoints the View has, ready and not.
func (v *View) Count() (ready, notReady int) {
	for _, slice := range v.Slices {
		for _, e := range slice.Endpoints {
			if e.Ready {
				ready++
			} else {
				notReady++
			}
		}
	}
	return ready, notReady
}

func (p ServicePort) comparePorts(o ServicePort) int {
	return cmp.Or(cmp.Compare(p.Number, o.Number), cmp.Compare(p.Protocol, o.Protocol))
}

// Port returns what the Service declares of its port n: of several protocols the first, so TCP if that is one.
func (v *View) Port(n uint16) (ServicePort, bool) {
	i, _ := slices.BinarySearchFunc(v.Ports, ServicePort{Number: n}, ServicePort.comparePorts)
	if i == len(v.Ports) || v.Ports[i].Number != n {
		return ServicePort{}, false
	}
	return v.Ports[i], true
}

// PortOf returns what the Service declares of its port n of a protocol.
func (v *View) PortOf(n uint16, t Transport) (ServicePort, bool) {
	i, found := slices.BinarySearchFunc(v.Ports, ServicePort{Number: n, Protocol: t}, ServicePort.comparePorts)
	if !found {
		return ServicePort{}, false
	}
	return v.Ports[i], true
}

// Declares reports whether the Service declares port n.
func (d *Declaration) Declares(n uint16) bool {
	return slices.ContainsFunc(d.Ports, func(p ServicePort) bool { return p.Number == n })
}

// declaration returns the Declaration of the Service, nil if there is none, and old if that is equal.
func (s *Snapshot) declaration(old *Declaration) *Declaration {
	view := s.View
	if view == nil {
		return nil
	}
	imported := s.imported()
	isSame := old != nil && view.ExternalName == old.ExternalName && view.Opaque == old.Opaque &&
		slices.Equal(view.Ports, old.Ports) && slices.Equal(imported, old.Imported)
	if isSame {
		return old
	}
	return &Declaration{view.ExternalName, view.Ports, view.Opaque, imported}
}

// imported returns what the Services declare that this one stands for. A cluster that is away is as it was.
func (s *Snapshot) imported() (all []ImportedPort) {
	if s.View.Composition == nil {
		return nil
	}

	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for _, port := range m.View.Ports {
			if declared, is := m.View.protocolOf(port); is {
				all = withImported(all, declared)
			}
		}
	}
	return all
}

// protocolOf returns what a Service declares of the protocol of one of its ports, if it does.
func (v *View) protocolOf(port ServicePort) (declared ImportedPort, is bool) {
	declared.Number, declared.App = port.Number, port.App
	if port.App == "" {
		declared.Opaque = v.Opaque.Contains(port.Number)
	}
	return declared, port.App != "" || v.Opaque.Given()
}

func withImported(all []ImportedPort, declared ImportedPort) []ImportedPort {
	at, found := slices.BinarySearchFunc(all, declared.Number, func(p ImportedPort, number uint16) int {
		return cmp.Compare(p.Number, number)
	})
	switch {
	case !found:
		return slices.Insert(all, at, declared)
	case all[at] != declared:
		all[at] = ImportedPort{Number: declared.Number, Disputed: true}
	}
	return all
}

// ImportedPort returns what the Services that this one stands for declare of a port, if they do.
func (d *Declaration) ImportedPort(number uint16) (port ImportedPort, declared bool) {
	at := slices.IndexFunc(d.Imported, func(p ImportedPort) bool { return p.Number == number })
	if at < 0 {
		return port, false
	}
	return d.Imported[at], true
}

// sharing returns old if it equals v, and otherwise a View that is equal to v and shares every equal
// part with old.
func (v *View) sharing(old *View) *View {
	if old == nil || v == old {
		return v
	}
	next := *v
	next.Slices = slices.Clone(v.Slices)
	same := v.ExternalName == old.ExternalName && v.LocalOnly == old.LocalOnly && v.Malformed == old.Malformed &&
		v.Misread == old.Misread && v.Unexported == old.Unexported && v.Opaque == old.Opaque &&
		v.ThroughGateway == old.ThroughGateway &&
		slices.Equal(v.Ports, old.Ports) && v.Composition.equal(old.Composition) && v.Policy.Equal(old.Policy) &&
		len(v.Slices) == len(old.Slices)

	for i, s := range v.Slices {
		j, found := slices.BinarySearchFunc(old.Slices, s, compareNames)
		if !found {
			same = false
			continue
		}
		next.Slices[i] = s.sharing(old.Slices[j])
		same = same && next.Slices[i] == old.Slices[j]
	}

	if same {
		return old
	}
	return &next
}

// SameComposition reports whether both have the same members; nil for a Service that does not exist.
func (v *View) SameComposition(o *View) bool {
	return v == o || v != nil && o != nil && v.Composition.equal(o.Composition)
}

func (c *Composition) equal(o *Composition) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.Union == o.Union && slices.Equal(c.Members, o.Members)
}

// Without returns the members of c that o does not have; both may be nil.
func (c *Composition) Without(o *Composition) iter.Seq[MemberRef] {
	return func(yield func(MemberRef) bool) {
		if c == nil {
			return
		}
		others := map[MemberRef]bool{}
		if o != nil {
			for _, m := range o.Members {
				others[m] = true
			}
		}

		for _, m := range c.Members {
			if !others[m] && !yield(m) {
				return
			}
		}
	}
}

func compareNames(s, o *Slice) int { return strings.Compare(s.Name, o.Name) }

// sharing returns old if it equals s, and otherwise a Slice that is equal to s and shares every
// endpoint with old that is equal, wherever in the slice it is.
func (s *Slice) sharing(old *Slice) *Slice {
	if s == old {
		return s
	}

	next := &Slice{Name: s.Name, Ports: s.Ports, Endpoints: slices.Clone(s.Endpoints)}
	same := slices.Equal(s.Ports, old.Ports) && len(s.Endpoints) == len(old.Endpoints)
	before := cursor[netip.Addr, *Endpoint]{list: old.Endpoints, key: func(e *Endpoint) netip.Addr { return e.Addr }}
	for i, e := range s.Endpoints {
		at := before.find(e.Addr)
		if at >= 0 && e.equal(old.Endpoints[at]) {
			next.Endpoints[i] = old.Endpoints[at]
		}
		same = same && at == i && next.Endpoints[i] == old.Endpoints[i]
	}

	if same {
		return old
	}
	return next
}

func (e *Endpoint) equal(o *Endpoint) bool {
	return e == o || e.Ready == o.Ready && e.Serving == o.Serving && e.Terminating == o.Terminating &&
		e.Copied == o.Copied && equalValues(e.Workload, o.Workload) && e.equalBesides(o)
}

// equalAt reports whether e and o are the same to clients of a port, which get it only while it
// is ready.
func (e *Endpoint) equalAt(port uint16, o *Endpoint) bool {
	return e == o || e.Workload.equalAt(port, o.Workload) && e.equalBesides(o)
}

// equalBesides leaves out who answers there, and whether.
func (e *Endpoint) equalBesides(o *Endpoint) bool {
	return e.Addr == o.Addr && e.Node == o.Node && e.Zone == o.Zone && e.detail().equal(o.detail())
}

func (d *Detail) equal(o *Detail) bool {
	return d == o || d.Hostname == o.Hostname && slices.Equal(d.Hints, o.Hints) && equalValues(d.Mirror, o.Mirror)
}

func equalValues[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

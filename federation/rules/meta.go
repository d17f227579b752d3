package rules

import (
	"cmp"
	"strings"
	"time"
)

// A Kind is a kind of object that policy reads, or that one refers to. The zero Kind is any other.
type Kind uint8

// Kinds. An HTTPRoute is of either group, and the two may share a name.
const (
	KindOther Kind = iota
	KindService
	KindNamespace
	KindServiceAccount
	KindServer
	KindServerAuthorization
	KindAuthorizationPolicy
	KindMeshTLSAuthentication
	KindNetworkAuthentication
	KindRateLimit
	KindEgressNetwork
	KindPolicyHTTPRoute
	KindHTTPRoute
	KindGRPCRoute
	KindTLSRoute
	KindTCPRoute

	// Those that no reference names.
	KindPod
	KindExternalWorkload
)

// Groups of Kinds. That of core is empty.
const (
	PolicyGroup  = "policy.linkerd.io"
	GatewayGroup = "gateway.networking.k8s.io"
)

type kindNames struct{ group, name string }

var kinds = [...]kindNames{
	KindOther:                 {"", ""},
	KindService:               {"", "Service"},
	KindNamespace:             {"", "Namespace"},
	KindServiceAccount:        {"", "ServiceAccount"},
	KindServer:                {PolicyGroup, "Server"},
	KindServerAuthorization:   {PolicyGroup, "ServerAuthorization"},
	KindAuthorizationPolicy:   {PolicyGroup, "AuthorizationPolicy"},
	KindMeshTLSAuthentication: {PolicyGroup, "MeshTLSAuthentication"},
	KindNetworkAuthentication: {PolicyGroup, "NetworkAuthentication"},
	KindRateLimit:             {PolicyGroup, "HTTPLocalRateLimitPolicy"},
	KindEgressNetwork:         {PolicyGroup, "EgressNetwork"},
	KindPolicyHTTPRoute:       {PolicyGroup, "HTTPRoute"},
	KindHTTPRoute:             {GatewayGroup, "HTTPRoute"},
	KindGRPCRoute:             {GatewayGroup, "GRPCRoute"},
	KindTLSRoute:              {GatewayGroup, "TLSRoute"},
	KindTCPRoute:              {GatewayGroup, "TCPRoute"},
	KindPod:                   {"", "Pod"},
	KindExternalWorkload:      {"workload.linkerd.io", "ExternalWorkload"},
}

// KindOf returns the Kind of a group and the name of a kind, as a reference has them: both without regard to case. The
// group core is the empty one.
func KindOf(group, name string) Kind {
	if equalFold(group, "core") {
		group = ""
	}
	for kind := KindService; kind <= KindTCPRoute; kind++ {
		if equalFold(kinds[kind].group, group) && equalFold(kinds[kind].name, name) {
			return kind
		}
	}
	return KindOther
}

// equalFold compares without regard to the case of ASCII alone: other letters that fold to one take more bytes.
func equalFold(a, b string) bool { return len(a) == len(b) && strings.EqualFold(a, b) }

// Group returns the API group, which is empty for core.
func (k Kind) Group() string { return k.names().group }

// String returns the name of the kind in its group, such as HTTPRoute.
func (k Kind) String() string { return k.names().name }

// names returns the names of a Kind; none of one that there is not, as what is read of a file may have.
func (k Kind) names() kindNames {
	if int(k) >= len(kinds) {
		return kindNames{}
	}
	return kinds[k]
}

// Qualified returns the name of the kind, with its group if that alone distinguishes it from another one.
func (k Kind) Qualified() string {
	if k == KindPolicyHTTPRoute {
		return k.String() + "." + k.Group()
	}
	return k.String()
}

// IsRoute reports whether objects of the Kind are Routes.
func (k Kind) IsRoute() bool { return k >= KindPolicyHTTPRoute && k <= KindTCPRoute }

// IsHTTP reports whether objects of the Kind are HTTPRoutes, of either group.
func (k Kind) IsHTTP() bool { return k == KindPolicyHTTPRoute || k == KindHTTPRoute }

// IsOfServers reports whether objects of the Kind decide about ports of workloads.
func (k Kind) IsOfServers() bool { return k >= KindServer && k <= KindRateLimit || k.IsRoute() }

// IsOfTargets reports whether objects of the Kind decide about what clients send to.
func (k Kind) IsOfTargets() bool { return k == KindService || k == KindEgressNetwork || k.IsRoute() }

// A Reference names an object, which need not exist. The Namespace of a Namespace is empty.
type Reference struct {
	Kind            Kind
	Namespace, Name string
}

// Compare orders References.
func (r Reference) Compare(o Reference) int {
	return cmp.Or(cmp.Compare(r.Kind, o.Kind), cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name))
}

// String names the object, for people: HTTPRoute shop/web. An HTTPRoute of policy.linkerd.io has its group besides.
func (r Reference) String() string {
	kind, name := cmp.Or(r.Kind.Qualified(), "object"), r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + name
	}
	return kind + " " + name
}

// A Meta is what every object has.
type Meta struct {
	Reference
	Created    time.Time // in UTC, to the second; zero: unknown
	Generation int64     // of its spec

	Findings     []Finding // in the order of the object
	MoreFindings int       // that are not in Findings
}

// Metadata returns m: of any object, what every object has.
func (m *Meta) Metadata() *Meta { return m }

// CompareAge orders objects by age, those of unknown age last; then by name, namespace, group and kind. It is the order
// of Servers that select one port, of rate limits of a Server, and of routes.
func CompareAge(a, b *Meta) int {
	if unknown := a.Created.IsZero(); unknown != b.Created.IsZero() {
		if unknown {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace),
		compareKinds(a.Kind, b.Kind))
}

// CompareNames orders objects by group, kind, name and namespace. It is the order of authorizations.
func CompareNames(a, b *Meta) int {
	return cmp.Or(compareKinds(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
}

func compareKinds(a, b Kind) int {
	return cmp.Or(cmp.Compare(a.Group(), b.Group()), cmp.Compare(a.String(), b.String()))
}

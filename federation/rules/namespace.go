package rules

import (
	"cmp"
	"slices"
)

// NamespaceObjects are the objects of a namespace that decide about its workloads, in any order, and those of other
// namespaces that they refer to.
type NamespaceObjects struct {
	Servers              []*Server
	ServerAuthorizations []*ServerAuthorization
	Policies             []*AuthorizationPolicy
	Routes               []*Route // those that name a Server
	RateLimits           []*RateLimit

	// TrustDomains are those of other clusters whose ServiceAccounts are meant as well where one is referred to.
	TrustDomains []string

	// What is nil does not exist, or cannot be read.
	MeshTLS  func(Reference) *MeshTLSAuthentication
	Networks func(Reference) *NetworkAuthentication
}

// A ServerRules is a Server and all that follows from objects that name it. It is immutable.
type ServerRules struct {
	*Server
	Authorizations []Authorization // in order, that of its accessPolicy last
	Routes         []ServerRoute   // all that are attached, of all kinds, in order
	Limit          *RateLimit      // nil: none

	TrustDomains []string // of NamespaceObjects

	// NotAttached are those of routes that name the Server and do not count. Answers do not depend on them.
	NotAttached []Attachment
}

// A Refused is an object that has no effect where its author may expect one. Answers do not depend on it.
type Refused struct {
	Reference
	Why string

	// Of is the Server or the route that it is about; zero: all Servers that Selector selects, or all if that is nil.
	Of       Reference
	Selector *LabelSelector
	Dangling bool // whether Of is none that there is
}

// A ServerRoute is a Route of a Server. It may be used by clients of the Server's authorizations and of its own.
type ServerRoute struct {
	*Route
	Authorizations []Authorization
}

// An Authorization lets clients in: those of a class, from some networks. It has at least one network.
type Authorization struct {
	Origin
	Networks   []Network
	Clients    ClientClass // never ClientsNone
	Identities []Pattern   // of ClientsIdentified, at least one

	Requires []Reference // authentications that have the Identities and the Networks; none: the Origin has them
}

// Of returns what follows from the objects of a namespace for each of its Servers, in the order in which they are
// looked through for the one that selects a port. Objects are looked at once, and again for what they name:
// only ServerAuthorizations that select Servers by labels are compared with each of these.
func (o *Options) Of(objects *NamespaceObjects) *NamespaceServers {
	index := o.index(objects)
	servers := slices.SortedFunc(slices.Values(objects.Servers), func(a, b *Server) int {
		return CompareAge(&a.Meta, &b.Meta)
	})

	all := make([]*ServerRules, 0, len(servers))
	for _, server := range servers {
		all = append(all, index.of(server))
	}
	index.findDangling(objects)
	return &NamespaceServers{All: all, Refused: index.refused}
}

// A namespaceIndex has the objects of a namespace by what they name.
type namespaceIndex struct {
	*Options
	grants   []Authorization          // of AuthorizationPolicies and ServerAuthorizations, in order
	byTarget map[Reference][]int      // indices in grants; those for all Servers under the zero Reference
	selected []selectedGrant          // of ServerAuthorizations that select Servers
	domains  []string                 // trust domains of other clusters
	routes   map[Reference][]*Route   // by parent
	limits   map[Reference]*RateLimit // by Server: the oldest
	refused  []Refused
}

// A selectedGrant is what is granted at the Servers that a selector matches.
type selectedGrant struct {
	selector *LabelSelector
	grant    int // index in grants
}

func (o *Options) index(objects *NamespaceObjects) *namespaceIndex {
	index := &namespaceIndex{
		Options: o, byTarget: map[Reference][]int{}, domains: objects.TrustDomains,
		routes: map[Reference][]*Route{}, limits: map[Reference]*RateLimit{},
	}
	index.addPolicies(objects)
	index.addServerAuthorizations(objects.ServerAuthorizations)

	routes := slices.SortedFunc(slices.Values(objects.Routes), func(a, b *Route) int {
		return CompareAge(&a.Meta, &b.Meta)
	})
	for _, route := range routes {
		for _, parent := range route.Parents {
			named := index.routes[parent.Reference]
			if len(named) == 0 || named[len(named)-1] != route { // a route may name a parent again
				index.routes[parent.Reference] = append(named, route)
			}
		}
	}

	for _, limit := range objects.RateLimits {
		server := limit.target()
		if oldest := index.limits[server]; oldest == nil || CompareAge(&limit.Meta, &oldest.Meta) < 0 {
			index.limits[server] = limit
		}
	}
	return index
}

// target returns the Server that a rate limit is about.
func (l *RateLimit) target() Reference { return Reference{KindServer, l.Namespace, l.Server} }

// addPolicies adds what AuthorizationPolicies grant.
func (n *namespaceIndex) addPolicies(objects *NamespaceObjects) {
	meta := func(p *AuthorizationPolicy) *Meta { return &p.Meta }
	for _, policy := range sortedByName(objects.Policies, meta) {
		target := policy.Target
		if target.Kind == KindNamespace {
			target = Reference{}
		}

		before := len(n.grants)
		n.grants = n.appendPolicy(n.grants, policy, objects)
		if len(n.grants) == before {
			why := cmp.Or(Refusal(policy, objects), grantsNothing)
			n.refused = append(n.refused, Refused{Reference: policy.Reference, Why: why, Of: target})
			continue
		}
		n.byTarget[target] = append(n.byTarget[target], before)
	}
}

// grantsNothing is why an object that names no client is refused.
const grantsNothing = "it grants nothing: it names no client, or no network"

// addServerAuthorizations adds what ServerAuthorizations grant.
func (n *namespaceIndex) addServerAuthorizations(all []*ServerAuthorization) {
	for _, from := range sortedByName(all, func(a *ServerAuthorization) *Meta { return &a.Meta }) {
		grant := Authorization{
			Origin: Origin{Reference: from.Reference}, Networks: from.Networks, Clients: from.Clients,
		}
		if grant.Networks == nil {
			grant.Networks = n.ClusterNetworks
		}

		before := len(n.grants)
		n.grants = n.appendAuthorization(n.grants, grant, from.Identities)

		switch server := (Reference{KindServer, from.Namespace, from.Server}); {
		case len(n.grants) == before && from.Server != "":
			n.refused = append(n.refused, Refused{Reference: from.Reference, Why: grantsNothing, Of: server})
		case len(n.grants) == before:
			n.refused = append(n.refused, Refused{
				Reference: from.Reference, Why: grantsNothing, Selector: from.Selector,
			})
		case from.Server != "":
			n.byTarget[server] = append(n.byTarget[server], before)
		default:
			n.selected = append(n.selected, selectedGrant{from.Selector, before})
		}
	}
}

func sortedByName[T any](all []T, meta func(T) *Meta) []T {
	return slices.SortedFunc(slices.Values(all), func(a, b T) int { return CompareNames(meta(a), meta(b)) })
}

// of returns what follows for a Server.
func (n *namespaceIndex) of(server *Server) *ServerRules {
	rules := &ServerRules{Server: server, Limit: n.limits[server.Reference], TrustDomains: n.domains}

	granted := slices.Concat(n.byTarget[Reference{}], n.byTarget[server.Reference])
	for _, s := range n.selected {
		if s.selector.Matches(server.Labels) {
			granted = append(granted, s.grant)
		}
	}
	rules.Authorizations = append(n.authorizations(granted), n.ofDefault(server.Access)...)

	routes := n.routes[server.Reference]

	for _, a := range Attach(ParentObject{Reference: server.Reference, Exists: true}, routes) {
		isOld := func(r ServerRoute) bool { return r.Route == a.Route }
		switch {
		case !a.counts():
			rules.NotAttached = append(rules.NotAttached, a)
		case !slices.ContainsFunc(rules.Routes, isOld):
			granted := n.authorizations(n.byTarget[a.Route.Reference])
			rules.Routes = append(rules.Routes, ServerRoute{a.Route, granted})
		}
	}
	return rules
}

// findDangling adds what is about Servers and routes that there are not, and rate limits that others exclude.
func (n *namespaceIndex) findDangling(objects *NamespaceObjects) {
	exists := map[Reference]bool{{}: true}
	for _, server := range objects.Servers {
		exists[server.Reference] = true
	}
	for _, route := range objects.Routes {
		exists[route.Reference] = true
	}

	for i := range n.refused {
		n.refused[i].Dangling = !exists[n.refused[i].Of]
	}
	for of, grants := range n.byTarget {
		for _, i := range grants {
			if !exists[of] {
				n.refused = append(n.refused, dangling(n.grants[i].Reference, of))
			}
		}
	}

	for _, limit := range objects.RateLimits {
		switch server := limit.target(); {
		case limit.Server == "":
		case !exists[server]:
			n.refused = append(n.refused, dangling(limit.Reference, server))
		case n.limits[server] != limit:
			why := n.limits[server].String() + " of the same Server is older"
			n.refused = append(n.refused, Refused{Reference: limit.Reference, Why: why, Of: server})
		}
	}

	slices.SortFunc(n.refused, func(a, b Refused) int {
		return CompareNames(&Meta{Reference: a.Reference}, &Meta{Reference: b.Reference})
	})
}

func dangling(object, of Reference) Refused {
	why := of.String() + " does not exist, or cannot be read"
	if of.Kind.IsRoute() {
		why = of.String() + " is no route of a Server here"
	}
	return Refused{Reference: object, Why: why, Of: of, Dangling: true}
}

// authorizations returns those of some indices, in order.
func (n *namespaceIndex) authorizations(indices []int) (all []Authorization) {
	slices.Sort(indices)
	for _, i := range indices {
		all = append(all, n.grants[i])
	}
	return all
}

// appendPolicy appends the authorization of an AuthorizationPolicy, unless it grants nothing.
func (n *namespaceIndex) appendPolicy(
	all []Authorization, policy *AuthorizationPolicy, objects *NamespaceObjects,
) []Authorization {
	if Refusal(policy, objects) != "" {
		return all
	}

	grant := Authorization{Origin: Origin{Reference: policy.Reference}, Networks: Everywhere, Clients: ClientsAny}
	if policy.Networks != (Reference{}) {
		grant.Networks = objects.Networks(policy.Networks).Networks
		grant.Requires = append(grant.Requires, policy.Networks)
	}

	var identities Identities
	switch policy.Identities.Kind {
	case KindMeshTLSAuthentication:
		grant.Clients, identities = ClientsIdentified, objects.MeshTLS(policy.Identities).Identities
		grant.Requires = append(grant.Requires, policy.Identities)
	case KindServiceAccount:
		grant.Clients, identities.Accounts = ClientsIdentified, []Reference{policy.Identities}
	default:
	}
	return n.appendAuthorization(all, grant, identities)
}

// Refusal returns why an AuthorizationPolicy grants nothing; empty if it grants something.
func Refusal(p *AuthorizationPolicy, objects *NamespaceObjects) string {
	missing := func(r Reference) string {
		return r.String() + " does not exist, or cannot be read"
	}
	switch {
	case p.Void != "":
		return p.Void
	case p.Identities.Kind == KindMeshTLSAuthentication && objects.MeshTLS(p.Identities) == nil:
		return missing(p.Identities)
	case p.Networks != (Reference{}) && objects.Networks(p.Networks) == nil:
		return missing(p.Networks)
	}
	return ""
}

// appendAuthorization appends an authorization with these identities, unless it lets no client in.
func (n *namespaceIndex) appendAuthorization(
	all []Authorization, a Authorization, identities Identities,
) []Authorization {
	if a.Clients == ClientsIdentified {
		a.Identities = n.Identity.all(identities, n.domains)
	}
	isEmpty := a.Clients == ClientsNone || len(a.Networks) == 0 ||
		a.Clients == ClientsIdentified && len(a.Identities) == 0
	if isEmpty {
		return all
	}
	return append(all, a)
}

// all returns identities as patterns: first those that are given as such, then those of accounts, in this trust domain
// and in others.
func (d IdentityDomain) all(identities Identities, others []string) []Pattern {
	patterns := slices.Clone(identities.Patterns)
	for _, account := range identities.Accounts {
		if p, is := d.Of(account); is {
			patterns = append(patterns, p)
		}
		for _, other := range others {
			if p, is := d.In(other).Of(account); is {
				patterns = append(patterns, p)
			}
		}
	}
	return patterns
}

// ofDefault returns the authorization of a default policy, of its name; none if that is Deny.
func (o *Options) ofDefault(p DefaultPolicy) []Authorization {
	grant := Authorization{Origin: defaultOrigin(p.String()), Networks: Everywhere, Clients: ClientsAny}
	if p == ClusterUnauthenticated || p == ClusterAuthenticated {
		grant.Networks = o.ClusterNetworks
	}
	if p == AllAuthenticated || p == ClusterAuthenticated {
		grant.Clients, grant.Identities = ClientsIdentified, []Pattern{{Suffix: true}}
	}

	if p == Deny || len(grant.Networks) == 0 {
		return nil
	}
	return []Authorization{grant}
}

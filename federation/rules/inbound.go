package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Workload is a Pod or an ExternalWorkload, as far as the policy of its ports depends on it. The Pods of a template
// have an equal one. It is immutable.
type Workload struct {
	External  bool
	Namespace string
	Labels    map[string]string

	Ports  []NamedPort // that carry TCP, of containers and init containers
	Probes []Probe     // by HTTP, of containers and init containers

	// From annotations.
	Default         DefaultPolicy // if it is given
	HasDefault      bool
	RequireIdentity *PortList // ports on which clients need an identity
	Opaque          *PortList

	Findings []Finding
}

// AppendText appends a text that equal Workloads have, and no others.
func (w *Workload) AppendText(to []byte) []byte {
	to = fmt.Appendf(to, "%t %q", w.External, w.Namespace)
	for _, key := range slices.Sorted(maps.Keys(w.Labels)) {
		to = fmt.Appendf(to, " %q=%q", key, w.Labels[key])
	}
	for _, port := range w.Ports {
		to = fmt.Appendf(to, " %q:%d", port.Name, port.Number)
	}
	for _, probe := range w.Probes {
		to = fmt.Appendf(to, " %d%q", probe.Port, probe.Path)
	}

	to = fmt.Appendf(to, " %t %d", w.HasDefault, w.Default)
	to = w.Opaque.appendText(w.RequireIdentity.appendText(to))
	for _, f := range w.Findings {
		to = fmt.Appendf(to, " %t %d %q %q", f.Unconverted, f.Rule, f.Part, f.Reason)
	}
	return to
}

// A Probe is a request that a kubelet sends.
type Probe struct {
	Port uint16
	Path string // begins with / and has no query
}

// An Inbound is what may be sent to a port of a workload, and how. It is immutable.
type Inbound struct {
	Origin         // a Server, or a default policy
	Protocol       ServerProtocol
	Authorizations []Authorization
	Routes         []InboundRoute // of HTTP, or of gRPC if that is the Protocol; in order
	Limit          *InboundLimit  // nil: none
}

// An InboundRoute is a way by which requests may come in.
type InboundRoute struct {
	Origin
	Hosts          []Pattern // empty: all
	Rules          []InboundRule
	Authorizations []Authorization // besides those of the port
}

// An InboundRule is requests of a kind, and what is done with them.
type InboundRule struct {
	Matches []Match
	Filters []Filter
	Fail    string // why such requests fail; empty if they do not
}

// An InboundLimit bounds requests per second.
type InboundLimit struct {
	Origin
	Total, Identity uint32 // 0: no bound
	Overrides       []InboundOverride
}

// An InboundOverride is the bound of some clients.
type InboundOverride struct {
	Limit      uint32
	Identities []Pattern
}

// An InboundLevel is all that the policy of a port follows from. Ports of many workloads have one: no label is in it.
type InboundLevel struct {
	server *ServerRules // nil: no Server is about the port

	// Without a Server.
	policy DefaultPolicy
	opaque bool

	probes string // paths that are probed, each with a newline after it; empty if no route follows from them
}

// Inbound returns the policy of a port of a workload. servers are those of its namespace, as Of returns them.
func (o *Options) Inbound(w *Workload, servers []*ServerRules, port uint16) *Inbound {
	return o.InboundOf(o.InboundLevel(w, servers, port))
}

// InboundLevel returns what the policy of a port of a workload follows from.
func (o *Options) InboundLevel(workload *Workload, servers []*ServerRules, port uint16) InboundLevel {
	for _, server := range servers {
		if server.selects(workload, port) {
			level := InboundLevel{server: server}
			if server.hasDefaultHTTP() {
				level.probes = o.probesOf(workload, port)
			}
			return level
		}
	}

	level := InboundLevel{policy: o.DefaultPolicy, opaque: workload.Opaque.Contains(port, workload.Ports)}
	if workload.HasDefault {
		level.policy = workload.Default
	}
	if workload.RequireIdentity.Contains(port, workload.Ports) {
		level.policy = level.policy.authenticated()
	}
	if !level.opaque {
		level.probes = o.probesOf(workload, port)
	}
	return level
}

// InboundOf returns the policy of a port.
func (o *Options) InboundOf(level InboundLevel) *Inbound {
	if level.server != nil {
		return o.ofPort(level.server, level.probes)
	}

	in := &Inbound{Origin: defaultOrigin(level.policy.String()), Authorizations: o.ofDefault(level.policy)}
	if level.opaque {
		in.Protocol = ProtocolOpaque
	} else {
		in.Routes = o.defaultRoutes(level.probes)
	}
	return in
}

// hasDefaultHTTP reports whether a Server has the default routes of HTTP.
func (s *ServerRules) hasDefaultHTTP() bool {
	switch s.Protocol {
	case ProtocolOpaque, ProtocolTLS, ProtocolGRPC:
		return false
	default:
		return !slices.ContainsFunc(s.Routes, func(r ServerRoute) bool { return r.Kind.IsHTTP() })
	}
}

// probesOf returns the paths at which a port is probed, if probes are let in.
func (o *Options) probesOf(w *Workload, port uint16) string {
	if len(o.ProbeNetworks) == 0 {
		return ""
	}
	var paths []string
	for _, probe := range w.Probes {
		if line := probe.Path + "\n"; probe.Port == port && !slices.Contains(paths, line) {
			paths = append(paths, line)
		}
	}
	return strings.Join(paths, "")
}

// selects reports whether a Server is about a port of a workload.
func (s *Server) selects(w *Workload, port uint16) bool {
	isPort := s.Port.Number == port
	if s.Port.Number == 0 {
		isPort = slices.Contains(w.Ports, NamedPort{s.Port.Name, port})
	}
	return isPort && s.selectsWorkload(w)
}

// selectsWorkload reports whether a Server is about some port of a workload.
func (s *Server) selectsWorkload(w *Workload) bool {
	if w.External {
		return s.Externals.Matches(w.Labels)
	}
	return s.Pods.Matches(w.Labels)
}

// ofPort returns the policy of a port that a Server is about.
func (o *Options) ofPort(server *ServerRules, probes string) *Inbound {
	in := &Inbound{
		Origin: Origin{Reference: server.Reference}, Protocol: server.Protocol, Authorizations: server.Authorizations,
	}
	switch server.Protocol {
	case ProtocolOpaque, ProtocolTLS:
		return in
	case ProtocolGRPC:
		in.addRoutes(server.Routes, func(k Kind) bool { return k == KindGRPCRoute })
		if len(in.Routes) == 0 {
			in.Routes = []InboundRoute{defaultRoute(Match{})}
		}
		return in
	default:
	}

	in.Limit = o.limitOf(server)
	in.addRoutes(server.Routes, Kind.IsHTTP)
	if len(in.Routes) == 0 {
		in.Routes = o.defaultRoutes(probes)
	}
	return in
}

// authenticated returns the policy that lets in those of the clients that have an identity.
func (p DefaultPolicy) authenticated() DefaultPolicy {
	switch p {
	case AllUnauthenticated, Audit:
		return AllAuthenticated
	case ClusterUnauthenticated:
		return ClusterAuthenticated
	default:
		return p
	}
}

// addRoutes adds the routes of some kinds.
func (in *Inbound) addRoutes(routes []ServerRoute, isOfKind func(Kind) bool) {
	for _, r := range routes {
		if isOfKind(r.Kind) {
			in.Routes = append(in.Routes, r.inbound())
		}
	}
}

func (r *ServerRoute) inbound() InboundRoute {
	route := InboundRoute{Origin: Origin{Reference: r.Reference}, Hosts: r.Hostnames, Authorizations: r.Authorizations}
	for rule := range r.Sent() {
		in := InboundRule{Matches: rule.Matches, Fail: rule.Unsupported()}
		for _, f := range rule.Filters {
			isSent := f.RequestHeaders != nil || f.Redirect != nil && r.Kind.IsHTTP()
			if in.Fail == "" && isSent {
				in.Filters = append(in.Filters, f)
			}
		}
		route.Rules = append(route.Rules, in)
	}
	return route
}

// allPaths matches every request of HTTP.
var allPaths = Match{Path: PathMatch{Type: PathPrefix, Text: "/"}}

func defaultRoute(match Match) InboundRoute {
	return InboundRoute{Origin: defaultOrigin("default"), Rules: []InboundRule{{Matches: []Match{match}}}}
}

// defaultRoutes returns the routes of a port of HTTP to which none is attached: that of everything, and that of probes.
func (o *Options) defaultRoutes(probes string) []InboundRoute {
	routes := []InboundRoute{defaultRoute(allPaths)}
	if probes == "" {
		return routes
	}

	var matches []Match
	for line := range strings.Lines(probes) {
		path := PathMatch{Type: PathExact, Text: strings.TrimSuffix(line, "\n")}
		matches = append(matches, Match{Path: path, Method: "GET"})
	}

	const name = "probe"
	return append(routes, InboundRoute{
		Origin: defaultOrigin(name), Rules: []InboundRule{{Matches: matches}},
		Authorizations: []Authorization{
			{Origin: defaultOrigin(name), Networks: o.ProbeNetworks, Clients: ClientsAny},
		},
	})
}

// limitOf returns the rate limit of a Server with the identities that it names; nil for none.
func (o *Options) limitOf(server *ServerRules) *InboundLimit {
	limit := server.Limit
	if limit == nil {
		return nil
	}
	in := &InboundLimit{Origin: Origin{Reference: limit.Reference}, Total: limit.Total, Identity: limit.Identity}
	for _, override := range limit.Overrides {
		identities := o.Identity.all(Identities{Accounts: override.Accounts}, server.TrustDomains)
		in.Overrides = append(in.Overrides, InboundOverride{Limit: override.Limit, Identities: identities})
	}
	return in
}

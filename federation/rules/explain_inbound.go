package rules

import (
	"fmt"
	"slices"
)

// An InboundExplanation is an answer about a port of a workload, and why it is what it is.
type InboundExplanation struct {
	Answer *Inbound
	Causes []Cause  // what counts first
	Notes  []string // what follows from no object but the workload
}

// ExplainInbound returns the policy of a port of a workload, as Inbound does, and why it is that. servers are those of
// its namespace; nil for none.
func (o *Options) ExplainInbound(w *Workload, servers *NamespaceServers, port uint16) *InboundExplanation {
	if servers == nil {
		servers = &NamespaceServers{}
	}
	x := &inboundExplanation{Options: o, workload: w, servers: servers, answer: o.Inbound(w, servers.All, port)}

	selected := x.addServers(port)
	if selected != nil {
		x.addServer(selected)
	} else {
		x.addDefault(port)
	}
	x.addRefused(selected)
	return &InboundExplanation{Answer: x.answer, Causes: x.sorted(), Notes: x.notes}
}

// An inboundExplanation is one that is computed.
type inboundExplanation struct {
	*Options
	workload *Workload
	servers  *NamespaceServers
	answer   *Inbound
	notes    []string
	causes
}

// addServers adds the Servers that select the workload, and returns the one that the answer is of; nil for none.
func (x *inboundExplanation) addServers(port uint16) (selected *ServerRules) {
	for _, server := range x.servers.All {
		switch {
		case server.selects(x.workload, port) && server.Reference == x.answer.Reference:
			selected = server
			x.count(server.Reference, "it selects the port, accessPolicy is %s", server.Access)
		case server.selects(x.workload, port):
			x.leaveOut(server.Reference, "it selects the port, too, and %s is older", x.answer.Reference)
		case server.selectsWorkload(x.workload):
			x.leaveOut(server.Reference, "it selects the workload at port %s, and not at %d", server.Port, port)
		}
	}
	return selected
}

// String returns the port for people.
func (p PortRef) String() string {
	if p.Number == 0 {
		return p.Name
	}
	return fmt.Sprint(p.Number)
}

// addServer adds what follows from objects about the Server of the port.
func (x *inboundExplanation) addServer(server *ServerRules) {
	x.addGrants(server.Authorizations)
	for i := range server.Routes {
		route := &server.Routes[i]
		isUsed := slices.ContainsFunc(x.answer.Routes, func(r InboundRoute) bool {
			return r.Origin == Origin{Reference: route.Reference}
		})
		if isUsed {
			x.count(route.Reference, "%s", route.describeSent())
			x.addGrants(route.Authorizations)
			continue
		}

		x.leaveOut(route.Reference, "it has no effect: %s", server.Protocol.carries())
		for _, a := range route.Authorizations {
			x.leaveOut(a.Reference, "%s, which it is about, has no effect", route.Reference)
		}
	}

	for i := range server.NotAttached {
		a := &server.NotAttached[i]
		x.leaveOut(a.Route.Reference, "%s", a.whyNot())
	}

	switch limit := server.Limit; {
	case limit == nil:
	case x.answer.Limit != nil:
		x.count(limit.Reference, "it bounds requests")
	default:
		x.leaveOut(limit.Reference, "it has no effect: requests are not bounded at a port of %s", server.Protocol)
	}
}

// addGrants adds what lets clients in.
func (x *inboundExplanation) addGrants(all []Authorization) {
	for i := range all {
		a := &all[i]
		if a.Default != "" {
			continue
		}
		x.count(a.Reference, "it lets in %s", x.Identity.DescribeClients(a))
		for _, required := range a.Requires {
			x.count(required, "%s requires it", a.Reference)
		}
	}
}

// describeSent returns how many rules of a route are sent.
func (r *Route) describeSent() string {
	sent := len(r.SentNumbers())
	switch {
	case sent == 0:
		return "it is attached, and matches nothing: none of its rules can be used"
	case sent < len(r.Rules):
		return fmt.Sprintf("it is attached, with %d of %d rules", sent, len(r.Rules))
	}
	return "it is attached"
}

var serverProtocolNames = [...]string{
	ProtocolDetect: "unknown", ProtocolHTTP1: "HTTP/1", ProtocolHTTP2: "HTTP/2", ProtocolGRPC: "gRPC",
	ProtocolOpaque: "opaque", ProtocolTLS: "TLS",
}

// String returns the name that a Server has for it.
func (p ServerProtocol) String() string { return serverProtocolNames[p] }

// carries returns which routes a port uses, for people.
func (p ServerProtocol) carries() string {
	switch p {
	case ProtocolGRPC:
		return "a port of gRPC uses GRPCRoutes"
	case ProtocolOpaque, ProtocolTLS:
		return "a port of " + p.String() + " uses no routes"
	default:
		return "a port of HTTP uses HTTPRoutes"
	}
}

// addDefault adds where the policy of a port without a Server is from.
func (x *inboundExplanation) addDefault(port uint16) {
	from := "-default-policy"
	if x.workload.HasDefault {
		from = "the annotation config.linkerd.io/default-inbound-policy"
	}
	x.note("no Server selects the port: its policy is %s, by %s", x.answer.Default, from)

	if x.workload.RequireIdentity.Contains(port, x.workload.Ports) {
		x.note("the annotation config.linkerd.io/proxy-require-identity-inbound-ports has the port")
	}
	if x.answer.Protocol == ProtocolOpaque {
		x.note("the annotation config.linkerd.io/opaque-ports has the port")
	}
}

func (x *inboundExplanation) note(format string, args ...any) {
	x.notes = append(x.notes, fmt.Sprintf(format, args...))
}

// addRefused adds what has no effect where one may be expected: at the Server of the port, at one of its routes, or at
// what there is not.
func (x *inboundExplanation) addRefused(server *ServerRules) {
	for i := range x.servers.Refused {
		if r := &x.servers.Refused[i]; r.Dangling || server != nil && r.isAbout(server) {
			x.leaveOut(r.Reference, "%s", r.Why)
		}
	}
}

func (r *Refused) isAbout(server *ServerRules) bool {
	switch r.Of {
	case Reference{}:
		return r.Selector == nil || r.Selector.Matches(server.Labels)
	case server.Reference:
		return true
	}
	return slices.ContainsFunc(server.Routes, func(s ServerRoute) bool { return s.Reference == r.Of }) ||
		slices.ContainsFunc(server.NotAttached, func(a Attachment) bool { return a.Route.Reference == r.Of })
}

package rules

import (
	"fmt"
	"net/netip"
	"slices"
)

// An OutboundExplanation is an answer about a target, and why it is what it is.
type OutboundExplanation struct {
	Answer *Outbound
	Causes []Cause // what counts first
}

// ExplainOutbound returns how clients reach a port of a target, as Outbound does, and why it is that.
func (o *Options) ExplainOutbound(t *Target, q OutboundQuery) *OutboundExplanation {
	x := &outboundExplanation{
		outboundAnswer: outboundAnswer{Options: o, Target: t, OutboundQuery: q}, given: o.Outbound(t, q),
	}

	x.addTarget()
	for i := range t.Attached {
		x.addRoute(&t.Attached[i])
	}
	return &OutboundExplanation{Answer: x.given, Causes: x.sorted()}
}

// An outboundExplanation is one that is computed.
type outboundExplanation struct {
	outboundAnswer
	given *Outbound
	causes
}

// addTarget adds what clients ask about.
func (x *outboundExplanation) addTarget() {
	switch {
	case x.Kind == KindService && !x.Exists:
		x.leaveOut(x.Reference, "it does not exist: requests wait for endpoints of its name, and fail")
	case x.given.isUndefined():
		x.count(x.Reference, "it does not declare port %d: nothing is sent there", x.Port)
	case x.Kind == KindEgressNetwork && x.Deny:
		x.count(x.Reference, "trafficPolicy is Deny: what no route allows is refused")
	case x.Imported.Number != 0 && x.NeedsImported(x.Port):
		x.count(x.Reference, "it is what clients ask for, and has the protocol of the Services that it stands for")
	default:
		x.count(x.Reference, "it is what clients ask for")
	}
}

// isUndefined reports whether the answer is about a port that its Service does not declare.
func (o *Outbound) isUndefined() bool {
	return len(o.Routes) > 0 && o.Routes[0].Default == undefinedPort
}

// addRoute adds a route that names the target, and its backends if it counts.
func (x *outboundExplanation) addRoute(at *Attachment) {
	route := at.Route
	if !x.given.has(route.Reference) {
		x.leaveOut(route.Reference, "%s", x.whyNot(at))
		return
	}

	x.count(route.Reference, "%s", route.describeSent())
	for rule := range route.Sent() {
		for i := range rule.Backends {
			x.addBackend(route, &rule.Backends[i])
		}
	}
}

// has reports whether the answer has a route.
func (o *Outbound) has(route Reference) bool {
	is := func(r OutboundRoute) bool { return r.Origin == Origin{Reference: route} }
	return slices.ContainsFunc(o.Routes, is) || is(o.Opaque)
}

// addBackend adds a Service or an EgressNetwork that a rule names.
func (x *outboundExplanation) addBackend(route *Route, named *Backend) {
	switch fail := x.backendFailure(route, named); {
	case named.Kind == KindOther:
	case fail != "":
		x.leaveOut(named.Reference, "a backend of %s, and what is sent there fails: %s", route.Reference, fail)
	default:
		x.count(named.Reference, "a backend of %s", route.Reference)
	}
}

// whyNot returns why a route is not in the answer.
func (x *outboundExplanation) whyNot(at *Attachment) string {
	switch {
	case !at.Accepted():
		return at.whyNot()
	case x.given.isUndefined():
		return fmt.Sprintf("%s does not declare port %d", x.Reference, x.Port)
	case x.otherParents(at):
		return fmt.Sprintf("no parentRef of it is about port %d", x.Port)
	case !x.isOfClient(at):
		return "it is a route for clients in " + at.Route.Namespace
	}
	return "it has no effect: " + x.given.carries(x.Kind)
}

// otherParents reports whether no attachment of a route is about the port.
func (x *outboundExplanation) otherParents(at *Attachment) bool {
	for i := range x.Attached {
		if other := &x.Attached[i]; other.Route == at.Route && other.Accepted() && x.isOfPort(other) {
			return false
		}
	}
	return true
}

var outboundProtocolNames = [...]string{
	OutboundDetect: "detected", OutboundHTTP1: "HTTP/1", OutboundHTTP2: "HTTP/2", OutboundGRPC: "gRPC",
	OutboundTLS: "TLS", OutboundOpaque: "opaque",
}

// String returns the name of the protocol, for people.
func (p OutboundProtocol) String() string { return outboundProtocolNames[p] }

// carries returns which routes an answer uses, for people.
func (o *Outbound) carries(of Kind) string {
	switch o.Protocol {
	case OutboundGRPC:
		return "GRPCRoutes are used, and no others"
	case OutboundTLS:
		return "TLSRoutes are used, and no others"
	case OutboundOpaque:
		return "the port carries bytes, for which the oldest TCPRoute is used"
	case OutboundDetect:
		return "of what is detected, HTTPRoutes are used"
	default:
		return "a port of " + o.Protocol.String() + " of this " + of.String() + " uses HTTPRoutes"
	}
}

// ExplainEgress returns the EgressNetwork that decides about an address, as Egress does, and which others there are.
func (o *Options) ExplainEgress(
	addr netip.Addr, own, global []*EgressNetwork,
) (found *EgressNetwork, candidates []Cause) {
	found = o.Egress(addr, own, global)
	var all causes
	inForce := own
	if len(own) == 0 {
		inForce = global
	}

	for _, egress := range sortedByAge(inForce) {
		switch size := o.sizeAround(egress, addr); {
		case egress == found:
			all.count(egress.Reference, "its network is the smallest that contains %v%s", addr, o.overlapNote(egress))
		case o.InCluster(addr):
			all.leaveOut(egress.Reference, "%v is inside of the cluster (-cluster-networks)", addr)
		case size == nil:
			all.leaveOut(egress.Reference, "none of its networks contains %v", addr)
		case size.Cmp(o.sizeAround(found, addr)) > 0:
			all.leaveOut(egress.Reference, "%s has a smaller network that contains %v", found.Reference, addr)
		default:
			all.leaveOut(egress.Reference, "%s has as small a network, and is older", found.Reference)
		}
	}

	if len(own) > 0 {
		for _, egress := range sortedByAge(global) {
			all.leaveOut(egress.Reference, "the namespace of the client has EgressNetworks of its own")
		}
	}
	return found, all.sorted()
}

func sortedByAge(all []*EgressNetwork) []*EgressNetwork {
	return slices.SortedFunc(slices.Values(all), func(a, b *EgressNetwork) int { return CompareAge(&a.Meta, &b.Meta) })
}

func (o *Options) overlapNote(e *EgressNetwork) string {
	if o.AcceptsEgress(e) {
		return ""
	}
	return "; routes do not count, as its networks overlap with -cluster-networks"
}

package rules

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/federation"
)

// A Target is what clients send to, and all that is asked of that: a Service, which need not exist, or an
// EgressNetwork. It is immutable.
type Target struct {
	Reference
	Created  time.Time     // zero: unknown
	Exists   bool          // whether there is such a Service
	Ports    []ServicePort // of a Service
	Settings Settings
	Deny     bool // of an EgressNetwork: what no route allows

	// Imports is whether a Service stands for others, as a mirror or a federated one does. What they declare about the
	// protocol of a port counts where the Service itself declares nothing.
	Imports bool

	Attached []Attachment       // in any order; those that are not accepted do not count
	Found    map[Reference]bool // which of the Services that their backends name exist
}

// A ServicePort is a port that a Service declares, by any protocol.
type ServicePort struct {
	NamedPort
	AppProtocol string
}

// An OutboundQuery is what a client asks about a Target.
type OutboundQuery struct {
	Port   uint16
	Client string // its namespace

	// ByAddress is whether it asks for an address. The answer about an EgressNetwork then leads there.
	ByAddress bool

	// Imported is what the Services declare that a Target stands for. Without a number it is nothing.
	Imported federation.ImportedPort
}

// NeedsImported reports whether the answer about a port depends on what the Services declare that a Target stands for.
func (t *Target) NeedsImported(port uint16) bool {
	return t.Imports && t.Settings.OpaquePorts == nil &&
		!slices.ContainsFunc(t.Ports, func(p ServicePort) bool { return p.Number == port && p.AppProtocol != "" })
}

// An Outbound is how clients reach a target. It is immutable.
type Outbound struct {
	Origin
	Port     uint16 // of the Origin, unless that is a default
	Protocol OutboundProtocol
	Accrual  *Accrual        // of HTTP and gRPC; nil: none
	Routes   []OutboundRoute // of the Protocol: if it is detected, of HTTP
	Opaque   OutboundRoute   // of a Protocol that is detected, for what is not HTTP
}

// An OutboundProtocol is how a proxy treats connections to a port.
type OutboundProtocol uint8

// Protocols of targets.
const (
	OutboundDetect OutboundProtocol = iota
	OutboundHTTP1
	OutboundHTTP2
	OutboundGRPC
	OutboundTLS
	OutboundOpaque
)

// An OutboundRoute is requests or connections that are treated in one way.
type OutboundRoute struct {
	Origin
	Hosts []Pattern // empty: all
	Rules []OutboundRule
}

// An OutboundRule is where a part of those of its route go.
type OutboundRule struct {
	Matches  []Match // of HTTP and gRPC; empty: all
	Filters  []Filter
	Fail     *Failure          // what they get instead of an answer; nil if they are sent
	Backends []OutboundBackend // none: it leads nowhere
	IsSplit  bool              // whether Backends are chosen by weight; otherwise it is the first one that is available

	Timeouts     Timeouts // of HTTP and gRPC, as the rest; none is 0
	Retry        *Retries // nil: none; its Limit is above 0
	AllowHeaders bool     // whether clients may set l5d-* headers
}

// A Failure is what requests get that are not sent.
type Failure struct {
	Forbidden bool   // by a policy; otherwise something of the route is wrong
	Message   string // of HTTP and gRPC
}

// An OutboundBackend is where requests or connections are sent.
type OutboundBackend struct {
	Origin
	Port      uint16 // of the Origin; 0 if it has none
	Authority string // whose endpoints are used; empty: see Original
	Original  bool   // the address that the client asks for; otherwise, without an Authority, it is none
	Load      *Load  // how they are balanced; nil: by their latency alone
	Weight    uint32
	Filters   []Filter
	Fail      string // why this part fails; empty if it does not
}

// Names of parts that no object asks for.
const (
	undefinedPort  = "undefined-port"
	egressFallback = "egress-fallback"
	notAllowed     = "traffic not allowed"
)

// Outbound returns how clients reach a port of a target.
func (o *Options) Outbound(t *Target, asked OutboundQuery) *Outbound {
	answer := &outboundAnswer{Options: o, Target: t, OutboundQuery: asked}
	declared := slices.IndexFunc(t.Ports, func(p ServicePort) bool { return p.Number == asked.Port })
	if t.Kind == KindService && asked.ByAddress && declared < 0 {
		return answer.undefined()
	}

	if declared >= 0 {
		answer.protocol, answer.isDeclared = o.appProtocol(t.Ports[declared].AppProtocol)
	}
	switch imports := asked.Imported.Number != 0 && t.NeedsImported(asked.Port); {
	case answer.isDeclared:
	case imports:
		answer.protocol, answer.isDeclared = o.importedProtocol(asked.Imported)
	case answer.isOpaque():
		answer.protocol = OutboundOpaque
	}
	return answer.answer()
}

// Fallback returns how clients reach an address outside of the cluster of which no EgressNetwork decides.
func Fallback() *Outbound {
	route := OutboundRoute{Origin: defaultOrigin(egressFallback)}
	backends := []OutboundBackend{{Origin: route.Origin, Original: true, Weight: 1}}
	route.Rules = []OutboundRule{{Backends: backends}}
	http := route
	http.Rules = []OutboundRule{{Matches: []Match{{}}, Backends: backends}}
	return &Outbound{Origin: route.Origin, Routes: []OutboundRoute{http}, Opaque: route}
}

// appProtocol returns the protocol of a port by what its Service declares (KEP-3726), if it declares any. One that is
// not known is bytes.
func (o *Options) appProtocol(text string) (protocol OutboundProtocol, isDeclared bool) {
	switch strings.ToLower(text) {
	case "":
		return OutboundDetect, false
	case "http":
		return OutboundHTTP1, true
	case "kubernetes.io/h2c":
		return OutboundHTTP2, true
	case "grpc":
		if o.GRPCAppProtocol {
			return OutboundHTTP2, true
		}
	}
	return OutboundOpaque, true
}

// importedProtocol returns the protocol of a port by what the Services declare that its own stands for.
func (o *Options) importedProtocol(port federation.ImportedPort) (protocol OutboundProtocol, isDeclared bool) {
	switch {
	case port.Disputed:
		return OutboundDetect, false
	case port.Opaque:
		return OutboundOpaque, false
	}
	return o.appProtocol(port.App)
}

// An outboundAnswer is one that is computed.
type outboundAnswer struct {
	*Options
	*Target
	OutboundQuery
	protocol   OutboundProtocol // of the port
	isDeclared bool             // by an appProtocol
}

// isOpaque reports whether the port is in the list of those that carry no known protocol.
func (a *outboundAnswer) isOpaque() bool {
	var declared []NamedPort
	for _, p := range a.Ports {
		declared = append(declared, p.NamedPort)
	}
	list := a.Settings.OpaquePorts
	if list == nil {
		list = a.OpaquePorts
	}
	return list.Contains(a.Port, declared)
}

func (a *outboundAnswer) new(protocol OutboundProtocol, routes ...OutboundRoute) *Outbound {
	out := &Outbound{Origin: Origin{Reference: a.Reference}, Port: a.Port, Protocol: protocol, Routes: routes}
	if protocol <= OutboundGRPC {
		out.Accrual = a.Settings.Accrual
	}
	return out
}

// undefined returns the answer about a port that its Service does not declare: nothing is sent there.
func (a *outboundAnswer) undefined() *Outbound {
	return a.new(OutboundOpaque, OutboundRoute{
		Origin: defaultOrigin(undefinedPort), Rules: []OutboundRule{{Fail: &Failure{Forbidden: true}}},
	})
}

// answer returns the answer by the first kind of routes that the protocol can carry, and of which there are any.
func (a *outboundAnswer) answer() *Outbound {
	isDetected := a.protocol == OutboundDetect
	if isDetected || a.protocol == OutboundHTTP2 {
		if routes := a.routesOf(func(k Kind) bool { return k == KindGRPCRoute }); len(routes) > 0 {
			return a.new(OutboundGRPC, append(routes, a.egressDefault("grpc")...)...)
		}
	}
	if isDetected {
		return a.detected()
	}

	if a.protocol == OutboundOpaque {
		return a.new(OutboundOpaque, a.opaqueRoute())
	}
	return a.new(a.protocol, a.httpRoutes()...)
}

// detected returns the answer about a port whose protocol is found out on each connection.
func (a *outboundAnswer) detected() *Outbound {
	http := a.routesOf(Kind.IsHTTP)
	if len(http) == 0 {
		if routes := a.routesOf(func(k Kind) bool { return k == KindTLSRoute }); len(routes) > 0 {
			return a.new(OutboundTLS, append(routes, a.egressDefault("tls")...)...)
		}
		if len(a.tcpRoutes()) > 0 {
			return a.new(OutboundOpaque, a.opaqueRoute())
		}
	}

	out := a.new(OutboundDetect, a.httpRoutes()...)
	out.Opaque = a.defaultOpaque()
	return out
}

// routesOf returns the attached routes of some kinds that the client gets at the port, in order: those of the
// target's own namespace, and those of the client's.
func (a *outboundAnswer) routesOf(isOfKind func(Kind) bool) (all []OutboundRoute) {
	var routes []*Route
	for i := range a.Attached {
		at := &a.Attached[i]
		isGiven := at.Accepted() && a.isOfPort(at) && a.isOfClient(at)
		if isGiven && isOfKind(at.Route.Kind) && !slices.Contains(routes, at.Route) {
			routes = append(routes, at.Route)
		}
	}

	slices.SortFunc(routes, func(a, b *Route) int { return CompareAge(&a.Meta, &b.Meta) })
	for _, r := range routes {
		all = append(all, a.route(r))
	}
	return all
}

func (a *outboundAnswer) isOfPort(at *Attachment) bool { return at.Port == 0 || at.Port == a.Port }

func (a *outboundAnswer) isOfClient(at *Attachment) bool {
	return at.Route.Namespace == a.Namespace || at.Route.Namespace == a.Client
}

func (a *outboundAnswer) tcpRoutes() []OutboundRoute {
	return a.routesOf(func(k Kind) bool { return k == KindTCPRoute })
}

// httpRoutes returns the HTTPRoutes, or that of everything.
func (a *outboundAnswer) httpRoutes() []OutboundRoute {
	routes := a.routesOf(Kind.IsHTTP)
	if a.Kind == KindEgressNetwork {
		return append(routes, a.egressDefault("http")...)
	}
	if len(routes) > 0 {
		return routes
	}
	return []OutboundRoute{a.defaultRoute("http", []Match{allPaths}, a.Settings.HTTPRetry)}
}

// egressDefault returns what is done by default with a protocol that leaves by an EgressNetwork; none for a Service.
func (a *outboundAnswer) egressDefault(protocol string) []OutboundRoute {
	if a.Kind != KindEgressNetwork {
		return nil
	}

	name := protocol + "-egress-allow"
	if a.Deny {
		name = protocol + "-egress-deny"
	}

	var route OutboundRoute
	switch protocol {
	case "http":
		route = a.defaultRoute(name, []Match{allPaths}, a.Settings.HTTPRetry)
	case "grpc":
		route = a.defaultRoute(name, nil, a.Settings.GRPCRetry)
	default:
		route = OutboundRoute{
			Origin: defaultOrigin(name), Rules: []OutboundRule{{Backends: []OutboundBackend{a.ownBackend()}}},
		}
	}

	if a.Deny {
		route.Rules[0].Fail = &Failure{Forbidden: true, Message: notAllowed}
	}
	return []OutboundRoute{route}
}

// opaqueRoute returns the one route of a port that carries bytes.
func (a *outboundAnswer) opaqueRoute() OutboundRoute {
	if routes := a.tcpRoutes(); len(routes) > 0 {
		return routes[0]
	}
	return a.defaultOpaque()
}

func (a *outboundAnswer) defaultOpaque() OutboundRoute {
	if routes := a.egressDefault("tcp"); routes != nil {
		return routes[0]
	}
	return OutboundRoute{
		Origin: defaultOrigin("opaq"), Rules: []OutboundRule{{Backends: []OutboundBackend{a.ownBackend()}}},
	}
}

// defaultRoute returns a route of HTTP or gRPC that leads to the target, as its settings have it.
func (a *outboundAnswer) defaultRoute(name string, matches []Match, retry *Retries) OutboundRoute {
	return OutboundRoute{Origin: defaultOrigin(name), Rules: []OutboundRule{{
		Matches: matches, Backends: []OutboundBackend{a.ownBackend()},
		Timeouts: a.Settings.Timeouts, Retry: retry.orNone(),
	}}}
}

// orNone returns nil for retries that never happen.
func (r *Retries) orNone() *Retries {
	if r == nil || r.Limit == 0 {
		return nil
	}
	return r
}

// ownBackend returns the target as a backend of its own routes.
func (a *outboundAnswer) ownBackend() OutboundBackend {
	b := OutboundBackend{Origin: Origin{Reference: a.Reference}, Port: a.Port, Weight: 1}
	if a.Kind == KindEgressNetwork {
		b.Original = true
		return b
	}

	b.Authority = a.authority(a.Reference, a.Port)
	if a.protocol != OutboundOpaque {
		b.Load = a.Settings.Load
	}
	return b
}

// authority returns the name by which a proxy asks for the endpoints of a Service.
func (o *Options) authority(service Reference, port uint16) string {
	host := service.Name + "." + service.Namespace + ".svc." + o.ClusterDomain
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// route returns an attached route. Proxies take no route of connections without a rule: where it cannot be known, one
// that fails takes its place.
func (a *outboundAnswer) route(r *Route) OutboundRoute {
	out := OutboundRoute{Origin: Origin{Reference: r.Reference}, Hosts: r.Hostnames}
	ofRequests := r.Kind.IsHTTP() || r.Kind == KindGRPCRoute
	for rule := range r.Sent() {
		next := a.ruleBackends(r, rule)
		if ofRequests {
			a.addRequests(&next, r, rule)
		}
		out.Rules = append(out.Rules, next)
	}

	if len(out.Rules) == 0 && !ofRequests {
		out.Rules = []OutboundRule{{Fail: &Failure{Message: "the rule of the route cannot be known"}}}
	}
	return out
}

// addRequests adds what concerns requests: matches, filters, timeouts and retries.
func (a *outboundAnswer) addRequests(to *OutboundRule, route *Route, rule *Rule) {
	to.Matches, to.AllowHeaders = rule.Matches, a.AllowRequestHeaders
	if text := unsupportedOutbound(route.Kind, rule.Filters); text != "" {
		to.Fail = &Failure{Message: text}
	} else {
		to.Filters = rule.Filters
	}

	to.Timeouts = a.Settings.Timeouts
	if route.Timeouts.Given() || rule.Timeouts.Given() {
		to.Timeouts = route.Timeouts
		if !route.Timeouts.Request.Given {
			to.Timeouts.Request = rule.Timeouts.Request
		}
	}

	retry := a.Settings.HTTPRetry
	if route.Kind == KindGRPCRoute {
		retry = a.Settings.GRPCRetry
	}
	if route.Retry != nil {
		retry = route.Retry
	}
	to.Retry = retry.orNone()
}

// unsupportedOutbound returns why filters of a route of some kind cannot be sent; empty if they can.
func unsupportedOutbound(kind Kind, filters []Filter) string {
	if text := firstUnsupported(filters); text != "" {
		return text
	}
	if kind == KindGRPCRoute && slices.ContainsFunc(filters, func(f Filter) bool { return f.ResponseHeaders != nil }) {
		return "ResponseHeaderModifier is not supported on GRPCRoutes"
	}
	return ""
}

// ruleBackends returns a rule with its backends. Proxies do not take weights that sum to 0: such a rule fails.
func (a *outboundAnswer) ruleBackends(route *Route, rule *Rule) (out OutboundRule) {
	switch {
	case len(rule.Backends) == 0:
		out.Backends = []OutboundBackend{a.ownBackend()}
		return out
	case rule.Weightless():
		out.Backends = []OutboundBackend{{Origin: defaultOrigin("invalid"), Weight: 1, Fail: "no backend has a weight"}}
		return out
	}

	out.IsSplit = true
	for i := range rule.Backends {
		out.Backends = append(out.Backends, a.backend(route, &rule.Backends[i]))
	}
	return out
}

// backend returns a backend that a route names.
func (a *outboundAnswer) backend(route *Route, named *Backend) OutboundBackend {
	to := OutboundBackend{Origin: Origin{Reference: named.Reference}, Port: named.Port, Weight: named.Weight}
	if named.Kind == KindOther {
		to.Origin = defaultOrigin("invalid")
	}
	if to.Kind == KindEgressNetwork && to.Port == 0 {
		to.Port = a.Port
	}

	switch to.Fail = a.backendFailure(route, named); {
	case to.Fail != "":
	case named.Kind == KindEgressNetwork:
		to.Original, to.Filters = true, named.Filters
	default:
		to.Authority, to.Filters = a.authority(named.Reference, named.Port), named.Filters
		if a.Kind == KindService && (route.Kind.IsHTTP() || route.Kind == KindGRPCRoute) {
			to.Load = a.Settings.Load
		}
	}
	return to
}

// backendFailure returns why the part of a backend fails; empty if it does not.
func (a *outboundAnswer) backendFailure(r *Route, named *Backend) string {
	switch {
	case named.Invalid != "":
		return named.Invalid
	case unsupportedOutbound(r.Kind, named.Filters) != "":
		return "unsupported backend filter"
	case named.Kind == KindEgressNetwork:
		return a.egressFailure(named)
	case named.Port == 0:
		return "missing port for backend Service " + named.Name
	case !a.Found[named.Reference]:
		return "Service not found " + named.Name
	}
	return ""
}

// egressFailure returns why nothing leaves by an EgressNetwork: it is not the one that the client asks about.
func (a *outboundAnswer) egressFailure(named *Backend) string {
	switch {
	case a.Kind != KindEgressNetwork:
		return "an EgressNetwork is no backend of a Service"
	case named.Reference != a.Reference:
		return "EgressNetwork " + named.Name + " is not the parent of the route"
	}
	return ""
}

package policy

import (
	"slices"
	"time"
)

// A Protocol is what a policy expects of a port, or what a client sends. It has the name of its field in the API.
type Protocol string

// The protocols. Detect is one of policies only.
const (
	Detect Protocol = "detect"
	HTTP1  Protocol = "http1"
	HTTP2  Protocol = "http2"
	GRPC   Protocol = "grpc"
	TLS    Protocol = "tls"
	Opaque Protocol = "opaque"
)

// isHTTP reports whether the routes of a protocol match requests, not connections.
func (p Protocol) isHTTP() bool { return p == HTTP1 || p == HTTP2 || p == GRPC }

// A Route is one route of a policy.
type Route struct {
	Metadata       Metadata
	Rules          []Rule
	Authorizations []Authorization // of an inbound route, besides those of its Server

	protocol Protocol
	hosts    []host
}

// A Rule is one rule of a route.
type Rule struct {
	Filters  []Filter
	Timeouts Timeouts

	// Backends are those of an outbound rule, in order; there are none if each request fails.
	Backends       []Backend
	FirstAvailable bool // the first backend that is available gets all; otherwise they share by weight

	matches []match
}

// Timeouts are those of an outbound rule; 0 if there is none.
type Timeouts struct {
	Request, Response, Idle time.Duration
}

// A direction is that of a policy: an outbound proxy asks more of a route.
type direction bool

const (
	receives direction = false
	sends    direction = true
)

// routesOf reads the routes in a field.
func (d direction) routesOf(owner part, field string, protocol Protocol) []Route {
	list := owner.list(field)
	if len(list) == 0 {
		return nil
	}

	all := make([]Route, 0, len(list))
	for _, p := range list {
		all = append(all, d.routeOf(p, protocol))
	}
	return all
}

func (d direction) routeOf(message part, protocol Protocol) Route {
	route := Route{Metadata: d.metadataOf(message), protocol: protocol}
	if d == receives {
		route.Authorizations = authorizationsOf(message)
	}

	if protocol.isHTTP() {
		for _, h := range message.list("hosts") {
			route.hosts = append(route.hosts, hostOf(h).folded())
		}
	} else if protocol == TLS {
		for _, sni := range message.list("snis") {
			route.hosts = append(route.hosts, hostOf(sni))
		}
	}

	rules := message.list("rules")
	switch {
	case !protocol.isHTTP() && len(rules) != 1:
		message.invalid("rules", "%d, and the proxy wants one", len(rules))
	case len(rules) == 0:
		message.odd("rules", "none, and the route matches nothing")
	}

	for _, rule := range rules {
		route.Rules = append(route.Rules, d.ruleOf(rule, protocol))
	}
	return route
}

func (d direction) ruleOf(message part, protocol Protocol) Rule {
	rule := Rule{Filters: d.filtersOf(message)}
	if protocol.isHTTP() {
		rule.matches = matchesOf(message, protocol)
		checkPrefixes(message, rule.matches)
	}
	if d == receives {
		return rule
	}

	rule.readBackends(message, protocol)
	if protocol.isHTTP() {
		rule.Timeouts = timeoutsOf(message)
		checkRetry(message)
	}
	return rule
}

// matchesOf reads the matches of a rule.
func matchesOf(p part, protocol Protocol) []match {
	list := p.list("matches")
	if len(list) == 0 {
		p.odd("matches", "none, and the rule matches everything")
	}

	read := httpMatchOf
	if protocol == GRPC {
		read = grpcMatchOf
	}
	all := make([]match, 0, len(list))
	for _, m := range list {
		all = append(all, read(m))
	}
	return all
}

// checkPrefixes notes a redirect that replaces the prefix of a path beside a match that is none of a prefix: the
// proxy then fails the request.
func checkPrefixes(p part, matches []match) {
	prefixes := !slices.ContainsFunc(matches, func(m match) bool { return m.path != nil && m.path.how != "prefix" })
	for _, filter := range p.list("filters") {
		if filter.which("kind") == string(Redirect) && !prefixes &&
			filter.at(string(Redirect)).at("path").which("replace") == "prefix" {
			filter.odd("redirect.path.prefix", "beside a match of a whole path, whose requests fail")
		}
	}
}

// rank returns how well a name matches the hosts of the route, and whether it does. It is lowest without hosts.
func (r *Route) rank(name string) (best rank, matches bool) {
	for _, h := range r.hosts {
		ranked, is := h.rank(name)
		if is && (!matches || slices.Compare(ranked[:], best[:]) > 0) {
			best, matches = ranked, true
		}
	}
	return best, matches || len(r.hosts) == 0
}

// rank returns how well the best match of the rule matches a request, and whether one does.
func (r *Rule) rank(request Request, protocol Protocol) (best rank, matches bool) {
	for _, m := range r.matches {
		ranked, is := m.rank(request)
		if is && (!matches || slices.Compare(ranked[:], best[:]) > 0) {
			best, matches = ranked, true
		}
	}
	if len(r.matches) == 0 {
		return protocol.withoutMatches(), true
	}
	return best, matches
}

// find returns the first of the rules that match a request best, and its route; nil if none matches.
func find(routes []Route, request Request) (route *Route, rule *Rule) {
	var best rank
	for i := range routes {
		candidate := &routes[i]
		host, matches := candidate.rank(lower(request.nameFor(candidate.protocol)))
		if !matches {
			continue
		}

		for j := range candidate.Rules {
			ranked, matches := candidate.Rules[j].rank(request, candidate.protocol)
			ranked[0], ranked[1] = host[0], host[1]
			if matches && (rule == nil || slices.Compare(ranked[:], best[:]) > 0) {
				best, route, rule = ranked, candidate, &candidate.Rules[j]
			}
		}
	}

	return route, rule
}

package policy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
)

// A Server is what an inbound proxy makes of the policy of a port. It is immutable.
type Server struct {
	Metadata       Metadata // of its labels
	Protocol       Protocol
	DetectTimeout  time.Duration // of Detect
	Routes         []Route       // of HTTP and gRPC; never empty
	Authorizations []Authorization
	RateLimit      RateLimit
	Oddities       []Finding // of the class ErrOdd, in the order of fields
}

// An Authorization lets clients in.
type Authorization struct {
	Metadata Metadata

	networks   []network
	meshTLS    bool     // the client must have come by mesh TLS
	identified bool     // and with an identity that is here
	identities []string // exact
	suffixes   []string // of DNS names; an empty one is that of every DNS name
}

// A network is a block of addresses without exceptions.
type network struct {
	block  netip.Prefix
	except []netip.Prefix
}

// RateLimit is how many requests a second a port takes; 0 is no limit.
type RateLimit struct {
	Metadata    Metadata // empty if the message has none
	Total       uint32
	PerIdentity uint32
	Overrides   map[string]uint32 // by identity, instead of PerIdentity
}

// DecodeInbound reads the policy of a port as an inbound proxy does. The error wraps the findings of the worst class,
// and the Server is nil then. It takes time in proportion to the message.
func DecodeInbound(message *inbound.Server) (*Server, error) {
	root := rootOf(message)
	server := &Server{Metadata: labelled(root, "server"), Authorizations: authorizationsOf(root)}
	server.Authorizations = append(server.Authorizations, localhost)
	if p, present := root.need("protocol"); present {
		server.readProtocol(p)
	}

	server.Oddities = root.found.of(ErrOdd)
	if err := root.found.worst(); err != nil {
		return nil, err
	}
	return server, nil
}

// localhost is the last authorization of every port.
var localhost = Authorization{
	Metadata: Metadata{Kind: defaultKind, Name: "localhost"},
	networks: []network{
		{block: netip.MustParsePrefix("127.0.0.1/32")},
		{block: netip.MustParsePrefix("::1/128")},
	},
}

func (s *Server) readProtocol(protocol part) {
	s.Protocol = Protocol(protocol.needOne("kind"))
	if s.Protocol == "" {
		return
	}

	p := protocol.at(string(s.Protocol))
	switch s.Protocol {
	case Detect:
		s.DetectTimeout = detectTimeoutOf(p)
		s.Routes = inboundRoutesOf(p, "http_routes", HTTP1)
		s.RateLimit = rateLimitOf(p, "http_local_rate_limit")
	case HTTP1, HTTP2:
		s.Routes = inboundRoutesOf(p, "routes", s.Protocol)
		s.RateLimit = rateLimitOf(p, "local_rate_limit")
	case GRPC:
		s.Routes = inboundRoutesOf(p, "routes", s.Protocol)
	case TLS, Opaque:
	}
}

// inboundRoutesOf reads the routes in a field. None are one that matches everything.
func inboundRoutesOf(p part, field string, protocol Protocol) []Route {
	routes := receives.routesOf(p, field, protocol)
	if len(routes) > 0 {
		return routes
	}
	all := Metadata{Kind: defaultKind, Name: defaultKind}
	return []Route{{Metadata: all, Rules: []Rule{{}}, protocol: protocol}}
}

// authorizationsOf reads the authorizations of a port or a route.
func authorizationsOf(owner part) []Authorization {
	var all []Authorization
	for _, p := range owner.list("authorizations") {
		all = append(all, authorizationOf(p))
	}
	return all
}

func authorizationOf(p part) Authorization {
	read := Authorization{networks: networksOf(p)}
	if p.has("metadata") {
		read.Metadata = receives.metadataOf(p)
	} else {
		read.Metadata = labelled(p, "serverauthorization")
	}

	authentication, present := p.need("authentication")
	if !present {
		return read
	}

	if authentication.needOne("permit") == "meshTLS" {
		read.meshTLS = true
		read.readClients(authentication.at("meshTLS"))
	}
	return read
}

// readClients reads which clients of mesh TLS are let in.
func (a *Authorization) readClients(p part) {
	a.identified = p.needOne("clients") == "identities"
	if !a.identified {
		return
	}

	clients := p.at("identities")
	for _, identity := range clients.list("identities") {
		a.identities = append(a.identities, identity.text("name"))
	}
	for _, suffix := range clients.list("suffixes") {
		a.suffixes = append(a.suffixes, suffixOf(suffix.texts("parts")))
	}

	if len(a.identities)+len(a.suffixes) == 0 {
		clients.odd("", "none, and no client is let in")
	}
}

// suffixOf returns what identities end with; nothing if there are no labels.
func suffixOf(labels []string) string {
	if len(labels) == 0 {
		return ""
	}
	return "." + strings.Join(labels, ".")
}

func networksOf(p part) []network {
	list := p.list("networks")
	if len(list) == 0 {
		p.invalid("networks", "none")
	}

	all := make([]network, 0, len(list))
	for _, n := range list {
		block, _ := n.need("net")
		one := network{block: prefixOf(block)}
		for _, except := range n.list("except") {
			one.except = append(one.except, prefixOf(except))
		}
		all = append(all, one)
	}
	return all
}

func prefixOf(p part) netip.Prefix {
	addr := addrOf(p.at("ip"))
	bits := p.number("prefix_len")
	if addr.IsValid() && bits > uint32(addr.BitLen()) {
		p.invalid("prefix_len", "%d", bits)
		return netip.Prefix{}
	}
	return netip.PrefixFrom(addr, int(bits))
}

// rateLimitOf reads the limits of a port. Overrides of what is no identity, and those without a limit, are left out.
func rateLimitOf(owner part, field string) RateLimit {
	p := owner.at(field)
	limit := RateLimit{Total: limitOf(p.at("total")), PerIdentity: limitOf(p.at("identity"))}
	limit.Overrides = map[string]uint32{}
	if p.has("metadata") {
		limit.Metadata = receives.metadataOf(p)
	}

	for _, override := range p.list("overrides") {
		for _, client := range override.at("clients").list("identities") {
			name, n := client.text("name"), limitOf(override.at("limit"))
			switch {
			case !isIdentity(name):
				client.odd("name", "%.64q is no identity, and the proxy leaves it out", name)
			case n > 0:
				limit.Overrides[name] = n
			}
		}
	}
	return limit
}

func limitOf(p part) uint32 { return p.number("requestsPerSecond") }

// Authorize returns the first authorization that lets a request in, and its route. Both are nil if no route matches a
// request: the proxy answers with 404. Without an authorization it answers with 403, or closes the connection, which
// has no route.
//
// A connection to an opaque port has MeshTLS if the client's proxy has come by the port of the inbound proxy. That
// alone ends TLS.
func (s *Server) Authorize(request Request) (*Route, *Authorization) {
	switch {
	case request.isHTTP() && len(s.Routes) > 0:
		route, rule := find(s.Routes, request)
		if rule == nil {
			return nil, nil
		}
		if own := firstFor(route.Authorizations, request); own != nil {
			return route, own
		}
		return route, firstFor(s.Authorizations, request)

	case s.Protocol.isHTTP():
		return nil, nil
	default:
		return nil, firstFor(s.Authorizations, request)
	}
}

func firstFor(authorizations []Authorization, request Request) *Authorization {
	i := slices.IndexFunc(authorizations, func(a Authorization) bool { return a.permits(request) })
	if i < 0 {
		return nil
	}
	return &authorizations[i]
}

// permits reports whether a client is let in. Suffixes are those of DNS names: a URI is compared whole, and matches not
// even the empty suffix.
func (a *Authorization) permits(request Request) bool {
	inside := slices.ContainsFunc(a.networks, func(n network) bool { return n.contains(request.Client) })
	if !inside || a.meshTLS && !request.MeshTLS {
		return false
	}
	if !a.identified {
		return true
	}

	identity := request.Identity
	if isURI(identity) {
		return slices.Contains(a.identities, identity)
	}
	identity = lower(identity)
	return identity != "" && (slices.Contains(a.identities, identity) ||
		slices.ContainsFunc(a.suffixes, func(suffix string) bool { return strings.HasSuffix(identity, suffix) }))
}

func (n network) contains(addr netip.Addr) bool {
	return n.block.Contains(addr) &&
		!slices.ContainsFunc(n.except, func(except netip.Prefix) bool { return except.Contains(addr) })
}

package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A Client is who opens a connection to a port, as far as a proxy lets it in by that.
type Client struct {
	Addr     netip.Addr // zero: it may have any
	TLS      bool       // its proxy has come by mesh TLS
	Identity string     // of TLS; empty: none
}

// A Decision is what a proxy does with a client at a port.
type Decision struct {
	Route  Origin         // of requests that it matches; the zero Origin: of connections
	By     *Authorization // that lets the client in; nil: it is refused
	From   []Network      // from which alone it is let in, if its address is not given; empty: from everywhere
	Misses []Miss         // what does not let it in, and would if it were changed
}

// A Miss is an authorization that does not let a client in.
type Miss struct {
	Origin
	Why, Change string
}

// localhost is let in at every port, by each proxy itself.
var localhost = Authorization{
	Origin: defaultOrigin("localhost"), Clients: ClientsAny,
	Networks: []Network{
		{block: netip.MustParsePrefix("127.0.0.1/32")}, {block: netip.MustParsePrefix("::1/128")},
	},
}

// Decide returns what a proxy does with a client by a policy: with its requests, by route, and with its connections if
// they may carry something else. A route may be open wider than its port, and never narrower.
func (o *Options) Decide(in *Inbound, c Client) (all []Decision) {
	for i := range in.Routes {
		route := &in.Routes[i]
		decision := o.decide(slices.Concat(route.Authorizations, in.Authorizations), c)
		decision.Route = route.Origin
		all = append(all, decision)
	}

	switch in.Protocol {
	case ProtocolDetect, ProtocolOpaque, ProtocolTLS:
		all = append(all, o.decide(in.Authorizations, c))
	default:
	}
	return all
}

// decide returns by which authorization a client is let in: the first that is for it. If its address is not given, one
// that lets it in from everywhere is the better one.
func (o *Options) decide(all []Authorization, client Client) (d Decision) {
	for i := range all {
		a := &all[i]
		miss, is := o.miss(a, client)
		switch {
		case !is:
			d.Misses = append(d.Misses, miss)
		case client.Addr.IsValid() || areEverywhere(a.Networks):
			return Decision{By: a}
		case d.By == nil:
			d.By, d.From = a, a.Networks
		}
	}

	if d.By == nil && contained(localhost.Networks, client.Addr) {
		return Decision{By: &localhost}
	}
	if d.By != nil {
		d.Misses = nil
	}
	return d
}

// miss returns why an authorization does not let a client in; true if it does.
func (o *Options) miss(of *Authorization, client Client) (miss Miss, letsIn bool) {
	miss.Origin = of.Origin

	switch {
	case of.Clients != ClientsAny && !client.TLS:
		miss.Why = "it lets in clients with TLS, and this one has none"
		miss.Change = "give the client a proxy, and let it come by that"

	case of.Clients == ClientsIdentified && !includes(of.Identities, client.Identity):
		miss.Why = "it lets in " + some(o.Identity.describeAll(of.Identities))
		if of.Identities[0] == (Pattern{Suffix: true}) {
			miss.Why = "it lets in clients with an identity, and this one has none"
		}
		miss.Change = o.addIdentity(of, client)

	case client.Addr.IsValid() && !contained(of.Networks, client.Addr):
		miss.Why = "it lets in clients from " + DescribeNetworks(of.Networks)
		miss.Change = addNetwork(of, client)
	default:
		return miss, true
	}
	return miss, false
}

// includes reports whether an identity is among some, as proxies compare: names of DNS without regard to case, and URIs
// as a whole, so that not even the empty suffix is one's.
func includes(all []Pattern, identity string) bool {
	isURI := strings.Contains(identity, "://")
	if !isURI {
		identity = lowerASCII(identity)
	}

	return identity != "" && slices.ContainsFunc(all, func(p Pattern) bool {
		switch {
		case !p.Suffix:
			return p.Text == identity
		case isURI:
			return false
		}
		return p.Text == "" || strings.HasSuffix(identity, "."+p.Text)
	})
}

func lowerASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, text)
}

// addIdentity returns what would have an authorization let in a client.
func (o *Options) addIdentity(to *Authorization, client Client) string {
	who := "its identity"
	if client.Identity != "" {
		who = o.Identity.Describe(Pattern{Text: client.Identity})
	}

	required := slices.IndexFunc(to.Requires, func(r Reference) bool { return r.Kind == KindMeshTLSAuthentication })

	switch {
	case to.Default != "":
		return "create an AuthorizationPolicy that names " + who
	case client.Identity == "":
		return "give the client an identity: it has to be meshed"
	case required >= 0:
		return fmt.Sprintf("add %s to %s", who, to.Requires[required])
	case to.Kind == KindServerAuthorization:
		return fmt.Sprintf("add %s to spec.client.meshTLS of %s", who, to.Reference)
	}
	return fmt.Sprintf("create a second AuthorizationPolicy, which names %s, or have %s require a "+
		"MeshTLSAuthentication with both", who, to.Reference)
}

// addNetwork likewise.
func addNetwork(a *Authorization, c Client) string {
	required := slices.IndexFunc(a.Requires, func(r Reference) bool { return r.Kind == KindNetworkAuthentication })
	switch {
	case required >= 0:
		return fmt.Sprintf("add a network with %v to %s", c.Addr, a.Requires[required])
	case a.Default != "":
		return fmt.Sprintf("create an AuthorizationPolicy for clients from %v, or correct -cluster-networks", c.Addr)
	}
	return fmt.Sprintf("add a network with %v to spec.client.networks of %s", c.Addr, a.Reference)
}

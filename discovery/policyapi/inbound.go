package policyapi

import (
	"net/netip"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fingerpost/fingerpost/discovery/proxyapi"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// EncodeInbound returns the message of an answer.
func EncodeInbound(answer *rules.Inbound) *pb.Server {
	return &pb.Server{
		Protocol:       newInboundProtocol(answer),
		Authorizations: newAuthorizations(answer.Authorizations),
		Labels:         newLabels(answer.Origin),
	}
}

// newLabels returns what proxies label metrics with.
func newLabels(of rules.Origin) map[string]string {
	if of.Default != "" {
		return map[string]string{"group": "", "kind": "default", "name": of.Default}
	}
	return map[string]string{"group": of.Kind.Group(), "kind": strings.ToLower(of.Kind.String()), "name": of.Name}
}

func newInboundProtocol(answer *rules.Inbound) *pb.ProxyProtocol {
	switch answer.Protocol {
	case rules.ProtocolHTTP1:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Http1_{Http1: &pb.ProxyProtocol_Http1{
			Routes: newInboundHTTP(answer.Routes), LocalRateLimit: newRateLimit(answer.Limit),
		}}}
	case rules.ProtocolHTTP2:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Http2_{Http2: &pb.ProxyProtocol_Http2{
			Routes: newInboundHTTP(answer.Routes), LocalRateLimit: newRateLimit(answer.Limit),
		}}}
	case rules.ProtocolGRPC:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Grpc_{
			Grpc: &pb.ProxyProtocol_Grpc{Routes: newInboundGRPC(answer.Routes)},
		}}
	case rules.ProtocolOpaque:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Opaque_{Opaque: new(pb.ProxyProtocol_Opaque)}}
	case rules.ProtocolTLS:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Tls_{Tls: new(pb.ProxyProtocol_Tls)}}
	default:
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Detect_{Detect: &pb.ProxyProtocol_Detect{
			Timeout:    durationpb.New(detectTimeout),
			HttpRoutes: newInboundHTTP(answer.Routes), HttpLocalRateLimit: newRateLimit(answer.Limit),
		}}}
	}
}

func newAuthorizations(all []rules.Authorization) (authorizations []*pb.Authz) {
	for i := range all {
		from := &all[i]
		labels := newLabels(from.Origin)
		authz := &pb.Authz{
			Metadata: newInboundMetadata(from.Origin, labels["kind"]), Labels: labels,
			Authentication: newAuthentication(from),
		}
		for _, n := range from.Networks {
			authz.Networks = append(authz.Networks, newNetwork(n))
		}
		authorizations = append(authorizations, authz)
	}
	return authorizations
}

func newNetwork(n rules.Network) *pb.Network {
	network := &pb.Network{Net: newPrefix(n.Block())}
	for _, exception := range n.Except() {
		network.Except = append(network.Except, newPrefix(exception))
	}
	return network
}

func newPrefix(prefix netip.Prefix) *netpb.IPNetwork {
	bits := uint32(prefix.Bits()) //nolint:gosec // up to 128
	return &netpb.IPNetwork{Ip: proxyapi.IP(prefix.Addr()), PrefixLen: bits}
}

func newAuthentication(from *rules.Authorization) *pb.Authn {
	permit := new(pb.Authn_PermitUnauthenticated)
	switch from.Clients {
	case rules.ClientsAny:
		return &pb.Authn{Permit: &pb.Authn_Unauthenticated{Unauthenticated: permit}}
	case rules.ClientsTLS:
		return newMeshTLS(&pb.Authn_PermitMeshTLS{
			Clients: &pb.Authn_PermitMeshTLS_Unauthenticated{Unauthenticated: permit},
		})
	default:
	}

	clients := new(pb.Authn_PermitMeshTLS_PermitClientIdentities)
	for _, p := range from.Identities {
		if p.Suffix {
			clients.Suffixes = append(clients.Suffixes, &pb.IdentitySuffix{Parts: p.Labels()})
		} else {
			clients.Identities = append(clients.Identities, &pb.Identity{Name: p.Text})
		}
	}
	return newMeshTLS(&pb.Authn_PermitMeshTLS{
		Clients: &pb.Authn_PermitMeshTLS_Identities{Identities: clients},
	})
}

func newMeshTLS(permit *pb.Authn_PermitMeshTLS) *pb.Authn {
	return &pb.Authn{Permit: &pb.Authn_MeshTLS{MeshTLS: permit}}
}

func newInboundHTTP(routes []rules.InboundRoute) (all []*pb.HttpRoute) {
	for i := range routes {
		from := &routes[i]
		route := &pb.HttpRoute{
			Metadata: newInboundMetadata(from.Origin, from.Kind.String()), Hosts: newHosts(from.Hosts),
			Authorizations: newAuthorizations(from.Authorizations),
		}
		for _, rule := range from.Rules {
			route.Rules = append(route.Rules, &pb.HttpRoute_Rule{
				Matches: newHTTPMatches(rule.Matches), Filters: newInboundHTTPFilters(rule),
			})
		}
		all = append(all, route)
	}
	return all
}

func newInboundHTTPFilters(rule rules.InboundRule) (all []*pb.HttpRoute_Filter) {
	if rule.Fail != "" {
		fail := newHTTPFailure(&rules.Failure{Message: rule.Fail})
		return []*pb.HttpRoute_Filter{{Kind: &pb.HttpRoute_Filter_FailureInjector{FailureInjector: fail}}}
	}

	for _, f := range rule.Filters {
		switch {
		case f.RequestHeaders != nil:
			all = append(all, &pb.HttpRoute_Filter{Kind: &pb.HttpRoute_Filter_RequestHeaderModifier{
				RequestHeaderModifier: newRequestHeaders(f.RequestHeaders),
			}})
		case f.Redirect != nil:
			all = append(all, &pb.HttpRoute_Filter{Kind: &pb.HttpRoute_Filter_Redirect{
				Redirect: newRedirect(f.Redirect),
			}})
		}
	}
	return all
}

func newInboundGRPC(routes []rules.InboundRoute) (all []*pb.GrpcRoute) {
	for i := range routes {
		from := &routes[i]
		route := &pb.GrpcRoute{
			Metadata: newInboundMetadata(from.Origin, from.Kind.String()), Hosts: newHosts(from.Hosts),
			Authorizations: newAuthorizations(from.Authorizations),
		}
		for _, rule := range from.Rules {
			route.Rules = append(route.Rules, &pb.GrpcRoute_Rule{
				Matches: newGRPCMatches(rule.Matches), Filters: newInboundGRPCFilters(rule),
			})
		}
		all = append(all, route)
	}
	return all
}

func newInboundGRPCFilters(rule rules.InboundRule) (all []*pb.GrpcRoute_Filter) {
	if rule.Fail != "" {
		fail := newGRPCFailure(&rules.Failure{Message: rule.Fail})
		return []*pb.GrpcRoute_Filter{{Kind: &pb.GrpcRoute_Filter_FailureInjector{FailureInjector: fail}}}
	}

	for _, f := range rule.Filters {
		if f.RequestHeaders != nil {
			all = append(all, &pb.GrpcRoute_Filter{Kind: &pb.GrpcRoute_Filter_RequestHeaderModifier{
				RequestHeaderModifier: newRequestHeaders(f.RequestHeaders),
			}})
		}
	}
	return all
}

// newRateLimit returns nil for none.
func newRateLimit(from *rules.InboundLimit) *pb.HttpLocalRateLimit {
	if from == nil {
		return nil
	}

	limit := &pb.HttpLocalRateLimit{
		Metadata: newInboundMetadata(from.Origin, from.Kind.String()),
		Total:    newLimit(from.Total), Identity: newLimit(from.Identity),
	}

	for _, override := range from.Overrides {
		clients := new(pb.HttpLocalRateLimit_Override_ClientIdentities)
		for _, p := range override.Identities {
			clients.Identities = append(clients.Identities, &pb.Identity{Name: p.Text})
		}

		limit.Overrides = append(limit.Overrides, &pb.HttpLocalRateLimit_Override{
			Limit: newLimit(override.Limit), Clients: clients,
		})
	}
	return limit
}

func newLimit(perSecond uint32) *pb.HttpLocalRateLimit_Limit {
	if perSecond == 0 {
		return nil
	}
	return &pb.HttpLocalRateLimit_Limit{RequestsPerSecond: perSecond}
}

package ruleobject

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// A Kind is a kind of custom resource of policy.
type Kind struct {
	rules.Kind
	Resource schema.GroupResource
	Versions []string // that can be read, the newest first
	Read     func(*unstructured.Unstructured) (Object, error)
}

// An Object is what was read of an object.
type Object interface{ Metadata() *rules.Meta }

// Kinds are all of them.
var Kinds = []Kind{
	{rules.KindServer, linkerd.Servers, linkerd.ServerVersions, reading(Server)},
	{
		rules.KindServerAuthorization, linkerd.ServerAuthorizations, linkerd.AuthorizationVersions,
		reading(ServerAuthorization),
	},
	{
		rules.KindAuthorizationPolicy, linkerd.AuthorizationPolicies, linkerd.PolicyVersions,
		reading(AuthorizationPolicy),
	},
	{
		rules.KindMeshTLSAuthentication, linkerd.MeshTLSAuthentications, linkerd.PolicyVersions,
		reading(MeshTLSAuthentication),
	},
	{
		rules.KindNetworkAuthentication, linkerd.NetworkAuthentications, linkerd.PolicyVersions,
		reading(NetworkAuthentication),
	},
	{rules.KindRateLimit, linkerd.RateLimits, linkerd.PolicyVersions, reading(RateLimit)},
	{rules.KindEgressNetwork, linkerd.EgressNetworks, linkerd.PolicyVersions, reading(EgressNetwork)},

	route(rules.KindPolicyHTTPRoute, linkerd.PolicyHTTPRoutes, linkerd.PolicyHTTPRouteVersions),
	route(rules.KindHTTPRoute, linkerd.HTTPRoutes, linkerd.HTTPRouteVersions),
	route(rules.KindGRPCRoute, linkerd.GRPCRoutes, linkerd.GRPCRouteVersions),
	route(rules.KindTLSRoute, linkerd.TLSRoutes, linkerd.TLSRouteVersions),
	route(rules.KindTCPRoute, linkerd.TCPRoutes, linkerd.TCPRouteVersions),
}

// KindOf returns one of Kinds.
func KindOf(kind rules.Kind) (of Kind, is bool) {
	at := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Kind == kind })
	if at < 0 {
		return of, false
	}
	return Kinds[at], true
}

func route(kind rules.Kind, resource schema.GroupResource, versions []string) Kind {
	read := func(u *unstructured.Unstructured) (*rules.Route, error) { return Route(kind, u) }
	return Kind{kind, resource, versions, reading(read)}
}

func reading[V Object](
	read func(*unstructured.Unstructured) (V, error),
) func(*unstructured.Unstructured) (Object, error) {
	return func(u *unstructured.Unstructured) (Object, error) {
		value, err := read(u)
		if err != nil {
			return nil, err
		}
		return value, nil
	}
}

package webhook

import (
	"fmt"
	"strings"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// PW37: the objects that Linkerd's own tests of admission create, and its verdicts.
func casesOfLinkerd() []policyCase {
	var v linkerdVerdicts
	v.addPolicies()
	v.addNetworks()
	v.addServers()
	v.addRoutes()
	v.addBackends()
	v.addEgressRoutes()
	return v
}

type linkerdVerdicts []policyCase

func (v *linkerdVerdicts) allows(kind rules.Kind, specs ...string) {
	for _, spec := range specs {
		*v = append(*v, policyCase{kind: kind, spec: spec})
	}
}

// warns is of what Linkerd allows silently.
func (v *linkerdVerdicts) warns(kind rules.Kind, of, spec string) {
	*v = append(*v, policyCase{kind: kind, spec: spec, warnings: []string{of}})
}

func (v *linkerdVerdicts) denies(kind rules.Kind, specs ...string) {
	for _, spec := range specs {
		*v = append(*v, policyCase{kind: kind, spec: spec, denied: true})
	}
}

func (v *linkerdVerdicts) addPolicies() {
	const of = rules.KindAuthorizationPolicy
	const server, namespace = "{group: policy.linkerd.io, kind: Server, name: v}", "{kind: Namespace, name: shop}"
	const farMesh = "{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: m, namespace: other}"
	const farNets = "{group: policy.linkerd.io, kind: NetworkAuthentication, name: nets, namespace: linkerd}"
	const both = meshRef + ", " + farNets
	to := func(target, refs string) string {
		return "{targetRef: " + target + ", requiredAuthenticationRefs: [" + refs + "]}"
	}

	v.allows(of, to(server, both), to(server, meshRef), to(server, farNets), to(server, ""), to(namespace, both),
		to("{group: policy.linkerd.io, kind: HttpRoute, name: r}", both))
	v.denies(of, to("{kind: Namespace, name: other}", both), "{targetRef: "+server+"}",
		to("{group: apps, kind: Deployment, name: d}", farNets), to(server, meshRef+", "+farMesh),
		to(server, netsRef+", "+farNets))

	const mesh = rules.KindMeshTLSAuthentication
	const account = "{kind: ServiceAccount, name: sa}"
	v.allows(mesh, "{identityRefs: ["+account+"]}", "{identityRefs: [{kind: Namespace, name: web}]}",
		"{identities: [a.b]}")
	v.denies(mesh, "{identityRefs: [{kind: Namespace, name: web, namespace: web}]}", "{}",
		"{identities: [a.b], identityRefs: ["+account+"]}")
}

func (v *linkerdVerdicts) addNetworks() {
	const two = "networks: [{cidr: 10.1.0.0/24}, {cidr: 10.1.1.0/24, except: [10.1.1.0/28]}]"
	const whole = "networks: [{cidr: 10.1.1.0/24, except: [10.1.0.0/16]}]"
	const apart = "networks: [{cidr: 10.1.1.0/24, except: [10.1.2.0/24]}]"
	v.allows(rules.KindNetworkAuthentication, "{"+two+"}", "{networks: [{cidr: 10.1.0.0/16, except: [10.1.1.1]}]}")
	v.denies(rules.KindNetworkAuthentication, "{"+whole+"}", "{"+apart+"}", "{networks: []}",
		"{networks: [{cidr: 10.1.0.0/16, except: [bogus]}]}")
	v.allows(rules.KindEgressNetwork, "{trafficPolicy: Allow, "+two+"}")
	v.denies(rules.KindEgressNetwork, "{trafficPolicy: Allow, networks: []}")

	const of = rules.KindServerAuthorization
	anyone := func(networks string) string {
		return "{server: {name: v}, client: {unauthenticated: true, " + networks + "}}"
	}
	v.allows(of, anyone(two), anyone("networks: [{cidr: 10.1.0.2}, {cidr: 10.1.1.0/24, except: [10.1.1.3]}]"))
	v.denies(of, anyone(whole), anyone(apart), anyone("networks: [{cidr: bogus}]"),
		anyone("meshTLS: {identities: ['*']}"),
		"{server: {name: v}, client: {meshTLS: {unauthenticatedTLS: true, identities: ['*']}}}")
}

func (v *linkerdVerdicts) addServers() {
	v.allows(rules.KindServer, "{podSelector: {}, port: 80}", "{podSelector: {matchLabels: {app: test}}, port: 80}")
	v.denies(rules.KindServer, "{podSelector: {}, port: 80, proxyProtocol: x}",
		"{podSelector: {}, port: 80, accessPolicy: x}")

	const server = "{group: policy.linkerd.io, kind: Server, name: v}"
	limits := func(target string, identity, override int) string {
		return fmt.Sprintf("{targetRef: %s, total: {requestsPerSecond: 1000}, identity: {requestsPerSecond: %d}, "+
			"overrides: [{requestsPerSecond: %d, clientRefs: [{group: '', kind: ServiceAccount, name: sa}]}]}",
			target, identity, override)
	}
	v.allows(rules.KindRateLimit, limits(server, 100, 200))
	v.denies(rules.KindRateLimit, limits("{group: apps, kind: Deployment, name: d}", 100, 200),
		limits(server, 2000, 200), limits(server, 2000, 2000))
}

// onPath returns a route of an exact path, with what its rule has besides.
func onPath(parents, path, rest string) string {
	return "{" + parents + ", rules: [{matches: [{path: {type: Exact, value: " + path + "}}]" + rest + "}]}"
}

func (v *linkerdVerdicts) addRoutes() {
	const redirect = ", filters: [{type: RequestRedirect, requestRedirect: " +
		"{path: {type: ReplaceFullPath, replaceFullPath: a}}}]"
	for _, kind := range []rules.Kind{rules.KindPolicyHTTPRoute, rules.KindHTTPRoute} {
		v.allows(kind, onPath(toServer, "/a", ""))
		v.denies(kind, onPath(toServer, "a", ""), onPath(toServer, "/a", redirect))
	}

	for _, filter := range []string{
		"RequestMirror, requestMirror: {backendRef: {name: a, namespace: b, port: 80}, percent: 100}",
		"URLRewrite, urlRewrite: {hostname: a, path: {type: ReplaceFullPath, replaceFullPath: b}}",
		"ExtensionRef, extensionRef: {group: '', kind: Service, name: a}",
	} {
		name, _, _ := strings.Cut(filter, ",")
		v.warns(rules.KindHTTPRoute, name, onPath(toServer, "/a", ", filters: [{type: "+filter+"}]"))
	}
}

func (v *linkerdVerdicts) addBackends() {
	to := func(ref string) string {
		return onPath(toServer, "/a", ", backendRefs: [{"+ref+", name: a, namespace: b}]")
	}
	v.warns(rules.KindHTTPRoute, "ExoService", to("group: alien.example.com, kind: ExoService"))
	v.allows(rules.KindHTTPRoute, to("group: core, kind: Service, port: 8080"), to("port: 8080"))
	v.denies(rules.KindHTTPRoute, to("group: core, kind: Service"), to("weight: 1"))
}

func (v *linkerdVerdicts) addEgressRoutes() {
	const portless = "parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: out, namespace: shop}]"
	v.allows(rules.KindPolicyHTTPRoute, onPath(toEgress, "/a", ""))
	v.denies(rules.KindPolicyHTTPRoute, onPath(portless, "/a", ""))

	const rpc = ", rules: [{matches: [{method: {type: Exact, service: s, method: m}}]}]}"
	v.allows(rules.KindGRPCRoute, "{"+toEgress+rpc)
	v.denies(rules.KindGRPCRoute, "{"+portless+rpc)

	const rule = "{backendRefs: [{group: policy.linkerd.ip, kind: EgressNetwork, name: a, namespace: b}]}"
	for _, kind := range []rules.Kind{rules.KindTLSRoute, rules.KindTCPRoute} {
		v.warns(kind, "EgressNetwork", "{"+toEgress+", rules: ["+rule+"]}")
		v.denies(kind, "{"+portless+", rules: ["+rule+"]}", "{"+toEgress+", rules: ["+rule+", "+rule+"]}")
	}
}

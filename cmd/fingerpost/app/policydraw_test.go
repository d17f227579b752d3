package app_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"pgregory.net/rapid"
)

// policyGrammar is of what objects of policy are made: such as authors mean, and such as nothing can be made of. In a
// text <part> stands for one of the texts of a part, and <part*2> for a list of up to two of them. Names are few, so
// that objects meet.
var policyGrammar = map[string][]string{
	"kind": {
		"Service", "Server", "ServerAuthorization", "AuthorizationPolicy", "MeshTLSAuthentication",
		"NetworkAuthentication", "HTTPLocalRateLimitPolicy", "EgressNetwork", "HTTPRoute", "HTTPRoute.policy",
		"GRPCRoute", "TLSRoute", "TCPRoute",
	},
	"name":                   {"a", "a", "b"},
	"space":                  {"shop", "shop", "other"},
	"space of EgressNetwork": {"shop", "other", "linkerd-egress"},
	"age":                    {"2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z"},

	"Service": {"{<address>, ports: [{name: http, port: 8080, protocol: TCP<appProtocol>}<port2><port3>]}"},
	"appProtocol": {
		"", "", ", appProtocol: http", ", appProtocol: kubernetes.io/h2c", ", appProtocol: grpc", ", appProtocol: x",
		", appProtocol: linkerd.io/tcp", "",
	},
	"port2": {", {name: other, port: 80, protocol: TCP}", ", {name: other, port: 80, protocol: UDP}", ""},
	"port3": {", {name: db, port: 3306, protocol: TCP<appProtocol>}", ""},
	"address of shop/a": {
		"clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10]", "clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10]",
		"clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, 'fd00:10::10']", "clusterIP: None, clusterIPs: [None]",
	},
	"address of shop/b": {"clusterIP: 203.0.113.10, clusterIPs: [203.0.113.10]"},
	"address of other/a": { // of two Services
		"clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10]", "clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20]",
	},
	"address of other/b": {"clusterIP: None, clusterIPs: [None]", "type: ExternalName, externalName: x.example"},

	"Server": {"{<pods>, port: <port><protocol><access>}"},
	"pods": {
		"podSelector: {}", "podSelector: {matchLabels: {app: p}}", "externalWorkloadSelector: {}",
		"podSelector: {matchExpressions: [{key: app, operator: x}]}", "podSelector: {}",
	},
	"port": {"8080", "http", "8080", "80", "4191", "true"},
	"protocol": {
		"", ", proxyProtocol: HTTP/1", ", proxyProtocol: HTTP/2", ", proxyProtocol: gRPC", ", proxyProtocol: opaque",
		", proxyProtocol: TLS", ", proxyProtocol: x",
	},
	"access": {"", ", accessPolicy: audit", ", accessPolicy: all-authenticated", ", accessPolicy: x"},

	"ServerAuthorization": {"{server: <server>, client: <client>}"},
	"server":              {"{name: <name>}", "{selector: {}}", "{}"},
	"client": {
		"{unauthenticated: true}", "{unauthenticated: true, networks: <network*2>}", "{}",
		"{meshTLS: {unauthenticatedTLS: true}}", "{meshTLS: {identities: ['*', '*.x.y', 'a.b']}}",
		"{meshTLS: {serviceAccounts: [{name: <name>, namespace: <space>}]}}",
	},
	"network": {
		"{cidr: 0.0.0.0/0}", "{cidr: 203.0.113.0/24, except: [203.0.113.0/25, 203.0.113.0/26]}",
		"{cidr: 1.1.1.0/24, except: [1.1.1.0/31]}", "{cidr: 10.0.0.0/8}", "{cidr: '2000::/3'}", "{cidr: '::/0'}",
		"{cidr: x}",
	},

	"AuthorizationPolicy": {"{targetRef: <target>, requiredAuthenticationRefs: <required*2>}"},
	"onServer":            {"{group: policy.linkerd.io, kind: Server, name: <name>}"},
	"target": {
		"<onServer>", "{kind: Namespace, name: shop}", "{group: policy.linkerd.io, kind: HTTPRoute, name: <name>}",
		"{group: gateway.networking.k8s.io, kind: HTTPRoute, name: <name>}",
	},
	"required": {
		"{kind: ServiceAccount, name: <name>}",
		"{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: <name>, namespace: <space>}",
		"{group: policy.linkerd.io, kind: NetworkAuthentication, name: <name>}",
	},
	"MeshTLSAuthentication": {
		"{identities: ['*']}", "{identities: [], identityRefs: []}", "5",
		"{identityRefs: [{kind: ServiceAccount, name: <name>}, {kind: Namespace, name: <space>}]}",
	},
	"NetworkAuthentication":    {"{networks: <network*3>}"},
	"HTTPLocalRateLimitPolicy": {"{targetRef: <onServer><limits>}"},
	"limits": {
		"", ", total: {requestsPerSecond: 5}", ", total: {requestsPerSecond: x}",
		", overrides: [{requestsPerSecond: 9, clientRefs: [{kind: ServiceAccount, name: <name>}]}]",
	},
	"EgressNetwork": {"{trafficPolicy: <traffic><networks>}"},
	"traffic":       {"Allow", "Deny"},
	"networks":      {"", ", networks: <network*3>"},

	"HTTPRoute":        {"{<of>, rules: [<http>]}", "{<of>, rules: [<http>, <http>]}"},
	"HTTPRoute.policy": {"<HTTPRoute>"},
	"GRPCRoute":        {"{<of>, rules: [<grpc>]}", "{<of>, rules: [<grpc>, <grpc>]}"},
	"TLSRoute":         {"{<of>, rules: [<connection>]}", "{<of>, rules: [<connection>, <connection>]}"},
	"TCPRoute":         {"<TLSRoute>"},
	"of":               {"hostnames: <host*2>, parentRefs: [<parent>, <parent>]", "parentRefs: <parent*3>"},
	"host":             {"a.example", "'*.b.example'", "'a*'", "5"},
	"parent": {
		"{group: core, kind: Service, name: <name>, port: 8080}", "{kind: Service, group: core, name: [<name>]}",
		"{group: core, kind: service, name: a, namespace: shop, sectionName: x}",
		"{group: '', kind: Service, name: <name>, namespace: <space>}", "<onServer>", "<onServer>", "{name: <name>}",
		"{group: policy.linkerd.io, kind: EgressNetwork, name: <name>, port: 443}",
		"{group: policy.linkerd.io, kind: EgressNetwork, name: <name>, namespace: <space>}",
		"{group: core, kind: Service, name: <name>, port: 70000}",
	},

	"http":       {"{matches: <httpMatch*2>, <requests>}"},
	"grpc":       {"{matches: <grpcMatch*2>, <requests>}"},
	"connection": {"{backendRefs: <backend*2>}"},
	"requests":   {"filters: <filter*2><timeouts>, backendRefs: <backend*3>"},
	"httpMatch": {
		"{path: {type: Exact, value: /a}}", "{path: {value: b}}", "{path: {type: RegularExpression, value: '[[a]'}}",
		"{path: {type: RegularExpression, value: '/(a|b)*'}}",
		"{path: {type: RegularExpression, value: '<regex>'}}", "{headers: [{name: 'a b', value: c}], method: LOCK}",
		"{queryParams: [{type: RegularExpression, name: q, value: '<regex>'}], path: {value: /q}}",
		"{queryParams: [{name: q, value: '1'}], method: GET}",
		"{headers: [{name: x, value: '1'}, {type: RegularExpression, name: z, value: 'a+'}]}", "{method: 'P R'}", "{}",
	},
	"regex": {
		`/\Qa\E`, "a{2}", "a{", "[[:alpha:]]+", `\p{^Lu}`, `\07`, `[a\[]`, "[^]a]+", "(?i)a", "a{2,}",
	},
	"grpcMatch": {
		"{method: {service: s, method: m}}", "{method: {type: RegularExpression, service: 's.*'}}", "{}",
		"{method: {}, headers: [{name: x, value: '1'}]}",
		"{headers: [{type: RegularExpression, name: x, value: '['}]}",
	},
	"filter": {
		"{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}], remove: [c]}}",
		"{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: a, value: b}]}}",
		"{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /x}, port: 8443}}",
		"{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: x}}}",
		"{type: RequestRedirect, requestRedirect: {scheme: https, hostname: c.example, statusCode: 301}}",
		"{type: RequestHeaderModifier}", "{type: URLRewrite, urlRewrite: {}}", "{type: RequestMirror}", "{}",
	},
	"backend": {
		"{name: <name>, port: 80}", "{name: <name>, namespace: <space>, port: 8080, weight: 2}",
		"{name: <name>, port: 80, weight: 0}", "{name: a, port: 80, weight: 0}",
		"{group: policy.linkerd.io, kind: EgressNetwork, name: a}", "{name: <name>, port: 80, filters: <filter*2>}",
		"{name: <name>}",
		"{kind: Secret, name: <name>, port: 80}", "{name: <name>, port: x}",
		"{group: policy.linkerd.io, kind: EgressNetwork, name: <name>, weight: 2}",
	},
	"timeouts": {
		"", ", timeouts: {request: 1m30s}", ", timeouts: {request: 0s, backendRequest: 1s}",
		", timeouts: {request: -1s}", ", timeouts: {request: x}", ", retry: {attempts: 3}",
		", timeouts: {request: 0.5s}", ", timeouts: {request: 500ms}", ", timeouts: {request: 100000s}",
		", timeouts: {request: 2s, backendRequest: x}",
	},

	"annotation": { // the last one of a name counts
		"timeout.linkerd.io/request: 5s", "timeout.linkerd.io/response: '0'", "timeout.linkerd.io/idle: abc",
		"retry.linkerd.io/http: 5xx", "retry.linkerd.io/grpc: 'cancelled,internal'", "retry.linkerd.io/limit: '3'",
		"retry.linkerd.io/timeout: '0'", "balancer.linkerd.io/failure-accrual: consecutive",
		"balancer.linkerd.io/failure-accrual: unified",
		"balancer.linkerd.io/failure-accrual-consecutive-max-penalty: '0'",
		"balancer.alpha.linkerd.io/failure-accrual-success-rate-threshold: '0'",
		"balancer.alpha.linkerd.io/failure-accrual-success-rate-min-requests: '4000000000'",
		"balancer.alpha.linkerd.io/penalize-failures: 'true'", "balancer.alpha.linkerd.io/load-biaser-penalty: 1193h",
		"config.linkerd.io/opaque-ports: '8080,http,x'", "config.linkerd.io/opaque-ports: ''",
		"config.linkerd.io/opaque-ports: ' 400-500 , 0'", "config.linkerd.io/opaque-ports: 'other'",
		"retry.linkerd.io/http: '5XX,gateway-error,404,300-301'", "retry.linkerd.io/http: '404-400'",
		"retry.linkerd.io/limit: '0'", "retry.linkerd.io/timeout: 2s", "retry.linkerd.io/grpc: x",
		"balancer.linkerd.io/failure-accrual: x", "timeout.linkerd.io/idle: 1m",
		"balancer.linkerd.io/failure-accrual-consecutive-max-failures: '3'",
		"balancer.linkerd.io/failure-accrual-consecutive-min-penalty: 2m",
		"balancer.linkerd.io/failure-accrual-consecutive-jitter-ratio: '0.1'",
		"balancer.alpha.linkerd.io/failure-accrual-success-rate-window: 5ms",
		"balancer.alpha.linkerd.io/failure-accrual-honor-retry-after: 't'",
	},
	"edit": {
		`{"metadata":{"labels":{"x":"y"}}}`, `{"metadata":{"annotations":{"x":"y"}}}`, `{"status":{"conditions":[]}}`,
		`{"metadata":{"annotations":{"timeout.linkerd.io/request":"7s"}}}`, `{"spec":{"rules":[{}]}}`,
		`{"spec":{"port":8080,"trafficPolicy":"Deny"}}`,
	},
}

var policyPart = regexp.MustCompile(`<([A-Za-z0-9. ]+)(?:\*(\d))?>`)

// drawText returns a text in which nothing is left to be drawn.
func drawText(t *rapid.T, text string) string {
	return policyPart.ReplaceAllStringFunc(text, func(place string) string {
		match := policyPart.FindStringSubmatch(place)
		part := match[1]
		one := func() string { return drawText(t, rapid.SampledFrom(policyGrammar[part]).Draw(t, part)) }
		if match[2] == "" {
			return one()
		}

		most, _ := strconv.Atoi(match[2]) // a digit
		var all []string
		for range rapid.IntRange(0, most).Draw(t, part+"s") {
			all = append(all, one())
		}
		return "[" + strings.Join(all, ", ") + "]"
	})
}

func drawPolicyHistory(t *rapid.T) (h policyHistory) {
	there := []string{"Service shop/a", "Server shop/a"}
	for range rapid.IntRange(5, 20).Draw(t, "objects") {
		object := drawText(t, "<kind>")
		space := "<space>"
		if object == "EgressNetwork" {
			space = "<space of EgressNetwork>"
		}
		object += drawText(t, " "+space+"/<name>")
		if !slices.Contains(there, object) {
			there = append(there, object)
		}
	}
	for _, object := range there {
		kind, name, _ := strings.Cut(object, " ")
		h.objects = append(h.objects, drawPolicyObject(t, kind, name))
	}

	inVerbs := strings.NewReplacer("HTTPRoute.policy ", "HTTPRoute.policy.linkerd.io ", "HTTPRoute ",
		"HTTPRoute.gateway.networking.k8s.io ")
	for range rapid.IntRange(0, 6).Draw(t, "edits") {
		object := inVerbs.Replace(rapid.SampledFrom(there).Draw(t, "edited"))
		h.edits = append(h.edits, drawText(t, "patch local "+object+" <edit>"))
	}
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(there)-1), 0, 3, rapid.ID[int]).Draw(t, "deleted") {
		h.edits = append(h.edits, "delete local "+inVerbs.Replace(there[i]))
		if rapid.Bool().Draw(t, "again") {
			h.edits = append(h.edits, "apply local "+fileOf(i))
		}
	}

	for _, flag := range []string{"-allow-l5d-request-headers", "-policy-app-protocol-grpc=false"} {
		if rapid.IntRange(0, 3).Draw(t, flag) == 0 {
			h.flags = append(h.flags, flag)
		}
	}
	return h
}

// fileOf returns the name of the file with an object of a history.
func fileOf(object int) string { return fmt.Sprintf("%d.yaml", object) }

// drawPolicyObject returns an object in YAML.
func drawPolicyObject(t *rapid.T, kind, name string) string {
	version := map[string]string{
		"Service": "v1", "Server": "policy.linkerd.io/v1beta3", "ServerAuthorization": "policy.linkerd.io/v1beta1",
		"HTTPRoute.policy": "policy.linkerd.io/v1beta3", "HTTPRoute": "gateway.networking.k8s.io/v1",
		"GRPCRoute": "gateway.networking.k8s.io/v1", "TLSRoute": "gateway.networking.k8s.io/v1alpha2",
		"TCPRoute": "gateway.networking.k8s.io/v1alpha2",
	}[kind]
	if version == "" {
		version = "policy.linkerd.io/v1alpha1"
	}

	spec := policyGrammar[kind]
	if kind == "Service" {
		address := rapid.SampledFrom(policyGrammar["address of "+name]).Draw(t, "address")
		spec = []string{strings.Replace(spec[0], "<address>", address, 1)}
	}

	namespace, name, _ := strings.Cut(name, "/")
	head := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n  namespace: %s\n  labels: {app: %s}\n",
		version, strings.TrimSuffix(kind, ".policy"), name, namespace, name)
	annotations := strings.Trim(drawText(t, "<annotation*4>"), "[]")
	return head + drawText(t, "  creationTimestamp: \"<age>\"\n  annotations: {"+annotations+"}\nspec: "+
		rapid.SampledFrom(spec).Draw(t, "spec")+"\n")
}

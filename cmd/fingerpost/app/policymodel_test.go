package app_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A policyModel computes answers about ports a second time, slowly and plainly: from all objects of the API server, as
// they are there, for each question anew. It shares no code with what serves, and knows as much as the histories of
// drawPolicy have.
type policyModel struct {
	objects []unstructured.Unstructured

	allowsHeaders, grpcIsBytes bool // flags

	seen map[string]int // how often something of an answer was met
}

// policyResources are those of the objects that the model reads.
var policyResources = []string{
	"servers.policy.linkerd.io", "serverauthorizations.policy.linkerd.io", "authorizationpolicies.policy.linkerd.io",
	"meshtlsauthentications.policy.linkerd.io", "networkauthentications.policy.linkerd.io",
	"httplocalratelimitpolicies.policy.linkerd.io", "httproutes.policy.linkerd.io",
	"httproutes.gateway.networking.k8s.io", "grpcroutes.gateway.networking.k8s.io",
	"tlsroutes.gateway.networking.k8s.io", "tcproutes.gateway.networking.k8s.io",
	"egressnetworks.policy.linkerd.io", "services",
}

// readPolicy returns the model of the local cluster as it is now.
func (s *scenario) readPolicy() *policyModel {
	m := &policyModel{
		seen: s.policySeen, allowsHeaders: slices.Contains(s.flags, "-allow-l5d-request-headers"),
		grpcIsBytes: slices.Contains(s.flags, "-policy-app-protocol-grpc=false"),
	}
	for _, resource := range policyResources {
		for _, o := range s.network.Server(home).List(resource) {
			m.objects = append(m.objects, *o)
		}
	}
	return m
}

// sees counts something that has had a part in an answer.
func (m *policyModel) sees(what string) {
	if m.seen != nil {
		m.seen[what]++
	}
}

// A modelPort is a port of one of the two workloads that histories ask for.
type modelPort struct {
	workload string // as a proxy asks
	number   int
	name     string // of the port that has that number, if it is declared
	app      string // label of the workload
	external bool
	probed   bool
}

// of yields the objects of a kind in namespace shop, the oldest first.
func (m *policyModel) of(kinds ...string) (all []unstructured.Unstructured) {
	for _, o := range m.objects {
		if o.GetNamespace() == "shop" && slices.Contains(kinds, kindIn(o)) {
			all = append(all, o)
		}
	}
	slices.SortStableFunc(all, func(a, b unstructured.Unstructured) int {
		return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), byName(a, b),
			cmp.Compare(a.GroupVersionKind().Group, b.GroupVersionKind().Group), cmp.Compare(a.GetKind(), b.GetKind()))
	})
	return all
}

func byName(a, b unstructured.Unstructured) int { return cmp.Compare(a.GetName(), b.GetName()) }

func (m *policyModel) named(kind, namespace, name string) *unstructured.Unstructured {
	for _, o := range m.objects {
		if kindIn(o) == kind && o.GetNamespace() == namespace && o.GetName() == name {
			return &o
		}
	}
	return nil
}

// kindIn returns the kind of an object, with what distinguishes the two kinds of HTTPRoutes.
func kindIn(o unstructured.Unstructured) string {
	if o.GetKind() == "HTTPRoute" && o.GroupVersionKind().Group == "policy.linkerd.io" {
		return "HTTPRoute.policy"
	}
	return o.GetKind()
}

// answer returns the lines of the answer about a port, without those of rules.
func (m *policyModel) answer(port modelPort) (lines []string) {
	for _, server := range m.of("Server") {
		if protocol, selects := serverProtocol(server, port); selects {
			return m.ofServer(server, protocol, port)
		}
	}

	lines = append(lines, "policy detect default/all-unauthenticated", defaultAllow("all-unauthenticated"))
	return append(lines, defaultRoutes(port)...)
}

func defaultAllow(name string) string {
	clients := "anyone"
	if name == "all-authenticated" {
		clients = "[suffix()]"
	}
	return "  allow default/" + name + " " + clients + " from 0.0.0.0/0 ::/0"
}

func defaultRoutes(port modelPort) []string {
	lines := []string{"  route default/default"}
	if port.probed {
		lines = append(lines, "  route default/probe", "    allow default/probe anyone from 0.0.0.0/0 ::/0")
	}
	return lines
}

// serverProtocol returns the protocol of a Server, and whether it can be read and selects a port.
func serverProtocol(server unstructured.Unstructured, port modelPort) (protocol string, selects bool) {
	spec, _ := server.Object["spec"].(map[string]any)
	text, _ := spec["proxyProtocol"].(string)
	protocol, known := map[string]string{
		"": "detect", "HTTP/1": "http1", "HTTP/2": "http2", "gRPC": "grpc", "opaque": "opaque", "TLS": "tls",
	}[text]
	if !known {
		return "", false
	}

	switch number := spec["port"].(type) {
	case int64:
		selects = int(number) == port.number
	case float64:
		selects = int(number) == port.number
	case string:
		selects = number == port.name
	}

	which := "podSelector"
	if port.external {
		which = "externalWorkloadSelector"
	}
	selector, is := spec[which].(map[string]any)
	return protocol, selects && is && selectsApp(selector, port.app)
}

// selectsApp reports whether a selector selects what has the label app. Operators of drawn expressions are none.
func selectsApp(selector map[string]any, app string) bool {
	labels, _ := selector["matchLabels"].(map[string]any)
	_, hasExpressions := selector["matchExpressions"]
	want, given := labels["app"]
	return !hasExpressions && (!given || want == app)
}

func (m *policyModel) ofServer(server unstructured.Unstructured, protocol string, port modelPort) (lines []string) {
	name := server.GetName()
	lines = append(lines, "policy "+protocol+" policy.linkerd.io/server/"+name)
	if protocol != "grpc" && protocol != "opaque" && protocol != "tls" {
		lines = append(lines, m.limitOf(name)...)
	}

	lines = append(lines, m.allowed("  ", "Server", name)...)
	lines = append(lines, m.allowedByName(server)...)
	access, _, _ := unstructured.NestedString(server.Object, "spec", "accessPolicy")
	if access == "audit" || access == "all-authenticated" {
		lines = append(lines, defaultAllow(access))
	}

	switch protocol {
	case "opaque", "tls":
		return lines
	case "grpc":
		if routes := m.routesOf(name, "GRPCRoute"); len(routes) > 0 {
			return append(lines, routes...)
		}
		return append(lines, "  route default/default")
	}
	if routes := m.routesOf(name, "HTTPRoute", "HTTPRoute.policy"); len(routes) > 0 {
		return append(lines, routes...)
	}
	return append(lines, defaultRoutes(port)...)
}

// limitOf returns the line of the rate limit of a Server.
func (m *policyModel) limitOf(server string) []string {
	for _, o := range m.of("HTTPLocalRateLimitPolicy") {
		target, _, _ := unstructured.NestedString(o.Object, "spec", "targetRef", "name")
		total, hasTotal, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "total", "requestsPerSecond")
		if target != server || total == "x" {
			continue
		}

		line := "  limit policy.linkerd.io/HTTPLocalRateLimitPolicy//" + o.GetName()
		if hasTotal {
			line += fmt.Sprint(" total=", total)
		}
		overrides, _, _ := unstructured.NestedSlice(o.Object, "spec", "overrides")
		for _, override := range overrides {
			var clients []string
			refs, _, _ := unstructured.NestedSlice(override.(map[string]any), "clientRefs")
			for _, ref := range refs {
				clients = append(clients, accountText(ref.(map[string]any), "shop"))
			}
			line += fmt.Sprintf(" [%s]=%v", strings.Join(clients, " "), override.(map[string]any)["requestsPerSecond"])
		}
		return []string{line}
	}
	return nil
}

// accountText returns the identity of a ServiceAccount that is referred to.
func accountText(ref map[string]any, namespace string) string {
	if given, is := ref["namespace"].(string); is {
		namespace = given
	}
	return fmt.Sprintf("%v.%s.serviceaccount.identity.linkerd.cluster.local", ref["name"], namespace)
}

// allowed returns the lines of AuthorizationPolicies about a Server, or a route.
func (m *policyModel) allowed(indent, kind, name string) (lines []string) {
	policies := m.of("AuthorizationPolicy")
	slices.SortStableFunc(policies, byName)
	for _, o := range policies {
		target, _, _ := unstructured.NestedMap(o.Object, "spec", "targetRef")
		of := fmt.Sprint(target["kind"])
		if of == "HTTPRoute" && target["group"] == "policy.linkerd.io" {
			of += ".policy"
		}
		isAbout := of == kind && target["name"] == name || kind == "Server" && of == "Namespace"
		clients, networks, grants := m.required(o)
		if isAbout && grants {
			lines = append(lines, fmt.Sprintf("%sallow policy.linkerd.io/authorizationpolicy//%s %s from %s",
				indent, o.GetName(), clients, networks))
		}
	}
	return lines
}

// required returns whom an AuthorizationPolicy lets in, if it does.
func (m *policyModel) required(o unstructured.Unstructured) (clients, networks string, grants bool) {
	clients, networks = "anyone", "0.0.0.0/0 ::/0"
	identities, places := 0, 0
	refs, _, _ := unstructured.NestedSlice(o.Object, "spec", "requiredAuthenticationRefs")
	for _, r := range refs {
		ref := r.(map[string]any)
		name, _ := ref["name"].(string)
		namespace := "shop"
		if given, is := ref["namespace"].(string); is {
			namespace = given
		}

		switch ref["kind"] {
		case "ServiceAccount":
			identities++
			clients = "[" + accountText(ref, "shop") + "]"
		case "MeshTLSAuthentication":
			identities++
			if clients = meshText(m.named("MeshTLSAuthentication", namespace, name)); clients == "" {
				return "", "", false
			}
		case "NetworkAuthentication":
			places++
			found := m.named("NetworkAuthentication", namespace, name)
			if found == nil {
				return "", "", false
			}
			all, _, _ := unstructured.NestedSlice(found.Object, "spec", "networks")
			if networks = networksText(all); networks == "" {
				return "", "", false
			}
		}
	}
	return clients, networks, identities <= 1 && places <= 1
}

// meshText returns the identities of a MeshTLSAuthentication; empty if it grants nothing.
func meshText(o *unstructured.Unstructured) string {
	if o == nil {
		return ""
	}
	spec, _ := o.Object["spec"].(map[string]any)
	identities, _ := spec["identities"].([]any)
	refs, _ := spec["identityRefs"].([]any)
	return identitiesText(identities, refs, o.GetNamespace())
}

// identitiesText returns identities and what refers to some; empty if there are none.
func identitiesText(identities, refs []any, namespace string) string {
	var exact, suffixes []string
	for _, i := range identities {
		text := fmt.Sprint(i)
		switch rest, is := strings.CutPrefix(text, "*."); {
		case text == "*":
			suffixes = append(suffixes, "suffix()")
		case is:
			suffixes = append(suffixes, "suffix("+strings.ReplaceAll(rest, ".", " ")+")")
		default:
			exact = append(exact, text)
		}
	}

	for _, r := range refs {
		ref := r.(map[string]any)
		if ref["kind"] == "Namespace" {
			suffixes = append(suffixes,
				fmt.Sprintf("suffix(%v serviceaccount identity linkerd cluster local)", ref["name"]))
		} else {
			exact = append(exact, accountText(ref, namespace))
		}
	}
	all := slices.Concat(exact, suffixes)
	if len(all) == 0 {
		return ""
	}
	return "[" + strings.Join(all, " ") + "]"
}

// networksText returns networks with their exceptions, of which the widest count; empty if there are none, or if one
// cannot be read.
func networksText(all []any) string {
	var texts []string
	for _, n := range all {
		network := n.(map[string]any)
		block, err := netip.ParsePrefix(fmt.Sprint(network["cidr"]))
		if err != nil {
			return ""
		}

		text := block.String()
		except, _ := network["except"].([]any)
		var before []netip.Prefix
		for _, e := range except {
			exception := netip.MustParsePrefix(e.(string))
			within := slices.ContainsFunc(before, func(b netip.Prefix) bool { return b.Overlaps(exception) })
			if !within { // those that are drawn come with the widest first
				text += "-" + exception.String()
			}
			before = append(before, exception)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

// allowedByName returns the lines of ServerAuthorizations.
func (m *policyModel) allowedByName(server unstructured.Unstructured) (lines []string) {
	all := m.of("ServerAuthorization")
	slices.SortStableFunc(all, byName)
	for _, o := range all {
		name, byName, _ := unstructured.NestedString(o.Object, "spec", "server", "name")
		_, bySelector, _ := unstructured.NestedMap(o.Object, "spec", "server", "selector") // of all, where it is drawn
		client, _, _ := unstructured.NestedMap(o.Object, "spec", "client")
		clients, networks := clientText(client), "10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16"
		if given, is := client["networks"].([]any); is { // an empty list is no network
			networks = networksText(given)
		}
		if (bySelector || byName && name == server.GetName()) && clients != "" && networks != "" {
			lines = append(lines, fmt.Sprintf("  allow policy.linkerd.io/serverauthorization//%s %s from %s",
				o.GetName(), clients, networks))
		}
	}
	return lines
}

// clientText returns whom a ServerAuthorization lets in; empty for no client.
func clientText(client map[string]any) string {
	mesh, _ := client["meshTLS"].(map[string]any)
	identities, _ := mesh["identities"].([]any)
	accounts, _ := mesh["serviceAccounts"].([]any)
	switch {
	case client["unauthenticated"] == true:
		return "anyone"
	case mesh["unauthenticatedTLS"] == true:
		return "tls"
	}
	return identitiesText(identities, accounts, "shop")
}

// routesOf returns the lines of routes of some kinds that are a Server's.
func (m *policyModel) routesOf(server string, kinds ...string) (lines []string) {
	order := []string{"TCPRoute", "TLSRoute", "HTTPRoute", "GRPCRoute"} // the later one has the parent for itself
	rank := func(o unstructured.Unstructured) int { return slices.Index(order, o.GetKind()) }
	highest := 0
	all := slices.DeleteFunc(m.of("HTTPRoute", "HTTPRoute.policy", "GRPCRoute", "TLSRoute", "TCPRoute"),
		func(o unstructured.Unstructured) bool { return !namesServer(o, server) })
	for _, o := range all {
		highest = max(highest, rank(o))
	}

	for _, o := range all {
		if rank(o) == highest && slices.Contains(kinds, kindIn(o)) {
			group := o.GroupVersionKind().Group
			lines = append(lines, "  route "+group+"/"+o.GetKind()+"//"+o.GetName())
			lines = append(lines, m.allowed("    ", kindIn(o), o.GetName())...)
		}
	}
	return lines
}

// namesServer reports whether one of a route's parents is a Server, without a port.
func namesServer(o unstructured.Unstructured, server string) bool {
	parents, _, _ := unstructured.NestedSlice(o.Object, "spec", "parentRefs")
	return slices.ContainsFunc(parents, func(p any) bool {
		parent, _ := p.(map[string]any)
		return parent["kind"] == "Server" && parent["name"] == server
	})
}

// modelPorts are those about which answers are compared.
var modelPorts = []modelPort{
	{workload: "shop:p", number: 8080, name: "http", app: "p"},
	{workload: "shop:p", number: 4191, name: "linkerd-admin", app: "p", probed: true},
	{workload: `{"ns":"shop","external_workload":"w"}`, number: 80, name: "http", app: "w", external: true},
}

// withoutRules returns the lines of an answer that the model knows.
func withoutRules(answer string) (lines []string) {
	for line := range strings.Lines(answer) {
		words := strings.Fields(line)
		if len(words) == 0 || !slices.Contains([]string{"policy", "limit", "allow", "route"}, words[0]) {
			continue
		}
		if words[0] == "route" {
			indent, _, _ := strings.Cut(line, "route")
			line = indent + strings.Join(words[:2], " ") // without its hosts
		}
		lines = append(lines, strings.TrimRight(line, "\n"))
	}
	return lines
}

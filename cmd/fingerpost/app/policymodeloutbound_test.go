package app_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Answers about targets, as the model has them.

// A modelQuestion is what a client of a namespace asks about, an address or an authority.
type modelQuestion struct{ client, target string }

// A modelAnswering is an answer that is computed: about a port of a Service or an EgressNetwork.
type modelAnswering struct {
	*policyModel
	target   modelRef
	object   *unstructured.Unstructured // nil for a Service that does not exist
	port     int
	client   string // its namespace
	original string // the address that it asks for; empty for an authority
	protocol string // of the port
}

func byAge(a, b unstructured.Unstructured) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), byName(a, b),
		cmp.Compare(a.GetNamespace(), b.GetNamespace()),
		cmp.Compare(a.GroupVersionKind().Group, b.GroupVersionKind().Group), cmp.Compare(a.GetKind(), b.GetKind()))
}

// outbound returns the answer to a question.
func (m *policyModel) outbound(asked modelQuestion) modelTarget {
	addr, err := netip.ParseAddrPort(asked.target)
	if err != nil {
		return m.byAuthority(asked)
	}
	a := &modelAnswering{policyModel: m, port: int(addr.Port()), client: asked.client, original: addr.String()}

	if service := m.serviceAt(addr.Addr()); service != nil {
		a.target, a.object = modelRef{"Service", service.GetNamespace(), service.GetName()}, service
		if declaredPort(service, a.port) == nil {
			m.sees("a port that is not declared")
			return a.undefined()
		}
		return a.answer()
	}

	if inCluster(addr.Addr()) {
		return modelTarget{Code: codes.NotFound}
	}
	if egress := m.egressFor(asked.client, addr.Addr()); egress != nil {
		a.target, a.object = modelRef{"EgressNetwork", egress.GetNamespace(), egress.GetName()}, egress
		return a.answer()
	}
	m.sees("fallback")
	return a.fallback()
}

// byAuthority returns the answer about a name of a Service.
func (m *policyModel) byAuthority(asked modelQuestion) modelTarget {
	host, port, hasPort := strings.Cut(asked.target, ":")
	a := &modelAnswering{policyModel: m, port: 80, client: asked.client}
	if hasPort {
		a.port, _ = strconv.Atoi(port) // those that are asked for are numbers
	}

	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	rest := strings.Join(labels[min(2, len(labels)):], ".")
	if rest != "svc" && rest != "svc.cluster.local" {
		return modelTarget{Code: codes.NotFound}
	}
	a.target = modelRef{"Service", labels[1], labels[0]}
	if a.object = m.named("Service", a.target.namespace, a.target.name); a.object == nil {
		m.sees("a Service by name that is not there")
	}
	return a.answer()
}

// serviceAt returns the Service whose cluster IP an address is, the oldest of several.
func (m *policyModel) serviceAt(ip netip.Addr) *unstructured.Unstructured {
	var all []unstructured.Unstructured
	for _, o := range m.objects {
		ips := listOf(specOf(&o)["clusterIPs"])
		if o.GetKind() == "Service" && slices.Contains(ips, any(ip.String())) {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b unstructured.Unstructured) int {
		return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time),
			cmp.Compare(a.GetNamespace(), b.GetNamespace()), byName(a, b))
	})
	if len(all) > 1 {
		m.sees("two Services of one address")
	}
	if len(all) == 0 {
		return nil
	}
	return &all[0]
}

// declaredPort returns a port that a Service declares; nil if it does not.
func declaredPort(service *unstructured.Unstructured, number int) map[string]any {
	for _, v := range listOf(specOf(service)["ports"]) {
		if n, _ := portOf(fieldsOf(v)); n == number {
			return fieldsOf(v)
		}
	}
	return nil
}

func (a *modelAnswering) annotations() map[string]string {
	if a.object == nil {
		return nil
	}
	return a.object.GetAnnotations()
}

// detects returns the protocol of the port.
func (a *modelAnswering) detects() string {
	named, declared := map[string][]int{}, ""
	if a.target.kind == "Service" && a.object != nil {
		declared, _ = declaredPort(a.object, a.port)["appProtocol"].(string)
		for _, v := range listOf(specOf(a.object)["ports"]) {
			name, _ := fieldsOf(v)["name"].(string)
			number, _ := portOf(fieldsOf(v))
			named[name] = append(named[name], number)
		}
	}

	list, given := a.annotations()[opaqueNote]
	if !given {
		list = "25,587,3306,4444,5432,6379,9300,11211"
	}
	switch strings.ToLower(declared) {
	case "http":
		return "http1"
	case "kubernetes.io/h2c", "grpc":
		if strings.EqualFold(declared, "grpc") && a.grpcIsBytes {
			return "opaque"
		}
		return "http2"
	case "":
		if a.opaquePort(list, a.port, named) {
			return "opaque"
		}
		return "detect"
	}
	return "opaque"
}

func (a *modelAnswering) about(ref modelRef, port int) string {
	group := "policy.linkerd.io"
	if ref.kind == "Service" {
		group = "core"
	}
	text := group + "/" + ref.kind + "/" + ref.namespace + "/" + ref.name
	if port != 0 {
		text += ":" + strconv.Itoa(port)
	}
	return text
}

func (a *modelAnswering) undefined() modelTarget {
	rule := modelRule{Filters: []string{"filter forbidden"}, How: "empty"}
	return modelTarget{
		About: a.about(a.target, a.port), Protocol: "opaque",
		Routes: []modelRoute{{About: "default/undefined-port", Rules: []modelRule{rule}}},
	}
}

func (a *modelAnswering) fallback() modelTarget {
	const name = "default/egress-fallback"
	rule := modelRule{How: "first", Backends: []modelBackend{{
		About: name, To: a.original + " weight=1", Queue: usualQueue,
	}}}
	http := rule
	http.Matches = []string{"any"}
	return modelTarget{
		About: name, Protocol: "detect", Routes: []modelRoute{{About: name, Rules: []modelRule{http}}},
		Opaque: []modelRoute{{About: name, Rules: []modelRule{rule}}},
	}
}

const usualQueue = "100/3s"

// answer returns the answer by the routes that there are.
func (a *modelAnswering) answer() modelTarget {
	a.protocol = a.detects()
	a.sees("protocol " + a.protocol + " of a " + a.target.kind)
	t := modelTarget{About: a.about(a.target, a.port), Protocol: a.protocol}
	isDetected := a.protocol == "detect"
	grpc, http := a.routesFor("GRPCRoute"), a.routesFor("HTTPRoute", "HTTPRoute.policy")
	tls, tcp := a.routesFor("TLSRoute"), a.routesFor("TCPRoute")

	switch {
	case (isDetected || a.protocol == "http2") && len(grpc) > 0:
		t.Protocol, t.Routes = "grpc", slices.Concat(grpc, a.leaves("grpc"))
	case a.protocol == "http1" || a.protocol == "http2" || isDetected && len(http) > 0:
		t.Routes = slices.Concat(http, a.leaves("http"))
	case isDetected && len(tls) > 0:
		t.Protocol, t.Routes = "tls", slices.Concat(tls, a.leaves("tls"))
	case len(tcp) > 0:
		t.Protocol, t.Routes = "opaque", tcp[:1]
	case isDetected:
		t.Routes = a.leaves("http")
	default:
		t.Routes = a.leaves("tcp")
	}

	switch t.Protocol {
	case "http1", "http2", "detect":
		if len(t.Routes) == 0 {
			t.Routes = []modelRoute{a.usual("http", []string{"prefix(/)"}, false)}
		}
	case "opaque":
		if len(t.Routes) == 0 {
			t.Routes = []modelRoute{a.bytes("opaq")}
		}
	}
	if t.Protocol == "detect" {
		if t.Opaque = a.leaves("tcp"); len(t.Opaque) == 0 {
			t.Opaque = []modelRoute{a.bytes("opaq")}
		}
	}
	if t.Protocol != "tls" && t.Protocol != "opaque" {
		t.Accrual = a.accrualOf(a.annotations())
	}
	a.sees("an answer of " + t.Protocol + " about a " + a.target.kind)
	return t
}

// leaves returns the route of what leaves by an EgressNetwork without another one; none for a Service.
func (a *modelAnswering) leaves(protocol string) []modelRoute {
	if a.target.kind != "EgressNetwork" {
		return nil
	}

	denied := specOf(a.object)["trafficPolicy"] == "Deny"
	name := protocol + "-egress-allow"
	if denied {
		name = protocol + "-egress-deny"
		a.sees("an EgressNetwork that denies")
	}

	filter := "filter forbidden"
	var route modelRoute
	switch protocol {
	case "http":
		route, filter = a.usual(name, []string{"prefix(/)"}, false), `filter fail 403 "traffic not allowed"`
	case "grpc":
		route, filter = a.usual(name, nil, true), `filter fail 7 "traffic not allowed"`
	default:
		route = a.bytes(name)
	}
	if denied {
		route.Rules[0].Filters = []string{filter}
	}
	return []modelRoute{route}
}

// usual returns a route of requests that leads to the target.
func (a *modelAnswering) usual(name string, matches []string, isGRPC bool) modelRoute {
	return modelRoute{About: "default/" + name, Rules: []modelRule{{
		Matches: matches, How: "first", Backends: []modelBackend{a.own()},
		Timeouts: a.timeoutsOf(a.annotations()).text(), Retry: a.retryOf(a.annotations(), isGRPC).text,
	}}}
}

func (a *modelAnswering) bytes(name string) modelRoute {
	rule := modelRule{How: "first", Backends: []modelBackend{a.own()}}
	return modelRoute{About: "default/" + name, Rules: []modelRule{rule}}
}

// own returns the target as a backend of its own.
func (a *modelAnswering) own() modelBackend {
	b := modelBackend{About: a.about(a.target, a.port), To: a.original + " weight=1", Queue: usualQueue}
	if a.target.kind == "Service" {
		b.To = balancerOf(a.target, a.port)
		if a.protocol != "opaque" {
			b.Load = a.loadOf(a.annotations())
		}
	}
	return b
}

func balancerOf(service modelRef, port int) string {
	return fmt.Sprintf("%s.%s.svc.cluster.local:%d", service.name, service.namespace, port)
}

// canHaveRoutes reports whether the target is one that routes count for.
func (a *modelAnswering) canHaveRoutes() bool {
	switch {
	case a.object == nil:
		return false
	case a.target.kind == "EgressNetwork":
		return a.accepts(a.object)
	}
	ip, _ := specOf(a.object)["clusterIP"].(string)
	return ip != "" && ip != "None"
}

// routesFor returns the routes of some kinds that the client gets.
func (a *modelAnswering) routesFor(kinds ...string) (all []modelRoute) {
	if !a.canHaveRoutes() {
		return nil
	}
	for _, route := range a.routes() {
		if slices.Contains(kinds, kindIn(route)) && a.has(&route) {
			all = append(all, a.route(&route))
		}
	}
	return all
}

// has reports whether the target has a route, for the client.
func (a *modelAnswering) has(route *unstructured.Unstructured) bool {
	namespace := route.GetNamespace()
	if namespace != a.target.namespace && namespace != a.client {
		return false
	}
	if !slices.ContainsFunc(a.parentsOf(route), func(p modelParent) bool {
		return p.modelRef == a.target && (p.port == 0 || p.port == a.port) && !a.excluded(route, p)
	}) {
		return false
	}

	if namespace != a.target.namespace {
		a.sees("a consumer route")
	}
	return true
}

// route returns a route with its rules.
func (a *modelAnswering) route(route *unstructured.Unstructured) (to modelRoute) {
	kind, spec := kindIn(*route), specOf(route)
	group := route.GroupVersionKind().Group
	to.About = group + "/" + route.GetKind() + "/" + route.GetNamespace() + "/" + route.GetName()
	hosts, known := a.hostsOf(route)
	to.Hosts = hosts

	rules := listOf(spec["rules"])
	ofConnections := kind == "TLSRoute" || kind == "TCPRoute"
	if !known || ofConnections && len(rules) != 1 {
		a.sees("a " + route.GetKind() + " without rules")
		rules = nil
	}

	for _, v := range rules {
		rule := a.withBackends(route, fieldsOf(v))
		isKnown := true
		if !ofConnections {
			rule.Matches, isKnown = a.matchesOf(kind, fieldsOf(v))
			a.addRequests(&rule, route, fieldsOf(v))
		}
		if isKnown {
			to.Rules = append(to.Rules, rule)
		}
	}
	if ofConnections && len(to.Rules) == 0 { // a proxy takes no route of connections without a rule
		to.Rules = []modelRule{{How: "empty", Filters: []string{"filter invalid for a reason"}}}
	}
	return to
}

// addRequests adds what a rule has for requests.
func (a *modelAnswering) addRequests(to *modelRule, route *unstructured.Unstructured, rule map[string]any) {
	kind := kindIn(*route)
	isGRPC := kind == "GRPCRoute"
	to.AllowsHeaders = a.allowsHeaders
	filters, converts := filterTexts(kind, rule["filters"])
	if to.Filters = filters; !converts {
		a.sees("a filter of " + route.GetKind() + " that does not convert")
		to.Filters = []string{failureOf(kind) + " for a reason"}
	}

	timeouts := a.timeoutsOf(route.GetAnnotations())
	if !isGRPC {
		request, given := a.ruleTimeoutOf(kind, rule)
		if given && !timeouts.requestGiven {
			timeouts.given, timeouts.request = true, request
		}
	}
	if !timeouts.given {
		timeouts = a.timeoutsOf(a.annotations())
	}
	to.Timeouts = timeouts.text()

	retry := a.retryOf(route.GetAnnotations(), isGRPC)
	if !retry.given {
		retry = a.retryOf(a.annotations(), isGRPC)
	}
	to.Retry = retry.text
}

// filterTexts returns filters as a client gets them. It returns false if one does not convert.
func filterTexts(kind string, list any) (all []string, convert bool) {
	for _, v := range listOf(list) {
		f, converts := filterOf(kind, v)
		if !converts || kind == "GRPCRoute" && f.kind != "RequestHeaderModifier" {
			return nil, false
		}
		all = append(all, f.text)
	}
	return all, true
}

// failureOf returns the filter that fails what a route of a kind has.
func failureOf(kind string) string {
	switch kind {
	case "GRPCRoute":
		return "filter fail 13"
	case "TLSRoute", "TCPRoute":
		return "filter invalid"
	default:
		return "filter fail 500"
	}
}

// withBackends returns a rule that has only its backends.
func (a *modelAnswering) withBackends(route *unstructured.Unstructured, rule map[string]any) modelRule {
	refs, sum := listOf(rule["backendRefs"]), 0
	if len(refs) == 0 {
		return modelRule{How: "first", Backends: []modelBackend{a.own()}}
	}

	to := modelRule{How: "random"}
	for _, v := range refs {
		b := a.backend(route, fieldsOf(v))
		weight, _ := strconv.Atoi(b.Weight)
		sum += weight
		to.Backends = append(to.Backends, b)
	}
	if sum == 0 {
		a.sees("backends without a weight")
		return modelRule{How: "first", Backends: []modelBackend{{
			About: "default/invalid", To: "nowhere", Queue: usualQueue,
			Filters: []string{failureOf(kindIn(*route)) + ` "no backend has a weight"`},
		}}}
	}
	return to
}

// backend returns a backend that a route names.
func (a *modelAnswering) backend(route *unstructured.Unstructured, from map[string]any) modelBackend {
	kind := kindIn(*route)
	b := modelBackend{About: "default/invalid", Weight: "1", To: "nowhere", Queue: usualQueue}
	fail := func(reason string) modelBackend {
		a.sees("a backend that fails " + strings.Trim(strings.SplitN(reason, " ", 3)[0], `"`))
		b.Filters = []string{failureOf(kind) + " " + reason}
		return b
	}

	port, readable := portOf(from)
	if _, is := from["port"].(string); is { // no field of that type: nothing of it is known
		return fail("for a reason")
	}
	if weight, given := from["weight"]; given {
		b.Weight = fmt.Sprint(weight)
	}

	group, _ := textAt(from, "group", "core")
	named, _ := textAt(from, "kind", "Service")
	namespace, _ := textAt(from, "namespace", route.GetNamespace())
	name, _ := textAt(from, "name", "")
	ref := modelRef{kindNamed(group, named), namespace, name}
	if ref.kind != "Service" && ref.kind != "EgressNetwork" {
		return fail(fmt.Sprintf("%q", "unsupported backend type "+group+" "+named))
	}

	if ref.kind == "EgressNetwork" && port == 0 {
		port = a.port
	}
	b.About = a.about(ref, port)
	filters, convert := filterTexts(kind, from["filters"])
	if kind == "TLSRoute" || kind == "TCPRoute" { // where backends have none
		filters, convert = nil, true
	}

	exists := a.named("Service", namespace, name) != nil
	switch isService := ref.kind == "Service"; {
	case !readable:
		return fail("for a reason")
	case isService && port == 0:
		return fail(fmt.Sprintf("%q", "missing port for backend Service "+name))
	case !convert: // of two reasons either may be given
		return fail(`"unsupported backend filter"`)
	case isService && !exists:
		return fail(fmt.Sprintf("%q", "Service not found "+name))
	case isService:
		b.To, b.Filters = balancerOf(ref, port), filters
		if a.target.kind == "Service" && kind != "TLSRoute" && kind != "TCPRoute" {
			b.Load = a.loadOf(a.annotations())
		}
	case ref == a.target:
		a.sees("an EgressNetwork as its own backend")
		b.To, b.Filters = a.original+" weight="+b.Weight, filters
	default:
		a.sees("another EgressNetwork as a backend")
		return fail("for a reason")
	}
	return b
}

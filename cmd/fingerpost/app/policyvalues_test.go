package app_test

import (
	"reflect"
	"regexp"
	"slices"
	"strings"

	outboundpb "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc/codes"
)

// A modelTarget is the answer about a target as the model has it: in plain values, with what is a setting as one text
// each. What an answer never has is no field of it.
type modelTarget struct {
	Code     codes.Code // of a call that gets no policy; the rest is empty then
	About    string     // what the policy is of: GROUP/KIND/NAMESPACE/NAME:PORT, or default/NAME
	Protocol string
	Accrual  string
	Routes   []modelRoute // where the protocol is detected: those of HTTP/1, which are those of HTTP/2
	Opaque   []modelRoute // where it is detected
}

// A modelRoute is one of clients or of a port.
type modelRoute struct {
	About  string
	Hosts  []string
	Allows []string // of a port
	Rules  []modelRule
}

// A modelRule is what becomes of some requests or connections.
type modelRule struct {
	Matches  []string
	Filters  []string
	How      string // first, random, or empty for nowhere; - at a port
	Backends []modelBackend

	Timeouts, Retry string
	AllowsHeaders   bool
}

// A modelBackend is where a part of them goes.
type modelBackend struct {
	About   string
	Weight  string // of a random one
	To      string // a balancer, the address that a client asks for, or nowhere
	Load    string // how a balancer estimates it; nothing for its usual way
	Queue   string
	Filters []string
}

// targetIn reads the answer about a target.
func targetIn(message *outboundpb.OutboundPolicy) modelTarget {
	m := partOf(message)
	kind := m.at("protocol").which("kind")
	protocol := m.at("protocol").at(kind)
	t := modelTarget{About: reference(m.about()), Protocol: protocolText(kind, protocol)}
	if kind != "detect" {
		t.Accrual, t.Routes = accrualIn(protocol), routesIn(protocol)
		return t
	}

	http1, http2 := protocol.at("http1"), protocol.at("http2")
	t.Accrual, t.Routes = accrualIn(http1), routesIn(http1)
	if !reflect.DeepEqual(routesIn(http2), t.Routes) || accrualIn(http2) != t.Accrual {
		t.Protocol += ", with other routes for HTTP/2"
	}
	t.Opaque = routesIn(protocol.at("opaque"))
	return t
}

// written returns what is printed of a message, without its indentation.
func written(write func(w *policyWriter)) (lines []string) {
	var w policyWriter
	write(&w)
	for _, line := range w.lines {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

func accrualIn(protocol part) string {
	if !protocol.has("failure_accrual") {
		return ""
	}
	return written(func(w *policyWriter) { w.accrual(0, protocol.at("failure_accrual")) })[0]
}

func routesIn(protocol part) (all []modelRoute) {
	for _, r := range slices.Concat(protocol.list("http_routes"), protocol.list("routes")) {
		route := modelRoute{About: reference(r.about())}
		for _, host := range slices.Concat(r.list("hosts"), r.list("snis")) {
			route.Hosts = append(route.Hosts, strings.Trim(hostsText([]part{host}), "[]"))
		}

		route.Allows = written(func(w *policyWriter) { w.authorizations(0, r) })
		for _, rule := range r.list("rules") {
			route.Rules = append(route.Rules, ruleIn(rule))
		}
		all = append(all, route)
	}
	return all
}

func ruleIn(rule part) (to modelRule) {
	for _, match := range rule.list("matches") {
		to.Matches = append(to.Matches, matchText(match))
	}
	to.Filters = filtersIn(rule)
	to.AllowsHeaders = rule.has("allow_l5d_request_headers")
	if rule.can("timeouts") {
		to.Timeouts, to.Retry = timeoutsText(rule), retryText(rule)
	}

	distribution := rule.at("backends")
	kind := distribution.which("kind")
	to.How = strings.TrimSuffix(dash(kind), "_available")
	for _, b := range distribution.at(kind).list("backends") {
		switch kind {
		case "random_available":
			backend := backendIn(b.at("backend"))
			backend.Weight = b.text("weight")
			to.Backends = append(to.Backends, backend)
		default:
			to.Backends = append(to.Backends, backendIn(b))
		}
	}
	return to
}

func backendIn(of part) modelBackend {
	backend := of.at("backend")
	to := modelBackend{About: reference(backend.about()), Filters: filtersIn(of), To: "nowhere"}
	queue := backend.at("queue")
	to.Queue = queue.text("capacity") + "/" + queue.duration("failfast_timeout")

	switch backend.which("kind") {
	case "balancer":
		balancer := backend.at("balancer")
		to.To, to.Load = balancer.at("discovery").at("dst").text("path"), loadText(balancer)
	case "forward":
		to.To = forwardText(backend.at("forward"))
	}
	return to
}

// statedReason is a message that the model knows. It knows of the others only that there is one.
var statedReason = regexp.MustCompile(`"(missing port for backend |Service not found |unsupported backend type |` +
	`unsupported backend filter"|no backend has a weight"|traffic not allowed").*`)

var anyReason = regexp.MustCompile(`^(filter (?:fail \d+|invalid)) ".+"$`)

func filtersIn(of part) (all []string) {
	for _, line := range written(func(w *policyWriter) { w.filters(0, of) }) {
		if !statedReason.MatchString(line) {
			line = anyReason.ReplaceAllString(line, "$1 for a reason")
		}
		all = append(all, line)
	}
	return all
}

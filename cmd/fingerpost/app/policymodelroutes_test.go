package app_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// What the model reads of routes, of clients and of Servers: their parents, hosts, matches and filters.

// routeRanks are the kinds of routes. A later one has a parent for itself.
var routeRanks = []string{"TCPRoute", "TLSRoute", "HTTPRoute", "GRPCRoute"}

// A modelRef is a parent of a route, or a backend.
type modelRef struct{ kind, namespace, name string }

// A modelParent is a parent that is named, with a port or 0.
type modelParent struct {
	modelRef
	port    int
	section bool
}

func fieldsOf(v any) map[string]any {
	fields, _ := v.(map[string]any)
	return fields
}

func listOf(v any) []any {
	list, _ := v.([]any)
	return list
}

func specOf(o *unstructured.Unstructured) map[string]any { return fieldsOf(o.Object["spec"]) }

// textAt returns a text in a field, or another one if there is none. It returns false where something else is.
func textAt(of map[string]any, key, otherwise string) (text string, readable bool) {
	v := of[key]
	if v == nil {
		return otherwise, true
	}
	text, readable = v.(string)
	return text, readable
}

// portOf returns the port in the field of that name, and 0 if there is none.
func portOf(of map[string]any) (port int, readable bool) {
	switch v := of["port"].(type) {
	case nil:
		return 0, true
	case int64:
		port = int(v)
	case float64:
		port = int(v)
	}
	return port, port > 0 && port < 65536
}

// kindNamed returns the kind of a reference, if it is one of those that routes have to do with.
func kindNamed(group, kind string) string {
	for _, known := range []string{"Server", "Service", "EgressNetwork"} {
		ofKind := strings.EqualFold(kind, known)
		isCore := group == "" || strings.EqualFold(group, "core")
		isGroup := strings.EqualFold(group, "policy.linkerd.io")
		if known == "Service" {
			isGroup = isCore
		}
		if ofKind && isGroup {
			return known
		}
	}
	return ""
}

// parentsOf returns the parents of a route that can be read and are ours.
func (m *policyModel) parentsOf(route *unstructured.Unstructured) (all []modelParent) {
	for _, v := range listOf(specOf(route)["parentRefs"]) {
		from := fieldsOf(v)
		group, ok1 := textAt(from, "group", "gateway.networking.k8s.io")
		kind, ok2 := textAt(from, "kind", "Gateway")
		namespace, ok3 := textAt(from, "namespace", route.GetNamespace())
		name, ok4 := textAt(from, "name", "")
		port, ok5 := portOf(from)
		section, ok6 := textAt(from, "sectionName", "")
		switch {
		case !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6:
			m.sees("a parent that cannot be read")
		case kindNamed(group, kind) == "":
			m.sees("a parent for others")
		default:
			ref := modelRef{kindNamed(group, kind), namespace, name}
			all = append(all, modelParent{ref, port, section != ""})
		}
	}
	return all
}

// routes returns all routes, the oldest first.
func (m *policyModel) routes() (all []unstructured.Unstructured) {
	for _, o := range m.objects {
		if slices.Contains(routeRanks, o.GetKind()) {
			all = append(all, o)
		}
	}
	slices.SortStableFunc(all, byAge)
	return all
}

// excluded reports whether a route is not on a parent because a route of a higher rank names the very same.
func (m *policyModel) excluded(route *unstructured.Unstructured, from modelParent) bool {
	rank := slices.Index(routeRanks, route.GetKind())
	for _, other := range m.routes() {
		if slices.Index(routeRanks, other.GetKind()) <= rank {
			continue
		}
		for _, parent := range m.parentsOf(&other) {
			if parent.modelRef == from.modelRef && parent.port == from.port {
				m.sees("a conflict of " + route.GetKind() + " and " + other.GetKind())
				return true
			}
		}
	}
	return false
}

// hostsOf returns the hosts of a route. It returns false if there are some, and none can be read.
func (m *policyModel) hostsOf(route *unstructured.Unstructured) (hosts []string, known bool) {
	given := listOf(specOf(route)["hostnames"])
	if route.GetKind() == "TCPRoute" {
		return nil, true
	}

	for _, v := range given {
		text, _ := v.(string)
		name, isSuffix := strings.CutPrefix(text, "*.")
		if !hostname.MatchString(name) {
			m.sees("a hostname that is none")
			continue
		}
		if isSuffix {
			labels := strings.Split(name, ".")
			slices.Reverse(labels)
			name = "suffix(" + strings.Join(labels, " ") + ")"
		}
		hosts = append(hosts, name)
	}
	return hosts, len(given) == 0 || len(hosts) > 0
}

var hostname = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// matchesOf returns the matches of a rule. It returns false if there are some, and none converts: then there is no such
// rule.
func (m *policyModel) matchesOf(kind string, rule map[string]any) (matches []string, known bool) {
	given := listOf(rule["matches"])
	for _, v := range given {
		words, converts := httpMatchWords(fieldsOf(v))
		if kind == "GRPCRoute" {
			words, converts = grpcMatchWords(fieldsOf(v))
		}
		switch {
		case !converts:
			m.sees("a match of " + kind + " that does not convert")
		case len(words) == 0:
			matches = append(matches, "any")
		default:
			matches = append(matches, strings.Join(words, " "))
		}
	}
	if len(given) > 0 && len(matches) == 0 {
		m.sees("a rule without a match that converts")
		return nil, false
	}
	return matches, true
}

func httpMatchWords(match map[string]any) (words []string, converts bool) {
	if method, given := match["method"].(string); given {
		if !tokenText.MatchString(method) {
			return nil, false
		}
		if !slices.Contains(registeredMethods, method) {
			method = strconv.Quote(method)
		}
		words = append(words, method)
	}

	if path, given := match["path"].(map[string]any); given {
		value, _ := textAt(path, "value", "/")
		kind, _ := textAt(path, "type", "PathPrefix")
		name := map[string]string{"Exact": "exact", "PathPrefix": "prefix", "RegularExpression": "regex"}[kind]
		if name == "" || name == "regex" && !passesRegex(value) || name != "regex" && !strings.HasPrefix(value, "/") {
			return nil, false
		}
		words = append(words, name+"("+value+")")
	}

	headers, ok1 := valueWords("header", match["headers"])
	queries, ok2 := valueWords("query", match["queryParams"])
	return slices.Concat(words, headers, queries), ok1 && ok2
}

var (
	registeredMethods = []string{"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "HEAD", "TRACE"}

	tokenText = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")
)

func grpcMatchWords(match map[string]any) (words []string, converts bool) {
	method := fieldsOf(match["method"])
	service, _ := textAt(method, "service", "")
	name, _ := textAt(method, "method", "")
	kind, _ := textAt(method, "type", "Exact")
	headers, converts := valueWords("header", match["headers"])
	return append([]string{"rpc(" + service + "/" + name + ")"}, headers...), converts && kind == "Exact"
}

// valueWords renders what headers or parameters must be.
func valueWords(of string, list any) (words []string, converts bool) {
	for _, v := range listOf(list) {
		from := fieldsOf(v)
		name, _ := textAt(from, "name", "")
		value, _ := textAt(from, "value", "")
		kind, _ := textAt(from, "type", "Exact")
		compares := "="
		if kind == "RegularExpression" {
			compares = "~"
		}
		if kind != "Exact" && (kind != "RegularExpression" || !passesRegex(value)) || !tokenText.MatchString(name) {
			return nil, false
		}
		words = append(words, of+"("+name+compares+value+")")
	}
	return words, true
}

// passesRegex reports whether a proxy can be given a regular expression. Those that are drawn are short.
func passesRegex(text string) bool {
	if _, err := regexp.Compile(text); err != nil || foreignEscape.MatchString(text) {
		return false
	}

	// What is left of brackets and braces, once all of those are gone that mean the same in Rust, is of Go alone.
	text = regexp.MustCompile(`\\.`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`\[:\^?[a-z]+:\]`).ReplaceAllString(text, "a")
	text = regexp.MustCompile(`\[\^?\]?[^][]*\]`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`\{\d+(,\d*)?\}`).ReplaceAllString(text, "")
	return !strings.ContainsAny(text, "[{")
}

// foreignEscape is an escape that Go knows and Rust does not.
var foreignEscape = regexp.MustCompile(`\\(Q|[0-7]|[pP]\{\^)`)

// A modelFilter is a filter that converts: of the request's headers, the response's, or a redirect.
type modelFilter struct{ kind, text string }

// filterOf reads a filter of a route that has requests.
func filterOf(kind string, v any) (to modelFilter, converts bool) {
	from := fieldsOf(v)
	to.kind, _ = textAt(from, "type", "")
	body := map[string]string{
		"RequestHeaderModifier": "requestHeaderModifier", "ResponseHeaderModifier": "responseHeaderModifier",
		"RequestRedirect": "requestRedirect",
	}[to.kind]
	fields, given := from[body].(map[string]any)
	if body == "" || !given {
		return to, false
	}

	switch to.kind {
	case "RequestRedirect":
		to.text, converts = redirectOf(fields)
		return to, converts && kind != "GRPCRoute"
	case "RequestHeaderModifier":
		to.text = "filter request-headers" + headerChanges(fields)
	default:
		to.text = "filter response-headers" + headerChanges(fields)
	}
	return to, true
}

func headerChanges(of map[string]any) (text string) {
	for _, how := range []string{"set", "add"} {
		var headers []string
		for _, v := range listOf(of[how]) {
			headers = append(headers, fmt.Sprintf("%v=%v", fieldsOf(v)["name"], fieldsOf(v)["value"]))
		}
		if headers != nil {
			text += " " + how + "=[" + strings.Join(headers, " ") + "]"
		}
	}
	if removed := listOf(of["remove"]); len(removed) > 0 {
		text += " remove=" + fmt.Sprint(removed)
	}
	return text
}

func redirectOf(from map[string]any) (text string, converts bool) {
	text = "filter redirect"
	if scheme, given := from["scheme"].(string); given {
		text += " scheme=" + strings.ToUpper(scheme)
	}
	if host, given := from["hostname"].(string); given {
		text += " host=" + host
	}

	if path, given := from["path"].(map[string]any); given {
		how, value := "full", path["replaceFullPath"]
		if path["type"] == "ReplacePrefixMatch" {
			how, value = "prefix", path["replacePrefixMatch"]
		}
		if !strings.HasPrefix(fmt.Sprint(value), "/") {
			return "", false
		}
		text += fmt.Sprintf(" path=%s(%v)", how, value)
	}

	if port, given := from["port"]; given {
		text += fmt.Sprint(" port=", port)
	}
	status := any(302)
	if given := from["statusCode"]; given != nil {
		status = given
	}
	return text + fmt.Sprint(" status=", status), true
}

// ruleTimeoutOf returns the timeout of requests of a rule, and whether it is given. Of timeouts that cannot be read it
// is not.
func (m *policyModel) ruleTimeoutOf(kind string, rule map[string]any) (request time.Duration, given bool) {
	timeouts := fieldsOf(rule["timeouts"])
	for _, name := range []string{"backendRequest", "request"} {
		v := timeouts[name]
		if v == nil {
			continue
		}
		after, ok := goDuration(fmt.Sprint(v))
		if kind != "HTTPRoute.policy" {
			after, ok = gatewayDuration(fmt.Sprint(v))
		}
		if !ok {
			m.sees("timeouts of a rule that cannot be read")
			return 0, false
		}
		request, given = after, name == "request"
	}
	return request, given
}

func goDuration(text string) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0
}

// gatewayDuration reads the form of the Gateway API, or that of annotations.
func gatewayDuration(text string) (time.Duration, bool) {
	if !regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`).MatchString(text) {
		return annotationDuration(text)
	}
	return goDuration(text)
}

// annotationDuration reads a number with one unit.
func annotationDuration(text string) (time.Duration, bool) {
	if text == "0" {
		return 0, true
	}
	match := regexp.MustCompile(`^([0-9]+)(ms|s|m|h|d)$`).FindStringSubmatch(text)
	if match == nil {
		return 0, false
	}
	n, _ := strconv.Atoi(match[1])
	unit := map[string]time.Duration{
		"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
	}[match[2]]
	return time.Duration(n) * unit, true
}

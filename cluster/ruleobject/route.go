package ruleobject

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// Route reads a route of a kind. An error means that its name cannot be read; otherwise there is always one, which
// stays attached to the parents that can be read.
func Route(kind rules.Kind, u *unstructured.Unstructured) (*rules.Route, error) {
	return stored(kind, u, (*reader).route)
}

func (r *reader) route() (*rules.Route, error) {
	var spec struct {
		ParentRefs json.RawMessage `json:"parentRefs"`
		Hostnames  json.RawMessage `json:"hostnames"`
		Rules      json.RawMessage `json:"rules"`
	}
	to := &rules.Route{}
	if err := decode(r.spec, &spec); err != nil {
		r.leaveOutFor(rules.PartSpec, err)
		to.Silent = true
	}

	to.Parents = r.parents(spec.ParentRefs)
	r.annotations(to)
	if r.kind != rules.KindTCPRoute {
		r.hostnames(spec.Hostnames, to)
	}
	r.rules(spec.Rules, to)

	to.Meta = r.meta()
	return to, nil
}

// A routeReference is what a route refers to.
type routeReference struct {
	Group       *string `json:"group"`
	Kind        *string `json:"kind"`
	Namespace   string  `json:"namespace"`
	Name        string  `json:"name"`
	SectionName string  `json:"sectionName"`
	Port        *int64  `json:"port"`
}

// or returns a text, or another one if it is absent.
func or(text *string, otherwise string) string {
	if text == nil {
		return otherwise
	}
	return *text
}

// port returns the port of a reference, and 0 if it has none.
func (f routeReference) port() (uint16, error) {
	if f.Port == nil {
		return 0, nil
	}
	n, err := portNumber(*f.Port)
	if err != nil && *f.Port != 0 {
		err = misreading{err}
	}
	return n, err
}

func (r *reader) parents(raw json.RawMessage) (parents []rules.Parent) {
	all, err := r.elements(rules.PartParent, raw, maxParents)
	if err != nil {
		r.leaveOutFor(rules.PartParent, err)
	}

	for _, raw := range all {
		parent, is, err := r.parent(raw)
		switch {
		case err != nil:
			r.leaveOutFor(rules.PartParent, err)
		case is:
			parents = append(parents, parent)
			r.hasServer = r.hasServer || parent.Kind == rules.KindServer
		}
	}
	return parents
}

// parent reads a parentRef. It returns false for one to another kind, such as Gateway, which is for others.
func (r *reader) parent(raw json.RawMessage) (to rules.Parent, is bool, err error) {
	var from routeReference
	if err := decode(raw, &from); err != nil {
		return to, false, err
	}
	group, kind := or(from.Group, rules.GatewayGroup), or(from.Kind, "Gateway")

	switch rules.KindOf(group, kind) {
	case rules.KindServer, rules.KindService, rules.KindEgressNetwork:
	default:
		return to, false, nil
	}

	to.Reference, err = r.referent(reference{group, kind, from.Namespace, from.Name})
	if err != nil {
		return to, false, err
	}
	if to.Port, err = from.port(); err != nil {
		return to, false, err
	}

	to.Section = from.SectionName != ""
	r.checkParent(to)
	return to, true, nil
}

// checkParent records a parent that has no effect. A new route is denied where it would have one that is too wide.
func (r *reader) checkParent(parent rules.Parent) {
	switch {
	case parent.Kind == rules.KindEgressNetwork && parent.Port == 0:
		r.deny("parentRef: EgressNetwork " + parent.Name + " is referred to without a port")
	case parent.Kind != rules.KindServer:
	case parent.Namespace != r.object.Namespace:
		r.note(rules.PartParent, "Server %s is in another namespace: it does not have the route", parent.Name)
	case parent.Port != 0 || parent.Section:
		r.note(rules.PartParent, "Server %s is referred to with a port or section: it does not have the route",
			parent.Name)
	}
}

// annotations reads those that clients use.
func (r *reader) annotations(to *rules.Route) {
	outbound := false
	for _, parent := range to.Parents {
		outbound = outbound || parent.Kind != rules.KindServer
	}

	switch {
	case !outbound:
	case r.kind.IsHTTP():
		to.Timeouts, to.Retry = r.timeouts(), group(r, parseHTTPRetry)
	case r.kind == rules.KindGRPCRoute:
		to.Timeouts, to.Retry = r.timeouts(), group(r, parseGRPCRetry)
	}
	r.checkRetries(to.Retry)
}

func (r *reader) hostnames(raw json.RawMessage, to *rules.Route) {
	all, err := r.elements(rules.PartHostname, raw, maxHostnames)
	if err != nil {
		r.leaveOutFor(rules.PartHostname, err)
		to.Silent = true
		return
	}

	for _, raw := range all {
		hostname, err := parseHostname(raw)
		if err != nil {
			r.leaveOutFor(rules.PartHostname, err)
			continue
		}
		to.Hostnames = append(to.Hostnames, hostname)
	}
	to.Silent = to.Silent || len(all) > 0 && len(to.Hostnames) == 0
}

func parseHostname(raw json.RawMessage) (rules.Pattern, error) {
	var text string
	if err := decode(raw, &text); err != nil {
		return rules.Pattern{}, err
	}
	hostname := rules.ParseHostname(text)
	if len(validation.IsDNS1123Subdomain(hostname.Text)) > 0 {
		return hostname, fmt.Errorf("%.64q is no hostname", text)
	}
	return hostname, nil
}

func (r *reader) rules(raw json.RawMessage, to *rules.Route) {
	all, err := r.elements(rules.PartRule, raw, maxRules)
	if err != nil {
		r.leaveOutFor(rules.PartRule, err)
		to.Silent = true
		return
	}

	for i, raw := range all {
		r.rule = i + 1
		to.Rules = append(to.Rules, r.ruleOf(raw))
	}
	r.rule = 0

	isOne := r.kind == rules.KindTLSRoute || r.kind == rules.KindTCPRoute
	if isOne && len(all) != 1 {
		r.deny(r.leaveOut(rules.PartRule, "a %v has one rule, and not %d: none is sent", r.kind, len(all)))
		to.Silent = true
	}
}

// A ruleSpec is a rule of any kind of route.
type ruleSpec struct {
	Matches            json.RawMessage `json:"matches"`
	Filters            json.RawMessage `json:"filters"`
	BackendRefs        json.RawMessage `json:"backendRefs"`
	Timeouts           json.RawMessage `json:"timeouts"`
	Retry              json.RawMessage `json:"retry"`
	SessionPersistence json.RawMessage `json:"sessionPersistence"`
}

func (r *reader) ruleOf(raw json.RawMessage) (to rules.Rule) {
	var spec ruleSpec
	if err := decode(raw, &spec); err != nil {
		r.leaveOutFor(rules.PartRule, err)
		return rules.Rule{Unmatched: true}
	}

	if r.kind.IsHTTP() || r.kind == rules.KindGRPCRoute {
		to.Matches, to.Unmatched = r.matches(spec.Matches)
		to.Filters = r.filters(spec.Filters)
	}
	to.Backends = r.backends(spec.BackendRefs)
	if to.Weightless() {
		r.note(rules.PartBackend, "no backend has a weight: all requests fail")
	}
	if r.kind.IsHTTP() {
		to.Timeouts.Request = r.ruleTimeouts(spec.Timeouts)
	}

	if !isNull(spec.Retry) {
		r.note(rules.PartRule, "retry is not used")
	}
	if !isNull(spec.SessionPersistence) {
		r.note(rules.PartRule, "sessionPersistence is not used")
	}
	return to
}

// ruleTimeouts returns the timeout of requests of a rule. Timeouts that do not convert are none.
func (r *reader) ruleTimeouts(raw json.RawMessage) (request rules.Timeout) {
	if isNull(raw) {
		return request
	}
	var spec struct {
		Request        *string `json:"request"`
		BackendRequest *string `json:"backendRequest"`
	}

	err := decode(raw, &spec)
	if err == nil {
		request, err = r.ruleTimeout("request", spec.Request)
	}
	backend := rules.Timeout{}
	if err == nil {
		backend, err = r.ruleTimeout("backendRequest", spec.BackendRequest)
	}

	if err != nil {
		r.leaveOutFor(rules.PartTimeouts, err)
		return rules.Timeout{}
	}
	r.checkTimeouts(request, backend)
	return request
}

// checkTimeouts notes timeouts of a rule that are none. In the group policy.linkerd.io one of a backend must not be
// longer than that of the request.
func (r *reader) checkTimeouts(request, backend rules.Timeout) {
	if backend.Given {
		reason := r.note(rules.PartTimeouts, "backendRequest is not used")
		if r.kind == rules.KindPolicyHTTPRoute && request.Given && backend.After > request.After {
			r.deny(reason + ", and is longer than request")
		}
	}
	if request.Given && request.After == 0 {
		r.note(rules.PartTimeouts, "a timeout of 0 is no timeout")
	}
}

// ruleTimeout reads a member of the timeouts of a rule, in the form of its group.
func (r *reader) ruleTimeout(name string, text *string) (rules.Timeout, error) {
	if text == nil {
		return rules.Timeout{}, nil
	}

	var after time.Duration
	var err error
	if r.kind == rules.KindPolicyHTTPRoute {
		after, err = rules.ParseGoDuration(*text)
		if err != nil {
			err = denial{err}
		}
	} else {
		after, err = rules.ParseGatewayDuration(*text)
	}

	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return rules.Timeout{After: after, Given: true}, err
}

// isToken reports whether a text may be the name of a header, or a method (RFC 9110, section 5.6.2).
func isToken(text string, limit int) bool {
	isOther := func(c rune) bool {
		isLetter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		return !isLetter && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	}
	return text != "" && len(text) <= limit && !strings.ContainsFunc(text, isOther)
}

// isHeaderValue reports whether a text may be the value of a header: what is printed in ASCII, blanks and tabs.
func isHeaderValue(text string) bool {
	isOther := func(c rune) bool { return c != '\t' && (c < ' ' || c > '~') }
	return len(text) <= maxText && !strings.ContainsFunc(text, isOther)
}

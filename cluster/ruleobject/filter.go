package ruleobject

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// filters reads those of a rule. One that does not convert fails the rule, and so do too many.
func (r *reader) filters(raw json.RawMessage) (filters []rules.Filter) {
	all, more, err := elements(raw, maxFilters)
	if more {
		err = errFilters
	}
	if err != nil {
		return []rules.Filter{{Unsupported: r.leaveOutFor(rules.PartFilter, err)}}
	}

	for _, raw := range all {
		filter, err := r.filter(raw)
		if err != nil {
			filter = rules.Filter{Unsupported: r.leaveOutFor(rules.PartFilter, err)}
		}
		if filter.ResponseHeaders != nil {
			r.checkResponseHeaders()
		}
		filters = append(filters, filter)
	}
	return filters
}

// checkResponseHeaders records that changes of responses are not sent to proxies of Servers, nor to any as part of a
// GRPCRoute.
func (r *reader) checkResponseHeaders() {
	switch {
	case r.kind == rules.KindGRPCRoute:
		r.leaveOut(rules.PartFilter, "%v", errResponseHeaders)
	case r.hasServer:
		r.leaveOut(rules.PartFilter, "ResponseHeaderModifier has no effect at Servers")
	}
}

var errFilters = fmt.Errorf("there are more than %d", maxFilters)

var errResponseHeaders = errors.New("ResponseHeaderModifier is not supported on GRPCRoutes")

// A filterSpec is a filter of any kind of route.
type filterSpec struct {
	Type                   string          `json:"type"`
	RequestHeaderModifier  json.RawMessage `json:"requestHeaderModifier"`
	ResponseHeaderModifier json.RawMessage `json:"responseHeaderModifier"`
	RequestRedirect        json.RawMessage `json:"requestRedirect"`
}

// filter reads a filter, or returns why it does not convert.
func (r *reader) filter(raw json.RawMessage) (to rules.Filter, err error) {
	var from filterSpec
	if err := decode(raw, &from); err != nil {
		return to, err
	}

	switch {
	case from.Type == "RequestHeaderModifier":
		to.RequestHeaders, err = parseHeaderChanges(from.RequestHeaderModifier)
	case from.Type == "ResponseHeaderModifier":
		to.ResponseHeaders, err = parseHeaderChanges(from.ResponseHeaderModifier)
	case from.Type == "RequestRedirect" && r.kind.IsHTTP():
		to.Redirect, err = parseRedirect(from.RequestRedirect)
	default:
		err = r.unsupported(from.Type)
	}
	return to, err
}

// unsupported returns why a type of filter does not convert. In the group policy.linkerd.io there are no others.
func (r *reader) unsupported(filter string) error {
	err := fmt.Errorf("%.64q is not supported", filter)
	if r.kind == rules.KindPolicyHTTPRoute {
		return denial{err}
	}
	return err
}

func parseHeaderChanges(raw json.RawMessage) (*rules.HeaderChanges, error) {
	var from struct {
		Set    []headerSpec `json:"set"`
		Add    []headerSpec `json:"add"`
		Remove []string     `json:"remove"`
	}
	if err := decode(raw, &from); err != nil {
		return nil, err
	}
	if n := len(from.Set) + len(from.Add) + len(from.Remove); n > maxHeaders {
		return nil, fmt.Errorf("it changes %d headers, more than %d", n, maxHeaders)
	}

	for _, name := range from.Remove {
		if err := checkHeader(name, ""); err != nil {
			return nil, err
		}
	}
	set, err := parseHeaders(from.Set)
	if err != nil {
		return nil, err
	}
	add, err := parseHeaders(from.Add)
	return &rules.HeaderChanges{Set: set, Add: add, Remove: from.Remove}, err
}

// A headerSpec is a header and its value.
type headerSpec struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func parseHeaders(all []headerSpec) (headers []rules.Header, err error) {
	for _, header := range all {
		if err := checkHeader(header.Name, header.Value); err != nil {
			return nil, err
		}
		headers = append(headers, rules.Header(header))
	}
	return headers, nil
}

// A pathChangeSpec replaces a path.
type pathChangeSpec struct {
	Type               string  `json:"type"`
	ReplaceFullPath    *string `json:"replaceFullPath"`
	ReplacePrefixMatch *string `json:"replacePrefixMatch"`
}

const defaultRedirect = 302 // Found

func parseRedirect(raw json.RawMessage) (*rules.Redirect, error) {
	var from struct {
		Scheme     string          `json:"scheme"`
		Hostname   string          `json:"hostname"`
		Path       *pathChangeSpec `json:"path"`
		Port       *int64          `json:"port"`
		StatusCode *int64          `json:"statusCode"`
	}
	if err := decode(raw, &from); err != nil {
		return nil, err
	}

	to := &rules.Redirect{Scheme: from.Scheme, Hostname: from.Hostname, Status: defaultRedirect}
	if to.Scheme != "" && to.Scheme != "http" && to.Scheme != "https" {
		return nil, fmt.Errorf("a redirect cannot have the scheme %.64q", to.Scheme)
	}
	if to.Hostname != "" && len(validation.IsDNS1123Subdomain(to.Hostname)) > 0 {
		return nil, fmt.Errorf("a redirect cannot have the hostname %.64q", to.Hostname)
	}

	var err error
	if to.Path, err = parsePathChange(from.Path); err != nil {
		return nil, err
	}
	if to.Port, err = (routeReference{Port: from.Port}).port(); err != nil {
		return nil, err
	}
	if from.StatusCode != nil {
		to.Status, err = redirectStatus(*from.StatusCode)
	}
	return to, err
}

func redirectStatus(code int64) (uint16, error) {
	if code < 300 || code > 399 {
		return 0, fmt.Errorf("a redirect cannot have the status %d", code)
	}
	return uint16(code), nil
}

func parsePathChange(from *pathChangeSpec) (*rules.PathChange, error) {
	if from == nil {
		return nil, nil
	}

	to := &rules.PathChange{Prefix: from.Type == "ReplacePrefixMatch"}
	text := from.ReplacePrefixMatch
	if from.Type == "ReplaceFullPath" {
		text = from.ReplaceFullPath
	}
	if !to.Prefix && from.Type != "ReplaceFullPath" || text == nil {
		return nil, misreading{fmt.Errorf("a redirect cannot change a path by %.64q", from.Type)}
	}

	to.Text = *text
	if len(to.Text) > maxText {
		return nil, fmt.Errorf("a path has %d bytes, more than %d", len(to.Text), maxText)
	}
	return to, checkPath(to.Text)
}

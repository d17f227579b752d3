package ruleobject

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// Types of matches, of both groups.
const (
	typeExact  = "Exact"
	typePrefix = "PathPrefix"
	typeRegex  = "RegularExpression"
)

// matches reads those of a rule. Unmatched is whether there are some, and none converts.
func (r *reader) matches(raw json.RawMessage) (matches []rules.Match, unmatched bool) {
	all, err := r.elements(rules.PartMatch, raw, maxMatches)
	if err != nil {
		r.leaveOutFor(rules.PartMatch, err)
		return nil, true
	}

	read := r.httpMatch
	if r.kind == rules.KindGRPCRoute {
		read = r.grpcMatch
	}

	for _, raw := range all {
		match, err := read(raw)
		if err != nil {
			r.leaveOutFor(rules.PartMatch, err)
			continue
		}
		matches = append(matches, match)
	}

	return matches, len(all) > 0 && len(matches) == 0
}

// A pathSpec is a condition on a path.
type pathSpec struct {
	Type  *string `json:"type"`
	Value *string `json:"value"`
}

// A valueSpec is a condition on a header or on a parameter of a query.
type valueSpec struct {
	Type  *string `json:"type"`
	Name  string  `json:"name"`
	Value string  `json:"value"`
}

func (r *reader) httpMatch(raw json.RawMessage) (to rules.Match, err error) {
	var from struct {
		Path        *pathSpec   `json:"path"`
		Headers     []valueSpec `json:"headers"`
		QueryParams []valueSpec `json:"queryParams"`
		Method      *string     `json:"method"`
	}
	if err := decode(raw, &from); err != nil {
		return to, err
	}

	if to.Path, err = r.path(from.Path); err != nil {
		return to, err
	}
	if to.Headers, err = r.headerMatches(from.Headers); err != nil {
		return to, err
	}
	if to.Queries, err = r.queryMatches(from.QueryParams); err != nil {
		return to, err
	}

	to.Method = or(from.Method, "")
	if from.Method != nil && !isToken(to.Method, maxMethod) {
		return to, fmt.Errorf("%.64q is no method", to.Method)
	}
	return to, nil
}

func (r *reader) grpcMatch(raw json.RawMessage) (to rules.Match, err error) {
	var from struct {
		Headers []valueSpec `json:"headers"`
		Method  struct {
			Type    *string `json:"type"`
			Service string  `json:"service"`
			Method  string  `json:"method"`
		} `json:"method"`
	}
	if err := decode(raw, &from); err != nil {
		return to, err
	}

	switch kind := or(from.Method.Type, typeExact); kind {
	case typeExact:
	case typeRegex:
		return to, denial{errors.New("a method cannot be matched by a regular expression")}
	default:
		return to, misreading{fmt.Errorf("type %.64q of a method is unknown", kind)}
	}

	to.RPCService, to.RPCMethod = from.Method.Service, from.Method.Method
	if len(to.RPCService)+len(to.RPCMethod) > maxText || !federation.IsPlain(to.RPCService+to.RPCMethod) {
		return to, fmt.Errorf("no method has the name %.64q of %.64q", to.RPCMethod, to.RPCService)
	}

	to.Headers, err = r.headerMatches(from.Headers)
	if denied, is := errors.AsType[denial](err); is { // of a GRPCRoute it is allowed
		err = denied.error
	}
	return to, err
}

func (r *reader) path(from *pathSpec) (to rules.PathMatch, err error) {
	if from == nil {
		return to, nil
	}
	to.Text = or(from.Value, "/")
	if len(to.Text) > maxText {
		return to, fmt.Errorf("a path has %d bytes, more than %d", len(to.Text), maxText)
	}

	switch kind := or(from.Type, typePrefix); kind {
	case typeExact:
		to.Type = rules.PathExact
	case typePrefix:
		to.Type = rules.PathPrefix
	case typeRegex:
		to.Type = rules.PathRegex
		return to, r.checkRegex(to.Text)
	default:
		return to, misreading{fmt.Errorf("type %.64q of a path is unknown", kind)}
	}
	return to, checkPath(to.Text)
}

func checkPath(text string) error {
	if !strings.HasPrefix(text, "/") {
		return denial{fmt.Errorf("path %.64q does not begin with /", text)}
	}
	return nil
}

func (r *reader) headerMatches(all []valueSpec) (to []rules.ValueMatch, err error) {
	if len(all) > maxHeaders {
		return nil, fmt.Errorf("a match has %d headers, more than %d", len(all), maxHeaders)
	}

	for _, from := range all {
		match, err := r.valueMatch(from)
		if err != nil {
			return nil, err
		}

		value := from.Value
		if match.Regex {
			value = ""
		}
		if err := checkHeader(from.Name, value); err != nil {
			return nil, err
		}
		to = append(to, match)
	}

	return to, nil
}

// checkHeader returns why there can be no header with a name and a value.
func checkHeader(name, value string) error {
	switch {
	case !isToken(name, maxHeaderName):
		return denial{fmt.Errorf("%.64q is no name of a header", name)}
	case !isHeaderValue(value):
		return denial{fmt.Errorf("header %.64s cannot have the value %.64q", name, value)}
	}
	return nil
}

func (r *reader) queryMatches(all []valueSpec) (to []rules.ValueMatch, err error) {
	if len(all) > maxHeaders {
		return nil, fmt.Errorf("a match has %d parameters, more than %d", len(all), maxHeaders)
	}

	for _, from := range all {
		match, err := r.valueMatch(from)
		if err != nil {
			return nil, err
		}

		if from.Name == "" || len(from.Name) > maxHeaderName {
			return nil, fmt.Errorf("%.64q is no name of a parameter", from.Name)
		}
		to = append(to, match)
	}

	return to, nil
}

// valueMatch reads a condition without regard to what it is on.
func (r *reader) valueMatch(from valueSpec) (to rules.ValueMatch, err error) {
	to = rules.ValueMatch{Name: from.Name, Value: from.Value}
	if len(from.Value) > maxText {
		return to, fmt.Errorf("the value of %.64q has %d bytes, more than %d", from.Name, len(from.Value), maxText)
	}

	switch kind := or(from.Type, typeExact); kind {
	case typeExact:
		return to, nil
	case typeRegex:
		to.Regex = true
		return to, r.checkRegex(from.Value)
	default:
		return to, misreading{fmt.Errorf("type %.64q of a match of %.64q is unknown", kind, from.Name)}
	}
}

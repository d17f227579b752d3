package policyapi

import (
	"slices"
	"time"

	grpcroutepb "github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	httproutepb "github.com/linkerd/linkerd2-proxy-api/go/http_route"
	httppb "github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// What requests are like, and what is done to them: of clients and of servers.

// Statuses of requests that are not sent.
const (
	statusForbidden = 403
	statusFailed    = 500
	codeForbidden   = 7  // PERMISSION_DENIED
	codeFailed      = 13 // INTERNAL
)

func newHosts(patterns []rules.Pattern) (all []*httproutepb.HostMatch) {
	for _, p := range patterns {
		match := &httproutepb.HostMatch{Match: &httproutepb.HostMatch_Exact{Exact: p.Text}}
		if p.Suffix {
			match.Match = &httproutepb.HostMatch_Suffix_{
				Suffix: &httproutepb.HostMatch_Suffix{ReverseLabels: reversed(p)},
			}
		}
		all = append(all, match)
	}
	return all
}

func reversed(p rules.Pattern) []string {
	labels := p.Labels()
	slices.Reverse(labels)
	return labels
}

func newHTTPMatches(matches []rules.Match) (all []*httproutepb.HttpRouteMatch) {
	for i := range matches {
		m := &matches[i]
		match := &httproutepb.HttpRouteMatch{Path: newPath(m.Path), Headers: newHeaderMatches(m.Headers)}
		for _, q := range m.Queries {
			match.QueryParams = append(match.QueryParams, newQueryMatch(q))
		}
		if m.Method != "" {
			match.Method = newMethod(m.Method)
		}
		all = append(all, match)
	}
	return all
}

func newPath(path rules.PathMatch) *httproutepb.PathMatch {
	switch path.Type {
	case rules.PathExact:
		return &httproutepb.PathMatch{Kind: &httproutepb.PathMatch_Exact{Exact: path.Text}}
	case rules.PathPrefix:
		return &httproutepb.PathMatch{Kind: &httproutepb.PathMatch_Prefix{Prefix: path.Text}}
	case rules.PathRegex:
		return &httproutepb.PathMatch{Kind: &httproutepb.PathMatch_Regex{Regex: path.Text}}
	default:
		return nil
	}
}

func newHeaderMatches(matches []rules.ValueMatch) (all []*httproutepb.HeaderMatch) {
	for _, m := range matches {
		match := &httproutepb.HeaderMatch{Name: m.Name}
		if m.Regex {
			match.Value = &httproutepb.HeaderMatch_Regex{Regex: m.Value}
		} else {
			match.Value = &httproutepb.HeaderMatch_Exact{Exact: []byte(m.Value)}
		}
		all = append(all, match)
	}
	return all
}

func newQueryMatch(m rules.ValueMatch) *httproutepb.QueryParamMatch {
	match := &httproutepb.QueryParamMatch{Name: m.Name}
	if m.Regex {
		match.Value = &httproutepb.QueryParamMatch_Regex{Regex: m.Value}
	} else {
		match.Value = &httproutepb.QueryParamMatch_Exact{Exact: m.Value}
	}
	return match
}

func newMethod(name string) *httppb.HttpMethod {
	if registered, is := httppb.HttpMethod_Registered_value[name]; is {
		return &httppb.HttpMethod{Type: &httppb.HttpMethod_Registered_{
			Registered: httppb.HttpMethod_Registered(registered),
		}}
	}
	return &httppb.HttpMethod{Type: &httppb.HttpMethod_Unregistered{Unregistered: name}}
}

func newGRPCMatches(matches []rules.Match) (all []*grpcroutepb.GrpcRouteMatch) {
	for i := range matches {
		m := &matches[i]
		all = append(all, &grpcroutepb.GrpcRouteMatch{
			Rpc:     &grpcroutepb.GrpcRpcMatch{Service: m.RPCService, Method: m.RPCMethod},
			Headers: newHeaderMatches(m.Headers),
		})
	}
	return all
}

func newRequestHeaders(h *rules.HeaderChanges) *httproutepb.RequestHeaderModifier {
	return &httproutepb.RequestHeaderModifier{Add: newHeaders(h.Add), Set: newHeaders(h.Set), Remove: h.Remove}
}

func newResponseHeaders(h *rules.HeaderChanges) *httproutepb.ResponseHeaderModifier {
	return &httproutepb.ResponseHeaderModifier{Add: newHeaders(h.Add), Set: newHeaders(h.Set), Remove: h.Remove}
}

func newHeaders(headers []rules.Header) *httppb.Headers {
	all := new(httppb.Headers)
	for _, h := range headers {
		all.Headers = append(all.Headers, &httppb.Headers_Header{Name: h.Name, Value: []byte(h.Value)})
	}
	return all
}

func newRedirect(r *rules.Redirect) *httproutepb.RequestRedirect {
	redirect := &httproutepb.RequestRedirect{Host: r.Hostname, Port: uint32(r.Port), Status: uint32(r.Status)}
	if r.Scheme != "" {
		redirect.Scheme = newScheme(r.Scheme)
	}
	switch {
	case r.Path == nil:
	case r.Path.Prefix:
		redirect.Path = &httproutepb.PathModifier{Replace: &httproutepb.PathModifier_Prefix{Prefix: r.Path.Text}}
	default:
		redirect.Path = &httproutepb.PathModifier{Replace: &httproutepb.PathModifier_Full{Full: r.Path.Text}}
	}
	return redirect
}

func newScheme(name string) *httppb.Scheme {
	switch name {
	case "http":
		return &httppb.Scheme{Type: &httppb.Scheme_Registered_{Registered: httppb.Scheme_HTTP}}
	case "https":
		return &httppb.Scheme{Type: &httppb.Scheme_Registered_{Registered: httppb.Scheme_HTTPS}}
	default:
		return &httppb.Scheme{Type: &httppb.Scheme_Unregistered{Unregistered: name}}
	}
}

func newHTTPFailure(f *rules.Failure) *httproutepb.HttpFailureInjector {
	status := uint32(statusFailed)
	if f.Forbidden {
		status = statusForbidden
	}
	return &httproutepb.HttpFailureInjector{Status: status, Message: f.Message}
}

func newGRPCFailure(f *rules.Failure) *grpcroutepb.GrpcFailureInjector {
	code := uint32(codeFailed)
	if f.Forbidden {
		code = codeForbidden
	}
	return &grpcroutepb.GrpcFailureInjector{Code: code, Message: f.Message}
}

func newTimeouts(t rules.Timeouts) *httproutepb.Timeouts {
	return &httproutepb.Timeouts{
		Request: newTimeout(t.Request), Response: newTimeout(t.Response), Idle: newTimeout(t.Idle),
	}
}

// newTimeout returns nil for none: a proxy takes 0 as no time at all.
func newTimeout(t rules.Timeout) *durationpb.Duration { return newDuration(t.After) }

// newDuration returns nil for 0.
func newDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

package policy

import (
	"math"
	"strings"
)

// A FilterKind is what a filter does. It has the name of its field in the API.
type FilterKind string

// The kinds of filter. An inbound filter of no kind fails each request of its rule.
const (
	FailureInjector FilterKind = "failure_injector"
	RequestHeaders  FilterKind = "request_header_modifier"
	ResponseHeaders FilterKind = "response_header_modifier"
	Redirect        FilterKind = "redirect"
	InvalidBackend  FilterKind = "invalid"   // of TLS and opaque routes
	Forbidden       FilterKind = "forbidden" // of TLS and opaque routes
)

// A Filter is what a proxy does with the requests of a rule, or of a backend.
type Filter struct {
	Kind    FilterKind
	Status  uint32  // of HTTP, or a code of gRPC; 301 for a redirect without one
	Message string  // of a failure
	Share   float64 // of the requests that a failure injector fails; 1 if it fails all
}

// filtersOf reads the filters of a rule or a backend.
func (d direction) filtersOf(owner part) []Filter {
	list := owner.list("filters")
	all := make([]Filter, 0, len(list))
	for _, p := range list {
		all = append(all, d.filterOf(p))
	}
	return all
}

func (d direction) filterOf(field part) Filter {
	filter := Filter{Kind: FilterKind(field.which("kind"))}
	switch {
	case filter.Kind != "":
	case d == sends:
		field.invalid("kind", "absent")
		return filter
	default:
		field.odd("kind", "absent, and each request of the rule fails")
		return filter
	}

	body := field.at(string(filter.Kind))
	switch filter.Kind {
	case FailureInjector:
		filter.Status, filter.Message = failureOf(body), body.text("message")
		filter.Share = shareOf(body)
	case Redirect:
		filter.Status = redirectOf(body)
	case RequestHeaders, ResponseHeaders:
		checkHeaders(body)
	case InvalidBackend:
		filter.Message = body.text("message")
	case Forbidden:
	}

	return filter
}

// codes is how many codes gRPC has.
const codes = 17

// failureOf reads the code of gRPC's failure injector, or the status of HTTP's.
func failureOf(p part) uint32 {
	if p.field("code") == nil {
		return statusOf(p)
	}

	code := p.number("code")
	if code > math.MaxUint16 {
		p.invalid("code", "%d", code)
	} else if code >= codes {
		p.odd("code", "%d is no code of gRPC", code)
	}
	return code
}

// statusOf reads a status of HTTP: three digits.
func statusOf(p part) uint32 {
	status := p.number("status")
	if status < 100 || status > 999 {
		p.invalid("status", "%d", status)
	}
	return status
}

func shareOf(p part) float64 {
	if !p.has("ratio") {
		return 1
	}

	numerator, denominator := p.at("ratio").number("numerator"), p.at("ratio").number("denominator")
	if denominator == 0 || numerator > denominator {
		p.invalid("ratio", "%d of %d", numerator, denominator)
		return 1
	}
	return float64(numerator) / float64(denominator)
}

// checkHeaders reads the names and values that a modifier of headers has.
func checkHeaders(modifier part) {
	for _, change := range []string{"add", "set"} {
		for _, header := range modifier.at(change).list("headers") {
			if !isToken(header.text("name")) {
				header.invalid("name", "%.64q", header.text("name"))
			}
			if !isHeaderValue(header.text("value")) {
				header.invalid("value", "%.64q", header.text("value"))
			}
		}
	}

	for _, name := range modifier.texts("remove") {
		if !isToken(name) {
			modifier.invalid("remove", "%.64q", name)
		}
	}
}

// movedPermanently is the status of a redirect that has none.
const movedPermanently = 301

// redirectOf checks a redirect and returns its status.
func redirectOf(redirect part) uint32 {
	if redirect.has("scheme") {
		checkScheme(redirect.at("scheme"))
	}
	if port := redirect.number("port"); port > math.MaxUint16 {
		redirect.invalid("port", "%d", port)
	}
	if host := redirect.text("host"); host != "" && !isAuthority(host) {
		redirect.invalid("host", "%.64q", host)
	}

	path := redirect.at("path")
	if how := path.which("replace"); how != "" && !strings.HasPrefix(path.text(how), "/") {
		path.invalid(how, "%.64q does not begin with a slash", path.text(how))
	}

	if redirect.number("status") == 0 {
		return movedPermanently
	}
	return statusOf(redirect)
}

// checkScheme reads the scheme of a redirect: 64 letters, digits, and + - . at most.
func checkScheme(scheme part) {
	switch scheme.which("type") {
	case "":
		scheme.invalid("", "of no type")
	case "registered":
		if scheme.enum("registered") == "" {
			scheme.invalid("registered", "unknown")
		}
	default:
		text := scheme.text("unregistered")
		if len(text) > 64 || !consistsOf(text, letters+digits+"+-.") {
			scheme.invalid("unregistered", "%.64q", text)
		}
	}
}

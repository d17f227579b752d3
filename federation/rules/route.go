package rules

import "iter"

// A Route is an HTTPRoute of either group, a GRPCRoute, a TLSRoute or a TCPRoute, as Kind has it. It stays attached to
// its parents whatever of it does not convert, so that no default takes its place.
type Route struct {
	Meta
	Parents []Parent // in the order of the object; without one it is nowhere

	Hostnames []Pattern // of a TLSRoute, those that clients ask for (SNI); empty: all
	Rules     []Rule    // all of the object; Sent leaves out those that are not sent

	// Silent is whether the route is sent without rules, and so matches nothing: no hostname is left, a TLSRoute or
	// TCPRoute has other than one rule, or the rules cannot be read. Backends of Rules then still count for the status.
	Silent bool

	// From annotations. Those of the parent apply where there are none.
	Timeouts Timeouts
	Retry    *Retries
}

// Sent returns the rules that are sent.
func (r *Route) Sent() iter.Seq[*Rule] {
	return func(yield func(*Rule) bool) {
		for i := range r.Rules {
			if rule := &r.Rules[i]; !r.Silent && !rule.Unmatched && !yield(rule) {
				return
			}
		}
	}
}

// A Parent is what a Route attaches to, if it exists: a Server, a Service or an EgressNetwork.
type Parent struct {
	Reference
	Port    uint16 // 0: all
	Section bool   // whether it names a section: then it is no Server's, and others ignore that
}

// A Rule is where requests or connections of some kind go.
type Rule struct {
	Matches []Match // alternatives; empty: all

	// Unmatched is whether the object has matches and none converts. The rule is then not sent, as without matches it
	// would match everything.
	Unmatched bool

	// Filters are in the order of the object. If one of them is Unsupported, no other is sent.
	Filters  []Filter
	Backends []Backend // empty: that of the parent
	Timeouts Timeouts  // of the rule itself: only Request can be given
}

// Unsupported returns why requests of the rule fail: the first filter that does not convert. It is empty if all do.
func (r *Rule) Unsupported() string { return firstUnsupported(r.Filters) }

func firstUnsupported(filters []Filter) string {
	for _, f := range filters {
		if f.Unsupported != "" {
			return f.Unsupported
		}
	}
	return ""
}

// Weightless reports whether the weights of the backends leave nothing to choose: they sum to 0. Proxies cannot have
// them.
func (r *Rule) Weightless() bool {
	for _, b := range r.Backends {
		if b.Weight > 0 {
			return false
		}
	}
	return len(r.Backends) > 0
}

// A Match is conditions on a request, which must all hold. What is zero is not asked for.
type Match struct {
	Headers []ValueMatch

	// Of HTTP.
	Path    PathMatch
	Queries []ValueMatch
	Method  string

	// Of gRPC.
	RPCService, RPCMethod string
}

// A PathMatch is a condition on the path of a request. The zero PathMatch is none.
type PathMatch struct {
	Type PathType
	Text string // of a PathRegex a regular expression; otherwise it begins with /
}

// A PathType is how paths are compared.
type PathType uint8

// Types of paths.
const (
	PathAny PathType = iota
	PathExact
	PathPrefix
	PathRegex // of the whole path
)

// A ValueMatch is a condition on a header, or on a parameter of a query.
type ValueMatch struct {
	Name, Value string
	Regex       bool // whether Value is a regular expression
}

// A Filter changes a request or its response, or answers it. One of its fields is set.
type Filter struct {
	RequestHeaders *HeaderChanges

	// ResponseHeaders are not sent to the proxies of Servers. To those of clients they are unsupported on gRPC rules.
	ResponseHeaders *HeaderChanges

	Redirect    *Redirect // of HTTP
	Unsupported string    // why it does not convert
}

// HeaderChanges are changes of headers.
type HeaderChanges struct {
	Set, Add []Header
	Remove   []string // names
}

// A Header is a header and its value.
type Header struct{ Name, Value string }

// A Redirect is the answer to a request. What is empty stays as it is in the request.
type Redirect struct {
	Scheme, Hostname string
	Path             *PathChange
	Port             uint16 // 0: as the scheme has it
	Status           uint16
}

// A PathChange replaces a path, or the prefix of it that has matched. Text begins with /.
type PathChange struct {
	Prefix bool
	Text   string
}

// A Backend is where a part of the traffic of a rule goes.
type Backend struct {
	Reference        // of KindService or KindEgressNetwork; of KindOther if it is neither
	Port      uint16 // 0: none
	Weight    uint32 // relative to the other backends'; at most MaxWeight
	Filters   []Filter

	// Invalid is why this part of the traffic fails, whatever exists. Others may be found when it is looked up.
	Invalid string
}

// MaxWeight is the greatest weight of a Backend, as in the Gateway API.
const MaxWeight = 1_000_000

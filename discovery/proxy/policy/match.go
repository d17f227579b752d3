package policy

import (
	"cmp"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Request is what a proxy finds a rule for: a request, or a connection of another protocol.
type Request struct {
	Protocol  Protocol // of what the client sends; HTTP1 if empty
	Method    string   // GET if empty; gRPC has POST
	Authority string   // host, perhaps with a port; a proxy takes the original address if the client sends none
	Path      string   // perhaps with a query; / if empty
	Header    http.Header
	SNI       string // of TLS

	// Only an inbound proxy looks at these.
	Client   netip.Addr
	MeshTLS  bool   // the client has come by mesh TLS
	Identity string // of the client; empty if it has none
}

// isHTTP reports whether the proxy reads requests from a connection.
func (r Request) isHTTP() bool {
	return r.Protocol == "" || r.Protocol == HTTP1 || r.Protocol == HTTP2 || r.Protocol == GRPC
}

func (r Request) method() string { return cmp.Or(r.Method, http.MethodGet) }

func (r Request) path() string {
	path, _, _ := strings.Cut(r.Path, "?")
	return cmp.Or(path, "/")
}

// host returns the authority without user and port.
func (r Request) host() string {
	host := r.Authority[strings.LastIndexByte(r.Authority, '@')+1:]
	if end := strings.IndexByte(host, ']'); strings.HasPrefix(host, "[") && end >= 0 {
		return host[:end+1]
	}
	host, _, _ = strings.Cut(host, ":")
	return host
}

// nameFor returns what the routes of a protocol compare with their hosts.
func (r Request) nameFor(protocol Protocol) string {
	if protocol == TLS {
		return r.SNI
	}
	return r.host()
}

// params returns the names and values of the query, in order. What is escaped badly stays as it is.
func (r Request) params() [][2]string {
	_, query, _ := strings.Cut(r.Path, "?")
	var all [][2]string
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		all = append(all, [2]string{unescape(name), unescape(value)})
	}
	return all
}

// unescape reads a name or a value of a query.
func unescape(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		plain := text[i]
		if plain == '+' {
			plain = ' '
		}

		if plain == '%' && i+2 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				plain = byte(n)
				i += 2
			}
		}

		out.WriteByte(plain)
	}

	return strings.ToValidUTF8(out.String(), "\uFFFD")
}

// A pattern is what a value must be: exact, a prefix of paths, or a regular expression of the whole.
type pattern struct {
	how   string // exact, prefix or regex; empty if it is anything
	text  string
	regex *regexp.Regexp // nil if it does not compile
}

// patternOf reads a oneof that has a pattern.
func patternOf(p part, oneof string) pattern {
	want := pattern{how: p.needOne(oneof)}
	if want.how == "" {
		return want
	}

	want.text = p.text(want.how)
	if want.how == "regex" {
		var err error
		if want.regex, err = regexp.Compile(want.text); err != nil {
			p.invalid("regex", "%.200v", err)
		}
	}
	return want
}

// matches reports whether the whole value is as wanted. A regular expression finds its first choice of the leftmost
// matches, which must be the value: a|ab does not match ab.
func (p pattern) matches(value string) bool {
	if p.how != "regex" {
		return p.text == value
	}
	found := p.regex.FindStringIndex(value)
	return found != nil && found[0] == 0 && found[1] == len(value)
}

// matchesPath returns how many characters of a path match, and whether it does.
func (p pattern) matchesPath(path string) (length int, matches bool) {
	if p.how != "prefix" {
		return len(path), p.matches(path)
	}
	if p.text == "/" {
		return 1, true
	}

	prefix := strings.TrimRight(p.text, "/")
	rest, found := strings.CutPrefix(strings.TrimRight(path, "/"), prefix)
	return len(prefix), found && (rest == "" || rest[0] == '/')
}

// A valued is a name whose value must match: that of a header or of a query parameter.
type valued struct {
	name string
	pattern
}

// inHeader reports whether one of the values of the header matches.
func (v valued) inHeader(header http.Header) bool {
	return slices.ContainsFunc(header.Values(v.name), func(value string) bool {
		return (v.how != "regex" || isVisible(value)) && v.matches(value)
	})
}

// inQuery reports whether one of the values of the parameter matches.
func (v valued) inQuery(params [][2]string) bool {
	return slices.ContainsFunc(params, func(param [2]string) bool { return param[0] == v.name && v.matches(param[1]) })
}

// A match is one alternative of a rule: all that it has must match.
type match struct {
	path    *pattern
	headers []valued
	params  []valued
	method  string // any if empty

	rpc              bool // of gRPC: a method and a service, any if empty
	service, rpcName string
}

// httpMatchOf reads a match of HTTP.
func httpMatchOf(alternative part) match {
	read := match{headers: headersOf(alternative)}
	if alternative.has("path") {
		path := patternOf(alternative.at("path"), "kind")
		read.path = &path
		if path.how != "regex" && path.text != "" && path.text[0] != '/' {
			alternative.at("path").odd(path.how, "%.64q does not begin with a slash and matches no path", path.text)
		}
	}

	for _, param := range alternative.list("query_params") {
		if param.text("name") == "" {
			param.invalid("name", "empty")
		}
		read.params = append(read.params, valued{param.text("name"), patternOf(param, "value")})
	}

	if alternative.has("method") {
		read.method = methodOf(alternative.at("method"))
	}
	return read
}

func methodOf(p part) string {
	method := ""
	switch p.which("type") {
	case "registered":
		method = p.enum("registered")
	case "unregistered":
		method = p.text("unregistered")
	}

	if !isToken(method) {
		p.invalid("", "no method of HTTP: %.64q", method)
	}
	return method
}

func headersOf(p part) []valued {
	var all []valued
	for _, header := range p.list("headers") {
		all = append(all, headerOf(header))
	}
	return all
}

func headerOf(p part) valued {
	header := valued{p.text("name"), patternOf(p, "value")}
	if !isToken(header.name) {
		p.invalid("name", "%.64q", header.name)
	}
	if header.how == "exact" && !isHeaderValue(header.text) {
		p.invalid("exact", "%.64q", header.text)
	}
	return header
}

// grpcMatchOf reads a match of gRPC.
func grpcMatchOf(p part) match {
	rpc, _ := p.need("rpc")
	return match{rpc: true, service: rpc.text("service"), rpcName: rpc.text("method"), headers: headersOf(p)}
}

// A rank orders the matches of a request: the greater one is better. The first two numbers are those of the host.
type rank [6]int

// withoutMatches is the rank of a rule without matches, which matches everything.
func (p Protocol) withoutMatches() rank {
	if p == HTTP1 || p == HTTP2 {
		return rank{2: len("/")}
	}
	return rank{}
}

// rank returns how well a request matches, and whether it does.
func (m match) rank(request Request) (ranked rank, matches bool) {
	for _, header := range m.headers {
		if !header.inHeader(request.Header) {
			return ranked, false
		}
	}
	if m.rpc {
		return m.rankRPC(request)
	}

	ranked = rank{2: len("/"), 3: len(m.headers), 4: len(m.params)}
	if m.path != nil {
		if ranked[2], matches = m.path.matchesPath(request.path()); !matches {
			return ranked, false
		}
	}
	if m.method != "" {
		ranked[5] = 1
	}

	params := request.params()
	for _, param := range m.params {
		if !param.inQuery(params) {
			return ranked, false
		}
	}
	return ranked, m.method == "" || m.method == request.method()
}

// rankRPC returns the rank of a match of gRPC whose headers match.
func (m match) rankRPC(request Request) (ranked rank, matches bool) {
	path := strings.Split(request.path(), "/")
	if request.method() != http.MethodPost || len(path) < 3 || path[0] != "" {
		return ranked, false
	}

	service, method := path[1], path[2]
	ranked = rank{2: len(m.service), 3: len(m.rpcName), 4: len(m.headers)}
	return ranked, (m.service == "" || m.service == service) && (m.rpcName == "" || m.rpcName == method)
}

// A host is a name, or a suffix of names, that a route is for.
type host struct {
	exact  string
	suffix []string // labels, the last one first; empty for all names
	how    string   // exact or suffix
}

// hostOf reads the match of a host or of a server name.
func hostOf(p part) host {
	h := host{how: p.needOne("match")}
	switch h.how {
	case "exact":
		h.exact = p.text("exact")
	case "suffix":
		h.suffix = p.at("suffix").texts("reverse_labels")
	}
	return h
}

// folded returns the host in lower case.
func (h host) folded() host {
	h.exact, h.suffix = lower(h.exact), slices.Clone(h.suffix)
	for i, label := range h.suffix {
		h.suffix[i] = lower(label)
	}
	return h
}

// rank returns how well a name in lower case matches, and whether it does. A dot behind a name counts only if the
// host has one.
func (h host) rank(name string) (ranked rank, matches bool) {
	if h.how == "exact" {
		if !strings.HasSuffix(h.exact, ".") {
			name = strings.TrimSuffix(name, ".")
		}
		return rank{0: 2, 1: len(h.exact)}, name == h.exact
	}

	if len(h.suffix) == 0 || h.suffix[0] != "" {
		name = strings.TrimSuffix(name, ".")
	}
	ranked = rank{0: 1}
	for _, label := range h.suffix {
		if name, matches = strings.CutSuffix(name, "."+label); !matches {
			return ranked, false
		}
		ranked[1] += len("." + label)
	}
	return ranked, true
}

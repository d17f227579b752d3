package policy_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/discovery/proxy/policy"
)

// The slow model of how a proxy chooses a rule: a list of all matches of all rules, sorted by how good they are. It has
// values of its own, and reads no message.
type (
	modelRoute struct {
		hosts []string // a leading *. is a suffix
		rules []modelRule
	}
	modelRule  []modelMatch
	modelMatch struct {
		how, path    string // exact, prefix, regex, or any if empty
		header       string // the value of x-a; any if empty
		param        string // the value of q; any if empty
		method       string // any if empty
		service, rpc string // of gRPC; any if empty
	}

	// A candidate is a match of a rule that a request gets, with what makes it good.
	candidate struct {
		where string // route/rule
		merit []int
	}
)

// hostMerit returns how good the best host is; nothing if none matches.
func (r modelRoute) hostMerit(name string) []int {
	var merits [][]int
	for _, host := range r.hosts {
		suffix, isSuffix := strings.CutPrefix(host, "*.")
		switch {
		case isSuffix && strings.HasSuffix(name, "."+suffix):
			merits = append(merits, []int{1, len(suffix)})
		case !isSuffix && host == name:
			merits = append(merits, []int{2, len(host)})
		}
	}

	if len(r.hosts) == 0 {
		return []int{0, 0}
	}
	if len(merits) == 0 {
		return nil
	}
	return slices.MaxFunc(merits, slices.Compare)
}

// merit returns how good a match is; nothing if it does not match.
func (m modelMatch) merit(protocol policy.Protocol, request policy.Request) []int {
	path, query, _ := strings.Cut(request.Path, "?")
	headers := 0
	if m.header != "" {
		if request.Header.Get("x-a") != m.header {
			return nil
		}
		headers = 1
	}

	if protocol == policy.GRPC {
		service, rpc, _ := strings.Cut(path[1:], "/")
		if request.Method != http.MethodPost || m.service != "" && m.service != service || m.rpc != "" && m.rpc != rpc {
			return nil
		}
		return []int{len(m.service), len(m.rpc), headers}
	}

	length, params, methods := m.pathLength(path), 0, 0
	if m.param != "" {
		params = 1
	}
	if m.method != "" {
		methods = 1
	}
	if length < 0 || m.param != "" && query != "q="+m.param || m.method != "" && m.method != request.Method {
		return nil
	}
	return []int{length, headers, params, methods}
}

// pathLength returns how much of a path matches; -1 if it does not.
func (m modelMatch) pathLength(path string) int {
	segments := func(path string) []string { return strings.Split(strings.TrimRight(path, "/"), "/") }
	want, have := segments(m.path), segments(path)
	switch {
	case m.how == "" || m.path == "/" && m.how == "prefix":
		return 1
	case m.how == "prefix" && len(want) <= len(have) && slices.Equal(want, have[:len(want)]):
		return len(strings.Join(want, "/"))
	case m.how == "exact" && m.path == path, m.how == "regex" && strings.HasPrefix(path, "/a"):
		return len(path)
	default:
		return -1
	}
}

// merits returns how good the matches of a rule are. Without any, it matches everything.
func (r modelRule) merits(protocol policy.Protocol, request policy.Request) [][]int {
	switch {
	case len(r) == 0 && protocol == policy.HTTP1:
		return [][]int{{len("/"), 0, 0, 0}}
	case len(r) == 0:
		return [][]int{{0, 0, 0}}
	}

	var all [][]int
	for _, match := range r {
		if merit := match.merit(protocol, request); merit != nil {
			all = append(all, merit)
		}
	}
	return all
}

// choose returns where the best match is; empty if there is none.
func choose(protocol policy.Protocol, routes []modelRoute, request policy.Request) string {
	name := request.Authority
	if protocol == policy.TLS {
		name = request.SNI
	}

	var all []candidate
	for i, route := range routes {
		host := route.hostMerit(name)
		if host == nil {
			continue
		}
		for j, rule := range route.rules {
			for _, merit := range rule.merits(protocol, request) {
				all = append(all, candidate{fmt.Sprintf("%d/%d", i, j), slices.Concat(host, merit)})
			}
		}
	}

	slices.SortStableFunc(all, func(a, b candidate) int { return slices.Compare(b.merit, a.merit) })
	if len(all) == 0 {
		return ""
	}
	return all[0].where
}

// text returns the route as clientOf reads it.
func (r modelRoute) text(protocol policy.Protocol) string {
	var out strings.Builder
	field := "hosts"
	if protocol == policy.TLS {
		field = "snis"
	}
	for _, host := range r.hosts {
		suffix, isSuffix := strings.CutPrefix(host, "*.")
		if !isSuffix {
			fmt.Fprintf(&out, "%s { exact: %q } ", field, host)
			continue
		}
		labels := strings.Split(suffix, ".")
		slices.Reverse(labels)
		fmt.Fprintf(&out, "%s { suffix { reverse_labels: [%s] } } ", field, `"`+strings.Join(labels, `", "`)+`"`)
	}
	for _, rule := range r.rules {
		out.WriteString("rules { ")
		for _, match := range rule {
			fmt.Fprintf(&out, "matches { %s } ", match.text(protocol))
		}
		out.WriteString("} ")
	}
	return out.String()
}

func (m modelMatch) text(protocol policy.Protocol) string {
	text := ""
	if protocol == policy.GRPC {
		text = fmt.Sprintf("rpc { service: %q method: %q } ", m.service, m.rpc)
	} else {
		if m.how != "" {
			path := m.path
			if m.how == "regex" {
				path = "/a.*"
			}
			text += fmt.Sprintf("path { %s: %q } ", m.how, path)
		}
		if m.param != "" {
			text += fmt.Sprintf(`query_params { name: "q" exact: %q } `, m.param)
		}
		if m.method != "" {
			text += fmt.Sprintf("method { unregistered: %q } ", m.method)
		}
	}
	if m.header != "" {
		text += fmt.Sprintf(`headers { name: "x-a" exact: %q } `, m.header)
	}
	return text
}

// The small sets that everything is drawn from, so that matches are equal or overlap.
var (
	hosts    = []string{"a", "b.a", "c.b.a", "*.a", "*.b.a", "*.d"}
	names    = []string{"a", "b.a", "c.b.a", "x.a", "d"}
	paths    = []string{"/", "/a", "/a/", "/a/b", "/ab", "/b", "/a/b/c"}
	hows     = []string{"", "prefix", "exact", "regex"}
	values   = []string{"", "1", "2"}
	methods  = []string{"", http.MethodPost, http.MethodGet}
	services = []string{"", "s", "ss"}
	rpcs     = []string{"", "m", "mm", "mmm"}

	matchOf = rapid.Custom(func(t *rapid.T) modelMatch {
		draw := func(of []string, label string) string { return rapid.SampledFrom(of).Draw(t, label) }
		return modelMatch{
			how: draw(hows, "how"), path: draw(paths, "path"), header: draw(values, "header"),
			param: draw(values, "param"), method: draw(methods, "method"),
			service: draw(services, "service"), rpc: draw(rpcs, "rpc"),
		}
	})
	ruleOf = rapid.Map(rapid.SliceOfN(matchOf, 0, 3), func(all []modelMatch) modelRule { return all })
)

// drawRoutes draws up to six routes. Those of TLS have one rule without matches.
func drawRoutes(t *rapid.T, protocol policy.Protocol) []modelRoute {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) modelRoute {
		route := modelRoute{
			hosts: rapid.SliceOfN(rapid.SampledFrom(hosts), 0, 2).Draw(t, "hosts"),
			rules: []modelRule{nil},
		}
		if protocol != policy.TLS {
			route.rules = rapid.SliceOfN(ruleOf, 0, 4).Draw(t, "rules")
		}
		return route
	}), 1, 6).Draw(t, "routes")
}

// requests returns everything that a client may send, of the small sets.
func requests(protocol policy.Protocol) []policy.Request {
	ways := paths
	if protocol == policy.GRPC {
		ways = []string{"/s/m", "/s/mm", "/ss/m", "/ss/mm", "/ss/mmm", "/t/m", "/s/n"}
	}

	var all []policy.Request
	for _, name := range names {
		for _, path := range ways {
			for _, method := range methods[1:] {
				for _, value := range values {
					request := policy.Request{
						Protocol: protocol, Authority: name, SNI: name, Path: path, Method: method,
					}
					all = append(all, request)
					request.Header = http.Header{"X-A": {value}}
					all = append(all, request)
					request.Path += "?q=" + value
					all = append(all, request)
				}
			}
		}
	}
	return all
}

// Of all matches the best one wins, and of equal ones the first: always the same, and the one of the slow model.
func TestFind(t *testing.T) {
	t.Parallel()
	for _, protocol := range []policy.Protocol{policy.HTTP1, policy.GRPC, policy.TLS} {
		t.Run(string(protocol), func(t *testing.T) {
			t.Parallel()
			all, routed := requests(protocol), 0
			rapid.Check(t, func(rt *rapid.T) {
				routes := drawRoutes(rt, protocol)
				var texts []string
				for _, route := range routes {
					texts = append(texts, route.text(protocol))
				}
				client, again := clientOf(t, protocol, texts...), clientOf(t, protocol, texts...)

				for _, request := range all {
					want := choose(protocol, routes, request)
					for _, decoded := range []*policy.Client{client, client, again} {
						if got := found(decoded, request); got != want {
							rt.Fatalf("%+v gets %q of %q, want %q", request, got, texts, want)
						}
					}
					if want != "" {
						routed++
					}
				}
			})
			if routed == 0 {
				t.Error("no request was routed")
			}
		})
	}
}

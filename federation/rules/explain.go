package rules

import (
	"fmt"
	"slices"
	"strings"
)

// Why is an answer what it is? An explanation has the answer, by the function that makes it for clients, and each
// object that bears on it. Two things stay true, whatever objects there are (TestExplainLaws):
//
//   - the answer of an explanation is that which clients get;
//   - an answer depends on no object that its explanation does not name.
//
// So nothing is decided here a second time. What an object does is found in the answer: a route counts if the answer
// has it. Only why it does not is looked for, in the conditions of which the answer is made.

// A Cause is an object that bears on an answer, or that has no effect on it although it may seem to have one.
type Cause struct {
	Reference
	Counts bool
	Why    string
}

// causes are those of an explanation: each object once, with what was found of it first.
type causes struct {
	all   []Cause
	named map[Reference]bool
}

func (c *causes) add(of Reference, counts bool, why string) {
	if c.named[of] {
		return
	}
	if c.named == nil {
		c.named = map[Reference]bool{}
	}
	c.named[of] = true
	c.all = append(c.all, Cause{of, counts, why})
}

func (c *causes) count(of Reference, format string, args ...any) {
	c.add(of, true, fmt.Sprintf(format, args...))
}

func (c *causes) leaveOut(of Reference, format string, args ...any) {
	c.add(of, false, fmt.Sprintf(format, args...))
}

// sorted returns those that count before the others.
func (c *causes) sorted() []Cause {
	slices.SortStableFunc(c.all, func(a, b Cause) int {
		switch {
		case a.Counts == b.Counts:
			return 0
		case a.Counts:
			return -1
		}
		return 1
	})
	return c.all
}

// whyNot returns why a route does not count for its parent; empty if it does.
func (a *Attachment) whyNot() string {
	switch {
	case a.counts():
		return ""
	case a.Accepted():
		return "its parentRef has a port or a section, which a Server has not"
	case a.Reason == Conflicted:
		return "a route of another kind names the same parent: GRPCRoutes come before HTTPRoutes, TLSRoutes, TCPRoutes"
	case a.Message != "":
		return a.Message
	}
	return a.String() + " does not exist, or cannot be read"
}

// maxNamed is how many things of one kind a line names.
const maxNamed = 3

// some joins things for people, and counts those that are too many.
func some(all []string) string {
	text := strings.Join(all[:min(len(all), maxNamed)], ", ")
	if more := len(all) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Describe returns an identity for people: a ServiceAccount by its name, where it is one.
func (d IdentityDomain) Describe(identity Pattern) string {
	end := ".serviceaccount.identity." + d.ControlPlane + "." + d.Domain
	name, isAccount := strings.CutSuffix(identity.Text, end)
	i := strings.LastIndexByte(name, '.')

	switch {
	case identity == Pattern{Suffix: true}:
		return "every identity"
	case isAccount && identity.Suffix:
		return "every ServiceAccount of " + name
	case isAccount && i > 0:
		return "ServiceAccount " + name[i+1:] + "/" + name[:i]
	}
	return identity.String()
}

// DescribeClients returns for people which clients an Authorization lets in.
func (d IdentityDomain) DescribeClients(granted *Authorization) string {
	text := "every client"
	switch granted.Clients {
	case ClientsTLS:
		text = "every client with TLS"
	case ClientsIdentified:
		text = some(d.describeAll(granted.Identities))
	default:
	}

	if from := DescribeNetworks(granted.Networks); from != "" {
		text += " from " + from
	}
	return text
}

func (d IdentityDomain) describeAll(patterns []Pattern) (all []string) {
	for _, p := range patterns {
		all = append(all, d.Describe(p))
	}
	return all
}

// DescribeNetworks returns networks for people; empty if they are all that there are.
func DescribeNetworks(all []Network) string {
	if areEverywhere(all) {
		return ""
	}
	var texts []string
	for _, n := range all {
		texts = append(texts, n.String())
	}
	return some(texts)
}

// areEverywhere reports whether every address is in one of the networks, by the blocks of both families.
func areEverywhere(all []Network) bool {
	return !slices.ContainsFunc(Everywhere, func(e Network) bool {
		return !slices.ContainsFunc(all, func(n Network) bool { return n.block == e.block && len(n.except) == 0 })
	})
}

// String returns the network with its exceptions, for people.
func (n Network) String() string {
	var except []string
	for _, e := range n.except {
		except = append(except, e.String())
	}
	if len(except) == 0 {
		return n.block.String()
	}
	return n.block.String() + " except " + some(except)
}

// String returns the conditions for people: GET /api/*, header x-user=a.
func (m Match) String() string {
	parts := []string{strings.TrimSpace(m.Method + " " + m.Path.String())}
	if m.RPCService+m.RPCMethod != "" {
		parts[0] = orAny(m.RPCService) + "/" + orAny(m.RPCMethod)
	}

	for _, h := range m.Headers {
		parts = append(parts, "header "+h.String())
	}
	for _, q := range m.Queries {
		parts = append(parts, "query "+q.String())
	}

	if parts[0] == "" {
		parts = parts[1:]
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, ", ")
}

func orAny(text string) string {
	if text == "" {
		return "*"
	}
	return text
}

// String returns the condition for people: a prefix ends in *, a regular expression begins with ~.
func (p PathMatch) String() string {
	switch p.Type {
	case PathPrefix:
		return strings.TrimSuffix(p.Text, "/") + "/*"
	case PathRegex:
		return "~" + p.Text
	default:
		return p.Text
	}
}

// String returns the condition for people.
func (v ValueMatch) String() string {
	if v.Regex {
		return v.Name + "~" + v.Value
	}
	return v.Name + "=" + v.Value
}

// String names what the filter does.
func (f Filter) String() string {
	switch {
	case f.RequestHeaders != nil:
		return "changes headers of requests"
	case f.ResponseHeaders != nil:
		return "changes headers of responses"
	case f.Redirect != nil:
		return "redirects"
	}
	return f.Unsupported
}

// SentNumbers returns which rules of the object are sent, in order; the first is 1.
func (r *Route) SentNumbers() (all []int) {
	number := 0
	for sent := range r.Sent() {
		for number++; &r.Rules[number-1] != sent; number++ {
		}
		all = append(all, number)
	}
	return all
}

package debug

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/internal/words"
)

// A PolicyPage is /explain/policy: what the proxy of a workload gets for a port, and why. If a client is asked about it
// has whether that is let in.
type PolicyPage struct {
	Workload string `json:"workload"` // with its kind
	Port     uint16 `json:"port"`
	Policy   string `json:"policy"` // a Server, or the name of a default policy
	Protocol string `json:"protocol"`

	Client    string           `json:"client,omitempty"`
	Verdict   Verdict          `json:"verdict,omitempty"` // without a client it is empty
	Decisions []PolicyDecision `json:"decisions,omitempty"`

	Authorizations []PolicyGrant  `json:"authorizations"`
	Routes         []InboundRoute `json:"routes"` // none: requests are not looked at
	Limit          string         `json:"limit,omitempty"`

	Explained
}

// A Verdict is whether a client is let in.
type Verdict string

// Verdicts.
const (
	AllAllowed  Verdict = "allowed"
	SomeAllowed Verdict = "allowed in part"
	AllRefused  Verdict = "refused"
)

// A PolicyDecision is what a proxy does with a client.
type PolicyDecision struct {
	Route    string   `json:"route"` // of requests that it matches; empty: of connections that carry something else
	Allowed  bool     `json:"allowed"`
	By       string   `json:"by,omitempty"`       // what lets the client in
	FromOnly string   `json:"fromOnly,omitempty"` // networks from which alone it is let in
	Why      []string `json:"why,omitempty"`      // what does not let it in, and what would change that
}

// A PolicyGrant is which clients are let in.
type PolicyGrant struct {
	By       string   `json:"by"`
	Clients  string   `json:"clients"`
	Requires []string `json:"requires,omitempty"`
}

// An InboundRoute is requests that may come in.
type InboundRoute struct {
	Route          string        `json:"route"`
	Hosts          []string      `json:"hosts,omitempty"`
	Rules          []RoutedRule  `json:"rules"`
	Authorizations []PolicyGrant `json:"authorizations,omitempty"` // besides those of the port
}

// A RoutePage is /explain/route: how clients of a namespace reach a target, and why.
type RoutePage struct {
	Target   string        `json:"target"` // as it was asked for
	Client   string        `json:"client"` // namespace of the client
	Of       string        `json:"of"`     // what the target stands for
	Protocol string        `json:"protocol"`
	Routes   []RoutedRoute `json:"routes"`
	Failing  int           `json:"failing"` // rules and backends whose requests fail

	Explained
}

// A RoutedRoute is a route that an answer has.
type RoutedRoute struct {
	Route  string       `json:"route"`
	Hosts  []string     `json:"hosts,omitempty"`
	Opaque bool         `json:"opaque,omitempty"` // of a detected protocol: for what is not HTTP
	Rules  []RoutedRule `json:"rules"`
}

// A RoutedRule is a rule that an answer has.
type RoutedRule struct {
	Number   int             `json:"number,omitempty"` // of the object's rules, the first is 1; 0: of a default
	Matches  []string        `json:"matches,omitempty"`
	Fails    string          `json:"fails,omitempty"` // why its requests fail
	Filters  []string        `json:"filters,omitempty"`
	Backends []RoutedBackend `json:"backends,omitempty"`
	Settings []string        `json:"settings,omitempty"` // timeouts and retries
}

// A RoutedBackend is where a part of the requests of a rule goes.
type RoutedBackend struct {
	To      string `json:"to"`
	Percent string `json:"percent"` // of the requests
	Fails   string `json:"fails,omitempty"`
}

// Explained is why an answer is what it is.
type Explained struct {
	Notes    []string          `json:"notes,omitempty"`
	Objects  []ExplainedObject `json:"objects"` // what counts first
	More     int               `json:"moreObjects,omitempty"`
	Findings []FoundObject     `json:"findings,omitempty"`
}

// An ExplainedObject is an object that bears on an answer, or that has no effect on it.
type ExplainedObject struct {
	Object string `json:"object"`
	Counts bool   `json:"counts"`
	Why    string `json:"why"`
}

// A FoundObject is one of which a part has not the effect that it seems to have.
type FoundObject struct {
	Object     string   `json:"object"`
	Unreadable bool     `json:"unreadable,omitempty"` // nothing of it counts
	Lines      []string `json:"lines"`
}

// maxExplained bounds each list of a page: a namespace may have thousands of objects about one port.
const maxExplained = 1000

// errNoPolicy is what all get who ask a replica that does not serve policy.
var errNoPolicy = status.Error(codes.NotFound, "this replica serves no policy: set -policy-addr")

// addPolicy adds the pages about policy.
func (s *Sources) addPolicy(to *http.ServeMux) {
	to.HandleFunc("GET /explain/policy", s.servePolicy)
	to.HandleFunc("GET /explain/route", s.serveRoute)
}

// servePolicy explains what the proxy of a workload gets: ?workload=NS:POD&port=[&from=SA.NS][&from-ip=][&no-tls=true].
func (s *Sources) servePolicy(writer http.ResponseWriter, request *http.Request) {
	page, err := s.newPolicyPage(request.URL.Query().Get)
	writePage(writer, page, err)
}

// serveRoute explains how clients reach a target: ?target=&from=NS.
func (s *Sources) serveRoute(writer http.ResponseWriter, request *http.Request) {
	query := request.URL.Query()
	page, err := s.newRoutePage(query.Get("target"), query.Get("from"))
	writePage(writer, page, err)
}

// writePage writes a page, or why there is none.
func writePage(writer http.ResponseWriter, page any, err error) {
	if err == nil {
		writeJSON(writer, page)
		return
	}

	code := http.StatusBadRequest
	switch status.Code(err) {
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.Unavailable:
		code = http.StatusServiceUnavailable
	default:
	}
	http.Error(writer, status.Convert(err).Message(), code)
}

func (s *Sources) newPolicyPage(asked func(string) string) (*PolicyPage, error) {
	if s.Policy == nil {
		return nil, errNoPolicy
	}

	port, err := strconv.ParseUint(asked("port"), 10, 16)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "port: %.64q is no port", asked("port"))
	}
	noTLS := asked("no-tls") == "true"
	client, err := s.Policy.ParseClient(asked("from"), asked("from-ip"), noTLS)
	if err != nil {
		return nil, err
	}

	of := &client
	if asked("from")+asked("from-ip") == "" && !noTLS {
		of = nil
	}
	explained, err := s.Policy.ExplainInbound(asked("workload"), uint16(port), of)
	if err != nil {
		return nil, err
	}
	return s.policyPageOf(explained), nil
}

func (s *Sources) policyPageOf(explained *policyapi.InboundExplanation) *PolicyPage {
	answer := explained.Answer
	page := &PolicyPage{
		Workload: explained.Workload.String(), Port: explained.Port, Client: explained.Client,
		Policy: originText(answer.Origin), Protocol: answer.Protocol.String(),
		Authorizations: s.grants(answer.Authorizations), Routes: []InboundRoute{},
		Explained: newExplained(explained.Causes, explained.Findings, explained.Notes),
	}

	for i := range answer.Routes[:min(len(answer.Routes), maxExplained)] {
		page.Routes = append(page.Routes, s.inboundRoute(&answer.Routes[i]))
	}
	if l := answer.Limit; l != nil {
		page.Limit = fmt.Sprintf("%s: %s requests/s, %s of each client, and %s",
			originText(l.Origin), bound(l.Total), bound(l.Identity), words.Count(len(l.Overrides), "exception"))
	}

	if explained.Client != "" {
		page.decide(explained.Decisions)
	}
	return page
}

func bound(n uint32) string {
	if n == 0 {
		return "unbounded"
	}
	return strconv.Itoa(int(n))
}

// originText names what a part of an answer is from.
func originText(of rules.Origin) string {
	switch of.Default {
	case "":
		return of.String()
	case "default":
		return "default route"
	}
	return "default " + of.Default
}

// decide adds what becomes of a client.
func (p *PolicyPage) decide(all []rules.Decision) {
	allowed := 0
	for _, d := range all {
		decision := PolicyDecision{Allowed: d.By != nil}
		if d.Route != (rules.Origin{}) {
			decision.Route = originText(d.Route)
		}

		if d.By != nil {
			allowed++
			decision.By, decision.FromOnly = originText(d.By.Origin), rules.DescribeNetworks(d.From)
		} else {
			decision.Why = reasons(d.Misses)
		}
		p.Decisions = append(p.Decisions, decision)
	}

	switch allowed {
	case len(all):
		p.Verdict = AllAllowed
	case 0:
		p.Verdict = AllRefused
	default:
		p.Verdict = SomeAllowed
	}
}

// reasons returns a line for each authorization that does not let a client in.
func reasons(misses []rules.Miss) (lines []string) {
	for _, miss := range misses[:min(len(misses), maxExplained)] {
		lines = append(lines, fmt.Sprintf("%s: %s; %s", originText(miss.Origin), miss.Why, miss.Change))
	}
	if len(misses) == 0 {
		lines = append(lines, "nothing lets any client in: create an AuthorizationPolicy, or change accessPolicy of "+
			"the Server")
	}
	return lines
}

func (s *Sources) grants(all []rules.Authorization) []PolicyGrant {
	grants := []PolicyGrant{}
	for i := range all[:min(len(all), maxExplained)] {
		a := &all[i]
		grant := PolicyGrant{By: originText(a.Origin), Clients: s.Policy.DescribeClients(a)}
		for _, required := range a.Requires {
			grant.Requires = append(grant.Requires, required.String())
		}
		grants = append(grants, grant)
	}
	return grants
}

func (s *Sources) inboundRoute(from *rules.InboundRoute) InboundRoute {
	route := InboundRoute{
		Route: originText(from.Origin), Hosts: texts(from.Hosts), Rules: []RoutedRule{},
	}
	if len(from.Authorizations) > 0 {
		route.Authorizations = s.grants(from.Authorizations)
	}

	for _, rule := range from.Rules {
		route.Rules = append(route.Rules, RoutedRule{
			Matches: texts(rule.Matches), Fails: rule.Fail, Filters: texts(rule.Filters),
		})
	}
	return route
}

func texts[T fmt.Stringer](all []T) (lines []string) {
	for _, one := range all {
		lines = append(lines, one.String())
	}
	return lines
}

func (s *Sources) newRoutePage(target, client string) (*RoutePage, error) {
	if s.Policy == nil {
		return nil, errNoPolicy
	}
	explained, err := s.Policy.ExplainOutbound(target, client)
	if err != nil {
		return nil, err
	}

	answer := explained.Answer
	page := &RoutePage{
		Target: target, Client: client, Of: originText(answer.Origin), Protocol: answer.Protocol.String(),
		Explained: newExplained(append(explained.Causes, explained.Candidates...), explained.Findings, explained.Notes),
		Routes:    []RoutedRoute{},
	}

	for i := range answer.Routes[:min(len(answer.Routes), maxExplained)] {
		page.addRoute(explained, &answer.Routes[i], false)
	}
	if answer.Protocol == rules.OutboundDetect {
		page.addRoute(explained, &answer.Opaque, true)
	}
	if explained.Of.Kind == rules.KindService {
		s.addProfile(page, federation.Service{Namespace: explained.Of.Namespace, Name: explained.Of.Name})
	}
	return page, nil
}

// addProfile notes a ServiceProfile, if one stands in the place of all routes.
func (s *Sources) addProfile(page *RoutePage, of federation.Service) {
	object, p := s.Discovery.ProfileOf(of, page.Client)
	if p != nil && len(p.Routes)+len(p.Overrides) > 0 {
		page.Notes = append(page.Notes, fmt.Sprintf("proxies use ServiceProfile %s/%s instead, as long as it has "+
			"routes or dstOverrides", object.Namespace, object.Name))
	}
}

func (p *RoutePage) addRoute(explained *policyapi.OutboundExplanation, from *rules.OutboundRoute, isOpaque bool) {
	route := RoutedRoute{
		Route: originText(from.Origin), Hosts: texts(from.Hosts), Opaque: isOpaque, Rules: []RoutedRule{},
	}
	var numbers []int
	if object := explained.Route(from.Origin); object != nil {
		numbers = object.SentNumbers()
	}

	for i := range from.Rules {
		rule := newRoutedRule(&from.Rules[i])
		if i < len(numbers) {
			rule.Number = numbers[i]
		}

		if rule.Fails != "" {
			p.Failing++
		}
		for _, b := range rule.Backends {
			if b.Fails != "" {
				p.Failing++
			}
		}
		route.Rules = append(route.Rules, rule)
	}

	if len(route.Rules) == 0 {
		p.Failing++
	}
	p.Routes = append(p.Routes, route)
}

func newRoutedRule(from *rules.OutboundRule) RoutedRule {
	rule := RoutedRule{Matches: texts(from.Matches), Filters: texts(from.Filters)}
	if from.Fail != nil {
		rule.Fails = cmp.Or(from.Fail.Message, "it is not allowed")
	}

	var sum uint64
	for i := range from.Backends {
		sum += uint64(from.Backends[i].Weight)
	}
	for i := range from.Backends {
		b := &from.Backends[i]
		backend := RoutedBackend{To: backendText(b), Percent: "100%", Fails: b.Fail}
		if from.IsSplit && sum > 0 {
			backend.Percent = strconv.FormatFloat(100*float64(b.Weight)/float64(sum), 'g', 3, 64) + "%"
		}
		rule.Backends = append(rule.Backends, backend)
	}

	rule.Settings = settings(from)
	return rule
}

// backendText names where a backend leads.
func backendText(b *rules.OutboundBackend) string {
	text := originText(b.Origin)
	switch {
	case b.Original:
		text = "the address itself"
	case b.Port != 0:
		text += ":" + strconv.Itoa(int(b.Port))
	}

	for _, f := range b.Filters {
		text += ", " + f.String()
	}
	return text
}

// settings returns the timeouts and the retries of a rule.
func settings(of *rules.OutboundRule) (all []string) {
	for _, timeout := range []struct {
		name string
		rules.Timeout
	}{
		{"request", of.Timeouts.Request}, {"response", of.Timeouts.Response}, {"idle", of.Timeouts.Idle},
	} {
		if timeout.After > 0 {
			all = append(all, fmt.Sprintf("%s timeout %s", timeout.name, timeout.After))
		}
	}

	if of.Retry != nil {
		all = append(all, fmt.Sprintf("up to %d retries", of.Retry.Limit))
	}
	return all
}

func newExplained(causes []rules.Cause, found []policyapi.ObjectFinding, notes []string) Explained {
	all := Explained{Notes: notes, Objects: []ExplainedObject{}, More: max(0, len(causes)-maxExplained)}
	for _, c := range causes[:min(len(causes), maxExplained)] {
		all.Objects = append(all.Objects, ExplainedObject{c.String(), c.Counts, c.Why})
	}
	for _, f := range found[:min(len(found), maxExplained)] {
		all.Findings = append(all.Findings, FoundObject{f.String(), f.Unreadable, f.Lines})
	}
	return all
}

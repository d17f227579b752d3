package policyapi

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// An InboundExplanation is what the proxy of a workload gets for a port, and why.
type InboundExplanation struct {
	*rules.InboundExplanation
	Workload rules.Reference
	Port     uint16

	Client    string           // for whom Decisions are; empty: for no client
	Decisions []rules.Decision // one a route, and one for connections that may carry something else
	Findings  []ObjectFinding
}

// An OutboundExplanation is what clients get for a target, and why.
type OutboundExplanation struct {
	*rules.OutboundExplanation
	Of         rules.Reference // what the target stands for; zero: an address outside of the cluster
	Client     string          // namespace of the client
	Candidates []rules.Cause   // EgressNetworks, if it is an address outside of the cluster
	Notes      []string
	Findings   []ObjectFinding

	target *rules.Target
}

// Route returns a route that the answer has, with the parts that are not sent; nil if it is a default.
func (x *OutboundExplanation) Route(of rules.Origin) *rules.Route {
	if x.target == nil || of.Default != "" {
		return nil
	}
	i := slices.IndexFunc(x.target.Attached, func(a rules.Attachment) bool { return a.Route.Reference == of.Reference })
	if i < 0 {
		return nil
	}
	return x.target.Attached[i].Route
}

// An ObjectFinding is what is wrong with an object, a line for each part.
type ObjectFinding struct {
	rules.Reference
	Unreadable bool // nothing of it counts
	Lines      []string
}

// errNotKnown is what people get who ask too early.
var errNotKnown = status.Error(codes.Unavailable, "objects of policy were not listed yet: see /ready")

// ExplainInbound returns what the proxy of a workload gets for a port, and why. Without a client nothing is decided.
// Errors are those of a stream.
func (s *Server) ExplainInbound(workload string, port uint16, client *rules.Client) (*InboundExplanation, error) {
	asked, err := parseWorkload(workload)
	if err != nil {
		return nil, err
	}
	if _, err := parsePort(uint32(port)); err != nil {
		return nil, err
	}
	if s.levels.Completeness() == facts.Incomplete {
		return nil, errNotKnown
	}

	known, found := s.levels.Workloads.Get(asked)
	if !found {
		return nil, notFound(asked)
	}
	servers, _ := s.levels.Servers.Get(asked.Namespace)

	explained := &InboundExplanation{
		InboundExplanation: s.options.ExplainInbound(known, servers, port), Port: port,
		Workload: rules.Reference{Kind: rules.KindPod, Namespace: asked.Namespace, Name: asked.Name},
	}
	if asked.External {
		explained.Workload.Kind = rules.KindExternalWorkload
	}
	if client != nil {
		explained.Client, explained.Decisions = s.describeClient(*client), s.options.Decide(explained.Answer, *client)
	}

	explained.Findings = append(findingsOfSize(EncodeInbound(explained.Answer), explained.Answer.Reference),
		s.findings(explained.Causes, asked.Namespace, rules.Kind.IsOfServers, explained.Workload)...)
	return explained, nil
}

// ParseClient reads who a client is: a ServiceAccount, as NAME.NAMESPACE, or an identity. Without one it has no TLS.
func (s *Server) ParseClient(from, ip string, noTLS bool) (client rules.Client, err error) {
	invalid := func(format string, args ...any) (rules.Client, error) {
		return client, status.Errorf(codes.InvalidArgument, format, args...)
	}
	if from != "" && !noTLS {
		client.TLS, client.Identity = true, from
		i := strings.LastIndexByte(from, '.')
		isIdentity := strings.Contains(from, "://") || strings.Contains(from, ".serviceaccount.identity.")

		switch {
		case isIdentity:
		case i <= 0 || i == len(from)-1 || len(from) > 2*maxName:
			return invalid("no client: %.64q is not SERVICEACCOUNT.NAMESPACE", from)
		default:
			account := rules.Reference{Kind: rules.KindServiceAccount, Namespace: from[i+1:], Name: from[:i]}
			identity, _ := s.options.Identity.Of(account)
			client.Identity = identity.Text
		}
	}

	if ip != "" {
		addr, err := netip.ParseAddr(ip)
		if err != nil || addr.Zone() != "" {
			return invalid("no client: %.64q is no IP", ip)
		}
		client.Addr = addr.Unmap()
	}
	return client, nil
}

func (s *Server) describeClient(c rules.Client) string {
	text := "a client without TLS"
	switch {
	case c.TLS && c.Identity != "":
		text = s.options.Identity.Describe(rules.Pattern{Text: c.Identity})
	case c.TLS:
		text = "a client with TLS and without an identity"
	}
	if c.Addr.IsValid() {
		text += " at " + c.Addr.String()
	}
	return text
}

// DescribeClients returns for people which clients an authorization lets in.
func (s *Server) DescribeClients(of *rules.Authorization) string {
	return s.options.Identity.DescribeClients(of)
}

// ExplainOutbound returns what a client in a namespace gets for a target: IP:PORT, or a Service as NAME.NAMESPACE or an
// authority, with a port or without. Errors are those of a stream.
func (s *Server) ExplainOutbound(text, client string) (*OutboundExplanation, error) {
	asked, err := s.parseExplained(text)
	if err != nil {
		return nil, err
	}
	if s.levels.Completeness() == facts.Incomplete {
		return nil, errNotKnown
	}

	reader := s.newOutboundReader(asked, client, watch.NewBell())
	defer reader.close()
	level, err := reader.level()
	if err != nil {
		return nil, err
	}
	return s.explainOutbound(reader, level), nil
}

// explainOutbound explains the answer of a level.
func (s *Server) explainOutbound(reader *outboundReader, level outboundLevel) *OutboundExplanation {
	ip, client := reader.asked.address.Addr(), reader.client
	explained := &OutboundExplanation{Of: level.of, Client: client}

	if ip.IsValid() && level.of.Kind != rules.KindService {
		own, global := reader.egress(&reader.own, client), reader.egress(&reader.global, s.options.EgressNamespace)
		_, explained.Candidates = s.options.ExplainEgress(ip, own, global)
	}

	if level.isFallback() {
		explained.OutboundExplanation = &rules.OutboundExplanation{Answer: rules.Fallback()}
		explained.Notes = append(explained.Notes, "the address is outside of the cluster (-cluster-networks), and no "+
			"EgressNetwork decides about it: connections go there")
	} else {
		explained.target = level.known()
		explained.OutboundExplanation = s.options.ExplainOutbound(explained.target, level.query)
	}

	explained.noteOthers(reader.address.Of(ip))
	named := slices.Concat(explained.Causes, explained.Candidates)
	explained.Findings = append(findingsOfSize(EncodeOutbound(explained.Answer, level.original), level.of),
		s.findings(named, cmp.Or(client, level.of.Namespace), rules.Kind.IsOfTargets, level.of)...)
	return explained
}

// findingsOfSize returns that a message is refused, if it is.
func findingsOfSize(message proto.Message, of rules.Reference) []ObjectFinding {
	err := checkSize(message, of)
	if err == nil {
		return nil
	}
	return []ObjectFinding{{Reference: of, Lines: []string{"no client gets it: " + status.Convert(err).Message()}}}
}

// noteOthers notes that several Services have an address.
func (x *OutboundExplanation) noteOthers(a *federation.Address) {
	if a == nil || len(a.Services) < 2 || x.Of.Kind != rules.KindService {
		return
	}
	x.Notes = append(x.Notes, fmt.Sprintf("%d Services have the address: that of the oldest counts, %s",
		len(a.Services), x.Of))
}

// parseExplained reads a target as people write it.
func (s *Server) parseExplained(text string) (target, error) {
	if addr, err := netip.ParseAddrPort(text); err == nil && addr.Addr().Zone() == "" {
		port, err := parsePort(uint32(addr.Port()))
		return target{address: netip.AddrPortFrom(addr.Addr().Unmap(), port), port: port}, err
	}

	host, port, _ := strings.Cut(text, ":")
	if strings.Count(host, ".") == 1 {
		host += ".svc"
	}
	if port != "" {
		host += ":" + port
	}
	return parseAuthority(host, s.options.ClusterDomain)
}

// maxUnreadable is how many objects that nothing names, and that cannot be read, an explanation has.
const maxUnreadable = 20

// findings returns what is wrong with objects that an explanation names, and with those of a namespace that cannot be
// read: nothing refers to what they may have been.
func (s *Server) findings(
	causes []rules.Cause, namespace string, isOfKind func(rules.Kind) bool, others ...rules.Reference,
) (all []ObjectFinding) {
	named := map[rules.Reference]bool{}
	for _, c := range causes {
		others = append(others, c.Reference)
	}
	for _, of := range others {
		if found, is := s.levels.Findings.Get(of); is && !named[of] {
			all = append(all, newObjectFinding(of, found))
		}
		named[of] = true
	}

	var unreadable []ObjectFinding
	for of, found := range s.levels.Findings.All() {
		if found.Unreadable != "" && of.Namespace == namespace && isOfKind(of.Kind) && !named[of] {
			unreadable = append(unreadable, newObjectFinding(of, found))
		}
	}
	slices.SortFunc(unreadable, func(a, b ObjectFinding) int {
		return rules.CompareNames(&rules.Meta{Reference: a.Reference}, &rules.Meta{Reference: b.Reference})
	})
	return append(all, unreadable[:min(len(unreadable), maxUnreadable)]...)
}

func newObjectFinding(of rules.Reference, found *rules.ObjectFindings) ObjectFinding {
	if found.Unreadable != "" {
		return ObjectFinding{Reference: of, Unreadable: true, Lines: []string{found.Unreadable}}
	}

	f := ObjectFinding{Reference: of}
	for _, finding := range found.Findings {
		f.Lines = append(f.Lines, finding.String())
	}
	if found.More > 0 {
		f.Lines = append(f.Lines, fmt.Sprintf("and %d more", found.More))
	}
	return f
}

package debug

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/internal/words"
	"github.com/fingerpost/fingerpost/links"
)

// A ServiceProblem is one reason why a Service of the local cluster is not what its owner asks for.
type ServiceProblem struct {
	Service string        `json:"service"` // namespace/name
	Reason  problem.Class `json:"reason"`
	Message string        `json:"message"`
	Streams int           `json:"streams"` // open ones that ask for the Service
}

// problemReasons are the reasons, the worst first.
var problemReasons = []problem.Class{
	problem.Malformed, problem.NoneReady, problem.NoneReadyHere, problem.NotLinked, problem.NoService, problem.NoPort,
	problem.InvalidAnnotation, problem.UnknownCluster, problem.UnknownRegion,
}

// severity is that of a Problem. Without clients, a Service may have no endpoints on purpose.
func (p ServiceProblem) severity() problem.Severity {
	if p.Reason == problem.Malformed || p.Reason == problem.NotLinked ||
		p.Reason == problem.NoneReady && p.Streams > 0 {
		return problem.Urgent
	}
	return problem.Warning
}

// ProblemsPage is /debug/problems: what is wrong with Services of the local cluster, the worst first. What is not known
// because a cluster was never synced is no problem of a Service.
type ProblemsPage []ServiceProblem

// countStreams returns how many streams ask for each Service.
func countStreams(all []discovery.StreamStatus) map[federation.Service]int {
	streams := map[federation.Service]int{}
	for _, stream := range all {
		services := map[federation.Service]bool{}
		for _, q := range stream.Queries() {
			services[q.Service] = true
		}
		for service := range services {
			streams[service]++
		}
	}
	return streams
}

// problemsInput is all that a ProblemsPage depends on.
type problemsInput struct {
	store   *federation.Store
	local   federation.Cluster
	links   []links.LinkStatus
	streams map[federation.Service]int // that ask for each Service
	counts  endpointCounts             // of endpoints, as far as they were counted before
}

// newProblemsPage looks at every Service of the local cluster. Only mirrored and federated Services are resolved to
// members, by a Watch that is closed at once: all that a plain one has is in its own View.
func newProblemsPage(in problemsInput) ProblemsPage {
	page := ProblemsPage{}
	for svc, view := range in.store.Views(in.local).All() {
		snapshot := &federation.Snapshot{Ref: federation.Ref{Cluster: in.local, Service: svc}, View: view}
		if view.Composition != nil {
			w := in.store.Watch(snapshot.Ref)
			snapshot, _ = w.Load()
			w.Close()
		}
		found := problemsOfService{problemsInput: in, Snapshot: snapshot, streams: in.streams[svc]}
		found.addAll()
		page = append(page, found.all...)
	}

	page.Sort()
	return page
}

// Sort sorts the problems, the worst first.
func (p ProblemsPage) Sort() {
	slices.SortFunc(p, func(a, b ServiceProblem) int {
		rank := func(p ServiceProblem) int { return slices.Index(problemReasons, p.Reason) }
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Streams, a.Streams),
			strings.Compare(a.Service, b.Service), strings.Compare(a.Message, b.Message))
	})
}

// problemsOfService are what is wrong with one Service.
type problemsOfService struct {
	problemsInput
	*federation.Snapshot
	streams int // that ask for it
	all     ProblemsPage
}

// addAll adds all that is wrong with the Service.
func (s *problemsOfService) addAll() {
	if s.View == nil {
		return // it was deleted meanwhile
	}
	if s.View.Misread != "" {
		s.addf(problem.InvalidAnnotation, "%s", s.View.Misread)
	}

	switch {
	case s.View.Malformed != "":
		s.addf(problem.Malformed, "%s", s.View.Malformed)
	case s.View.Composition != nil:
		s.addComposition()
	case s.View.ThroughGateway != "":
		s.addGatewayMirror()
	default:
		if n := s.counts.of(s.View); n.ready == 0 && n.total > 0 && s.streams > 0 {
			s.addf(problem.NoneReadyHere, "%s", noneOf(n.total))
		}
	}
}

// noneOf reports that none of some endpoints is ready, and how many they are.
func noneOf(n int) string {
	if n == 1 {
		return "its endpoint is not ready"
	}
	return "none of its " + words.Count(n, "endpoint") + " is ready"
}

func (s *problemsOfService) addf(reason problem.Class, format string, args ...any) {
	s.all = append(s.all, ServiceProblem{
		Service: s.Namespace + "/" + s.Name, Reason: reason, Message: fmt.Sprintf(format, args...), Streams: s.streams,
	})
}

// addComposition adds what is wrong with a mirrored or federated Service.
func (s *problemsOfService) addComposition() {
	var sum endpointCount
	var counts []string
	for _, m := range s.Members {
		if !m.Known || !s.addMember(m) {
			continue
		}
		n := s.counts.of(m.View)
		sum.ready, sum.total = sum.ready+n.ready, sum.total+n.total
		counts = append(counts, fmt.Sprintf("%s %d of %d", m.Origin.Cluster, n.ready, n.total))
	}

	if len(s.Unknown()) > 0 {
		return // clusters may not be listed yet, and others may have endpoints
	}

	for _, name := range s.View.Policy.Names() {
		if !s.store.Linked(federation.Cluster(name)) {
			s.addf(problem.UnknownCluster,
				"its policy names the cluster %s, which is not linked: that name counts for nothing", name)
		}
	}

	if s.View.Policy.HasRegion() {
		if text := regionProblem(s.Snapshot, s.store.Policy(s.Cluster).Region); text != "" {
			s.addf(problem.UnknownRegion, "%s", text)
		}
	}
	if sum.ready == 0 && sum.total+s.streams > 0 { // else it may have been scaled to nothing
		s.addf(problem.NoneReady, "none of its endpoints is ready (%s): see the Pods of the Service there",
			cmp.Or(strings.Join(counts, ", "), "there are none"))
	}
}

// addGatewayMirror adds what is wrong with a mirror through the gateway of a cluster. What it has here are addresses of
// the gateway, and none while nothing is ready there. So what the cluster has itself decides whether it may have none.
func (s *problemsOfService) addGatewayMirror() {
	home, of := s.View.ThroughGateway, s.store.View(s.mirrored())
	here, there := s.counts.of(s.View), endpointCount{}
	if of != nil {
		there = s.counts.of(of)
	}

	switch {
	case here.ready > 0, here.total+there.total+s.streams == 0: // with nothing it may have been scaled to nothing
		return
	case s.store.State(home) == federation.Connecting: // it was never synced, and may have endpoints
		return
	}

	lacks, see := "has no endpoints", "see the condition "+links.Mirrors+" of the Link"
	if here.total > 0 {
		lacks = noneOf(here.total)
		see = "see whether the gateway answers probes (gateway_alive)"
	}

	if of != nil {
		lacks += fmt.Sprintf(", while %d of %d are ready in the cluster", there.ready, there.total)
		if there.ready == 0 {
			see = "see its Pods there"
		}
	}
	s.addf(problem.NoneReady, "it leads through the gateway of cluster %s (%s), and %s: %s",
		home, s.linkOf(home), lacks, see)
}

// mirrored returns the Service that a mirror through a gateway stands for. A mirror of one endpoint of a headless
// Service stands for none: its cluster has no Service of that name.
func (s *problemsOfService) mirrored() federation.Ref {
	name := strings.TrimSuffix(s.Name, "-"+string(s.View.ThroughGateway))
	return federation.Ref{
		Cluster: s.View.ThroughGateway, Service: federation.Service{Namespace: s.Namespace, Name: name},
	}
}

// linkOf names the Link of a cluster, for people.
func (s *problemsOfService) linkOf(cluster federation.Cluster) string {
	for _, l := range s.links {
		if l.Cluster == string(cluster) && l.Namespace != "" {
			return "Link " + l.String()
		}
	}
	return "which no Link here names"
}

// addMember adds what is wrong with a member, and reports whether it has endpoints to be counted.
func (s *problemsOfService) addMember(member *federation.Member) bool {
	name := member.Origin.Name + "@" + string(member.Origin.Cluster)
	switch {
	case !member.Linked:
		s.addf(problem.NotLinked, "cluster %s of its member %s is not linked: link it, or remove the member",
			member.Origin.Cluster, name)
	case member.View == nil:
		s.addf(problem.NoService, "cluster %s has no Service %s/%s",
			member.Origin.Cluster, member.Origin.Namespace, member.Origin.Name)
	case member.View.ExternalName:
		s.addf(problem.NoService, "its member %s is an ExternalName, which has no endpoints", name)
	default:
		for _, port := range portProblems(s.View, member.View) {
			s.addf(problem.NoPort, "its member %s contributes nothing to %s", name, port)
		}
		return true
	}

	return false
}

// regionProblem returns why the clusters in the region of the Service's own are none; empty if there is one, or if all
// members are here.
func regionProblem(snapshot *federation.Snapshot, region string) string {
	var others []string
	for _, m := range snapshot.Members {
		switch of := m.Part().Policy.Region; {
		case m.Near && !m.Origin.Home:
			return ""
		case m.Linked && !m.Origin.Home:
			others = append(others, fmt.Sprintf("%s: %s", m.Origin.Cluster, cmp.Or(of, "not known")))
		}
	}

	slices.Sort(others)
	switch {
	case len(others) == 0:
		return ""
	case region == "":
		return fmt.Sprintf("its policy prefers the region of cluster %s, which is not known: "+
			"that tier counts for nothing", snapshot.Cluster)
	default:
		return fmt.Sprintf("its policy prefers the region %s, and no other member is known to be in it (%s)",
			region, strings.Join(slices.Compact(others), ", "))
	}
}

// portProblems returns the ports of a Service that a member does not have.
func portProblems(service, member *federation.View) (all []string) {
	for _, p := range service.Ports {
		declared, found := member.PortOf(p.Number, p.Protocol)
		switch {
		case !found:
			all = append(all, fmt.Sprintf("port %s: the Service there declares %s",
				portName(p.Number, p.Protocol), portNames(member.Ports)))
		case len(member.Slices) > 0 && !slices.ContainsFunc(member.Slices, func(s *federation.Slice) bool {
			return s.Target(declared) >= 0 || len(s.Endpoints) == 0
		}):
			all = append(all, fmt.Sprintf("port %s: its EndpointSlices have no port %q, as with a targetPort "+
				"that no container has", portName(p.Number, p.Protocol), declared.Name))
		}
	}
	return all
}

func portNames(ports []federation.ServicePort) string {
	var all []string
	for _, p := range ports {
		all = append(all, strings.TrimRight(portName(p.Number, p.Protocol)+" "+p.Name, " "))
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}

// portName returns the number of a port, and its protocol if that is not TCP.
func portName(number uint16, protocol federation.Transport) string {
	if protocol == federation.TCP {
		return strconv.Itoa(int(number))
	}
	return fmt.Sprintf("%d/%s", number, protocol)
}

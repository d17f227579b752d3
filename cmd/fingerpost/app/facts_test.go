package app_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

const (
	serverResource   = "servers.policy.linkerd.io"
	profileResource  = "serviceprofiles.linkerd.io"
	externalResource = "externalworkloads.workload.linkerd.io"
)

// A fact is what streams receive besides the addresses of a Service: something, such as the identity in a cluster, and
// its value. What is received must be so, or have been so at some moment since the last comparison, when everything
// had settled.
type fact struct{ something, value string }

// facts returns all that is so now.
func (m *model) facts() map[fact]bool {
	all := map[fact]bool{}
	for name, c := range m.clusters {
		all[fact{"hint in " + name, map[bool]string{true: "opaque", false: "h2"}[c.opaque]}] = true
		all[fact{"hint of ExternalWorkloads in " + name, "h2"}] = true // the Server selects Pods
	}
	for name, domain := range m.trust {
		all[fact{"identity in " + name, identityIn(domain)}] = true
		external := externalIdentity(name)
		if name != home && domain != externalDomain(name) { // one that a cluster may not give out
			external = "-"
		}
		all[fact{"identity of ExternalWorkloads in " + name, external}] = true
	}
	local := m.clusters[home]
	for _, service := range []string{"all", "web", "web-federated", "api-east"} {
		all[fact{"profile of " + service, local.routes[service]}] = true
		if local.labels[service] == nil || service == "api-east" && m.clusters["east"] == nil {
			all[fact{"answer about " + service, "NotFound"}] = true
		}
	}
	return all
}

// factsOf returns what has been received with an address.
func (s *scenario) factsOf(a proxy.Address) []fact {
	in := "in " + clusterOf(a.Addr)
	if isExternal(a.Addr) {
		in = "of ExternalWorkloads " + in
	}
	return []fact{{"hint " + in, field(s.t, a, "hint")}, {"identity " + in, field(s.t, a, "identity")}}
}

// isExternal reports whether an address is that of an ExternalWorkload.
func isExternal(a netip.AddrPort) bool { return strings.HasPrefix(a.String(), externalNet) }

// factsIn returns what a stream about a Service has received with an event.
func (s *scenario) factsIn(service string, e proxy.Event) (all []fact) {
	switch {
	case e.Profile != nil:
		return []fact{{"profile of " + service, routesOf(e.Profile)}}
	case e.End.Code() == codes.NotFound:
		return []fact{{"answer about " + service, "NotFound"}}
	case e.Message == nil:
		return nil
	}
	for _, a := range e.Message.Added {
		all = append(all, s.factsOf(a)...)
	}
	// What is not known of an address is no fact; a comparison finds that it is lacking.
	return slices.DeleteFunc(all, func(f fact) bool { return f.value == "" || f.value == "-" })
}

func routesOf(p *proxy.Profile) string {
	var all []string
	for _, r := range p.GetRoutes() {
		all = append(all, r.GetMetricsLabels()["route"])
	}
	return strings.Join(all, ",")
}

// profileDifferences returns what clients have received last as the profiles of Services, and is none of the facts.
func (s *scenario) profileDifferences(m *model, facts map[fact]bool) (all []string) {
	for _, name := range s.opened {
		st, is := s.streams[name].(*proxy.ProfileStream)
		if !is {
			continue
		}
		service := serviceOf(st.Request().Authority)
		if m.clusters[home].labels[service] == nil {
			continue // a proxy keeps what it has received of a Service that is not found
		}
		has := fact{"profile of " + service, "none"}
		if newest := st.Newest(); newest != nil {
			has.value = routesOf(newest)
		}
		if !facts[has] {
			all = append(all, fmt.Sprintf("stream %s: the %s is not %q", name, has.something, has.value))
		}
	}
	return all
}

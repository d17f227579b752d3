package endpointslice

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/federation"
)

// Which endpoints of the members of a Service are written. Of several claims to an address, at a port of the Service,
// the one that counts in a stream is written (federation.Snapshot.Winners): readers of slices find an address once,
// with the conditions, the cluster and the identity that clients of Get have. An endpoint whose claim counts for some
// of its ports is written with these.
//
// Most addresses are claimed once, so only those that are claimed again are compared. The names of instances are
// asked for one by one, and an address may have several.

// choice is which endpoints are written; the zero choice is all.
type choice struct {
	*claims
	shares
}

func chooseEndpoints(
	s *serviceRecord, snapshot *federation.Snapshot, controlPlane string, ownerOf func(source string) string,
) *choice {
	all := newClaims(s, snapshot, controlPlane, ownerOf)
	return &choice{all, sharesOf(s, snapshot, ownerOf, all)}
}

// claims is what becomes of addresses that are claimed more than once.
type claims struct {
	winners map[portClaim]bool
	owners  map[netip.Addr]federation.Cluster // of those that are ready; empty if a claim to them is not
}

// portClaim is a claim to an address at a port of the Service, by the port's name. Its Port is 0.
type portClaim struct {
	name string
	federation.Claim
}

func newClaims(
	svc *serviceRecord, snapshot *federation.Snapshot, controlPlane string, ownerOf func(source string) string,
) *claims {
	claims := &claims{winners: map[portClaim]bool{}, owners: map[netip.Addr]federation.Cluster{}}
	claimed := map[netip.Addr]int{}
	forEachClaim(svc, snapshot, ownerOf, func(one federation.Claim, _ []discoveryv1.EndpointPort) {
		claimed[one.Endpoint().Addr]++
	})

	contested := map[question][]federation.Claim{}
	forEachClaim(svc, snapshot, ownerOf, func(one federation.Claim, ports []discoveryv1.EndpointPort) {
		e := one.Endpoint()
		if claimed[e.Addr] < 2 {
			return
		}

		claims.owners[e.Addr] = ""
		for _, p := range ports {
			declared := slices.IndexFunc(svc.ports, func(own corev1.ServicePort) bool { return own.Name == *p.Name })
			at := question{declared, svc.hostnameOf(e)}
			one.Port = uint16(*p.Port)
			contested[at] = append(contested[at], one)
		}
	})

	for _, at := range slices.SortedFunc(maps.Keys(contested), question.compareQuestions) {
		q := federation.Query{Port: uint16(svc.ports[at.port].Port), ControlPlane: controlPlane}
		for _, winner := range snapshot.Winners(q, contested[at]) {
			claims.addWinner(svc.ports[at.port].Name, winner)
		}
	}
	return claims
}

// question is what readers of slices ask for.
type question struct {
	port     int    // the index of the Service's port
	hostname string // empty for all instances
}

func (q question) compareQuestions(o question) int {
	return cmp.Or(cmp.Compare(q.port, o.port), strings.Compare(q.hostname, o.hostname))
}

func (c *claims) addWinner(port string, winner federation.Claim) {
	e, cluster := winner.Endpoint(), winner.Member.Origin.Cluster
	if e.Ready && c.owners[e.Addr] == "" { // a policy gives an address to one cluster, at whatever port
		c.owners[e.Addr] = cluster
	}
	winner.Port = 0
	c.winners[portClaim{port, winner}] = true
}

// forEachClaim calls do for each endpoint that may be written, with the Service's ports there.
func forEachClaim(
	svc *serviceRecord, snapshot *federation.Snapshot, ownerOf func(source string) string,
	do func(federation.Claim, []discoveryv1.EndpointPort),
) {
	for _, member := range snapshot.Members {
		if !mayWrite(member, ownerOf) {
			continue
		}

		for _, slice := range member.View.Slices {
			ports := portsAtMember(svc, member.View, slice)
			if len(ports) == 0 {
				continue
			}
			for i, e := range slice.Endpoints {
				if slices.Contains(svc.families, familyOf(e.Addr)) {
					do(federation.Claim{Member: member, Slice: slice, Index: i}, ports)
				}
			}
		}
	}
}

// portsOf returns those of the ports at which the claim of an endpoint counts.
func (c *claims) portsOf(one federation.Claim, ports []discoveryv1.EndpointPort) []discoveryv1.EndpointPort {
	if c == nil {
		return ports
	}
	if _, contested := c.owners[one.Endpoint().Addr]; !contested {
		return ports
	}
	loses := func(p discoveryv1.EndpointPort) bool { return !c.winners[portClaim{*p.Name, one}] }
	if !slices.ContainsFunc(ports, loses) {
		return ports
	}
	return slices.DeleteFunc(slices.Clone(ports), loses)
}

// belongsTo reports whether a cluster that claims an address has it.
func (c *claims) belongsTo(a netip.Addr, cluster federation.Cluster) bool {
	owner, contested := c.owners[a]
	return !contested || owner == cluster
}

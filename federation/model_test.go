package federation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// model is the slow, obvious answer: what was written to the Store, and how an answer follows from that,
// address by address.
type model struct {
	listed   bool
	clusters map[Cluster]*modelCluster
}

type modelCluster struct {
	domain   string
	state    ClusterState
	complete bool
	views    map[Service]*View
	written  map[Service]bool // since NewWriter; nil: no writer, or synced
}

// claim is one claim to an address with all that decides about it.
type claim struct {
	addr     netip.AddrPort
	endpoint Endpoint
	term     MemberRef
	home     bool
	stale    bool
	proven   bool // clients learn of an identity
	domain   string
	local    bool // the member's Service has internalTrafficPolicy: Local
	slice    string
	index    int
}

// String has everything by which a client could distinguish two claims.
func (c claim) String() string {
	who, mirror := "none", Mirror{}
	if w := c.endpoint.Workload; w != nil {
		who = fmt.Sprint(w.Kind, w.Name, w.Template.Value().ControlPlane)
	}
	if m := c.endpoint.Mirror(); m != nil {
		mirror = *m
	}
	return fmt.Sprintf("%s of %s/%s/%s zone=%s hints=%v node=%s host=%s mirror=%v domain=%s", c.addr,
		c.term.Cluster, c.term.Name, who,
		c.endpoint.Zone, c.endpoint.Hints(), c.endpoint.Node, c.endpoint.Hostname(), mirror, c.domain)
}

func (m *model) terms(ref Ref) []MemberRef {
	if v := m.view(ref); v != nil && v.Composition != nil {
		return v.Composition.Members
	}
	return []MemberRef{{ref, true}}
}

func (m *model) view(ref Ref) *View {
	if c := m.clusters[ref.Cluster]; c != nil {
		return c.views[ref.Service]
	}
	return nil
}

func (m *model) unknown(ref Ref) []Cluster {
	var out []Cluster
	for _, t := range m.terms(ref) {
		c := m.clusters[t.Cluster]
		if c == nil && !m.listed || c != nil && !c.complete && m.view(t.Ref) == nil {
			out = append(out, t.Cluster)
		}
	}
	return out
}

// state returns the State of an answer with so many addresses.
func (m *model) state(ref Ref, addresses int) State {
	v, absent := m.view(ref), false
	if v != nil {
		external := v.ExternalName
		if v.Composition != nil && !v.Composition.Union {
			target := v.Composition.Members[0].Ref
			w := m.view(target)
			external = external || w != nil && w.ExternalName && (!m.listed || m.clusters[target.Cluster] != nil)
			absent = w == nil
		}
		if external || v.Malformed != "" {
			return Rejected
		}
	}
	switch {
	case addresses > 0:
		return Serving
	case len(m.unknown(ref)) > 0:
		return Unknown
	case v == nil || absent:
		return Absent
	default:
		return Empty
	}
}

// answer returns the address set for a client at node and zone, as text by address.
func (m *model) answer(ref Ref, q Query, node, zone string) map[netip.AddrPort]string {
	var all []claim
	for _, t := range m.terms(ref) {
		var mine []claim
		v := m.view(t.Ref)
		if v == nil || v.ExternalName {
			continue
		}
		for _, s := range v.Slices {
			port := q.Port
			if i := slices.IndexFunc(v.Ports, func(p ServicePort) bool { return p.Number == q.Port }); i >= 0 {
				j := slices.IndexFunc(s.Ports, func(p Port) bool { return p.Name == v.Ports[i].Name })
				if j < 0 {
					j = slices.IndexFunc(s.Ports, func(p Port) bool { return p.Number == v.Ports[i].Target })
				}
				if j < 0 {
					continue
				}
				port = s.Ports[j].Number
			} else if m.view(ref).Composition != nil || len(s.Ports) == 0 {
				continue
			}
			for i, e := range s.Endpoints {
				if !e.Ready || q.Hostname != "" && q.Hostname != e.Hostname() ||
					!q.IPv6 && e.Workload != nil && e.Addr.Is6() {
					continue
				}
				c := m.clusters[t.Cluster]
				mine = append(mine, claim{
					netip.AddrPortFrom(e.Addr, port), *e, t, t.Cluster == ref.Cluster, c.state == Stale,
					proves(*e, q, c.domain), c.domain, v.LocalOnly, s.Name, i,
				})
			}
		}
		if t.Filtered {
			mine = locally(mine, v.LocalOnly, node, zone)
		}
		all = append(all, mine...)
	}
	best := map[netip.AddrPort]claim{}
	for _, c := range all {
		if c.endpoint.Workload != nil && c.addr.Addr().Is4() && slices.ContainsFunc(all, func(o claim) bool {
			return o.endpoint.Workload != nil && o.addr.Addr().Is6() && o.term.Cluster == c.term.Cluster &&
				o.endpoint.Workload.Kind == c.endpoint.Workload.Kind &&
				o.endpoint.Workload.Name == c.endpoint.Workload.Name
		}) {
			continue
		}
		if o, taken := best[c.addr]; !taken || better(c, o) {
			best[c.addr] = c
		}
	}
	out := map[netip.AddrPort]string{}
	for a, c := range best {
		out[a] = c.String() + usage(c.endpoint.Zone, zone, q.ZoneWeights)
	}
	return out
}

// usage describes how a client in a zone is to use an endpoint in another.
func usage(endpoint, client string, weights bool) string {
	switch {
	case endpoint == "" || client == "":
		return " 10000 unknown"
	case endpoint != client:
		return " 10000 remote"
	case weights:
		return " 100000 local"
	default:
		return " 10000 local"
	}
}

func locally(claims []claim, local bool, node, zone string) []claim {
	if local {
		return slices.DeleteFunc(claims, func(c claim) bool {
			return c.endpoint.Workload == nil || c.endpoint.Workload.Kind != Pod || c.endpoint.Node != node
		})
	}
	if slices.ContainsFunc(claims, func(c claim) bool { return len(c.endpoint.Hints()) == 0 }) {
		return claims
	}
	here := slices.Clone(claims)
	here = slices.DeleteFunc(here, func(c claim) bool { return !slices.Contains(c.endpoint.Hints(), zone) })
	if len(here) == 0 {
		return claims
	}
	return here
}

func proves(e Endpoint, q Query, domain string) bool {
	if e.Workload == nil {
		return e.Mirror() != nil && e.Mirror().Identity != ""
	}
	return e.Workload.Kind == Pod && q.ControlPlane != "" &&
		e.Workload.Template.Value().ControlPlane == q.ControlPlane && domain != ""
}

func better(a, b claim) bool {
	rank := func(c claim) string {
		workload := "1"
		if w := c.endpoint.Workload; w != nil {
			workload = fmt.Sprint("0", w.Kind, w.Name)
		}
		return fmt.Sprintf("%v %v %v %v %s|%s|%s|%s|%s|%03d", !c.home, !c.proven, c.stale, !c.term.Filtered,
			c.term.Cluster, c.term.Namespace, c.term.Name, workload, c.slice, c.index)
	}
	return cmp.Compare(rank(a), rank(b)) < 0
}

// text renders a Set like the model's answer.
func text(s *Set) map[netip.AddrPort]string {
	out := map[netip.AddrPort]string{}
	for e := range s.All() {
		out[e.Addr] = describe(e)
	}
	return out
}

func describe(e Choice) string {
	o := e.Origin()
	near := [...]string{UnknownZone: "unknown", SameZone: "local", DifferentZone: "remote"}[e.Nearness]
	return claim{e.Addr, *e.Endpoint, o.MemberRef, o.Home, false, false, o.TrustDomain, false, e.slice, 0}.String() +
		fmt.Sprintf(" %d %s", e.Weight, near)
}

package federation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fingerpost/fingerpost/federation/policy"
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
	policy   policy.ForCluster
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
		who = fmt.Sprint(w.Kind(), w.Name, w.Template().ControlPlane)
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

// imported returns what the members of a composition declare about protocols: number by number, all opinions.
func (m *model) imported(ref Ref) (all []ImportedPort) {
	if m.view(ref).Composition == nil {
		return nil
	}
	for number := range uint16(100) {
		opinions := map[string]ImportedPort{}
		for _, t := range m.terms(ref) {
			v := m.view(t.Ref)
			if v == nil {
				continue
			}
			for _, p := range v.Ports {
				opaque := v.Opaque.Contains(number) && p.App == ""
				if p.Number == number && (p.App != "" || v.Opaque.Given()) {
					opinions[fmt.Sprint(p.App, opaque)] = ImportedPort{Number: number, App: p.App, Opaque: opaque}
				}
			}
		}
		switch len(opinions) {
		case 0:
		case 1:
			for _, one := range opinions {
				all = append(all, one)
			}
		default:
			all = append(all, ImportedPort{Number: number, Disputed: true})
		}
	}
	return all
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

// answer returns the address set for a client at a place, as text by address.
func (m *model) answer(ref Ref, q Query, p Place) map[netip.AddrPort]string {
	var all, waiting []claim
	hinted := map[MemberRef]bool{}
	var dual [2]bool // a workload is reached over IPv4, over IPv6
	for _, t := range m.terms(ref) {
		v := m.view(t.Ref)
		if v == nil || v.ExternalName {
			continue
		}
		var mine []claim
		for _, s := range v.Slices {
			port := q.Port
			isAsked := func(p ServicePort) bool { return p.Number == q.Port && p.Protocol == m.transport(ref, q.Port) }
			if i := slices.IndexFunc(v.Ports, isAsked); i >= 0 {
				find := func(are func(Port) bool) int {
					return slices.IndexFunc(
						s.Ports,
						func(p Port) bool { return p.Protocol == v.Ports[i].Protocol && are(p) },
					)
				}
				j := find(func(p Port) bool { return p.Name == v.Ports[i].Name })
				if j < 0 {
					j = find(func(p Port) bool { return p.Number == v.Ports[i].Target })
				}
				if j < 0 {
					continue
				}
				port = s.Ports[j].Number
			} else if m.view(ref).Composition != nil || len(s.Ports) == 0 {
				continue
			}
			for i, e := range s.Endpoints {
				if q.Hostname != "" && q.Hostname != e.Hostname() || !q.IPv6 && e.Workload != nil && e.Addr.Is6() {
					continue
				}
				c := m.clusters[t.Cluster]
				one := claim{
					netip.AddrPortFrom(e.Addr, port), *e, t, t.Cluster == ref.Cluster, c.state == Stale,
					proves(*e, q, c.domain), c.domain, v.LocalOnly, s.Name, i,
				}
				switch {
				case e.Ready:
					mine = append(mine, one)
					if e.Workload != nil {
						dual[map[bool]int{true: 1}[e.Addr.Is6()]] = true
					}
				case !e.Terminating:
					waiting = append(waiting, one)
				}
			}
		}
		union := m.view(ref)
		if unionLocal := union.Composition != nil && union.Composition.Union && union.LocalOnly; unionLocal ||
			t.Filtered && v.LocalOnly {
			elsewhere := func(c claim) bool {
				return c.term == t && (!c.home || c.endpoint.Workload == nil || c.endpoint.Workload.Kind() != Pod ||
					c.endpoint.Node.String() != p.Node)
			}
			mine, waiting = slices.DeleteFunc(mine, elsewhere), slices.DeleteFunc(waiting, elsewhere)
		} else if t.Filtered {
			hinted[t] = !slices.ContainsFunc(mine, func(c claim) bool { return len(c.endpoint.Hints()) == 0 })
		}
		all = append(all, mine...)
	}
	if q.Hostname == "" {
		all = m.given(ref, all, waiting, dual[0] && dual[1], p)
	}
	for t := range hinted {
		here := func(c claim) bool { return c.term == t && slices.Contains(c.endpoint.Hints(), p.Zone) }
		if hinted[t] && slices.ContainsFunc(all, here) {
			all = slices.DeleteFunc(all, func(c claim) bool { return c.term == t && !here(c) })
		}
	}
	best := bestClaims(slices.DeleteFunc(slices.Clone(all), func(c claim) bool { return c.overIPv6(all) }))
	out := map[netip.AddrPort]string{}
	for a, c := range best {
		out[a] = c.String() + usage(c.endpoint.Zone.String(), p.Zone, q.ZoneWeights)
	}
	return out
}

// transport returns the protocol of the port that clients mean by a number.
func (m *model) transport(ref Ref, number uint16) Transport {
	var of []Transport
	add := func(ref Ref) {
		if v := m.view(ref); v != nil {
			for _, p := range v.Ports {
				if p.Number == number {
					of = append(of, p.Protocol)
				}
			}
		}
	}
	if add(ref); len(of) == 0 {
		for _, t := range m.terms(ref) {
			add(t.Ref)
		}
	}
	if len(of) == 0 {
		return TCP
	}
	return slices.Min(of)
}

// overIPv6 reports whether the workload of an IPv4 address is also reached over IPv6.
func (c claim) overIPv6(all []claim) bool {
	return c.endpoint.Workload != nil && c.addr.Addr().Is4() && slices.ContainsFunc(all, func(o claim) bool {
		return o.endpoint.Workload != nil && o.addr.Addr().Is6() && o.workload() == c.workload()
	})
}

// workload names what runs at a claim.
func (c claim) workload() string {
	w := c.endpoint.Workload
	return fmt.Sprint(c.term.Cluster, w.Kind(), w.Namespace(), "/", w.Name)
}

// bestClaims has two rounds: the claims of a cluster, by their conditions, and then what is left of all.
func bestClaims(all []claim) map[netip.AddrPort]claim {
	type owner struct {
		netip.AddrPort
		Cluster
	}
	leastWorn := map[owner]int{}
	condition := func(c claim) int {
		return map[bool]int{true: 0, false: 1}[c.endpoint.Serving] + map[bool]int{true: 2}[c.endpoint.Terminating]
	}
	for _, c := range all {
		of := owner{c.addr, c.term.Cluster}
		if before, seen := leastWorn[of]; !seen || condition(c) < before {
			leastWorn[of] = condition(c)
		}
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c claim) bool {
		return condition(c) > leastWorn[owner{c.addr, c.term.Cluster}]
	})
	best := map[netip.AddrPort]claim{}
	for _, c := range all {
		if o, taken := best[c.addr]; !taken || better(c, o) {
			best[c.addr] = c
		}
	}
	return best
}

// given returns what clients at a place are given by the shares of clusters.
func (m *model) given(ref Ref, all, waiting []claim, dual bool, p Place) (given []claim) {
	v := m.view(ref)
	if v == nil || v.Composition == nil || !v.Composition.Union {
		return all
	}
	var members []policy.Member
	claims, seen := map[Cluster][]claim{}, map[string]bool{}
	for _, c := range bestClaims(all) {
		if c.overIPv6(all) {
			continue
		}
		claims[c.term.Cluster] = append(claims[c.term.Cluster], c)
		if c.endpoint.Workload != nil {
			seen[c.workload()] = true
		}
	}
	more := map[Cluster]int{}
	for _, c := range waiting {
		if dual && c.endpoint.Workload != nil {
			if seen[c.workload()] {
				continue
			}
			seen[c.workload()] = true
		}
		more[c.term.Cluster]++
	}
	for _, t := range v.Composition.Members {
		if slices.ContainsFunc(members, func(o policy.Member) bool { return o.Cluster == string(t.Cluster) }) {
			continue
		}
		ready := len(claims[t.Cluster])
		member := policy.Member{
			Cluster: string(t.Cluster), Home: t.Cluster == ref.Cluster, Ready: ready, All: ready + more[t.Cluster],
		}
		if c, home := m.clusters[t.Cluster], m.clusters[ref.Cluster]; c != nil {
			member.Stale, member.Policy = c.state == Stale, c.policy
			member.Near = home != nil && c.policy.Region != "" && home.policy.Region == c.policy.Region
		}
		members = append(members, member)
	}
	whole := true
	for i, share := range policy.Shares(v.Policy, members) {
		of := claims[Cluster(members[i].Cluster)]
		whole = whole && share.Given(0) == len(of)
		slices.SortFunc(of, func(a, b claim) int {
			return cmp.Or(cmp.Compare(policy.Score(b.addr.Addr(), p.Bucket), policy.Score(a.addr.Addr(), p.Bucket)),
				a.addr.Compare(b.addr))
		})
		given = append(given, of[:share.Given(p.Sixteenth)]...)
	}
	if whole {
		return all
	}
	return given
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

func proves(e Endpoint, q Query, domain string) bool {
	if e.Workload == nil {
		return e.Mirror() != nil && e.Mirror().Identity != ""
	}
	return e.Workload.Kind() == Pod && q.ControlPlane != "" &&
		e.Workload.Template().ControlPlane == q.ControlPlane && domain != ""
}

func better(a, b claim) bool {
	rank := func(c claim) string {
		workload := "1"
		if w := c.endpoint.Workload; w != nil {
			workload = fmt.Sprint("0", w.Kind(), w.Name)
		}
		home := c.home && !c.endpoint.Copied
		return fmt.Sprintf(
			"%v %v %v %v %v %v %s|%s|%s|%s|%s|%03d",
			!home,
			!c.proven,
			c.endpoint.Copied,
			c.stale,
			!c.term.Filtered,
			!c.home, // of equal claims the Service's own cluster's comes first, be it a copy
			c.term.Cluster,
			c.term.Namespace,
			c.term.Name,
			workload,
			c.slice,
			c.index,
		)
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

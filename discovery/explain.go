package discovery

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/federation"
)

// A Place is what an answer may depend on of a client, and who it is.
type Place struct {
	Namespace string `json:"ns,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Node      string `json:"node,omitempty"`
	Zone      string `json:"zone,omitempty"`
}

// An Explanation says what Get answers to a client about an authority, and why.
type Explanation struct {
	Authority string `json:"authority"`
	Client    Place  `json:"client"`
	Version   uint64 `json:"version"`           // of what is known of the Service
	Refused   string `json:"refused,omitempty"` // why a stream that opens now would end at once
	Waits     string `json:"waits,omitempty"`   // what a first answer would wait for

	Claims  []Claim        `json:"claims"`  // all that the clusters say that bears on the authority
	Streams []StreamStatus `json:"streams"` // of the client, for the authority, with what it was sent
}

// A Claim is an address that a cluster claims, or all that it could claim if the Service were another, and what becomes of it.
type Claim struct {
	Addr     string   `json:"addr,omitempty"` // with the port; empty if it is about more than one
	Kept     bool     `json:"kept"`
	Why      string   `json:"why"`
	Weight   uint32   `json:"weight,omitempty"` // if it is kept
	Cluster  string   `json:"cluster,omitempty"`
	Standing string   `json:"standing,omitempty"` // of the cluster
	Service  string   `json:"service,omitempty"`  // namespace/name in that cluster
	Slice    string   `json:"slice,omitempty"`    // empty if it is about all of them
	Pod      string   `json:"pod,omitempty"`      // namespace/name; empty for a bare address
	Node     string   `json:"node,omitempty"`
	Zone     string   `json:"zone,omitempty"`
	Hints    []string `json:"hints,omitempty"`
	HeldBy   []uint64 `json:"heldBy,omitempty"` // ids of the client's streams that were sent the address
}

// Explain says what Get answers to a client about an authority, and why. The client's node, if it is not given, is the one that its
// streams tell, and its zone that of the node. An authority that Get refuses is refused.
func (s *Server) Explain(authority string, client Place) (*Explanation, error) {
	asked, err := parseAuthority(authority, s.config.ClusterDomain)
	if err != nil {
		return nil, err
	}
	x := &Explanation{Authority: authority, Client: client, Claims: []Claim{}, Streams: []StreamStatus{}}
	holds := map[netip.AddrPort][]uint64{}
	for _, st := range s.streams.all() {
		if client.Pod == "" || st.who.Pod != client.Pod || st.who.Namespace != client.Namespace {
			continue
		}
		x.Client.Node = cmp.Or(x.Client.Node, st.who.Node)
		if st.asked == nil || *st.asked != asked {
			continue
		}
		shown := s.status(st)
		for e := range st.holds.Load().All() {
			shown.Holds = append(shown.Holds, e.At(asked.port))
			holds[e.At(asked.port)] = append(holds[e.At(asked.port)], st.id)
		}
		x.Streams = append(x.Streams, shown)
	}
	slices.SortFunc(x.Streams, func(a, b StreamStatus) int { return cmp.Compare(a.ID, b.ID) })
	x.Client.Zone, _ = s.store.Nodes().Get(x.Client.Node)

	watch := s.store.Watch(federation.Ref{Cluster: s.config.Cluster, Service: asked.service})
	defer watch.Close()
	snapshot, _ := watch.Load()
	x.Version = snapshot.Version
	if err := refusal(snapshot, true); err != nil {
		x.Refused = fmt.Sprintf("%s: %s", status.Code(err), status.Convert(err).Message())
	} else if wait := s.early(snapshot); wait > 0 {
		x.Waits = fmt.Sprintf("a first answer waits %s more for %s, which was not heard yet", wait.Round(1e8), snapshot.Unknown()[0].Origin.Cluster)
	}
	query := federation.Query{Port: asked.port, Hostname: asked.hostname, IPv6: s.config.IPv6, ControlPlane: s.config.ControllerNamespace}
	place := federation.Locality{Node: x.Client.Node, Zone: x.Client.Zone}
	encoder := encoder{config: &s.config, port: asked.port, zone: place.Zone}
	claimed := map[string]bool{}
	for _, v := range federation.Explain(snapshot, query, place) {
		claim := claimOf(v, s.store.Standing(v.Member.Origin.Cluster), asked, place)
		if v.Reason != federation.Duplicate { // it was sent, if at all, for the claim that counts
			claim.HeldBy = holds[v.Addr]
		}
		if claim.Kept {
			claim.Weight, _ = encoder.weigh(v.Endpoint)
			if claim.Weight != weight {
				claim.Why += ", in the client's zone"
			}
		}
		x.Claims = append(x.Claims, claim)
		claimed[claim.Addr] = true
	}
	for _, st := range x.Streams { // what is on its way out, or is kept because the Service is half-made
		for _, addr := range st.Holds {
			if !claimed[addr.String()] {
				x.Claims = append(x.Claims, Claim{Addr: addr.String(), Why: "nobody claims it at this port any more", HeldBy: holds[addr]})
				claimed[addr.String()] = true
			}
		}
	}
	return x, nil
}

// claimOf puts a Verdict into words.
func claimOf(v federation.Verdict, standing federation.Standing, asked authority, client federation.Locality) Claim {
	m := v.Member
	c := Claim{
		Kept: v.Reason == federation.Kept, Why: v.Reason.String(),
		Cluster: string(m.Origin.Cluster), Standing: standing.String(), Service: m.Origin.Namespace + "/" + m.Origin.Name,
	}
	if v.Slice != nil {
		c.Slice = v.Slice.Name
	}
	if e := v.Endpoint; e != nil {
		c.Addr, c.Node, c.Zone, c.Hints = v.Addr.String(), e.Node, e.Zone, e.Hints
		if e.Workload != nil {
			c.Pod = e.Workload.Namespace + "/" + e.Workload.Name
		}
	}
	switch v.Reason {
	case federation.Kept:
		if note := hints(v, client.Zone); note != "" {
			c.Why += ", " + note
		}
		if standing != federation.Live {
			c.Why += ", its cluster is " + standing.String()
		}
	case federation.Duplicate:
		o := v.Winner.Origin()
		c.Why = fmt.Sprintf("duplicate: %s/%s/%s counts, %s", o.Cluster, o.Namespace, o.Name, v.For)
	case federation.Unheard:
		if !m.Linked {
			c.Why = "clusters not listed yet"
		}
	case federation.Undeclared:
		c.Why = fmt.Sprintf("port %d not declared", asked.port)
	case federation.NoTarget:
		if declares, declared := m.View.Port(asked.port); declared {
			c.Why = fmt.Sprintf("slice has no port %q", declares.Name)
		} else {
			c.Why = "slice has no ports"
		}
	case federation.OtherHostname:
		c.Why = fmt.Sprintf("hostname is %q", v.Endpoint.Hostname)
	case federation.OtherNode:
		if client.Node == "" {
			c.Why += ", the client's is not known"
		}
	default:
	}
	return c
}

// hints returns why the zone hints of an address that is kept do not count.
func hints(v federation.Verdict, zone string) string {
	switch e := v.Endpoint; {
	case len(e.Hints) == 0 || slices.Contains(e.Hints, zone):
		return ""
	case !v.Member.Origin.Filtered:
		return "hints do not count between clusters"
	case v.Member.View.LocalOnly:
		return "hints do not count, Service is Local"
	case zone == "":
		return "hints do not count, the client's zone is not known"
	default:
		return "hints do not count, as not all have some or none is for zone " + zone
	}
}

package discovery

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// An Asker is who a client is, and where, as far as an answer depends on it.
type Asker struct {
	serving.Client
	Zone string `json:"zone,omitempty"`
}

// An Explanation is what a client gets for a Query, and why.
type Explanation struct {
	Authority string `json:"authority"`
	Service   string `json:"service"` // namespace/name
	Client    Asker  `json:"client"`
	Version   uint64 `json:"version"`           // of what is known of the Service
	Refused   string `json:"refused,omitempty"` // why a stream that opens now would end at once
	Waits     string `json:"waits,omitempty"`   // what a first answer would wait for

	Notes []string `json:"notes,omitempty"` // what else bears on it, such as a cluster that is over its budget

	Changes []string `json:"changes,omitempty"` // what has changed about it of late, the newest first, with the time

	Policy  bool           `json:"policy"`  // whether a policy divides the traffic between clusters
	Traffic []ClusterShare `json:"traffic"` // one a cluster, in the order of tiers
	Claims  []Claim        `json:"claims"`  // all that the clusters publish that bears on the authority
	Streams []StreamStatus `json:"streams"` // of the client, for the authority, with what it was sent
}

// A ClusterShare is the part of the traffic that a cluster gets, and why.
type ClusterShare struct {
	Cluster string  `json:"cluster"`
	Tier    int     `json:"tier"` // from 1 on
	Ready   int     `json:"ready"`
	All     int     `json:"all"`    // those, and the ones that may be ready soon
	Weight  *uint32 `json:"weight"` // nil: none is given
	Drain   uint8   `json:"drain"`  // percent that are taken away
	Share   float64 `json:"share"`  // percent
	Gets    float64 `json:"gets"`   // percent, as near to Share as whole endpoints allow, of all clients together
	Given   int     `json:"given"`  // addresses that the client gets
	Why     string  `json:"why"`
}

// A Claim is an address that a cluster publishes, or all that it could publish if the Service were
// another, and what becomes of it.
type Claim struct {
	Addr    string   `json:"addr,omitempty"` // with the port; empty if it is about more than one
	Kept    bool     `json:"kept"`
	Why     string   `json:"why"`
	Weight  uint32   `json:"weight,omitempty"` // if it is kept
	Cluster string   `json:"cluster,omitempty"`
	State   string   `json:"state,omitempty"`   // of the cluster
	Service string   `json:"service,omitempty"` // namespace/name in that cluster
	Slice   string   `json:"slice,omitempty"`   // empty if it is about all of them
	Pod     string   `json:"pod,omitempty"`     // namespace/name; empty for a bare address
	Node    string   `json:"node,omitempty"`
	Zone    string   `json:"zone,omitempty"`
	Hints   []string `json:"hints,omitempty"`
	HeldBy  []uint64 `json:"heldBy,omitempty"`  // ids of the client's streams that were sent the address
	Guarded bool     `json:"guarded,omitempty"` // its cluster has withdrawn the address, and the guard holds it
}

// Explain returns what a client gets for a Query, and why. The client's node, if it is not given, is
// the one of its streams, and its zone that of the node. reject returns why a stream that opens now
// would end at once with an Answer; empty if it would not.
func (e *Engine) Explain(query Query, client serving.Client, reject func(*federation.Answer) string) *Explanation {
	explanation := &Explanation{Client: Asker{Client: client}, Claims: []Claim{}, Streams: []StreamStatus{}}
	holders := e.addStreams(explanation, query)
	node, known := e.nodes.Get(explanation.Client.Node)
	place := placeOf(explanation.Client.Client, node, known)
	explanation.Client.Zone = place.Zone
	snapshot := e.snapshotOf(query.Service)
	explanation.Service = query.Namespace + "/" + query.Name
	explanation.Version = snapshot.Version
	selection := federation.Select(snapshot, e.config.selected(query), nil)
	answer := selection.Answer(place, nil)
	explanation.Policy, explanation.Traffic = selection.Divided(), trafficOf(answer, selection.Divided())

	if wait := time.Until(e.waitUntil(snapshot.Members...)); wait <= 0 {
		explanation.Refused = reject(answer)
	} else {
		slowest := slices.MaxFunc(snapshot.Unknown(), func(a, b *federation.Member) int {
			return e.waitUntil(a).Compare(e.waitUntil(b))
		})
		explanation.Waits = fmt.Sprintf("a first answer waits %s more for %s, which is not synced yet",
			wait.Round(100*time.Millisecond), slowest.Origin.Cluster)
	}

	e.addClaims(explanation, query, place, answer, holders)
	explanation.addGone(holders)
	return explanation
}

// waitUntil returns until when a first answer waits for clusters among the members that were never synced.
func (e *Engine) waitUntil(members ...*federation.Member) time.Time {
	s := federation.Snapshot{Members: members}
	return s.WaitUntil(e.config.FirstSyncGrace, e.started)
}

// snapshotOf returns the newest Snapshot of a Service, whether streams are open for it or not.
func (e *Engine) snapshotOf(svc federation.Service) *federation.Snapshot {
	watch := e.store.Watch(federation.Ref{Cluster: e.config.Cluster, Service: svc})
	defer watch.Close()
	snapshot, _ := watch.Load()
	return snapshot
}

// addStreams adds the client's streams for a Query, and its node if that is not given. It returns which of the
// streams were sent an address, by their ids.
func (e *Engine) addStreams(explanation *Explanation, query Query) (holders map[netip.AddrPort][]uint64) {
	holders = map[netip.AddrPort][]uint64{}
	if explanation.Client.Pod == "" {
		return holders
	}

	all := e.feeds.byStream()
	for _, stream := range e.server.Streams() {
		client := stream.About().Client
		if client.Pod != explanation.Client.Pod || client.Namespace != explanation.Client.Namespace {
			continue
		}
		explanation.Client.Node = cmp.Or(explanation.Client.Node, client.Node)

		of := slices.DeleteFunc(all[stream], func(f *Feed) bool { return f.query != query })
		if len(of) == 0 {
			continue
		}
		status := statusWithHolds(stream, of)
		for _, addr := range status.Holds {
			holders[addr] = append(holders[addr], status.ID)
		}
		explanation.Streams = append(explanation.Streams, status)
	}

	return holders
}

// addClaims adds what becomes of all that the clusters publish.
func (e *Engine) addClaims(
	explanation *Explanation, query Query, place federation.Place, answer *federation.Answer,
	holders map[netip.AddrPort][]uint64,
) {
	weights := map[netip.AddrPort]uint32{}
	for c := range answer.Set.All() {
		weights[c.Addr] = c.Weight
	}

	held := map[string]int{}
	asked := federation.ServicePort{Number: query.Port, Protocol: answer.Snapshot.Transport(query.Port)}

	for _, v := range federation.Explain(answer.Snapshot, e.config.selected(query), place) {
		claim := claimOf(v, e.store.State(v.Member.Origin.Cluster), asked, place)
		if v.Reason != federation.Duplicate { // it was sent, if at all, for the claim that counts
			claim.HeldBy = holders[v.Addr]
		}

		if claim.Kept {
			if claim.Guarded {
				held[claim.Cluster]++
			}
			if claim.Weight = weights[v.Addr]; claim.Weight != federation.Weight {
				claim.Why += ", in the client's zone"
			}
		}
		explanation.Claims = append(explanation.Claims, claim)
	}

	for i := range explanation.Traffic {
		if row := &explanation.Traffic[i]; held[row.Cluster] > 0 {
			row.Why += fmt.Sprintf(", %d %s", held[row.Cluster], HeldByGuard)
		}
	}
}

// addGone adds what the client's streams were sent and no cluster publishes: it is on its way out, or is kept because
// the Service is malformed.
func (x *Explanation) addGone(holders map[netip.AddrPort][]uint64) {
	seen := map[string]bool{}
	for _, c := range x.Claims {
		seen[c.Addr] = true
	}

	for _, st := range x.Streams {
		for _, addr := range st.Holds {
			if seen[addr.String()] {
				continue
			}
			why := "no cluster publishes it at this port any more"
			x.Claims = append(x.Claims, Claim{Addr: addr.String(), Why: why, HeldBy: holders[addr]})
			seen[addr.String()] = true
		}
	}
}

// HeldByGuard is why an address is given that its cluster has withdrawn.
const HeldByGuard = "held by the guard"

// claimOf puts a Verdict into words.
func claimOf(
	verdict federation.Verdict, state federation.ClusterState, asked federation.ServicePort, client federation.Place,
) Claim {
	member := verdict.Member
	claim := Claim{
		Kept: verdict.Reason == federation.Kept, Why: verdict.Reason.String(), Guarded: verdict.Held,
		Cluster: string(member.Origin.Cluster), State: string(state),
		Service: member.Origin.Namespace + "/" + member.Origin.Name,
	}
	if verdict.Slice != nil {
		claim.Slice = verdict.Slice.Name
	}

	if e := verdict.Endpoint; e != nil {
		claim.Addr = verdict.Addr.String()
		claim.Node = e.Node.String()
		claim.Zone = e.Zone.String()
		claim.Hints = e.Hints()
		if e.Workload != nil {
			claim.Pod = e.Workload.Namespace() + "/" + e.Workload.Name
		}
	}

	switch verdict.Reason {
	case federation.Kept:
		if verdict.Held {
			claim.Why += ", " + HeldByGuard
		}
		if note := hints(verdict, client.Zone); note != "" {
			claim.Why += ", " + note
		}
		if state != federation.Live {
			claim.Why += ", its cluster is " + string(state)
		}
	case federation.Duplicate:
		o := verdict.Winner.Origin()
		claim.Why = fmt.Sprintf("duplicate: %s/%s/%s counts, %s", o.Cluster, o.Namespace, o.Name, verdict.For)
	case federation.NeverSynced:
		if !member.Linked {
			claim.Why = "clusters not listed yet"
		}
	case federation.Undeclared:
		claim.Why = fmt.Sprintf("port %d not declared", asked.Number)
		if other, declared := member.View.Port(asked.Number); declared {
			claim.Why = fmt.Sprintf("port %d is %s there, not %s", asked.Number, other.Protocol, asked.Protocol)
		}
	case federation.NoEndpoints:
		claim.Why = "no Pods or other endpoints"
	case federation.NoTarget:
		if declares, declared := member.View.PortOf(asked.Number, asked.Protocol); declared {
			claim.Why = fmt.Sprintf("slice has no port %q", declares.Name)
		} else {
			claim.Why = "slice has no ports"
		}
	case federation.OtherHostname:
		claim.Why = fmt.Sprintf("hostname is %q", verdict.Endpoint.Hostname())
	case federation.OtherNode:
		if client.Node == "" {
			claim.Why += ", the client's is not known"
		}
	default:
	}
	return claim
}

// hints returns why the zone hints of an address that is kept do not count.
func hints(v federation.Verdict, zone string) string {
	switch e := v.Endpoint; {
	case len(e.Hints()) == 0 || slices.Contains(e.Hints(), zone):
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

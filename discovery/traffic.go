package discovery

import (
	"cmp"
	"slices"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// trafficOf returns what clients who get an Answer have of each cluster, and why, the best tier first; divided is
// whether a policy is in force for it.
func trafficOf(answer *federation.Answer, divided bool) []ClusterShare {
	given := map[string]int{}
	for c := range answer.Set.All() {
		given[string(c.Origin().Cluster)]++
	}

	all := []ClusterShare{}
	for _, s := range answer.Division().Shares() {
		row := ClusterShare{
			Cluster: s.Cluster, Tier: s.Tier, Ready: s.Ready, All: s.All, Drain: s.Drain,
			Share: percent(s.Share.Share), Gets: percent(s.Gets), Given: given[s.Cluster],
			Why: whyShare(s, divided),
		}
		if s.Weighted {
			row.Weight = &s.Weight
		}
		all = append(all, row)
	}

	slices.SortFunc(all, func(a, b ClusterShare) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Cluster, b.Cluster))
	})
	return all
}

// Shares returns what each cluster gets of the traffic for a Query, the best tier first, of a client whose place is not
// known; nil if no policy divides it. It costs as much as an answer that is computed anew.
func (e *Engine) Shares(q Query) []ClusterShare {
	snapshot := e.snapshotOf(q.Service)
	if !snapshot.Divided() {
		return nil
	}
	x := federation.Select(snapshot, e.config.selected(q), nil)
	return trafficOf(x.Answer(federation.Place{}, nil), x.Divided())
}

// percent returns a part of all traffic with two decimals.
func percent(part uint32) float64 {
	return float64((uint64(part)*10_000+policy.One/2)/policy.One) / 100
}

// whyShare explains a share in a few words.
func whyShare(share federation.ClusterShare, divided bool) string {
	switch {
	case share.Ready == 0:
		return "nothing ready"
	case !divided:
		return "no policy"
	case share.Serves():
		return whyServes(share)
	case share.Reason() == federation.OverShare:
		return "weight 0"
	default:
		return share.Reason().String()
	}
}

func whyServes(share federation.ClusterShare) string {
	switch {
	case share.LeftOut:
		return "not preferred, nothing else is ready"
	case share.Class == policy.DrainedOut:
		return "drained, nothing before it is ready"
	case share.Class == policy.StaleLast:
		return "stale, takes what is left over"
	case share.Class == policy.StaleOut:
		return "stale, nothing before it is ready"
	case share.Drain > 0:
		return "draining"
	case share.Tier > 1:
		return "tiers before it cannot carry all"
	default:
		return "preferred"
	}
}

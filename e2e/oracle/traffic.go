package oracle

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/federation/policy/policytest"
)

// divide returns the candidates that a client is given of a union by the policy of the Service; false if that is all of
// them, so that nothing is as without a policy.
func (w *World) divide(svc *corev1.Service, members []member, q Question) ([]candidate, bool) {
	if q.Hostname != "" || !isUnion(svc) {
		return nil, false
	}
	home := func(c candidate) bool {
		if isLocal(svc) {
			return w.runsOn(c, q.Node)
		}
		return !c.filtered || !isLocal(c.service) || c.pod != nil && c.pod.Spec.NodeName == q.Node
	}
	var ready, waiting []candidate
	v4, v6 := false, false
	hinted := map[string][]candidate{} // by cluster, all that must have hints
	for _, m := range members {
		own := w.candidates(m, q)
		for _, c := range own {
			v4, v6 = v4 || c.workload() != "" && c.addr.Addr().Is4(), v6 || c.workload() != "" && c.addr.Addr().Is6()
		}
		if m.filtered && !isLocal(svc) {
			hinted[m.cluster.Name] = own
		}
		ready = append(ready, only(own, home)...)
		waiting = append(waiting, only(w.candidatesThat(m, q, func(c discoveryv1.EndpointConditions) bool {
			return c.Ready != nil && !*c.Ready && (c.Terminating == nil || !*c.Terminating)
		}), home)...)
	}
	// What counts is the best claim to each address, and one address of each workload.
	over := oneFamily(ready)
	ready = w.counting(q, ready)
	ready = only(ready, func(c candidate) bool {
		return slices.ContainsFunc(over,
			func(o candidate) bool { return o.addr == c.addr && o.workload() == c.workload() })
	})
	claims, seen := map[string][]candidate{}, map[string]bool{}
	for _, c := range ready {
		claims[c.cluster.Name] = append(claims[c.cluster.Name], c)
		seen[c.workload()] = true
	}
	all := map[string]int{}
	for _, c := range waiting {
		if v4 && v6 && c.workload() != "" {
			if seen[c.workload()] {
				continue
			}
			seen[c.workload()] = true
		}
		all[c.cluster.Name]++
	}
	var parts []policytest.Part
	for _, m := range members {
		name := m.cluster.Name
		if !slices.ContainsFunc(parts, func(p policytest.Part) bool { return p.Cluster == name }) {
			n := len(claims[name])
			parts = append(parts, policytest.Part{Cluster: name, Ready: n, All: n + all[name], Drain: 100})
		}
	}
	shares := policytest.ParsePolicy(svc.Annotations).Shares(w.Local.Name, "", parts)
	bucket, sixteenths := policytest.BucketOf(q.Node), policytest.Given(shares, parts)
	var given []candidate
	whole := true
	for i, n := range sixteenths[policytest.SixteenthOf(q.Node, slices.Collect(maps.Keys(w.Local.Nodes)))] {
		whole = whole && sixteenths[0][i] == parts[i].Ready
		of := claims[parts[i].Cluster]
		slices.SortStableFunc(of, func(a, b candidate) int { // the highest first
			return cmp.Compare(policytest.Score(b.addr.Addr(), bucket), policytest.Score(a.addr.Addr(), bucket))
		})
		of = of[:n]
		if all := hinted[parts[i].Cluster]; len(all) > 0 {
			own := only(of, func(c candidate) bool { return c.filtered })
			of = only(of, func(c candidate) bool { return !c.filtered })
			of = append(of, w.near(own, all, all[0].service, q.Node)...)
		}
		given = append(given, of...)
	}
	return given, !whole
}

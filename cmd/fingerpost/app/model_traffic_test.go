package app_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/federation/policy/policytest"
	"github.com/fingerpost/fingerpost/serving"
)

// What the model knows of traffic between clusters: which endpoints clients are given by the annotations that there
// are now. Values that cannot be read count as none, as histories have no others where there was something in force.

// localRegion is that of the local cluster: most of its Nodes have it.
const localRegion = "eu"

// asks returns an annotation of the Link of a cluster; empty for none.
func (m *model) asks(cluster, key string) string { return m.links[cluster][annotationPrefix+key] }

// ownPace is how late a step of a drain may count that a cluster asks for itself: such changes count each 5 s. Steps
// that a Link asks for may be stepPace late.
const ownPace, stepPace = 6 * time.Second, time.Second

// drained returns how many percent of a cluster's traffic are taken away at a time.
func (m *model) drained(cluster string, now time.Time) int { return m.drainedSince(cluster, now, now) }

// drainedSince is drained if the cluster's own drain has counted last at another time.
func (m *model) drainedSince(cluster string, now, ownCounted time.Time) int {
	if m.clusters[cluster] == nil || cluster == home {
		return 0
	}
	return max(drainedBy(m.asks(cluster, "drain"), now), drainedBy(m.clusters[cluster].drain, ownCounted))
}

// mayBeDrained reports whether a replica may take away so many percent of a cluster's traffic at a time.
func (m *model) mayBeDrained(cluster string, percent int, now time.Time) bool {
	newest, oldest := m.drained(cluster, now), m.drainedSince(cluster, now, now.Add(-ownPace))
	return min(newest, oldest) <= percent && percent <= max(newest, oldest)
}

// drainedBy is that by one annotation.
func drainedBy(value string, now time.Time) int {
	if value == "true" {
		return 100
	}
	parts := strings.Split(value, "/")
	if len(parts) < 2 {
		return 0
	}
	from, err := time.Parse(time.RFC3339, parts[0])
	over, overErr := time.ParseDuration(parts[1])
	if err != nil || overErr != nil {
		return 0
	}
	percent := 0
	switch elapsed := now.Sub(from); {
	case elapsed >= over:
		percent = 100
	case elapsed > 0:
		percent = int(20*elapsed/over) * 5
	}
	if len(parts) == 3 {
		percent = 100 - percent
	}
	if len(parts) == 3 && now.Before(from) {
		percent = 100
	}
	return percent
}

// whenStale returns what a cluster is worth to a Service while it is Stale.
func (m *model) whenStale(service, cluster string) string {
	for _, value := range []string{
		m.clusters[home].notes[service][annotationPrefix+"when-stale"], m.asks(cluster, "when-stale"),
	} {
		if slices.Contains([]string{"keep", "last", "drop"}, value) {
			return value
		}
	}
	return "keep"
}

// guard returns how many percent a cluster must withdraw to be held, and for how long; 0 for not.
func (m *model) guard(cluster string) (percent int, hold time.Duration) {
	p, h, _ := strings.Cut(m.asks(cluster, "withdrawal-guard"), "%/")
	percent, err := strconv.Atoi(p)
	hold, holdErr := time.ParseDuration(h)
	if err != nil || holdErr != nil || percent == 0 {
		return 0, 0
	}
	return percent, hold
}

// maxEndpoints returns how many endpoints of a cluster are taken, and held of what it has withdrawn, together; 0 for as
// many as there are.
func (m *model) maxEndpoints(cluster string) int {
	n, err := strconv.Atoi(m.asks(cluster, "max-endpoints"))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// limited reports whether so little of a cluster may be taken that some of it may be left out.
func (m *model) limited(cluster string) bool {
	n := m.maxEndpoints(cluster)
	return 0 < n && n < 200
}

// isUnion reports whether the traffic of a Service is divided between clusters.
func (m *model) isUnion(service string) bool {
	return strings.HasSuffix(service, "-federated") || m.clusters[home].notes[service][membersOf] != ""
}

// policies returns what is in force for the traffic of a Service, as text; empty for nothing.
func (m *model) policies(service string) (text string) {
	if !m.isUnion(service) {
		return ""
	}
	note := func(part string) { text += part + "\n" }
	notes := m.clusters[home].notes[service]
	if p := policytest.ParsePolicy(notes); p.Prefer != nil || p.Capacity > 0 || p.Weights != nil {
		for _, key := range []string{"prefer", "capacity", "weights"} {
			note(key + "=" + notes[annotationPrefix+key])
		}
	}
	for _, name := range sortedKeys(m.clusters) {
		if when := m.whenStale(service, name); when != "keep" {
			note(name + " when-stale=" + when)
		}
		link, itself := m.asks(name, "drain"), m.clusters[name].drain
		if link == "true" || itself == "true" || strings.Contains(link+itself, "/") {
			note(name + " drain=" + link + "," + itself)
		}
	}
	return text
}

// split returns the parts of a union's clusters at a time, the addresses that are ready of each, the highest score of
// a bucket first, and the share of each. All are known, and none is Stale.
func (m *model) split(service string, bucket int, now time.Time) (
	parts []policytest.Part, ready [][]netip.AddrPort, shares []*big.Rat,
) {
	members := m.members(service)
	for _, cluster := range sortedKeys(members) {
		var of []netip.AddrPort
		all := m.clusters[cluster].endpoints[members[cluster]]
		for addr, isReady := range all {
			if isReady {
				of = append(of, addr)
			}
		}
		slices.SortFunc(of, func(a, b netip.AddrPort) int {
			return cmp.Compare(policytest.Score(b.Addr(), bucket), policytest.Score(a.Addr(), bucket))
		})
		ready = append(ready, of)
		parts = append(parts, m.part(service, cluster, len(of), len(all), now))
	}
	p := policytest.ParsePolicy(m.clusters[home].notes[service])
	return parts, ready, p.Shares(home, localRegion, parts)
}

// part is what a cluster has for a Service: so many endpoints that are ready, and all.
func (m *model) part(service, cluster string, ready, all int, now time.Time) policytest.Part {
	return policytest.Part{
		Cluster: cluster, Region: m.asks(cluster, "region"), Ready: ready, All: all,
		Drain: 100 - m.drained(cluster, now), WhenStale: m.whenStale(service, cluster),
	}
}

// given returns the addresses that a client on a node is given; nil if the Service should not exist.
func (m *model) given(service, node string, now time.Time) map[netip.AddrPort]bool {
	members := m.members(service)
	if members == nil || !m.isUnion(service) {
		return m.ready(members)
	}
	parts, ready, shares := m.split(service, policytest.BucketOf(node), now)
	all := map[netip.AddrPort]bool{}
	for i, n := range policytest.Given(shares, parts)[policytest.SixteenthOf(node, m.nodes)] {
		for _, addr := range ready[i][:n] {
			all[addr] = true
		}
	}
	return all
}

// sliced returns the addresses that slices of a federated Service have, and whether they are ready.
func (m *model) sliced(service string, now time.Time) map[string]addresses {
	parts, ready, shares := m.split(service, 0, now)
	rounded, whole := policytest.Rounded(shares, parts), true
	for i, n := range rounded {
		whole = whole && n == len(ready[i])
	}
	all := map[string]addresses{}
	for i, part := range parts {
		all[part.Cluster] = addresses{}
		for _, addr := range ready[i][:rounded[i]] {
			all[part.Cluster][addr] = true
		}
		if !whole && rounded[i] == 0 {
			continue
		}
		for addr, isReady := range m.clusters[part.Cluster].endpoints[m.members(service)[part.Cluster]] {
			if !isReady {
				all[part.Cluster][addr] = false
			}
		}
	}
	return all
}

// nodeNameOf returns the node of a client by its token; empty for none.
func nodeNameOf(token string) string {
	var client struct{ NodeName string }
	if json.Unmarshal([]byte(token), &client) != nil {
		return ""
	}
	return client.NodeName
}

// stepping reports whether a drain has just gone on.
func (m *model) stepping(now time.Time) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(m.clusters)), func(name string) bool {
		return m.drained(name, now) != m.drainedSince(name, now.Add(-stepPace), now.Add(-ownPace))
	})
}

// trafficDifferences returns what replicas have in force that is not asked for, and shares that are not all of it.
func (s *scenario) trafficDifferences(m *model, now time.Time, report func(format string, args ...any)) {
	s.t.Helper()
	for _, r := range s.replicas {
		statuses, _ := r.Registry.Statuses()
		for _, name := range sortedKeys(statuses) {
			traffic := statuses[name].Traffic
			if percent := traffic.Drain.Percent; !m.mayBeDrained(name, percent, now) {
				report("drain of %s: %s is drained by %d %%, want %d", r.name, name, percent, m.drained(name, now))
			}
			if _, hold := m.guard(name); traffic.Withdrawn != nil && hold == 0 {
				report("guard of %s: %d endpoints of %s are held", r.name, traffic.Withdrawn.Endpoints, name)
			}
		}
		for _, service := range []string{"all", "web-federated"} {
			x, err := r.Discovery.Explain(service+"."+shop+".svc."+domain+":80", serving.Client{Node: "node-1"})
			if err != nil || len(x.Traffic) == 0 {
				continue
			}
			ready, sum := 0, 0.0
			for _, c := range x.Traffic {
				ready, sum = ready+c.Ready, sum+c.Share
			}
			if ready > 0 && (sum < 99.9 || sum > 100.1) || ready == 0 && sum != 0 {
				report("shares of %s: %g %% of %s, of which %d endpoints are ready", r.name, sum, service, ready)
			}
		}
	}
}

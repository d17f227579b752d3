package discovery

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// serviceMetrics reports the Services that streams have Queries for, under the names that Linkerd's
// dashboards show. It counts when it is collected, from what streams store anyway, and a series goes
// with its last stream.
//
// What a client asks for becomes a label only where a cluster publishes it, too: a Service that exists,
// a port that it declares, a hostname with an address, a node. Of anything else there is no end.
//
// A Service has one series of each metric for a port, however many clusters it consists of. Only to count
// its ready endpoints takes longer the more there are. With Config.DetailedMetrics it has one for each
// member, hostname and node.
//
// Shares are the exception: a series for each cluster of a Service that has a policy of its own. What is in force for
// a cluster, such as a drain, adds none: it would add one for each Service and cluster, in the middle of an outage.
type serviceMetrics struct {
	engine *Engine

	mu      sync.Mutex        // guards all below, and selection.shown and selection.counted
	updates map[series]uint64 // of the series that were collected last: they are again, even if the Service is gone
}

// series is the labels of a sample, in their order.
type series struct{ cluster, namespace, service, port, hostname, node string }

// sample is what is collected for a series.
type sample struct {
	streams, addresses int
	exists             bool
	updates            uint64
	conflicts          int
}

// shown is which labels of a selection have been collected; they stay when the port or the address goes.
type shown struct {
	port, hostname bool
	sets           uint64
}

// countedShares is the shares of clusters as they were computed last. It takes as long as the Service is large, so they
// are computed at most once a second, and only for another version.
type countedShares struct {
	of  uint64 // version of the Snapshot; 0: none
	at  time.Time
	all []federation.ClusterShare
}

const sharesPeriod = time.Second

// streamGroup is streams of one selection that are counted together.
type streamGroup struct {
	streams int
	holds   *federation.Set // the largest that a client holds
}

// streamGroups are the groups of each selection, by the node of the clients where that is a label, and else by "".
type streamGroups map[*selection]map[string]*streamGroup

var (
	seriesLabels    = []string{"cluster", "namespace", "service", "port", "hostname", "nodename"}
	subscribersDesc = prometheus.NewDesc("endpoints_subscribers",
		"Open Get streams for a Service, or with -detailed-metrics for each member of it.", seriesLabels, nil)
	podsDesc = prometheus.NewDesc("endpoints_pods",
		"Addresses of the Service that a client of these streams holds, at most.", seriesLabels, nil)
	existsDesc = prometheus.NewDesc("endpoints_exists",
		"Whether the Service exists: 1 or 0.", seriesLabels, nil)
	conflictsDesc = prometheus.NewDesc("fingerpost_endpoint_conflicts",
		"Claims of clusters to an address of the Service that do not count, because another cluster "+
			"publishes something else of it. No series where there are none.",
		append([]string{"target_cluster"}, seriesLabels[1:]...), nil)
	readyDesc = prometheus.NewDesc("fingerpost_federated_service_ready_endpoints",
		"Ready endpoints of a federated Service with open Get streams, in all its members together. No series while "+
			"there are none and a member was never synced.",
		[]string{"namespace", "service"}, nil)
	shareDesc = prometheus.NewDesc("fingerpost_member_share",
		"Part of the traffic of a federated Service with a policy of its own that a cluster gets, from 0 to 1, for "+
			"Services with open Get streams. No series while nothing is ready and a member was never synced.",
		[]string{"namespace", "service", "target_cluster"}, nil)
	getsDesc = prometheus.NewDesc(
		"fingerpost_member_share_given",
		"Part of the traffic that clients of such a Service give a cluster, from 0 to 1, if they spread evenly over "+
			"what they are given: as near to fingerpost_member_share as whole endpoints allow.",
		[]string{"namespace", "service", "target_cluster"},
		nil,
	)
	updatesDesc = prometheus.NewDesc("endpoints_updates",
		"Changes of the answers to these streams, counted once for all that share an answer.", seriesLabels, nil)
)

func (c *serviceMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		subscribersDesc, podsDesc, existsDesc, updatesDesc, conflictsDesc, readyDesc, shareDesc, getsDesc,
	} {
		to <- d
	}
}

func (c *serviceMetrics) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	groups := c.groups()
	for service, n := range readyEndpoints(groups) {
		gauge(readyDesc, float64(n), service.Namespace, service.Name)
	}
	for service, shares := range memberShares(groups) {
		for _, s := range shares {
			gauge(shareDesc, float64(s.Share.Share)/policy.One, service.Namespace, service.Name, s.Cluster)
			gauge(getsDesc, float64(s.Gets)/policy.One, service.Namespace, service.Name, s.Cluster)
		}
	}

	samples := c.samples(groups)
	c.updates = make(map[series]uint64, len(samples))

	for s, sample := range samples {
		c.updates[s] = sample.updates
		labels := []string{s.cluster, s.namespace, s.service, s.port, s.hostname, s.node}
		exists := 0.
		if sample.exists {
			exists = 1
		}

		gauge(subscribersDesc, float64(sample.streams), labels...)
		gauge(podsDesc, float64(sample.addresses), labels...)
		gauge(existsDesc, exists, labels...)
		to <- prometheus.MustNewConstMetric(updatesDesc, prometheus.CounterValue, float64(sample.updates), labels...)
		if sample.conflicts > 0 {
			gauge(conflictsDesc, float64(sample.conflicts), labels...)
		}
	}
}

// samples needs c.mu.
func (c *serviceMetrics) samples(groups streamGroups) map[series]*sample {
	samples, detailed := map[series]*sample{}, c.engine.config.DetailedMetrics
	for selection, byNode := range groups {
		snapshot, made := selection.current()
		conflicts, inAll := made.Conflicts(), 0
		for _, n := range conflicts {
			inAll += n
		}

		selection.chooseLabels(snapshot, byNode)
		series := series{}
		if selection.shown.port {
			series.port = strconv.Itoa(int(selection.Port))
		}
		if selection.shown.hostname && detailed {
			series.hostname = selection.Hostname
		}

		sets := selection.sets.Load()
		for node, group := range byNode {
			series.node = node
			more := sample{streams: group.streams, updates: sets - selection.shown.sets}
			if !detailed {
				more.exists, more.addresses, more.conflicts = snapshot.Exists(), group.holds.Len(), inAll
				c.addSample(samples, series.withService(snapshot.Ref), snapshot.View != nil, more)
				continue
			}

			addresses := map[federation.Ref]int{}
			for e := range group.holds.All() {
				addresses[e.Origin().Ref]++
			}
			for _, m := range snapshot.Members {
				ref := m.Origin.Ref
				more.exists, more.addresses, more.conflicts = m.View != nil, addresses[ref], conflicts[ref]
				c.addSample(samples, series.withService(ref), m.View != nil, more)
			}
		}

		selection.shown.sets = sets
	}

	return samples
}

// withService returns the series of a Service, or of a member of one.
func (s series) withService(ref federation.Ref) series {
	s.cluster, s.namespace, s.service = string(ref.Cluster), ref.Namespace, ref.Name
	return s
}

// addSample adds to a series, in which more.updates are those since it was collected last. It needs c.mu.
func (c *serviceMetrics) addSample(samples map[series]*sample, s series, known bool, more sample) {
	sum := samples[s]
	if sum == nil {
		before, collected := c.updates[s]
		if !known && !collected {
			return // clients may ask for any name
		}
		sum = &sample{updates: before}
		samples[s] = sum
	}

	sum.streams += more.streams
	sum.addresses, sum.conflicts = max(sum.addresses, more.addresses), max(sum.conflicts, more.conflicts)
	sum.exists = sum.exists || more.exists
	sum.updates += more.updates
}

// readyEndpoints returns how many ready endpoints each federated Service has that streams are open for.
func readyEndpoints(groups streamGroups) map[federation.Service]int {
	all := map[federation.Service]int{}
	for q := range groups {
		snapshot, _ := q.current()
		if _, counted := all[snapshot.Service]; counted || !snapshot.Federated() {
			continue // counted for another port
		}

		ready := 0
		for _, m := range snapshot.Members {
			if m.View != nil {
				n, _ := m.View.Count()
				ready += n
			}
		}
		if ready > 0 || len(snapshot.Unknown()) == 0 {
			all[snapshot.Service] = ready
		}
	}

	return all
}

// memberShares returns the share of each cluster of the federated Services that have a policy and that streams are open
// for, by the first port, by number, that is asked for. They are those of a client whose place is not known: of a
// member with internalTrafficPolicy: Local such a client gets nothing. It needs serviceMetrics.mu.
func memberShares(groups streamGroups) map[federation.Service][]federation.ClusterShare {
	first := map[federation.Service]*selection{}
	for q := range groups {
		snapshot, made := q.current()
		if snapshot.View == nil || snapshot.View.Policy == nil || !made.Divided() {
			continue
		}
		if other := first[q.Service]; other == nil || q.Port-1 < other.Port-1 { // 0, which is no port, comes last
			first[q.Service] = q
		}
	}

	all := map[federation.Service][]federation.ClusterShare{}
	for service, q := range first {
		snapshot, made := q.current()
		shares := q.counted.update(snapshot, made)
		serves := slices.ContainsFunc(shares, func(s federation.ClusterShare) bool { return s.Serves() })
		if serves || len(snapshot.Unknown()) == 0 {
			all[service] = shares
		}
	}
	return all
}

// update returns the shares, which are computed anew if they are old and the Service has changed.
func (c *countedShares) update(snapshot *federation.Snapshot, made *federation.Selection) []federation.ClusterShare {
	if now := time.Now(); c.of != snapshot.Version && (c.of == 0 || now.Sub(c.at) >= sharesPeriod) {
		*c = countedShares{snapshot.Version, now, made.Division(federation.Place{}).Shares()}
	}
	return c.all
}

// groups returns the Feeds whose selection has been brought to a Snapshot.
func (c *serviceMetrics) groups() streamGroups {
	all := streamGroups{}
	for _, feed := range c.engine.feeds.list() {
		on := feed.selection.Load()
		if on == nil {
			continue
		}

		node := c.nodeLabel(feed)
		byNode := all[on]
		if byNode == nil {
			byNode = map[string]*streamGroup{}
			all[on] = byNode
		}

		in := byNode[node]
		if in == nil {
			in = &streamGroup{}
			byNode[node] = in
		}

		in.streams++
		if held := feed.has(); held.Len() > in.holds.Len() {
			in.holds = held
		}
	}

	maps.DeleteFunc(all, func(on *selection, _ map[string]*streamGroup) bool {
		snapshot, _ := on.current()
		return snapshot == nil
	})
	return all
}

// nodeLabel returns the node of a Feed's client where that is a label, and else "".
func (c *serviceMetrics) nodeLabel(f *Feed) string {
	if !c.engine.config.DetailedMetrics {
		return ""
	}
	if _, known := c.engine.nodes.Get(f.client.Node); !known {
		return ""
	}
	return f.client.Node
}

// chooseLabels decides which labels a selection has. It needs serviceMetrics.mu.
func (q *selection) chooseLabels(snapshot *federation.Snapshot, byNode map[string]*streamGroup) {
	if home := snapshot.View; home != nil {
		_, declared := home.Port(q.Port)
		q.shown.port = q.shown.port || declared
	}
	for _, group := range byNode {
		q.shown.hostname = q.shown.hostname || !group.holds.Empty()
	}
}

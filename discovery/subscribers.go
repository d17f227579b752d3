package discovery

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/federation"
)

// subscribers tells of the Services that Get streams are open for, by the names under which Linkerd's dashboards know it. Everything
// is counted when somebody asks, from what streams note anyway, and a series goes with its last stream.
//
// What a client asks for becomes a label only where a cluster knows it too: a Service that exists, a port that it declares, a
// hostname with an address, a node. Of anything else there is no end.
//
// A Service has one series of each metric for a port, however many clusters it consists of, and counting it takes the same time.
// With Config.DetailedMetrics it has one for each member, hostname and node.
type subscribers struct {
	server *Server

	mu      sync.Mutex        // guards all below, and question.shown
	updates map[series]uint64 // of every series that was told of last: it is again, although its Service may have gone
}

// series is the labels of a sample, in their order.
type series struct{ cluster, namespace, service, port, hostname, node string }

// sample is what is told of a series.
type sample struct {
	streams, addresses int
	exists             bool
	updates            uint64
	conflicts          int
}

// shown is what of a question has been shown, and goes on to be when the port or the address goes.
type shown struct {
	port, hostname bool
	sets           uint64
}

// crowd is streams of one question that are told of together.
type crowd struct {
	streams int
	holds   *federation.Set // the largest that a client holds
}

var (
	seriesLabels    = []string{"cluster", "namespace", "service", "port", "hostname", "nodename"}
	subscribersDesc = prometheus.NewDesc("endpoints_subscribers", "Open Get streams for a Service, or with -detailed-metrics for each member of it.", seriesLabels, nil)
	podsDesc        = prometheus.NewDesc("endpoints_pods", "Addresses of the Service that a client of these streams holds, at most.", seriesLabels, nil)
	existsDesc      = prometheus.NewDesc("endpoints_exists", "Whether the Service exists: 1 or 0.", seriesLabels, nil)
	conflictsDesc   = prometheus.NewDesc("fingerpost_endpoint_conflicts", "Claims of clusters to an address of the Service that do not count, because another cluster publishes something else of it. No series where there are none.", seriesLabels, nil)
	updatesDesc     = prometheus.NewDesc("endpoints_updates", "Changes of the answers to these streams, counted once for all that share an answer.", seriesLabels, nil)
)

func (c *subscribers) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{subscribersDesc, podsDesc, existsDesc, updatesDesc, conflictsDesc} {
		to <- d
	}
}

func (c *subscribers) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	samples := c.samples()
	c.updates = make(map[series]uint64, len(samples))
	for s, x := range samples {
		c.updates[s] = x.updates
		labels := []string{s.cluster, s.namespace, s.service, s.port, s.hostname, s.node}
		exists := 0.
		if x.exists {
			exists = 1
		}
		to <- prometheus.MustNewConstMetric(subscribersDesc, prometheus.GaugeValue, float64(x.streams), labels...)
		to <- prometheus.MustNewConstMetric(podsDesc, prometheus.GaugeValue, float64(x.addresses), labels...)
		to <- prometheus.MustNewConstMetric(existsDesc, prometheus.GaugeValue, exists, labels...)
		to <- prometheus.MustNewConstMetric(updatesDesc, prometheus.CounterValue, float64(x.updates), labels...)
		if x.conflicts > 0 {
			to <- prometheus.MustNewConstMetric(conflictsDesc, prometheus.GaugeValue, float64(x.conflicts), labels...)
		}
	}
}

// samples needs c.mu.
func (c *subscribers) samples() map[series]*sample {
	samples := map[series]*sample{}
	for q, crowds := range c.crowds() {
		snapshot, selection := q.newest()
		if snapshot == nil {
			continue
		}
		conflicts, all := selection.Conflicts(), 0
		for _, n := range conflicts {
			all += n
		}
		q.show(snapshot, crowds)
		s := series{}
		if q.shown.port {
			s.port = strconv.Itoa(int(q.Port))
		}
		if q.shown.hostname && c.server.config.DetailedMetrics {
			s.hostname = q.Hostname
		}
		sets := q.sets.Load()
		for node, crowd := range crowds {
			count := func(of federation.Ref, known, exists bool, addresses, conflicts int) {
				s.cluster, s.namespace, s.service, s.node = string(of.Cluster), of.Namespace, of.Name, node
				x := samples[s]
				if x == nil {
					before, told := c.updates[s]
					if !known && !told {
						return // who names a Service may have made it up
					}
					x = &sample{updates: before}
					samples[s] = x
				}
				x.streams += crowd.streams
				x.addresses, x.conflicts = max(x.addresses, addresses), max(x.conflicts, conflicts)
				x.exists = x.exists || exists
				x.updates += sets - q.shown.sets
			}
			if !c.server.config.DetailedMetrics {
				count(snapshot.Ref, snapshot.View != nil, snapshot.Exists(), crowd.holds.Len(), all)
				continue
			}
			addresses := map[federation.Ref]int{}
			for e := range crowd.holds.All() {
				addresses[e.Origin().Ref]++
			}
			for _, m := range snapshot.Members {
				count(m.Origin.Ref, m.View != nil, m.View != nil, addresses[m.Origin.Ref], conflicts[m.Origin.Ref])
			}
		}
		q.shown.sets = sets
	}
	return samples
}

// crowds returns the streams of Get by what they ask for, and by the node of the client where that is told.
func (c *subscribers) crowds() map[*question]map[string]*crowd {
	all := map[*question]map[string]*crowd{}
	for _, st := range c.server.streams.all() {
		asks := st.asks.Load()
		if asks == nil {
			continue
		}
		node := ""
		if c.server.config.DetailedMetrics {
			if _, known := c.server.store.Nodes().Get(st.who.Node); known {
				node = st.who.Node
			}
		}
		crowds := all[asks]
		if crowds == nil {
			crowds = map[string]*crowd{}
			all[asks] = crowds
		}
		in := crowds[node]
		if in == nil {
			in = &crowd{}
			crowds[node] = in
		}
		in.streams++
		if holds := st.holds.Load(); holds.Len() > in.holds.Len() {
			in.holds = holds
		}
	}
	return all
}

// show decides as what a question is shown. It needs subscribers.mu.
func (q *question) show(snapshot *federation.Snapshot, crowds map[string]*crowd) {
	if home := snapshot.View; home != nil {
		_, declared := home.Port(q.Port)
		q.shown.port = q.shown.port || declared
	}
	for _, crowd := range crowds {
		q.shown.hostname = q.shown.hostname || !crowd.holds.Empty()
	}
}

// asked reports whether a stream was answered from any Snapshot.
func (q *question) asked() bool {
	snapshot, _ := q.newest()
	return snapshot != nil
}

// newest returns the newest Snapshot that a stream was answered from, nil if there was none, and what was selected from it.
func (q *question) newest() (*federation.Snapshot, *federation.Selection) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.snapshot, q.selection
}

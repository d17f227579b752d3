package discovery

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// audiences tells what streams of GetProfile are about, by the names under which Linkerd's dashboards know it. As with those of
// Get a series goes with its last stream, and none is of something that a client has made up.
type audiences struct {
	streams *streams
	table   watch.Reader[federation.Service, *profile.Profile]

	mu sync.Mutex
	of map[federation.Service]*audience // by the ServiceProfile that a stream follows, whether there is one or not
}

// audience is the streams that follow one ServiceProfile; guarded by audiences.mu.
type audience struct {
	streams int
	newest  *profile.Profile // that one of them has seen
	updates uint64           // of those that were seen; 0: there was none yet
}

// subject is what a stream of GetProfile was answered about.
type subject struct {
	service  federation.Service // zero for none that exists
	workload bool               // the one at an IP, if there is one
}

var (
	profileLabels          = []string{"namespace", "profile"}
	profileSubscribersDesc = prometheus.NewDesc("profile_subscribers", "Open GetProfile streams that follow a ServiceProfile.", profileLabels, nil)
	profileUpdatesDesc     = prometheus.NewDesc("profile_updates",
		"Changes of a ServiceProfile that these streams were answered by, counted once for all.", profileLabels, nil)
	workloadSubscribersDesc = prometheus.NewDesc("workload_subscribers", "Open GetProfile streams that were answered about what is at an IP.", nil, nil)
	serviceSubscribersDesc  = prometheus.NewDesc("service_subscribers",
		"Open GetProfile streams that were answered about a Service.", []string{"namespace", "name"}, nil)
)

func newAudiences(streams *streams, table watch.Reader[federation.Service, *profile.Profile]) *audiences {
	return &audiences{streams: streams, table: table, of: map[federation.Service]*audience{}}
}

// join counts one more stream, which will leave.
func (a *audiences) join(name federation.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[name] == nil {
		a.of[name] = &audience{}
	}
	a.of[name].streams++
}

// see counts the newest ServiceProfile, unless another stream has seen it before. Streams say so in any order.
func (a *audiences) see(name federation.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if newest, _ := a.table.Get(name); a.of[name].newest != newest {
		a.of[name].newest = newest
		a.of[name].updates++
	}
}

func (a *audiences) leave(name federation.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[name].streams--; a.of[name].streams == 0 {
		delete(a.of, name)
	}
}

func (a *audiences) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{profileSubscribersDesc, profileUpdatesDesc, workloadSubscribersDesc, serviceSubscribersDesc} {
		to <- d
	}
}

func (a *audiences) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	workloads, services := 0, map[federation.Service]int{}
	for _, st := range a.streams.all() {
		about := st.subject()
		if about.workload {
			workloads++
		}
		services[about.service]++
	}
	delete(services, federation.Service{})
	gauge(workloadSubscribersDesc, workloads)
	for name, n := range services {
		gauge(serviceSubscribersDesc, n, name.Namespace, name.Name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, of := range a.of {
		if of.updates > 0 {
			gauge(profileSubscribersDesc, of.streams, name.Namespace, name.Name)
			to <- prometheus.MustNewConstMetric(profileUpdatesDesc, prometheus.CounterValue, float64(of.updates), name.Namespace, name.Name)
		}
	}
}

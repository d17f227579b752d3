package linkerd

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// profileFollowers reports what streams of GetProfile are about, under the names of Linkerd's
// destination. As with those of Get a series goes with its last stream, and no label is a name that
// a client has made up.
type profileFollowers struct {
	table watch.Reader[federation.Service, *profile.Profile]

	mu        sync.Mutex
	byProfile map[federation.Service]*followers // of the ServiceProfile of a name, whether there is one or not
	streams   map[subject]int                   // that were answered about it; not kept for the zero subject
}

// followers are the streams that watch one ServiceProfile; guarded by profileFollowers.mu.
type followers struct {
	streams int
	newest  *profile.Profile // that one of them has loaded
	updates uint64           // of those that were loaded; 0: there was none yet
}

// subject is what a stream of GetProfile was answered about.
type subject struct {
	service  federation.Service // zero for none that exists
	workload bool               // the one at an IP, if there is one
}

var (
	profileLabels          = []string{"namespace", "profile"}
	profileSubscribersDesc = prometheus.NewDesc("profile_subscribers",
		"Open GetProfile streams that follow a ServiceProfile.", profileLabels, nil)
	profileUpdatesDesc = prometheus.NewDesc("profile_updates",
		"Changes of a ServiceProfile that these streams were answered by, counted once for all.", profileLabels, nil)
	workloadSubscribersDesc = prometheus.NewDesc("workload_subscribers",
		"Open GetProfile streams that were answered about what is at an IP.", nil, nil)
	serviceSubscribersDesc = prometheus.NewDesc("service_subscribers",
		"Open GetProfile streams that were answered about a Service.", []string{"namespace", "name"}, nil)
)

func newProfileFollowers(table watch.Reader[federation.Service, *profile.Profile]) *profileFollowers {
	return &profileFollowers{
		table: table, byProfile: map[federation.Service]*followers{}, streams: map[subject]int{},
	}
}

// moveStream notes what a stream is answered about now, and what it was answered about before.
func (a *profileFollowers) moveStream(from, to subject) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams[to]++
	a.streams[from]--
	if a.streams[from] == 0 {
		delete(a.streams, from)
	}
	delete(a.streams, subject{})
}

// follow counts one more follower, until unfollow.
func (a *profileFollowers) follow(name federation.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.byProfile[name]
	if f == nil {
		f = &followers{}
		a.byProfile[name] = f
	}
	f.streams++
}

// noteUpdate counts the newest ServiceProfile, unless another stream has loaded it before. Streams load
// in any order.
func (a *profileFollowers) noteUpdate(name federation.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	newest, _ := a.table.Get(name)
	if f := a.byProfile[name]; f.newest != newest {
		f.newest = newest
		f.updates++
	}
}

func (a *profileFollowers) unfollow(name federation.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byProfile[name].streams--
	if a.byProfile[name].streams == 0 {
		delete(a.byProfile, name)
	}
}

func (a *profileFollowers) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		profileSubscribersDesc, profileUpdatesDesc, workloadSubscribersDesc, serviceSubscribersDesc,
	} {
		to <- d
	}
}

func (a *profileFollowers) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	a.mu.Lock()
	defer a.mu.Unlock()

	gauge(workloadSubscribersDesc, a.streams[subject{workload: true}])
	for about, n := range a.streams {
		if !about.workload {
			gauge(serviceSubscribersDesc, n, about.service.Namespace, about.service.Name)
		}
	}

	for name, of := range a.byProfile {
		if of.updates > 0 {
			gauge(profileSubscribersDesc, of.streams, name.Namespace, name.Name)
			to <- prometheus.MustNewConstMetric(profileUpdatesDesc, prometheus.CounterValue, float64(of.updates),
				name.Namespace, name.Name)
		}
	}
}

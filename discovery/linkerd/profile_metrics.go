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
	subjects  map[*profileStream]subject
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
		table: table, byProfile: map[federation.Service]*followers{}, subjects: map[*profileStream]subject{},
	}
}

// open counts a stream, until close.
func (a *profileFollowers) open(l *profileStream) { a.answered(l, subject{}) }

// answered notes what a stream was answered about.
func (a *profileFollowers) answered(l *profileStream, s subject) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.subjects[l] = s
}

func (a *profileFollowers) close(l *profileStream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.subjects, l)
}

// add counts one more follower, until remove.
func (a *profileFollowers) add(name federation.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byProfile[name] == nil {
		a.byProfile[name] = &followers{}
	}
	a.byProfile[name].streams++
}

// noteUpdate counts the newest ServiceProfile, unless another stream has loaded it before. Streams load
// in any order.
func (a *profileFollowers) noteUpdate(name federation.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if newest, _ := a.table.Get(name); a.byProfile[name].newest != newest {
		a.byProfile[name].newest = newest
		a.byProfile[name].updates++
	}
}

func (a *profileFollowers) remove(name federation.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byProfile[name].streams--; a.byProfile[name].streams == 0 {
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
	workloads, services := 0, map[federation.Service]int{}
	for _, about := range a.subjects {
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
	for name, of := range a.byProfile {
		if of.updates > 0 {
			gauge(profileSubscribersDesc, of.streams, name.Namespace, name.Name)
			to <- prometheus.MustNewConstMetric(profileUpdatesDesc, prometheus.CounterValue, float64(of.updates),
				name.Namespace, name.Name)
		}
	}
}

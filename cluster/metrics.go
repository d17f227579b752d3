package cluster

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descState = prometheus.NewDesc("fingerpost_cluster_state",
		"1 for the state that a cluster is in: Connecting, Live, Suspect or Stale.", []string{"cluster", "state"}, nil)
	descContact = prometheus.NewDesc("fingerpost_cluster_last_contact_seconds",
		"Time since the cluster was last known to be in order, on our own clock.", []string{"cluster"}, nil)
	descSynced = prometheus.NewDesc("fingerpost_cluster_synced",
		"1 if each required kind of the cluster was listed once.", []string{"cluster"}, nil)
	descCredentials = prometheus.NewDesc("fingerpost_cluster_credentials_valid",
		"1 if the newest credentials of the cluster are in use, 0 if they do not work; "+
			"no series while that is not known.",
		[]string{"cluster"}, nil)
	descExpiry = prometheus.NewDesc("fingerpost_cluster_credentials_expiry_timestamp_seconds",
		"When the credentials in use expire, in seconds since 1970; no series if they do not, or if that is not known.",
		[]string{"cluster"}, nil)
	descOpen = prometheus.NewDesc("fingerpost_watch_open",
		"1 if a watch of the resource is open.", []string{"cluster", "resource"}, nil)
	descObjects = prometheus.NewDesc("fingerpost_objects",
		"Objects of a resource that are held.", []string{"cluster", "resource"}, nil)
	descMalformed = prometheus.NewDesc("fingerpost_malformed_objects_total",
		"Objects of a resource of which something cannot be used and is left out; "+
			"each is counted once until it is mended.",
		[]string{"cluster", "resource"}, nil)
	descLists = prometheus.NewDesc("fingerpost_lists_total",
		"Requests to list a resource.", []string{"cluster", "resource"}, nil)
	descWatches = prometheus.NewDesc("fingerpost_watches_total",
		"Requests to watch a resource.", []string{"cluster", "resource"}, nil)
	descErrors = prometheus.NewDesc("fingerpost_api_errors_total",
		"Requests about a resource that failed, by the reason that the API server gave; Unreachable if it gave none.",
		[]string{"cluster", "resource", "reason"}, nil)
	descWriter = prometheus.NewDesc("fingerpost_writer_state",
		"1 for the state of writing into a cluster: Holding (this replica writes), Standby (another does) or "+
			"ReadOnly (permissions are missing).",
		[]string{"cluster", "state"}, nil)
	descLease = prometheus.NewDesc("fingerpost_lease_holder",
		"1 for each Lease that this replica holds in a cluster.", []string{"cluster", "lease"}, nil)
	descOverBudget = prometheus.NewDesc("fingerpost_cluster_over_budget",
		"1 if the cluster publishes more than its budget: new objects are refused.", []string{"cluster"}, nil)
	descLinked = prometheus.NewDesc("cluster_store_size", "Linked clusters, without the local one.", nil, nil)
)

// descCaches has descObjects under the names of Linkerd's destination, by resource.
var descCaches = map[string]*prometheus.Desc{
	"endpoints":                             descCache("endpoints"),
	"endpointslices.discovery.k8s.io":       descCache("endpointslices"),
	"externalworkloads.workload.linkerd.io": descCache("externalworkload"),
	"jobs.batch":                            descCache("job"),
	"nodes":                                 descCache("node"),
	"pods":                                  descCache("pod"),
	"replicasets.apps":                      descCache("replicaset"),
	"servers.policy.linkerd.io":             descCache("server"),
	"serviceprofiles.linkerd.io":            descCache("serviceprofile"),
	"services":                              descCache("service"),
}

func descCache(name string) *prometheus.Desc {
	return prometheus.NewDesc(name+"_cache_size", "The same as fingerpost_objects.", []string{"cluster"}, nil)
}

// Describe makes the Registry a [prometheus.Collector].
func (r *Registry) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descState, descContact, descSynced, descCredentials, descExpiry,
		descOpen, descObjects, descMalformed, descLists, descWatches, descErrors,
		descWriter, descLease, descOverBudget, descLinked,
	} {
		to <- d
	}
	if r.options.DetailedMetrics {
		for _, d := range descCaches {
			to <- d
		}
	}
	for _, c := range newClusterMetrics("", r.options.DetailedMetrics).collectors() {
		c.Describe(to)
	}
}

// Collect sends the metrics of each cluster. A cluster that is unlinked leaves no series behind.
func (r *Registry) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	statuses, _ := r.Statuses()
	linked := 0
	for name, s := range statuses {
		if !s.Local {
			linked++
		}
		for _, state := range []State{Connecting, Live, Suspect, Stale} {
			gauge(descState, oneIf(s.State == state), name, string(state))
		}
		gauge(descSynced, oneIf(s.Synced), name)
		if valid, known := s.credentialsValid(); known {
			gauge(descCredentials, oneIf(valid), name)
		}
		if s.Writing.State != NotWriting {
			for _, state := range []WritingState{ReadOnly, Standby, Holding} {
				gauge(descWriter, oneIf(s.Writing.State == state), name, string(state))
			}
		}
		for _, lease := range s.Writing.Leases {
			gauge(descLease, 1, name, lease)
		}
		if !s.Local {
			gauge(descOverBudget, oneIf(s.OverBudget != ""), name)
		}
		if !s.Expires.IsZero() {
			gauge(descExpiry, float64(s.Expires.Unix()), name)
		}
		kinds, contact := r.Inspect(name)
		if !contact.IsZero() {
			gauge(descContact, time.Since(contact).Seconds(), name)
		}
		for _, k := range kinds {
			gauge(descOpen, oneIf(k.Open), name, k.Kind)
			gauge(descObjects, float64(k.Objects), name, k.Kind)
			if d, known := descCaches[k.Kind]; known && r.options.DetailedMetrics {
				gauge(d, float64(k.Objects), name)
			}
			counter(descMalformed, k.Malformed, name, k.Kind)
			counter(descLists, k.Lists, name, k.Kind)
			counter(descWatches, k.Watches, name, k.Kind)
			for reason, n := range k.Errors {
				counter(descErrors, n, name, k.Kind, reason)
			}
		}
	}
	gauge(descLinked, float64(linked))
	for _, m := range r.allMetrics() {
		for _, c := range m.collectors() {
			c.Collect(to)
		}
	}
}

func (r *Registry) allMetrics() (all []*clusterMetrics) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.supervisors {
		all = append(all, m.metrics)
	}
	return all
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

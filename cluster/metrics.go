package cluster

import (
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
)

const targetLabel = "target_cluster" // cluster is what a central Prometheus sets

var (
	descState = prometheus.NewDesc("fingerpost_cluster_state",
		"1 for the state that a cluster is in: Connecting, Live, Suspect or Stale.",
		[]string{targetLabel, "state"}, nil)
	descContact = prometheus.NewDesc("fingerpost_cluster_last_contact_timestamp_seconds",
		"When the cluster was last in contact, on our own clock, in seconds since 1970.",
		[]string{targetLabel}, nil)
	descSynced = prometheus.NewDesc("fingerpost_cluster_synced",
		"1 if each required kind of the cluster was listed once.", []string{targetLabel}, nil)
	descCredentials = prometheus.NewDesc("fingerpost_cluster_credentials_valid",
		"1 if the newest credentials of the cluster are in use, 0 if they do not work; "+
			"no series while that is not known.",
		[]string{targetLabel}, nil)
	descExpiry = prometheus.NewDesc("fingerpost_cluster_credentials_expiry_timestamp_seconds",
		"When the credentials in use expire, in seconds since 1970; no series if they do not, or if that is not known.",
		[]string{targetLabel}, nil)
	descIssued = prometheus.NewDesc("fingerpost_cluster_credentials_issued_timestamp_seconds",
		"When the credentials in use were issued, in seconds since 1970; no series if they do not expire, or if that "+
			"is not known.",
		[]string{targetLabel}, nil)
	descProbe = prometheus.NewDesc("fingerpost_cluster_probe_duration_seconds",
		"How long the last probe of the API server took that was answered.", []string{targetLabel}, nil)
	descSkew = prometheus.NewDesc("fingerpost_cluster_clock_skew_seconds",
		"How far the clock of the API server was ahead of ours at the last probe.", []string{targetLabel}, nil)
	descEndpoints = prometheus.NewDesc("fingerpost_cluster_endpoints",
		"Endpoints that the cluster publishes, by state: ready or not_ready.", []string{targetLabel, "state"}, nil)
	descOpen = prometheus.NewDesc("fingerpost_watch_open",
		"1 if a watch of the resource is open.", []string{targetLabel, "resource"}, nil)
	descObjects = prometheus.NewDesc("fingerpost_objects",
		"Objects of a resource that are held.", []string{targetLabel, "resource"}, nil)
	descMalformed = prometheus.NewDesc("fingerpost_malformed_objects_total",
		"Objects of a resource of which something cannot be used and is left out; "+
			"each is counted once until it is mended.",
		[]string{targetLabel, "resource"}, nil)
	descLists = prometheus.NewDesc("fingerpost_list_requests_total",
		"Requests to list any resource.", []string{targetLabel}, nil)
	descWatches = prometheus.NewDesc("fingerpost_watch_requests_total",
		"Requests to watch any resource.", []string{targetLabel}, nil)
	descErrors = prometheus.NewDesc("fingerpost_api_errors_total",
		"Requests about a resource that failed, by the reason that the API server gave; Unreachable if it gave none.",
		[]string{targetLabel, "resource", "reason"}, nil)
	descWriter = prometheus.NewDesc("fingerpost_writer_state",
		"1 for the state of writing into a cluster: Holding (this replica writes), Standby (another does) or "+
			"ReadOnly (permissions are missing).",
		[]string{targetLabel, "state"}, nil)
	descLease = prometheus.NewDesc("fingerpost_lease_holder",
		"1 for each Lease that this replica holds in a cluster.", []string{targetLabel, "lease"}, nil)
	descOverBudget = prometheus.NewDesc("fingerpost_cluster_over_budget",
		"1 if the cluster publishes more than its budget: new objects are refused.", []string{targetLabel}, nil)
	descDrain = prometheus.NewDesc("fingerpost_link_drain_percent",
		"How much of the cluster's traffic is taken away because it is drained, in percent.",
		[]string{targetLabel}, nil)
	descWithdrawn = prometheus.NewDesc("fingerpost_withdrawals_held",
		"Endpoints that the cluster has withdrawn with most of what it had, and that are held for Services which have "+
			"nothing else.", []string{targetLabel}, nil)
	descCheckpoint = prometheus.NewDesc("fingerpost_cluster_checkpoint_timestamp_seconds",
		"As of when the state of the cluster holds that was restored from -state-dir, in seconds since 1970; no "+
			"series once the cluster was synced.", []string{targetLabel}, nil)
	descCheckpointFailures = prometheus.NewDesc("fingerpost_checkpoint_failures",
		"Clusters whose last state could not be saved to -state-dir when that was tried last; no series without one.",
		nil, nil)
	descLocalProblem = prometheus.NewDesc("fingerpost_local_writer_problem",
		"1 if something keeps this replica from writing all that it should into the local cluster, as a missing "+
			"permission does.", nil, nil)
	descUnlinked = prometheus.NewDesc("fingerpost_unlinked_clusters_total",
		"Clusters that were unlinked.", nil, nil)
	descLinked = prometheus.NewDesc("cluster_store_size", "Linked clusters, without the local one.", nil, nil)
)

// countedFromZero is the reason whose errors are counted from 0 on, so that increase(), as the alert uses it, finds the
// first one. Each reason takes a series for each kind of each cluster.
const countedFromZero = string(api.Forbidden)

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
		descState, descContact, descSynced, descCredentials, descExpiry, descIssued,
		descProbe, descSkew, descEndpoints,
		descOpen, descObjects, descMalformed, descLists, descWatches, descErrors,
		descWriter, descLease, descOverBudget, descDrain, descWithdrawn,
		descLocalProblem, descUnlinked, descLinked, descCheckpoint,
		descCheckpointFailures,
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
		for _, state := range federation.ClusterStates {
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
		if s.Local {
			gauge(descLocalProblem, oneIf(s.Writing.Problem != ""))
		} else {
			gauge(descOverBudget, oneIf(s.OverBudget != ""), name)
			gauge(descDrain, float64(s.Traffic.Drain.Percent), name)
			held := 0
			if w := s.Traffic.Withdrawn; w != nil {
				held = w.Endpoints
			}
			gauge(descWithdrawn, float64(held), name)
		}
		if !s.Checkpoint.IsZero() {
			gauge(descCheckpoint, float64(s.Checkpoint.Unix()), name)
		}
		if !s.Expires.IsZero() {
			gauge(descExpiry, float64(s.Expires.Unix()), name)
			if !s.issued.IsZero() {
				gauge(descIssued, float64(s.issued.Unix()), name)
			}
		}
		if live := r.engagement(name); live != nil {
			if h, _ := live.health.Load(); h.rtt > 0 {
				gauge(descProbe, h.rtt.Seconds(), name)
			}
			gauge(descSkew, live.conn.ClockSkew().Seconds(), name)
		}
		ready, notReady := 0, 0
		for _, v := range r.store.Views(federation.Cluster(name)).All() {
			are, areNot := v.Count()
			ready, notReady = ready+are, notReady+areNot
		}
		gauge(descEndpoints, float64(ready), name, "ready")
		gauge(descEndpoints, float64(notReady), name, "not_ready")
		kinds, contact := r.Inspect(name)
		if !contact.IsZero() {
			gauge(descContact, float64(contact.UnixMilli())/1000, name)
		}
		lists, watches := 0, 0
		for _, k := range kinds {
			lists, watches = lists+k.Lists, watches+k.Watches
			if k.Refused == metav1.StatusReasonNotFound {
				continue // there is no such kind in the cluster
			}
			gauge(descOpen, oneIf(k.Open), name, k.Kind)
			gauge(descObjects, float64(k.Objects), name, k.Kind)
			if d, known := descCaches[k.Kind]; known && r.options.DetailedMetrics {
				gauge(d, float64(k.Objects), name)
			}
			counter(descMalformed, k.Malformed, name, k.Kind)
			counter(descErrors, k.Errors[countedFromZero], name, k.Kind, countedFromZero)
			for reason, n := range k.Errors {
				if reason != countedFromZero {
					counter(descErrors, n, name, k.Kind, reason)
				}
			}
		}
		counter(descLists, lists, name)
		counter(descWatches, watches, name)
	}
	gauge(descLinked, float64(linked))
	if r.options.Checkpoints != nil {
		gauge(descCheckpointFailures, float64(r.NotSaved().Clusters))
	}
	r.mu.Lock()
	unlinked := r.unlinked
	r.mu.Unlock()
	counter(descUnlinked, unlinked)
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

package cluster

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
)

const targetLabel = "target_cluster" // cluster is what a central Prometheus sets

// described are the metrics that every Registry has.
var described []*prometheus.Desc

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	described = append(described, d)
	return d
}

func clusterDesc(name, help string, labels ...string) *prometheus.Desc {
	return newDesc(name, help, append([]string{targetLabel}, labels...)...)
}

var (
	descState = clusterDesc("fingerpost_cluster_state",
		"1 for the state that a cluster is in: Connecting, Live, Suspect or Stale.", "state")
	descContact = clusterDesc("fingerpost_cluster_last_contact_timestamp_seconds",
		"When the cluster was last in contact, on the clock of the replica, in seconds since 1970.")
	descSynced = clusterDesc("fingerpost_cluster_synced",
		"1 if each required kind of the cluster was listed once.")
	descCredentials = clusterDesc("fingerpost_cluster_credentials_valid",
		"1 if the newest credentials of the cluster are in use, 0 if they do not work; "+
			"no series while that is not known.")
	descExpiry = clusterDesc("fingerpost_cluster_credentials_expiry_timestamp_seconds",
		"When the credentials in use expire, in seconds since 1970; no series if they do not, or if that is not known.")
	descIssued = clusterDesc("fingerpost_cluster_credentials_issued_timestamp_seconds",
		"When the credentials in use were issued, in seconds since 1970; no series if they do not expire, or if that "+
			"is not known.")
	descProbe = clusterDesc("fingerpost_cluster_probe_duration_seconds",
		"How long the last probe of the API server took that was answered.")
	descSkew = clusterDesc("fingerpost_cluster_clock_skew_seconds",
		"How far the clock of the API server was ahead of the replica's at the last probe.")
	descEndpoints = clusterDesc("fingerpost_cluster_endpoints",
		"Endpoints that the cluster publishes, by state: ready or not_ready.", "state")
	descOpen = clusterDesc("fingerpost_watch_open",
		"1 if a watch of the resource is open.", "resource")
	descObjects = clusterDesc("fingerpost_objects",
		"Objects of a resource that are held.", "resource")
	descMalformed = clusterDesc("fingerpost_malformed_objects_total",
		"Objects of a resource of which something cannot be used and is left out; "+
			"each is counted once until it is mended.", "resource")
	descLists = clusterDesc("fingerpost_list_requests_total",
		"Requests to list any resource.")
	descWatches = clusterDesc("fingerpost_watch_requests_total",
		"Requests to watch any resource.")
	descErrors = clusterDesc("fingerpost_api_errors_total",
		"Requests about a resource that failed, by the reason that the API server gave; Unreachable if it gave none.",
		"resource", "reason")
	descWriter = clusterDesc("fingerpost_writer_state",
		"1 for the state of writing into a cluster: Holding (this replica writes), Standby (another does) or "+
			"ReadOnly (permissions are missing).", "state")
	descLease = clusterDesc("fingerpost_lease_holder",
		"1 for each Lease that this replica holds in a cluster.", "lease")
	descNotWritten = clusterDesc("fingerpost_objects_not_written",
		"Objects that this replica has tried again and again to write into the cluster, by what is written of each "+
			"and why the one that fails for longest was not; no series while all are written.", "what", "reason")
	descRequests = clusterDesc("fingerpost_requests_failing",
		"1 for each reason for which the API server of the cluster does not do what it is asked for again and again, "+
			"0 if another metric has it; no series while it does.", "reason")
	descOverBudget = clusterDesc(
		"fingerpost_cluster_over_budget",
		"1 if the cluster publishes more than its budget: new objects are refused, or less is held of what it "+
			"withdraws.",
	)
	descLeftTo = clusterDesc("fingerpost_cluster_left_to_another_installation",
		"1 if the slices in the local cluster that have endpoints of this one are written by another installation, "+
			"whose Lease is older.")
	descDrain = clusterDesc("fingerpost_link_drain_percent",
		"How much of the cluster's traffic is taken away because it is drained, in percent.")
	descWithdrawn = clusterDesc("fingerpost_withdrawals_held",
		"Endpoints that the cluster has withdrawn with most of what it had, and that are held for Services which have "+
			"nothing else.")
	descUnconfirmed = clusterDesc("fingerpost_withdrawals_unconfirmed",
		"Endpoints that the cluster has withdrawn with most of what it had, and that are given because no list has "+
			"confirmed that within some seconds.")
	descCheckpoint = clusterDesc("fingerpost_cluster_checkpoint_timestamp_seconds",
		"As of when the state of the cluster holds that was restored from -state-dir, in seconds since 1970; no "+
			"series once the cluster was synced.")
	descCheckpointFailures = newDesc("fingerpost_checkpoint_failures",
		"Clusters whose last state could not be saved to -state-dir when that was tried last; no series without one.")
	descPeersRefuse = newDesc("fingerpost_peers_refuse",
		"1 if other replicas do not hand over what they know of clusters; no series without -peers.")
	descLocalProblem = newDesc("fingerpost_local_writer_problem",
		"1 if something keeps this replica from writing all that it should into the local cluster, as a missing "+
			"permission does.")
	descUnlinked = newDesc("fingerpost_unlinked_clusters_total",
		"Clusters that were unlinked.")
	descLinked = newDesc("cluster_store_size", "Linked clusters, without the local one.")
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
	for _, d := range described {
		to <- d
	}
	if r.options.DetailedMetrics {
		for _, d := range descCaches {
			to <- d
		}
	}
	for _, v := range newClusterMetrics("", r.options.DetailedMetrics).vectors() {
		v.Describe(to)
	}
}

// Collect sends the metrics of each cluster. A cluster that is unlinked leaves no series behind.
func (r *Registry) Collect(to chan<- prometheus.Metric) {
	statuses, _ := r.Statuses()
	linked := 0

	for name, s := range statuses {
		if !s.Local {
			linked++
		}
		kinds, contact := r.Inspect(name)
		of := clusterSamples{to, name, s.Problems(kinds, time.Now())}
		of.sendStatus(s)
		of.sendTraffic(s)
		of.sendCredentials(s)
		if live := r.engagement(name); live != nil {
			of.sendProbe(live)
		}

		of.sendEndpoints(r.store.Views(federation.Cluster(name)))
		if !contact.IsZero() {
			of.gauge(descContact, float64(contact.UnixMilli())/1000)
		}
		of.sendKinds(kinds, r.options.DetailedMetrics)
	}

	to <- prometheus.MustNewConstMetric(descLinked, prometheus.GaugeValue, float64(linked))
	if r.options.Checkpoints != nil {
		failures := float64(r.NotSaved().Clusters)
		to <- prometheus.MustNewConstMetric(descCheckpointFailures, prometheus.GaugeValue, failures)
	}

	if r.options.Peers != nil {
		refuse := 0.0
		if r.PeersRefuse() != "" {
			refuse = 1
		}
		to <- prometheus.MustNewConstMetric(descPeersRefuse, prometheus.GaugeValue, refuse)
	}

	r.mu.Lock()
	unlinked := float64(r.unlinked)
	r.mu.Unlock()

	to <- prometheus.MustNewConstMetric(descUnlinked, prometheus.CounterValue, unlinked)
	for _, s := range r.allSupervisors() {
		for _, v := range s.metrics.vectors() {
			v.Collect(to)
		}
	}
}

// clusterSamples sends the metrics of one cluster.
type clusterSamples struct {
	to       chan<- prometheus.Metric
	name     string
	problems []problem.Problem
}

// has returns 1 if the cluster has a Problem of some classes.
func (c clusterSamples) has(classes ...problem.Class) float64 {
	return oneIf(problem.Has(c.problems, classes...))
}

func (c clusterSamples) gauge(d *prometheus.Desc, v float64, labels ...string) {
	c.send(d, prometheus.GaugeValue, v, labels)
}

func (c clusterSamples) counter(d *prometheus.Desc, n int, labels ...string) {
	c.send(d, prometheus.CounterValue, float64(n), labels)
}

func (c clusterSamples) send(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels []string) {
	c.to <- prometheus.MustNewConstMetric(d, kind, v, append([]string{c.name}, labels...)...)
}

func (c clusterSamples) sendStatus(status Status) {
	for _, state := range federation.ClusterStates {
		c.gauge(descState, oneIf(status.State == state), string(state))
	}
	c.gauge(descSynced, oneIf(status.Synced))
	c.gauge(descLeftTo, c.has(problem.LeftTo))
	if !status.Checkpoint.IsZero() {
		c.gauge(descCheckpoint, float64(status.Checkpoint.Unix()))
	}

	if status.Writing.State != NotWriting {
		for _, state := range []WritingState{ReadOnly, Standby, Holding} {
			c.gauge(descWriter, oneIf(status.Writing.State == state), string(state))
		}
	}
	for _, lease := range status.Writing.Leases {
		c.gauge(descLease, 1, lease)
	}
	for _, failing := range status.Writing.Failing {
		c.gauge(descNotWritten, float64(failing.Count), failing.What, string(failing.Reason))
	}

	for _, p := range problem.Of(c.problems, problem.Requests) {
		written := c.has(problem.NotWritten, problem.Forbidden) > 0 ||
			status.Local && c.has(problem.ReadOnly, problem.Incomplete) > 0
		c.gauge(descRequests, oneIf(!p.Repeats || !written), p.Reason)
	}
}

func (c clusterSamples) sendTraffic(status Status) {
	if status.Local {
		writing := c.has(problem.ReadOnly, problem.Incomplete)
		c.to <- prometheus.MustNewConstMetric(descLocalProblem, prometheus.GaugeValue, writing)
		return
	}

	c.gauge(descOverBudget, c.has(problem.OverBudget))
	c.gauge(descDrain, float64(status.Traffic.Drain.Percent))
	held := 0
	if w := status.Traffic.Withdrawn; w != nil {
		held = w.Endpoints
	}
	c.gauge(descWithdrawn, float64(held))
	c.gauge(descUnconfirmed, float64(status.Traffic.Unconfirmed.Endpoints))
}

func (c clusterSamples) sendCredentials(status Status) {
	failed := problem.Of(c.problems, problem.Credentials)
	switch {
	case len(failed) > 0 && failed[0].IsUrgent():
		c.gauge(descCredentials, 0)
	case status.Source != "":
		c.gauge(descCredentials, 1)
	}

	if status.Expires.IsZero() {
		return
	}
	c.gauge(descExpiry, float64(status.Expires.Unix()))
	if !status.issued.IsZero() {
		c.gauge(descIssued, float64(status.issued.Unix()))
	}
}

func (c clusterSamples) sendProbe(live *engagement) {
	if h, _ := live.health.Load(); h.rtt > 0 {
		c.gauge(descProbe, h.rtt.Seconds())
	}
	c.gauge(descSkew, live.conn.ClockSkew().Seconds())
}

func (c clusterSamples) sendEndpoints(views *federation.Views) {
	ready, notReady := 0, 0
	for _, v := range views.All() {
		are, areNot := v.Count()
		ready, notReady = ready+are, notReady+areNot
	}
	c.gauge(descEndpoints, float64(ready), "ready")
	c.gauge(descEndpoints, float64(notReady), "not_ready")
}

func (c clusterSamples) sendKinds(kinds []KindStatus, detailed bool) {
	lists, watches := 0, 0
	for _, kind := range kinds {
		lists, watches = lists+kind.Lists, watches+kind.Watches
		if kind.Refused == metav1.StatusReasonNotFound {
			continue // there is no such kind in the cluster
		}

		c.gauge(descOpen, oneIf(kind.Open), kind.Kind)
		c.gauge(descObjects, float64(kind.Objects), kind.Kind)
		if d, known := descCaches[kind.Kind]; known && detailed {
			c.gauge(d, float64(kind.Objects))
		}

		c.counter(descMalformed, kind.Malformed, kind.Kind)
		c.counter(descErrors, kind.Errors[countedFromZero], kind.Kind, countedFromZero)
		for reason, n := range kind.Errors {
			if reason != countedFromZero {
				c.counter(descErrors, n, kind.Kind, reason)
			}
		}
	}

	c.counter(descLists, lists)
	c.counter(descWatches, watches)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

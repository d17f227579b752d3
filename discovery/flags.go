package discovery

import (
	"errors"
	"flag"
)

// Flags defines the flags that set c, with c's values as their defaults. Names and meanings are those
// of Linkerd's destination where it has them.
func (c *Config) Flags(fs *flag.FlagSet) {
	fs.StringVar(&c.ControllerNamespace, "controller-namespace", c.ControllerNamespace,
		"namespace of the mesh's control plane, here and in linked clusters")
	fs.BoolVar(&c.IPv6, "enable-ipv6", c.IPv6, "reach workloads over IPv6 where they have it")
	fs.BoolVar(&c.ZoneWeights, "ext-endpoint-zone-weights", c.ZoneWeights,
		"weigh endpoints in the client's zone ten times")
	fs.DurationVar(&c.FirstSyncGrace, "first-sync-grace", c.FirstSyncGrace,
		"how long a first answer waits for a linked cluster that is being listed for the first time, from when it "+
			"was linked; for one that does not answer it waits for 2 s at most")

	fs.BoolVar(&c.DetailedMetrics, "detailed-metrics", c.DetailedMetrics,
		"split the metrics endpoints_* by the member of a federated or mirrored Service, and by the "+
			"hostname and the node of clients: four series for each combination that streams are open for, so "+
			"four times as many as a Service has member clusters. By default a Service has four for each "+
			"port, with its own name, whatever it consists of. Export, too, what no dashboard shows: *_cache_size, "+
			"profile_*, workload_*, service_subscribers, *_informer_lag_seconds of every kind, the latency of "+
			"requests to API servers and histograms of workqueue_*")
}

// Validate returns what in c makes no sense, by the names of the flags.
func (c *Config) Validate() error {
	if c.ControllerNamespace == "" {
		return errors.New("-controller-namespace must not be empty")
	}
	if c.FirstSyncGrace < 0 {
		return errors.New("-first-sync-grace must not be negative")
	}
	return nil
}

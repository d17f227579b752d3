package controlplane

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Options describe what a cluster is like. The zero value is a complete cluster
// with two nodes in two zones.
type Options struct {
	// Name is part of node names, log files and kubeconfig contexts. It must
	// be a DNS label. Default: "cluster-1", "cluster-2", ...
	Name string

	// Region and Zones are the topology labels of the nodes. Default: the
	// name of the cluster, and two zones, <region>-a and <region>-b.
	Region string
	Zones  []string

	// NodesPerZone defaults to 1. The nodes are called <zone>-1, <zone>-2, ...
	NodesPerZone int

	// NodeIP is the address of every node, and so of every pod with
	// hostNetwork: a test that gives an address of this machine can listen
	// there. It must not be a loopback address, because EndpointSlices refuse
	// those. Default: 192.0.2.1, which is set aside for documentation.
	NodeIP string

	// PodCIDR is the range of pod addresses, an IPv4 prefix of /20 or shorter.
	// A sixteenth of it is used until kwok is restarted, then another.
	// Default: a /16 of 10.0.0.0/8 that no other cluster of this process uses.
	PodCIDR string

	// IPv6 gives Services addresses of both families, if they ask for them. Pods
	// have IPv4 addresses all the same.
	IPv6 bool

	// Light leaves out the controllers, the scheduler and the nodes: etcd and
	// kube-apiserver only, for tests that need no pods and no EndpointSlices.
	Light bool

	// Nodeless leaves out the scheduler and the nodes alone: for tests that run
	// the Pods themselves, as internal/node does.
	Nodeless bool

	// Audit records the requests of clients, not those of the control plane's
	// own components: see Cluster.Requests.
	Audit bool

	// Services has the API server reach Services where Route leads it. Without it
	// nothing is behind their addresses.
	Services bool

	// Dir is the directory for the state, more than 100 MB; it must be empty or
	// not exist, and it stays when the cluster stops. Default: a temporary
	// directory that is removed by Stop, or by the next Start if this process
	// does not get there.
	Dir string

	// Logs is the directory for the components' logs, <name>-<component>.log.
	// Default: a directory below the state directory.
	Logs string

	// Binaries is a directory with the programs. Default: that of Binaries.
	Binaries string

	// Progress receives reports of the build of the programs, should it be needed.
	// Default: standard error.
	Progress io.Writer
}

// findBinaries sets Binaries, which may take a build.
func (o *Options) findBinaries(ctx context.Context) error {
	if o.Binaries != "" {
		return nil
	}
	out := o.Progress
	if out == nil {
		out = os.Stderr
	}
	var err error
	o.Binaries, err = Binaries(ctx, out)
	return err
}

// unnamed counts the clusters of this process that were given no name.
var unnamed atomic.Int64

// complete fills in the defaults and refuses what cannot work.
func (o Options) complete() (Options, error) {
	if o.Name == "" {
		o.Name = fmt.Sprintf("cluster-%d", unnamed.Add(1))
	}
	if o.Region == "" {
		o.Region = o.Name
	}
	if len(o.Zones) == 0 {
		o.Zones = []string{o.Region + "-a", o.Region + "-b"}
	}
	if o.NodesPerZone == 0 {
		o.NodesPerZone = 1
	}
	if o.NodeIP == "" {
		o.NodeIP = "192.0.2.1"
	}
	for _, name := range append(slices.Clone(o.Zones), o.Region, o.Name) {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return o, fmt.Errorf("the name %q: %s", name, problems[0])
		}
	}
	if ip, err := netip.ParseAddr(o.NodeIP); err != nil || ip.IsLoopback() {
		return o, fmt.Errorf("the node address %q: want an IP address that is not a loopback address", o.NodeIP)
	}
	if o.NodesPerZone < 0 {
		return o, fmt.Errorf("%d nodes per zone: want 1 or more", o.NodesPerZone)
	}
	return o, nil
}

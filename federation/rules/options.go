package rules

import (
	"net/netip"
	"slices"
)

// Options are what the flags of a process decide for all answers.
type Options struct {
	Identity      IdentityDomain
	ClusterDomain string // that names of Services end in

	ClusterNetworks []Network // what is inside of the cluster; without exceptions
	OpaquePorts     *PortList // of Services and EgressNetworks that do not list theirs

	// Of clients.
	DefaultPolicy DefaultPolicy // of ports without a Server
	ProbeNetworks []Network     // from which kubelets probe; none: probes are not let in by themselves

	// Of what clients send.
	EgressNamespace     string // whose EgressNetworks are those of namespaces that have none
	AllowRequestHeaders bool   // whether clients may set l5d-* headers on routes
	GRPCAppProtocol     bool   // whether the appProtocol grpc is HTTP/2; otherwise it is unknown
}

// InCluster reports whether an address is in one of the cluster's networks.
func (o *Options) InCluster(addr netip.Addr) bool { return contained(o.ClusterNetworks, addr) }

func contained(networks []Network, addr netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n Network) bool { return n.Contains(addr) })
}

// Everywhere is the networks of all addresses.
var Everywhere = []Network{
	{block: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}, {block: netip.PrefixFrom(netip.IPv6Unspecified(), 0)},
}

// outside returns all addresses without those of some networks, which have no exceptions.
func outside(networks []Network) []Network {
	var all []Network
	for _, n := range Everywhere {
		n.except = nil
		for _, exception := range networks {
			if exception.block.Addr().BitLen() == n.block.Addr().BitLen() {
				n.except = append(n.except, exception.block)
			}
		}
		n.except = widest(n.except)
		all = append(all, n)
	}
	return all
}

package rules

import (
	"cmp"
	"math/big"
	"net/netip"
)

// An EgressNetwork is a part of the world outside of the cluster.
type EgressNetwork struct {
	Meta
	Networks []Network // nil: all but those of the cluster; empty: none
	Deny     bool      // traffic that no route allows
	Settings Settings
}

// Egress returns the EgressNetwork that decides about an address outside of the cluster; nil for none. Of those that
// contain it it is the one whose network has the fewest addresses, then the oldest. own are those of the client's
// namespace; if it has any, those of the namespace for all do not count.
func (o *Options) Egress(addr netip.Addr, own, global []*EgressNetwork) (found *EgressNetwork) {
	if o.InCluster(addr) {
		return nil
	}
	if len(own) == 0 {
		own = global
	}

	var smallest *big.Int
	for _, egress := range own {
		size := o.sizeAround(egress, addr)
		if size == nil {
			continue
		}

		if found == nil || cmp.Or(size.Cmp(smallest), CompareAge(&egress.Meta, &found.Meta)) < 0 {
			found, smallest = egress, size
		}
	}

	return found
}

// sizeAround returns the size of the smallest network that contains an address; nil if none does.
func (o *Options) sizeAround(e *EgressNetwork, addr netip.Addr) (smallest *big.Int) {
	for _, n := range o.networksOf(e) {
		if !n.Contains(addr) {
			continue
		}
		if size := n.Size(); smallest == nil || size.Cmp(smallest) < 0 {
			smallest = size
		}
	}
	return smallest
}

func (o *Options) networksOf(e *EgressNetwork) []Network {
	if e.Networks == nil {
		return outside(o.ClusterNetworks)
	}
	return e.Networks
}

// AcceptsEgress reports whether an EgressNetwork keeps out of the cluster: each network of the cluster that one of its
// networks overlaps is covered by one of that network's exceptions.
func (o *Options) AcceptsEgress(e *EgressNetwork) bool {
	for _, n := range o.networksOf(e) {
		for _, inside := range o.ClusterNetworks {
			if n.block.Overlaps(inside.block) && !n.excepts(inside.block) {
				return false
			}
		}
	}
	return true
}

// excepts reports whether an exception covers a network entirely.
func (n Network) excepts(block netip.Prefix) bool {
	for _, exception := range n.except {
		if exception.Bits() <= block.Bits() && exception.Contains(block.Addr()) {
			return true
		}
	}
	return false
}

package app_test

import (
	"cmp"
	"fmt"
	"math/big"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Which EgressNetwork decides about an address, as the model has it.

var modelClusterNetworks = prefixes("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func inCluster(ip netip.Addr) bool {
	return slices.ContainsFunc(modelClusterNetworks, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// A modelNetwork is a block and its exceptions.
type modelNetwork struct {
	block  netip.Prefix
	except []netip.Prefix
}

func (n modelNetwork) contains(ip netip.Addr) bool {
	return n.block.Contains(ip) &&
		!slices.ContainsFunc(n.except, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// size returns how many addresses it has. Of two blocks either one contains the other, or they have no address in
// common: so those exceptions count that no other one contains.
func (n modelNetwork) size() *big.Int {
	addresses := func(p netip.Prefix) *big.Int {
		return new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
	}
	all := addresses(n.block)
	for i, e := range n.except {
		within := slices.IndexFunc(n.except, func(other netip.Prefix) bool {
			return other.Overlaps(e) && (other.Bits() < e.Bits())
		})
		if within < 0 && slices.Index(n.except, e) == i && n.block.Overlaps(e) {
			all.Sub(all, addresses(e))
		}
	}
	return all
}

// networksOf returns the networks of an EgressNetwork. It returns false if they cannot be read: then it is not there.
func networksOf(o *unstructured.Unstructured) (all []modelNetwork, readable bool) {
	given, is := specOf(o)["networks"]
	if !is || given == nil {
		return []modelNetwork{
			{netip.MustParsePrefix("0.0.0.0/0"), modelClusterNetworks}, {block: netip.MustParsePrefix("::/0")},
		}, true
	}

	for _, v := range listOf(given) {
		block, err := netip.ParsePrefix(fmt.Sprint(fieldsOf(v)["cidr"]))
		if err != nil {
			return nil, false
		}
		network := modelNetwork{block: block}
		for _, e := range listOf(fieldsOf(v)["except"]) {
			network.except = append(network.except, netip.MustParsePrefix(e.(string)))
		}
		all = append(all, network)
	}
	return all, true
}

// egressNetworks returns those of a namespace that can be read.
func (m *policyModel) egressNetworks(namespace string) (all []unstructured.Unstructured) {
	for _, o := range m.objects {
		if o.GetKind() != "EgressNetwork" || o.GetNamespace() != namespace {
			continue
		}
		if _, readable := networksOf(&o); !readable {
			m.sees("an EgressNetwork that cannot be read")
			continue
		}
		all = append(all, o)
	}
	return all
}

// egressFor returns the EgressNetwork that decides about an address for clients of a namespace; nil for none.
func (m *policyModel) egressFor(client string, ip netip.Addr) *unstructured.Unstructured {
	candidates := m.egressNetworks(client)
	if len(candidates) == 0 {
		candidates = m.egressNetworks("linkerd-egress")
	}

	sizes := map[string]*big.Int{}
	candidates = slices.DeleteFunc(candidates, func(o unstructured.Unstructured) bool {
		networks, _ := networksOf(&o)
		for _, n := range networks {
			if size := n.size(); n.contains(ip) && (sizes[o.GetName()] == nil || size.Cmp(sizes[o.GetName()]) < 0) {
				sizes[o.GetName()] = size
			}
		}
		return sizes[o.GetName()] == nil
	})
	slices.SortStableFunc(candidates, func(a, b unstructured.Unstructured) int {
		return cmp.Or(sizes[a.GetName()].Cmp(sizes[b.GetName()]), byAge(a, b))
	})

	if len(candidates) == 0 {
		return nil
	}
	if len(candidates) > 1 {
		m.sees("an address of two EgressNetworks")
	}
	if candidates[0].GetNamespace() != client {
		m.sees("an EgressNetwork for all namespaces")
	}
	return &candidates[0]
}

// accepts reports whether an EgressNetwork keeps out of the cluster.
func (m *policyModel) accepts(o *unstructured.Unstructured) bool {
	networks, readable := networksOf(o)
	for _, n := range networks {
		for _, inside := range modelClusterNetworks {
			covered := slices.ContainsFunc(n.except, func(e netip.Prefix) bool {
				return e.Bits() <= inside.Bits() && e.Overlaps(inside)
			})
			if n.block.Overlaps(inside) && !covered {
				m.sees("an EgressNetwork that is not accepted")
				return false
			}
		}
	}
	return readable
}

package federation

import (
	"cmp"
	"slices"

	"github.com/fingerpost/fingerpost/federation/policy"
)

// A Node is what is known of a node of the local cluster.
type Node struct {
	Zone      string
	Sixteenth uint8 // where its clients stand, of all: see Place
}

// A ranking gives each node of the local cluster the sixteenth that its clients are in.
//
// Where a fraction of an endpoint is given, some sixteenths of the clients get one more. So each has to have as many
// clients as another, and nodes stand for clients. Hashes of names do not divide few nodes evenly: of 64, two to seven
// are in one of 16 parts, and a share of 20 % beside one endpoint becomes 14 to 26 %. Ranks do: the nodes are in the
// order of the hashes of their names, and the one of rank r of n is in sixteenth 16*r/n. Every replica that knows the
// same nodes computes the same.
//
// A node that comes or goes moves the borders between sixteenths by less than one node. So only a node beside a border
// may get into another one, and its clients one endpoint more or less of a member. Which endpoints they get depends on
// their bucket, which is by the name alone.
//
// Example: of 32 nodes each sixteenth has 2. One more in front makes rank 1 of 32, which was in sixteenth 0, rank 2 of
// 33, which is in 0 as well (32/33); rank 31 becomes 32 of 33, and stays in 15.
type ranking struct {
	order []rankedNode // of all nodes
}

type rankedNode struct {
	hash uint64
	name string
}

func (a rankedNode) compare(b rankedNode) int {
	return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.name, b.name))
}

// sixteenth returns the one of a rank.
func (r *ranking) sixteenth(rank int) uint8 { return uint8(policy.Buckets * rank / len(r.order)) }

// find returns the rank that a node has, or would have.
func (r *ranking) find(name string) (rank int, known bool) {
	return slices.BinarySearchFunc(r.order, rankedNode{policy.Hash(name), name}, rankedNode.compare)
}

// Place implements [facts.Arranger].
func (r *ranking) Place(name string, node Node) Node {
	rank, known := r.find(name)
	if !known {
		r.order = slices.Insert(r.order, rank, rankedNode{policy.Hash(name), name})
	}
	node.Sixteenth = r.sixteenth(rank)
	return node
}

// Remove implements [facts.Arranger].
func (r *ranking) Remove(name string) {
	if rank, known := r.find(name); known {
		r.order = slices.Delete(r.order, rank, rank+1)
	}
}

// Rearrange implements [facts.Arranger]: it sets the sixteenths of the nodes beside each border again.
func (r *ranking) Rearrange(get func(string) (Node, bool), set func(string, Node)) {
	for border := 1; border < policy.Buckets; border++ {
		first := (border*len(r.order) + policy.Buckets - 1) / policy.Buckets // rank behind the border
		for rank := max(0, first-1); rank <= first && rank < len(r.order); rank++ {
			name := r.order[rank].name
			node, _ := get(name)
			if at := r.sixteenth(rank); node.Sixteenth != at {
				node.Sixteenth = at
				set(name, node)
			}
		}
	}
}

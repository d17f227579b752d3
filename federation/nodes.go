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

// nodeTable is the nodes of the local cluster, each with the sixteenth that its clients are in.
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
type nodeTable struct {
	factTable[string, Node]
	order []rankedNode // as in the table
}

type rankedNode struct {
	hash uint64
	name string
}

func (a rankedNode) compare(b rankedNode) int {
	return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.name, b.name))
}

// sixteenth returns the one of a rank.
func (t *nodeTable) sixteenth(rank int) uint8 { return uint8(policy.Buckets * rank / len(t.order)) }

func (t *nodeTable) write(s *Store, name, zone string) {
	n := rankedNode{policy.Hash(name), name}
	rank, known := slices.BinarySearchFunc(t.order, n, rankedNode.compare)
	if !known {
		t.order = slices.Insert(t.order, rank, n)
	}
	t.factTable.write(s, name, Node{zone, t.sixteenth(rank)})
	if !known {
		t.moveBorders(s)
	}
}

func (t *nodeTable) delete(s *Store, name string) {
	t.factTable.delete(s, name)
	rank, known := slices.BinarySearchFunc(t.order, rankedNode{policy.Hash(name), name}, rankedNode.compare)
	if known {
		t.order = slices.Delete(t.order, rank, rank+1)
		t.moveBorders(s)
	}
}

func (t *nodeTable) deleteUnwritten(s *Store) {
	for name := range t.unwritten {
		t.delete(s, name)
	}
	t.unwritten = nil
}

// moveBorders sets the sixteenths of the nodes beside each border again, after one node has come or gone.
func (t *nodeTable) moveBorders(s *Store) {
	for border := 1; border < policy.Buckets; border++ {
		first := (border*len(t.order) + policy.Buckets - 1) / policy.Buckets // rank behind the border
		for rank := max(0, first-1); rank <= first && rank < len(t.order); rank++ {
			name := t.order[rank].name
			node, _ := t.table.Get(name)
			if at := t.sixteenth(rank); node.Sixteenth != at {
				node.Sixteenth = at
				s.noteFact(t.table.Swap(name, node))
			}
		}
	}
}

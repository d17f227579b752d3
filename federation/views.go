package federation

import (
	"hash/maphash"
	"iter"
	"math/bits"
	"slices"
)

// Views are the Views of one cluster at one moment. It is immutable: a change makes
// another one, which shares all but a few nodes with it, so that any number of readers walk through all
// Services of a cluster while it goes on writing, and none of them waits. It is a trie by the hash of
// the Service: a change copies one node a level, of 16 pointers at most, and there are four levels at
// 100,000 Services. nil is empty.
type Views struct {
	root *node
	len  int
}

// node is a leaf, with a Service and its View, or a fork with at least one fork or two leaves below it.
type node struct {
	svc  Service
	view *View   // nil: a fork
	bits uint16  // which of 16 kids there are
	kids []*node // these
}

// Get returns the View of svc; nil for none.
func (v *Views) Get(svc Service) *View {
	if v == nil || v.root == nil {
		return nil
	}

	node := v.root
	for p := pathTo(svc); node.view == nil; p = p.down() {
		bit := p.bit()
		if node.bits&bit == 0 {
			return nil
		}
		node = node.kids[node.kidIndex(bit)]
	}

	if node.svc != svc {
		return nil
	}
	return node.view
}

// Len returns the number of Services.
func (v *Views) Len() int {
	if v == nil {
		return 0
	}
	return v.len
}

// All yields every Service, in no order.
func (v *Views) All() iter.Seq2[Service, *View] {
	return func(yield func(Service, *View) bool) {
		if v != nil && v.root != nil {
			v.root.walk(yield)
		}
	}
}

func (n *node) walk(yield func(Service, *View) bool) bool {
	if n.view != nil {
		return yield(n.svc, n.view)
	}
	for _, kid := range n.kids {
		if !kid.walk(yield) {
			return false
		}
	}
	return true
}

// With returns the Views in which view is that of svc; nil for none.
func (v *Views) With(svc Service, view *View) *Views {
	next := Views{}
	if v != nil {
		next = *v
	}
	if next.Get(svc) != nil {
		next.len--
	}

	if view != nil {
		next.len++
		next.root = next.root.with(pathTo(svc), &node{svc: svc, view: view})
	} else {
		next.root = next.root.without(pathTo(svc))
	}
	return &next
}

// with returns n with a leaf put in, or in the place of the one of the same Service; n may be nil.
func (n *node) with(path path, leaf *node) *node {
	switch {
	case n == nil || n.view != nil && n.svc == leaf.svc:
		return leaf
	case n.view != nil:
		old := pathTo(n.svc)
		for old.level < path.level {
			old = old.down()
		}
		return (&node{bits: old.bit(), kids: []*node{n}}).with(path, leaf)
	}

	bit := path.bit()
	at, next := n.kidIndex(bit), &node{bits: n.bits | bit}
	if n.bits&bit == 0 {
		next.kids = slices.Concat(n.kids[:at], []*node{leaf}, n.kids[at:])
	} else {
		next.kids = slices.Clone(n.kids)
		next.kids[at] = n.kids[at].with(path.down(), leaf)
	}
	return next
}

// without returns n without the leaf at the end of a path, if there is one; nil if nothing is left.
func (n *node) without(path path) *node {
	switch {
	case n == nil || n.view != nil && n.svc == path.svc:
		return nil
	case n.view != nil:
		return n
	}

	bit := path.bit()
	if n.bits&bit == 0 {
		return n
	}

	at := n.kidIndex(bit)
	kid := n.kids[at].without(path.down())

	switch {
	case kid == n.kids[at]:
		return n
	case kid == nil && len(n.kids) == 2 && n.kids[1-at].view != nil: // a leaf that is alone needs no fork
		return n.kids[1-at]
	case kid == nil && len(n.kids) == 1:
		return nil
	case kid == nil:
		return &node{bits: n.bits &^ bit, kids: slices.Delete(slices.Clone(n.kids), at, at+1)}
	case kid.view != nil && len(n.kids) == 1:
		return kid
	}

	next := &node{bits: n.bits, kids: slices.Clone(n.kids)}
	next.kids[at] = kid
	return next
}

// kidIndex returns where the kid of a bit stands among the others, or would.
func (n *node) kidIndex(bit uint16) int { return bits.OnesCount16(n.bits & (bit - 1)) }

// path leads to a Service: four bits of its hash a level, and of another hash each 16 levels, so that
// different Services part sometime.
type path struct {
	svc   Service
	hash  uint64
	level int
}

var seed = maphash.MakeSeed()

func pathTo(svc Service) path { return path{svc: svc, hash: maphash.Comparable(seed, svc)} }

func (p path) bit() uint16 { return 1 << (p.hash & 15) }

func (p path) down() path {
	p.level++
	p.hash >>= 4
	if p.level%16 == 0 {
		p.hash = maphash.Comparable(seed, path{svc: p.svc, level: p.level})
	}
	return p
}

package facts

import (
	"maps"

	"github.com/fingerpost/fingerpost/federation/watch"
)

// Any is a Table whatever its facts are: what is done to all that there are.
type Any interface {
	Name() string
	IsDerived() bool
	Link(c Cluster)
	Unlink(c Cluster) []watch.Superseded
	Copy(c Cluster, before Copy) Copy
	Restore(c Cluster, all any)
}

// A Copy is everything that one cluster has written of one kind. It is immutable.
type Copy struct {
	All        any  // a map of keys to values; nil: it has never written any
	IsComplete bool // it has written all once

	version uint64
}

// Same reports whether nothing has changed between two Copies of what one cluster has written of one kind.
func (c Copy) Same(o Copy) bool { return c.version == o.version }

// Copy returns what a cluster has written; before, if nothing has changed since; the zero Copy of a cluster that has
// never written. It is copied in parts: of a key that changes meanwhile it has the old value, the new one, or none.
func (t *Table[K, V]) Copy(c Cluster, before Copy) Copy {
	p := t.part(c)
	if p == nil {
		return Copy{}
	}
	now := Copy{version: p.version.Load(), IsComplete: p.Completeness() != Incomplete}
	if now.Same(before) {
		return before
	}
	now.All = maps.Collect(p.values.All())
	return now
}

// Restore writes everything that a cluster had written, a map as a Copy has it, in a term that ends by that. It does
// nothing if there is no such map: then it is not known what the cluster had written.
func (t *Table[K, V]) Restore(c Cluster, all any) {
	values, known := all.(map[K]V)
	if !known {
		return
	}
	w := t.NewWriter(c)
	for k, v := range values {
		w.Set(k, v)
	}
	w.markSynced(Restored)
}

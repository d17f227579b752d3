package endpointslice

import (
	"slices"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

// An account that may write a Service in a linked cluster names its members, and reads the slices that are written
// for it. So a linked cluster is shown what it has itself, what its source exports, and what the local Service of
// that namespace and name stands for: who may write that one has decided it. It learns of nothing else by asking
// for it.
//
// For example, shop/all in east has the members web@east, web@west and secret@local. It gets the endpoints of the
// first one; those of web in west, if that has a label by which it is exported, or if the local shop/all has web@west
// too; and those of the local shop/secret on the same terms.

// shown returns the Snapshot of a Service in this cluster without the members that it may not be shown.
func (f *federatedSlices) shown(k key, snapshot *federation.Snapshot) *federation.Snapshot {
	if f.Local {
		return snapshot
	}
	local := f.writer.store.View(f.localRef(k))
	members := shownMembers(local, snapshot.Members)
	if len(members) == len(snapshot.Members) {
		return snapshot
	}
	next := *snapshot
	next.Members = members
	return &next
}

// shownMembers returns those of the members that a linked cluster may be shown; local is the View of the local
// Service of the same name, nil for none.
func shownMembers(local *federation.View, all []*federation.Member) []*federation.Member {
	return slices.DeleteFunc(slices.Clone(all), func(m *federation.Member) bool {
		return !m.Origin.Home && m.View != nil && m.View.Unexported && !names(local, m.Origin.Ref)
	})
}

// names reports whether a Service stands for another one.
func names(v *federation.View, ref federation.Ref) bool {
	return v != nil && v.Composition != nil &&
		slices.ContainsFunc(v.Composition.Members, func(m federation.MemberRef) bool { return m.Ref == ref })
}

// reportPrivate reports the members of a Service that are not shown to its cluster, when their number changes.
func (f *federatedSlices) reportPrivate(svc *serviceRecord, all, shown []*federation.Member) {
	n := len(all) - len(shown)
	if !svc.optIn {
		n = 0
	}
	if before := f.setPrivate(svc.key, n); n == 0 || before != 0 {
		return
	}
	i := slices.IndexFunc(all, func(m *federation.Member) bool { return !slices.Contains(shown, m) })
	f.Log.Info("A linked cluster is not told of members of a Service that their clusters do not export: label them "+
		linkerd.ExportedLabel+", or have the local Service of its name have them", "service", svc.String(),
		"members", n, "first", all[i].Origin.Name+"@"+string(all[i].Origin.Cluster))
}

// setPrivate records how many members of a Service are not shown to its cluster, and returns how many were not
// before.
func (f *federatedSlices) setPrivate(k key, members int) (before int) {
	f.mu.Lock()
	defer f.mu.Unlock()

	before = f.private[k]
	delete(f.private, k)
	if members > 0 {
		f.private[k] = members
	}

	sum := 0
	for _, n := range f.private {
		sum += n
	}
	if before != members {
		f.writer.metrics.private.WithLabelValues(f.Name).Set(float64(sum))
	}
	return before
}

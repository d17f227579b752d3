package view

import (
	"iter"
	"slices"

	"github.com/fingerpost/fingerpost/federation"
)

// Optional kinds that could not be listed.
//
// A cluster is synced without its optional kinds, after some seconds. One that the API server does not serve
// has no objects. Of one that it fails to list, or that we may not read, it is not known which there are; and
// what was published before, by the engagement that this one replaces or from a checkpoint, is better than
// nothing. So what follows from such a kind stays as it was published until it is listed:
//
//   - ExternalWorkloads that are named by endpoints;
//   - the ports that Servers make opaque at a workload;
//   - Nodes and ServiceProfiles.
//
// Which endpoints there are follows from EndpointSlices, which are required: none stays that is gone.
// Not kept are the owners of Pods, which only labels of metrics name, and the addresses of
// ExternalWorkloads, by which clients in the local cluster may look them up. A workload that is new has
// no opaque ports by Servers until then.
//
// Once the kind is listed, what was kept is reconciled like everything else: nothing remembers it afterwards.
// It costs a pass over what is published when the reconciler begins, and for Servers an entry for each
// workload of which they make ports opaque.

// keepPublished keeps what was published and follows from kinds that are not listed.
// It precedes what is read.
func (r *Reconciler) keepPublished(unlisted []Kind) {
	isUnlisted := func(of objectKind) bool {
		return slices.ContainsFunc(unlisted, func(k Kind) bool { return k.of == of })
	}
	keep := func(of objectKind, ref objectRef) { r.kept[of] = append(r.kept[of], ref) }
	if isUnlisted(kindNode) {
		for _, name := range r.writer.KeepNodes() {
			keep(kindNode, objectRef{kindNode, key{Name: name}})
		}
	}

	if isUnlisted(kindProfile) {
		for _, name := range r.writer.KeepProfiles() {
			keep(kindProfile, objectRef{kindProfile, key(name)})
		}
	}

	externals, servers := isUnlisted(kindExternal), isUnlisted(kindServer)
	if !externals && !servers {
		return
	}

	for e := range r.publishedEndpoints() {
		if e.Workload == nil {
			continue
		}

		ref := refOf(e.Workload)
		if externals && ref.kind == kindExternal {
			r.workloads[kindExternal].Put(ref.key, &workloadState{workload: e.Workload, node: e.Node})
			keep(kindExternal, ref)
		}
		if opaque := e.Workload.Template().ServerOpaque; servers && opaque.Given() {
			r.keptOpaque[ref] = opaque
			keep(kindServer, ref)
		}
	}
}

// publishedEndpoints yields the endpoints that were published of the Services that exist.
func (r *Reconciler) publishedEndpoints() iter.Seq[*federation.Endpoint] {
	return func(yield func(*federation.Endpoint) bool) {
		for _, k := range r.services.Keys() {
			v := r.writer.View(federation.Service(k))
			if v == nil {
				continue
			}

			for _, slice := range v.Slices {
				for _, e := range slice.Endpoints {
					if !yield(e) {
						return
					}
				}
			}
		}
	}
}

// Listed ends what Begin has kept for a kind, which is listed by now, or known to be absent.
func (r *Reconciler) Listed(k Kind) { r.queue.Add(objectRef{kindListed, key{Name: k.Name}}) }

func (r *Reconciler) reconcileListed(name string) {
	of := r.kinds[slices.IndexFunc(r.kinds, func(k Kind) bool { return k.Name == name })].of
	refs := r.kept[of]
	delete(r.kept, of)
	if of == kindServer {
		clear(r.keptOpaque)
	}
	for _, ref := range refs {
		r.reconcileObject(ref)
	}
}

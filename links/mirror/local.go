package mirror

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// A localInput is what must be read of the local cluster. While it is refused, each Link reports that.
type localInput struct {
	apply.Input
	term *term
	kind string
}

func (i localInput) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if watch.WaitClosed(ctx, i.Refused()) {
			i.term.setLocalRefusal("the API server refuses to list " + i.kind +
				": grant get, list and watch on services and endpoints")
		}
	})
	i.Input.Run(ctx)
	wg.Wait()
}

// Denied never closes: the term waits.
func (i localInput) Denied() <-chan struct{} { return nil }

// setLocalRefusal sets why the local cluster cannot be listed, and reports it in every Link.
func (t *term) setLocalRefusal(reason string) {
	t.mu.Lock()
	if watch.IsClosed(t.ready) {
		reason = "" // an earlier listing is enough
	}
	t.localRefusal = reason
	t.mu.Unlock()

	if reason != "" {
		logs.Warn(t.log, "Nothing can be mirrored", "reason", reason)
	}
	now, _ := t.linkSet.Load()
	for _, l := range now.links {
		t.enqueueLink(l.Link)
	}
}

// records yields what a Store holds, in no order.
func records[R any](s *api.Store[R]) iter.Seq2[api.Key, R] {
	return func(yield func(api.Key, R) bool) {
		for _, k := range s.Keys() {
			if r, found := s.Get(k); found && !yield(k, r) {
				return
			}
		}
	}
}

// localServiceChanged enqueues what a Service of the local cluster bears on: the one of its own name, the federated
// one that it joins or may have left, and the headless mirrors that list it.
func (t *term) localServiceChanged(k api.Key) {
	t.indexClusters(k)
	svc := t.readLocal(k)
	t.byParent.put(k, parentsOf(svc)...)
	t.enqueue(t.budget.assign(k, chargedCluster(svc))...)
	t.enqueue(k)
	if federated := federatedName(k); joinsFederated(svc) || t.readLocal(federated) != nil {
		t.enqueue(federated)
	}
	t.enqueue(t.headlessMirrors(k)...)
}

// endpointsChanged enqueues the name of Endpoints. Their events and those of their Service have no order.
func (t *term) endpointsChanged(k api.Key) {
	t.indexClusters(k)
	t.enqueue(k)
}

// joinsFederated reports whether a Service of the local cluster, if there is one, joins the federated one of its name.
func joinsFederated(svc *corev1.Service) bool {
	return svc != nil && svc.Labels[federatedLabel] == "member"
}

// namespaceChanged enqueues everything in a namespace that was created or deleted.
func (t *term) namespaceChanged(k api.Key) {
	_, found := t.namespaces.Get(k)
	before := t.knownNamespaces[k.Name]
	delete(t.knownNamespaces, k.Name)
	if found {
		t.knownNamespaces[k.Name] = true
	}
	if before != found {
		t.enqueueNames(k.Name)
	}
}

// clustersOf returns the linked clusters that a Service is the mirror of a Service of, has members in, or was written
// for; svc is nil for one that does not exist.
func clustersOf(svc *corev1.Service) []string {
	if svc == nil || !isOurs(svc) {
		return nil
	}
	all := slices.Collect(maps.Keys(ownersOf(svc)))
	for _, m := range membershipOf(svc).remote {
		all = append(all, clusterOf(m))
	}
	if cluster := svc.Labels[clusterLabel]; cluster != "" {
		all = append(all, cluster)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// unlinkedClusters stands in byCluster for all clusters without a Link. Users of this cluster may name any number of
// them.
const unlinkedClusters = ""

// indexClusters records which linked clusters a Service depends on, or else Endpoints that are left of one. Of one that
// names others, or is large, it is known that it may depend on any.
func (t *term) indexClusters(key api.Key) {
	t.indexing.Lock()
	defer t.indexing.Unlock()
	now, _ := t.linkSet.Load()
	svc := t.readLocal(key)
	all := clustersOf(svc) // sorted
	if e := t.readEndpoints(key); svc == nil && e != nil && isOurs(e) {
		all = []string{e.Labels[clusterLabel]}
	}

	var linked []string
	for _, l := range now.links {
		if _, found := slices.BinarySearch(all, l.Cluster); found && !slices.Contains(linked, l.Cluster) {
			linked = append(linked, l.Cluster)
		}
	}
	if len(linked) < len(all) || isLarge(svc) {
		linked = append(linked, unlinkedClusters)
	}
	t.byCluster.put(key, linked...)
}

// dependentsOf returns the names of what depends on a cluster, and of what may.
func (t *term) dependentsOf(cluster string) []api.Key {
	return append(t.byCluster.dependents(cluster), t.byCluster.dependents(unlinkedClusters)...)
}

// parentsOf returns the headless mirror that a Service is the mirror of an endpoint of, if it is one.
func parentsOf(svc *corev1.Service) []api.Key {
	if svc == nil || svc.Labels[headlessLabel] == "" {
		return nil
	}
	return []api.Key{{Namespace: svc.Namespace, Name: svc.Labels[headlessLabel]}}
}

// countMissing counts the mirrors and memberships of a linked cluster, and those whose remote Services are not
// found.
func (t *term) countMissing(linked string, found func(api.Key) bool) (all, missing int) {
	for _, key := range t.dependentsOf(linked) {
		svc := t.readLocal(key)
		if svc == nil || !isMirror(svc) || svc.Labels[headlessLabel] != "" {
			continue
		}
		name := ""
		if svc.Labels[clusterLabel] == linked {
			name = strings.TrimSuffix(key.Name, "-"+linked)
		} else if base := strings.TrimSuffix(key.Name, federatedSuffix); membershipOf(svc).has(base, linked) {
			name = base
		}

		if name == "" {
			continue
		}
		all++
		if !found(api.Key{Namespace: key.Namespace, Name: name}) {
			missing++
		}
	}
	return all, missing
}

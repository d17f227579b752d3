package mirror

import (
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// A localIndex finds Services of the local cluster by what they depend on, so that an event of one linked cluster
// costs what that cluster has here. The zero value is empty.
type localIndex struct {
	mu        sync.Mutex
	entries   map[api.Key]localEntry
	byCluster map[string]map[api.Key]bool
	byParent  map[api.Key]map[api.Key]bool
}

// A localEntry is what a Service depends on.
type localEntry struct {
	clusters []string // that it is a mirror of, or has members in, or was written for
	parent   api.Key  // the headless mirror that it is an endpoint of; zero if it is none
	joins    bool     // it is a member of a federated Service
}

func newLocalEntry(k api.Key, svc *corev1.Service) (e localEntry) {
	if svc == nil {
		return e
	}
	e.joins = svc.Labels[federatedLabel] == "member"
	if parent := svc.Labels[headlessLabel]; parent != "" {
		e.parent = api.Key{Namespace: k.Namespace, Name: parent}
	}
	if !isOurs(svc) {
		return e
	}
	all := slices.Collect(maps.Keys(ownersOf(svc)))
	for _, m := range membershipOf(svc).remote {
		_, cluster, _ := strings.Cut(m, "@")
		all = append(all, cluster)
	}
	if cluster := svc.Labels[clusterLabel]; cluster != "" {
		all = append(all, cluster)
	}
	slices.Sort(all)
	e.clusters = slices.Compact(all)
	return e
}

func (e localEntry) isZero() bool { return len(e.clusters) == 0 && e.parent == api.Key{} && !e.joins }

// update replaces what is known of a Service; nil if it was deleted. It returns what it depended on, and does now.
func (x *localIndex) update(k api.Key, svc *corev1.Service) (old, now localEntry) {
	now = newLocalEntry(k, svc)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.entries == nil {
		x.entries = map[api.Key]localEntry{}
		x.byCluster, x.byParent = map[string]map[api.Key]bool{}, map[api.Key]map[api.Key]bool{}
	}
	old = x.entries[k]
	for _, cluster := range old.clusters {
		removeFrom(x.byCluster, cluster, k)
	}
	removeFrom(x.byParent, old.parent, k)
	delete(x.entries, k)
	if now.isZero() {
		return old, now
	}
	x.entries[k] = now
	for _, cluster := range now.clusters {
		addTo(x.byCluster, cluster, k)
	}
	if now.parent != (api.Key{}) {
		addTo(x.byParent, now.parent, k)
	}
	return old, now
}

// ofCluster returns the Services that depend on a cluster, in no order.
func (x *localIndex) ofCluster(cluster string) []api.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.byCluster[cluster]))
}

// ofParent returns the mirrors of the endpoints of a headless mirror, in no order.
func (x *localIndex) ofParent(parent api.Key) []api.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.byParent[parent]))
}

func addTo[K, E comparable](index map[K]map[E]bool, at K, e E) {
	if index[at] == nil {
		index[at] = map[E]bool{}
	}
	index[at][e] = true
}

func removeFrom[K, E comparable](index map[K]map[E]bool, at K, e E) {
	if delete(index[at], e); len(index[at]) == 0 {
		delete(index, at)
	}
}

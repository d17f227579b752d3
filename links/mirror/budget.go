package mirror

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// A budget limits the Services that exist here for each linked cluster: each one takes space in etcd, and
// an address of the range that all Services share. Existing Services stay, and are kept up to date. New
// ones beyond the limit wait until another one is deleted.
type budget struct {
	limit int // for each cluster; 0: none

	mu        sync.Mutex
	clusterOf map[api.Key]string // the cluster that a Service counts for; also of one that is being created
	count     map[string]int
	waiting   map[string]map[api.Key]bool // by cluster: Services that were not created
}

func newBudget(limit int) *budget {
	return &budget{
		limit: limit, clusterOf: map[api.Key]string{}, count: map[string]int{},
		waiting: map[string]map[api.Key]bool{},
	}
}

// assign sets the cluster that a Service counts for; empty for none. It returns what may be created instead.
func (b *budget) assign(k api.Key, cluster string) []api.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.clusterOf[k]
	if old == cluster {
		return nil
	}
	b.setCluster(k, cluster)
	return b.nextWaiting(old)
}

// reserve counts a Service for the first of several clusters that has space left. If none has, it returns
// false, and the Service waits.
func (b *budget) reserve(key api.Key, clusters []string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	for _, cluster := range clusters {
		if b.limit == 0 || b.clusterOf[key] == cluster || b.count[cluster] < b.limit {
			b.setCluster(key, cluster)
			b.removeWaiting(key)
			return true
		}
	}

	for _, cluster := range clusters {
		if b.waiting[cluster] == nil {
			b.waiting[cluster] = map[api.Key]bool{}
		}
		b.waiting[cluster][key] = true
	}
	return len(clusters) == 0
}

// withdraw removes a name that nothing is to be created under from those that wait. It returns what may be
// created instead.
func (b *budget) withdraw(k api.Key) (again []api.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, cluster := range b.removeWaiting(k) {
		again = append(again, b.nextWaiting(cluster)...)
	}
	return again
}

// exhausted reports whether a Service of a cluster waits.
func (b *budget) exhausted(cluster string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting[cluster]) > 0
}

// The caller of the following holds mu.

func (b *budget) setCluster(k api.Key, cluster string) {
	if old := b.clusterOf[k]; old != "" {
		b.count[old]--
		if b.count[old] == 0 {
			delete(b.count, old)
		}
		delete(b.clusterOf, k)
	}
	if cluster != "" {
		b.clusterOf[k] = cluster
		b.count[cluster]++
	}
}

// removeWaiting returns the clusters for which k waited.
func (b *budget) removeWaiting(k api.Key) (clusters []string) {
	for cluster, waiting := range b.waiting {
		if waiting[k] {
			clusters = append(clusters, cluster)
			delete(waiting, k)
			if len(waiting) == 0 {
				delete(b.waiting, cluster)
			}
		}
	}
	return clusters
}

// nextWaiting returns a Service that waits for a cluster with space left, if there is one.
func (b *budget) nextWaiting(cluster string) []api.Key {
	if b.count[cluster] < b.limit {
		for k := range b.waiting[cluster] {
			return []api.Key{k}
		}
	}
	return nil
}

// chargeableClusters returns the clusters that a Service may count for; none if it exists for no linked
// cluster.
func chargeableClusters(svc *corev1.Service) (clusters []string) {
	switch cluster := svc.Labels[clusterLabel]; {
	case svc.Labels[gatewayLabel] == "true", svc.Annotations[localDiscoveryKey] != "":
		return nil
	case cluster != "":
		return []string{cluster}
	}
	for _, m := range membershipOf(svc).remote {
		clusters = append(clusters, clusterOf(m))
	}
	return clusters
}

// chargedCluster returns the cluster that an existing Service counts for; empty for none.
func chargedCluster(svc *corev1.Service) string {
	if svc == nil || !isOurs(svc) {
		return ""
	}
	if clusters := chargeableClusters(svc); len(clusters) > 0 {
		return strings.Clone(clusters[0]) // and nothing of the list that it is a part of
	}
	return ""
}

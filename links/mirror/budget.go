package mirror

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/records"
)

// A budget counts the Services that stand in the local cluster for each linked one: each takes room in etcd, and an address of the range that
// all Services share. What is there stays, and is kept up to date; what would be made beyond is not, until something else goes.
type budget struct {
	limit int // 0: any number

	mu        sync.Mutex
	clusterOf map[records.Key]string // the cluster that a Service counts for; also of one that is about to be made
	count     map[string]int
	waiting   map[string]map[records.Key]bool // by cluster: what was not made
}

func newBudget(most int) *budget {
	return &budget{limit: most, clusterOf: map[records.Key]string{}, count: map[string]int{}, waiting: map[string]map[records.Key]bool{}}
}

// note notes for which cluster a Service counts; for none if that is empty. It returns what may be made in its place.
func (b *budget) assign(k records.Key, cluster string) []records.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.clusterOf[k]
	if old == cluster {
		return nil
	}
	b.setCluster(k, cluster)
	return b.nextWaiting(old)
}

// take reports whether a Service may be made that counts for one of several clusters, and counts it for the first that has room.
func (b *budget) reserve(k records.Key, clusters []string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, cluster := range clusters {
		if b.limit == 0 || b.clusterOf[k] == cluster || b.count[cluster] < b.limit {
			b.setCluster(k, cluster)
			b.removeWaiting(k)
			return true
		}
	}
	for _, cluster := range clusters {
		if b.waiting[cluster] == nil {
			b.waiting[cluster] = map[records.Key]bool{}
		}
		b.waiting[cluster][k] = true
	}
	return len(clusters) == 0
}

// settle notes that nothing is to be made under a name. It returns what may be instead.
func (b *budget) withdraw(k records.Key) (again []records.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, cluster := range b.removeWaiting(k) {
		again = append(again, b.nextWaiting(cluster)...)
	}
	return again
}

// full reports whether something was not made for a cluster.
func (b *budget) exhausted(cluster string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting[cluster]) > 0
}

// What follows needs mu.

func (b *budget) setCluster(k records.Key, cluster string) {
	if old := b.clusterOf[k]; old != "" {
		if b.count[old]--; b.count[old] == 0 {
			delete(b.count, old)
		}
		delete(b.clusterOf, k)
	}
	if cluster != "" {
		b.clusterOf[k] = cluster
		b.count[cluster]++
	}
}

// drop returns the clusters for which k was refused.
func (b *budget) removeWaiting(k records.Key) (clusters []string) {
	for cluster, refused := range b.waiting {
		if refused[k] {
			clusters = append(clusters, cluster)
			if delete(refused, k); len(refused) == 0 {
				delete(b.waiting, cluster)
			}
		}
	}
	return clusters
}

// next returns something that was refused for a cluster, if it has room now.
func (b *budget) nextWaiting(cluster string) []records.Key {
	if b.count[cluster] < b.limit {
		for k := range b.waiting[cluster] {
			return []records.Key{k}
		}
	}
	return nil
}

// payers returns the clusters of which one has to have room for a Service; none for one that is not for others to ask for.
func chargeableClusters(svc *corev1.Service) (clusters []string) {
	switch cluster := svc.Labels[clusterLabel]; {
	case svc.Labels[gatewayLabel] == "true", svc.Annotations[localDiscoveryKey] != "":
		return nil
	case cluster != "":
		return []string{cluster}
	}
	for _, m := range membershipOf(svc).remote {
		_, cluster, _ := strings.Cut(m, "@")
		clusters = append(clusters, cluster)
	}
	return clusters
}

// payer returns the cluster that a Service counts for; empty for none.
func chargedCluster(svc *corev1.Service) string {
	if svc == nil || !isOurs(svc) {
		return ""
	}
	if clusters := chargeableClusters(svc); len(clusters) > 0 {
		return clusters[0]
	}
	return ""
}

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
	most int // 0: any number

	mu      sync.Mutex
	of      map[records.Key]string // the cluster that a Service counts for; also of one that is about to be made
	count   map[string]int
	refused map[string]map[records.Key]bool // by cluster: what was not made
}

func newBudget(most int) *budget {
	return &budget{most: most, of: map[records.Key]string{}, count: map[string]int{}, refused: map[string]map[records.Key]bool{}}
}

// note notes for which cluster a Service counts; for none if that is empty. It returns what may be made in its place.
func (b *budget) note(k records.Key, cluster string) []records.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.of[k]
	if old == cluster {
		return nil
	}
	b.set(k, cluster)
	return b.next(old)
}

// take reports whether a Service may be made that counts for one of several clusters, and counts it for the first that has room.
func (b *budget) take(k records.Key, clusters []string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, cluster := range clusters {
		if b.most == 0 || b.of[k] == cluster || b.count[cluster] < b.most {
			b.set(k, cluster)
			b.drop(k)
			return true
		}
	}
	for _, cluster := range clusters {
		if b.refused[cluster] == nil {
			b.refused[cluster] = map[records.Key]bool{}
		}
		b.refused[cluster][k] = true
	}
	return len(clusters) == 0
}

// settle notes that nothing is to be made under a name. It returns what may be instead.
func (b *budget) settle(k records.Key) (again []records.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, cluster := range b.drop(k) {
		again = append(again, b.next(cluster)...)
	}
	return again
}

// full reports whether something was not made for a cluster.
func (b *budget) full(cluster string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.refused[cluster]) > 0
}

// What follows needs mu.

func (b *budget) set(k records.Key, cluster string) {
	if old := b.of[k]; old != "" {
		if b.count[old]--; b.count[old] == 0 {
			delete(b.count, old)
		}
		delete(b.of, k)
	}
	if cluster != "" {
		b.of[k] = cluster
		b.count[cluster]++
	}
}

// drop returns the clusters for which k was refused.
func (b *budget) drop(k records.Key) (clusters []string) {
	for cluster, refused := range b.refused {
		if refused[k] {
			clusters = append(clusters, cluster)
			if delete(refused, k); len(refused) == 0 {
				delete(b.refused, cluster)
			}
		}
	}
	return clusters
}

// next returns something that was refused for a cluster, if it has room now.
func (b *budget) next(cluster string) []records.Key {
	if b.count[cluster] < b.most {
		for k := range b.refused[cluster] {
			return []records.Key{k}
		}
	}
	return nil
}

// payers returns the clusters of which one has to have room for a Service; none for one that is not for others to ask for.
func payers(svc *corev1.Service) (clusters []string) {
	switch cluster := svc.Labels[clusterLabel]; {
	case svc.Labels[gatewayLabel] == "true", svc.Annotations[localDiscoveryKey] != "":
		return nil
	case cluster != "":
		return []string{cluster}
	}
	for _, m := range membersOf(svc).remote {
		_, cluster, _ := strings.Cut(m, "@")
		clusters = append(clusters, cluster)
	}
	return clusters
}

// payer returns the cluster that a Service counts for; empty for none.
func payer(svc *corev1.Service) string {
	if svc == nil || !isOurs(svc) {
		return ""
	}
	if clusters := payers(svc); len(clusters) > 0 {
		return clusters[0]
	}
	return ""
}

package cluster

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// The region that most nodes of a cluster have as a label is its region, unless its Link names one; of several the
// first by name. In the local cluster nodes are watched, because the zones of clients follow from them. A linked
// cluster is not watched for what as a rule never changes: the metadata of its first nodes by name is listed once
// when the cluster is in use, and then once in a while. It need not grant that; then its region is not known, which
// is logged once. What fails for other reasons leaves the region as it was.

const (
	regionInterval = time.Hour        // between listings of the nodes of a linked cluster, or up to a quarter more
	regionRetry    = 5 * time.Minute  // after one that has failed, likewise
	regionTimeout  = 10 * time.Second // of one
	regionNodes    = 500              // in one
)

var nodesResource = corev1.SchemeGroupVersion.WithResource("nodes")

// followRegion finds the region of a cluster until its engagement ends.
func (r *Registry) followRegion(ctx context.Context, spec *watch.Value[Spec], conn *api.Connection) {
	s, _ := spec.Load()
	log := r.log.WithValues("cluster", s.Name)
	if s.Local {
		r.watchRegion(logr.NewContext(ctx, log.V(1)), s.Name, conn)
		return
	}
	client, err := metadata.NewForConfigAndClient(metadata.ConfigFor(conn.Config), conn.HTTPClient)
	if err != nil {
		log.Error(err, "BUG: no client from a configuration that is in use")
		return
	}
	timer := time.NewTimer(regionInterval)
	defer timer.Stop()
	for {
		changed := conn.Changed()
		region, err := listRegion(ctx, client)
		if ctx.Err() != nil {
			return
		}
		pause := regionRetry
		if r.reportRegion(log, s.Name, region, err); err == nil {
			pause, changed = regionInterval, nil
		}
		timer.Reset(pause + rand.N(pause/4))
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// listRegion returns the region that most of a cluster's first nodes are in.
func listRegion(ctx context.Context, client metadata.Interface) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, regionTimeout)
	defer cancel()
	list, err := client.Resource(nodesResource).List(ctx, metav1.ListOptions{Limit: regionNodes})
	if err != nil {
		return "", err
	}
	nodes := map[string]int{} // by region
	for i := range min(len(list.Items), regionNodes) {
		if region, has := regionOf(&list.Items[i]); has {
			nodes[region]++
		}
	}
	return mostCommon(nodes), nil
}

// reportRegion records the region of a cluster, or why it is not known, and logs that once.
func (r *Registry) reportRegion(log logr.Logger, name, region string, err error) {
	reason, isNew := "", false
	switch {
	case apierrors.IsForbidden(err):
		reason = "grant list on nodes"
	case err != nil:
		reason = fmt.Sprintf("list nodes: %.200v", err)
	}
	r.setOwn(name, func(own *ownTraffic) {
		if isNew, own.noRegion = own.noRegion != reason, reason; err == nil || apierrors.IsForbidden(err) {
			own.region = region
		}
	})
	if isNew && err != nil {
		log.Info("The region of the cluster is not known: its Nodes cannot be read", "reason", reason)
	}
}

// watchRegion watches the nodes of the local cluster.
func (r *Registry) watchRegion(ctx context.Context, name string, conn *api.Connection) {
	nodes := map[string]int{} // by region
	regions := map[api.Key]string{}
	var informer *api.Informer[string]
	informer = api.NewInformer(conn, api.Metadata(corev1.SchemeGroupVersion, "nodes", "Node"),
		func(object any) (string, bool) {
			m, err := meta.Accessor(object)
			if err != nil {
				return "", false
			}
			region, has := regionOf(m)
			return api.Intern(region), has
		},
		func(k api.Key) {
			old := regions[k]
			now, found := informer.Get(k)
			if regions[k] = now; !found {
				delete(regions, k)
			}
			if nodes[old]--; nodes[old] <= 0 {
				delete(nodes, old)
			}
			if found {
				nodes[now]++
			}
			most := mostCommon(nodes)
			r.setOwn(name, func(own *ownTraffic) { own.region = most })
		})
	informer.Optional()
	informer.Run(ctx)
}

// regionOf returns the region that a node is in.
func regionOf(node metav1.Object) (region string, has bool) {
	region = node.GetLabels()[corev1.LabelTopologyRegion]
	return region, policy.IsRegion(region)
}

// mostCommon returns the key with the highest count, the first by name of several; empty for none.
func mostCommon(counts map[string]int) (most string) {
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		if counts[k] > counts[most] {
			most = k
		}
	}
	return most
}

package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// The region that most nodes of a cluster have as a label is its region, unless its Link names one; of several the
// first by name. In the local cluster nodes are watched, because the zones of clients follow from them. A linked
// cluster is not watched for what as a rule never changes: the metadata of its first nodes by name is listed once
// when the cluster is in use, and then once in a while.

const (
	// regionInterval is the time between listings of the nodes of a linked cluster, or up to a quarter more. One
	// that has failed is repeated after selfRetry, or selfInterval if a right is missing.
	regionInterval = time.Hour
	regionTimeout  = 10 * time.Second // of a listing
	regionNodes    = 500              // in one
)

var nodesResource = corev1.SchemeGroupVersion.WithResource("nodes")

// readRegion records the region that most of a cluster's first nodes are in, or why it is not known, and logs that
// once.
func (r *selfReader) readRegion(ctx context.Context) error {
	region, err := r.requestRegion(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}

	isForbidden := apierrors.IsForbidden(err)
	switch {
	case isForbidden:
		err = missingRight("grant list on nodes")
	case err != nil:
		err = fmt.Errorf("list nodes: %w", err)
	}

	reason := ErrorText(err)
	before := r.setOwn(func(own *ownTraffic) {
		own.noRegion = reason
		if err == nil || isForbidden {
			own.region = region
		}
	})
	if err != nil && before.noRegion != reason {
		r.log.Info("The region of the cluster is not known: its Nodes cannot be read", "reason", reason)
	}
	return err
}

func (r *selfReader) requestRegion(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, regionTimeout)
	defer cancel()
	list, err := r.nodes.List(ctx, metav1.ListOptions{Limit: regionNodes})
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

// newRegionInformer returns an informer of the nodes of the local cluster, which records its region.
func (s *supervisor) newRegionInformer(conn *api.Connection) (informer *api.Informer[string]) {
	nodes := map[string]int{} // by region

	regions := map[api.Key]string{}
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
			if old, had := regions[k]; had {
				delete(regions, k)
				nodes[old]--
				if nodes[old] == 0 {
					delete(nodes, old)
				}
			}

			if now, found := informer.Get(k); found {
				regions[k] = now
				nodes[now]++
			}
			most := mostCommon(nodes)
			s.setOwn(func(own *ownTraffic) { own.region = most })
		})

	informer.Optional()
	return informer
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

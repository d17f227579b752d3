package check

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/internal/words"
)

// settle is how long a difference between two replicas must last: a change reaches one before the other.
const settle = 2 * time.Second

// An item is what two replicas are compared by: a cluster, or a Service of one.
type item struct {
	cluster string
	service string // namespace/name; empty for the cluster itself
}

func compareItems(a, b item) int {
	return cmp.Or(strings.Compare(a.cluster, b.cluster), strings.Compare(a.service, b.service))
}

// compareReplicas returns how two replicas differ: in the state of a cluster, or in the View that it publishes of a
// Service. Views are compared by their digests, which cost a fraction of what the endpoints themselves would.
//
// Each replica watches API servers by itself, so that two that work differ for a moment after each change. A difference
// counts if it is the same each time that the pages are read until settle has passed. So the comparison takes that
// long, unless there is no difference.
func compareReplicas(ctx context.Context, pair []cli.Replica) error {
	deadline := time.Now().Add(settle)
	ticker := time.NewTicker(settle / 4)
	defer ticker.Stop()

	lasting, err := currentDifferences(ctx, pair)
	for err == nil && len(lasting) > 0 && time.Now().Before(deadline) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		var current map[item]string
		current, err = currentDifferences(ctx, pair)
		maps.DeleteFunc(lasting, func(p item, what string) bool { return current[p] != what })
	}

	if err != nil || len(lasting) == 0 {
		return err
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(lasting)), compareItems)
	return warningf("they differ in %s, such as %s: %s; 'fingerpost explain' shows the addresses of a "+
		"Service in each", words.Count(len(lasting), "place"),
		strings.TrimRight(first.cluster+" "+first.service, " "), lasting[first])
}

// currentDifferences returns where two replicas differ now, and how.
func currentDifferences(ctx context.Context, pair []cli.Replica) (map[item]string, error) {
	digests, err := cli.FetchAll[debug.DigestsPage](ctx, pair, "/debug/digests")
	if err != nil {
		return nil, err
	}
	clusters, err := cli.FetchAll[debug.ClustersPage](ctx, pair, "/debug/clusters")
	if err != nil {
		return nil, err
	}

	var known [2]map[item]string // states of clusters and digests of Services
	for i := range known {
		known[i] = map[item]string{}
		for _, c := range clusters[i].Page.Clusters {
			known[i][item{c.Name, ""}] = string(c.State)
			for service, digest := range digests[i].Page[c.Name] {
				known[i][item{c.Name, service}] = digest
			}
		}
	}

	all := map[item]string{}
	for key := range sets.KeySet(known[0]).Union(sets.KeySet(known[1])) {
		first, second := known[0][key], known[1][key]

		in := item{key.cluster, ""}
		switch {
		case first == second:
		case key == in:
			all[key] = fmt.Sprintf("%s in %s, %s in %s",
				cmp.Or(first, "not linked"), pair[0].Name, cmp.Or(second, "not linked"), pair[1].Name)
		case known[0][in] == "" || known[1][in] == "": // which is a difference by itself
		case first == "":
			all[key] = "only in " + pair[1].Name
		case second == "":
			all[key] = "only in " + pair[0].Name
		default:
			all[key] = "not the same endpoints or policy"
		}
	}

	return all, nil
}

package check

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
)

// settle is how long a difference between two replicas must last: a change reaches one before the other.
const settle = 2 * time.Second

// A difference is one thing in which two replicas differ.
type difference struct {
	cluster string
	service string // namespace/name; empty if it is about the cluster
	what    string
}

// compareReplicas returns how two replicas differ. It takes as long as differences have to last.
func (e *environment) compareReplicas(ctx context.Context, first, other cli.Replica) error {
	pair := [2]cli.Replica{first, other}
	deadline := time.Now().Add(settle)
	ticker := time.NewTicker(settle / 4)
	defer ticker.Stop()
	lasting, err := e.currentDifferences(ctx, pair)
	for err == nil && len(lasting) > 0 && time.Now().Before(deadline) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		var current map[difference]bool
		current, err = e.currentDifferences(ctx, pair)
		maps.DeleteFunc(lasting, func(d difference, _ bool) bool { return !current[d] })
	}
	if err != nil || len(lasting) == 0 {
		return err
	}
	d := slices.MinFunc(slices.Collect(maps.Keys(lasting)), func(a, b difference) int {
		return cmp.Or(strings.Compare(a.cluster, b.cluster), strings.Compare(a.service, b.service))
	})
	return warningf("they differ in %d places, such as %s: %s; 'fingerpost explain' shows the addresses of a "+
		"Service in each", len(lasting), strings.TrimRight(d.cluster+" "+d.service, " "), d.what)
}

// currentDifferences returns how two replicas differ now.
func (e *environment) currentDifferences(ctx context.Context, pair [2]cli.Replica) (map[difference]bool, error) {
	digests, err := cli.FetchAll[debug.DigestsPage](ctx, e.fetch, pair[:], "/debug/digests")
	if err != nil {
		return nil, err
	}
	clusters, err := cli.FetchAll[debug.ClustersPage](ctx, e.fetch, pair[:], "/debug/clusters")
	if err != nil {
		return nil, err
	}
	states := [2]map[string]string{{}, {}}
	for i := range pair {
		for _, c := range clusters[i].Page.Clusters {
			states[i][c.Name] = string(c.State)
		}
	}
	all := map[difference]bool{}
	for name := range union(states[0], states[1]) {
		first, second := states[0][name], states[1][name]
		if first != second {
			what := fmt.Sprintf("%s in %s, %s in %s",
				cmp.Or(first, "not linked"), pair[0].Name, cmp.Or(second, "not linked"), pair[1].Name)
			all[difference{name, "", what}] = true
		}
		if first != "" && second != "" {
			maps.Copy(all, compareDigests(name, pair, digests[0].Page[name], digests[1].Page[name]))
		}
	}
	return all, nil
}

// compareDigests compares the Services of one cluster.
func compareDigests(cluster string, pair [2]cli.Replica, first, second map[string]string) map[difference]bool {
	all := map[difference]bool{}
	for service := range union(first, second) {
		switch {
		case first[service] == "":
			all[difference{cluster, service, "only in " + pair[1].Name}] = true
		case second[service] == "":
			all[difference{cluster, service, "only in " + pair[0].Name}] = true
		case first[service] != second[service]:
			all[difference{cluster, service, "not the same endpoints or policy"}] = true
		}
	}
	return all
}

// union returns the keys of both.
func union(a, b map[string]string) map[string]bool {
	all := map[string]bool{}
	for _, m := range []map[string]string{a, b} {
		for key := range m {
			all[key] = true
		}
	}
	return all
}

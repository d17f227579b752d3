package app

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
)

const grace = 8 * time.Second

func newClusterReadiness() (*clusterReadiness, *server.Readiness, *fedwatch.Value[map[string]cluster.Status]) {
	statuses, ready := &fedwatch.Value[map[string]cluster.Status]{}, &server.Readiness{}
	r := &clusterReadiness{localCluster: "local", grace: grace, statuses: statuses.Load}
	ready.Add(r.links())
	ready.Add(r.clusters()...)
	return r, ready, statuses
}

// A replica is ready when each linked cluster was tried, and does not wait long for one that takes its time: longer if
// another replica has it, and has no time either.
func TestReadyWaitsForLinkedClusters(t *testing.T) {
	for name, c := range map[string]struct {
		east cluster.Status
		want time.Duration
	}{
		"synced":   {cluster.Status{Synced: true}, time.Second},
		"restored": {cluster.Status{Checkpoint: time.Now()}, time.Second},
		"away":     {cluster.Status{Contact: errors.New("connection refused")}, time.Second},
		"slow":     {cluster.Status{}, linkedPatience},
		"busy":     {cluster.Status{Contact: errors.New("connection refused"), AskingPeers: true}, grace},
		"handed over at last": {
			cluster.Status{Contact: errors.New("connection refused"), Checkpoint: time.Now(), AskingPeers: true},
			time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clusters, ready, statuses := newClusterReadiness()
				began := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() {
					if err := ready.Start(ctx); err != nil {
						t.Error(err)
					}
				})
				statuses.Store(map[string]cluster.Status{"local": {Synced: true}, "east": {}})
				clusters.linksListed.Store(true)
				_, changed := ready.Load()
				time.AfterFunc(time.Second, func() {
					statuses.Store(map[string]cluster.Status{"local": {Synced: true}, "east": c.east})
				})
				<-changed
				if took := time.Since(began); !ready.Ready() || took != c.want {
					t.Errorf("ready %t after %s, want after %s", ready.Ready(), took, c.want)
				}
				cancel()
				wg.Wait()
			})
		})
	}
}

// What a replica waits for has names. What was restored of a local cluster that is away takes the place of Links, too.
func TestMissing(t *testing.T) {
	away := errors.New("connection refused")
	for name, c := range map[string]struct {
		listed   bool
		statuses map[string]cluster.Status
		want     []string
	}{
		"all":                 {want: []string{"Links", "local cluster"}},
		"Links":               {statuses: map[string]cluster.Status{"local": {Synced: true}}, want: []string{"Links"}},
		"the local cluster":   {listed: true, want: []string{"local cluster"}},
		"not its state":       {true, map[string]cluster.Status{"local": {Contact: away}}, []string{"local cluster"}},
		"nothing":             {listed: true, statuses: map[string]cluster.Status{"local": {Synced: true}}},
		"nothing, by a state": {statuses: map[string]cluster.Status{"local": {Contact: away, Checkpoint: time.Now()}}},
		"a linked cluster": {
			true, map[string]cluster.Status{"local": {Synced: true}, "east": {}}, []string{"linked clusters"},
		},
	} {
		clusters, ready, statuses := newClusterReadiness()
		clusters.linksListed.Store(c.listed)
		statuses.Store(c.statuses)
		_, missing := ready.Report()
		if i := slices.Index(missing, "linked clusters"); i > 0 { // what is not tried yet is the local one
			missing = missing[:i]
		}
		if !slices.Equal(missing, c.want) {
			t.Errorf("%s: %q is missing, want %q", name, missing, c.want)
		}
	}
}

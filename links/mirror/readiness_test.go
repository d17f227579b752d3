package mirror

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/federation"
)

// However many remote Services are followed, no goroutine is added. A change of one enqueues that one, and its
// hostnames follow it.
func TestFollowEndpoints(t *testing.T) {
	const n = 5_000
	store := federation.NewStore()
	store.MarkClustersListed()
	store.AddCluster("east", federation.Expectation{})
	writer := store.NewWriter("east")
	writer.MarkSynced()
	key := func(i int) queueKey { return queueKey{"east", api.Key{Namespace: "shop", Name: fmt.Sprint("db-", i)}} }
	write := func(i int, hostname string, ready bool) {
		endpoint := federation.Endpoint{Addr: netip.MustParseAddr("10.0.0.1"), Ready: ready}
		endpoint.Detail = &federation.Detail{Hostname: hostname}
		writer.Set(federation.Service(key(i).Key), &federation.View{
			Ports:  []federation.ServicePort{{Number: 80, Name: "http"}},
			Slices: []*federation.Slice{{Name: "a", Endpoints: []*federation.Endpoint{&endpoint}}},
		})
	}
	var e remoteEndpoints
	changed := make(chan queueKey, n)
	e.loop = apply.NewLoop(logr.Discard(), apply.Config[queueKey]{
		Store: store,
		Reconcile: func(_ context.Context, k queueKey) error {
			if old, now := e.update(k); !old.equal(now) {
				changed <- k
			}
			return nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.loop.Run(ctx) }()
	wantNext := func(i int) {
		t.Helper()
		if k := <-changed; k != key(i) {
			t.Errorf("%v was enqueued, want %v", k, key(i))
		}
	}
	e.followIf(true, key(0))
	write(0, "db-0", true)
	wantNext(0) // the Loop runs
	before := runtime.NumGoroutine()
	for i := range n {
		e.followIf(true, key(i))
	}
	if now := runtime.NumGoroutine(); now > before {
		t.Errorf("%d goroutines, %d before %d Services were followed", now, before, n)
	}
	for _, i := range []int{17, 4_711} {
		write(i, "master", i == 17)
		wantNext(i)
	}
	if names := e.servicesWithHostname("east", "shop", "master"); names[0] != "db-17" {
		t.Errorf("the Services with the hostname are %q", names)
	}
	if r := e.readinessOf("east", key(4_711).Key); !r.known || r.ready ||
		fmt.Sprint(r.hostnames) != "map[master:false]" {
		t.Errorf("readiness %+v", r)
	}
	e.followIf(false, key(17))
	if names := e.servicesWithHostname("east", "shop", "master"); names[0] != "db-4711" {
		t.Errorf("the Services with the hostname are %q after the first is not followed any more", names)
	}
	e.unfollowUnlinked(func(string) bool { return false })
	if len(e.of)+len(e.loop.Followed()) > 0 {
		t.Errorf("what is left: %v, %v", e.of, e.loop.Followed())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

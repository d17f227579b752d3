package cluster_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/federation"
)

var overloaded = []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable}

// An API server that is ready, and fails requests while its caches fill, is in use a second after it
// serves, however long that took.
func TestFillingCaches(t *testing.T) {
	for _, code := range overloaded {
		for _, retryAfter := range []int{0, 1} {
			t.Run(fmt.Sprintf("%d, Retry-After %d", code, retryAfter), func(t *testing.T) {
				inWorld(t, func(w *world) {
					east := w.network.Server("east")
					east.ApplyYAML(service, slice)
					east.Fail("readyz", code, retryAfter)
					east.Fail("pods", code, retryAfter)
					east.Fail("endpointslices.discovery.k8s.io", code, retryAfter)
					w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
					w.wait(40 * time.Second)
					east.Fail("readyz", 0, 0)
					w.wait(40 * time.Second)
					if s := w.status(); s.Synced {
						t.Fatal("the cluster is in use without its Pods")
					}
					east.Fail("pods", 0, 0)
					east.Fail("endpointslices.discovery.k8s.io", 0, 0)
					w.wait(1100 * time.Millisecond)
					if s := w.status(); !s.Synced || s.State != federation.Live {
						t.Errorf("a second later the cluster is not in use: %+v", s)
					}
					w.wants(1)
				})
			})
		}
	}
}

// A kind that is not served for a while comes back a second after it is served again, because the probes
// succeed all the while.
func TestWatchComesBack(t *testing.T) {
	for _, code := range overloaded {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			linked(t, func(w *world, east *apitest.Server, _ string) {
				east.Fail("endpointslices.discovery.k8s.io", code, 0)
				w.wait(60 * time.Second)
				east.ApplyYAML(moreEndpoints)
				east.Fail("endpointslices.discovery.k8s.io", 0, 0)
				w.wait(1100 * time.Millisecond)
				w.wants(2)
			})
		})
	}
}

const moreEndpoints = `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
  metadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}},
  addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}]}`

// A server that asks for time gets it, up to 15 s: neither is it asked earlier, nor can it make us wait for
// ever.
func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		asks        int           // seconds
		within      time.Duration // how long it fails
		most, least int           // requests in that time
	}{
		{asks: 5, within: 58 * time.Second, least: 11, most: 12},
		{asks: 15, within: 58 * time.Second, least: 4, most: 4},
		{asks: 86400, within: 58 * time.Second, least: 4, most: 4},
		{asks: 1 << 40, within: 10 * time.Second, least: 10, most: 21}, // no number of seconds
	} {
		t.Run(fmt.Sprint(c.asks), func(t *testing.T) {
			linked(t, func(w *world, east *apitest.Server, _ string) {
				before := east.Requests("watch", "pods") + east.Requests("list", "pods")
				east.Fail("pods", http.StatusTooManyRequests, c.asks)
				w.wait(c.within)
				n := east.Requests("watch", "pods") + east.Requests("list", "pods") - before
				if n < c.least || n > c.most {
					t.Errorf("%d requests in %s, want %d to %d", n, c.within, c.least, c.most)
				}
			})
		})
	}
}

// A kind that is not there, or may not be read and is not needed, is asked for ever more rarely, and at
// once after an outage.
func TestAbsentKinds(t *testing.T) {
	for name, c := range map[string]struct {
		kind         string
		most         int // requests in an hour
		refuse, mend func(east *apitest.Server, kind string)
	}{
		"no CRD": {
			"servers.policy.linkerd.io", 3 * 24, // 3 versions each time
			func(s *apitest.Server, kind string) { s.Serve(kind) },
			func(s *apitest.Server, kind string) { s.Serve(kind, "v1beta3") },
		},
		"no right": {
			"jobs.batch", 180, // it is read within a minute after it was granted
			func(s *apitest.Server, kind string) { s.Forbid(kind, true) },
			func(s *apitest.Server, kind string) { s.Forbid(kind, false) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			linked(t, func(w *world, east *apitest.Server, _ string) {
				requests := func() int { return east.Requests("watch", c.kind) + east.Requests("list", c.kind) }
				c.refuse(east, c.kind)
				before := requests()
				w.wait(40 * time.Second) // the first pauses are 10 s and 20 s at most
				if n := requests() - before; n < 3 {
					t.Errorf("asked %d times in the first 40 s", n)
				}
				w.wait(30 * time.Minute)
				before = requests()
				w.wait(time.Hour)
				if n := requests() - before; n < 12 || n > c.most {
					t.Errorf("asked %d times within an hour", n)
				}
				east.Cut(apitest.Silence)
				w.wait(time.Minute)
				c.mend(east, c.kind)
				east.Cut(apitest.None)
				w.wait(3 * time.Second)
				kinds, _ := w.registry.Inspect("east")
				for _, k := range kinds {
					if !k.Open || k.Refused != "" {
						t.Errorf("%s is refused for %q after the outage", k.Kind, k.Refused)
					}
				}
			})
		})
	}
}

// A kind that the cluster is not used without is asked for every few seconds, for as long as there is no
// right to it.
func TestRightToPodsComesBack(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, _ string) {
		east.Forbid("pods", true)
		w.wait(time.Hour)
		w.wantsState(federation.Stale)
		east.Forbid("pods", false)
		w.wait(15 * time.Second)
		w.wantsState(federation.Live)
	})
}

package cluster_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// traffic is a world with a local cluster, which has Service all of web in both clusters and mirror of web in east.
type traffic struct {
	*world
	here, east *apitest.Server
	spec       cluster.Spec // of east
}

const (
	// The first four of all endpoints of east are in web-1, and the others in web-2.
	serviceAll = `{apiVersion: v1, kind: Service, metadata: {name: all, namespace: ns,
  annotations: {federation.fingerpost.io/members: "web,web@east"}}, spec: {ports: [{port: 80, name: http}]}}`
	serviceMirror = `{apiVersion: v1, kind: Service, metadata: {name: mirror, namespace: ns,
  labels: {multicluster.linkerd.io/remote-discovery: east, multicluster.linkerd.io/remote-service: web}},
  spec: {ports: [{port: 80, name: http}]}}`
)

// sliceOf is a slice of Service web with endpoints from first to last.
func sliceOf(name, network string, first, last int) string {
	var endpoints []string
	for i := first; i <= last; i++ {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [%s.%d.%d]}", network, i/200, i%200+1))
	}
	return fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
  metadata: {name: %s, namespace: ns, labels: {kubernetes.io/service-name: web}},
  addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [%s]}`, name, strings.Join(endpoints, ", "))
}

// inTraffic starts with n endpoints in east and what its Link asks for.
func inTraffic(t *testing.T, n int, asked policy.Link, test func(*traffic)) {
	t.Helper()
	inWorld(t, func(w *world) {
		tr := &traffic{world: w, here: w.network.Server("here"), east: w.network.Server("east")}
		tr.here.ApplyYAML(service, sliceOf("web-1", "10.1", 1, 2), serviceAll, serviceMirror)
		tr.east.ApplyYAML(service, sliceOf("web-1", "10.2", 1, 4), sliceOf("web-2", "10.2", 5, n))
		w.apply(cluster.Spec{
			Name: "here", Local: true, Access: []cluster.Access{w.access("here", tr.here.Token())},
		})
		tr.spec = cluster.Spec{
			Name: "east", Access: []cluster.Access{w.access("east", tr.east.Token())}, Traffic: asked,
		}
		w.apply(tr.spec)
		w.wait(20 * time.Second)
		tr.wants("all", n+2)
		tr.wants("mirror", n)
		test(tr)
	})
}

func (tr *traffic) addresses(name string) int {
	watch := tr.store.Watch(federation.Ref{
		Cluster: "here", Service: federation.Service{Namespace: "ns", Name: name},
	})
	defer watch.Close()
	snapshot, _ := watch.Load()
	return federation.Select(snapshot, federation.Query{Port: 80, IPv6: true}, nil).At(federation.Place{}, nil).Len()
}

func (tr *traffic) wants(name string, n int) {
	tr.t.Helper()
	if got := tr.addresses(name); got != n {
		tr.t.Errorf("%s has %d addresses, want %d", name, got, n)
	}
}

// lists is how often the endpoints of east were listed.
func (tr *traffic) lists() int { return tr.east.Requests("watch", endpointSlices) }

// neverFewer fails if mirror ever has fewer addresses than it has now until the end.
func (tr *traffic) neverFewer() (stop func()) {
	n := tr.addresses("mirror")
	watch := tr.store.Watch(federation.Ref{
		Cluster: "here", Service: federation.Service{Namespace: "ns", Name: "mirror"},
	})
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer watch.Close()
		for {
			snapshot, superseded := watch.Load()
			got := federation.Select(snapshot, federation.Query{Port: 80}, nil).At(federation.Place{}, nil).Len()
			if got < n {
				tr.t.Errorf("%d addresses for a moment, want %d", got, n)
			}
			select {
			case <-superseded:
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// What a watch withdraws by mistake stays: the list has it.
func TestWithdrawalByMistake(t *testing.T) {
	inTraffic(t, 100, policy.Link{}, func(tr *traffic) {
		defer tr.neverFewer()()
		before := tr.lists()
		tr.east.SendDeleted("EndpointSlice", "ns", "web-2")
		tr.wait(time.Second)
		tr.wants("all", 102)
		tr.east.SendDeleted("Service", "ns", "web")
		tr.wait(time.Second)
		tr.wants("mirror", 100)
		if n := tr.lists() - before; n != 2 {
			t.Errorf("slices were listed %d times, want 2", n)
		}
	})
}

// What is gone goes after one list, within a second.
func TestWithdrawalIsConfirmed(t *testing.T) {
	inTraffic(t, 100, policy.Link{}, func(tr *traffic) {
		before := tr.lists()
		tr.east.Delete("EndpointSlice", "ns", "web-2")
		tr.wait(time.Second)
		tr.wants("all", 2+4)
		tr.wants("mirror", 4)
		if n := tr.lists() - before; n != 1 {
			t.Errorf("slices were listed %d times, want once", n)
		}
	})
}

// Few endpoints, and half of many, go at once: nothing is listed for them. Nor for a rollout.
func TestSmallWithdrawals(t *testing.T) {
	for name, c := range map[string]struct{ had, has int }{"few": {24, 4}, "half of many": {100, 50}} {
		t.Run(name, func(t *testing.T) {
			inTraffic(t, c.had, policy.Link{}, func(tr *traffic) {
				before := tr.lists()
				tr.east.ApplyYAML(sliceOf("web-2", "10.2", 5, c.has))
				tr.wait(200 * time.Millisecond)
				tr.wants("mirror", c.has)
				if n := tr.lists() - before; n != 0 {
					t.Errorf("slices were listed %d times", n)
				}
			})
		})
	}
	t.Run("rollout", func(t *testing.T) {
		inTraffic(t, 100, policy.Link{}, func(tr *traffic) {
			before := tr.lists()
			for first := 5; first <= 105; first += 20 {
				tr.east.ApplyYAML(sliceOf("web-2", "10.2", first, first+95))
				tr.wait(time.Second)
			}
			tr.wants("mirror", 100)
			if n := tr.lists() - before; n != 0 {
				t.Errorf("slices were listed %d times", n)
			}
		})
	})
	t.Run("off", func(t *testing.T) {
		asked := policy.Link{WithdrawalGuard: policy.WithdrawalGuard{Off: true}}
		inTraffic(t, 100, asked, func(tr *traffic) {
			before := tr.lists()
			tr.east.Delete("EndpointSlice", "ns", "web-2")
			tr.wait(200 * time.Millisecond)
			tr.wants("mirror", 4)
			if n := tr.lists() - before; n != 0 {
				t.Errorf("slices were listed %d times", n)
			}
		})
	})
}

// While the list does not come nothing goes.
func TestWithdrawalIsNotConfirmed(t *testing.T) {
	inTraffic(t, 100, policy.Link{}, func(tr *traffic) {
		stop := tr.neverFewer()
		tr.east.Fail("services", 500, 0)
		tr.east.Delete("EndpointSlice", "ns", "web-2")
		tr.wait(10 * time.Minute)
		stop()
		tr.east.Fail("services", 0, 0)
		tr.wait(20 * time.Second)
		tr.wants("mirror", 4)
	})
}

var guarded = policy.Link{WithdrawalGuard: policy.WithdrawalGuard{Percent: 50, Hold: 10 * time.Minute}}

// With the annotation what is gone is held for Services that have nothing else, and goes when the time is over.
func TestWithdrawalIsHeld(t *testing.T) {
	remove := func(slices ...string) func(*apitest.Server) {
		return func(east *apitest.Server) {
			for _, name := range slices {
				east.Delete("EndpointSlice", "ns", name)
			}
		}
	}
	for name, withdraw := range map[string]func(*apitest.Server){
		"slices":  remove("web-2", "web-1"),
		"Service": func(east *apitest.Server) { east.Delete("Service", "ns", "web") },
	} {
		t.Run(name, func(t *testing.T) {
			inTraffic(t, 100, guarded, func(tr *traffic) {
				stop := tr.neverFewer()
				withdraw(tr.east)
				tr.wait(time.Second)
				tr.wants("all", 2)
				held := tr.status().Traffic.Withdrawn
				if held == nil || held.Endpoints != 100 || held.String() != "ns/mirror" || held.More != 0 {
					t.Fatalf("withdrawn %+v", held)
				}
				if left := time.Until(held.Until); left > 10*time.Minute || left < 10*time.Minute-2*time.Second {
					t.Errorf("it is held for %s", left)
				}
				tr.wait(10*time.Minute - 3*time.Second)
				stop()
				tr.wait(3 * time.Second)
				tr.wants("mirror", 0)
				if held := tr.status().Traffic.Withdrawn; held != nil {
					t.Errorf("withdrawn %+v", held)
				}
			})
		})
	}
}

// What was lost in the minute before is held, too.
func TestWithdrawalBitByBit(t *testing.T) {
	inTraffic(t, 100, guarded, func(tr *traffic) {
		tr.east.Delete("EndpointSlice", "ns", "web-1")
		tr.wait(50 * time.Second)
		tr.wants("mirror", 96)
		tr.east.Delete("EndpointSlice", "ns", "web-2")
		tr.wait(time.Second)
		tr.wants("mirror", 100)
	})
}

// What ends a hold: a new released-at, the end of the annotation, the end of the Link, and the endpoints themselves.
func TestHoldEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*traffic)
		want int
	}{
		"released": {func(tr *traffic) {
			tr.spec.Released = "2026-01-01T00:00:00Z"
			tr.apply(tr.spec)
		}, 4},
		"without annotation": {func(tr *traffic) {
			tr.spec.Traffic = policy.Link{}
			tr.apply(tr.spec)
		}, 4},
		"unlinked": {func(tr *traffic) { tr.registry.Remove("east") }, 0},
		"back": {func(tr *traffic) {
			tr.east.ApplyYAML(sliceOf("web-2", "10.2", 5, 100))
			tr.wait(time.Second)
			tr.east.ApplyYAML(sliceOf("web-2", "10.2", 5, 60)) // is held no more
		}, 60},
	} {
		t.Run(name, func(t *testing.T) {
			inTraffic(t, 100, guarded, func(tr *traffic) {
				tr.east.Delete("EndpointSlice", "ns", "web-2")
				tr.wait(time.Second)
				tr.wants("mirror", 100)
				c.end(tr)
				tr.wait(200 * time.Millisecond)
				tr.wants("mirror", c.want)
				tr.wait(5 * time.Second)
				if held := tr.status().Traffic.Withdrawn; held != nil {
					t.Errorf("withdrawn %+v", held)
				}
			})
		})
	}
}

// Only a new released-at releases what is held: not that it is removed, nor that it is back.
func TestReleasedOnce(t *testing.T) {
	inTraffic(t, 100, guarded, func(tr *traffic) {
		release := func(at string, want int) {
			t.Helper()
			tr.spec.Released = at
			tr.apply(tr.spec)
			tr.wait(200 * time.Millisecond)
			tr.wants("mirror", want)
		}
		release("2026-01-01T00:00:00Z", 100)
		tr.east.Delete("EndpointSlice", "ns", "web-2")
		tr.wait(time.Second)
		release("", 100)
		release("2026-01-01T00:00:00Z", 100)
		release("2026-01-01T00:01:00Z", 4)
	})
}

// While endpoints are held, those that are new are there as well, and a federated Service gets the held ones when
// its others are no longer ready.
func TestHeldBesideOthers(t *testing.T) {
	inTraffic(t, 100, guarded, func(tr *traffic) {
		tr.east.Delete("EndpointSlice", "ns", "web-2")
		tr.wait(time.Second)
		tr.east.ApplyYAML(sliceOf("web-3", "10.3", 1, 3))
		tr.wait(time.Second)
		tr.wants("mirror", 103)
		tr.wants("all", 2+4+3)
		tr.here.Delete("EndpointSlice", "ns", "web-1")
		tr.wait(time.Second)
		tr.wants("all", 103)
		tr.here.ApplyYAML(sliceOf("web-1", "10.1", 1, 2))
		tr.wait(time.Second)
		tr.wants("all", 2+4+3)
	})
}

// What is held and not needed is reported once it is, within seconds.
func TestHeldIsNeededLater(t *testing.T) {
	inTraffic(t, 100, guarded, func(tr *traffic) {
		tr.here.Delete("Service", "ns", "mirror")
		tr.east.Delete("EndpointSlice", "ns", "web-2")
		tr.wait(time.Minute)
		tr.wants("all", 2+4)
		if held := tr.status().Traffic.Withdrawn; held != nil {
			t.Errorf("withdrawn %+v", held)
		}
		tr.here.Delete("EndpointSlice", "ns", "web-1")
		tr.wait(6 * time.Second)
		tr.wants("all", 100)
		if held := tr.status().Traffic.Withdrawn; held == nil || held.Endpoints != 96 || held.String() != "ns/all" {
			t.Errorf("withdrawn %+v", held)
		}
	})
}

// A cluster that was restored empty is guarded as well: everything of it is listed again.
func TestHeldOverEngagements(t *testing.T) {
	inTraffic(t, 100, guarded, func(tr *traffic) {
		empty := tr.network.Server("east-2")
		empty.ApplyYAML(service)
		defer tr.neverFewer()()
		tr.spec.Access = []cluster.Access{tr.access("east-2", empty.Token())}
		tr.apply(tr.spec)
		tr.wait(20 * time.Second)
		tr.wants("all", 2)
		if held := tr.status().Traffic.Withdrawn; held == nil || held.Endpoints != 100 {
			t.Errorf("withdrawn %+v", held)
		}
	})
}

// A drain takes effect step by step, and what only the cluster has is counted.
func TestDrain(t *testing.T) {
	inTraffic(t, 10, policy.Link{}, func(tr *traffic) {
		from := time.Now().Add(10 * time.Second).UTC()
		tr.spec.Traffic.Drain = policy.Drain{From: from, Over: 100 * time.Second}
		tr.apply(tr.spec)
		for elapsed := -10; elapsed <= 120; elapsed++ {
			want := min(max(0, elapsed/5*5), 100)
			tr.wait(time.Millisecond)
			d := tr.status().Traffic.Drain
			if got := int(tr.store.Policy("east").Drained); got != want || d.Percent != want {
				t.Errorf("after %d s %d %% are in force and %d %% reported, want %d %%", elapsed, got, d.Percent, want)
			}
			tr.wait(time.Second - time.Millisecond)
		}
		d := tr.status().Traffic.Drain
		if d.Needed != 1 || len(d.NeededBy) != 1 || d.NeededBy[0] != "ns/mirror" || !d.Next.IsZero() {
			t.Errorf("%+v", d)
		}
		tr.here.Delete("Service", "ns", "mirror")
		tr.wait(10 * time.Second)
		if d := tr.status().Traffic.Drain; d.Needed != 0 {
			t.Errorf("%+v", d)
		}
		tr.spec.Traffic.Drain = policy.Drain{}
		tr.apply(tr.spec)
		if d := tr.status().Traffic.Drain; d.Percent != 0 || tr.store.Policy("east") != (policy.ForCluster{}) {
			t.Errorf("%+v", d)
		}
	})
}

// A cluster drains itself, and a value that cannot be read changes nothing.
func TestSelfDrain(t *testing.T) {
	namespace := func(drain string) string {
		return `{apiVersion: v1, kind: Namespace, metadata: {name: linkerd, annotations: {` + drain + `}}}`
	}
	inTraffic(t, 10, policy.Link{}, func(tr *traffic) {
		for _, c := range []struct {
			annotation string
			want       uint8
		}{
			{`federation.fingerpost.io/drain: "true"`, 100},
			{`federation.fingerpost.io/drain: "soon"`, 100},
			{``, 0},
			{`federation.fingerpost.io/drain: "soon"`, 0},
			{`federation.fingerpost.io/drain: "2000-01-01T00:00:00Z/1h"`, 0},
		} {
			tr.east.ApplyYAML(namespace(c.annotation))
			tr.wait(time.Second)
			if got := tr.store.Policy("east").Drained; got != c.want {
				t.Errorf("%s: %d %% are drained, want %d %%", c.annotation, got, c.want)
			}
		}
		tr.wait(time.Hour)
		if got := tr.store.Policy("east").Drained; got != 100 {
			t.Errorf("%d %% are drained after an hour", got)
		}
		if n := tr.store.Policy("here").Drained; n != 0 {
			t.Errorf("the local cluster is drained by %d %%", n)
		}
		tr.spec.Access = []cluster.Access{tr.access("east-2", tr.network.Server("east-2").Token())}
		tr.network.Server("east-2").ApplyYAML(service, sliceOf("web-1", "10.2", 1, 10))
		tr.apply(tr.spec)
		tr.wait(10 * time.Second)
		if got := tr.store.Policy("east").Drained; got != 0 {
			t.Errorf("%d %% are drained by a Namespace that is gone", got)
		}
	})
}

// However often a cluster changes its mind, what clients get of it changes once in some seconds, at once after quiet,
// and in the end it is what the cluster asked for last.
func TestSelfDrainIsPaced(t *testing.T) {
	namespace := func(drain string) string {
		return `{apiVersion: v1, kind: Namespace, metadata: {name: linkerd, annotations: {` + drain + `}}}`
	}
	const drained = `federation.fingerpost.io/drain: "true"`
	for name, next := range map[string]func(now time.Time, i int) string{
		"toggled": func(_ time.Time, i int) string { return []string{"", drained}[i%2] },
		"in steps": func(now time.Time, i int) string {
			return fmt.Sprintf(`federation.fingerpost.io/drain: "%s/2s"`, now.UTC().Format(time.RFC3339))
		},
		"by other steps": func(now time.Time, i int) string {
			return fmt.Sprintf(`federation.fingerpost.io/drain: "2000-01-01T00:00:00Z/%dh"`, 300_000+i%7*50_000)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTraffic(t, 10, policy.Link{}, func(tr *traffic) {
				changes := 0
				last := tr.store.Policy("east").Drained
				see := func() {
					if now := tr.store.Policy("east").Drained; now != last {
						last = now
						changes++
					}
				}
				tr.wait(time.Minute)
				tr.east.ApplyYAML(namespace(drained))
				tr.wait(100 * time.Millisecond)
				if see(); last != 100 {
					t.Errorf("%d %% are drained at once", last)
				}
				for i := range 1000 {
					tr.east.ApplyYAML(namespace(next(time.Now(), i)))
					tr.wait(20 * time.Millisecond)
					see()
				}
				if changes > 8 {
					t.Errorf("%d changes within 20 s", changes)
				}
				tr.east.ApplyYAML(namespace(drained))
				tr.wait(6 * time.Second)
				if see(); last != 100 {
					t.Errorf("%d %% are drained in the end", last)
				}
				tr.wait(time.Minute)
				tr.east.ApplyYAML(namespace(""))
				tr.wait(100 * time.Millisecond)
				if see(); last != 0 {
					t.Errorf("%d %% are drained after quiet", last)
				}
			})
		})
	}
}

// A cluster that does not let its Namespace be read cannot drain itself, until it does.
func TestSelfDrainForbidden(t *testing.T) {
	inWorld(t, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(
			service,
			slice,
			`{apiVersion: v1, kind: Namespace, metadata: {name: linkerd, annotations: {federation.fingerpost.io/drain: "true"}}}`,
		)
		east.Forbid("namespaces", true)
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		w.wait(time.Minute)
		w.wantsState(federation.Live)
		s := w.status()
		if !strings.Contains(s.Traffic.NoSelfDrain, "namespaces") || s.Traffic.Drain.Percent != 0 {
			t.Errorf("%+v", s.Traffic)
		}
		east.Forbid("namespaces", false)
		w.wait(10 * time.Minute)
		if s := w.status(); s.Traffic.NoSelfDrain != "" || s.Traffic.Drain.Percent != 100 {
			t.Errorf("%+v", s.Traffic)
		}
		other := w.network.Server("east-2")
		other.ApplyYAML(service, slice)
		other.Forbid("namespaces", true)
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east-2", other.Token())}})
		w.wait(time.Minute)
		if s := w.status(); s.Traffic.NoSelfDrain == "" || s.Traffic.Drain.Percent != 0 {
			t.Errorf("what another cluster asked for is in force: %+v", s.Traffic)
		}
	})
}

func node(name, region string) string {
	return fmt.Sprintf(
		`{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {topology.kubernetes.io/region: %s}}}`,
		name,
		region,
	)
}

func (tr *traffic) wantsRegion(name, want string) {
	tr.t.Helper()
	statuses, _ := tr.registry.Statuses()
	if got := tr.store.Policy(federation.Cluster(name)).Region; got != want || statuses[name].Traffic.Region != want {
		tr.t.Errorf("the region of %s is %q, and %q in its status, want %q", name, got, statuses[name].Traffic.Region,
			want)
	}
}

// A cluster is in the region of most of its nodes, of several the first by name, unless its Link names one. Those of
// the local cluster are watched, and those of a linked one listed once in a while.
func TestRegion(t *testing.T) {
	inTraffic(t, 10, policy.Link{Region: "eu"}, func(tr *traffic) {
		tr.here.ApplyYAML(node("a", "us"), node("b", "eu"), node("c", "eu"))
		tr.east.ApplyYAML(node("a", "us"), node("b", "us"), node("c", "eu"), node("d", `"!"`))
		tr.wait(time.Second)
		tr.wantsRegion("here", "eu")
		tr.wantsRegion("east", "eu")
		tr.here.Delete("Node", "", "b")
		tr.wait(time.Second)
		tr.wantsRegion("here", "eu")
		tr.here.Delete("Node", "", "c")
		tr.wait(time.Second)
		tr.wantsRegion("here", "us")

		tr.spec.Traffic = policy.Link{}
		tr.apply(tr.spec)
		tr.wantsRegion("east", "") // there were no nodes when it was linked
		tr.wait(75 * time.Minute)
		tr.wantsRegion("east", "us")
		tr.east.Delete("Node", "", "a")
		tr.wait(75 * time.Minute)
		tr.wantsRegion("east", "eu")
		if n := tr.east.Requests("list", "nodes"); n != 3 {
			t.Errorf("nodes were listed %d times in 2.5 hours", n)
		}
		if n := tr.east.Requests("watch", "nodes"); n != 0 {
			t.Errorf("nodes were watched %d times", n)
		}
	})
}

// Of a linked cluster with many nodes the first ones by name count, in one list.
func TestRegionOfManyNodes(t *testing.T) {
	inWorld(t, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(service, slice)
		for i := range 1200 {
			east.ApplyYAML(node(fmt.Sprintf("n-%04d", i), map[bool]string{true: "eu", false: "us"}[i < 500]))
		}
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		w.wait(10 * time.Second)
		(&traffic{world: w}).wantsRegion("east", "eu")
		if n := east.Requests("list", "nodes"); n != 1 {
			t.Errorf("nodes were listed %d times", n)
		}
	})
}

// A cluster whose nodes may not be listed is in no region, until they may be; an error changes nothing. Another
// cluster under the same name does not keep the region.
func TestRegionForbidden(t *testing.T) {
	inTraffic(t, 10, policy.Link{}, func(tr *traffic) {
		wants := func(region, reason string) {
			t.Helper()
			tr.wantsRegion("east", region)
			if got := tr.status().Traffic.NoRegion; got != reason {
				t.Errorf("no region because of %q, want %q", got, reason)
			}
		}
		other := tr.network.Server("east-2")
		other.ApplyYAML(service, node("a", "eu"))
		other.Forbid("nodes", true)
		tr.spec.Access = []cluster.Access{tr.access("east-2", other.Token())}
		tr.apply(tr.spec)
		tr.wait(10 * time.Minute)
		wants("", "grant list on nodes")
		tr.spec.Traffic.Region = "us"
		tr.apply(tr.spec)
		wants("us", "")
		tr.spec.Traffic = policy.Link{}
		tr.apply(tr.spec)
		wants("", "grant list on nodes")
		other.Forbid("nodes", false)
		tr.wait(7 * time.Minute)
		wants("eu", "")
		other.Fail("nodes", 500, 0)
		tr.wait(75 * time.Minute)
		tr.wantsRegion("east", "eu")
		if got := tr.status().Traffic.NoRegion; !strings.HasPrefix(got, "list nodes: ") {
			t.Errorf("no region because of %q", got)
		}
		third := tr.network.Server("east-3")
		third.ApplyYAML(service)
		third.Forbid("nodes", true)
		tr.spec.Access = []cluster.Access{tr.access("east-3", third.Token())}
		tr.apply(tr.spec)
		tr.wait(10 * time.Second)
		wants("", "grant list on nodes")
	})
}

// A budget of one cluster may change while the cluster is in use.
func TestBudgetChanges(t *testing.T) {
	limit := func(n int) policy.Link { return policy.Link{MaxEndpoints: policy.Limit{Given: true, N: n}} }
	inWorldOf(t, api.Limits{Endpoints: 1000}, func(w *world) {
		east := w.network.Server("east")
		east.ApplyYAML(service)
		for i := range 15 {
			east.ApplyYAML(sliceOf(fmt.Sprint("web-", 10+i), "10.2", 10*i, 10*i+9))
		}
		spec := cluster.Spec{
			Name: "east", Access: []cluster.Access{w.access("east", east.Token())}, Traffic: limit(100),
		}
		wants := func(n int, over bool) {
			t.Helper()
			w.wants(n)
			if s := w.status(); (s.OverBudget != "") != over {
				t.Errorf("over budget: %q", s.OverBudget)
			}
		}
		w.apply(spec)
		w.wait(10 * time.Second)
		wants(100, true)
		spec.Traffic = limit(120)
		w.apply(spec)
		w.wait(10 * time.Second)
		wants(120, true)
		for i := range 6 {
			east.Delete("EndpointSlice", "ns", fmt.Sprint("web-", 10+i))
			w.wait(500 * time.Millisecond)
		}
		w.wait(10 * time.Second)
		wants(90, false)
		spec.Traffic = limit(50)
		w.apply(spec)
		w.wait(10 * time.Second)
		wants(90, false) // what was accepted stays
		east.ApplyYAML(sliceOf("web-30", "10.3", 1, 10))
		w.wait(10 * time.Second)
		wants(90, true)
		spec.Traffic = policy.Link{}
		w.apply(spec)
		w.wait(10 * time.Second)
		wants(100, false)
	})
}

// What is withdrawn is confirmed by the kinds that publish it: one that is stuck, and only adds to endpoints,
// keeps nothing. The cluster is out of contact while it is.
func TestConfirmedBesideStuckKind(t *testing.T) {
	inTraffic(t, 100, policy.Link{}, func(tr *traffic) {
		tr.east.Fail("pods", 500, 0)
		tr.east.Delete("EndpointSlice", "ns", "web-2")
		tr.wait(time.Second)
		tr.wants("mirror", 4)
		if pending := tr.status().Traffic.Unconfirmed; pending.Endpoints != 0 {
			t.Errorf("%d endpoints are not confirmed", pending.Endpoints)
		}
	})
}

// While no list confirms a withdrawal that is reported, and what is held is fixed: what comes and goes meanwhile is not
// added to it.
func TestUnconfirmedIsReported(t *testing.T) {
	inTraffic(t, 100, policy.Link{}, func(tr *traffic) {
		tr.east.Fail("services", 500, 0)
		tr.east.Delete("EndpointSlice", "ns", "web-2")
		tr.wait(3 * time.Second)
		wants := func(n int) {
			t.Helper()
			if pending := tr.status().Traffic.Unconfirmed; pending.Endpoints != n {
				t.Errorf("%d endpoints are reported as not confirmed, want %d", pending.Endpoints, n)
			}
			if got := metricOf(tr.world, "fingerpost_withdrawals_unconfirmed"); got != float64(n) {
				t.Errorf("the metric has %v, want %d", got, n)
			}
		}
		wants(0) // a list may take some seconds
		tr.wait(5 * time.Second)
		wants(96)
		for i := range 20 {
			tr.east.ApplyYAML(sliceOf("web-3", "10.3", 10*i, 10*i+5))
			tr.wait(time.Second)
		}
		wants(96)
		tr.wants("mirror", 4+96+6)
		tr.east.Fail("services", 0, 0)
		tr.wait(20 * time.Second)
		wants(0)
		tr.wants("mirror", 4+6)
	})
}

// metricOf returns the value of a gauge of east.
func metricOf(w *world, name string) float64 {
	families, err := w.metrics().Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == "east" {
				return m.GetGauge().GetValue()
			}
		}
	}
	w.t.Errorf("there is no %s of east", name)
	return 0
}

// What is written and what is held never exceed the budget together, and what is let go is reported. The guard
// remembers nothing beyond it either.
func TestHeldWithinBudget(t *testing.T) {
	within := func(o *cluster.Options) { o.Budget = api.Limits{Endpoints: 150, Services: 10} }
	for name, asked := range map[string]policy.Link{"not confirmed": {}, "confirmed": guarded} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, within, func(w *world) {
				east := w.network.Server("east")
				east.ApplyYAML(service, sliceOf("web-1", "10.2", 1, 4), sliceOf("web-2", "10.2", 5, 100))
				spec := cluster.Spec{
					Name: "east", Access: []cluster.Access{w.access("east", east.Token())}, Traffic: asked,
				}
				w.apply(spec)
				w.wait(10 * time.Second)
				if asked.WithdrawalGuard.Hold == 0 {
					east.Fail("services", 500, 0)
				}
				east.Delete("EndpointSlice", "ns", "web-2")
				w.wait(10 * time.Second)
				wants := func(held int, over bool) {
					t.Helper()
					a := w.store.Account("east")
					if a.Held.Endpoints != held || a.Written.Endpoints+a.Held.Endpoints > 150 {
						t.Errorf("%+v, want %d held", a, held)
					}
					budget := problem.Of(w.status().Problems(nil, time.Now()), problem.OverBudget)
					if (len(budget) > 0) != over {
						t.Errorf("budget: %+v", budget)
					}
				}
				wants(96, false)
				east.ApplyYAML(sliceOf("web-3", "10.3", 1, 50))
				w.wait(6 * time.Second)
				wants(96, false)
				east.ApplyYAML(sliceOf("web-3", "10.3", 1, 60))
				w.wait(6 * time.Second)
				wants(0, true)
				if got := metricOf(w, "fingerpost_cluster_over_budget"); got != 1 {
					t.Errorf("the metric has %v", got)
				}
				w.wait(11 * time.Minute)
				wants(0, false)
			})
		})
	}
}

// oneByte answers with success, and then with nothing.
func oneByte(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte("{"))
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// A kind whose list does not come to its end is out of contact after the time that a watch may be silent, and in
// contact once it has listed.
func TestUnfinishedList(t *testing.T) {
	inTraffic(t, 100, policy.Link{}, func(tr *traffic) {
		tr.east.Answer("services", oneByte)
		tr.east.Delete("EndpointSlice", "ns", "web-2")
		tr.wait(2 * time.Minute)
		tr.wantsState(federation.Live)
		tr.wants("mirror", 100)
		tr.wait(time.Minute)
		tr.wantsState(federation.Suspect)
		tr.wait(5 * time.Minute)
		tr.wantsState(federation.Stale)
		tr.wants("mirror", 100)
		tr.east.Answer("services", nil)
		tr.wait(3 * time.Minute)
		tr.wantsState(federation.Live)
		tr.wants("mirror", 4)
	})
}

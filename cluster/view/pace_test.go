package view

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation"
)

// A step is a change of the objects, some time after the start.
type step struct {
	at time.Duration
	do func(*world)
}

// A publication is what was published about Service ns/web: its ready addresses, or that it does not exist.
type publication struct {
	at   time.Duration
	what string
}

const gone = "no Service"

// published runs a Reconciler in virtual time and returns what clients of Service ns/web could see, and
// when. Everything in start is there before it begins.
func published(t *testing.T, start []func(*world), steps []step) (all []publication) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := federation.NewStore()
		store.AddCluster("c", federation.Expectation{})
		r := NewReconciler(logr.Discard(), "c", Options{})
		w := newWorld(r)
		for _, do := range start {
			do(w)
		}
		r.Begin(store.NewWriter("c"), &store.Facts)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, 2)
		go func() { r.Run(ctx); done <- struct{}{} }()
		watch := store.Watch(federation.Ref{Cluster: "c", Service: federation.Service{Namespace: "ns", Name: "web"}})
		defer watch.Close()
		began := time.Now()
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				snapshot, superseded := watch.Load()
				all = append(all, publication{time.Since(began), ready(snapshot.View)})
				select {
				case <-superseded:
				case <-ctx.Done():
					return
				}
			}
		}()
		for _, h := range steps {
			time.Sleep(h.at - time.Since(began)) //nolint:forbidigo // virtual time
			synctest.Wait()
			h.do(w)
			synctest.Wait()
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		cancel()
		<-done
		<-done
		for service, w := range r.windows {
			if w.isOpen(time.Now()) {
				t.Errorf("%s is not quiet after 2 s without a change", service)
			}
		}
	})
	return all
}

func ready(v *federation.View) string {
	if v == nil {
		return gone
	}
	var all []string
	for _, s := range v.Slices {
		for _, e := range s.Endpoints {
			if e.Ready && !slices.Contains(all, e.Addr.String()) {
				all = append(all, e.Addr.String())
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func makeService(w *world) { w.put("Service", &corev1.Service{ObjectMeta: named("web")}) }
func dropService(w *world) { w.drop("Service", &corev1.Service{ObjectMeta: named("web")}) }

// makePod makes Pod n, whose address is 10.0.0.n. It is ready unless changed.
func makePod(n int, change ...func(*corev1.Pod)) func(*world) {
	return func(w *world) {
		p := &corev1.Pod{ObjectMeta: named(fmt.Sprintf("web-%d", n))}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for _, f := range change {
			f(p)
		}
		w.put("Pod", p)
	}
}

func unready(p *corev1.Pod)     { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func terminating(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }

func dropPod(n int) func(*world) {
	return func(w *world) { w.drop("Pod", &corev1.Pod{ObjectMeta: named(fmt.Sprintf("web-%d", n))}) }
}

// makeSlice makes a slice of the Pods; a negative number stands for the bare address of a positive one.
func makeSlice(name string, pods ...int) func(*world) {
	return func(w *world) {
		es := &discoveryv1.EndpointSlice{ObjectMeta: named(name)}
		es.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
		for _, n := range pods {
			e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", max(n, -n))}}
			if n > 0 {
				e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("web-%d", n)}
			}
			es.Endpoints = append(es.Endpoints, e)
		}
		w.put("EndpointSlice", es)
	}
}

func dropSlice(name string) func(*world) {
	return func(w *world) { w.drop("EndpointSlice", &discoveryv1.EndpointSlice{ObjectMeta: named(name)}) }
}

// TestPace is about when a change is published.
func TestPace(t *testing.T) {
	const ms = time.Millisecond
	one := []func(*world){makeService, makePod(1), makePod(2), makeSlice("a", 1)}
	both := []func(*world){makeService, makePod(1), makePod(2), makeSlice("a", 1, 2), makeSlice("b")}
	for name, tc := range map[string]struct {
		start []func(*world)
		steps []step
		want  []publication
	}{
		"an isolated change waits for nothing": {
			one,
			[]step{{1000 * ms, makeSlice("a", 1, 2)}, {1100 * ms, makeSlice("a", 1, 2, -3)}},
			[]publication{{0, "10.0.0.1"}, {1000 * ms, "10.0.0.1 10.0.0.2"}, {1100 * ms, "10.0.0.1 10.0.0.2 10.0.0.3"}},
		},
		"what follows it waits for the end of its window": {
			one,
			[]step{{1000 * ms, makeSlice("b", -3)}, {1001 * ms, makeSlice("b", -4)}, {1049 * ms, makeSlice("b", -5)}},
			[]publication{{0, "10.0.0.1"}, {1000 * ms, "10.0.0.1 10.0.0.3"}, {1050 * ms, "10.0.0.1 10.0.0.5"}},
		},
		"a new Service is there at once": {
			nil,
			[]step{{1000 * ms, makeService}},
			[]publication{{0, gone}, {1000 * ms, ""}},
		},
		"a new Service is there at once, whatever came before it": {
			[]func(*world){makePod(1)},
			[]step{{1000 * ms, makeSlice("a", 1)}, {1001 * ms, makeSlice("b", -3)}, {1002 * ms, makeService}},
			[]publication{{0, gone}, {1002 * ms, "10.0.0.1 10.0.0.3"}},
		},
		"a Service that comes back is a new one": {
			one,
			[]step{{1000 * ms, dropService}, {1001 * ms, makeService}},
			[]publication{{0, "10.0.0.1"}, {1000 * ms, gone}, {1001 * ms, "10.0.0.1"}},
		},
		"a change that changes nothing begins no window": {
			one,
			[]step{{1000 * ms, makeSlice("a", 1)}, {1001 * ms, makeSlice("a", 1, 2)}},
			[]publication{{0, "10.0.0.1"}, {1001 * ms, "10.0.0.1 10.0.0.2"}},
		},
		"an address that moves to another slice is never withdrawn": {
			both,
			[]step{{1000 * ms, makeSlice("a", 1)}, {1020 * ms, makeSlice("b", 2)}},
			[]publication{{0, "10.0.0.1 10.0.0.2"}, {1050 * ms, "10.0.0.1 10.0.0.2"}},
		},
		"nor if its slice is deleted": {
			both,
			[]step{{1000 * ms, dropSlice("a")}, {1049 * ms, makeSlice("b", 1, 2)}},
			[]publication{{0, "10.0.0.1 10.0.0.2"}, {1050 * ms, "10.0.0.1 10.0.0.2"}},
		},
		"nor if a window ends in between": {
			both,
			[]step{{1000 * ms, makeSlice("c", -3)}, {1049 * ms, makeSlice("a", 1)}, {1051 * ms, makeSlice("b", 2)}},
			[]publication{
				{0, "10.0.0.1 10.0.0.2"},
				{1000 * ms, "10.0.0.1 10.0.0.2 10.0.0.3"},
				{1099 * ms, "10.0.0.1 10.0.0.2 10.0.0.3"},
			},
		},
		"an address that leaves for good goes when the window ends": {
			both,
			[]step{{1000 * ms, makeSlice("a", 1)}},
			[]publication{{0, "10.0.0.1 10.0.0.2"}, {1050 * ms, "10.0.0.1"}},
		},
		"an address whose Pod is gone goes at once": {
			both,
			[]step{{1000 * ms, dropPod(2)}},
			[]publication{{0, "10.0.0.1 10.0.0.2"}, {1000 * ms, "10.0.0.1"}},
		},
		"an address whose Pod terminates goes at once": {
			both,
			[]step{{1000 * ms, makePod(2, terminating)}, {1001 * ms, makeSlice("a", 1)}},
			[]publication{{0, "10.0.0.1 10.0.0.2"}, {1001 * ms, "10.0.0.1"}},
		},
		"an address whose Pod is not ready goes at once": {
			both,
			[]step{{1000 * ms, makePod(2, unready)}, {1001 * ms, makeSlice("a", 1)}},
			[]publication{{0, "10.0.0.1 10.0.0.2"}, {1001 * ms, "10.0.0.1"}},
		},
		"an address that has no Pod goes at once": {
			[]func(*world){makeService, makeSlice("a", -1, -2)},
			[]step{{1000 * ms, makeSlice("a", -1)}},
			[]publication{{0, "10.0.0.1 10.0.0.2"}, {1000 * ms, "10.0.0.1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := published(t, tc.start, tc.steps)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(publication{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestPaceByRate: what changes cost, and how late they are published, by how often they come. Each row is three
// seconds of changes of one Service, evenly spaced, after it was quiet.
func TestPaceByRate(t *testing.T) {
	const ms, lasting = time.Millisecond, 3 * time.Second
	for _, tc := range []struct {
		gap          time.Duration
		publications int           // in all
		latest       time.Duration // from a change to its publication, at most
	}{
		{gap: 1 * ms, publications: 2 + 30, latest: maxWindow}, // one at once, one after minWindow, ten a second
		{gap: 7 * ms, publications: 2 + 30, latest: maxWindow},
		{gap: 49 * ms, publications: 2 + 30, latest: maxWindow},
		{gap: 51 * ms, publications: 59, latest: 0}, // each by itself
		{gap: 100 * ms, publications: 30, latest: 0},
		{gap: 1000 * ms, publications: 3, latest: 0},
	} {
		t.Run(tc.gap.String(), func(t *testing.T) {
			var changes []step
			for at := time.Second; at < time.Second+lasting; at += tc.gap {
				changes = append(changes, step{at, makeSlice("a", -1-len(changes)%200)})
			}
			all := published(t, []func(*world){makeService}, changes)[1:]
			if len(all) != tc.publications {
				t.Errorf("%d publications for %d changes, not %d", len(all), len(changes), tc.publications)
			}
			var latest time.Duration
			address := func(change int) string { return fmt.Sprintf("10.0.0.%d", 1+change%200) }
			next := 0 // of the changes: it is not published yet
			for _, p := range all {
				oldest := changes[next].at
				shows := func(c step) bool { return c.at < p.at || c.at == p.at && p.what == address(next) }
				for next < len(changes) && shows(changes[next]) {
					next++
				}
				if want := address(next - 1); p.what != want {
					t.Fatalf("after %v: %q, and the newest change is to %q", p.at, p.what, want)
				}
				latest = max(latest, p.at-oldest)
			}
			if latest > tc.latest {
				t.Errorf("a change is published after %v, not within %v", latest, tc.latest)
			}
		})
	}
}

// TestPaceLaws: however a Service changes, an address of a ready Pod that is always in a slice, but for
// moves that take less than a window, is never withdrawn; no more is published than a window allows; and
// the last change is published within the longest window, and what a move adds to it.
func TestPaceLaws(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		gaps := rapid.SliceOfN(rapid.IntRange(0, 70), 5, 60).Draw(rt, "gaps in ms")
		moves := rapid.SliceOfN(rapid.IntRange(0, 3), len(gaps), len(gaps)).Draw(rt, "moves")
		at, current := time.Second, "a"
		var steps []step
		var last string
		for i, gap := range gaps {
			at += time.Duration(gap) * time.Millisecond
			if moves[i] == 0 { // and then leave it there, so that moves do not follow each other without end
				to := map[string]string{"a": "b", "b": "a"}[current]
				steps = append(steps, step{at, makeSlice(current)}, step{at + 40*time.Millisecond, makeSlice(to, 1)})
				at, current = at+200*time.Millisecond, to
				continue
			}
			last = fmt.Sprintf("10.0.0.1 10.0.0.%d", 100+i)
			steps = append(steps, step{at, makeSlice("other", -100-i)})
		}
		start := []func(*world){makeService, makePod(1), makeSlice("a", 1), makeSlice("b"), makeSlice("other")}
		all := published(t, start, steps)
		for i, p := range all {
			if !slices.Contains(strings.Fields(p.what), "10.0.0.1") {
				rt.Errorf("after %v: %q lacks an address that only moved", p.at, p.what)
			}
			if i > 1 && p.at-all[i-1].at < minWindow {
				rt.Errorf("published after %v and after %v", all[i-1].at, p.at)
			}
		}
		if end := all[len(all)-1]; last != "" && end.what != last || end.at > at+maxWindow+minWindow {
			rt.Errorf("the last change is at %v to %q; published last: %v", at, last, end)
		}
	})
}

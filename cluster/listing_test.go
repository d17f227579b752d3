package cluster_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/records"
)

const endpointSlices = "endpointslices.discovery.k8s.io"

func podText(i int) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: web-%04d, namespace: ns}, status: {phase: Running}}`, i)
}

// An API server that does not stream lists is read by pages, and then watched like others.
func TestPages(t *testing.T) {
	inWorld(t, func(w *world) {
		east := w.network.Server("east")
		east.Stream(false)
		east.Apply(objects(t, service), objects(t, slice))
		for i := range 1234 {
			east.Apply(objects(t, podText(i)))
		}
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		w.wait(time.Second)
		w.wantsState(cluster.Live)
		w.wants(1)
		w.wantsPods(1234)
		if n := east.Requests("list", "pods"); n != 3 {
			t.Errorf("%d requests for 1,234 Pods, want 3 pages", n)
		}
		east.Apply(objects(t, moreEndpoints), objects(t, podText(1234)))
		w.wait(time.Second)
		w.wants(2)
		w.wantsPods(1235)
	})
}

func (w *world) wantsPods(n int) {
	w.t.Helper()
	kinds, _ := w.registry.Inspect("east")
	for _, k := range kinds {
		if k.Kind == "pods" && k.Objects != n {
			w.t.Errorf("%d Pods, want %d", k.Objects, n)
		}
	}
}

// fakeKind is the Pods of an API server that serves what a test has it serve.
type fakeKind struct {
	list  func(o metav1.ListOptions) (*corev1.PodList, error) // nil, nil: no answer
	watch func(o metav1.ListOptions) (*watch.FakeWatcher, error)
	kept  int                // objects reduced so far
	open  *watch.FakeWatcher // without watch: the newest
}

var errNoStream = apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)

// filled runs test while a Source fills a store of the names of its Pods.
func (f *fakeKind) filled(t *testing.T, test func(store *records.Store[string], source *cluster.Source)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		conn, err := cluster.NewConnection(&rest.Config{Host: "https://east.test"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		store := records.NewStore(func(o any) (string, bool) { f.kept++; return o.(*corev1.Pod).Name, true }, func(records.Key) {})
		source := cluster.NewSource(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := f.list(o)
				if list == nil && err == nil {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return list, err
			},
			WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if o.SendInitialEvents != nil {
					return nil, errNoStream
				}
				if f.watch != nil {
					return f.watch(o)
				}
				f.open = watch.NewFakeWithChanSize(1, false)
				return f.open, nil
			},
		}, conn)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			source.Fill(ctx, &corev1.Pod{}, store)
		}()
		synctest.Wait()
		test(store, source)
		cancel()
		<-done
	})
}

func somePod(i int) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: strconv.Itoa(i), ResourceVersion: "7"}}
}

// page returns the page of total Pods that is asked for.
func page(o metav1.ListOptions, total int) *corev1.PodList {
	first, _ := strconv.Atoi(o.Continue)
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}}
	last := min(first+int(o.Limit), total)
	for i := first; i < last; i++ {
		list.Items = append(list.Items, somePod(i))
	}
	if last < total {
		list.Continue = strconv.Itoa(last)
	}
	return list
}

func wantsSynced(t *testing.T, store *records.Store[string], objects int) {
	t.Helper()
	select {
	case <-store.Synced():
	default:
		t.Error("the list was not stored")
	}
	if n := store.Len(); n != objects {
		t.Errorf("%d objects, want %d", n, objects)
	}
}

// Each page is reduced before the next is asked for, so that a list never stands in memory whole.
func TestEachPageIsReduced(t *testing.T) {
	requests := 0
	f := &fakeKind{}
	f.list = func(o metav1.ListOptions) (*corev1.PodList, error) {
		requests++
		if first, _ := strconv.Atoi(o.Continue); f.kept != first {
			t.Errorf("page from %d is asked for after %d objects were reduced", first, f.kept)
		}
		return page(o, 1200), nil
	}
	f.filled(t, func(store *records.Store[string], _ *cluster.Source) {
		wantsSynced(t, store, 1200)
		if requests != 3 {
			t.Errorf("%d requests, want 3", requests)
		}
	})
}

// Where the version of the first page was forgotten before the last was read, nothing of that list is used: it is read again, from its
// start, and with larger pages.
func TestContinueExpires(t *testing.T) {
	f := &fakeKind{}
	var asked []string
	f.list = func(o metav1.ListOptions) (*corev1.PodList, error) {
		asked = append(asked, fmt.Sprintf("%s+%d", o.Continue, o.Limit))
		if o.Continue == "500" && o.Limit == 500 {
			return nil, apierrors.NewResourceExpired("the provided continue parameter is too old")
		}
		return page(o, 1200), nil
	}
	f.filled(t, func(store *records.Store[string], _ *cluster.Source) {
		if store.Len() != 0 {
			t.Error("half a list was stored")
		}
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		wantsSynced(t, store, 1200)
		if got, want := fmt.Sprint(asked), "[+500 500+500 +1000 1000+1000]"; got != want {
			t.Errorf("asked for %s, want %s", got, want)
		}
	})
}

// A page that does not arrive within a minute is asked for again with fewer objects.
func TestSlowPages(t *testing.T) {
	f := &fakeKind{}
	f.list = func(o metav1.ListOptions) (*corev1.PodList, error) {
		if o.Limit > 130 {
			return nil, nil
		}
		return page(o, 300), nil
	}
	f.filled(t, func(store *records.Store[string], _ *cluster.Source) {
		time.Sleep(130 * time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		wantsSynced(t, store, 300)
	})
}

// A server that gives the same page again and again is not asked without end.
func TestEndlessPages(t *testing.T) {
	requests := 0
	f := &fakeKind{}
	f.list = func(metav1.ListOptions) (*corev1.PodList, error) {
		requests++
		return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "x"}, Items: []corev1.Pod{somePod(1)}}, nil
	}
	f.filled(t, func(store *records.Store[string], _ *cluster.Source) {
		time.Sleep(10 * time.Minute) //nolint:forbidigo // virtual time
		synctest.Wait()
		if store.Len() != 0 || requests > 100 {
			t.Errorf("%d objects after %d requests", store.Len(), requests)
		}
	})
}

// A server that sends one event and hangs up, for ever, is asked with a pause that grows.
func TestHangingUp(t *testing.T) {
	requests, version := 0, 10
	f := &fakeKind{list: func(o metav1.ListOptions) (*corev1.PodList, error) { return page(o, 3), nil }}
	f.watch = func(metav1.ListOptions) (*watch.FakeWatcher, error) {
		requests++
		version++
		w, p := watch.NewFakeWithChanSize(1, false), somePod(1)
		p.ResourceVersion = strconv.Itoa(version)
		w.Modify(&p)
		w.Stop()
		return w, nil
	}
	f.filled(t, func(store *records.Store[string], _ *cluster.Source) {
		time.Sleep(10 * time.Minute) //nolint:forbidigo // virtual time
		synctest.Wait()
		wantsSynced(t, store, 3)
		if requests < 40 || requests > 50 {
			t.Errorf("%d requests in 10 minutes, want one in 15 s", requests)
		}
	})
}

// A watch whose versions go backwards is that of an API server that was restored from a backup: everything is listed anew.
func TestVersionsGoBackwards(t *testing.T) {
	for _, event := range []watch.EventType{watch.Bookmark, watch.Modified} {
		t.Run(string(event), func(t *testing.T) {
			lists, f := 0, &fakeKind{}
			f.list = func(o metav1.ListOptions) (*corev1.PodList, error) {
				lists++
				list := page(o, 3)
				if lists > 1 {
					list.ResourceVersion, list.Items = "8", list.Items[:2]
				}
				return list, nil
			}
			f.filled(t, func(store *records.Store[string], source *cluster.Source) {
				wantsSynced(t, store, 3)
				old := somePod(2)
				old.ResourceVersion = "8"
				f.open.Action(event, &old)
				time.Sleep(time.Second) //nolint:forbidigo // virtual time
				synctest.Wait()
				wantsSynced(t, store, 2)
				if source.Health().Restored.IsZero() {
					t.Error("it is not reported")
				}
			})
		})
	}
}

// What is not of the kind that was asked for is left out.
func TestOtherKinds(t *testing.T) {
	f := &fakeKind{list: func(o metav1.ListOptions) (*corev1.PodList, error) { return page(o, 3), nil }}
	f.filled(t, func(store *records.Store[string], _ *cluster.Source) {
		f.open.Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x", ResourceVersion: "10"}})
		synctest.Wait()
		wantsSynced(t, store, 3)
	})
}

// A watch that is silent, without even a bookmark, is not trusted: everything is listed anew.
func TestSilentWatch(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, _ string) {
		east.Mute(endpointSlices, true)
		east.Apply(objects(t, moreEndpoints))
		w.wait(time.Second)
		w.wants(1)
		w.wait(4 * time.Minute)
		w.wants(2)
		w.wantsState(cluster.Live)
	})
}

// An API server that was restored from a backup accepts a watch from a version that it has not reached, and is silent.
func TestRestoredFromBackup(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, _ string) {
		restore := east.Backup()
		for range 10 {
			east.Apply(objects(t, moreEndpoints))
		}
		w.wait(time.Second)
		w.wants(2)
		restore()
		w.wait(4 * time.Minute)
		w.wants(1)
		w.wantsState(cluster.Live)
		if w.status().Restored.IsZero() {
			t.Error("the Status does not report it")
		}
		east.Apply(objects(t, moreEndpoints))
		w.wait(time.Second)
		w.wants(2)
	})
}

// Past its budget a cluster keeps what was accepted, updated; what is new is refused, reported, and accepted once there is room.
func TestOverBudget(t *testing.T) {
	inWorldOf(t, records.Limits{Endpoints: 10}, func(w *world) {
		east := w.network.Server("east")
		east.Apply(objects(t, service), objects(t, slice))
		for i := range 10 {
			east.Apply(objects(t, podText(i)))
		}
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
		w.wait(10 * time.Second)
		w.wantsPods(10)
		if s := w.status(); s.OverBudget != "" {
			t.Errorf("ten Pods are over the budget: %s", s.OverBudget)
		}
		for i := 10; i < 30; i++ {
			east.Apply(objects(t, podText(i)))
		}
		east.Apply(objects(t, moreEndpoints))
		w.wait(10 * time.Second)
		w.wantsPods(10)
		w.wantsState(cluster.Live)
		w.wants(2) // other kinds, and what was accepted, go on
		if s := w.status(); !strings.Contains(s.OverBudget, "Pod") {
			t.Errorf("status %q", s.OverBudget)
		}
		for i := range 25 {
			east.Delete("Pod", "ns", fmt.Sprintf("web-%04d", i))
		}
		w.wait(3 * time.Minute)
		w.wantsPods(5)
		if s := w.status(); s.OverBudget != "" {
			t.Errorf("five Pods are over the budget: %s", s.OverBudget)
		}
	})
}

// A cluster that lists many times what may be held of it is not read to the end: one that was never synced is not used, one in use keeps
// what was accepted. Both are reported, tried again at growing pauses, and recover.
func TestFarOverBudget(t *testing.T) {
	const budget, far = 10, 60
	pods := func(east *apitest.Server, n int) {
		for i := range n {
			east.Apply(objects(t, podText(i)))
		}
	}
	few := func(east *apitest.Server) {
		for i := 5; i < far; i++ {
			east.Delete("Pod", "ns", fmt.Sprintf("web-%04d", i))
		}
	}
	listings := func(east *apitest.Server) int { return east.Requests("list", "pods") + east.Requests("watch", "pods") }
	reported := func(w *world) {
		w.t.Helper()
		s := w.status()
		if cluster.ReasonFor(s.Contact) != cluster.OverBudget || !strings.HasSuffix(s.Contact.Error(), s.OverBudget) {
			w.t.Errorf("contact %q, over budget %q", s.Contact, s.OverBudget)
		}
		if !strings.Contains(s.OverBudget, "lists of kind Pod") || !strings.Contains(s.OverBudget, "-cluster-max-endpoints") {
			w.t.Errorf("over budget: %q", s.OverBudget)
		}
	}
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("never synced, stream %t", stream), func(t *testing.T) {
			inWorldOf(t, records.Limits{Endpoints: budget}, func(w *world) {
				east := w.network.Server("east")
				east.Stream(stream)
				east.Apply(objects(t, service), objects(t, slice))
				pods(east, far)
				w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
				w.wait(time.Second)
				w.wantsState(cluster.Connecting)
				reported(w)
				w.wait(30 * time.Minute)
				reported(w)
				before := listings(east)
				w.wait(time.Hour)
				if n := listings(east) - before; n < 10 || n > 40 {
					t.Errorf("asked %d times within an hour", n)
				}
				few(east)
				w.wait(5 * time.Minute)
				w.wantsState(cluster.Live)
				w.wants(1)
				if s := w.status(); s.OverBudget != "" {
					t.Errorf("five Pods are over the budget: %s", s.OverBudget)
				}
			})
		})
		t.Run(fmt.Sprintf("in use, stream %t", stream), func(t *testing.T) {
			inWorldOf(t, records.Limits{Endpoints: budget}, func(w *world) {
				east := w.network.Server("east")
				east.Stream(stream)
				east.Apply(objects(t, service), objects(t, slice))
				pods(east, 5)
				w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east.Token())}})
				w.wait(time.Second)
				w.wantsState(cluster.Live)
				pods(east, far)
				w.wait(10 * time.Second)
				w.wantsState(cluster.Live)
				east.Mute("pods", true) // has it listed anew
				w.wait(4 * time.Minute)
				east.Mute("pods", false)
				reported(w)
				w.wantsPods(budget)
				w.wants(1)
				w.wait(30 * time.Minute)
				reported(w)
				w.wantsState(cluster.Stale)
				w.wantsPods(budget)
				before := listings(east)
				w.wait(time.Hour)
				w.wantsState(cluster.Stale)
				if n := listings(east) - before; n < 10 || n > 40 {
					t.Errorf("asked %d times within an hour", n)
				}
				few(east)
				w.wait(5*time.Minute + 10*time.Second)
				w.wantsState(cluster.Live)
				w.wantsPods(5)
				if s := w.status(); s.OverBudget != "" {
					t.Errorf("five Pods are over the budget: %s", s.OverBudget)
				}
			})
		})
	}
}

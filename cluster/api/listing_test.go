package api

import (
	"context"
	"fmt"
	"strconv"
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
)

// fakeKind is the Pods of an API server that serves what a test has it serve.
type fakeKind struct {
	list  func(o metav1.ListOptions) (*corev1.PodList, error) // nil, nil: no answer
	watch func(o metav1.ListOptions) (*watch.FakeWatcher, error)
	kept  int                // objects reduced so far
	open  *watch.FakeWatcher // without watch: the newest
}

var errNoStream = apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)

// run runs test while a Watcher fills a store of the names of its Pods.
func (f *fakeKind) run(t *testing.T, test func(store *Store[string], watcher *Watcher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		conn, err := NewConnection(&rest.Config{Host: "https://east.test"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		store := NewStore(func(o any) (string, bool) { f.kept++; return o.(*corev1.Pod).Name, true }, func(Key) {})
		kind := Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{})
		watcher := NewWatcher(conn, kind, store)
		watcher.requests = &cache.ListWatch{
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
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			watcher.Run(ctx)
		}()
		synctest.Wait()
		test(store, watcher)
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

func wantsSynced(t *testing.T, store *Store[string], objects int) {
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
	f.run(t, func(store *Store[string], _ *Watcher) {
		wantsSynced(t, store, 1200)
		if requests != 3 {
			t.Errorf("%d requests, want 3", requests)
		}
	})
}

// Where the version of the first page was forgotten before the last was read, nothing of that list is used:
// it is read again, from its start, and with larger pages.
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
	f.run(t, func(store *Store[string], _ *Watcher) {
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
	f.run(t, func(store *Store[string], _ *Watcher) {
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
		return &corev1.PodList{
			ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "x"},
			Items:    []corev1.Pod{somePod(1)},
		}, nil
	}
	f.run(t, func(store *Store[string], _ *Watcher) {
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
	f.run(t, func(store *Store[string], _ *Watcher) {
		time.Sleep(10 * time.Minute) //nolint:forbidigo // virtual time
		synctest.Wait()
		wantsSynced(t, store, 3)
		if requests < 40 || requests > 50 {
			t.Errorf("%d requests in 10 minutes, want one in 15 s", requests)
		}
	})
}

// A watch whose versions go backwards is that of an API server that was restored from a backup: everything
// is listed anew.
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
			f.run(t, func(store *Store[string], watcher *Watcher) {
				wantsSynced(t, store, 3)
				old := somePod(2)
				old.ResourceVersion = "8"
				f.open.Action(event, &old)
				time.Sleep(time.Second) //nolint:forbidigo // virtual time
				synctest.Wait()
				wantsSynced(t, store, 2)
				if watcher.Health().Restored.IsZero() {
					t.Error("it is not reported")
				}
			})
		})
	}
}

// What is not of the kind that was asked for is left out.
func TestOtherKinds(t *testing.T) {
	f := &fakeKind{list: func(o metav1.ListOptions) (*corev1.PodList, error) { return page(o, 3), nil }}
	f.run(t, func(store *Store[string], _ *Watcher) {
		f.open.Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x", ResourceVersion: "10"}})
		synctest.Wait()
		wantsSynced(t, store, 3)
	})
}

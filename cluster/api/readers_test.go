package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
)

// podServer serves Pods. A test decides when a response arrives, and each event.
type podServer struct {
	mu      sync.Mutex
	version int
	oldest  int // watches from before it are refused
	pods    map[string]*corev1.Pod
	events  []watch.Event
	watches map[*podWatch]bool
	held    chan struct{} // lists are held until it closes; nil: they are not
	refuses bool
	lists   int
}

// podWatch is one watch. Its events wait until they are delivered.
type podWatch struct {
	server   *podServer
	selector labels.Selector
	waiting  []watch.Event
	result   chan watch.Event
}

func newPodServer() *podServer {
	return &podServer{version: 1, pods: map[string]*corev1.Pod{}, watches: map[*podWatch]bool{}}
}

func (s *podServer) requests(selector string) *cache.ListWatch {
	selected, err := labels.Parse(selector)
	if err != nil {
		panic(err)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			list, held, err := s.list(selected)
			if held != nil {
				select {
				case <-held:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return list, err
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				return nil, errNoStream
			}
			return s.watch(selected, o.ResourceVersion)
		},
	}
}

func (s *podServer) list(selected labels.Selector) (*corev1.PodList, chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if s.refuses {
		return nil, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
	}
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	for _, p := range s.pods {
		if selected.Matches(labels.Set(p.Labels)) {
			list.Items = append(list.Items, *p.DeepCopy())
		}
	}
	return list, s.held, nil
}

func (s *podServer) watch(selected labels.Selector, from string) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, _ := strconv.Atoi(from)
	if s.refuses {
		return nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
	}
	if version < s.oldest {
		return nil, apierrors.NewResourceExpired("too old")
	}
	w := &podWatch{server: s, selector: selected, result: make(chan watch.Event, 10_000)}
	for _, e := range s.events {
		if p := e.Object.(*corev1.Pod); versionOf(p) > version {
			w.add(e)
		}
	}
	s.watches[w] = true
	return w, nil
}

func versionOf(p *corev1.Pod) int {
	n, _ := strconv.Atoi(p.ResourceVersion)
	return n
}

// add adds an event, as a watch with this selector has it.
func (w *podWatch) add(e watch.Event) {
	p := e.Object.(*corev1.Pod).DeepCopy()
	if e.Object = p; !w.selector.Matches(labels.Set(p.Labels)) {
		e.Type = watch.Deleted
	}
	w.waiting = append(w.waiting, e)
}

func (w *podWatch) ResultChan() <-chan watch.Event { return w.result }
func (w *podWatch) Stop() {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	delete(w.server.watches, w)
}

// deliver sends up to n of the waiting events.
func (w *podWatch) deliver(n int) {
	for ; n > 0 && len(w.waiting) > 0; n-- {
		w.result <- w.waiting[0]
		w.waiting = w.waiting[1:]
	}
}

func (s *podServer) all() []*podWatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.watches))
}

func (s *podServer) set(change func(*podServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// hold holds the responses to lists from now on.
func (s *podServer) hold() {
	s.set(func(s *podServer) {
		if s.held == nil {
			s.held = make(chan struct{})
		}
	})
}

// restore goes back by some versions. All watches end.
func (s *podServer) restore(versions int) {
	s.set(func(s *podServer) { s.goBack(versions) })
	for _, open := range s.all() {
		open.Stop()
		close(open.result)
	}
}

func (s *podServer) goBack(versions int) {
	s.version -= min(versions, s.version-1)
	undone := func(e watch.Event) bool { return versionOf(e.Object.(*corev1.Pod)) > s.version }
	s.events = slices.DeleteFunc(s.events, undone)
	s.oldest = min(s.oldest, s.version)
	s.pods = map[string]*corev1.Pod{}
	for _, e := range s.events {
		p := e.Object.(*corev1.Pod)
		if s.pods[p.Name] = p; e.Type == watch.Deleted {
			delete(s.pods, p.Name)
		}
	}
}

// change creates or updates a Pod, or deletes it if p is nil.
func (s *podServer) change(name string, p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, object := watch.Modified, p
	switch old := s.pods[name]; {
	case p == nil && old == nil:
		return
	case p == nil:
		kind, object = watch.Deleted, old.DeepCopy()
	}
	s.version++
	object.ResourceVersion = strconv.Itoa(s.version)
	if s.pods[name] = object; p == nil {
		delete(s.pods, name)
	}
	e := watch.Event{Type: kind, Object: object}
	s.events = append(s.events, e)
	for w := range s.watches {
		w.add(e)
	}
}

// bookmark sends all events of a watch, and then a bookmark.
func (s *podServer) bookmark(w *podWatch) {
	w.deliver(len(w.waiting))
	w.result <- watch.Event{Type: watch.Bookmark, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: strconv.Itoa(s.version),
	}}}
}

// A reading is one Store with the Watcher that fills it, beside others.
type reading struct {
	*Store[podText]
	*Watcher
	selector string
	newest   map[Key]podText // what was last seen
	end      func()
}

type podText struct {
	version int
	text    string
}

func (r *reading) Synced() <-chan struct{} { return r.Store.Synced() }

// world is a server, a shared Watcher and those that join it.
type joinWorld struct {
	server   *podServer
	conn     *Connection
	shared   *reading
	joined   []*reading
	restored atomic.Bool // the server has gone back to an older state

	mu     sync.Mutex // guards failed
	failed []string
}

func (w *joinWorld) errorf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = append(w.failed, fmt.Sprintf(format, args...))
}

const joinSelector = "app=a"

func podKind(selector string) Kind {
	kind := Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{})
	kind.Labels = selector
	return kind
}

// newReading returns a reading of the Pods that a selector selects.
func (w *joinWorld) newReading(selector string) *reading {
	r := &reading{selector: selector, newest: map[Key]podText{}}
	r.Store = NewStore(func(o any) (podText, bool) {
		p := o.(*corev1.Pod)
		return podText{versionOf(p), p.Spec.NodeName}, true
	}, func(k Key) {
		now, found := r.Get(k)
		if old := r.newest[k]; found && now.version < old.version && !w.restored.Load() {
			w.errorf("%s went back from version %d to %d", k, old.version, now.version)
		}
		if found {
			r.newest[k] = now
		}
	})
	r.Watcher = NewWatcher(w.conn, podKind(selector), r)
	r.requests = w.server.requests(selector)
	return r
}

func (w *joinWorld) start(r *reading) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	r.end = func() {
		cancel()
		<-done
	}
}

func (w *joinWorld) release() {
	w.server.mu.Lock()
	if w.server.held != nil {
		close(w.server.held)
		w.server.held = nil
	}
	w.server.mu.Unlock()
	synctest.Wait()
}

// settle lets everything arrive. Watches are closed once, as API servers do after some minutes.
func (w *joinWorld) settle() {
	w.server.set(func(s *podServer) { s.refuses = false })
	for i := range 12 {
		w.release()
		for _, open := range w.server.all() {
			w.server.bookmark(open)
			if i == 5 {
				close(open.result)
			}
		}
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		synctest.Wait()
	}
	w.restored.Store(false)
}

func (w *joinWorld) check() {
	all := append([]*reading{w.shared}, w.joined...)
	for i, r := range all {
		want := map[string]podText{}
		for name, p := range w.server.pods {
			if r.selector == "" || p.Labels["app"] == "a" {
				want[name] = podText{versionOf(p), p.Spec.NodeName}
			}
		}
		got := map[string]podText{}
		for _, k := range r.Keys() {
			got[k.Name], _ = r.Get(k)
		}
		if !maps.Equal(got, want) {
			w.errorf("reading %d (%s) has %v, want %v", i, r.selector, got, want)
		}
	}
	if n := len(w.server.watches); n != 1 {
		w.errorf("%d watches are open, want 1", n)
	}
}

// Whatever happens in whatever order, a Store whose Watcher has joined another one ends with what there is,
// and none of its records ever goes back to an older version unless the API server does.
func TestJoin(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Uint32Range(0, 1<<24-1), 0, 80).Draw(rt, "steps")
		var failed []string
		inJoinWorld(t, func(w *joinWorld) {
			for _, n := range steps {
				w.step(n&0xff, int(n>>8&0xff), int(n>>16))
				synctest.Wait()
			}
			w.settle()
			w.check()
			failed, w.failed = w.failed, nil
		})
		if len(failed) > 0 {
			rt.Fatal(strings.Join(failed, "\n"))
		}
	})
}

// step does something; a and b choose what to.
func (w *joinWorld) step(what uint32, a, b int) {
	name := strconv.Itoa(a % 4)
	var r *reading
	if len(w.joined) > 0 {
		r = w.joined[a%len(w.joined)]
	}
	open := w.server.all()
	switch what %= 24; {
	case what < 5:
		w.server.change(name, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: name, Labels: map[string]string{"app": string(rune('a' + b%2))},
			},
			Spec: corev1.PodSpec{NodeName: strconv.Itoa(b)},
		})
	case what == 5:
		w.server.change(name, nil)
	case what < 9 && len(open) > 0:
		open[a%len(open)].deliver(1 + b%5)
	case what == 9 && len(open) > 0:
		w.server.bookmark(open[a%len(open)])
	case what == 10 && len(open) > 0:
		open[a%len(open)].Stop()
		close(open[a%len(open)].result)
	case what == 11 && len(open) > 0:
		w.server.set(func(s *podServer) { s.oldest = s.version })
		status := apierrors.NewResourceExpired("too old").Status()
		open[a%len(open)].result <- watch.Event{Type: watch.Error, Object: &status}
	case what < 14:
		w.server.hold()
	case what < 16:
		w.release()
	case what == 16:
		w.server.set(func(s *podServer) { s.refuses = b%2 == 0 })
	case what == 17:
		w.restored.Store(true)
		w.server.set(func(s *podServer) { s.refuses = false })
		w.server.restore(b % 4)
		w.release()
		//nolint:forbidigo // virtual time; a change before it is noticed is lost to any client
		time.Sleep(10 * time.Minute)
	case what < 20 && len(w.joined) < 4:
		w.join([]string{"", joinSelector}[b%2])
	case what == 20 && r != nil:
		w.release()
		r.end()
		w.joined = slices.DeleteFunc(w.joined, func(o *reading) bool { return o == r })
	case what == 21 && r != nil && b%2 == 0:
		r.Relist()
	case what == 21:
		w.shared.Relist()
	case what == 23:
		pauses := []time.Duration{10 * time.Millisecond, time.Second, 15 * time.Second, 200 * time.Second}
		time.Sleep(pauses[b%4]) //nolint:forbidigo // virtual time
	}
}

// inJoinWorld runs test beside a shared Watcher of all Pods.
func inJoinWorld(t *testing.T, test func(*joinWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		conn, err := NewConnection(&rest.Config{Host: "https://east.test"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		w := &joinWorld{server: newPodServer(), conn: conn}
		w.shared = w.newReading("")
		conn.Share(w.shared.Watcher)
		w.start(w.shared)
		synctest.Wait()
		test(w)
		w.release()
		w.shared.end()
		for _, r := range w.joined {
			r.end()
		}
		for _, failure := range w.failed {
			t.Error(failure)
		}
	})
}

func (w *joinWorld) join(selector string) *reading {
	r := w.newReading(selector)
	w.joined = append(w.joined, r)
	w.start(r)
	synctest.Wait()
	return r
}

func (w *joinWorld) update(name string) {
	w.server.change(name, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
	for _, open := range w.server.all() {
		open.deliver(1)
	}
	synctest.Wait()
}

// One that joins while the API server has gone back to an older state, which the shared Watcher has not
// noticed, does not wait for that.
func TestJoinAfterRestore(t *testing.T) {
	inJoinWorld(t, func(w *joinWorld) {
		w.update("1")
		w.update("1")
		w.server.restore(2)
		r := w.join("")
		w.update("2")
		if _, found := r.Get(Key{"ns", "2"}); !found {
			w.errorf("a change is missed")
		}
	})
}

// Changes that are made during a listing are not missed, and none is seen before its end.
func TestJoinDuringChanges(t *testing.T) {
	inJoinWorld(t, func(w *joinWorld) {
		w.server.hold()
		r := w.join(joinSelector)
		w.server.change("1", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "1", Labels: map[string]string{"app": "a"},
		}})
		synctest.Wait()
		if _, found := r.Get(Key{"ns", "1"}); found {
			w.errorf("a change is applied before the listing")
		}
		w.settle()
		w.check()
	})
}

// While a kind is refused no informer waits for another one's request, and the refusal is that of its own.
func TestJoinRefused(t *testing.T) {
	inJoinWorld(t, func(w *joinWorld) {
		w.server.set(func(s *podServer) { s.refuses = true })
		w.shared.Relist()
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		r := w.join("")
		select {
		case <-r.Refused():
		default:
			w.errorf("a refusal is not reported")
		}
		w.settle()
		w.check()
	})
}

// A kind counts as denied once it was refused for half a minute without a break; one that is listed meanwhile is not.
func TestDenied(t *testing.T) {
	inJoinWorld(t, func(w *joinWorld) {
		refuse := func(now bool, d time.Duration) {
			w.server.set(func(s *podServer) { s.refuses = now })
			if now {
				w.shared.Relist()
			}
			time.Sleep(d) //nolint:forbidigo // virtual time
		}
		for range 3 {
			refuse(true, 20*time.Second)
			refuse(false, 20*time.Second)
		}
		if !fedwatch.IsClosed(w.shared.Refused()) || fedwatch.IsClosed(w.shared.Denied()) {
			w.errorf("three refusals of 20 s do not count as such")
		}
		refuse(true, denialLimit+refusedBackoff)
		if !fedwatch.IsClosed(w.shared.Denied()) {
			w.errorf("a refusal that lasts is none")
		}
		refuse(false, 20*time.Second)
		w.settle()
		w.check()
	})
}

// A selector covers another one if that is plain.
func TestSelectorCovers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"", "", true},
		{"", "a=b", true},
		{"a=b", "", false},
		{"a=b", "a=b", true},
		{"a=b", "a=b,c=d", true},
		{"a!=b", "a=c", true},
		{"a!=b", "a=b", false},
		{"a!=b", "a!=b", true},
		{"a!=b", "c=d", false},
		{"a in (b,c)", "a=c", true},
		{"a", "a=c", true},
		{"a!=b,c", "a=d", false},
		{"=", "a=b", false},
	} {
		if got := selectorCovers(c.a, c.b); got != c.want {
			t.Errorf("%q covers %q: %t", c.a, c.b, got)
		}
	}
}

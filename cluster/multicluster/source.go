package multicluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// pageSize is how many objects are asked for at once where lists are not streamed.
const pageSize = 500

// source lists and watches one kind for an informer. What it adds: the connection in use, of which each one begins
// with a list; lists at the newest version, by pages; and bounds.
type source struct {
	toolscache.ListerWatcherWithContext
	cluster        *linked
	labels, fields string

	listed atomic.Pointer[api.Connection] // over which it was listed last
	held   *share
}

// newSource returns the source of a kind, of which there is an example.
func (c *linked) newSource(inner toolscache.ListerWatcher, example runtime.Object) toolscache.ListerWatcher {
	source := &source{
		ListerWatcherWithContext: toolscache.ToListerWatcherWithContext(inner), cluster: c,
		held: &share{account: &c.held, of: map[types.NamespacedName]int64{}},
	}
	if kind, err := apiutil.GVKForObject(example, c.GetScheme()); err == nil && c.provider.options.Select != nil {
		source.labels, source.fields = c.provider.options.Select(kind)
	}
	return &toolscache.ListWatch{ListWithContextFunc: source.list, WatchFuncWithContext: source.watch}
}

// await returns the connection in use, once its API server answers: retries that wait ever longer would notice late.
func (s *source) await(ctx context.Context) (*api.Connection, error) {
	for ctx.Err() == nil {
		conn, err := s.cluster.connection()
		if err != nil || conn.AwaitContact(ctx) {
			return conn, err
		}
	}
	return nil, ctx.Err()
}

// list lists a page at the newest version, whatever the options ask for: an older one may be that of another API
// server, and is not read by pages.
func (s *source) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.LabelSelector, options.FieldSelector = s.labels, s.fields
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	if options.Limit == 0 {
		options.Limit = pageSize
	}
	conn, err := s.await(ctx)
	if err != nil {
		return nil, err
	}

	list, err := s.ListWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	if options.Continue == "" {
		s.listed.Store(conn)
		s.held.reset()
	}
	err = meta.EachListItem(list, func(o runtime.Object) error { return s.held.take(o, conn) })
	return list, err
}

// watch watches from a version of the connection in use, or streams a list.
func (s *source) watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	conn, err := s.await(ctx)
	if err != nil {
		return nil, err
	}

	options.LabelSelector, options.FieldSelector = s.labels, s.fields
	streams := options.SendInitialEvents != nil && *options.SendInitialEvents
	switch {
	case streams:
		options.ResourceVersion = ""
		s.listed.Store(conn)
		s.held.reset()
	case s.listed.Load() != conn:
		return nil, apierrors.NewResourceExpired("the connection was replaced: the version may be another API server's")
	}

	watch, err := s.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	follow := func(e apiwatch.Event) apiwatch.Event {
		if streams = streams && e.Type != apiwatch.Bookmark; !streams {
			conn.Pace(ctx)
		}
		return s.held.follow(e, conn)
	}
	return newFollowed(watch, follow), nil
}

// followed is a watch of which each event passes through a function.
type followed struct {
	apiwatch.Interface
	events  chan apiwatch.Event
	stopped chan struct{}
	stop    sync.Once
}

func newFollowed(of apiwatch.Interface, pass func(apiwatch.Event) apiwatch.Event) *followed {
	result := &followed{Interface: of, events: make(chan apiwatch.Event), stopped: make(chan struct{})}
	go func() { // until the watch ends, or is stopped
		defer close(result.events)
		for event := range of.ResultChan() {
			select {
			case result.events <- pass(event):
			case <-result.stopped:
				return
			}
		}
	}()

	return result
}

// ResultChan returns the events.
func (f *followed) ResultChan() <-chan apiwatch.Event { return f.events }

// Stop ends the watch.
func (f *followed) Stop() {
	f.stop.Do(func() { close(f.stopped) })
	f.Interface.Stop()
}

// account is what the caches of a cluster hold, in bytes.
type account struct {
	mu    sync.Mutex
	bytes int64
}

// share is what the cache of one kind holds. One informer uses it.
type share struct {
	account *account
	of      map[types.NamespacedName]int64
}

// reset forgets what is held: it is about to be listed.
func (s *share) reset() {
	s.account.mu.Lock()
	defer s.account.mu.Unlock()
	for _, size := range s.of {
		s.account.bytes -= size
	}
	clear(s.of)
}

// take counts an object. It returns an error if all is more than the budget of the connection has.
func (s *share) take(object runtime.Object, conn *api.Connection) error {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil // it is no object that is held
	}
	key := types.NamespacedName{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}
	size, most := api.SizeOf(object), conn.MaxBytes()
	s.account.mu.Lock()
	defer s.account.mu.Unlock()

	more := size - s.of[key]
	if most > 0 && more > 0 && s.account.bytes+more > most {
		return fmt.Errorf("caches of controllers would hold more than the %d MiB of the cluster's budget", most>>20)
	}
	s.account.bytes += more
	s.of[key] = size
	return nil
}

// drop counts an object no more.
func (s *share) drop(object runtime.Object) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	key := types.NamespacedName{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}
	s.account.mu.Lock()
	defer s.account.mu.Unlock()
	s.account.bytes -= s.of[key]
	delete(s.of, key)
}

// follow counts what an event of a watch brings. One that brings too much becomes an error, with which the watch
// ends.
func (s *share) follow(event apiwatch.Event, conn *api.Connection) apiwatch.Event {
	var err error
	switch event.Type {
	case apiwatch.Added, apiwatch.Modified:
		err = s.take(event.Object, conn)
	case apiwatch.Deleted:
		s.drop(event.Object)
	case apiwatch.Bookmark, apiwatch.Error:
	}

	if err != nil {
		status := apierrors.NewRequestEntityTooLargeError(err.Error()).Status()
		return apiwatch.Event{Type: apiwatch.Error, Object: &status}
	}
	return event
}

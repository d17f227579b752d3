package cluster

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	minBackoff     = 500 * time.Millisecond
	readyBackoff   = time.Second      // is the longest while the API server answers probes: it is there, and about to serve
	maxBackoff     = 15 * time.Second // is the longest while it does not; the probe that succeeds ends the pause
	refusedBackoff = 10 * time.Second
	// bookmarkLimit is how long a watch may be silent; API servers send a bookmark about once a minute.
	bookmarkLimit = 150 * time.Second
)

// A Source is one kind of object at one API server. It is the ListerWatcher of a Reflector, and outlasts the connection: a watch
// that breaks goes on from where it stopped, and while nothing can be had a call waits, instead of failing into the Reflector's
// own backoff, which may sleep for a minute after contact is back. What the API server refuses is noted and tried again.
type Source struct {
	inner cache.ListerWatcherWithContext
	conn  *Connection
	lag   prometheus.Observer // of changes; nil: it is not measured

	refused chan struct{} // closed when the kind was first refused

	mu     sync.Mutex
	health SourceHealth
	newest time.Time // when the newest change was made that has arrived, as the API server has it
	once   sync.Once // guards refused

	furthest int       // objects that came with the listing which got furthest, complete or not
	advanced time.Time // when that last grew
	failure  error     // of the last request; nil if it succeeded
}

// SourceHealth is how a Source fares.
type SourceHealth struct {
	Open        bool                // a watch is open
	LastContact time.Time           // of the last event or bookmark, or of the opening of the watch
	Refused     metav1.StatusReason // why the API server does not serve it: NotFound, Forbidden or Unauthorized; empty if it does
	Lists       int                 // requests so far
	Watches     int
	Errors      map[string]int // failed requests by reason
}

// NewSource returns the kind that inner lists and watches, at the API server of conn.
func NewSource(inner cache.ListerWatcher, conn *Connection) *Source {
	return &Source{
		inner:   cache.ToListerWatcherWithContext(inner),
		conn:    conn,
		refused: make(chan struct{}),
		health:  SourceHealth{Errors: map[string]int{}},
	}
}

// Health returns how the Source fares now.
func (s *Source) Health() SourceHealth {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.health
	h.Errors = maps.Clone(s.health.Errors)
	return h
}

// Refused returns a channel that is closed once the API server has refused the kind: there is no such resource, or no right to
// it. It may be served later.
func (s *Source) Refused() <-chan struct{} { return s.refused }

// Fill keeps store filled with what there is of the kind, until ctx ends. object is an empty one of the type that the store takes.
// Requests wait here for as long as they must; what comes back from the Reflector is tried again at once.
func (s *Source) Fill(ctx context.Context, object runtime.Object, store cache.ReflectorStore) {
	r := cache.NewReflectorWithOptions(s, object, store, cache.ReflectorOptions{Name: "fingerpost"})
	for ctx.Err() == nil {
		began := time.Now()
		if err := r.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Info("Listing and watching starts over", "error", err.Error())
		}
		_, wake := s.conn.wakes.Load()
		wait(ctx, wake, minBackoff-time.Since(began))
	}
}

// advance notes that a listing has come as far as n objects. Only what is further than all before counts: a server that breaks off at the
// same place each time makes no progress.
func (s *Source) advance(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > s.furthest {
		s.furthest, s.advanced = n, time.Now()
	}
}

// progressed returns when a listing last got further than all before; zero for never.
func (s *Source) progressed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.advanced
}

// trouble returns why the kind was not listed, as far as the API server says it.
func (s *Source) trouble() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		return "the request is not answered to its end"
	}
	return errorReason(apierrors.ReasonForError(s.failure))
}

// alive reports whether a watch is open that can be trusted to tell of every change.
func (s *Source) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health.Open && time.Since(s.health.LastContact) < bookmarkLimit
}

// List implements [cache.ListerWatcher] for callers without a context, of which there are none.
func (s *Source) List(metav1.ListOptions) (runtime.Object, error) { return nil, errNoContext }

// Watch likewise.
func (s *Source) Watch(metav1.ListOptions) (watch.Interface, error) { return nil, errNoContext }

var errNoContext = errors.New("BUG: a Source is used without a context")

// ListWithContext lists, as soon as it can be done.
func (s *Source) ListWithContext(ctx context.Context, options metav1.ListOptions) (list runtime.Object, err error) {
	err = s.insist(ctx, func(ctx context.Context) error {
		request, cancel := s.conn.untilReset(ctx)
		defer cancel()
		s.note(func(h *SourceHealth) { h.Lists++ })
		list, err = s.inner.ListWithContext(request, options)
		return err
	})
	if err == nil {
		s.advance(meta.LenList(list))
	}
	if err == nil && s.lag != nil {
		_ = meta.EachListItem(list, func(o runtime.Object) error { s.arrive(o, false); return nil })
	}
	return list, err
}

// arrive notes how late an object is, if it tells of a change that is newer than all before it. What was there before we asked is
// not late. An object without a newer time, as one that is about to be deleted, says nothing.
func (s *Source) arrive(object runtime.Object, changed bool) {
	m, err := meta.Accessor(object)
	if s.lag == nil || err != nil {
		return
	}
	made := m.GetCreationTimestamp().Time
	for _, f := range m.GetManagedFields() {
		if f.Time != nil && f.Time.After(made) {
			made = f.Time.Time
		}
	}
	s.mu.Lock()
	newer := made.After(s.newest)
	if newer {
		s.newest = made
	}
	s.mu.Unlock()
	if newer && changed {
		s.lag.Observe(max(0, time.Since(made).Seconds()))
	}
}

// WatchWithContext watches, as soon as it can be done, and until the caller stops it or what it missed cannot be had any more.
func (s *Source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	w, err := s.open(ctx, options)
	if err != nil {
		cancel()
		return nil, err
	}
	f := &follower{
		source: s, cancel: cancel, result: make(chan watch.Event), done: make(chan struct{}),
		options: options, synced: options.SendInitialEvents == nil,
	}
	go f.run(ctx, w)
	return f, nil
}

// opened is one watch. Its context ends at the latest with the next Reset of the connection.
type opened struct {
	watch.Interface
	ctx    context.Context
	cancel context.CancelFunc
}

func (s *Source) open(ctx context.Context, options metav1.ListOptions) (o opened, err error) {
	err = s.insist(ctx, func(ctx context.Context) error {
		s.note(func(h *SourceHealth) { h.Watches++ })
		o.ctx, o.cancel = s.conn.untilReset(ctx)
		if o.Interface, err = s.inner.WatchWithContext(o.ctx, options); err != nil {
			o.cancel()
		}
		return err
	})
	if err == nil {
		s.note(func(h *SourceHealth) { h.Open, h.LastContact, h.Refused = true, time.Now(), "" })
	}
	return o, err
}

// insist repeats a request until it succeeds, ctx ends, or it fails in a way that the caller must know of. It tries again at once
// when the connection is reset.
func (s *Source) insist(ctx context.Context, request func(context.Context) error) error {
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		_, wake := s.conn.wakes.Load()
		var server delay
		err := request(context.WithValue(ctx, delayKey{}, &server))
		s.mu.Lock()
		s.failure = err
		s.mu.Unlock()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		reason := apierrors.ReasonForError(err)
		s.note(func(h *SourceHealth) { h.Errors[errorReason(reason)]++ })
		pause := s.pause(backoff, server.asked)
		switch reason { //nolint:exhaustive // every other reason is worth another try
		case metav1.StatusReasonNotFound, metav1.StatusReasonForbidden, metav1.StatusReasonUnauthorized:
			s.note(func(h *SourceHealth) { h.Refused = reason })
			if reason != metav1.StatusReasonUnauthorized {
				s.once.Do(func() { close(s.refused) })
				pause = refusedBackoff/2 + rand.N(refusedBackoff)
			}
		case metav1.StatusReasonExpired, metav1.StatusReasonGone, metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest,
			metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonNotAcceptable, metav1.StatusReasonUnsupportedMediaType:
			return err
		case metav1.StatusReasonTimeout:
			if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
				return err
			}
		}
		wait(ctx, wake, pause)
	}
}

// pause returns how long to wait before a request that failed is made again: as long as the server asks, within limits, or else for our own
// backoff, which stays short while the API server is there. One that has just started fails requests until its caches are filled.
func (s *Source) pause(backoff, asked time.Duration) time.Duration {
	if !s.conn.silent.Load() {
		backoff = min(backoff, readyBackoff)
	}
	return max(backoff/2+rand.N(backoff/2), min(asked, maxBackoff))
}

func errorReason(reason metav1.StatusReason) string {
	if reason == metav1.StatusReasonUnknown {
		return string(Unreachable)
	}
	return string(reason)
}

func (s *Source) note(f func(*SourceHealth)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.health)
}

// follower is a watch over all the watches that it takes.
type follower struct {
	source *Source
	cancel context.CancelFunc
	result chan watch.Event
	done   chan struct{}

	// Owned by run.
	options metav1.ListOptions
	synced  bool // the initial events are through: what follows can be resumed
	initial int  // events until then
}

// Stop ends the watch and waits for it.
func (f *follower) Stop() {
	f.cancel()
	<-f.done
}

// ResultChan returns the events.
func (f *follower) ResultChan() <-chan watch.Event { return f.result }

func (f *follower) run(ctx context.Context, w opened) {
	defer close(f.done)
	defer close(f.result)
	defer f.cancel()
	for {
		_, wake := f.source.conn.wakes.Load()
		began, from := time.Now(), f.options.ResourceVersion
		goesOn := f.forward(ctx, w)
		w.cancel()
		w.Stop()
		f.source.note(func(h *SourceHealth) { h.Open = false })
		if !goesOn || !f.synced || ctx.Err() != nil {
			return // without its initial events a watch starts over, which is the Reflector's part
		}
		if f.options.ResourceVersion == from { // a server that hangs up at once must not be asked in a tight loop
			wait(ctx, wake, minBackoff-time.Since(began))
		}
		var err error
		if w, err = f.source.open(ctx, f.options); err != nil {
			f.send(ctx, watch.Event{Type: watch.Error, Object: statusOf(err)})
			return
		}
	}
}

// forward passes events on until the watch breaks, and reports whether it can be resumed.
func (f *follower) forward(ctx context.Context, w opened) bool {
	silence := time.NewTimer(bookmarkLimit)
	defer silence.Stop()
	for {
		select {
		case event, open := <-w.ResultChan():
			switch {
			case !open:
				return true
			case event.Type == watch.Error:
				status, ok := event.Object.(*metav1.Status)
				if !ok || status.Code >= 500 || status.Code == http.StatusTooManyRequests {
					return true // the connection broke in the middle of an event
				}
				f.send(ctx, event)
				return false
			}
			f.source.note(func(h *SourceHealth) { h.LastContact = time.Now() })
			if !f.synced {
				f.initial++
				f.source.advance(f.initial)
			}
			if event.Type == watch.Added || event.Type == watch.Modified {
				f.source.arrive(event.Object, f.synced)
			}
			silence.Reset(bookmarkLimit)
			f.remember(event)
			if !f.send(ctx, event) {
				return false
			}
		case <-silence.C:
			return true
		case <-w.ctx.Done():
			return true
		}
	}
}

// remember notes from where the watch can be resumed.
func (f *follower) remember(event watch.Event) {
	m, err := meta.Accessor(event.Object)
	if err != nil || m.GetResourceVersion() == "" {
		return
	}
	if event.Type == watch.Bookmark && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
		f.synced = true
		f.options.SendInitialEvents, f.options.ResourceVersionMatch = nil, ""
	}
	if f.synced {
		f.options.ResourceVersion = m.GetResourceVersion()
	}
}

func (f *follower) send(ctx context.Context, event watch.Event) bool {
	select {
	case f.result <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

// statusOf returns the error as an object that a watch can carry.
func statusOf(err error) *metav1.Status {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		return &s
	}
	return &apierrors.NewInternalError(err).ErrStatus
}

package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/features"
	"k8s.io/client-go/tools/cache"

	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
)

const (
	minBackoff        = 500 * time.Millisecond
	readyBackoff      = time.Second      // is the longest while the API server answers probes: it is there, and about to serve
	maxBackoff        = 15 * time.Second // is the longest while it does not; the probe that succeeds ends the pause
	refusedBackoff    = 10 * time.Second // is the first where another answer is not to be expected soon
	maxRefusedBackoff = 5 * time.Minute  // is the longest there
	// bookmarkLimit is how long a watch may be silent; API servers send a bookmark about once a minute.
	bookmarkLimit = 150 * time.Second
	// watchAge is after how long the API server is asked to end a watch, or up to twice as long.
	watchAge = 5 * time.Minute

	pageSize    = 500 // objects in a list
	maxPageSize = 10_000
	pageTimeout = 20 * time.Second // for one page to arrive
	// listPatience is how long the first listing of a required kind may make no progress.
	listTimeout = time.Minute
)

// A Watcher lists and watches one kind of object at one API server, and keeps a Target filled with it.
//
// It lists by a stream of initial events where the API server can do that, and otherwise by pages; each object is reduced to its record
// before the next is decoded, or the next page asked for, so that a listing never stands in memory whole. Every listing asks for the newest
// state. It outlasts the connection: a watch that breaks goes on from where it stopped. It lists anew when what it missed cannot be had any
// more (410), and when the API server has gone back to an older state: a watch from a version that is not reached yet is accepted and stays
// silent, without even bookmarks, so silence beyond bookmarkLimit counts as that, and so does a version lower than one before.
type Watcher struct {
	kind     Kind
	target   Target
	requests cache.ListerWatcher
	conn     *Connection
	lag      prometheus.Observer // of changes; nil: it is not measured
	optional bool                // the cluster is used without it

	refusedOnce chan struct{}                // closed when the kind was first refused
	excess      fedwatch.Value[*ExcessError] // why the last listing was ended; nil if it was not

	mu     sync.Mutex
	health Health
	newest time.Time // when the newest change was made that has arrived, as the API server has it
	once   sync.Once // guards refused

	furthest     int       // objects that came with the listing which got furthest, complete or not
	lastProgress time.Time // when that last grew
	failure      error     // of the last request; nil if it succeeded
}

// Health is how a Watcher fares.
type Health struct {
	Open        bool                `json:"open"`              // a watch is open
	LastContact time.Time           `json:"lastContact"`       // of the last event or bookmark, or of the opening of the watch
	Refused     metav1.StatusReason `json:"refused,omitempty"` // why the API server does not serve it: NotFound, Forbidden or Unauthorized; empty if it does
	Restored    time.Time           `json:"restored,omitzero"` // when the API server was last found to have gone back to an older state; zero for never
	Lists       int                 `json:"lists"`             // requests so far
	Watches     int                 `json:"watches"`
	Errors      map[string]int      `json:"errors,omitempty"` // failed requests by reason
}

// NewWatcher returns what fills target with a kind at the API server of conn.
func NewWatcher(conn *Connection, kind Kind, target Target) *Watcher {
	return newWatcher(conn, kind, nil, target)
}

// newWatcher takes the requests that read the kind; nil for those over the connection.
func newWatcher(conn *Connection, kind Kind, requests cache.ListerWatcher, target Target) *Watcher {
	return &Watcher{
		kind: kind, target: target, requests: requests, conn: conn,
		refusedOnce: make(chan struct{}), health: Health{Errors: map[string]int{}},
	}
}

// Optional has a refusal (403) count as an absent kind, which is asked for ever more rarely. It is called before Run.
func (w *Watcher) Optional() { w.optional = true }

// ObserveLag has the lag of changes observed. It is called before Run.
func (w *Watcher) ObserveLag(lag prometheus.Observer) { w.lag = lag }

// Health returns how the Watcher fares now.
func (w *Watcher) Health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.health
	h.Errors = maps.Clone(w.health.Errors)
	return h
}

// Refused returns a channel that is closed once the API server has refused the kind: there is no such resource, or no right to
// it. It may be served later.
func (w *Watcher) Refused() <-chan struct{} { return w.refusedOnce }

func isExcess(err error) bool {
	_, is := errors.AsType[*ExcessError](err)
	return is
}

// exceed notes why a listing has failed, if that is an excess, or that it has not.
func (w *Watcher) recordExcess(err error) {
	excess, is := errors.AsType[*ExcessError](err)
	if old, _ := w.excess.Load(); excess != old && (is || err == nil) {
		w.excess.Store(excess)
	}
}

// Run keeps the target filled with what there is of the kind, until ctx ends. It may be called again when it has returned.
func (w *Watcher) Run(ctx context.Context) {
	if b := w.conn.Budget; b != nil {
		most := b.Limits().Endpoints
		if _, ok := w.kind.object.(*corev1.Service); ok {
			most = b.Limits().Services
		}
		w.target.UseBudget(b, w.kind.Name, most)
		defer w.target.UseBudget(nil, "", 0)
	}
	requests := w.requests
	if requests == nil {
		requests = w.kind.requests(w.conn)
	}
	r := &reflector{Watcher: w, requests: cache.ToListerWatcherWithContext(requests), objects: reflect.TypeOf(w.kind.object), pageLimit: pageSize}
	var p restartPause
	refusals := refusedBackoff
	for ctx.Err() == nil {
		_, wake := w.conn.retryNow.Load()
		began := time.Now()
		err := r.listAndWatch(ctx)
		if err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Info("Listing and watching starts over", "error", err.Error())
		}
		if isExcess(err) {
			waitOrWake(ctx, wake, jitter(refusals))
			refusals = min(2*refusals, maxRefusedBackoff)
			continue
		}
		refusals = refusedBackoff
		p.wait(ctx, wake, began)
	}
}

// advance notes that a listing has come as far as n objects, and returns an error where that is too far. Only what is further than all
// before counts: a server that breaks off at the same place each time makes no progress.
func (r *reflector) recordProgress(n int) error {
	r.mu.Lock()
	if n > r.furthest {
		r.furthest, r.lastProgress = n, time.Now()
	}
	r.mu.Unlock()
	return r.target.CheckListing(n, r.received.Load())
}

// progressed returns when a listing last got further than all before; zero for never.
func (w *Watcher) progressedAt() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lastProgress
}

// Excess returns why the last listing was ended, if it brought many times what may be held; nil if it did not.
func (w *Watcher) Excess() error {
	if excess, _ := w.excess.Load(); excess != nil {
		return excess
	}
	return nil
}

// WaitListed returns once everything was listed. A listing may take long, as long as it gets on. It returns an error if the API server
// refuses the kind, does not get on with listing it, or lists many times what may be held of it.
func (w *Watcher) WaitSynced(ctx context.Context) error {
	kind := w.kind.Resource.GroupResource()
	deadline := time.NewTimer(listTimeout)
	defer deadline.Stop()
	for {
		excess, changed := w.excess.Load()
		if excess != nil {
			return &ProbeError{OverBudget, excess}
		}
		select {
		case <-w.target.Synced():
			return nil
		case <-w.Refused():
			return &ProbeError{Forbidden, fmt.Errorf("the API server refuses to list %s (%s): grant get, list and watch on them",
				kind, w.Health().Refused)}
		case <-changed:
		case <-deadline.C:
			left := listTimeout - time.Since(w.progressedAt())
			if left <= 0 {
				return &ProbeError{NotReady, fmt.Errorf("the API server answers, but has not listed %s: no progress within %s (%s)",
					kind, listTimeout, w.Problem())}
			}
			deadline.Reset(left)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Problem returns why the kind was not listed, as far as the API server gives a reason.
func (w *Watcher) Problem() string {
	if excess, _ := w.excess.Load(); excess != nil {
		return excess.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		return "the request is not answered to its end"
	}
	if isResponseError(w.failure) {
		return stableError(w.failure).Error()
	}
	return reasonLabel(w.failure)
}

// pace is the pause after something that should last: it grows while that is short.
type restartPause struct{ pause time.Duration }

// wait returns at once if what began then has lasted, and otherwise after a pause, or when it is woken, or when ctx ends.
func (p *restartPause) wait(ctx context.Context, wake <-chan struct{}, began time.Time) {
	lasted := time.Since(began)
	if lasted > maxBackoff {
		p.pause = 0
	}
	p.pause = min(max(2*p.pause, minBackoff), maxBackoff)
	waitOrWake(ctx, wake, p.pause-lasted)
}

// Following reports whether a watch is open on which every change arrives.
func (w *Watcher) Healthy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health.Open && time.Since(w.health.LastContact) < bookmarkLimit
}

// arrive notes how late an object is, if it tells of a change that is newer than all before it. What was there before we asked is
// not late. An object without a newer time, as one that is about to be deleted, says nothing.
func (w *Watcher) recordLag(m metav1.Object, changed bool) {
	if w.lag == nil {
		return
	}
	made := m.GetCreationTimestamp().Time
	for _, f := range m.GetManagedFields() {
		if f.Time != nil && f.Time.After(made) {
			made = f.Time.Time
		}
	}
	w.mu.Lock()
	newer := made.After(w.newest)
	if newer {
		w.newest = made
	}
	w.mu.Unlock()
	if newer && changed {
		w.lag.Observe(max(0, time.Since(made).Seconds()))
	}
}

// opened is one watch. Its context ends at the latest with the next Reset of the connection.
type openedWatch struct {
	watch.Interface
	ctx    context.Context
	cancel context.CancelFunc
	at     time.Time
}

// open watches, as soon as it can be done.
func (r *reflector) openWatch(ctx context.Context, options metav1.ListOptions) (o openedWatch, err error) {
	seconds := int64((watchAge + rand.N(watchAge)).Seconds())
	options.AllowWatchBookmarks, options.TimeoutSeconds = true, &seconds
	err = r.retry(ctx, func(ctx context.Context) error {
		r.updateHealth(func(h *Health) { h.Watches++ })
		o.ctx, o.cancel = r.conn.untilReset(ctx)
		if o.Interface, err = r.requests.WatchWithContext(o.ctx, options); err != nil {
			o.cancel()
		}
		return err
	})
	if err == nil {
		o.at = time.Now()
		r.updateHealth(func(h *Health) { h.Open, h.LastContact, h.Refused = true, o.at, "" })
	}
	return o, err
}

// close ends a watch.
func (w *Watcher) closeWatch(o openedWatch) {
	o.cancel()
	o.Stop()
	w.updateHealth(func(h *Health) { h.Open = false })
}

// insist repeats a request until it succeeds, ctx ends, or it fails in a way that the caller must know of. It tries again at once
// when the connection is reset. Where there is no such resource, or no right to one that the cluster is used without, it tries ever more rarely.
func (w *Watcher) retry(ctx context.Context, request func(context.Context) error) error {
	refusals := refusedBackoff
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		_, wake := w.conn.retryNow.Load()
		var server retryAfter
		err := request(context.WithValue(ctx, retryAfterKey{}, &server))
		w.recordFailure(err)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		reason := StatusReason(err)
		w.updateHealth(func(h *Health) { h.Errors[reasonLabel(err)]++ })
		pause := w.pauseAfter(backoff, server.asked)
		switch reason { //nolint:exhaustive // every other reason is worth another try
		case metav1.StatusReasonNotFound, metav1.StatusReasonForbidden, metav1.StatusReasonUnauthorized:
			w.updateHealth(func(h *Health) { h.Refused = reason })
			if reason != metav1.StatusReasonUnauthorized {
				w.once.Do(func() { close(w.refusedOnce) })
				pause = jitter(refusals)
				if reason == metav1.StatusReasonNotFound || w.optional {
					refusals = min(2*refusals, maxRefusedBackoff)
				}
			}
		case metav1.StatusReasonExpired, metav1.StatusReasonGone, metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest,
			metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonNotAcceptable, metav1.StatusReasonUnsupportedMediaType:
			return err
		case metav1.StatusReasonTimeout:
			if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
				return err
			}
		}
		if waitOrWake(ctx, wake, pause) {
			refusals = refusedBackoff
		}
	}
}

// pause returns how long to wait before a request that failed is made again: as long as the server asks, within limits, or else for our own
// backoff, which stays short while the API server is there. One that has just started fails requests until its caches are filled.
func (w *Watcher) pauseAfter(backoff, asked time.Duration) time.Duration {
	if !w.conn.unreachable.Load() {
		backoff = min(backoff, readyBackoff)
	}
	return max(jitter(backoff), min(asked, maxBackoff))
}

// jitter returns about d, at most.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// reasons are those that API servers give.
var knownReasons = []metav1.StatusReason{
	metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden, metav1.StatusReasonNotFound, metav1.StatusReasonAlreadyExists,
	metav1.StatusReasonConflict, metav1.StatusReasonGone, metav1.StatusReasonInvalid, metav1.StatusReasonServerTimeout,
	metav1.StatusReasonStoreReadError, metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests, metav1.StatusReasonBadRequest,
	metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonNotAcceptable, metav1.StatusReasonRequestEntityTooLarge,
	metav1.StatusReasonUnsupportedMediaType, metav1.StatusReasonInternalError, metav1.StatusReasonExpired, metav1.StatusReasonServiceUnavailable,
}

// ReasonOf returns the reason that an API server gave for an error, if it is one that API servers give, and otherwise none: it becomes
// part of labels, conditions and keys of maps.
func StatusReason(err error) metav1.StatusReason {
	if reason := apierrors.ReasonForError(err); slices.Contains(knownReasons, reason) {
		return reason
	}
	return metav1.StatusReasonUnknown
}

// errorReason returns how an error is counted.
func reasonLabel(err error) string {
	reason, answered := StatusReason(err), errors.As(err, new(apierrors.APIStatus))
	switch {
	case reason != metav1.StatusReasonUnknown:
		return string(reason)
	case answered:
		return "Unknown"
	default:
		return string(transportReason(err))
	}
}

// short returns what a Status says, in a line.
func statusText(s *metav1.Status) string {
	if s == nil {
		return "no Status"
	}
	return fmt.Sprintf("%.200q", s.Message)
}

func (w *Watcher) recordFailure(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failure = err
}

func (w *Watcher) updateHealth(f func(*Health)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.health)
}

// filler fills the target of a Watcher. One goroutine uses it.
type reflector struct {
	*Watcher
	requests cache.ListerWatcherWithContext
	objects  reflect.Type // that the target takes

	pageLimit int64        // objects asked for in a page
	version   string       // the newest that was seen
	received  atomic.Int64 // bytes of the listing that is under way
}

// fill lists everything and then follows the changes, until what was missed cannot be had any more.
func (r *reflector) listAndWatch(ctx context.Context) error {
	r.received.Store(0)
	w, version, err := r.list(context.WithValue(ctx, receivedKey{}, &r.received))
	r.recordExcess(err)
	if err != nil {
		return err
	}
	if older(version, r.version) {
		r.updateHealth(func(h *Health) { h.Restored = time.Now() })
	}
	r.version = version
	var p restartPause
	for {
		if w.Interface == nil {
			if w, err = r.openWatch(ctx, metav1.ListOptions{ResourceVersion: r.version}); err != nil {
				return err
			}
		}
		_, wake := r.conn.retryNow.Load()
		err = r.readEvents(w, r.applyEvent)
		r.closeWatch(w)
		if err != nil || ctx.Err() != nil {
			return err
		}
		p.wait(ctx, wake, w.at) // a server that hangs up at once must not be asked in a tight loop
		w = openedWatch{}
	}
}

// errSilent ends a watch on which nothing came for too long.
var errSilent = fmt.Errorf("no event and no bookmark within %s", bookmarkLimit)

// list replaces what the store holds by all there is, and returns the version of that. If it came as a stream, that goes on as a watch.
// Streams can be switched off as in all clients of client-go, by KUBE_FEATURE_WatchListClient=false in the environment.
func (r *reflector) list(ctx context.Context) (w openedWatch, version string, err error) {
	if !features.FeatureGates().Enabled(features.WatchListClient) {
		version, err = r.listPages(ctx)
		return openedWatch{}, version, err
	}
	w, err = r.openWatch(ctx, metav1.ListOptions{SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err == nil {
		if version, err = r.readStream(w); err == nil {
			return w, version, nil
		}
		r.closeWatch(w)
	}
	if isExcess(err) || errors.Is(err, errInterrupted) || ctx.Err() != nil {
		return openedWatch{}, "", err
	}
	version, err = r.listPages(ctx) // the API server cannot stream lists
	return openedWatch{}, version, err
}

// errBroken is the end of a watch before its initial events were through.
var errInterrupted = errors.New("the watch broke off before everything was listed")

// stream stores the initial events of a watch.
func (r *reflector) readStream(w openedWatch) (version string, err error) {
	listing := r.target.NewListing()
	through, n := errors.New("through"), 0
	err = r.readEvents(w, func(e watch.Event, m metav1.Object) error {
		switch {
		case e.Type == watch.Bookmark && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
			version = m.GetResourceVersion()
			return through
		case e.Type == watch.Bookmark:
			return nil
		case e.Type == watch.Deleted:
			return listing.Delete(e.Object)
		default:
			n++
			if err := r.recordProgress(n); err != nil {
				return err
			}
			r.recordLag(m, false)
			return listing.Update(e.Object)
		}
	})
	switch {
	case err == nil:
		return "", errInterrupted
	case errors.Is(err, through):
		return version, r.target.Replace(listing.Objects(), version)
	default:
		return "", err
	}
}

// pages stores a list that is asked for page by page. A page that is too much for us, or for the way here, is asked for again with fewer
// objects; where the API server has forgotten the version of the first page before the last was read, everything is, with more.
func (r *reflector) listPages(ctx context.Context) (version string, err error) {
	listing, n := r.target.NewListing(), 0
	for next := ""; ; {
		list, err := r.listPage(ctx, next)
		switch {
		case next != "" && isExpired(err):
			r.pageLimit = min(2*r.pageLimit, maxPageSize)
			return "", err
		case err != nil:
			return "", err
		}
		m, err := meta.ListAccessor(list)
		if err != nil {
			return "", fmt.Errorf("list without metadata: %w", err)
		}
		if next == "" {
			version = m.GetResourceVersion()
		}
		n += meta.LenList(list)
		if err := r.recordProgress(n); err != nil {
			return "", err
		}
		err = meta.EachListItem(list, func(object runtime.Object) error {
			m, err := meta.Accessor(object)
			if err != nil || reflect.TypeOf(object) != r.objects {
				return nil //nolint:nilerr // one object that is none costs no other
			}
			r.recordLag(m, false)
			return listing.Update(object)
		})
		if err != nil {
			return "", err
		}
		last := next
		if next = m.GetContinue(); next == "" {
			return version, r.target.Replace(listing.Objects(), version)
		}
		if next == last || meta.LenList(list) == 0 {
			return "", errors.New("the API server repeats a page of its list, or lists an empty one before the last")
		}
	}
}

func (r *reflector) listPage(ctx context.Context, next string) (list runtime.Object, err error) {
	err = r.retry(ctx, func(ctx context.Context) error {
		ctx, cancel := r.conn.untilReset(ctx)
		defer cancel()
		ctx, stop := context.WithTimeout(ctx, pageTimeout)
		defer stop()
		r.updateHealth(func(h *Health) { h.Lists++ })
		list, err = r.requests.ListWithContext(ctx, metav1.ListOptions{Limit: r.pageLimit, Continue: next})
		if errors.Is(ctx.Err(), context.DeadlineExceeded) || isResponseError(err) {
			r.pageLimit = max(1, r.pageLimit/2)
		}
		return err
	})
	return list, err
}

func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// apply stores a change.
func (r *reflector) applyEvent(e watch.Event, m metav1.Object) error {
	version := m.GetResourceVersion()
	if older(version, r.version) {
		return fmt.Errorf("version %.20s comes after version %.20s", version, r.version)
	}
	if version != "" {
		r.version = version
	}
	switch e.Type {
	case watch.Bookmark:
		if r.target.MayFit() {
			return errors.New("there is room for what was refused")
		}
		return nil
	case watch.Deleted:
		return r.target.Delete(e.Object)
	default:
		r.recordLag(m, true)
		return r.target.Update(e.Object)
	}
}

// older reports whether version a is from before version b, as far as that can be known.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// events passes events to use until the watch breaks, which can be resumed, or one is an error, or use returns one.
func (r *reflector) readEvents(w openedWatch, use func(watch.Event, metav1.Object) error) error {
	silence := time.NewTimer(bookmarkLimit)
	defer silence.Stop()
	for {
		select {
		case event, open := <-w.ResultChan():
			if !open {
				return nil
			}
			if event.Type == watch.Error {
				status, ok := event.Object.(*metav1.Status)
				if !ok || status.Code >= 500 || status.Code == http.StatusTooManyRequests {
					r.recordFailure(newResponseError("a watch ends with an error: %s", statusText(status)))
					return nil // the connection broke in the middle of an event, or it cannot be decoded
				}
				return apierrors.FromObject(status)
			}
			r.updateHealth(func(h *Health) { h.LastContact = time.Now() })
			silence.Reset(bookmarkLimit)
			m, err := meta.Accessor(event.Object)
			if err != nil || reflect.TypeOf(event.Object) != r.objects {
				continue // one object that is none costs no other
			}
			if err := use(event, m); err != nil {
				return err
			}
		case <-silence.C:
			return errSilent
		case <-w.ctx.Done():
			return nil
		}
	}
}

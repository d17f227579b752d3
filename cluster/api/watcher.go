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
	readyBackoff      = time.Second      // the longest while probes succeed: the API server is about to serve
	maxBackoff        = 15 * time.Second // the longest while they fail; the first that succeeds ends the pause
	refusedBackoff    = 10 * time.Second // the first where another result is not to be expected soon
	maxRefusedBackoff = 5 * time.Minute  // the longest there
	// denialLimit is how long a kind is refused without a break before it counts as denied.
	denialLimit = 30 * time.Second
	// bookmarkLimit is how long a watch may be silent; API servers send a bookmark about once a minute.
	bookmarkLimit = 150 * time.Second
	// watchAge is after how long the API server is asked to end a watch, or up to twice as long.
	watchAge = 5 * time.Minute

	// fitInterval is how often everything is listed, at most, because deletions have
	// made room for what was refused.
	fitInterval = 5 * time.Second

	pageSize    = 500 // objects in a list
	maxPageSize = 10_000
	pageTimeout = 20 * time.Second // for one page to arrive
	// listTimeout is how long the first listing of a required kind may make no progress.
	listTimeout = time.Minute
)

// A Watcher lists and watches one kind of object at one API server, and keeps a Sink filled with it. It
// is what client-go's Reflector is, with four differences; without them its user would have to watch over
// it.
//
// Memory. A listing never stands in memory whole. It comes as a stream of initial events where the API
// server can stream, and otherwise by pages, and each object is reduced to its record before the next one,
// or the next page, is decoded. A page that is too large, or too slow to arrive, is requested again with
// half as many objects.
//
// Freshness. Each listing requests the newest state. The cache of an API server that has just started may
// be older than what we hold, and a listing from it would withdraw what is there.
//
// Resuming. A watch that breaks is resumed from the last version that was seen; events and bookmarks
// carry it. The Watcher lists anew in five cases only, besides those of a shared watch (join.go):
//   - The API server rejects the version, or the request as it is (410, Expired, Invalid, "too large resource
//     version").
//   - A version is lower than the one before. Versions grow as long as etcd is the same, so that etcd was
//     restored from a backup.
//   - Nothing came for bookmarkLimit, not even a bookmark, of which API servers send one a minute. A watch
//     from a version that a restored etcd has not reached yet is accepted and stays silent. If etcd reaches
//     it before, because the backup is minutes old and much is written, that is not noticed.
//   - There is room again for objects that the Budget refused.
//   - Relist was called.
//
// An error event of 429 or 5xx, an event that cannot be decoded and a closed connection are breaks, not
// reasons to list. An object of another kind, or none, is skipped. While it lists anew the Sink keeps
// what it holds; a complete listing replaces all of it at once, so that an interrupted one withdraws
// nothing.
//
// A kind is in contact while its watch is open and not silent for longer than bookmarkLimit. A listing that is
// under way counts as silence until it is complete.
//
// Pauses. Every request that fails is retried here and nowhere else. While probes succeed the pause stays
// at or below a second, because an API server that has just started is about to serve; otherwise it grows
// to 15 s, and the next successful probe ends it. Retry-After is honoured up to 15 s. A kind that the API
// server refuses (403, 404) is retried after 5 to 10 s; the pause for an absent or an optional one grows to
// minutes. A listing that exceeds the Budget many times over is ended, and retried like a refusal, or at once
// when Relist is called. A watch that is closed at once is reopened with a growing pause.
//
// One goroutine runs all this (reflector); mu guards what Health, CheckHealth and Problem read beside it. It
// is never held while the Sink is called.
type Watcher struct {
	kind     Kind
	sink     Sink
	requests cache.ListerWatcher // instead of those over conn, in tests
	conn     *Connection
	lag      prometheus.Observer // of changes; nil: it is not measured
	optional bool                // the cluster is used without it

	relay   fedwatch.Value[*relay] // for those who join; nil unless it watches
	relists fedwatch.Value[uint64] // how often a new listing was requested; stored under mu
	listed  fedwatch.Value[uint64] // relists before the last complete listing began

	refusedOnce chan struct{}                // closed when the kind was first refused
	absentOnce  chan struct{}                // closed when it was first not served
	deniedOnce  chan struct{}                // closed when it was first refused for denialLimit
	excess      fedwatch.Value[*ExcessError] // why the last listing was ended; nil if it was not

	mu     sync.Mutex
	health Health
	via    *Watcher  // whose watch it receives; nil unless it has joined
	newest time.Time // when the newest change was made that has arrived, as the API server has it
}

// Health is the state of a Watcher.
type Health struct {
	Open        bool      `json:"open"`                 // a watch is open
	Joined      bool      `json:"joined,omitempty"`     // it receives the events of another Watcher's watch
	LastContact time.Time `json:"lastContact,omitzero"` // of the last event, bookmark, complete listing or opening
	// NotFound, Forbidden or Unauthorized; empty if the kind is served.
	Refused  metav1.StatusReason `json:"refused,omitempty"`
	Restored time.Time           `json:"restored,omitzero"` // when the API server last went back to an older state
	Lists    int                 `json:"lists"`             // requests so far, for each page
	Watches  int                 `json:"watches"`           // requests so far
	Errors   map[string]int      `json:"errors,omitempty"`  // failed requests by reason

	failure      error     // of the last request; nil if it succeeded
	furthest     int       // objects that came with the listing which got furthest, complete or not
	lastProgress time.Time // when that last grew
}

// NewWatcher returns a Watcher that fills sink with the objects of a kind. It joins the Watcher that is
// shared over conn, if there is one (see join.go).
func NewWatcher(conn *Connection, kind Kind, sink Sink) *Watcher {
	return &Watcher{
		kind: kind, sink: sink, conn: conn,
		refusedOnce: make(chan struct{}), absentOnce: make(chan struct{}), deniedOnce: make(chan struct{}),
		health: Health{Errors: map[string]int{}},
	}
}

// Optional makes a refusal (403) count like an absent kind, which is retried with a growing pause. It is
// called before Run.
func (w *Watcher) Optional() { w.optional = true }

// ObserveLag makes the Watcher observe the lag of changes. It is called before Run.
func (w *Watcher) ObserveLag(lag prometheus.Observer) { w.lag = lag }

// Health returns the state of the Watcher.
func (w *Watcher) Health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.health
	h.Joined = w.via != nil
	h.Errors = maps.Clone(w.health.Errors)
	return h
}

// Refused returns a channel that closes once the API server has refused the kind: there is no such
// resource, or no permission. It may be served later, a moment after that: see Denied.
func (w *Watcher) Refused() <-chan struct{} { return w.refusedOnce }

// Denied returns a channel that closes once the API server has refused the kind for denialLimit (30 s) without a
// break, whether it was listed before or not. A shorter refusal is none to act on: an API server refuses what it
// knows no rule for yet while it starts, and while RBAC is replaced.
func (w *Watcher) Denied() <-chan struct{} { return w.deniedOnce }

// Absent returns a channel that closes once the API server has not served the kind (404), so that there were no
// objects. It may serve it later.
func (w *Watcher) Absent() <-chan struct{} { return w.absentOnce }

// WaitListed waits until all objects were listed, which closes synced, or the API server has not served the kind. It
// returns false if ctx ends first.
func (w *Watcher) WaitListed(ctx context.Context, synced <-chan struct{}) bool {
	select {
	case <-synced:
	case <-w.Absent():
	case <-ctx.Done():
		return false
	}
	return true
}

func isExcess(err error) bool {
	_, is := errors.AsType[*ExcessError](err)
	return is
}

// recordExcess records the outcome of a listing: an excess, or success.
func (w *Watcher) recordExcess(err error) {
	excess, is := errors.AsType[*ExcessError](err)
	if old, _ := w.excess.Load(); excess != old && (is || err == nil) {
		w.excess.Store(excess)
	}
}

// Run keeps the sink filled with what there is of the kind, until ctx ends. It may be called again when
// it has returned.
func (w *Watcher) Run(ctx context.Context) {
	if b := w.conn.Budget; b != nil {
		w.sink.UseBudget(b, w.kind)
		defer w.sink.UseBudget(nil, Kind{})
	}
	log := logr.FromContextOrDiscard(ctx)
	requests, err := w.requests, error(nil)
	if requests == nil {
		requests, err = w.kind.requests(w.conn)
	}

	if err != nil {
		log.Error(err, "BUG: no client from a configuration that is in use")
		return
	}

	reflector := &reflector{
		Watcher: w, shared: w.conn.sharedFor(w), requests: cache.ToListerWatcherWithContext(requests),
		objects: reflect.TypeOf(w.kind.object), pageLimit: pageSize,
	}
	var pause restartPause
	refusals := refusedBackoff

	for ctx.Err() == nil {
		_, wake := w.conn.retryNow.Load()
		began := time.Now()
		err := reflector.listAndWatch(ctx)
		if err != nil && ctx.Err() == nil {
			log.Info("Listing and watching starts over", "error", err.Error())
		}

		if isExcess(err) {
			if waitFor(ctx, jitter(refusals), wake, reflector.relist) == reflector.relist {
				refusals = refusedBackoff // the limits may be others
			} else {
				refusals = min(2*refusals, maxRefusedBackoff)
			}
			continue
		}

		refusals = refusedBackoff
		if errors.Is(err, errRelist) {
			continue // nothing has failed
		}
		pause.wait(ctx, wake, began)
	}

	if reflector.fits != nil {
		reflector.fits.Stop()
	}
}

// recordProgress records that a listing has brought n objects, and returns an error if the Budget ends it.
// Only more objects than in each listing before are progress: a server that breaks off at the same place
// each time makes none.
func (r *reflector) recordProgress(n int) error {
	r.updateHealth(func(h *Health) {
		if n > h.furthest {
			h.furthest, h.lastProgress = n, time.Now()
		}
	})
	return r.sink.budgetShare().checkListing(n, r.received.Load())
}

// WaitSynced returns once everything was listed. A listing may take long while it makes progress. It
// returns an error if the API server refuses the kind, makes no progress for listTimeout, or lists many
// times the Budget.
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
		case <-w.sink.Synced():
			return nil
		case <-w.Refused():
			if fedwatch.IsClosed(w.sink.Synced()) {
				return nil // the refusal is over
			}
			return &ProbeError{Forbidden, fmt.Errorf(
				"the API server refuses to list %s (%s): grant get, list and watch on them",
				kind, w.Health().Refused)}
		case <-changed:
		case <-deadline.C:
			left := listTimeout - time.Since(w.Health().lastProgress)
			if left <= 0 {
				return &ProbeError{NotReady, fmt.Errorf(
					"the API server answers, but has not listed %s: no progress within %s (%s)",
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
	switch failure := w.Health().failure; {
	case failure == nil:
		return "the request is not answered to its end"
	case isResponseError(failure):
		return stableError(failure, ProbeTimeout).Error()
	default:
		return reasonLabel(failure)
	}
}

// restartPause is the pause after a watch or a listing ended. It grows while they end soon after they
// began.
type restartPause struct{ pause time.Duration }

// wait returns at once if what began then has lasted, and otherwise after a pause, or when it is woken, or
// when ctx ends.
func (p *restartPause) wait(ctx context.Context, wake <-chan struct{}, began time.Time) {
	lasted := time.Since(began)
	if lasted > maxBackoff {
		p.pause = 0
	}
	p.pause = min(max(2*p.pause, minBackoff), maxBackoff)
	waitFor(ctx, p.pause-lasted, wake, nil)
}

// isHealthy reports whether a watch is open on which every change arrives.
func (w *Watcher) isHealthy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.via != nil {
		return w.via.isHealthy()
	}
	return w.health.Open && time.Since(w.health.LastContact) < bookmarkLimit
}

// CheckHealth returns a [ProbeError] if changes may not arrive.
func (w *Watcher) CheckHealth() error {
	kind := w.kind.Resource.GroupResource()
	excess, _ := w.excess.Load()
	switch refused := w.Health().Refused; {
	case excess != nil:
		return &ProbeError{OverBudget, excess}
	case w.isHealthy():
		return nil
	case refused != "":
		return &ProbeError{Forbidden, fmt.Errorf("the API server refuses to watch %s (%s)", kind, refused)}
	default:
		return &ProbeError{Unreachable, fmt.Errorf("the watch of %s is interrupted", kind)}
	}
}

// recordLag observes how late a change is, if it is newer than all before it. What was there before the
// watch is not late. An object without a newer time, such as one that is about to be deleted, is not
// observed.
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

// openedWatch is one watch. Its context ends at the latest with the next Reset of the connection.
type openedWatch struct {
	watch.Interface
	ctx    context.Context
	cancel context.CancelFunc
	at     time.Time
}

// openWatch opens a watch, and retries until it can.
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
		r.updateHealth(func(h *Health) { h.Open, h.Refused = true, "" })
		r.recordContact()
	}

	return o, err
}

// recordContact records that the API server has sent something by which what the Sink holds is what there is. Parts
// of a listing are not: one that never comes to its end is silence, although its watch is open.
func (r *reflector) recordContact() {
	if !r.listing {
		r.updateHealth(func(h *Health) { h.LastContact = time.Now() })
	}
}

// closeWatch ends a watch.
func (w *Watcher) closeWatch(o openedWatch) {
	if o.Interface == nil {
		return // the list came by pages
	}
	o.cancel()
	o.Stop()
	w.updateHealth(func(h *Health) { h.Open = false })
}

// retry repeats a request until it succeeds, ctx ends, or it fails for a reason that only a new listing can
// mend. It retries at once when the connection is reset. A missing resource, and an optional one that is
// refused, it retries with a growing pause.
func (w *Watcher) retry(ctx context.Context, request func(context.Context) error) error {
	refusals, refusedSince := refusedBackoff, time.Time{}
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		_, wake := w.conn.retryNow.Load()
		var asked time.Duration // by the API server
		err := request(context.WithValue(ctx, retryAfterKey{}, &asked))
		w.updateHealth(func(h *Health) { h.failure = err })
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}

		w.updateHealth(func(h *Health) { h.Errors[reasonLabel(err)]++ })
		if needsListing(err) {
			return err
		}

		pause := w.pauseAfter(backoff, asked)
		switch reason := StatusReason(err); reason { //nolint:exhaustive // the others are worth another try soon
		case metav1.StatusReasonNotFound, metav1.StatusReasonForbidden, metav1.StatusReasonUnauthorized:
			w.updateHealth(func(h *Health) { h.Refused = reason })
			if reason != metav1.StatusReasonUnauthorized {
				if refusedSince.IsZero() {
					refusedSince = time.Now()
				}
				w.recordRefusal(reason, refusedSince)
				pause = jitter(refusals)
				if reason == metav1.StatusReasonNotFound || w.optional {
					refusals = min(2*refusals, maxRefusedBackoff)
				}
			}
		}

		if waitFor(ctx, pause, wake, nil) == wake {
			refusals = refusedBackoff
		}
	}
}

// recordRefusal records that the API server has refused the kind without a break since a time.
func (w *Watcher) recordRefusal(reason metav1.StatusReason, since time.Time) {
	closeOnce(w.refusedOnce)
	if reason == metav1.StatusReasonNotFound {
		closeOnce(w.absentOnce)
	}
	if time.Since(since) >= denialLimit {
		closeOnce(w.deniedOnce)
	}
}

// closeOnce closes a channel that is not closed yet. One goroutine calls it.
func closeOnce(c chan struct{}) {
	if !fedwatch.IsClosed(c) {
		close(c)
	}
}

// needsListing reports whether a request failed for a reason that only a new listing can mend.
func needsListing(err error) bool {
	switch StatusReason(err) {
	case metav1.StatusReasonExpired, metav1.StatusReasonGone, metav1.StatusReasonInvalid,
		metav1.StatusReasonBadRequest, metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonNotAcceptable,
		metav1.StatusReasonUnsupportedMediaType:
		return true
	case metav1.StatusReasonTimeout:
		return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
	default:
		return false
	}
}

// pauseAfter returns the pause before a request that failed is retried: what the server asks for, within
// limits, or our own back-off, which stays short while probes succeed. A server that has just started fails
// requests until its caches are filled.
func (w *Watcher) pauseAfter(backoff, asked time.Duration) time.Duration {
	if !w.conn.unreachable.Load() {
		backoff = min(backoff, readyBackoff)
	}
	return max(jitter(backoff), min(asked, maxBackoff))
}

// jitter returns about d, at most.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// knownReasons are those that API servers give.
var knownReasons = []metav1.StatusReason{
	metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden, metav1.StatusReasonNotFound,
	metav1.StatusReasonAlreadyExists, metav1.StatusReasonConflict, metav1.StatusReasonGone,
	metav1.StatusReasonInvalid, metav1.StatusReasonServerTimeout, metav1.StatusReasonStoreReadError,
	metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests, metav1.StatusReasonBadRequest,
	metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonNotAcceptable,
	metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonUnsupportedMediaType,
	metav1.StatusReasonInternalError, metav1.StatusReasonExpired, metav1.StatusReasonServiceUnavailable,
}

// StatusReason returns the reason that an API server gave for an error if it is a known
// one, and [metav1.StatusReasonUnknown], which is empty, otherwise: reasons become
// labels, conditions and keys of maps.
func StatusReason(err error) metav1.StatusReason {
	if reason := apierrors.ReasonForError(err); slices.Contains(knownReasons, reason) {
		return reason
	}
	return metav1.StatusReasonUnknown
}

// reasonLabel returns the label under which an error is counted.
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

// statusText returns the message of a Status, on one line.
func statusText(s *metav1.Status) string {
	if s == nil {
		return "no Status"
	}
	return fmt.Sprintf("%.200q", s.Message)
}

func (w *Watcher) updateHealth(f func(*Health)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.health)
}

// A reflector fills the sink of a Watcher. One goroutine uses it.
type reflector struct {
	*Watcher
	shared   *Watcher // which it joins; nil for none
	requests cache.ListerWatcherWithContext
	objects  reflect.Type // that the sink takes

	pageLimit int64           // objects asked for in a page
	version   string          // the newest that was seen
	began     time.Time       // the last listing
	listing   bool            // it has not come to its end
	relist    <-chan struct{} // closes when another one is requested
	fits      *time.Timer     // until what was refused is listed again; nil for not
	received  atomic.Int64    // bytes of the listing that is under way
}

// listAndWatch lists everything and then applies changes, until what was missed cannot be had any more.
func (r *reflector) listAndWatch(ctx context.Context) error {
	joined := r.join(ctx)
	defer joined.leave()
	var requested uint64
	requested, r.relist = r.relists.Load()
	r.began, r.listing = time.Now(), true
	if r.fits != nil {
		r.fits.Stop()
		r.fits = nil
	}

	r.received.Store(0)
	opened, version, err := r.list(context.WithValue(ctx, receivedKey{}, &r.received))
	r.recordExcess(err)
	if err != nil {
		return err
	}

	r.listing = false
	r.recordContact()
	r.listed.Store(requested)
	if older(version, r.version) {
		r.updateHealth(func(h *Health) { h.Restored = time.Now() })
	}

	r.version = version
	live, err := joined.goLive(version)
	if live || err != nil {
		r.closeWatch(opened)
		if err != nil {
			return err
		}
		return r.receive(ctx, joined)
	}
	return r.applyChanges(ctx, opened, joined)
}

// applyChanges stores and forwards the events of a watch of its own, which opened is if it is open already. It
// ends when what was missed cannot be had any more, a listing is requested, or there is a relay to join
// other than that of tried.
func (r *reflector) applyChanges(ctx context.Context, opened openedWatch, tried *receiver) (err error) {
	out := r.startRelay(r.version)
	defer r.endRelay(out)
	anew := interrupts{r.relist, func() (bool, <-chan struct{}) { return r.canJoin(tried) }}
	var pause restartPause

	for {
		if opened.Interface == nil {
			if opened, err = r.openWatch(ctx, metav1.ListOptions{ResourceVersion: r.version}); err != nil {
				return err
			}
		}

		_, wake := r.conn.retryNow.Load()
		err = r.readEvents(opened, anew, func(e watch.Event, m metav1.Object) error {
			err := r.applyEvent(e, m)
			if err == nil {
				out.forward(e, m)
			}
			return err
		})

		r.closeWatch(opened)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if can, _ := r.canJoin(nil); can {
			return errRejoin
		}
		pause.wait(ctx, wake, opened.at) // a server that hangs up at once must not be asked in a tight loop
		opened = openedWatch{}
	}
}

// errSilent ends a watch on which nothing came for too long.
var errSilent = fmt.Errorf("no event and no bookmark within %s", bookmarkLimit)

// list replaces what the Sink holds by a complete listing, and returns its version. If it came as a
// stream, the stream goes on as a watch. Streams can be switched off as in all clients of client-go, by
// KUBE_FEATURE_WatchListClient=false in the environment.
func (r *reflector) list(ctx context.Context) (w openedWatch, version string, err error) {
	if !features.FeatureGates().Enabled(features.WatchListClient) {
		version, err = r.listPages(ctx)
		return openedWatch{}, version, err
	}

	w, err = r.openWatch(ctx, metav1.ListOptions{
		SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
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

// errInterrupted is the end of a watch before its initial events were through.
var errInterrupted = errors.New("the watch broke off before everything was listed")

// readStream stores the initial events of a watch.
func (r *reflector) readStream(w openedWatch) (version string, err error) {
	listing := r.sink.NewListing()

	through, count := errors.New("through"), 0
	err = r.readEvents(w, interrupts{}, func(event watch.Event, object metav1.Object) error {
		switch {
		case event.Type == watch.Bookmark && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
			version = object.GetResourceVersion()
			return through
		case event.Type == watch.Bookmark:
			return nil
		case event.Type == watch.Deleted:
			return listing.Delete(event.Object)
		default:
			count++
			r.recordLag(object, false)
			if err := listing.Update(event.Object); err != nil {
				return err
			}
			return r.recordProgress(count)
		}
	})

	switch {
	case err == nil:
		return "", errInterrupted
	case errors.Is(err, through):
		return version, r.sink.Replace(listing.Objects())
	default:
		return "", err
	}
}

// listPages stores a list that it requests page by page. A page that is too large or too slow is requested
// again with fewer objects. If the API server has forgotten the version of the first page before the last
// one was read, the whole list is requested again with larger pages.
func (r *reflector) listPages(ctx context.Context) (version string, err error) {
	listing, count := r.sink.NewListing(), 0
	for next := ""; ; {
		list, err := r.listPage(ctx, next)
		if next != "" && isExpired(err) {
			r.pageLimit = min(2*r.pageLimit, maxPageSize)
		}
		if err != nil {
			return "", err
		}

		listMeta, err := meta.ListAccessor(list)
		if err != nil {
			return "", fmt.Errorf("list without metadata: %w", err)
		}
		if next == "" {
			version = listMeta.GetResourceVersion()
		}

		err = meta.EachListItem(list, func(object runtime.Object) error {
			m, is := r.metadataOf(object)
			if !is {
				return nil // it costs no other
			}
			r.recordLag(m, false)
			return listing.Update(object)
		})
		if err != nil {
			return "", err
		}

		count += meta.LenList(list)
		if err := r.recordProgress(count); err != nil {
			return "", err
		}

		last := next
		if next = listMeta.GetContinue(); next == "" {
			return version, r.sink.Replace(listing.Objects())
		}
		if next == last || meta.LenList(list) == 0 {
			return "", errors.New(
				"the API server repeats a page of its list, or lists an empty one before the last")
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

// applyEvent stores a change.
func (r *reflector) applyEvent(event watch.Event, object metav1.Object) error {
	version := object.GetResourceVersion()
	if older(version, r.version) {
		return fmt.Errorf("version %.20s comes after version %.20s", version, r.version)
	}
	if version != "" {
		r.version = version
	}

	switch event.Type {
	case watch.Bookmark:
		return checkRefused(r.sink)
	case watch.Deleted:
		if err := r.sink.Delete(event.Object); err != nil {
			return err
		}
		if r.fits == nil && r.sink.budgetShare().mayFit() {
			r.fits = time.AfterFunc(time.Until(r.began.Add(fitInterval)), r.Relist)
		}
		return nil
	default:
		r.recordLag(object, true)
		return r.sink.Update(event.Object)
	}
}

// checkRefused returns an error, at a bookmark, if what a Sink refused is to be listed again.
func checkRefused(t Sink) error {
	if share := t.budgetShare(); share.mayFit() || share.refusedGone() {
		return errFits
	}
	return nil
}

// metadataOf returns that of an object; false for one that is not of the kind.
func (r *reflector) metadataOf(object runtime.Object) (metav1.Object, bool) {
	m, err := meta.Accessor(object)
	return m, err == nil && reflect.TypeOf(object) == r.objects
}

// older reports whether version a is from before version b. It is false where they cannot be compared.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// interrupts are what ends a watch that is in order. The zero value has none.
type interrupts struct {
	relist  <-chan struct{}
	canJoin func() (can bool, changed <-chan struct{})
}

// readEvents calls use with each event. It returns nil when the watch breaks and can be resumed, and an
// error when an event is one, when use returns one, when it is interrupted, or when nothing came for
// bookmarkLimit.
func (r *reflector) readEvents(
	opened openedWatch, anew interrupts, use func(watch.Event, metav1.Object) error,
) error {
	silence := time.NewTimer(bookmarkLimit)
	defer silence.Stop()

	for {
		var relays <-chan struct{}
		if anew.canJoin != nil {
			var can bool
			if can, relays = anew.canJoin(); can {
				return errRejoin
			}
		}

		select {
		case <-anew.relist:
			return errRelist
		case <-relays: // another one, perhaps
		case event, open := <-opened.ResultChan():
			if !open {
				return nil
			}
			if event.Type == watch.Error {
				status, ok := event.Object.(*metav1.Status)
				if !ok || status.Code >= 500 || status.Code == http.StatusTooManyRequests {
					err := newResponseError("a watch ends with an error: %s", statusText(status))
					r.updateHealth(func(h *Health) { h.failure = err })
					return nil // the connection broke in the middle of an event, or it cannot be decoded
				}
				return apierrors.FromObject(status)
			}

			r.recordContact()
			if anew.relist != nil { // it is no listing
				r.conn.pace(opened.ctx)
			}
			silence.Reset(bookmarkLimit)
			if m, is := r.metadataOf(event.Object); is { // another costs none
				if err := use(event, m); err != nil {
					return err
				}
			}
		case <-silence.C:
			return errSilent
		case <-opened.ctx.Done():
			return nil
		}
	}
}

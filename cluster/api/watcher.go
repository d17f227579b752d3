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
	"k8s.io/apimachinery/pkg/labels"
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
	maxRefusedBackoff = 40 * time.Second // the longest there: what is granted shows within a minute
	maxRareBackoff    = 5 * time.Minute  // the longest for an optional kind that is not served, or for one too large
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

// A Watcher lists and watches one kind of object at one API server, and keeps a Sink filled with it, or several
// (readers.go). It is what client-go's Reflector is, with four differences; without them its user would have to watch
// over it.
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
// carry it. The Watcher lists anew in five cases only:
//   - The API server rejects the version, or the request as it is (410, Expired, Invalid, "too large resource
//     version").
//   - A version is lower than the one before. Versions grow as long as etcd is the same, so that etcd was
//     restored from a backup.
//   - Nothing came for bookmarkLimit, not even a bookmark, of which API servers send one a minute. A watch
//     from a version that a restored etcd has not reached yet is accepted and stays silent. If etcd reaches
//     it before, because the backup is minutes old and much is written, that is not noticed.
//   - There is room again for objects that the Budget refused.
//   - Relist was called, as when there is another Sink to fill.
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
// 40 s, and to minutes for one that is both. A listing that exceeds the Budget many times over is ended, and
// retried like a refusal, or at once when Relist is called. A watch that is closed at once is reopened with a
// growing pause.
//
// One goroutine runs all this (reflector); mu guards what Health, CheckHealth and Problem read beside it. It
// is never held while a Sink is called; feeding is.
type Watcher struct {
	kind     Kind
	selector labels.Selector // of the kind
	sink     Sink
	requests cache.ListerWatcher // instead of those over conn, in tests
	conn     *Connection
	lag      prometheus.Observer // of changes; nil: it is not measured
	optional bool                // the cluster is used without it

	relists fedwatch.Value[uint64] // how often a new listing was requested; stored under mu
	listed  fedwatch.Value[uint64] // relists before the last complete listing began

	refusedOnce chan struct{}                // closed when the kind was first refused
	absentOnce  chan struct{}                // closed when it was first not served
	deniedOnce  chan struct{}                // closed when it was first refused for denialLimit
	excess      fedwatch.Value[*ExcessError] // why the last listing was ended; nil if it was not

	feeding sync.Mutex // guards readers and what is kept of each; held while their Sinks are called
	readers []*Watcher // whose Sinks it fills: itself, and those that joined it
	listing Listing    // what its Sink is given of a listing that is under way; guarded by feeding of who fills it
	current bool       // its Sink has had a complete listing, and is given changes; likewise

	mu     sync.Mutex
	health Health
	via    *Watcher  // who fills its Sink; nil while it does so itself, or it does not run
	newest time.Time // when the newest change was made that has arrived, as the API server has it
}

// Health is the state of a Watcher.
type Health struct {
	Open        bool      `json:"open"`                 // a watch is open
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

// NewWatcher returns a Watcher that fills sink with the objects of a kind. It leaves that to the Watcher that is
// shared over conn, if there is one (see readers.go).
func NewWatcher(conn *Connection, kind Kind, sink Sink) *Watcher {
	selector, err := labels.Parse(kind.Labels)
	if err != nil {
		selector = labels.Nothing() // the API server refuses it
	}
	return &Watcher{
		kind: kind, selector: selector, sink: sink, conn: conn,
		refusedOnce: make(chan struct{}), absentOnce: make(chan struct{}), deniedOnce: make(chan struct{}),
		health: Health{Errors: map[string]int{}},
	}
}

// Optional makes a refusal (403) count like an absent kind, which is retried with a growing pause. It is
// called before Run.
func (w *Watcher) Optional() { w.optional = true }

// ObserveLag makes the Watcher observe the lag of changes. It is called before Run.
func (w *Watcher) ObserveLag(lag prometheus.Observer) { w.lag = lag }

// Health returns the state of the Watcher, or of the one that fills its Sink.
func (w *Watcher) Health() Health {
	w = w.source()
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.health
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
	if shared := w.conn.sharedFor(w); shared != nil {
		shared.fill(ctx, w)
		return
	}

	w.addReader(w)
	defer w.removeReader(w)
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
		Watcher: w, requests: cache.ToListerWatcherWithContext(requests),
		objects: reflect.TypeOf(w.kind.object), pageLimit: pageSize, refusals: refusedBackoff,
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
				refusals = min(2*refusals, maxRareBackoff)
			}
			continue
		}

		refusals = refusedBackoff
		if errors.Is(err, errRelist) {
			continue // nothing has failed
		}
		pause.wait(ctx, wake, reflector.relist, began)
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
	return r.checkListings(n, r.received.Load())
}

// WaitSynced returns once everything was listed. A listing may take long while it makes progress. It
// returns an error if the API server refuses the kind, makes no progress for listTimeout, or lists many
// times the Budget.
func (w *Watcher) WaitSynced(ctx context.Context) error {
	kind := w.kind.Resource.GroupResource()
	deadline := time.NewTimer(listTimeout)
	defer deadline.Stop()

	for {
		excess, changed := w.source().excess.Load()
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
	if excess, _ := w.source().excess.Load(); excess != nil {
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

// wait returns at once if what began then has lasted, and otherwise after a pause, or when it is woken, a listing is
// requested, or ctx ends.
func (p *restartPause) wait(ctx context.Context, wake, relist <-chan struct{}, began time.Time) {
	lasted := time.Since(began)
	if lasted > maxBackoff {
		p.pause = 0
	}
	p.pause = min(max(2*p.pause, minBackoff), maxBackoff)
	waitFor(ctx, p.pause-lasted, wake, relist)
}

// isHealthy reports whether a watch is open on which every change arrives.
func (w *Watcher) isHealthy() bool {
	w = w.source()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.health.Open && time.Since(w.health.LastContact) < bookmarkLimit
}

// CheckHealth returns a [ProbeError] if changes may not arrive.
func (w *Watcher) CheckHealth() error {
	kind := w.kind.Resource.GroupResource()
	excess, _ := w.source().excess.Load()
	switch refused := w.Health().Refused; {
	case excess != nil:
		return &ProbeError{OverBudget, excess}
	case w.isHealthy():
		return nil
	case refused != "":
		return &ProbeError{Forbidden, fmt.Errorf("the API server refuses to watch %s (%s)", kind, refused)}
	default:
		return w.interruption()
	}
}

// interruption returns why no watch is open, in the words of what has answered last.
func (w *Watcher) interruption() error {
	kind := w.kind.Resource.GroupResource().String()
	text := fmt.Sprintf("the watch of %s is interrupted", kind)
	for _, verb := range []string{"watch", "list"} {
		if cause, failed := w.conn.calls.causeOf(Call{verb, kind}); failed {
			return &ProbeError{cause.Reason, fmt.Errorf("%s: %s", text, cause.Text)}
		}
	}
	return &ProbeError{Unreachable, errors.New(text)}
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
// mend, or one is requested. It retries at once when the connection is reset. A missing resource, and an optional one
// that is refused, it retries with a growing pause.
func (r *reflector) retry(ctx context.Context, request func(context.Context) error) error {
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		_, wake := r.conn.retryNow.Load()
		var asked time.Duration // by the API server
		err := request(context.WithValue(ctx, retryAfterKey{}, &asked))
		r.updateHealth(func(h *Health) { h.failure = err })
		if err == nil {
			r.refusals, r.refusedSince = refusedBackoff, time.Time{}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}

		r.updateHealth(func(h *Health) { h.Errors[reasonLabel(err)]++ })
		if needsListing(err) {
			return err
		}

		pause := r.pauseAfter(backoff, asked)
		switch reason := StatusReason(err); reason { //nolint:exhaustive // the others are worth another try soon
		case metav1.StatusReasonNotFound, metav1.StatusReasonForbidden, metav1.StatusReasonUnauthorized:
			r.updateHealth(func(h *Health) { h.Refused = reason })
			if reason != metav1.StatusReasonUnauthorized {
				pause = r.pauseAfterRefusal(reason)
			}
		}

		switch waitFor(ctx, pause, wake, r.relist) {
		case wake:
			r.refusals = refusedBackoff
		case r.relist:
			return errRelist
		}
	}
}

// pauseAfterRefusal records a refusal, and returns the pause before the kind is requested again.
func (r *reflector) pauseAfterRefusal(reason metav1.StatusReason) time.Duration {
	if r.refusedSince.IsZero() {
		r.refusedSince = time.Now()
	}
	r.recordRefusal(reason, r.refusedSince)
	pause := jitter(r.refusals)
	switch {
	case r.optional && reason == metav1.StatusReasonNotFound:
		r.refusals = min(2*r.refusals, maxRareBackoff)
	case r.optional, reason == metav1.StatusReasonNotFound:
		r.refusals = min(2*r.refusals, maxRefusedBackoff)
	}
	return pause
}

// recordRefusal records that the API server has refused the kind without a break since a time.
func (w *Watcher) recordRefusal(reason metav1.StatusReason, since time.Time) {
	w.feeding.Lock()
	defer w.feeding.Unlock()
	for _, reader := range w.readers {
		closeOnce(reader.refusedOnce)
		if reason == metav1.StatusReasonNotFound {
			closeOnce(reader.absentOnce)
		}
		if time.Since(since) >= denialLimit {
			closeOnce(reader.deniedOnce)
		}
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

// A reflector does the work of a Watcher. One goroutine uses it.
type reflector struct {
	*Watcher
	requests cache.ListerWatcherWithContext
	objects  reflect.Type // that sinks take

	pageLimit int64           // objects asked for in a page
	version   string          // the newest that was seen
	began     time.Time       // the last listing
	listing   bool            // it has not come to its end
	relist    <-chan struct{} // closes when another one is requested
	fits      *time.Timer     // until what was refused is listed again; nil for not

	refusals     time.Duration // about the next pause after a refusal
	refusedSince time.Time     // without a break; zero unless the last request was refused
	received     atomic.Int64  // bytes of the listing that is under way
}

// listAndWatch lists everything and then applies changes, until what was missed cannot be had any more.
func (r *reflector) listAndWatch(ctx context.Context) error {
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
	return r.applyChanges(ctx, opened)
}

// applyChanges stores the events of a watch, which opened is if it is open already. It ends when what was missed
// cannot be had any more, or a listing is requested.
func (r *reflector) applyChanges(ctx context.Context, opened openedWatch) (err error) {
	var pause restartPause

	for {
		if opened.Interface == nil {
			if opened, err = r.openWatch(ctx, metav1.ListOptions{ResourceVersion: r.version}); err != nil {
				return err
			}
		}

		_, wake := r.conn.retryNow.Load()
		err = r.readEvents(opened, r.relist, r.applyEvent)
		r.closeWatch(opened)
		if err != nil || ctx.Err() != nil {
			return err
		}
		pause.wait(ctx, wake, r.relist, opened.at) // a server that hangs up at once must not be asked in a tight loop
		if fedwatch.IsClosed(r.relist) {
			return errRelist
		}
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

	endsHere := isExcess(err) || errors.Is(err, errInterrupted) || errors.Is(err, errRelist)
	if endsHere || ctx.Err() != nil {
		return openedWatch{}, "", err
	}
	version, err = r.listPages(ctx) // the API server cannot stream lists
	return openedWatch{}, version, err
}

// errInterrupted is the end of a watch before its initial events were through.
var errInterrupted = errors.New("the watch broke off before everything was listed")

// readStream stores the initial events of a watch.
func (r *reflector) readStream(w openedWatch) (version string, err error) {
	r.beginListings()
	through, count := errors.New("through"), 0

	err = r.readEvents(w, nil, func(event watch.Event, object metav1.Object) error {
		switch {
		case event.Type == watch.Bookmark && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
			version = object.GetResourceVersion()
			return through
		case event.Type == watch.Bookmark:
			return nil
		case event.Type == watch.Deleted:
			r.dropListed(object)
			return nil
		default:
			count++
			r.recordLag(object, false)
			r.takeListed(object)
			return r.recordProgress(count)
		}
	})

	switch {
	case err == nil:
		return "", errInterrupted
	case errors.Is(err, through):
		r.storeListings()
		return version, nil
	default:
		return "", err
	}
}

// listPages stores a list that it requests page by page. A page that is too large or too slow is requested
// again with fewer objects. If the API server has forgotten the version of the first page before the last
// one was read, the whole list is requested again with larger pages.
func (r *reflector) listPages(ctx context.Context) (version string, err error) {
	r.beginListings()
	count := 0

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
			r.takeListed(m)
			return nil
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
			r.storeListings()
			return version, nil
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
		if r.anyShare(func(s *share) bool { return s.mayFit() || s.refusedGone() }) {
			return errFits
		}
	case watch.Deleted:
		r.delete(object)
		if r.fits == nil && r.anyShare((*share).mayFit) {
			r.fits = time.AfterFunc(time.Until(r.began.Add(fitInterval)), r.Relist)
		}
	default:
		r.recordLag(object, true)
		r.update(object)
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

// readEvents calls use with each event. It returns nil when the watch breaks and can be resumed, and an
// error when an event is one, when use returns one, when relist closes, or when nothing came for bookmarkLimit. A
// listing has no relist: it is read to its end.
func (r *reflector) readEvents(
	opened openedWatch, relist <-chan struct{}, use func(watch.Event, metav1.Object) error,
) error {
	silence := time.NewTimer(bookmarkLimit)
	defer silence.Stop()

	for {
		select {
		case <-relist:
			return errRelist
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
			if relist != nil { // it is no listing
				r.conn.Pace(opened.ctx)
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

package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// MaxRetry is the longest pause after which what has failed is tried again: what may be written again shows within a
// minute.
const MaxRetry = 40 * time.Second

// An Input is what a Loop reads, such as an [api.Informer]. The owner of its records enqueues the keys that a
// change bears on.
type Input interface {
	Run(ctx context.Context)
	Synced() <-chan struct{}  // closed once it was listed completely, and each record was handed over
	Refused() <-chan struct{} // closed once the API server has not served it, or not to us: perhaps for a moment
	Denied() <-chan struct{}  // closed once that has lasted
}

// Config is what a Loop does for one kind of writer. Only Reconcile is required.
type Config[K comparable] struct {
	// Reconcile makes what exists for a key what should. It reads everything as it is now. The context ends with
	// the term. One worker at a time has a key.
	//
	// An error is retried after a pause that doubles each time, for ever; a [Retry] after its own. Conflicts are
	// errors like others: the event that made the request fail enqueues the key as well. So are panics.
	Reconcile func(ctx context.Context, k K) error

	// Begin is called once when all inputs were listed; it enqueues every key.
	Begin func()

	// Background runs beside the workers, from Begin to the end.
	Background []func(ctx context.Context)

	// Needs are the permissions that every key needs. They are reviewed after a Forbidden response, which ends the
	// Loop if one is missing; otherwise the refusal concerns that object, as by a quota or a webhook, and is a
	// failure like another.
	Needs       []Permission
	Permissions *Permissions // nil: nothing is reviewed

	// Failed is called for each error that is retried with back-off and is no Retry. failures counts those in a
	// row.
	Failed func(k K, err error, failures int)

	// Failures report the keys that Failed is called for again and again; nil: nothing is reported of them.
	Failures *Failures

	Store    *federation.Store // of the Snapshots that Follow follows
	Queue    string            // name of the queue in metrics; none if empty
	Workers  int               // how many keys are reconciled at once; 1 if zero
	Delay    time.Duration     // how long changes of one key are collected
	MinRetry time.Duration     // the first pause after an error; 200 ms if zero
	MaxRetry time.Duration     // the longest one; MaxRetry if zero
}

// A Retry is an error that is no failure: the key is reconciled again After that time, or after the pause that
// its failures in a row would have if that is zero. One that is Failing is reported until the key is as it should be.
type Retry struct {
	After   time.Duration
	Err     error // why; for people
	Failing error // what goes on to fail meanwhile; nil for nothing
}

func (r *Retry) Error() string { return r.Err.Error() }

// Unwrap returns why the key is retried.
func (r *Retry) Unwrap() error { return r.Err }

// A Loop reconciles keys in one term. It is made for that term, and not used again.
//
// The life of a key:
//
//	Enqueue --Delay--> Reconcile --> nil --------------------> at rest, until it is enqueued again
//	   ^                   |
//	   |                   +-------> error, Retry{0} ---------> enqueued after 200 ms, 400 ms, ... 40 s
//	   |                   +-------> Retry{After} ------------> enqueued After
//	   |                   '-------> Forbidden, and a permission is missing: the Loop ends
//	   |
//	   '-- an input has changed, or the Snapshot or level that the key follows
//
// The queue holds a key once, whatever happened, and hands it to one worker at a time. Informers may call Enqueue
// and Follow from the moment that the Loop is made: what comes before all inputs were listed is dropped, because
// Begin enqueues everything then.
//
// All of them are followed by one goroutine, so the number of goroutines does not depend on the number of keys. mu is a
// leaf but for opening and closing Watches, which take the lock of the Store or of a table; neither calls back.
type Loop[K comparable] struct {
	config Config[K]
	log    logr.Logger
	inputs []input
	synced atomic.Bool                             // keys are accepted
	queue  workqueue.TypedRateLimitingInterface[K] // nil before that
	bell   *watch.KeyedBell[K]

	mu       sync.Mutex
	followed map[K]*follow
	ended    bool
}

// A follow is what a key is reconciled after a change of.
type follow struct {
	snapshots []*federation.Watch
	level     Level // nil: none
}

// A Level is what a key may follow besides Snapshots, such as a [watch.Watch] of a key in a table of facts.
type Level interface {
	Add(bell *watch.Bell)
	Close() (last bool)
}

type input struct {
	Input
	optional bool
	needed   Permission
}

// NewLoop returns a Loop, to which inputs are added before Run.
func NewLoop[K comparable](log logr.Logger, c Config[K]) *Loop[K] {
	c.Workers = max(c.Workers, 1)
	c.MinRetry = cmp.Or(c.MinRetry, 200*time.Millisecond)
	c.MaxRetry = cmp.Or(c.MaxRetry, MaxRetry)
	return &Loop[K]{
		config: c, log: log, bell: watch.NewKeyedBell[K](), followed: map[K]*follow{},
	}
}

// Read adds an input without which nothing can be written. If it is denied, Run returns a [MissingPermissions].
func (l *Loop[K]) Read(in Input, needed Permission) {
	l.inputs = append(l.inputs, input{Input: in, needed: needed})
}

// ReadOptional adds an input that may be refused.
func (l *Loop[K]) ReadOptional(in Input) {
	l.inputs = append(l.inputs, input{Input: in, optional: true})
}

// Enqueue has keys reconciled after Delay.
func (l *Loop[K]) Enqueue(keys ...K) {
	if !l.synced.Load() {
		return
	}
	for _, k := range keys {
		l.queue.AddAfter(k, l.config.Delay)
	}
}

// Follow has a key reconciled whenever the Snapshot of one of the Services changes, until Unfollow or the end of the
// Loop. A key that follows some already goes on with them.
func (l *Loop[K]) Follow(key K, refs ...federation.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.followed[key] != nil || l.ended {
		return
	}

	all := &follow{}
	for i, ref := range refs {
		if slices.Contains(refs[:i], ref) {
			continue
		}
		w := l.config.Store.Watch(ref)
		w.Add(l.bell.Bell(key))
		all.snapshots = append(all.snapshots, w)
	}
	l.followed[key] = all
}

// FollowLevel has a key reconciled whenever a level changes, which open opens, until Unfollow or the end of the Loop. A
// key that follows something already goes on with that, and nothing is opened.
func (l *Loop[K]) FollowLevel(key K, open func() Level) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.followed[key] != nil || l.ended {
		return
	}
	level := open()
	level.Add(l.bell.Bell(key))
	l.followed[key] = &follow{level: level}
}

// Unfollow ends Follow and FollowLevel.
func (l *Loop[K]) Unfollow(k K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followed[k].close()
	delete(l.followed, k)
}

// close closes what is followed. nil is nothing.
func (f *follow) close() {
	if f == nil {
		return
	}
	for _, w := range f.snapshots {
		w.Close()
	}
	if f.level != nil {
		f.level.Close()
	}
}

// Snapshot returns the newest Snapshot of the first Service that a key follows; nil if it follows none.
func (l *Loop[K]) Snapshot(k K) *federation.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.followed[k]
	if all == nil || len(all.snapshots) == 0 {
		return nil
	}
	snapshot, _ := all.snapshots[0].Load()
	return snapshot
}

// Followed returns the keys that follow a Snapshot or a level, in no order.
func (l *Loop[K]) Followed() []K {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.AppendSeq(make([]K, 0, len(l.followed)), maps.Keys(l.followed))
}

// Run reads and reconciles until ctx ends, and returns nil then. It returns a [MissingPermissions] if some are
// missing. All its goroutines have ended when it returns.
func (l *Loop[K]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer l.config.Failures.drop()
	defer l.unfollowAll()
	defer wg.Wait()
	defer cancel(nil)

	for _, in := range l.inputs {
		wg.Go(func() { in.Run(logr.NewContext(ctx, l.log.V(1))) })
	}
	if err := l.waitSynced(ctx); err != nil || ctx.Err() != nil {
		return err
	}

	l.queue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[K](l.config.MinRetry, l.config.MaxRetry),
		workqueue.TypedRateLimitingQueueConfig[K]{Name: l.config.Queue, Clock: api.QueueClock{}})
	defer l.queue.ShutDown()
	l.synced.Store(true)
	if l.config.Begin != nil {
		l.config.Begin()
	}

	for _, run := range append(l.config.Background, l.enqueueFollowers) {
		wg.Go(func() { run(ctx) })
	}

	for range l.config.Workers {
		wg.Go(func() {
			for l.reconcileNext(ctx, cancel) {
			}
		})
	}

	<-ctx.Done()
	if err := context.Cause(ctx); IsMissingPermissions(err) {
		return err
	}
	return nil
}

// waitSynced waits until each input was listed, or is optional and refused. One that was listed counts as that, though
// it was denied before.
func (l *Loop[K]) waitSynced(ctx context.Context) error {
	for _, in := range l.inputs {
		over := in.Denied()
		if in.optional {
			over = in.Refused()
		}

		select {
		case <-in.Synced():
		case <-over:
			if !in.optional && !watch.IsClosed(in.Synced()) {
				return &MissingPermissions{[]Permission{in.needed}}
			}
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func (l *Loop[K]) unfollowAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, all := range l.followed {
		all.close()
	}
	clear(l.followed)
}

// enqueueFollowers enqueues the keys for which what they follow has changed.
func (l *Loop[K]) enqueueFollowers(ctx context.Context) {
	for {
		select {
		case <-l.bell.Rung():
			l.Enqueue(l.bell.Take()...)
		case <-ctx.Done():
			return
		}
	}
}

// reconcileNext reconciles one key, and returns false once the Loop is over.
func (l *Loop[K]) reconcileNext(ctx context.Context, end context.CancelCauseFunc) bool {
	key, shutdown := l.queue.Get()
	if shutdown || ctx.Err() != nil {
		return false
	}

	defer l.queue.Done(key)
	err := l.reconcile(ctx, key)
	if ctx.Err() != nil {
		return true
	}
	if missing := l.review(ctx, err); missing != nil {
		end(missing)
		return true
	}

	retry, isRetry := errors.AsType[*Retry](err)

	switch {
	case err == nil:
		l.endFailures(key)
	case isRetry && retry.Failing != nil:
		l.config.Failures.note(key, retry.Failing, ReportedAfter)
		l.queue.AddAfter(key, max(retry.After, time.Second))
	case isRetry && retry.After > 0: // it is no failure, and ends a row of them
		l.endFailures(key)
		l.queue.AddAfter(key, retry.After)
	case isRetry:
		l.queue.AddRateLimited(key)
	default:
		l.fail(key, err)
		l.queue.AddRateLimited(key)
	}
	return true
}

// fail reports one more failure of a key.
func (l *Loop[K]) fail(key K, err error) {
	inARow := l.queue.NumRequeues(key) + 1
	l.config.Failures.note(key, err, inARow)
	if l.config.Failed != nil {
		l.config.Failed(key, err, inARow)
	}
}

// endFailures ends a row of failures of a key.
func (l *Loop[K]) endFailures(key K) {
	l.queue.Forget(key)
	if l.config.Failures.any() {
		l.config.Failures.forget(key)
	}
}

// reconcile returns a panic of Reconcile as an error: an object that makes one key fail ends neither the process nor
// the other keys.
func (l *Loop[K]) reconcile(ctx context.Context, k K) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			l.log.Error(err, "BUG: a reconcile has panicked; it is retried, and the others go on",
				"key", fmt.Sprint(k), "stack", string(debug.Stack()))
		}
	}()
	return l.config.Reconcile(ctx, k)
}

// review returns a [MissingPermissions] if a response was Forbidden because a permission is missing that all keys
// need.
func (l *Loop[K]) review(ctx context.Context, err error) error {
	if !apierrors.IsForbidden(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	if err := l.config.Permissions.ReviewRefused(ctx, l.config.Needs...); IsMissingPermissions(err) {
		return err
	}
	return nil
}

package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Timing is how long a Lease lasts, see the package.
type Timing struct {
	Duration time.Duration // after it observed the last renewal another replica may take the Lease; whole seconds
	Renew    time.Duration // how often the holder renews
	Fence    time.Duration // after it sent the last renewal that succeeded the holder stops writing
}

// MaxDuration is the longest time for which a Lease binds other installations after a renewal, whatever it states.
const MaxDuration = time.Minute

// Validate rejects durations with which two replicas could write at once, or a single lost request would
// end a term.
func (t Timing) Validate() error {
	switch {
	case t.Duration < time.Second || t.Duration%time.Second != 0:
		return fmt.Errorf("-lease-duration (%s) must be whole seconds, and at least one", t.Duration)
	case t.Duration > MaxDuration:
		return fmt.Errorf("-lease-duration (%s) must be at most %s: for that long other installations respect a "+
			"Lease that is not renewed", t.Duration, MaxDuration)
	case t.Fence >= t.Duration:
		return fmt.Errorf("-lease-fence (%s) must be less than -lease-duration (%s), "+
			"or two replicas could write at once", t.Fence, t.Duration)
	case t.Renew <= 0 || t.Renew >= t.Fence:
		return fmt.Errorf("-lease-renew-interval (%s) must be less than -lease-fence (%s), "+
			"or every renewal would come too late", t.Renew, t.Fence)
	}
	return nil
}

// ErrUnreadable is returned by [Elector.Run] if the API server does not let us list and watch the Lease, or get one
// that is Polled.
var ErrUnreadable = errors.New("the Lease cannot be read")

var (
	// errFenced is why a request is not sent.
	errFenced = errors.New("the Lease was not renewed in time")
	// errLost is why a term ends that another holder has ended.
	errLost = errors.New("another holder took the Lease, or it was deleted")
	// errChanged is why the Lease is not taken yet.
	errChanged = errors.New("the Lease is not any more as it was observed")
)

// refusalLimit is for how long writing the Lease may be refused without a break before Run returns: while an API server
// starts, or RBAC is replaced, it refuses what it permits a moment later.
const refusalLimit = 10 * time.Second

// annotationDelay is how long changes of the annotations are collected: hundreds may come at once, and each would be
// a write to each Lease.
const annotationDelay = 250 * time.Millisecond

// Config names a Lease and its candidate.
type Config struct {
	Namespace, Name string
	Identity        string // of the candidate; unique among all candidates
	Timing          Timing
	AcquireDelay    time.Duration // how long a free Lease is left to other candidates

	// Polled is whether the Lease is read each Timing.Renew instead of watched, and patched instead of updated: for a
	// candidate that has the rights to get, create and patch it, and no others. Watched and Changed are then not used.
	Polled bool

	// Watched is what is watched: Leases, this one among them; zero for this one alone. Changed, which may be
	// nil, is called for each of them that changes; r, which has these Marks, is nil if it was deleted.
	Watched api.Kind
	Marks   []string
	Changed func(k api.Key, r *Record)

	// Labels and annotations that the holder writes into the Lease, beside those that it has. Annotations are a
	// level: when they change the Lease is renewed within annotationDelay. nil: none.
	Labels      map[string]string
	Annotations func() (now map[string]string, superseded <-chan struct{})
}

// annotations returns those to write now; none if there are none.
func (c Config) annotations() (now map[string]string, superseded <-chan struct{}) {
	if c.Annotations == nil {
		return nil, nil
	}
	return c.Annotations()
}

// An Elector campaigns for one Lease in one cluster, see the package.
//
// The informer and campaign write observed, under observing: campaign does while the informer shows no Lease, whether
// there is none or it lacks the label by which it is watched, and with what it reads before it takes the Lease. serve
// alone writes held.
type Elector struct {
	config    Config
	log       logr.Logger
	client    coordinationclient.LeaseInterface
	conn      *api.Connection
	cutWrites func() // closes the connections over which this candidate writes

	observing sync.Mutex
	observed  watch.Value[observation]
	held      watch.Value[bool]
}

// observation is a state of the Lease, and when this process observed it.
type observation struct {
	lease     *Record   // nil if there is none
	at        time.Time // zero if nothing was observed yet
	heldUntil time.Time // of a deleted Lease: until then its holder may write without having noticed
	isRenewed bool      // its holder is that of the state before
}

// NewElector returns an Elector for a Lease in the cluster of conn. client must send its requests over
// conn.
func NewElector(log logr.Logger, client kubernetes.Interface, conn *api.Connection, config Config) *Elector {
	e := newElector(log, client.CoordinationV1().Leases(config.Namespace), config)
	e.conn, e.cutWrites = conn, conn.CutWrites
	return e
}

func newElector(log logr.Logger, client coordinationclient.LeaseInterface, config Config) *Elector {
	return &Elector{config: config, log: log.WithValues("lease", config.Name), client: client, cutWrites: func() {}}
}

// Held returns whether the Lease is held here, and a channel that closes when that changes.
func (e *Elector) Held() (held bool, changed <-chan struct{}) { return e.held.Load() }

// Holder returns the identity of the holder, as last observed; empty if there is none, or none is known.
func (e *Elector) Holder() string {
	o, _ := e.observed.Load()
	if time.Now().After(o.expiry()) {
		return ""
	}
	return o.holder()
}

// IsRenewed reports whether the Lease was last observed as renewed by its holder, so that it can be written.
func (e *Elector) IsRenewed() bool {
	o, _ := e.observed.Load()
	return o.isRenewed
}

// Observed returns a channel that closes when the Lease is next observed in another state, as after a
// renewal.
func (e *Elector) Observed() <-chan struct{} {
	_, changed := e.observed.Load()
	return changed
}

// Run campaigns for the Lease until ctx ends and calls lead in each term. A term's context ends with the
// right to write; lead must return soon after that. If lead returns an error before, Run releases the Lease
// and returns that error. Run also returns an error if the API server does not let us read ([ErrUnreadable]) or write
// (Forbidden) the Lease for some time, or has no such namespace (NotFound). A shorter refusal ends no term, unless
// the fence does.
func (e *Elector) Run(ctx context.Context, lead func(term context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	listed, unreadable := e.follow(ctx, &wg)
	campaigned := make(chan error, 1)
	wg.Go(func() { campaigned <- e.campaign(ctx, listed, lead) })

	select {
	case err := <-campaigned:
		return err
	case <-unreadable:
		return ErrUnreadable
	}
}

// follow has the Lease observed until ctx ends. listed closes once it was, and unreadable once that is refused.
func (e *Elector) follow(ctx context.Context, wg *sync.WaitGroup) (listed, unreadable <-chan struct{}) {
	if e.config.Polled {
		read, refused := make(chan struct{}), make(chan struct{})
		wg.Go(func() { e.poll(ctx, read, refused) })
		return read, refused
	}

	kind := e.config.Watched
	if kind.Resource.Empty() {
		kind = Leases.Named(e.config.Name)
		kind.Namespace = e.config.Namespace
	}

	var informer *api.Informer[*Record]
	informer = api.NewInformer(e.conn, kind, Reduce(e.config.Marks...), func(k api.Key) {
		lease, _ := informer.Get(k)
		if k == (api.Key{Namespace: e.config.Namespace, Name: e.config.Name}) {
			e.observeLease(lease)
		}
		if e.config.Changed != nil {
			e.config.Changed(k, lease)
		}
	})
	wg.Go(func() { informer.Run(logr.NewContext(ctx, e.log.V(1))) })
	return informer.Synced(), informer.Denied()
}

// poll observes the Lease each Timing.Renew while it is not held here, until ctx ends. It closes listed once it was
// read for the first time, and unreadable once reading it was refused for some time.
func (e *Elector) poll(ctx context.Context, listed, unreadable chan<- struct{}) {
	var refusedSince time.Time
	read := sync.OnceFunc(func() { close(listed) })

	for ctx.Err() == nil {
		if held, _ := e.held.Load(); !held {
			_, changed := e.observed.Load()
			_, err := e.read(ctx, changed)
			if apierrors.IsNotFound(err) {
				e.observeRead(nil, changed)
				err = nil
			}

			switch {
			case err == nil:
				read()
				refusedSince = time.Time{}
			case !apierrors.IsForbidden(err):
				refusedSince = time.Time{}
			case refusedSince.IsZero():
				refusedSince = time.Now()
			case time.Since(refusedSince) >= refusalLimit:
				close(unreadable)
				return
			}
		}
		waitUnchanged(ctx, nil, e.config.Timing.Renew)
	}
}

// observeLease records a state of the Lease; nil if there is none. The same state again, as after a watch was
// opened anew, is no renewal: the holder may be gone.
func (e *Elector) observeLease(lease *Record) {
	e.observing.Lock()
	defer e.observing.Unlock()
	e.storeObserved(lease)
}

// observeRead does the same with the response to a request, unless another state was observed since changed was
// loaded: that is newer.
func (e *Elector) observeRead(lease *Record, changed <-chan struct{}) {
	e.observing.Lock()
	defer e.observing.Unlock()
	if !watch.IsClosed(changed) {
		e.storeObserved(lease)
	}
}

// storeObserved needs observing.
func (e *Elector) storeObserved(lease *Record) {
	last, _ := e.observed.Load()
	if !last.at.IsZero() && sameState(lease, last.lease) {
		return
	}
	next := observation{lease: lease, at: time.Now()}
	next.isRenewed = next.holder() != "" && next.holder() == last.holder()
	if lease == nil {
		next.heldUntil = last.expiry()
	}
	e.observed.Store(next)
}

func sameState(a, b *Record) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Version == b.Version
}

// holder returns the identity of the holder, or of the last one; empty if there is none.
func (o observation) holder() string {
	if o.lease == nil {
		return ""
	}
	return o.lease.Holder
}

// expiry returns when a Lease that was observed in this state can be taken.
func (o observation) expiry() time.Time {
	if o.lease == nil && o.heldUntil.After(o.at) {
		return o.heldUntil
	}
	if o.holder() == "" {
		return o.at
	}
	return o.at.Add(o.lease.Duration)
}

// holderOf returns the identity of the holder of a Lease, or of the last one; empty if it is released.
func holderOf(lease *coordinationv1.Lease) string {
	if lease == nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// campaign takes the Lease whenever it is free, and serves the term. listed closes once the Lease was
// listed.
func (e *Elector) campaign(
	ctx context.Context, listed <-chan struct{}, lead func(term context.Context) error,
) error {
	if !watch.WaitClosed(ctx, listed) {
		return ctx.Err()
	}
	if o, _ := e.observed.Load(); o.at.IsZero() {
		e.observeLease(nil)
	}

	short := 0                 // terms in a row that ended early
	var refusedSince time.Time // that the Lease may be written, without a break; zero if it was not

	for ctx.Err() == nil {
		observed, changed := e.observed.Load()
		if !waitUnchanged(ctx, changed, time.Until(observed.expiry().Add(e.config.AcquireDelay))) {
			continue
		}

		sent := time.Now()
		ours, err := e.take(ctx, observed, changed)
		if !apierrors.IsForbidden(err) {
			refusedSince = time.Time{}
		} else if refusedSince.IsZero() {
			refusedSince = sent
		}

		switch {
		case err == nil:
			if err := e.serve(ctx, ours, sent, lead); err != nil {
				return err
			}
			short++
			if time.Since(sent) > 3*e.config.Timing.Duration {
				short = 0
			}
			e.pause(ctx, short)
			continue // with the state in which the term left the Lease
		case apierrors.IsForbidden(err) && time.Since(refusedSince) >= refusalLimit,
			observed.lease == nil && apierrors.IsNotFound(err): // there is no namespace
			return err
		case apierrors.IsAlreadyExists(err):
			// Another candidate was faster, or the label by which it is watched was removed.
			_, _ = e.read(ctx, changed)
		case !apierrors.IsConflict(err) && !errors.Is(err, errChanged) && ctx.Err() == nil:
			e.log.V(1).Info("Taking the Lease failed", "error", err.Error())
		}

		// Another candidate was faster, which the watch will show, or the request failed.
		waitUnchanged(ctx, changed, e.config.Timing.Renew)
	}

	return ctx.Err()
}

// take writes the Lease for this candidate, if it is still as it was observed. An observation keeps a part of a Lease
// only: the rest, which others may have written, is read first.
func (e *Elector) take(ctx context.Context, o observation, changed <-chan struct{}) (*coordinationv1.Lease, error) {
	if o.lease == nil {
		return e.write(ctx, nil, e.config.Identity)
	}
	now, err := e.read(ctx, changed)
	if err != nil {
		return nil, err
	}
	if cut(now.ResourceVersion) != o.lease.Version {
		return nil, errChanged
	}
	return e.write(ctx, now, e.config.Identity)
}

// read requests the Lease and observes what it is.
func (e *Elector) read(ctx context.Context, changed <-chan struct{}) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, e.config.Timing.Fence)
	defer cancel()
	now, err := e.client.Get(ctx, e.config.Name, metav1.GetOptions{})
	if err == nil {
		e.observeRead(NewRecord(now, e.config.Marks...), changed)
	}
	return now, err
}

// waitUnchanged returns after d, when changed closes or when ctx ends, and reports whether it took all of d.
func waitUnchanged(ctx context.Context, changed <-chan struct{}, d time.Duration) (whole bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-changed:
	case <-ctx.Done():
	}
	return false
}

// maxPause bounds how long the Lease is left alone after short terms, in lease durations.
const maxPause = 10

// pause leaves the Lease alone after short terms: each begins with complete listings, which an API server
// that is too slow for a Lease can do without. It takes twice as long each time, with jitter.
func (e *Elector) pause(ctx context.Context, short int) {
	if short > 0 {
		limit := e.config.Timing.Duration * time.Duration(min(1<<min(short-1, 10), maxPause))
		waitUnchanged(ctx, nil, limit/2+rand.N(limit/2))
	}
}

// A term is the time in which the Lease is held. The goroutine of serve owns it.
type term struct {
	*Elector
	ctx   context.Context // of lead; ends with the right to write
	end   context.CancelCauseFunc
	ours  *coordinationv1.Lease     // as last written
	fence atomic.Pointer[time.Time] // after it nothing is sent that changes something; each request reads it
	atEnd *time.Timer               // ends ctx at the fence
}

// extend moves the fence after a renewal that was sent at a time, and returns how far away it is.
func (t *term) extend(sent time.Time) time.Duration {
	at := sent.Add(t.config.Timing.Fence)
	t.fence.Store(&at)
	return time.Until(at)
}

// checkFence is called just before a request is sent.
func (t *term) checkFence() error {
	if time.Now().After(*t.fence.Load()) {
		return errFenced
	}
	return nil
}

// serve is one term: it renews the Lease while lead runs, and releases it when lead has returned. sent is
// when the request was sent that took the Lease.
func (e *Elector) serve(
	ctx context.Context, ours *coordinationv1.Lease, sent time.Time, lead func(term context.Context) error,
) error {
	e.log.Info("Acquired the Lease: this replica writes", "transitions", transitionsOf(ours))
	e.held.Store(true)
	defer e.held.Store(false)
	term := &term{Elector: e, ours: ours}
	term.ctx, term.end = context.WithCancelCause(api.WithFence(ctx, term.checkFence))
	defer term.end(nil)

	term.atEnd = time.AfterFunc(term.extend(sent), func() {
		term.end(fmt.Errorf("the Lease could not be renewed for %s", e.config.Timing.Fence))
		e.cutWrites()
	})
	defer term.atEnd.Stop()
	led := make(chan error, 1)
	go func() { led <- lead(term.ctx) }()
	result := term.renewWhile(led, sent)

	reason := context.Cause(term.ctx)
	switch {
	case ctx.Err() != nil:
		reason = errors.New("the process stops, or the cluster's credentials are replaced")
	case reason == nil && result != nil:
		reason = result
	case reason == nil:
		reason = errors.New("there is nothing more to write")
	}

	e.log.Info("The term ended: this replica no longer writes", "reason", reason.Error())
	if !errors.Is(reason, errLost) {
		e.release(ctx, term.ours)
	}
	if term.ctx.Err() != nil {
		return nil // the term ended first: an error of lead follows from that
	}
	return result
}

// renewWhile renews the Lease until lead has returned, and returns its result. A renewal counts from when the one
// before was sent, like the fence: the answer may have taken long.
func (t *term) renewWhile(led <-chan error, sent time.Time) (result error) {
	due := sent.Add(t.config.Timing.Renew)
	renewal := time.NewTimer(time.Until(due))
	defer renewal.Stop()
	var tried map[string]string // annotations for which the renewal was brought forward

	for {
		annotations, superseded := t.config.annotations()
		soon := time.Now().Add(annotationDelay)
		if !maps.Equal(annotations, tried) && !hasAll(t.ours.Annotations, annotations) && soon.Before(due) {
			due = soon // it is not put off by the next change
			renewal.Reset(annotationDelay)
		}

		tried = annotations
		select {
		case <-superseded:
		case result = <-led:
			return result
		case <-t.ctx.Done():
			return <-led
		case <-renewal.C:
			due = time.Now().Add(t.config.Timing.Renew)
			t.renew()
			renewal.Reset(time.Until(due))
		}
	}
}

func (t *term) renew() {
	sent := time.Now()
	next, err := t.rewrite(t.ctx, t.ours, t.config.Identity)
	switch {
	case err == nil && t.atEnd.Stop(): // else the term is over, and a late answer does not bring it back
		t.atEnd.Reset(t.extend(sent))
		t.ours = next
	case errors.Is(err, errLost):
		t.end(err)
	case err != nil && t.ctx.Err() == nil:
		t.log.V(1).Info("Renewing the Lease failed", "error", err.Error())
	}
}

// hasAll reports whether all has every key of some, with its value.
func hasAll(all, some map[string]string) bool {
	for k, v := range some {
		if now, found := all[k]; !found || now != v {
			return false
		}
	}
	return true
}

// rewrite writes the Lease that this candidate holds: for itself, which renews it, or for no holder, which releases it.
// Another client may have written it without taking it, which does not end the term, and so may a renewal have whose
// response did not come.
func (e *Elector) rewrite(
	ctx context.Context, ours *coordinationv1.Lease, holder string,
) (*coordinationv1.Lease, error) {
	next, err := e.write(ctx, ours, holder)
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return next, err
	}

	now, err := e.client.Get(ctx, e.config.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, errLost // deleting a Lease asks for a new election
	case err != nil:
		return nil, err
	case holderOf(now) != e.config.Identity:
		return nil, errLost
	}
	return e.write(ctx, now, holder)
}

// release gives the Lease up, so that another candidate can take it at once. It is tried for at most a second; if it
// fails, the Lease expires.
func (e *Elector) release(ctx context.Context, ours *coordinationv1.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := e.rewrite(ctx, ours, ""); err != nil {
		e.log.V(1).Info("Releasing the Lease failed: it expires", "error", err.Error())
	}
}

// write writes the successor of old, which is nil if there is no Lease. An empty holder releases it.
func (e *Elector) write(
	ctx context.Context, old *coordinationv1.Lease, holder string,
) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, e.config.Timing.Fence)
	defer cancel()
	now := metav1.NewMicroTime(time.Now())
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: e.config.Name}}
	if old != nil {
		next = old.DeepCopy()
	}

	if old == nil || holderOf(old) != holder {
		next.Spec.AcquireTime = &now
		next.Spec.LeaseTransitions = new(transitionsAfter(old, holder))
	}
	for k, v := range e.config.Labels {
		metav1.SetMetaDataLabel(&next.ObjectMeta, k, v)
	}

	annotations, _ := e.config.annotations()
	for k, v := range annotations {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, k, v)
	}
	next.Spec.HolderIdentity, next.Spec.RenewTime = &holder, &now
	next.Spec.LeaseDurationSeconds = e.durationSeconds(holder)

	switch {
	case old == nil:
		return e.client.Create(ctx, next, metav1.CreateOptions{})
	case e.config.Polled:
		return e.patch(ctx, next)
	default:
		return e.client.Update(ctx, next, metav1.UpdateOptions{})
	}
}

// patch writes a Lease as an update does: it fails with a conflict if the Lease has changed since it was read. Without
// a version, as after an empty response, it is to be read again first: a patch without one would always succeed.
func (e *Elector) patch(ctx context.Context, next *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if next.ResourceVersion == "" {
		of := Leases.Resource.GroupResource()
		return nil, apierrors.NewConflict(of, next.Name, errors.New("its version is not known"))
	}

	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"resourceVersion": next.ResourceVersion, "labels": next.Labels, "annotations": next.Annotations,
		},
		"spec": next.Spec,
	})
	if err != nil {
		return nil, err
	}
	return e.client.Patch(ctx, next.Name, types.MergePatchType, body, metav1.PatchOptions{})
}

// transitionsAfter counts changes of the holder; a release is none.
func transitionsAfter(old *coordinationv1.Lease, holder string) int32 {
	if old == nil || holder == "" {
		return transitionsOf(old)
	}
	return transitionsOf(old) + 1
}

func transitionsOf(lease *coordinationv1.Lease) int32 {
	if lease == nil || lease.Spec.LeaseTransitions == nil {
		return 0
	}
	return *lease.Spec.LeaseTransitions
}

// durationSeconds returns for how long the Lease binds others. A released one gets a second, as client-go
// writes it.
func (e *Elector) durationSeconds(holder string) *int32 {
	if holder == "" {
		return new(int32(1))
	}
	return new(int32(e.config.Timing.Duration / time.Second))
}

package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// Timing says how long a Lease lasts.
type Timing struct {
	Duration time.Duration // after the last renewal that others saw they may take the Lease; whole seconds
	Renew    time.Duration // how often the holder renews
	Fence    time.Duration // after the last renewal that succeeded was sent the holder stops writing
}

// Validate refuses times with which two could write at once, or a single lost request would end a term.
func (t Timing) Validate() error {
	switch {
	case t.Duration < time.Second || t.Duration%time.Second != 0:
		return fmt.Errorf("-lease-duration (%s) must be whole seconds, and at least one", t.Duration)
	case t.Fence >= t.Duration:
		return fmt.Errorf("-lease-fence (%s) must be less than -lease-duration (%s), or two replicas could write at once", t.Fence, t.Duration)
	case t.Renew <= 0 || t.Renew >= t.Fence:
		return fmt.Errorf("-lease-renew-interval (%s) must be less than -lease-fence (%s), or every renewal would come too late", t.Renew, t.Fence)
	}
	return nil
}

// errFenced is why a request is not sent any more.
var errFenced = errors.New("the Lease was not renewed in time")

// errLost is why a term ends that others have taken over.
var errLost = errors.New("the Lease was taken over")

// A Lease is the right to write, of which one replica of all has it. It differs from client-go's leader election in that a term ends
// before anybody else's can begin, even if the API server is out of reach, and in that who waits for it is told and does not ask.
//
// A term ends on our side only: nothing is sent after its fence. What was sent before may wait in the network, and arrive when another has
// the Lease. No clock of ours can take it back, and the API server knows nothing of fences. So the next holder repairs what it does: it watches
// all that it is to write, and whatever anybody else changes there is reconciled.
type Lease struct {
	log      logr.Logger
	client   coordinationclient.LeaseInterface
	name     string
	identity string // of this holder; no other has it
	timing   Timing
	courtesy time.Duration         // for how long a Lease that is free is left to others
	cut      func()                // closes the connections over which this holder writes
	seen     watch.Value[sighting] // the Lease as the API server told it
	holds    watch.Value[bool]
}

// sighting is a state of the Lease, and when it was told to us: the clocks of other holders count for nothing.
type sighting struct {
	lease *coordinationv1.Lease // nil: there is none
	at    time.Time             // zero: nothing was told yet
	bound time.Time             // of one that was deleted: until when its holder may write, who has not noticed
}

// newLease returns the Lease called name. It is campaigned for by hold, while a watch fills the store that is returned.
func newLease(log logr.Logger, client coordinationclient.LeaseInterface, name, identity string, timing Timing) (*Lease, *records.Store[*coordinationv1.Lease]) {
	l := &Lease{log: log.WithValues("lease", name), client: client, name: name, identity: identity, timing: timing, cut: func() {}}
	var store *records.Store[*coordinationv1.Lease]
	store = records.NewStore(func(object any) (*coordinationv1.Lease, bool) {
		lease, ok := object.(*coordinationv1.Lease)
		return lease, ok && lease.Name == name
	}, func(k records.Key) {
		lease, _ := store.Get(k)
		l.see(lease)
	})
	return l, store
}

// see notes what was told of the Lease. The same twice, as after a watch was opened anew, is not news: the holder may be gone.
func (l *Lease) see(lease *coordinationv1.Lease) {
	last, _ := l.seen.Load()
	if !last.at.IsZero() && (lease == nil) == (last.lease == nil) && (lease == nil || lease.ResourceVersion == last.lease.ResourceVersion) {
		return
	}
	next := sighting{lease: lease, at: time.Now()}
	if lease == nil {
		next.bound = last.expiry()
	}
	l.seen.Store(next)
}

// expiry returns when a Lease that was seen in this state can be taken.
func (s sighting) expiry() time.Time {
	if s.lease == nil {
		return s.bound
	}
	if s.holder() == "" || s.lease.Spec.LeaseDurationSeconds == nil {
		return s.at
	}
	return s.at.Add(time.Duration(*s.lease.Spec.LeaseDurationSeconds) * time.Second)
}

// holder returns who has the Lease, or had it last; empty for nobody.
func (s sighting) holder() string {
	if s.lease == nil || s.lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *s.lease.Spec.HolderIdentity
}

// hold calls lead in each term that this holder gets, until ctx ends. A term's context ends with the right to write; lead returns soon
// after that. If it returns before, with an error, hold returns that error; the Lease is given up in any case. listed closes once
// the Lease has been looked for.
func (l *Lease) hold(ctx context.Context, listed <-chan struct{}, lead func(term context.Context) error) error {
	select {
	case <-listed:
		if s, _ := l.seen.Load(); s.at.IsZero() {
			l.see(nil)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	short := 0 // terms in a row
	for {
		s, changed := l.seen.Load()
		timer := time.NewTimer(time.Until(s.expiry().Add(l.courtesy)))
		select {
		case <-timer.C:
			sent := time.Now()
			mine, err := l.write(ctx, s.lease, l.identity)
			switch {
			case err == nil:
				if err := l.serve(ctx, mine, sent, lead); err != nil {
					return err
				}
				if short++; time.Since(sent) > 3*l.timing.Duration {
					short = 0
				}
				l.rest(ctx, short)
				continue // what has become of the Lease is seen next
			case apierrors.IsForbidden(err):
				return err
			case ctx.Err() != nil:
				return ctx.Err()
			case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err):
				l.log.V(1).Info("The Lease cannot be taken", "error", err.Error())
			}
			// Another was faster, which will be told, or the request failed.
			timer.Reset(l.timing.Renew)
			select {
			case <-timer.C:
			case <-changed:
			case <-ctx.Done():
			}
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// maxRest bounds how long the Lease is left alone after short terms, in lease durations.
const maxRest = 10

// rest leaves the Lease alone after short terms: each begins with complete listings, which an API server that is too slow for a Lease can do
// without. It takes twice as long each time, with jitter.
func (l *Lease) rest(ctx context.Context, short int) {
	if short == 0 {
		return
	}
	limit := l.timing.Duration * time.Duration(min(1<<min(short-1, 10), maxRest))
	timer := time.NewTimer(limit/2 + rand.N(limit/2))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// serve is one term: it renews the Lease while lead runs, and gives it up when lead has returned.
func (l *Lease) serve(ctx context.Context, mine *coordinationv1.Lease, sent time.Time, lead func(term context.Context) error) error {
	l.log.Info("This replica writes from now on", "transitions", optional(mine.Spec.LeaseTransitions))
	l.holds.Store(true)
	defer l.holds.Store(false)
	term, end := context.WithCancelCause(ctx)
	defer end(nil)
	// At the fence all requests end, and so do their connections, or what waits there would be sent once the network is healed. Until the timer
	// fires, as in a process that was stopped, each request that changes something looks at the clock itself.
	var until atomic.Pointer[time.Time]
	extend := func(sent time.Time) time.Duration {
		until.Store(new(sent.Add(l.timing.Fence)))
		return time.Until(*until.Load())
	}
	term = cluster.WithFence(term, func() error {
		if time.Now().After(*until.Load()) {
			return errFenced
		}
		return nil
	})
	fence := time.AfterFunc(extend(sent), func() {
		end(fmt.Errorf("the Lease could not be renewed for %s", l.timing.Fence))
		l.cut()
	})
	defer fence.Stop()
	led := make(chan error, 1)
	go func() { led <- lead(term) }()

	renewal := time.NewTimer(time.Until(sent.Add(l.timing.Renew))) // from when it was sent, like the fence: the answer may have taken long
	defer renewal.Stop()
	var result error
	for running := true; running; {
		select {
		case result = <-led:
			running = false
			continue
		case <-term.Done():
			result, running = <-led, false
			continue
		case <-renewal.C:
		}
		began := time.Now()
		next, err := l.renew(term, mine)
		switch {
		case err == nil && fence.Stop(): // else the term is over, and a late answer does not bring it back
			fence.Reset(extend(began))
			mine = next
		case errors.Is(err, errLost), apierrors.IsForbidden(err):
			end(err)
		case err != nil && term.Err() == nil:
			l.log.V(1).Info("The Lease is not renewed", "error", err.Error())
		}
		renewal.Reset(time.Until(began.Add(l.timing.Renew)))
	}
	why := context.Cause(term)
	if ctx.Err() != nil {
		why = errors.New("the process stops, or the cluster's credentials are replaced")
	}
	if why == nil {
		why = result
	}
	l.log.Info("This replica writes no longer", "reason", errorText(why))
	if !errors.Is(why, errLost) {
		l.release(ctx, mine)
	}
	if term.Err() != nil {
		return nil // the term has ended, and not what was done in it
	}
	return result
}

// renew renews the Lease. If somebody else has written to it, and left it to us, that is no reason to give it up.
func (l *Lease) renew(ctx context.Context, mine *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	next, err := l.write(ctx, mine, l.identity)
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return next, err
	}
	now, err := l.client.Get(ctx, l.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, errLost // whoever deleted it wants a new election
	case err != nil:
		return nil, err
	case (sighting{lease: now}).holder() != l.identity:
		return nil, errLost
	}
	return l.write(ctx, now, l.identity)
}

// release gives the Lease up, so that another can take it at once. It is tried once, for no longer than the Lease would last anyway.
func (l *Lease) release(ctx context.Context, mine *coordinationv1.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := l.write(ctx, mine, ""); err != nil {
		l.log.V(1).Info("The Lease is not released: it runs out", "error", err.Error())
	}
}

// write writes the Lease as the successor of old, which is nil if there is none.
func (l *Lease) write(ctx context.Context, old *coordinationv1.Lease, holder string) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timing.Fence)
	defer cancel()
	now := metav1.NewMicroTime(time.Now())
	if old == nil {
		return l.client.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: l.name},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &holder, LeaseDurationSeconds: l.seconds(holder), AcquireTime: &now, RenewTime: &now, LeaseTransitions: new(int32),
			},
		}, metav1.CreateOptions{})
	}
	next := old.DeepCopy()
	if (sighting{lease: old}).holder() != holder {
		next.Spec.AcquireTime = &now
		transitions := int32(0)
		if old.Spec.LeaseTransitions != nil {
			transitions = *old.Spec.LeaseTransitions
		}
		if holder != "" {
			transitions++
		}
		next.Spec.LeaseTransitions = &transitions
	}
	next.Spec.HolderIdentity, next.Spec.RenewTime, next.Spec.LeaseDurationSeconds = &holder, &now, l.seconds(holder)
	return l.client.Update(ctx, next, metav1.UpdateOptions{})
}

// seconds returns for how long the Lease binds others; nobody's for the least that there is, as client-go writes it.
func (l *Lease) seconds(holder string) *int32 {
	if holder == "" {
		return new(int32(1))
	}
	return new(int32(l.timing.Duration / time.Second))
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

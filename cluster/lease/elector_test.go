package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/fingerpost/fingerpost/federation/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.NewTimer(d).C }

var testTiming = Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond}

// election is an API server with one Lease, and the candidates for it.
type election struct {
	t *testing.T

	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	all     []*candidate
	delay   time.Duration // of each response
	blank   bool          // responses hold an empty Lease
	refuses bool          // writes are forbidden
	hides   bool          // reads are
	polled  bool          // candidates poll
	late    bool          // responses come after their request was carried out
	label   string        // the watch shows the Lease while it has this one; empty: always
	writers int           // candidates in a term now
	most    int
	terms   []string // identities of the holders, in order
}

// candidate is an Elector and its way to the API server.
type candidate struct {
	coordinationclient.LeaseInterface // methods that are not implemented here panic
	election                          *election
	elector                           *Elector
	connected                         chan struct{} // closed while the API server can be reached, else open
	cancel                            context.CancelFunc
	done                              chan error
}

func (e *election) candidate(name string) *candidate { return e.configured(name, Config{}) }

// configured starts a candidate with a Config, but for what all of them have in common.
func (e *election) configured(name string, config Config) *candidate {
	c := &candidate{election: e, connected: make(chan struct{}), done: make(chan error, 1)}
	close(c.connected)
	config.Name, config.Identity, config.Timing, config.Polled = "lease", name, testTiming, e.polled
	c.elector = newElector(logr.Discard(), c, config)
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(e.t.Context())
	e.mu.Lock()
	e.all = append(e.all, c)
	e.mu.Unlock()
	listed := make(chan struct{})
	if config.Polled {
		go c.elector.poll(ctx, listed, make(chan struct{}))
	} else {
		go c.watch(ctx)
		close(listed)
	}
	go func() {
		c.done <- c.elector.campaign(ctx, listed, func(term context.Context) error {
			e.mu.Lock()
			e.writers++
			e.most = max(e.most, e.writers)
			e.terms = append(e.terms, name)
			e.mu.Unlock()
			<-term.Done()
			e.mu.Lock()
			e.writers--
			e.mu.Unlock()
			return nil
		})
	}()
	return c
}

// watch shows the Lease to the Elector while the API server can be reached: each state once, as an informer does.
func (c *candidate) watch(ctx context.Context) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	var shown *coordinationv1.Lease
	for first := true; ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		c.election.mu.Lock()
		connected, lease := watch.IsClosed(c.connected), c.election.lease.DeepCopy()
		if label := c.election.label; lease != nil && label != "" && lease.Labels[label] == "" {
			lease = nil // a deletion to a watch that selects it
		}
		c.election.mu.Unlock()
		if connected && (first || !sameState(NewRecord(shown), NewRecord(lease))) {
			first, shown = false, lease
			c.elector.observeLease(NewRecord(lease))
		}
	}
}

// partition cuts the candidate off from the API server, or reconnects it.
func (c *candidate) partition(away bool) {
	c.election.mu.Lock()
	defer c.election.mu.Unlock()
	switch connected := watch.IsClosed(c.connected); {
	case away && connected:
		c.connected = make(chan struct{})
	case !away && !connected:
		close(c.connected)
	}
}

// reach waits until the API server can be reached and responds, or ctx ends. It locks the election.
func (c *candidate) reach(ctx context.Context) (unlock func(), err error) {
	c.election.mu.Lock()
	connected, delay := c.connected, c.election.delay
	if c.election.late {
		delay = 0
	}
	c.election.mu.Unlock()
	if !watch.WaitClosed(ctx, connected) {
		return nil, ctx.Err()
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.election.mu.Lock()
	return c.election.mu.Unlock, nil
}

func (c *candidate) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	unlock, err := c.reach(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c.election.hides {
		return nil, apierrors.NewForbidden(coordinationv1.Resource("leases"), "lease", errors.New("for a moment"))
	}
	if c.election.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "lease")
	}
	found := c.election.lease.DeepCopy()
	if c.election.late && !c.election.respond(ctx) {
		return nil, ctx.Err()
	}
	return found, nil
}

func (c *candidate) Create(
	ctx context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	unlock, err := c.reach(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c.election.refuses {
		return nil, apierrors.NewForbidden(coordinationv1.Resource("leases"), "lease", errors.New("for a moment"))
	}
	if c.election.lease != nil {
		return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), "lease")
	}
	return c.election.put(l), nil
}

func (c *candidate) Update(
	ctx context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	unlock, err := c.reach(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c.election.refuses {
		return nil, apierrors.NewForbidden(coordinationv1.Resource("leases"), "lease", errors.New("for a moment"))
	}
	if c.election.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "lease")
	}
	if c.election.lease.ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "lease", errors.New("modified"))
	}
	written := c.election.put(l)
	if c.election.late && !c.election.respond(ctx) {
		return nil, ctx.Err()
	}
	return written, nil
}

// Patch merges into the Lease, with the precondition of an Update.
func (c *candidate) Patch(
	ctx context.Context, _ string, of types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string,
) (*coordinationv1.Lease, error) {
	c.election.mu.Lock()
	next := c.election.lease.DeepCopy()
	c.election.mu.Unlock()
	if next == nil {
		next = &coordinationv1.Lease{}
	}
	if err := json.Unmarshal(patch, next); err != nil || of != types.MergePatchType {
		return nil, fmt.Errorf("a patch of type %s: %w", of, err)
	}
	if next.ResourceVersion == "" {
		return nil, errors.New("a patch without a version")
	}
	return c.Update(ctx, next, metav1.UpdateOptions{})
}

// respond waits for the delay of responses, and reports whether ctx lasted as long. It needs e.mu, and unlocks it
// meanwhile.
func (e *election) respond(ctx context.Context) bool {
	timer := time.NewTimer(e.delay)
	defer timer.Stop()
	e.mu.Unlock()
	defer e.mu.Lock()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// put needs e.mu.
func (e *election) put(l *coordinationv1.Lease) *coordinationv1.Lease {
	e.version++
	e.lease = l.DeepCopy()
	e.lease.ResourceVersion = strconv.Itoa(e.version)
	if e.blank {
		return &coordinationv1.Lease{}
	}
	return e.lease.DeepCopy()
}

func (e *election) holder() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return holderOf(e.lease)
}

func (e *election) termCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.terms)
}

// await waits until a candidate holds the Lease, and returns how long that took.
func (e *election) await(name string) time.Duration {
	e.t.Helper()
	for began := time.Now(); ; pass(10 * time.Millisecond) {
		if e.holder() == name {
			return time.Since(began)
		}
		if time.Since(began) > time.Minute {
			e.t.Fatalf("the holder is %q after a minute, want %q", e.holder(), name)
		}
	}
}

func (e *election) end() {
	e.t.Helper()
	for _, c := range e.all {
		c.cancel()
	}
	for _, c := range e.all {
		if err := <-c.done; !errors.Is(err, context.Canceled) {
			e.t.Errorf("%s ended with %v", c.elector.config.Identity, err)
		}
	}
	if e.most > 1 {
		e.t.Errorf("%d candidates were in a term at once", e.most)
	}
}

func inElection(t *testing.T, test func(*election)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &election{t: t}
		test(e)
		e.end()
	})
}

// inElections plays a test with candidates that watch, and with others that poll. These notice what happens by slack
// later.
func inElections(t *testing.T, test func(e *election, slack time.Duration)) {
	t.Helper()
	for name, polled := range map[string]bool{"watched": false, "polled": true} {
		t.Run(name, func(t *testing.T) {
			inElection(t, func(e *election) {
				slack := time.Duration(0)
				if e.polled = polled; polled {
					slack = testTiming.Renew
				}
				test(e, slack)
			})
		})
	}
}

// A holder keeps the Lease while it runs. When it stops, the next candidate starts a term at once.
func TestReleaseOnStop(t *testing.T) {
	inElections(t, func(e *election, slack time.Duration) {
		first := e.candidate("first")
		e.await("first")
		e.candidate("second")
		pass(time.Minute)
		if h := e.holder(); h != "first" {
			t.Fatalf("the holder is %q", h)
		}
		first.cancel()
		if d := e.await("second"); d > time.Second+slack {
			t.Errorf("the second holds it after %s", d)
		}
	})
}

// A holder that stops while a renewal of its own is on the way gives the Lease up as well.
func TestReleaseDuringRenewal(t *testing.T) {
	inElections(t, func(e *election, slack time.Duration) {
		first := e.candidate("first")
		e.await("first")
		e.candidate("second")
		e.mu.Lock()
		e.late, e.delay = true, 500*time.Millisecond
		before := e.version
		e.mu.Unlock()
		renewed := func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.version > before
		}
		for !renewed() {
			pass(10 * time.Millisecond)
		}
		e.mu.Lock()
		e.delay = 0
		e.mu.Unlock()
		first.cancel() // before the response
		if d := e.await("second"); d > time.Second+slack {
			t.Errorf("the second holds it after %s", d)
		}
	})
}

// A holder that is cut off stops writing before another candidate starts a term, which it does when the
// Lease expires.
func TestHolderIsCutOff(t *testing.T) {
	inElections(t, func(e *election, slack time.Duration) {
		first := e.candidate("first")
		e.await("first")
		cut := make(chan time.Time, 1)
		first.elector.cutWrites = func() { cut <- time.Now() }
		e.candidate("second")
		pass(5 * time.Second)
		first.partition(true)
		at := time.Now()
		if d := (<-cut).Sub(at); d > testTiming.Fence {
			t.Errorf("its connections were cut after %s", d)
		}
		if d := time.Since(at) + e.await("second"); d > testTiming.Duration+100*time.Millisecond+slack {
			t.Errorf("the second holds it after %s", d)
		}
		first.partition(false) // and it does not fight for it
		pass(time.Minute)
		if h := e.holder(); h != "second" {
			t.Errorf("the holder is %q", h)
		}
	})
}

// The holder of a deleted Lease may not have noticed, so no candidate takes it before it would have
// expired.
func TestLeaseIsDeleted(t *testing.T) {
	inElections(t, func(e *election, _ time.Duration) {
		first := e.candidate("first")
		e.await("first")
		e.candidate("second")
		pass(5 * time.Second)
		first.partition(true)
		e.mu.Lock()
		e.lease = nil
		e.mu.Unlock()
		if d := e.await("second"); d < testTiming.Fence-testTiming.Renew {
			t.Errorf("the second holds it after %s", d)
		}
	})
}

// A candidate that leaves a free Lease to others does so as well where there is none when it starts.
func TestAcquireDelay(t *testing.T) {
	inElection(t, func(e *election) {
		const delay = 3 * time.Second
		e.configured("patient", Config{AcquireDelay: delay})
		if d := e.await("patient"); d < delay {
			t.Errorf("it holds the Lease after %s", d)
		}
	})
}

// A holder keeps the Lease although each response takes almost half of the time until the fence.
func TestSlowServer(t *testing.T) {
	inElections(t, func(e *election, _ time.Duration) {
		e.delay = testTiming.Fence/2 - 10*time.Millisecond
		e.candidate("first")
		pass(5 * time.Minute)
		if n := e.termCount(); n != 1 {
			t.Errorf("%d terms", n)
		}
	})
}

// Annotations that change are in the Lease soon, however often they do; hundreds of changes at once take a few writes,
// and none puts the renewal off.
func TestAnnotationsChange(t *testing.T) {
	inElection(t, func(e *election) {
		var annotations watch.Value[map[string]string]
		annotations.Store(map[string]string{"n": "0"})
		e.configured("first", Config{Annotations: annotations.Load})
		e.await("first")
		state := func() (version int, n string) {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.version, e.lease.Annotations["n"]
		}
		n := 0
		change := func(times int, every time.Duration) {
			for range times {
				n++
				annotations.Store(map[string]string{"n": strconv.Itoa(n)})
				pass(every)
			}
		}
		before, first := state()
		if first != "0" {
			t.Errorf("the Lease was taken with annotation %s", first)
		}
		change(200, 5*time.Millisecond)
		pass(annotationDelay)
		after, last := state()
		if writes := after - before; last != "200" || writes > 6 {
			t.Errorf("%d writes for 200 changes in a second, the last of which is %s", writes, last)
		}
		change(1, annotationDelay+50*time.Millisecond)
		if _, last := state(); last != "201" {
			t.Errorf("a single change is not written: the annotation is %s", last)
		}
		change(600, 100*time.Millisecond)
		if terms := e.termCount(); terms != 1 {
			t.Errorf("%d terms while the annotations change", terms)
		}
	})
}

// A Lease whose label was removed, so that the watch does not show it, keeps its holder, which puts the label back;
// without a holder another candidate takes it once it has expired.
func TestLabelIsRemoved(t *testing.T) {
	for name, alive := range map[string]bool{"with its holder": true, "without its holder": false} {
		t.Run(name, func(t *testing.T) {
			inElection(t, func(e *election) {
				e.label = "ours"
				labels := map[string]string{"ours": "yes"}
				first := e.configured("first", Config{Labels: labels})
				e.await("first")
				e.configured("second", Config{Labels: labels})
				pass(5 * time.Second)
				if !alive {
					first.partition(true)
				}
				e.mu.Lock()
				delete(e.lease.Labels, "ours")
				e.mu.Unlock()
				pass(time.Minute)
				want := map[bool]string{true: "first", false: "second"}[alive]
				if h := e.holder(); h != want {
					t.Errorf("the holder is %q, want %q", h, want)
				}
				if terms, wanted := e.termCount(), map[bool]int{true: 1, false: 2}[alive]; terms != wanted {
					t.Errorf("%d terms, want %d", terms, wanted)
				}
			})
		})
	}
}

// A Lease that a candidate reads because the watch does not show it, and that is released meanwhile, is taken: what the
// watch shows counts, though the response with the older state comes later.
func TestReleaseDuringGet(t *testing.T) {
	inElection(t, func(e *election) {
		held := &coordinationv1.Lease{}
		held.Spec.HolderIdentity, held.Spec.LeaseDurationSeconds = new("other"), new(int32(6))
		e.put(held)
		e.label, e.late, e.delay = "ours", true, 100*time.Millisecond
		e.configured("first", Config{Labels: map[string]string{"ours": "yes"}})
		pass(50 * time.Millisecond)
		e.mu.Lock()
		released := e.lease.DeepCopy()
		released.Labels, released.Spec.HolderIdentity = map[string]string{"ours": "yes"}, new("")
		e.put(released)
		e.mu.Unlock()
		if took := e.await("first"); took > testTiming.Renew+time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A Lease that cannot be kept is tried less and less often.
func TestShortTerms(t *testing.T) {
	inElections(t, func(e *election, _ time.Duration) {
		e.delay = testTiming.Fence * 2 / 3
		e.candidate("first")
		pass(10 * time.Minute)
		if n := e.termCount(); n < 10 || n > 20 {
			t.Errorf("%d terms", n)
		}
		e.mu.Lock()
		e.delay = 0
		e.mu.Unlock()
		pass(2 * time.Minute)
		if e.holder() != "first" {
			t.Error("no candidate holds it in the end")
		}
	})
}

// The response to a write may hold an empty object.
func TestEmptyResponses(t *testing.T) {
	inElections(t, func(e *election, _ time.Duration) {
		e.blank = true
		first := e.candidate("first")
		e.await("first")
		pass(time.Minute)
		first.cancel()
		pass(time.Second)
		e.candidate("second")
		e.await("second")
	})
}

// Candidates wait for a holder of another kind as long as its own duration.
func TestHolderOfAnotherKind(t *testing.T) {
	inElections(t, func(e *election, _ time.Duration) {
		holder, now := "linkerd-destination-0", metav1.NowMicro()
		e.put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(30)), RenewTime: &now,
		}})
		e.candidate("first")
		if d := e.await("first"); d < 30*time.Second || d > 31*time.Second {
			t.Errorf("it was taken after %s, want 30 s", d)
		}
		e.mu.Lock()
		transitions := *e.lease.Spec.LeaseTransitions
		e.mu.Unlock()
		if transitions != 1 {
			t.Errorf("%d transitions", transitions)
		}
	})
}

// A Lease that was not renewed for its duration has no holder.
func TestHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, holder := newElector(logr.Discard(), nil, Config{}), "linkerd-destination-0"
		expect := func(want string) {
			t.Helper()
			if got := e.Holder(); got != want {
				t.Errorf("the holder is %q, want %q", got, want)
			}
		}
		expect("")
		e.observeLease(NewRecord(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(30)),
		}}))
		pass(30 * time.Second)
		expect(holder)
		pass(time.Second)
		expect("")
	})
}

// A Lease works once its holder was seen to renew it: that it was listed, or was taken over, does not show that.
func TestIsRenewed(t *testing.T) {
	e := newElector(logr.Discard(), nil, Config{})
	for _, c := range []struct {
		version, holder string
		want            bool
	}{
		{"1", "a", false},
		{"1", "a", false},
		{"2", "a", true},
		{"3", "b", false},
		{"4", "b", true},
		{"5", "", false},
		{"6", "", false},
		{"7", "b", false},
	} {
		e.observeLease(NewRecord(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: c.version},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &c.holder},
		}))
		if got := e.IsRenewed(); got != c.want {
			t.Errorf("version %s of %q: renewed %t", c.version, c.holder, got)
		}
	}
}

// Whatever happens to three candidates, no two are ever in a term at once, and in the end one is.
func TestFaults(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inElections(t, func(e *election, _ time.Duration) {
				r := rand.New(rand.NewPCG(seed, 0))
				var all []*candidate
				for i := range 3 {
					all = append(all, e.candidate(strconv.Itoa(i)))
				}
				for range 60 {
					all[r.IntN(3)].partition(r.IntN(2) == 0)
					pass(time.Duration(r.IntN(5000)) * time.Millisecond)
				}
				for _, c := range all {
					c.partition(false)
				}
				pass((maxPause + 3) * testTiming.Duration)
				e.mu.Lock()
				defer e.mu.Unlock()
				if e.writers != 1 {
					t.Errorf("%d candidates are in a term in the end", e.writers)
				}
				if len(e.terms) < 3 {
					t.Errorf("it was held by %v only", e.terms)
				}
			})
		})
	}
}

func TestTimingIsValidated(t *testing.T) {
	for _, bad := range []Timing{
		{Duration: 500 * time.Millisecond, Renew: 100 * time.Millisecond, Fence: 400 * time.Millisecond},
		{Duration: 1500 * time.Millisecond, Renew: time.Second, Fence: 1200 * time.Millisecond},
		{Duration: 61 * time.Second, Renew: 2 * time.Second, Fence: 6 * time.Second},
		{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 6 * time.Second},
		{Duration: 6 * time.Second, Renew: 5 * time.Second, Fence: 4 * time.Second},
		{Duration: 6 * time.Second, Fence: 4 * time.Second},
	} {
		if bad.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	if err := testTiming.Validate(); err != nil {
		t.Error(err)
	}
}

// A refusal that is over before the second renewal ends no term, and one before that keeps no candidate from
// campaigning: only one that lasts does.
func TestRefusedForAMoment(t *testing.T) {
	inElection(t, func(e *election) {
		refuse := func(now bool) {
			e.mu.Lock()
			e.refuses = now
			e.mu.Unlock()
		}
		refuse(true)
		first := e.candidate("first")
		pass(refusalLimit - 2*time.Second)
		refuse(false)
		if took := e.await("first"); took > testTiming.Renew+time.Second {
			t.Errorf("it is held after %s", took)
		}
		for range 10 {
			pass(10 * time.Second)
			refuse(true)
			pass(testTiming.Renew - 100*time.Millisecond) // one renewal, whenever it is
			refuse(false)
		}
		if n := e.termCount(); n != 1 {
			t.Errorf("%d terms", n)
		}
		refuse(true)
		if err := <-first.done; !apierrors.IsForbidden(err) {
			t.Errorf("a refusal that lasts: %v", err)
		}
		first.done <- context.Canceled
	})
}

// A Lease that may not be read any more is not waited for; a refusal that is over after a moment is none.
func TestUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &election{t: t, hides: true}
		c := &candidate{election: e, connected: make(chan struct{})}
		close(c.connected)
		config := Config{Name: "lease", Identity: "first", Timing: testTiming, Polled: true}
		run := func(ctx context.Context) error {
			lead := func(context.Context) error { return errors.New("led") }
			return newElector(logr.Discard(), c, config).Run(ctx, lead)
		}
		ctx, cancel := context.WithTimeout(t.Context(), refusalLimit/2)
		defer cancel()
		if err := run(ctx); errors.Is(err, ErrUnreadable) {
			t.Errorf("after %s: %v", refusalLimit/2, err)
		}
		began := time.Now()
		if err := run(t.Context()); !errors.Is(err, ErrUnreadable) || time.Since(began) < refusalLimit {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		e.mu.Lock()
		e.hides = false
		e.mu.Unlock()
		if err := run(t.Context()); err == nil || err.Error() != "led" {
			t.Errorf("a Lease that may be read: %v", err)
		}
	})
}

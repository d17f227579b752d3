package lease

import (
	"context"
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
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
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

func (e *election) candidate(name string) *candidate {
	c := &candidate{election: e, connected: make(chan struct{}), done: make(chan error, 1)}
	close(c.connected)
	c.elector = newElector(logr.Discard(), c, Config{Name: "lease", Identity: name, Timing: testTiming})
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(e.t.Context())
	e.mu.Lock()
	e.all = append(e.all, c)
	e.mu.Unlock()
	go c.watch(ctx)
	listed := make(chan struct{})
	close(listed)
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

// watch shows the Lease to the Elector while the API server can be reached.
func (c *candidate) watch(ctx context.Context) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		c.election.mu.Lock()
		connected, lease := isClosed(c.connected), c.election.lease.DeepCopy()
		c.election.mu.Unlock()
		if connected {
			c.elector.observe(lease)
		}
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// partition cuts the candidate off from the API server, or reconnects it.
func (c *candidate) partition(away bool) {
	c.election.mu.Lock()
	defer c.election.mu.Unlock()
	switch connected := isClosed(c.connected); {
	case away && connected:
		c.connected = make(chan struct{})
	case !away && !connected:
		close(c.connected)
	}
}

// reach waits until the API server can be reached and responds, or ctx ends.
func (c *candidate) reach(ctx context.Context) error {
	c.election.mu.Lock()
	connected, delay := c.connected, c.election.delay
	c.election.mu.Unlock()
	select {
	case <-connected:
	case <-ctx.Done():
		return ctx.Err()
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (c *candidate) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	c.election.mu.Lock()
	defer c.election.mu.Unlock()
	if c.election.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "lease")
	}
	return c.election.lease.DeepCopy(), nil
}

func (c *candidate) Create(
	ctx context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	c.election.mu.Lock()
	defer c.election.mu.Unlock()
	if c.election.lease != nil {
		return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), "lease")
	}
	return c.election.put(l), nil
}

func (c *candidate) Update(
	ctx context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	c.election.mu.Lock()
	defer c.election.mu.Unlock()
	if c.election.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "lease")
	}
	if c.election.lease.ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "lease", errors.New("modified"))
	}
	return c.election.put(l), nil
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

// A holder keeps the Lease while it runs. When it stops, the next candidate starts a term at once.
func TestReleaseOnStop(t *testing.T) {
	inElection(t, func(e *election) {
		first := e.candidate("first")
		e.await("first")
		e.candidate("second")
		pass(time.Minute)
		if h := e.holder(); h != "first" {
			t.Fatalf("the holder is %q", h)
		}
		first.cancel()
		if d := e.await("second"); d > time.Second {
			t.Errorf("the second holds it after %s", d)
		}
	})
}

// A holder that is cut off stops writing before another candidate starts a term, which it does when the
// Lease expires.
func TestHolderIsCutOff(t *testing.T) {
	inElection(t, func(e *election) {
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
		if d := time.Since(at) + e.await("second"); d > testTiming.Duration+100*time.Millisecond {
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
	inElection(t, func(e *election) {
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

// A holder keeps the Lease although each response takes almost half of the time until the fence.
func TestSlowServer(t *testing.T) {
	inElection(t, func(e *election) {
		e.delay = testTiming.Fence/2 - 10*time.Millisecond
		e.candidate("first")
		pass(5 * time.Minute)
		if n := e.termCount(); n != 1 {
			t.Errorf("%d terms", n)
		}
	})
}

// A Lease that cannot be kept is tried less and less often.
func TestShortTerms(t *testing.T) {
	inElection(t, func(e *election) {
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
	inElection(t, func(e *election) {
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
	inElection(t, func(e *election) {
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

// Whatever happens to three candidates, no two are ever in a term at once, and in the end one is.
func TestFaults(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inElection(t, func(e *election) {
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

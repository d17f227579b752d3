package endpointslice

import (
	"context"
	"errors"
	"flag"
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

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "100", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.NewTimer(d).C }

var testTiming = Timing{Duration: 6 * time.Second, Renew: 2 * time.Second, Fence: 4500 * time.Millisecond}

// arena is an API server with one Lease, and those who campaign for it.
type arena struct {
	t *testing.T

	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	players []*player
	delay   time.Duration // of each answer
	blank   bool          // answers say nothing of what was written
	writers int           // that write now
	most    int
	order   []string // who wrote, in turn
}

// player is one who campaigns.
type player struct {
	coordinationclient.LeaseInterface // what is not used panics
	arena                             *arena
	lease                             *Lease
	cut                               chan struct{} // closed while there is a way to the API server, replaced by one that is open while there is none
	cancel                            context.CancelFunc
	done                              chan error
}

func (a *arena) player(name string) *player {
	p := &player{arena: a, cut: make(chan struct{}), done: make(chan error, 1)}
	close(p.cut)
	p.lease, _ = newLease(logr.Discard(), p, "lease", name, testTiming)
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(a.t.Context())
	a.mu.Lock()
	a.players = append(a.players, p)
	a.mu.Unlock()
	go p.watch(ctx)
	listed := make(chan struct{})
	close(listed)
	go func() {
		p.done <- p.lease.hold(ctx, listed, func(term context.Context) error {
			a.mu.Lock()
			a.writers++
			a.most = max(a.most, a.writers)
			a.order = append(a.order, name)
			a.mu.Unlock()
			<-term.Done()
			a.mu.Lock()
			a.writers--
			a.mu.Unlock()
			return nil
		})
	}()
	return p
}

// watch tells the player of the Lease, as long as there is a way.
func (p *player) watch(ctx context.Context) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		p.arena.mu.Lock()
		open, lease := isOpen(p.cut), p.arena.lease.DeepCopy()
		p.arena.mu.Unlock()
		if open {
			p.lease.see(lease)
		}
	}
}

func isOpen(cut chan struct{}) bool {
	select {
	case <-cut:
		return true
	default:
		return false
	}
}

func (p *player) partition(away bool) {
	p.arena.mu.Lock()
	defer p.arena.mu.Unlock()
	if away == isOpen(p.cut) {
		if away {
			p.cut = make(chan struct{})
		} else {
			close(p.cut)
		}
	}
}

// reach waits until there is a way, or nobody waits for the answer.
func (p *player) reach(ctx context.Context) error {
	p.arena.mu.Lock()
	cut, delay := p.cut, p.arena.delay
	p.arena.mu.Unlock()
	select {
	case <-cut:
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

func (p *player) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := p.reach(ctx); err != nil {
		return nil, err
	}
	p.arena.mu.Lock()
	defer p.arena.mu.Unlock()
	if p.arena.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "lease")
	}
	return p.arena.lease.DeepCopy(), nil
}

func (p *player) Create(ctx context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	if err := p.reach(ctx); err != nil {
		return nil, err
	}
	p.arena.mu.Lock()
	defer p.arena.mu.Unlock()
	if p.arena.lease != nil {
		return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), "lease")
	}
	return p.arena.put(l), nil
}

func (p *player) Update(ctx context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if err := p.reach(ctx); err != nil {
		return nil, err
	}
	p.arena.mu.Lock()
	defer p.arena.mu.Unlock()
	if p.arena.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "lease")
	}
	if p.arena.lease.ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "lease", errors.New("modified"))
	}
	return p.arena.put(l), nil
}

// put needs a.mu.
func (a *arena) put(l *coordinationv1.Lease) *coordinationv1.Lease {
	a.version++
	a.lease = l.DeepCopy()
	a.lease.ResourceVersion = strconv.Itoa(a.version)
	if a.blank {
		return &coordinationv1.Lease{}
	}
	return a.lease.DeepCopy()
}

func (a *arena) holder() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return sighting{lease: a.lease}.holder()
}

func (a *arena) terms() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.order)
}

// await waits until somebody holds the Lease, and returns how long that took.
func (a *arena) await(name string) time.Duration {
	a.t.Helper()
	for began := time.Now(); ; pass(10 * time.Millisecond) {
		if a.holder() == name {
			return time.Since(began)
		}
		if time.Since(began) > time.Minute {
			a.t.Fatalf("the holder is %q after a minute, want %q", a.holder(), name)
		}
	}
}

func (a *arena) end() {
	a.t.Helper()
	for _, p := range a.players {
		p.cancel()
	}
	for _, p := range a.players {
		if err := <-p.done; !errors.Is(err, context.Canceled) {
			a.t.Errorf("%s ended with %v", p.lease.identity, err)
		}
	}
	if a.most > 1 {
		a.t.Errorf("%d wrote at once", a.most)
	}
}

func inArena(t *testing.T, test func(*arena)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &arena{t: t}
		test(a)
		a.end()
	})
}

// One holds it as long as it is there; when it stops the next one writes at once.
func TestLeaseIsReleased(t *testing.T) {
	inArena(t, func(a *arena) {
		first := a.player("first")
		a.await("first")
		a.player("second")
		pass(time.Minute)
		if h := a.holder(); h != "first" {
			t.Fatalf("the holder is %q", h)
		}
		first.cancel()
		if d := a.await("second"); d > time.Second {
			t.Errorf("the second holds it after %s", d)
		}
	})
}

// One that is cut off stops writing before another starts, and the other starts when the Lease has run out.
func TestLeaseOfOneThatIsCutOff(t *testing.T) {
	inArena(t, func(a *arena) {
		first := a.player("first")
		a.await("first")
		cut := make(chan time.Time, 1)
		first.lease.cut = func() { cut <- time.Now() }
		a.player("second")
		pass(5 * time.Second)
		first.partition(true)
		at := time.Now()
		if d := (<-cut).Sub(at); d > testTiming.Fence {
			t.Errorf("its connections are cut after %s", d)
		}
		if d := time.Since(at) + a.await("second"); d > testTiming.Duration+100*time.Millisecond {
			t.Errorf("the second holds it after %s", d)
		}
		first.partition(false) // and it does not fight for it
		pass(time.Minute)
		if h := a.holder(); h != "second" {
			t.Errorf("the holder is %q", h)
		}
	})
}

// The holder of a Lease that was deleted may not have noticed: nobody takes it for as long as it would have lasted.
func TestLeaseIsDeleted(t *testing.T) {
	inArena(t, func(a *arena) {
		first := a.player("first")
		a.await("first")
		a.player("second")
		pass(5 * time.Second)
		first.partition(true)
		a.mu.Lock()
		a.lease = nil
		a.mu.Unlock()
		if d := a.await("second"); d < testTiming.Fence-testTiming.Renew {
			t.Errorf("the second holds it after %s", d)
		}
	})
}

// One keeps it where each answer takes almost half of the time until the fence.
func TestLeaseOfSlowServer(t *testing.T) {
	inArena(t, func(a *arena) {
		a.delay = testTiming.Fence/2 - 10*time.Millisecond
		a.player("first")
		pass(5 * time.Minute)
		if n := a.terms(); n != 1 {
			t.Errorf("%d terms", n)
		}
	})
}

// Where it cannot be kept it is tried less and less often.
func TestLeaseThatCannotBeKept(t *testing.T) {
	inArena(t, func(a *arena) {
		a.delay = testTiming.Fence * 2 / 3
		a.player("first")
		pass(10 * time.Minute)
		if n := a.terms(); n < 10 || n > 20 {
			t.Errorf("%d terms", n)
		}
		a.mu.Lock()
		a.delay = 0
		a.mu.Unlock()
		pass(2 * time.Minute)
		if a.holder() != "first" {
			t.Error("nobody holds it in the end")
		}
	})
}

// What an API server answers to a write may say nothing at all.
func TestLeaseIsAnsweredBlank(t *testing.T) {
	inArena(t, func(a *arena) {
		a.blank = true
		first := a.player("first")
		a.await("first")
		pass(time.Minute)
		first.cancel()
		pass(time.Second)
		a.player("second")
		a.await("second")
	})
}

// Another kind of holder is waited for as long as it asks for.
func TestLeaseOfAnotherKind(t *testing.T) {
	inArena(t, func(a *arena) {
		holder, now := "linkerd-destination-0", metav1.NowMicro()
		a.put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(30)), RenewTime: &now,
		}})
		a.player("first")
		if d := a.await("first"); d < 30*time.Second || d > 31*time.Second {
			t.Errorf("it was taken after %s, want 30 s", d)
		}
		a.mu.Lock()
		transitions := *a.lease.Spec.LeaseTransitions
		a.mu.Unlock()
		if transitions != 1 {
			t.Errorf("%d transitions", transitions)
		}
	})
}

// Whatever happens to three of them, never do two write at once, and in the end somebody does.
func TestLeaseUnderFaults(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inArena(t, func(a *arena) {
				r := rand.New(rand.NewPCG(seed, 0))
				var players []*player
				for i := range 3 {
					players = append(players, a.player(strconv.Itoa(i)))
				}
				for range 60 {
					players[r.IntN(3)].partition(r.IntN(2) == 0)
					pass(time.Duration(r.IntN(5000)) * time.Millisecond)
				}
				for _, p := range players {
					p.partition(false)
				}
				pass((maxRest + 3) * testTiming.Duration)
				a.mu.Lock()
				defer a.mu.Unlock()
				if a.writers != 1 {
					t.Errorf("%d write in the end", a.writers)
				}
				if len(a.order) < 3 {
					t.Errorf("it was held by %v only", a.order)
				}
			})
		})
	}
}

func TestTimingIsRefused(t *testing.T) {
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

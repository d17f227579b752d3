package apply

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeInput is an Input that the test lists and refuses.
type fakeInput struct{ synced, refused, denied chan struct{} }

func newFakeInput() fakeInput {
	return fakeInput{make(chan struct{}), make(chan struct{}), make(chan struct{})}
}

func (fakeInput) Run(ctx context.Context)    { <-ctx.Done() }
func (f fakeInput) Synced() <-chan struct{}  { return f.synced }
func (f fakeInput) Refused() <-chan struct{} { return f.refused }
func (f fakeInput) Denied() <-chan struct{}  { return f.denied }

var services = Permission{Resource: schema.GroupResource{Resource: "services"}, Verbs: []string{"list", "watch"}}

// inLoop runs a Loop in a bubble. The returned function ends it, and returns what Run has returned.
func inLoop[K comparable](t *testing.T, l *Loop[K]) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-ended
	}
}

// pass lets virtual time pass, and what is due then happen.
func pass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

// Nothing is reconciled before each input was listed, or, if it is optional, refused.
func TestNothingBeforeSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reconciled []string
		var l *Loop[string]
		l = NewLoop(logr.Discard(), Config[string]{
			Reconcile: func(_ context.Context, k string) error {
				reconciled = append(reconciled, k)
				return nil
			},
			Begin: func() { l.Enqueue("everything") },
		})
		first, second, third := newFakeInput(), newFakeInput(), newFakeInput()
		l.Read(first, services)
		l.Read(second, services)
		l.ReadOptional(third)
		end := inLoop(t, l)
		for _, listed := range []chan struct{}{first.synced, second.synced} {
			l.Enqueue("too early")
			pass(time.Minute)
			if len(reconciled) > 0 {
				t.Errorf("%q were reconciled before all was listed", reconciled)
			}
			close(listed)
		}
		pass(time.Minute)
		close(third.refused)
		pass(time.Second)
		if fmt.Sprint(reconciled) != "[everything]" {
			t.Errorf("%q were reconciled, want everything", reconciled)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// A refusal that is over counts for nothing once the input was listed, however long another one took, and whichever the
// runtime looks at first.
func TestListedAfterRefusal(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			reconciled := 0
			var l *Loop[string]
			l = NewLoop(logr.Discard(), Config[string]{
				Reconcile: func(context.Context, string) error {
					reconciled++
					return nil
				},
				Begin: func() { l.Enqueue("everything") },
			})
			slow, late := newFakeInput(), newFakeInput()
			l.Read(slow, services)
			l.Read(late, services)
			end := inLoop(t, l)
			close(late.refused)
			pass(time.Minute)
			close(late.denied)
			close(late.synced)
			pass(time.Minute)
			close(slow.synced)
			pass(time.Second)
			if err := end(); err != nil || reconciled != 1 {
				t.Fatalf("%d keys were reconciled, and the Loop has ended with %v", reconciled, err)
			}
		})
	}
}

// A Loop ends if an input is denied, and if a response is Forbidden because a permission is missing.
func TestMissingPermissionEndsTheLoop(t *testing.T) {
	forbidden := apierrors.NewForbidden(services.Resource, "web", errors.New("by RBAC, or by a quota"))
	for name, c := range map[string]struct {
		body string // of the review
		want bool
	}{
		"missing":     {`{"status": {"allowed": false}}`, true},
		"granted":     {`{"status": {"allowed": true}}`, false},
		"unreachable": {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := &reviews{body: c.body}
				one := services
				one.Verbs = one.Verbs[:1]
				var l *Loop[string]
				l = NewLoop(logr.Discard(), Config[string]{
					Reconcile: func(context.Context, string) error { return fmt.Errorf("create: %w", forbidden) },
					Begin:     func() { l.Enqueue("a", "b") },
					Needs:     []Permission{one}, Permissions: NewPermissions(logr.Discard(), answers.client(t)),
				})
				end := inLoop(t, l)
				pass(5 * time.Second)
				if n := answers.count; n != 1 && c.body != "" {
					t.Errorf("%d reviews in five seconds", n)
				}
				if err := end(); IsMissingPermissions(err) != c.want {
					t.Errorf("the Loop has ended with %v", err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l := NewLoop(logr.Discard(), Config[string]{})
		in := newFakeInput()
		l.Read(in, services)
		end := inLoop(t, l)
		close(in.refused)
		pass(time.Second) // it may be over in a moment
		close(in.denied)
		synctest.Wait()
		if err := end(); !IsMissingPermissions(err) {
			t.Errorf("the Loop has ended with %v", err)
		}
	})
}

// A key that fails is retried for ever, ever more rarely, and stops no other; a Retry is no failure.
func TestFailureStopsNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		tries := map[string][]time.Duration{}
		failures := 0
		var l *Loop[string]
		l = NewLoop(logr.Discard(), Config[string]{
			Reconcile: func(_ context.Context, k string) error {
				tries[k] = append(tries[k], time.Since(began))
				switch k {
				case "fails":
					return errors.New("the API server is out of order")
				case "waits":
					return &Retry{After: 10 * time.Second, Err: errors.New("it is not its turn")}
				case "behind":
					return &Retry{Err: errors.New("the watch is behind")}
				}
				return nil
			},
			Begin:  func() { l.Enqueue("fails", "waits", "behind", "good") },
			Failed: func(string, error, int) { failures++ },
		})
		end := inLoop(t, l)
		pass(10*time.Minute - time.Second)
		if len(tries["good"]) != 1 || len(tries["waits"]) != 60 {
			t.Errorf("%d tries of the good key, %d of the one that waits", len(tries["good"]), len(tries["waits"]))
		}
		for _, k := range []string{"fails", "behind"} {
			all := tries[k]
			for i := 2; i < len(all); i++ {
				if all[i]-all[i-1] < all[i-1]-all[i-2] {
					t.Errorf("%s: the pauses do not grow: %v", k, all)
				}
			}
			if last := all[len(all)-1] - all[len(all)-2]; last != MaxRetry {
				t.Errorf("%s: the last pause is %s", k, last)
			}
		}
		if failures != len(tries["fails"]) {
			t.Errorf("%d failures of %d", failures, len(tries["fails"]))
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// Failures in a row end with a Retry of its own time, as with a success.
func TestRetryEndsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("the API server is out of order")
		again := &Retry{After: time.Minute, Err: errors.New("the credentials expire then")}
		results := []error{failed, failed, again, failed, nil}
		var counts []int
		var l *Loop[string]
		l = NewLoop(logr.Discard(), Config[string]{
			Reconcile: func(context.Context, string) error {
				result := results[0]
				results = results[1:]
				return result
			},
			Begin:  func() { l.Enqueue("key") },
			Failed: func(_ string, _ error, failures int) { counts = append(counts, failures) },
		})
		end := inLoop(t, l)
		pass(2 * time.Minute)
		if want := []int{1, 2, 1}; !slices.Equal(counts, want) || len(results) > 0 {
			t.Errorf("failures in a row: %v, want %v; %d results are left", counts, want, len(results))
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// A key whose reconcile panics is retried like one that fails, and the others are reconciled.
func TestPanicIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reconciled := map[string]int{}
		var failures []string
		var l *Loop[string]
		l = NewLoop(logr.Discard(), Config[string]{
			Reconcile: func(_ context.Context, k string) error {
				if reconciled[k]++; k == "odd" && reconciled[k] < 3 {
					panic("an odd object")
				}
				return nil
			},
			Begin:  func() { l.Enqueue("odd", "plain") },
			Failed: func(k string, err error, _ int) { failures = append(failures, k+": "+err.Error()) },
		})
		end := inLoop(t, l)
		pass(time.Minute)
		if reconciled["odd"] != 3 || reconciled["plain"] != 1 {
			t.Errorf("reconciled %v", reconciled)
		}
		const want = "odd: panic: an odd object"
		if len(failures) != 2 || failures[0] != want || failures[1] != want {
			t.Errorf("failures: %q", failures)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// A key is reconciled when the level changes that it follows, once however often it asks to, until Unfollow. Nothing
// outlasts the Loop.
func TestFollowLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table watch.Table[string, int]
		reconciled := map[string]int{}
		var l *Loop[string]
		l = NewLoop(logr.Discard(), Config[string]{
			Reconcile: func(_ context.Context, k string) error {
				reconciled[k]++
				l.FollowLevel(k, func() Level { return table.Watch(k) })
				return nil
			},
			Begin: func() { l.Enqueue("a", "b") },
		})
		end := inLoop(t, l)
		pass(time.Second)
		for i := range 3 {
			table.Swap("a", i).Wake()
			pass(time.Second)
		}
		if reconciled["a"] != 4 || reconciled["b"] != 1 || len(l.Followed()) != 2 {
			t.Errorf("reconciled %v, %v are followed", reconciled, l.Followed())
		}
		l.Unfollow("a")
		table.Swap("a", 5).Wake()
		pass(time.Second)
		if reconciled["a"] != 4 || table.Len() != 2 { // the value of a, and the watch of b
			t.Errorf("after Unfollow: reconciled %v, %d records", reconciled, table.Len())
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		if table.Len() != 1 {
			t.Errorf("%d records are left", table.Len())
		}
	})
}

// What a Loop has written when its queue is empty follows from its inputs alone, however these changed, and whatever
// failed meanwhile.
func TestLoopFollows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			const keys = 5
			var mu sync.Mutex
			input, output, fails := map[int]int{}, map[int]int{}, map[int]bool{}
			busy := map[int]bool{}
			var l *Loop[int]
			l = NewLoop(logr.Discard(), Config[int]{
				Reconcile: func(_ context.Context, k int) error {
					mu.Lock()
					if busy[k] {
						t.Errorf("two workers have key %d", k)
					}
					busy[k] = true
					want := input[k]
					mu.Unlock()
					<-time.NewTimer(time.Duration(k) * time.Millisecond).C // a request
					mu.Lock()
					defer mu.Unlock()
					busy[k] = false
					if fails[k] {
						return errors.New("refused")
					}
					output[k] = want
					return nil
				},
				Begin: func() {
					for k := range keys {
						l.Enqueue(k)
					}
				},
				Workers: 3, Delay: 5 * time.Millisecond,
			})
			end := inLoop(t, l)
			for range rapid.IntRange(1, 40).Draw(rt, "changes") {
				k := rapid.IntRange(0, keys-1).Draw(rt, "key")
				mu.Lock()
				input[k], fails[k] = input[k]+1, rapid.Bool().Draw(rt, "fails")
				mu.Unlock()
				l.Enqueue(k)
				pass(time.Duration(rapid.IntRange(0, 10).Draw(rt, "ms")) * time.Millisecond)
			}
			mu.Lock()
			clear(fails)
			mu.Unlock()
			pass(5 * time.Minute)
			for k := range keys {
				if output[k] != input[k] {
					t.Errorf("%d is %d, want %d", k, output[k], input[k])
				}
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	})
}

// Each key is reconciled when its Snapshot changes, and no other; the number of goroutines does not depend on how many
// keys follow one.
func TestFollow(t *testing.T) {
	const n = 5_000
	store := federation.NewStore()
	store.MarkClustersListed()
	store.AddCluster("local", federation.Expectation{Local: true})
	writer := store.NewWriter("local")
	writer.MarkSynced()
	service := func(k int) federation.Service {
		return federation.Service{Namespace: "ns", Name: fmt.Sprint("web-", k)}
	}
	reconciled := make(chan int, n)
	l := NewLoop(logr.Discard(), Config[int]{
		Store:     store,
		Reconcile: func(_ context.Context, k int) error { reconciled <- k; return nil },
	})
	in := newFakeInput()
	close(in.synced)
	l.Read(in, services)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	l.Follow(0, federation.Ref{Cluster: "local", Service: service(0)})
	write := func(k int) {
		writer.Set(service(k), &federation.View{Ports: []federation.ServicePort{{Number: 80, Name: "http"}}})
	}
	write(0)
	if k := <-reconciled; k != 0 {
		t.Fatalf("key %d was reconciled", k)
	}
	before := runtime.NumGoroutine()
	for k := 1; k < n; k++ {
		l.Follow(k, federation.Ref{Cluster: "local", Service: service(k)})
	}
	if now := runtime.NumGoroutine(); now > before {
		t.Errorf("%d goroutines, %d before %d keys followed a Snapshot", now, before, n)
	}
	if got := len(l.Followed()); got != n {
		t.Errorf("%d keys follow a Snapshot", got)
	}
	for _, k := range []int{17, 4_711} {
		write(k)
		if got := <-reconciled; got != k {
			t.Errorf("key %d was reconciled, and the Snapshot of %d has changed", got, k)
		}
		if s := l.Snapshot(k); s == nil || s.View == nil {
			t.Errorf("the Snapshot of key %d is %+v", k, s)
		}
	}
	l.Unfollow(17)
	writer.Delete(service(17))
	write(18)
	if got := <-reconciled; got != 18 {
		t.Errorf("key %d was reconciled", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := len(l.Followed()); got != 0 {
		t.Errorf("%d keys follow a Snapshot after the end", got)
	}
}

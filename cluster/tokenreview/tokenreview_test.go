package tokenreview

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typed "k8s.io/client-go/kubernetes/typed/authentication/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.NewTimer(d).C }

const audience = "peers.test"

// server plays an API server, which takes 5 ms for a review, and knows tokens that begin with their users.
type server struct {
	typed.TokenReviewInterface
	reviews atomic.Int64
	revoked atomic.Bool
	fails   atomic.Pointer[error]
	hangs   atomic.Bool
	naive   atomic.Bool // it does not look at audiences
}

func (s *server) Create(
	ctx context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions,
) (*authenticationv1.TokenReview, error) {
	s.reviews.Add(1)
	pass(5 * time.Millisecond)
	if s.hangs.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := s.fails.Load(); err != nil && *err != nil {
		return nil, *err
	}
	out := review.DeepCopy()
	user, isToken := strings.CutSuffix(review.Spec.Token, "'s token")
	if !isToken || s.revoked.Load() {
		out.Status.Error = "invalid bearer token"
		return out, nil
	}
	out.Status.Authenticated = true
	out.Status.User.Username = user
	out.Status.User.Extra = map[string]authenticationv1.ExtraValue{podName: {user + "-0"}}
	if !s.naive.Load() {
		out.Status.Audiences = review.Spec.Audiences
	}
	return out, nil
}

func inBubble(t *testing.T, f func(t *testing.T, s *server, r *Reviewer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		f(t, s, New(s, audience, 50))
	})
}

// wants reviews a token, and checks the answer and how many reviews it took.
func wants(t *testing.T, s *server, r *Reviewer, token string, want error, reviews int64) {
	t.Helper()
	before := s.reviews.Load()
	account, err := r.Review(t.Context(), "10.0.0.1", token)
	if !errors.Is(err, want) || (err == nil) != (account.User == "ann" && account.Pod == "ann-0") {
		t.Errorf("%+v, %v; want %v", account, err, want)
	}
	if n := s.reviews.Load() - before; n != reviews {
		t.Errorf("%d reviews, want %d", n, reviews)
	}
}

// An answer counts for as long as it may, and no longer.
func TestReview(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		t.Helper()
		wants(t, s, r, "ann's token", nil, 1)
		pass(acceptedFor - time.Second)
		s.revoked.Store(true)
		wants(t, s, r, "ann's token", nil, 0)
		pass(2 * time.Second)
		wants(t, s, r, "ann's token", ErrRefused, 1)
		s.revoked.Store(false)
		wants(t, s, r, "ann's token", ErrRefused, 0)
		pass(refusedFor)
		wants(t, s, r, "ann's token", nil, 1)
		s.naive.Store(true)
		wants(t, s, r, "'s token", ErrRefused, 1)
		wants(t, s, r, "", ErrRefused, 0)
		wants(t, s, r, strings.Repeat("x", maxToken+1), ErrRefused, 0)
	})
}

// An API server that fails lets in no account that it has not accepted before, and not for long one that it has.
func TestReviewFails(t *testing.T) {
	forbidden := error(apierrors.NewForbidden(schema.GroupResource{Resource: "tokenreviews"}, "", errors.New("no")))
	for name, test := range map[string]struct {
		fail func(s *server)
		want string
	}{
		"forbidden": {func(s *server) { s.fails.Store(&forbidden) }, "grant create on tokenreviews"},
		"silent":    {func(s *server) { s.hangs.Store(true) }, "does not answer"},
		"away":      {func(s *server) { s.fails.Store(new(errors.New("connection refused"))) }, "connection refused"},
		"busy": {
			func(s *server) { s.fails.Store(new(error(apierrors.NewTooManyRequests("later", 1)))) }, "TooManyRequests",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
				t.Helper()
				wants(t, s, r, "ann's token", nil, 1)
				test.fail(s)
				pass(2 * time.Minute)
				wants(t, s, r, "ann's token", nil, 1)
				wants(t, s, r, "ann's token", nil, 0) // it is known that reviews fail
				_, err := r.Review(t.Context(), "10.0.0.1", "bob's token")
				if err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("a token that was never accepted: %v, want %s", err, test.want)
				}
				pass(keptFor - 2*time.Minute)
				if _, err = r.Review(t.Context(), "10.0.0.1", "ann's token"); err == nil {
					t.Error("a token is accepted that was reviewed too long ago")
				}
			})
		})
	}
}

// Sources that send garbage without end delay an honest one by a review each, and cost the API server so many a second.
func TestReviewFlood(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		t.Helper()
		const sources, each = 8, 300
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var refused atomic.Int64
		for i := range sources * each {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					_, err := r.Review(ctx, fmt.Sprint("10.0.1.", i%sources), fmt.Sprint(i, "-", n))
					if errors.Is(err, ErrBusy) {
						refused.Add(1)
						pass(50 * time.Millisecond)
					}
				}
			})
		}
		pass(10 * time.Second)
		before, began := s.reviews.Load(), time.Now()
		account, err := r.Review(t.Context(), "10.0.0.1", "ann's token")
		if took := time.Since(began); err != nil || account.User != "ann" || took > 250*time.Millisecond {
			t.Errorf("an honest source: %v after %v", err, took)
		}
		pass(10*time.Second - time.Since(began))
		if n := s.reviews.Load() - before; n < 400 || n > 501 {
			t.Errorf("%d reviews in 10 s, want 50 a second", n)
		}
		r.mu.Lock()
		if r.waiting > maxWaiting || r.refused.Len() > maxKept || len(r.sources) > sources {
			t.Errorf("%d wait, %d are kept of %d sources", r.waiting, r.refused.Len(), len(r.sources))
		}
		r.mu.Unlock()
		if refused.Load() == 0 {
			t.Error("nobody was refused")
		}
		cancel()
		wg.Wait()
		if len(r.sources) != 0 || r.waiting != 0 {
			t.Errorf("%d sources and %d requests are left", len(r.sources), r.waiting)
		}
	})
}

// Requests of one source that bring the same token take one review, also if the first of them leaves.
func TestReviewTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = r.Review(ctx, "10.0.0.1", "ann's token") })
		pass(time.Millisecond)
		for range 200 {
			wg.Go(func() {
				if account, err := r.Review(t.Context(), "10.0.0.1", "ann's token"); err != nil ||
					account.User != "ann" {
					t.Errorf("%v, %v", account, err)
				}
			})
		}
		cancel()
		wg.Wait()
		if n := s.reviews.Load(); n != 1 {
			t.Errorf("%d reviews", n)
		}
	})
}

func TestBearer(t *testing.T) {
	for header, want := range map[string]string{
		"Bearer a.b.c": "a.b.c", "bearer  a ": "a", "Basic a": "", "a": "", "": "", "Bearer": "", "Bearer ": "",
	} {
		if got := Bearer(header); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

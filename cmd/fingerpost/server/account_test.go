package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typed "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/fingerpost/fingerpost/cluster/tokenreview"
)

// reviews plays an API server, which takes users for their own tokens; a Pod is what follows a slash.
type reviews struct {
	typed.TokenReviewInterface
	fails atomic.Pointer[error]
}

func (s *reviews) Create(
	_ context.Context, r *authenticationv1.TokenReview, _ metav1.CreateOptions,
) (*authenticationv1.TokenReview, error) {
	if err := s.fails.Load(); err != nil {
		return nil, *err
	}
	user, pod, known := strings.Cut(r.Spec.Token, "/")
	if !known {
		return r, nil
	}
	r = r.DeepCopy()
	r.Status = authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: r.Spec.Audiences,
		User: authenticationv1.UserInfo{
			Username: user,
			Extra:    map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/pod-name": {pod}},
		},
	}
	return r, nil
}

// Only who has a token of this process's own account is let in, and no other while that is not known; that is logged
// once.
func TestOwnAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, own := &reviews{}, "us/one"
		var lines []string
		var mu sync.Mutex
		account := &OwnAccount{
			Reviewer: tokenreview.New(api, PeerAudience, 50),
			Token:    func() (string, error) { return own, nil },
			Log: funcr.New(func(_, line string) {
				mu.Lock()
				defer mu.Unlock()
				lines = append(lines, line)
			}, funcr.Options{}),
		}
		logged := func() (all []string) {
			mu.Lock()
			defer mu.Unlock()
			all, lines = lines, nil
			return all
		}
		handler := account.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(Caller(r)))
		}))
		wants := func(authorization string, code int, body string) {
			t.Helper()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/clusters/", http.NoBody)
			r.Header.Set("Authorization", authorization)
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, r)
			got := strings.TrimSpace(recorder.Body.String())
			if recorder.Code != code || got != body && code == http.StatusOK || strings.Contains(got, "/") {
				t.Errorf("%q: %d %q, want %d %q", authorization, recorder.Code, got, code, body)
			}
			if (recorder.Header().Get("WWW-Authenticate") == "Bearer") != (code == http.StatusUnauthorized) {
				t.Errorf("%d with %v", code, recorder.Header())
			}
		}

		forbidden := error(apierrors.NewForbidden(schema.GroupResource{Resource: "tokenreviews"}, "", errors.New("no")))
		api.fails.Store(&forbidden)
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan error)
		go func() { started <- account.Start(ctx) }()
		synctest.Wait()
		wants("", http.StatusUnauthorized, "")
		wants("Bearer us/two", http.StatusServiceUnavailable, "")
		<-time.NewTimer(time.Minute).C
		if all := logged(); len(all) != 1 ||
			!strings.Contains(all[0], "grant create on tokenreviews.authentication.k8s.io") {
			t.Errorf("%q is logged", all)
		}
		api.fails.Store(nil)
		if err := <-started; err != nil {
			t.Error(err)
		}
		if all := logged(); len(all) != 1 || !strings.Contains(all[0], "let in again") {
			t.Errorf("%q is logged", all)
		}

		wants("Bearer us/two", http.StatusOK, "two")
		wants("Bearer us/", http.StatusOK, "192.0.2.1")
		wants("Bearer them/two", http.StatusForbidden, "")
		wants("Bearer garbage", http.StatusUnauthorized, "")
		wants("Basic us/two", http.StatusUnauthorized, "")
		wants("", http.StatusUnauthorized, "")
		api.fails.Store(&forbidden)
		wants("Bearer us/two", http.StatusOK, "two")
		wants("Bearer us/three", http.StatusServiceUnavailable, "")
		cancel()

		own = "no token"
		account.user = ""
		api.fails.Store(nil)
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := account.Start(ctx); err != nil {
			t.Error(err)
		}
		if all := logged(); !strings.Contains(strings.Join(all, "\n"), "-peer-token-file must hold") {
			t.Errorf("%q is logged", all)
		}
	})
}

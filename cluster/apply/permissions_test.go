package apply

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// reviews answers access reviews: all the same, or those about some verbs with no.
type reviews struct {
	mu     sync.Mutex
	body   string // empty: the API server cannot be reached
	denied []string
	count  int
}

func (r *reviews) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	config := &rest.Config{Host: "home.test", ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	client, err := kubernetes.NewForConfigAndClient(config, &http.Client{Transport: r})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// RoundTrip implements [http.RoundTripper].
func (r *reviews) RoundTrip(request *http.Request) (*http.Response, error) {
	asked, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	if r.body == "" {
		return nil, errors.New("the API server does not answer")
	}
	body := r.body
	about := func(verb string) bool { return strings.Contains(string(asked), `"verb":"`+verb+`"`) }
	if slices.ContainsFunc(r.denied, about) {
		body = `{"status": {"allowed": false}}`
	}
	kind := `{"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", `
	return &http.Response{
		StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(kind + body[1:])), Request: request,
	}, nil
}

// deny has some verbs denied from now on.
func (r *reviews) deny(verbs ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denied = verbs
}

// since returns how many reviews were sent since the last call.
func (r *reviews) since() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, r.count = r.count, 0
	return n
}

// What is granted is asked for once, what is missing ever more rarely, and one right in place of all that are.
func TestPermissionsAreReviewedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &reviews{body: `{"status": {"allowed": true}}`}
		p := NewPermissions(logr.Discard(), server.client(t))
		needed := Permission{Resource: services.Resource, Namespace: "shop", Verbs: []string{"get", "create", "patch"}}
		require := func(when, missing string, sent int) {
			t.Helper()
			got := ""
			if lacking, is := errors.AsType[*MissingPermissions](p.Require(t.Context(), needed)); is {
				got = strings.Join(lacking.All[0].Verbs, " ")
			}
			if n := server.since(); got != missing || n != sent {
				t.Errorf("%s: %q are missing after %d reviews, want %q and %d", when, got, n, missing, sent)
			}
		}

		server.deny("create", "patch")
		require("at first", "create patch", 3)
		require("again", "create patch", 0)
		pass(10 * time.Second)
		require("after 10 s", "create patch", 1)
		pass(10 * time.Second)
		require("after 20 s", "create patch", 0)
		for range 600 {
			pass(time.Second)
			if err := p.Review(t.Context(), needed); !IsMissingPermissions(err) {
				t.Errorf("a review: %v", err)
			}
		}
		if n := server.since(); n < 20 || n > 26 {
			t.Errorf("%d reviews in ten minutes", n)
		}
		server.deny("patch")
		pass(time.Minute)
		require("one is granted", "patch", 2)
		server.deny()
		pass(time.Minute)
		require("both are", "", 1)
		pass(time.Hour)
		require("long after", "", 0)

		server.deny("get", "create", "patch")
		if err := p.Review(t.Context(), needed); !IsMissingPermissions(err) {
			t.Errorf("a review accepts an old answer: %v", err)
		}
	})
}

// A Forbidden response has the permission reviewed again before the next request.
func TestForbiddenAllTheSame(t *testing.T) {
	server := &reviews{body: `{"status": {"allowed": true}}`}
	p := NewPermissions(logr.Discard(), server.client(t))
	needed := Permission{Resource: services.Resource, Verbs: []string{"create"}}
	sent := 0
	refused := func() error {
		sent++
		return apierrors.NewForbidden(services.Resource, "web", errors.New("by a webhook"))
	}
	if err := p.Do(t.Context(), needed, refused); !apierrors.IsForbidden(err) {
		t.Error(err)
	}
	server.deny("create")
	if err := p.Do(t.Context(), needed, refused); !IsMissingPermissions(err) || sent != 1 {
		t.Errorf("%d requests, %v", sent, err)
	}
}

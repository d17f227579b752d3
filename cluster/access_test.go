package cluster_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/federation"
)

// failing answers some requests with a status instead of passing them on.
type failing struct {
	next http.RoundTripper
	code func(*http.Request) int // 0: the request is passed on
}

func (f failing) RoundTrip(r *http.Request) (*http.Response, error) {
	code := f.code(r)
	if code == 0 {
		return f.next.RoundTrip(r)
	}
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: http.NoBody, Status: strconv.Itoa(code),
	}, nil
}

// fail makes requests with these credentials fail with a code, where it is not 0.
func fail(a *cluster.Access, code func(*http.Request) int) {
	a.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return failing{next, code} })
}

func failPath(part string, code int) func(*http.Request) int {
	return func(r *http.Request) int {
		if strings.Contains(r.URL.Path, part) {
			return code
		}
		return 0
	}
}

// A kind that is a mere feature and cannot be listed, as with a conversion webhook that is down, delays the
// cluster by seconds, and is read once it can be.
func TestOptionalKindFails(t *testing.T) {
	for _, code := range []int{500, 503, 429} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			inWorld(t, func(w *world) {
				east := w.network.Server("east")
				east.ApplyYAML(service, slice)
				access := w.access("east", east.Token())
				var broken atomic.Bool
				broken.Store(true)
				fail(&access, func(r *http.Request) int {
					if !broken.Load() {
						return 0
					}
					return failPath("/servers", code)(r)
				})
				w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{access}})
				w.wait(10 * time.Second)
				w.wantsState(federation.Live)
				w.wants(1)
				broken.Store(false)
				w.wait(time.Minute)
				kinds, _ := w.registry.Inspect("east")
				for _, k := range kinds {
					if !k.Open {
						t.Errorf("%s is not watched although it can be listed", k.Kind)
					}
				}
			})
		})
	}
}

// New access whose API server answers probes and never lists Pods does not replace what works, which goes
// on being supervised.
func TestNewAccessDoesNotList(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, token string) {
		defer w.neverEmpty()()
		second := w.network.Server("second")
		second.ApplyYAML(service, slice)
		bad := w.access("second", second.Token())
		fail(&bad, failPath("/pods", 500))
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{bad, w.access("east", token)}})
		w.wait(20 * time.Second) // while the new access is tried
		east.Cut(apitest.Refuse)
		w.wait(20 * time.Second)
		w.wantsState(federation.Suspect)
		w.wait(3 * time.Minute)
		w.wantsState(federation.Stale)
		east.Cut(apitest.None)
		w.wait(2 * time.Minute)
		w.wantsState(federation.Live)
		if s := w.status(); s.Source != "Secret of "+token || api.ReasonFor(s.Credentials) != api.NotReady {
			t.Errorf("%q is in use, and the new credentials fail with %v", s.Source, s.Credentials)
		}
		east.ApplyYAML(more)
		w.wait(time.Second)
		w.wants(2)
	})
}

// While new access is tried, the next one applied does not wait for it.
func TestNewAccessIsSuperseded(t *testing.T) {
	linked(t, func(w *world, east *apitest.Server, _ string) {
		defer w.neverEmpty()()
		bad := w.access("east", east.Token())
		bad.Config.ServerName = "east.test" // another transport
		fail(&bad, failPath("/pods", 500))
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{bad}})
		w.wait(20 * time.Second)
		good := w.access("east", east.Token())
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{good}})
		w.wait(5 * time.Second)
		if s := w.status(); s.Source != good.Source || s.Credentials != nil {
			t.Errorf("%q is in use, and the credentials fail with %v", s.Source, s.Credentials)
		}
	})
}

// Access that failed is tried again while another one is in use, and then comes first again.
func TestFirstAccessComesBack(t *testing.T) {
	inWorld(t, func(w *world) {
		first, east := w.network.Server("first"), w.network.Server("east")
		for _, s := range []*apitest.Server{first, east} {
			s.ApplyYAML(service, slice)
		}
		first.Cut(apitest.Refuse)
		preferred := w.access("first", first.Token())
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{preferred, w.access("east", east.Token())}})
		w.wait(10 * time.Second)
		w.wantsState(federation.Live)
		first.Cut(apitest.None)
		w.wait(6 * time.Minute)
		if s := w.status(); s.Source != preferred.Source || s.Credentials != nil {
			t.Errorf("%q is in use, and the credentials fail with %v", s.Source, s.Credentials)
		}
	})
}

// Access that has failed for long is tried each 5 minutes, and sooner once the one in use is out of contact.
func TestFirstAccessComesBackSooner(t *testing.T) {
	inWorld(t, func(w *world) {
		first, east := w.network.Server("first"), w.network.Server("east")
		for _, s := range []*apitest.Server{first, east} {
			s.ApplyYAML(service, slice)
		}
		var broken atomic.Bool
		var tries atomic.Int32
		broken.Store(true)
		preferred := w.access("first", first.Token())
		fail(&preferred, func(*http.Request) int {
			if !broken.Load() {
				return 0
			}
			tries.Add(1)
			return http.StatusInternalServerError
		})
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{preferred, w.access("east", east.Token())}})
		w.wait(20 * time.Minute)
		w.wantsState(federation.Live)
		defer w.neverEmpty()()
		before := tries.Load()
		for began := time.Now(); tries.Load() == before; w.wait(time.Second) {
			if time.Since(began) > 5*time.Minute+time.Second {
				t.Fatal("the preferred access is not tried any more")
			}
		}
		broken.Store(false) // just after it was tried
		east.Cut(apitest.Refuse)
		w.wait(time.Minute)
		if s := w.status(); s.Source != preferred.Source || s.State != federation.Live {
			t.Errorf("%q is in use, and the cluster is %s", s.Source, s.State)
		}
	})
}

// Access whose token was removed, and that may have a client certificate, does not replace one that works untried.
func TestAccessWithoutToken(t *testing.T) {
	linked(t, func(w *world, _ *apitest.Server, token string) {
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", "")}})
		w.wait(time.Minute)
		w.wantsState(federation.Live)
		if s := w.status(); s.Source != "Secret of "+token || api.ReasonFor(s.Credentials) != api.Unauthorized {
			t.Errorf("%q is in use, and the new credentials fail with %v", s.Source, s.Credentials)
		}
	})
}

// A token that the API server takes, and that may read nothing, or only list, never replaces one that may.
func TestTokenWithoutRights(t *testing.T) {
	for name, may := range map[string]func(*http.Request) bool{
		"none":      func(*http.Request) bool { return false },
		"only list": func(r *http.Request) bool { return r.URL.Query().Get("watch") == "" },
		"no slices": func(r *http.Request) bool { return !strings.Contains(r.URL.Path, "endpointslices") },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				east := w.network.Server("east")
				east.ApplyYAML(service, slice)
				good, bad := w.access("east", east.Token()), w.access("east", east.Token())
				poor := "Bearer " + bad.Config.BearerToken
				fail(&good, func(r *http.Request) int {
					if r.Header.Get("Authorization") == poor && r.URL.Path != "/readyz" && !may(r) {
						return http.StatusForbidden
					}
					return 0
				})
				bad.Config.WrapTransport = good.Config.WrapTransport
				w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{good}})
				w.wait(time.Second)
				defer w.neverEmpty()()
				w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{bad}})
				w.wait(20 * time.Minute)
				w.wantsState(federation.Live)
				if s := w.status(); s.Source != good.Source || api.ReasonFor(s.Credentials) != api.Forbidden {
					t.Errorf("%q is in use, and the new token fails with %v", s.Source, s.Credentials)
				}
			})
		})
	}
}

package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestCallOf(t *testing.T) {
	for request, want := range map[string]string{
		"GET /api/v1/services":                                           "list services",
		"GET /api/v1/services?watch=true":                                "watch services",
		"GET /api/v1/namespaces/shop/services":                           "list services",
		"GET /api/v1/namespaces/shop/services/web":                       "get services",
		"GET /api/v1/namespaces/shop":                                    "get namespaces",
		"GET /api/v1/namespaces":                                         "list namespaces",
		"PUT /api/v1/namespaces/shop/status":                             "update namespaces/status",
		"POST /api/v1/namespaces/shop/endpoints":                         "create endpoints",
		"DELETE /apis/discovery.k8s.io/v1/namespaces/a/endpointslices/b": "delete endpointslices.discovery.k8s.io",
		"PATCH /apis/apps/v1/namespaces/a/deployments/b/scale":           "patch deployments.apps/scale",
		"POST /apis/apps/v1/namespaces/a/deployments":                    "create deployments.apps",
		"GET /clusters/east/api/v1/pods/":                                "list pods",
		"GET /apis/apps/v1":                                              "discover API groups",
		"GET /apis":                                                      "discover API groups",
		"GET /readyz":                                                    "",
		"GET /version":                                                   "",
	} {
		method, url, _ := strings.Cut(request, " ")
		got := ""
		if call, is := callOf(httptest.NewRequest(method, url, http.NoBody)); is {
			got = call.String()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}

// answers is a transport of which tests decide what it answers.
type answers struct {
	code  int
	body  string
	media string
	err   error
	hangs bool
}

func (a *answers) RoundTrip(request *http.Request) (*http.Response, error) {
	if a.hangs {
		<-request.Context().Done()
		return nil, request.Context().Err()
	}
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{
		StatusCode: a.code, Header: http.Header{"Content-Type": {a.media}},
		Body: io.NopCloser(strings.NewReader(a.body)),
	}, nil
}

// A call fails while all its requests do, is reported after some of them and some time, and is gone with the first that
// succeeds, or when nothing asks for it any more.
func TestLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, a := &ledger{}, &answers{code: 200, media: "application/json"}
		send := func(path string) {
			t.Helper()
			request := httptest.NewRequest(http.MethodGet, path, http.NoBody)
			response, err := l.roundTrip(request.WithContext(t.Context()), a)
			if err != nil {
				return
			}
			if body, _ := io.ReadAll(response.Body); string(body) != a.body {
				t.Errorf("the body is %q, want %q", body, a.body)
			}
		}
		wants := func(want string) {
			t.Helper()
			var got []string
			for _, f := range l.failures(time.Now()) {
				got = append(got, fmt.Sprintf("%s %s x%d: %s", f.Call, f.Reason, f.Count, f.Text))
			}
			if strings.Join(got, "; ") != want {
				t.Errorf("%q, want %q", got, want)
			}
		}

		send("/api/v1/secrets?watch=1")
		*a = answers{code: 500, media: "application/json", body: `{"kind":"Status","apiVersion":"v1","status":"Failure",` +
			`"message":"etcdserver: request timed out","reason":"InternalError","code":500}`}
		send("/api/v1/secrets?watch=1")
		send("/api/v1/secrets?watch=1")
		time.Sleep(callPatience) //nolint:forbidigo // virtual time
		wants("")                // two requests may meet an API server that restarts
		send("/api/v1/secrets?watch=1")
		wants("watch secrets StorageFails x3: its storage fails: etcdserver: request timed out")

		*a = answers{code: 404, media: "application/json", body: "{}"}
		send("/api/v1/secrets?watch=1") // there is no such kind
		wants("")

		*a = answers{code: 502, media: "text/html", body: "<html>"}
		for range callTries {
			send("/api/v1/pods")
			time.Sleep(callPatience / 2) //nolint:forbidigo // virtual time
		}
		wants("list pods NotReady x3: the API server answers 502")
		*a = answers{code: 200, media: "text/html", body: "<html>"}
		send("/api/v1/pods")
		wants(`list pods Malformed x4: a response is of type "text/html", which no API server sends`)
		*a = answers{err: errors.New("connection refused")}
		send("/api/v1/pods")
		wants("list pods Unreachable x5: connection refused")
		time.Sleep(callForgotten + 1) //nolint:forbidigo // virtual time
		wants("")                     // nothing asks for it any more
	})
}

// A request that is not answered is reported while it waits. One that is given up here is not.
func TestLedgerOfSlowRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, a := &ledger{}, &answers{hangs: true}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		request := httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/shop/services", http.NoBody)
		go func() {
			_, _ = l.roundTrip(request.WithContext(ctx), a) //nolint:bodyclose // there is none
		}()

		time.Sleep(callPatience) //nolint:forbidigo // virtual time
		all := l.failures(time.Now())
		if len(all) != 1 || all[0].Reason != Slow || all[0].String() != "create services" {
			t.Errorf("%v", all)
		}
		cancel()
		synctest.Wait()
		if all := l.failures(time.Now()); len(all) > 0 {
			t.Errorf("given up: %v", all)
		}

		for range callTries {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, _ = l.roundTrip(request.WithContext(ctx), a) //nolint:bodyclose // there is none
			cancel()
		}
		if all := l.failures(time.Now()); len(all) != 1 || all[0].Text != "no response within 10s" {
			t.Errorf("%v", all)
		}
	})
}

// However many resources fail, few are kept.
func TestLedgerIsBounded(t *testing.T) {
	l, a := &ledger{}, &answers{err: errors.New("refused")}
	for i := range 1000 {
		request := httptest.NewRequest(http.MethodGet, fmt.Sprint("/api/v1/kind", i), http.NoBody)
		_, _ = l.roundTrip(request, a) //nolint:bodyclose // there is none
	}
	if n := len(l.failed); n != maxCalls {
		t.Errorf("%d are kept", n)
	}
	if n := len(l.pending); n != 0 {
		t.Errorf("%d are waited for", n)
	}
}

func FuzzCallOf(f *testing.F) {
	f.Add("/api/v1/namespaces/a/services/b/status")
	f.Add("/apis///")
	f.Fuzz(func(t *testing.T, path string) {
		request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		request.URL.Path = path
		if call, is := callOf(request); is && (call.Verb == "" || call.Resource == "") {
			t.Errorf("%q: %q", path, call)
		}
	})
}

package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// post sends a body to a path of a Server.
func post(s *Server, path string, body []byte) *httptest.ResponseRecorder {
	to := httptest.NewRecorder()
	s.ServeHTTP(to, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)))
	return to
}

func bodyOf(version, object string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/%s","kind":"AdmissionReview","request":{"uid":"u1",`+
		`"kind":{"group":"","version":"v1","kind":"Pod"},"namespace":"shop","name":"web","operation":"CREATE",`+
		`"userInfo":{"username":"ann","groups":["dev"]},"object":%s}}`, version, object)
}

var newCounter = prometheus.CounterOpts{Name: "reviews_total"}

// reviewing returns a Review of Pods.
func reviewing(decide func(context.Context, *Request) (Response, error)) Review {
	return Review{Subject: "Pod", Verdicts: NewVerdicts(newCounter), Decide: decide}
}

// toy adds a label to objects that have none, warns of some, denies others, and fails with yet others.
func toy(_ context.Context, r *Request) (Response, error) {
	var object struct{ Labels map[string]string }
	if err := json.Unmarshal(r.Object, &object); err != nil {
		return Response{}, &Denial{"it has no labels: " + err.Error()}
	}

	switch {
	case object.Labels["panic"] != "":
		panic("planted")
	case object.Labels["fail"] != "":
		return Response{}, errors.New("no right to list Namespaces")
	case object.Labels["garble"] != "":
		return Response{Patch: []byte(`[{"op":"add"`)}, nil
	case object.Labels["deny"] != "":
		return Response{}, fmt.Errorf("wrapped: %w", &Denial{"label deny is set"})
	case object.Labels["warn"] != "":
		return Response{Warnings: []string{"label warn is set"}}, nil
	case object.Labels == nil:
		return Response{Patch: []byte(`[{"op":"add","path":"/labels","value":{}}]`)}, nil
	}
	return Response{}, nil
}

func toyServer() *Server {
	return NewServer(logr.Discard(), 1, map[string][]Review{"/": {reviewing(toy)}})
}

// A Review allows, patches, warns, denies and fails, and API servers can distinguish them.
func TestAnswers(t *testing.T) {
	const failure = "the review has failed: the log of the webhook has more\n"
	patch := []byte(`[{"op":"add","path":"/labels","value":{}}]`)
	for name, c := range map[string]struct {
		object string
		code   int
		want   admissionv1.AdmissionResponse
	}{
		"allowed": {`{"labels":{"a":"b"}}`, 200, admissionv1.AdmissionResponse{Allowed: true}},
		"patched": {`{}`, 200, admissionv1.AdmissionResponse{
			Allowed: true, Patch: patch, PatchType: new(admissionv1.PatchTypeJSONPatch),
		}},
		"warned": {`{"labels":{"warn":"1"}}`, 200, admissionv1.AdmissionResponse{
			Allowed: true, Warnings: []string{"label warn is set"},
		}},
		"denied":               {`{"labels":{"deny":"1"}}`, 200, denial("label deny is set")},
		"failed":               {`{"labels":{"fail":"1"}}`, 500, admissionv1.AdmissionResponse{}},
		"a patch that is none": {`{"labels":{"garble":"1"}}`, 500, admissionv1.AdmissionResponse{}},
		"panicked":             {`{"labels":{"panic":"1"}}`, 500, admissionv1.AdmissionResponse{}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, version := range []string{"v1", "v1beta1"} {
				s := toyServer()
				to := post(s, "/", bodyOf(version, c.object))
				if to.Code != c.code || c.code != 200 && to.Body.String() != failure {
					t.Fatalf("%d %s", to.Code, to.Body)
				}
				if c.code != 200 {
					continue
				}
				var answer admissionv1.AdmissionReview
				if err := json.Unmarshal(to.Body.Bytes(), &answer); err != nil {
					t.Fatal(err)
				}
				c.want.UID = "u1"
				if diff := cmp.Diff(&c.want, answer.Response); diff != "" {
					t.Error(diff)
				}
				if answer.APIVersion != "admission.k8s.io/"+version || answer.Kind != "AdmissionReview" ||
					answer.Request != nil || to.Header().Get("Content-Type") != "application/json" {
					t.Errorf("%s %v", to.Body, to.Header())
				}
			}
		})
	}
}

func denial(message string) (r admissionv1.AdmissionResponse) {
	if err := json.Unmarshal(fmt.Appendf(nil,
		`{"status":{"metadata":{},"status":"Failure","message":%q,"reason":"BadRequest","code":400}}`, message), &r); err != nil {
		panic(err)
	}
	return r
}

// What a Review gets, and what is logged and counted.
func TestRequests(t *testing.T) {
	var got []Request
	var lines []string
	log := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
	pods, jobs := reviewing(toy), reviewing(func(_ context.Context, r *Request) (Response, error) {
		got = append(got, *r)
		return Response{}, nil
	})
	s := NewServer(log, 1, map[string][]Review{"/pods": {pods}, "/jobs": {jobs}})

	post(s, "/jobs", bodyOf("v1", `{"a":1}`))
	want := Request{UID: "u1", Namespace: "shop", Name: "web", Operation: "CREATE", User: User{"ann"}}
	want.Kind.Version, want.Kind.Kind, want.Object = "v1", "Pod", json.RawMessage(`{"a":1}`)
	if diff := cmp.Diff([]Request{want}, got); diff != "" {
		t.Error(diff)
	}

	for _, object := range []string{`{}`, `{"labels":{"deny":"1"}}`, `{"labels":{"fail":"1"}}`, `{"labels":{"panic":"1"}}`} {
		post(s, "/pods", bodyOf("v1", object))
	}
	post(s, "/pods", []byte("?"))
	if to := post(s, "/elsewhere", bodyOf("v1", `{}`)); to.Code != http.StatusNotFound {
		t.Errorf("a path without a Review: %d", to.Code)
	}

	counts := map[string]float64{}
	for _, verdict := range []string{allowed, denied, failed, unreadable} {
		counts[verdict] = testutil.ToFloat64(pods.Verdicts.WithLabelValues(verdict))
	}
	if diff := cmp.Diff(map[string]float64{allowed: 1, denied: 1, failed: 2, unreadable: 1}, counts); diff != "" {
		t.Error(diff)
	}

	all := strings.Join(lines, "\n")
	for _, text := range []string{
		`"Denied a Pod"`, `"reason"="label deny is set"`, `"user"="ann"`, `"name"="web"`,
		`"There is no answer about a Pod: the failurePolicy of the webhook decides" "error"="no right to list Namespaces"`,
		`"BUG: a review has panicked; others go on" "error"="planted"`, `admission.toy`,
		`"A request to the webhook cannot be read; only an API server should send any"`,
	} {
		if !strings.Contains(all, text) {
			t.Errorf("no line has %s:\n%s", text, all)
		}
	}
}

// Requests that no API server sends get no review.
func TestHostileRequests(t *testing.T) {
	usual := string(bodyOf("v1", `{}`))
	with := func(old, replacement string) []byte {
		if !strings.Contains(usual, old) {
			t.Fatal(old)
		}
		return []byte(strings.Replace(usual, old, replacement, 1))
	}
	for name, c := range map[string]struct {
		body   []byte
		format string
		code   int
	}{
		"a usual one":          {[]byte(usual), "application/json; charset=utf-8", 200},
		"no version":           {with(`"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",`, ""), "", 200},
		"nothing":              {nil, "text/plain", 200},
		"another format":       {[]byte(usual), "application/yaml", 415},
		"no format":            {[]byte(usual), ";;", 415},
		"another version":      {with("admission.k8s.io/v1", "admission.k8s.io/v2"), "", 400},
		"another kind":         {with("AdmissionReview", "ConversionReview"), "", 400},
		"no UID":               {with(`"uid":"u1"`, `"uid":""`), "", 400},
		"no request":           {with(`"request"`, `"response"`), "", 400},
		"request of null":      {[]byte(`{"request":null}`), "", 400},
		"deep":                 {[]byte(strings.Repeat(`{"request":`, 1<<19)), "", 400},
		"long names":           {with(`"name":"web"`, `"name":"`+strings.Repeat("a", maxNames)+`"`), "", 400},
		"long kind":            {with(`"kind":"Pod"`, `"kind":"`+strings.Repeat("a", maxNames)+`"`), "", 400},
		"numbers for names":    {with(`"name":"web"`, `"name":1`), "", 400},
		"a list for an object": {with(`"object":{}`, `"object":[`+strings.Repeat("[],", 1<<20)+`[]]`), "", 200},
		"no JSON":              {[]byte("\x00\xff"), "", 400},
		"two reviews":          {[]byte(usual + usual), "", 400},
		"cut off":              {[]byte(usual[:len(usual)-1]), "", 400},
		"too large":            {append([]byte(usual), bytes.Repeat([]byte(" "), MaxBody)...), "", 500},
	} {
		t.Run(name, func(t *testing.T) {
			s := toyServer()
			request := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(c.body))
			if c.format != "" {
				request.Header.Set("Content-Type", c.format)
			}
			to := httptest.NewRecorder()
			s.ServeHTTP(to, request)
			if to.Code != c.code || to.Body.Len() > 3<<10 {
				t.Errorf("%d %.2000s", to.Code, to.Body)
			}
			if held := s.bytes.Load(); held != 0 {
				t.Errorf("%d bytes are counted afterwards", held)
			}
		})
	}
}

// A Strict Review has POST to its very path alone, and denies what is no review; bounds stay as they are.
func TestStrict(t *testing.T) {
	strict := reviewing(toy)
	strict.Strict = true
	s := NewServer(logr.Discard(), 1, map[string][]Review{"/": {strict}, "/pods": {reviewing(toy)}})
	usual := bodyOf("v1", `{"labels":{}}`)
	for name, c := range map[string]struct {
		method, path string
		body         []byte
		code         int
		answer       string // a part
	}{
		"a usual one":          {http.MethodPost, "/", usual, 200, `"uid":"u1","allowed":true`},
		"another method":       {http.MethodGet, "/", usual, 404, "not found"},
		"another path":         {http.MethodPost, "/x", usual, 404, "not found"},
		"nothing":              {http.MethodPost, "/", nil, 200, `"uid":"","allowed":false`},
		"no review":            {http.MethodPost, "/", []byte("x"), 200, `"apiVersion":"admission.k8s.io/v1","response":{"uid":"","allowed":false`},
		"too large":            {http.MethodPost, "/", bytes.Repeat([]byte(" "), MaxBody+1), 500, "too large"},
		"the other, by GET":    {http.MethodGet, "/pods", usual, 200, `"allowed":true`},
		"the other, nothing":   {http.MethodPost, "/pods", nil, 200, ""},
		"the other, no review": {http.MethodPost, "/pods", []byte("x"), 400, "not an AdmissionReview"},
	} {
		t.Run(name, func(t *testing.T) {
			to := httptest.NewRecorder()
			s.ServeHTTP(to, httptest.NewRequest(c.method, c.path, bytes.NewReader(c.body)))
			if to.Code != c.code || !strings.Contains(to.Body.String(), c.answer) ||
				(to.Body.Len() == 0) != (c.answer == "") {
				t.Errorf("%d %s", to.Code, to.Body)
			}
		})
	}
	if got := testutil.ToFloat64(strict.Verdicts.WithLabelValues(unreadable)); got != 3 {
		t.Errorf("%g are unreadable", got)
	}
}

// Of several Reviews of a path the first that takes the kind decides, and the last one about all others.
func TestReviewsOfAPath(t *testing.T) {
	var decided []string
	named := func(name string, takes func(kind metav1.GroupVersionKind) bool) Review {
		r := reviewing(func(context.Context, *Request) (Response, error) {
			decided = append(decided, name)
			return Response{}, nil
		})
		r.Takes = takes
		return r
	}
	kind := func(of string) func(metav1.GroupVersionKind) bool {
		return func(kind metav1.GroupVersionKind) bool { return kind.Kind == of }
	}
	reviews := []Review{named("jobs", kind("Job")), named("pods", kind("Pod")), named("others", nil)}
	s := NewServer(logr.Discard(), 1, map[string][]Review{"/": reviews})

	pod := bodyOf("v1", "{}")
	for _, body := range [][]byte{pod, bytes.Replace(pod, []byte("Pod"), []byte("Job"), 1), bytes.Replace(pod,
		[]byte("Pod"), nil, 1), []byte("x")} {
		post(s, "/", body)
	}
	if diff := cmp.Diff([]string{"pods", "jobs", "others"}, decided); diff != "" {
		t.Error(diff)
	}
	if got := testutil.ToFloat64(reviews[2].Verdicts.WithLabelValues(unreadable)); got != 1 {
		t.Errorf("%g are unreadable", got)
	}
}

// Of requests beyond 64 KiB one is decided about at a time, whatever the turns are, and usual ones beside it.
func TestLargeTurn(t *testing.T) {
	started, end := make(chan struct{}, 9), make(chan struct{})
	s := NewServer(logr.Discard(), 4, map[string][]Review{
		"/large": {reviewing(func(context.Context, *Request) (Response, error) {
			started <- struct{}{}
			<-end
			return Response{}, nil
		})},
		"/": {reviewing(toy)},
	})
	large := append(bytes.Repeat([]byte(" "), freeBytes), bodyOf("v1", "{}")...)
	var wg sync.WaitGroup
	wg.Go(func() { post(s, "/large", large) })
	<-started

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	to := httptest.NewRecorder()
	s.ServeHTTP(to, httptest.NewRequestWithContext(ctx, http.MethodPost, "/large", bytes.NewReader(large)))
	if to.Code != http.StatusServiceUnavailable {
		t.Errorf("a second large one: %d %s", to.Code, to.Body)
	}
	if to := post(s, "/", bodyOf("v1", "{}")); to.Code != http.StatusOK {
		t.Errorf("a usual one: %d %s", to.Code, to.Body)
	}
	close(end)
	wg.Wait()
}

// FuzzDecode: whatever the body, there is an answer, and the Review gets what the whole AdmissionReview has.
func FuzzDecode(f *testing.F) {
	for _, object := range []string{"{}", "null", `{"labels":{"warn":"1"}}`, `[1e999, "\ud800"]`} {
		f.Add(bodyOf("v1", object))
		f.Add(bodyOf("v1beta1", object))
	}
	f.Add([]byte(`{"request":{"uid":"1","Uid":"2","object":1,"object":2},"REQUEST":{"name":"a"}}`))
	f.Add([]byte(`{"request":{"uid":"1","kind":null,"userInfo":null,"object":null}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var got *Request
		review := reviewing(func(_ context.Context, r *Request) (Response, error) {
			got = r
			return Response{}, nil
		})
		to := post(NewServer(logr.Discard(), 1, map[string][]Review{"/": {review}}), "/", body)
		if (got != nil) != (to.Code == http.StatusOK && len(body) > 0) || to.Code != 200 && to.Code != 400 {
			t.Fatalf("%d %s, reviewed %v", to.Code, to.Body, got)
		}

		var whole admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &whole); err != nil || got == nil {
			return
		}
		want := Request{
			UID: whole.Request.UID, Kind: whole.Request.Kind, Namespace: whole.Request.Namespace,
			Name: whole.Request.Name, Operation: whole.Request.Operation, User: User{whole.Request.UserInfo.Username},
			Object: got.Object,
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Error(diff)
		}
		if whole.Request.Object.Raw != nil && !bytes.Equal(whole.Request.Object.Raw, got.Object) {
			t.Errorf("object %s, want %s", got.Object, whole.Request.Object.Raw)
		}
	})
}

// No more Reviews decide at once than the Server lets, and who does not wait any longer gets no turn.
func TestTurns(t *testing.T) {
	const concurrent = 2
	var running atomic.Int64
	started, end := make(chan struct{}), make(chan struct{})
	s := NewServer(logr.Discard(), concurrent, map[string][]Review{
		"/": {reviewing(func(context.Context, *Request) (Response, error) {
			if n := running.Add(1); n > concurrent {
				t.Errorf("%d at once", n)
			}
			defer running.Add(-1)
			started <- struct{}{}
			<-end
			return Response{}, nil
		})},
	})
	var wg sync.WaitGroup
	for range 3 * concurrent {
		wg.Go(func() {
			if to := post(s, "/", bodyOf("v1", "{}")); to.Code != http.StatusOK {
				t.Errorf("%d %s", to.Code, to.Body)
			}
		})
	}

	for range concurrent {
		<-started
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	to := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(bodyOf("v1", "{}")))
	if s.ServeHTTP(to, request); to.Code != http.StatusServiceUnavailable {
		t.Errorf("who does not wait: %d", to.Code)
	}

	close(end)
	for range 2 * concurrent {
		<-started
	}
	wg.Wait()
}

// A slowBody sends zeros, and then nothing until it ends.
type slowBody struct {
	left      int
	sent, end chan struct{}
}

func (b *slowBody) Read(to []byte) (int, error) {
	if b.left == 0 { // what was read before is counted
		close(b.sent)
		<-b.end
		return 0, io.EOF
	}
	n := min(b.left, len(to))
	clear(to[:n])
	b.left -= n
	return n, nil
}

// Requests that arrive slowly have others rejected when they take too much together, but for usual reviews.
func TestLargeRequests(t *testing.T) {
	s := toyServer()
	usual := bodyOf("v1", "{}")
	large := append(bytes.Repeat([]byte(" "), freeBytes+1), usual...)
	codes, end := make(chan int, 2), make(chan struct{})
	for range cap(codes) {
		body := &slowBody{left: maxBodies / 2, sent: make(chan struct{}), end: end}
		go func() {
			to := httptest.NewRecorder()
			s.ServeHTTP(to, httptest.NewRequest(http.MethodPost, "/", body))
			codes <- to.Code
		}()
		<-body.sent
	}
	if to := post(s, "/", usual); to.Code != http.StatusOK {
		t.Errorf("a usual review beside slow requests: %d %s", to.Code, to.Body)
	}
	if to := post(s, "/", large); to.Code != http.StatusServiceUnavailable {
		t.Errorf("a large review beside slow requests: %d %s", to.Code, to.Body)
	}
	close(end)
	for range cap(codes) {
		if code := <-codes; code != http.StatusBadRequest {
			t.Errorf("five MiB of zeros: %d", code)
		}
	}
	if to := post(s, "/", large); to.Code != http.StatusOK {
		t.Errorf("a large review after slow requests: %d %s", to.Code, to.Body)
	}
}

// Requests are also bounded together where each has read no more than is read of it beside others.
func TestManySmallRequests(t *testing.T) {
	s := toyServer()
	usual := bodyOf("v1", "{}")
	end := make(chan struct{})
	var wg sync.WaitGroup
	for range maxAll / freeBytes {
		body := &slowBody{left: freeBytes, sent: make(chan struct{}), end: end}
		wg.Go(func() { s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", body)) })
		<-body.sent
	}
	if to := post(s, "/", usual); to.Code != http.StatusServiceUnavailable {
		t.Errorf("one too many: %d %s", to.Code, to.Body)
	}
	close(end)
	wg.Wait()
	if to := post(s, "/", usual); to.Code != http.StatusOK {
		t.Errorf("a usual review afterwards: %d %s", to.Code, to.Body)
	}
}

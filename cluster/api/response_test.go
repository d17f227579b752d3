package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"
)

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// serverOf returns a connection to an API server that gives one response to every request, and what was
// sent to it.
func serverOf(t *testing.T, header http.Header, code int, body func() io.Reader) (*Connection, *[]*http.Request) {
	t.Helper()
	var seen []*http.Request
	config := &rest.Config{Host: "https://east.test", BearerToken: "secret"}
	config.Wrap(func(http.RoundTripper) http.RoundTripper {
		return transport(func(r *http.Request) (*http.Response, error) {
			seen = append(seen, r)
			return &http.Response{StatusCode: code, Header: header.Clone(), Body: io.NopCloser(body()), Request: r}, nil
		})
	})
	c, err := NewConnection(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, &seen
}

func get(t *testing.T, c *Connection, address string) (*http.Response, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.HTTPClient.Do(request) //nolint:bodyclose // callers do, where there is one
}

func nothing() io.Reader { return strings.NewReader("") }

// A redirect is an error, whatever host it names, and our token does not go there.
func TestRedirect(t *testing.T) {
	for _, code := range []int{301, 302, 303, 307, 308} {
		for _, to := range []string{"http://victim.test/admin", "https://east.test/elsewhere", "/elsewhere", ":"} {
			c, seen := serverOf(t, http.Header{"Location": {to}}, code, nothing)
			if _, err := get(t, c, "https://east.test/api/v1/pods"); !isResponseError(err) {
				t.Errorf("%d to %s: error %v", code, to, err)
			}
			if err := c.Probe(t.Context()); ReasonFor(err) != Malformed || !strings.Contains(err.Error(), "redirects") {
				t.Errorf("%d to %s: probe: %v", code, to, err)
			}
			if len(*seen) != 2 {
				t.Errorf("%d to %s: %d requests, want one each", code, to, len(*seen))
			}
		}
	}
}

// No request for another host is sent, and so no token.
func TestTokenStaysAtItsHost(t *testing.T) {
	c, seen := serverOf(t, nil, http.StatusOK, nothing)
	for _, address := range []string{
		"https://victim.test/", "https://east.test:8443/", "http://east.test.victim.test/",
	} {
		if _, err := get(t, c, address); !isResponseError(err) {
			t.Errorf("%s: error %v", address, err)
		}
	}
	if len(*seen) != 0 {
		t.Errorf("%d requests were sent", len(*seen))
	}
	if _, err := get(t, c, "https://east.test/api"); err != nil ||
		(*seen)[0].Header.Get("Authorization") != "Bearer secret" {
		t.Errorf("a request to the API server: %v", err)
	}
}

type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("it was read")
	return 0, io.EOF
}

// A response that is compressed, which no request asks for, is not read.
func TestCompressedResponse(t *testing.T) {
	c, _ := serverOf(t, http.Header{"Content-Encoding": {"gzip"}}, http.StatusOK, func() io.Reader { return unread{t} })
	if _, err := get(t, c, "https://east.test/api/v1/pods"); !isResponseError(err) ||
		!strings.Contains(err.Error(), "compresses") {
		t.Errorf("error %v", err)
	}
	if !c.Config.DisableCompression {
		t.Error("compressed responses are asked for")
	}
}

type blanks struct{ read int }

func (b *blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	b.read += len(p)
	return len(p), nil
}

// No response is read beyond a bound, of its own and of all that are being read together.
func TestEndlessResponses(t *testing.T) {
	for name, x := range map[string]struct {
		code  int
		query string
		most  int
	}{
		"list":  {200, "", maxResponses},
		"error": {500, "", maxError},
		"watch": {200, "?watch=true", maxEvent},
	} {
		t.Run(name, func(t *testing.T) {
			var source blanks
			c, _ := serverOf(t, http.Header{"Content-Type": {"application/json"}}, x.code,
				func() io.Reader { return &source })
			response, err := get(t, c, "https://east.test/api/v1/pods"+x.query)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); !isResponseError(err) {
				t.Errorf("error %v", err)
			}
			if source.read > x.most+64<<10 {
				t.Errorf("%d bytes were read, want %d", source.read, x.most)
			}
		})
	}
	t.Run("together", func(t *testing.T) {
		c, _ := serverOf(t, http.Header{"Content-Type": {"application/json"}}, http.StatusOK,
			func() io.Reader { return &blanks{} })
		var open []io.Closer
		read := func(n int64) error {
			response, err := get(t, c, "https://east.test/api/v1/pods")
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, response.Body)
			_, err = io.CopyN(io.Discard, response.Body, n)
			return err
		}
		if err := read(maxResponses * 3 / 4); err != nil {
			t.Error(err)
		}
		if err := read(maxResponses / 2); !isResponseError(err) {
			t.Errorf("both are more than is allowed: %v", err)
		}
		for _, o := range open {
			o.Close()
		}
		if err := read(maxResponses * 3 / 4); err != nil {
			t.Errorf("the others were closed: %v", err)
		}
	})
}

// However it is cut into reads, a stream of events passes exactly if each is small enough.
func TestEventSizes(t *testing.T) {
	const most = 64 << 10
	sizes := []int{0, 1, 100, most/2 - 100, most - 100, most, most + 1}
	rapid.Check(t, func(t *rapid.T) {
		protobuf := rapid.Bool().Draw(t, "protobuf")
		var stream bytes.Buffer
		fits := true
		for range rapid.IntRange(1, 3).Draw(t, "events") {
			n := rapid.SampledFrom(sizes).Draw(t, "size")
			if protobuf {
				pod := &corev1.Pod{}
				pod.Name = strings.Repeat("x", n)
				b := encodeEvent(t, pod)
				stream.Write(b)
				fits = fits && len(b)-4 <= most
				continue
			}
			c := rapid.SampledFrom([]string{"x", `"`, `\`, "{", "]"}).Draw(t, "c")
			text, err := json.Marshal(map[string]any{"a": []any{strings.Repeat(c, n), map[string]any{}}})
			if err != nil {
				t.Fatal(err)
			}
			stream.Write(append(text, '\n'))
			fits = fits && len(text) < most
		}
		e := &content{events: true, protobuf: protobuf, maxEvent: most}
		passed := true
		for stream.Len() > 0 && passed {
			_, err := e.add(stream.Next(rapid.SampledFrom([]int{1 << 20, 4096, 777, most - 1}).Draw(t, "read")))
			passed = err == nil
		}
		if passed != fits {
			t.Fatalf("passed %t, fits %t", passed, fits)
		}
	})
}

// Only reasons that API servers give are passed on, for they end in labels.
func TestReasons(t *testing.T) {
	status := func(reason string, code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReason(reason), Code: code}}
	}
	for _, x := range []struct {
		err  error
		want string
	}{
		{status("Forbidden", 403), "Forbidden"},
		{status("\xff", 500), "Unknown"},
		{status(strings.Repeat("x", 1<<20), 403), "Unknown"},
		{status("", 500), "Unknown"},
		{errors.New("no route to host"), "Unreachable"},
		{newResponseError("x"), "Malformed"},
	} {
		if got := reasonLabel(x.err); got != x.want {
			t.Errorf("%.40v: %s, want %s", x.err, got, x.want)
		}
	}
}

// endless reads a text again and again. What decodes it may go on for a moment after its watch has ended.
type endless struct {
	text string
	read atomic.Int64
}

func (e *endless) Read(into []byte) (int, error) {
	n := copy(into, e.text[e.read.Load()%int64(len(e.text)):])
	e.read.Add(int64(n))
	return n, nil
}

// However little is kept of what comes with a listing, and however often the same comes: so many bytes are
// read of one.
func TestEndlessBytes(t *testing.T) { synctest.Test(t, testEndlessBytes) }

func testEndlessBytes(t *testing.T) {
	pod := &endless{text: `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1",` +
		`"metadata":{"namespace":"ns","name":"web","annotations":{"x":"` + strings.Repeat("x", 1<<20) + "\"}}}}\n"}
	c, _ := serverOf(t, http.Header{"Content-Type": {"application/json"}}, http.StatusOK,
		func() io.Reader { return pod })
	c.Budget = NewBudget(Limits{Bytes: 1 << 20})
	names := NewStore(func(o any) (string, bool) { return o.(*corev1.Pod).Name, true }, func(Key) {})
	w := NewWatcher(c, Typed(corev1.SchemeGroupVersion, "pods", "Pod", &corev1.Pod{}), names)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	if excess, changed := w.excess.Load(); excess == nil {
		<-changed
	}
	cancel()
	<-done
	if n := pod.read.Load(); n < 32<<20 || n > 48<<20 {
		t.Errorf("%d MiB were read", n>>20)
	}
	if excess, _ := w.excess.Load(); excess == nil || !strings.Contains(excess.Error(), "lists of kind Pod") {
		t.Errorf("the listing ended with %v", excess)
	}
}

package api

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// What an API server may send before it is decoded. An object has at most 1.5 MiB in etcd, and a request 3
// MiB.
const (
	maxResponses = 16 << 20 // bytes of all responses to a Connection, but watches, that are being read
	maxEvent     = 4 << 20  // bytes of one event of a watch
	maxError     = 64 << 10 // bytes of a response that is an error
)

// A ResponseError is a response that we reject: a redirect, or more than an API server sends.
type ResponseError struct{ message string }

func (e *ResponseError) Error() string { return e.message }

func newResponseError(format string, args ...any) error {
	return &ResponseError{fmt.Sprintf(format, args...)}
}

// isResponseError reports whether err is a response that we rejected.
func isResponseError(err error) bool {
	_, refused := errors.AsType[*ResponseError](err)
	return refused
}

// limitTransport is passed by all requests to one API server. It adds the newest token to each, so that requests go
// to its host only, and a redirect is an error. Responses are not compressed, because a small one could inflate to a
// huge one here. What is read of them and not decoded yet is bounded.
type limitTransport struct {
	host     string
	token    *atomic.Pointer[string] // empty for none
	buffered *atomic.Int64           // bytes of responses that are being read
	next     http.RoundTripper
}

// RoundTrip sends a request.
func (t *limitTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != t.host {
		return nil, newResponseError("a request for %s does not go to the API server %s", r.URL.Host, t.host)
	}
	if token := *t.token.Load(); token != "" && r.Header.Get("Authorization") == "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := checkForm(response); err != nil {
		response.Body.Close()
		return nil, err
	}
	takeRetryAfter(r, response)
	response.Body = t.limited(r, response)
	return response, nil
}

// checkForm returns an error for a response that redirects or is compressed.
func checkForm(r *http.Response) error {
	switch code, encoding := r.StatusCode, r.Header.Get("Content-Encoding"); {
	case code >= 300 && code < 400:
		return newResponseError("the API server redirects to %s (%d): redirects are not followed; "+
			"let the kubeconfig name the server that answers itself", redirectHost(r), code)
	case encoding != "" && encoding != "identity":
		return newResponseError("the API server compresses a response (%.20q), which was not asked for", encoding)
	default:
		return nil
	}
}

// retryAfterKey is the key of a *time.Duration in the context of a request, which becomes the pause that the API
// server asks for before it is made again.
type retryAfterKey struct{}

// takeRetryAfter takes the Retry-After off a response, if its request wants to know it. client-go would wait there
// itself: ten times, for as long as the server asks, and neither counted nor reported.
func takeRetryAfter(request *http.Request, response *http.Response) {
	asked, wanted := request.Context().Value(retryAfterKey{}).(*time.Duration)
	if !wanted {
		return
	}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 31); err == nil {
		*asked = time.Duration(seconds) * time.Second
	}
	response.Header.Del("Retry-After")
}

// limited returns the body of a response.
func (t *limitTransport) limited(request *http.Request, response *http.Response) io.ReadCloser {
	body := &limitedBody{
		ReadCloser: response.Body, buffered: t.buffered, received: new(atomic.Int64), maxOwn: maxResponses,
	}
	if came, counted := request.Context().Value(receivedKey{}).(*atomic.Int64); counted {
		body.received = came
	}
	switch watch := request.URL.Query().Get("watch"); {
	case response.StatusCode >= 400:
		body.maxOwn = maxError
	case watch == "true" || watch == "1":
		contentType := response.Header.Get("Content-Type")
		body.events = &eventSizes{most: maxEvent, protobuf: strings.HasPrefix(contentType, runtime.ContentTypeProtobuf)}
	}
	return body
}

// receivedKey is the key of an *atomic.Int64 in the context of a request. The bytes of its response are
// added to it.
type receivedKey struct{}

// redirectHost returns the host that a response redirects to.
func redirectHost(r *http.Response) string {
	if to, err := url.Parse(r.Header.Get("Location")); err == nil && to.Host != "" && len(to.Host) < 256 {
		return to.Host
	}
	return "another path"
}

// limitedBody is the body of a response. Reading it fails once it is too large.
type limitedBody struct {
	io.ReadCloser
	buffered *atomic.Int64 // by all bodies
	received *atomic.Int64 // with this response, and with those that are counted with it
	own      int64         // of held
	maxOwn   int64         // that mine may be
	// events is nil for anything but a watch.
	events *eventSizes
}

// Read reads.
func (b *limitedBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	b.received.Add(int64(n))
	if b.events != nil {
		if !b.events.withinLimit(into[:n]) {
			return 0, newResponseError("an event is larger than %d MiB", maxEvent>>20)
		}
		return n, err
	}
	b.own += int64(n)
	if all := b.buffered.Add(int64(n)); all > maxResponses || b.own > b.maxOwn {
		return 0, newResponseError("what the API server answers at once is larger than %d KiB",
			min(b.maxOwn, maxResponses)>>10)
	}
	return n, err
}

// Close ends the reading, after what was read has been decoded.
func (b *limitedBody) Close() error {
	b.buffered.Add(-b.own)
	b.own = 0
	return b.ReadCloser.Close()
}

// eventSizes finds where the events of a watch begin, because decoders read each as a whole, however large
// it is.
type eventSizes struct {
	protobuf bool
	most     int // bytes of one
	left     int // bytes of this event that are still to come

	header []byte // of the next event; as long as it is not complete

	size, depth     int // of a JSON value
	quoted, escaped bool
}

// withinLimit reports whether every event is small enough, as far as all bytes so far and b show.
func (e *eventSizes) withinLimit(b []byte) bool {
	if !e.protobuf {
		return e.withinLimitJSON(b)
	}
	for len(b) > 0 {
		if e.left > 0 {
			n := min(e.left, len(b))
			e.left -= n
			b = b[n:]
			continue
		}
		n := min(4-len(e.header), len(b))
		e.header = append(e.header, b[:n]...)
		b = b[n:]
		if len(e.header) == 4 {
			length := binary.BigEndian.Uint32(e.header)
			if length > uint32(e.most) {
				return false
			}
			e.left, e.header = int(length), e.header[:0]
		}
	}
	return true
}

func (e *eventSizes) withinLimitJSON(b []byte) bool {
	for _, c := range b {
		if e.size++; e.size > e.most {
			return false
		}
		switch {
		case e.escaped:
			e.escaped = false
		case e.quoted:
			e.escaped, e.quoted = c == '\\', c != '"'
		case c == '"':
			e.quoted = true
		case c == '{' || c == '[':
			e.depth++
		case c == '}' || c == ']':
			if e.depth--; e.depth <= 0 {
				e.size, e.depth = 0, 0
			}
		}
	}
	return true
}

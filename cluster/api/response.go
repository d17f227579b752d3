package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// What an API server may send before it is decoded. An object has at most 1.5 MiB in etcd, and a request 3
// MiB. The rest is bounded by what it takes when it is decoded (see size.go).
const (
	maxResponses = 16 << 20 // bytes of all responses to a Connection, but watches, that are being read
	maxDecoded   = 64 << 20 // bytes of all that is being read of a Connection, once it is decoded
	maxEvent     = 4 << 20  // bytes of one event of a watch
	maxError     = 64 << 10 // bytes of a response that is an error, or neither JSON nor protobuf
)

// responseError is a response that we reject: a redirect, or more than an API server sends.
type responseError struct{ message string }

func (e *responseError) Error() string { return e.message }

func newResponseError(format string, args ...any) error {
	return &responseError{fmt.Sprintf(format, args...)}
}

// isResponseError reports whether err is a response that we rejected.
func isResponseError(err error) bool {
	_, refused := errors.AsType[*responseError](err)
	return refused
}

// limitTransport is passed by all requests to one API server. It adds the newest token to each, so that
// requests go to its host only, and a redirect is an error. Responses are not compressed, because a small one
// could inflate to a huge one here. What is read of them and not decoded yet is bounded.
type limitTransport struct {
	conn *Connection
	next http.RoundTripper
}

// RoundTrip sends a request, and has the Connection note what came of it.
func (t *limitTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if host := t.conn.base.Host; request.URL.Host != host {
		return nil, newResponseError("a request for %s does not go to the API server %s", request.URL.Host, host)
	}
	if token := *t.conn.token.Load(); token != "" && request.Header.Get("Authorization") == "" {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return t.conn.calls.roundTrip(request, boundedTransport{t})
}

// boundedTransport sends requests, and bounds responses.
type boundedTransport struct{ of *limitTransport }

// RoundTrip sends a request.
func (b boundedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.of.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if err := checkForm(response); err != nil {
		response.Body.Close()
		return nil, err
	}

	takeRetryAfter(request, response)
	response.Body = b.of.limited(request, response)
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

// retryAfterKey is the key of a *time.Duration in the context of a request, which becomes the pause that the
// API server asks for before it is made again.
type retryAfterKey struct{}

// takeRetryAfter takes the Retry-After off a response, if its request wants to know it. client-go would wait
// there itself: ten times, for as long as the server asks, and neither counted nor reported.
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
	watch := request.URL.Query().Get("watch")
	failed := response.StatusCode >= 400
	body := &limitedBody{
		ReadCloser: response.Body, conn: t.conn, received: new(atomic.Int64),
		watch: !failed && (watch == "true" || watch == "1"), maxOwn: maxResponses,
	}
	if came, counted := request.Context().Value(receivedKey{}).(*atomic.Int64); counted {
		body.received = came
	}

	contentType := response.Header.Get("Content-Type")
	protobuf := strings.HasPrefix(contentType, runtime.ContentTypeProtobuf)
	switch {
	case body.watch:
		body.content = newContent(true, protobuf, request.Header.Get("Accept"))
	case protobuf, contentType == "" && !failed: // which clients may take for protobuf
		body.whole = true
	case strings.HasPrefix(contentType, runtime.ContentTypeJSON):
		body.content = newContent(false, false, request.Header.Get("Accept"))
	default:
		body.maxOwn = maxError
	}

	if failed {
		body.maxOwn = maxError
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
	conn     *Connection
	received *atomic.Int64 // with this response, and with those that are counted with it
	watch    bool
	own      int64 // of conn.buffered; 0 for a watch
	maxOwn   int64

	mu     sync.Mutex // a watch is closed while it is read
	ours   int64      // of conn.decoded
	closed bool

	content *content      // measures it as it comes; nil if whole, and for neither JSON nor protobuf
	whole   bool          // it is one message of protobuf
	rest    *bytes.Reader // of that
}

// Read reads.
func (b *limitedBody) Read(into []byte) (int, error) {
	switch {
	case b.whole:
		return b.readWhole(into)
	case b.content == nil:
		n, err := b.readLimited(into)
		if excess := b.countDecoded(otherByte * int(b.own)); excess != nil {
			return 0, excess
		}
		return n, err
	}

	if b.watch { // what came before has been decoded
		_ = b.countDecoded(b.content.startRead()) // less than before
	}
	n, err := b.readLimited(into)
	size, excess := b.content.add(into[:n])
	if excess == nil {
		excess = b.countDecoded(size)
	}

	if excess != nil {
		return 0, excess
	}
	return n, err
}

// readWhole reads a message to its end before any of it is passed on, so that one that
// is rejected is in memory once.
func (b *limitedBody) readWhole(into []byte) (int, error) {
	if b.rest == nil {
		message, err := io.ReadAll(readerFunc(b.readLimited))
		if err != nil {
			return 0, err
		}

		size, err := objectSize(message)
		if err == nil {
			err = b.countDecoded(size)
		}
		if err != nil {
			return 0, err
		}
		b.rest = bytes.NewReader(message)
	}
	return b.rest.Read(into)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(into []byte) (int, error) { return f(into) }

// readLimited reads no more bytes than there may be.
func (b *limitedBody) readLimited(into []byte) (int, error) {
	size, err := b.ReadCloser.Read(into)
	b.received.Add(int64(size))
	if b.watch {
		return size, err
	}

	b.own += int64(size)
	exceeded := int64(0)
	switch all := b.conn.buffered.Add(int64(size)); {
	case b.own > b.maxOwn:
		exceeded = b.maxOwn
	case all > maxResponses:
		exceeded = maxResponses
	default:
		return size, err
	}
	return 0, newResponseError("what the API server answers at once is larger than %d KiB", exceeded>>10)
}

// countDecoded counts what is decoded from this body as that much, unless it is closed. It
// returns an error if all is too much.
func (b *limitedBody) countDecoded(size int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	all := b.conn.decoded.Add(int64(size) - b.ours)
	b.ours = int64(size)
	if all > maxDecoded {
		return newResponseError("what the API server answers at once takes more than %d MiB", maxDecoded>>20)
	}
	return nil
}

// Close ends the reading, after what was read has been decoded.
func (b *limitedBody) Close() error {
	b.conn.buffered.Add(-b.own)
	b.own = 0
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.conn.decoded.Add(-b.ours)
	b.ours = 0
	return b.ReadCloser.Close()
}

package api

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/fingerpost/fingerpost/federation/watch"
)

const (
	// ProbeTimeout is how long a Probe waits for an answer.
	ProbeTimeout = 3 * time.Second

	dialTimeout = 3 * time.Second

	// maxEventRate is how many changes a second are read from a linked cluster for long, over all its watches, and
	// eventBurst how many at once: a cluster of 5,000 nodes changes a few hundred objects a second, and many more
	// when a zone fails. Each takes some 20 µs.
	maxEventRate = 2000
	eventBurst   = 20_000
)

// DialFunc opens a connection to an API server.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// A Connection is one API server, reached with one set of credentials. It does not reconnect: net/http
// does, for each request. It keeps true what net/http and client-go leave open.
//
// Two lanes. GET requests go over one transport and requests that change something over another, so over
// different TCP connections. HTTP/2 puts all requests of a transport on one connection, and cutting it to
// stop a write cuts every watch with it. With two lanes CutWrites costs no watch. Connections of the write
// lane discard unsent data when they are closed (SO_LINGER 0); otherwise the kernel goes on delivering a
// write after the cut. The probe has a third transport, so that it tests the network rather than a
// connection that happens to be open.
//
// Fence. A request that changes something and carries a fence (WithFence) asks it right before it enters
// the transport. That is the last moment at which we can stop it: no check of ours takes back a request
// that was sent. The holder of a Lease cuts the lane when its term ends, and its successor repairs what
// arrived later.
//
// Retry. Nothing in here repeats a request. client-go would repeat one up to ten times by itself, waiting
// as long as Retry-After asks, unseen by metrics; so that header is taken off responses and handed to the
// caller, whose pause it becomes (Watcher.retry). RetryNow ends such pauses: after a new token, and when a
// probe succeeds again. Reset also ends requests under way, open watches included, because a connection
// that hangs may not notice for minutes: each request lives in an epoch, a context that Reset ends and
// replaces.
//
// Credentials stay with their host: a request for another host fails, a redirect is an error
// (limitTransport). The token is not part of the transports but added to each request, so that a new token
// needs no new connection and open watches go on. Responses are bounded before they are decoded
// (response.go).
//
// mu guards epoch, end and shared; all else is atomic or set before use. No lock is held across a request.
type Connection struct {
	Config     *rest.Config // without the token, which is added to each request
	HTTPClient *http.Client
	Budget     *Budget // of what informers keep; nil for none. It is set before the first informer runs

	base                   *url.URL
	reads, writes, probing lane

	token       atomic.Pointer[string] // empty for none
	calls       ledger                 // what came of requests
	buffered    atomic.Int64           // bytes of responses that are being read
	decoded     atomic.Int64           // bytes of what is being read, once it is decoded
	events      *rate.Limiter          // of changes that watches bring: see Pace
	paced       atomic.Int64           // how many of them had to wait
	skew        atomic.Int64           // how far the API server's clock is ahead of ours, in nanoseconds
	unreachable atomic.Bool            // the last probe failed
	// retryNow is stored anew when requests that wait to be retried are to be made at once.
	retryNow watch.Value[struct{}]
	closing  sync.Once
	closed   chan struct{} // by Close

	mu     sync.Mutex // guards all below
	epoch  context.Context
	end    context.CancelFunc // of the epoch
	shared []*Watcher
}

// A lane is a transport with its own TCP connections.
type lane struct {
	client *http.Client
	dialer *connrotation.Dialer
}

func newLane(config *rest.Config, dial connrotation.DialFunc) (lane, error) {
	dialer := connrotation.NewDialer(dial)
	config = rest.CopyConfig(config)
	config.Dial = dialer.DialContext
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return lane{}, fmt.Errorf("credentials for %s: %w", config.Host, err)
	}
	return lane{client, dialer}, nil
}

// NewConnection prepares a connection. It does not use the network. dial replaces the Config's
// own way to dial; it may be nil. An error is one of the configuration: an address or a
// certificate that cannot be parsed.
func NewConnection(config *rest.Config, dial DialFunc) (*Connection, error) {
	if dial == nil {
		dial = config.Dial
	}
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	}

	conn := &Connection{
		Config: rest.CopyConfig(config), events: rate.NewLimiter(maxEventRate, eventBurst), closed: make(chan struct{}),
	}
	conn.token.Store(new(config.BearerToken))
	conn.epoch, conn.end = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	conn.Config.BearerToken = ""
	conn.Config.UserAgent = cmp.Or(config.UserAgent, "fingerpost")
	conn.Config.QPS = -1 // a few watches; the API server's own priority and fairness rules
	conn.Config.WarningHandler = rest.NoWarnings{}
	conn.Config.DisableCompression = true // of responses; see limitTransport
	conn.Config.ContentType = runtime.ContentTypeProtobuf
	conn.Config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON

	var err error
	if conn.base, _, err = rest.DefaultServerUrlFor(conn.Config); err != nil {
		return nil, fmt.Errorf("address of the API server: %w", err)
	}
	conn.base.Path = cmp.Or(conn.base.Path, "/") // or what is joined to it is relative

	conn.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &limitTransport{conn, next}
	})

	lanes := map[*lane]connrotation.DialFunc{
		&conn.reads: dial, &conn.writes: abortOnClose(dial), &conn.probing: dial,
	}
	for l, dial := range lanes {
		if *l, err = newLane(conn.Config, dial); err != nil {
			return nil, err
		}
	}

	conn.HTTPClient = &http.Client{
		Transport: laneTransport{conn.reads.client.Transport, conn.writes.client.Transport},
		Timeout:   conn.reads.client.Timeout,
	}
	return conn, nil
}

// Send sends a request to the API server, whatever host it is for: its path is one of API servers. It goes over the
// lanes, with the bounds and the token of the Connection.
func (c *Connection) Send(request *http.Request) (*http.Response, error) {
	query := request.URL.RawQuery
	request = request.Clone(request.Context())
	request.URL, request.Host = c.base.JoinPath(request.URL.EscapedPath()), ""
	request.URL.RawQuery = query
	return c.HTTPClient.Transport.RoundTrip(request)
}

// MaxBytes returns how many bytes may be held of the cluster; 0 for no limit.
func (c *Connection) MaxBytes() int64 {
	if c.Budget == nil {
		return 0
	}
	c.Budget.mu.Lock()
	defer c.Budget.mu.Unlock()
	return c.Budget.limits.Bytes
}

// abortOnClose makes closing a connection discard what was not sent yet. Otherwise the kernel goes on
// trying to deliver it.
func abortOnClose(dial DialFunc) connrotation.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // the connection works without it
		}
		return conn, err
	}
}

type fenceKey struct{} // of a func() error in the context of a request

// WithFence returns a context for requests. One that changes something is sent only if fence returns nil
// just before; otherwise it fails with the error of fence.
func WithFence(ctx context.Context, fence func() error) context.Context {
	return context.WithValue(ctx, fenceKey{}, fence)
}

// laneTransport sends requests that change something over connections of their own. Their Audit-ID, which
// the API server's audit log repeats, has the time at which it was sent: a UUID of version 7.
type laneTransport struct{ reads, writes http.RoundTripper }

// RoundTrip sends a request.
func (l laneTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet || request.Method == http.MethodHead {
		return l.reads.RoundTrip(request)
	}

	if fence, ok := request.Context().Value(fenceKey{}).(func() error); ok {
		if err := fence(); err != nil {
			if request.Body != nil {
				_ = request.Body.Close()
			}
			return nil, err
		}
	}

	if id, err := uuid.NewV7(); err == nil {
		request = request.Clone(request.Context())
		request.Header.Set("Audit-ID", id.String())
	}

	response, err := l.writes.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if err := checkCarriedOut(response); err != nil {
		return nil, err
	}
	return response, nil
}

// checkCarriedOut returns an error if a response of success is not one of an API server, but
// the page of something between us and it. client-go does not decode the response to a
// deletion, and would report success.
func checkCarriedOut(r *http.Response) error {
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	ours := []string{"", runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}
	if r.StatusCode >= 300 || slices.Contains(ours, media) {
		return nil
	}
	_ = r.Body.Close()
	return fmt.Errorf("the response to %s is of type %q, which no API server sends", r.Request.Method, media)
}

// UseToken replaces the token in use. Open watches use it from their next request on.
func (c *Connection) UseToken(token string) {
	c.token.Store(&token)
	c.RetryNow()
}

// RetryNow ends the pauses before retries, because the API server responds again or
// the credentials were replaced.
func (c *Connection) RetryNow() { c.retryNow.Store(struct{}{}) }

// Changed returns a channel that closes with the next RetryNow: what was refused may be permitted then.
func (c *Connection) Changed() <-chan struct{} {
	_, changed := c.retryNow.Load()
	return changed
}

// Probe requests whether the API server is ready and accepts the credentials. It
// waits no longer than ProbeTimeout.
func (c *Connection) Probe(ctx context.Context) error {
	err := c.checkReady(ctx, "")
	c.unreachable.Store(err != nil)
	return err
}

// AwaitContact waits while the last probe has failed. It returns false if ctx has ended, or the Connection was closed.
func (c *Connection) AwaitContact(ctx context.Context) bool {
	for c.unreachable.Load() {
		changed := c.Changed()
		if !c.unreachable.Load() {
			break
		}
		select {
		case <-changed:
		case <-c.closed:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil && !watch.IsClosed(c.closed)
}

// ClockSkew returns by how much the API server's clock was ahead of ours at the last probe; 0 if the response
// had no date.
func (c *Connection) ClockSkew() time.Duration { return time.Duration(c.skew.Load()) }

// MeasureSkew returns by how much the clock of a server is ahead of ours, by the Date of its response. A
// difference within the time of the request is none. It returns 0 without a date.
func MeasureSkew(sent, received time.Time, header http.Header) time.Duration {
	theirs, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return 0
	}
	ahead := max(0, theirs.Sub(received))
	behind := max(0, sent.Sub(theirs.Add(time.Second))) // the header has whole seconds
	return ahead - behind
}

// CheckToken returns an error if the API server does not accept a token, or does not permit it to list and
// watch each of the kinds. The token in use does not change.
func (c *Connection) CheckToken(ctx context.Context, token string, kinds ...Kind) error {
	if err := c.checkReady(ctx, token); err != nil {
		return err
	}
	for _, k := range kinds {
		if err := c.checkReadable(ctx, token, k); err != nil {
			return err
		}
	}
	return nil
}

// checkReady asks whether the API server is ready and accepts token, or the token in use if that is empty.
func (c *Connection) checkReady(ctx context.Context, token string) error {
	response, err := c.get(ctx, token, "readyz", nil)
	if err != nil {
		return err
	}

	switch code := response.StatusCode; {
	case code == http.StatusBadGateway || code == http.StatusGatewayTimeout || code >= 500 && isForeign(response):
		return &ProbeError{NotReady, fmt.Errorf(
			"%s answers %d: it does not reach the API server", answerer(response), code)}
	case code >= 500 || code == http.StatusTooManyRequests:
		return &ProbeError{NotReady, fmt.Errorf("the API server is not ready (%d)", code)}
	default:
		return nil // 403, too: the API server is there and accepts the credentials
	}
}

// checkReadable returns an error if the API server does not let a token list and watch a kind. To be
// accepted is not enough: that needs no right. Nor is a page that something in front of the API server sent.
func (c *Connection) checkReadable(ctx context.Context, token string, k Kind) error {
	kind := k.Resource

	// In this sequence: the error is in a condition.
	for _, ask := range []struct{ verb, option, value string }{{"list", "limit", "1"}, {"watch", "watch", "true"}} {
		verb, query := ask.verb, url.Values{"labelSelector": {k.Labels}, ask.option: {ask.value}}
		response, err := c.get(ctx, token, k.paths()[0], query)
		if err != nil {
			return err
		}

		code := response.StatusCode
		media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))

		switch {
		case code == http.StatusForbidden || code == http.StatusNotFound:
			return &ProbeError{Forbidden, fmt.Errorf(
				"the API server refuses to %s %s with the new token (%d): grant get, list and watch on them",
				verb, kind.GroupResource(), code)}
		case code != http.StatusOK:
			return &ProbeError{NotReady, fmt.Errorf(
				"the API server does not %s %s with the new token (%d)", verb, kind.GroupResource(), code)}
		case media != runtime.ContentTypeJSON:
			return &ProbeError{NotReady, fmt.Errorf(
				"%s of %s is answered with %q, not by an API server: see what is in front of it",
				verb, kind.GroupResource(), media)}
		}
	}
	return nil
}

// get returns what answers a GET request with the token given, or else with the one in use, over a transport of its
// own. Its body was read and closed. It waits no longer than ProbeTimeout. A refused token is an error.
func (c *Connection) get(ctx context.Context, token, path string, query url.Values) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	patience := time.Until(deadline)
	ctx, progress := trace(context.WithValue(ctx, probeKey{}, true))
	address := c.base.JoinPath(path)
	address.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, &ProbeError{Unreachable, err}
	}

	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	sent := time.Now()
	response, err := c.probing.client.Do(request)
	if err != nil {
		c.probing.dialer.CloseAll() // the next probe dials anew
		return nil, c.probeError(err, progress, patience)
	}

	defer response.Body.Close()
	c.skew.Store(int64(MeasureSkew(sent, time.Now(), response.Header)))
	if !query.Has("watch") { // which has no end
		if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)); err != nil {
			return nil, &ProbeError{Unreachable, stableError(err, patience)}
		}
	}

	if response.StatusCode == http.StatusUnauthorized {
		return nil, &ProbeError{Unauthorized, errors.New("the API server refuses the credentials (401)")}
	}
	return response, nil
}

// probeError returns why nothing has answered a request.
func (c *Connection) probeError(err error, progress *progress, patience time.Duration) *ProbeError {
	probe := &ProbeError{transportReason(err), stableError(err, patience)}
	if e, is := errors.AsType[*url.Error](err); is && e.Timeout() {
		probe.Err = progress.timeout(patience)
	}
	if why := untrusted(err); why != "" {
		probe.Err = fmt.Errorf("%s; %s", why, trustedText(c.Config))
	}
	return probe
}

// Reset closes every connection, ends every request that is under way, open watches included, and wakes
// what waits to try again.
func (c *Connection) Reset() {
	c.mu.Lock()
	c.end()
	c.epoch, c.end = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	c.mu.Unlock()
	c.reads.dialer.CloseAll()
	c.CutWrites()
	c.RetryNow()
}

// CutWrites closes the connections of what changes something, and discards what was not sent yet. What was
// sent may still arrive.
func (c *Connection) CutWrites() { c.writes.dialer.CloseAll() }

// untilReset returns a context that ends with ctx, with the next Reset, or with cancel.
func (c *Connection) untilReset(ctx context.Context) (_ context.Context, cancel context.CancelFunc) {
	c.mu.Lock()
	epoch := c.epoch
	c.mu.Unlock()
	ctx, end := context.WithCancel(ctx)
	stop := context.AfterFunc(epoch, end)
	return ctx, func() { stop(); end() }
}

// waitFor returns after d, when one of two channels closes, which it returns, or when ctx ends.
func waitFor(ctx context.Context, d time.Duration, one, other <-chan struct{}) (closed <-chan struct{}) {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-one:
		return one
	case <-other:
		return other
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return nil
	}
}

// Close frees the connections, once nothing uses them any more.
func (c *Connection) Close() {
	c.closing.Do(func() { close(c.closed) })
	c.mu.Lock()
	c.end()
	c.mu.Unlock()
	for _, l := range []lane{c.reads, c.writes, c.probing} {
		l.dialer.CloseAll()
	}
}

// A Reason is why a cluster is out of reach, or why it does not do what it was asked for.
type Reason string

// The reasons.
const (
	Unreachable  Reason = "Unreachable"  // no answer
	Untrusted    Reason = "Untrusted"    // its certificate is not signed by the authority we were given
	Unauthorized Reason = "Unauthorized" // it rejects the credentials
	NotReady     Reason = "NotReady"     // it reports so itself
	Forbidden    Reason = "Forbidden"    // the credentials lack a right: to list or watch a required kind, or to write
	Malformed    Reason = "Malformed"    // it redirects, compresses, or sends too much at once
	OverBudget   Reason = "OverBudget"   // it lists many times its budget

	QuotaExceeded   Reason = "QuotaExceeded"   // a ResourceQuota allows no more
	DeniedByPolicy  Reason = "DeniedByPolicy"  // an admission policy does not allow it
	DeniedByWebhook Reason = "DeniedByWebhook" // likewise, a webhook
	WebhookFails    Reason = "WebhookFails"    // one that has to allow it does not answer
	StorageFails    Reason = "StorageFails"    // what the API server keeps objects in fails
	Overloaded      Reason = "Overloaded"      // it takes no more requests at present
	NamespaceEnds   Reason = "NamespaceEnds"   // the namespace is being deleted
	Slow            Reason = "Slow"            // it takes too long to answer
	Conflicting     Reason = "Conflicting"     // others write the same object
	Invalid         Reason = "Invalid"         // the object is not as it takes it
	Refused         Reason = "Refused"         // anything else that it has answered
)

// Credentials reports whether the reason may lie in the credentials; otherwise it is the cluster's.
func (r Reason) Credentials() bool {
	return slices.Contains([]Reason{Untrusted, Unauthorized, Forbidden, Malformed}, r)
}

// A ProbeError is why a cluster is out of reach.
type ProbeError struct {
	Reason Reason
	Err    error
}

func (e *ProbeError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ProbeError) Unwrap() error { return e.Err }

// ReasonFor returns why err keeps a cluster out of reach.
func ReasonFor(err error) Reason {
	if probe, ok := errors.AsType[*ProbeError](err); ok {
		return probe.Reason
	}
	return Unreachable
}

func transportReason(err error) Reason {
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)), errors.As(err, new(x509.CertificateInvalidError)),
		errors.As(err, new(x509.HostnameError)):
		return Untrusted
	case isResponseError(err):
		return Malformed
	default:
		return Unreachable
	}
}

// stableError drops from an error of net/http what is known, as the request, or differs each time, as the
// port that we called from: a message that stays the same can be compared.
func stableError(err error, patience time.Duration) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		if e.Timeout() {
			return fmt.Errorf("no answer within %s", patience.Round(time.Second/10))
		}
		err = e.Err
	}

	if why := untrusted(err); why != "" {
		return errors.New(why)
	}
	text := err.Error()
	if e, ok := errors.AsType[*net.DNSError](err); ok { // any of several servers may have been asked
		why := e.Err[strings.LastIndexByte(e.Err, ':')+1:]
		text = strings.ReplaceAll(text, e.Error(), "lookup "+e.Name+": "+strings.TrimSpace(why))
	}
	if text = variableParts.ReplaceAllString(text, "$1"); text == err.Error() {
		return err
	}
	return errors.New(text)
}

// variableParts are the address of our end of a connection, and the time at which a certificate was not
// valid.
var variableParts = regexp.MustCompile(`\S+->|(current time )\S+ `)

// Pace waits until a change that a watch brings may be read, or until ctx ends. A linked cluster takes a share of this
// process, however fast it changes: what it sends meanwhile waits in its own buffers. Lists are bounded by the Budget,
// and not paced; nor is the cluster that this process runs in, which has none.
func (c *Connection) Pace(ctx context.Context) {
	if c.Budget == nil {
		return
	}
	if wait := c.events.Reserve().Delay(); wait > 0 {
		c.paced.Add(1)
		waitFor(ctx, wait, nil, nil)
	}
}

// Paced returns how many changes so far had to wait, because the API server sent more than are read.
func (c *Connection) Paced() int64 { return c.paced.Load() }

package serving

import (
	"context"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// What a client makes us hold is counted here, from the moment at which gRPC knows of it.
//
// A connection is found by the context that gRPC derives each of its streams from (stats.Handler). A
// stream is a ticket: it is made by the tap, in the goroutine that reads the connection, before there
// is a goroutine for the stream; what is refused there costs a few hundred bytes for as long as it
// takes to write the refusal. A ticket is counted until the handler of its stream has returned, or, if
// its request does not arrive in time, until then: one timer ends the stream and takes it off the
// counts, whether a handler ever began or not. gRPC has no such timer: its handlers wait for the
// request without end.
//
// No lock is held here while calling gRPC.

// connection is one HTTP/2 connection: one client, or a proxy beside us that carries the streams of many.
type connection struct {
	admission         *admission
	conn              net.Conn // nil if it is not known
	opened            time.Time
	limiter           *rate.Limiter
	streams, halfOpen atomic.Int64
	starting          chan struct{} // has an element for each stream whose handler has not begun to run
	large             chan struct{} // the turn of a large answer

	sends    atomic.Int64 // under way
	progress atomic.Int64 // when gRPC took or freed something last, in ns since 1970
	watched  atomic.Bool  // stall is set

	mu      sync.Mutex // guards all below
	closed  bool
	bytes   int64 // in flight
	flights map[*flight]struct{}
	waiting map[*alarm]struct{} // for room
	stall   *time.Timer         // nil until the first send
}

// connectionKey leads from the context of a stream to its connection.
type connectionKey struct{}

func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}

// lastStreams is the time in which a connection's last streams end, once gRPC is sure to have asked its
// client to open no more.
const lastStreams = 90 * time.Second

// ConnectionGrace returns how long a connection stays open after it has reached an age and gRPC has sent a GOAWAY. gRPC
// varies the age by a tenth.
func ConnectionGrace(age time.Duration) time.Duration { return age/5 + lastStreams + 30*time.Second }

// lastEnd returns when the last streams of the connection end by themselves: some time before gRPC closes it.
func (c *connection) lastEnd(age time.Duration) time.Time {
	return c.opened.Add(age + age/10 + rand.N(lastStreams))
}

// Options returns what each grpc.Server of the process needs: frames, and bounds on everything that a
// client can make it hold.
func (s *Server) Options() []grpc.ServerOption {
	admission := s.admission
	return []grpc.ServerOption{
		Codec(),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.StaticStreamWindowSize(4 * maxRequestBytes), // or gRPC lets windows grow to 16 MiB
		grpc.StaticConnWindowSize(4 * maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		// the rest waits at the client
		grpc.MaxConcurrentStreams(uint32(admission.config.ConnectionStreams) + moreStreams),
		grpc.Creds(keeper{insecure.NewCredentials()}),
		grpc.StatsHandler(admission),
		grpc.InTapHandle(admission.tap),
		grpc.UnknownServiceHandler(unknownMethod),
		grpc.ChainStreamInterceptor(admission.serveStream),
		grpc.ChainUnaryInterceptor(admission.serveUnary),
	}
}

// TagConn makes the connection that the contexts of its streams lead to. Like the three methods that follow, it is one
// of the stats.Handler by which gRPC reports connections, and the streams that it begins to handle.
func (a *admission) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{
		admission: a, conn: connOf(ctx), opened: time.Now(),
		limiter:  rate.NewLimiter(rate.Limit(a.config.ConnectionRate), a.config.ConnectionBurst),
		starting: make(chan struct{}, maxStarting), large: make(chan struct{}, 1),
	})
}

// HandleConn is called at the beginning and at the end of a connection.
func (a *admission) HandleConn(ctx context.Context, s stats.ConnStats) {
	connection := connectionOf(ctx)
	switch s.(type) {
	case *stats.ConnBegin:
		a.mu.Lock()
		a.open[connection] = struct{}{}
		a.mu.Unlock()
	case *stats.ConnEnd:
		a.mu.Lock()
		delete(a.open, connection)
		a.mu.Unlock()
		connection.end()
		if connection.conn != nil {
			_ = connection.conn.Close() // gRPC has closed what is in it
		}
	}
}

// TagRPC is called first by the goroutine of a stream.
func (a *admission) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	ticketOf(ctx).markBegun()
	return ctx
}

// HandleRPC is called last, also for a call whose request has never come: no interceptor is.
func (a *admission) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ends := s.(*stats.End); ends {
		ticketOf(ctx).served()
	}
}

// tap decides on a new stream. It runs in the goroutine that reads the connection, and lets that wait
// for the handlers of earlier streams to begin: before, they cannot have received a request that is
// here, and seem to have none.
func (a *admission) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	connection := connectionOf(ctx)
	if !connection.awaitStart() {
		return nil, a.refuse(refusedHalfOpen)
	}
	var wait time.Duration
	err := a.checkHeader(info.Header)
	if err == nil {
		wait, err = a.admit(connection)
	}

	clear(info.Header) // gRPC would keep it as long as the stream, and nothing here reads it
	method, rooted := strings.CutPrefix(info.FullMethodName, "/")
	_, limited := ctx.Deadline()
	if err != nil && !limited {
		connection.started()
		return nil, err
	}
	if !rooted || !strings.Contains(method, "/") {
		connection.started()
		return ctx, nil // gRPC ends it at once, and never calls TagRPC
	}

	// gRPC keeps the timer of a stream that is refused here until the deadline that the client has
	// chosen. Such a stream is refused by its handler.
	t := connection.newTicket(ctx, wait, err)
	if limited {
		context.AfterFunc(ctx, t.expireUnbegun)
	}
	return t, nil
}

// awaitStart waits until few enough streams of the connection have a handler that has not begun; started
// ends that of one.
func (c *connection) awaitStart() bool {
	select {
	case c.starting <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(startPatience)
	defer timer.Stop()

	select {
	case c.starting <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

func (c *connection) started() { <-c.starting }

func (a *admission) checkHeader(header metadata.MD) error {
	fields := 0
	for _, values := range header {
		fields += len(values)
	}
	if fields <= maxHeaderFields {
		return nil
	}
	return a.refuse(refusedHeader)
}

// A ticket is the context of a stream that was let in, and what is counted of it.
type ticket struct {
	context.Context
	cancel     context.CancelFunc
	connection *connection
	made       time.Time     // when the client opened the stream
	wait       time.Duration // how long after that its handler begins to work
	refused    error         // by the tap, for the handler to return
	timer      *time.Timer

	mu      sync.Mutex // guards all below
	begun   bool       // the handler runs, or never will
	arrived bool       // the request is here, or never will be
	expired bool       // the request did not arrive in time
	left    bool       // the stream is off all counts
}

// ticketKey leads from a context to the ticket that it is derived from.
type ticketKey struct{}

func (c *connection) newTicket(ctx context.Context, wait time.Duration, refused error) *ticket {
	t := &ticket{connection: c, made: time.Now(), wait: wait, refused: refused}
	t.Context, t.cancel = context.WithCancel(ctx)
	c.countOpen(1)
	c.countHalfOpen(1)
	t.timer = time.AfterFunc(c.admission.config.Request, t.expire)
	return t
}

// ticketOf returns the ticket of a stream. Each stream that gRPC begins to handle has one: tap makes it.
func ticketOf(ctx context.Context) *ticket { return ctx.Value(ticketKey{}).(*ticket) }

// Value returns the ticket itself for its key.
func (t *ticket) Value(key any) any {
	if key == (ticketKey{}) {
		return t
	}
	return t.Context.Value(key)
}

// Err is that of a deadline if the request did not arrive in time: gRPC ends the stream with it.
func (t *ticket) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.expired {
		return context.DeadlineExceeded
	}
	return t.Context.Err()
}

func (c *connection) countOpen(n int64) {
	c.streams.Add(n)
	c.admission.streams.Add(n)
}

func (c *connection) countHalfOpen(n int64) {
	c.halfOpen.Add(n)
	c.admission.halfOpen.Add(n)
}

// awaitAdmission returns when the stream is admitted, or has ended.
func (t *ticket) awaitAdmission() error {
	left := time.Until(t.made.Add(t.wait))
	if t.wait == 0 || left <= 0 {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-t.Done():
		return status.FromContextError(t.Err()).Err()
	}
}

// openedAt returns when the client opened the stream of a context.
func openedAt(ctx context.Context) time.Time {
	if t, counted := ctx.Value(ticketKey{}).(*ticket); counted {
		return t.made
	}
	return time.Now()
}

// markBegun sets begun. gRPC lets a call that is no stream wait for its request before anything else, even
// if it is refused. Where many wait, such a call is ended.
func (t *ticket) markBegun() {
	t.mu.Lock()
	first := !t.begun
	t.begun = true
	t.mu.Unlock()
	if !first {
		return
	}
	t.connection.started()
	if t.refused != nil && t.connection.halfOpen.Load() > fewHalfOpen {
		t.cancel()
	}
}

// arrive sets arrived.
func (t *ticket) arrive() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.arrived {
		t.arrived = true
		t.timer.Stop()
		t.connection.countHalfOpen(-1)
	}
}

// expire ends a stream whose request has not arrived in time.
func (t *ticket) expire() {
	t.mu.Lock()
	t.expired = !t.arrived
	expired := t.expired
	t.mu.Unlock()
	if !expired {
		return
	}
	t.served()
	t.connection.admission.metrics.halfOpenEnded.Inc()
	t.cancel() // so that its handler stops waiting
}

// expireUnbegun takes a stream off all counts whose handler has not begun when its deadline passes: gRPC gives it none,
// or one that ends at once.
func (t *ticket) expireUnbegun() {
	t.mu.Lock()
	begun := t.begun
	t.mu.Unlock()
	if !begun {
		t.served()
	}
}

// served takes a stream whose handler is through off all counts.
func (t *ticket) served() {
	t.markBegun()
	t.arrive()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.left {
		t.left = true
		t.connection.countOpen(-1)
	}
}

// serveStream stands before the handler of each stream.
func (a *admission) serveStream(
	srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	t := ticketOf(stream.Context())
	defer t.served()
	switch {
	case t.refused != nil:
		return t.refused
	case srv == nil:
		return unknownMethod(srv, stream) // before what counts methods, which would count any name
	}
	return handler(srv, &awaited{stream, t})
}

// unknownMethod ends a stream of a method that there is not. gRPC would do so too, and not report it.
func unknownMethod(any, grpc.ServerStream) error {
	return status.Error(codes.Unimplemented, "there is no such method")
}

// awaited is a stream whose request is waited for.
type awaited struct {
	grpc.ServerStream
	ticket *ticket
}

// RecvMsg receives the request, and whatever follows it. A request that is here is half of a stream no more, so this is
// where it waits to be admitted.
func (s *awaited) RecvMsg(message any) error {
	err := s.ServerStream.RecvMsg(message)
	s.ticket.arrive()
	if err != nil {
		return err
	}
	return s.ticket.awaitAdmission()
}

// serveUnary stands before the handler of each call that is no stream. Its request is here.
func (a *admission) serveUnary(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	t := ticketOf(ctx)
	defer t.served()
	if t.refused != nil {
		return nil, t.refused
	}
	if err := t.awaitAdmission(); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

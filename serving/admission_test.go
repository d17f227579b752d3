package serving

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// rawClient sends HTTP/2 frame by frame. It reads everything, and opens no window.
type rawClient struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	block  bytes.Buffer
	fields *hpack.Encoder
	next   uint32

	mu     sync.Mutex
	writes sync.Mutex
	ends   map[uint32]string // of streams: RST_STREAM's code, or the status of the trailers
	closed error
}

func (l *listening) raw() *rawClient {
	l.t.Helper()
	conn, err := l.listener.Dial()
	if err != nil {
		l.t.Fatal(err)
	}
	r := &rawClient{t: l.t, conn: conn, framer: http2.NewFramer(conn, conn), next: 1, ends: map[uint32]string{}}
	r.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	r.fields = hpack.NewEncoder(&r.block)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		l.t.Fatal(err)
	}
	if err := r.framer.WriteSettings(); err != nil {
		l.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(r.read)
	l.t.Cleanup(func() {
		conn.Close()
		wg.Wait()
	})
	return r
}

func (r *rawClient) read() {
	for {
		f, err := r.framer.ReadFrame()
		r.mu.Lock()
		if err != nil {
			r.closed = err
			r.mu.Unlock()
			return
		}
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			if r.ends[f.StreamID] == "" {
				r.ends[f.StreamID] = f.ErrCode.String()
			}
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				if field.Name == "grpc-status" {
					r.ends[f.StreamID] = field.Value
				}
			}
		}
		r.mu.Unlock()
		r.writes.Lock()
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = r.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = r.framer.WritePing(true, f.Data)
			}
		}
		r.writes.Unlock()
	}
}

// open sends the header of a stream, with further fields.
func (r *rawClient) open(method string, extra ...hpack.HeaderField) (id uint32) {
	r.t.Helper()
	r.writes.Lock()
	defer r.writes.Unlock()
	id, r.next = r.next, r.next+2
	r.block.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, extra...) {
		_ = r.fields.WriteField(f)
	}
	block := r.block.Bytes()
	part := block[:min(len(block), 16000)]
	err := r.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID:      id,
		BlockFragment: part,
		EndHeaders:    len(part) == len(block),
	})
	for block = block[len(part):]; err == nil && len(block) > 0; block = block[len(part):] {
		part = block[:min(len(block), 16000)]
		err = r.framer.WriteContinuation(id, len(part) == len(block), part)
	}
	if err != nil {
		r.t.Error(err)
	}
	return id
}

// ask sends a request on an open stream.
func (r *rawClient) ask(id uint32, name string) {
	r.t.Helper()
	b, err := proto.Marshal(wrapperspb.String(name))
	if err != nil {
		r.t.Fatal(err)
	}
	r.writes.Lock()
	defer r.writes.Unlock()
	if err := r.framer.WriteData(id, true, append([]byte{0, 0, 0, byte(len(b) >> 8), byte(len(b))}, b...)); err != nil {
		r.t.Error(err)
	}
}

// read64K opens the windows for so much more.
func (r *rawClient) read64K(id uint32) {
	r.writes.Lock()
	defer r.writes.Unlock()
	for _, id := range []uint32{0, id} {
		_ = r.framer.WriteWindowUpdate(id, 1<<16)
	}
}

// gone reports whether the server has closed the connection.
func (r *rawClient) gone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed != nil
}

func (r *rawClient) close() { r.conn.Close() }

// ended returns how many streams ended how.
func (r *rawClient) ended() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	how := map[string]int{}
	for _, end := range r.ends {
		how[end]++
	}
	return how
}

// A stream without a request ends after a while, of whatever method; it is counted until then, and not
// after. Others go on.
func TestHalfOpenStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, nil)
		r := l.raw()
		for _, method := range []string{
			watchMethod, otherMethod, "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check",
		} {
			r.open(method)
		}
		asks := r.open(watchMethod)
		r.ask(asks, "web")
		synctest.Wait()
		if open, half := l.admission.streams.Load(), l.admission.halfOpen.Load(); open != 5 || half != 4 {
			t.Errorf("%d streams, %d half open; want 5 and 4", open, half)
		}
		elapse(29 * time.Second)
		if how := r.ended(); len(how) > 0 {
			t.Errorf("streams ended too early: %v", how)
		}
		elapse(2 * time.Second)
		if how := r.ended(); how["4"] != 4 { // DEADLINE_EXCEEDED
			t.Errorf("streams ended so: %v", how)
		}
		if open, half := l.admission.streams.Load(), l.admission.halfOpen.Load(); open != 1 || half != 0 {
			t.Errorf("%d streams, %d half open; want 1 and 0", open, half)
		}
		if n := l.streams.len(); n != 1 {
			t.Errorf("%d streams that have asked are open", n)
		}
	})
}

// fillHalfOpen opens as many streams without a request as there may be in all.
func (l *listening) fillHalfOpen() *rawClient {
	l.t.Helper()
	r := l.raw()
	for range maxHalfOpen {
		r.open(watchMethod)
	}
	synctest.Wait()
	if half := l.admission.halfOpen.Load(); half != maxHalfOpen {
		l.t.Fatalf("%d streams without a request, want %d", half, maxHalfOpen)
	}
	return r
}

// There are no more streams without a request than there may be in all, and then a connection has only
// a few. One that sends its requests does not notice.
func TestHalfOpenStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const more = 1000
		l := listen(t, 3, func(c *Config) { c.Admission.ConnectionBurst = 10_000 })
		r := l.fillHalfOpen()
		for range more {
			r.open(watchMethod)
		}
		for range 10 {
			other := l.raw()
			for range more {
				other.open(watchMethod)
			}
			synctest.Wait()
			if how := other.ended(); how["8"] != more-fewHalfOpen {
				t.Errorf("streams of another connection ended so: %v, want %d of RESOURCE_EXHAUSTED", how,
					more-fewHalfOpen)
			}
		}
		if how := r.ended(); how["8"] != more {
			t.Errorf("streams ended so: %v, want %d of RESOURCE_EXHAUSTED", how, more)
		}
		if half := l.admission.halfOpen.Load(); half != maxHalfOpen+10*fewHalfOpen {
			t.Errorf("%d streams without a request, want %d and %d on each other connection", half, maxHalfOpen,
				fewHalfOpen)
		}
		if err := once(t.Context(), l.client(), "web"); err != nil {
			t.Errorf("another client: %v", err)
		}
	})
}

// A client that comes back with thousands of requests at once is not refused for requests that are here
// and not received yet, however many other streams are half open.
func TestBurstsAreNotHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst = 3000
		l := listen(t, 3, func(c *Config) { c.Admission.ConnectionBurst, c.Admission.Burst = burst, 2*burst })
		l.fillHalfOpen()
		r := l.raw()
		for range burst {
			r.ask(r.open(watchMethod), "web")
		}
		synctest.Wait()
		if how := r.ended(); len(how) > 0 {
			t.Errorf("streams ended so: %v", how)
		}
		if n := l.streams.len(); n != burst {
			t.Errorf("%d streams are open, want %d", n, burst)
		}
	})
}

// The handlers of a connection's streams are waited for, and not for long.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &connection{starting: make(chan struct{}, maxStarting)}
		for i := range maxStarting {
			if !c.awaitStart() {
				t.Fatalf("stream %d waits for others", i)
			}
		}
		begun := time.Now()
		if c.awaitStart() {
			t.Error("a stream does not wait for others")
		}
		if waited := time.Since(begun); waited != startPatience {
			t.Errorf("a stream has waited %s for others", waited)
		}
		time.AfterFunc(time.Millisecond, c.started)
		if !c.awaitStart() {
			t.Error("a stream waits for one that has begun")
		}
	})
}

// A stream of a method that is not, or cannot be, ends at once, and nothing is kept of it, not even
// until a deadline that its client has chosen. Nor does it keep others waiting.
func TestMalformedMethods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, nil)
		r := l.raw()
		for range 2 * maxStarting {
			for _, method := range []string{
				"x", "/x", "x/y", "/", "/x/y", "/toy.Toy/Put",
			} {
				r.open(method)
				r.open(method, hpack.HeaderField{Name: "grpc-timeout", Value: "99999999H"})
			}
		}
		synctest.Wait()
		if how := r.ended(); how["12"] != 2*maxStarting*12 { // UNIMPLEMENTED
			t.Errorf("streams ended so: %v", how)
		}
		if open, half := l.admission.streams.Load(), l.admission.halfOpen.Load(); open != 0 || half != 0 {
			t.Errorf("%d streams, %d half open", open, half)
		}
	})
}

// A stream whose deadline has passed when it arrives has no handler. Nothing is kept of it, and no other waits for it.
func TestExpiredStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, nil)
		r := l.raw()
		for range 2 * maxStarting {
			r.open(watchMethod, hpack.HeaderField{Name: "grpc-timeout", Value: "0n"})
			synctest.Wait()
		}
		if how := r.ended(); how["4"] != 2*maxStarting { // DEADLINE_EXCEEDED
			t.Errorf("streams ended so: %v", how)
		}
		if open, half := l.admission.streams.Load(), l.admission.halfOpen.Load(); open != 0 || half != 0 {
			t.Errorf("%d streams, %d half open", open, half)
		}
	})
}

// A header of many fields, or of many bytes, reaches no handler.
func TestHeaderFloods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, nil)
		tiny := make([]hpack.HeaderField, 1000)
		for i := range tiny {
			tiny[i] = hpack.HeaderField{Name: "a", Value: "b"}
		}
		for what, c := range map[string]struct {
			extra []hpack.HeaderField
			end   string
		}{
			"fields": {tiny[:maxHeaderFields], "8"}, // RESOURCE_EXHAUSTED
			"size":   {tiny, "FRAME_SIZE_ERROR"},    // 1 kB on the wire, 34 kB as HTTP/2 counts it
			"bytes": {
				[]hpack.HeaderField{{Name: "long", Value: strings.Repeat("x", maxHeaderBytes)}},
				"FRAME_SIZE_ERROR",
			},
		} {
			r := l.raw()
			r.open(watchMethod, c.extra...)
			synctest.Wait()
			if how := r.ended(); how[c.end] != 1 {
				t.Errorf("%s: streams ended so: %v", what, how)
			}
		}
		if open := l.admission.streams.Load(); open != 0 {
			t.Errorf("%d streams are open", open)
		}
	})
}

// Nothing of a header is kept with the stream.
func TestHeadersAreNotKept(t *testing.T) {
	a := newAdmission(logr.Discard(), DefaultAdmission(), &metricList{})
	header := metadata.Pairs("a", "b", ":authority", "x")
	ctx := metadata.NewIncomingContext(a.TagConn(t.Context(), nil), header)
	ctx, err := a.tap(ctx, &tap.Info{FullMethodName: watchMethod, Header: header})
	if err != nil {
		t.Fatal(err)
	}
	if kept, _ := metadata.FromIncomingContext(ctx); len(kept) > 0 {
		t.Errorf("kept: %v", kept)
	}
	ticketOf(ctx).served()
}

// A stream that is refused leaves no timer behind, whatever deadline its client has chosen.
func TestRefusedStreamsWithDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, func(c *Config) {
			c.Admission.ConnectionRate, c.Admission.ConnectionBurst = math.SmallestNonzeroFloat64, 1
		})
		conn := l.client()
		if err := once(t.Context(), conn, "web"); err != nil {
			t.Fatal(err)
		}
		for _, hours := range []time.Duration{0, 1e6} {
			ctx := t.Context()
			if hours > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, hours*time.Hour)
				defer cancel()
			}
			if err := once(ctx, conn, "web"); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a second stream at once, with %d hours: %v", hours, err)
			}
			if _, err := healthpb.NewHealthClient(conn).Check(ctx,
				&healthpb.HealthCheckRequest{}); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a call at once, with %d hours: %v", hours, err)
			}
		}
		synctest.Wait()
		if open, half := l.admission.streams.Load(), l.admission.halfOpen.Load(); open != 0 || half != 0 {
			t.Errorf("%d streams, %d half open", open, half)
		}
	})

	a := newAdmission(logr.Discard(), AdmissionConfig{Request: time.Minute}, &metricList{})
	ctx := a.TagConn(t.Context(), nil)
	if _, err := a.tap(ctx, &tap.Info{FullMethodName: watchMethod}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("before there is a goroutine: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	if ctx, err := a.tap(ctx, &tap.Info{FullMethodName: watchMethod}); err != nil ||
		status.Code(ticketOf(ctx).refused) != codes.ResourceExhausted {
		t.Errorf("with a deadline, which gRPC would not forget: %v", err)
	} else {
		ticketOf(ctx).served()
	}
}

// A call that is refused although it has a deadline does not wait for its request where many do.
func TestRefusedCallsDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 1000
		l := listen(t, 3, func(c *Config) { c.Admission.ConnectionBurst = 10_000 })
		l.fillHalfOpen()
		r := l.raw()
		for range calls {
			r.open("/grpc.health.v1.Health/Check", hpack.HeaderField{Name: "grpc-timeout", Value: "1H"})
		}
		synctest.Wait()
		if half := l.admission.halfOpen.Load(); half > maxHalfOpen+2*fewHalfOpen {
			t.Errorf("%d streams without a request", half)
		}
	})
}

// One client that asks all the time costs others none of their questions.
func TestOneClientFloods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, nil)
		flooding, honest := l.client(), l.client()
		var refused atomic.Int64
		var floods sync.WaitGroup // each waits to be admitted, and a moment for its Service
		for range 40 {
			for range 100 {
				floods.Go(func() {
					if once(t.Context(), flooding, "nothing") == nil {
						t.Error("there is no such Service")
					}
				})
				floods.Go(func() {
					if err := once(t.Context(), flooding, "web"); status.Code(err) == codes.ResourceExhausted {
						refused.Add(1)
					}
				})
			}
			if err := once(t.Context(), honest, "web"); err != nil {
				t.Fatalf("another client: %v", err)
			}
			elapse(20 * time.Millisecond)
		}
		floods.Wait()
		if n := refused.Load(); n < 2000 {
			t.Errorf("of 4,000 questions in 0.8 seconds, %d were refused", n)
		}
	})
}

// Of new streams that are too many now as many wait as a client is patient for; the others are refused, whatever
// connections they come on. Those that were let in are answered.
func TestAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, func(c *Config) { c.Admission.Rate, c.Admission.Burst, c.Admission.Answers = 10, 20, 1 })
		var wg sync.WaitGroup
		var answered, refused atomic.Int64
		for range 10 {
			conn := l.client()
			for range 10 {
				wg.Go(func() {
					switch err := once(t.Context(), conn, "web"); status.Code(err) {
					case codes.OK:
						answered.Add(1)
					case codes.ResourceExhausted:
						refused.Add(1)
					default:
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		if answered.Load() != 40 || refused.Load() != 60 {
			t.Errorf("%d were answered and %d refused, want 40 and 60", answered.Load(), refused.Load())
		}
	})
}

// The streams of a connection that are too fast wait in the order in which they came, for at most as long as a
// client is patient. One that its client ends while it waits is off all counts at once, and one that waits has a
// request, so that it does not count as half open.
func TestNewStreamsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, func(c *Config) { c.Admission.ConnectionRate, c.Admission.ConnectionBurst = 10, 5 })
		conn, began := l.client(), time.Now()
		var answered []time.Duration
		var wg sync.WaitGroup
		for range 25 {
			wg.Go(func() {
				if err := once(t.Context(), conn, "web"); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			if n := len(answered); n < 5 && l.admission.halfOpen.Load() != 0 {
				t.Errorf("%d streams are half open", l.admission.halfOpen.Load())
			}
			answered = append(answered, time.Since(began))
		}
		if n := l.admission.streams.Load(); n != 20 {
			t.Errorf("%d streams wait, want 20", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		elapse(100 * time.Millisecond)
		go func() { ended <- once(ctx, conn, "web") }()
		synctest.Wait()
		if err := once(t.Context(), conn, "web"); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a stream that would wait for too long: %v", err)
		}
		cancel()
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("a stream that its client ends: %v", err)
		}
		wg.Wait()
		if took := time.Since(began); took < 1900*time.Millisecond || took > 2100*time.Millisecond {
			t.Errorf("the last of 25 streams is answered after %s", took)
		}
		synctest.Wait()
		if n := l.admission.streams.Load(); n != 0 {
			t.Errorf("%d streams are still counted", n)
		}
	})
}

// A proxy whose connection has broken opens all its streams again, and tries those that are refused again after 0.1,
// 0.2, 0.4 s and so on. They all are answered as fast as the rate allows.
func TestStreamsThatComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, ratePerSecond, burst = 1000, 100, 200
		l := listen(t, 3, func(c *Config) {
			c.Admission.ConnectionRate, c.Admission.ConnectionBurst = ratePerSecond, burst
		})
		conn, began := l.client(), time.Now()
		var refused atomic.Int64
		var wg sync.WaitGroup
		for range streams {
			wg.Go(func() {
				for pause := 100 * time.Millisecond; ; pause *= 2 {
					err := once(t.Context(), conn, "web")
					if err == nil {
						return
					}
					refused.Add(1)
					time.Sleep(pause) //nolint:forbidigo // virtual time
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		t.Logf("%d streams are answered within %s, %d times one is refused", streams, took, refused.Load())
		if least := (streams - burst) / ratePerSecond * time.Second; took > 2*least {
			t.Errorf("the last stream is answered after %s; the rate allows %s", took, least)
		}
	})
}

// The bounds of streams in all and on one connection.
func TestStreamsAreBounded(t *testing.T) {
	for _, c := range []struct {
		name               string
		connection, in     int
		first, then, other int // how many streams get in: two connections
	}{
		{"connection", 5, 100, 5, 0, 5},
		{"all", 100, 8, 8, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := listen(t, 3, func(config *Config) {
					config.Admission.ConnectionStreams, config.Admission.Streams = c.connection, c.in
				})
				open := func(conn *grpc.ClientConn, n int) (in int) {
					for range n {
						stream, err := ask(t.Context(), conn, "web")
						if err == nil {
							_, err = stream.recv()
						}
						switch status.Code(err) {
						case codes.OK:
							in++
						case codes.ResourceExhausted:
						default:
							t.Error(err)
						}
					}
					return in
				}
				one, other := l.client(), l.client()
				if in := open(one, 10); in != c.first {
					t.Errorf("%d streams got in", in)
				}
				if in := open(other, 5); in != c.other {
					t.Errorf("%d streams of another connection got in", in)
				}
				one.Close()
				synctest.Wait()
				if in := open(other, 5); in == 0 && c.name == "all" {
					t.Error("what was closed is still counted")
				}
			})
		})
	}
}

// A stream that is opened late on a connection ends before gRPC closes the connection, and not before
// it has asked the client to leave.
func TestConnectionsEnd(t *testing.T) {
	const age = 30 * time.Minute
	c := &connection{opened: time.Now()}
	for range 1000 {
		if at := c.lastEnd(age).Sub(c.opened); at < age*11/10 || at >= age*9/10+ConnectionGrace(age)-20*time.Second {
			t.Fatalf("streams end %s after the connection was opened", at)
		}
	}
}

// What follows from a limit of memory.
func TestBoundsOfMemory(t *testing.T) {
	for limit, want := range map[int64]struct {
		streams, connections int
		bytes                int64
	}{
		math.MaxInt64: {100_000, 10_000, 48 << 20},
		460 << 20:     {14720, 1840, 460 << 17},
		1 << 20:       {1000, 500, 16 << 20},
	} {
		if streams, connections, bytes := streamsFor(limit), connectionsFor(limit),
			bytesFor(limit); streams != want.streams || connections != want.connections || bytes != want.bytes {
			t.Errorf("%d bytes: %d streams, %d connections, %d bytes in flight; want %v", limit, streams,
				connections, bytes, want)
		}
	}
}

// There are no more connections than may be, with HTTP/2 or without it. What is more is closed at
// once, and one that is closed makes room.
func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 5
		l := listen(t, 3, func(c *Config) { c.Admission.Connections = bound })
		gone := func(conn net.Conn) bool {
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			_, err := io.Copy(io.Discard, conn)
			return err == nil
		}
		first := l.raw()
		var silent []net.Conn
		for i := range bound {
			conn, err := l.listener.Dial()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			synctest.Wait()
			if closed := gone(conn); closed != (i == bound-1) {
				t.Errorf("silent connection %d beside another one: closed %t", i, closed)
			}
			silent = append(silent, conn)
		}
		if err := once(t.Context(), l.client(), "web"); status.Code(err) != codes.Unavailable {
			t.Errorf("a client beyond the bound: %v", err)
		}
		if n := l.admission.connections.Load(); n != bound {
			t.Errorf("%d connections are open", n)
		}
		first.close()
		silent[0].Close()
		synctest.Wait()
		if n := l.admission.connections.Load(); n != bound-2 {
			t.Errorf("%d connections are open when one that was silent and one that was not are closed", n)
		}
		if err := once(t.Context(), l.client(), "web"); err != nil {
			t.Errorf("a client within the bound: %v", err)
		}
		l.closeAll()
		synctest.Wait()
		if n := l.admission.connections.Load(); n != 0 {
			t.Errorf("%d connections are open when the server has ended", n)
		}
	})
}

// pipes is a listener to which anybody connects all the time, until it is closed.
type pipes struct {
	net.Listener
	left int
}

func (p *pipes) Accept() (net.Conn, error) {
	if p.left--; p.left < 0 {
		return nil, net.ErrClosed
	}
	_, server := net.Pipe()
	return server, nil
}

// Connections that are refused are counted, and logged once a minute.
func TestRefusedConnectionsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := DefaultConfig()
		config.Admission.Connections = 1
		var logged []string
		server := NewServer(funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{}), config)
		for _, after := range []time.Duration{0, 59 * time.Second, 2 * time.Second} {
			elapse(after)
			l := server.Listen(&pipes{left: 100})
			for {
				if _, err := l.Accept(); err != nil {
					break
				}
			}
		}
		if len(logged) != 2 || !strings.Contains(logged[0], "-max-connections") {
			t.Errorf("logged: %q", logged)
		}
		if n := testutil.ToFloat64(server.admission.metrics.connectionRefused); n != 299 {
			t.Errorf("%.0f connections are counted as refused", n)
		}
	})
}

// When the server drains, streams end at random points of the window, those that are opened meanwhile
// too, and none after it.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, window = 1000, 500 * time.Millisecond
		server := newToy(3, DefaultConfig())
		var wg sync.WaitGroup
		open := func() {
			wg.Go(func() {
				if err := server.watch("web", openSink{t.Context()}); err != nil {
					t.Error(err)
				}
			})
		}
		for range n {
			open()
		}
		synctest.Wait()
		drained := server.Drain(window)
		for part := range 5 {
			elapse(window / 5)
			if left, want := server.streams.len(), n-(part+1)*n/5; left < want-n/10 || left > want+n/10 {
				t.Errorf("%d streams are left after %d of 5 parts of the window, want about %d", left, part+1, want)
			}
			open()
		}
		elapse(window)
		select {
		case <-drained:
		default:
			t.Error("the end of the drain is not reported")
		}
		if left := server.streams.len(); left != 0 {
			t.Errorf("%d streams are left", left)
		}
		wg.Wait()
		begun := time.Now()
		open()
		wg.Wait()
		if took := time.Since(begun); took > 0 {
			t.Errorf("a stream that is opened after the drain ends after %s", took)
		}
	})
}

// Few streams do not keep a replica for its whole window.
func TestDrainOfFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, nil)
		stream, err := ask(t.Context(), l.client(), "web")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.recv(); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		<-l.Drain(time.Hour)
		if took := time.Since(begun); took > time.Millisecond {
			t.Errorf("a stream was drained in %s", took)
		}
	})
}

// Each server of a process may drain it: all of them learn of the end, and the first one decides how long it takes.
func TestDrainTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, window = 200, 100 * time.Millisecond
		server := newToy(3, DefaultConfig())
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if err := server.watch("web", openSink{t.Context()}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()

		begun := time.Now()
		first := server.Drain(window)
		second := server.Drain(time.Hour)
		synctest.Wait() // streams have noticed
		third := server.Drain(time.Hour)
		wg.Wait()
		if took := time.Since(begun); took > window {
			t.Errorf("streams were drained in %s, want %s at most", took, window)
		}

		for i, drained := range []<-chan struct{}{first, second, third, server.Drain(time.Hour)} {
			select {
			case <-drained:
			default:
				t.Errorf("the end of the drain is not reported to caller %d", i)
			}
		}
	})
}

// All gRPC servers of a process have the same bounds, and one drain ends the streams of all.
func TestServersOfOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := listen(t, 3, func(c *Config) { c.Admission.Streams, c.Admission.Connections = 2, 3 })
		other := one.listen(t)
		ctx := t.Context()
		first, err := ask(ctx, one.client(), "web")
		if err == nil {
			_, err = first.recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		conn := other.client()
		second, err := ask(ctx, conn, "web")
		if err == nil {
			_, err = second.recv()
		}
		if err != nil {
			t.Fatal(err)
		}

		if err := once(ctx, conn, "web"); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a stream more than there may be in all: %v", err)
		}
		if err := once(ctx, other.client(), "web"); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a stream of another connection: %v", err)
		}
		if err := once(ctx, one.client(), "web"); status.Code(err) != codes.Unavailable {
			t.Errorf("a connection more than there may be in all: %v", err)
		}

		<-one.Drain(time.Hour)
		for _, stream := range []watched{first, second} {
			if _, err := stream.recv(); !errors.Is(err, io.EOF) {
				t.Errorf("after the drain: %v", err)
			}
		}
	})
}

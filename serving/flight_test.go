package serving

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// stalledPorts opens n streams, each for another port of web, on one connection that never opens a window.
func (l *listening) stalledPorts(n int) *rawClient {
	r := l.raw()
	for i := range n {
		r.ask(r.open(watchMethod), fmt.Sprintf("web:%d", 1000+i))
	}
	return r
}

// firstAnswer asks on a new connection, and returns how long it took until there were addresses.
func (l *listening) firstAnswer() (after time.Duration, err error) {
	begun := time.Now()
	stream, err := ask(l.t.Context(), l.client(), "web")
	for n := 0; err == nil && n == 0; {
		n, err = stream.recv()
	}
	return time.Since(begun), err
}

func (l *listening) inFlight() int64 { return l.admission.bytes.Load() }

// Many streams on a connection that does not read hold no more than its share: the others wait, on
// heartbeats, and nothing is made for them. Another client is served.
func TestBytesInFlightOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound, turns = 2 << 20, 2 + 1 // one for a large answer
		l := listen(t, 10_000, func(c *Config) { c.Admission.ConnectionBytes, c.Admission.Answers = bound, turns-1 })
		r := l.stalledPorts(30)
		synctest.Wait()
		answer := l.answerBytes()
		if held := l.inFlight(); held < bound || held > bound+turns*answer {
			t.Errorf("%d bytes are in flight; the bound is %d, and an answer has %d", held, bound, answer)
		}
		made := 0
		for _, s := range l.Streams() {
			if sent := s.Sent(); sent.Messages > 0 || !sent.Sending.IsZero() {
				made++
			}
		}
		if most := int(bound/answer) + 1 + turns; made > most {
			t.Errorf("%d answers were made, want no more than %d", made, most)
		}
		elapse(3 * time.Second)
		for _, s := range l.Streams() {
			if sent := s.Sent(); sent.Messages == 0 && sent.Sending.IsZero() {
				t.Errorf("%s has waited for 3 s and was sent nothing", s.About().Path)
			}
		}
		if err := once(t.Context(), l.client(), "web"); err != nil {
			t.Errorf("another client: %v", err)
		}
		r.close()
		synctest.Wait()
		if held := l.inFlight(); held != 0 {
			t.Errorf("%d bytes are in flight when the connection is gone", held)
		}
	})
}

// answerBytes returns the size of a first answer.
func (l *listening) answerBytes() int64 { return int64(len(l.answer().bytes)) }

// A stream that waited is answered as soon as its client reads.
func TestWaitingForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// And one turn for large answers.
		l := listen(t, 10_000, func(c *Config) { c.Admission.ConnectionBytes, c.Admission.Answers = 1, 1 })
		conn := l.client(grpc.WithInitialWindowSize(1 << 16))
		var streams []watched
		for i := range 4 {
			stream, err := ask(t.Context(), conn, fmt.Sprintf("web:%d", 1000+i))
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, stream)
		}
		elapse(10 * time.Second)
		waiting := 0
		for _, s := range l.Streams() {
			if s.Sent().Type != typeAnswer {
				waiting++
			}
		}
		if waiting < 2 {
			t.Errorf("%d streams wait for room", waiting)
		}
		var wg sync.WaitGroup
		for i, stream := range streams {
			wg.Go(func() {
				for {
					n, err := stream.recv()
					if err != nil {
						t.Error(err)
						return
					}
					if n > 0 {
						if n != 10_000 {
							t.Errorf("stream %d got %d addresses at first", i, n)
						}
						return
					}
				}
			})
		}
		begun := time.Now()
		wg.Wait()
		if waited := time.Since(begun); waited > 0 {
			t.Errorf("answers waited for %s although the client reads", waited)
		}
		synctest.Wait()
		if held := l.inFlight(); held != 0 {
			t.Errorf("%d bytes are in flight when all was read", held)
		}
	})
}

// What streams share counts once in all, and once on each connection.
func TestSharedBytesCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 10_000, nil)
		for range 5 {
			r := l.raw()
			r.ask(r.open(watchMethod), "web")
		}
		synctest.Wait()
		if held, answer := l.inFlight(), l.answerBytes(); held != answer {
			t.Errorf("%d bytes are in flight, want %d", held, answer)
		}
	})
}

// A connection on which nothing moves is closed after a while; one whose client reads, however slowly,
// is not.
func TestStalledConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 10_000, func(c *Config) { c.MaxStreamAge = 0 })
		stalls := l.raw()
		stalls.ask(stalls.open(watchMethod), "web")
		synctest.Wait()
		slow := l.raw()
		id := slow.open(watchMethod)
		slow.ask(id, "web")
		elapse(4*time.Minute + 50*time.Second)
		if stalls.gone() || slow.gone() {
			t.Error("closed too early")
		}
		slow.read64K(id)
		elapse(20 * time.Second)
		if !stalls.gone() {
			t.Error("a connection on which nothing has moved for more than 5 minutes is open")
		}
		for range 3 {
			slow.read64K(id)
			elapse(4*time.Minute + 50*time.Second)
			if slow.gone() {
				t.Fatal("a connection whose client reads 64 KiB in 5 minutes was closed")
			}
		}
		elapse(time.Minute)
		if !slow.gone() {
			t.Error("a client that reads no more keeps its connection")
		}
		if held, n := l.inFlight(), l.streams.len(); held != 0 || n != 0 {
			t.Errorf("%d bytes are in flight, %d streams open", held, n)
		}
	})
}

// A connection that was idle begins to stall with the message that begins to wait, not with the last one.
func TestIdleIsNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(logr.Discard(), DefaultAdmission(), &metricList{})
		c := &connection{admission: a}
		c.sending(time.Now())
		c.sent(time.Now())
		elapse(time.Minute)
		c.launch([]encoded{NewFrame(typeAnswer, make([]byte, maxUncounted+1), 1, 0)})
		if left := c.timeLeft(); left != a.config.Stall {
			t.Errorf("it may make no progress for %s, not %s", left, a.config.Stall)
		}
		c.end()
	})
}

// Whatever size a message has, nothing of it is in flight once gRPC has freed it.
func TestFlightsLand(t *testing.T) {
	a := newAdmission(logr.Discard(), DefaultAdmission(), &metricList{})
	c := &connection{admission: a}
	for _, size := range []int{
		0, 1, maxUncounted - 1, maxUncounted, maxUncounted + 1, flightBuffer, flightBuffer + 1, 3*flightBuffer - 1,
	} {
		messages := []encoded{NewFrame(typeAnswer, make([]byte, size), 1, 0)}
		c.launch(messages)
		if f, counted := messages[0].(*flight); counted {
			buffers := f.buffers()
			buffers.Free()
		}
		if len(c.flights) != 0 || c.bytes != 0 || a.bytes.Load() != 0 {
			t.Fatalf("of a message of %d bytes %d are in flight", size, c.bytes)
		}
	}
}

// Messages of the same parts share their bytes; what is small, and the tail, each message has of its own. The client
// has all of it, and nothing is in flight once it has read, or once a message was given up.
func TestComposedMessages(t *testing.T) {
	paths := func(all ...string) []byte {
		b, err := proto.Marshal(&fieldmaskpb.FieldMask{Paths: all})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var parts []*Frame
	var want []string
	for i, size := range []int{200_000, 2_000, maxUncounted} {
		path := strings.Repeat(string(rune('a'+i)), size-len(paths(""))-2)
		parts, want = append(parts, NewFrame(typeAnswer, paths(path), i+1, i)), append(want, path)
	}
	first := Compose(typeAnswer, parts[:2], paths("nonce 1"))
	second := Compose(typeAnswer, []*Frame{first, parts[2]}, paths("nonce 2"))
	want = append(want[:2], "nonce 1", want[2], "nonce 2")
	a := newAdmission(logr.Discard(), DefaultAdmission(), &metricList{})
	one, other := &connection{admission: a}, &connection{admission: a}
	shared := int64(parts[0].Len() + parts[1].Len())

	sent := []encoded{first, second}
	one.launch(sent)
	again := []encoded{second}
	other.launch(again)
	own := int64(second.Len()) - shared
	if own <= maxUncounted || one.bytes != 2*shared+own || other.bytes != shared+own || a.bytes.Load() != shared+own {
		t.Errorf("%d, %d and in all %d bytes are in flight; %d are shared, and %d are not",
			one.bytes, other.bytes, a.bytes.Load(), shared, own)
	}

	marshalled, err := codec{}.Marshal(sent[1])
	if err != nil {
		t.Fatal(err)
	}
	got := &fieldmaskpb.FieldMask{}
	if err := proto.Unmarshal(marshalled.Materialize(), got); err != nil || !slices.Equal(got.GetPaths(), want) {
		t.Errorf("the client gets %d paths: %v", len(got.GetPaths()), err)
	}
	if added, removed := second.Addresses(); added != 1+2+3 || removed != 0+1+2 {
		t.Errorf("it adds %d and removes %d", added, removed)
	}

	marshalled.Free()
	one.abandon(sent[:1])
	other.abandon(again)
	if one.bytes != 0 || other.bytes != 0 || a.bytes.Load() != 0 || len(one.flights)+len(other.flights) > 0 {
		t.Errorf("%d, %d and in all %d bytes are left in flight", one.bytes, other.bytes, a.bytes.Load())
	}
	if second.Len() != len(second.Bytes()) {
		t.Errorf("it has %d bytes, and not %d", len(second.Bytes()), second.Len())
	}
}

// A connection whose client has taken everything stays, however long nothing is sent.
func TestIdleConnectionsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 10_000, func(c *Config) { c.MaxStreamAge = 0 })
		stream, err := ask(t.Context(), l.client(), "web")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := stream.recv(); err != nil {
					return
				}
			}
		})
		elapse(time.Hour)
		if n := l.streams.len(); n != 1 {
			t.Error("an idle stream was ended")
		}
		cancel()
		l.closeAll()
		wg.Wait()
	})
}

// Where the room of all is taken by clients that do not read, they are closed after seconds and not
// minutes: others wait.
func TestStalledConnectionsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 10_000, func(c *Config) { c.Admission.Bytes = 3 << 20 })
		var hostile []*rawClient
		for i := range 10 {
			r := l.raw()
			r.ask(r.open(watchMethod), fmt.Sprintf("web:%d", 1000+i))
			hostile = append(hostile, r)
		}
		elapse(time.Second)
		if after, err := l.firstAnswer(); err != nil || after > pressureStall {
			t.Errorf("an honest client was answered after %s: %v", after, err)
		}
		closed := 0
		for _, r := range hostile {
			if r.gone() {
				closed++
			}
		}
		if closed == 0 {
			t.Error("no connection was closed")
		}
	})
}

// Where connections that do not read have filled the room of all, another client is answered at once: some of
// them give way. One that reads slowly stays, and so does one that has not stalled for long.
func TestStalledConnectionsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 8 << 20
		l := listen(t, 10_000, func(c *Config) { c.Admission.Bytes = bound })
		ask := func(port int) (r *rawClient, id uint32) {
			r = l.raw()
			id = r.open(watchMethod)
			r.ask(id, fmt.Sprintf("web:%d", 1000+port))
			synctest.Wait()
			return r, id
		}
		slow, id := ask(0)
		var stalled []*rawClient
		for l.inFlight() < bound {
			r, _ := ask(1 + len(stalled))
			stalled = append(stalled, r)
		}
		for range 10 {
			elapse(500 * time.Millisecond)
			slow.read64K(id)
		}
		fill, _ := ask(1 + len(stalled)) // what slow has taken
		if after, err := l.firstAnswer(); err != nil || after > 0 {
			t.Errorf("another client was answered after %s: %v", after, err)
		}
		gone := 0
		for _, r := range stalled {
			if r.gone() {
				gone++
			}
		}
		if gone == 0 || gone > len(stalled)/2 {
			t.Errorf("%d of %d connections that stall were closed", gone, len(stalled))
		}
		if slow.gone() || fill.gone() {
			t.Error("a connection whose client reads, or that is new, was closed")
		}
	})
}

// However much connections take that do not read, something is left for others, which do not wait.
func TestRoomIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound, connections, ports = 16 << 20, 16, 20
		l := listen(t, 2_500, func(c *Config) {
			c.Admission.Bytes, c.Admission.ConnectionBurst, c.Admission.Burst = bound, 10_000, 100_000
			c.Admission.Answers, c.Admission.Patience = 2, time.Hour
		})
		for i := range connections {
			r := l.raw()
			for port := range ports {
				r.ask(r.open(watchMethod),
					fmt.Sprintf("web:%d", 1000+i*ports+port))
			}
		}
		synctest.Wait()
		if held := l.inFlight(); held < bound/2 || held >= bound {
			t.Errorf("%d bytes of %d are in flight", held, bound)
		}
		if after, err := l.firstAnswer(); err != nil || after > 0 {
			t.Errorf("another client was answered after %s: %v", after, err)
		}
		elapse(2 * pressureStall)
		if n := l.streams.len(); n > connections*ports {
			t.Error("no connection was closed although nothing has moved, most of the room is taken, and answers wait")
		}
	})
}

// New questions are paid for by their size: one client that asks for port after port cannot go on for
// long, and others are served.
func TestNewQuestionsCostMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst = 400
		l := listen(t, 10_000, func(c *Config) { c.Admission.ConnectionBurst = burst })
		shares, asks := l.client(), l.client()
		stays, err := ask(t.Context(), l.client(), "web")
		if err == nil {
			_, err = stays.recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		atOnce := func(conn *grpc.ClientConn, name func(i int) string) (n int) {
			for i := range 50 {
				began := time.Now()
				err := once(t.Context(), conn, name(i))
				if err == nil && time.Since(began) == 0 {
					n++
				}
				synctest.Wait() // no stream is open any more
			}
			return n
		}
		if n := atOnce(shares, func(int) string { return "web" }); n != 50 {
			t.Errorf("%d of 50 lookups of the same Service were admitted", n)
		}
		n := atOnce(asks, func(i int) string { return fmt.Sprintf("web:%d", 1000+i) })
		if n == 0 || n > burst/50+5 {
			t.Errorf("%d new questions for 10,000 addresses were admitted at once; the burst is %d", n, burst)
		}
		if n := atOnce(shares, func(int) string { return "web" }); n != 50 {
			t.Errorf("%d of 50 lookups of another client were admitted meanwhile", n)
		}
	})
}

// A turn for a large answer is taken on the connection first.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := DefaultAdmission()
		config.Answers = 1
		a := newAdmission(logr.Discard(), config, &metricList{})
		refused := func() float64 { return testutil.ToFloat64(a.metrics.refused[refusedTurn]) }
		one, other := &connection{large: make(chan struct{}, 1)}, &connection{large: make(chan struct{}, 1)}
		waits := func() error { return nil }
		turn := func(c *connection, large bool) (func(), error) { return a.turn(t.Context(), c, large, waits) }
		first, err := turn(one, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := turn(one, true); err == nil || refused() != 1 {
			t.Errorf("a connection has two turns at once: %v", refused())
		}
		if done, err := turn(one, false); err != nil {
			t.Errorf("a small answer waits for large ones: %v", err)
		} else {
			done()
		}
		first()
		done, err := turn(other, true)
		if err != nil {
			t.Fatal(err)
		}
		done()
		if len(one.large)+len(other.large)+len(a.large)+len(a.turns) != 0 {
			t.Error("a turn is not given back")
		}
	})
}

// The first answers of one message have one turn: that for large ones is taken beside it where one of them is large,
// and each is paid for. All is given back at the end.
func TestTurnOfSeveralAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := DefaultConfig()
		config.Admission.Answers, config.Admission.ConnectionRate, config.Admission.ConnectionBurst = 1, 1, 100
		s := NewServer(logr.Discard(), config)
		ctx := s.admission.TagConn(t.Context(), nil)
		stream := s.Open(openSink{ctx}, "Watch", "web", Client{})
		defer stream.Close()
		turn := stream.Turn(time.Now())
		taken := func() int { return len(s.admission.turns) + len(s.admission.large) }
		for i, c := range []struct{ size, taken int }{
			{0, 1}, {addressesPaid, 1}, {largeAnswer, 3}, {largeAnswer, 3}, {1, 3},
		} {
			if has, err := turn.Take(c.size); !has || err != nil {
				t.Fatalf("answer %d has no turn: %v", i, err)
			}
			if n := taken() + len(stream.connection.large); n != c.taken {
				t.Errorf("%d turns are taken after answer %d, want %d", n, i, c.taken)
			}
		}
		const paid = 1 + 2*(largeAnswer/addressesPaid)
		if left := stream.connection.limiter.Tokens(); left != 100-paid {
			t.Errorf("%.0f streams may be opened at once, want %d", left, 100-paid)
		}
		turn.Release()
		if n := taken() + len(stream.connection.large); n != 0 {
			t.Errorf("%d turns are not given back", n)
		}
	})
}

// A stream that has waited for its turn, and for which there is no room any more when it comes, is sent its first
// heartbeat when that is due, and not that much later.
func TestHeartbeatAfterTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, func(c *Config) { c.Admission.Answers = 1 })
		l.admission.turns <- struct{}{} // another stream has it
		stream, err := ask(t.Context(), l.client(), "web")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		elapse(1900 * time.Millisecond)
		l.admission.bytes.Add(l.config.Admission.Bytes)
		<-l.admission.turns
		if n, err := stream.recv(); err != nil || n > 0 || time.Since(begun) > 2*time.Second {
			t.Errorf("after %s the client was sent %d addresses: %v", time.Since(begun), n, err)
		}
		l.admission.bytes.Add(-l.config.Admission.Bytes)
	})
}

// A stream that has waited for room for most of the time that a client does without a message, and then waits for its
// turn, is sent a heartbeat before.
func TestHeartbeatBeforeTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listen(t, 3, func(c *Config) { c.Admission.Answers = 1 })
		l.admission.turns <- struct{}{} // another stream has it
		l.admission.bytes.Add(l.config.Admission.Bytes)
		stream, err := ask(t.Context(), l.client(), "web")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		elapse(1900 * time.Millisecond)
		l.admission.freed(int(l.config.Admission.Bytes))
		if n, err := stream.recv(); err != nil || n > 0 || time.Since(begun) > 2*time.Second {
			t.Errorf("after %s the client was sent %d addresses: %v", time.Since(begun), n, err)
		}
		elapse(1900 * time.Millisecond)
		<-l.admission.turns
		if n, err := stream.recv(); err != nil || n != 3 {
			t.Errorf("after %s the client was sent %d addresses: %v", time.Since(begun), n, err)
		}
	})
}

// A connection knows what it is on.
func TestKeeper(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	if conn, info, err := (keeper{}).ServerHandshake(server); err != nil || conn != server ||
		info.(onConn).Conn != server {
		t.Errorf("%v %v %v", conn, info, err)
	}
}

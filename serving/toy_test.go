package serving

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// toy is a protocol with nothing to it, which the tests of the transport use: clients ask for web, or for web:80 and so
// on, and are sent one message of as many bytes as some addresses take. There is nothing else to ask for.
type toy struct {
	*Server
	addresses int
}

const typeAnswer MessageType = "answer"

func newToy(addresses int, config Config) *toy {
	s := &toy{NewServer(logr.Discard(), config), addresses}
	s.AddTypes(typeAnswer)
	return s
}

// addressBytes is what an address takes in a message.
const addressBytes = 42

const (
	watchMethod = "/toy.Toy/Watch"
	otherMethod = "/toy.Toy/Other"
)

var toyService = grpc.ServiceDesc{
	ServiceName: "toy.Toy", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{
		{StreamName: "Watch", ServerStreams: true, Handler: handleWatch},
		{StreamName: "Other", ServerStreams: true, Handler: handleWatch},
	},
}

func handleWatch(srv any, stream grpc.ServerStream) error {
	request := &wrapperspb.StringValue{}
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	return srv.(*toy).watch(request.GetValue(), stream)
}

var beatFrame = NewFrame(Beat, nil, 0, 0)

func (s *toy) watch(name string, sink Sink) error {
	stream := s.Open(sink, "Watch", name, Client{})
	defer stream.Close()
	stream.SetHeartbeat(Heartbeat{Frame: beatFrame, First: 2 * time.Second, Idle: 4 * time.Minute})
	isWeb := name == "web" || strings.HasPrefix(name, "web:")
	sent := false
	return stream.Run(func(now time.Time) error {
		grace := stream.About().Opened.Add(20 * time.Millisecond)
		switch {
		case sent:
			return nil
		case !isWeb && now.Before(grace):
			stream.WakeBy(now, grace)
			return nil
		case !isWeb:
			return status.Error(codes.NotFound, "there is only web")
		}

		frames, err := s.first(name, stream, now)
		if err != nil || frames == nil {
			return err
		}
		sent = true
		return stream.Deliver(frames)
	})
}

// first launches a first answer. One that is kept costs nothing.
func (s *toy) first(name string, stream *Stream, now time.Time) ([]*Frame, error) {
	turn := stream.Turn(now)
	defer turn.Release()
	size := s.addresses
	if s.cache.keeps(name) {
		size = 0
	}
	if taken, err := turn.Take(size); err != nil || !taken {
		return nil, err
	}

	frames := []*Frame{s.cache.Get(name, func() (*Frame, int) { return s.answer(), len(name) })}
	stream.Launch(frames)
	return frames, nil
}

// answer returns a first answer.
func (s *toy) answer() *Frame {
	b, err := proto.Marshal(wrapperspb.Bytes(bytes.Repeat([]byte{1}, s.addresses*addressBytes)))
	if err != nil {
		panic(err)
	}
	return NewFrame(typeAnswer, b, s.addresses, 0)
}

// listening is a toy behind gRPC, over connections in memory.
type listening struct {
	*toy
	t        *testing.T
	listener *bufconn.Listener
	server   *grpc.Server
}

// listen starts a server of n addresses. It ends with the test.
func listen(t *testing.T, n int, configure func(*Config)) *listening {
	t.Helper()
	config := DefaultConfig()
	if configure != nil {
		configure(&config)
	}
	return newToy(n, config).listen(t)
}

// listen starts a gRPC server of a toy.
func (s *toy) listen(t *testing.T) *listening {
	t.Helper()
	l := &listening{toy: s, t: t, listener: bufconn.Listen(1 << 16)}
	l.server = grpc.NewServer(append(l.Options(), grpc.WaitForHandlers(true))...)
	l.server.RegisterService(&toyService, l.toy)
	healthpb.RegisterHealthServer(l.server, health.NewServer())
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.server.Serve(l.Listen(l.listener)) })
	t.Cleanup(func() {
		l.server.Stop()
		wg.Wait()
	})
	return l
}

// closeAll ends every connection.
func (l *listening) closeAll() { l.server.Stop() }

// client returns a connection of an honest client.
func (l *listening) client(options ...grpc.DialOption) *grpc.ClientConn {
	l.t.Helper()
	conn, err := grpc.NewClient("passthrough:///fingerpost",
		append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return l.listener.Dial() }))...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	return conn
}

// watched is a client's end of a stream.
type watched struct{ grpc.ClientStream }

// ask opens a stream that asks for a name.
func ask(ctx context.Context, conn *grpc.ClientConn, name string) (watched, error) {
	stream, err := conn.NewStream(ctx, &toyService.Streams[0], watchMethod)
	if err == nil {
		err = stream.SendMsg(wrapperspb.String(name))
	}
	if err == nil {
		err = stream.CloseSend()
	}
	return watched{stream}, err
}

// recv returns how many addresses are in the next message.
func (w watched) recv() (addresses int, err error) {
	m := &wrapperspb.BytesValue{}
	err = w.RecvMsg(m)
	return len(m.GetValue()) / addressBytes, err
}

// once asks once, and returns how the first answer ended.
func once(ctx context.Context, conn *grpc.ClientConn, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := ask(ctx, conn, name)
	if err == nil {
		_, err = stream.recv()
	}
	return err
}

// openSink is a stream's end whose client reads.
type openSink struct{ ctx context.Context }

func (s openSink) Context() context.Context { return s.ctx }
func (s openSink) SendMsg(any) error        { return nil }

// elapse lets time pass until everything that it brings about has happened.
func elapse(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a bubble it takes no time
	synctest.Wait()
}

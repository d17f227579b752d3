package discovery

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/federation"
)

// open opens a stream for an authority and returns, once its first message is there, how to close it.
func open(tb testing.TB, s *Server, path, token string) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	sink := newCounter(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Get(&pb.GetDestination{Path: path, ContextToken: token}, sink) })
	sink.wait(1)
	return func() {
		cancel()
		wg.Wait()
	}
}

// unhurried returns a Server that refuses nobody.
func unhurried(store *federation.Store) *Server {
	config := Defaults()
	config.Admission = AdmissionConfig{Rate: 1e9, Burst: 1e9, Answers: 1000, Patience: time.Minute}
	return NewServer(logr.Discard(), store, config)
}

// onNodes returns a View of n Pods, each on a node of its own.
func onNodes(n int, localOnly bool) *federation.View {
	s := podsOf(n, "a")
	for i, e := range s.Endpoints {
		e.Node = fmt.Sprintf("node-%d", i)
	}
	v := viewOf(s)
	v.LocalOnly = localOnly
	return v
}

// A feed that another stream has brought further tells which Snapshot its head follows from.
func TestHeadsComeWithTheirSnapshot(t *testing.T) {
	store, claims := local(map[federation.Service]*federation.View{web: viewOf(sliceOf("a", 1, 1))})
	s := unhurried(store)
	watch := store.Watch(federation.Ref{Cluster: "local", Service: web})
	defer watch.Close()
	q := s.feeds.join(Question{Service: web, Port: 80})
	f := q.settle(federation.Locality{}, nil)
	defer q.leave(f)

	old, _ := watch.Load()
	old, selection := q.at(old)
	claims.Set(web, viewOf(sliceOf("a", 1, 2)))
	newer, _ := watch.Load()
	f.at(q.at(newer)) // a faster stream
	if head, of := f.at(old, selection); of != newer || head.set.Len() != 2 {
		t.Errorf("a head of %d addresses comes with version %d, want 2 and %d", head.set.Len(), of.Version, newer.Version)
	}
}

// firstWord is a sink that notes what the first message says, and ends the stream there.
type firstWord struct {
	*counter
	end  context.CancelFunc
	said *[2]atomic.Int64 // addresses, and "no endpoints"
}

func (k *firstWord) SendMsg(message any) error {
	switch message.(*frame).what { //nolint:exhaustive // what else may come first is no answer
	case toAdd:
		k.said[0].Add(1)
	case isEmpty:
		k.said[1].Add(1)
	}
	k.end()
	return nil
}

// Law: unknown is not empty. Each version of a Service either has endpoints or consists of a cluster that was never heard: whatever a
// stream is answered, it is never that there are none. Versions follow each other as fast as they can.
func TestUnknownIsNeverEmpty(t *testing.T) {
	const streams = 3000
	own := federation.Service{Namespace: "ns", Name: "own"}
	store, claims := local(map[federation.Service]*federation.View{own: onNodes(50, false)})
	store.Expect("mute", federation.Expectation{Since: time.Now()})
	of := func(member federation.Ref) *federation.View {
		return &federation.View{
			Ports:       []federation.ServicePort{{Number: 80, Name: "http"}},
			Composition: &federation.Composition{Union: true, Members: []federation.Term{{Ref: member}}},
		}
	}
	views := []*federation.View{of(federation.Ref{Cluster: "local", Service: own}), of(federation.Ref{Cluster: "mute", Service: own})}
	claims.Set(web, views[0])
	s := unhurried(store)
	ctx, cancel := context.WithCancel(t.Context())
	var turmoil, asking sync.WaitGroup
	turmoil.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			claims.Set(web, views[i%2])
			runtime.Gosched()
		}
	})
	var left atomic.Int64
	left.Store(streams)
	said := &[2]atomic.Int64{}
	for range 16 {
		asking.Go(func() {
			for left.Add(-1) >= 0 {
				streamCtx, end := context.WithCancel(ctx)
				_ = s.Get(&pb.GetDestination{Path: path}, &firstWord{newCounter(streamCtx), end, said})
				end()
			}
		})
	}
	asking.Wait()
	cancel()
	turmoil.Wait()
	if add, empty := said[0].Load(), said[1].Load(); add < streams || empty > 0 {
		t.Errorf("%d of %d streams began with addresses, %d with no endpoints", add, streams, empty)
	}
}

// A stream that loaded an older Snapshot than the feed is at is answered by the newer one in everything: whether there is an answer yet,
// and at which place the client is.
func TestAnswersAreOfOneVersion(t *testing.T) {
	for _, c := range []struct {
		name  string
		newer func(s *federation.Snapshot)
		want  int // addresses
	}{
		{"unknown", func(s *federation.Snapshot) {
			s.View = &federation.View{Ports: s.View.Ports, Composition: &federation.Composition{Union: true}}
			s.Members = []*federation.Member{{Origin: &federation.Origin{}, Linked: true, Since: time.Now()}}
		}, 0},
		{"local only", func(s *federation.Snapshot) {
			s.View = onNodes(2, true)
			m := *s.Members[0]
			m.View, s.Members[0] = s.View, &m
		}, 1},
		{"half-made", func(s *federation.Snapshot) { s.View = &federation.View{Malformed: "it is"} }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, _ := local(map[federation.Service]*federation.View{web: onNodes(2, false)})
				s := unhurried(store)
				watch := store.Watch(federation.Ref{Cluster: "local", Service: web})
				defer watch.Close()
				old, _ := watch.Load()
				newer := *old
				newer.Version, newer.Members = old.Version+1, slices.Clone(old.Members)
				c.newer(&newer)
				q := s.feeds.join(Question{Service: web, Port: 80})
				f := q.settle(federation.Locality{}, nil)
				defer q.leave(f)
				f.at(&newer, federation.Select(&newer, federation.Query{Port: 80, IPv6: true}, nil))

				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				sink := newSink(ctx)
				close(sink.gate)
				go func() { _ = s.Get(&pb.GetDestination{Path: path, ContextToken: `{"nodeName":"node-0"}`}, sink) }()
				synctest.Wait()
				for _, f := range sink.sent() {
					if f.what == isEmpty {
						t.Error("the client is told that there are no endpoints")
					}
				}
				if n := len(sink.holds()); n != c.want {
					t.Errorf("the client holds %d addresses, want %d", n, c.want)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

// A feed goes with its last stream, whoever else asks the same question from elsewhere; and with the last stream goes everything.
func TestNothingStaysWithoutStreams(t *testing.T) {
	store, _ := local(map[federation.Service]*federation.View{web: onNodes(3, true)})
	s := unhurried(store)
	stays := open(t, s, path, `{"nodeName":"node-0"}`)
	q := s.feeds.join(Question{Service: web, Port: 80})
	for i := range 100 {
		open(t, s, path, fmt.Sprintf(`{"nodeName":"node-%d"}`, i))()
	}
	if n := len(q.byPlace); n != 1 {
		t.Errorf("%d feeds for 1 stream", n)
	}
	q.leave(nil)
	for i := range 100 {
		open(t, s, fmt.Sprintf("nobody-%d.%s", i, path), "")()
		err := s.Get(&pb.GetDestination{Path: fmt.Sprintf("web-%d.ns.svc.cluster.local", i)}, newCounter(t.Context()))
		if status.Code(err) != codes.NotFound {
			t.Fatal(err)
		}
	}
	if n := s.feeds.len(); n != 1 {
		t.Errorf("%d questions for 1 stream", n)
	}
	stays()
	if questions, frames := s.feeds.len(), s.frames.size(); questions != 0 || frames != 0 {
		t.Errorf("%d questions and %d bytes of frames stay without a stream", questions, frames)
	}
}

// checkFrames fails if a step is counted that nobody can find, or if the count is wrong.
func checkFrames(t *testing.T, c *frameCache) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var bytes int64
	for _, key := range c.kept.Keys() {
		k, _ := c.kept.Peek(key)
		bytes += k.bytes
		if s, is := key.(*step); is && s.head.steps[s.way] != s {
			t.Errorf("%d bytes are kept of a step that its head does not have", k.bytes)
		}
	}
	if bytes != c.bytes {
		t.Errorf("%d bytes are kept, and %d counted", bytes, c.bytes)
	}
}

// Frames of a head that is dropped while they are encoded, or after they fell out of the cache, are not kept.
func TestDroppedHeadsKeepNoFrames(t *testing.T) {
	c := newFrameCache(1 << 20)
	config := Defaults()
	newHead := func() *head {
		return &head{set: &federation.Set{}, encoder: encoder{config: &config}, cache: c, steps: map[way]*step{}}
	}
	h := newHead()
	s, _ := c.step(h, way{port: 80})
	s.frames()
	c.drop(h)
	c.count(s)
	if c.size() != 0 {
		t.Errorf("%d bytes are kept of a head that was dropped meanwhile", c.size())
	}
	h = newHead()
	h.by(way{port: 80})
	s = h.steps[way{port: 80}]
	c.keep("large", kept{bytes: c.max}) // s falls out
	c.count(s)                          // as a stream does that had it before
	c.keep("larger", kept{bytes: c.max})
	checkFrames(t, c)
	h.by(way{port: 80})
	c.drop(h)
	checkFrames(t, c)
}

// First answers under churn, with a cache that is large enough for all of them, and with one that is not.
func TestFramesUnderChurn(t *testing.T) {
	views := []*federation.View{viewOf(podsOf(100, "a")), viewOf(podsOf(99, "b")), viewOf(podsOf(100, "c"))}
	for _, max := range []int64{1 << 30, 1 << 16} {
		store, claims := local(map[federation.Service]*federation.View{web: views[0]})
		s := unhurried(store)
		s.frames.max = max
		ctx, cancel := context.WithCancel(t.Context())
		stays := open(t, s, path, "")
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				for ctx.Err() == nil {
					open(t, s, path, "")()
				}
			})
		}
		for i := range 300 {
			claims.Set(web, views[i%len(views)])
			runtime.Gosched()
		}
		cancel()
		asking.Wait()
		checkFrames(t, s.frames)
		stays()
		if n := s.frames.size(); n != 0 {
			t.Errorf("%d bytes of frames stay without a stream", n)
		}
	}
}

// TestPortBudget: streams for ports that a Service does not declare, of which a client may open any number, share what is known of its
// endpoints.
func TestPortBudget(t *testing.T) {
	const endpoints, ports, budget = 10_000, 50, 64 << 10
	large := podsOf(endpoints, "a")
	store, _ := local(map[federation.Service]*federation.View{web: viewOf(large)})
	s := unhurried(store)
	s.frames.max = 1 // what is sent is bounded elsewhere
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	var stops []func()
	stops = append(stops, open(t, s, "web.ns.svc.cluster.local:1000", ""), open(t, s, "web.ns.svc.cluster.local:1001", ""))
	before := heap()
	for i := range ports {
		stops = append(stops, open(t, s, fmt.Sprintf("web.ns.svc.cluster.local:%d", 2000+i), ""))
	}
	cost := (heap() - before) / ports
	t.Logf("%d bytes a port of a Service of %d endpoints", cost, endpoints)
	if cost > budget {
		t.Errorf("a port takes %d bytes of a Service of %d endpoints; the budget is %d", cost, endpoints, budget)
	}
	for _, stop := range stops {
		stop()
	}
}

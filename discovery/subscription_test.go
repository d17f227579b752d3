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

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/serving"
)

// open opens a stream for an authority and returns, once its first message is there, how to close it.
func open(tb testing.TB, s *toy, path, token string) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	sink := streamtest.NewCounter(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Get(&pb.GetDestination{Path: path, ContextToken: token}, sink) })
	sink.Wait(1)
	return func() {
		cancel()
		wg.Wait()
	}
}

// onNodes returns a View of n Pods, each on a node of its own: node-0, node-1 and so on.
func onNodes(n int, localOnly bool) *federation.View {
	s := streamtest.PodsOf(n, "a")
	for i, e := range s.Endpoints {
		e.Node = federation.NameOf(fmt.Sprintf("node-%d", i))
	}
	v := streamtest.ViewOf(s)
	v.LocalOnly = localOnly
	return v
}

// An Answer that another stream has made comes with the Snapshot that it follows from.
func TestAnswersComeWithTheirSnapshot(t *testing.T) {
	store, writer := streamtest.Local(map[federation.Service]*federation.View{
		streamtest.Web: streamtest.ViewOf(streamtest.SliceOf("a", 1, 1)),
	})
	s := unhurried(store)
	watch := store.Watch(federation.Ref{Cluster: "local", Service: streamtest.Web})
	defer watch.Close()
	q := s.selections.acquire(Query{Service: streamtest.Web, Port: 80})
	f := q.move(nil, federation.Place{})
	defer q.endStream(f)

	old, _ := watch.Load()
	old, selection := q.advance(old)
	writer.Set(streamtest.Web, streamtest.ViewOf(streamtest.SliceOf("a", 1, 2)))
	newer, _ := watch.Load()
	f.advance(q.advance(newer)) // a faster stream
	if a, _ := f.advance(old, selection); a.Snapshot != newer || a.Version != newer.Version || a.Set.Len() != 2 {
		t.Errorf("%d addresses come with version %d, want 2 and %d", a.Set.Len(), a.Version, newer.Version)
	}
}

// firstMessage is a sink that keeps the type of the first message, and ends the stream there.
type firstMessage struct {
	*streamtest.Counter
	end   context.CancelFunc
	count *[2]atomic.Int64 // addresses, and "no endpoints"
}

func (k *firstMessage) SendMsg(message any) error {
	switch message.(*serving.Frame).Type() { //nolint:exhaustive // what else may come first is no answer
	case Add:
		k.count[0].Add(1)
	case NoEntries:
		k.count[1].Add(1)
	}
	k.end()
	return nil
}

// Law: unknown is not empty. Each version of a Service either has endpoints or consists of a cluster
// that was never synced: whatever a stream is answered, it is never that there are none. Versions follow
// each other as fast as they can.
func TestUnknownIsNeverEmpty(t *testing.T) {
	const streams = 3000
	own := federation.Service{Namespace: "ns", Name: "own"}
	store, writer := streamtest.Local(map[federation.Service]*federation.View{own: onNodes(50, false)})
	store.AddCluster("silent", federation.Expectation{Since: time.Now()})
	of := func(member federation.Ref) *federation.View {
		return &federation.View{
			Ports:       []federation.ServicePort{{Number: 80, Name: "http"}},
			Composition: &federation.Composition{Union: true, Members: []federation.MemberRef{{Ref: member}}},
		}
	}
	views := []*federation.View{
		of(federation.Ref{Cluster: "local", Service: own}), of(federation.Ref{Cluster: "silent", Service: own}),
	}
	writer.Set(streamtest.Web, views[0])
	s := unhurried(store)
	ctx, cancel := context.WithCancel(t.Context())
	var turmoil, asking sync.WaitGroup
	turmoil.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			writer.Set(streamtest.Web, views[i%2])
			runtime.Gosched()
		}
	})
	var left atomic.Int64
	left.Store(streams)
	count := &[2]atomic.Int64{}
	for range 16 {
		asking.Go(func() {
			for left.Add(-1) >= 0 {
				streamCtx, end := context.WithCancel(ctx)
				_ = s.Get(&pb.GetDestination{Path: streamtest.Path},
					&firstMessage{streamtest.NewCounter(streamCtx), end, count})
				end()
			}
		})
	}
	asking.Wait()
	cancel()
	turmoil.Wait()
	if add, empty := count[0].Load(), count[1].Load(); add < streams || empty > 0 {
		t.Errorf("%d of %d streams began with addresses, %d with no endpoints", add, streams, empty)
	}
}

// A stream that loaded an older Snapshot than its Answer follows from is answered by the newer one in
// everything: whether there is an answer yet, and at which place the client is.
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
		{"malformed", func(s *federation.Snapshot) { s.View = &federation.View{Malformed: "it is"} }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, _ := streamtest.Local(map[federation.Service]*federation.View{streamtest.Web: onNodes(2, false)})
				s := unhurried(store)
				watch := store.Watch(federation.Ref{Cluster: "local", Service: streamtest.Web})
				defer watch.Close()
				old, _ := watch.Load()
				newer := *old
				newer.Version, newer.Members = old.Version+1, slices.Clone(old.Members)
				c.newer(&newer)
				q := s.selections.acquire(Query{Service: streamtest.Web, Port: 80})
				f := q.move(nil, federation.Place{})
				defer q.endStream(f)
				f.advance(&newer, federation.Select(&newer, federation.Query{Port: 80, IPv6: true}, nil))

				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				sink := streamtest.NewOpenSink(ctx)
				go func() { _ = s.Get(&pb.GetDestination{Path: streamtest.Path, ContextToken: "node-0"}, sink) }()
				synctest.Wait()
				for _, f := range sink.Sent() {
					if f.(*serving.Frame).Type() == NoEntries {
						t.Error("the client is sent that there are no endpoints")
					}
				}
				if n := len(sink.Holds()); n != c.want {
					t.Errorf("the client holds %d addresses, want %d", n, c.want)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

// The answers at a place go with their last stream, whatever other streams have the same Query elsewhere; and with
// the last stream goes everything.
func TestNothingStaysWithoutStreams(t *testing.T) {
	store, _ := streamtest.Local(map[federation.Service]*federation.View{streamtest.Web: onNodes(3, true)})
	s := unhurried(store)
	stays := open(t, s, streamtest.Path, "node-0")
	q := s.selections.acquire(Query{Service: streamtest.Web, Port: 80})
	for i := range 100 {
		open(t, s, streamtest.Path, fmt.Sprintf("node-%d", i))()
	}
	if n := len(q.byPlace); n != 1 {
		t.Errorf("%d places for 1 stream", n)
	}
	q.endStream(nil)
	for i := range 100 {
		open(t, s, fmt.Sprintf("absent-%d.%s", i, streamtest.Path), "")()
		err := s.Get(&pb.GetDestination{Path: fmt.Sprintf("web-%d.ns.svc.cluster.local", i)},
			streamtest.NewCounter(t.Context()))
		if status.Code(err) != codes.NotFound {
			t.Fatal(err)
		}
	}
	if n := s.selections.len(); n != 1 {
		t.Errorf("%d selections for 1 stream", n)
	}
	stays()
	if selections, frames := s.selections.len(), s.server.Cache().Bytes(); selections != 0 || frames != 0 {
		t.Errorf("%d selections and %d bytes of frames stay without a stream", selections, frames)
	}
}

// checkFrames fails if what is counted of some updates is not what streams can find of them. Besides, other is counted.
func checkFrames(t *testing.T, c *serving.Cache, other int64, all ...*updates) {
	t.Helper()
	const entry = 256
	found := other
	for _, u := range all {
		for key, way := range u.byKey {
			found += entry + int64(key.set.Len())*16
			for _, f := range way.frames() {
				found += int64(len(f.Bytes()))
			}
		}
	}
	if n := c.Bytes(); n != found {
		t.Errorf("%d bytes are counted, and %d can be found", n, found)
	}
}

// allUpdates returns those of every Answer that a stream is on.
func (s *toy) allUpdates() (all []*updates) {
	for _, q := range s.selections.byKey {
		for _, p := range q.byPlace {
			all = append(all, p.updates)
		}
	}
	return all
}

// Updates of an Answer that is superseded while they are encoded, or after they fell out of the cache,
// are not kept.
func TestSupersededAnswersKeepNoFrames(t *testing.T) {
	const limit = 1 << 20
	c := serving.NewCache(limit)
	to := &federation.Answer{State: federation.Empty, Set: &federation.Set{}}
	selections := newSelections(nil, c, &atomic.Uint64{})
	key := updateKey{encoder: plain{80}, first: true}
	all := newUpdates(selections)
	u, _ := all.find(key, nil, to)
	all.drop()
	u.frames()
	if c.Bytes() != 0 {
		t.Errorf("%d bytes are kept of an Answer that was superseded meanwhile", c.Bytes())
	}

	all = newUpdates(selections)
	all.get(plain{80}, nil, to)
	u = all.byKey[key]
	fill := func(key string) {
		c.Get(key, func() (*serving.Frame, int) { return serving.NewFrame("", nil, 0, 0), limit })
	}
	fill("large") // u falls out
	large := c.Bytes()
	u.frames() // as a stream does that had it before
	checkFrames(t, c, large, all)
	fill("larger")
	checkFrames(t, c, large, all)

	all.get(plain{80}, nil, to) // large falls out
	checkFrames(t, c, 0, all)
	all.drop()
	checkFrames(t, c, 0, all)
}

// First answers under churn, with a cache that is large enough for all of them, and with one that is not.
func TestFramesUnderChurn(t *testing.T) {
	views := []*federation.View{
		streamtest.ViewOf(streamtest.PodsOf(100, "a")), streamtest.ViewOf(streamtest.PodsOf(99, "b")),
		streamtest.ViewOf(streamtest.PodsOf(100, "c")),
	}
	for _, limit := range []int64{1 << 30, 1 << 16} {
		store, writer := streamtest.Local(map[federation.Service]*federation.View{streamtest.Web: views[0]})
		s := unhurriedWith(store, limit)
		ctx, cancel := context.WithCancel(t.Context())
		stays := open(t, s, streamtest.Path, "")
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				for ctx.Err() == nil {
					open(t, s, streamtest.Path, "")()
				}
			})
		}
		for i := range 300 {
			writer.Set(streamtest.Web, views[i%len(views)])
			runtime.Gosched()
		}
		cancel()
		asking.Wait()
		checkFrames(t, s.server.Cache(), 0, s.allUpdates()...)
		stays()
		if n := s.server.Cache().Bytes(); n != 0 {
			t.Errorf("%d bytes of frames stay without a stream", n)
		}
	}
}

// TestPortBudget: streams for ports that a Service does not declare, of which a client may open any
// number, share what is known of its endpoints.
func TestPortBudget(t *testing.T) {
	const endpoints, ports, budget = 10_000, 10, 64 << 10
	large := streamtest.PodsOf(endpoints, "a")
	store, _ := streamtest.Local(map[federation.Service]*federation.View{streamtest.Web: streamtest.ViewOf(large)})
	s := unhurriedWith(store, 1) // what is sent is bounded elsewhere
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	var stops []func()
	stops = append(stops, open(t, s, "web.ns.svc.cluster.local:1000", ""),
		open(t, s, "web.ns.svc.cluster.local:1001", ""))
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

// A first answer for a port that a Service does not declare is as large as the first for another such port:
// they share all but the bytes.
func TestSizeOfFirstAnswers(t *testing.T) {
	const endpoints = 600
	store, _ := streamtest.Local(map[federation.Service]*federation.View{
		streamtest.Web: streamtest.ViewOf(streamtest.PodsOf(endpoints, "a")),
	})
	s := unhurried(store)
	size := func(port uint16) int {
		subscription := s.subscribe(Query{Service: streamtest.Web, Port: port}, serving.Client{}, watch.NewBell())
		defer subscription.close()
		snapshot, _ := subscription.watch.Load()
		return subscription.size(snapshot, plain{port})
	}
	defer open(t, s, "web.ns.svc.cluster.local:1000", "")()
	if has, first := size(1000), size(1001); has != 0 || first != endpoints {
		t.Errorf("%d addresses are to be encoded for a port that was answered, and %d for another", has, first)
	}
}

// broken is an Encoder that panics.
type broken struct{}

func (broken) Update(*federation.Answer, *federation.Answer) ([]*serving.Frame, int) {
	panic("it is broken")
}

// large is of how many addresses an answer is a large one, which has a turn of its own.
const large = 500

// An Encoder that panics ends its stream, and keeps no turn from others.
func TestBrokenEncoder(t *testing.T) {
	store, _ := streamtest.Local(map[federation.Service]*federation.View{
		streamtest.Web: streamtest.ViewOf(streamtest.PodsOf(large, "a")),
	})
	config := serving.DefaultConfig()
	config.Admission.Patience = time.Nanosecond
	s := newToy(store, config)
	query := Query{Service: streamtest.Web, Port: 80}
	serve := func(ctx context.Context, e Encoder) (panicked bool, err error) {
		defer func() { panicked = recover() != nil }()
		stream := s.server.Open(streamtest.NewCounter(ctx), "Get", streamtest.Path, serving.Client{})
		defer stream.Close()
		return false, s.Serve(stream, query, Protocol{Encoder: e, Reject: rejection})
	}

	for range 1 + runtime.GOMAXPROCS(0) { // there are fewer turns
		if panicked, err := serve(t.Context(), broken{}); !panicked {
			t.Fatalf("the Encoder did not panic, but the stream ended: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := serve(ctx, plain{80}); status.Code(err) != codes.Canceled {
		t.Errorf("another stream, which finds a turn at once unless one is not given back: %v", err)
	}
}

// A client that asks for a Service just before a watch delivers it is served; of one that does not come, it is
// sent the error after the grace.
func TestNewService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, writer := streamtest.Local(nil)
		s := unhurried(store)
		ctx, cancel := context.WithCancel(t.Context())
		ask := func() (*streamtest.Counter, chan error) {
			sink, done := streamtest.NewCounter(ctx), make(chan error, 1)
			go func() { done <- s.Get(&pb.GetDestination{Path: streamtest.Path}, sink) }()
			return sink, done
		}
		began := time.Now()
		_, done := ask()
		if err := <-done; status.Code(err) != codes.NotFound || time.Since(began) != newServiceGrace {
			t.Errorf("a Service that does not exist, after %s: %v", time.Since(began), err)
		}
		began = time.Now()
		sink, done := ask()
		synctest.Wait() // it was asked for
		writer.Set(streamtest.Web, onNodes(3, true))
		sink.Wait(1)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a new Service was found after %s", waited)
		}
		cancel()
		if err := <-done; status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	})
}

package discovery

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"unique"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/metadata"

	"github.com/fingerpost/fingerpost/federation"
)

// counter is the sink of many streams, whose clients read at once.
type counter struct {
	ctx     context.Context
	mu      sync.Mutex
	arrived sync.Cond
	frames  int
	bytes   int
}

func newCounter(ctx context.Context) *counter {
	c := &counter{ctx: ctx}
	c.arrived.L = &c.mu
	return c
}

func (c *counter) Context() context.Context     { return c.ctx }
func (c *counter) SetHeader(metadata.MD) error  { return nil }
func (c *counter) SendHeader(metadata.MD) error { return nil }
func (c *counter) SetTrailer(metadata.MD)       {}
func (c *counter) RecvMsg(any) error            { return nil }
func (c *counter) Send(*pb.Update) error        { panic("frames only") }
func (c *counter) SendMsg(message any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames++
	c.bytes += message.(*frame).bytes.Len()
	c.arrived.Broadcast()
	return nil
}

// wait returns once so many frames have arrived in all.
func (c *counter) wait(frames int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.frames < frames {
		c.arrived.Wait()
	}
}

// podsOf returns a slice of n meshed Pods in a zone.
func podsOf(n int, zone string) *federation.Slice {
	s := sliceOf("pods", 1, n)
	template := unique.Make(federation.Template{ServiceAccount: "web", ControlPlane: "linkerd", Hash: "5d8f7c9b4", InboundPort: 4143, AdminPort: 4191, ControlPort: 4190})
	for i, e := range s.Endpoints {
		e.Zone, e.Node = zone, "node"
		e.Workload = &federation.Workload{Namespace: "ns", Name: fmt.Sprintf("web-5d8f7c9b4-%05d", i), OwnerKind: "deployment", OwnerName: "web", Template: template}
	}
	return s
}

// crowdOn opens streams for the Service web and returns a step that changes all its endpoints and waits until each stream was told.
func crowdOn(tb testing.TB, streams, endpoints int) (server *Server, step func(), sink *counter) {
	tb.Helper()
	store, claims := local(map[federation.Service]*federation.View{web: viewOf(podsOf(endpoints, "a"))})
	config := Defaults()
	config.Admission = AdmissionConfig{Rate: 1e6, Burst: 1e6, Answers: streams, Patience: 1e9}
	server = NewServer(logr.Discard(), store, config)
	ctx, cancel := context.WithCancel(tb.Context())
	sink = newCounter(ctx)
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() { _ = server.Get(&pb.GetDestination{Path: path}, sink) })
	}
	tb.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	sink.wait(streams)
	zones := []string{"b", "a"}
	views := []*federation.View{viewOf(podsOf(endpoints, zones[0])), viewOf(podsOf(endpoints, zones[1]))}
	total := streams
	i := 0
	return server, func() {
		claims.Set(web, views[i%2])
		i++
		total += streams
		sink.wait(total)
	}, sink
}

// BenchmarkMessage is one change to 1,000 streams without a network: what a message costs besides writing it.
func BenchmarkMessage(b *testing.B) {
	const streams = 1000
	for _, endpoints := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			_, step, _ := crowdOn(b, streams, endpoints)
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/streams, "ns/message")
		})
	}
}

// BenchmarkScrape is what it takes to tell of 10,000 streams, on request by node.
func BenchmarkScrape(b *testing.B) {
	for _, detailed := range []bool{false, true} {
		b.Run(fmt.Sprintf("detailed=%t", detailed), func(b *testing.B) {
			server, _, _ := crowdOn(b, 10_000, 100)
			server.config.DetailedMetrics = detailed
			b.ReportAllocs()
			for b.Loop() {
				if n := testutil.CollectAndCount(server.metrics.subscribers); n != 4 {
					b.Fatalf("%d series", n)
				}
			}
		})
	}
}

// BenchmarkEncode is the encoding of one message.
func BenchmarkEncode(b *testing.B) {
	for _, endpoints := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			store, claims := local(map[federation.Service]*federation.View{web: viewOf(podsOf(endpoints, "a"))})
			_ = claims
			w := store.Watch(federation.Ref{Cluster: "local", Service: web})
			defer w.Close()
			snapshot, _ := w.Load()
			set := federation.Select(snapshot, federation.Query{Port: 80, IPv6: true}, nil).Near(federation.Locality{Zone: "a"}, nil)
			config := Defaults()
			e := encoder{&config, 80, "a"}
			b.ReportAllocs()
			for b.Loop() {
				e.encode(nil, set)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*endpoints), "ns/endpoint")
		})
	}
}

// TestFrameBudget: a message is encoded once, however many streams it goes to: what is allocated for each of them is far less than the
// message.
func TestFrameBudget(t *testing.T) {
	const streams, endpoints, rounds, budget = 1000, 100, 10, 600
	_, step, sink := crowdOn(t, streams, endpoints)
	step()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	from := sink.bytes
	for range rounds {
		step()
	}
	runtime.ReadMemStats(&after)
	size, cost := (sink.bytes-from)/(rounds*streams), int(after.TotalAlloc-before.TotalAlloc)/(rounds*streams)
	t.Logf("%d bytes allocated for a message of %d", cost, size)
	if cost > budget || size < 10*budget {
		t.Errorf("%d bytes are allocated for each message of %d bytes; the budget is %d", cost, size, budget)
	}
}

// TestStreamBudget: what an idle stream takes of us, its goroutine's stack included and gRPC's part left out.
func TestStreamBudget(t *testing.T) {
	const streams, budget = 2000, 12 << 10 // half of it where there is no race detector
	footprint := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc + m.StackInuse)
	}
	before := footprint()
	_, _, _ = crowdOn(t, streams, 10)
	cost := (footprint() - before) / streams
	t.Logf("%d bytes a stream", cost)
	if cost > budget {
		t.Errorf("an idle stream takes %d bytes; the budget is %d", cost, budget)
	}
}

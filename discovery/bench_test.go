package discovery

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/serving"
)

// crowdOn opens streams for the Service web and returns a step that changes all its endpoints and waits
// until each stream got it.
func crowdOn(tb testing.TB, streams, endpoints int) (server *toy, step func(), sink *streamtest.Counter) {
	tb.Helper()
	store, writer := streamtest.Local(map[federation.Service]*federation.View{
		streamtest.Web: streamtest.ViewOf(streamtest.PodsOf(endpoints, "a")),
	})
	config := serving.DefaultConfig()
	config.Admission = serving.AdmissionConfig{Rate: 1e6, Burst: 1e6, Answers: streams, Patience: 1e9}
	server = newToy(store, config)
	ctx, cancel := context.WithCancel(tb.Context())
	sink = streamtest.NewCounter(ctx)
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() { _ = server.Get(&pb.GetDestination{Path: streamtest.Path}, sink) })
	}
	tb.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	sink.Wait(streams)
	zones := []string{"b", "a"}
	views := []*federation.View{
		streamtest.ViewOf(streamtest.PodsOf(endpoints, zones[0])),
		streamtest.ViewOf(streamtest.PodsOf(endpoints, zones[1])),
	}
	total := streams
	i := 0
	return server, func() {
		writer.Set(streamtest.Web, views[i%2])
		i++
		total += streams
		sink.Wait(total)
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

// BenchmarkScrape is what it takes to collect the metrics of 10,000 streams, on request by node.
func BenchmarkScrape(b *testing.B) {
	for _, detailed := range []bool{false, true} {
		b.Run(fmt.Sprintf("detailed=%t", detailed), func(b *testing.B) {
			server, _, _ := crowdOn(b, 10_000, 100)
			server.config.DetailedMetrics = detailed
			b.ReportAllocs()
			for b.Loop() {
				if n := testutil.CollectAndCount(server.services); n != 4 {
					b.Fatalf("%d series", n)
				}
			}
		})
	}
}

// BenchmarkPolicy is one endpoint that comes or goes in the local cluster's part of each of 1,000 federated Services,
// with 2,000 streams in all, without a policy and with one under which the linked cluster stands by.
func BenchmarkPolicy(b *testing.B) {
	const services, streams = 1000, 2000
	for name, p := range map[string]*policy.Service{
		"none":      nil,
		"local-any": {Prefer: []policy.Tier{{Local: true}, {Others: true}}},
	} {
		b.Run(name, func(b *testing.B) {
			part := func(i int) federation.Service {
				return federation.Service{Namespace: "ns", Name: fmt.Sprintf("web-%d", i)}
			}
			full := streamtest.ViewOf(streamtest.SliceOf("a", 1, 10))
			fewer := streamtest.ViewOf(streamtest.SliceOf("a", 1, 9))
			views := map[federation.Service]*federation.View{}
			for i := range services {
				all := streamtest.ViewOf()
				all.Policy = p
				all.Composition = &federation.Composition{Union: true}
				for _, c := range []federation.Cluster{"local", "west"} {
					of := federation.Ref{Cluster: c, Service: part(i)}
					all.Composition.Members = append(all.Composition.Members,
						federation.MemberRef{Ref: of, Filtered: c == "local"})
				}
				views[part(i)] = full
				views[federation.Service{Namespace: "ns", Name: fmt.Sprintf("all-%d", i)}] = all
			}
			store, local := streamtest.Local(views)
			store.AddCluster("west", federation.Expectation{TrustDomain: "cluster.local"})
			west := store.NewWriter("west")
			for i := range services {
				west.Set(part(i), streamtest.ViewOf(streamtest.SliceOf("a", 2, 10)))
			}
			west.MarkSynced()
			config := serving.DefaultConfig()
			config.Admission = serving.AdmissionConfig{Rate: 1e6, Burst: 1e6, Answers: streams, Patience: 1e9}
			server := newToy(store, config)
			ctx, cancel := context.WithCancel(b.Context())
			sink := streamtest.NewCounter(ctx)
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			for i := range streams {
				request := &pb.GetDestination{
					Path:         fmt.Sprintf("all-%d.ns.svc.cluster.local:80", i%services),
					ContextToken: fmt.Sprintf("node-%d", i%64),
				}
				wg.Go(func() { _ = server.Get(request, sink) })
			}
			sent := streams
			sink.Wait(sent)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				for i := range services {
					local.Set(part(i), []*federation.View{fewer, full}[n%2])
				}
				sent += streams
				sink.Wait(sent)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/streams, "ns/message")
		})
	}
}

// TestFrameBudget: a message is encoded once, however many streams it goes to: what is allocated for
// each of them is far less than the message.
func TestFrameBudget(t *testing.T) {
	const streams, endpoints, rounds, budget = 1000, 100, 10, 600
	_, step, sink := crowdOn(t, streams, endpoints)
	step()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, from := sink.Count()
	for range rounds {
		step()
	}
	runtime.ReadMemStats(&after)
	_, sent := sink.Count()
	size, cost := (sent-from)/(rounds*streams), int(after.TotalAlloc-before.TotalAlloc)/(rounds*streams)
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

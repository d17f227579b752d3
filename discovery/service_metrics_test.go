package discovery

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/serving"
)

// federated returns a server with a stream for each of some federated Services, which have an endpoint
// in each of some clusters.
func federated(tb testing.TB, clusters, services int) *toy {
	tb.Helper()
	name := func(service int) federation.Service {
		return federation.Service{Namespace: "ns", Name: fmt.Sprintf("web-%d", service)}
	}
	cluster := func(i int) federation.Cluster { return federation.Cluster(fmt.Sprintf("c%d", i)) }
	views := map[federation.Service]*federation.View{}
	for i := range services {
		union := &federation.Composition{Union: true}
		for j := range clusters {
			union.Members = append(union.Members,
				federation.MemberRef{Ref: federation.Ref{Cluster: cluster(j), Service: name(i)}})
		}
		views[federation.Service{Namespace: "ns", Name: name(i).Name + "-federated"}] = &federation.View{
			Ports: []federation.ServicePort{{Number: 80, Name: "http"}}, Composition: union,
		}
	}
	store, _ := streamtest.Local(views)
	for j := range clusters {
		store.AddCluster(cluster(j), federation.Expectation{TrustDomain: "cluster.local", Since: time.Now()})
		writer := store.NewWriter(cluster(j))
		for i := range services {
			slice := streamtest.SliceOf("pods", 0, 1)
			slice.Endpoints[0].Addr = netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 8), byte(i)})
			writer.Set(name(i), streamtest.ViewOf(slice))
		}
		writer.MarkSynced()
	}
	config := serving.DefaultConfig()
	config.Admission = serving.AdmissionConfig{Rate: 1e6, Burst: 1e6, Answers: services, Patience: 1e9}
	server := newToy(store, config)
	ctx, cancel := context.WithCancel(tb.Context())
	sink := streamtest.NewCounter(ctx)
	var wg sync.WaitGroup
	for i := range services {
		wg.Go(func() {
			_ = server.Get(&pb.GetDestination{Path: name(i).Name + "-federated.ns.svc.cluster.local:80"}, sink)
		})
	}
	tb.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	sink.Wait(services)
	return server
}

// TestSeries: how many clusters a federated Service consists of decides neither how many series it has
// nor what it costs to count it, unless that is asked for.
func TestSeries(t *testing.T) {
	const clusters, services = 50, 20
	few, many := federated(t, 1, services), federated(t, clusters, services)
	for _, s := range []*toy{few, many} {
		if n := testutil.CollectAndCount(s.services); n != 5*services {
			t.Fatalf("%d series by default for %d federated Services; they have 5 each", n, services)
		}
	}
	collect := func(s *toy) float64 {
		all := make(chan prometheus.Metric, 5*services)
		return testing.AllocsPerRun(10, func() {
			s.services.Collect(all)
			for len(all) > 0 {
				<-all
			}
		})
	}
	if a, b := collect(few), collect(many); b > a*1.1 {
		t.Errorf("a scrape allocates %.0f objects for Services of %d clusters, and %.0f for Services of one", b,
			clusters, a)
	}
	many.config.DetailedMetrics = true
	if n := testutil.CollectAndCount(many.services); n != (4*clusters+1)*services {
		t.Errorf("%d series on request for %d Services of %d clusters; they have 4 for each member, and one", n,
			services, clusters)
	}
}

// BenchmarkScrapeFederated is what it takes to count federated Services of 200 clusters.
func BenchmarkScrapeFederated(b *testing.B) {
	const clusters, services = 200, 100
	for _, detailed := range []bool{false, true} {
		b.Run(fmt.Sprintf("detailed=%t", detailed), func(b *testing.B) {
			server := federated(b, clusters, services)
			server.config.DetailedMetrics = detailed
			b.ReportAllocs()
			for b.Loop() {
				b.ReportMetric(float64(testutil.CollectAndCount(server.services)), "series")
			}
		})
	}
}

// Shares are one series for each cluster of a Service that has a policy of its own, of the first port that is asked
// for, and of no other Service, whatever is in force for its clusters.
func TestMemberShares(t *testing.T) {
	const clusters, services = 5, 4
	server := federated(t, clusters, services)
	count := func() int { return testutil.CollectAndCount(server.services, "fingerpost_member_share") }
	server.store.SetPolicy("c1", policy.ForCluster{Drained: 100})
	if n := count(); n != 0 {
		t.Errorf("%d series of Services without a policy", n)
	}
	web := federation.Service{Namespace: "ns", Name: "web-0-federated"}
	before := server.store.View(federation.Ref{Cluster: "local", Service: web})
	next := *before
	next.Policy = &policy.Service{Weights: []policy.Weight{{Cluster: "c0", Weight: 3}, {Cluster: "c2", Weight: 1}}}
	server.store.NewWriter("local").Set(web, &next)
	deadline := time.Now().Add(time.Minute)
	for count() == 0 && time.Now().Before(deadline) {
		runtime.Gosched() // streams follow
	}
	help := "# HELP fingerpost_member_share Part of the traffic of a federated Service with a policy of its own that " +
		"a cluster gets, from 0 to 1, for Services with open Get streams. No series while nothing is ready and a " +
		"member was never synced."
	want := help + `
# TYPE fingerpost_member_share gauge
fingerpost_member_share{namespace="ns",service="web-0-federated",target_cluster="c0"} 0.75
fingerpost_member_share{namespace="ns",service="web-0-federated",target_cluster="c1"} 0
fingerpost_member_share{namespace="ns",service="web-0-federated",target_cluster="c2"} 0.25
fingerpost_member_share{namespace="ns",service="web-0-federated",target_cluster="c3"} 0
fingerpost_member_share{namespace="ns",service="web-0-federated",target_cluster="c4"} 0
`
	err := testutil.CollectAndCompare(server.services, strings.NewReader(want), "fingerpost_member_share")
	if err != nil {
		t.Error(err)
	}
}

// Shares are computed for another version only, and at most once a second, however often they are collected.
func TestSharesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web := federation.Service{Namespace: "ns", Name: "web"}
		view := func(ready int) *federation.View {
			return streamtest.ViewOf(streamtest.SliceOf("pods", 0, ready))
		}
		store, writer := streamtest.Local(map[federation.Service]*federation.View{
			web: view(1),
			{Namespace: "ns", Name: "all"}: {
				Ports:  []federation.ServicePort{{Number: 80, Name: "http"}},
				Policy: &policy.Service{Prefer: []policy.Tier{{Local: true}}},
				Composition: &federation.Composition{Union: true, Members: []federation.MemberRef{
					{Ref: federation.Ref{Cluster: "local", Service: web}},
				}},
			},
		})
		watch := store.Watch(federation.Ref{
			Cluster: "local", Service: federation.Service{Namespace: "ns", Name: "all"},
		})
		defer watch.Close()
		var counted countedShares
		ready := func() int {
			snapshot, _ := watch.Load()
			return counted.update(snapshot, federation.Select(snapshot, federation.Query{Port: 80}, nil))[0].Ready
		}
		for i, step := range []struct {
			ready, want int
			pause       time.Duration
		}{{1, 1, 0}, {2, 1, time.Second / 2}, {3, 1, 0}, {3, 3, time.Second / 2}, {4, 3, 0}, {4, 4, time.Hour}} {
			writer.Set(web, view(step.ready))
			elapse(step.pause)
			if n := ready(); n != step.want {
				t.Errorf("step %d: %d ready, want %d", i, n, step.want)
			}
		}
		same := &counted.all[0]
		elapse(time.Hour)
		if ready(); &counted.all[0] != same {
			t.Error("shares of the same version are computed anew")
		}
	})
}

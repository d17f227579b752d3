package linkerd

import (
	"fmt"
	"testing"

	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
)

// BenchmarkEncode is the encoding of one message.
func BenchmarkEncode(b *testing.B) {
	for _, endpoints := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			store, _ := streamtest.Local(map[federation.Service]*federation.View{
				streamtest.Web: streamtest.ViewOf(streamtest.PodsOf(endpoints, "a")),
			})
			w := store.Watch(federation.Ref{Cluster: "local", Service: streamtest.Web})
			defer w.Close()
			snapshot, _ := w.Load()
			set := federation.Select(snapshot, federation.Query{Port: 80, IPv6: true},
				nil).At(federation.Place{Zone: "a"}, nil)
			config := Defaults()
			e := encoder{&config, 80}
			b.ReportAllocs()
			for b.Loop() {
				e.encode(nil, set)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*endpoints), "ns/endpoint")
		})
	}
}

package linkerd

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"unique"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/discovery/streamtest"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

// A client that does not read holds what it was sent, even if an explanation has a newer state: both
// are shown.
func TestExplainTellsWhatAStreamHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view := func(ready bool) *federation.View {
			s := streamtest.SliceOf("a", 1, 3)
			s.Endpoints[0].Ready = ready
			s.Endpoints[0].Zone, s.Endpoints[1].Zone = federation.NameOf("z1"), federation.NameOf("z2")
			for i, e := range s.Endpoints {
				cohort := federation.Cohort{Namespace: "ns", Template: unique.Make(federation.Template{})}
				e.Workload = new(cohort.Workload(fmt.Sprint("pod-", i)))
			}
			return streamtest.ViewOf(s)
		}
		store, writer := streamtest.Local(map[federation.Service]*federation.View{streamtest.Web: view(true)})
		store.Nodes.NewWriter("local").Set("n1", federation.Node{Zone: "z1"})
		config := Defaults()
		config.ZoneWeights = true
		server := NewServer(logr.Discard(), transport(), store, config)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		sink := streamtest.NewSink(ctx)
		sink.Gate = make(chan struct{}, 1)
		sink.Gate <- struct{}{} // the client reads one message
		wg.Go(func() {
			_ = server.Get(&pb.GetDestination{
				Path:         streamtest.Path,
				ContextToken: `{"ns":"shop","nodeName":"n1","pod":"cart"}`,
			}, sink)
		})
		synctest.Wait()
		if s := server.Streams(); len(s) != 1 || s[0].Behind != nil || s[0].Sending != nil || s[0].Method != "Get" {
			t.Errorf("a client that has read all: %+v", s)
		}
		next := view(false)
		next.Slices[0].Endpoints = slices.Delete(next.Slices[0].Endpoints, 2, 3)
		writer.Set(streamtest.Web, next)
		synctest.Wait()
		s := server.Streams()
		if len(s) != 1 || s[0].Sending == nil || s[0].Behind == nil ||
			*s[0].Behind != (discovery.Lag{Removes: 2}) || s[0].Addresses != 3 {
			t.Errorf("a client that does not read: %+v", s)
		}
		x, err := server.Explain(streamtest.Path, serving.Client{Namespace: "shop", Pod: "cart"})
		if err != nil {
			t.Fatal(err)
		}
		if want := (serving.Client{Namespace: "shop", Pod: "cart", Node: "n1"}); x.Client.Client != want ||
			x.Client.Zone != "z1" || x.Refused+x.Waits != "" {
			t.Errorf("the client is %+v, refused %q, waits %q", x.Client, x.Refused, x.Waits)
		}
		if len(x.Streams) != 1 || !slices.Equal(x.Streams[0].Holds,
			[]netip.AddrPort{ap("10.1.0.0:8080"), ap("10.1.0.1:8080"), ap("10.1.0.2:8080")}) {
			t.Errorf("its streams are %+v", x.Streams)
		}
		got := map[string]string{}
		for _, c := range x.Claims {
			got[c.Addr] = fmt.Sprintf("%s, weight %d, held by %d", c.Why, c.Weight, c.HeldBy)
		}
		if diff := cmp.Diff(map[string]string{
			"10.1.0.0:8080": "not ready, weight 0, held by [1]",
			"10.1.0.1:8080": "included, weight 10000, held by [1]",
			"10.1.0.2:8080": "no cluster publishes it at this port any more, weight 0, held by [1]",
		}, got); diff != "" {
			t.Error(diff)
		}

		writer.Set(streamtest.Web, view(true))
		if x, err = server.Explain(streamtest.Path, serving.Client{Node: "n1"}); err != nil {
			t.Fatal(err)
		}
		if c := x.Claims[0]; c.Weight != 10*federation.Weight || c.Why != "included, in the client's zone" ||
			len(x.Streams) != 0 {
			t.Errorf("a client in the zone: %+v", x)
		}
		if x, err := server.Explain("missing.ns.svc.cluster.local", serving.Client{}); err != nil ||
			x.Refused != "NotFound: Service ns/missing not found" {
			t.Errorf("a Service that does not exist: %+v %v", x, err)
		}
		if _, err := server.Explain("10.0.0.1:80", serving.Client{}); err == nil {
			t.Error("an address is explained, although Get refuses it")
		}
	})
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

package policyapi_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/federation/rules"
	"github.com/fingerpost/fingerpost/serving"
)

// Cases that no scenario can express.
func TestCases(t *testing.T) {
	t.Run("PP15", testDrain)
	t.Run("PP17", testForgetsAuthorities)
	t.Run("PN70", testEncodesOncePerServer)
	t.Run("PO25", func(t *testing.T) { testEncodesOnce(t, 1, 1) })
	t.Run("PZ05", func(t *testing.T) { testEncodesOnce(t, 16, 8) })
	t.Run("PZ07", testBinaryAddresses)
}

// PP15: a drain ends a hundred streams with OK, within its time.
func testDrain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.setService("web", 8080)
		w.setPod("p")
		w.list()
		var streams []*stream
		for range 50 {
			streams = append(streams, w.watch(to("10.96.0.10:8080")), w.watchPort("shop:p", 8080))
		}
		drained := w.serving.Drain(5 * time.Second)
		elapse(5 * time.Second)
		for _, s := range streams {
			w.wantsEnd("PP15", s, codes.OK)
		}
		<-drained
	})
}

// PP17: what clients have asked for leaves nothing behind, however many names there were.
func testForgetsAuthorities(t *testing.T) {
	inWorld(t, func(w *world) {
		w.list()
		ask := func(from, until int) {
			for i := from; i < until; i++ {
				s := w.watch(named(fmt.Sprintf("s%d.n%d.svc.cluster.local", i, i)))
				w.wants("PP17", s, fmt.Sprintf("s%d:80", i))
				s.cancel()
			}
		}
		held := func() uint64 {
			runtime.GC()
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return stats.HeapAlloc
		}

		ask(0, 1000) // pools and caches have their size then
		before := held()
		ask(1000, 11_000)
		if after := held(); after > before+500_000 {
			t.Errorf("%d bytes are held after 10,000 calls, %d before", after, before)
		}
	})
}

// PN70: a change that concerns the Servers of 10,000 Pods, no two of which have equal labels, is encoded once for each
// Server of which a port is watched.
func testEncodesOncePerServer(t *testing.T) {
	servers := func(access rules.DefaultPolicy) []*rules.Server {
		all := []*rules.Server{serverOf(8080), serverOf(9090)}
		all[1].Name = "w"
		for _, s := range all {
			s.Access = access
		}
		return all
	}

	inWorld(t, func(w *world) {
		name := func(i int) string { return fmt.Sprintf("p-%d", i) }
		for i := range 10_000 {
			w.setPod(name(i))
		}
		w.setServers(servers(rules.Audit)...)
		w.list()

		var streams []*stream
		for i := range 50 {
			streams = append(streams, w.watchPort("shop:"+name(i*100), uint32(8080+1010*(i%2))))
			w.wants("PN70", streams[i], "server "+[]string{"v", "w"}[i%2])
		}
		w.setServers(servers(rules.AllAuthenticated)...)

		frames := map[*serving.Frame]bool{}
		for i, s := range streams {
			w.wants("PN70", s, "server "+[]string{"v", "w"}[i%2])
			frames[s.frame] = true
			s.cancel()
		}
		if len(frames) != 2 {
			t.Errorf("%d messages were encoded for streams of 2 Servers", len(frames))
		}
	})
}

// PO25, PZ05: a route of a Service changes, which a thousand clients watch. Each of them gets a message, and all of
// them the same one, which was encoded once.
func testEncodesOnce(t *testing.T, ruleCount, matchCount int) {
	t.Helper()
	routed := func(text string) *rules.Target {
		route := &rules.Route{
			Meta:    rules.Meta{Reference: rules.Reference{Kind: rules.KindHTTPRoute, Namespace: "shop", Name: "r"}},
			Parents: []rules.Parent{{Reference: web}},
		}
		for i := range ruleCount {
			var rule rules.Rule
			for j := range matchCount {
				path := rules.PathMatch{Type: rules.PathPrefix, Text: fmt.Sprintf("/%s/%d/%d", text, i, j)}
				rule.Matches = append(rule.Matches, rules.Match{Path: path})
			}
			route.Rules = append(route.Rules, rule)
		}
		object := rules.ParentObject{Reference: web, Exists: true, HasIP: true}
		return &rules.Target{
			Reference: web, Exists: true, Ports: []rules.ServicePort{{NamedPort: rules.NamedPort{Number: 8080}}},
			Attached: rules.Attach(object, []*rules.Route{route}),
		}
	}

	inWorld(t, func(w *world) {
		w.setService("web", 8080)
		w.targets.Set(web, routed("before"))
		w.list()
		var streams []*stream
		for range 1000 {
			streams = append(streams, w.watch(to("10.96.0.10:8080")))
			w.wants("before", streams[len(streams)-1], "web:8080")
		}
		w.targets.Set(web, routed("after"))

		frames := map[*serving.Frame]bool{}
		for _, s := range streams {
			w.wants("after", s, "web:8080")
			frames[s.frame] = true
			s.cancel()
		}
		if len(frames) != 1 {
			t.Errorf("%d messages were encoded for 1,000 streams", len(frames))
		}
		for f := range frames {
			if n := bytes.Count(f.Bytes(), []byte("/after/")); n != 2*ruleCount*matchCount { // as HTTP/1 and as HTTP/2
				t.Errorf("it has %d matches", n)
			}
		}
	})
}

// PZ07: addresses are numbers, of which the first byte of an address is the most significant one.
func testBinaryAddresses(t *testing.T) {
	forward := func(address string) *netpb.TcpAddress {
		message := policyapi.EncodeOutbound(rules.Fallback(), netip.MustParseAddrPort(address))
		backends := message.GetProtocol().GetDetect().GetOpaque().GetRoutes()[0].GetRules()[0].GetBackends()
		return backends.GetFirstAvailable().GetBackends()[0].GetBackend().GetForward().GetAddr()
	}
	for address, want := range map[string]*netpb.TcpAddress{
		"1.2.3.4:65535": {Ip: &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: 0x01020304}}, Port: 65535},
		"[102:304:506:708:90a:b0c:d0e:f10]:1": {Ip: &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{
			First: 0x0102030405060708, Last: 0x090a0b0c0d0e0f10,
		}}}, Port: 1},
	} {
		if got := forward(address); !proto.Equal(got, want) {
			t.Errorf("%s is sent as %v, not as %v", address, got, want)
		}
	}
}

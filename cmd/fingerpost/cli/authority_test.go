package cli

import (
	"strings"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery"
)

type port struct {
	Number uint16
	Name   string
}

// shopPages are those of a replica whose cluster has the domain shop.local, and Services with one port, two
// and none.
func shopPages() map[string]any {
	service := func(ports ...port) map[string]any { return map[string]any{"ports": ports} }
	return map[string]any{
		"/debug/clusters": debug.ClustersPage{Clusters: []debug.ClusterEntry{
			{Status: cluster.Status{Name: "west", ClusterDomain: "west.local"}},
			{Status: cluster.Status{Name: "east", Local: true, ClusterDomain: "shop.local"}},
		}},
		"/debug/services/shop/web":    service(port{8080, "http"}),
		"/debug/services/shop/two":    service(port{80, "http"}, port{9090, ""}),
		"/debug/services/shop/none":   service(),
		"/debug/services/default/web": service(port{1, ""}),
		"/debug/explain": discovery.Explanation{Claims: []discovery.Claim{
			{Addr: "0.0.0.1:80", Cluster: "west"},
			{Addr: "0.0.0.1:80", Cluster: "east", Kept: true},
			{Addr: "0.0.0.2:80", Cluster: "west", Kept: true, Guarded: true},
		}},
	}
}

// Services may be named as people do, and what cannot be one is reported with what can.
func TestShortNames(t *testing.T) {
	replica := Replica{Addr: cmdtest.DebugServer(t, shopPages())}
	gone := Replica{Addr: "127.0.0.1:1"}
	for text, want := range map[string]string{
		"web.shop:8080":                  "web.shop.svc.shop.local:8080",
		"web.shop":                       "web.shop.svc.shop.local:8080",
		"web.shop.svc":                   "web.shop.svc.shop.local:8080",
		"shop/web":                       "web.shop.svc.shop.local:8080",
		"shop/two:http":                  "two.shop.svc.shop.local:80",
		"shop/two:9090":                  "two.shop.svc.shop.local:9090",
		"shop/none":                      "none.shop.svc.shop.local",
		"svc/web":                        "web.default.svc.shop.local:1",
		"service/web -n shop":            "web.shop.svc.shop.local:8080",
		"web -n shop":                    "web.shop.svc.shop.local:8080",
		"web.other -n shop":              "other/web",
		"web.shop.svc.cluster.local":     "web.shop.svc.cluster.local",
		"a.web.shop.svc.cluster.local:1": "a.web.shop.svc.cluster.local:1",
		"10.0.0.1:80":                    "10.0.0.1:80",
		"[fd00::1]:80":                   "[fd00::1]:80",
		"fd00::1":                        "fd00::1",
		"shop/two":                       "has the ports 80 (http), 9090: name one, such as two.shop:80",
		"shop/two:grpc":                  "Service shop/two has no port grpc: it has 80 (http), 9090",
		"a.b.c":                          `"a.b.c" names no Service: give web.shop:8080, `,
		"web.shop:":                      "names no Service", "Web": "names no Service", "/web": "names no Service",
		"": "names no Service", "web_1.shop": "names no Service", "a/b/c": "names no Service",
	} {
		text, namespace, _ := strings.Cut(text, " -n ")
		r := NewReplicaFlags("test")
		r.rules, r.serviceNamespace = &clientcmd.ClientConfigLoadingRules{}, namespace
		got, err := r.authority(t.Context(), text, &replica)
		if err != nil {
			got = err.Error()
		}
		if want == "other/web" { // this replica has no page of it
			want = "web.other.svc.shop.local"
		}
		if err == nil && got != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		if code := ExitCode(err); err != nil && code != ExitUsage && code != ExitNotFound {
			t.Errorf("%q: exit code %d", text, code)
		}
	}
	for _, from := range []*Replica{nil, &gone} {
		r := NewReplicaFlags("test")
		if got, err := r.authority(t.Context(), "web.shop", from); err != nil || got != "web.shop.svc.cluster.local" {
			t.Errorf("without a debug server: %s %v", got, err)
		}
	}
}

// Endpoints have their cluster, and one that is removed still has its Pod.
func TestClustersOfEndpoints(t *testing.T) {
	asked := make(chan string, 10)
	d := &destination{get: func(_ int32, stream grpc.ServerStreamingServer[pb.Update]) error {
		if err := stream.Send(add(1, "a")); err != nil {
			return err
		}
		if err := stream.Send(add(2, "b")); err != nil {
			return err
		}
		removed := &netpb.TcpAddress{Ip: &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: 1}}, Port: 80}
		if err := stream.Send(&pb.Update{Update: &pb.Update_Remove{Remove: &pb.AddrSet{
			Addrs: []*netpb.TcpAddress{removed},
		}}}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	}}
	d.asked = func(path string) { asked <- path }
	addr, _ := d.serve(t)
	pages := cmdtest.DebugServer(t, shopPages())
	args := []string{"endpoints", "shop/web", "--addr", addr, "--debug-addr", pages}
	out, err := fingerpost(t, args...)
	if flat := strings.Join(rows(out), "|"); err != nil || !strings.HasPrefix(flat, "IP PORT CLUSTER ") ||
		!strings.Contains(flat, "0.0.0.2 80 west, held by the guard b") {
		t.Errorf("%v\n%s", err, out)
	}
	if path := <-asked; path != "web.shop.svc.shop.local:8080" {
		t.Errorf("the server was asked for %s", path)
	}
	out, err = fingerpost(t, append(args, "-o", "json")...)
	list := cmdtest.DecodeJSON[[]endpointJSON](t, out)
	if err != nil || len(list) != 1 || list[0].Cluster != "west" {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = fingerpost(t, "endpoints", "shop/web", "--addr", addr)
	if err != nil || strings.Contains(out, "CLUSTER") {
		t.Errorf("no debug server is known: %v\n%s", err, out)
	}
	watch(t, append(args, "--watch")...).until("+ 0.0.0.1:80 east a", "+ 0.0.0.2:80 west b, held by the guard",
		"- 0.0.0.1:80 east a")
	watch(t, append(args, "--watch", "-o", "json")...).until(
		`"removed":[{"addr":"0.0.0.1:80","cluster":"east","weight":1,"labels":{"pod":"a"}}]`)
}

// Exit codes distinguish no endpoints, no such Service, and no server.
func TestExitCodesOfStreams(t *testing.T) {
	var end error
	d := &destination{get: func(_ int32, stream grpc.ServerStreamingServer[pb.Update]) error {
		if end != nil {
			return end
		}
		return stream.Send(&pb.Update{Update: &pb.Update_NoEndpoints{NoEndpoints: &pb.NoEndpoints{Exists: true}}})
	}}
	addr, _ := d.serve(t)
	for name, c := range map[string]struct {
		end  error
		code int
	}{
		"no endpoints":    {nil, ExitNo},
		"no such Service": {status.Error(codes.NotFound, "Service shop/web not found"), ExitNotFound},
		"no authority":    {status.Error(codes.InvalidArgument, "Invalid authority"), ExitUsage},
		"a bug":           {status.Error(codes.Internal, "bug"), ExitFailed},
	} {
		end = c.end
		if out, err := fingerpost(t, "endpoints", "web.shop", "--addr", addr); ExitCode(err) != c.code {
			t.Errorf("%s: exit code %d, want %d: %v\n%s", name, ExitCode(err), c.code, err, out)
		}
	}
	if _, err := fingerpost(t, "endpoints", "web.shop", "--addr", "127.0.0.1:1"); ExitCode(err) != ExitFailed {
		t.Errorf("no server: %v", err)
	}
}

// Explanations distinguish them as well.
func TestExitCodesOfExplain(t *testing.T) {
	for refused, want := range map[string]int{
		"": 0, "NotFound: Service shop/web not found": ExitNotFound, "FailedPrecondition: malformed": ExitNo,
	} {
		pages := shopPages()
		pages["/debug/explain"] = discovery.Explanation{Authority: "web.shop", Refused: refused}
		out, err := fingerpost(t, "explain", "web.shop:80", "--debug-addr", cmdtest.DebugServer(t, pages))
		if ExitCode(err) != want || refused != "" && !strings.Contains(out, "error: "+refused) {
			t.Errorf("%s: exit code %d, want %d: %v\n%s", refused, ExitCode(err), want, err, out)
		}
	}
	other := shopPages()
	other["/debug/explain"] = discovery.Explanation{Claims: []discovery.Claim{{Addr: "0.0.0.9:80", Kept: true}}}
	both := cmdtest.DebugServer(t, shopPages()) + "," + cmdtest.DebugServer(t, other)
	if _, err := fingerpost(t, "explain", "web.shop:80", "--debug-addr", both); ExitCode(err) != ExitNo {
		t.Errorf("replicas differ: %v", err)
	}
}

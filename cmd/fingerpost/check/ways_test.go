package check

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
)

// knowsNothing is a gRPC server that has no Service, and keeps what it was asked for.
type knowsNothing struct {
	pb.UnimplementedDestinationServer
	asked chan string
}

func (k *knowsNothing) Get(asked *pb.GetDestination, _ grpc.ServerStreamingServer[pb.Update]) error {
	k.asked <- asked.GetPath()
	return status.Error(codes.NotFound, "no such Service")
}

// Each way is a check of its own: one that is not known is no failure, and its reason is printed.
func TestReplicasAnswerProxies(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, answers := grpc.NewServer(), &knowsNothing{asked: make(chan string, 1)}
	pb.RegisterDestinationServer(server, answers)
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	defer func() { server.Stop(); wg.Wait() }()
	addr := listener.Addr().String()

	api := &clusterAPI{objects: map[string]any{}, codes: map[string]int{}, denied: map[string]bool{}}
	kube := httptest.NewServer(api)
	defer kube.Close()
	replica := cmdtest.DebugServer(t, map[string]any{
		"/debug/clusters": debug.ClustersPage{Clusters: []debug.ClusterEntry{{
			Status: cluster.Status{Name: "east", Local: true, State: "Live", ClusterDomain: "east.local"},
		}}},
		"/debug/problems": debug.ProblemsPage{}, "/debug/digests": debug.DigestsPage{},
	})
	check := func(more ...string) string {
		out, _ := fingerpostCheck(t, append([]string{
			"check", "--kubeconfig", cmdtest.WriteKubeconfig(t, kube.URL), "--wait", "0s", "--debug-addr", replica,
		}, more...)...)
		return out
	}

	if out := check("--addr", addr); !strings.Contains(out, "\n√ "+addr+" answers proxies\n") {
		t.Error(out)
	}
	if asked := <-answers.asked; asked != "kubernetes.default.svc.east.local:443" {
		t.Errorf("asked for %s", asked)
	}
	const refused = "127.0.0.1:1"
	want := "\n× " + refused + " answers proxies\n    connecting to " + refused + ": connection refused\n    see " +
		hintsURL + "replicas-answer-proxies for hints\n"
	if out := check("--addr", refused); !strings.Contains(out, want) {
		t.Error(out)
	}
	want = "\n– the replica of " + replica + " answers proxies\n    skipped: the address of its gRPC server is not " +
		"known: name it by --addr\n"
	if out := check(); !strings.Contains(out, want) {
		t.Error(out)
	}
	for _, output := range []string{"short", "json"} {
		if out := check("-o", output); strings.Contains(out, "answers proxies") {
			t.Errorf("%s: %s", output, out)
		}
	}
	want = "\n× replicas are ready\n    --addr \"a:b\": it is not host:port"
	if out := check("--addr", "a:b", "--wait", "1m"); !strings.Contains(out, want) {
		t.Error(out)
	}
}

// A Pod that no Service leads to is reported, whichever port it is that differs.
func TestServiceOfPod(t *testing.T) {
	const none = "no Service in namespace linkerd"
	const path = "/apis/discovery.k8s.io/v1/namespaces/linkerd/endpointslices"
	slice := func(ip string, port int32) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{ip}}},
			Ports:     []discoveryv1.EndpointPort{{}, {Port: &port}},
		}
	}
	for name, c := range map[string]struct {
		slices []discoveryv1.EndpointSlice
		code   int
		want   string
	}{
		"leads to it":         {[]discoveryv1.EndpointSlice{slice("10.0.0.9", 8086), slice("10.0.0.7", 8086)}, 0, ""},
		"another port":        {[]discoveryv1.EndpointSlice{slice("10.0.0.7", 8087)}, 0, none},
		"another Pod":         {[]discoveryv1.EndpointSlice{slice("10.0.0.9", 8086)}, 0, none},
		"may not be listed":   {nil, http.StatusForbidden, "skipped: you may not list EndpointSlices"},
		"the API server ails": {nil, http.StatusInternalServerError, "InternalError"},
	} {
		api := &clusterAPI{objects: map[string]any{}, codes: map[string]int{path: c.code}}
		api.objects[path] = discoveryv1.EndpointSliceList{
			TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}, Items: c.slices,
		}
		server := httptest.NewServer(api)
		client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "linkerd", Name: "a"}, Status: corev1.PodStatus{PodIP: "10.0.0.7"},
		}
		err = (&environment{client: client}).checkServiceOf(t.Context(), pod, 8086)
		server.Close()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if c.code == 0 && err != nil && !isWarning(err) {
			t.Errorf("%s: no warning: %v", name, err)
		}
	}
}

// Why a check does not apply is printed below its category, and is neither failure nor result.
func TestSkippedWithReason(t *testing.T) {
	var out bytes.Buffer
	r := newRunner(0, time.Second)
	r.to = &out
	r.run(t.Context(), answerProxies.decided("a", func(context.Context) error { return skipped{"so"} }))
	if got := out.String(); got != "fingerpost-replicas\n-------------------\n– a\n    skipped: so\n" ||
		len(r.report.Categories) > 0 || !r.report.Success || !errors.Is(skipped{}, errSkipped) {
		t.Errorf("%s%+v", got, r.report)
	}
}

package hostile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	inbound "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// policyArgs have a server serve policy, too.
var policyArgs = []string{"-policy-addr=127.0.0.1:0", "-policy-status=false", "-cluster-networks=10.0.0.0/8"}

// A policyClient asks for policies, as the proxies of one honest Pod do.
type policyClient struct {
	w        *world
	inbound  inbound.InboundServerPoliciesClient
	outbound outbound.OutboundPoliciesClient
}

func (w *world) policyClient() *policyClient {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+w.server.Policy,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return &policyClient{w, inbound.NewInboundServerPoliciesClient(conn), outbound.NewOutboundPoliciesClient(conn)}
}

// get asks for the policy of a Service.
func (c *policyClient) get(service string) (*outbound.OutboundPolicy, error) {
	ctx, cancel := context.WithTimeout(c.w.ctx, within)
	defer cancel()
	return c.outbound.Get(ctx, &outbound.TrafficSpec{
		SourceWorkload: "shop:client",
		Target:         &outbound.TrafficSpec_Authority{Authority: service + ".svc.cluster.local:80"},
	})
}

// ask asks for a port and for a Service again and again, as fast as a connection may, and returns how long the answers
// took, the fastest first.
func (c *policyClient) ask(n int) (took []time.Duration) {
	c.w.t.Helper()
	ticks := time.NewTicker(20 * time.Millisecond)
	defer ticks.Stop()
	for range n {
		<-ticks.C
		ctx, cancel := context.WithTimeout(c.w.ctx, within)
		began := time.Now()
		_, err := c.inbound.GetPort(ctx, &inbound.PortSpec{Workload: "shop:web-7d9f8-00000", Port: 8080})
		cancel()
		policy, err2 := c.get("web.shop")
		took = append(took, time.Since(began))

		if err := errors.Join(err, err2); err != nil {
			c.w.t.Fatalf("an honest client: %v", err)
		}
		if name := policy.GetMetadata().GetResource().GetName(); name != "web" {
			c.w.t.Fatalf("an honest client got the policy of %q", name)
		}
	}
	slices.Sort(took)
	return took
}

// compare logs answers under attack beside those before.
func (c *policyClient) compare(quiet []time.Duration) {
	c.w.t.Helper()
	const digits = 10 * time.Microsecond
	now := c.ask(len(quiet))
	middle, last := len(quiet)/2, len(quiet)-1
	c.w.t.Logf("honest answers: p50 %s, at most %s; quiet: p50 %s, at most %s", now[middle].Round(digits),
		now[last].Round(digits), quiet[middle].Round(digits), quiet[last].Round(digits))
}

// policyObject returns an object of policy. Its spec is in the place of others of that key.
func policyObject(apiVersion, kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": kind, "spec": spec,
		"metadata": map[string]any{"namespace": namespace, "name": name},
	}}
}

// routeTo returns a route of a Service in namespace evil, with a rule for each path.
func routeTo(service, name, pathType string, paths ...string) *unstructured.Unstructured {
	var all []any
	for _, path := range paths {
		match := map[string]any{"path": map[string]any{"type": pathType, "value": path}}
		all = append(all, map[string]any{"matches": []any{match}})
	}
	parent := map[string]any{"group": "", "kind": "Service", "name": service, "port": int64(80)}
	return policyObject("gateway.networking.k8s.io/v1", "HTTPRoute", "evil", name, map[string]any{
		"parentRefs": []any{parent}, "rules": all,
	})
}

func pathsOf(n, size int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("/%05d%s", i, strings.Repeat("a", size)))
	}
	return all
}

// evilService returns a Service with a cluster IP, to which routes attach.
func evilService(name, ip string) fakeapi.Object {
	s := fakeapi.App{Namespace: "evil", Name: name}.Service()
	s.Spec.ClusterIP, s.Spec.ClusterIPs = ip, []string{ip}
	return s
}

// serveEvil starts a server with policy, and a client of it that has asked for a while.
func (w *world) serveEvil() (c *policyClient, quiet []time.Duration) {
	w.t.Helper()
	for i, name := range []string{"many", "regex", "a", "b", "large"} {
		w.local.Apply(evilService(name, fmt.Sprintf("10.96.0.%d", i+1)))
	}
	w.serve(policyArgs...)
	c = w.policyClient()
	c.ask(10)
	return c, c.ask(100)
}

// Who may write routes writes large, broken and cyclic ones, over and over. What of them counts is bounded, each is
// reported once, and others are answered as before.
func TestHostileRoutes(t *testing.T) {
	w := newBusy(t)
	w.log = &lineCount{lines: map[[2]string]int{}, leftOut: map[[2]string]int{}}
	c, quiet := w.serveEvil()

	cycle := func(from, to string) *unstructured.Unstructured {
		route := routeTo(from, "to-"+to, "PathPrefix", "/")
		all, _, _ := unstructured.NestedSlice(route.Object, "spec", "rules")
		all[0].(map[string]any)["backendRefs"] = []any{map[string]any{"name": to, "port": int64(80)}}
		_ = unstructured.SetNestedSlice(route.Object, all, "spec", "rules")
		return route
	}
	w.bounded(150<<20, func() {
		for range 3 { // each is the same, but for its version
			w.local.Apply(
				routeTo("many", "many", "PathPrefix", pathsOf(20_000, 10)...),
				routeTo("regex", "regex", "RegularExpression", strings.Repeat("(a|b)*", 1<<20/6)),
				cycle("a", "b"), cycle("b", "a"),
			)
			c.compare(quiet)
		}

		w.eventually("routes are in force", func(context.Context) error {
			for _, name := range []string{"many", "regex", "a", "b"} {
				policy, err := c.get(name + ".evil")
				if err != nil {
					return err
				}
				routes := policy.GetProtocol().GetDetect().GetHttp1().GetRoutes()
				if len(routes) != 1 || routes[0].GetMetadata().GetResource() == nil || len(routes[0].GetRules()) > 128 {
					return fmt.Errorf("%s has %d routes: %.200v", name, len(routes), routes)
				}
			}
			return nil
		})
	})
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	if n := w.log.lines[[2]string{"", "Parts of an object of policy cannot be used"}]; n != 2 {
		t.Errorf("%d lines of the log are about the two routes of which a part cannot be used: %v", n, w.log.lines)
	}
}

// The routes of a Service are more than a message can be. Clients of that Service are refused with the reason,
// and clients of others are answered as before.
func TestHostileMessage(t *testing.T) {
	const routes, streams = 30, 100
	w := newBusy(t)
	c, quiet := w.serveEvil()
	evil := w.policyClient()
	w.bounded(250<<20, func() {
		for i := range routes {
			w.local.Apply(routeTo("large", fmt.Sprintf("large-%d", i), "Exact", pathsOf(100, 4000)...))
		}
		w.eventually("the policy is refused", func(context.Context) error {
			_, err := c.get("large.evil")
			if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "Service evil/large") {
				return fmt.Errorf("a call ends with %w", err)
			}
			return nil
		})

		var all sync.WaitGroup
		ctx := w.ctx
		for range streams {
			all.Go(func() {
				stream, err := evil.outbound.Watch(ctx, &outbound.TrafficSpec{
					SourceWorkload: "evil:client",
					Target:         &outbound.TrafficSpec_Authority{Authority: "large.evil.svc.cluster.local:80"},
				})
				if err == nil {
					_, err = stream.Recv()
				}
				if status.Code(err) != codes.ResourceExhausted {
					t.Errorf("a stream ends with %v", err)
				}
			})
		}
		c.compare(quiet)
		all.Wait()
		if n, err := w.server.Metric(ctx, "fingerpost_policy_too_large"); err != nil || n != 1 {
			t.Errorf("%v objects are reported: %v", n, err)
		}
	})
}

// A namespace has 10,000 Servers, which change all the time, and Pods with labels of any bytes. Others are answered as
// before.
func TestHostileNamespace(t *testing.T) {
	const servers, changes = 10_000, 200
	server := func(i int, access string) *unstructured.Unstructured {
		return policyObject("policy.linkerd.io/v1beta3", "Server", "evil", fmt.Sprintf("s-%05d", i), map[string]any{
			"podSelector": map[string]any{"matchLabels": map[string]any{"app": fmt.Sprint("none-", i)}},
			"port":        int64(80), "proxyProtocol": "HTTP/1", "accessPolicy": access,
		})
	}
	w := newBusy(t)
	w.local.Serve("servers", fakeapi.Series{N: servers, At: func(i int) fakeapi.Object { return server(i, "deny") }})
	pod := fakeapi.App{Namespace: "evil", Name: "bytes", First: web.Addr(200).Addr()}.Pod(0)
	pod.Labels["\xff\x00\n"], pod.Labels["v"] = "\xfe", strings.Repeat("\x01", 100)
	w.local.Apply(pod)
	c, quiet := w.serveEvil()

	w.bounded(150<<20, func() {
		stream, err := c.inbound.WatchPort(w.ctx, &inbound.PortSpec{Workload: "evil:" + pod.Name, Port: 80})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatalf("a Pod with labels of any bytes: %v", err)
		}
		for i := range changes {
			w.local.Apply(server(servers+i%10, []string{"deny", "all-authenticated"}[i/10%2]))
			c.ask(1)
		}
		c.compare(quiet)
	})
}

// Clients ask for thousands of names that do not exist, and leave. Nothing of it stays.
func TestHostilePolicyClients(t *testing.T) {
	const names, crowd = 2_000, 8
	w := newBusy(t)
	c, quiet := w.serveEvil()
	before := w.heap()
	w.bounded(150<<20, func() {
		var all sync.WaitGroup
		for of := range crowd {
			evil, ctx := w.policyClient(), w.ctx
			all.Go(func() {
				for i := of; i < names; i += crowd {
					_, _ = evil.get(fmt.Sprintf("name-%d.ns-%d", i, i))
					workload := fmt.Sprintf("ns-%d:pod", i)
					_, _ = evil.inbound.GetPort(ctx, &inbound.PortSpec{Workload: workload, Port: 80})
				}
			})
		}
		c.compare(quiet)
		all.Wait()
	})
	w.eventually("what was asked for is forgotten", func(context.Context) error {
		if after := w.heap(); after > before+4 {
			return fmt.Errorf("heap %d MiB, and %d MiB before", after, before)
		}
		return nil
	})
}

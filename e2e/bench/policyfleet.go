package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// The fleet has its Services, each with 10 Pods, in namespaces of 20. Every second Service has a route, and three of
// ten have a Server.
const (
	fleetServices  = 1_000
	fleetPods      = 10 // of a Service
	fleetNamespace = 20 // Services of a namespace
	fleetRoutes    = 500
	fleetServers   = 300

	fleetProxies  = 2_000
	fleetInbound  = 5 // streams of a proxy
	fleetOutbound = 30
	fleetStreams  = fleetInbound + fleetOutbound
)

// fleetApp returns a Service of the fleet by its number.
func fleetApp(i int) fakeapi.App {
	first := i * fleetPods
	return fakeapi.App{
		Namespace: fmt.Sprintf("ns-%d", i/fleetNamespace), Name: fmt.Sprintf("app-%d", i), Pods: fleetPods,
		First: netip.AddrFrom4([4]byte{10, byte(first >> 16), byte(first >> 8), byte(first)}),
	}
}

// fleetRoute returns the route of a Service, which has a request for each version wait another number of seconds.
func fleetRoute(app fakeapi.App, version int) *unstructured.Unstructured {
	backend := map[string]any{"name": app.Name, "port": int64(fakeapi.Port)}
	var all []any
	for i := range 3 {
		path := map[string]any{"type": "PathPrefix", "value": fmt.Sprintf("/%d", i)}
		all = append(all, map[string]any{
			"matches": []any{map[string]any{"path": path}}, "backendRefs": []any{backend},
			"timeouts": map[string]any{"request": fmt.Sprintf("%ds", version%1000+1)},
		})
	}

	parent := map[string]any{"group": "", "kind": "Service", "name": app.Name}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
		"metadata": map[string]any{"namespace": app.Namespace, "name": app.Name},
		"spec":     map[string]any{"parentRefs": []any{parent}, "rules": all},
	}}
}

func fillPolicyFleet(_ *fakeapi.Server, local *fakeapi.Cluster) {
	local.Serve("pods", fakeapi.Series{N: fleetServices * fleetPods, At: func(i int) fakeapi.Object {
		return fleetApp(i / fleetPods).Pod(i % fleetPods)
	}})
	local.Serve("endpointslices", fakeapi.Series{
		N: fleetServices, At: func(i int) fakeapi.Object { return fleetApp(i).Slice(0) },
	})
	local.Serve("services", fakeapi.Series{N: fleetServices, At: func(i int) fakeapi.Object {
		s := fleetApp(i).Service()
		s.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		s.Spec.Type = corev1.ServiceTypeClusterIP
		return s
	}})

	for i := range fleetRoutes {
		local.Apply(fleetRoute(fleetApp(2*i), 0))
	}
	for i := range fleetServers {
		local.Apply(fleetServer(i, "deny"))
	}
}

// fleetServer returns a Server of all Pods of a Service.
func fleetServer(i int, access string) *unstructured.Unstructured {
	app := fleetApp(i * fleetServices / fleetServers)
	return newServer(app.Namespace, app.Name, app.Name, fakeapi.TargetPort, access)
}

// fleetCall returns the call of a stream: 35 belong to each proxy, whose Pod is one of every Service.
func fleetCall(stream int) call {
	proxy, n := stream/fleetStreams, stream%fleetStreams
	app := fleetApp(proxy % fleetServices)
	if n < fleetInbound {
		pod := fmt.Sprintf("%s-7d9f8-%05d", app.Name, proxy/fleetServices)
		return watchPort(app.Namespace, pod, uint16(fakeapi.TargetPort+n))
	}

	to := fleetApp((proxy*7 + n - fleetInbound) % fleetServices)
	return call{outbound.OutboundPolicies_Watch_FullMethodName, &outbound.TrafficSpec{
		SourceWorkload: app.Namespace + ":client",
		Target:         &outbound.TrafficSpec_Authority{Authority: to.Authority()},
	}}
}

// policyFleet measures a server of 10,000 Pods with and without policy, then beside 70,000 streams.
func policyFleet(ctx context.Context, b *bench) (err error) {
	alone, stop, err := b.light(ctx, nil, fillPolicyFleet, unbounded...)
	if err != nil {
		return err
	}
	plain, err := tollOf(ctx, alone)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}

	var local *fakeapi.Cluster
	s, stop, err := b.light(ctx, nil, func(api *fakeapi.Server, c *fakeapi.Cluster) {
		local = c
		fillPolicyFleet(api, c)
	}, append([]string{"-max-streams=100000"}, policyArgs...)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	with, err := tollOf(ctx, s)
	if err != nil {
		return err
	}
	b.table.add("policy: 10,000 Pods, 1,000 Services, 500 routes, 300 Servers: live heap above that of discovery alone",
		"150 MiB", "%.1f MiB (%.1f MiB in all), %.1f MiB resident above it (%.1f)", mebi(with.Heap-plain.Heap),
		mebi(with.Heap), mebi(with.resident-plain.resident), mebi(with.resident))
	return b.policyStreams(ctx, s, local)
}

// policyStreams measures the server of a fleet with all streams of its proxies: at rest, and while objects change.
func (b *bench) policyStreams(ctx context.Context, s *fingerpost.Server, local *fakeapi.Cluster) error {
	const rounds, streams = 100, fleetProxies * fleetStreams
	before, err := inUse(ctx, s)
	if err != nil {
		return err
	}

	var seen latencies
	c, err := open(ctx, s.Policy, options{
		streams: streams, perConnection: fleetStreams, call: fleetCall, patient: true,
		received: func(_, n int, _ []byte) {
			if n > 0 {
				seen.note()
			}
		},
	})
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.wait(ctx, "first answers", func() bool { return c.answered.Load() == streams }); err != nil {
		return err
	}

	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	core, err := coreOf(ctx, s.PID(), 20*time.Second)
	if err != nil {
		return err
	}
	if _, err := inUse(ctx, s); err != nil { // stacks that have grown shrink with every second collection
		return err
	}
	after, err := inUse(ctx, s)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("  %d proxies, %d inbound and %d outbound streams each: memory of their streams",
		fleetProxies, fleetInbound, fleetOutbound)
	b.table.add(what, "2.1 KiB a stream",
		"%.0f MiB (%.1f KiB a stream, gRPC and stacks included)", (after-before)/(1<<20), (after-before)/streams/1024)
	b.table.add("  at rest", "0.005 of a core", "%.4f of a core", core)
	return b.policyLatency(ctx, local, c, &seen, rounds)
}

// policyLatency changes Servers and routes in turn, 100 ms apart.
func (b *bench) policyLatency(
	ctx context.Context, local *fakeapi.Cluster, c *crowd, seen *latencies, rounds int,
) error {
	for i := range rounds {
		seen.begin()
		if i%2 == 0 {
			local.Apply(fleetRoute(fleetApp(i*2%fleetServices), i+1))
		} else {
			local.Apply(fleetServer(i%fleetServers, "all-authenticated"))
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}

	if err := c.failed.Load(); err != nil {
		return *err
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if len(seen.took) == 0 {
		return errors.New("no change reached a stream")
	}
	b.table.add(fmt.Sprintf("  %d changes of routes and Servers, API server to client", rounds), "p99 50 ms",
		"%s (%d messages)", spread(seen.took), len(seen.took))
	return nil
}

// inUse returns the live heap and the stacks of a server, in bytes.
func inUse(ctx context.Context, s *fingerpost.Server) (float64, error) {
	t, err := tollOf(ctx, s)
	if err != nil {
		return 0, err
	}
	stacks, err := s.Metric(ctx, "go_memstats_stack_inuse_bytes")
	return float64(t.Heap) + stacks, err
}

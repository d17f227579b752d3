package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	inbound "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/internal/proc"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// policyArgs has a server serve policy, too.
var policyArgs = slices.Concat(unbounded, []string{
	"-policy-addr=127.0.0.1:0", "-policy-status=false", "-cluster-networks=10.0.0.0/8",
})

// In the namespace of which Servers are changed.
const (
	policyPods      = 1_000
	policyTemplates = 10
)

// policyPorts are those of a Pod.
var policyPorts = []uint16{8080, 9090}

// policyPod returns a Pod of one of the templates.
func policyPod(name string, template int) *corev1.Pod {
	pod := podOf(service{name: "policy"}, template)
	pod.Name = name
	pod.Labels["app"] = fmt.Sprintf("t%d", template)

	for _, port := range policyPorts {
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports,
			corev1.ContainerPort{Name: fmt.Sprintf("p%d", port), ContainerPort: int32(port)})
	}
	return pod
}

// newServer returns a Server of a port. An empty app selects all Pods.
func newServer(ns, name, app string, port uint16, access string) *unstructured.Unstructured {
	selected := map[string]any{}
	if app != "" {
		selected["app"] = app
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
		"metadata": map[string]any{"namespace": ns, "name": name},
		"spec": map[string]any{
			"podSelector": map[string]any{"matchLabels": selected},
			"port":        int64(port), "proxyProtocol": "HTTP/2", "accessPolicy": access,
		},
	}}
}

var serverResource = schema.GroupVersionResource{Group: "policy.linkerd.io", Version: "v1beta3", Resource: "servers"}

// watchPort returns the call of a proxy about one of its ports.
func watchPort(ns, pod string, port uint16) call {
	return call{inbound.InboundServerPolicies_WatchPort_FullMethodName, &inbound.PortSpec{
		Workload: ns + ":" + pod, Port: uint32(port),
	}}
}

// policyChanges measures the first message of a new Pod, and changes of a Server, beside a real API server.
func policyChanges(ctx context.Context, b *bench) (err error) {
	if _, err := controlplane.Binaries(ctx, os.Stderr); err != nil {
		return err
	}
	cluster, err := controlplane.Start(ctx, controlplane.Options{Name: "bench-policy", Light: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	if err := cluster.Apply(ctx, mesh.PolicyCRDs); err != nil {
		return err
	}
	f, err := emptyFleet(ctx, cluster)
	if err != nil {
		return err
	}

	podName := func(i int) string { return fmt.Sprintf("policy-%04d", i) }
	if err := parallel(policyPods, func(i int) error {
		pod := policyPod(podName(i), i%policyTemplates)
		_, err := f.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}

	s, err := b.serveFrom(ctx, cluster.AdminKubeconfig(), nil, policyArgs...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	if err := b.firstPolicies(ctx, f, s); err != nil {
		return err
	}
	return b.serverChanges(ctx, cluster, s, podName)
}

// firstPolicies measures how long it takes from the API server's answer about a new Pod until its proxy has the
// policy of a port.
func (b *bench) firstPolicies(ctx context.Context, f *fleet, s *fingerpost.Server) error {
	const rounds = 100
	conn, err := grpc.NewClient("passthrough:///"+s.Policy,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer conn.Close()
	ask := func(pod string) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		stream, err := inbound.NewInboundServerPoliciesClient(conn).WatchPort(ctx,
			&inbound.PortSpec{Workload: namespace + ":" + pod, Port: 8080})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}

	if err := ask("policy-0000"); err != nil { // so that the connection is there
		return err
	}
	early := 0
	var took []time.Duration
	for i := range rounds {
		name := fmt.Sprintf("new-%d", i)
		pod := policyPod(name, 0)
		if _, err := f.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}

		written := time.Now()
		err := ask(name)
		if status.Code(err) == codes.NotFound {
			early++
		}
		for status.Code(err) == codes.NotFound {
			err = ask(name)
		}
		if err != nil {
			return err
		}
		took = append(took, time.Since(written))
	}
	b.table.add("policy: a new Pod, from the API server to the first message about a port", "p50 5 ms",
		"%s; %d of %d first questions were too early", spread(took), early, rounds)
	return nil
}

// serverChanges measures the CPU of a change of a Server in a namespace all of whose ports are watched.
func (b *bench) serverChanges(
	ctx context.Context, cluster *controlplane.Cluster, s *fingerpost.Server, podName func(int) string,
) error {
	const rounds = 50
	servers, err := createServers(ctx, cluster)
	if err != nil {
		return err
	}
	if err := pause(ctx, time.Second); err != nil { // so that first answers are those with Servers
		return err
	}

	streams := policyPods * len(policyPorts)
	c, err := open(ctx, s.Policy, options{
		streams: streams, perConnection: len(policyPorts),
		call: func(i int) call {
			return watchPort(namespace, podName(i/len(policyPorts)), policyPorts[i%len(policyPorts)])
		},
	})
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.wait(ctx, "first answers", func() bool { return c.answered.Load() == int64(streams) }); err != nil {
		return err
	}

	for _, row := range []struct {
		server string
		reach  int // streams
	}{{"t0", policyPods / policyTemplates}, {"all", policyPods}} {
		each, err := rounded(ctx, c, s.PID(), row.reach, rounds, func() error {
			return toggleAccess(ctx, servers, row.server)
		})
		if err != nil {
			return err
		}
		what := fmt.Sprintf("policy: a change of a Server among %d watched ports of %d Pods, which reaches %d streams",
			streams, policyPods, row.reach)
		whole := each * time.Duration(row.reach)
		b.table.add(what, "10 ms of CPU", "%.1f ms of CPU (%.1f us a message)", whole.Seconds()*1000, micros(each))
	}
	return nil
}

// createServers creates a Server of the first port for each template, and one of the second port for all.
func createServers(ctx context.Context, cluster *controlplane.Cluster) (dynamic.ResourceInterface, error) {
	config := cluster.AdminConfig()
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}

	all := []*unstructured.Unstructured{newServer(namespace, "all", "", policyPorts[1], "deny")}
	for t := range policyTemplates {
		app := fmt.Sprintf("t%d", t)
		all = append(all, newServer(namespace, app, app, policyPorts[0], "deny"))
	}
	servers := client.Resource(serverResource).Namespace(namespace)
	for _, server := range all {
		if _, err := servers.Create(ctx, server, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	return servers, nil
}

// toggleAccess gives a Server another accessPolicy.
func toggleAccess(ctx context.Context, servers dynamic.ResourceInterface, name string) error {
	server, err := servers.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}

	access, _, err := unstructured.NestedString(server.Object, "spec", "accessPolicy")
	if err != nil {
		return err
	}
	other := map[string]string{"deny": "all-authenticated", "all-authenticated": "deny"}[access]
	if err := unstructured.SetNestedField(server.Object, other, "spec", "accessPolicy"); err != nil {
		return err
	}
	_, err = servers.Update(ctx, server, metav1.UpdateOptions{})
	return err
}

// latencies collects how long messages took that follow from a change.
type latencies struct {
	mu   sync.Mutex
	at   time.Time // of the change; zero: none is measured
	took []time.Duration
}

func (l *latencies) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = time.Now()
}

func (l *latencies) note() {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.at.IsZero() {
		l.took = append(l.took, now.Sub(l.at))
	}
}

// coreOf returns the part of a core that a process takes in some time.
func coreOf(ctx context.Context, pid int, span time.Duration) (float64, error) {
	before, err := proc.CPU(pid)
	if err != nil {
		return 0, err
	}
	if err := pause(ctx, span); err != nil {
		return 0, err
	}
	after, err := proc.CPU(pid)
	return (after - before).Seconds() / span.Seconds(), err
}

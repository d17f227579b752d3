// Package slices tests on real control planes what the server writes into clusters, and who of several replicas does.
package slices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// What all tests share: the server's binary, and three clusters with all of Kubernetes' own controllers, which
// write slices of their own beside ours. Each test uses namespaces of its own.
var (
	binary   string
	clusters []*site
)

const (
	linkerd       = mesh.Linkerd // where the Leases are
	externalLease = "linkerd-destination-endpoint-write"
	external      = "linkerd-external-workloads-controller" // who manages the slices of ExternalWorkloads
	federated     = "federation.fingerpost.io"              // and those with what other clusters hold
)

// namespaces are those of Linkerd: of its control plane, and of its service mirrors, if there are any.
const namespaces = "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + linkerd +
	"}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: linkerd-multicluster}\n"

var workloadResource = schema.GroupVersionResource{
	Group:    "workload.linkerd.io",
	Version:  "v1beta1",
	Resource: "externalworkloads",
}

// A site is a cluster and clients of its admin.
type site struct {
	*controlplane.Cluster
	kubernetes.Interface
	dynamic dynamic.Interface
}

func TestMain(m *testing.M) {
	fingerpost.TestMain(context.Background(), fingerpost.Race, func(ctx context.Context, built string) (int, error) {
		binary = built
		return run(ctx, m)
	})
}

func run(ctx context.Context, m *testing.M) (code int, err error) {
	started, err := controlplane.StartAll(ctx, controlplane.Options{Name: "east", Audit: true, IPv6: true},
		controlplane.Options{Name: "west", Audit: true},
		controlplane.Options{Name: "north", Audit: true})
	if err != nil {
		return 1, err
	}
	defer func() {
		for _, c := range started {
			err = errors.Join(err, c.Stop())
		}
	}()
	for _, c := range started {
		s := &site{Cluster: c}
		config := c.AdminConfig()
		config.QPS = -1
		if s.Interface, err = kubernetes.NewForConfig(config); err != nil {
			return 1, err
		}
		if s.dynamic, err = dynamic.NewForConfig(config); err != nil {
			return 1, err
		}
		for _, manifest := range [][]byte{mesh.LinkerdCRDs, []byte(namespaces)} {
			if err := c.Apply(ctx, manifest); err != nil {
				return 1, err
			}
		}
		clusters = append(clusters, s)
	}
	return m.Run(), nil
}

// install installs chart fingerpost in a cluster, for Links in a namespace.
func (s *site) install(t *testing.T, links string) *charts.Installation {
	t.Helper()
	in, err := charts.Install(t.Context(), s.Cluster, charts.Server, links+"-system", fmt.Sprintf(
		"{cluster: {name: %s}, links: {namespace: %s}, controllerNamespace: %s, mirror: {mode: \"on\"}}",
		s.Name(), links, linkerd))
	do(t, err)
	return in
}

// start starts a replica with the cluster's own server, as the chart does but with short times. The test that
// starts it stops it.
func (s *site) start(t *testing.T, replica string, in *charts.Installation, url string) (*fingerpost.Server, error) {
	t.Helper()
	return fingerpost.Start(context.WithoutCancel(t.Context()), fingerpost.Options{
		Binary: binary, Dir: t.TempDir(), Kubeconfig: s.Kubeconfig(in.Identity, url),
		Env:  []string{"HOSTNAME=" + replica},
		Args: append(slices.Clone(in.Args), "-probe-interval=1s", "-suspect-after=3s", "-stale-after=8s"),
	})
}

// serve starts a replica, and stops it at the end of the test.
func (s *site) serve(t *testing.T, replica string, in *charts.Installation, url string) *fingerpost.Server {
	t.Helper()
	server, err := s.start(t, replica, in, url)
	do(t, err)
	stopAfter(t, replica, server)
	return server
}

// stopAfter stops a replica at the end of the test, where it must end well.
func stopAfter(t *testing.T, replica string, server *fingerpost.Server) {
	t.Helper()
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", replica, server.Tail())
		}
	})
}

// namespace makes a namespace, which is deleted at the end of the test.
func (s *site) namespace(t *testing.T, name string) {
	t.Helper()
	do(t, s.Apply(t.Context(), fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", name)))
	t.Cleanup(func() { // every replica that starts later would list what is in it
		if err := s.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), name,
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// slicesOf returns the slices of a Service that one manages, by name; for an empty manager those of all.
func (s *site) slicesOf(ctx context.Context, namespace, service, manager string) ([]discoveryv1.EndpointSlice, error) {
	selector := discoveryv1.LabelServiceName + "=" + service
	if manager != "" {
		selector += "," + discoveryv1.LabelManagedBy + "=" + manager
	}
	list, err := s.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// eventually waits until a check passes, for five times the time that is claimed at most, and logs how long it took.
func eventually(t *testing.T, claimed time.Duration, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*claimed)
	defer cancel()
	began := time.Now()
	if err := mesh.Eventually(ctx, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s: %s (claimed: %s)", what, time.Since(began).Round(time.Millisecond), claimed)
}

// workload returns an ExternalWorkload with one address for each family that ips holds, and ports as name:number.
func workload(namespace, name string, labels map[string]string, ips []string,
	ports ...string,
) *unstructured.Unstructured {
	spec := map[string]any{"meshTLS": map[string]any{
		"identity":   "spiffe://root.linkerd.cluster.local/" + name,
		"serverName": name + ".cluster.local",
	}}
	var addresses, documented []any
	for _, ip := range ips {
		addresses = append(addresses, map[string]any{"ip": ip})
	}
	for _, p := range ports {
		var number int64
		named, text, _ := strings.Cut(p, ":")
		if _, err := fmt.Sscan(text, &number); err != nil {
			panic("a port must be name:number")
		}
		documented = append(documented, map[string]any{"name": named, "port": number, "protocol": "TCP"})
	}
	spec["workloadIPs"], spec["ports"] = addresses, documented
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
		"metadata": map[string]any{"name": name, "namespace": namespace}, "spec": spec,
	}}
	u.SetLabels(labels)
	return u
}

// ready sets whether an ExternalWorkload is ready.
func ready(u *unstructured.Unstructured, is bool) *unstructured.Unstructured {
	status := "False"
	if is {
		status = "True"
	}
	u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status}}}
	return u
}

// create creates ExternalWorkloads, eight at a time.
func (s *site) create(t *testing.T, workloads ...*unstructured.Unstructured) {
	t.Helper()
	var wg sync.WaitGroup
	todo := make(chan *unstructured.Unstructured)
	errs := make(chan error, len(workloads))
	for range 8 {
		wg.Go(func() {
			for u := range todo {
				_, err := s.dynamic.Resource(workloadResource).Namespace(u.GetNamespace()).Create(t.Context(),
					u, metav1.CreateOptions{})
				errs <- err
			}
		})
	}
	for _, u := range workloads {
		todo <- u
	}
	close(todo)
	wg.Wait()
	close(errs)
	for err := range errs {
		do(t, err)
	}
}

// change gets an ExternalWorkload, changes it and puts it back.
func (s *site) change(t *testing.T, namespace, name string, f func(*unstructured.Unstructured)) {
	t.Helper()
	client := s.dynamic.Resource(workloadResource).Namespace(namespace)
	u, err := client.Get(t.Context(), name, metav1.GetOptions{})
	do(t, err)
	f(u)
	_, err = client.Update(t.Context(), u, metav1.UpdateOptions{})
	do(t, err)
}

// service creates or changes a Service.
func (s *site) service(t *testing.T, svc *corev1.Service) *corev1.Service {
	t.Helper()
	created, err := s.CoreV1().Services(svc.Namespace).Create(t.Context(), svc, metav1.CreateOptions{})
	do(t, err)
	return created
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

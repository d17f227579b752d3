package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/internal/proc"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

const (
	workloadServices = 100
	workloadsOfEach  = 100
	workloadsInAll   = workloadServices * workloadsOfEach
)

var workloadResource = schema.GroupVersionResource{
	Group:    "workload.linkerd.io",
	Version:  "v1beta1",
	Resource: "externalworkloads",
}

// workloads measures a server that finds 10,000 ExternalWorkloads in 100 Services of which no slice is
// written yet, and then single changes.
func workloads(ctx context.Context, b *bench) (err error) {
	const ns, changes = "workloads", 50
	for _, manifest := range [][]byte{
		mesh.LinkerdCRDs,
		[]byte("{apiVersion: v1, kind: Namespace, metadata: {name: workloads}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: linkerd}}\n"),
	} {
		if err := b.cluster.Apply(ctx, manifest); err != nil {
			return err
		}
	}
	config := b.cluster.AdminConfig()
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	all := client.Resource(workloadResource).Namespace(ns)
	defer func() { // the measurements after this one are not to see them
		err = errors.Join(err, all.DeleteCollection(context.WithoutCancel(ctx), metav1.DeleteOptions{},
			metav1.ListOptions{}))
	}()
	if err := fill(ctx, b, all, ns); err != nil {
		return err
	}

	began := time.Now()
	s, err := b.serve(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	if err := b.endpoints(ctx, ns, func(n int) bool { return n == workloadsInAll }); err != nil {
		return err
	}
	took := time.Since(began)
	used, err := proc.CPU(s.PID())
	if err != nil {
		return err
	}
	first := writes(ctx, s)
	b.table.add("10,000 ExternalWorkloads in 100 Services: start to complete slices", "",
		"%.2f s, %.2f CPU s, %.0f writes", took.Seconds(), used.Seconds(), first)

	var slowest, sum time.Duration
	for i := range changes {
		name := workloadName(i%workloadServices, i%workloadsOfEach)
		u, err := all.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		u.SetLabels(workloadLabels(i%workloadServices, fmt.Sprintf("zone-%d", i)))
		at := time.Now()
		if _, err := all.Update(ctx, u, metav1.UpdateOptions{}); err != nil {
			return err
		}
		if err := b.zone(ctx, ns, i%workloadServices, fmt.Sprintf("zone-%d", i)); err != nil {
			return err
		}
		d := time.Since(at)
		slowest, sum = max(slowest, d), sum+d
	}
	now := writes(ctx, s)
	after, err := proc.CPU(s.PID())
	if err != nil {
		return err
	}
	b.table.add("one change of one of them: writes", "1", "%.2f", (now-first)/changes)
	b.table.add("until its slice shows it (coalesced for 50 ms)", "", "%d ms mean, %d ms at most",
		sum.Milliseconds()/changes, slowest.Milliseconds())
	b.table.add("CPU for it", "", "%.1f ms", float64((after-used).Microseconds())/1000/changes)
	return nil
}

func workloadName(service, n int) string { return fmt.Sprintf("ew-%03d-%03d", service, n) }

func workloadLabels(service int, zone string) map[string]string {
	return map[string]string{"app": fmt.Sprintf("app-%03d", service), corev1.LabelTopologyZone: zone}
}

// fill creates the Services and the ExternalWorkloads.
func fill(ctx context.Context, b *bench, all dynamic.ResourceInterface, ns string) error {
	var wg sync.WaitGroup
	todo := make(chan int)
	errs := make(chan error, workloadServices)
	for range writers {
		wg.Go(func() {
			for i := range todo {
				errs <- func() error {
					svc := &corev1.Service{
						ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("app-%03d", i), Namespace: ns},
						Spec: corev1.ServiceSpec{
							ClusterIP: corev1.ClusterIPNone,
							Selector:  map[string]string{"app": fmt.Sprintf("app-%03d", i)},
							Ports:     []corev1.ServicePort{{Name: "http", Port: 80}},
						},
					}
					if _, err := b.fleet.client.CoreV1().Services(ns).Create(ctx, svc,
						metav1.CreateOptions{}); err != nil {
						return err
					}
					for j := range workloadsOfEach {
						u := &unstructured.Unstructured{Object: map[string]any{
							"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
							"metadata": map[string]any{"name": workloadName(i, j)},
							"spec": map[string]any{
								"meshTLS": map[string]any{
									"identity":   "spiffe://root.linkerd.cluster.local/" + workloadName(i, j),
									"serverName": workloadName(i, j),
								},
								"workloadIPs": []any{map[string]any{"ip": fmt.Sprintf("10.77.%d.%d", i, j+1)}},
								"ports": []any{map[string]any{
									"name":     "http",
									"port":     int64(80),
									"protocol": "TCP",
								}},
							},
							"status": map[string]any{"conditions": []any{map[string]any{
								"type":   "Ready",
								"status": "True",
							}}},
						}}
						u.SetLabels(workloadLabels(i, "zone-a"))
						if _, err := all.Create(ctx, u, metav1.CreateOptions{}); err != nil {
							return err
						}
					}
					return nil
				}()
			}
		})
	}
	for i := range workloadServices {
		todo <- i
	}
	close(todo)
	wg.Wait()
	close(errs)
	var failed []error
	for err := range errs {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// endpoints waits until the slices in a namespace hold a number of endpoints.
func (b *bench) endpoints(ctx context.Context, ns string, enough func(int) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return mesh.Eventually(ctx, func(ctx context.Context) error {
		list, err := b.fleet.client.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		n := 0
		for _, es := range list.Items {
			n += len(es.Endpoints)
		}
		if !enough(n) {
			return fmt.Errorf("the slices hold %d endpoints", n)
		}
		return nil
	})
}

// zone waits until an endpoint of a Service is in a zone.
func (b *bench) zone(ctx context.Context, ns string, service int, zone string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	w, err := b.fleet.client.DiscoveryV1().EndpointSlices(ns).Watch(ctx, metav1.ListOptions{
		LabelSelector: fmt.Sprintf("%s=app-%03d", discoveryv1.LabelServiceName, service),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		es, ok := event.Object.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		for _, e := range es.Endpoints {
			if e.Zone != nil && *e.Zone == zone {
				return nil
			}
		}
	}
	return fmt.Errorf("no endpoint of app-%03d is in %s: %w", service, zone, ctx.Err())
}

// writes returns how many slices the server has written.
func writes(ctx context.Context, s *fingerpost.Server) (n float64) {
	for _, verb := range []string{"create", "update", "delete"} {
		name := fmt.Sprintf("fingerpost_slice_writes_total{managed_by=%q,target_cluster=%q,verb=%q}",
			"linkerd-external-workloads-controller", "local", verb)
		if v, err := s.Metric(ctx, name); err == nil { // a series begins with its first write
			n += v
		}
	}
	return n
}

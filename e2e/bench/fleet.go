package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
)

const (
	namespace = "bench"
	perSlice  = 100
	nodes     = 200
	totalPods = 20_000
	writers   = 16 // at the same time
)

// A service is written with all its endpoints ready and meshed, on 200 nodes.
type service struct {
	name      string
	endpoints int
}

var (
	small  = service{"small", 100}
	medium = service{"medium", 1_000}
	large  = service{"large", 10_000}
	others = service{"others", 8_900} // no client asks for it
)

// fleet is what the API server holds.
type fleet struct {
	client *kubernetes.Clientset

	mu      sync.Mutex
	slices  map[string]*discoveryv1.EndpointSlice // by name, as they were written last
	version int                                   // of the newest change, the number in its zone
}

// emptyFleet prepares a cluster for Services.
func emptyFleet(ctx context.Context, c *controlplane.Cluster) (*fleet, error) {
	config := c.AdminConfig()
	config.QPS, config.Burst = -1, 0
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	f := &fleet{client: client, slices: map[string]*discoveryv1.EndpointSlice{}}
	if _, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: namespace}}
	if _, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, account,
		metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return f, nil
}

// newFleet writes all Services, 20,000 Pods in all.
func newFleet(ctx context.Context, c *controlplane.Cluster) (*fleet, error) {
	f, err := emptyFleet(ctx, c)
	if err != nil {
		return nil, err
	}
	var total int
	for _, s := range []service{small, medium, large, others} {
		if err := f.write(ctx, s, total); err != nil {
			return nil, fmt.Errorf("write Service %s: %w", s.name, err)
		}
		total += s.endpoints
	}
	if total != totalPods {
		return nil, fmt.Errorf("the Services have %d Pods", total)
	}
	return f, nil
}

// write creates a Service. first is the number of its first address.
func (f *fleet) write(ctx context.Context, s service, first int) error {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: namespace},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	if _, err := f.client.CoreV1().Services(namespace).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		return err
	}
	err := parallel(s.endpoints, func(i int) error {
		pod, err := f.client.CoreV1().Pods(namespace).Create(ctx, podOf(s, i), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		pod.Status = corev1.PodStatus{
			Phase:  corev1.PodRunning,
			PodIP:  addressOf(first + i),
			PodIPs: []corev1.PodIP{{IP: addressOf(first + i)}},
		}
		_, err = f.client.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return parallel(s.endpoints/perSlice, func(i int) error {
		es, err := f.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, sliceOf(s, i, first),
			metav1.CreateOptions{})
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.slices[es.Name] = es
		return nil
	})
}

// parallel calls f for 0 to n-1, some at a time, and returns the first error.
func parallel(n int, f func(int) error) (first error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for w := range writers {
		wg.Go(func() {
			for i := w; i < n; i += writers {
				if err := f(i); err != nil {
					mu.Lock()
					first = err
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

func podOf(s service, i int) *corev1.Pod {
	listen := func(name string, port int) corev1.EnvVar {
		return corev1.EnvVar{Name: "LINKERD2_PROXY_" + name + "_LISTEN_ADDR", Value: fmt.Sprintf("[::]:%d", port)}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-5d8f7c9b4-%05d", s.name, i), Namespace: namespace,
			Labels: map[string]string{
				"app":                         s.name,
				"pod-template-hash":           "5d8f7c9b4",
				"linkerd.io/control-plane-ns": "linkerd",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1",
				Kind:       "ReplicaSet",
				Name:       s.name + "-5d8f7c9b4",
				UID:        "1",
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: nodeOf(i),
			Containers: []corev1.Container{
				{Name: "app", Image: "registry.example.net/app:1.2.3"},
				{
					Name:  "linkerd-proxy",
					Image: "cr.l5d.io/linkerd/proxy",
					Env:   []corev1.EnvVar{listen("INBOUND", 4143), listen("ADMIN", 4191), listen("CONTROL", 4190)},
				},
			},
		},
	}
}

// addressOf returns the IP of one of all Pods by its number.
func addressOf(n int) string { return fmt.Sprintf("10.0.%d.%d", n/250, n%250+1) }

func nodeOf(i int) string { return fmt.Sprintf("node-%d", i%nodes) }

func sliceOf(s service, i, first int) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%05d", s.name, i), Namespace: namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name:     new("http"),
			Port:     new(int32(8080)),
			Protocol: new(corev1.ProtocolTCP),
		}},
	}
	for j := i * perSlice; j < (i+1)*perSlice; j++ {
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{addressOf(first + j)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			NodeName:   new(nodeOf(j)),
			Zone:       new("zone-0"),
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: podOf(s, j).Name},
		})
	}
	return es
}

// change makes the first n endpoints of a Service's first slice other than they were, so that clients are
// sent each again, and returns the number of the change, which stands in the messages about it: the zone's
// name is "zone-" and that number.
func (f *fleet) change(ctx context.Context, s service, n int) (int, error) {
	name := s.name + "-00000"
	f.mu.Lock()
	f.version++
	version, es := f.version, f.slices[name].DeepCopy()
	f.mu.Unlock()
	for i := range n {
		es.Endpoints[i].Zone = new(fmt.Sprintf("%s%d", zonePrefix, version))
	}
	es, err := f.client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, es, metav1.UpdateOptions{})
	if err != nil {
		return 0, fmt.Errorf("change %s: %w", name, err)
	}
	f.mu.Lock()
	f.slices[name] = es
	f.mu.Unlock()
	return version, nil
}

const zonePrefix = "zone-"

// setPolicy sets a Service's internalTrafficPolicy.
func (f *fleet) setPolicy(ctx context.Context, s service, policy corev1.ServiceInternalTrafficPolicy) error {
	svc, err := f.client.CoreV1().Services(namespace).Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	svc.Spec.InternalTrafficPolicy = &policy
	_, err = f.client.CoreV1().Services(namespace).Update(ctx, svc, metav1.UpdateOptions{})
	return err
}

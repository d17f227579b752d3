package view

import (
	"fmt"
	"reflect"
	"runtime"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

// A fleet is what the memory figures are about: 100,000 endpoints over 20 clusters, in Services of 100
// endpoints, one EndpointSlice and one Deployment each, on 200 nodes in three zones a cluster.
const (
	fleetClusters = 20
	fleetServices = 50 // a cluster
	perService    = 100

	budget      = 350 // bytes of live heap an endpoint
	localBudget = 515 // in the local cluster, where it can be asked for by IP as well
)

// update passes an object to its store through the encoding in which it comes from an API server, so that
// its record shares memory with nothing.
func update(tb testing.TB, k Input, o metav1.Object) {
	tb.Helper()
	message, ok := o.(interface{ Marshal() ([]byte, error) })
	if !ok {
		tb.Fatalf("%T is not sent as protobuf", o)
	}
	b, err := message.Marshal()
	if err != nil {
		tb.Fatal(err)
	}
	arrived := reflect.New(reflect.TypeOf(o).Elem()).Interface()
	if err := arrived.(interface{ Unmarshal([]byte) error }).Unmarshal(b); err != nil {
		tb.Fatal(err)
	}
	k.Store.Update(arrived)
}

// somePod returns Pod i of a Service as a cluster with a mesh has it, with what takes room in real ones.
func somePod(cluster, service, i int) *corev1.Pod {
	name := fmt.Sprintf("service-%d-5d8f7c9b4-%05d", service, i)
	env := func(port int) string { return fmt.Sprintf("[::]:%d", port) }
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%d", service%10), Name: name,
			UID: types.UID(fmt.Sprintf("%d-%s", cluster, name)),
			Labels: map[string]string{
				"app": fmt.Sprintf("service-%d", service), "pod-template-hash": "5d8f7c9b4",
				linkerd.ControlPlaneLabel:     "linkerd",
				"linkerd.io/proxy-deployment": fmt.Sprintf("service-%d", service),
				"linkerd.io/workload-ns":      fmt.Sprintf("team-%d", service%10),
			},
			Annotations: map[string]string{
				"linkerd.io/created-by": "linkerd/proxy-injector", linkerd.OpaquePortsAnnotation: "25,587,3306",
			},
			OwnerReferences: []metav1.OwnerReference{{
				Kind: "ReplicaSet", Name: fmt.Sprintf("service-%d-5d8f7c9b4", service),
			}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addressOf(cluster, service, i)},
		Spec: corev1.PodSpec{
			NodeName:           fmt.Sprintf("node-%d.region-%d.example.net", i*7%200, cluster),
			ServiceAccountName: fmt.Sprintf("service-%d", service),
			Containers: []corev1.Container{
				{
					Name: "app", Image: "registry.example.net/app:1.2.3",
					Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				},
				{Name: linkerd.ProxyContainer, Env: []corev1.EnvVar{
					{Name: inboundListenEnv, Value: env(4143)},
					{Name: adminListenEnv, Value: env(4191)},
					{Name: controlListenEnv, Value: env(4190)},
				}},
			},
		},
	}
}

func addressOf(cluster, service, i int) string {
	n := service*perService + i
	return fmt.Sprintf("10.%d.%d.%d", cluster, n/250, n%250+1)
}

// someSlice returns the EndpointSlice of n Pods of a Service, without those that are not ready.
func someSlice(cluster, service, from, n int, unready map[int]bool) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%d", service%10), Name: fmt.Sprintf("service-%d-%05d", service, from),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", service)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP),
		}},
	}
	for i := from; i < from+n; i++ {
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{addressOf(cluster, service, i)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(!unready[i])},
			NodeName:   new(fmt.Sprintf("node-%d.region-%d.example.net", i*7%200, cluster)),
			Zone:       new(fmt.Sprintf("region-%d%c", cluster, 'a'+i%3)),
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: es.Namespace, Name: somePod(cluster, service, i).Name,
			},
		})
	}
	return es
}

func someService(service int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%d", service%10), Name: fmt.Sprintf("service-%d", service),
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

func someReplicaSet(service int) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: fmt.Sprintf("team-%d", service%10), Name: fmt.Sprintf("service-%d-5d8f7c9b4", service),
		OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: fmt.Sprintf("service-%d", service)}},
	}}
}

// begun returns a Reconciler that has published n Services with so many endpoints each.
func begun(tb testing.TB, store *federation.Store, options Options, cluster, n, endpoints int) (*Reconciler, *world) {
	tb.Helper()
	name := federation.Cluster(fmt.Sprintf("cluster-%d", cluster))
	store.AddCluster(name, federation.Expectation{TrustDomain: "cluster.local", Local: true})
	r := NewReconciler(logr.Discard(), name, options)
	w := newWorld(r)
	limits := api.NewBudget(api.Limits{Services: 1e6, Endpoints: 1e6, Bytes: 1 << 40})
	for _, k := range w.kinds { // sizes are held, too
		k.Store.UseBudget(limits, k.Kind)
	}
	for s := range n {
		update(tb, w.kinds["Service"], someService(s))
		update(tb, w.kinds["ReplicaSet"], someReplicaSet(s))
		for i := range endpoints {
			update(tb, w.kinds["Pod"], somePod(cluster, s, i))
		}
		for from := 0; from < endpoints; from += 100 {
			update(tb, w.kinds["EndpointSlice"], someSlice(cluster, s, from, min(100, endpoints-from), nil))
		}
	}
	r.Begin(store.NewWriter(name), &store.Facts)
	return r, w
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // what a first one freed, a second one sweeps; finalizers have run
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// fleet reads so many clusters and returns the live heap that they take, for each endpoint: records,
// Workloads and Views.
func fleet(tb testing.TB, options Options, clusters int) (bytes uint64) {
	tb.Helper()
	before := liveHeap()
	store := federation.NewStore()
	var reconcilers []*Reconciler
	for c := range clusters {
		r, _ := begun(tb, store, options, c, fleetServices, perService)
		reconcilers = append(reconcilers, r)
	}
	bytes = liveHeap() - before
	for _, r := range reconcilers {
		r.queue.ShutDown()
	}
	runtime.KeepAlive(store)
	return bytes / uint64(clusters*fleetServices*perService)
}

// TestMemoryBudget: an endpoint with its Pod costs no more than its budget. A part of the fleet is as good
// as all of it. Only one cluster can be the local one.
func TestMemoryBudget(t *testing.T) {
	for options, budget := range map[Options]uint64{{}: budget, {Local: true}: localBudget} {
		if bytes := fleet(t, options, 1); bytes > budget {
			t.Errorf("%+v: an endpoint costs %d bytes of live heap; the budget is %d", options, bytes, budget)
		} else {
			t.Logf("%+v: an endpoint costs %d bytes of live heap", options, bytes)
		}
	}
}

// TestReductionBudget: what is made to reduce a Pod to its record, and thrown away, does not grow with the Pod.
func TestReductionBudget(t *testing.T) {
	const rounds, most = 1000, 1 << 10 // bytes a Pod
	r := NewReconciler(logr.Discard(), "east", Options{Local: true})
	small, large := somePod(0, 0, 0), somePod(0, 0, 0)
	for range 50 {
		large.Spec.Containers = append(large.Spec.Containers, corev1.Container{Name: "sidecar"})
	}
	for _, p := range []*corev1.Pod{small, large} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range rounds {
			r.reducePod(p, &omissions{})
		}
		runtime.ReadMemStats(&after)
		if bytes := (after.TotalAlloc - before.TotalAlloc) / rounds; bytes > most {
			t.Errorf("%d containers: %d bytes are allocated; the budget is %d", len(p.Spec.Containers), bytes, most)
		} else {
			t.Logf("%d containers: %d bytes are allocated", len(p.Spec.Containers), bytes)
		}
	}
}

// BenchmarkMemory reports what the fleet costs, an endpoint.
func BenchmarkMemory(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		b.ReportMetric(float64(fleet(b, Options{}, fleetClusters)), "live-B/endpoint")
	}
}

// BenchmarkChange is one endpoint of a Service becoming ready or not: from the update of its EndpointSlice
// to the View that is published.
func BenchmarkChange(b *testing.B) {
	for _, endpoints := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			store := federation.NewStore()
			r, w := begun(b, store, Options{}, 0, 1, endpoints)
			defer r.queue.ShutDown()
			slices := []*discoveryv1.EndpointSlice{
				someSlice(0, 0, 0, 100, map[int]bool{7: true}), someSlice(0, 0, 0, 100, nil),
			}
			k := key{Namespace: slices[0].Namespace, Name: slices[0].Name}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.kinds["EndpointSlice"].Store.Update(slices[i%2])
				r.reconcileSlice(k)
				r.publishService(key{Namespace: k.Namespace, Name: "service-0"})
			}
		})
	}
}

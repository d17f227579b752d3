package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
)

// BenchmarkJoin is how long an event of a shared watch takes from the API server to its Store: while nothing
// else happens, and while a Store that joins lists 20,000 Services. The API server runs in the same process.
func BenchmarkJoin(b *testing.B) {
	const services = 20_000
	network := apitest.NewNetwork()
	defer network.Close()
	east := network.Server("east")
	some := func(i, n int) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Service",
			"metadata": map[string]any{
				"name": fmt.Sprintf("web-%d", i), "namespace": "ns",
				"labels": map[string]any{"app": fmt.Sprintf("web-%d", i), "n": strconv.Itoa(n)},
			},
			"spec": map[string]any{
				"clusterIP": "10.0.0.1",
				"ports":     []any{map[string]any{"name": "http", "port": int64(80)}},
			},
		}}
	}
	for i := range services {
		east.Apply(some(i, 0))
	}
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(east.Kubeconfig(east.Token())))
	if err != nil {
		b.Fatal(err)
	}
	conn, err := api.NewConnection(config, network.Dial)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	changes := make(chan string, services+1)
	record := func(o any) (string, bool) { return o.(*corev1.Service).Labels["n"], true }
	newInformer := func(changed func(*api.Informer[string], api.Key)) (informer *api.Informer[string]) {
		kind := api.Typed(corev1.SchemeGroupVersion, "services", "Service", &corev1.Service{})
		informer = api.NewInformer(conn, kind, record, func(k api.Key) { changed(informer, k) })
		return informer
	}
	shared := newInformer(func(i *api.Informer[string], k api.Key) {
		n, _ := i.Get(k)
		changes <- n
	})
	conn.Share(shared.Watcher)
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { shared.Run(ctx) })
	for range services {
		<-changes
	}
	n := 0
	latency := func() time.Duration {
		n++
		began := time.Now()
		east.Apply(some(n%services, n))
		for <-changes != strconv.Itoa(n) {
		}
		return time.Since(began)
	}
	measure := func(name string, done <-chan struct{}) {
		var all []time.Duration
		pace := time.NewTicker(2 * time.Millisecond)
		defer pace.Stop()
		for ended := false; !ended; {
			<-pace.C
			all = append(all, latency())
			select {
			case <-done:
				ended = true
			default:
			}
		}
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), "µs-median-"+name)
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "µs-p99-"+name)
		b.ReportMetric(float64(all[len(all)-1].Microseconds()), "µs-max-"+name)
	}
	for b.Loop() {
		idle := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(idle) })
		measure("alone", idle)
		joined := newInformer(func(*api.Informer[string], api.Key) {})
		run, leave := context.WithCancel(ctx)
		var one sync.WaitGroup
		one.Go(func() { joined.Run(run) })
		measure("beside-a-join", joined.Synced())
		leave()
		one.Wait()
	}
}

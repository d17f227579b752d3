package endpointslice

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation"
)

// TestCases is the contract case that no real API server can be made to play.
func TestCases(t *testing.T) {
	t.Run("P19", testNeverGivesUp)
}

// P19: a write that keeps failing is tried again for ever, and each time a longer while later.
func testNeverGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(someClientService())
		var mu sync.Mutex
		var tries []time.Time
		client.PrependReactor("create", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			tries = append(tries, time.Now())
			return true, nil, errors.New("the API server is out of order")
		})
		x := newTestWriter(t, client)
		x.load(someWorkload())
		ctx, cancel := context.WithCancel(t.Context())
		x.loop = apply.NewLoop(logr.Discard(), x.loopConfig()) // without inputs
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := x.loop.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		pass(30 * time.Minute)
		cancel()
		wg.Wait()
		if len(tries) < 30 {
			t.Fatalf("%d tries in half an hour", len(tries))
		}
		for i := 2; i < len(tries); i++ {
			if now, before := tries[i].Sub(tries[i-1]), tries[i-1].Sub(tries[i-2]); now < before {
				t.Errorf("the pause before try %d is %s, and the one before was %s", i+1, now, before)
			}
		}
		if last := tries[len(tries)-1].Sub(tries[len(tries)-2]); last != maxRetry {
			t.Errorf("the last pause is %s, want %s", last, maxRetry)
		}
	})
}

// A Service that is gone gets no slices, although the watch of slices was faster than that of Services, and
// has shown that they are gone, too.
func TestServiceThatIsGone(t *testing.T) {
	client := fake.NewClientset()
	x := newTestWriter(t, client)
	x.load(someWorkload())
	if err := x.reconcileService(t.Context(), key{Namespace: "ns", Name: "web"}); err != nil {
		t.Fatal(err)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() == "create" {
			t.Errorf("%s was created", a.GetResource().Resource)
		}
	}
}

// The slices of a Service that its own cluster does not publish, as for want of room in a budget, stay.
func TestServiceThatIsNotPublished(t *testing.T) {
	client := fake.NewClientset(someClientService())
	x := newTestWriter(t, client)
	f := newFederatedSlices(x.writer, x.Target)
	slice := someSlice("web-1", view.ManagedBy)
	slice.Labels[SourceLabel] = "east"
	f.services.Replace([]any{someClientService()})
	f.slices.Replace([]any{slice})
	if err := f.reconcileService(t.Context(), key{Namespace: "ns", Name: "web"}); err != nil {
		t.Fatal(err)
	}
	if actions := client.Actions(); len(actions) != 0 {
		t.Errorf("requests %v", actions)
	}
}

// Where a budget has left out slices of ours, none is written: those would be created again.
func TestSlicesThatAreLeftOut(t *testing.T) {
	client := fake.NewClientset(someClientService())
	x := newTestWriter(t, client)
	x.load(someWorkload())
	kind := api.Typed(discoveryv1.SchemeGroupVersion, "endpointslices", "EndpointSlice", &discoveryv1.EndpointSlice{})
	x.slices.UseBudget(api.NewBudget(api.Limits{Objects: 1}), kind.Ours())
	for _, name := range []string{"web-1", "web-2"} {
		x.slices.Update(someSlice(name, x.managedBy))
	}
	err := x.reconcileService(t.Context(), key{Namespace: "ns", Name: "web"})
	if actions := client.Actions(); !errors.Is(err, errNotWhole) || len(actions) != 0 {
		t.Errorf("%v: requests %v", err, actions)
	}
}

func someSlice(name, managedBy string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name,
		Labels: map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: managedBy},
	}}
}

// A slice that we have deleted and that a finalizer keeps does not stop others of its Service from being written.
func TestSliceWithFinalizer(t *testing.T) {
	client := fake.NewClientset(someClientService())
	x := newTestWriter(t, client)
	reconcile := func(workloads ...any) *discoveryv1.EndpointSliceList {
		t.Helper()
		x.workloads.Replace(workloads)
		if err := x.reconcileService(t.Context(), key{Namespace: "ns", Name: "web"}); err != nil {
			t.Fatal(err)
		}
		list, err := client.DiscoveryV1().EndpointSlices("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != len(workloads) {
			t.Fatalf("%d slices of %d ExternalWorkloads: %v", len(list.Items), len(workloads), err)
		}
		return list
	}
	x.load()
	kept := reconcile(someWorkload()).Items[0]
	x.catchUp(t, client)
	reconcile()
	kept.DeletionTimestamp = new(metav1.Now())
	x.slices.Update(&kept)
	reconcile(someWorkload())
}

// Every write is counted from 0 on, so that increase() finds the first one.
func TestWritesAreCountedFromZero(t *testing.T) {
	client := fake.NewClientset(someClientService())
	x := newTestWriter(t, client)
	series := testutil.CollectAndCount(x.writer.metrics.writes)
	moved := someWorkload()
	moved.Object["spec"].(map[string]any)["workloadIPs"] = []any{map[string]any{"ip": "10.0.0.3"}}
	for _, step := range []struct {
		verb      string
		workloads []any
	}{
		{"create", []any{someWorkload()}},
		{"update", []any{moved}},
		{"delete", nil},
	} {
		x.load(step.workloads...)
		x.catchUp(t, client)
		if err := x.reconcileService(t.Context(), key{Namespace: "ns", Name: "web"}); err != nil {
			t.Fatal(err)
		}
		count := x.writer.metrics.writes.WithLabelValues("local", externalManagedBy, step.verb)
		if n := testutil.ToFloat64(count); n != 1 {
			t.Errorf("%s is counted %g times", step.verb, n)
		}
	}
	if now := testutil.CollectAndCount(x.writer.metrics.writes); now != series {
		t.Errorf("%d series of writes at first, and %d of all that are made", series, now)
	}
}

// testWriter writes over clients in memory, with one Service.
type testWriter struct {
	*externalSlices
}

func newTestWriter(t *testing.T, client *fake.Clientset) testWriter {
	t.Helper()
	store := federation.NewStore()
	registry := cluster.NewRegistry(logr.Discard(), store, cluster.Options{})
	w := NewWriter(store, registry, Options{Namespace: "linkerd"})
	w.conns["local"] = &api.Connection{}
	return testWriter{newExternalSlices(w, &apply.Target{Name: "local", Client: client, Log: logr.Discard()})}
}

func someClientService() *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid"}}
	svc.Spec = corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
	}
	return svc
}

// load gives the writer what it would have listed.
func (x testWriter) load(workloads ...any) {
	x.services.Replace([]any{someClientService()})
	x.slices.Replace(nil)
	x.workloads.Replace(workloads)
}

// catchUp shows the writer the slices that exist.
func (x testWriter) catchUp(t *testing.T, client *fake.Clientset) {
	t.Helper()
	list, err := client.DiscoveryV1().EndpointSlices("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []any
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	x.slices.Replace(all)
}

package endpointslice

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// Most endpoints of a Service are withdrawn only if the API server confirms it, and not because a watch
// went wrong.
func TestMassWithdrawalIsConfirmed(t *testing.T) {
	var all []any
	var listed []runtime.Object
	for i := range 10 {
		u := someWorkload()
		u.SetName(fmt.Sprintf("ew-%d", i))
		u.Object["spec"].(map[string]any)["workloadIPs"] = []any{map[string]any{"ip": fmt.Sprintf("10.0.0.%d", i+1)}}
		all, listed = append(all, u), append(listed, u)
	}
	client := fake.NewClientset(someClientService())
	x := newTestWriter(t, client)
	resource := linkerd.ExternalWorkloads.WithVersion("v1beta1")
	lists := map[schema.GroupVersionResource]string{resource: "ExternalWorkloadList"}
	x.Dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, listed...)
	x.load(all...)
	k := key{Namespace: "ns", Name: "web"}
	ctx := t.Context()
	reconcile := func() error {
		t.Helper()
		return x.reconcileService(ctx, k)
	}
	if err := reconcile(); err != nil {
		t.Fatal(err)
	}
	x.catchUp(t, client)
	count := func() (n int) {
		list, err := client.DiscoveryV1().EndpointSlices("ns").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, es := range list.Items {
			n += len(es.Endpoints)
		}
		return n
	}
	if n := count(); n != 10 {
		t.Fatalf("%d endpoints", n)
	}

	x.workloads.Replace(all[:3]) // seven are gone, as far as the watch goes
	if err := reconcile(); !errors.Is(err, errUnconfirmed) || count() != 10 {
		t.Errorf("seven of ten went unconfirmed: %v, %d are left", err, count())
	}
	for _, o := range listed[3:] { // now they are
		u := o.(*unstructured.Unstructured)
		err := x.Dynamic.Resource(resource).Namespace("ns").Delete(ctx, u.GetName(), metav1.DeleteOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := reconcile(); err != nil || count() != 3 {
		t.Errorf("%v, %d endpoints are left, want 3", err, count())
	}
}

// Nor is most of what a cluster has withdrawn bit by bit, however few endpoints each Service has.
func TestWithdrawalOfManySmallServicesIsConfirmed(t *testing.T) {
	x := newTestWriter(t, fake.NewClientset(someClientService()))
	have := func(n int) []*discoveryv1.EndpointSlice {
		es := &discoveryv1.EndpointSlice{}
		for i := range n {
			es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}})
		}
		return []*discoveryv1.EndpointSlice{es}
	}
	for i := range 10 { // Services of two endpoints each
		setIn(x.slicesOf, key{Name: fmt.Sprint(i)}, "slice", have(2)[0])
	}
	for i := range 10 {
		slices := have(2)
		if got, want := x.exceedsGuard("", removals(slices, nil), slices), i >= 5; got != want {
			t.Errorf("Service %d: it exceeds the guard is %t, want %t", i, got, want)
		}
	}
}

// Few endpoints are withdrawn without confirmation, and so are fewer than half.
func TestSmallChangesAreNotHeldBack(t *testing.T) {
	x := newTestWriter(t, fake.NewClientset(someClientService())) // without a dynamic client a confirmation would panic
	var all []any
	for i := range policy.Free {
		u := someWorkload()
		u.SetName(fmt.Sprintf("ew-%d", i))
		u.Object["spec"].(map[string]any)["workloadIPs"] = []any{map[string]any{"ip": fmt.Sprintf("10.0.0.%d", i+1)}}
		all = append(all, u)
	}
	x.load(all...)
	for _, have := range [][]any{all, nil} {
		x.workloads.Replace(have)
		if err := x.reconcileService(t.Context(), key{Namespace: "ns", Name: "web"}); err != nil {
			t.Fatal(err)
		}
		x.catchUp(t, x.Client.(*fake.Clientset))
	}
}

// What takes endpoints from readers, and gives them none, is written last.
func TestOnlyWithdraws(t *testing.T) {
	endpoints := func(text string) (all []discoveryv1.Endpoint) { // ! is not ready
		for a := range strings.FieldsSeq(text) {
			addr, unready := strings.CutSuffix(a, "!")
			ready := !unready
			all = append(all, discoveryv1.Endpoint{
				Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			})
		}
		return all
	}
	for _, c := range []struct {
		have, wanted string
		want         bool
	}{
		{"a b", "a", true},
		{"a b", "", true},
		{"a b", "c!", true},
		{"a b", "a b!", true},
		{"a b", "a b", false},
		{"a b", "b c", false},
		{"a b!", "b", false},
		{"a!", "", false},
		{"", "a", false},
	} {
		have := []*discoveryv1.EndpointSlice{{Endpoints: endpoints(c.have)}}
		wanted := []*group{{endpoints: endpoints(c.wanted)}, {endpoints: endpoints(c.wanted)}} // two ports
		if got := onlyWithdraws(have, wanted); got != c.want {
			t.Errorf("from %q to %q: %t, want %t", c.have, c.wanted, got, c.want)
		}
	}
}

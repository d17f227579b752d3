package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/app"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

const controller = "linkerd.io/policy-controller"

var gatewayRoutes = schema.GroupVersionResource{Group: linkerd.GatewayGroup, Version: "v1", Resource: "httproutes"}

// Nothing is written while Linkerd's policy controller holds its Lease. Once it is given up one of two replicas writes
// the status of every kind that has one, beside another controller that writes the same list, and then the other one.
func TestStatus(t *testing.T) {
	t.Parallel()
	const namespace = "status"
	shared.apply(t, namespace, shop)
	shared.holdAsReference(t)

	writing := func(o *app.Options) { o.Policy.Status = true }
	replicas := map[string]*replica{
		"status-0": shared.serve(t, "status-0", writing), "status-1": shared.serve(t, "status-1", writing),
	}
	shared.apply(t, namespace, gatewayRoute)
	shared.apply(t, namespace, policyRoute)
	shared.apply(t, namespace, server)
	shared.apply(t, namespace, limits)
	shared.apply(t, namespace, egress)
	to := replicas["status-0"].outbound(namespace, shared.address(t, namespace, "web"))
	to.until(2*time.Second, "routes count without a status", hasRoutes("HTTPRoute gateway", "HTTPRoute policy"))
	shared.staysEmpty(t, namespace, 6*time.Second) // in which the Lease is read three times

	do(t, shared.releaseAsReference(t.Context()))
	var route gatewayv1.RouteStatus
	eventually(t, 10*time.Second, "the status is written", func(ctx context.Context) error {
		route = shared.status(t, namespace)
		return isTrue(route, 1, "Accepted", "ResolvedRefs")
	})
	const accepted = "conditions[?(@.type=='Accepted')].status}"
	for what, template := range map[string]string{
		"httproutes.policy.linkerd.io/policy":               "{.status.parents[0]." + accepted,
		"httplocalratelimitpolicies.policy.linkerd.io/rate": "{.status." + accepted,
		"egressnetworks.policy.linkerd.io/out":              "{.status." + accepted,
	} {
		kind, name, _ := strings.Cut(what, "/")
		eventually(t, 5*time.Second, what, func(ctx context.Context) error {
			text, err := shared.Print(ctx, namespace, kind, name, template)
			if err == nil && text != "True" {
				err = fmt.Errorf("Accepted is %q", text)
			}
			return err
		})
	}

	shared.follows(t, namespace, route)
	shared.sharesParents(t, namespace)

	// The replica that writes stops, and gives the Lease up.
	holder := shared.holder(t)
	if replicas[holder] == nil {
		t.Fatalf("the Lease is held by %q", holder)
	}
	do(t, replicas[holder].stop())
	generation := shared.change(t, namespace, "third")
	eventually(t, 10*time.Second, "the other one writes", func(context.Context) error {
		return isTrue(shared.status(t, namespace), generation, "Accepted", "ResolvedRefs")
	})
	if now := shared.holder(t); now == holder {
		t.Errorf("the Lease is still held by %s", now)
	}
}

// staysEmpty checks for some time that a route has no status.
func (s *site) staysEmpty(t *testing.T, namespace string, long time.Duration) {
	t.Helper()
	ticker := time.NewTicker(long / 20)
	defer ticker.Stop()
	for range 20 {
		<-ticker.C
		if found := s.status(t, namespace); len(found.Parents) > 0 {
			t.Fatalf("a status was written while another holds the Lease: %v", found)
		}
	}
}

const (
	limits = `apiVersion: policy.linkerd.io/v1alpha1
kind: HTTPLocalRateLimitPolicy
metadata: {name: rate, namespace: $NS}
spec: {targetRef: {group: policy.linkerd.io, kind: Server, name: http}, total: {requestsPerSecond: 10}}
`
	egress = `apiVersion: policy.linkerd.io/v1alpha1
kind: EgressNetwork
metadata: {name: out, namespace: $NS}
spec: {trafficPolicy: Allow}
`
)

// follows checks that a new generation is reported, and that what does not change has the time of before.
func (s *site) follows(t *testing.T, namespace string, before gatewayv1.RouteStatus) {
	t.Helper()
	generation := s.change(t, namespace, "second")
	if generation < 2 {
		t.Fatalf("the route has generation %d", generation)
	}
	var now gatewayv1.RouteStatus
	eventually(t, 5*time.Second, "the next generation", func(context.Context) error {
		now = s.status(t, namespace)
		return isTrue(now, generation, "Accepted", "ResolvedRefs")
	})
	for i, c := range now.Parents[0].Conditions {
		if old := before.Parents[0].Conditions[i]; !c.LastTransitionTime.Equal(&old.LastTransitionTime) {
			t.Errorf("%s has changed at %v, and did before at %v", c.Type, c.LastTransitionTime, old.LastTransitionTime)
		}
	}
}

// sharesParents has another controller write into the list that the replica writes, again and again. Nothing is lost.
func (s *site) sharesParents(t *testing.T, namespace string) {
	t.Helper()
	const rounds = 15
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() {
		for i := range rounds {
			errs[0] = errors.Join(errs[0], s.addParent(t.Context(), namespace, fmt.Sprintf("example.com/%d", i)))
		}
	})
	wg.Go(func() { // the backend comes and goes, which the replica writes
		for range rounds {
			errs[1] = errors.Join(errs[1],
				s.CoreV1().Services(namespace).Delete(t.Context(), "second", metav1.DeleteOptions{}),
				s.Apply(t.Context(), []byte(backend(namespace, "second"))))
		}
	})
	wg.Wait()
	do(t, errors.Join(errs[:]...))

	// The status of an object is written ten times in 10 s at most.
	eventually(t, 10*time.Second, "all entries", func(context.Context) error {
		found := s.status(t, namespace)
		have := map[string]int{}
		for _, p := range found.Parents {
			have[string(p.ControllerName)]++
		}
		if len(have) != rounds+1 || len(found.Parents) != rounds+1 {
			return fmt.Errorf("there are entries of %v", have)
		}
		return isTrue(found, 0, "Accepted", "ResolvedRefs")
	})
}

// addParent adds the entry of another controller to the status of a route.
func (s *site) addParent(ctx context.Context, namespace, by string) error {
	client := s.dynamic.Resource(gatewayRoutes).Namespace(namespace)
	return retry.RetryOnConflict(wait.Backoff{Steps: 100, Duration: time.Millisecond}, func() error {
		u, err := client.Get(ctx, "gateway", metav1.GetOptions{})
		if err != nil {
			return err
		}
		parents, _, err := unstructured.NestedSlice(u.Object, "status", "parents")
		if err != nil {
			return err
		}

		parents = append(parents, map[string]any{
			"controllerName": by, "parentRef": map[string]any{"name": "edge"}, "conditions": []any{map[string]any{
				"type": "Accepted", "status": "False", "reason": "NoMatchingParent", "message": "",
				"lastTransitionTime": "2026-01-01T00:00:00Z",
			}},
		})
		if err := unstructured.SetNestedSlice(u.Object, parents, "status", "parents"); err != nil {
			return err
		}
		_, err = client.UpdateStatus(ctx, u, metav1.UpdateOptions{})
		return err
	})
}

func backend(namespace, name string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: " + namespace +
		"}\nspec: {ports: [{port: 80}]}\n"
}

// change has the route send to another Service, which is made, and returns its generation.
func (s *site) change(t *testing.T, namespace, to string) int64 {
	t.Helper()
	do(t, s.Apply(t.Context(), []byte(backend(namespace, to))))
	s.apply(t, namespace, strings.TrimSuffix(gatewayRoute, "}\n")+
		", rules: [{backendRefs: [{name: "+to+", port: 80}]}]}\n")
	u, err := s.dynamic.Resource(gatewayRoutes).Namespace(namespace).Get(t.Context(), "gateway", metav1.GetOptions{})
	do(t, err)
	return u.GetGeneration()
}

// status returns that of the route of the Gateway API.
func (s *site) status(t *testing.T, namespace string) (found gatewayv1.RouteStatus) {
	t.Helper()
	u, err := s.dynamic.Resource(gatewayRoutes).Namespace(namespace).Get(t.Context(), "gateway", metav1.GetOptions{})
	do(t, err)
	if fields, has := u.Object["status"].(map[string]any); has {
		do(t, runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &found))
	}
	return found
}

// isTrue checks the conditions of our entry, for a generation unless that is 0.
func isTrue(status gatewayv1.RouteStatus, generation int64, types ...string) error {
	for _, p := range status.Parents {
		if p.ControllerName != controller {
			continue
		}
		if len(p.Conditions) != len(types) {
			return fmt.Errorf("conditions are %v", p.Conditions)
		}
		for i, c := range p.Conditions {
			if c.Type != types[i] || c.Status != metav1.ConditionTrue || c.Reason != types[i] ||
				generation > 0 && c.ObservedGeneration != generation {
				return fmt.Errorf("%v, want %s for generation %d", c, types[i], generation)
			}
		}
		return nil
	}
	return fmt.Errorf("there is no entry of ours: %v", status.Parents)
}

// holdAsReference creates the Lease with the fields that Linkerd's policy controller gives it, for longer than the test
// needs.
func (s *site) holdAsReference(t *testing.T) {
	t.Helper()
	now := metav1.NowMicro()
	leases := s.CoordinationV1().Leases(mesh.Linkerd)
	_, err := leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: linkerd.PolicyLease, Labels: map[string]string{
			"linkerd.io/control-plane-component": "destination", "linkerd.io/control-plane-ns": mesh.Linkerd,
		}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("linkerd-destination-5d4"), LeaseDurationSeconds: new(int32(300)),
			AcquireTime: &now, RenewTime: &now, LeaseTransitions: new(int32(1)),
		},
	}, metav1.CreateOptions{})
	do(t, err)
}

// releaseAsReference gives the Lease up, as Linkerd's policy controller does when it stops.
func (s *site) releaseAsReference(ctx context.Context) error {
	_, err := s.CoordinationV1().Leases(mesh.Linkerd).Patch(ctx, linkerd.PolicyLease, types.MergePatchType,
		[]byte(`{"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}`), metav1.PatchOptions{})
	return err
}

// holder returns the replica that holds the Lease.
func (s *site) holder(t *testing.T) string {
	t.Helper()
	found, err := s.CoordinationV1().Leases(mesh.Linkerd).Get(t.Context(), linkerd.PolicyLease, metav1.GetOptions{})
	do(t, err)
	replica, _, _ := strings.Cut(ptr.Deref(found.Spec.HolderIdentity, ""), "_") // what follows is of its process
	return replica
}

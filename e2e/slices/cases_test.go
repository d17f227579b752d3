package slices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

// TestCases are the contract cases of the slices of ExternalWorkloads: what makes them be written (P), and what stands in them (Q). Besides
// the server, Kubernetes' own controllers are at work. P19 is a test of the package that writes, because a real API server does not fail as often
// as it asks for.
func TestCases(t *testing.T) {
	x := newCases(t)
	for _, c := range []struct {
		id   string
		test func(*caseRun)
	}{
		{"P01", testNoSelector},
		{"P02", testExternalName},
		{"P04", testSelection},
		{"P05", testPendingDeletion},
		{"P06", testUnchanged},
		{"P07", testAddressesChange},
		{"P09", testSameVersion},
		{"P10", testLabelsAndPort},
		{"P11", testPortOnly},
		{"P12", testLabelOnly},
		{"P14", testKubeSystem},
		{"P15", testEdited},
		{"P16", testDeleted},
		{"P17", testLabelTakenAway},
		{"P20", testTwoReplicas},
		{"P21", testZoneOnly},
		{"P22", testServiceDeleted},
		{"Q01", testFamilies},
		{"Q02", testHeadless},
		{"Q04", testInPlace},
		{"Q05", testNamedPorts},
		{"Q06", testMany},
		{"Q07", testFullestFirst},
		{"Q08", testTargetChanges},
		{"Q09", testLabelAdded},
		{"Q10", testReservedLabels},
		{"Q11", testRecycle},
		{"Q13", testIPv6Only},
		{"Q14", testNotReady},
		{"Q15", testSameAddress},
		{"Q16", testNoConditions},
		{"Q18", testFamilyLost},
		{"Q19", testForeignOwner},
		{"Q20", testLastGone},
		{"Q21", testShape},
	} {
		t.Run(c.id, func(t *testing.T) {
			r := &caseRun{T: t, cases: x, ns: "case-" + strings.ToLower(c.id)}
			x.namespace(t, r.ns)
			c.test(r)
		})
	}
}

// cases is what the cases share: one cluster, and one replica of the server in it.
type cases struct {
	*site
	in     *charts.Installation
	server *fingerpost.Server
	stop   func()

	markers int // that settle has made
}

// A caseRun is one case, with a namespace of its own.
type caseRun struct {
	*testing.T
	*cases
	ns string
}

func newCases(t *testing.T) *cases {
	t.Helper()
	x := &cases{site: clusters[0]}
	x.namespace(t, markers)
	x.in = x.install(t, markers)
	x.start(t)
	t.Cleanup(func() {
		x.stop()
		if t.Failed() {
			t.Logf("the end of the server's log:\n%s", x.server.Tail())
		}
	})
	return x
}

func (x *cases) start(t *testing.T) {
	t.Helper()
	server, err := x.site.start(t, "cases", x.in, "")
	do(t, err)
	x.server = server
	x.stop = func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// whileStopped does something that the server is to find when it starts.
func (r *caseRun) whileStopped(f func()) {
	r.Helper()
	r.stop()
	f()
	r.start(r.T)
}

// svc returns a Service that selects app=web, with a port 80 to 8080.
func (r *caseRun) svc(name string, change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.ns},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, f := range change {
		f(svc)
	}
	return svc
}

// edit changes a Service that is there.
func (r *caseRun) edit(name string, f func(*corev1.Service)) {
	r.Helper()
	svc, err := r.CoreV1().Services(r.ns).Get(r.Context(), name, metav1.GetOptions{})
	do(r.T, err)
	f(svc)
	_, err = r.CoreV1().Services(r.ns).Update(r.Context(), svc, metav1.UpdateOptions{})
	do(r.T, err)
}

func families(policy corev1.IPFamilyPolicy, of ...corev1.IPFamily) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &policy, of }
}

func headless(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

// web returns a ready ExternalWorkload that the Service selects, with port http:8080.
func (r *caseRun) web(name string, ips ...string) *unstructured.Unstructured {
	return ready(workload(r.ns, name, map[string]string{"app": "web"}, ips, "http:8080"), true)
}

// webs returns n of them.
func (r *caseRun) webs(n int) (all []*unstructured.Unstructured) {
	for i := range n {
		all = append(all, r.web(fmt.Sprintf("web-%03d", i), fmt.Sprintf("10.9.%d.%d", i/250, 1+i%250)))
	}
	return all
}

// expect waits until the slices of a Service pass a check.
func (r *caseRun) expect(service string, check func([]discoveryv1.EndpointSlice) error) (found []discoveryv1.EndpointSlice) {
	r.Helper()
	eventually(r.T, 3*time.Second, "slices of "+service, func(ctx context.Context) (err error) {
		if found, err = r.slicesOf(ctx, r.ns, service, external); err != nil {
			return err
		}
		if err := check(found); err != nil {
			return fmt.Errorf("%w\n%s", err, describe(found))
		}
		return nil
	})
	return found
}

// sizes checks how many endpoints the slices hold, in any order.
func sizes(want ...int) func([]discoveryv1.EndpointSlice) error {
	return func(found []discoveryv1.EndpointSlice) error {
		got := []int{}
		for _, es := range found {
			got = append(got, len(es.Endpoints))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			return fmt.Errorf("slices of %v endpoints, want %v", got, want)
		}
		return nil
	}
}

func describe(all []discoveryv1.EndpointSlice) string {
	var b strings.Builder
	for _, es := range all {
		fmt.Fprintf(&b, "%s %s %v %s:", es.Name, es.AddressType, es.Labels, portsText(es))
		for _, e := range es.Endpoints[:min(3, len(es.Endpoints))] {
			fmt.Fprintf(&b, " %v", e.Addresses)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func portsText(es discoveryv1.EndpointSlice) string {
	var all []string
	for _, p := range es.Ports {
		all = append(all, fmt.Sprintf("%s:%d/%s", *p.Name, *p.Port, *p.Protocol))
	}
	return strings.Join(all, ",")
}

const markers = "markers" // namespace of what settle makes

// settle waits until the server has seen everything that was done before: it has written the slices of a Service that was made afterwards, twice
// over, because it works on several at once.
func (r *caseRun) settle() {
	r.Helper()
	for range 2 {
		r.markers++
		name, selector := fmt.Sprintf("marker-%d", r.markers), map[string]string{"marker": fmt.Sprint(r.markers)}
		r.service(r.T, r.svc(name, func(s *corev1.Service) { s.Namespace, s.Spec.Selector = markers, selector }))
		r.create(r.T, ready(workload(markers, name, selector, []string{"10.200.0.1"}, "http:8080"), true))
		eventually(r.T, 3*time.Second, "slice of "+name, func(ctx context.Context) error {
			found, err := r.slicesOf(ctx, markers, name, external)
			if err == nil && len(found) != 1 {
				err = errors.New("it is not there")
			}
			return err
		})
	}
}

// writes returns what was written to slices in the namespace by the server since a time, as VERB NAME.
func (r *caseRun) writes(since time.Time) (all []string) {
	r.Helper()
	requests, err := r.Requests()
	do(r.T, err)
	for _, q := range requests {
		if q.Resource != "endpointslices" || q.Namespace != r.ns || !strings.HasPrefix(q.UserAgent, "fingerpost/") || q.Time.Before(since) {
			continue
		}
		if slices.Contains([]string{"create", "update", "patch", "delete"}, q.Verb) && q.Code < 400 {
			all = append(all, strings.TrimSpace(q.Verb+" "+q.Name))
		}
	}
	return all
}

// quiet checks that the server writes nothing for what f does.
func (r *caseRun) quiet(f func()) {
	r.Helper()
	r.settle()
	before := r.versions()
	f()
	r.settle()
	if after := r.versions(); !maps.Equal(before, after) {
		r.Errorf("slices were written: before %v, after %v", before, after)
	}
}

// versions returns the resource versions of all slices of ExternalWorkloads in the namespace.
func (r *caseRun) versions() map[string]string {
	r.Helper()
	list, err := r.DiscoveryV1().EndpointSlices(r.ns).List(r.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + external})
	do(r.T, err)
	all := map[string]string{}
	for _, es := range list.Items {
		all[es.Name] = es.ResourceVersion
	}
	return all
}

// addressesOf returns all addresses of slices, sorted.
func addressesOf(found []discoveryv1.EndpointSlice) (all []string) {
	for _, es := range found {
		for _, e := range es.Endpoints {
			all = append(all, e.Addresses...)
		}
	}
	slices.Sort(all)
	return all
}

// holds checks the addresses of all slices.
func holds(want ...string) func([]discoveryv1.EndpointSlice) error {
	return func(found []discoveryv1.EndpointSlice) error {
		if got := addressesOf(found); !slices.Equal(got, want) {
			return fmt.Errorf("addresses %v, want %v", got, want)
		}
		return nil
	}
}

func namesOf(found []discoveryv1.EndpointSlice) (names []string) {
	for _, es := range found {
		names = append(names, es.Name)
	}
	return names
}

// P01: a Service without a selector gets nothing.
func testNoSelector(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.quiet(func() { r.service(r.T, r.svc("web", func(s *corev1.Service) { s.Spec.Selector = nil })) })
	r.expect("web", sizes())
}

// P02: neither does an ExternalName, with or without selector and ports.
func testExternalName(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.quiet(func() {
		for i := range 4 {
			r.service(r.T, r.svc(fmt.Sprintf("web-%d", i), func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
				if i&1 == 0 {
					s.Spec.Selector = nil
				}
				if i&2 == 0 {
					s.Spec.Ports = nil
				}
			}))
		}
	})
	for i := range 4 {
		r.expect(fmt.Sprintf("web-%d", i), sizes())
	}
}

// P04: a Service gets the workloads that it selects in its own namespace.
func testSelection(r *caseRun) {
	other := workload(linkerd, "elsewhere", map[string]string{"app": "web"}, []string{"10.9.0.3"}, "http:8080")
	r.create(r.T, r.web("ew1", "10.9.0.1"), ready(workload(r.ns, "ew2", map[string]string{"app": "other"}, []string{"10.9.0.2"}, "http:8080"), true), other)
	r.service(r.T, r.svc("web"))
	found := r.expect("web", sizes(1))
	e := found[0].Endpoints[0]
	if ref := e.TargetRef; e.Addresses[0] != "10.9.0.1" || ref == nil || ref.Kind != "ExternalWorkload" || ref.Name != "ew1" || ref.Namespace != r.ns || ref.UID == "" {
		r.Errorf("endpoint %v refers to %+v", e.Addresses, ref)
	}
	r.settle()
	if w := r.writes(time.Time{}); len(w) != 1 {
		r.Errorf("writes %v, want one create", w)
	}
}

// P05: a slice that is being deleted is left alone.
func testPendingDeletion(r *caseRun) {
	owner := r.service(r.T, r.svc("web"))
	api := r.DiscoveryV1().EndpointSlices(r.ns)
	var kept *discoveryv1.EndpointSlice
	r.whileStopped(func() {
		es := r.slice(owner, nil)
		es.Finalizers = []string{"example.org/hold"}
		created, err := api.Create(r.Context(), es, metav1.CreateOptions{})
		do(r.T, err)
		do(r.T, api.Delete(r.Context(), created.Name, metav1.DeleteOptions{}))
		kept, err = api.Get(r.Context(), created.Name, metav1.GetOptions{})
		do(r.T, err)
	})
	r.settle()
	now, err := api.Get(r.Context(), kept.Name, metav1.GetOptions{})
	do(r.T, err)
	if now.ResourceVersion != kept.ResourceVersion || now.DeletionTimestamp == nil {
		r.Error("it was written")
	}
	if w := r.writes(time.Time{}); len(w) != 0 {
		r.Errorf("writes %v, want none", w)
	}
	now.Finalizers = nil
	_, err = api.Update(r.Context(), now, metav1.UpdateOptions{})
	do(r.T, err)
}

// P06: a workload that changes in nothing that an endpoint is made of changes no slice.
func testUnchanged(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	r.expect("web", sizes(1))
	r.quiet(func() {
		r.change(r.T, r.ns, "ew", func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{"example.org/note": "changed"}) })
	})
}

// P07: an address that is added, removed or replaced changes it.
func testAddressesChange(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	r.expect("web", holds("10.9.0.1"))
	for _, ips := range [][]string{{"10.9.0.1", "10.9.0.2"}, {"10.9.0.2"}, {"10.9.0.3"}} {
		r.change(r.T, r.ns, "ew", func(u *unstructured.Unstructured) {
			u.Object["spec"] = workload(r.ns, "ew", nil, ips, "http:8080").Object["spec"]
		})
		r.expect("web", holds(ips...))
	}
}

// P09: a workload at the same version is no news: it is written back as it is, and the server hears of it anew when it starts.
func testSameVersion(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	r.expect("web", sizes(1))
	r.quiet(func() {
		r.change(r.T, r.ns, "ew", func(*unstructured.Unstructured) {})
		r.whileStopped(func() {})
	})
}

// services makes Services svc-NAME that select by KEY=VALUE, and returns when each has its slices.
func (r *caseRun) services(selectors map[string]string, key string) {
	r.Helper()
	for name, value := range selectors {
		r.service(r.T, r.svc(name, func(s *corev1.Service) { s.Spec.Selector = map[string]string{key: value} }))
	}
}

// P10: when labels and a port change, the Services that selected it and those that do now are written.
func testLabelsAndPort(r *caseRun) {
	r.services(map[string]string{"svc-1": "test-1", "svc-2": "test-2"}, "app")
	r.create(r.T, ready(workload(r.ns, "ew", map[string]string{"app": "test-1"}, []string{"10.9.0.1"}, "http:8080"), true))
	r.expect("svc-1", sizes(1))
	r.change(r.T, r.ns, "ew", func(u *unstructured.Unstructured) {
		u.SetLabels(map[string]string{"app": "test-2"})
		u.Object["spec"] = workload(r.ns, "ew", nil, []string{"10.9.0.1"}, "http:8080", "more:9090").Object["spec"]
	})
	r.expect("svc-1", sizes())
	r.expect("svc-2", sizes(1))
}

// P11: when only a port changes, only the Services that select it are.
func testPortOnly(r *caseRun) {
	r.services(map[string]string{"svc-1": "test-1", "svc-2": "test-2"}, "app")
	r.edit("svc-1", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("http") })
	r.create(r.T, ready(workload(r.ns, "ew1", map[string]string{"app": "test-1"}, []string{"10.9.0.1"}, "http:8080"), true),
		ready(workload(r.ns, "ew2", map[string]string{"app": "test-2"}, []string{"10.9.0.2"}, "http:8080"), true))
	r.expect("svc-1", sizes(1))
	before := r.expect("svc-2", sizes(1))
	r.change(r.T, r.ns, "ew1", func(u *unstructured.Unstructured) {
		u.Object["spec"] = workload(r.ns, "ew1", nil, []string{"10.9.0.1"}, "http:9090").Object["spec"]
	})
	r.expect("svc-1", func(found []discoveryv1.EndpointSlice) error {
		if len(found) != 1 || portsText(found[0]) != "http:9090/TCP" {
			return fmt.Errorf("want one slice with port 9090")
		}
		return nil
	})
	r.settle()
	if after := r.expect("svc-2", sizes(1)); after[0].ResourceVersion != before[0].ResourceVersion {
		r.Error("the other Service was written")
	}
}

// P12: when only a label changes, the Services that select one of both are, and not those that select both.
func testLabelOnly(r *caseRun) {
	r.services(map[string]string{"staging": "staging", "prod": "prod"}, "env")
	r.services(map[string]string{"app": "web"}, "app")
	r.create(r.T, ready(workload(r.ns, "ew", map[string]string{"app": "web", "env": "staging"}, []string{"10.9.0.1"}, "http:8080"), true))
	r.expect("staging", sizes(1))
	before := r.expect("app", sizes(1))
	r.change(r.T, r.ns, "ew", func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"app": "web", "env": "prod"}) })
	r.expect("staging", sizes())
	r.expect("prod", sizes(1))
	r.settle()
	if after := r.expect("app", sizes(1)); after[0].ResourceVersion != before[0].ResourceVersion {
		r.Error("the Service that selects both was written")
	}
}

// P14: Services of kube-system are none of our business.
func testKubeSystem(r *caseRun) {
	const name = "case-p14"
	r.service(r.T, r.svc(name, func(s *corev1.Service) { s.Namespace = "kube-system" }))
	r.create(r.T, ready(workload("kube-system", "ew", map[string]string{"app": "web"}, []string{"10.9.0.1"}, "http:8080"), true))
	r.settle()
	found, err := r.slicesOf(r.Context(), "kube-system", name, external)
	do(r.T, err)
	if len(found) > 0 {
		r.Errorf("it has got slices:\n%s", describe(found))
	}
}

// P15: a slice that somebody has edited is put right.
func testEdited(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	es := r.expect("web", sizes(1))[0]
	es.Endpoints[0].Addresses = []string{"10.9.9.9"}
	_, err := r.DiscoveryV1().EndpointSlices(r.ns).Update(r.Context(), &es, metav1.UpdateOptions{})
	do(r.T, err)
	if found := r.expect("web", holds("10.9.0.1")); found[0].Name != es.Name {
		r.Errorf("it is %s now, and was %s", found[0].Name, es.Name)
	}
}

// P16: one that somebody has deleted is made again.
func testDeleted(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	es := r.expect("web", sizes(1))[0]
	do(r.T, r.DiscoveryV1().EndpointSlices(r.ns).Delete(r.Context(), es.Name, metav1.DeleteOptions{}))
	r.expect("web", func(found []discoveryv1.EndpointSlice) error {
		if len(found) != 1 || found[0].UID == es.UID {
			return fmt.Errorf("want a new slice")
		}
		return nil
	})
}

// P17: one that is not ours any more is replaced, and when it is ours again there is one too many.
func testLabelTakenAway(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	es := r.expect("web", sizes(1))[0]
	api := r.DiscoveryV1().EndpointSlices(r.ns)
	es.Labels[discoveryv1.LabelManagedBy] = "example.org"
	_, err := api.Update(r.Context(), &es, metav1.UpdateOptions{})
	do(r.T, err)
	r.expect("web", func(found []discoveryv1.EndpointSlice) error {
		if len(found) != 1 || found[0].UID == es.UID {
			return fmt.Errorf("want a new slice")
		}
		return nil
	})
	foreign, err := api.Get(r.Context(), es.Name, metav1.GetOptions{})
	do(r.T, err)
	foreign.Labels[discoveryv1.LabelManagedBy] = external
	_, err = api.Update(r.Context(), foreign, metav1.UpdateOptions{})
	do(r.T, err)
	r.settle()
	r.expect("web", holds("10.9.0.1"))
	r.expect("web", sizes(1))
}

// P20: only the holder of the Lease writes.
func testTwoReplicas(r *caseRun) {
	r.serve(r.T, "second", r.in, "")
	r.service(r.T, r.svc("web"))
	r.create(r.T, r.webs(20)...)
	r.expect("web", sizes(20))
	lease, err := r.CoordinationV1().Leases(linkerd).Get(r.Context(), externalLease, metav1.GetOptions{})
	do(r.T, err)
	if holder := *lease.Spec.HolderIdentity; !strings.HasPrefix(holder, "cases_") || *lease.Spec.LeaseDurationSeconds != 6 {
		r.Errorf("the Lease is %+v", lease.Spec)
	}
	requests, err := r.Requests()
	do(r.T, err)
	writes := 0
	for _, q := range requests {
		switch {
		case q.Resource != "endpointslices" || q.Verb == "list" || q.Verb == "watch":
		case strings.HasPrefix(q.UserAgent, "fingerpost/second_"):
			r.Errorf("the second replica wrote: %s %s", q.Verb, q.URI)
		case strings.HasPrefix(q.UserAgent, "fingerpost/cases_"):
			writes++
		}
	}
	if writes == 0 {
		r.Error("nobody wrote")
	}
}

// P21: a zone that changes changes the slice, also if it is all that does.
func testZoneOnly(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	r.expect("web", sizes(1))
	r.change(r.T, r.ns, "ew", func(u *unstructured.Unstructured) {
		u.SetLabels(map[string]string{"app": "web", corev1.LabelTopologyZone: "zone1"})
	})
	r.expect("web", zone("zone1"))
}

// zone checks that there is one endpoint, in a zone.
func zone(want string) func([]discoveryv1.EndpointSlice) error {
	return func(found []discoveryv1.EndpointSlice) error {
		if len(found) != 1 || len(found[0].Endpoints) != 1 || found[0].Endpoints[0].Zone == nil || *found[0].Endpoints[0].Zone != want {
			return fmt.Errorf("want one endpoint in %s", want)
		}
		return nil
	}
}

// P22: the slices of a Service that is deleted go with it; the server does nothing.
func testServiceDeleted(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	r.expect("web", sizes(1))
	since := time.Now()
	do(r.T, r.CoreV1().Services(r.ns).Delete(r.Context(), "web", metav1.DeleteOptions{}))
	r.expect("web", sizes())
	r.settle()
	if w := r.writes(since); len(w) > 0 {
		r.Errorf("the server wrote %v", w)
	}
}

// Q01: one slice for each family of the Service.
func testFamilies(r *caseRun) {
	single, dual := corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack
	for name, c := range map[string]struct {
		families func(*corev1.Service)
		ips      []string
		want     []discoveryv1.AddressType
	}{
		"four": {families(single, corev1.IPv4Protocol), []string{"10.9.0.1"}, []discoveryv1.AddressType{"IPv4"}},
		"six":  {families(single, corev1.IPv6Protocol), []string{"fd00::1"}, []discoveryv1.AddressType{"IPv6"}},
		"dual": {families(dual, corev1.IPv4Protocol, corev1.IPv6Protocol), []string{"10.9.0.2", "fd00::2"}, []discoveryv1.AddressType{"IPv4", "IPv6"}},
	} {
		// A cluster of one family has no cluster IPs of the other; a headless Service has no need of one.
		r.service(r.T, r.svc(name, headless, c.families, func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": name} }))
		r.create(r.T, ready(workload(r.ns, name, map[string]string{"app": name}, c.ips, "http:8080"), true))
		found := r.expect(name, func(found []discoveryv1.EndpointSlice) error {
			var got []discoveryv1.AddressType
			for _, es := range found {
				got = append(got, es.AddressType)
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				return fmt.Errorf("families %v, want %v", got, c.want)
			}
			return nil
		})
		for _, es := range found {
			if len(es.Endpoints) != 1 {
				r.Fatalf("%s: %d endpoints", name, len(es.Endpoints))
			}
			if c := es.Endpoints[0].Conditions; !*c.Ready || !*c.Serving || *c.Terminating {
				r.Errorf("%s: conditions %v %v %v", name, *c.Ready, *c.Serving, *c.Terminating)
			}
		}
	}
}

// Q02: the slices of a headless Service say so, and the instances have names.
func testHeadless(r *caseRun) {
	r.service(r.T, r.svc("web", headless))
	r.create(r.T, r.web("ew", "10.9.0.1"))
	es := r.expect("web", sizes(1))[0]
	if v, found := es.Labels[corev1.IsHeadlessService]; !found || v != "" {
		r.Errorf("labels %v", es.Labels)
	}
	if h := es.Endpoints[0].Hostname; h == nil || *h != "ew" {
		r.Errorf("hostname %v", h)
	}
}

// Q04: an endpoint that gets a zone stays where it is.
func testInPlace(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	before := r.expect("web", sizes(1))[0]
	r.change(r.T, r.ns, "ew", func(u *unstructured.Unstructured) {
		u.SetLabels(map[string]string{"app": "web", corev1.LabelTopologyZone: "zone1"})
	})
	if after := r.expect("web", zone("zone1"))[0]; after.UID != before.UID {
		r.Error("it is in another slice")
	}
}

// Q05: a port's name leads to as many numbers as the workloads say, each in slices of its own.
func testNamedPorts(r *caseRun) {
	r.service(r.T, r.svc("web", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("http") }))
	var all []*unstructured.Unstructured
	for i := range 300 {
		all = append(all, ready(workload(r.ns, fmt.Sprintf("web-%03d", i), map[string]string{"app": "web"},
			[]string{fmt.Sprintf("10.9.%d.%d", i/250, 1+i%250)}, fmt.Sprintf("http:%d", 8080+i%5)), true))
	}
	r.create(r.T, all...)
	found := r.expect("web", sizes(60, 60, 60, 60, 60))
	var ports []string
	for _, es := range found {
		ports = append(ports, portsText(es))
	}
	slices.Sort(ports)
	if want := []string{"http:8080/TCP", "http:8081/TCP", "http:8082/TCP", "http:8083/TCP", "http:8084/TCP"}; !slices.Equal(ports, want) {
		r.Errorf("ports %v", ports)
	}
}

// Q06: a slice holds 100 endpoints.
func testMany(r *caseRun) {
	r.whileStopped(func() {
		r.create(r.T, r.webs(250)...)
		r.service(r.T, r.svc("web"))
	})
	r.expect("web", sizes(100, 100, 50))
	r.settle()
	if w := r.writes(time.Time{}); len(w) != 3 {
		r.Errorf("writes %v, want three creates", w)
	}
}

// slice returns a slice as the server would have made it, for some workloads, that are not ready in it.
func (r *caseRun) slice(owner *corev1.Service, of []*unstructured.Unstructured) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "linkerd-external-" + owner.Name + "-", Namespace: r.ns,
			Labels:          map[string]string{discoveryv1.LabelServiceName: owner.Name, discoveryv1.LabelManagedBy: external},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("Service"))},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, u := range of {
		spec := u.Object["spec"].(map[string]any)
		ip := spec["workloadIPs"].([]any)[0].(map[string]any)["ip"].(string)
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(false)},
			TargetRef: &corev1.ObjectReference{Kind: "ExternalWorkload", Namespace: r.ns, Name: u.GetName()},
		})
	}
	return es
}

// Q07: slices that are written anyway are filled first, the fullest of them first.
func testFullestFirst(r *caseRun) {
	all := r.webs(250)
	var names []string
	r.whileStopped(func() {
		r.create(r.T, all...)
		owner := r.service(r.T, r.svc("web"))
		for _, part := range [][]*unstructured.Unstructured{all[:62], all[62:123]} {
			es, err := r.DiscoveryV1().EndpointSlices(r.ns).Create(r.Context(), r.slice(owner, part), metav1.CreateOptions{})
			do(r.T, err)
			names = append(names, es.Name)
		}
	})
	found := r.expect("web", sizes(100, 100, 50))
	for _, es := range found {
		if full := len(es.Endpoints) == 100; full != slices.Contains(names, es.Name) {
			r.Errorf("%s holds %d; there were %v", es.Name, len(es.Endpoints), names)
		}
		for _, e := range es.Endpoints {
			if !*e.Conditions.Ready || e.TargetRef.UID == "" {
				r.Fatalf("%s: %v was not put right", es.Name, e.Addresses)
			}
		}
	}
	r.settle()
	w := r.writes(time.Time{})
	slices.Sort(w)
	if want := []string{"create", "update " + names[0], "update " + names[1]}; len(w) != 3 || !strings.HasPrefix(w[0], "create") || !slices.Contains(w, want[1]) || !slices.Contains(w, want[2]) {
		r.Errorf("writes %v, want %v", w, want)
	}
}

// Q08: when the target port changes every slice keeps its name and its size.
func testTargetChanges(r *caseRun) {
	r.whileStopped(func() {
		for i, u := range r.webs(250) {
			u.Object["spec"] = workload(r.ns, "", nil, []string{fmt.Sprintf("10.9.%d.%d", i/250, 1+i%250)}, "http:8080", "alt:81").Object["spec"]
			r.create(r.T, u)
		}
		r.service(r.T, r.svc("web"))
	})
	before := r.expect("web", sizes(100, 100, 50))
	since := time.Now()
	r.edit("web", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(81) })
	after := r.expect("web", func(found []discoveryv1.EndpointSlice) error {
		for _, es := range found {
			if portsText(es) != "http:81/TCP" {
				return fmt.Errorf("port %s", portsText(es))
			}
		}
		return sizes(100, 100, 50)(found)
	})
	if !slices.Equal(namesOf(before), namesOf(after)) {
		r.Errorf("names %v, and before %v", namesOf(after), namesOf(before))
	}
	r.settle()
	if w := r.writes(since); len(w) != 3 {
		r.Errorf("writes %v, want three updates", w)
	}
}

// Q09: a label of the Service's is on each of its slices.
func testLabelAdded(r *caseRun) {
	r.whileStopped(func() {
		r.create(r.T, r.webs(250)...)
		r.service(r.T, r.svc("web"))
	})
	r.expect("web", sizes(100, 100, 50))
	since := time.Now()
	r.edit("web", func(s *corev1.Service) { s.Labels = map[string]string{"foo": "bar"} })
	labelled := func(want string) func(found []discoveryv1.EndpointSlice) error {
		return func(found []discoveryv1.EndpointSlice) error {
			for _, es := range found {
				if es.Labels["foo"] != want {
					return fmt.Errorf("labels %v", es.Labels)
				}
			}
			return sizes(100, 100, 50)(found)
		}
	}
	r.expect("web", labelled("bar"))
	r.settle()
	if w := r.writes(since); len(w) != 3 {
		r.Errorf("writes %v, want three updates", w)
	}
	r.edit("web", func(s *corev1.Service) { s.Labels = nil })
	r.expect("web", labelled(""))
}

// Q10: labels that say what a slice is are not the Service's to say.
func testReservedLabels(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	r.expect("web", sizes(1))
	r.quiet(func() {
		r.edit("web", func(s *corev1.Service) {
			s.Labels = map[string]string{discoveryv1.LabelServiceName: "bad", discoveryv1.LabelManagedBy: "bad", corev1.IsHeadlessService: "invalid"}
		})
	})
	es := r.expect("web", sizes(1))[0]
	if _, found := es.Labels[corev1.IsHeadlessService]; found || es.Labels[discoveryv1.LabelServiceName] != "web" || es.Labels[discoveryv1.LabelManagedBy] != external {
		r.Errorf("labels %v", es.Labels)
	}
}

// Q11: many slices that are far from full are packed anew when all of them have to be written.
func testRecycle(r *caseRun) {
	all := r.webs(300)
	var names []string
	r.whileStopped(func() {
		for i, u := range all {
			u.Object["spec"] = workload(r.ns, "", nil, []string{fmt.Sprintf("10.9.%d.%d", i/250, 1+i%250)}, "http:8080", "alt:81").Object["spec"]
		}
		r.create(r.T, all...)
		owner := r.service(r.T, r.svc("web"))
		for i := range 10 {
			es, err := r.DiscoveryV1().EndpointSlices(r.ns).Create(r.Context(), r.slice(owner, all[30*i:30*i+30]), metav1.CreateOptions{})
			do(r.T, err)
			names = append(names, es.Name)
		}
		r.edit("web", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(81) })
	})
	found := r.expect("web", sizes(100, 100, 100))
	for _, es := range found {
		if !slices.Contains(names, es.Name) || portsText(es) != "http:81/TCP" {
			r.Errorf("slice %s with %s", es.Name, portsText(es))
		}
	}
}

// Q13: a Service of IPv6 gets the workloads that have such addresses.
func testIPv6Only(r *caseRun) {
	r.create(r.T, r.web("ew1", "fd00::1"), r.web("ew2", "10.9.0.2"))
	r.service(r.T, r.svc("web", headless, families(corev1.IPFamilyPolicySingleStack, corev1.IPv6Protocol)))
	if es := r.expect("web", holds("fd00::1")); len(es) != 1 || es[0].AddressType != discoveryv1.AddressTypeIPv6 {
		r.Errorf("slices\n%s", describe(es))
	}
}

// conditions checks what the endpoint at an address says of itself.
func (r *caseRun) conditions(found []discoveryv1.EndpointSlice, addr string, isReady bool) {
	r.Helper()
	for _, es := range found {
		for _, e := range es.Endpoints {
			if e.Addresses[0] != addr {
				continue
			}
			if c := e.Conditions; *c.Ready != isReady || *c.Serving != isReady || *c.Terminating {
				r.Errorf("%s: ready %v, serving %v, terminating %v", addr, *c.Ready, *c.Serving, *c.Terminating)
			}
			return
		}
	}
	r.Errorf("%s is missing", addr)
}

// Q14: a workload that is not ready is written, as such.
func testNotReady(r *caseRun) {
	r.create(r.T, ready(r.web("ew1", "10.9.0.1"), false), r.web("ew2", "10.9.0.2"))
	r.service(r.T, r.svc("web"))
	found := r.expect("web", holds("10.9.0.1", "10.9.0.2"))
	r.conditions(found, "10.9.0.1", false)
	r.conditions(found, "10.9.0.2", true)
}

// Q15: two workloads at one address are two endpoints.
func testSameAddress(r *caseRun) {
	r.create(r.T, r.web("ew1", "10.9.0.1"), r.web("ew2", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	var refs []string
	for _, e := range r.expect("web", holds("10.9.0.1", "10.9.0.1"))[0].Endpoints {
		refs = append(refs, e.TargetRef.Name)
	}
	slices.Sort(refs)
	if !slices.Equal(refs, []string{"ew1", "ew2"}) {
		r.Errorf("references %v", refs)
	}
}

// Q16: a workload without conditions is not ready.
func testNoConditions(r *caseRun) {
	r.create(r.T, workload(r.ns, "ew", map[string]string{"app": "web"}, []string{"10.9.0.1"}, "http:8080"))
	r.service(r.T, r.svc("web"))
	r.conditions(r.expect("web", sizes(1)), "10.9.0.1", false)
}

// Q18: when a Service loses a family its slices of that family go.
func testFamilyLost(r *caseRun) {
	r.service(r.T, r.svc("web", headless, families(corev1.IPFamilyPolicyPreferDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol)))
	r.create(r.T, r.web("ew", "10.9.0.1", "fd00::1"))
	r.expect("web", holds("10.9.0.1", "fd00::1"))
	r.edit("web", families(corev1.IPFamilyPolicySingleStack, corev1.IPv4Protocol))
	r.expect("web", holds("10.9.0.1"))
}

// Q19: a slice with our labels that belongs to another Service of that name is deleted.
func testForeignOwner(r *caseRun) {
	other := r.service(r.T, r.svc("other"))
	var name string
	r.whileStopped(func() {
		r.create(r.T, r.web("ew", "10.9.0.1"))
		r.service(r.T, r.svc("web"))
		es := r.slice(other, nil)
		es.Labels[discoveryv1.LabelServiceName] = "web"
		created, err := r.DiscoveryV1().EndpointSlices(r.ns).Create(r.Context(), es, metav1.CreateOptions{})
		do(r.T, err)
		name = created.Name
	})
	r.expect("web", holds("10.9.0.1"))
	eventually(r.T, time.Second, "the foreign slice is gone", func(ctx context.Context) error {
		if _, err := r.DiscoveryV1().EndpointSlices(r.ns).Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
}

// Q20: when the last workload goes no empty slice stays.
func testLastGone(r *caseRun) {
	r.create(r.T, r.web("ew", "10.9.0.1"))
	r.service(r.T, r.svc("web"))
	r.expect("web", sizes(1))
	do(r.T, r.dynamic.Resource(workloadResource).Namespace(r.ns).Delete(r.Context(), "ew", metav1.DeleteOptions{}))
	r.expect("web", sizes())
}

// Q21: what a slice looks like.
func testShape(r *caseRun) {
	owner := r.service(r.T, r.svc("web", func(s *corev1.Service) { s.Labels = map[string]string{"team": "shop"} }))
	r.create(r.T, r.web("ew", "10.9.0.1"))
	es := r.expect("web", sizes(1))[0]
	if es.GenerateName != "linkerd-external-web-" || !strings.HasPrefix(es.Name, es.GenerateName) {
		r.Errorf("name %s, made of %q", es.Name, es.GenerateName)
	}
	if o := metav1.GetControllerOf(&es); o == nil || o.APIVersion != "v1" || o.Kind != "Service" || o.Name != "web" || o.UID != owner.UID {
		r.Errorf("owner %+v", o)
	}
	want := map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: external, "team": "shop"}
	if !maps.Equal(es.Labels, want) {
		r.Errorf("labels %v, want %v", es.Labels, want)
	}
	if got := portsText(es); got != "http:8080/TCP" {
		r.Errorf("ports %s", got)
	}
}

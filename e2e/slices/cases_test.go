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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

// TestCases are those contract cases of the slices of ExternalWorkloads that depend on what a real control
// plane does besides storing objects: it validates slices, generates their names, and deletes them with their
// owner. All other cases of P and Q are scenarios.
func TestCases(t *testing.T) {
	x := newCases(t)
	for _, c := range []struct {
		id   string
		test func(*caseRun)
	}{
		{"P04", testSelection},
		{"P22", testServiceDeleted},
		{"Q01", testFamilies},
		{"Q15", testSameAddress},
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

func families(policy corev1.IPFamilyPolicy, of ...corev1.IPFamily) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &policy, of }
}

func headless(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

// web returns a ready ExternalWorkload that the Service selects, with port http:8080.
func (r *caseRun) web(name string, ips ...string) *unstructured.Unstructured {
	return ready(workload(r.ns, name, map[string]string{"app": "web"}, ips, "http:8080"), true)
}

// expect waits until the slices of a Service pass a check.
func (r *caseRun) expect(service string,
	check func([]discoveryv1.EndpointSlice) error,
) (found []discoveryv1.EndpointSlice) {
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

// settle waits until the server has seen everything that was done before: it has written the slices of a
// Service that was made afterwards, twice over, because it works on several at once.
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
		if q.Resource != "endpointslices" || q.Namespace != r.ns ||
			!strings.HasPrefix(q.UserAgent, "fingerpost/") || q.Time.Before(since) {
			continue
		}
		if slices.Contains([]string{"create", "update", "patch", "delete"}, q.Verb) && q.Code < 400 {
			all = append(all, strings.TrimSpace(q.Verb+" "+q.Name))
		}
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

// P04: a Service gets the workloads that it selects in its own namespace.
func testSelection(r *caseRun) {
	other := workload(linkerd, "elsewhere", map[string]string{"app": "web"}, []string{"10.9.0.3"}, "http:8080")
	r.create(r.T, r.web("ew1", "10.9.0.1"),
		ready(workload(r.ns, "ew2", map[string]string{"app": "other"}, []string{"10.9.0.2"}, "http:8080"), true), other)
	r.service(r.T, r.svc("web"))
	found := r.expect("web", sizes(1))
	e := found[0].Endpoints[0]
	if ref := e.TargetRef; e.Addresses[0] != "10.9.0.1" || ref == nil || ref.Kind != "ExternalWorkload" ||
		ref.Name != "ew1" || ref.Namespace != r.ns || ref.UID == "" {
		r.Errorf("endpoint %v refers to %+v", e.Addresses, ref)
	}
	r.settle()
	if w := r.writes(time.Time{}); len(w) != 1 {
		r.Errorf("writes %v, want one create", w)
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
		"dual": {
			families(dual, corev1.IPv4Protocol, corev1.IPv6Protocol),
			[]string{"10.9.0.2", "fd00::2"},
			[]discoveryv1.AddressType{"IPv4", "IPv6"},
		},
	} {
		// A cluster of one family has no cluster IPs of the other; a headless Service has no need of one.
		r.service(r.T, r.svc(name, headless, c.families,
			func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": name} }))
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

// Q21: what a slice looks like.
func testShape(r *caseRun) {
	owner := r.service(r.T, r.svc("web", func(s *corev1.Service) { s.Labels = map[string]string{"team": "shop"} }))
	r.create(r.T, r.web("ew", "10.9.0.1"))
	es := r.expect("web", sizes(1))[0]
	if es.GenerateName != "linkerd-external-web-" || !strings.HasPrefix(es.Name, es.GenerateName) {
		r.Errorf("name %s, made of %q", es.Name, es.GenerateName)
	}
	if o := metav1.GetControllerOf(&es); o == nil || o.APIVersion != "v1" || o.Kind != "Service" ||
		o.Name != "web" || o.UID != owner.UID {
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

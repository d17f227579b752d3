package tenant

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/e2e/internal/proc"
)

// holds is the series of a server that has the installation's Lease.
var holds = regexp.MustCompile(`(?m)^fingerpost_lease_holder\{.*lease="fingerpost-.* 1$`)

const (
	lease = 1_400_000 // bytes of one
	text  = 200 << 10 // bytes in the annotations of one object, which may have 256 KiB
)

// A user fills a namespace with Leases, Services, Endpoints and EndpointSlices that are as large as an API server
// takes them, and look like ours. A replica that writes keeps a small part of each, and so does one that starts then.
func TestRecords(t *testing.T) {
	n := 40
	if *full {
		n = 400
	}
	w := newWorld(t)
	w.serve()
	atFirst := w.heap()
	leases := w.tenant.CoordinationV1().Leases(namespace)
	w.bounded("a Lease", lease, 6<<10, func() { // the buffer of a watch is as large as the largest event so far
		create(w, largeLease(n), leases.Create)
	})
	w.bounded(fmt.Sprintf("%d Leases more", n), n*lease, 2<<10, func() {
		for i := range n {
			create(w, largeLease(i), leases.Create)
		}
	})

	const most, slack = 8, 2 << 10 // KiB of an object, in all that reads it, and of anything else
	core := w.tenant.CoreV1()
	for _, c := range looks {
		w.bounded(fmt.Sprintf("%d Services %s", n, c.what), n*text, slack+most*n*c.times, func() {
			want := w.services() + n*c.times
			for i := range n {
				create(w, c.service(i), core.Services(namespace).Create)
			}
			w.eventually("they exist, with what is made of them", func(context.Context) (err error) {
				if now := w.services(); now < want {
					err = fmt.Errorf("%d of %d", now, want)
				}
				return err
			})
		})
	}
	w.bounded(fmt.Sprintf("%d Endpoints", n), n*text, slack+most*n, func() {
		for i := range n {
			create(w, largeEndpoints(i), core.Endpoints(namespace).Create)
		}
	})
	w.bounded(fmt.Sprintf("%d EndpointSlices", n), n*text, slack+most*n, func() {
		for i := range n {
			create(w, largeSlice(i), w.tenant.DiscoveryV1().EndpointSlices(namespace).Create)
		}
	})

	before := w.heap()
	w.kill()
	w.serve()
	w.eventually("one that starts has as much", func(context.Context) (err error) { // once it has read all of that
		now := w.heap()
		if may := before + 4*slack; now > may {
			err = fmt.Errorf("it has %d KiB, and may have %d", now, may)
		}
		return err
	})
	w.answered()
	peak, err := proc.Peak(w.Server.PID())
	must(t, err)
	t.Logf("live heap %d KiB at first, %d KiB in the end, %d KiB of one that starts then, with a resident memory of "+
		"at most %d MiB; an honest client: %s", atFirst, before, w.heap(), peak>>20, w.report())
}

// services returns how many Services the server knows in its cluster.
func (w *world) services() int {
	w.t.Helper()
	c, err := w.Server.Cluster(w.t.Context(), w.Local.Name)
	must(w.t, err)
	for _, k := range c.Kinds {
		if k.Resource == "services" {
			return k.Objects
		}
	}
	w.t.Fatalf("the server reads no Services: %v", c.Kinds)
	return 0
}

func named(format string, i int, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf(format, i), Labels: labels,
		Annotations: map[string]string{"example.com/large": strings.Repeat("x", text)},
	}
}

func largeLease(i int) *coordinationv1.Lease {
	id := fmt.Sprintf("a%d", i)
	meta := named("fingerpost-a%d", i, map[string]string{apply.InstallationLabel: id})
	meta.Annotations = nil
	return &coordinationv1.Lease{ObjectMeta: meta, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: new(strings.Repeat("x", lease)), LeaseDurationSeconds: new(int32(60)),
	}}
}

// looks are what Services look like that the server may have to do with.
var looks = []struct {
	what    string
	times   int // how many Services there are of each
	service func(i int) *corev1.Service
}{
	{"of an application", 1, func(i int) *corev1.Service {
		return service(named("plain-%d", i, map[string]string{"app": "web"}))
	}},
	{"that join a federated one", 2, func(i int) *corev1.Service {
		return service(named("member-%d", i, map[string]string{linkerd.FederatedLabel: "member"}))
	}},
	{"that look like mirrors of a cluster", 1, func(i int) *corev1.Service {
		svc := service(named("web-%d-west", i, map[string]string{
			linkerd.MirroredServiceLabel: "true", linkerd.MirrorClusterNameLabel: "west",
		}))
		svc.Annotations = links(i)
		return svc
	}},
	{"that look like federated ones of any clusters", 1, func(i int) *corev1.Service {
		svc := service(named("any-%d", i, map[string]string{"app.kubernetes.io/managed-by": "fingerpost"}))
		svc.Annotations = links(i)
		return svc
	}},
}

func service(meta metav1.ObjectMeta) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: meta}
	svc.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}}
	return svc
}

// links returns the annotation of a Service that was written for Links, of as many clusters as it has room for.
func links(i int) map[string]string {
	var b strings.Builder
	for n := 0; b.Len() < text; n++ {
		fmt.Fprintf(&b, "c%d-%d=shop/a,", i, n)
	}
	return map[string]string{"federation.fingerpost.io/links": b.String()}
}

func largeEndpoints(i int) *corev1.Endpoints { //nolint:staticcheck // mirrors have them
	return &corev1.Endpoints{ //nolint:staticcheck // likewise
		ObjectMeta: named("endpoints-%d", i, map[string]string{linkerd.MirrorClusterNameLabel: "west"}),
		Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // likewise
			Addresses: []corev1.EndpointAddress{{IP: "192.0.2.7"}},
			Ports:     []corev1.EndpointPort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		}},
	}
}

func largeSlice(i int) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: named("slice-%d", i, map[string]string{
			discoveryv1.LabelManagedBy: view.ManagedBy, discoveryv1.LabelServiceName: "absent",
		}),
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80))}},
	}
}

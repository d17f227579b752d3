package hostile

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// Strings that no API server would take, and some that it takes, stand in one object of a cluster each. They
// are members of one federated Service, which goes on to be served: with all other endpoints, and where only
// a name is odd with that one too.
func TestStrangeStrings(t *testing.T) {
	type objects struct {
		service *corev1.Service
		pod     *corev1.Pod
		slice   *discoveryv1.EndpointSlice
	}
	long := strings.Repeat("x", 1<<20) // as much as an object can hold
	rows := []struct {
		name  string
		kept  bool // the endpoint is served all the same
		twist func(o objects)
	}{
		{"the Pod's owner is no UTF-8", true, func(o objects) { o.pod.OwnerReferences[0].Name = "x\xff" }},
		{"the owner's kind is no UTF-8", true, func(o objects) { o.pod.OwnerReferences[0].Kind = "\xff" }},
		{"the owner's name is too long", true, func(o objects) { o.pod.OwnerReferences[0].Name = long }},
		{"a label of the Pod is no UTF-8", true, func(o objects) { o.pod.Labels["\xff"] = "\xff" }},
		{"an annotation of the Pod is no UTF-8", true, func(o objects) {
			o.pod.Annotations = map[string]string{"config.linkerd.io/opaque-ports": "\xff", "\xff": "\xff"}
		}},
		{"the service account is no UTF-8", false, func(o objects) { o.pod.Spec.ServiceAccountName = "x\xff" }},
		{
			"the node is no UTF-8", true,
			func(o objects) { o.pod.Spec.NodeName = "\xff"; o.slice.Endpoints[0].NodeName = new("\xff") },
		},
		{"the zone is no UTF-8", true, func(o objects) { o.slice.Endpoints[0].Zone = new("\xff") }},
		{"the zone is too long", true, func(o objects) { o.slice.Endpoints[0].Zone = new(long) }},
		{"the hostname is no UTF-8", true, func(o objects) { o.slice.Endpoints[0].Hostname = new("\xff") }},
		{"a hint is no UTF-8", true, func(o objects) {
			o.slice.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "\xff"}}}
		}},
		{
			"an annotation of the slice is no UTF-8", true,
			func(o objects) { o.slice.Annotations = map[string]string{"\xff": "\xff"} },
		},
		{
			"the Pod's name is no UTF-8", false,
			func(o objects) { o.pod.Name = "x\xff"; o.slice.Endpoints[0].TargetRef.Name = "x\xff" },
		},
		{
			"the target's namespace is no UTF-8", false,
			func(o objects) { o.slice.Endpoints[0].TargetRef.Namespace = "\xff" },
		},
		{"the address is none", false, func(o objects) {
			o.slice.Endpoints[0].Addresses = []string{"\xff", "", "127.0.0.1", "0.0.0.0", "224.0.0.1"}
		}},
		{"there are no addresses", false, func(o objects) { o.slice.Endpoints[0].Addresses = nil }},
		{"the port has no UTF-8 name", false, func(o objects) { o.slice.Ports[0].Name = new("\xff") }},
		{"the port is 99999", false, func(o objects) { o.slice.Ports[0].Port = new(int32(99999)) }},
		{
			"the protocol is no UTF-8", false,
			func(o objects) { o.slice.Ports[0].Protocol = new(corev1.Protocol("\xff")) },
		},
		{
			"the protocol of the application is no UTF-8", true,
			func(o objects) { o.slice.Ports[0].AppProtocol = new("\xff") },
		},
		{"a port of the Service is no UTF-8", true, func(o objects) {
			o.service.Spec.Ports = append(o.service.Spec.Ports,
				corev1.ServicePort{Name: "\xff", Port: 99999, Protocol: "\xff"})
		}},
		{"an annotation of the Service is no UTF-8", true, func(o objects) {
			o.service.Annotations = map[string]string{"config.linkerd.io/opaque-ports": "\xff", "\xff": "\xff"}
		}},
	}
	w := newBusy(t)
	names := []string{"good"}
	w.link("good").Run(1, func(int) fakeapi.App { return member(0) })
	want := member(0).Addrs()
	for i, row := range rows {
		name, app := fmt.Sprintf("c%d", i), member(1+i)
		app.Pods = 1
		names = append(names, name)
		o := objects{app.Service(), app.Pod(0), app.Slice(0)}
		row.twist(o)
		c := w.link(name)
		c.Apply(o.service, o.pod, o.slice)
		if row.kept {
			want = append(want, app.Addr(0))
		}
	}
	w.local.Apply(fakeapi.Federated("shop", "app", names...))
	w.serve()
	w.live(names...)
	federated := w.client(fakeapi.Authority("shop", "app-federated"), want...)
	w.answered(20)
	held := map[netip.AddrPort]bool{}
	for _, a := range federated.Holds() {
		held[a] = true
	}
	for i, row := range rows {
		if got := held[member(1+i).Addr(0)]; got != row.kept {
			t.Errorf("%s: its endpoint is served: %t", row.name, got)
		}
	}
	if _, err := w.server.Metrics(t.Context()); err != nil {
		t.Errorf("a scrape: %v", err)
	}
}

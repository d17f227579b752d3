package view

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unique"
	"unsafe"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

const bad = "x\xff" // no UTF-8

// viewed returns what is published about Service ns/web, where the API server holds these objects, and what
// is logged.
func viewed(tb testing.TB, options Options, objects ...metav1.Object) (v *federation.View, log []string) {
	tb.Helper()
	store := federation.NewStore()
	store.AddCluster("c", federation.Expectation{})
	r := NewReconciler(funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}), "c", options)
	w := newWorld(r)
	for _, o := range objects {
		kind := reflect.TypeOf(o).Elem().Name()
		if u, is := o.(*unstructured.Unstructured); is {
			kind = u.GetKind()
		}
		if kind == "PartialObjectMetadata" {
			kind = "ReplicaSet"
		}
		w.put(kind, o)
	}
	r.Begin(store.NewWriter("c"), &store.Facts)
	r.queue.ShutDown()
	watch := store.Watch(federation.Ref{Cluster: "c", Service: federation.Service{Namespace: "ns", Name: "web"}})
	defer watch.Close()
	snapshot, _ := watch.Load()
	return snapshot.View, log
}

func goodPod() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: named("web-1")}
	p.Labels = map[string]string{linkerd.ControlPlaneLabel: "linkerd", templateHashLabel: "abc"}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "web"}}
	p.Spec.ServiceAccountName, p.Spec.NodeName = "web", "node-1"
	p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}
	return p
}

func goodSlice() *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{ObjectMeta: named("web-a")}
	es.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	es.Ports = []discoveryv1.EndpointPort{{
		Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP), AppProtocol: new("http"),
	}}
	es.Endpoints = []discoveryv1.Endpoint{
		{
			Addresses: []string{"10.0.0.1"}, Hostname: new("web-1"), Zone: new("zone-1"),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-1"},
			Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-1"}}},
		},
		{Addresses: []string{"10.0.0.2"}},
	}
	return es
}

func goodService() *corev1.Service {
	svc := &corev1.Service{ObjectMeta: named("web")}
	svc.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "admin", Port: 81}}
	return svc
}

// TestBorder: what cannot be used is left out and reported, and nothing else is lost for it.
func TestBorder(t *testing.T) {
	long := strings.Repeat("a", 300)
	type world struct {
		svc   *corev1.Service
		es    *discoveryv1.EndpointSlice
		pod   *corev1.Pod
		owner *metav1.PartialObjectMetadata // a ReplicaSet
	}
	ownsItself := func(v *federation.View) {
		o := v.Slices[0].Endpoints[0].Workload
		cohort := o.Cohort.Value()
		cohort.OwnerKind, cohort.OwnerName = "", ""
		*o = cohort.Workload("web-1")
	}
	for name, tc := range map[string]struct {
		do   func(*world)
		left string                   // out, as it is logged; empty: nothing is
		also func(v *federation.View) // makes a good View what is expected
	}{
		"nothing": {do: func(*world) {}, also: func(*federation.View) {}},
		"the name of an owner": {
			do: func(w *world) { w.pod.OwnerReferences[0].Name = bad }, left: "the owner: its name", also: ownsItself,
		},
		"an owner that ends a label": {
			do: func(w *world) { w.pod.OwnerReferences[0].Name = "x\"} 1\nforged 2" }, left: "the owner: its name",
			also: ownsItself,
		},
		"an owner's kind that ends a label": {
			do:   func(w *world) { w.pod.OwnerReferences[0].Kind = "a=\"\"} 1\nforged 2\nz{b" },
			left: "the owner: its kind", also: ownsItself,
		},
		"an owner's kind that is another label": {
			do: func(w *world) { w.pod.OwnerReferences[0].Kind = "Namespace" }, also: ownsItself,
		},
		"an owner that is a custom resource": {
			do: func(w *world) { w.pod.OwnerReferences[0].Kind = "Cluster" }, also: ownsItself,
		},
		"an owner's kind with a dash and a digit": {
			do: func(w *world) { w.pod.OwnerReferences[0].Kind = "My-Set2" }, also: ownsItself,
		},
		"an owner that is a custom resource, and its name": {
			do: func(w *world) {
				w.pod.OwnerReferences[0].Kind, w.pod.OwnerReferences[0].Name = "Cluster", bad
			}, left: "the owner: its name", also: ownsItself,
		},
		"an owner's kind that is none": {
			do:   func(w *world) { w.pod.OwnerReferences[0].Kind = "Two Words" },
			left: "no name of a kind", also: ownsItself,
		},
		"an owner's kind with a dot": {
			do:   func(w *world) { w.pod.OwnerReferences[0].Kind = "apps/v1.Set" },
			left: "no name of a kind", also: ownsItself,
		},
		"an owner without a kind": {
			do: func(w *world) { w.pod.OwnerReferences[0].Kind = "" }, left: "no name of a kind", also: ownsItself,
		},
		"the owner of the owner": {do: func(w *world) {
			w.owner.OwnerReferences = []metav1.OwnerReference{{Kind: "a=\"\"} 1\nb{", Name: "x"}}
		}, also: func(*federation.View) {}},
		"a zone that ends a label": {
			func(w *world) { w.es.Endpoints[0].Zone = new("z\"} 1\n") }, "zone",
			func(v *federation.View) { v.Slices[0].Endpoints[0].Zone = federation.Name{} },
		},
		"a zone that reverses text": {
			func(w *world) { w.es.Endpoints[0].Zone = new("z\u202e") }, "zone",
			func(v *federation.View) { v.Slices[0].Endpoints[0].Zone = federation.Name{} },
		},
		"a node with a backslash": {
			func(w *world) { w.pod.Spec.NodeName = `a\` }, "node",
			func(v *federation.View) { v.Slices[0].Endpoints[0].Node = federation.Name{} },
		},
		"a template's hash with a line break": {
			func(w *world) { w.pod.Labels[templateHashLabel] = "a\nb" }, "label " + templateHashLabel,
			func(v *federation.View) {
				o := v.Slices[0].Endpoints[0].Workload
				cohort := o.Cohort.Value()
				template := cohort.Template.Value()
				template.Hash = ""
				cohort.Template = unique.Make(template)
				*o = cohort.Workload("web-1")
			},
		},
		"a node": {
			func(w *world) { w.pod.Spec.NodeName = long }, "node",
			func(v *federation.View) { v.Slices[0].Endpoints[0].Node = federation.Name{} },
		},
		"a zone": {
			func(w *world) { w.es.Endpoints[0].Zone = &long }, "zone",
			func(v *federation.View) { v.Slices[0].Endpoints[0].Zone = federation.Name{} },
		},
		"a hint": {
			func(w *world) { w.es.Endpoints[0].Hints.ForZones[0].Name = bad }, "a hint",
			func(v *federation.View) { v.Slices[0].Endpoints[0].Detail.Hints = nil },
		},
		"a hostname": {
			func(w *world) { w.es.Endpoints[0].Hostname = new("a.b") }, "hostname",
			func(v *federation.View) { v.Slices[0].Endpoints[0].Detail.Hostname = "" },
		},
		"appProtocol": {
			func(w *world) { w.es.Ports[0].AppProtocol = new("a b") }, "application protocol",
			func(v *federation.View) { v.Slices[0].Ports[0].App = "" },
		},
		"a port": {
			func(w *world) { w.es.Ports[0].Name = new(bad) }, "a port",
			func(v *federation.View) { v.Slices[0].Ports = nil },
		},
		"a protocol": {
			func(w *world) { w.es.Ports[0].Protocol = new(corev1.Protocol("x")) }, "a port",
			func(v *federation.View) { v.Slices[0].Ports = nil },
		},
		"a declared port": {
			func(w *world) { w.svc.Spec.Ports[1].Name = bad }, "a port",
			func(v *federation.View) { v.Ports = v.Ports[:1] },
		},
		"a service account": {
			func(w *world) { w.pod.Spec.ServiceAccountName = bad }, "all of it: its service account",
			func(v *federation.View) { v.Slices[0].Endpoints = v.Slices[0].Endpoints[1:] },
		},
		"addresses": {
			func(w *world) {
				w.es.Endpoints[1].Addresses = []string{
					"127.0.0.1", "10.0.0.2", "169.254.0.1", "0.0.0.0", "224.0.1.1", "::1", "fe80::1", "ff02::1",
					"::", "::ffff:127.0.0.1",
				}
			}, "address \\\"127.0.0.1", func(*federation.View) {},
		},
		"another slice": {
			func(w *world) { w.es.Name = bad }, "all of it: its name", func(v *federation.View) { v.Slices = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			replicaSet := func() *metav1.PartialObjectMetadata {
				return &metav1.PartialObjectMetadata{ObjectMeta: named("web")}
			}
			good := world{goodService(), goodSlice(), goodPod(), replicaSet()}
			want, _ := viewed(t, Options{}, good.svc, good.es, good.pod, good.owner)
			tc.also(want)
			odd := world{goodService(), goodSlice(), goodPod(), replicaSet()}
			tc.do(&odd)
			got, log := viewed(t, Options{}, odd.svc, odd.es, odd.pod, odd.owner)
			if !reflect.DeepEqual(want, got) {
				t.Errorf("published %+v\nwant %+v", got, want)
			}
			if tc.left == "" && len(log) > 0 || tc.left != "" && (len(log) != 1 || !strings.Contains(log[0], tc.left)) {
				t.Errorf("logged %q, want %q", log, tc.left)
			}
		})
	}
}

// TestBorderCounts: of what there may be any number of, so much is kept.
func TestBorderCounts(t *testing.T) {
	svc, es, pod := goodService(), goodSlice(), goodPod()
	var members []string
	for i := range 50_000 {
		members = append(members, fmt.Sprintf("web@c%d", i))
	}
	svc.Annotations = map[string]string{linkerd.RemoteDiscoveryKey: strings.Join(members, ",")}
	for i := range 2 * maxPorts {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(1000 + i)})
		es.Ports = append(es.Ports, discoveryv1.EndpointPort{Port: new(int32(1000 + i))})
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{
			Name: fmt.Sprintf("p%d", i), ContainerPort: int32(1000 + i),
		})
	}
	for i := range 2 * maxEndpoints {
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{Addresses: []string{addressOf(1, 0, i)}})
	}
	v, log := viewed(t, Options{}, svc, es, pod)
	if n := len(v.Composition.Members); n != maxMembers {
		t.Errorf("%d members", n)
	}
	declared, ports, endpoints := len(v.Ports), len(v.Slices[0].Ports), len(v.Slices[0].Endpoints)
	if declared != maxPorts || ports != maxSlicePorts || endpoints != maxEndpoints {
		t.Errorf("%d declared ports, %d ports, %d endpoints", declared, ports, endpoints)
	}
	if len(log) != 3 {
		t.Errorf("logged %d times: %q", len(log), log)
	}
}

// TestServerBorder: a Server that would take long to apply is left out, and no other.
func TestServerBorder(t *testing.T) {
	heavy := map[string]any{}
	var all []any
	for i := range 10_000 {
		all = append(all, map[string]any{"key": fmt.Sprintf("k%d", i), "operator": "DoesNotExist"})
	}
	heavy["matchExpressions"] = all
	s, err := newServerRecord(someServer("ns", "s", heavy, int64(80), opaqueProtocol), &omissions{})
	if err == nil || s != nil {
		t.Errorf("it is kept: %v, %v", s, err)
	}
}

// TestGatewayMarks: marks of gateways count in the cluster in which they are, and in no other.
func TestGatewayMarks(t *testing.T) {
	es := goodSlice()
	es.Annotations = map[string]string{
		linkerd.RemoteGatewayIdentityAnnotation: "gateway.test",
		linkerd.RemoteNameAnnotation:            "web.ns.svc.cluster.local",
	}
	for _, local := range []bool{true, false} {
		v, _ := viewed(t, Options{Local: local}, goodService(), es)
		if m := v.Slices[0].Endpoints[0].Mirror(); (m != nil) != local {
			t.Errorf("local: %t, marks: %+v", local, m)
		}
	}
}

// TestReportedOnce: an object is logged and counted once for as long as something is wrong with it,
// briefly, and not too many are.
func TestReportedOnce(t *testing.T) {
	var log []string
	r := NewReconciler(funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}), "c", Options{})
	w := newWorld(r)
	for range 10 {
		pod := goodPod()
		pod.OwnerReferences[0].Name = strings.Repeat(bad, 1<<20)
		w.put("Pod", pod)
	}
	if len(log) != 1 || w.kinds["Pod"].Malformed() != 1 || len(log[0]) > 1000 {
		t.Errorf("logged %d times, counted %d times: %.2000q", len(log), w.kinds["Pod"].Malformed(), log)
	}
	w.put("Pod", goodPod())
	pod := goodPod()
	pod.Spec.NodeName = bad
	w.put("Pod", pod)
	if len(log) != 2 || w.kinds["Pod"].Malformed() != 2 {
		t.Errorf("after a good one: logged %d times, counted %d times", len(log), w.kinds["Pod"].Malformed())
	}
	for i := range 2 * maxReported {
		pod.Name = fmt.Sprintf("p%d", i)
		w.put("Pod", pod)
	}
	if len(log) != maxReported+1 {
		t.Errorf("logged %d times", len(log))
	}
}

// Of a name that is too long no more than its beginning is remembered.
func TestLongNamesAreNotKept(t *testing.T) {
	b := newBorder(logr.Discard())
	reduce := checked(b, "Pod", func(*corev1.Pod, *omissions) (int, bool) { return 1, true })
	long := strings.Repeat("x", 1<<20)
	if _, ok := reduce(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: long, Name: long}}); ok {
		t.Error("it is not left out")
	}
	for id := range b.reported {
		if len(id.Namespace) > maxLabel || len(id.Name) > maxName {
			t.Errorf("%d and %d bytes are remembered", len(id.Namespace), len(id.Name))
		}
	}
}

// The name of a member does not keep the annotation that it is a part of.
func TestMembersKeepNoAnnotation(t *testing.T) {
	annotation := "web@east," + strings.Repeat("x", 1<<20)
	svc := goodService()
	svc.Annotations = map[string]string{linkerd.RemoteDiscoveryKey: annotation}
	c, _ := newComposition("c", svc, &omissions{})
	within := func(s string) bool {
		at, all := uintptr(unsafe.Pointer(unsafe.StringData(s))), uintptr(unsafe.Pointer(unsafe.StringData(annotation)))
		return at >= all && at < all+uintptr(len(annotation))
	}
	for _, m := range c.Members {
		if within(m.Name) || within(string(m.Cluster)) {
			t.Errorf("%s is a part of the annotation", m.Ref)
		}
	}
	if len(c.Members) != 1 {
		t.Errorf("members are %v", c.Members)
	}
}

// FuzzBorder: whatever the objects of a cluster are, everything published is plain text and bounded, and
// what is not about them is there.
func FuzzBorder(f *testing.F) {
	f.Add(bad, "127.0.0.1", int32(0), uint32(1<<32-1), uint16(3))
	f.Add(strings.Repeat("a", 300), "::ffff:1.2.3.4", int32(70_000), uint32(1), uint16(2000))
	f.Add("x\"} 1\nforged 2\nz{a=\"", "10.0.0.9", int32(80), uint32(1<<32-1), uint16(3))
	f.Add("a,b@c,d=e@f@", "10.0.0.9", int32(80), uint32(0xaaaaaaaa), uint16(0))
	f.Fuzz(func(t *testing.T, s, addr string, port int32, where uint32, n uint16) {
		bit := uint32(1)
		odd := func(good string) string { // s in the fields that where selects
			defer func() { bit = bit<<1 | bit>>31 }()
			if where&bit != 0 {
				return s
			}
			return good
		}
		svc := goodService()
		svc.Name, svc.Namespace = odd("other"), odd("ns")
		svc.Labels = map[string]string{linkerd.RemoteDiscoveryKey: odd("east"), linkerd.RemoteServiceLabel: odd("web")}
		svc.Spec.Ports[0].Name, svc.Spec.Ports[0].Port = odd("http"), port
		odder := goodService()
		odder.Annotations = map[string]string{
			linkerd.RemoteDiscoveryKey:       strings.Repeat(odd("a@b")+",", int(n%3000)),
			linkerd.LocalDiscoveryAnnotation: odd("web"), linkerd.OpaquePortsAnnotation: odd("25"),
		}
		pod := goodPod()
		pod.Labels[linkerd.ControlPlaneLabel], pod.Labels[templateHashLabel] = odd("linkerd"), odd("x")
		pod.Labels[odd("k")] = odd("v")
		pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = odd("StatefulSet"), odd("web")
		pod.Spec.ServiceAccountName, pod.Spec.NodeName = odd("web"), odd("node")
		pod.Spec.Containers[0].Ports[0].Name = odd("http")
		pod.Annotations = map[string]string{
			linkerd.OpaquePortsAnnotation: odd("http"), linkerd.SkipInboundPortsAnnotation: odd("25"),
		}
		es := goodSlice()
		es.Labels[linkerd.MirrorClusterNameLabel] = odd("east")
		es.Annotations = map[string]string{
			linkerd.RemoteGatewayIdentityAnnotation: odd("gateway"), linkerd.RemoteNameAnnotation: odd("a.b"),
		}
		es.Ports[0].Name, es.Ports[0].AppProtocol, es.Ports[0].Port = new(odd("http")), new(odd("http")), &port
		es.Endpoints[0].Hostname, es.Endpoints[0].Zone = new(odd("web-1")), new(odd("z"))
		es.Endpoints[0].Hints.ForZones[0].Name = odd("z")
		es.Endpoints[1].Addresses = []string{addr, odd("10.0.0.2")}
		es.Endpoints[1].TargetRef = &corev1.ObjectReference{
			Kind: odd("ExternalWorkload"), Name: odd("web-2"), Namespace: odd("ns"),
		}
		external := &unstructured.Unstructured{Object: map[string]any{
			"kind": "ExternalWorkload", "metadata": map[string]any{"namespace": "ns", "name": "web-2"},
			"spec": map[string]any{
				"meshTLS":     map[string]any{"identity": odd("spiffe://a/b"), "serverName": odd("a.b")},
				"workloadIPs": []any{map[string]any{"ip": addr}},
			},
		}}
		for _, options := range []Options{{}, {Local: true}} {
			v, _ := viewed(t, options, svc, odder, pod, es, external)
			if v == nil {
				t.Fatal("a Service is lost")
			}
			bounded := func(s string) {
				if !federation.IsPlain(s) || len(s) > maxIdentity {
					t.Errorf("published: %.100q (%d bytes)", s, len(s))
				}
			}
			walk(reflect.ValueOf(v), bounded)
			if v.Composition != nil && len(v.Composition.Members) > maxMembers {
				t.Errorf("%d members", len(v.Composition.Members))
			}
			for _, s := range v.Slices {
				if i := slices.IndexFunc(s.Endpoints, func(e *federation.Endpoint) bool {
					return e.Addr.IsLoopback() || e.Addr.IsMulticast() || e.Addr == (netip.Addr{})
				}); i >= 0 {
					t.Errorf("published: %v", s.Endpoints[i].Addr)
				}
				for _, e := range s.Endpoints {
					if e.Workload != nil {
						if kind, _ := e.Workload.Owner(); kind != "" && !slices.Contains(federation.OwnerKinds, kind) {
							t.Errorf("published: an owner of kind %q", kind)
						}
						walk(reflect.ValueOf(e.Workload.Cohort.Value()), bounded)
						walk(reflect.ValueOf(e.Workload.Template()), bounded)
					}
				}
			}
		}
	})
}

// walk calls see for every string in v, but for those of other packages and the sets of ports, which are no
// text.
func walk(v reflect.Value, see func(string)) {
	switch v.Kind() { //nolint:exhaustive // nothing else holds strings
	case reflect.Pointer:
		if !v.IsNil() {
			walk(v.Elem(), see)
		}
	case reflect.Struct:
		if strings.HasSuffix(v.Type().PkgPath(), "/federation") && v.Type() != reflect.TypeFor[federation.Ports]() {
			for _, field := range v.Fields() {
				walk(field, see)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), see)
		}
	case reflect.String:
		see(v.String())
	}
}

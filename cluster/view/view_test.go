package view

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "200", "rapid.steps": "50", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

func TestParsePorts(t *testing.T) {
	named := func(name string) (uint16, bool) {
		port, found := map[string]uint16{"http": 80, "sidecar": 8081, "with-dash": 99}[name]
		return port, found
	}
	for list, want := range map[string][]uint16{
		"":                              nil,
		"25":                            {25},
		" 25 , 26":                      {25, 26},
		"http, 8000-8002,sidecar, ":     {80, 8000, 8001, 8002, 8081},
		"junk,-,1-,-2,9-8,70000,80-abc": nil,
		"with-dash":                     {99},
	} {
		ports := parsePorts(list, named, &omissions{})
		if !ports.Given() {
			t.Errorf("%q is read as no list", list)
		}
		if got := holds(ports); !slices.Equal(got, want) {
			t.Errorf("%q holds %v, want %v", list, got, want)
		}
	}
}

func holds(ports federation.Ports) (all []uint16) {
	for n := range 1 << 16 {
		if ports.Contains(uint16(n)) {
			all = append(all, uint16(n))
		}
	}
	return all
}

func TestComposition(t *testing.T) {
	const remote, service = linkerd.RemoteDiscoveryKey, linkerd.RemoteServiceLabel
	const local = linkerd.LocalDiscoveryAnnotation
	for name, tc := range map[string]struct {
		labels, annotations map[string]string
		want                string
	}{
		"plain":         {nil, nil, "itself"},
		"mirror":        {map[string]string{remote: "east", service: "bb"}, nil, "one: east/bb"},
		"half a mirror": {map[string]string{remote: "east"}, nil, "malformed"},
		"federated": {
			nil, map[string]string{remote: "bb@east,bb@west", local: "bb"}, "union: home/bb* east/bb west/bb",
		},
		"federated wins": {
			map[string]string{remote: "east", service: "x"}, map[string]string{local: "bb"}, "union: home/bb*",
		},
		"empty":       {nil, map[string]string{remote: ""}, "union:"},
		"empty local": {nil, map[string]string{local: ""}, "union:"},
		"junk": {nil, map[string]string{
			remote: "bb,@east,bb@,a@b@c, bb@north,ok@south",
		}, "union: south/ok north/ bb junk 4"},
		"twice":             {nil, map[string]string{remote: "bb@east,bb@east"}, "union: east/bb"},
		"ourselves by name": {nil, map[string]string{remote: "bb@home", local: "bb"}, "union: home/bb* home/bb"},
	} {
		t.Run(name, func(t *testing.T) {
			var left omissions
			v := newView("home", &corev1.Service{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "s", Labels: tc.labels, Annotations: tc.annotations,
			}}, &left)
			got := "itself"
			if c := v.Composition; c != nil {
				got = "one:"
				if c.Union {
					got = "union:"
				}
				for _, m := range c.Members {
					got += fmt.Sprintf(" %s/%s", m.Cluster, m.Name)
					if m.Filtered {
						got += "*"
					}
				}
			}
			if v.Malformed != "" {
				got = "malformed"
			}
			if len(left.all) > 0 {
				got += fmt.Sprintf(" junk %d", len(left.all))
			}
			want := tc.want
			if name == "junk" { // the blank is part of the name: items are not trimmed
				want = "union: north/ bb south/ok junk 4"
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// A mirror through a gateway is known by its labels, also while it has no endpoints, and to its own cluster only.
func TestThroughGateway(t *testing.T) {
	const mirrored, cluster = "mirror.linkerd.io/mirrored-service", "mirror.linkerd.io/cluster-name"
	for name, tc := range map[string]struct {
		labels map[string]string
		remote bool // the Service is in a linked cluster
		want   federation.Cluster
	}{
		"mirror":                    {labels: map[string]string{mirrored: "true", cluster: "east"}, want: "east"},
		"plain":                     {labels: map[string]string{cluster: "east"}},
		"federated without members": {labels: map[string]string{mirrored: "true"}},
		"without the gateway": {labels: map[string]string{
			mirrored: "true", cluster: "east", linkerd.RemoteDiscoveryKey: "east", linkerd.RemoteServiceLabel: "web",
		}},
		"probe":     {labels: map[string]string{linkerd.MirroredGatewayLabel: "true", cluster: "east"}},
		"too long":  {labels: map[string]string{mirrored: "true", cluster: strings.Repeat("e", 64)}},
		"elsewhere": {labels: map[string]string{mirrored: "true", cluster: "east"}, remote: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{cluster: "home", options: Options{Local: !tc.remote}}
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", Labels: tc.labels}}
			record, _ := r.reduceService(svc, &omissions{})
			if record.ThroughGateway != tc.want {
				t.Errorf("through the gateway of %q, want %q", record.ThroughGateway, tc.want)
			}
		})
	}
}

func TestServicePorts(t *testing.T) {
	v := newView("home", &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
		{Port: 443, Name: "https", TargetPort: intstr.FromInt32(8443)},
		{Port: 53, Name: "dns-udp", Protocol: corev1.ProtocolUDP},
		{Port: 53, Name: "dns-tcp", Protocol: corev1.ProtocolTCP},
		{Port: 80, TargetPort: intstr.FromString("http")},
		{Port: 53, Name: "again", Protocol: corev1.ProtocolUDP},
		{Port: 54, Name: "odd", Protocol: "QUIC"},
	}}}, &omissions{})
	want := []federation.ServicePort{
		{Number: 53, Name: "dns-tcp", Target: 53},
		{Number: 53, Protocol: federation.UDP, Name: "dns-udp", Target: 53},
		{Number: 80},
		{Number: 443, Name: "https", Target: 8443},
	}
	if diff := cmp.Diff(want, v.Ports); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOwner(t *testing.T) {
	owners := map[owner]owner{
		{"replicaset", "rs"}: {"deployment", "d"}, {"replicaset", "odd"}: {"rollout", "r"},
		{"job", "j"}: {"cronjob", "c"}, {"job", "alone"}: {},
	}
	for from, want := range map[owner]string{
		{}:                              "pod/p",
		{"replicaset", "rs"}:            "deployment/d",
		{"replicaset", "absent"}:        "replicaset/absent",
		{"replicaset", "odd"}:           "replicaset/odd",
		{"job", "j"}:                    "cronjob/c",
		{"job", "alone"}:                "job/alone",
		{"replicationcontroller", "rc"}: "replicationcontroller/rc",
	} {
		ownerOf := func(o owner) (owner, bool) {
			up, found := owners[o]
			return up, found
		}
		o := controllerOf(from, ownerOf)
		w := federation.Cohort{Kind: federation.Pod, OwnerKind: o.kind, OwnerName: o.name}.Workload("p")
		if kind, name := w.Owner(); kind+"/"+name != want {
			got := kind + "/" + name
			t.Errorf("owner %v: %s, want %s", from, got, want)
		}
	}
}

// world is what an API server holds, in the stores of a Reconciler.
type world struct {
	kinds map[string]Input
	log   map[string]any // the newest object by kind and key
}

func (w *world) put(kind string, o metav1.Object) {
	id := kind + " " + o.GetNamespace() + "/" + o.GetName()
	w.log[id] = o
	w.kinds[kind].Store.Update(o)
}

func (w *world) drop(kind string, o metav1.Object) {
	delete(w.log, kind+" "+o.GetNamespace()+"/"+o.GetName())
	w.kinds[kind].Store.Delete(o)
}

func newWorld(r *Reconciler) *world {
	w := &world{kinds: map[string]Input{}, log: map[string]any{}}
	for _, k := range r.Inputs() {
		w.kinds[k.Name] = k
	}
	return w
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }

// TestReconcilerFollows checks that what is published after any sequence of events is what another
// Reconciler publishes that reads the last state of all objects at once: nothing depends on which events
// arrived, or in which order.
func TestReconcilerFollows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.SliceOfN(rapid.Uint32Range(0, 1<<24), 20, 80).Draw(rt, "events")
		synctest.Test(t, func(t *testing.T) {
			store := federation.NewStore()
			store.AddCluster("c", federation.Expectation{Local: true})
			r := NewReconciler(logr.Discard(), "c", Options{Local: true})
			w := newWorld(r)
			r.Begin(store.NewWriter("c"), &store.Facts)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); r.Run(ctx) }()
			for i, n := range seed {
				w.event(i, n)
				if n%5 == 0 {
					time.Sleep(time.Second) //nolint:forbidigo // virtual time
					synctest.Wait()
				}
			}
			time.Sleep(time.Second) //nolint:forbidigo // virtual time
			synctest.Wait()
			cancel()
			<-done

			fresh := federation.NewStore()
			fresh.AddCluster("c", federation.Expectation{Local: true})
			r2 := NewReconciler(logr.Discard(), "c", Options{Local: true})
			w2 := newWorld(r2)
			for id, o := range w.log {
				kind, _, _ := strings.Cut(id, " ")
				w2.put(kind, o.(metav1.Object))
			}
			r2.Begin(fresh.NewWriter("c"), &fresh.Facts)
			r2.queue.ShutDown()
			for _, svc := range []string{"a", "b"} {
				if diff := cmp.Diff(viewText(fresh, svc), viewText(store, svc)); diff != "" {
					rt.Errorf("Service %s (-at once +in steps):\n%s", svc, diff)
				}
			}
			for _, ip := range []string{"10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "192.168.0.1"} {
				if diff := cmp.Diff(ownersText(fresh, ip), ownersText(store, ip)); diff != "" {
					rt.Errorf("%s (-at once +in steps):\n%s", ip, diff)
				}
			}
			if diff := cmp.Diff(sizes(r2), sizes(r)); diff != "" {
				rt.Errorf("state is left behind (-at once +in steps):\n%s", diff)
			}
		})
	})
}

// sizes returns how much a Reconciler keeps of each kind of state, when another Service changes.
func sizes(r *Reconciler) map[string]int {
	r.forgetWindows(time.Now())
	return map[string]int{
		"serviceIPs": len(r.serviceIPs), "servicesByIP": len(r.servicesByIP), "replaced": len(r.replaced),
		"windows": len(r.windows),
		"awaited": len(r.awaited),
		"pods":    len(r.workloads[kindPod]["ns"]), "externals": len(r.workloads[kindExternal]["ns"]),
		"servers": len(r.appliedServers["ns"]), "translated": len(r.translated["ns"]),
		"slicesOf": len(r.slicesOf["ns"]),
	}
}

// event makes n into a change of the world, the at-th. Small numbers, which rapid likes best, are as good
// as any.
func (w *world) event(at int, n uint32) {
	pick := rand.New(rand.NewPCG(uint64(at), uint64(n))).IntN
	kind, drop, i := pick(6), pick(3) == 0, pick(3)
	switch kind {
	case 0:
		p := &corev1.Pod{ObjectMeta: named(fmt.Sprintf("p%d", i))}
		p.Labels = map[string]string{
			linkerd.ControlPlaneLabel: []string{"", "linkerd"}[pick(2)], "app": []string{"a", "b"}[pick(2)],
		}
		p.Spec.Containers = []corev1.Container{{
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: int32(80 + pick(2))}},
		}}
		p.Spec.NodeName = fmt.Sprintf("n%d", pick(2))
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: fmt.Sprintf("rs%d", pick(2))}}
		p.Status.Phase = []corev1.PodPhase{corev1.PodRunning, corev1.PodPending, corev1.PodFailed}[pick(3)]
		p.Status.PodIP, p.Status.HostIP = fmt.Sprintf("10.0.0.%d", pick(3)), "192.168.0.1"
		p.Spec.Containers[0].Ports[0].HostPort = int32(8000 + pick(2))
		hostIPs := []string{"", "", "10.0.0.1", "192.168.0.1", "127.0.0.1", "0.0.0.0"}
		p.Spec.Containers[0].Ports[0].HostIP = hostIPs[pick(6)]
		w.apply("Pod", p, drop)
	case 1:
		es := &discoveryv1.EndpointSlice{ObjectMeta: named(fmt.Sprintf("s%d", i))}
		es.Labels = map[string]string{discoveryv1.LabelServiceName: []string{"a", "b", "a", ""}[pick(4)]}
		for range pick(4) {
			es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.0.0.%d", pick(5))},
				TargetRef: []*corev1.ObjectReference{
					nil,
					{Kind: "Pod", Name: fmt.Sprintf("p%d", pick(3))},
					{Kind: "ExternalWorkload", Name: fmt.Sprintf("p%d", pick(3))},
					{Kind: "Node", Name: "n"},
				}[pick(4)],
			})
		}
		w.apply("EndpointSlice", es, drop)
	case 2:
		svc := &corev1.Service{ObjectMeta: named([]string{"a", "b", "b"}[i])}
		svc.Spec.Ports = []corev1.ServicePort{{Port: int32(80 + pick(2))}}
		svc.Spec.ClusterIP = fmt.Sprintf("10.0.0.%d", pick(4))
		w.apply("Service", svc, drop)
	case 3:
		rs := &metav1.PartialObjectMetadata{ObjectMeta: named(fmt.Sprintf("rs%d", i%2))}
		rs.OwnerReferences = []metav1.OwnerReference{{Kind: "Deployment", Name: "d"}}
		w.apply("ReplicaSet", rs, false) // Pods keep a deleted one as their owner, so what follows would differ
	case 4:
		selector := []any{nil, map[string]any{}, matching("a"), matching("b")}[pick(4)]
		port := []any{int64(80), int64(81), "http"}[pick(3)]
		protocol := []string{"opaque", "opaque", "HTTP/1"}[pick(3)]
		w.apply("Server", someServer("ns", fmt.Sprintf("s%d", i), selector, port, protocol), drop)
	case 5:
		w.apply("ExternalWorkload", &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{
				"namespace": "ns", "name": fmt.Sprintf("p%d", i),
				"labels": map[string]any{"app": []any{"a", "b"}[pick(2)]},
				// As some Pods of its name have it: they await that, and it does not.
				"ownerReferences": []any{map[string]any{"kind": "ReplicaSet", "name": "rs0"}},
			},
			"spec": map[string]any{
				"meshTLS":     map[string]any{"identity": "spiffe://" + []string{"a", "b"}[pick(2)]},
				"ports":       []any{map[string]any{"name": "http", "port": int64(80 + pick(2))}},
				"workloadIPs": []any{map[string]any{"ip": fmt.Sprintf("10.0.0.%d", pick(3))}},
			},
		}}, drop)
	}
}

func (w *world) apply(kind string, o metav1.Object, drop bool) {
	if drop {
		w.drop(kind, o)
	} else {
		w.put(kind, o)
	}
}

// viewText renders what is published about a Service.
func viewText(store *federation.Store, name string) string {
	watch := store.Watch(federation.Ref{Cluster: "c", Service: federation.Service{Namespace: "ns", Name: name}})
	defer watch.Close()
	snapshot, _ := watch.Load()
	if snapshot.View == nil {
		return "nothing"
	}
	var b strings.Builder
	fmt.Fprintln(&b, snapshot.View.Ports)
	for _, s := range snapshot.View.Slices {
		fmt.Fprintln(&b, s.Name, s.Ports)
		for _, e := range s.Endpoints {
			fmt.Fprint(&b, "  ", e.Addr, " ", e.Node)
			if e.Workload != nil {
				t := e.Workload.Template()
				kind, name := e.Workload.Owner()
				fmt.Fprint(&b, " ", e.Workload.Name, " ", kind, "/", name, " ", t.ControlPlane, t.Identity, " ",
					holds(t.ServerOpaque))
			}
			fmt.Fprintln(&b)
		}
	}
	return b.String()
}

// ownersText renders the published owners of an IP.
func ownersText(store *federation.Store, ip string) string {
	a, known := store.Addresses.Get("c", netip.MustParseAddr(ip))
	if !known {
		return "none"
	}
	var b strings.Builder
	fmt.Fprintln(&b, a.Services)
	for _, r := range a.Residents {
		kind, _ := r.Owner()
		fmt.Fprintln(&b, " ", r.Name, r.Port, r.Running, kind)
	}
	return b.String()
}

// Any slice, legal or not, becomes something that can be served.
func FuzzSlice(f *testing.F) {
	f.Add("10.0.0.1", int32(80), "http", "Pod", "p", true)
	f.Add("fe80::1%eth0", int32(-1), "", "", "", false)
	f.Add("example.org", int32(70000), "x", "Node", "", true)
	f.Fuzz(func(t *testing.T, addr string, port int32, name, kind, ref string, ready bool) {
		es := &discoveryv1.EndpointSlice{ObjectMeta: named("s")}
		es.Labels = map[string]string{discoveryv1.LabelServiceName: "a"}
		es.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port}, {}}
		es.Endpoints = []discoveryv1.Endpoint{{
			Addresses: []string{addr, ""}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}}
		if kind != "" {
			es.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: kind, Name: ref}
		}
		s, _ := newSliceRecords(es, true, &omissions{})
		out := s[0].resolveSlice(func(objectRef) (*federation.Workload, federation.Name) {
			return &federation.Workload{}, federation.NameOf("n")
		}, nil, 0)
		for _, p := range out.Ports {
			if p.Number == 0 {
				t.Error("a port without a number")
			}
		}
		for _, e := range out.Endpoints {
			if !e.Addr.IsValid() || e.Addr.Is4In6() || e.Addr.Zone() != "" || e.Addr == (netip.Addr{}) {
				t.Errorf("address %q became %v", addr, e.Addr)
			}
		}
	})
}

// Any list of ports is read, and contains its plain items.
func FuzzPorts(f *testing.F) {
	for _, list := range []string{
		"", "25,443", "8000-8002, http", " 1 - 2 ,,", "65535,65536", "9-1", "-1", "1-2-3", "0", "http,8000-", "٣",
	} {
		f.Add(list, uint16(80))
	}
	f.Fuzz(func(t *testing.T, list string, named uint16) {
		lookUp := func(name string) (uint16, bool) { return named, name == "http" }
		ports := parsePorts(list, lookUp, &omissions{})
		if !ports.Given() {
			t.Errorf("%q is read as no list", list)
		}
		for item := range strings.SplitSeq(list, ",") {
			item = strings.TrimSpace(item)
			if n, err := strconv.ParseUint(item, 10, 16); err == nil && !ports.Contains(uint16(n)) {
				t.Errorf("%q lacks %d", list, n)
			}
			if item == "http" && !ports.Contains(named) {
				t.Errorf("%q lacks http", list)
			}
		}
		if again := parsePorts(list, lookUp, &omissions{}); again != ports {
			t.Errorf("%q is read in two ways", list)
		}
	})
}

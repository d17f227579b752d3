package linkerd_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/discovery/linkerd"
	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/serving"
)

const (
	home   = "local"           // the cluster that the server runs in
	ours   = "linkerd"         // controller namespace
	domain = "mycluster.local" // of home
	trust  = "trust.domain"    // of home
)

var randomSeed = flag.Uint64("random-seed", 0, "seed of TestRandomRequests; 0: another one each time")

// TestRandomRequests asks for anything, legal or not, in a cluster that may hold anything, legal or
// not, and changes all the time. Every request is answered in time, by a message or by a status, and
// every message is one that a proxy can use.
func TestRandomRequests(t *testing.T) {
	requests := 50_000
	if testing.Short() {
		requests = 5_000
	}
	seed := *randomSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("replay with -random-seed=%d", seed)
	for i, mode := range []string{"slices", "endpoints", "transport-header"} {
		t.Run(mode, func(t *testing.T) {
			n := requests / 4
			if mode == "slices" {
				n = requests / 2
			}
			synctest.Test(t, func(t *testing.T) { askAtRandom(t, rand.NewPCG(seed, uint64(i)), mode, n) })
		})
	}
}

// askAtRandom makes n requests, a hundred at a time.
func askAtRandom(t *testing.T, source *rand.PCG, mode string, n int) {
	t.Helper()
	dice := dice{rand.New(source)}
	store := federation.NewStore()
	store.AddCluster(home, federation.Expectation{TrustDomain: trust, Since: time.Now(), Local: true})
	store.AddCluster("silent", federation.Expectation{TrustDomain: trust, Since: time.Now()}) // was never synced
	store.AddCluster("east", federation.Expectation{TrustDomain: trust, Since: time.Now()})
	east := store.NewWriter("east")
	east.MarkSynced()
	store.MarkClustersListed()
	r := view.NewReconciler(logr.Discard(), home, view.Options{Local: true, Endpoints: mode == "endpoints"})
	w := world{dice: dice, kinds: map[string]view.Input{}, east: east}
	for _, k := range r.Inputs() {
		w.kinds[k.Name] = k
	}
	for range 300 {
		w.change()
	}
	r.Begin(store.NewWriter(home), &store.Facts)

	config := linkerd.Defaults()
	config.Cluster, config.ClusterDomain, config.TrustDomain, config.ControllerNamespace = home, domain, trust, ours
	config.ZoneWeights, config.TransportMode = true, mode
	config.HTTP2 = &pb.Http2ClientParams{}
	ofServing := serving.DefaultConfig()
	ofServing.FrameBytes = 1 << 16 // so that it overflows
	ofServing.Admission = serving.AdmissionConfig{Rate: 1e6, Burst: 1e6, Answers: 4, Patience: 2 * time.Second}
	on := serving.NewServer(logr.Discard(), ofServing)
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(serving.Codec())
	pb.RegisterDestinationServer(server, linkerd.NewServer(logr.Discard(), on, store, config))
	conn, err := grpc.NewClient("passthrough:///fingerpost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	wg.Go(func() { _ = server.Serve(listener) })

	answers := map[string]int{}
	var kept []asked
	for left := n; left > 0 && !t.Failed(); left -= 100 {
		kept = append(kept, w.ask(t, conn, min(left, 100), answers))
	}
	elapse(11 * time.Minute)
	compared := 0
	for _, a := range kept {
		if a.agrees(t, conn) {
			compared++
		}
	}
	t.Logf("answers: %v; %d streams were open to the end", answers, compared)
	for _, answer := range []string{
		"add", "no-endpoints", "profile", "InvalidArgument", "NotFound", "FailedPrecondition",
	} {
		if answers[answer] < n/200 {
			t.Errorf("hardly any request was answered by %s: %v", answer, answers)
		}
	}
	conn.Close()
	server.Stop()
	cancel()
	wg.Wait()
}

// asked is a request and the stream that it opened.
type asked struct {
	kind string
	proxy.Request
	stream interface {
		Close()
		Done() <-chan struct{}
		Violations() error
	}
}

func open(t *testing.T, conn *grpc.ClientConn, kind string, r proxy.Request, observe func(proxy.Event)) asked {
	t.Helper()
	if kind == "get" {
		return asked{kind, r, proxy.Open(t.Context(), conn, r, observe)}
	}
	return asked{kind, r, proxy.OpenProfile(t.Context(), conn, r, observe)}
}

// ask makes n requests at once, while the world changes, and goes on changing it until each is
// answered. It returns one that it has not closed.
func (w world) ask(t *testing.T, conn *grpc.ClientConn, n int, answers map[string]int) asked {
	t.Helper()
	streams, first := make([]asked, n), make([]atomic.Pointer[string], n)
	for i := range streams {
		kind := of(w.dice, "get", "profile")
		streams[i] = open(t, conn, kind, w.request(kind == "profile"), func(e proxy.Event) {
			answer := "profile"
			switch {
			case e.End != nil:
				answer = e.End.Code().String()
			case e.Message != nil:
				answer = string(e.Message.Type)
			}
			first[i].CompareAndSwap(nil, &answer)
		})
		if w.in(4) {
			w.change() // at the same instant
		}
	}
	unanswered := func() (silent int) {
		for i := range first {
			if first[i].Load() == nil {
				silent++
			}
		}
		return silent
	}
	for waited := 0; waited < 5 || unanswered() > 0 && waited < 100; waited++ {
		w.change()
		elapse(30 * time.Millisecond) // less than it takes to gather the changes of a Service
	}
	for i, s := range streams {
		if i > 0 {
			s.close(t)
		}
		if first[i].Load() == nil {
			t.Errorf("%s %+v was not answered", s.kind, s.Request)
			continue
		}
		answers[*first[i].Load()]++
	}
	return streams[0]
}

func (a asked) close(t *testing.T) {
	t.Helper()
	a.stream.Close()
	if err := a.stream.Violations(); err != nil {
		t.Errorf("%s %+v: %v", a.kind, a.Request, err)
	}
}

// agrees checks that a stream which has seen much holds what one holds that was opened just now, unless
// either has ended. It closes it, and returns whether there was anything to check.
func (a asked) agrees(t *testing.T, conn *grpc.ClientConn) (checked bool) {
	t.Helper()
	fresh := open(t, conn, a.kind, a.Request, nil)
	elapse(time.Second / 2)
	if checked = !ended(a) && !ended(fresh); checked && a.holds() != fresh.holds() {
		t.Errorf("%s %+v: a stream that was open for long holds\n%s\na new one\n%s", a.kind, a.Request, a.holds(),
			fresh.holds())
	}
	fresh.close(t)
	a.close(t)
	return checked
}

func ended(a asked) bool {
	select {
	case <-a.stream.Done():
		return true
	default:
		return false
	}
}

// holds returns all that the client knows by now.
func (a asked) holds() string {
	switch s := a.stream.(type) {
	case *proxy.Stream:
		var all []string
		for _, held := range s.Holds() {
			w := proto.CloneOf(held.WeightedAddr)
			w.MetricLabels = held.Labels // of the message or of the address
			all = append(all, w.String())
		}
		return strings.Join(all, "\n")
	case *proxy.ProfileStream:
		return s.Newest().String()
	default:
		panic("of another kind")
	}
}

// dice decide.
type dice struct{ *rand.Rand }

func (d dice) in(n int) bool { return d.IntN(n) == 0 }

func of[T any](d dice, all ...T) T { return all[d.IntN(len(all))] }

// world is what the API server of the cluster holds, written to the stores of a Reconciler, and what
// another cluster claims.
type world struct {
	dice
	kinds map[string]view.Input
	east  *federation.ClusterWriter
}

// Few names, so that objects find each other.
var (
	randomNamespaces = []string{"ns", "ns", "ns", "other"}
	randomNames      = []string{"a", "b", "c", "d", "e"}
	randomIPs        = []string{
		"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "192.168.0.1", "192.168.0.2", "2001:db8::1",
		"2001:db8::2",
	}
	randomJunkIPs = []string{
		"", "None", "fe80::1%eth0", "::ffff:10.0.0.1", "300.1.2.3", "example.org", "0.0.0.0", "::",
		"10.0.0.1/8",
	}
	randomPorts     = []int32{80, 80, 81, 443, 4143, 4191, 8080, 8080, 9090}
	randomJunkPorts = []int32{0, -1, 65535, 65536, 1 << 30}
	randomPortNames = []string{"", "http", "http", "admin", "linkerd-proxy", "Ä", "80"}
	randomZones     = []string{"", "z1", "z2"}
	randomNodes     = []string{"", "n1", "n2"}
	randomOpaque    = []string{"", "80", "8080", "http,admin", "1-65535", "9-8,-,,x", "80,80,80", " 80 - 90 "}
)

func (w world) ip() string {
	if w.in(20) {
		return of(w.dice, randomJunkIPs...)
	}
	return of(w.dice, randomIPs...)
}

func (w world) port() int32 {
	if w.in(15) {
		return of(w.dice, randomJunkPorts...)
	}
	return of(w.dice, randomPorts...)
}

func (w world) name() string { return of(w.dice, randomNames...) }

func (w world) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:   of(w.dice, randomNamespaces...),
		Name:        name,
		Labels:      map[string]string{},
		Annotations: map[string]string{},
	}
}

func (w world) marks(m map[string]string, keys map[string][]string) {
	for k, values := range keys {
		if w.in(3) {
			m[k] = of(w.dice, values...)
		}
	}
}

// change creates, replaces or deletes one object.
func (w world) change() {
	kind, o := w.object()
	k, read := w.kinds[kind]
	switch {
	case !read:
		return
	case w.in(4):
		k.Store.Delete(o)
	default:
		k.Store.Update(o)
	}
}

func (w world) object() (kind string, o metav1.Object) {
	switch w.IntN(16) {
	case 0, 1, 2:
		return "Service", w.service()
	case 3, 4, 5:
		if _, read := w.kinds["Endpoints"]; read {
			return "Endpoints", w.endpoints()
		}
		return "EndpointSlice", w.slice()
	case 6, 7, 8:
		return "Pod", w.pod()
	case 9, 10:
		return "Server", w.server()
	case 11, 12:
		return "ExternalWorkload", w.external()
	case 13:
		return "ServiceProfile", w.profile()
	case 14:
		o := &metav1.PartialObjectMetadata{ObjectMeta: w.meta(w.name())}
		w.own(&o.ObjectMeta)
		return of(w.dice, "ReplicaSet", "Job"), o
	default:
		if w.in(2) {
			w.publish()
		}
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: of(w.dice, randomNodes...)}}
		o.Labels = map[string]string{corev1.LabelTopologyZone: of(w.dice, randomZones...)}
		return "Node", o
	}
}

// publish has the other cluster publish something.
func (w world) publish() {
	name := federation.Service{Namespace: of(w.dice, randomNamespaces...), Name: w.name()}
	if w.in(3) {
		w.east.Delete(name)
		return
	}
	w.east.Set(name, &federation.View{
		ExternalName: w.in(10),
		LocalOnly:    w.in(3),
		Ports:        []federation.ServicePort{{Number: 80}},
	})
}

func (w world) own(m *metav1.ObjectMeta) {
	for range w.IntN(3) {
		m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{
			Kind: of(w.dice, "ReplicaSet", "Job", "StatefulSet", "Deployment", "CronJob", "Service", ""),
			Name: w.name(),
		})
	}
}

func (w world) service() metav1.Object {
	o := &corev1.Service{ObjectMeta: w.meta(w.name())}
	for range w.IntN(4) {
		p := corev1.ServicePort{
			Port:     w.port(),
			Name:     of(w.dice, randomPortNames...),
			Protocol: of(w.dice, "", corev1.ProtocolTCP, corev1.ProtocolUDP),
		}
		p.TargetPort = of(w.dice, intstr.FromInt32(w.port()), intstr.FromString(of(w.dice, randomPortNames...)))
		o.Spec.Ports = append(o.Spec.Ports, p)
	}
	o.Spec.ClusterIP = of(w.dice, "None", w.ip(), "10.96.0."+fmt.Sprint(w.IntN(5)))
	if w.in(3) {
		o.Spec.ClusterIPs = []string{o.Spec.ClusterIP, w.ip()}
	}
	if w.in(15) {
		o.Spec.Type = corev1.ServiceTypeExternalName
	}
	if w.in(4) {
		policy := of(w.dice, corev1.ServiceInternalTrafficPolicyLocal,
			corev1.ServiceInternalTrafficPolicyCluster, "Odd")
		o.Spec.InternalTrafficPolicy = &policy
	}
	w.marks(o.Annotations, map[string][]string{"config.linkerd.io/opaque-ports": randomOpaque})
	if w.in(3) {
		w.marks(o.Annotations, map[string][]string{
			"multicluster.linkerd.io/remote-discovery": {
				"", "a@east", "b@silent", "a@east,b@east,a@nowhere", ",@,a@,@b,a@b@c", "a",
			},
			"multicluster.linkerd.io/local-discovery": {"", "a", "b", o.Name},
		})
	}
	if w.in(4) {
		w.marks(o.Labels, map[string][]string{
			"multicluster.linkerd.io/remote-discovery": {"east", "silent", "nowhere", "", home},
			"multicluster.linkerd.io/remote-service":   {"a", "b", ""},
		})
	}
	return o
}

func (w world) mirror(m *metav1.ObjectMeta) {
	if !w.in(4) {
		return
	}
	w.marks(m.Labels, map[string][]string{"mirror.linkerd.io/cluster-name": {"", "east"}})
	w.marks(m.Annotations, map[string][]string{
		"mirror.linkerd.io/remote-svc-fq-name": {"", "a", "a.ns.svc.cluster.local", "..", "."},
		"mirror.linkerd.io/remote-gateway-identity": {
			"", "gateway.linkerd-multicluster.serviceaccount.identity.linkerd.cluster.local",
		},
	})
}

func (w world) ref() *corev1.ObjectReference {
	if w.in(3) {
		return nil
	}
	return &corev1.ObjectReference{
		Kind: of(w.dice, "Pod", "Pod", "Pod", "ExternalWorkload", "Node", ""), Name: w.name(),
		Namespace: of(w.dice, "", of(w.dice, randomNamespaces...)),
	}
}

func (w world) slice() metav1.Object {
	o := &discoveryv1.EndpointSlice{ObjectMeta: w.meta(w.name() + w.name())}
	w.mirror(&o.ObjectMeta)
	if !w.in(10) {
		o.Labels[discoveryv1.LabelServiceName] = of(w.dice, "", w.name(), w.name(), w.name())
	}
	w.own(&o.ObjectMeta)
	for range w.IntN(4) {
		var p discoveryv1.EndpointPort
		if number := w.port(); !w.in(10) {
			p.Port = &number
		}
		if name := of(w.dice, randomPortNames...); !w.in(5) {
			p.Name = &name
		}
		o.Ports = append(o.Ports, p)
	}
	for range w.IntN(6) {
		e := discoveryv1.Endpoint{TargetRef: w.ref()}
		for range w.IntN(3) {
			e.Addresses = append(e.Addresses, w.ip())
		}
		for _, condition := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
			if yes := !w.in(3); w.in(2) {
				*condition = &yes
			}
		}
		if name := of(w.dice, "", "a", "b"); w.in(2) {
			e.Hostname = &name
		}
		if zone := of(w.dice, randomZones...); w.in(2) {
			e.Zone = &zone
		}
		if w.in(2) {
			e.Hints = &discoveryv1.EndpointHints{}
			for range w.IntN(3) {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: of(w.dice, randomZones...)})
			}
		}
		o.Endpoints = append(o.Endpoints, e)
	}
	return o
}

func (w world) endpoints() metav1.Object {
	o := &corev1.Endpoints{ObjectMeta: w.meta(w.name())} //nolint:staticcheck // where they are asked for
	w.mirror(&o.ObjectMeta)
	for range w.IntN(4) {
		var s corev1.EndpointSubset //nolint:staticcheck // see above
		for range w.IntN(3) {
			s.Ports = append(s.Ports, corev1.EndpointPort{Port: w.port(), Name: of(w.dice, randomPortNames...)})
		}
		for range w.IntN(4) {
			a := corev1.EndpointAddress{IP: w.ip(), Hostname: of(w.dice, "", "a", "b"), TargetRef: w.ref()}
			if w.in(4) {
				s.NotReadyAddresses = append(s.NotReadyAddresses, a)
			} else {
				s.Addresses = append(s.Addresses, a)
			}
		}
		o.Subsets = append(o.Subsets, s)
	}
	return o
}

func (w world) pod() metav1.Object {
	o := &corev1.Pod{ObjectMeta: w.meta(w.name())}
	w.own(&o.ObjectMeta)
	o.Labels["linkerd.io/control-plane-ns"] = of(w.dice, ours, ours, ours, "elsewhere", "")
	w.marks(o.Labels, map[string][]string{"pod-template-hash": {"x", ""}, "app": {"a", "b", o.Name}})
	w.marks(o.Annotations, map[string][]string{
		"config.linkerd.io/opaque-ports":       randomOpaque,
		"config.linkerd.io/skip-inbound-ports": randomOpaque,
	})
	app := corev1.Container{Name: "app"}
	for range w.IntN(3) {
		app.Ports = append(app.Ports, corev1.ContainerPort{
			Name: of(w.dice, randomPortNames...), ContainerPort: w.port(), HostPort: of(w.dice, 0, w.port()),
			Protocol: of(w.dice, corev1.ProtocolTCP, corev1.ProtocolUDP),
		})
	}
	sidecar := corev1.Container{Name: "linkerd-proxy"}
	for _, name := range []string{"INBOUND", "ADMIN", "CONTROL"} {
		addr := of(w.dice, "0.0.0.0:4143", "[::]:4191")
		if w.in(6) {
			addr = of(w.dice, "0.0.0.0:0", "0.0.0.0:65535", "", "x", "0.0.0.0:70000")
		}
		if !w.in(10) {
			sidecar.Env = append(sidecar.Env,
				corev1.EnvVar{Name: "LINKERD2_PROXY_" + name + "_LISTEN_ADDR", Value: addr})
		}
	}
	o.Spec.InitContainers, o.Spec.Containers = []corev1.Container{sidecar}, []corev1.Container{app}
	o.Spec.ServiceAccountName = of(w.dice, "", "account")
	o.Spec.NodeName, o.Spec.HostNetwork = of(w.dice, randomNodes...), w.in(5)
	o.Status.Phase = of(w.dice, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodPending,
		corev1.PodFailed, "")
	o.Status.PodIP, o.Status.HostIP = w.ip(), w.ip()
	if w.in(2) {
		o.Status.PodIPs, o.Status.HostIPs = []corev1.PodIP{{IP: o.Status.PodIP}, {IP: w.ip()}},
			[]corev1.HostIP{{IP: w.ip()}}
	}
	if w.in(6) {
		o.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	}
	return o
}

// unstructured returns what an API server would, should the definition of the resource not keep it from
// anything.
func (w world) unstructured(spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	if w.in(20) {
		o.Object["spec"] = of[any](w.dice, nil, "junk", []any{"junk"}, map[string]any{})
	}
	m := w.meta(w.name())
	o.SetNamespace(m.Namespace)
	o.SetName(m.Name)
	o.SetLabels(map[string]string{"app": of(w.dice, "a", "b")})
	return o
}

// junk returns v or, seldom, something else.
func (w world) junk(v any) any {
	if w.in(15) {
		return of[any](w.dice, nil, "junk", int64(-1), 1.5, true, []any{}, []any{nil}, map[string]any{},
			map[string]any{"junk": "junk"}, "")
	}
	return v
}

func (w world) server() metav1.Object {
	selector := func() any {
		return of[any](w.dice, nil, map[string]any{},
			map[string]any{"matchLabels": map[string]any{"app": of(w.dice, "a", "b")}},
			map[string]any{"matchExpressions": []any{map[string]any{
				"key":      "app",
				"operator": of(w.dice, "Exists", "In", "Odd"),
			}}})
	}
	spec := map[string]any{
		"port":          w.junk(of[any](w.dice, int64(w.port()), of(w.dice, randomPortNames...))),
		"proxyProtocol": w.junk(of(w.dice, "opaque", "opaque", "HTTP/1")),
	}
	if s := selector(); s != nil {
		spec["podSelector"] = w.junk(s)
	}
	if s := selector(); s != nil {
		spec["externalWorkloadSelector"] = w.junk(s)
	}
	return w.unstructured(spec)
}

func (w world) external() metav1.Object {
	port := func() any {
		return w.junk(map[string]any{
			"name":     of(w.dice, randomPortNames...),
			"port":     w.junk(int64(w.port())),
			"protocol": of(w.dice, "TCP", "UDP"),
		})
	}
	o := w.unstructured(map[string]any{
		"meshTLS": w.junk(map[string]any{
			"identity":   w.junk(of(w.dice, "spiffe://domain/a", "spiffe://domain/a", "")),
			"serverName": w.junk(of(w.dice, "server.local", "server.local", "")),
		}),
		"ports":       w.junk([]any{port(), port()}),
		"workloadIPs": w.junk([]any{map[string]any{"ip": w.ip()}, map[string]any{"ip": w.ip()}}),
	})
	if w.in(3) {
		o.SetAnnotations(map[string]string{"config.linkerd.io/opaque-ports": of(w.dice, randomOpaque...)})
	}
	var m metav1.ObjectMeta
	w.own(&m)
	o.SetOwnerReferences(m.OwnerReferences)
	return o
}

func (w world) profile() metav1.Object {
	match := func() any {
		return w.junk(map[string]any{"all": w.junk([]any{
			map[string]any{"method": "GET"}, w.junk(map[string]any{"pathRegex": "/a"}),
		})})
	}
	responses := func() any {
		return w.junk([]any{map[string]any{
			"isFailure": w.junk(true),
			"condition": map[string]any{"status": map[string]any{"min": w.junk(int64(500)), "max": w.junk(int64(599))}},
		}})
	}
	o := w.unstructured(map[string]any{
		"routes": w.junk([]any{w.junk(map[string]any{
			"name": w.junk("r"), "condition": match(), "isRetryable": w.junk(true),
			"timeout": w.junk(of(w.dice, "1s", "-1s", "9999999h", "")), "responseClasses": responses(),
		})}),
		"retryBudget": w.junk(map[string]any{
			"retryRatio":          w.junk(0.5),
			"minRetriesPerSecond": w.junk(int64(5)),
			"ttl":                 w.junk(of(w.dice, "10s", "-1s", "x")),
		}),
		"dstOverrides": w.junk([]any{w.junk(map[string]any{
			"authority": w.junk(of(w.dice, "a.ns.svc."+domain, "a:80", "[::1", "")),
			"weight":    w.junk(of[any](w.dice, "1", "500m", "-1", "9e99", int64(3))),
		})}),
	})
	o.SetName(o.GetName() + "." + of(w.dice, randomNamespaces...) + ".svc." + domain)
	return o
}

// request returns what a client may ask for: most of it makes sense.
func (w world) request(ofProfile bool) proxy.Request {
	host := w.name() + "." + of(w.dice, randomNamespaces...) + ".svc." + domain
	switch kind := w.IntN(8); {
	case kind == 0:
		host = of(w.dice, "a", "b", "missing") + "." + host
	case kind < 4 && ofProfile || kind == 1 && w.in(4):
		if host = of(w.dice, w.ip(), "10.96.0."+fmt.Sprint(w.IntN(5))); strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
	}
	r := proxy.Request{Authority: host, Scheme: of(w.dice, "", "k8s", "http:", "\x00")}
	if !w.in(10) {
		r.Authority += ":" + fmt.Sprint(w.port())
	}
	r.Token = of(w.dice, "", "", "ns:other", `{"ns":"other"}`, `{"ns":"ns","nodeName":"n1","pod":"p"}`+"\n",
		`{"nodeName":"n2"}`, `{"nodeName":"nowhere"}`, `{"nodeName":7}`, "null", "{")
	if w.in(6) {
		r.Authority = w.mutate(r.Authority)
	}
	if w.in(6) {
		r.Token = w.mutate(r.Token)
	}
	return r
}

// mutate changes a character or a few of a text.
func (w world) mutate(text string) string {
	chars := []rune(text)
	for range 1 + w.IntN(3) {
		at := w.IntN(len(chars) + 1)
		with := []rune(of(w.dice, "", ".", ":", "[", "]", "%", "0", "-", "A", "ä", "\x00", "\"", "}", "..", " ",
			"svc", "99999", "\U0001f600", strings.Repeat("x", 300)))
		chars = append(append(append([]rune{}, chars[:at]...), with...), chars[min(len(chars), at+w.IntN(3)):]...)
	}
	return string(chars)
}

// elapse lets virtual time pass, until nothing more can happen at its end.
func elapse(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}
